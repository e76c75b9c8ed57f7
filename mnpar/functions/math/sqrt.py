"""Square roots and squares of each element."""

from __future__ import annotations

from mnpar.backend import Array, ArrayModule
from mnpar.functions.node import elementwise


@elementwise(gradient=lambda gy, y: gy / (y * 2))
def sqrt(xp: ArrayModule, x: Array) -> Array:
    """Return the square root of each element; its gradient at 0 is infinite.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.sqrt(np.array([4.0, 9.0])).array
        array([2., 3.])
    """
    result: Array = xp.sqrt(x)
    return result


@elementwise(gradient=lambda gy, x, y: gy * y / x * -0.5)
def rsqrt(xp: ArrayModule, x: Array) -> Array:
    """Return 1 / √x; infinite at 0.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.rsqrt(np.array([1.0, 4.0])).array
        array([1. , 0.5])
    """
    result: Array = 1 / xp.sqrt(x)
    return result


@elementwise(gradient=lambda gy, x: gy * x * 2)
def square(xp: ArrayModule, x: Array) -> Array:
    """Return each element times itself.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.square(np.array([-2.0, 3.0])).array
        array([4., 9.])
    """
    return x * x
