"""Means over some axes, weighted or not."""

from __future__ import annotations

from mnpar.backend import HALVES, Array, Axis
from mnpar.function_node import InputGradients
from mnpar.functions.array.shape import cast, reshape
from mnpar.functions.math.einsum import tensordot
from mnpar.functions.math.reduction import Reduction, kept_shape
from mnpar.functions.node import normalize_axes
from mnpar.kernels.dtypes import floating_dtype, upcast_halves
from mnpar.kernels.sums import sum_array
from mnpar.variable import Variable, as_variable


class Mean(Reduction):
    """``y = Σ x / n``; ``gx = gy / n`` at every element."""

    def forward(self, x: Array) -> Array:
        y = sum_array(upcast_halves(x), self.axis, self.keepdims)
        self.count = x.size // (y.size or 1) or 1  # of no elements it is 0, as the losses are
        y = y / self.count
        return y.astype(x.dtype) if x.dtype.kind in "fV" else y  # bfloat16 is a V

    def backward(self, gy: Variable | Array) -> InputGradients:
        return lambda: self.spread(gy * (1 / self.count))


def average(
    x: Variable | Array,
    axis: Axis = None,
    weights: Variable | Array | None = None,
    keepdims: bool = False,
) -> Variable:
    """The mean over some axes, weighted or not; ``mean`` is another name of it.

    On one rank: the mean of all ranks' elements is not the mean of the ranks' means where their
    numbers differ.

    Args:
        x: an array or Variable.
        axis: what is averaged over; None means everything.
        weights: None, or an array or Variable with exactly the axes that are averaged over. They
            need not sum to 1.
        keepdims: whether the averaged axes stay, with length 1.

    Returns:
        A Variable; the mean of no elements is 0, as that of the losses.

    Raises:
        ValueError: x has no such axis, or the weights have others.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.average(
        ...     np.array([[1.0, 2.0], [3.0, 4.0]]), axis=1, weights=np.array([3.0, 1.0])
        ... ).array
        array([1.25, 3.25])
    """
    if weights is None:
        return Mean(axis, keepdims).apply((x,))[0]
    x = as_variable(x)
    w = as_variable(weights)
    reduced = sorted(normalize_axes("average", x, range(x.ndim) if axis is None else axis))
    needed = tuple(x.shape[a] for a in reduced)
    if w.shape != needed:
        raise ValueError(
            f"average: weights of shape {w.shape} for axis {axis} of shape {x.shape} must have "
            f"shape {needed}"
        )
    narrow = x.dtype.char in HALVES  # sums may be too large for float16
    terms = cast(x, "f4" if narrow else floating_dtype(x.dtype))
    w = cast(w, terms.dtype)
    y = tensordot(terms, w, (reduced, range(w.ndim))) / w.sum()
    y = reshape(y, kept_shape(x.shape, tuple(reduced))) if keepdims else y
    return cast(y, x.dtype) if narrow else y


mean = average
