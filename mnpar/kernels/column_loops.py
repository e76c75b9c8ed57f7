"""The transpose of a convolution as products that are added up, where channels come last.

The product of y (pixels, K) with the filters (K, kernel · C) is what each window gives back; its
rows lie in the image in runs, to which they are added. A block of pixels is multiplied, added while
it is in the cache, and forgotten. This takes fewer products than direct.py where y has much fewer
pixels than the image, and does not need many channels.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mnpar.backend import Array, empty_aligned
from mnpar.kernels import tuning
from mnpar.kernels.columns import advance_between
from mnpar.kernels.compiler import Array4, Matrix, Vector, compiled, formula
from mnpar.kernels.sums import even_slices
from mnpar.kernels.windows import Windows


@formula
def _first_inside(start: Any, step: Any) -> Any:
    """The first of the places start, start + step … that is not negative."""
    return 0 if start >= 0 else (step - 1 - start) // step


@formula
def _end_inside(start: Any, step: Any, size: Any, count: Any) -> Any:
    """The end of those of ``count`` places that are below ``size``."""
    return max(0, min(count, (size - 1 - start) // step + 1))


@formula
def _add(x: Any, y: Any) -> Any:
    for i in range(y.size):
        y[i] += x[i]


@compiled
def _unpack(
    x: Array4,
    flat: Vector,
    kh: int,
    kw: int,
    sh: int,
    sw: int,
    ph: int,
    pw: int,
    dh: int,
    dw: int,
    OH: int,
    OW: int,
    first: int,
    cells: Matrix,
) -> None:
    """Add to x, which is ``flat``, too, what windows from the ``first`` on give back, cells[window,
    (i, j, c)].
    """
    H, W, C = x.shape[1:]
    run = kw * C
    for r in range(cells.shape[0]):
        p = first + r
        left = p % OW * sw - pw
        top = p // OW % OH * sh - ph
        n = p // (OW * OH)
        begin = min(kw, _first_inside(left, dw))
        end = max(begin, _end_inside(left, dw, W, kw))
        row = cells[r]
        for i in range(kh):
            h = top + i * dh
            o = i * run
            if h < 0 or h >= H or begin == end:
                continue
            at = ((n * H + h) * W + left) * C
            if dw == 1:
                _add(row[o + begin * C : o + end * C], flat[at + begin * C : at + end * C])
            else:
                for j in range(begin, end):
                    a = at + j * dw * C
                    _add(row[o + j * C : o + j * C + C], flat[a : a + C])


@compiled
def add_to_rows(y: Matrix, bias: Vector) -> None:
    """Add a vector to each row."""
    for r in range(y.shape[0]):
        _add(bias, y[r])


def transpose(y: Array, W: Array, windows: Windows, x: Array) -> None:
    """x = y ∗ᵀ W of (N, OH, OW, K) and (K, C, kh, kw), into x (N, H, W, C)."""
    filters = W.transpose(0, 2, 3, 1).reshape(len(W), -1)
    rows = y.reshape(-1, y.shape[3])
    axes = (windows.K, windows.stride, windows.pad, windows.dilate, windows.out)
    numbers = [n for two in axes for n in two]
    row = (filters.shape[1] + len(W)) * x.itemsize
    parts = list(even_slices(len(rows), max(tuning.COLUMN_LOOP_BYTES, filters.nbytes) // row))
    room = empty_aligned((parts[0].stop if parts else 0, filters.shape[1]), x.dtype)
    x[...] = 0
    for part in advance_between(parts):
        cells = room[: part.stop - part.start]
        np.matmul(rows[part], filters, out=cells)
        _unpack(x, x, *numbers, part.start, cells)
