"""Exponentials and logarithms of each element."""

from __future__ import annotations

import math

from mnpar.backend import Array, ArrayModule
from mnpar.functions.node import elementwise
from mnpar.kernels import exponential as kernel
from mnpar.variable import Variable


@elementwise(gradient=lambda gy, y: gy * y)
def exp(xp: ArrayModule, x: Array) -> Array:
    """Return e to the power of each element.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.exp(np.array([0.0, 1.0])).array
        array([1.        , 2.71828183])
    """
    return kernel.exp(xp, x)


@elementwise(gradient=lambda gy, y: gy * (y + 1))
def expm1(xp: ArrayModule, x: Array) -> Array:
    """Return ``exp(x) - 1``, exact for small ``x`` too.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> float(F.expm1(np.array(1e-20)).array)
        1e-20
    """
    result: Array = xp.expm1(x)
    return result


@elementwise(gradient=lambda gy, x: gy / x)
def log(xp: ArrayModule, x: Array) -> Array:
    """Return the natural logarithm of each element.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.log(np.array([1.0, 2.0])).array
        array([0.        , 0.69314718])
    """
    return kernel.log(xp, x)


@elementwise(gradient=lambda gy, x: gy / (x + 1))
def log1p(xp: ArrayModule, x: Array) -> Array:
    """Return ``log(1 + x)``, exact for small ``x`` too.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> float(F.log1p(np.array(1e-20)).array)
        1e-20
    """
    return kernel.log1p(xp, x)


def log2(x: Variable | Array) -> Variable:
    """Return the logarithm to base 2.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.log2(np.array([1.0, 8.0])).array
        array([0., 3.])
    """
    y: Variable = log(x) * (1 / math.log(2))
    return y


def log10(x: Variable | Array) -> Variable:
    """Return the logarithm to base 10.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.log10(np.array([1.0, 100.0])).array.round(12)
        array([0., 2.])
    """
    y: Variable = log(x) * (1 / math.log(10))
    return y
