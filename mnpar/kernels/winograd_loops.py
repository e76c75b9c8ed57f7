"""The transforms of Winograd's method for 3 x 3 filters, on images whose channels come last.

Channels lie side by side, so all operations are on registers of them; the last register of a pixel
may overlap the one before, and nothing is computed but what the image has. Tiles are counted
through all samples, so small images fill a block as large ones do. With points 0, ±p, ±q and ∞ the
matrices of winograd.py have the structure that the formulas use: what differs for ±p is the sign of
odd powers.
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from mnpar.autograd.tape import advance_transfers
from mnpar.backend import Array, empty_aligned
from mnpar.kernels import tuning, winograd
from mnpar.kernels.columns import advance_between
from mnpar.kernels.compiler import Array4, Cube, Matrix, Vector, divided, formula
from mnpar.kernels.lanes import LANES, fill, load, store
from mnpar.kernels.products import gemm_of, multiply
from mnpar.kernels.side_by_side import run_loop, threads_for
from mnpar.kernels.sums import even_slices
from mnpar.kernels.windows import Windows
from mnpar.runtime.blas_threads import one_thread_each

_P, _Q = winograd.POINTS[3][1], winograd.POINTS[3][3]
_PP, _QQ = _P * _P, _Q * _Q
_PPP, _QQQ = _PP * _P, _QQ * _Q
_SUM, _PRODUCT = _PP + _QQ, _PP * _QQ
_PLACES = 36
_BLOCKS = 4  # of tiles, whose sums are added up, however many threads there are


@formula
def _load_six(x: Any, i: Any, step: Any) -> Any:
    return (
        load(x, i),
        load(x, i + step),
        load(x, i + 2 * step),
        load(x, i + 3 * step),
        load(x, i + 4 * step),
        load(x, i + 5 * step),
    )


@formula
def _store_four(x: Any, i: Any, step: Any, v: Any) -> Any:
    store(x, i, v[0])
    store(x, i + step, v[1])
    store(x, i + 2 * step, v[2])
    store(x, i + 3 * step, v[3])


@formula
def _store_six(x: Any, i: Any, step: Any, v: Any) -> Any:
    _store_four(x, i, step, v)
    store(x, i + 4 * step, v[4])
    store(x, i + 5 * step, v[5])


@formula
def _inputs_along(d: Any) -> Any:
    """B along one axis."""
    d0, d1, d2, d3, d4, d5 = d
    even = d4 - _QQ * d2
    odd = _P * (d3 - _QQ * d1)
    other_even = d4 - _PP * d2
    other_odd = _Q * (d3 - _PP * d1)
    return (
        d4 - _SUM * d2 + _PRODUCT * d0,
        even + odd,
        even - odd,
        other_even + other_odd,
        other_even - other_odd,
        d5 - _SUM * d3 + _PRODUCT * d1,
    )


@formula
def _outputs_along(m: Any) -> Any:
    """A along one axis."""
    m0, m1, m2, m3, m4, m5 = m
    plus = m1 + m2
    minus = m1 - m2
    both = m3 + m4
    other = m3 - m4
    return (
        m0 + plus + both,
        _P * minus + _Q * other,
        _PP * plus + _QQ * both,
        _PPP * minus + _QQQ * other + m5,
    )


@formula
def _given_along(y0: Any, y1: Any, y2: Any, y3: Any) -> Any:
    """Aᵀ along one axis."""
    even = y0 + _PP * y2
    odd = _P * y1 + _PPP * y3
    other_even = y0 + _QQ * y2
    other_odd = _Q * y1 + _QQQ * y3
    return (
        y0,
        even + odd,
        even - odd,
        other_even + other_odd,
        other_even - other_odd,
        y3,
    )


@formula
def _channel(k: Any, channels: Any) -> Any:
    """The first channel of the k-th register of a pixel."""
    return min(k * LANES, channels - LANES)


@formula
def _transform_inputs(
    x: Any, ph: Any, pw: Any, OH: Any, OW: Any, first: Any, tiles: Any, seen: Any, d: Any
) -> Any:
    """seen[place, tile, c] ← B x Bᵀ of ``tiles`` tiles from the ``first`` on."""
    H, W, C = x.shape[1:]
    rows, columns, step = (OH + 3) // 4, (OW + 3) // 4, seen.shape[1]
    for r in range(tiles):
        t = first + r
        j = 4 * (t % columns) - pw
        i = 4 * (t // columns % rows) - ph
        at = ((t // (columns * rows) * H + i) * W + j) * C
        inside = i >= 0 and j >= 0 and i + 6 <= H and j + 6 <= W
        for k in range((C + LANES - 1) // LANES):
            c = _channel(k, C)
            if not inside:
                for a in range(6):
                    for b in range(6):
                        v = fill(x.dtype.type(0))
                        if 0 <= i + a < H and 0 <= j + b < W:
                            v = load(x, at + (a * W + b) * C + c)
                        store(d, (6 * a + b) * LANES, v)
            for b in range(6):
                if inside:
                    v6 = _load_six(x, at + b * C + c, W * C)
                else:
                    v6 = _load_six(d, b * LANES, 6 * LANES)
                _store_six(d, b * LANES, 6 * LANES, _inputs_along(v6))
            for a in range(6):
                v6 = _load_six(d, 6 * a * LANES, LANES)
                _store_six(seen, 6 * a * step + r * C + c, step, _inputs_along(v6))


@formula
def _transform_outputs(products: Any, first: Any, tiles: Any, bias: Any, y: Any, d: Any) -> Any:
    """y ← A m Aᵀ + bias of products[place, tile, k], of ``tiles`` tiles from the ``first`` on."""
    OH, OW, K = y.shape[1:]
    rows, columns, step = (OH + 3) // 4, (OW + 3) // 4, products.shape[1]
    for r in range(tiles):
        t = first + r
        j = 4 * (t % columns)
        i = 4 * (t // columns % rows)
        at = ((t // (columns * rows) * OH + i) * OW + j) * K
        for k in range((K + LANES - 1) // LANES):
            c = _channel(k, K)
            for b in range(6):
                m = _load_six(products, b * step + r * K + c, 6 * step)
                _store_four(d, b * LANES, 6 * LANES, _outputs_along(m))
            move = load(bias, c)
            for a in range(min(4, OH - i)):
                v0, v1, v2, v3 = _outputs_along(_load_six(d, 6 * a * LANES, LANES))
                o = at + a * OW * K + c
                store(y, o, v0 + move)
                if j + 1 < OW:
                    store(y, o + K, v1 + move)
                if j + 2 < OW:
                    store(y, o + 2 * K, v2 + move)
                if j + 3 < OW:
                    store(y, o + 3 * K, v3 + move)


@formula
def _transpose_outputs(y: Any, first: Any, tiles: Any, given: Any, d: Any) -> Any:
    """given[place, tile, k] ← Aᵀ y A: the transpose of :func:`_transform_outputs`."""
    OH, OW, K = y.shape[1:]
    rows, columns, step = (OH + 3) // 4, (OW + 3) // 4, given.shape[1]
    for r in range(tiles):
        t = first + r
        j = 4 * (t % columns)
        i = 4 * (t // columns % rows)
        at = ((t // (columns * rows) * OH + i) * OW + j) * K
        for k in range((K + LANES - 1) // LANES):
            c = _channel(k, K)
            zero = fill(y.dtype.type(0))
            for a in range(4):
                o = at + a * OW * K + c
                inside = i + a < OH
                v0 = load(y, o) if inside else zero
                v1 = load(y, o + K) if inside and j + 1 < OW else zero
                v2 = load(y, o + 2 * K) if inside and j + 2 < OW else zero
                v3 = load(y, o + 3 * K) if inside and j + 3 < OW else zero
                _store_six(d, 6 * a * LANES, LANES, _given_along(v0, v1, v2, v3))
            for b in range(6):
                o = b * LANES
                v0 = load(d, o)
                v1 = load(d, o + 6 * LANES)
                v2 = load(d, o + 12 * LANES)
                v3 = load(d, o + 18 * LANES)
                _store_six(given, b * step + r * K + c, 6 * step, _given_along(v0, v1, v2, v3))


# Tiles are computed in parts, of which each stays in the cache with what is made of it; which these
# are does not depend on the number of threads, since the last bits of a product may depend on how
# many rows it has.


@formula
def _begin(part: Any, parts: Any, tiles: Any) -> Any:
    """The first tile of a part."""
    return tiles * part // parts


@divided
def _convolve(
    x: Array4,
    ph: int,
    pw: int,
    tiles: int,
    parts: int,
    first_part: int,
    gemm: int,
    filters: Cube,
    bias: Vector,
    y: Array4,
    all_seen: Cube,
    all_products: Cube,
    room: Matrix,
    thread: int,
    begin: int,
    end: int,
) -> None:
    OH, OW = y.shape[1:3]
    C, K = filters.shape[1:]
    seen = all_seen[thread]
    products = all_products[thread]
    d = room[thread]
    for part in range(first_part + begin, first_part + end):
        first = _begin(part, parts, tiles)
        some = _begin(part + 1, parts, tiles) - first
        _transform_inputs(x, ph, pw, OH, OW, first, some, seen, d)
        for p in range(_PLACES):
            i, j, k = p * seen.shape[1], p * C * K, p * products.shape[1]
            multiply(gemm, False, some, K, C, seen, i, filters, j, False, products, k)
        _transform_outputs(products, first, some, bias, y, d)


@divided
def _gradient(
    x: Array4,
    y: Array4,
    ph: int,
    pw: int,
    tiles: int,
    parts: int,
    blocks: int,
    gemm: int,
    totals: Array4,
    all_seen: Cube,
    all_given: Cube,
    room: Matrix,
    thread: int,
    begin: int,
    end: int,
) -> None:
    """totals[block] ← Σ seenᵀ given over the tiles of a block of parts."""
    OH, OW = y.shape[1:3]
    C, K = totals.shape[2:]
    seen = all_seen[thread]
    given = all_given[thread]
    d = room[thread]
    for block in range(begin, end):
        start = _begin(block, blocks, parts)
        for part in range(start, _begin(block + 1, blocks, parts)):
            first = _begin(part, parts, tiles)
            some = _begin(part + 1, parts, tiles) - first
            _transform_inputs(x, ph, pw, OH, OW, first, some, seen, d)
            _transpose_outputs(y, first, some, given, d)
            for p in range(_PLACES):
                i, j = p * seen.shape[1], p * given.shape[1]
                k = (block * _PLACES + p) * C * K
                multiply(gemm, True, C, K, some, seen, i, given, j, part > start, totals, k)


def is_faster(windows: Windows, N: int, C: int, K: int) -> bool:
    """Return whether this takes less time than products with columns."""
    if {*windows.K} != {3} or {*windows.stride, *windows.dilate} != {1} or min(C, K) < LANES:
        return False
    if not gemm_of("f"):
        return False
    tiles, outputs = N * _tiles(windows), N * windows.out[0] * windows.out[1]
    touch = tuning.WINOGRAD_LOOP_TOUCH
    places = tiles * (C * K + touch * (C + K)) + C * K * (9 + touch)
    return tuning.WINOGRAD_LOOP_CALL + _PLACES * places < 9 * outputs * C * (K + touch)


def _tiles(windows: Windows) -> int:
    """Return the number of tiles of a sample."""
    OH, OW = windows.out
    return -(-OH // 4) * -(-OW // 4)


def _room(threads: int, tiles: int, channels: int, dtype: Any) -> Array:
    """Return room for the numbers of some tiles, for each thread: (threads, places, numbers).

    Places are not a power of two apart, where they would share the lines of a cache.
    """
    line = 64 // dtype.itemsize
    step = -(-tiles * channels // line) * line
    step += line * (1 + (step // line) % 2)  # an odd number of lines
    return empty_aligned((threads, _PLACES, step), dtype)


def _parts(tiles: int, channels: int, dtype: Any, least: int) -> int:
    """Return in how many parts the tiles are, of which each stays in the cache with what is made of
    it, but is no smaller than ``least`` bytes, which are read for each: as many for each of two or
    four threads.
    """
    some = max(tuning.WINOGRAD_LOOP_BYTES, least) // (_PLACES * channels * dtype.itemsize)
    parts: int = -(-tiles // max(some, 1))
    return min(tiles, -(-parts // _BLOCKS) * _BLOCKS)


def convolve(x: Array, filters: Array, bias: Array, windows: Windows, y: Array) -> None:
    """y = x ∗ W + b of (N, H, W, C) and filters (place, C, K), as :func:`transform_filters` makes
    them, into y (N, OH, OW, K).
    """
    C, K = filters.shape[1:]
    tiles = len(x) * _tiles(windows)
    parts = _parts(tiles, C + K, x.dtype, filters.nbytes)
    if not parts:
        return
    threads = threads_for(parts, x.size * K // 4)
    many = -(-tiles // parts)
    rooms = [_room(threads, many, channels, x.dtype) for channels in (C, K)]
    rooms.append(np.empty((threads, _PLACES * LANES), x.dtype))  # for a tile of a register
    gemm = gemm_of(x.dtype.char)
    with one_thread_each if threads > 1 else contextlib.nullcontext():
        for some in advance_between(even_slices(parts, 2 * threads)):
            numbers = *windows.pad, tiles, parts, some.start, gemm
            arrays = x, *numbers, filters, bias, y, *rooms
            run_loop(_convolve, some.stop - some.start, threads, *arrays)


def gradient(x: Array, y: Array, windows: Windows) -> Array:
    """The gradient of filters (K, C, 3, 3) from x (N, H, W, C) and the gradient of y."""
    C, K = x.shape[3], y.shape[3]
    tiles = len(x) * _tiles(windows)
    parts = _parts(tiles, C + K, x.dtype, 2 * _PLACES * C * K * x.itemsize)
    blocks = min(parts, _BLOCKS)
    totals = np.empty((blocks, _PLACES, C, K), x.dtype)
    if parts:
        threads = threads_for(blocks, x.size * K // 4)
        many = -(-tiles // parts)
        rooms = [_room(threads, many, channels, x.dtype) for channels in (C, K)]
        rooms.append(np.empty((threads, _PLACES * LANES), x.dtype))
        gemm = gemm_of(x.dtype.char)
        arrays = x, y, *windows.pad, tiles, parts, blocks, gemm, totals, *rooms
        with one_thread_each if threads > 1 else contextlib.nullcontext():
            run_loop(_gradient, blocks, threads, *arrays)
        advance_transfers()
    total = totals[0] if blocks else np.zeros(totals.shape[1:], x.dtype)
    for other in totals[1:]:
        total += other
    G = winograd.matrices(3, 2, x.dtype)[2]
    found: Array = (G.T @ total.reshape(_PLACES, -1)).reshape(3, 3, C, K)
    return found.transpose(3, 2, 0, 1)


def transform_filters(W: Array, turned: bool = False) -> Array:
    """The filters (K, C, 3, 3) as (place, C, K); ``turned``: of the transpose, (place, K, C)."""
    G = winograd.matrices(3, 2, W.dtype)[2]
    cells = W.transpose((2, 3, 0, 1) if turned else (2, 3, 1, 0)).reshape(9, -1)
    shape = W.shape[:2] if turned else W.shape[1::-1]
    found: Array = ((G[:, ::-1] if turned else G) @ cells).reshape(_PLACES, *shape)
    return found
