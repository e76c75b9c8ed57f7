"""A repeated ``Communicator.allreduce_if`` of one array, in two halves.

Between the halves a rank can work, and no other rank waits for it. The multi-node optimizer sums
its gradients so: the ranks' records of the update travel with them as the piggyback.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from mnpar.backend import Array
from mnpar.communicators.communicator import Communicator
from mnpar.communicators.shared_sum import SharedSum, SumForm
from mnpar.communicators.wire import UPDATE


class PiggybackSum:
    """The sum of one array by :meth:`Communicator.allreduce_if`: ``begin`` publishes this rank's
    values where ranks sum in shared memory, ``end`` sums. Between them no other rank waits for this
    one.

    Args:
        comm: the ranks.
        x: the values, which become their sum; it must not change in between.
    """

    def __init__(self, comm: Communicator, x: Array) -> None:
        self._comm, self.x, self._piggyback = comm, x, b""
        self._shared: SharedSum | None = None  # that of the communicator at the last begin
        self._form: SumForm | None = None  # the array's form in it

    def __deepcopy__(self, memo: dict[int, Any]) -> PiggybackSum:
        """Return a sum over the same ranks, of a copy of the array."""
        return PiggybackSum(self._comm, copy.deepcopy(self.x, memo))

    def begin(self, piggyback: bytes) -> None:
        """Publish the array, which has this rank's values, with the piggyback."""
        shared, self._piggyback = self._comm.transport.shared_sum, piggyback
        if shared is not self._shared:
            self._shared, self._channel = shared, self._comm.channel(0)
            self._form = None if shared is None else shared.form(self.x)
        if shared is not None and self._form is not None:
            shared.begin(self._form, self.x, piggyback, self._channel)

    def end(self, accept: Callable[[list[bytes]], bool], later: bool = False) -> bool:
        """Sum in place if ``accept`` returns True for the piggybacks of all ranks.

        Args:
            accept: as in :meth:`Communicator.allreduce_if`.
            later: the parts of a vector in shared memory that other ranks add up need be there only
                after :meth:`wait_for_rest`.

        Returns:
            True if it was accepted.
        """
        comm, shared, x = self._comm, self._shared, self.x
        if shared is None or self._form is None:
            return comm.allreduce_if(x, self._piggyback, accept, x)
        summed = shared.end(accept, x, self._channel, later)
        if summed is not None:
            return summed
        return self._channel.allreduce_if(x, comm._call(UPDATE), self._piggyback, accept, x)

    def wait_for_rest(self) -> None:
        """Wait for the parts of the sum that are not there yet."""
        if self._shared is not None:
            self._shared.wait_for_rest()
