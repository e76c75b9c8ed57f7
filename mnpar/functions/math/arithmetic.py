"""Sums, differences, products, quotients and powers with broadcasting, the functions behind the
operators, and functions that are made of them.

A number beside a Variable (``2 * x``, ``x + 1``, ``x**3``) has nodes of its own, which make no
array of it.
"""

from __future__ import annotations

from functools import cache, reduce
from operator import add as _add
from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array, ArrayModule
from mnpar.function_node import InputGradients
from mnpar.functions.array.broadcast import unbroadcast
from mnpar.functions.array.get_item import Where
from mnpar.functions.math.exponential import log
from mnpar.functions.node import GenericFunction, array_of, check_shapes, elementwise, show_shapes
from mnpar.kernels import arithmetic as kernel
from mnpar.variable import Variable, as_variable


class Add(GenericFunction):
    """``z = x + y``; ``gx = gz`` and ``gy = gz``, each summed over the axes along which its operand
    was repeated.
    """

    summands = slice(None)

    def forward(self, x: Array, y: Array) -> Array:
        return x + y

    def backward(self, gz: Variable | Array) -> InputGradients:
        x, y = self.inputs
        return lambda: unbroadcast(gz, x.shape), lambda: unbroadcast(gz, y.shape)


class Sub(GenericFunction):
    """``z = x - y``; ``gx = gz`` and ``gy = -gz``."""

    def forward(self, x: Array, y: Array) -> Array:
        return x - y

    def backward(self, gz: Variable | Array) -> InputGradients:
        x, y = self.inputs
        return lambda: unbroadcast(gz, x.shape), lambda: unbroadcast(-gz, y.shape)


class Mul(GenericFunction):
    """``z = x y``; ``gx = gz y`` and ``gy = gz x``."""

    is_product = multilinear = True

    def forward(self, x: Array, y: Array) -> Array:
        self.retain_inputs((0, 1))
        return x * y

    def backward(self, gz: Variable | Array) -> InputGradients:
        x, y = self.get_retained_inputs()
        return lambda: unbroadcast(gz * y, x.shape), lambda: unbroadcast(gz * x, y.shape)


class Div(GenericFunction):
    """``z = x / y``; ``gx = gz / y`` and ``gy = -(gz / y) z``."""

    is_product = True

    def forward(self, x: Array, y: Array) -> Array:
        self.retain_inputs((1,))
        self.retain_outputs((0,))
        return x / y

    def backward(self, gz: Variable | Array) -> InputGradients:
        (y,), (z,), (a, b) = self.get_retained_inputs(), self.get_retained_outputs(), self.inputs
        part = cache(lambda: gz / y)
        # y · y would underflow in float16
        return lambda: unbroadcast(part(), a.shape), lambda: unbroadcast(-(part() * z), b.shape)


class Neg(GenericFunction):
    """``y = -x``; ``gx = -gy``."""

    def forward(self, x: Array) -> Array:
        return -x

    def backward(self, gy: Variable | Array) -> InputGradients:
        return lambda: -gy


class AddConstant(GenericFunction):
    """``y = x + c`` with a number ``c``; ``gx = gy``."""

    def __init__(self, c: float) -> None:
        self.c = c

    def forward(self, x: Array) -> Array:
        return x + self.c

    def backward(self, gy: Variable | Array) -> InputGradients:
        return gy


class MulConstant(GenericFunction):
    """``y = c x`` with a number ``c``; ``gx = c gy``."""

    def __init__(self, c: float) -> None:
        self.c = c

    def forward(self, x: Array) -> Array:
        return x * self.c

    def backward(self, gy: Variable | Array) -> InputGradients:
        return lambda: gy * self.c


class PowConstant(GenericFunction):
    """``y = xᶜ`` with a number ``c``; ``gx = c xᶜ⁻¹ gy``."""

    def __init__(self, c: float) -> None:
        self.c = c

    def forward(self, x: Array) -> Array:
        self.retain_inputs((0,))
        y: Array
        # a product is many times faster than a power
        if self.c == 3:
            return kernel.cube(x)
        if self.c == 4:
            y = x * x
            y *= y
            return y
        return x**self.c

    def backward(self, gy: Variable | Array) -> InputGradients:
        (x,), c = self.get_retained_inputs(), self.c
        if c == 0:
            return lambda: gy * 0  # 0 · x⁻¹ would be NaN at 0
        return lambda: gy * PowConstant(c - 1)(x) * c


class Pow(GenericFunction):
    """``x ** y`` with d/dx = y·xʸ⁻¹ and d/dy = xʸ·log x; at x = 0 their limits are taken where they
    exist.
    """

    def forward(self, x: Array, y: Array) -> Array:
        self.retain_inputs((0, 1))
        self.retain_outputs((0,))
        return x**y

    def backward(self, gz: Variable | Array) -> InputGradients:
        (x, y), (z,) = self.get_retained_inputs(), self.get_retained_outputs()
        xp = backend.get_array_module(x)

        def gx() -> Any:
            less = ~((array_of(x) == 0) & (array_of(y) == 0))  # 0 · 0⁻¹ would be NaN
            return unbroadcast(gz * y * x ** (y - less.astype(y.dtype)), x.shape)

        def gy() -> Any:
            one = xp.ones((), x.dtype)
            # 0ʸ · log 0 is 0, not NaN
            return unbroadcast(gz * z * log.generic(Where(array_of(x) != 0)(x, one)), y.shape)

        return gx, gy


def broadcast_error(
    name: str, x: Variable | Array, y: Variable | Array, error: ValueError
) -> ValueError:
    """The error to raise for two operands that do not broadcast; other errors are passed on."""
    try:
        np.broadcast_shapes(x.shape, y.shape)
    except ValueError:
        return ValueError(
            f"{name}: shapes {show_shapes([x.shape, y.shape])} do not broadcast: from the right, "
            "lengths must be equal or 1; "
            "reshape, expand_dims or transpose one of the operands"
        )
    return error


class AddSeveral(GenericFunction):
    """``z = x₀ + x₁ + …`` of arrays of one shape and dtype, without an array for each partial sum;
    each gradient is ``gz``.
    """

    summands = slice(None)

    def forward(self, x: Array, y: Array, *others: Array) -> Array:
        z = x + y
        for other in others:
            z += other
        return z

    def backward(self, gz: Variable | Array) -> InputGradients:
        return (gz,) * len(self.inputs)


def add(*xs: Variable | Array | float) -> Variable:
    """The sum of arrays.

    Args:
        xs: arrays or Variables that broadcast.

    Raises:
        ValueError: there is none, or their shapes do not broadcast.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.add(np.array([1.0, 2.0]), np.array([3.0, 4.0]), np.array(1.0)).array
        array([5., 7.])
    """
    if not xs:
        raise ValueError("add: it needs an array, or more")
    summands: Any = xs  # numbers among them are the operators' matter
    several = len(xs) > 2 and all([isinstance(x, Variable) or backend.is_array(x) for x in xs])
    if (
        several
        and len({(node.shape, node.dtype) for node in [as_variable(x).node for x in summands]}) == 1
    ):
        return AddSeveral().apply(summands)[0]
    return as_variable(reduce(_add, summands[1:], as_variable(summands[0])))


def floor_divide(x: Variable | Array | float, y: Variable | Array | float) -> Variable:
    """``x // y``; its derivative is 0 wherever it has one, so nothing flows back.

    Example:
        >>> import numpy as np, mnpar
        >>> (mnpar.Variable(np.array([7.0, -7.0])) // 2).array
        array([ 3., -4.])
    """
    return Variable(backend.wrap_scalar(array_of(x) // array_of(y)), requires_grad=False)


def squared_difference(x1: Variable | Array, x2: Variable | Array) -> Variable:
    """``(x1 - x2)²`` of two arrays of one shape.

    Raises:
        ValueError: their shapes differ; ``F.square(x1 - x2)`` broadcasts.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.squared_difference(np.array([1.0, 2.0]), np.array([3.0, 3.0])).array
        array([4., 1.])
    """
    x1 = as_variable(x1)
    x2 = as_variable(x2)
    check_shapes("squared_difference", x1, x2)
    d: Variable = x1 - x2
    y: Variable = d * d
    return y


def linear_interpolate(p: Variable | Array, x: Variable | Array, y: Variable | Array) -> Variable:
    """``p x + (1 - p) y``: from y (p = 0) to x (p = 1), three arrays of one shape.

    Raises:
        ValueError: the shapes differ.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.linear_interpolate(
        ...     np.array([0.0, 0.25]), np.array([1.0, 1.0]), np.array([5.0, 5.0])
        ... ).array
        array([5., 4.])
    """
    p = as_variable(p)
    x = as_variable(x)
    y = as_variable(y)
    check_shapes("linear_interpolate", p, x, y)
    z: Variable = y + (x - y) * p
    return z


def _absolute_gradient(gy: Variable | Array, x: Variable | Array) -> Any:
    """``gx = gy sign(x)``, which is 0 where ``x = 0``; of complex x the conjugate of x / |x|."""
    if array_of(x).dtype.kind != "c":
        return gy * backend.get_array_module(x).sign(array_of(x))
    size = absolute.generic(x)
    return gy / (size + (array_of(size) == 0)) * x.conj()


@elementwise(_absolute_gradient)
def absolute(xp: ArrayModule, x: Array) -> Array:
    """Return the distance of each element from 0; the gradient at 0 is 0.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.absolute(np.array([-2.0, 3.0])).array
        array([2., 3.])
    """
    return abs(x)


class PassThrough(GenericFunction):
    """The identity: the outputs are the inputs, as other Variables with gradients of their own."""

    def forward(self, *xs: Array) -> tuple[Array, ...]:
        return xs

    def backward(self, *gys: Variable | Array | None) -> InputGradients:
        return gys


def identity(*inputs: Any) -> Any:
    """The same values, as new Variables.

    Args:
        inputs: one array or Variable, or several.

    Returns:
        A Variable, or a tuple of several.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.identity(np.ones(2)).array
        array([1., 1.])
    """
    ys = PassThrough().apply(inputs)
    return ys[0] if len(ys) == 1 else ys
