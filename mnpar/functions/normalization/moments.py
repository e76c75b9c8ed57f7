"""Means and variances that lose no digits, and the arithmetic that normalizations share.

x is read as ``(A, C, B)``: statistics are over A and B, one for each of the C. They are float64
whatever x is, and nothing is ever computed from Σx²: first comes a rough mean, the *shift*; then d
= x - shift, exact for numbers near the mean; then the mean of d (the *rest*) and var = mean(d²) -
rest². Where x has mean 1e6 and deviation 1 in float32, the shift is off by the rounding of 1e6, and
the rest, which d knows to all digits, repairs it at no cost: (x - mean)·a + b = d·a + (b - rest·a).
Mostly 0 is a shift as good as any other: then d is x, and nothing is written. On the host C is cut
into blocks that stay in the cache, so that x is fetched once and what is made of it is written
once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.functions.node import GenericFunction, array_of, upcast_halves
from mnpar.variable import Variable

View = tuple[int, int, int]
# elements: 0.8 MB of float32; input, output and gradient of a piece fit a core's second cache of 2
# MB
BLOCK = 200_000
CHANNELS = 8  # at least: shorter pieces of memory are slower than what the cache saves
FEW = 8  # numbers that share a mean
RUN = 128  # numbers that are added up in their own dtype; sums of runs are added in float64


def view(shape: tuple[int, ...], first: int, end: int) -> View:
    """The shape as (A, C, B), where C are the axes from ``first`` to ``end``.

    Example:
        >>> view((32, 64, 28, 28), 1, 2)
        (32, 64, 784)
    """
    if first == end:
        return 1, 1, math.prod(shape)
    return math.prod(shape[:first]), math.prod(shape[first:end]), math.prod(shape[end:])


def blocks(x: Array) -> Iterator[slice]:
    """Pieces of C: as many as fit the cache on the host, all at once on a GPU (and where B is 1:
    pieces would be no runs).
    """
    _, C, B = x.shape
    if type(x) is not np.ndarray or B == 1:
        return iter((slice(0, C),))
    step = max(CHANNELS, -(-C // -(-x.size // BLOCK))) if x.size else max(C, 1)
    return (slice(start, start + step) for start in range(0, C, step))


def sums(x: Array, y: Array | None = None) -> Array:
    """Σ x, or Σ x·y, over A and B: (A, C, B) → (C,), float64. No product is stored."""
    # numpy's einsum makes 0 · y of it, with a y that is not there: NaN, if that is what the memory
    # has
    if not x.size:
        return backend.get_array_module(x).zeros(x.shape[1])
    if x.shape[2] == 1:
        return _sums_of_rows(x[:, :, 0], None if y is None else y[:, :, 0])
    xp = backend.get_array_module(x)
    runs = x @ xp.ones(x.shape[2], x.dtype) if y is None else xp.einsum("acb,acb->ac", x, y)
    result: Array = runs.sum(axis=0, dtype="d")
    return result


def _sums_of_rows(x: Array, y: Array | None) -> Array:
    """Σ x, or Σ x·y, over A: (A, C) → (C,), in runs: one sum of 10⁵ float32 would lose two of their
    seven digits.
    """
    xp, (A, C) = backend.get_array_module(x), x.shape
    total = xp.zeros(C)
    for part, length in ((slice(0, A - A % RUN), RUN), (slice(A - A % RUN, A), A % RUN)):
        if part.start < part.stop:
            runs = x[part].reshape(-1, length, C)
            products = (
                xp.ones(length, x.dtype) @ runs
                if y is None
                else xp.einsum("rac,rac->rc", runs, y[part].reshape(runs.shape))
            )
            total += products.sum(axis=0, dtype="d")
    return total


def centre(x: Array, room: Array) -> tuple[Array, Array, Array, Array]:
    """d = x - shift, in ``room`` or x itself; shift and rest, whose sum is the mean; and the
    variance.

    The shift is 0 if that is within √7 deviations of the mean, so that mean(d²) is at most 8
    variances, and the difference that gives the variance loses three bits at most. Else an eighth
    of the numbers gives it: their mean is as near, in any case. (That of a few numbers seldom is:
    they are not asked.)
    """
    xp, (A, C, B) = backend.get_array_module(x), x.shape
    shift = xp.zeros(C, x.dtype)
    m = max(A * B, 1)
    if m >= FEW:
        rest = sums(x) / m
        squares = sums(x, x) / m
    if m < FEW or not ((8 * rest * rest <= 7 * squares) & (squares < np.inf)).all():
        some = x[: -(-A // 8)] if A >= 8 else x[:, :, : -(-B // 8)]
        shift = (sums(some) / max(some.shape[0] * some.shape[2], 1)).astype(x.dtype)
        x = less(x, shift, room)
        rest = sums(x) / m
        squares = sums(x, x) / m
    return x, shift, rest, xp.maximum(squares - rest * rest, 0)


def less(x: Array, shift: Array, room: Array) -> Array:
    """x - shift, in ``room``; x itself where that is the same."""
    return (
        backend.get_array_module(x).subtract(x, shift[:, None], out=room)
        if shift.any() or x.dtype != room.dtype
        else x
    )


def split_mean(mean: Array, dtype: Any) -> tuple[Array, Array]:
    """A mean as shift and rest."""
    shift = mean.astype(dtype)
    return shift, mean.astype("d") - shift


class Moments(GenericFunction):
    """The mean of x over A and B, and the sum of the squares of what remains: two (C,) of float64.
    Those of nothing are 0.
    """

    def __init__(self, shape: View) -> None:
        self.shape = shape
        self.count = shape[0] * shape[2]

    def forward(self, x: Array) -> tuple[Array, Array]:
        self.retain_inputs((0,))
        self.retain_outputs((0,))
        xp = backend.get_array_module(x)
        x = x.reshape(self.shape)
        mean = xp.empty(self.shape[1])
        squares = xp.empty(self.shape[1])
        for c in blocks(x):
            part = upcast_halves(x[:, c])
            _, shift, rest, var = centre(part, xp.empty_like(part))
            mean[c], squares[c] = shift + rest, var * self.count
        return mean, squares

    def backward(self, gmean: Any, gsquares: Any) -> Any:
        (x,), (mean,) = self.get_retained_inputs(), self.get_retained_outputs()

        def gx() -> Any:
            if isinstance(gmean, Variable) or isinstance(gsquares, Variable):
                return self._written_out(x, mean, gmean, gsquares)
            g = backend.get_array_module(x).empty(x.shape, dtype_of(x))
            shift, rest = split_mean(mean, g.dtype)
            k = 0 * mean if gsquares is None else gsquares * 2
            d = g.reshape(self.shape)
            c = -rest * k if gmean is None else gmean / max(self.count, 1) - rest * k
            backend.get_array_module(x).multiply(
                less(x.reshape(self.shape), shift, d), across(k, g.dtype), out=d
            )
            d += across(c, g.dtype)
            return g

        return gx

    def _written_out(self, x: Any, mean: Any, gmean: Any, gsquares: Any) -> Any:
        """The gradient in ordinary functions of Variables, differentiable any number of times."""
        g: Any = backend.get_array_module(x.array).zeros(self.shape, dtype_of(x))
        if gsquares is not None:
            g = centred(x.reshape(self.shape), mean) * across(gsquares * 2, dtype_of(x))
        if gmean is not None:
            g = g + across(gmean * (1 / max(self.count, 1)), dtype_of(x))
        return g.reshape(x.shape)


def dtype_of(x: Any) -> Any:
    """The dtype that x is computed with: float32 for float16 and bfloat16."""
    return np.dtype("f") if x.dtype.char in backend.HALVES else x.dtype


def cast(x: Any, dtype: Any) -> Any:
    """An array or Variable in a dtype, itself if it has that dtype."""
    return x if x.dtype == dtype else x.astype(dtype)


def across(a: Any, dtype: Any) -> Any:
    """An array or Variable (C,) as (C, 1), to meet an (A, C, B)."""
    return cast(a, dtype).reshape((a.size, 1))


def centred(x: Any, mean: Any) -> Any:
    """x - mean for arrays and Variables (A, C, B) and (C,): the leading digits of the mean go
    first, as a constant.
    """
    dtype = dtype_of(x)
    shift, _ = split_mean(array_of(mean), dtype)
    return (cast(x, dtype) - shift[:, None]) - across(mean - shift.astype("d"), dtype)
