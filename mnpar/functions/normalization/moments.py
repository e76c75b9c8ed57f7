"""Mean and sum of squares as a function, and the arithmetic of arrays or Variables that
normalizations share.

kernels/moments.py says how statistics keep all digits: x is read as ``(A, C, B)``, and statistics
are over A and B, one for each of the C.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import DTypeLike

from mnpar import backend
from mnpar.backend import Array
from mnpar.function_node import InputGradients
from mnpar.functions.node import GenericFunction, Operand, array_of
from mnpar.kernels.dtypes import compute_dtype, upcast_halves
from mnpar.kernels.moments import ChannelView, centre, channel_blocks, split_mean, subtract_shift
from mnpar.variable import Variable


class Moments(GenericFunction):
    """The mean of x over A and B, and the sum of the squares of what remains: two (C,) of float64.
    Those of nothing are 0.
    """

    def __init__(self, shape: ChannelView) -> None:
        self.shape = shape
        self.count = shape[0] * shape[2]

    def forward(self, x: Array) -> tuple[Array, Array]:
        self.retain_inputs((0,))
        self.retain_outputs((0,))
        xp = backend.get_array_module(x)
        x = x.reshape(self.shape)
        mean = xp.empty(self.shape[1])
        squares = xp.empty(self.shape[1])
        for c in channel_blocks(x):
            part = upcast_halves(x[:, c])
            _, shift, rest, var = centre(part, xp.empty_like(part))
            mean[c], squares[c] = shift + rest, var * self.count
        return mean, squares

    def backward(self, gmean: Variable | Array, gsquares: Variable | Array) -> InputGradients:
        (x,), (mean,) = self.get_retained_inputs(), self.get_retained_outputs()

        def gx() -> Any:
            if isinstance(gmean, Variable) or isinstance(gsquares, Variable):
                return self._written_out(x, mean, gmean, gsquares)
            g = backend.get_array_module(x).empty(x.shape, compute_dtype(x))
            shift, rest = split_mean(mean, g.dtype)
            k = 0 * mean if gsquares is None else gsquares * 2
            d = g.reshape(self.shape)
            c = -rest * k if gmean is None else gmean / max(self.count, 1) - rest * k
            backend.get_array_module(x).multiply(
                subtract_shift(x.reshape(self.shape), shift, d), across(k, g.dtype), out=d
            )
            d += across(c, g.dtype)
            return g

        return gx

    def _written_out(self, x: Variable | Array, mean: Any, gmean: Any, gsquares: Any) -> Any:
        """The gradient in ordinary functions of Variables, differentiable any number of times."""
        g: Any = backend.get_array_module(x).zeros(self.shape, compute_dtype(x))
        if gsquares is not None:
            g = centred(x.reshape(self.shape), mean) * across(gsquares * 2, compute_dtype(x))
        if gmean is not None:
            g = g + across(gmean * (1 / max(self.count, 1)), compute_dtype(x))
        return g.reshape(x.shape)


def cast(x: Operand, dtype: DTypeLike) -> Operand:
    """An array or Variable in a dtype, itself if it has that dtype."""
    return x if x.dtype == dtype else x.astype(dtype)


def across(a: Operand, dtype: DTypeLike) -> Operand:
    """An array or Variable (C,) as (C, 1), to meet an (A, C, B)."""
    return cast(a, dtype).reshape((a.size, 1))


def centred(x: Variable | Array, mean: Variable | Array) -> Variable | Array:
    """x - mean for arrays and Variables (A, C, B) and (C,): the leading digits of the mean go
    first, as a constant.
    """
    dtype = compute_dtype(x)
    shift, _ = split_mean(array_of(mean), dtype)
    return (cast(x, dtype) - shift[:, None]) - across(mean - shift.astype("d"), dtype)
