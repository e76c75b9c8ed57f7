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
from mnpar.kernels import tuning

ChannelView = tuple[int, int, int]


RUN = 128  # numbers that are added up in their own dtype; sums of runs are added in float64


def channel_view(shape: tuple[int, ...], first: int, end: int) -> ChannelView:
    """The shape as (A, C, B), where C are the axes from ``first`` to ``end``.

    Example:
        >>> channel_view((32, 64, 28, 28), 1, 2)
        (32, 64, 784)
    """
    if first == end:
        return 1, 1, math.prod(shape)
    return math.prod(shape[:first]), math.prod(shape[first:end]), math.prod(shape[end:])


def channel_blocks(x: Array) -> Iterator[slice]:
    """Pieces of C: as many as fit the cache on the host, all at once on a GPU (and where B is 1:
    pieces would be no runs).
    """
    _, C, B = x.shape
    if type(x) is not np.ndarray or B == 1:
        return iter((slice(0, C),))
    step = (
        max(tuning.MOMENTS_CHANNELS, -(-C // -(-x.size // tuning.MOMENTS_BLOCK)))
        if x.size
        else max(C, 1)
    )
    return (slice(start, start + step) for start in range(0, C, step))


def channel_sums(x: Array, y: Array | None = None) -> Array:
    """Σ x, or Σ x·y, over A and B: (A, C, B) → (C,), float64. No product is stored."""
    # numpy's einsum makes 0 · y of it, with a y that is not there: NaN, if that is what the memory
    # has
    if not x.size:
        return backend.get_array_module(x).zeros(x.shape[1])
    if x.shape[2] == 1:
        return _sums_of_rows(x[:, :, 0], None if y is None else y[:, :, 0])
    xp = backend.get_array_module(x)
    runs: Array = x @ xp.ones(x.shape[2], x.dtype) if y is None else xp.einsum("acb,acb->ac", x, y)
    total: Array = runs.sum(axis=0, dtype="d")
    return total


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
    if m >= tuning.MOMENTS_FEW:
        rest = channel_sums(x) / m
        squares = channel_sums(x, x) / m
    if m < tuning.MOMENTS_FEW or not ((8 * rest * rest <= 7 * squares) & (squares < np.inf)).all():
        some = x[: -(-A // 8)] if A >= 8 else x[:, :, : -(-B // 8)]
        shift = (channel_sums(some) / max(some.shape[0] * some.shape[2], 1)).astype(x.dtype)
        x = subtract_shift(x, shift, room)
        rest = channel_sums(x) / m
        squares = channel_sums(x, x) / m
    return x, shift, rest, xp.maximum(squares - rest * rest, 0)


def subtract_shift(x: Array, shift: Array, room: Array) -> Array:
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
