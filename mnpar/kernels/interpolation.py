"""Weighted sums of two neighbours along an axis of images, as resizing needs them, in one pass over
arrays (A, size, B).

The twin, products with narrow matrices, is functions/array/resize_images.py. Where there is but one
neighbour the other is not read, so that an infinite number reaches only what it has a weight in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from mnpar.backend import Array
from mnpar.kernels.channels_last import empty_images, is_channels_last
from mnpar.kernels.compiler import Cube, Integers, Loop, Matrix, compiled, has_loops

Parts: TypeAlias = Sequence[tuple[slice, slice, Array]]


@compiled
def _interpolate(x: Cube, first: Integers, weights: Matrix, y: Cube) -> None:
    """y[a, o] ← the weighted sum of x[a, i] and x[a, i + 1], i = first[o]."""
    A, n, B = y.shape
    for a in range(A):
        for o in range(n):
            i = first[o]
            v = weights[o, 0]
            w = weights[o, 1]
            if w == 0.0:
                for b in range(B):
                    y[a, o, b] = v * x[a, i, b]
            else:
                for b in range(B):
                    y[a, o, b] = v * x[a, i, b] + w * x[a, i + 1, b]


@compiled
def _gather(y: Cube, first: Integers, weights: Matrix, x: Cube) -> None:
    """The transpose of it: each cell of x gets what it gave."""
    A, n, B = y.shape
    for a in range(A):
        x[a, :, :] = 0.0
        for o in range(n):
            i = first[o]
            v = weights[o, 0]
            w = weights[o, 1]
            for b in range(B):
                x[a, i, b] += v * y[a, o, b]
            if w != 0.0:
                for b in range(B):
                    x[a, i + 1, b] += w * y[a, o, b]


def interpolate(x: Array, size: int, axis: int, parts: Parts) -> Array | None:
    """Return images with so many cells along an axis, 2 or 3, each a sum of two neighbours in x;
    None where loops do not take the array.

    Args:
        parts: of some cells, the inputs that they see, and their weights ``(cells, inputs)``.
    """
    return _along(_interpolate, x, size, axis, parts)


def gather(y: Array, size: int, axis: int, parts: Parts) -> Array | None:
    """Return the transpose of :func:`interpolate`: images with so many cells along the axis."""
    return _along(_gather, y, size, axis, parts)


def _along(loop: Loop, x: Array, size: int, axis: int, parts: Parts) -> Array | None:
    """The loop along an axis; alone the last one in memory is left to products of matrices."""
    if x.ndim != 4 or not x.size or not has_loops(x):
        return None
    last = is_channels_last(x)
    if not (last or (axis == 2 and x.flags.carray)):
        return None
    shape = (*x.shape[:axis], size, *x.shape[axis + 1 :])
    y: Array = empty_images(shape, x.dtype) if last else np.empty(shape, x.dtype)
    first, weights = _neighbours(parts)
    loop(_as_cube(x, last, axis), first, weights.astype(x.dtype), _as_cube(y, last, axis))
    return y


def _neighbours(parts: Parts) -> tuple[Array, Array]:
    """Return of each cell the first input that has a weight, and the weights of that and of the
    next one, (cells, 2).
    """
    first, both = [], []
    for _, inputs, weights in parts:
        wider = np.pad(weights, ((0, 0), (0, 1)))
        place = (wider > 0).argmax(1)
        first.append(inputs.start + place)
        both.append(np.take_along_axis(wider, place[:, None] + np.arange(2), 1))
    return np.concatenate(first).astype(np.int64), np.concatenate(both)


def _as_cube(x: Array, last: bool, axis: int) -> Any:
    """The array as (A, size, B), a view; ``last``: channels come last in memory."""
    rows, at = (x.transpose(0, 2, 3, 1), axis - 1) if last else (x, axis)
    return rows.reshape(math.prod(rows.shape[:at]), rows.shape[at], -1)
