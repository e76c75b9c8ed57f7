"""Sums of rows and columns; and large arrays in blocks, which stay in the cache with what is made
of them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import HALVES, Array
from mnpar.kernels import tuning

# exponentials of numbers up to here, and their sums, are far from both ends of float32: no maximum
# is needed
MODEST = 30


# numbers: a product adds up so many in float32 with hardly more of an error than numpy has
TERMS = 1024


def is_rowwise(x: Array, axis: int) -> bool:
    """Return whether it is the last axis of an array of float32 or float64 that is worth
    cutting.
    """
    return (
        x.dtype.char in "fd"
        and x.size >= tuning.SUM_LEAST
        and type(axis) is int
        and axis in (-1, x.ndim - 1)
    )


def sum_array(x: Array, axis: int | tuple[int, ...] | None, keepdims: bool = False) -> Array:
    """``x.sum(axis, keepdims=keepdims)``; over the first and the last axes by products with ones:
    up to five times faster.

    Halves are added up in float32: to 2048 in float16 nothing below 1 could be added any more. As
    in every product, the last bit of an element may depend on how many there are beside it; the
    same array has the same sums.

    Example:
        >>> import numpy as np
        >>> sum_array(np.array([[1.0, 2.0], [3.0, 4.0]]), 1)
        array([3., 7.])
    """
    if x.dtype.char in HALVES:
        total: Array = x.sum(axis=axis, keepdims=keepdims, dtype="f4")
        return total.astype(x.dtype)
    if x.size < max(tuning.SUM_LEAST, 1) or x.dtype.char not in "fd":
        return x.sum(axis=axis, keepdims=keepdims)  # type: ignore[no-any-return]
    given: Any = range(x.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    axes = [a % x.ndim for a in given if type(a) is int and -x.ndim <= a < x.ndim]
    if not axes or len(set(axes)) < len(given):
        # a copy, or numpy's error
        return x.sum(axis=axis, keepdims=keepdims)  # type: ignore[no-any-return]
    if not x.flags.c_contiguous:
        order = backend.memory_order(x)
        inner = x.transpose(order)
        if not inner.flags.c_contiguous:
            return x.sum(axis=axis, keepdims=keepdims)  # type: ignore[no-any-return]
        sums = sum_array(inner, tuple([order.index(a) for a in axes]), keepdims=True)
        y = sums.transpose([order.index(a) for a in range(x.ndim)])
        return y if keepdims else y.squeeze(tuple(axes))
    # all axes before the one, and from the other on, are summed over
    first = 0
    last = x.ndim
    while last and last - 1 in axes:
        last -= 1
    while first < last and first in axes:
        first += 1
    y, between = x, [a for a in axes if first <= a < last]
    if last < x.ndim:
        y = row_sums(y.reshape(-1, math.prod(x.shape[last:])))
    if first:
        y = column_sums(y.reshape(math.prod(x.shape[:first]), -1))
    if between:
        y = y.reshape(x.shape[first:last]).sum(axis=tuple([a - first for a in between]))
    shape = [1 if a in axes else n for a, n in enumerate(x.shape) if keepdims or a not in axes]
    return y.reshape(shape)


def sum_to(x: Array, shape: tuple[int, ...]) -> Array:
    """Return x summed over the axes that broadcasting from the shape to x's would have repeated.

    Example:
        >>> sum_to(np.ones((2, 3)), (3,)), sum_to(np.ones((2, 3)), (2, 1)).shape
        (array([2., 2., 2.]), (2, 1))
    """
    lead = x.ndim - len(shape)
    ones = tuple([i + lead for i, n in enumerate(shape) if n == 1 and x.shape[i + lead] != 1])
    return sum_array(x, tuple(range(lead)) + ones, keepdims=bool(ones)).reshape(shape)


def sum_over(x: Any, axis: int | tuple[int, ...], keepdims: bool = False) -> Any:
    """``x.sum(axis, keepdims=keepdims)`` of a Variable, or of an array as :func:`sum_array` makes
    it.
    """
    return (
        sum_array(x, axis, keepdims) if backend.is_array(x) else x.sum(axis=axis, keepdims=keepdims)
    )


def row_sums(x: Array) -> Array:
    """The sums of the rows of a matrix (M, C), by products with ones: a row of more than ``TERMS``
    numbers in pieces.

    Example:
        >>> row_sums(np.array([[1.0, 2.0], [3.0, 4.0]]))
        array([3., 7.])
    """
    M, C = x.shape
    n = C if C <= TERMS else largest_divisor(C)
    if x.dtype.char not in "fd" or n < min(C, 16) or (n < C and not x.flags.c_contiguous):
        result: Array = x.sum(axis=1)
        return result
    if n == C:
        return x.dot(ones_like(C, x))  # type: ignore[no-any-return]
    return row_sums(x.reshape(-1, n).dot(ones_like(n, x)).reshape(M, C // n))


def column_sums(x: Array) -> Array:
    """The sums of the columns of a matrix (M, C).

    Example:
        >>> column_sums(np.array([[1.0, 2.0], [3.0, 4.0]]))
        array([4., 6.])
    """
    M, C = x.shape
    if x.dtype.char in "fd" and M > tuning.ONES_KEPT and not M % 16 and x.flags.c_contiguous:
        result: Array = column_sums(x.reshape(M // 16, 16 * C)).reshape(16, C).sum(axis=0)
        return result
    if x.dtype.char not in "fd" or M > tuning.ONES_KEPT:
        y: Array = x.sum(axis=0)
        return y
    return ones_like(M, x).dot(x)  # type: ignore[no-any-return]


@functools.lru_cache(1024)
def largest_divisor(n: int) -> int:
    """The largest divisor of n that is at most ``TERMS``.

    Example:
        >>> largest_divisor(5000)
        1000
    """
    return next(k for k in range(TERMS, 0, -1) if n % k == 0)


def ones_like(n: int, x: Array) -> Array:
    """A vector of ones to multiply ``x`` with; nobody changes it."""
    xp = backend.get_array_module(x)
    return ones(n, x.dtype) if xp is np else xp.ones(n, x.dtype)  # each device needs its own


@functools.lru_cache(64)
def ones(size: int, dtype: Any) -> Array:
    """A vector of ones, to multiply with; nobody changes it."""
    return np.ones(size, dtype)


def even_slices(N: int, n: int) -> Iterator[slice]:
    """N in pieces of nearly one size, at most n.

    Example:
        >>> list(even_slices(5, 4))
        [slice(0, 3, None), slice(3, 5, None)]
    """
    step = -(-N // -(-N // max(n, 1))) if N else 1
    return (slice(i, min(i + step, N)) for i in range(0, N, step))


def split_arrays(n: int, *xs: Array) -> Iterator[tuple[Array, ...]]:
    """Each array in pieces of at most ``n`` along its first axis, side by side.

    Example:
        >>> import numpy as np
        >>> [(x.tolist(), y.tolist()) for x, y in split_arrays(2, np.arange(3), np.arange(3) ** 2)]
        [([0, 1], [0, 1]), ([2], [4])]
    """
    return (tuple([x[k] for x in xs]) for k in even_slices(len(xs[0]), n))


def row_blocks(*xs: Array) -> Iterator[tuple[Array, ...]]:
    """Some rows of each array, and room for as many.

    Example:
        >>> import numpy as np
        >>> [[part.shape for part in parts] for parts in row_blocks(np.ones((2, 3, 4)))]
        [[(6, 4), (6, 4)]]
    """
    C = xs[0].shape[-1]
    rows = [x.reshape(-1, C) for x in xs]
    N = len(rows[0])
    n = max(1, backend.block_bytes(xs[0]) // 8 // xs[0].itemsize // C)
    room = backend.empty_aligned((min(n, N), C), xs[0].dtype, backend.get_array_module(*xs))
    return ((*blocks, room[: len(blocks[0])]) for blocks in split_arrays(n, *rows))
