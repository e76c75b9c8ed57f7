"""Memory that the processes of one machine share."""

from __future__ import annotations

from typing import Any

from mnpar.communicators.shared_memory import Root


class Window(Root):
    """Memory that MPI lets the ranks of a machine share; its first rank has made it."""

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
        """The call waits for the others of this machine, which have come."""
        del self.array
        self._window.Unlock_all()
        self._window.Free()
