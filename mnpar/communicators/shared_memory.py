"""Memory that the ranks of a machine share: one copy of the data instead of one for each rank."""

from __future__ import annotations

import os
import sys
from typing import Any, Protocol

import numpy as np

from mnpar.backend import Array

SHM = "/dev/shm"
MORE_MEMORY = "remove old files there, or start the container with --shm-size=1g"

# bytes that MPICH needs there for each rank: with less it ends by a bus error, without a word
LEAST_FOR_MPI = 5 * 2**18


class SharedMemory(Protocol):
    """Bytes that all ranks of one machine read and write; each machine has its own."""

    array: Array  # (nbytes,) uint8

    def in_use(self) -> bool:
        """Return whether other arrays of this rank refer to the memory."""

    def sync(self) -> None:
        """Make a memory barrier: ranks call it before and after they meet, so that each sees the
        writes of the others.
        """

    def free(self) -> None:
        """Free the memory; all ranks call it, right after they have met, when no array refers to it
        any more.
        """


class MemoryArray:
    """All bytes of a buffer as an array whose references are counted, to know whether other arrays
    refer to it.
    """

    array: Array

    def __init__(self, buffer: Any) -> None:
        self.array = np.frombuffer(buffer, np.uint8)
        self._alone = self._references()

    def _references(self) -> int:
        return sys.getrefcount(self.array)

    def in_use(self) -> bool:
        """Return whether other arrays of this rank refer to the memory."""
        return self._references() > self._alone


class OwnMemory(MemoryArray):
    """The memory of thread ranks, which share one address space."""

    def sync(self) -> None:
        """Do nothing: threads see each other's writes."""

    def free(self) -> None:
        """Drop this rank's reference; with the last one the memory is gone."""
        del self.array


class WindowMemory(MemoryArray):
    """The memory of processes: an MPI window, which a machine's first rank allocates, and all its
    ranks read and write.
    """

    def __init__(self, MPI: Any, window: Any, first: bool) -> None:
        self._window = window
        window.Lock_all(MPI.MODE_NOCHECK)  # for good: plain loads and stores, put in order by sync
        super().__init__(window.Shared_query(0)[0])
        if first:
            self.array.fill(0)

    def sync(self) -> None:
        """Call MPI's memory barrier, which does not wait."""
        self._window.Sync()

    def free(self) -> None:
        """Free the window. MPI's call blocks until all ranks of the machine have made it; all of
        them are here.
        """
        del self.array
        self._window.Unlock_all()
        self._window.Free()


def free_memory() -> int | None:
    """Return the bytes of shared memory that this machine has left; None: they cannot be seen."""
    try:
        left = os.statvfs(SHM)
    except (OSError, AttributeError):  # another system
        return None
    return left.f_bavail * left.f_frsize


def allocate(nbytes: int) -> memoryview:
    """Return a buffer of zeros."""
    return memoryview(np.zeros(max(nbytes, 1), np.uint8))  # type: ignore[arg-type]
