"""Batch and group normalization where channels come last in memory: matrices (numbers, channels),
row by row.

Statistics are made as moments.py says: of what is left after a rough mean, summed up in runs of
``RUN`` rows in the dtype of x, and these sums in float64.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mnpar.backend import Array
from mnpar.kernels.compiler import (
    Cube,
    Doubles,
    Matrix,
    Vector,
    contiguous,
    divided,
    formula,
    has_loops,
)
from mnpar.kernels.lanes import LANES, fill, load, store
from mnpar.kernels.side_by_side import run_loop, run_stages, threads_for

RUN = 128


# Where rows are long enough, the sums of four registers of channels are held in registers while a
# loop goes over rows; of the registers of a row the last may overlap the one before.


@formula
def _four(k: Any, C: Any) -> Any:
    """The first channels of the registers from channel k on."""
    last = C - LANES
    return min(k, last), min(k + LANES, last), min(k + 2 * LANES, last), min(k + 3 * LANES, last)


@formula
def _load_four(x: Any, i: Any, c: Any) -> Any:
    return load(x, i + c[0]), load(x, i + c[1]), load(x, i + c[2]), load(x, i + c[3])


@formula
def _store_four(x: Any, c: Any, v: Any) -> Any:
    store(x, c[0], v[0])
    store(x, c[1], v[1])
    store(x, c[2], v[2])
    store(x, c[3], v[3])


@formula
def _plus(u: Any, v: Any) -> Any:
    return u[0] + v[0], u[1] + v[1], u[2] + v[2], u[3] + v[3]


@formula
def _minus(u: Any, v: Any) -> Any:
    return u[0] - v[0], u[1] - v[1], u[2] - v[2], u[3] - v[3]


@formula
def _times(u: Any, v: Any) -> Any:
    return u[0] * v[0], u[1] * v[1], u[2] * v[2], u[3] * v[3]


@formula
def _sums(x: Any, shift: Any, begin: Any, end: Any, one: Any, two: Any) -> Any:
    """one ← Σ (x - shift), two ← Σ (x - shift)² over rows."""
    C = one.size
    if C >= LANES:
        z = fill(x.dtype.type(0))
        for k in range(0, C, 4 * LANES):
            c = _four(k, C)
            less = _load_four(shift, 0, c)
            p = z, z, z, z
            q = z, z, z, z
            for r in range(begin, end):
                d = _minus(_load_four(x, r * C, c), less)
                p = _plus(p, d)
                q = _plus(q, _times(d, d))
            _store_four(one, c, p)
            _store_four(two, c, q)
    else:
        one[:] = 0.0
        two[:] = 0.0
        for r in range(begin, end):
            row = x[r]
            for i in range(C):
                e = row[i] - shift[i]
                one[i] += e
                two[i] += e * e


@formula
def _sums_with(x: Any, g: Any, shift: Any, begin: Any, end: Any, one: Any, two: Any) -> Any:
    """one ← Σ g, two ← Σ g (x - shift) over rows."""
    C = one.size
    if C >= LANES:
        z = fill(x.dtype.type(0))
        for k in range(0, C, 4 * LANES):
            c = _four(k, C)
            less = _load_four(shift, 0, c)
            p = z, z, z, z
            q = z, z, z, z
            for r in range(begin, end):
                given = _load_four(g, r * C, c)
                p = _plus(p, given)
                q = _plus(q, _times(given, _minus(_load_four(x, r * C, c), less)))
            _store_four(one, c, p)
            _store_four(two, c, q)
    else:
        one[:] = 0.0
        two[:] = 0.0
        for r in range(begin, end):
            row = x[r]
            line = g[r]
            for i in range(C):
                one[i] += line[i]
                two[i] += line[i] * (row[i] - shift[i])


@formula
def _scale_rows(x: Any, shift: Any, begin: Any, end: Any, scale: Any, move: Any, y: Any) -> Any:
    """y ← (x - shift) scale + move, of rows."""
    C = shift.size
    if C >= LANES:
        for r in range(begin, end):
            for k in range(0, C, LANES):
                c = min(k, C - LANES)
                v = (load(x, r * C + c) - load(shift, c)) * load(scale, c) + load(move, c)
                store(y, r * C + c, v)
    else:
        for r in range(begin, end):
            row = x[r]
            out = y[r]
            for i in range(row.size):
                out[i] = (row[i] - shift[i]) * scale[i] + move[i]


# The loops of batches do some of their stages, of a part: of the runs from ``begin`` to ``end``.
# Sums of runs are kept, and added up in their order, so that no part makes a difference.


@divided
def _normalize(
    x: Matrix,
    gamma: Vector,
    beta: Vector,
    eps: float,
    y: Matrix,
    shift: Vector,
    rest: Doubles,
    var: Doubles,
    room: Matrix,
    sums: Cube,
    stage: int,
    stop: int,
    thread: int,
    begin: int,
    end: int,
) -> None:
    M, C = x.shape
    some = (M + 7) // 8
    zero = room[0]
    scale = room[1]
    move = room[2]
    if stage <= 0 < stop:
        zero[:] = 0.0
        for r in range(begin, min(end, (some + RUN - 1) // RUN)):
            _sums(x, zero, r * RUN, min(r * RUN + RUN, some), sums[r, 0], sums[r, 1])
    if stage <= 1 < stop:
        rest[:] = 0.0
        for r in range((some + RUN - 1) // RUN):
            for c in range(C):
                rest[c] += sums[r, 0, c]
        for c in range(C):
            shift[c] = rest[c] / some
    if stage <= 2 < stop:
        for r in range(begin, min(end, sums.shape[0])):
            _sums(x, shift, r * RUN, min(r * RUN + RUN, M), sums[r, 0], sums[r, 1])
    if stage <= 3 < stop:
        rest[:] = 0.0
        var[:] = 0.0
        for r in range(sums.shape[0]):
            for c in range(C):
                rest[c] += sums[r, 0, c]
                var[c] += sums[r, 1, c]
        for c in range(C):
            mean = rest[c] / M
            v = var[c] / M - mean * mean
            v = v if not v < 0 else np.float64(0)  # NaN stays
            rest[c] = mean
            var[c] = v
            slope = gamma[c] / math.sqrt(v + eps)
            scale[c] = slope
            move[c] = beta[c] - mean * slope
    if stage <= 4 < stop:
        _scale_rows(x, shift, begin * RUN, min(end * RUN, M), scale, move, y)


@divided
def _normalize_gradient(
    x: Matrix,
    gamma: Vector,
    gy: Matrix,
    eps: float,
    shift: Vector,
    rest: Doubles,
    var: Doubles,
    gx: Matrix,
    ggamma: Doubles,
    gbeta: Doubles,
    room: Matrix,
    sums: Cube,
    stage: int,
    stop: int,
    thread: int,
    begin: int,
    end: int,
) -> None:
    M, C = x.shape
    one = room[0]
    two = room[1]
    scale = room[2]
    if stage <= 0 < stop:
        for r in range(begin, min(end, sums.shape[0])):
            _sums_with(x, gy, shift, r * RUN, min(r * RUN + RUN, M), sums[r, 0], sums[r, 1])
    if stage <= 1 < stop:
        ggamma[:] = 0.0
        gbeta[:] = 0.0
        for r in range(sums.shape[0]):
            for c in range(C):
                gbeta[c] += sums[r, 0, c]
                ggamma[c] += sums[r, 1, c]
        for c in range(C):
            p = gbeta[c]
            q = ggamma[c] - rest[c] * p
            s = 1 / math.sqrt(var[c] + eps)
            ggamma[c] = q * s
            slope = -q * s * s / M
            one[c] = slope
            two[c] = p / M + rest[c] * slope
            scale[c] = gamma[c] * s
    if stage <= 2 < stop:
        if C >= LANES:
            for r in range(begin * RUN, min(end * RUN, M)):
                for k in range(0, C, LANES):
                    c = min(k, C - LANES)
                    d = (load(x, r * C + c) - load(shift, c)) * load(one, c)
                    given = load(gy, r * C + c) - load(two, c)
                    store(gx, r * C + c, (d + given) * load(scale, c))
        else:
            for r in range(begin * RUN, min(end * RUN, M)):
                row = x[r]
                line = gy[r]
                out = gx[r]
                for c in range(C):
                    d = (row[c] - shift[c]) * one[c]
                    out[c] = (d + (line[c] - two[c])) * scale[c]


@formula
def _add_sums(x: Any, shift: Any, end: Any, one: Any, two: Any, sums: Any) -> Any:
    """sums ← Σ (x - shift) and behind them Σ (x - shift)² of the rows up to ``end``."""
    C = one.size
    sums[:] = 0.0
    for begin in range(0, end, RUN):
        _sums(x, shift, begin, min(begin + RUN, end), one, two)
        for c in range(C):
            sums[c] += one[c]
            sums[C + c] += two[c]


@divided
def _normalize_groups(
    x: Cube,
    gamma: Vector,
    beta: Vector,
    eps: float,
    y: Cube,
    shift: Matrix,
    rest: Matrix,
    s: Matrix,
    rooms: Cube,
    all_sums: Doubles,
    thread: int,
    begin: int,
    end: int,
) -> None:
    B, C = x.shape[1:]
    G = shift.shape[1]
    K = C // G
    less = rooms[thread, 0]
    one = rooms[thread, 1]
    two = rooms[thread, 2]
    sums = all_sums[2 * C * thread : 2 * C * (thread + 1)]
    some = (B + 7) // 8
    for n in range(begin, end):
        less[:] = 0.0
        _add_sums(x[n], less, some, one, two, sums)
        for g in range(G):
            total = np.float64(0)
            for c in range(g * K, g * K + K):
                total += sums[c]
            shift[n, g] = total / (K * some)
            less[g * K : g * K + K] = shift[n, g]
        _add_sums(x[n], less, B, one, two, sums)
        for g in range(G):
            total = np.float64(0)
            squares = np.float64(0)
            for c in range(g * K, g * K + K):
                total += sums[c]
                squares += sums[C + c]
            mean = total / (K * B)
            var = squares / (K * B) - mean * mean
            scale = 1 / math.sqrt((var if not var < 0 else np.float64(0)) + eps)  # NaN stays
            rest[n, g] = mean
            s[n, g] = scale
            for c in range(g * K, g * K + K):
                slope = gamma[c] * scale
                one[c] = slope
                two[c] = beta[c] - mean * slope
        _scale_rows(x[n], less, 0, B, one, two, y[n])


@divided
def _normalize_groups_gradient(
    x: Cube,
    gamma: Vector,
    gy: Cube,
    shift: Matrix,
    rest: Matrix,
    s: Matrix,
    gx: Cube,
    all_gradients: Doubles,
    rooms: Cube,
    all_sums: Doubles,
    thread: int,
    first: int,
    last: int,
) -> None:
    """Write the gradients of some samples; those of γ and β for each, to be added up."""
    B, C = x.shape[1:]
    G = shift.shape[1]
    K = C // G
    less = rooms[thread, 0]
    one = rooms[thread, 1]
    two = rooms[thread, 2]
    scale = rooms[thread, 3]
    sums = all_sums[2 * C * thread : 2 * C * (thread + 1)]
    for n in range(first, last):
        ggamma = all_gradients[2 * C * n : 2 * C * n + C]
        gbeta = all_gradients[2 * C * n + C : 2 * C * (n + 1)]
        sums[:] = 0.0
        for g in range(G):
            less[g * K : g * K + K] = shift[n, g]
        for begin in range(0, B, RUN):
            _sums_with(x[n], gy[n], less, begin, min(begin + RUN, B), one, two)
            for c in range(C):
                sums[c] += one[c]
                sums[C + c] += two[c]
        for g in range(G):
            p = np.float64(0)
            q = np.float64(0)
            for c in range(g * K, g * K + K):
                gbeta[c] = sums[c]
                ggamma[c] = (sums[C + c] - rest[n, g] * sums[c]) * s[n, g]
                p += gamma[c] * sums[c]
                q += gamma[c] * sums[C + c]
            q -= rest[n, g] * p
            slope = -q * s[n, g] * s[n, g] * s[n, g] / (K * B)
            for c in range(g * K, g * K + K):
                one[c] = slope
                two[c] = -p * s[n, g] / (K * B) - rest[n, g] * slope
                scale[c] = gamma[c] * s[n, g]
        for r in range(B):
            row = x[n, r]
            given = gy[n, r]
            out = gx[n, r]
            for c in range(C):
                out[c] = given[c] * scale[c] + ((row[c] - less[c]) * one[c] + two[c])


def as_rows(x: Array) -> Array | None:
    """(A, C, B) as a matrix (A · B, C), a view; None where channels do not come last in memory."""
    rows = x.transpose(0, 2, 1)
    if not rows.flags.carray or (x.flags.c_contiguous and x.shape[2] > 1):
        return None
    return rows.reshape(-1, x.shape[1])


def normalize(
    x: Array,
    gamma: Array,
    beta: Array,
    eps: float,
    y: Array,
    statistics: tuple[Array, Array, Array],
) -> bool:
    """Compute y = γ·(x - μ)·(σ² + ε)^-½ of (A, C, B), and shift, rest and variance; False where
    loops do not take the arrays.
    """
    if not has_loops(x, y, gamma, beta, statistics[0]):
        return False
    rows = as_rows(x)
    out = as_rows(y)
    if rows is None or out is None or not gamma.flags.carray or not beta.flags.carray:
        return False
    M, C = rows.shape
    room, sums = np.empty((3, C), x.dtype), np.empty((-(-M // RUN), 2, C), x.dtype)
    arrays = rows, gamma, beta, eps, out, *statistics, room, sums
    runs, size = len(sums), x.size
    most = size * 3 // 4  # registers are added up, and scaled, faster than functions compute
    stages = (runs, size // 16), (1, 0), (runs, size // 2), (1, 0), (runs, most)
    run_stages(_normalize, stages, most, *arrays)
    return True


def gradient(
    x: Array,
    gamma: Array,
    gy: Array,
    eps: float,
    statistics: tuple[Array, Array, Array],
    gx: Array,
) -> tuple[Array, Array] | None:
    """Compute the gradient of x into ``gx``, and return those of γ and β, float64; None where loops
    do not take the arrays.
    """
    if not has_loops(x, gy, gamma, statistics[0], gx):
        return None
    rows = as_rows(x)
    out = as_rows(gx)
    if rows is None or out is None or not gamma.flags.carray:
        return None
    given = as_rows(gy)
    if given is None:
        given = contiguous(gy.transpose(0, 2, 1)).reshape(rows.shape)
    ggamma, gbeta = np.empty(len(gamma)), np.empty(len(gamma))
    M, C = rows.shape
    room, sums = np.empty((3, C), x.dtype), np.empty((-(-M // RUN), 2, C), x.dtype)
    arrays = rows, gamma, given, eps, *statistics, out, ggamma, gbeta, room, sums
    runs, size = len(sums), x.size
    most = size * 5 // 4
    stages = (runs, size * 3 // 4), (1, 0), (runs, most)
    run_stages(_normalize_gradient, stages, most, *arrays)
    return ggamma, gbeta


def _as_groups(x: Array) -> Array | None:
    """(N, G, K, B) as (N, B, channels), a view; None where channels do not come last in memory."""
    N, G, K, B = x.shape
    pixels = x.transpose(0, 3, 1, 2)
    if not pixels.flags.carray or (x.flags.c_contiguous and B > 1):
        return None
    return pixels.reshape(N, B, G * K)


def normalize_groups(
    x: Array,
    gamma: Array,
    beta: Array,
    eps: float,
    y: Array,
    statistics: tuple[Array, Array, Array],
) -> bool:
    """Compute y = γ·(x - μ)·s + β of (N, G, K, B), with means over K and B and γ and β (G, K), and
    the shift, rest and s of each group; False where loops do not take the arrays.
    """
    small = gamma, beta, *statistics
    if not has_loops(x, y, *small) or not all([z.flags.carray for z in small]):
        return False
    pixels = _as_groups(x)
    out = _as_groups(y)
    if pixels is None or out is None:
        return False
    flat = [z.reshape(x.shape[:2]) for z in statistics]
    threads = threads_for(len(x), 3 * x.size)
    room = np.empty((threads, 3, gamma.size), x.dtype), np.empty(threads * 2 * gamma.size)
    arrays = pixels, gamma.reshape(-1), beta.reshape(-1), eps, out, *flat, *room
    run_loop(_normalize_groups, len(x), threads, *arrays)
    return True


def groups_gradient(
    x: Array,
    gamma: Array,
    gy: Array,
    statistics: tuple[Array, Array, Array],
    gx: Array,
) -> tuple[Array, Array] | None:
    """Compute the gradient of x into ``gx``, and return those of γ and β, float64; None where loops
    do not take the arrays.
    """
    small = gamma, *statistics
    if not has_loops(x, gy, gx, *small) or not all([z.flags.carray for z in small]):
        return None
    pixels = _as_groups(x)
    out = _as_groups(gx)
    if pixels is None or out is None:
        return None
    given = _as_groups(gy)
    if given is None:
        given = contiguous(gy.transpose(0, 3, 1, 2)).reshape(pixels.shape)
    threads = threads_for(len(x), 4 * x.size)
    room = np.empty((threads, 4, gamma.size), x.dtype), np.empty(threads * 2 * gamma.size)
    gradients = np.empty((len(x), 2, gamma.size))
    flat = [z.reshape(x.shape[:2]) for z in statistics]
    arrays = pixels, gamma.reshape(-1), given, *flat, out, gradients, *room
    run_loop(_normalize_groups_gradient, len(x), threads, *arrays)
    ggamma, gbeta = gradients.sum(0)
    return ggamma, gbeta
