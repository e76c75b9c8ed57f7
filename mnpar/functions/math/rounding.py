"""Rounding, signs and remainders. Piecewise constant functions have the derivative 0: no gradient
flows through them.
"""

from __future__ import annotations

from mnpar import backend
from mnpar.backend import Array, ArrayModule
from mnpar.function_node import InputGradients
from mnpar.functions.array.broadcast import unbroadcast
from mnpar.functions.node import GenericFunction, as_operand, elementwise
from mnpar.variable import Variable


@elementwise(gradient=None)
def floor(xp: ArrayModule, x: Array) -> Array:
    """Return the largest whole number that is not above each element; nothing flows back.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.floor(np.array([1.5, -1.5])).array
        array([ 1., -2.])
    """
    result: Array = xp.floor(x)
    return result


@elementwise(gradient=None)
def ceil(xp: ArrayModule, x: Array) -> Array:
    """Return the smallest whole number that is not below each element; nothing flows back.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.ceil(np.array([1.5, -1.5])).array
        array([ 2., -1.])
    """
    result: Array = xp.ceil(x)
    return result


@elementwise(gradient=None)
def fix(xp: ArrayModule, x: Array) -> Array:
    """Return each element without its fraction, rounded towards 0; nothing flows back.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.fix(np.array([1.5, -1.5])).array
        array([ 1., -1.])
    """
    result: Array = xp.trunc(x)
    return result


@elementwise(gradient=None)
def sign(xp: ArrayModule, x: Array) -> Array:
    """Return 1, -1, or 0 for 0; nothing flows back.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.sign(np.array([1.5, 0.0, -1.5])).array
        array([ 1.,  0., -1.])
    """
    result: Array = xp.sign(x)
    return result


class Fmod(GenericFunction):
    """``y = x - q d``, whose quotient ``q = fix(x / d)`` is a constant; ``gx = gy``, ``gd = -q
    gy``.
    """

    def forward(self, x: Array, d: Array) -> Array:
        xp = backend.get_array_module(x, d)
        self.quotient = xp.trunc(x / d)
        return xp.fmod(x, d)

    def backward(self, gy: Variable | Array) -> InputGradients:
        x, d = self.inputs
        return lambda: unbroadcast(gy * 1, x.shape), lambda: unbroadcast(
            gy * -self.quotient, d.shape
        )


def fmod(x: Variable | Array | float, divisor: Variable | Array | float) -> Variable:
    """Return the remainder of the division of each element; it has the sign of ``x``.

    Args:
        x, divisor: arrays, Variables or numbers that broadcast.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.fmod(np.array([7.5, -7.5]), 2).array
        array([ 1.5, -1.5])
    """
    return Fmod().apply((as_operand(x, divisor), as_operand(divisor, x)))[0]
