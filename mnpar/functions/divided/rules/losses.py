"""Rules of losses: each rank's part of the sum, in which its cells count as in the whole mean, and
then the sum over ranks, which own it together.
"""

from __future__ import annotations

import math
from typing import Any

from mnpar.functions.communication.shared import reduce_from
from mnpar.functions.divided.rules.elementwise import own_cells
from mnpar.functions.divided.rules.table import aligned, layout_rule
from mnpar.functions.loss.regression import MeanAbsoluteError, MeanSquaredError
from mnpar.functions.loss.sigmoid_cross_entropy import SigmoidCrossEntropy
from mnpar.functions.loss.softmax_cross_entropy import SoftmaxCrossEntropy
from mnpar.variable import Variable


@layout_rule(MeanSquaredError, MeanAbsoluteError)
def mean_error(node: Any, x: Any, t: Any) -> Any:
    """Add up the ranks' means, each weighted by the share of the whole that it stands for."""
    layout, parts = aligned(node, (x, t))
    (mine,) = node.apply(tuple(parts))
    share = layout.box.volume / max(math.prod(layout.shape), 1)
    return reduce_from(layout.grid.comm, mine * share)


@layout_rule(SoftmaxCrossEntropy)
def softmax_cross_entropy(node: Any, x: Any) -> Any:
    """Add up the losses of the places that each rank has; the classes are whole."""
    if 1 in x.layout.cut_axes:
        x.layout.refuse(node.label, "the classes, axis 1, are cut")
    layout = x.layout.without((1,))
    labels, weight = node.labels, node.weight
    if labels.size != layout.box.volume:
        labels = own_cells(labels.reshape(layout.shape), layout).ravel()
        if weight is not None:
            weight = own_cells(weight.reshape(layout.shape), layout).ravel()
    own = SoftmaxCrossEntropy(labels, weight, node.mean, node.cache_score)
    return _summed(node, own.apply((x.part,))[0], layout)


@layout_rule(SigmoidCrossEntropy)
def sigmoid_cross_entropy(node: Any, x: Any) -> Any:
    """Add up the losses of the cells that each rank has."""
    if node.s.size == x.layout.box.volume:
        return _summed(node, node.apply((x.part,))[0], x.layout)
    s = own_cells(node.s, x.layout)
    counted = None if node.counted is None else own_cells(node.counted, x.layout)
    return _summed(node, SigmoidCrossEntropy(s, counted, node.mean).apply((x.part,))[0], x.layout)


def _summed(node: Any, y: Variable, layout: Any) -> Variable:
    if node.mean is None:
        return layout.divided(y) if layout.axes else y
    return reduce_from(layout.grid.comm, y)
