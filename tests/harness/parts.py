"""Parts of arrays, links and folders, which several files of tests look at."""

from mnpar.plans import block


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
