"""Rules of functions whose output elements depend on the inputs' elements at their place alone:
nothing is sent, the result is cut as the inputs are.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mnpar.backend import Array
from mnpar.functions.activation.gelu import Gelu
from mnpar.functions.activation.prelu import PReLU
from mnpar.functions.activation.relu import ELU, LeakyReLU, ReLU
from mnpar.functions.activation.softplus import Softplus
from mnpar.functions.activation.swish import Swish
from mnpar.functions.array.broadcast import BroadcastTo
from mnpar.functions.array.get_item import Where
from mnpar.functions.array.shape import Cast, Copy
from mnpar.functions.divided.layout import GridLayout
from mnpar.functions.divided.rules.table import aligned, layout_rule, only_first
from mnpar.functions.loss.regression import HuberLoss
from mnpar.functions.math.arithmetic import (
    Add,
    AddConstant,
    AddSeveral,
    Div,
    Mul,
    MulConstant,
    Neg,
    PassThrough,
    Pow,
    PowConstant,
    Sub,
)
from mnpar.functions.math.maximum import Clip, Maximum, Minimum
from mnpar.functions.math.rounding import Fmod
from mnpar.functions.math.scale import Bias, Scale
from mnpar.functions.math.trigonometric import Arctan2
from mnpar.functions.node import is_divided
from mnpar.functions.noise import Dropout


@layout_rule(Add, Sub, Mul, Div, Neg, AddConstant, MulConstant, PowConstant, Pow, AddSeveral)
@layout_rule(PassThrough, Maximum, Minimum, Clip, Fmod, Arctan2, Bias, Scale, Cast, Copy)
@layout_rule(ReLU, LeakyReLU, ELU, Softplus, Gelu, PReLU, HuberLoss)
def elementwise(node: Any, *inputs: Any) -> Any:
    """Apply the function to parts that are cut alike; the result is cut as they are."""
    layout, parts = aligned(node, inputs)
    return tuple([layout.divided(y) for y in node.apply(tuple(parts))])


def own_cells(array: Array, layout: GridLayout) -> Array:
    """Return what this rank's part meets of a constant array that is broadcast to the whole one."""
    found: Array = layout.take_own(array).array
    return found


@layout_rule(Where, halos=True)
def where(node: Any, x: Any, y: Any) -> Any:
    """Choose by the cells of the condition that this rank has."""
    if is_divided(node.condition):
        layout, (a, b, own) = aligned(node, (x, y, node.condition))
        return layout.divided(Where(own.array).apply((a, b))[0])
    shape = np.broadcast_shapes(node.condition.shape, x.shape, y.shape)
    layout, _ = aligned(node, (x, y))
    if layout.shape != shape:
        layout.refuse(node.label, f"it is repeated to the condition's shape {shape}")
    return elementwise(Where(own_cells(node.condition, layout)), x, y)


@layout_rule(Dropout, halos=True)
def dropout(node: Any, x: Any) -> Any:
    """Drop this rank's cells of the mask."""
    mask = node.mask
    if mask.shape != x.part.shape:
        mask = own_cells(mask, x.layout)
    return elementwise(Dropout(mask), x)


@layout_rule(BroadcastTo, halos=True)
def broadcast_to(node: Any, x: Any) -> Any:
    """Repeat parts along axes that are whole."""
    lead = len(node.shape) - len(x.shape)
    layout = x.layout.like(node.shape, [a + lead for a in x.layout.axes])
    if any([x.shape[a] != node.shape[a + lead] for a in x.layout.cut_axes]):
        x.layout.refuse(node.label, f"it is repeated to {node.shape} along an axis that is cut")
    return layout.divided(BroadcastTo(layout.box.shape).apply((x.part,))[0])


@layout_rule(Swish, halos=True)
def swish(node: Any, x: Any, beta: Any) -> Any:
    """Apply the function to this rank's part, with the parameters of its cells."""
    layout = only_first(node, x, beta)
    own = layout.shared(beta).reshape(node.shape)
    own = layout.take_cells(own)
    return layout.divided(Swish(own.shape).apply((x.part, own))[0])
