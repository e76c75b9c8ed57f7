"""Rules of functions that move, join or pick elements. Along axes that are whole they are done on
parts; along an axis that is cut each rank receives the cells that its part of the result takes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from mnpar.functions.array.get_item import GetItem
from mnpar.functions.array.joining import Concat, Separate, SplitAxis, Stack
from mnpar.functions.array.pad import Pad
from mnpar.functions.array.rearranging import Flip, Permutate, Roll
from mnpar.functions.array.repeat import Repeat
from mnpar.functions.array.shape import Reshape, Transpose
from mnpar.functions.communication.exchange import exchange
from mnpar.functions.divided.layout import DividedVariable, GridLayout
from mnpar.functions.divided.rules.table import aligned, layout_rule
from mnpar.functions.node import is_divided
from mnpar.plans import Box, Plan, padded
from mnpar.variable import Variable


def replaced(values: Sequence[int], axis: int, value: int) -> tuple[int, ...]:
    """Return the values with another one at one place."""
    return (*values[:axis], value, *values[axis + 1 :])


def take(x: DividedVariable, axis: int, places: Any, who: str = "moving cells") -> DividedVariable:
    """Return ``x[places]`` along an axis that is cut: each rank receives the cells from the first
    to the last one that its part of the result takes.
    """
    layout = x.layout
    places = np.asarray(places)
    to = layout.picked(who, axis, places)
    wants = []
    for box in to.boxes:
        own = places[box.start[axis] : box.stop[axis]]
        ends = (int(own.min()), int(own.max()) + 1) if own.size and box.volume else (0, 0)
        wants.append(Box(replaced(box.start, axis, ends[0]), replaced(box.stop, axis, ends[1])))
    y = layout.moved(x, to, wants)
    box = to.box
    own = places[box.start[axis] : box.stop[axis]] - wants[layout.grid.comm.rank].start[axis]
    if box.volume and not np.array_equal(own, np.arange(y.shape[axis])):
        (y,) = GetItem((slice(None),) * axis + (own,)).apply((y,))
    return to.divided(y)


@layout_rule(Flip, halos=True)
def flip(node: Any, x: Any) -> Any:
    """Reverse an axis; parts of a cut one move to other ranks."""
    axis = node.axis % x.ndim
    if axis in x.layout.cut_axes:
        return take(x, axis, np.arange(x.shape[axis])[::-1])
    return x.layout.divided(Flip(axis).apply((x.part,))[0])


@layout_rule(Permutate, halos=True)
def permutate(node: Any, x: Any) -> Any:
    """Rearrange an axis; parts of a cut one move to other ranks."""
    axis = node.axis % x.ndim
    if axis in x.layout.cut_axes:
        return take(x, axis, node.places)
    return x.layout.divided(Permutate(node.places, node.opposite, axis).apply((x.part,))[0])


@layout_rule(Roll, halos=True)
def roll(node: Any, x: Any) -> Any:
    """Move the elements along an axis; those of a cut one that come to other ranks are sent, in two
    runs: up to the end of the axis, and from its beginning on.
    """
    axis, layout = node.axis % x.ndim, x.layout
    n = x.shape[axis]
    if axis not in layout.cut_axes or not n:
        return layout.divided(Roll(node.shift, axis).apply((x.part,))[0])
    runs: tuple[list[Box], list[Box]] = ([], [])
    for box in layout.boxes:
        first, length = (box.start[axis] - node.shift) % n, box.stop[axis] - box.start[axis]
        rest = max(first + length - n, 0)
        for wants, (a, b) in zip(runs, ((first, first + length - rest), (0, rest)), strict=True):
            wants.append(Box(replaced(box.start, axis, a), replaced(box.stop, axis, b)))
    parts = tuple([layout.moved(x, layout, wants) for wants in runs])
    return layout.divided(Concat(axis).apply(parts)[0])


@layout_rule(Repeat, halos=True)
def repeat(node: Any, x: Any) -> Any:
    """Repeat the elements of an axis; parts of a cut one move to other ranks."""
    axis = node.axis % x.ndim
    if axis in x.layout.cut_axes:
        return take(x, axis, np.arange(x.shape[axis]).repeat(node.n))
    layout = x.layout.like(replaced(x.shape, axis, x.shape[axis] * node.n))
    return layout.divided(Repeat(node.n, axis).apply((x.part,))[0])


@layout_rule(SplitAxis, halos=True)
def split_axis(node: Any, x: Any) -> Any:
    """Split an axis; each piece of a cut one is cut anew over all ranks."""
    axis, cuts = node.axis % x.ndim, list(node.cuts)
    if axis in x.layout.cut_axes:
        return tuple([take(x, axis, np.arange(a, b)) for a, b in pairwise(cuts)])
    layouts = [x.layout.like(replaced(x.shape, axis, b - a)) for a, b in pairwise(cuts)]
    parts = SplitAxis(cuts, axis).apply((x.part,))
    return tuple([layout.divided(y) for layout, y in zip(layouts, parts, strict=True)])


@layout_rule(Concat, halos=True)
def concat(node: Any, *xs: Any) -> Any:
    """Join arrays that are cut alike; along a cut axis the result is cut anew."""
    first = next(x for x in xs if is_divided(x))
    axis = node.axis % first.ndim
    lengths, own = [], []
    for x in xs:
        likewise = first.layout.like(replaced(first.shape, axis, x.shape[axis]))
        if x.shape != likewise.shape:
            raise ValueError("their other axes differ")
        if not is_divided(x):
            x = likewise.divided(likewise.take_own(x))
        elif not x.layout.matches(likewise):
            x.layout.refuse(node.label, f"another input is {first.layout}: all must be cut alike")
        lengths.append(x.shape[axis])
        own.append(x)
    layout = first.layout.like(replaced(first.shape, axis, sum(lengths)))
    if axis not in layout.cut_axes:
        return layout.divided(Concat(axis).apply(tuple([x.part for x in own]))[0])
    parts, start = [], 0
    for x, length in zip(own, lengths, strict=True):
        ends = [
            [min(max(end - start, 0), length) for end in (box.start[axis], box.stop[axis])]
            for box in layout.boxes
        ]
        wants = [
            Box(replaced(box.start, axis, a), replaced(box.stop, axis, b))
            for box, (a, b) in zip(layout.boxes, ends, strict=True)
        ]
        parts.append(x.layout.moved(x, layout, wants))
        start += length
    return layout.divided(Concat(axis).apply(tuple(parts))[0])


@layout_rule(Stack, halos=True)
def stack(node: Any, *xs: Any) -> Any:
    """Join arrays that are cut alike along a new axis, which is whole."""
    layout, parts = aligned(node, xs)
    if [x for x in xs if x.shape != layout.shape]:
        raise ValueError("their shapes differ")
    ndim = len(layout.shape) + 1
    axis = node.axis % ndim
    shape = (*layout.shape[:axis], len(xs), *layout.shape[axis:])
    to = layout.like(shape, [a + (a >= axis) for a in layout.axes])
    return to.divided(Stack(axis).apply(tuple(parts))[0])


@layout_rule(Separate)
def separate(node: Any, x: Any) -> Any:
    """Take a whole axis apart."""
    axis, layout = node.axis % x.ndim, x.layout
    if axis in layout.cut_axes:
        layout.refuse(
            node.label,
            f"axis {axis}, which is cut, is taken apart: each piece would go "
            "to ranks that have none of it",
        )
    to = layout.without((axis,))
    return tuple([to.divided(y) for y in Separate(axis).apply((x.part,))])


@layout_rule(Transpose, halos=True)
def transpose(node: Any, x: Any) -> Any:
    """Reorder axes, as long as cut ones stay in the grid's order."""
    ndim = x.ndim
    order = [a % ndim for a in (range(ndim)[::-1] if node.axes is None else node.axes)]
    axes = [order.index(a) for a in x.layout.axes]
    if axes != sorted(axes):
        x.layout.refuse(node.label, "the axes of the grid would come in another order")
    layout = x.layout.like([x.shape[a] for a in order], axes)
    return layout.divided(Transpose(tuple(order)).apply((x.part,))[0])


@layout_rule(Reshape)
def reshape(node: Any, x: Any) -> Any:
    """Axes that are cut stay as they are; those before, between and after them may be joined and
    split.
    """
    new = list(node.shape)
    if -1 in new:
        rest = int(np.prod([n for n in new if n != -1]))
        new[new.index(-1)] = x.size // rest if rest else 0
    if int(np.prod(new)) != x.size or min(new, default=0) < 0:
        raise ValueError("not as many elements")
    axes = []
    grid = x.layout.grid
    dims, several = [], math.prod(grid.dims) > 1 or grid.comm.size == 1
    for a, parts in zip(x.layout.axes, grid.dims, strict=True):
        before = int(np.prod(x.shape[:a]))
        places = [
            b
            for b, n in enumerate(new)
            if n == x.shape[a]
            and int(np.prod(new[:b])) == before
            and int(np.prod(new[b + 1 :])) == int(np.prod(x.shape[a + 1 :]))
            and b not in axes
        ]
        if not places and (parts > 1 or not several):
            x.layout.refuse(node.label, f"axis {a}, which is cut, is not an axis of {tuple(new)}")
        if places:  # (an axis of one part may go)
            axes.append(places[0])
            dims.append(parts)
    layout = GridLayout.over(grid.with_dims(dims), new, axes)
    return layout.divided(Reshape(layout.box.shape).apply((x.part,))[0])


@layout_rule(Pad, halos=True)
def pad(node: Any, x: Any) -> Any:
    """Add cells to each end of an axis; parts of a cut one move to other ranks."""
    y = x
    for axis, ((low, high), (before, after)) in enumerate(
        zip(node.widths, node.values, strict=True)
    ):
        steps = (
            [((low, high), before)] if before == after else [((low, 0), before), ((0, high), after)]
        )
        for widths, value in steps:
            if widths != (0, 0):
                y = _padded(y, axis, widths, value)
    return y


def _padded(x: DividedVariable, axis: int, widths: tuple[int, int], value: Any) -> DividedVariable:
    layout = x.layout
    to = layout.like(replaced(x.shape, axis, x.shape[axis] + sum(widths)))
    if axis not in layout.cut_axes:
        every = [(0, 0)] * x.ndim
        every[axis] = widths
        values = np.broadcast_to(value, (x.ndim, 2))
        return to.divided(Pad(every, values).apply((x.part,))[0])
    steps = replaced((0,) * x.ndim, axis, -widths[0])
    want = [padded(box.shift(steps), x.shape) for box in to.boxes]
    y: Variable = exchange(layout.grid.comm, x.part, Plan(layout.boxes, want), float(value))
    return to.divided(y)


@layout_rule(GetItem, halos=True)
def get_item(node: Any, x: Any) -> Any:
    """Take slices, numbers and one array of places; parts of cut axes move to other ranks."""
    index, own = list(_entries(node, x)), x
    axis = 0
    for i, entry in enumerate(index):
        if entry is None:
            continue
        if axis in x.layout.cut_axes and not _is_all(entry, x.shape[axis]):
            places = np.atleast_1d(np.arange(x.shape[axis])[entry])
            own = take(own, axis, places, node.label)
            if _is_number(entry):
                own, index[i] = _on_all(own, axis), 0
            else:
                index[i] = slice(None)
        axis += 1
    return _on_whole_axes(own, index)


def _entries(node: Any, x: DividedVariable) -> list[Any]:
    """Return an index as an entry for each axis and each new axis."""
    given = node.index if isinstance(node.index, tuple) else (node.index,)
    given = tuple([np.asarray(i) if isinstance(i, list) else i for i in given])
    arrays = [i for i in given if isinstance(i, np.ndarray) and i.ndim]
    numbers = [i for i in given if _is_number(i)]
    plain = [i is None or i is Ellipsis or isinstance(i, slice) or _is_number(i) for i in given]
    if plain.count(False) != len(arrays) or len(arrays) > 1 or (arrays and numbers):
        x.layout.refuse(node.label, "one array of places, and no numbers beside it, may be named")
    if arrays and (arrays[0].ndim > 1 or arrays[0].dtype.kind not in "iu"):
        x.layout.refuse(node.label, "an array of places has one axis of integers")
    named = len([i for i in given if i is not None and i is not Ellipsis])
    if named > x.ndim:
        raise IndexError(f"too many indices for shape {x.shape}: {named}")
    rest = [slice(None)] * (x.ndim - named)
    places = [k for k, i in enumerate(given) if i is Ellipsis]
    at = places[0] if places else len(given)
    return [*given[:at], *rest, *given[at + 1 :]]


def _is_number(entry: Any) -> bool:
    return isinstance(entry, int | np.integer) and not isinstance(entry, bool)


def _is_all(entry: Any, length: int) -> bool:
    return isinstance(entry, slice) and entry.indices(length) == (0, length, 1)


def _on_all(x: Any, axis: int) -> Any:
    """Return an array with one cell along an axis, on the ranks that have the parts along the other
    axes that are cut; if there are none, on every rank.
    """
    layout: GridLayout = x.layout
    left = [a for a in layout.cut_axes if a != axis]
    if not left:
        return x.gather()
    to = layout.only(left)
    return to.divided(layout.moved(x, to))


def _on_whole_axes(x: Any, index: list[Any]) -> Any:
    if not is_divided(x):
        return x[tuple(index)]
    if all([isinstance(i, slice) and i == slice(None) for i in index]):
        return x
    layout, axis, place, axes = x.layout, 0, 0, []
    for entry in index:
        if entry is None:
            place += 1
            continue
        goes = _is_number(entry)
        if axis in layout.axes and not goes:
            axes.append(place)
        if axis in layout.axes and goes:
            layout = layout.only([a for a in layout.axes if a != axis])
        place += not goes
        axis += 1
    shape = np.broadcast_to(np.zeros(()), x.shape)[tuple(index)].shape
    (y,) = GetItem(tuple(index)).apply((x.part,))
    if not layout.axes:
        return y
    return layout.like(shape, axes).divided(y)
