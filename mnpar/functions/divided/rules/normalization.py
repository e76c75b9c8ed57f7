"""Rules of normalizations: means and variances are those of all parts, and parameters are whole on
every rank. Softmax along an axis that is cut sums over the ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mnpar.functions.activation.softmax import LogSoftmax, Softmax
from mnpar.functions.divided.layout import DividedVariable, GridLayout
from mnpar.functions.divided.rules.reductions import exponentials, reduced_axes
from mnpar.functions.divided.rules.shapes import replaced
from mnpar.functions.divided.rules.table import layout_rule, only_first
from mnpar.functions.math.exponential import log
from mnpar.functions.math.rounding import sign
from mnpar.functions.normalization.batch_normalization import (
    BatchNormalization,
    FixedBatchNormalization,
)
from mnpar.functions.normalization.layer_normalization import (
    GroupNormalization,
    LayerNormalization,
)
from mnpar.functions.normalization.local_response_normalization import (
    LocalResponseNormalization,
    Normalize,
)
from mnpar.functions.normalization.moments import cast
from mnpar.functions.normalization.multi_node_moments import multi_node_moments
from mnpar.kernels.dtypes import compute_dtype
from mnpar.kernels.moments import ChannelView, channel_view
from mnpar.plans import Box
from mnpar.variable import Variable


def channels_of(node: Any, x: DividedVariable) -> ChannelView:
    """Return this rank's part read as (A, C, B), where the node reads the whole so."""
    A, C, _ = node.shape
    shape = x.shape
    for first in range(len(shape)):
        for end in range(first + 1, len(shape) + 1):
            if (math.prod(shape[:first]), math.prod(shape[first:end])) == (A, C) and not [
                a for a in x.layout.cut_axes if first <= a < end
            ]:
                return channel_view(x.part.shape, first, end)
    return x.layout.refuse(node.label, "axes that have statistics of their own are cut")


@layout_rule(BatchNormalization)
def batch_normalization(node: Any, x: Any, gamma: Any, beta: Any) -> Any:
    """Normalize each channel by the moments of all ranks."""
    layout, view = only_first(node, x, gamma, beta), channels_of(node, x)
    mean, var, _ = multi_node_moments(layout.grid.comm, x.part, view)
    node.shift, node.rest, node.var = mean.array, 0, var.array  # for running statistics
    gamma, beta = layout.shared_all(gamma, beta)
    y = FixedBatchNormalization(view, node.eps).apply((x.part, gamma, beta, mean, var))[0]
    return layout.divided(y)


@layout_rule(FixedBatchNormalization, halos=True)
def fixed_batch_normalization(node: Any, x: Any, *params: Any) -> Any:
    """Normalize this rank's part by the given moments; channels are whole."""
    layout, view = only_first(node, x, *params), channels_of(node, x)
    own = FixedBatchNormalization(view, node.eps)
    return layout.divided(own.apply((x.part, *[layout.shared(p) for p in params]))[0])


def _leading(layout: GridLayout, n: int) -> int:
    """Return how many samples (of the first n axes) this rank has, or the first rank of its group,
    if this one is a rank that the grid does not need.
    """
    grid = layout.grid
    idle = grid.comm.rank >= math.prod(grid.dims)
    return math.prod((layout.boxes[0] if idle else layout.box).shape[:n])


def _normalized(node: Any, x: DividedVariable, axes: Sequence[int], groups: int) -> Variable:
    """Return this rank's part read as (groups, …), each group with mean 0 and deviation 1 over
    the parts of all ranks; the axes of a group are some of ``axes``.
    """
    part = x.part
    view = 1, groups, part.size // max(groups, 1)
    mean, var, _ = multi_node_moments(x.layout.group(axes), part, view)
    ones = part.xp.ones(groups, compute_dtype(part))
    return FixedBatchNormalization(view, node.eps).apply((part, ones, 0 * ones, mean, var))[0]


@layout_rule(LayerNormalization)
def layer_normalization(node: Any, x: Any, gamma: Any, beta: Any) -> Any:
    """Normalize each sample, by the moments of all ranks where its features are cut."""
    layout = only_first(node, x, gamma, beta)
    n = x.ndim - gamma.ndim
    if not [a for a in layout.cut_axes if a >= n]:
        rows = math.prod(x.part.shape[:n]), node.shape[1]
        params = layout.shared_all(gamma, beta)
        return layout.divided(LayerNormalization(rows, node.eps).apply((x.part, *params))[0])
    y = _normalized(node, x, range(n, x.ndim), _leading(layout, n))
    gamma, beta = layout.shared_all(gamma, beta)
    y = y * layout.take_cells(gamma) + layout.take_cells(beta)
    return layout.divided(cast(y, x.dtype))


@layout_rule(GroupNormalization)
def group_normalization(node: Any, x: Any, gamma: Any, beta: Any) -> Any:
    """Normalize each group of channels, by the moments of all ranks where places are cut."""
    layout, groups = only_first(node, x, gamma, beta), node.shape[1]
    own = x.part.shape[0]
    if 1 in layout.cut_axes and len(gamma) > 1:
        layout.refuse(node.label, "axis 1, the channels, is cut")
    if not [a for a in layout.cut_axes if a]:
        serial = GroupNormalization((own, *node.shape[1:]), node.eps)
        return layout.divided(serial.apply((x.part, *layout.shared_all(gamma, beta)))[0])
    y = _normalized(node, x, range(1, x.ndim), _leading(layout, 1) * groups)
    shape = (len(gamma), *[1] * (x.ndim - 2))
    gamma, beta = layout.shared_all(gamma, beta)
    return layout.divided(cast(y * gamma.reshape(shape) + beta.reshape(shape), x.dtype))


@layout_rule(LocalResponseNormalization, halos=True)
def local_response_normalization(node: Any, x: Any) -> Any:
    """Normalize by neighbouring channels; where channels are cut, those of other ranks come."""
    if 1 not in x.layout.cut_axes:
        return x.layout.divided(node.apply((x.part,))[0])
    layout, C, wants = x.layout, x.shape[1], []
    for box in layout.boxes:
        first, end = max(box.start[1] - node.half, 0), min(box.stop[1] + node.half, C)
        wants.append(
            Box(replaced(box.start, 1, first), replaced(box.stop, 1, end)) if box.volume else box
        )
    chunk = layout.moved(x, layout, wants)
    own, want = layout.box, wants[layout.grid.comm.rank]
    channels = slice(own.start[1] - want.start[1], own.stop[1] - want.start[1])
    return layout.divided(node.apply((chunk,))[0][:, channels])


@layout_rule(Normalize)
def normalize(node: Any, x: Any) -> Any:
    """Divide by lengths, of which ranks add up the squares where an axis is cut."""
    axes = reduced_axes(node, x)
    if not [a for a in x.layout.cut_axes if a in axes]:
        return x.layout.divided(node.apply((x.part,))[0])
    wide: Any = cast(x, compute_dtype(x))
    squares = (wide * wide).sum(axis=axes, keepdims=True)
    none = 1 - sign(squares)  # where x is 0, as in Normalize
    length = (squares + none) ** 0.5
    return cast(wide / (length - none + node.eps if node.eps else length), x.dtype)


@layout_rule(Softmax, LogSoftmax)
def softmax(node: Any, x: Any) -> Any:
    """Divide exponentials by their sum, over all ranks where the axis is cut."""
    axis = node.axis % x.ndim
    if axis not in x.layout.cut_axes:
        return x.layout.divided(node.apply((x.part,))[0])
    shifted, powers, total, _ = exponentials(node, x, (axis,))
    y: Any = shifted - log(total) if isinstance(node, LogSoftmax) else powers / total
    return y if y.dtype == x.dtype else y.astype(x.dtype)
