"""Images whose channels come last in memory: shape (N, C, H, W), strides as of (N, H, W, C).

Loops over channels are then loops over memory, whatever the size of the image, so compiled loops
compute in this order. Their outputs have such strides, and what follows finds them: an array's
strides, not its shape, tell the order. Elementwise functions keep the order that they are given;
others compute with these arrays as with any transposed ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mnpar.backend import Array
from mnpar.kernels.compiler import Cube, Matrix, compiled, contiguous, divided, formula, has_loops
from mnpar.kernels.lanes import LANES, load, store
from mnpar.kernels.side_by_side import run_loop, threads_for


def is_channels_last(x: Array) -> bool:
    """Return whether images (N, C, H, W) lie in memory as (N, H, W, C), and not also as their shape
    says.

    Example:
        >>> import numpy as np
        >>> (
        ...     is_channels_last(np.ones((2, 3, 4, 5))),
        ...     is_channels_last(empty_images((2, 3, 4, 5), "f")),
        ... )
        (False, True)
    """
    return (
        x.ndim == 4
        and not x.flags.c_contiguous
        and bool(x.transpose(0, 2, 3, 1).flags.c_contiguous)
    )


def pixels_of(x: Array) -> Array | None:
    """Return images whose channels come last in memory as a contiguous array (N, H, W, C); None for
    others.
    """
    if x.ndim != 4 or x.flags.c_contiguous:
        return None
    pixels = x.transpose(0, 2, 3, 1)  # (is_channels_last looks at the same view)
    return contiguous(pixels) if pixels.flags.c_contiguous else None


# by the number of axes: those of an array, the channels last
_CHANNELS_LAST = [(0, *range(2, n), 1) for n in range(9)]
_ORDERS = [np.moveaxis(np.empty((2,) * n), -1, 1) for n in range(2, 8)]


def empty_images(shape: tuple[int, ...], dtype: Any) -> Array:
    """Return an uninitialized array (N, C, H, W), or of more axes or fewer, whose channels come
    last in memory, which is not a view.
    """
    return np.empty_like(_ORDERS[len(shape) - 2], dtype, shape=shape)


def as_pixels(x: Array) -> Array:
    """Images (N, C, H, W), or of more axes or fewer, as a contiguous array (N, H, W, C): a view
    where they lie so, else a copy.
    """
    pixels = x.transpose(_CHANNELS_LAST[x.ndim])
    if pixels.flags.carray:
        return pixels
    y = np.empty(pixels.shape, x.dtype)
    if x.flags.carray and has_loops(x):
        rows = x.reshape(*x.shape[:2], -1)
        _exchange(rows, y.reshape(len(x), rows.shape[2], x.shape[1]))
    else:
        y[...] = pixels
    return y


_SIDE = 16  # of the squares that are exchanged at a time: their rows fill cache lines
_NARROW = 64  # rows, or columns: of fewer whole ones are copied, one after the other,
_NARROW_BLOCK = 2**14  # of so many numbers, which stay in the cache meanwhile


@formula
def _exchange_rows(x: Any, y: Any) -> Any:
    """y ← xᵀ, row by row of x."""
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            y[j, i] = x[i, j]


@formula
def _exchange_columns(x: Any, y: Any) -> Any:
    """y ← xᵀ, column by column of x."""
    for j in range(x.shape[1]):
        for i in range(x.shape[0]):
            y[j, i] = x[i, j]


@compiled
def _exchange(x: Cube, y: Cube) -> None:
    """y[a, b, c] ← x[a, c, b]."""
    A, C, B = x.shape
    for a in range(A):
        if C < _NARROW:
            some = _NARROW_BLOCK // max(1, C)
            for b in range(0, B, some):
                _exchange_rows(x[a, :, b : b + some], y[a, b : b + some])
        elif B < _NARROW:
            some = _NARROW_BLOCK // max(1, B)
            for c in range(0, C, some):
                _exchange_columns(x[a, c : c + some], y[a, :, c : c + some])
        else:
            for b in range(0, B, _SIDE):
                for c in range(0, C, _SIDE):
                    _exchange_rows(
                        x[a, c : c + _SIDE, b : b + _SIDE], y[a, b : b + _SIDE, c : c + _SIDE]
                    )


# ---- images joined along channels ----


@formula
def _copy_rows(x: Any, i: Any, y: Any, j: Any, many: Any, begin: Any, end: Any) -> Any:
    """Copy ``many`` numbers of rows of x, from column i on, into rows of y, from column j on."""
    if many >= LANES:
        for r in range(begin, end):
            for k in range(0, many, LANES):
                c = min(k, many - LANES)
                store(y, r * y.shape[1] + j + c, load(x, r * x.shape[1] + i + c))
    else:
        for r in range(begin, end):
            row = x[r, i : i + many]
            out = y[r, j : j + many]
            for c in range(many):
                out[c] = row[c]


@divided
def _put_columns(x: Matrix, y: Matrix, at: int, thread: int, begin: int, end: int) -> None:
    _copy_rows(x, 0, y, at, x.shape[1], begin, end)


@divided
def _take_columns(x: Matrix, at: int, y: Matrix, thread: int, begin: int, end: int) -> None:
    _copy_rows(x, at, y, 0, y.shape[1], begin, end)


def join_channels(xs: Sequence[Array]) -> Array | None:
    """Return images joined along channels, which come last in memory; None where those of one of
    them do not, or loops do not take it.
    """
    first = xs[0]
    if not has_loops(*xs) or not all([is_channels_last(x) for x in xs]):
        return None
    if any([x.shape[2:] != first.shape[2:] or len(x) != len(first) for x in xs]):
        return None
    y = empty_images((len(first), sum([x.shape[1] for x in xs]), *first.shape[2:]), first.dtype)
    rows = as_pixels(y).reshape(-1, y.shape[1])
    at = 0
    for x in xs:
        threads = threads_for(len(rows), 2 * x.size)
        own = as_pixels(x).reshape(-1, x.shape[1])
        run_loop(_put_columns, len(rows), threads, own, rows, at)
        at += x.shape[1]
    return y


def take_channels(x: Array, begin: int, end: int) -> Array | None:
    """Return a copy of some channels of images, where channels come last in memory: a view would be
    copied by whatever reads it. None for others.
    """
    if x.ndim != 4 or begin >= end or not has_loops(x) or not is_channels_last(x):
        return None
    y = empty_images((len(x), end - begin, *x.shape[2:]), x.dtype)
    rows, own = [as_pixels(z).reshape(-1, z.shape[1]) for z in (x, y)]
    run_loop(_take_columns, len(rows), threads_for(len(rows), 2 * y.size), rows, begin, own)
    return y
