"""A stretch of an arena's gradients, which travels as one message, or is summed where it lives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mnpar.arena import Arena
from mnpar.backend import Array

if TYPE_CHECKING:
    from mnpar.communicators.operation import Operation
    from mnpar.communicators.vectors import Vectors
    from mnpar.parallel.reducer import Reducer


class Bucket:
    """A stretch of an arena's gradients.

    Args:
        arena: where they live.
        start, stop: the numbers of the parameters in it.
    """

    def __init__(self, arena: Arena, start: int, stop: int) -> None:
        self.params, self.homes, self.summed = arena.params[start:stop], arena.homes[start:stop], arena.summed
        self.arena, self.place = arena, slice(arena.slices[start].start, arena.slices[stop - 1].stop)
        self.grad = arena.grad[self.place]
        self.shared: Vectors | None = None  # what travels, in memory that all ranks have in common
        self.sent: Array = None  # by an operation, or to be sent: the same each time
        self.operation: Operation | None = None
        self.awaited = 0  # parameters whose gradients are not final yet

    def pack(self, reducer: Reducer) -> Array:
        """What is sent: the gradients themselves, if they travel as they are."""
        if reducer.weight != 1:
            self.grad *= reducer.weight
        self.sent = reducer.wire(self.grad, self.sent)
        return self.sent

    def share(self, vectors: Vectors | None) -> None:
        """Let the gradients live in memory that all ranks have in common; or what is sent, where that is something else."""
        self.shared = vectors
        if vectors is not None:
            self.sent = vectors.mine
            if self.sent.dtype == self.grad.dtype:
                self.arena.house(self.sent)
                self.grad = self.sent

    def unpack(self) -> None:
        """Wait for the sums."""
        if self.operation is not None:
            self.operation.wait()
            self.operation = None
        if self.sent is not self.grad:
            self.grad[...] = self.sent
