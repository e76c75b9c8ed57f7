"""``allreduce_noted`` of the same array again and again, in two halves.

Between the halves a rank can work, and no other rank waits for it. The multi-node optimizer sums
its gradients so: what a step of it must agree on travels with them as the note.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from mnpar.backend import Array
from mnpar.communicators.communicator import Communicator
from mnpar.communicators.shared_sum import Board, Form
from mnpar.communicators.wire import UPDATE


class NotedSum:
    """:meth:`Communicator.allreduce_noted` of one array: ``begin`` publishes this rank's values
    where there is a board, ``end`` sums. Between them no other rank waits for this one.

    Args:
        comm: the ranks.
        x: the values, which become their sum; it must not change in between.
    """

    def __init__(self, comm: Communicator, x: Array) -> None:
        self._comm, self.x, self._note = comm, x, b""
        self._board: Board | None = None  # the communicator's, when it was last looked up
        self._form: Form | None = None  # of the array, on that board

    def __deepcopy__(self, memo: dict[int, Any]) -> NotedSum:
        """A sum over the same ranks, of a copy of the array."""
        return NotedSum(self._comm, copy.deepcopy(self.x, memo))

    def begin(self, note: bytes) -> None:
        """The array has this rank's values; the note goes with them."""
        board, self._note = self._comm.transport.board, note
        if board is not self._board:
            self._board, self._channel = board, self._comm.channel(0)
            self._form = None if board is None else board.form(self.x)
        if board is not None and self._form is not None:
            board.begin(self._form, self.x, note, self._channel)

    def end(self, usual: Callable[[list[bytes]], bool], later: bool = False) -> bool:
        """Sum in place if the notes are as usual; returns whether they are. ``later``: the parts of
        a vector in shared memory that other ranks add up need be there only after :meth:`rest`.
        """
        comm, board, x = self._comm, self._board, self.x
        if board is None or self._form is None:
            return comm.allreduce_noted(x, self._note, usual, x)
        summed = board.end(usual, x, self._channel, later)
        if summed is not None:
            return summed
        return self._channel.allreduce_noted(x, comm._call(UPDATE), self._note, usual, x)

    def rest(self) -> None:
        """Wait for the parts of the sum that are not there yet."""
        if self._board is not None:
            self._board.rest()
