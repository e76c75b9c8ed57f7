"""Weighted sums of two neighbours along both axes of images, as resizing needs them, in one pass.

The twin, products with narrow matrices, is functions/array/resize_images.py. Where there is but one
neighbour the other is not read, so that an infinite number reaches only what it has a weight in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from mnpar.backend import Array
from mnpar.kernels.channels_last import as_pixels, empty_images, is_channels_last
from mnpar.kernels.compiler import Cube, Integers, Loop, Matrix, Vector, compiled, has_loops

# of each cell along an axis, the first input that has a weight, and the weights of that and of the
# next one, (cells, 2)
Neighbours: TypeAlias = tuple[Array, Array]


@compiled
def _interpolate(
    x: Cube,
    first: Integers,
    weights: Matrix,
    first_of_row: Integers,
    weights_of_row: Matrix,
    row: Vector,
    y: Cube,
) -> None:
    """row ← the weighted sum of x[n, i] and x[n, i + 1], i = first[o], pixels of C channels; and
    pixel p of y[n, o] ← that of pixels j and j + 1 of the row, j = first_of_row[p].
    """
    W = first_of_row.size
    C = y.shape[2] // W
    for n in range(y.shape[0]):
        for o in range(first.size):
            i = first[o]
            v = weights[o, 0]
            w = weights[o, 1]
            if o == 0 or i != first[o - 1] or v != weights[o - 1, 0] or w != weights[o - 1, 1]:
                if w == 0.0:
                    for k in range(row.size):
                        row[k] = v * x[n, i, k]
                else:
                    for k in range(row.size):
                        row[k] = v * x[n, i, k] + w * x[n, i + 1, k]
            for p in range(W):
                a = weights_of_row[p, 0]
                b = weights_of_row[p, 1]
                at = row[first_of_row[p] * C :]
                to = y[n, o, p * C : (p + 1) * C]
                if b == 0.0:
                    for c in range(C):
                        to[c] = a * at[c]
                else:
                    beside = at[C:]
                    for c in range(C):
                        to[c] = a * at[c] + b * beside[c]


@compiled
def _gather(
    y: Cube,
    first: Integers,
    weights: Matrix,
    first_of_row: Integers,
    weights_of_row: Matrix,
    row: Vector,
    x: Cube,
) -> None:
    """The transpose of it: each cell of x gets what it gave."""
    W = first_of_row.size
    C = y.shape[2] // W
    for n in range(y.shape[0]):
        x[n, :, :] = 0.0
        for o in range(first.size):
            row[:] = 0.0
            for p in range(W):
                a = weights_of_row[p, 0]
                b = weights_of_row[p, 1]
                of = y[n, o, p * C : (p + 1) * C]
                at = row[first_of_row[p] * C :]
                for c in range(C):
                    at[c] += a * of[c]
                if b != 0.0:
                    beside = at[C:]
                    for c in range(C):
                        beside[c] += b * of[c]
            i = first[o]
            v = weights[o, 0]
            w = weights[o, 1]
            for k in range(row.size):
                x[n, i, k] += v * row[k]
            if w != 0.0:
                for k in range(row.size):
                    x[n, i + 1, k] += w * row[k]


def interpolate(
    x: Array, size: Sequence[int], along: Neighbours, across: Neighbours
) -> Array | None:
    """Return images of another size, whose cells are sums of two neighbours in x along both axes;
    None where loops do not take the array.

    Args:
        along, across: the neighbours of each row, and of each column.
    """
    return _apply(_interpolate, x, size, x.shape[3], along, across)


def gather(y: Array, size: Sequence[int], along: Neighbours, across: Neighbours) -> Array | None:
    """Return the transpose of :func:`interpolate`: images of the size that it was given."""
    return _apply(_gather, y, size, size[1], along, across)


def _apply(
    loop: Loop, x: Array, size: Sequence[int], width: int, along: Neighbours, across: Neighbours
) -> Array | None:
    """The loop, of images whose channels come last in memory, or of each channel by itself;
    ``width``: of the images that are not resized.
    """
    if x.ndim != 4 or not x.size or not has_loops(x):
        return None
    N, C = x.shape[:2]
    if is_channels_last(x):
        y = empty_images((N, C, *size), x.dtype)
        xs, ys = [as_pixels(z).reshape(N, z.shape[2], -1) for z in (x, y)]
    elif x.flags.carray:
        y = np.empty((N, C, *size), x.dtype)
        xs, ys = [z.reshape(N * C, *z.shape[2:]) for z in (x, y)]
        C = 1
    else:
        return None
    (first, weights), (first_of_row, weights_of_row) = along, across
    row = np.empty(width * C, x.dtype)
    loop(
        xs,
        first,
        weights.astype(x.dtype, copy=False),
        first_of_row,
        weights_of_row.astype(x.dtype, copy=False),
        row,
        ys,
    )
    return y


def neighbours(parts: Sequence[tuple[slice, slice, Array]]) -> Neighbours:
    """Return the neighbours of each cell.

    Args:
        parts: of some cells, the inputs that they see, and their weights ``(cells, inputs)``.
    """
    first, both = [], []
    for _, inputs, weights in parts:
        wider = np.pad(weights, ((0, 0), (0, 1)))
        place = (wider > 0).argmax(1)
        first.append(inputs.start + place)
        both.append(np.take_along_axis(wider, place[:, None] + np.arange(2), 1))
    return np.concatenate(first).astype(np.int64), np.concatenate(both)


def unchanged(size: int) -> Neighbours:
    """Return the neighbours along an axis that stays as it is."""
    return np.arange(size, dtype=np.int64), np.tile([1.0, 0.0], (size, 1))
