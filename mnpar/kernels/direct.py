"""Convolutions of images whose channels come last, without columns: products are summed up in
registers.

A tile of the output, six pixels by two registers of filters, is held in registers while a loop goes
over what its windows see: each number of the image is multiplied with both registers, each register
of filters with all six pixels. For the gradient of the filters a tile is six numbers of a window by
two registers of filters, and the loop goes over pixels. An image is copied into its padding, a
sample at a time, and stays in the cache.

Filters are cut into registers of ``LANES``; the last one may overlap the one before.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from mnpar.backend import Array
from mnpar.kernels import places, tuning
from mnpar.kernels.columns import advance_between
from mnpar.kernels.compiler import Array4, Array5, Cube, Integers, Vector, compiled, formula
from mnpar.kernels.lanes import LANES, fill, load, repeat, store
from mnpar.kernels.sums import even_slices
from mnpar.kernels.windows import Windows

_TILE = 6  # pixels, or numbers of a window


@formula
def pad_sample(x: Any, n: Any, ph: Any, pw: Any, padded: Any) -> Any:
    """Copy a sample into its padding, which is zero."""
    H, W = x.shape[1:3]
    for h in range(min(H, padded.shape[0] - ph)):
        for w in range(min(W, padded.shape[1] - pw)):
            cell = x[n, h, w]
            out = padded[ph + h, pw + w]
            for c in range(out.size):
                out[c] = cell[c]


@formula
def _add_products(sums: Any, x: Any, i: Any, b: Any, v: Any, w: Any) -> Any:
    """Add to a tile of sums the products of six numbers of x, i apart from the places b, with the
    registers v and w.
    """
    s0, s1, s2, s3, s4, s5, t0, t1, t2, t3, t4, t5 = sums
    a = repeat(x, b[0] + i)
    s0 = s0 + a * v
    t0 = t0 + a * w
    a = repeat(x, b[1] + i)
    s1 = s1 + a * v
    t1 = t1 + a * w
    a = repeat(x, b[2] + i)
    s2 = s2 + a * v
    t2 = t2 + a * w
    a = repeat(x, b[3] + i)
    s3 = s3 + a * v
    t3 = t3 + a * w
    a = repeat(x, b[4] + i)
    s4 = s4 + a * v
    t4 = t4 + a * w
    a = repeat(x, b[5] + i)
    s5 = s5 + a * v
    t5 = t5 + a * w
    return s0, s1, s2, s3, s4, s5, t0, t1, t2, t3, t4, t5


@compiled
def _convolve(
    x: Array4,
    padded: Cube,
    ph: int,
    pw: int,
    windows: Integers,
    cells: Integers,
    outputs: Integers,
    filters: Cube,
    bias: Vector,
    y: Cube,
) -> None:
    """y[n, pixel, k] ← bias + what the window sees, times filters (register, kernel · C, lanes)."""
    N, P, K = y.shape
    many = filters.shape[1]
    run = many // cells.size
    last = windows.size - 1
    for n in range(N):
        pad_sample(x, n, ph, pw, padded)
        for k in range(0, filters.shape[0], 2):
            other = min(k + 1, filters.shape[0] - 1)
            c = min(k * LANES, K - LANES)
            d = min(other * LANES, K - LANES)
            for p in range(0, windows.size, _TILE):
                six = (
                    p,
                    min(p + 1, last),
                    min(p + 2, last),
                    min(p + 3, last),
                    min(p + 4, last),
                    min(p + 5, last),
                )
                v = load(bias, c)
                w = load(bias, d)
                sums = (v, v, v, v, v, v, w, w, w, w, w, w)
                b = _pick(windows, six)
                for r in range(cells.size):
                    first = k * many + r * run
                    second = other * many + r * run
                    for i in range(run):
                        v = load(filters, (first + i) * LANES)
                        w = load(filters, (second + i) * LANES)
                        sums = _add_products(sums, padded, cells[r] + i, b, v, w)
                q = _pick(outputs, six)
                _store_column(y, n * P * K + c, K, q, sums[:6])
                _store_column(y, n * P * K + d, K, q, sums[6:])


@formula
def _pick(x: Any, six: Any) -> Any:
    return x[six[0]], x[six[1]], x[six[2]], x[six[3]], x[six[4]], x[six[5]]


@formula
def _store_column(y: Any, i: Any, step: Any, q: Any, v: Any) -> Any:
    store(y, i + q[0] * step, v[0])
    store(y, i + q[1] * step, v[1])
    store(y, i + q[2] * step, v[2])
    store(y, i + q[3] * step, v[3])
    store(y, i + q[4] * step, v[4])
    store(y, i + q[5] * step, v[5])


@compiled
def _gradient(
    x: Array4,
    padded: Cube,
    ph: int,
    pw: int,
    windows: Integers,
    cells: Integers,
    y: Cube,
    some: int,
    total: Array5,
) -> None:
    """total[register, cells, tile, number, lane] ← Σ x y over samples and windows; ``some`` windows
    are added up in registers.
    """
    N, P, K = y.shape
    registers, _, tiles = total.shape[:3]
    b = (0, 1, 2, 3, 4, 5)
    z = fill(y.dtype.type(0))
    for n in range(N):
        pad_sample(x, n, ph, pw, padded)
        for start in range(0, P, some):
            end = min(start + some, P)
            for k in range(0, registers, 2):
                c = n * P * K + min(k * LANES, K - LANES)
                other = min(k + 1, registers - 1)
                d = n * P * K + min(other * LANES, K - LANES)
                for r in range(cells.size):
                    for tile in range(tiles):
                        at = cells[r] + tile * _TILE
                        sums = (z, z, z, z, z, z, z, z, z, z, z, z)
                        for p in range(start, end):
                            v = load(y, c + p * K)
                            w = load(y, d + p * K)
                            sums = _add_products(sums, padded, windows[p] + at, b, v, w)
                        o = ((k * cells.size + r) * tiles + tile) * _TILE * LANES
                        _add_column(total, o, sums[:6])
                        if other > k:
                            o = ((other * cells.size + r) * tiles + tile) * _TILE * LANES
                            _add_column(total, o, sums[6:])


@formula
def _add_column(y: Any, i: Any, v: Any) -> Any:
    store(y, i, load(y, i) + v[0])
    store(y, i + LANES, load(y, i + LANES) + v[1])
    store(y, i + 2 * LANES, load(y, i + 2 * LANES) + v[2])
    store(y, i + 3 * LANES, load(y, i + 3 * LANES) + v[3])
    store(y, i + 4 * LANES, load(y, i + 4 * LANES) + v[4])
    store(y, i + 5 * LANES, load(y, i + 5 * LANES) + v[5])


@functools.lru_cache(maxsize=64)
def registers(K: int) -> Array:
    """Which filters each register has, (registers, lanes)."""
    first = np.minimum(np.arange(-(-K // LANES)) * LANES, K - LANES)
    return np.add.outer(first, np.arange(LANES))


def _filters(cells: Array) -> Array:
    """Filters (K, kernel · C) by registers: (registers, kernel · C, lanes)."""
    return np.ascontiguousarray(cells[registers(len(cells))].transpose(0, 2, 1))


def convolve(x: Array, W: Array, bias: Array, windows: Windows, y: Array) -> None:
    """y = x ∗ W + b of (N, H, W, C) and (K, C, kh, kw), into y (N, OH, OW, K)."""
    cells = W.transpose(0, 2, 3, 1).reshape(len(W), -1)
    some = places.of_windows(windows, x.shape[3])
    _apply(some, some.padded(x.dtype), x, cells, bias, y)


def transpose(y: Array, W: Array, bias: Array, windows: Windows, x: Array) -> None:
    """x = y ∗ᵀ W + b of (N, OH, OW, K) and (K, C, kh, kw), into x (N, H, W, C)."""
    if not places.sees_all(windows):
        x[...] = bias
    ways = places.of_image(windows, len(W))
    if not ways:
        return
    padded = ways[0].padded(y.dtype)
    for some in ways:
        rows, columns = some.kernel
        cells = W.transpose(1, 2, 3, 0)[:, rows][:, :, columns]
        _apply(some, padded, y, cells.reshape(len(cells), -1), bias, x)


def _apply(
    some: places.Places, padded: Array, x: Array, cells: Array, bias: Array, y: Array
) -> None:
    K = len(cells)
    out = y.reshape(len(y), -1, K)
    if K < LANES:
        more = np.zeros((LANES, cells.shape[1]), x.dtype)
        more[:K] = cells
        wide = np.empty((*out.shape[:2], LANES), x.dtype)
        bias = np.concatenate([bias, np.zeros(LANES - K, x.dtype)])
        into, filters = wide, _filters(more)
    else:
        into, filters = out, _filters(cells)
    tables = (some.windows, some.cells, some.outputs)
    for n in _blocks(x, out):
        _convolve(x[n], padded, *some.pad, *tables, filters, bias, into[n])
    if into is not out:
        out[:, some.outputs] = into[:, some.outputs, :K]


def _blocks(x: Array, y: Array) -> Iterator[slice]:
    """Samples, some at a time: between two blocks what travels during a backward advances."""
    sample = x[0].nbytes + y[0].nbytes
    return advance_between(even_slices(len(x), tuning.COLUMN_LOOP_BYTES // sample))


def gradient(x: Array, y: Array, windows: Windows, W_shape: tuple[int, ...]) -> Array:
    """The gradient of filters (K, C, kh, kw) from x (N, H, W, C) and the gradient of y."""
    K, C, kh, kw = W_shape
    some = places.of_windows(windows, C)
    padded = some.padded(x.dtype)
    given = y.reshape(len(y), -1, K)
    if K < LANES:
        wide = np.zeros((*given.shape[:2], LANES), x.dtype)
        wide[:, :, :K] = given
        given = wide
    of_filters = registers(given.shape[2])
    tiles = -(-some.run // _TILE)
    total = np.zeros((len(of_filters), len(some.cells), tiles, _TILE, LANES), x.dtype)
    tables = (some.windows, some.cells)
    for n in _blocks(x, given):
        _gradient(x[n], padded, *some.pad, *tables, given[n], tuning.DIRECT_PIXELS, total)
    sums = total.reshape(len(of_filters), len(some.cells), -1, LANES)[:, :, : some.run]
    found = np.empty((given.shape[2], math.prod(W_shape[1:])), x.dtype)
    found[of_filters] = sums.reshape(len(of_filters), -1, LANES).transpose(0, 2, 1)
    return found[:K].reshape(K, kh, kw, C).transpose(0, 3, 1, 2)
