"""Rows of the last axis, in blocks that stay in the cache with what is made of them."""

from __future__ import annotations

from collections.abc import Iterator

from mnpar import backend
from mnpar.backend import Array

MODEST = 30  # exponentials of numbers up to here, and their sums, are far from both ends of float32: no maximum is needed
WORTH = 2**13  # elements: fewer are done at once


def by_rows(x: Array, axis: int) -> bool:
    """Whether it is the last axis of an array of float32 or float64 that is worth cutting."""
    return x.dtype.char in "fd" and x.size >= WORTH and axis % x.ndim == x.ndim - 1


def row_blocks(*xs: Array) -> Iterator[tuple[Array, ...]]:
    """Some rows of each array, and room for as many.

    Example:
        >>> import numpy as np
        >>> [[part.shape for part in parts] for parts in row_blocks(np.ones((2, 3, 4)))]
        [[(6, 4), (6, 4)]]
    """
    C = xs[0].shape[-1]
    rows = [x.reshape(-1, C) for x in xs]
    N, n = len(rows[0]), max(1, backend.block_bytes(xs[0]) // 8 // xs[0].itemsize // C)
    room = backend.scratch((min(n, N), C), xs[0].dtype, backend.get_array_module(*xs))
    for start in range(0, N, n):
        parts = [x[start : start + n] for x in rows]
        yield *parts, room[: len(parts[0])]
