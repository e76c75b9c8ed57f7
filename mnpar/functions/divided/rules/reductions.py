"""Rules of sums, means and extrema: over axes that are whole nothing is sent;
over axes that are cut ranks add up what their parts give. A sum over all axes that are cut is on
every rank, which own it together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mnpar.backend import Array
from mnpar.configuration import no_backprop_mode
from mnpar.function_node import InputGradients
from mnpar.functions.array.broadcast import SumTo
from mnpar.functions.communication.exchange import exchange
from mnpar.functions.communication.shared import reduce_from
from mnpar.functions.divided.layout import DividedVariable, GridLayout, plan_between
from mnpar.functions.divided.rules.table import layout_rule
from mnpar.functions.math.average import Mean
from mnpar.functions.math.cumulative import CumProd, CumSum, Prod
from mnpar.functions.math.exponential import exp, log
from mnpar.functions.math.reduction import ArgMax, ArgMin, LogSumExp, Max, Min, Sum
from mnpar.functions.node import GenericFunction
from mnpar.kernels.dtypes import floating_dtype
from mnpar.plans import Box
from mnpar.variable import Variable


def reduced_axes(node: Any, x: DividedVariable) -> tuple[int, ...]:
    """Return the axes that a function reduces, counted from 0."""
    axis, ndim = node.axis, x.ndim
    given = range(ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    return tuple([a % ndim for a in given])


def kept(shape: Sequence[int], axes: Sequence[int], keepdims: bool) -> tuple[int, ...]:
    """Return the shape when axes are reduced."""
    return tuple([1 if a in axes else n for a, n in enumerate(shape) if keepdims or a not in axes])


def added_up(layout: GridLayout, y: Variable, out: Sequence[int], axes: dict[int, int]) -> Variable:
    """Return the sum of what the ranks' parts of an array give to a result.

    Args:
        layout: of the array.
        y: what this rank's part gives: the box of the result that belongs to it.
        out: the shape of the result.
        axes: for axes of the array that are cut: which axis of the result each becomes. Those that
            are cut and not named are summed over.

    Returns:
        The result, divided along the axes that it has; if it has none, on every rank, which own it
        together.
    """
    comm, out = layout.grid.comm, tuple(out)
    left = [a for a in layout.cut_axes if a in axes]
    if not left:
        if len(layout.cut_axes):
            return reduce_from(comm, y if y.shape == out else y.reshape(out))
        return y
    pairs = sorted([(axes[a], layout.parts_along(a)) for a in left])
    to = GridLayout.over(layout.grid.with_dims([d for _, d in pairs]), out, [a for a, _ in pairs])
    in_order = [axes[a] for a in left] == list(to.axes)
    if in_order and len(left) == len(layout.cut_axes):
        return to.divided(y)
    have = []
    for box in layout.boxes:
        start, stop = [0] * len(out), list(out)
        for a in left:
            start[axes[a]], stop[axes[a]] = box.start[a], box.stop[a]
        have.append(Box(tuple(start), tuple(stop)))
    if not y.size:  # of a rank without a part
        y = y.reshape(have[comm.rank].shape)
    return to.divided(exchange(comm, y, plan_between(tuple(have), to.boxes)))


def reduced(x: DividedVariable, y: Variable, axes: tuple[int, ...], keepdims: bool) -> Variable:
    """Return the sum of what the parts give to a reduction of some axes."""
    if not [a for a in x.layout.cut_axes if a in axes]:
        layout = x.layout
        left = layout.like(kept(x.shape, axes, True)) if keepdims else layout.without(axes)
        return left.divided(y) if left.axes else y
    places = [a for a in range(x.ndim) if keepdims or a not in axes]
    to = {a: places.index(a) for a in x.layout.cut_axes if a not in axes}
    return added_up(x.layout, y, kept(x.shape, axes, keepdims), to)


def summed(x: DividedVariable, axes: tuple[int, ...], keepdims: bool) -> Variable:
    """Return the sum over axes."""
    return reduced(x, Sum(axes, keepdims).apply((x.part,))[0], axes, keepdims)


@layout_rule(Sum)
def sum_rule(node: Any, x: Any) -> Any:
    """Add up the parts, over ranks where an axis is cut."""
    return summed(x, reduced_axes(node, x), node.keepdims)


@layout_rule(SumTo)
def sum_to(node: Any, x: Any) -> Any:
    """Add up the axes that were repeated."""
    lead = x.ndim - len(node.shape)
    axes = [a for a, n in enumerate(x.shape) if a < lead or node.shape[a - lead] != n]
    y = summed(x, tuple(axes), True) if axes else x
    return y.reshape(node.shape)


@layout_rule(Mean)
def mean(node: Any, x: Any) -> Any:
    """Divide the sum over all ranks by the number of elements of the whole."""
    axes = reduced_axes(node, x)
    count = math.prod([x.shape[a] for a in axes])
    dtype = floating_dtype(x.dtype)
    wide = x.astype("f4") if x.dtype.itemsize < 4 else x
    y = summed(wide, axes, node.keepdims) * (1 / max(count, 1))
    return y if y.dtype == dtype else y.astype(dtype)


@layout_rule(Prod, CumSum, CumProd)
def along_whole_axes(node: Any, x: Any) -> Any:
    """Apply the function to parts; the axes along which it goes must be whole."""
    axes = reduced_axes(node, x)
    if [a for a in x.layout.cut_axes if a in axes]:
        x.layout.refuse(node.label, f"it goes along axes {axes}, of which one is cut")
    (y,) = node.apply((x.part,))
    return reduced(x, y, axes, node.keepdims) if isinstance(node, Prod) else x.layout.divided(y)


# ---- extrema ----


class ExtremumPart(GenericFunction):
    """A rank's part of an extremum over ranks: ``y`` is given, and gradients go to chosen
    elements.
    """

    def __init__(self, y: Array, chosen: Array) -> None:
        self.y, self.chosen = y, chosen

    def forward(self, x: Array) -> Array:
        return self.y

    def backward(self, gy: Variable | Array) -> InputGradients:
        return lambda: gy * self.chosen


def lowest(dtype: np.dtype[Any], extremum: str) -> Any:
    """Return the number that is no extremum beside others."""
    if dtype.kind == "f":
        return -np.inf if extremum == "max" else np.inf
    if dtype.kind == "b":
        return extremum == "min"
    limits = np.iinfo(dtype)
    return limits.min if extremum == "max" else limits.max


class Offers:
    """The extrema of the parts of all ranks beside this one along some axes, with these axes at
    length 1.

    Attributes:
        best: of all; ``rank``: which of them this one is.
        holds: (ranks, …) who has it.
    """

    def __init__(self, node: Any, x: DividedVariable, axes: tuple[int, ...], extremum: str) -> None:
        part, xp = x.part.array, x.xp
        if 0 in [x.shape[a] for a in axes]:
            raise ValueError(
                f"{node.label}: an array of shape {x.shape} has no element to choose from along "
                f"axes {axes}"
            )
        group = x.layout.group(axes)
        shape = kept(part.shape, axes, True)
        self.own = xp.full(shape, lowest(part.dtype, extremum), part.dtype)
        if part.size:
            self.own = getattr(part, extremum)(axis=axes, keepdims=True)
        # (of ranks that the grid does not need, which may be in the group, the shape is another)
        found = [y if y.shape == shape else self.own for y in group.allgather(self.own)]
        every = xp.stack(found)
        self.group, self.rank = group, group.rank
        self.best = getattr(every, extremum)(axis=0)  # a nan is the largest, and the smallest
        self.holds = every == self.best
        if part.dtype.kind == "f":
            self.holds |= xp.isnan(every)


def extremum(
    node: Any,
    x: DividedVariable,
    axes: tuple[int, ...],
    keepdims: bool,
    extremum: str,
    first: bool = False,
) -> Variable:
    """Return the extremum over axes, of which some are cut: the gradient goes to all elements that
    equal it, or to the first one only.
    """
    offers, part, xp = Offers(node, x, axes, extremum), x.part.array, x.xp
    chosen = part == offers.best
    holder = offers.holds.argmax(axis=0)
    if first:
        chosen, holder = _first(offers, x, axes, chosen)
    y = xp.where(holder == offers.rank, offers.best, xp.zeros((), part.dtype))
    given = ExtremumPart(y, chosen).apply((x.part,))[0]
    shape = kept(y.shape, axes, keepdims)
    return reduced(x, given if keepdims else given.reshape(shape), axes, keepdims)


def places_along(layout: GridLayout, axes: tuple[int, ...], xp: Any) -> Array:
    """Return the place of each element of this rank's part when the axes of the whole are one."""
    box, shape = layout.box, layout.shape
    places: Any = xp.zeros((1,) * len(shape), np.int64)
    for a in axes:
        at = xp.arange(box.start[a], box.stop[a]).reshape(
            [-1 if b == a else 1 for b in range(len(shape))]
        )
        places = places * shape[a] + at
    return xp.broadcast_to(places, box.shape)  # type: ignore[no-any-return]


def _first(
    offers: Offers, x: DividedVariable, axes: tuple[int, ...], chosen: Array
) -> tuple[Array, Array]:
    """Return which element of this part is the first extremum, and which rank has it."""
    xp, part = x.xp, x.part.array
    if part.dtype.kind == "f":
        chosen = chosen | xp.isnan(part)
    places, none = places_along(x.layout, axes, xp), np.iinfo(np.int64).max
    own = xp.full(offers.own.shape, none)
    if part.size:
        own = xp.where(chosen, places, none).min(axis=axes, keepdims=True)
    every = xp.stack(
        [
            y if y.shape == own.shape else xp.full_like(own, none)
            for y in offers.group.allgather(own)
        ]
    )
    at = every.min(axis=0)
    return chosen & (places == at), every.argmin(axis=0)


@layout_rule(Max, Min)
def extremum_rule(node: Any, x: Any) -> Any:
    """Find the extrema of all ranks; the gradient goes to all elements that equal them."""
    axes = reduced_axes(node, x)
    if [a for a in x.layout.cut_axes if a in axes]:
        return extremum(node, x, axes, node.keepdims, node.extremum)
    return reduced(x, type(node)(axes, node.keepdims).apply((x.part,))[0], axes, node.keepdims)


@layout_rule(ArgMax, ArgMin)
def place_of_extremum(node: Any, x: Any) -> Any:
    """Find the place, in the whole array, of the first extremum of all ranks."""
    axes = reduced_axes(node, x)
    part = Variable(x.part.array, requires_grad=False)
    if not [a for a in x.layout.cut_axes if a in axes]:
        (y,) = type(node)(None if node.axis is None else axes[0]).apply((part,))
        return reduced(x, y, axes, False)
    offers, xp = Offers(node, x, axes, node.extremum), x.xp
    holds = part.array == offers.best
    chosen, holder = _first(offers, x, axes, holds)
    places = xp.where(chosen, places_along(x.layout, axes, xp), 0).sum(axis=axes, keepdims=True)
    own = xp.where(holder == offers.rank, places, 0).astype("i4")
    y = Variable(own.reshape(kept(own.shape, axes, False)), requires_grad=False)
    return reduced(x, y, axes, False)


# ---- exponentials ----


def exponentials(
    node: Any, x: DividedVariable, axes: tuple[int, ...]
) -> tuple[Variable, Variable, Variable, Variable]:
    """Return, of x less its maximum along axes: itself, its exponentials, their sums along these
    axes, and that maximum (a constant, 0 where it is infinite).
    """
    wide: Any = x
    if x.dtype.kind != "f" or x.dtype.itemsize < 4:
        wide = x.astype(np.result_type(floating_dtype(x.dtype), "f4"))
    with no_backprop_mode():
        found = extremum(node, wide, axes, True, "max")
        y = found.part if isinstance(found, DividedVariable) else found
        y = Variable(y.xp.where(y.xp.isfinite(y.array), y.array, 0), requires_grad=False)
        peak = found.layout.divided(y) if isinstance(found, DividedVariable) else y
    shifted: Any = wide - peak
    powers: Any = exp(shifted)
    return shifted, powers, powers.sum(axis=axes, keepdims=True), peak


@layout_rule(LogSumExp)
def logsumexp(node: Any, x: Any) -> Any:
    """Add up the exponentials of all ranks, relative to their largest exponent."""
    axes = reduced_axes(node, x)
    if not [a for a in x.layout.cut_axes if a in axes]:
        (y,) = LogSumExp(axes, node.keepdims).apply((x.part,))
        return reduced(x, y, axes, node.keepdims)
    _, _, total, peak = exponentials(node, x, axes)
    with np.errstate(divide="ignore"):  # log 0 is -∞ where all elements are
        y = log(total) + peak
    y = y if node.keepdims else y.reshape(kept(y.shape, axes, False))
    dtype = floating_dtype(x.dtype)
    return y if y.dtype == dtype else y.astype(dtype)
