"""Activations with parameters of their own, or with several inputs for each output."""

from __future__ import annotations

from typing import Any

from mnpar.functions.reduction import max as max_of
from mnpar.functions.shape import reshape
from mnpar.variable import Variable, as_variable


def prelu(x: Any, W: Any) -> Variable:
    """``x`` where it is positive, ``W x`` elsewhere, with a slope that is learnt (He et al. 2015, arXiv 1502.01852).

    Args:
        x: ``(N, …)``.
        W: of the shape of the first axes after the batch's: ``()``, ``(C,)`` …

    Returns:
        The shape of ``x``.

    Raises:
        ValueError: the shapes do not belong together.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.prelu(np.array([[-1.0, 2.0]]), np.array([0.5, 0.5])).array
        array([[-0.5,  2. ]])
    """
    x, W = as_variable(x), as_variable(W)
    if W.shape != x.shape[1 : 1 + W.ndim]:
        raise ValueError(f"prelu: W of shape {W.shape} must have the shape of x's axes after the batch's: {x.shape}")
    slope = reshape(W, (1, *W.shape, *[1] * (x.ndim - 1 - W.ndim))) if x.ndim else W
    positive = (x.array > 0).astype(x.dtype)
    y: Variable = x * (slope * (1 - positive) + positive)
    return y


def maxout(x: Any, pool_size: int, axis: int = 1) -> Variable:
    """The largest of each ``pool_size`` neighbours along an axis (Goodfellow et al. 2013, arXiv 1302.4389).

    Args:
        x: an array or Variable.
        pool_size: how many numbers make one.
        axis: along which they lie.

    Returns:
        The shape of ``x`` with ``pool_size`` times fewer along the axis.

    Raises:
        ValueError: the axis cannot be divided so.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.maxout(np.array([[1.0, 5.0, 3.0, 2.0]]), 2).array
        array([[5., 3.]])
    """
    x = as_variable(x)
    if not -x.ndim <= axis < x.ndim or pool_size < 1 or x.shape[axis] % pool_size:
        raise ValueError(f"maxout: axis {axis} of x, {x.shape}, cannot be divided into pools of {pool_size}")
    axis %= x.ndim
    shape = x.shape
    return max_of(reshape(x, (*shape[:axis], shape[axis] // pool_size, pool_size, *shape[axis + 1 :])), axis=axis + 1)
