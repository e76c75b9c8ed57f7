"""Rules of sums and means: over axes that are whole nothing is sent; over axes that are cut ranks
add up their sums. A sum over all axes that are cut is on every rank, which own it together.
"""

from __future__ import annotations

from typing import Any

from mnpar.functions.communication.exchange import exchange
from mnpar.functions.communication.shared import reduce_from
from mnpar.functions.connection.linear import Linear
from mnpar.functions.divided.layout import DividedVariable, GridLayout
from mnpar.functions.divided.rules.table import layout_rule, only_first
from mnpar.functions.math.reduction import Max, Mean, Min, Sum
from mnpar.kernels.dtypes import floating_dtype
from mnpar.plans import Box, Plan
from mnpar.variable import Variable


def reduced_axes(node: Any, x: DividedVariable) -> tuple[int, ...]:
    """Return the axes that a function reduces, counted from 0."""
    axis, ndim = node.axis, x.ndim
    given = range(ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    return tuple([a % ndim for a in given])


def without(layout: GridLayout, axes: tuple[int, ...], keepdims: bool) -> GridLayout:
    """Return the layout of what is left when axes, of which none is cut, are reduced."""
    left = [a for a in range(len(layout.shape)) if a not in axes]
    if keepdims:
        shape = [1 if a in axes else n for a, n in enumerate(layout.shape)]
        return layout.like(shape)
    # an axis that the grid has and does not cut goes, too
    dims = [parts for a, parts in zip(layout.axes, layout.grid.dims, strict=True) if a not in axes]
    grid = layout.grid.with_dims(dims)
    return GridLayout(
        grid, [layout.shape[a] for a in left], [left.index(a) for a in layout.axes if a in left]
    )


@layout_rule(Sum)
def sum_rule(node: Any, x: Any) -> Any:
    axes, cut = reduced_axes(node, x), x.layout.cut_axes
    y = Sum(axes, node.keepdims).apply((x.part,))[0]
    if not [a for a in cut if a in axes]:
        left = without(x.layout, axes, node.keepdims)
        return left.divided(y) if left.axes else y
    comm = x.layout.grid.comm
    if not [a for a in cut if a not in axes]:
        shape = [
            1 if a in axes else n for a, n in enumerate(x.shape) if node.keepdims or a not in axes
        ]
        return reduce_from(comm, y if y.shape == tuple(shape) else y.reshape(shape))
    return _sum_of_rows(node, x, y, axes)


def _sum_of_rows(node: Any, x: DividedVariable, y: Variable, axes: tuple[int, ...]) -> Variable:
    """The ranks of a row of the grid add up, and the sums are cut over a grid without the axes that
    were reduced.
    """
    to = without(x.layout, axes, node.keepdims)
    if node.keepdims:
        to = GridLayout(
            to.grid.with_dims(
                [1 if a in axes else parts for a, parts in zip(to.axes, to.grid.dims, strict=True)]
            ),
            to.shape,
            to.axes,
        )
    have = tuple([_of_sum(box, axes, node.keepdims) for box in x.layout.boxes])
    return to.divided(exchange(to.grid.comm, y, Plan(have, to.boxes)))


def _of_sum(box: Box, axes: tuple[int, ...], keepdims: bool) -> Box:
    ends = [
        (0, 1) if a in axes else (box.start[a], box.stop[a])
        for a in range(box.ndim)
        if keepdims or a not in axes
    ]
    return Box(tuple([a for a, _ in ends]), tuple([b for _, b in ends]))


@layout_rule(Mean)
def mean(node: Any, x: Any) -> Any:
    axes = reduced_axes(node, x)
    count = 1
    for a in axes:
        count *= x.shape[a]
    dtype = floating_dtype(x.dtype)
    wide = x.astype("f4") if x.dtype.itemsize < 4 else x
    y = Sum(axes, node.keepdims).apply((wide,))[0] * (1 / max(count, 1))
    return y if y.dtype == dtype else y.astype(dtype)


@layout_rule(Max, Min)
def extremum(node: Any, x: Any) -> Any:
    axes = reduced_axes(node, x)
    if [a for a in x.layout.cut_axes if a in axes]:
        x.layout.refuse(node.label, f"it searches axes {axes}, of which one is cut")
    y = type(node)(axes, node.keepdims).apply((x.part,))[0]
    return without(x.layout, axes, node.keepdims).divided(y)


@layout_rule(Linear)
def linear(node: Any, x: Any, W: Any, b: Any = None) -> Any:
    """Each rank multiplies its cells with their columns of W, and only the outputs travel."""
    layout = only_first(node, x, W, *([] if b is None else [b]))
    if 0 in layout.cut_axes:
        if x.ndim > 2 or 1 in layout.cut_axes:
            layout.refuse(node.label, "both samples and features are cut")
        params = [layout.shared(p) for p in ((W,) if b is None else (W, b))]
        y = Linear().apply((x.part, *params))[0]
        return layout.like((x.shape[0], W.shape[0])).divided(y) if y.ndim == 2 else y
    shape = (W.shape[0], *x.shape[1:])
    columns = layout.like(shape).take_own(W.reshape(shape))
    rows = x.part.reshape((x.part.shape[0], x.part.size // max(x.part.shape[0], 1)))
    y = Linear().apply((rows, columns.reshape((W.shape[0], rows.shape[1]))))[0]
    y = reduce_from(layout.grid.comm, y)
    return y if b is None else y + b
