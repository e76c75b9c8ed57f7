"""Aliasing rules for the gradients of leaves: each leaf's gradient is an array of its own.

Functions pass on the arrays that they get, and views of them. A program, however, may change the
gradient of a leaf in place. So that gradient must share no memory with another leaf's gradient, nor
with the arrays that backward started from. This file copies where memory is shared:

* Views that do not overlap, and together fill an array, keep it: ``concat`` passes on such views.
* If several leaves would get the same array (``x + y``), or one axis is broadcast (a sum), the copy
  is made when a program reads ``grad``, if ever (:class:`CopyOnRead`).
* All other shared arrays are copied at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from mnpar import backend
from mnpar.autograd.arraylike import ArrayLike
from mnpar.autograd.graph import Gradient, VariableNode
from mnpar.autograd.unclaimed import note_unclaimed
from mnpar.backend import Array, add_gradients

SMALL = 2**12  # elements: to copy fewer costs less than to find out whether a copy is needed
AnyGradient = TypeVar("AnyGradient", Array, ArrayLike, Gradient)


class LeafAccumulator:
    """Adds the gradients of one backward to those that leaves have.

    Args:
        seeds: what backward starts from: these arrays belong to the program, and no leaf may own
            one.
        loss_scale: of this backward; recorded on the leaves, whose optimizers divide by it.

    Attributes:
        synchronized: whether ranks sum the gradient that was added last.
    """

    def __init__(
        self, seeds: Iterable[tuple[VariableNode, Gradient]], loss_scale: float | None
    ) -> None:
        self._seeds = seeds
        self._loss_scale = loss_scale
        self.synchronized = False

    def add(self, node: VariableNode, g: Gradient) -> None:
        """Add a final gradient while backward goes on: as a copy, because functions that backward
        has still to visit may hold the same array.
        """
        if self._is_first(node, g):
            node.gradient = copy_gradient(g)

    def add_all(self, gradients: dict[VariableNode, Gradient]) -> None:
        """Add the other gradients at the end of backward."""
        first: dict[VariableNode, Gradient] = {}
        slot = None
        for node, g in gradients.items():
            slot = node.grad_slot
            # the function's backward computed it right there
            if slot is not None and g is slot.array and node.gradient is None:
                node.gradient = g
                node.loss_scale = self._loss_scale
                slot.reserved = False
            elif self._is_first(node, g):
                first[node] = g
        if first:
            self._store_first(first)
            note_unclaimed(first)
        self.synchronized = slot is not None and slot.synchronized

    def _is_first(self, node: VariableNode, g: Gradient) -> bool:
        """Return True if the node has no gradient yet, and the caller has to give it an array for
        ``g``; otherwise add ``g`` to the node's gradient.
        """
        # an output may be a constant, or a leaf, which has its seed already
        if not node.requires_grad or g is node.gradient:
            return False
        node.loss_scale = self._loss_scale
        if node.grad_slot is not None and node.grad_slot.accumulate(node, g):
            return False
        if node.gradient is None:
            return True
        node.gradient = add_gradients(node.gradient, g)
        return False

    def _store_first(self, gradients: dict[VariableNode, Gradient]) -> None:
        """Give each of the nodes, none of which has a gradient yet, an array of its own."""
        taken = buffer_ids([g for _, g in self._seeds])
        views: list[VariableNode] = []
        owners: dict[int, VariableNode] = {}  # by the id of an array: the first node that got it
        for node, g in gradients.items():
            # nearly always
            if type(g) is np.ndarray and g.base is None and owners.setdefault(id(g), node) is node:
                node.gradient = copy_gradient(g) if id(g) in taken else g
            elif g.size < SMALL:
                node.gradient = copy_gradient(g)
            elif id(g) in owners:
                node.gradient = share(owners[id(g)], node)
            else:
                views.append(node)
        if views:
            taken.update(owners)
            gs = copy_shared([gradients[node] for node in views], taken, on_read=True)
            for node, own in zip(views, gs, strict=True):
                node.gradient = own


def copy_shared(gs: Sequence[Gradient | None], taken: set[int], on_read: bool = False) -> list[Any]:
    """Return the gradients, copied where their memory is shared with another of them or with arrays
    of other owners.

    Args:
        gs: gradients or None.
        taken: the :func:`buffer_ids` of arrays of other owners; the ids of arrays that are returned
            uncopied are added.
        on_read: copy a broadcast gradient only when a program reads it (:class:`CopyOnRead`).

    Example:
        >>> import numpy as np
        >>> g = np.ones(3)
        >>> a, b = copy_shared([g, g], set())
        >>> a is g, np.shares_memory(a, b)
        (True, False)
    """
    results: list[Any] = list(gs)
    views = dict[int, list[int]]()
    for i, g in enumerate(gs):
        if g is None:
            continue
        x = _array_of(g)
        if x.base is None and id(x) not in taken:
            taken.add(id(x))
        elif x.base is None or x.size < SMALL:
            results[i] = copy_gradient(g)
        else:
            views.setdefault(id(x.base), []).append(i)
    for buffer, places in views.items():
        uncopied = 0
        if buffer not in taken:
            parts = [_array_of(results[i]) for i in places]
            if _fill(parts):
                uncopied = len(parts)
            elif len(parts) > 1 and _fill(parts[:1]):  # the first shows all of the array
                uncopied = 1
        for i in places[uncopied:]:
            results[i] = copy_unrepeated(results[i]) if on_read else copy_gradient(results[i])
    return results


def buffer_ids(gs: Iterable[Gradient]) -> set[int]:
    """Return the ids of the arrays that own the gradients' memory."""
    ids = set()
    for g in gs:
        x: Any = getattr(g, "array", g)
        ids.add(id(x if x.base is None else x.base))
    return ids


def copy_gradient(g: AnyGradient) -> AnyGradient:
    """Return a copy of an array; of a Variable another one, with a copy of the array and the same
    node.
    """
    if isinstance(g, ArrayLike):
        variable: Any = g
        copied: AnyGradient = variable.of(variable.array.copy(order="K"), variable.node)
        return copied
    return g.copy(order="K")


class CopyOnRead:
    """A gradient that several nodes share, or that is broadcast. When a program reads it, the node
    gets an array of its own (:func:`materialize`).

    Args:
        array: shared, and therefore never changed in place.
        holders: the ids of the nodes that share it; empty for a broadcast gradient.
    """

    __slots__ = ("array", "holders")

    def __init__(self, array: Array, holders: set[int]) -> None:
        self.array = array
        self.holders = holders

    def __add__(self, other: Array) -> Any:
        return self.array + other


def share(first: VariableNode, node: VariableNode) -> CopyOnRead:
    """Return the :class:`CopyOnRead` that ``first``, which has the array, and ``node`` share from
    now on.
    """
    shared = first.gradient
    if not isinstance(shared, CopyOnRead):
        shared = first.gradient = CopyOnRead(first.gradient, {id(first)})
    shared.holders.add(id(node))
    return shared


def copy_unrepeated(g: Gradient) -> Gradient | CopyOnRead:
    """Return a copy; of a broadcast array one without the repetitions, which are made when a
    program reads it.

    Example:
        >>> import numpy as np
        >>> copy_unrepeated(np.broadcast_to(np.ones(2), (1000, 2))).array.base.shape
        (1, 2)
    """
    if isinstance(g, ArrayLike) or getattr(g.flags, "writeable", True) or 0 not in g.strides:
        return copy_gradient(g)
    core: backend.Index = tuple([slice(0, 1) if step == 0 else slice(None) for step in g.strides])
    return CopyOnRead(backend.get_array_module(g).broadcast_to(g[core].copy(), g.shape), set())


def materialize(node: VariableNode) -> Array:
    """Return the array of a node's gradient, writable: a copy of a shared one, except for the last
    node that shares it.
    """
    g = node.gradient
    if not isinstance(g, CopyOnRead):
        return _array_of(g)
    last = g.holders == {id(node)}
    array = g.array if last else g.array.copy(order="K" if g.holders else "C")
    node.gradient = array
    # the last step: this thread no longer reads g.array, which its next holder may own
    g.holders.discard(id(node))
    return array


@contextmanager
def without_slots(nodes: Sequence[VariableNode]) -> Iterator[None]:
    """Take the nodes' slots away inside a ``with`` block: their gradients are results there, and
    must not be computed into a flat buffer.
    """
    slots = [node.grad_slot for node in nodes]
    for node in nodes:
        node.grad_slot = None
    try:
        yield
    finally:
        for node, slot in zip(nodes, slots, strict=True):
            node.grad_slot = slot


def _array_of(g: Any) -> Array:
    array: Array = getattr(g, "array", g)
    return array


def _fill(parts: list[Array]) -> bool:
    """Return whether views of one array do not overlap, and leave at most an eighth of it unused:
    memory kept alive for nothing.
    """
    base: Any = parts[0].base
    nbytes = getattr(base, "nbytes", 0)
    shown = sum([g.nbytes for g in parts])
    # another library's object (a tensor) may own the memory
    if not 7 * nbytes <= 8 * shown <= 8 * nbytes or getattr(base, "base", None) is not None:
        return False
    if not all([_is_unrepeated(g) for g in parts]):
        return False
    # to compare each with each would take longer than to copy
    if len(parts) > 1 and len(parts) ** 2 * 2**12 > base.nbytes:
        return False
    shared = backend.get_array_module(base).shares_memory
    return not any([shared(g, h) for i, g in enumerate(parts) for h in parts[:i]])


def _is_unrepeated(g: Array) -> bool:
    """Return whether no two elements share memory, as they do in a broadcast array: numpy makes
    those read-only, CuPy does not.
    """
    if (writeable := getattr(g.flags, "writeable", None)) is not None:
        return bool(writeable)
    return all([step != 0 or n < 2 for step, n in zip(g.strides, g.shape, strict=True)])
