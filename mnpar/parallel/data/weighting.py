"""The weight of a rank's loss among the losses of all ranks.

A loss is a mean over n samples. Backward starts from its weight, n over a divisor that all ranks
know, so the sum of the ranks' gradients is that of the mean over all N samples, or differs from it
by one factor, which is known when the ranks have told each other their n.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from mnpar import backend
from mnpar.autograd.accumulate import LeafAccumulator, copy_gradient, materialize
from mnpar.autograd.engine import run_backward
from mnpar.autograd.graph import Gradient, VariableNode
from mnpar.autograd.observer import observer
from mnpar.backend import Array
from mnpar.optimizers.parameter_cache import ParameterCache
from mnpar.parameter import Parameter
from mnpar.variable import Variable, backward


def own_weight(loss: Any, samples: float, how: str) -> float:
    """Return a rank's weight before it is divided by those of all ranks: -1 if it has a loss of
    unknown many samples.
    """
    array = getattr(loss, "array", None)
    if samples == 0 or array is None or not array.size:
        return 0.0
    return samples if how == "weighted" else 1.0


def is_finite(loss: Any) -> bool:
    """Return whether a loss is neither NaN nor infinite; True if that cannot be seen at once."""
    array = loss.array
    if type(array) is not np.ndarray or array.size != 1:
        return True
    value = array.item()
    return bool(value - value == 0)


def weighted(
    loss: Any, own: float, weight: float, scale: float | None, others: UnownedGradients | None
) -> Any:
    """Return a loss whose backward starts from the weight instead of from 1.

    A loss of no samples may be NaN, and is left out. A loss that is not known yet, as a pipeline's,
    starts from 0: other ranks count on this one for it.

    Args:
        loss: this rank's.
        own: what :func:`own_weight` returned.
        weight: of the loss.
        scale: the loss scale.
        others: puts aside the gradients that must wait for the factor; None: the weight is final.
    """
    if own == 0:
        if getattr(loss, "array", None) is None or not loss.array.size:
            return loss
        if isinstance(loss, Variable):
            return None
        weight = 0.0
    if isinstance(loss, Variable):
        return WeightedLoss(loss, _start_of(loss, weight, scale), others)
    if loss.grad is not None:
        loss.grad = backend.wrap_scalar(loss.grad * loss.dtype.type(weight))
    elif loss.size == 1:
        loss.grad = loss.xp.full_like(loss.array, weight * (scale or 1.0))
    return loss


def _start_of(loss: Variable, weight: float, scale: float | None) -> Array | None:
    """Return what backward starts from; None if it cannot start."""
    array = loss.array
    if loss.node.gradient is not None and not isinstance(loss, Parameter):
        return backend.wrap_scalar(loss.grad * array.dtype.type(weight))
    if array.size == 1:
        return backend.get_array_module(array).array(
            weight * (scale or 1.0), array.dtype, ndmin=array.ndim
        )
    return None


class UnownedGradients:
    """The gradients of leaves that the optimizer does not own: of inputs, and of other optimizers'
    parameters.

    They are not summed over ranks, so the factor that corrects the sum has to reach them one by
    one. Until it is known, a gradient from before this backward is put aside.

    Args:
        owned: the optimizer's own parameters.
    """

    def __init__(self, owned: ParameterCache) -> None:
        self.owned = owned
        self._waiting: list[tuple[VariableNode, Array | None]] = []  # with the gradient from before
        # leaves that this backward reduces itself, with the gradient from before
        self._reduced: dict[VariableNode, Array | None] = {}

    def put_aside(self, node: VariableNode) -> None:
        """Put aside the gradient of a leaf that is about to get another one."""
        if node in self._reduced:
            return
        before = None if node.gradient is None else materialize(node)
        if before is not None and node.grad_slot is not None and before is node.grad_slot.array:
            before = copy_gradient(before)  # the new one may be put there
        node.gradient = None
        self._waiting.append((node, before))

    def leave(self, nodes: Iterable[VariableNode]) -> None:
        """Leave the gradients alone that this backward reduces, with their own weights."""
        for node in nodes:
            if node not in self.owned.nodes:
                self._reduced[node] = (
                    None if node.gradient is None else copy_gradient(materialize(node))
                )

    def settle(self, factor: float = 1.0) -> None:
        """Multiply the new gradients by the factor, and add what was put aside."""
        for node, before in self._waiting:
            if node.gradient is None:
                node.gradient = before
                continue
            g = materialize(node)
            if factor != 1:
                g *= factor
            if before is not None:
                g += before
        self._waiting.clear()
        self._reduced.clear()

    def forget(self) -> None:
        """Drop the new gradients, and bring back those from before."""
        for node, before in (*self._waiting, *self._reduced.items()):
            node.gradient = before
        self._waiting.clear()
        self._reduced.clear()


class WeightedLoss:
    """A loss whose backward starts from its weight. The loss itself stays as it is: it may be a
    parameter, or another optimizer's too.

    Args:
        loss: a Variable.
        start: an array like it.
        others: puts aside the gradients that must wait for the factor; None: the weight is final.
    """

    __slots__ = ("loss", "others", "start")

    def __init__(self, loss: Variable, start: Any, others: UnownedGradients | None) -> None:
        self.loss = loss
        self.start = start
        self.others = others

    def backward(self, loss_scale: float | None = None) -> None:
        """Backpropagate, as the loss's own method does."""
        others = self.others
        if others is None or self.start is None:
            backward([self.loss], [self.start], loss_scale=loss_scale)
            return
        owned = others.owned.nodes

        def keep(node: VariableNode, g: Gradient) -> None:
            if node not in owned:
                others.put_aside(node)
            leaves.add(node, g)

        watching = observer()
        if watching is not None:
            watching.backward_begins()
        seeds = [(self.loss.node, self.start)]
        leaves = LeafAccumulator(seeds, loss_scale)
        found = run_backward(seeds, on_final=keep, loss_scale=loss_scale)
        if not found.keys() <= owned:
            for node in found:
                if node not in owned:
                    others.put_aside(node)
        leaves.add_all(found)
        if watching is not None:
            watching.backward_ends([(self.loss.array, self.start)], loss_scale)
