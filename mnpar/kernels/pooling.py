"""Max pooling and sum pooling of images and their gradients, in one pass over the image.

Where channels come last in memory, a pixel at a time; else a row of windows at a time, and only the
gradient of maxima: the others numpy computes as fast there (benchmark "functions", poolings). Their
twins, for any number of axes, are in functions/pooling: they go over slices of the whole image.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mnpar.backend import Array
from mnpar.kernels import tuning
from mnpar.kernels.channels_last import (
    as_pixels,
    empty_images,
    is_channels_last,
    pixels_of,
)
from mnpar.kernels.compiler import (
    Array4,
    Cube,
    Loop,
    Matrix,
    Vector,
    divided,
    formula,
    has_loops,
    suits,
)
from mnpar.kernels.lanes import LANES, fill, larger, load, store, where_equal
from mnpar.kernels.side_by_side import run_loop, threads_for
from mnpar.kernels.windows import Numbers, Windows


@formula
def _first_inside(offset: Any, stride: Any) -> Any:
    """The first window along an axis whose cell at this offset from its stride is in the image."""
    return 0 if offset >= 0 else (stride - 1 - offset) // stride


@formula
def _end_inside(offset: Any, stride: Any, size: Any, out: Any) -> Any:
    """The end of the windows whose cell is in the image."""
    return max(0, min(out, (size - 1 - offset) // stride + 1))


# Unsigned numbers as indices: negative ones, which count from the end, need not be looked for, so
# that the compiler reads many cells at once. A step that it knows is a shuffle of registers.
_ONE, _TWO = np.uint64(1), np.uint64(2)


@formula
def _take(cells: Any, most: Any, left: Any, gcells: Any, step: Any, last: Any) -> Any:
    """Move what is left of the gradients to each ``step``-th cell that equals the maximum."""
    for k in range(most.size):
        here = (cells[np.uint64(k) * step] == most[k]) | last
        g = left[k]
        gcells[np.uint64(k) * step] += g if here else 0.0
        left[k] = 0.0 if here else g


@formula
def _copy(x: Any, y: Any) -> Any:
    for i in range(y.size):
        y[i] = x[i]


@divided
def _spread(
    x: Cube,
    y: Cube,
    gy: Cube,
    gx: Cube,
    room: Matrix,
    kh: int,
    kw: int,
    sh: int,
    sw: int,
    ph: int,
    pw: int,
    thread: int,
    begin: int,
    stop: int,
) -> None:
    H, W = x.shape[1:]
    OH, OW = y.shape[1:]
    left = room[thread]
    for n in range(begin, stop):
        gx[n, :, :] = 0.0
        for oh in range(OH):
            _copy(gy[n, oh], left)
            for i in range(max(0, ph - oh * sh), min(kh, H + ph - oh * sh)):
                row = x[n, oh * sh - ph + i]
                grow = gx[n, oh * sh - ph + i]
                for j in range(kw):
                    first = _first_inside(j - pw, sw)
                    end = _end_inside(j - pw, sw, W, OW)
                    cells = row[first * sw + j - pw :]
                    gcells = grow[first * sw + j - pw :]
                    some = left[first:end]
                    most = y[n, oh, first:end]
                    # the first that equals it; where none does, as of NaN, the last
                    last = i == kh - 1 and j == kw - 1
                    if sw == 1:
                        _take(cells, most, some, gcells, _ONE, last)
                    elif sw == 2:
                        _take(cells, most, some, gcells, _TWO, last)
                    else:
                        _take(cells, most, some, gcells, np.uint64(sw), last)


@divided
def _maximum_of_pixels(
    x: Array4,
    kh: int,
    kw: int,
    sh: int,
    sw: int,
    ph: int,
    pw: int,
    y: Array4,
    thread: int,
    begin: int,
    end: int,
) -> None:
    H, W = x.shape[1:3]
    OH, OW = y.shape[1:3]
    for p in range(begin * OH * OW, end * OH * OW):
        n, oh, ow = p // (OW * OH), p // OW % OH, p % OW
        most = y[n, oh, ow]
        most[:] = -np.inf
        for h in range(max(0, oh * sh - ph), min(H, oh * sh - ph + kh)):
            for w in range(max(0, ow * sw - pw), min(W, ow * sw - pw + kw)):
                _keep_larger(x[n, h, w], most)


@divided
def _maximum_by_registers(
    x: Array4,
    kh: int,
    kw: int,
    sh: int,
    sw: int,
    ph: int,
    pw: int,
    y: Array4,
    thread: int,
    begin: int,
    end: int,
) -> None:
    """The same, for as many channels as lanes, or more."""
    H, W, C = x.shape[1:]
    OH, OW = y.shape[1:3]
    least = fill(x.dtype.type(-np.inf))
    for p in range(begin * OH * OW, end * OH * OW):
        n, top, left = p // (OW * OH), p // OW % OH * sh - ph, p % OW * sw - pw
        for k in range((C + LANES - 1) // LANES):
            c = min(k * LANES, C - LANES)
            most = least
            for h in range(max(0, top), min(H, top + kh)):
                for w in range(max(0, left), min(W, left + kw)):
                    most = larger(most, load(x, ((n * H + h) * W + w) * C + c))
            store(y, p * C + c, most)


@formula
def _keep_larger(cells: Any, most: Any) -> Any:
    """Replace numbers by larger ones, and by NaN."""
    for c in range(most.size):
        cell = cells[c]
        most[c] = cell if (cell > most[c]) | (cell != cell) else most[c]


@divided
def _spread_over_pixels(
    x: Array4,
    y: Array4,
    gy: Array4,
    gx: Array4,
    room: Matrix,
    kh: int,
    kw: int,
    sh: int,
    sw: int,
    ph: int,
    pw: int,
    thread: int,
    begin: int,
    end: int,
) -> None:
    H, W = x.shape[1:3]
    OH, OW = y.shape[1:3]
    left = room[thread]
    for n in range(begin, end):
        gx[n, :, :, :] = 0.0
        for p in range(OH * OW):
            oh, ow = p // OW, p % OW
            _copy(gy[n, oh, ow], left)
            top, start = oh * sh - ph, ow * sw - pw
            for h in range(max(0, top), min(H, top + kh)):
                for w in range(max(0, start), min(W, start + kw)):
                    last = h == top + kh - 1 and w == start + kw - 1
                    _take(x[n, h, w], y[n, oh, ow], left, gx[n, h, w], _ONE, last)


@divided
def _spread_over_tiles(
    x: Array4,
    y: Array4,
    gy: Array4,
    gx: Array4,
    kh: int,
    kw: int,
    sh: int,
    sw: int,
    thread: int,
    begin: int,
    end: int,
) -> None:
    """The same where no two windows meet and there is no padding: nothing is added up."""
    H, W, C = x.shape[1:]
    OH, OW = y.shape[1:3]
    zero = fill(x.dtype.type(0))
    if kh * kw * OH * OW != H * W:
        gx[begin:end, :, :, :] = 0.0  # there are cells that no window sees
    for p in range(begin * OH * OW, end * OH * OW):
        n, top, start = p // (OW * OH), p // OW % OH * sh, p % OW * sw
        for k in range((C + LANES - 1) // LANES):
            c = min(k * LANES, C - LANES)
            most = load(y, p * C + c)
            left = load(gy, p * C + c)
            for i in range(min(kh, H - top)):
                for j in range(min(kw, W - start)):
                    o = ((n * H + top + i) * W + start + j) * C + c
                    if i == kh - 1 and j == kw - 1:
                        store(gx, o, left)
                    else:
                        cells = load(x, o)
                        store(gx, o, where_equal(cells, most, left, zero))
                        left = where_equal(cells, most, zero, left)


@formula
def _add_four(sums: Any, x: Any, o: Any) -> Any:
    """Four registers, to each of which is added what follows in x."""
    return (
        sums[0] + load(x, o),
        sums[1] + load(x, o + LANES),
        sums[2] + load(x, o + 2 * LANES),
        sums[3] + load(x, o + 3 * LANES),
    )


@divided
def _sum_of_pixels(
    x: Array4,
    kh: int,
    kw: int,
    sh: int,
    sw: int,
    ph: int,
    pw: int,
    scale: Vector,
    y: Array4,
    thread: int,
    begin: int,
    end: int,
) -> None:
    """y[window] ← the sum of what it sees, row by row, times its number of ``scale``."""
    H, W, C = x.shape[1:]
    OH, OW = y.shape[1:3]
    zero = fill(x.dtype.type(0))
    for p in range(begin * OH * OW, end * OH * OW):
        n, top, left = p // (OW * OH), p // OW % OH * sh - ph, p % OW * sw - pw
        many = C // (4 * LANES)
        for c in range(0, many * 4 * LANES, 4 * LANES):  # cache lines are read whole
            totals = zero, zero, zero, zero
            for h in range(max(0, top), min(H, top + kh)):
                row = zero, zero, zero, zero
                for w in range(max(0, left), min(W, left + kw)):
                    row = _add_four(row, x, ((n * H + h) * W + w) * C + c)
                totals = (
                    totals[0] + row[0],
                    totals[1] + row[1],
                    totals[2] + row[2],
                    totals[3] + row[3],
                )
            share = scale[p % (OH * OW)]
            store(y, p * C + c, share * totals[0])
            store(y, p * C + c + LANES, share * totals[1])
            store(y, p * C + c + 2 * LANES, share * totals[2])
            store(y, p * C + c + 3 * LANES, share * totals[3])
        for k in range(4 * many, (C + LANES - 1) // LANES):
            c = min(k * LANES, C - LANES)
            total = zero
            for h in range(max(0, top), min(H, top + kh)):
                row = zero
                for w in range(max(0, left), min(W, left + kw)):
                    row = row + load(x, ((n * H + h) * W + w) * C + c)
                total = total + row
            store(y, p * C + c, scale[p % (OH * OW)] * total)


@divided
def _sum_of_few(
    x: Array4,
    kh: int,
    kw: int,
    sh: int,
    sw: int,
    ph: int,
    pw: int,
    scale: Vector,
    y: Array4,
    thread: int,
    begin: int,
    end: int,
) -> None:
    """The same, for fewer channels than lanes."""
    H, W = x.shape[1:3]
    OH, OW = y.shape[1:3]
    for p in range(begin * OH * OW, end * OH * OW):
        n, oh, ow = p // (OW * OH), p // OW % OH, p % OW
        total = y[n, oh, ow]
        total[:] = 0.0
        for h in range(max(0, oh * sh - ph), min(H, oh * sh - ph + kh)):
            for w in range(max(0, ow * sw - pw), min(W, ow * sw - pw + kw)):
                _add(x[n, h, w], 1.0, total)
        share = scale[oh * OW + ow]
        for c in range(total.size):
            total[c] *= share


@formula
def _add(x: Any, share: Any, y: Any) -> Any:
    for i in range(y.size):
        y[i] += share * x[i]


@divided
def _spread_among_few(
    y: Array4,
    kh: int,
    kw: int,
    sh: int,
    sw: int,
    ph: int,
    pw: int,
    scale: Vector,
    x: Array4,
    thread: int,
    begin: int,
    end: int,
) -> None:
    """x[pixel] ← the sum over the windows that see it of y times the number of ``scale``, for fewer
    channels than lanes.
    """
    H, W = x.shape[1:3]
    OH, OW = y.shape[1:3]
    x[begin:end, :, :, :] = 0.0
    for p in range(begin * OH * OW, end * OH * OW):
        n, oh, ow = p // (OW * OH), p // OW % OH, p % OW
        for h in range(max(0, oh * sh - ph), min(H, oh * sh - ph + kh)):
            for w in range(max(0, ow * sw - pw), min(W, ow * sw - pw + kw)):
                _add(y[n, oh, ow], scale[oh * OW + ow], x[n, h, w])


@divided
def _spread_sums(
    y: Array4,
    kh: int,
    kw: int,
    sh: int,
    sw: int,
    ph: int,
    pw: int,
    scale: Vector,
    x: Array4,
    thread: int,
    first_sample: int,
    last_sample: int,
) -> None:
    """x[pixel] ← the sum over the windows that see it of y times the number of ``scale``."""
    H, W, C = x.shape[1:]
    OH, OW = y.shape[1:3]
    zero = fill(x.dtype.type(0))
    many = (C + LANES - 1) // LANES
    for n in range(first_sample, last_sample):
        first = end = 0
        for h in range(H):
            first, end = _next_windows(first, end, h + ph, kh, sh, OH)
            begin = stop = 0
            for w in range(W):
                begin, stop = _next_windows(begin, stop, w + pw, kw, sw, OW)
                is_only = end == first + 1 and stop == begin + 1
                p = ((n * H + h) * W + w) * C
                o = ((n * OH + first) * OW + begin) * C
                share = scale[first * OW + begin] if is_only else 0.0
                for k in range(many):
                    c = min(k * LANES, C - LANES)
                    if is_only:
                        store(x, p + c, share * load(y, o + c))
                        continue
                    total = zero
                    for i in range(first, end):
                        row = zero
                        for j in range(begin, stop):
                            given = load(y, ((n * OH + i) * OW + j) * C + c)
                            row = row + scale[i * OW + j] * given
                        total = total + row
                    store(x, p + c, total)


@formula
def _next_windows(first: Any, end: Any, place: Any, k: Any, stride: Any, out: Any) -> Any:
    """The windows along an axis that see a place, from those that see the place before it:
    divisions would take longer than the sums.
    """
    while first * stride + k <= place:
        first += 1
    while end < out and end * stride <= place:
        end += 1
    return first, end


def maximum(x: Array, windows: Windows) -> Array | None:
    """Return the maximum of each window of images whose channels come last; None for others."""
    if len(windows.size) != 2 or not x.size or not has_loops(x):
        return None
    if (pixels := pixels_of(x)) is None:
        return None
    y = empty_images(x.shape[:2] + windows.out, x.dtype)
    loop = _maximum_of_pixels if x.shape[1] < LANES else _maximum_by_registers
    threads = threads_for(len(x), 2 * x.size)
    run_loop(loop, len(x), threads, pixels, *windows.numbers, as_pixels(y))
    return y


def sum_windows(x: Array, windows: Windows, scale: Array | float) -> Array | None:
    """Return the sum of each window, times ``scale``, of images whose channels come last; None for
    others, and where windows overlap much.
    """
    if len(windows.size) != 2 or not x.size or not has_loops(x):
        return None
    visits = math.prod(windows.K + windows.out)
    if visits > tuning.POOLED_VISITS * math.prod(windows.size):
        return None
    if (pixels := pixels_of(x)) is None:
        return None
    loop = _sum_of_few if x.shape[1] < LANES else _sum_of_pixels
    return _scaled(loop, pixels, windows, scale, windows.out)


def spread_sums(
    y: Array, windows: Windows, scale: Array | float, channels_last: bool
) -> Array | None:
    """Return images in which each pixel is the sum over the windows that see it of y times
    ``scale``, with channels last where those of y are, or are asked for; None for others.
    """
    if len(windows.size) != 2 or not y.size or not has_loops(y):
        return None
    pixels = as_pixels(y) if channels_last else pixels_of(y)
    if pixels is None:
        return None
    loop = _spread_among_few if y.shape[1] < LANES else _spread_sums
    return _scaled(loop, pixels, windows, scale, windows.size)


def _scaled(loop: Loop, x: Array, windows: Windows, scale: Array | float, size: Numbers) -> Array:
    y = empty_images((len(x), x.shape[3], *size), x.dtype)
    scales = np.empty(windows.out, x.dtype)
    scales[...] = scale
    threads = threads_for(len(x), x.size + y.size)
    run_loop(loop, len(x), threads, x, *windows.numbers, scales, as_pixels(y))
    return y


def spread_maximum(x: Array, y: Array, gy: Array, windows: Windows) -> Array | None:
    """Return the gradient of x, at the first of the equal maxima of each window; None where loops
    do not take the arrays.
    """
    if len(windows.size) != 2 or not x.size:
        return None
    if is_channels_last(x) and has_loops(x, y, gy):
        gx = empty_images(x.shape, x.dtype)
        arrays = [as_pixels(z) for z in (x, y, gy, gx)]
        if windows.is_disjoint and not any(windows.pad) and x.shape[1] >= LANES:
            loop, given, room = _spread_over_tiles, (*windows.K, *windows.stride), None
        else:
            loop, given, room = _spread_over_pixels, windows.numbers, x.shape[1]
    elif suits(x, y, gy):
        gx = np.empty_like(x)
        image, out = (-1, *windows.size), (-1, *windows.out)
        arrays = [x.reshape(image), y.reshape(out), gy.reshape(out), gx.reshape(image)]
        loop, given, room = _spread, windows.numbers, windows.out[1]
    else:
        return None
    N = len(arrays[0])
    threads = threads_for(N, 2 * (x.size + y.size))
    if room is not None:
        arrays.append(np.empty((threads, room), x.dtype))
    run_loop(loop, N, threads, *arrays, *given)
    return gx
