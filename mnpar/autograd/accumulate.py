"""Who owns the memory of gradients: functions hand on the arrays they get and views of them, but a
leaf's gradient is its own.

A program may change a leaf's gradient in place, so it shares no memory with another leaf's, nor
with the arrays that backward started from. Views that do not overlap and together fill an array, as
those that ``concat`` hands on, keep that array. Where several leaves would get the same array (``x
+ y``), or an axis is broadcast (a sum), the copy is made when a program reads ``grad``, if ever.
All other shared arrays are copied at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from mnpar import backend
from mnpar.autograd.graph import Gradient, VariableNode
from mnpar.backend import Array, add_gradients

SMALL = 2**12  # elements: copying fewer costs less than finding out whether a copy is needed


class LeafAccumulator:
    """Adds the gradients of one backward to those that leaves have.

    Args:
        seeds: what backward starts from: these arrays belong to the program, and no leaf may own
            one.
        loss_scale: of this backward; noted on the leaves, whose optimizers divide by it.
    """

    def __init__(
        self, seeds: Iterable[tuple[VariableNode, Gradient]], loss_scale: float | None
    ) -> None:
        self._seeds, self._loss_scale = seeds, loss_scale

    def add(self, node: VariableNode, g: Gradient) -> None:
        """Add a final gradient while backward goes on: copied, because functions to be visited may
        hold the same array.
        """
        if self._is_first(node, g):
            node.gradient = copy_gradient(g)

    def add_all(self, found: dict[VariableNode, Gradient]) -> None:
        """Add the other gradients at the end of backward."""
        first: dict[VariableNode, Gradient] = {}
        for node, g in found.items():
            slot = node.grad_slot
            # it was computed right there
            if slot is not None and g is slot.array and node.gradient is None:
                node.gradient = g
                node.loss_scale = self._loss_scale
                slot.reserved = False
            elif self._is_first(node, g):
                first[node] = g
        if first:
            self._settle(first)

    def _settle(self, found: dict[VariableNode, Gradient]) -> None:
        """Give each of the nodes, none of which has a gradient yet, an array of its own."""
        taken, views = buffer_ids([g for _, g in self._seeds]), []
        firsts: dict[
            int, VariableNode
        ] = {}  # by the id of an array: the first node that got it, or a copy of it
        for node, g in found.items():
            # nearly always
            if type(g) is np.ndarray and g.base is None and firsts.setdefault(id(g), node) is node:
                node.gradient = copy_gradient(g) if id(g) in taken else g
            elif g.size < SMALL:
                node.gradient = copy_gradient(g)
            elif id(g) in firsts:
                node.gradient = share(firsts[id(g)], node)
            else:
                views.append(node)
        if views:
            taken.update(firsts)
            for node, g in zip(
                views, copy_shared([found[node] for node in views], taken, late=True), strict=True
            ):
                node.gradient = g

    def _is_first(self, node: VariableNode, g: Gradient) -> bool:
        """Add ``g`` to the node's gradient; True if the node has none yet, so that the caller has
        to give it one.
        """
        # an output may be a constant, or a leaf: it has its seed already
        if not node.requires_grad or g is node.gradient:
            return False
        node.loss_scale = self._loss_scale
        if node.grad_slot is not None and node.grad_slot.accumulate(node, g):
            return False
        if node.gradient is None:
            return True
        node.gradient = add_gradients(node.gradient, g)
        return False


def copy_shared(gs: Sequence[Gradient], taken: set[int], late: bool = False) -> list[Gradient]:
    """The gradients (or Nones), copied where their memory is shared with another of them or with
    arrays of other owners.

    Args:
        gs: gradients: arrays, Variables or None.
        taken: :func:`memory_of` the arrays of other owners; the ids of arrays that are handed out
            uncopied are added.
        late: copy a broadcast gradient only when a program reads it (:class:`LateCopy`).

    Example:
        >>> import numpy as np
        >>> g = np.ones(3)
        >>> a, b = own([g, g], set())
        >>> a is g, np.shares_memory(a, b)
        (True, False)
    """
    results = list(gs)
    views = dict[int, list[int]]()
    for i, g in enumerate(gs):
        if g is None:
            continue
        x = getattr(g, "array", g)
        if x.base is None and id(x) not in taken:
            taken.add(id(x))
        elif x.base is None or x.size < SMALL:
            results[i] = copy_gradient(g)
        else:
            views.setdefault(id(x.base), []).append(i)
    for memory, places in views.items():
        stay = 0
        if memory not in taken:
            parts: list[Any] = [getattr(gs[i], "array", gs[i]) for i in places]
            # the first, if it shows it all
            stay = len(parts) if _fill(parts) else int(len(parts) > 1 and _fill(parts[:1]))
        for i in places[stay:]:
            results[i] = copy_lazily(gs[i]) if late else copy_gradient(gs[i])
    return results


@contextmanager
def without_slots(nodes: Sequence[VariableNode]) -> Iterator[None]:
    """Inside a ``with`` block the nodes have no slots: their gradients are results, and must not be
    computed into an arena.
    """
    slots = [node.grad_slot for node in nodes]
    for node in nodes:
        node.grad_slot = None
    try:
        yield
    finally:
        for node, slot in zip(nodes, slots, strict=True):
            node.grad_slot = slot


def buffer_ids(gs: Iterable[Gradient]) -> set[int]:
    """The ids of the arrays that own the gradients' memory."""
    arrays: list[Any] = [getattr(g, "array", g) for g in gs]
    return {id(x if x.base is None else x.base) for x in arrays}


def copy_gradient(g: Gradient) -> Gradient:
    """A copy of an array; of a Variable, another Variable with a copy of its array and the same
    node.
    """
    return g.of(g.array.copy(order="K"), g.node) if hasattr(g, "node") else g.copy(order="K")


class CopyOnRead:
    """A gradient that several nodes share, or that is broadcast, until a program reads it: then the
    node gets its own array.

    Args:
        array: shared, and therefore never changed in place.
        holders: the ids of the nodes that share it; empty for a broadcast gradient.
    """

    __slots__ = ("array", "holders")

    def __init__(self, array: Array, holders: set[int]) -> None:
        self.array, self.holders = array, holders

    def __add__(self, other: Array) -> Array:
        return self.array + other


def share(first: VariableNode, node: VariableNode) -> CopyOnRead:
    """The :class:`LateCopy` that ``first``, which has the array, and ``node`` share from now on."""
    if not isinstance(first.gradient, CopyOnRead):
        first.gradient = CopyOnRead(first.gradient, {id(first)})
    first.gradient.holders.add(id(node))
    return first.gradient


def copy_lazily(g: Gradient) -> Gradient:
    """A copy; of a broadcast array one without the repetitions, which are made when a program reads
    it.

    Example:
        >>> import numpy as np
        >>> copied_late(np.broadcast_to(np.ones(2), (1000, 2))).array.base.shape
        (1, 2)
    """
    if hasattr(g, "node") or getattr(g.flags, "writeable", True) or 0 not in g.strides:
        return copy_gradient(g)
    core = g[tuple([slice(0, 1) if step == 0 else slice(None) for step in g.strides])].copy()
    return CopyOnRead(backend.get_array_module(g).broadcast_to(core, g.shape), set())


def materialize(node: VariableNode) -> Array:
    """The array of a node's gradient, writable: a copy of a shared one, but for the last of its
    holders.
    """
    g: Any = node.gradient
    if not isinstance(g, CopyOnRead):
        array: Array = getattr(g, "array", g)
        return array
    last = g.holders == {id(node)}
    node.gradient = array = g.array if last else g.array.copy(order="K" if g.holders else "C")
    # last: this thread no longer reads g.array, whose next holder may take it
    g.holders.discard(id(node))
    return array


def _fill(parts: list[Array]) -> bool:
    """Whether views of one array do not overlap, and leave at most an eighth of it unused: memory
    kept alive for nothing.
    """
    base: Any = parts[0].base
    nbytes = getattr(base, "nbytes", 0)
    shown = sum([g.nbytes for g in parts])
    if not 7 * nbytes <= 8 * shown <= 8 * nbytes or base.base is not None:
        return False
    if not all([_each_its_own(g) for g in parts]):
        return False
    # to compare each with each would take longer than to copy
    if len(parts) > 1 and len(parts) ** 2 * 2**12 > base.nbytes:
        return False
    shared = backend.get_array_module(base).shares_memory
    return not any([shared(g, h) for i, g in enumerate(parts) for h in parts[:i]])


def _each_its_own(g: Array) -> bool:
    """Whether no two elements share memory, as in a broadcast array: numpy makes those read-only,
    CuPy does not.
    """
    if (writeable := getattr(g.flags, "writeable", None)) is not None:
        return bool(writeable)
    return all([step != 0 or n < 2 for step, n in zip(g.strides, g.shape, strict=True)])
