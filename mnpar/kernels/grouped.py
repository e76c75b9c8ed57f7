"""Convolutions of images with few filters, such as those in many small groups: the numbers of a
register are neighbouring pixels.

Where a group has fewer filters than a register has numbers, direct.py would compute with empty
places. Here the channels of some groups are copied, a sample at a time, into planes: each channel
by itself, with its padding. A tile of the output, four filters by three registers of pixels, is
held in registers while a loop goes over what the windows see. For the gradient of the filters a
tile is four filters by three of their numbers, and the loop goes over pixels.

All cells of a plane are computed, those between the windows of two rows too, which are forgotten.
At stride s each s-th row and column is a plane of its own, so that windows lie side by side.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np

from mnpar.backend import Array
from mnpar.kernels import places, tuning
from mnpar.kernels.columns import advance_between
from mnpar.kernels.compiler import (
    Array4,
    Array5,
    Cube,
    Integers,
    Matrix,
    Vector,
    contiguous,
    divided,
    formula,
)
from mnpar.kernels.lanes import LANES, fill, load, repeat, store
from mnpar.kernels.side_by_side import run_loop, threads_for
from mnpar.kernels.sums import even_slices, row_sums
from mnpar.kernels.windows import Numbers, Windows

_FILTERS, _REGISTERS = 4, 3  # of a tile
_STEP = _REGISTERS * LANES
_RUN = 32  # products that are added up one after the other: more would lose digits


@dataclass(frozen=True)
class Planes:
    """The places of windows and of their cells in the plane of a channel.

    Args:
        size: numbers of a plane, with room for what is read behind the last cell.
        rows: where each row of the image begins.
        columns: of a row, of each part that lies together: its first pixel, how many they are, and
            where they lie. Its pixels are as many apart as there are parts.
        windows: of each window, and
        outputs: which pixel of the output it is.
        cells: of each cell of a window, from where that is, in the planes of all channels of a
            group.
        kernel: which rows and columns of the kernel the cells are.
    """

    size: int
    rows: Array
    columns: Array
    windows: Array
    outputs: Array
    cells: Array
    kernel: tuple[slice, slice]

    @property
    def computed(self) -> int:
        """How many numbers of each plane of the output are computed."""
        return -(-(int(self.windows[-1]) + 1) // _STEP) * _STEP


def _of_channels(cells: Array, channels: int, size: int) -> Array:
    """The cells of a plane in as many planes."""
    return np.add.outer(np.arange(channels) * size, cells).reshape(-1)


def _room(numbers: int, windows: Array, cells: Array) -> int:
    """The size of a plane of so many numbers, of which those behind the last are read, too."""
    read = int(windows[-1]) + int(cells.max()) + _STEP
    return max(numbers, read) + LANES


def of_windows(windows: Windows, channels: int) -> Planes:
    """Return the planes of the image; those of few windows are kept for the next call."""
    few = math.prod(windows.out) <= tuning.PLACES_KEPT
    return (_of_windows if few else _of_windows.__wrapped__)(windows, channels)


@functools.lru_cache(maxsize=64)
def _of_windows(windows: Windows, channels: int) -> Planes:
    (H, W), (OH, OW) = windows.padded, windows.out
    s, d, p = windows.stride, windows.dilate, windows.pad
    height, width = -(-H // s[0]), -(-W // s[1])
    plane = height * width

    def of_row(place: Array) -> Any:
        return place % s[0] * (s[1] * plane) + place // s[0] * width

    def of_column(place: Array) -> Any:
        return place % s[1] * plane + place // s[1]

    first = (np.arange(s[1]) - p[1]) % s[1]
    counts = -(-(min(windows.size[1], W - p[1]) - first) // s[1])
    columns = np.stack((first, counts, of_column(p[1] + first)), axis=1)
    kernel = [np.arange(K) for K in windows.K]
    at = np.add.outer(np.arange(OH) * width, np.arange(OW)).reshape(-1)
    cells = np.add.outer(of_row(kernel[0] * d[0]), of_column(kernel[1] * d[1])).reshape(-1)
    size = _room(s[0] * s[1] * plane, at, cells)
    return Planes(
        size,
        of_row(p[0] + np.arange(min(windows.size[0], H - p[0]))),
        columns.reshape(-1),
        at,
        np.arange(OH * OW),
        _of_channels(cells, channels, size),
        (slice(0, windows.K[0]), slice(0, windows.K[1])),
    )


def of_image(windows: Windows, channels: int) -> list[Planes]:
    """Return the planes of y, for all pixels of the image: one for each way in which they are
    seen.
    """
    few = math.prod(windows.size) <= tuning.PLACES_KEPT
    return (_of_image if few else _of_image.__wrapped__)(windows, channels)


@functools.lru_cache(maxsize=64)
def _of_image(windows: Windows, channels: int) -> list[Planes]:
    found = []
    for way in places.of_image(windows, 1):
        height, width = way.shape[:2]
        rows = way.pad[0] + np.arange(min(windows.out[0], height - way.pad[0]))
        size = _room(height * width, way.windows, way.cells)
        found.append(
            Planes(
                size,
                rows * width,
                np.array((0, min(windows.out[1], width - way.pad[1]), way.pad[1])),
                way.windows,
                way.outputs,
                _of_channels(way.cells, channels, size),
                way.kernel,
            )
        )
    return found


@formula
def _to_planes(x: Any, n: Any, first: Any, rows: Any, columns: Any, planes: Any) -> Any:
    """Copy channels of a sample from the first on, as many as there are planes."""
    step = columns.size // 3
    for h in range(rows.size):
        for c in range(planes.shape[0]):
            line = planes[c, rows[h] :]
            row = x[n, h, :, first + c]
            for j in range(step):
                begin, count, at = columns[3 * j], columns[3 * j + 1], columns[3 * j + 2]
                for i in range(count):  # (unsigned indices do not count from the end)
                    line[np.uint64(at + i)] = row[np.uint64(begin + i * step)]


@formula
def _add_products(sums: Any, v: Any, w: Any) -> Any:
    """Add to a tile of sums the products of three registers with four others."""
    a0, a1, a2, b0, b1, b2, c0, c1, c2, d0, d1, d2 = sums
    v0, v1, v2 = v
    w0, w1, w2, w3 = w
    return (
        a0 + w0 * v0,
        a1 + w0 * v1,
        a2 + w0 * v2,
        b0 + w1 * v0,
        b1 + w1 * v1,
        b2 + w1 * v2,
        c0 + w2 * v0,
        c1 + w2 * v1,
        c2 + w2 * v2,
        d0 + w3 * v0,
        d1 + w3 * v1,
        d2 + w3 * v2,
    )


@formula
def _store_three(x: Any, i: Any, v: Any) -> Any:
    store(x, i, v[0])
    store(x, i + LANES, v[1])
    store(x, i + 2 * LANES, v[2])


@divided
def _convolve(
    x: Array4,
    rows: Integers,
    columns: Integers,
    windows: Integers,
    outputs: Integers,
    cells: Integers,
    filters: Cube,
    bias: Vector,
    some: int,
    first: Integers,
    all_planes: Cube,
    all_sums: Matrix,
    wide: int,
    y: Cube,
    thread: int,
    first_sample: int,
    last_sample: int,
) -> None:
    """y[n, pixel, k] ← bias + what the window sees, times filters (group, filter, number); ``some``
    groups at a time, the sums of whose filters begin at ``first`` and are ``wide``.
    """
    groups, own, many = filters.shape
    channels = x.shape[3] // groups
    planes = all_planes[thread]
    sums = all_sums[thread]
    size = planes.shape[1]
    fours = (own + _FILTERS - 1) // _FILTERS * _FILTERS
    z = fill(x.dtype.type(0))
    for n in range(first_sample, last_sample):
        for start in range(0, groups, some):
            begin = min(start, groups - some)
            _to_planes(x, n, begin * channels, rows, columns, planes)
            for g in range(some):
                for k in range(0, own, _FILTERS):
                    four = _four_of(k, own, (begin + g) * own)
                    b = _repeat_four(bias, four)
                    for q in range(0, wide, _STEP):
                        s = b[0], b[0], b[0], b[1], b[1], b[1], b[2], b[2], b[2], b[3], b[3], b[3]
                        f = four[0] * many, four[1] * many, four[2] * many, four[3] * many
                        o = (g * fours + k) * wide + q
                        for run in range(0, many, _RUN):
                            for m in range(run, min(run + _RUN, many)):
                                i = g * channels * size + q + cells[m]
                                v = (
                                    load(planes, i),
                                    load(planes, i + LANES),
                                    load(planes, i + 2 * LANES),
                                )
                                s = _add_products(s, v, _repeat_four(filters, f))
                                f = f[0] + 1, f[1] + 1, f[2] + 1, f[3] + 1
                            if run > 0:
                                _add_three(sums, o, s[:3])
                                _add_three(sums, o + wide, s[3:6])
                                _add_three(sums, o + 2 * wide, s[6:9])
                                _add_three(sums, o + 3 * wide, s[9:])
                            else:
                                _store_three(sums, o, s[:3])
                                _store_three(sums, o + wide, s[3:6])
                                _store_three(sums, o + 2 * wide, s[6:9])
                                _store_three(sums, o + 3 * wide, s[9:])
                            s = z, z, z, z, z, z, z, z, z, z, z, z
            for p in range(windows.size):
                _gather(sums, windows[p], first, y[n, outputs[p], begin * own :])


@formula
def _four_of(k: Any, own: Any, first: Any) -> Any:
    """Four filters of a group from k on, the last one again and again where there are no more."""
    last = own - 1
    return (
        first + k,
        first + min(k + 1, last),
        first + min(k + 2, last),
        first + min(k + 3, last),
    )


@formula
def _gather(sums: Any, q: Any, first: Any, y: Any) -> Any:
    for k in range(first.size):
        y[k] = sums[np.uint64(first[k] + q)]


@formula
def _repeat_four(x: Any, i: Any) -> Any:
    return repeat(x, i[0]), repeat(x, i[1]), repeat(x, i[2]), repeat(x, i[3])


@divided
def _gradient(
    x: Array4,
    y: Array4,
    rows: Integers,
    columns: Integers,
    out_rows: Integers,
    out_columns: Integers,
    offsets: Integers,
    some: int,
    all_planes: Cube,
    all_given: Array4,
    total: Array5,
    thread: int,
    first_tile: int,
    last_tile: int,
) -> None:
    """total[group, tile of filters, tile of numbers, 12, lane] ← Σ x y over samples and windows;
    ``given`` (group, filter, number of a plane) is zero between rows. Tiles of filters of ``some``
    groups are counted; these are some of them.
    """
    planes = all_planes[thread]
    given = all_given[thread]
    groups, tiles, parts = total.shape[:3]
    channels, own = x.shape[3] // groups, y.shape[3] // groups
    size, wide = planes.shape[1], given.shape[2]
    last = offsets.size - 1
    z = fill(x.dtype.type(0))
    for n in range(x.shape[0]):
        for start in range(0, groups, some):
            begin = min(start, groups - some)
            before = start // some * tiles
            from_tile = min(max(first_tile - before, 0), tiles)
            to_tile = min(max(last_tile - before, 0), tiles)
            if from_tile == to_tile:
                continue
            _to_planes(x, n, begin * channels, rows, columns, planes)
            for g in range(start - begin, some):
                _to_planes(y, n, (begin + g) * own, out_rows, out_columns, given[g, :own])
                for k in range(from_tile, to_tile):
                    o = (g * tiles + k) * 4 * wide
                    for part in range(parts):
                        m = 3 * part
                        at = g * channels * size
                        i0 = at + offsets[m]
                        i1 = at + offsets[min(m + 1, last)]
                        i2 = at + offsets[min(m + 2, last)]
                        s = z, z, z, z, z, z, z, z, z, z, z, z
                        for q in range(0, wide, LANES):
                            v = load(planes, i0 + q), load(planes, i1 + q), load(planes, i2 + q)
                            w = (
                                load(given, o + q),
                                load(given, o + wide + q),
                                load(given, o + 2 * wide + q),
                                load(given, o + 3 * wide + q),
                            )
                            s = _add_products(s, v, w)
                        t = (((begin + g) * tiles + k) * parts + part) * 12 * LANES
                        _add_three(total, t, s[:3])
                        _add_three(total, t + 3 * LANES, s[3:6])
                        _add_three(total, t + 6 * LANES, s[6:9])
                        _add_three(total, t + 9 * LANES, s[9:])


@formula
def _add_three(x: Any, i: Any, v: Any) -> Any:
    store(x, i, load(x, i) + v[0])
    store(x, i + LANES, load(x, i + LANES) + v[1])
    store(x, i + 2 * LANES, load(x, i + 2 * LANES) + v[2])


def _at_once(groups: int, *channels: int) -> int:
    """How many groups are copied at once: so many that what lies together is read."""
    return min(groups, -(-LANES // min(channels)))


def _blocks(x: Array, y: Array, threads: int) -> Iterator[slice]:
    sample = x[0].nbytes + y[0].nbytes
    return advance_between(even_slices(len(x), threads * (tuning.COLUMN_LOOP_BYTES // sample)))


@functools.lru_cache(maxsize=64)
def _first_sums(groups: int, own: int, wide: int) -> Array:
    """Return where the sums of each filter begin, those of a group in fours."""
    fours = -(-own // _FILTERS) * _FILTERS
    return np.add.outer(np.arange(groups) * fours, np.arange(own)).reshape(-1) * wide


def _apply(some: Planes, x: Array, filters: Array, bias: Array, y: Array) -> None:
    """Into y (N, …, K), the sums over what windows see of x (N, …, C) times filters (groups, K /
    groups, C / groups · kernel).
    """
    groups, own = filters.shape[:2]
    channels = x.shape[3] // groups
    filters = contiguous(filters)
    count = _at_once(groups, own, channels)
    threads = threads_for(len(x), x.size + y.size * filters.shape[2] // 8)
    planes = np.zeros((threads, count * channels, some.size), x.dtype)
    first = _first_sums(count, own, some.computed)
    sums = np.empty((threads, first[-1] + _FILTERS * some.computed), x.dtype)
    out = y.reshape(len(y), -1, groups * own)
    tables = (some.rows, some.columns, some.windows, some.outputs, some.cells)
    rest = filters, bias, count, first, planes, sums, some.computed
    for n in _blocks(x, out, threads):
        run_loop(_convolve, n.stop - n.start, threads, x[n], *tables, *rest, out[n])


def convolve(x: Array, W: Array, bias: Array, windows: Windows, groups: int, y: Array) -> None:
    """y = x ∗ W + b of (N, H, W, C) and (K, C / groups, kh, kw), into y (N, OH, OW, K)."""
    filters = W.reshape(groups, len(W) // groups, -1)
    _apply(of_windows(windows, W.shape[1]), x, filters, bias, y)


def transpose(y: Array, W: Array, bias: Array, windows: Windows, groups: int, x: Array) -> None:
    """x = y ∗ᵀ W + b of (N, OH, OW, K) and (K, C / groups, kh, kw), into x (N, H, W, C)."""
    if not places.sees_all(windows):
        x[...] = bias
    K, C = W.shape[:2]
    turned = W.reshape(groups, K // groups, C, *W.shape[2:]).swapaxes(1, 2)
    for some in of_image(windows, K // groups):
        rows, columns = some.kernel
        _apply(some, y, turned[:, :, :, rows][..., columns].reshape(groups, C, -1), bias, x)


def gradient(x: Array, y: Array, windows: Windows, groups: int, shape: Numbers) -> Array | None:
    """The gradient of filters (K, C / groups, kh, kw) from x (N, H, W, C) and that of y; None if it
    is not finite: numbers between rows are multiplied by 0, too, which spoils more than it should.
    """
    channels, own = shape[1], shape[0] // groups
    some = of_windows(windows, channels)
    tiles = -(-own // _FILTERS)
    parts = -(-len(some.cells) // _REGISTERS)
    count = _at_once(groups, own, channels)
    N = -(-groups // count) * tiles
    threads = threads_for(N, x.size + y.size * len(some.cells) // 8)
    planes = np.zeros((threads, count * channels, some.size), x.dtype)
    given = np.zeros((threads, count, tiles * _FILTERS, some.computed), x.dtype)
    total = np.zeros((groups, tiles, parts, _FILTERS * _REGISTERS, LANES), x.dtype)
    OW = windows.out[1]
    tables = (some.rows, some.columns, some.windows[::OW].copy(), np.array((0, OW, 0)))
    for n in _blocks(x, y, 1):
        arrays = x[n], y[n], *tables, some.cells, count, planes, given, total
        run_loop(_gradient, N, threads, *arrays, each=1)
    sums = row_sums(total.reshape(-1, LANES))
    sums = sums.reshape(groups, tiles, parts, _FILTERS, _REGISTERS)
    found = sums.transpose(0, 1, 3, 2, 4).reshape(groups, tiles * _FILTERS, -1)
    gW = found[:, :own, : math.prod(shape[1:])].reshape(shape)
    return gW if isfinite(gW.sum()) else None
