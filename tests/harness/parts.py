"""Parts of arrays, links and folders, which several files of tests look at."""

import mnpar
from mnpar.plans import block


def on_blocks(function, grid, shape):
    """Return a function of this rank's block (N, C, …) of an image of a spatial shape, and of
    whatever ``function`` takes beside the divided image; it gives this rank's part of the result.
    """

    def of_block(x, *others):
        y = function(mnpar.divided(x, grid, shape=(*x.shape[:2], *shape)), *others)
        if y.layout is None and y.ndim == x.ndim:  # one cell, which all ranks have
            y = mnpar.divided(y, grid)
        return y if y.layout is None else y.part

    return of_block


def cut(array, box):
    """Return the part of an array whose last axes are those of the box."""
    return array[(..., *[slice(a, b) for a, b in zip(box.start, box.stop, strict=True)])]


def mine(comm, n):
    """Return this rank's part of n things, cut evenly."""
    return slice(*block(n, comm.size, comm.rank))


def paths(link):
    """Return the paths of all parameters, in their order."""
    return [path for path, _ in link.namedparams()]


def names(folder):
    """Return the names of what is in a folder, sorted."""
    return sorted(path.name for path in folder.iterdir())
