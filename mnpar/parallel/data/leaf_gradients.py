"""The gradients of leaves that are not the optimizer's own: of inputs, and of other optimizers'
parameters.

Backward starts from the loss's weight, which may have to be corrected when the ranks have met
(quiet_team.py). The gradients of the optimizer's parameters are corrected once they are summed over
ranks. Those of other leaves are not summed: they are put aside until the weight is known, and
corrected one by one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mnpar.autograd.accumulate import LeafAccumulator, copy_gradient, materialize
from mnpar.autograd.engine import run_backward
from mnpar.autograd.graph import Gradient, VariableNode
from mnpar.backend import Array
from mnpar.optimizers.parameter_cache import Members
from mnpar.variable import Variable, backward


class OtherGradients:
    """The leaves of one backward that are not the optimizer's own, each with the gradient that it
    had before.

    Args:
        members: the optimizer's own parameters.
    """

    def __init__(self, members: Members) -> None:
        self.members = members
        self.waiting: list[tuple[VariableNode, Array | None]] = []
        self.reduced: dict[
            VariableNode, Array | None
        ] = {}  # those that this backward reduces, with the gradients they had before

    def note(self, node: VariableNode) -> None:
        """A leaf is about to get a gradient: put aside what it has already, which had another
        weight.
        """
        if node in self.reduced:  # as a whole, with what it has already
            return
        before = None if node.gradient is None else materialize(node)
        if before is not None and node.grad_slot is not None and before is node.grad_slot.array:
            before = copy_gradient(before)  # the new one may be put there
        node.gradient = None
        self.waiting.append((node, before))

    def leave(self, nodes: Iterable[VariableNode]) -> None:
        """Gradients that this backward reduces, when all are there: they have their weights, and
        stay with what was there.
        """
        for node in nodes:
            self.reduced[node] = None if node.gradient is None else copy_gradient(materialize(node))

    def settle(self, factor: float = 1.0) -> None:
        """The weight is known: multiply the new gradients by this factor, and add what was put
        aside.
        """
        for node, before in self.waiting:
            if node.gradient is None:
                node.gradient = before
                continue
            g = materialize(node)
            if factor != 1:
                g *= factor
            if before is not None:
                g += before
        self.waiting.clear()
        self.reduced.clear()

    def forget(self) -> None:
        """Drop the new gradients, and bring back what was put aside: this update is computed again,
        or not at all.
        """
        for node, before in (*self.waiting, *self.reduced.items()):
            node.gradient = before
        self.waiting.clear()
        self.reduced.clear()


class Weighted:
    """A loss whose backward starts from its weight. The loss stays as it is: it may be a parameter,
    or another optimizer's too.

    Args:
        loss: a Variable.
        start: an array like it.
        others: notes the gradients that await their weight; None: it is known.
    """

    __slots__ = ("loss", "others", "start")

    def __init__(self, loss: Variable, start: Any, others: OtherGradients | None) -> None:
        self.loss, self.start, self.others = loss, start, others

    def backward(self, loss_scale: float | None = None) -> None:
        """As a loss's own."""
        others = self.others
        if others is None or self.start is None:
            backward([self.loss], [self.start], loss_scale=loss_scale)
            return
        own = others.members.nodes
        others.waiting.clear()  # an update before may have ended by an error

        def keep(node: VariableNode, g: Gradient) -> None:
            if node not in own:
                others.note(node)
            leaves.add(node, g)

        seeds = [(self.loss.node, self.start)]
        leaves = LeafAccumulator(seeds, loss_scale)
        found = run_backward(seeds, keep=keep)
        if not found.keys() <= own:
            for node in found:
                if node not in own:
                    others.note(node)
        leaves.add_all(found)
