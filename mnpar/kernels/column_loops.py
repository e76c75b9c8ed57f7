"""Convolutions of images whose channels come last, as products with columns: a block at a time.

A pixel of the output is a row of a matrix (pixels, kernel · C), in which what its window sees lies
in runs; the product with the filters (kernel · C, K) is the output itself, as it lies in memory. So
nothing else is copied. A block of rows is packed, multiplied while it is in the cache, and
forgotten. The gradient of x is the same the other way round: products, and runs that are added up.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
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
def _copy(x: Any, y: Any) -> Any:
    for i in range(y.size):
        y[i] = x[i]


@formula
def _add(x: Any, y: Any) -> Any:
    for i in range(y.size):
        y[i] += x[i]


@formula
def _clear(y: Any) -> Any:
    for i in range(y.size):
        y[i] = 0.0


@compiled
def _pack(
    x: Array4,
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
    """cells[pixel, (i, j, c)] ← what the windows of pixels from the ``first`` on see."""
    H, W, C = x.shape[1:]
    flat = x.reshape(x.size)
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
                _clear(row[o : o + run])
                continue
            at = ((n * H + h) * W + left) * C
            if begin > 0:
                _clear(row[o : o + begin * C])
            if end < kw:
                _clear(row[o + end * C : o + run])
            if dw == 1:
                _copy(flat[at + begin * C : at + end * C], row[o + begin * C : o + end * C])
            else:
                for j in range(begin, end):
                    a = at + j * dw * C
                    _copy(flat[a : a + C], row[o + j * C : o + j * C + C])


@compiled
def _unpack(
    x: Array4,
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
    """Add cells to x: the transpose of :func:`_pack`."""
    H, W, C = x.shape[1:]
    flat = x.reshape(x.size)
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


class _Columns:
    """The cells of windows as a matrix, a block of pixels at a time."""

    def __init__(self, windows: Windows, x: Array, out: Array, least: int) -> None:
        self.x = x
        q = math.prod(windows.K) * x.shape[3]
        # the image is its columns
        self.same = windows.out == windows.size and windows.is_unpadded and q == x.shape[3]
        pixels = len(x) * math.prod(windows.out)
        row = (q + out.shape[1]) * x.itemsize
        size = max(tuning.COLUMN_LOOP_BYTES, least) // row
        self.parts = list(even_slices(pixels, size))
        self.room = None
        if not self.same and self.parts:
            self.room = empty_aligned((self.parts[0].stop, q), x.dtype)
        axes = (windows.K, windows.stride, windows.pad, windows.dilate, windows.out)
        self.numbers = tuple([n for two in axes for n in two])

    def packed(self) -> Iterator[tuple[slice, Array]]:
        """Each block of pixels, and its cells (pixels, kernel · C), valid until the next."""
        for part in advance_between(self.parts):
            if self.room is None:
                yield part, self.x.reshape(-1, self.x.shape[3])[part]
                continue
            cells = self.room[: part.stop - part.start]
            _pack(self.x, *self.numbers, part.start, cells)
            yield part, cells

    def add(self, part: slice, left: Array, right: Array) -> None:
        """Add the product of left and right, the cells of a block, to x."""
        if self.room is None:
            np.matmul(left, right, out=self.x.reshape(-1, self.x.shape[3])[part])
            return
        cells = self.room[: part.stop - part.start]
        _unpack(self.x, *self.numbers, part.start, np.matmul(left, right, out=cells))


def _filter_matrix(W: Array) -> Array:
    """Filters (K, C, kh, kw) as a matrix (K, kernel · C)."""
    return W.transpose(0, 2, 3, 1).reshape(len(W), -1)


def convolve(x: Array, W: Array, b: Array | None, windows: Windows, y: Array) -> None:
    """y = x ∗ W + b of (N, H, W, C) and (K, C, kh, kw), into y (N, OH, OW, K)."""
    filters = np.ascontiguousarray(_filter_matrix(W).T)
    rows = y.reshape(-1, y.shape[3])
    for part, cells in _Columns(windows, x, rows, filters.nbytes).packed():
        np.matmul(cells, filters, out=rows[part])
        if b is not None:
            add_to_rows(rows[part], b)


def transpose(y: Array, W: Array, windows: Windows, x: Array) -> None:
    """x = y ∗ᵀ W of (N, OH, OW, K) and (K, C, kh, kw), into x (N, H, W, C)."""
    filters = _filter_matrix(W)
    rows = y.reshape(-1, y.shape[3])
    columns = _Columns(windows, x, rows, filters.nbytes)
    if not columns.same:
        x[...] = 0
    for part in advance_between(columns.parts):
        columns.add(part, rows[part], filters)


def gradient(x: Array, y: Array, windows: Windows, W_shape: tuple[int, ...]) -> Array:
    """The gradient of filters (K, C, kh, kw) from x (N, H, W, C) and the gradient of y."""
    K, C, *kernel = W_shape
    rows = y.reshape(-1, K)
    total = np.zeros((math.prod(kernel) * C, K), x.dtype)
    product: Any = np.empty_like(total)
    for part, cells in _Columns(windows, x, rows, 2 * total.nbytes).packed():
        total += np.matmul(cells.T, rows[part], out=product)
    return total.reshape(*kernel, C, K).transpose(3, 2, 0, 1)
