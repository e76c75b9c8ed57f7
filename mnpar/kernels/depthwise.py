"""Depthwise convolutions, of each channel by itself, on images whose channels come last.

There is no product of matrices in them. A register of channels of four windows is held while a loop
goes over the cells; for the gradient of the filters it is a register of four cells, and the loop
goes over windows. places.py says where these are; an image is copied into its padding, a sample at
a time, and stays in the cache.

Channels are cut into registers of ``LANES``; the last one may overlap the one before.
"""

from __future__ import annotations

import numpy as np

from mnpar.backend import Array
from mnpar.kernels import places
from mnpar.kernels.compiler import (
    Array4,
    Cube,
    Integers,
    Matrix,
    Vector,
    contiguous,
    divided,
)
from mnpar.kernels.direct import pad_sample, registers
from mnpar.kernels.lanes import LANES, fill, load, store
from mnpar.kernels.side_by_side import run_loop, threads_for
from mnpar.kernels.windows import Windows


@divided
def _convolve(
    x: Array4,
    room: Array4,
    ph: int,
    pw: int,
    windows: Integers,
    cells: Integers,
    outputs: Integers,
    filters: Matrix,
    bias: Vector,
    y: Cube,
    thread: int,
    begin: int,
    end: int,
) -> None:
    """y[n, pixel, c] ← bias + what the window sees, times filters (cell, c)."""
    P, C = y.shape[1:]
    last = windows.size - 1
    padded = room[thread]
    for n in range(begin, end):
        pad_sample(x, n, ph, pw, padded)
        for p in range(0, windows.size, 4):
            p1, p2, p3 = min(p + 1, last), min(p + 2, last), min(p + 3, last)
            w0, w1, w2, w3 = windows[p], windows[p1], windows[p2], windows[p3]
            for k in range((C + LANES - 1) // LANES):
                c = min(k * LANES, C - LANES)
                s0 = s1 = s2 = s3 = load(bias, c)
                for r in range(cells.size):
                    w = load(filters, r * C + c)
                    at = cells[r] + c
                    s0 = s0 + load(padded, w0 + at) * w
                    s1 = s1 + load(padded, w1 + at) * w
                    s2 = s2 + load(padded, w2 + at) * w
                    s3 = s3 + load(padded, w3 + at) * w
                o = n * P * C + c
                store(y, o + outputs[p] * C, s0)
                store(y, o + outputs[p1] * C, s1)
                store(y, o + outputs[p2] * C, s2)
                store(y, o + outputs[p3] * C, s3)


@divided
def _gradient(
    x: Array4,
    room: Array4,
    ph: int,
    pw: int,
    windows: Integers,
    cells: Integers,
    y: Cube,
    total: Cube,
    thread: int,
    begin: int,
    end: int,
) -> None:
    """total[register, cell, lane] ← Σ x y over samples and windows, of some registers."""
    N, P, C = y.shape
    last = cells.size - 1
    padded = room[thread]
    for n in range(N):
        pad_sample(x, n, ph, pw, padded)
        for k in range(begin, end):
            c = min(k * LANES, C - LANES)
            for r in range(0, cells.size, 4):
                a0 = cells[r] + c
                a1 = cells[min(r + 1, last)] + c
                a2 = cells[min(r + 2, last)] + c
                a3 = cells[min(r + 3, last)] + c
                s0 = s1 = s2 = s3 = fill(y.dtype.type(0))
                for p in range(windows.size):
                    given = load(y, (n * P + p) * C + c)
                    at = windows[p]
                    s0 = s0 + load(padded, at + a0) * given
                    s1 = s1 + load(padded, at + a1) * given
                    s2 = s2 + load(padded, at + a2) * given
                    s3 = s3 + load(padded, at + a3) * given
                o = (k * cells.size + r) * LANES
                store(total, o, load(total, o) + s0)
                if r + 1 <= last:
                    o += LANES
                    store(total, o, load(total, o) + s1)
                if r + 2 <= last:
                    o += LANES
                    store(total, o, load(total, o) + s2)
                if r + 3 <= last:
                    o += LANES
                    store(total, o, load(total, o) + s3)


def _apply(
    some: places.Places, room: Array | None, x: Array, W: Array, bias: Array, y: Array
) -> Array:
    """Compute y; return the room for padded samples, which may have been given."""
    rows, columns = some.kernel
    cells = W[:, 0].transpose(1, 2, 0)[rows][:, columns]
    filters = contiguous(cells).reshape(-1, len(W))
    tables = (some.windows, some.cells, some.outputs)
    out = y.reshape(len(y), -1, len(W))
    threads = threads_for(len(x), x.size + out.size * (1 + len(filters) // 8))
    if room is None or len(room) < threads:
        room = some.padded(x.dtype, threads)
    run_loop(_convolve, len(x), threads, x, room, *some.pad, *tables, filters, bias, out)
    return room


def convolve(x: Array, W: Array, bias: Array, windows: Windows, y: Array) -> None:
    """y = x ∗ W + b of (N, H, W, C) and (C, 1, kh, kw), into y (N, OH, OW, C)."""
    some = places.of_windows(windows, x.shape[3], by_cell=True)
    _apply(some, None, x, W, bias, y)


def transpose(y: Array, W: Array, bias: Array, windows: Windows, x: Array) -> None:
    """x = y ∗ᵀ W + b, into x (N, H, W, C)."""
    if not places.sees_all(windows):
        x[...] = bias
    room = None
    for some in places.of_image(windows, len(W)):
        room = _apply(some, room, y, W, bias, x)


def gradient(x: Array, y: Array, windows: Windows) -> Array:
    """The gradient of filters (C, 1, kh, kw)."""
    C = x.shape[3]
    some = places.of_windows(windows, C, by_cell=True)
    channels = registers(C)
    total = np.zeros((len(channels), len(some.cells), LANES), x.dtype)
    tables = (some.windows, some.cells)
    given = y.reshape(len(y), -1, C)
    threads = threads_for(len(channels), x.size + y.size * (1 + len(some.cells) // 8))
    arrays = x, some.padded(x.dtype, threads), *some.pad, *tables, given, total
    run_loop(_gradient, len(channels), threads, *arrays, each=1)
    found = np.empty((C, len(some.cells)), x.dtype)
    found[channels] = total.transpose(0, 2, 1)
    return found.reshape(C, 1, *windows.K)
