"""A stretch of an arena's gradients, which is sent in one message, or summed in shared memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mnpar.arena import Arena
from mnpar.backend import Array

if TYPE_CHECKING:
    from mnpar.communicators.operation import Operation
    from mnpar.communicators.shared_vectors import Vectors


class Bucket:
    """A stretch of an arena's gradients.

    Args:
        arena: where they live.
        start, stop: which of the arena's parameters are in it: from ``start`` up to, and without,
            ``stop``.
    """

    def __init__(self, arena: Arena, start: int, stop: int) -> None:
        self.params = arena.params[start:stop]
        self.homes = arena.homes[start:stop]
        self.summed = arena.summed
        self.arena = arena
        self.place = slice(arena.slices[start].start, arena.slices[stop - 1].stop)
        self.grad = arena.grad[self.place]
        self.shared: Vectors | None = (
            None  # the shared memory in which ``sent`` lives, if there is any
        )
        # what is reduced: ``grad`` itself, or a buffer of the wire dtype, the same each time
        self.sent: Array = None
        self.operation: Operation | None = None
        self.awaited = 0  # parameters whose gradients are not final yet

    def pack(self, weight: float, wire: Callable[[Array, Array], Array]) -> Array:
        """Apply the weight, and convert to the wire dtype; returns what is sent, which may be the
        gradients themselves.
        """
        if weight != 1:
            self.grad *= weight
        self.sent = wire(self.grad, self.sent)
        return self.sent

    def share(self, vectors: Vectors | None) -> None:
        """Move the gradients to shared memory; or, if they are sent in another dtype, the buffer
        for that.
        """
        self.shared = vectors
        if vectors is not None:
            self.sent = vectors.mine
            if self.sent.dtype == self.grad.dtype:
                self.arena.house(self.sent)
                self.grad = self.sent

    def unpack(self) -> None:
        """Wait for the sum, and have it in the gradients."""
        if self.operation is not None:
            self.operation.wait()
            self.operation = None
        if self.sent is not self.grad:
            self.grad[...] = self.sent
