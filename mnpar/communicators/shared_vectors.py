"""A vector for each rank of a machine, in shared memory that all of them read and write: an unnamed
file, mapped by all ranks.

The memory lives as long as any array on any rank refers to it: no call of all ranks is needed to
free it.
"""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from mnpar.backend import Array
from mnpar.communicators.reduction import reduce_arrays

if TYPE_CHECKING:
    from mnpar.communicators.objects import Objects

_IN_MEMORY = "/dev/shm"
_BLOCK = (
    2**17
    # bytes that are added up at a time: with the same block of each rank's vector they stay in the
    # cache
)
_LINE = 64  # bytes of a cache line


class Vectors:
    """The vectors of all ranks, of one dtype and length.

    Args:
        arrays: one for each rank.
        rank: this one.
        number: above 0; tells these vectors from others of the same ranks, and is the same on all
            of them.
    """

    def __init__(self, arrays: list[Array], rank: int, number: int) -> None:
        self.arrays = arrays
        self.mine = arrays[rank]
        self.number = number
        size = self.mine.size
        ranks = len(arrays)
        line = _LINE // self.mine.itemsize
        start, stop = [
            size * r // ranks // line * line if r < ranks else size for r in (rank, rank + 1)
        ]
        # what this rank adds up, and what is before and after it:
        self.parts = [slice(start, stop), slice(0, start), slice(stop, size)]
        step = _BLOCK // self.mine.itemsize
        places = [slice(at, min(at + step, stop)) for at in range(start, stop, step)]
        self._blocks = [[array[place] for array in arrays] for place in places]
        self._rank, self._total = rank, None if rank < 2 else np.empty(step, self.mine.dtype)
        self.form: Any = None  # how a Board sums them, set by it

    def __deepcopy__(self, memo: dict[int, Any]) -> Vectors:
        """Itself: a copied model's gradients live elsewhere."""
        return self

    def add_up(self) -> None:
        """Write the sum of this rank's part, in rank order, to all vectors."""
        for block in self._blocks:
            # the first two ranks can sum in place: their blocks are read before they are written
            mine = block[self._rank]
            total = reduce_arrays(
                block, "sum", mine if self._total is None else self._total[: mine.size]
            )
            for array in block:
                if array is not total:
                    array[...] = total


def share_vectors(comm: Objects, like: Array, number: int) -> Vectors | None:
    """Vectors like ``like``, which is one-dimensional; all ranks call it. None if the memory cannot
    be had.

    Each rank allocates the pages of its own vector: with several memory nodes (NUMA) they are on
    the one near that rank.
    """
    length = -(-like.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    file = _create(comm.size * length) if comm.rank == 0 else -1
    path, which = comm.bcast_obj(
        (f"/proc/{os.getpid()}/fd/{file}", _which(file)) if file >= 0 else ("", None)
    )
    mapped: Any = None
    try:
        if (
            path
            and (file := file if comm.rank == 0 else os.open(path, os.O_RDWR)) >= 0
            and _which(file) == which
        ):
            # an error now, and not when it is written
            os.posix_fallocate(file, comm.rank * length, length)
            mapped = mmap.mmap(file, comm.size * length)
    except OSError:
        pass  # processes that may not see each other, or no memory left
    there = comm.allreduce_obj(mapped is not None, "min")
    if file >= 0:
        os.close(file)
    if not there:
        return None
    arrays = [
        np.ndarray(like.shape, like.dtype, mapped, rank * length) for rank in range(comm.size)
    ]
    return Vectors(arrays, comm.rank, number)


def _create(nbytes: int) -> int:
    """A file that never has a name, so that nothing is left of it however the job ends; -1: there
    is no room for it.
    """
    try:
        file = os.open(_IN_MEMORY, os.O_RDWR | os.O_TMPFILE, 0o600)
    except (OSError, AttributeError):  # another system
        return -1
    left = os.statvfs(_IN_MEMORY)
    if left.f_bavail * left.f_frsize < 2 * nbytes:  # others want some too, MPI among them
        os.close(file)
        return -1
    os.ftruncate(file, nbytes)
    return file


def _which(file: int) -> tuple[int, int]:
    """The identity of an open file: in another container the path of a process's descriptor may
    lead to another file.
    """
    found = os.fstat(file)
    return found.st_dev, found.st_ino
