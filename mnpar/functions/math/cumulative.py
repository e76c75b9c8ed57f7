"""Sums and products from the beginning to each place, and the product of all.

The derivatives of products are quotients, gy·y/x, where nothing is 0 and nothing overflows. Where
something is, the derivative of a product is the product of the others; and what is differentiated
again is made in pairs, log₂ n times: derivatives of these need no quotient.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import HALVES, Array
from mnpar.function_node import InputGradients
from mnpar.functions.array.get_item import get_item
from mnpar.functions.array.joining import concat
from mnpar.functions.array.shape import reshape, transpose
from mnpar.functions.math.reduction import Reduction, kept_shape
from mnpar.functions.node import (
    GenericFunction,
    array_of,
    composed_gradient,
    normalize_axes,
    normalize_axis,
)
from mnpar.kernels.dtypes import upcast_halves
from mnpar.kernels.rows import product_gradient, reduce_rows, running_sums
from mnpar.variable import Variable, as_variable


class CumSum(GenericFunction):
    """Sums from the beginning, or to the end: each the transpose of the other."""

    def __init__(self, axis: int, backwards: bool = False) -> None:
        self.axis, self.backwards = axis, backwards

    def forward(self, x: Array) -> Array:
        y = running_sums(upcast_halves(x), self.axis, self.backwards)
        return y.astype(x.dtype) if x.dtype.char in HALVES else y

    def backward(self, gy: Variable | Array) -> InputGradients:
        return lambda: CumSum(self.axis, not self.backwards)(gy)


def cumsum(x: Variable | Array, axis: int | None = None) -> Variable:
    """The sums of the elements up to each one.

    Args:
        x: an array or Variable.
        axis: along which; None: of the flattened array.

    Raises:
        ValueError: there is no such axis.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.cumsum(np.array([1, 2, 3])).array
        array([1, 3, 6])
    """
    x, axis = _along("cumsum", x, axis)
    return CumSum(axis).apply((x,))[0]


class CumProd(GenericFunction):
    """``y_i = x_0 x_1 … x_i``; ``gx_i`` is the sum of ``gy y`` from i on, over ``x_i``. No x may be
    0.
    """

    def __init__(self, axis: int) -> None:
        self.axis = axis

    def forward(self, x: Array) -> Array:
        self.retain_inputs((0,))
        self.retain_outputs((0,))
        return x.cumprod(axis=self.axis)

    def backward(self, gy: Variable | Array) -> InputGradients:
        (x,), (y,) = self.get_retained_inputs(), self.get_retained_outputs()
        return lambda: CumSum(self.axis, backwards=True)(gy * y) / x


def cumprod(x: Variable | Array, axis: int | None = None) -> Variable:
    """The products of the elements up to each one; its gradients are right where there are zeros,
    too.

    Args:
        x: an array or Variable.
        axis: along which; None: of the flattened array.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.cumprod(np.array([1.0, 2.0, 3.0])).array
        array([1., 2., 6.])
    """
    x, axis = _along("cumprod", x, axis)
    y = CumProd(axis).apply((x,))[0]
    # what is 0 or infinite stays so, or is NaN
    last = get_item(y, (*[slice(None)] * axis, slice(-1, None)))
    # a quotient that nobody asks for is as good
    return y if y.creator is None or _divides(last.array) else _running_products(x, axis)


def _running_products(x: Variable, axis: int) -> Variable:
    y = x
    lead = [slice(None)] * axis
    n = x.shape[axis]
    step = 1
    while step < n:  # each element is the product of the last 1, 2, 4 … elements: log₂ n steps
        more = get_item(y, (*lead, slice(step, None))) * get_item(y, (*lead, slice(0, n - step)))
        y = concat((get_item(y, (*lead, slice(0, step))), more), axis=axis)
        step = 2 * step
    return y


class Prod(Reduction):
    """``y = Π x`` over some axes; ``gx`` is ``gy`` times the product of the others."""

    axis: tuple[int, ...]

    def forward(self, x: Array) -> Array:
        self.retain_inputs((0,))
        self.retain_outputs((0,))
        wide = upcast_halves(x)
        y: Array = (
            reduce_rows("prod", wide, self.axis)
            if wide.dtype.kind == "f"
            else wide.prod(axis=self.axis, keepdims=True, dtype=wide.dtype)
        )
        y = y.astype(x.dtype, copy=False)
        return y if self.keepdims else y.squeeze(self.axis)

    def backward(self, gy: Variable | Array) -> InputGradients:
        (x,), (y,) = self.get_retained_inputs(), self.get_retained_outputs()
        if _divides(array_of(y)):
            return lambda: self.spread(gy * y) / x
        if isinstance(x, Variable):
            return lambda: composed_gradient(self._in_pairs, x, gy)
        return lambda: self._by_others(x, gy)

    def _by_others(self, x: Array, gy: Variable | Array) -> Array:
        g = upcast_halves(array_of(self.lift(gy)))
        gx = product_gradient(upcast_halves(x), self.axis, g)
        return gx.astype(x.dtype, copy=False)

    def _in_pairs(self, x: Variable) -> Variable:
        """The same by differentiable functions."""
        order = (*self.axis, *[i for i in range(x.ndim) if i not in self.axis])
        y = transpose(x, order) if self.axis else x
        n = len(self.axis)
        y = reshape(y, (int(np.prod(y.shape[:n])), *y.shape[n:]))
        while y.shape[0] > 1:
            n = y.shape[0]
            even = get_item(y, slice(0, n - n % 2, 2)) * get_item(y, slice(1, n, 2))
            y = concat((even, get_item(y, slice(n - 1, n))), axis=0) if n % 2 else even
        kept = kept_shape(x.shape, self.axis)
        return reshape(y, kept if self.keepdims else y.shape[1:])


def prod(x: Variable | Array, axis: Any = None, keepdims: bool = False) -> Variable:
    """The product over some axes, with the product rule for its derivative: right where there are
    zeros, too.

    Args:
        x: an array or Variable.
        axis: over which; None means everything.
        keepdims: whether these axes stay, with length 1.

    Raises:
        ValueError: x has no such axis.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.prod(np.array([2.0, 3.0, 4.0])).item()
        24.0
    """
    x = as_variable(x)
    axes = sorted(normalize_axes("prod", x, range(x.ndim) if axis is None else axis))
    return Prod(tuple(axes), keepdims).apply((x,))[0]


def _divides(y: Array) -> bool:
    """Return whether the derivative of a product, or of each of many, is a quotient."""
    return bool((backend.get_array_module(y).isfinite(y) & (y != 0)).all())


def _along(name: str, x: Variable | Array, axis: int | None) -> tuple[Variable, int]:
    """The Variable and its axis, counted from 0; flattened, if there is none."""
    x = as_variable(x)
    if axis is None:
        return reshape(x, (x.size,)), 0
    return x, normalize_axis(name, x, axis)
