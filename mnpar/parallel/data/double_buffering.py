"""Double buffering: gradients travel while the next ones are computed, and are used one update
late.
"""

from __future__ import annotations

import copy
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from mnpar import backend
from mnpar.backend import Array
from mnpar.optimizers.flat_buffers import FlatBuffers
from mnpar.parallel.data.reducer import Reducer
from mnpar.serializer import AbstractSerializer

if TYPE_CHECKING:
    from mnpar.communicators.operation import Operation


class DoubleBuffering:
    """Gradients that are used one update after they were computed, so that they travel during the
    next forward and backward.
    """

    def __init__(self, reducer: Reducer) -> None:
        self._reducer = reducer
        # none yet; without an operation: loaded, so arrived
        self._flying: list[tuple[Operation | None, Array]] | None = None
        self._factor = 1.0

    def __deepcopy__(self, memo: dict[int, Any]) -> DoubleBuffering:
        """Return a copy without the gradients under way: its first update takes no step."""
        return DoubleBuffering(copy.deepcopy(self._reducer, memo))

    def reduce(self, buffers: FlatBuffers, factor: float, loss_scale: float) -> bool:
        """Start to reduce these gradients, and replace them by those of the update before; False if
        there are none.

        The latter are brought to this update's loss scale, by which the caller will divide: their
        own may have been another.
        """
        self._reducer.note(buffers)
        places = [(buffer.summed, buffer.grad) for buffer in buffers.learning]
        places += [(param.summed, param.grad) for param in buffers.aliased]
        channels = [self._reducer.channel_of(summed) for summed, _ in places]
        grads = [grad for _, grad in places]
        copies = [grad.copy() for grad in grads]
        before, scale = self._flying, self._factor * loss_scale
        self._flying = [
            (channel.iallreduce(grad, out=grad), grad)
            for channel, grad in zip(channels, copies, strict=True)
        ]
        self._factor = factor / loss_scale
        if before is None or [total.shape for _, total in before] != [grad.shape for grad in grads]:
            # the first update, also of a part without parameters, or the first of other parameters
            return False
        for (operation, total), grad in zip(before, grads, strict=True):
            if operation is not None:
                operation.wait()
            xp = backend.get_array_module(grad)
            xp.multiply(backend.to_device_of(total, grad), scale, out=grad, casting="same_kind")
        return True

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Save or load the gradients that are under way: they have arrived then, and all ranks have
        the same.
        """
        flying = self._flying or []
        for operation, _ in flying:
            if operation is not None:
                operation.wait()
        # saved by an optimizer that is not late: the next update is the first
        with suppress(KeyError):
            count = int(serializer("n", -1 if self._flying is None else len(flying)))
            totals = [total for _, total in flying] if count == len(flying) else [None] * count
            self._flying = (
                None
                if count < 0
                else [(None, serializer(str(i), total)) for i, total in enumerate(totals)]
            )
            self._factor = float(serializer("factor", self._factor))
