"""Trigonometric and hyperbolic functions and their inverses; angles are in radians.

The hyperbolic tangent, an activation function, stands in activation/sigmoid.py.
"""

from __future__ import annotations

from mnpar import backend
from mnpar.backend import Array, ArrayModule
from mnpar.function_node import InputGradients
from mnpar.functions.math.sqrt import sqrt
from mnpar.functions.node import GenericFunction, array_of, check_shapes, elementwise
from mnpar.variable import Variable, as_variable


def _sin_gradient(gy: Variable | Array, x: Variable | Array) -> Variable | Array:
    return gy * cos.generic(x)


@elementwise(_sin_gradient)
def sin(xp: ArrayModule, x: Array) -> Array:
    """Return the sine of each element.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.sin(np.array([0.0, np.pi / 2])).array
        array([0., 1.])
    """
    return xp.sin(x)


@elementwise(gradient=lambda gy, x: gy * -sin.generic(x))
def cos(xp: ArrayModule, x: Array) -> Array:
    """Return the cosine of each element.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.cos(np.array([0.0, np.pi])).array
        array([ 1., -1.])
    """
    return xp.cos(x)


@elementwise(gradient=lambda gy, y: gy * (y * y + 1))
def tan(xp: ArrayModule, x: Array) -> Array:
    """Return the tangent of each element.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.tan(np.array([0.0, 1.0])).array.round(4)
        array([0.    , 1.5574])
    """
    return xp.tan(x)


@elementwise(gradient=lambda gy, x: gy / sqrt.generic(1 - x * x))
def arcsin(xp: ArrayModule, x: Array) -> Array:
    """Return the angle, -π/2 to π/2, whose sine is x; its gradient at ±1 is infinite.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.arcsin(np.array([0.0, 0.5])).array.round(4)
        array([0.    , 0.5236])
    """
    return xp.arcsin(x)


@elementwise(gradient=lambda gy, x: -gy / sqrt.generic(1 - x * x))
def arccos(xp: ArrayModule, x: Array) -> Array:
    """Return the angle, 0 to π, whose cosine is x; its gradient at ±1 is infinite.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.arccos(np.array([0.0, 0.5])).array.round(4)
        array([1.5708, 1.0472])
    """
    return xp.arccos(x)


@elementwise(gradient=lambda gy, x: gy / (x * x + 1))
def arctan(xp: ArrayModule, x: Array) -> Array:
    """Return the angle, -π/2 to π/2, whose tangent is x.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.arctan(np.array([0.0, 1.0])).array.round(4)
        array([0.    , 0.7854])
    """
    return xp.arctan(x)


class Arctan2(GenericFunction):
    """``z = arctan(y / x)`` in the right quadrant; with ``r² = x² + y²``, ``gy = gz x / r²`` and
    ``gx = -gz y / r²``.
    """

    def forward(self, y: Array, x: Array) -> Array:
        self.retain_inputs((0, 1))
        return backend.get_array_module(x).arctan2(y, x)

    def backward(self, gz: Variable | Array) -> InputGradients:
        y, x = self.get_retained_inputs()
        xp = backend.get_array_module(array_of(x))
        size = xp.maximum(abs(array_of(x)), abs(array_of(y)))
        unit = xp.where((size > 0) & xp.isfinite(size), size, xp.ones((), size.dtype))
        # neither square overflows, and the larger one is 1
        x = x / unit
        y = y / unit
        r2 = x * x + y * y + (size == 0)  # at (0, 0), which has no angle, the gradient is 0
        return lambda: gz * (x / r2 / unit), lambda: -gz * (y / r2 / unit)


def arctan2(x1: Variable | Array, x2: Variable | Array) -> Variable:
    """Return the angle, -π to π, of the point whose height is ``x1`` and whose width is ``x2``.

    Args:
        x1, x2: arrays or Variables of one shape.

    Raises:
        ValueError: the shapes differ.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.arctan2(np.array([1.0, 1.0]), np.array([1.0, -1.0])).array.round(4)
        array([0.7854, 2.3562])
    """
    x1 = as_variable(x1)
    x2 = as_variable(x2)
    check_shapes("arctan2", x1, x2)
    return Arctan2().apply((x1, x2))[0]


def _sinh_gradient(gy: Variable | Array, x: Variable | Array) -> Variable | Array:
    return gy * cosh.generic(x)


@elementwise(_sinh_gradient)
def sinh(xp: ArrayModule, x: Array) -> Array:
    """Return the hyperbolic sine of each element.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.sinh(np.array([0.0, 1.0])).array.round(4)
        array([0.    , 1.1752])
    """
    return xp.sinh(x)


@elementwise(gradient=lambda gy, x: gy * sinh.generic(x))
def cosh(xp: ArrayModule, x: Array) -> Array:
    """Return the hyperbolic cosine of each element.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.cosh(np.array([0.0, 1.0])).array.round(4)
        array([1.    , 1.5431])
    """
    return xp.cosh(x)


# 1 - x² as (1 - x)(1 + x) is accurate near ±1
@elementwise(gradient=lambda gy, x: gy / ((1 - x) * (1 + x)))
def arctanh(xp: ArrayModule, x: Array) -> Array:
    """Return the number whose hyperbolic tangent is x; infinite at ±1.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.arctanh(np.array([0.0, 0.5])).array.round(4)
        array([0.    , 0.5493])
    """
    return xp.arctanh(x)
