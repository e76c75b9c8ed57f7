"""maximum, minimum and clip, element by element.

At a tie the gradient goes to one side, the same as in Chainer: each docstring says to which.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.function_node import InputGradients
from mnpar.functions.array.broadcast import unbroadcast
from mnpar.functions.node import GenericFunction, as_operand
from mnpar.variable import Variable


class Maximum(GenericFunction):
    """``z = max(x, y)``; where ``x ≥ y``, ``gx = gz`` and ``gy = 0``, elsewhere the reverse."""

    def forward(self, x: Array, y: Array) -> Array:
        if self.differentiable:
            self.first = x >= y
        return backend.get_array_module(x, y).maximum(x, y)

    def backward(self, gz: Variable | Array) -> InputGradients:
        x, y = self.inputs
        return lambda: unbroadcast(gz * self.first, x.shape), lambda: unbroadcast(
            gz * ~self.first, y.shape
        )


def maximum(
    x1: Variable | Array | float,
    x2: Variable | Array | float,
    *xs: Variable | Array | float,
) -> Variable:
    """The largest of several arrays at each place; where two are equal, the earlier one gets the
    gradient.

    Args:
        x1, x2, xs: arrays, Variables or numbers that broadcast.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.maximum(np.array([1.0, 4.0]), np.array([2.0, 3.0])).array
        array([2., 4.])
    """
    return _of_all(Maximum, x1, x2, *xs)


class Minimum(Maximum):
    """``z = min(x, y)``; where ``x ≤ y``, ``gx = gz`` and ``gy = 0``, elsewhere the reverse:
    backward is the same.
    """

    def forward(self, x: Array, y: Array) -> Array:
        if self.differentiable:
            self.first = x <= y
        return backend.get_array_module(x, y).minimum(x, y)


def minimum(
    x1: Variable | Array | float,
    x2: Variable | Array | float,
    *xs: Variable | Array | float,
) -> Variable:
    """The smallest of several arrays at each place; where two are equal, the earlier one gets the
    gradient.

    Args:
        x1, x2, xs: arrays, Variables or numbers that broadcast.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.minimum(np.array([1.0, 4.0]), np.array([2.0, 3.0])).array
        array([1., 3.])
    """
    return _of_all(Minimum, x1, x2, *xs)


class Clip(GenericFunction):
    """``y = min(max(x, low), high)``; ``gx = gy`` inside the interval, 0 outside; ``ends``: whether
    its two ends are inside.
    """

    def __init__(self, low: Any, high: Any, ends: bool = True) -> None:
        # whether the gradient passes at the ends
        self.low = low
        self.high = high
        self.ends = ends

    def forward(self, x: Array) -> Array:
        low = -np.inf if self.low is None else self.low
        high = np.inf if self.high is None else self.high
        if self.differentiable:
            self.inside = (low <= x) & (x <= high) if self.ends else (low < x) & (x < high)
        return x.clip(self.low, self.high)

    def backward(self, gy: Variable | Array) -> InputGradients:
        return lambda: gy * self.inside


def clip(x: Variable | Array, x_min: float | None, x_max: float | None) -> Variable:
    """Limit elements to an interval, ``min(max(x, x_min), x_max)``; the gradient passes inside,
    ends included.

    Args:
        x: an array or Variable.
        x_min, x_max: the ends; None leaves that side open.

    Raises:
        ValueError: the interval is empty.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.clip(np.array([-2.0, 0.5, 3.0]), 0, 1).array
        array([0. , 0.5, 1. ])
    """
    if x_min is not None and x_max is not None and x_min > x_max:
        raise ValueError(f"clip: x_min = {x_min} is larger than x_max = {x_max}")
    return Clip(x_min, x_max).apply((x,))[0]


def _of_all(function: type[Maximum], *xs: Any) -> Variable:
    z: Variable = reduce(lambda x, y: function().apply((as_operand(x, y), as_operand(y, x)))[0], xs)
    return z
