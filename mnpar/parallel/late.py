"""Double buffering: gradients travel while the next ones are computed, and are used one update late."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mnpar import backend
from mnpar.arena import Arenas
from mnpar.backend import Array
from mnpar.parallel.reducer import Reducer

if TYPE_CHECKING:
    from mnpar.communicators.operation import Operation


class Late:
    """Gradients that are used one update after they were computed, so that they travel during the next forward and backward."""

    def __init__(self, reducer: Reducer) -> None:
        self._reducer = reducer
        self._flying: list[tuple[Operation, Array]] = []
        self._factor = 1.0

    def reduce(self, arenas: Arenas, factor: float) -> bool:
        """Send these gradients, and put those of the update before in their place; False if there are none."""
        channel = self._reducer.channel
        grads = [*[arena.grad for arena in arenas], *[param.grad for param in arenas.strays]]
        copies = [grad.copy() for grad in grads]
        before, scale = self._flying, self._factor
        self._flying, self._factor = [(channel.iallreduce(grad, out=grad), grad) for grad in copies], factor
        if [total.shape for _, total in before] != [grad.shape for grad in grads]:
            return False  # the first update, or the first of other parameters
        for (operation, total), grad in zip(before, grads, strict=True):
            operation.wait()
            xp = backend.get_array_module(grad)
            xp.multiply(total, scale, out=grad, casting="same_kind")
        return True
