"""The gradients of one backward: added up for each variable, and told to whoever asked to hear of them.

The gradient of a leaf is *final* once the earliest function that reads the leaf has been visited: from then on a hook may have
it, and send it on its way, while backward goes on. Which function that is, a walk over the graph finds; it is made only if a
variable with hooks gets a gradient.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from typing import Any

from mnpar.backend import unscalar
from mnpar.graph import Function, Gradient, VariableNode
from mnpar.reach import earliest_readers


class Gradients:
    """Sums by variable, in place where the array is its own.

    Args:
        record: the sums are Variables, and must not change in place.
        functions: those that the loop knows, by number; it adds to them.
        keep: what becomes of the gradient of a leaf as soon as it is final; None: it stays here.
    """

    def __init__(
        self, record: bool, functions: dict[int, Function], keep: Callable[[VariableNode, Gradient], None] | None
    ) -> None:
        self.totals: dict[Any, Gradient] = {}
        self._own: set[Any] | None = None if record else set()
        self._functions, self._keep = functions, keep
        self.heard: dict[Any, VariableNode] = {}  # what functions made and hooks hear, by key
        self.awaited: list[tuple[int, int, VariableNode]] = []  # leaves that hooks hear, by their earliest reader
        self._readers: dict[VariableNode, tuple[int, int]] | None = None

    def add(self, node: VariableNode, g: Gradient) -> None:
        creator = node.creator
        key = node if creator is None else (creator.number, node.index)  # node.key, for every gradient
        old = self.totals.get(key)
        if old is None:
            self.totals[key] = g
        elif self._own is not None and key in self._own:
            old += g
        else:
            self.totals[key] = unscalar(old + g)
            if self._own is not None:
                self._own.add(key)
        if node.hooks:
            self._listen(node, key, old is None)

    def _listen(self, node: VariableNode, key: Any, first: bool) -> None:
        if node.creator is not None:
            self.heard[key] = node
        if node.creator is not None or not first:
            return
        if self._readers is None:
            self._readers = earliest_readers(self._functions)
        number, place = self._readers.get(node, (0, 0))  # 0: backward started from it
        insort(self.awaited, (number, place, node), key=lambda entry: entry[:2])

    def passed(self, number: int) -> None:
        """The functions from this number on were visited: the leaves that no earlier one reads are final."""
        while self.awaited and self.awaited[-1][0] >= number:
            node = self.awaited.pop()[2]
            g = heard(node, self.totals[node.key])
            if self._keep is None:
                self.totals[node.key] = g
            else:
                del self.totals[node.key]
                self._keep(node, g)
                for hook in node.hooks:
                    if hook.after:
                        hook.function(node)

    def pop(self, key: Any, stay: set[Any]) -> Gradient:
        """The gradient of what a function made, when the function is visited; it is kept too if it is among those that stay."""
        stays = key in stay
        g = self.totals.get(key) if stays else self.totals.pop(key, None)
        if self.heard and g is not None and key in self.heard:
            g = heard(self.heard[key], g)
            if stays:
                self.totals[key] = g
        return g


def heard(node: VariableNode, g: Gradient) -> Gradient:
    """What hooks make of a gradient."""
    for hook in node.hooks:
        if not hook.after:
            new = hook.function(g)
            if new is None:
                continue
            new = new if hasattr(g, "node") else unscalar(getattr(new, "array", new))  # an array for an array
            if (new.shape, new.dtype) != (g.shape, g.dtype):
                raise ValueError(f"a hook made a {new.shape} {new.dtype} of the {g.shape} {g.dtype} gradient that it was given")
            g = new
    return g
