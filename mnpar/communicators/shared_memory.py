"""Memory that the ranks of a machine have in common: one copy instead of one for each rank."""

from __future__ import annotations

import sys
from typing import Any, Protocol

import numpy as np

from mnpar.backend import Array


class SharedMemory(Protocol):
    """Bytes that all ranks of one machine read and write; each machine has its own."""

    array: Array  # (nbytes,) uint8

    def in_use(self) -> bool:
        """Whether this rank has other arrays on it."""

    def sync(self) -> None:
        """Let this rank's writes be seen, and see those of others: before and after a barrier that stands between them."""

    def free(self) -> None:
        """Give it back; all ranks, right after an exchange, when nobody has an array on it any more."""


class Root:
    """The array of all bytes: it knows whether others stand on it."""

    array: Array

    def __init__(self, buffer: Any) -> None:
        self.array = np.frombuffer(buffer, np.uint8)
        self._alone = self._references()

    def _references(self) -> int:
        return sys.getrefcount(self.array)

    def in_use(self) -> bool:
        """Whether this rank has arrays on it."""
        return self._references() > self._alone


class OwnMemory(Root):
    """The memory of thread ranks: they have it in common as it is."""

    def sync(self) -> None:
        """Threads see each other's writes."""

    def free(self) -> None:
        """The last rank's forgets it."""
        del self.array


def allocate(nbytes: int) -> memoryview:
    """Zeros."""
    return memoryview(np.zeros(max(nbytes, 1), np.uint8))  # type: ignore[arg-type]
