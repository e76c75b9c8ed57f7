"""Openings among processes: a persistent allgather, set up once; before MPI 4, and with Intel MPI,
a new one for each opening.

Intel MPI's (2021.18) sends at every start what its buffer held at the first one, between 2, 4, 8, …
ranks.
"""

from __future__ import annotations

import contextlib
import os
from functools import partial
from typing import Any

from mnpar.communicators.opening_buffers import OpeningBuffer
from mnpar.communicators.operation import wait
from mnpar.communicators.transport import Pending, Waiting, nothing
from mnpar.communicators.watch import polling
from mnpar.errors import DeadlockError

_GIVEN_UP = (
    "rank {}: {} ended in an error, and the other ranks may come to it yet, so nothing else "
    "can take place on this "
    "communicator: let the error end the job, or create another communicator on all ranks"
)


class MpiOpeningBuffer(OpeningBuffer):
    """The memory of the openings of one size on one lane of a transport of processes."""

    def __init__(self, transport: Any, lane: Any, size: int) -> None:
        super().__init__(size, transport.size)
        self._transport, BYTE = transport, transport.MPI.BYTE
        buffers = [self.mine, size, BYTE], [self.whole, size, BYTE]
        self._request: Any = None
        self._start: Any = partial(self._start_anew, lane, buffers)
        if transport.MPI.get_vendor()[0] == "Intel MPI":
            return
        with contextlib.suppress(NotImplementedError):
            self._request = lane.Allgather_init(*buffers)
            self._start = self._request.Start
            self._test = self._request.Test

    def _start_anew(self, lane: Any, buffers: Any) -> None:
        self._test = lane.Iallgather(*buffers).Test

    def exchange(self) -> bool:
        self._start()
        test = self._test
        for poll in range(1 if self._transport.active else 2 * polling.spins):
            if test():
                return True
            if poll > polling.spins:
                os.sched_yield()
        return False

    def wait(self, waiting: Waiting) -> None:
        try:
            wait(
                self._transport,
                Pending(self._test, nothing, waiting, self._transport.meeting(waiting)),
            )
        except (
            BaseException
        ):  # the allgather goes on in these buffers: no other one may start there
            self._start = partial(self._refuse, waiting)
            raise

    def _refuse(self, waiting: Waiting) -> None:
        raise DeadlockError(_GIVEN_UP.format(self._transport.rank, waiting))

    def free(self) -> None:
        """Give MPI's part of it back."""
        if self._request is not None:
            self._request.Free()
