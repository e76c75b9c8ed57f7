"""Rules of normalizations: means and variances are those of all parts, and parameters are whole on
every rank. Softmax along an axis that is cut sums over the ranks.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mnpar.functions.activation.softmax import LogSoftmax, Softmax
from mnpar.functions.communication.shared import copy_to, reduce_from
from mnpar.functions.divided.blocks import copy_all_to
from mnpar.functions.divided.layout import DividedVariable
from mnpar.functions.divided.rules.reductions import reduced_axes, without
from mnpar.functions.divided.rules.table import layout_rule, only_first
from mnpar.functions.divided.rules.windows import Block
from mnpar.functions.divided.spatial_normalization import (
    spatial_group_normalization,
    spatial_layer_normalization,
)
from mnpar.functions.math.exponential import exp, log
from mnpar.functions.math.reduction import LogSumExp
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
from mnpar.functions.normalization.multi_node_moments import multi_node_moments
from mnpar.kernels.moments import ChannelView, channel_view
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
    layout, view = only_first(node, x, gamma, beta), channels_of(node, x)
    comm = layout.grid.comm
    mean, var, _ = multi_node_moments(comm, x.part, view)
    node.shift, node.rest, node.var = mean.array, 0, var.array  # for running statistics
    gamma, beta = copy_all_to(comm, gamma, beta)
    y = FixedBatchNormalization(view, node.eps).apply((x.part, gamma, beta, mean, var))[0]
    return layout.divided(y)


@layout_rule(FixedBatchNormalization)
def fixed_batch_normalization(node: Any, x: Any, *params: Any) -> Any:
    layout, view = only_first(node, x, *params), channels_of(node, x)
    own = FixedBatchNormalization(view, node.eps)
    return layout.divided(own.apply((x.part, *[layout.shared(p) for p in params]))[0])


@layout_rule(LayerNormalization)
def layer_normalization(node: Any, x: Any, gamma: Any, beta: Any) -> Any:
    layout = only_first(node, x, gamma, beta)
    n = x.ndim - gamma.ndim
    if not [a for a in layout.cut_axes if a >= n]:
        rows = math.prod(x.part.shape[:n]), node.shape[1]
        params = layout.shared(gamma), layout.shared(beta)
        return layout.divided(LayerNormalization(rows, node.eps).apply((x.part, *params))[0])
    if n > 2 or x.ndim < 3 or [a for a in layout.cut_axes if a < 2]:
        layout.refuse(
            node.label,
            "samples are cut along the last axes of (N, C, …), all of them "
            "normalized, or along the axes before those that are normalized",
        )
    block = Block(node, x)
    y = spatial_layer_normalization(block.x, block.grid, block.shape, gamma, beta, node.eps)
    return block.result(y, block.shape)


@layout_rule(GroupNormalization)
def group_normalization(node: Any, x: Any, gamma: Any, beta: Any) -> Any:
    only_first(node, x, gamma, beta)
    if 0 in x.layout.cut_axes and not [a for a in x.layout.cut_axes if a]:
        own = GroupNormalization((x.part.shape[0], *node.shape[1:]), node.eps)
        params = x.layout.shared(gamma), x.layout.shared(beta)
        return x.layout.divided(own.apply((x.part, *params))[0])
    block = Block(node, x)
    y = spatial_group_normalization(
        block.x, block.grid, block.shape, node.shape[1], gamma, beta, node.eps
    )
    return block.result(y, block.shape)


@layout_rule(LocalResponseNormalization)
def local_response_normalization(node: Any, x: Any) -> Any:
    return _along_whole_axes(node, x, (1,))


@layout_rule(Normalize)
def normalize(node: Any, x: Any) -> Any:
    return _along_whole_axes(node, x, reduced_axes(node, x))


def _along_whole_axes(node: Any, x: DividedVariable, axes: tuple[int, ...]) -> DividedVariable:
    """Apply a function that keeps the shape to the part; it works along axes that must be whole."""
    if [a for a in x.layout.cut_axes if a in axes]:
        x.layout.refuse(node.label, f"it works along axes {axes}, of which one is cut")
    return x.layout.divided(node.apply((x.part,))[0])


@layout_rule(Softmax, LogSoftmax)
def softmax(node: Any, x: Any) -> Any:
    axis = node.axis % x.ndim
    if axis not in x.layout.cut_axes:
        return _along_whole_axes(node, x, (axis,))
    shifted, total = _exponentials(node, x, (axis,))
    part = shifted - log(total) if isinstance(node, LogSoftmax) else exp(shifted) / total
    return x.layout.divided(part if part.dtype == x.dtype else part.astype(x.dtype))


def _exponentials(
    node: Any, x: DividedVariable, axes: tuple[int, ...]
) -> tuple[Variable, Variable]:
    """Return x less its maximum along axes, among which are all that are cut, and the sum of the
    exponentials of that, along these axes.
    """
    if [a for a in x.layout.cut_axes if a not in axes]:
        x.layout.refuse(node.label, f"axes other than {axes} are cut, too")
    comm, part = x.layout.grid.comm, x.part
    if part.dtype.itemsize < 4:
        part = part.astype("f4")
    shape = [1 if a in axes else n for a, n in enumerate(part.shape)]
    xp = part.xp
    own = xp.full(shape, -np.inf, part.dtype)
    if part.size:
        own = part.array.max(axis=axes, keepdims=True)
    peak = comm.allreduce(own, op="max")
    peak = xp.where(xp.isfinite(peak), peak, xp.zeros((), peak.dtype))
    shifted = part - peak
    total = reduce_from(comm, exp(shifted).sum(axis=axes, keepdims=True))
    return shifted, copy_to(comm, total)


@layout_rule(LogSumExp)
def logsumexp(node: Any, x: Any) -> Any:
    axes = reduced_axes(node, x)
    if not [a for a in x.layout.cut_axes if a in axes]:
        y = LogSumExp(axes, node.keepdims).apply((x.part,))[0]
        left = without(x.layout, axes, node.keepdims)
        return left.divided(y) if left.axes else y
    return x.layout.refuse(node.label, f"it sums over axes {axes}, of which one is cut")
