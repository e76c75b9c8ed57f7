"""The transforms of Winograd's method for 3 x 3 filters, on images whose channels come last.

Channels lie side by side, so all operations are on registers of them; the last register of a pixel
may overlap the one before, and nothing is computed but what the image has. Tiles are counted
through all samples, so small images fill a block as large ones do. With points 0, ±p, ±q and ∞ the
matrices of winograd.py have the structure that the formulas use: what differs for ±p is the sign of
odd powers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mnpar.backend import Array, empty_aligned
from mnpar.kernels import tuning, winograd
from mnpar.kernels.columns import advance_between
from mnpar.kernels.compiler import Array4, Matrix, Vector, compiled, formula
from mnpar.kernels.lanes import LANES, fill, load, store
from mnpar.kernels.side_by_side import run_parts
from mnpar.kernels.sums import even_slices
from mnpar.kernels.windows import Windows

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


@compiled
def _transform_inputs(
    x: Array4, ph: int, pw: int, OH: int, OW: int, first: int, tiles: int, seen: Matrix, d: Vector
) -> None:
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


@compiled
def _transform_outputs(
    products: Matrix, first: int, tiles: int, bias: Vector, y: Array4, d: Vector
) -> None:
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


@compiled
def _transpose_outputs(y: Array4, first: int, tiles: int, given: Matrix, d: Vector) -> None:
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


def is_faster(windows: Windows, N: int, C: int, K: int) -> bool:
    """Return whether this takes less time than products with columns."""
    if {*windows.K} != {3} or {*windows.stride, *windows.dilate} != {1} or min(C, K) < LANES:
        return False
    tiles, outputs = N * _tiles(windows), N * windows.out[0] * windows.out[1]
    touch = tuning.WINOGRAD_LOOP_TOUCH
    places = tiles * (C * K + touch * (C + K)) + C * K * (9 + touch)
    return tuning.WINOGRAD_LOOP_CALL + _PLACES * places < 9 * outputs * C * (K + touch)


def _tiles(windows: Windows) -> int:
    """Return the number of tiles of a sample."""
    OH, OW = windows.out
    return -(-OH // 4) * -(-OW // 4)


class _Places:
    """Memory for the numbers of some tiles: a matrix for each place.

    Places are not a power of two apart, where they would share the lines of a cache.
    """

    def __init__(self, tiles: int, channels: int, dtype: Any) -> None:
        size = tiles * channels
        line = 64 // dtype.itemsize
        step = -(-size // line) * line
        step += line * (1 + (step // line) % 2)  # an odd number of lines
        self.all = empty_aligned((_PLACES, step), dtype)
        self.channels = channels

    def matrices(self, tiles: int) -> Array:
        """The matrices (place, tiles, channels)."""
        return self.all[:, : tiles * self.channels].reshape(_PLACES, tiles, self.channels)


def _parts(windows: Windows, N: int, channels: int, dtype: Any, least: int) -> list[slice]:
    """All tiles, in parts of which each stays in the cache with what is made of it; but no smaller
    than ``least`` bytes, which are read for each.
    """
    tile = _PLACES * channels * dtype.itemsize
    return list(even_slices(N * _tiles(windows), max(tuning.WINOGRAD_LOOP_BYTES, least) // tile))


def convolve(x: Array, filters: Array, bias: Array, windows: Windows, y: Array) -> None:
    """y = x ∗ W + b of (N, H, W, C) and filters (place, C, K), as :func:`transform_filters` makes
    them, into y (N, OH, OW, K).
    """
    C, K = filters.shape[1:]
    parts = _parts(windows, len(x), C + K, x.dtype, filters.nbytes)
    many = parts[0].stop if parts else 0

    def compute(some: slice) -> None:
        seen, products = _Places(many, C, x.dtype), _Places(many, K, x.dtype)
        room = np.empty(_PLACES * LANES, x.dtype)  # for a tile of a register
        own = parts[some]
        # another thread has no transfers
        for part in iter(own) if some.start else advance_between(own):
            first, tiles = part.start, part.stop - part.start
            _transform_inputs(x, *windows.pad, *windows.out, first, tiles, seen.all, room)
            np.matmul(seen.matrices(tiles), filters, out=products.matrices(tiles))
            _transform_outputs(products.all, first, tiles, bias, y, room)

    run_parts(compute, len(parts), x.size * K // 4, multiplies=True)


def gradient(x: Array, y: Array, windows: Windows) -> Array:
    """The gradient of filters (K, C, 3, 3) from x (N, H, W, C) and the gradient of y."""
    C, K = x.shape[3], y.shape[3]
    size = _PLACES * C * K * x.itemsize
    parts = _parts(windows, len(x), C + K, x.dtype, 2 * size)
    many = parts[0].stop if parts else 0
    blocks = list(even_slices(len(parts), -(-len(parts) // _BLOCKS)))
    totals = np.empty((len(blocks), _PLACES, C, K), x.dtype)

    def compute(some: slice) -> None:
        seen, given = _Places(many, C, x.dtype), _Places(many, K, x.dtype)
        room = np.empty(_PLACES * LANES, x.dtype)  # for a tile of a register
        product = np.empty(totals.shape[1:], x.dtype)
        for total, block in zip(totals[some], blocks[some], strict=True):
            own = parts[block]
            for part in iter(own) if some.start else advance_between(own):
                first, tiles = part.start, part.stop - part.start
                _transform_inputs(x, *windows.pad, *windows.out, first, tiles, seen.all, room)
                _transpose_outputs(y, first, tiles, given.all, room)
                is_first = part is own[0]
                met, out = seen.matrices(tiles).swapaxes(1, 2), total if is_first else product
                np.matmul(met, given.matrices(tiles), out=out)
                if not is_first:
                    total += product

    run_parts(compute, len(blocks), x.size * K // 4, multiplies=True)
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
