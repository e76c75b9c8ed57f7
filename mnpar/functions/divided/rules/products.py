"""Rules of products of matrices and what is made of them: linear layers, attention, cells of
recurrent layers. Rows, columns and stacks that are cut stay cut; where the axis that is summed over
is cut, ranks add up what their parts give.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mnpar.functions.connection.attention import Attention, attend
from mnpar.functions.connection.linear import Linear
from mnpar.functions.divided.layout import DividedVariable, GridLayout
from mnpar.functions.divided.rules.reductions import added_up
from mnpar.functions.divided.rules.table import layout_rule, only_first
from mnpar.functions.math.einsum import Einsum
from mnpar.functions.math.matmul import MatMul
from mnpar.functions.node import is_divided
from mnpar.functions.rnn.lstm import LSTMCell
from mnpar.variable import Variable, as_variable

Names = Sequence[Any]  # of the axes of an array: equal ones stand for the same


def own_parts(
    node: Any, inputs: Sequence[Any], names: Sequence[Names]
) -> tuple[DividedVariable, Names, list[Variable]]:
    """Return the first divided input, the names of its axes, and this rank's part of each input:
    of whole ones what the part meets along the axes that are cut.

    Raises:
        LayoutError: two divided inputs are cut along other axes.
    """
    first = next(i for i, x in enumerate(inputs) if is_divided(x))
    x, own = inputs[first], names[first]
    layout: GridLayout = x.layout
    cut = {own[a]: a for a in layout.cut_axes}
    parts = []
    for other, named in zip(inputs, names, strict=True):
        if not is_divided(other):
            parts.append(_met(as_variable(other), named, layout, cut))
            continue
        theirs = {named[a]: other.layout.parts_along(a) for a in other.layout.cut_axes}
        alike = theirs == {name: layout.parts_along(a) for name, a in cut.items()}
        if not alike or other.layout.grid.comm is not layout.grid.comm:
            other.layout.refuse(
                node.label, f"another input is {layout}: both must be cut along the same axes"
            )
        parts.append(other.part)
    return x, own, parts


def _met(x: Variable, names: Names, layout: GridLayout, cut: dict[Any, int]) -> Variable:
    box = layout.box
    index = tuple(
        [
            slice(box.start[cut[name]], box.stop[cut[name]])
            if name in cut and n == layout.shape[cut[name]]
            else slice(None)
            for name, n in zip(names, x.shape, strict=True)
        ]
    )
    shared = layout.shared(x)
    return shared if all([i == slice(None) for i in index]) else shared[index]


@layout_rule(MatMul)
def matmul(node: Any, x: Any, y: Any) -> Any:
    """Multiply parts; rows, columns and stacks stay cut, and a cut inner axis is added up."""
    shape = (*np.broadcast_shapes(x.shape[:-2], y.shape[:-2]), x.shape[-2], y.shape[-1])
    if x.shape[-1] != y.shape[-2]:
        raise ValueError("the inner axes differ")
    rows, columns = len(shape) - 2, len(shape) - 1
    stacks = [range(len(shape) - z.ndim, rows) for z in (x, y)]
    names = [[*stacks[0], rows, "inner"], [*stacks[1], "inner", columns]]
    first, own, parts = own_parts(node, (x, y), names)
    layout = first.layout
    axes = {a: own[a] for a in layout.cut_axes if own[a] != "inner"}
    for a, to in axes.items():
        if shape[to] != first.shape[a]:
            layout.refuse(node.label, f"it is repeated to {shape} along an axis that is cut")
    (part,) = MatMul().apply(tuple(parts))
    return added_up(layout, part, shape, axes)


@layout_rule(Einsum)
def einsum(node: Any, *xs: Any) -> Any:
    """Multiply parts; cut axes of the output stay cut, the others are added up."""
    first, own, parts = own_parts(node, xs, node.operands)
    lengths = {
        name: n
        for x, names in zip(xs, node.operands, strict=True)
        for name, n in zip(names, x.shape, strict=True)
    }
    shape = [lengths[name] for name in node.output]
    axes = {a: node.output.index(own[a]) for a in first.layout.cut_axes if own[a] in node.output}
    (part,) = Einsum(node.operands, node.output).apply(tuple(parts))
    return added_up(first.layout, part, shape, axes)


@layout_rule(Linear)
def linear(node: Any, x: Any, W: Any, b: Any = None) -> Any:
    """Multiply rows with W; where features are cut, ranks multiply their own, and add up."""
    params, batch = (W,) if b is None else (W, b), node.n_batch_axes
    layout = only_first(node, x, *params)
    lead, out = x.part.shape[:batch], len(W)
    columns = math.prod(x.part.shape[batch:])
    rows = x.part if x.part.ndim == 2 else x.part.reshape((math.prod(lead), columns))
    features = [a for a in layout.cut_axes if a >= batch]
    if features:  # each rank multiplies its cells with their columns of W
        shape, box = (out, *x.shape[batch:]), layout.box
        cells = [slice(i, j) for i, j in zip(box.start[batch:], box.stop[batch:], strict=True)]
        own = layout.shared(W).reshape(shape)[(slice(None), *cells)]
        (y,) = Linear().apply((rows, own.reshape((out, columns))))
    else:
        (y,) = Linear().apply((rows, *layout.shared_all(*params)))
    y = y if batch == 1 else y.reshape((*lead, out))
    axes = {a: a for a in layout.cut_axes if a < batch}
    y = added_up(layout, y, (*x.shape[:batch], out), axes)
    return y + b if features and b is not None else y


@layout_rule(Attention)
def attention(node: Any, q: Any, k: Any, v: Any) -> Any:
    """Stacks (samples, heads) and queries may be cut; what queries look at is whole."""
    stacks = list(range(q.ndim - 2))
    names = [[*stacks, q.ndim - 2, "features"], [*stacks, "keys", "features"]]
    x, own, parts = own_parts(node, (q, k, v), [*names, [*stacks, "keys", "values"]])
    layout, T, S = x.layout, q.shape[-2], k.shape[-2]
    cut = [own[a] for a in layout.cut_axes]
    for name in ("features", "keys", "values"):
        if name in cut:
            layout.refuse(
                node.label, f"its {name} are cut: F.ring_attention takes such parts of sequences"
            )
    options = node.blocks
    shown, causal, scale = options.shown, options.causal, options.scale
    if q.ndim - 2 in cut and causal:  # the place of a query is that in the whole
        shown, causal = (
            q.xp.broadcast_to(q.xp.tri(T, S, S - T, dtype=bool), (*q.shape[:-1], S)),
            False,
        )
    if shown is not None:
        box = layout.box
        index = [slice(None)] * shown.ndim
        for a in layout.cut_axes:
            index[own[a]] = slice(box.start[a], box.stop[a])
        shown = shown[tuple(index)]
    y = attend(parts[0], parts[1], parts[2], scale, causal, shown)
    return added_up(layout, y, (*q.shape[:-1], v.shape[-1]), {a: own[a] for a in layout.cut_axes})


@layout_rule(LSTMCell)
def lstm_cell(node: Any, c: Any, gates: Any) -> Any:
    """Samples, and the places of images, may be cut."""
    rest = list(range(2, c.ndim))
    x, _, parts = own_parts(node, (c, gates), [[0, "units", *rest], [0, "gates", *rest]])
    if 1 in x.layout.cut_axes:
        x.layout.refuse(node.label, "axis 1, the units, is cut")
    layout = x.layout.like(c.shape)
    return tuple([layout.divided(y) for y in LSTMCell(node.mixed).apply(tuple(parts))])
