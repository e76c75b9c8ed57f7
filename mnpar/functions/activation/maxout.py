"""Maxout: the largest of neighbouring channels."""

from __future__ import annotations

from mnpar.backend import Array
from mnpar.functions.array.shape import reshape
from mnpar.functions.math.reduction import max as _max
from mnpar.variable import Variable, as_variable


def maxout(x: Variable | Array, pool_size: int, axis: int = 1) -> Variable:
    """The largest of each ``pool_size`` neighbours along an axis; equally large ones all get the
    gradient.

    Args:
        x: an array or Variable, ``(N, C * pool_size, …)``.
        pool_size: how many make one.
        axis: which axis becomes shorter.

    Returns:
        ``(N, C, …)``.

    Raises:
        ValueError: ``pool_size`` does not divide the axis.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.maxout(np.array([[1.0, 4.0, 3.0, 2.0]]), 2).array
        array([[4., 3.]])

    Source:
        Goodfellow et al., "Maxout networks", ICML 2013.
    """
    x = as_variable(x)
    if pool_size < 1 or not -x.ndim <= axis < x.ndim or x.shape[axis] % pool_size:
        raise ValueError(
            f"maxout: axis {axis} of x {x.shape} cannot be cut into pools of {pool_size}"
        )
    axis %= x.ndim
    cut = x.shape[axis] // pool_size, pool_size
    return _max(reshape(x, x.shape[:axis] + cut + x.shape[axis + 1 :]), axis=axis + 1)
