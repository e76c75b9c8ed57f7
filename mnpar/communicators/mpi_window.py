"""Memory that the processes of one machine share: a window of MPI's."""

from __future__ import annotations

from typing import Any

from mnpar.communicators.shared_memory import MemoryArray


class Window(MemoryArray):
    """A window that is allocated on the first rank of a machine, and that all its ranks read and write."""

    def __init__(self, MPI: Any, window: Any, first: bool) -> None:
        self._window = window
        window.Lock_all(MPI.MODE_NOCHECK)  # for good: plain loads and stores, put in order by sync
        super().__init__(window.Shared_query(0)[0])
        if first:
            self.array.fill(0)

    def sync(self) -> None:
        """MPI's memory barrier; it does not wait."""
        self._window.Sync()

    def free(self) -> None:
        """Free the window: MPI's call blocks until the other ranks of the machine make it, which are all here."""
        del self.array
        self._window.Unlock_all()
        self._window.Free()
