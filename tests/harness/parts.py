"""What several files of tests take of arrays, links and folders."""

from mnpar.plans import block


def cut(array, box):
    """The part of an array whose last axes are those of the box."""
    return array[(..., *[slice(a, b) for a, b in zip(box.start, box.stop, strict=True)])]


def mine(comm, n):
    """The part of n things, cut evenly, that is this rank's."""
    return slice(*block(n, comm.size, comm.rank))


def paths(link):
    """Of all parameters, in their order."""
    return [path for path, _ in link.namedparams()]


def names(folder):
    """Of what is in a folder."""
    return sorted(path.name for path in folder.iterdir())
