"""Convolutions of images whose channels come last, without columns: products are summed up in
registers.

A tile of the output, six pixels by two registers of filters, is held in registers while a loop goes
over what its windows see: each number of the image is multiplied with both registers, each register
of filters with all six pixels. For the gradient of the filters a tile is six numbers of a window by
two registers of filters, and the loop goes over pixels. A register that has no other beside it is
multiplied with twelve. An image is copied into its padding, a
sample at a time, and stays in the cache.

The filters of each group are cut into registers of ``LANES``; the last one may overlap the one
before.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from mnpar.backend import Array
from mnpar.kernels import places, tuning
from mnpar.kernels.columns import advance_between
from mnpar.kernels.compiler import Array4, Array5, Cube, Integers, Vector, divided, formula
from mnpar.kernels.lanes import LANES, fill, load, repeat, store
from mnpar.kernels.side_by_side import run_loop, threads_for
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


@formula
def _add_products_of_one(sums: Any, x: Any, i: Any, b: Any, j: Any, d: Any, v: Any) -> Any:
    """The same for one register v, and six more numbers of x, j apart from the places d."""
    s0, s1, s2, s3, s4, s5, t0, t1, t2, t3, t4, t5 = sums
    return (
        s0 + repeat(x, b[0] + i) * v,
        s1 + repeat(x, b[1] + i) * v,
        s2 + repeat(x, b[2] + i) * v,
        s3 + repeat(x, b[3] + i) * v,
        s4 + repeat(x, b[4] + i) * v,
        s5 + repeat(x, b[5] + i) * v,
        t0 + repeat(x, d[0] + j) * v,
        t1 + repeat(x, d[1] + j) * v,
        t2 + repeat(x, d[2] + j) * v,
        t3 + repeat(x, d[3] + j) * v,
        t4 + repeat(x, d[4] + j) * v,
        t5 + repeat(x, d[5] + j) * v,
    )


@divided
def _convolve(
    x: Array4,
    room: Array4,
    ph: int,
    pw: int,
    windows: Integers,
    cells: Integers,
    outputs: Integers,
    filters: Cube,
    bias: Vector,
    pairs: Integers,
    y: Cube,
    thread: int,
    begin: int,
    end: int,
) -> None:
    """y[n, pixel, k] ← bias + what the window sees, times filters (register, kernel · C, lanes)."""
    P, K = y.shape[1:]
    padded = room[thread]
    many = filters.shape[1]
    run = many // cells.size
    last = windows.size - 1
    for n in range(begin, end):
        pad_sample(x, n, ph, pw, padded)
        for pair in range(0, pairs.size, _PAIR):
            k, other, c, d, from_ = (
                pairs[pair],
                pairs[pair + 1],
                pairs[pair + 2],
                pairs[pair + 3],
                pairs[pair + 4],
            )
            v = load(bias, c)
            alone = other == k
            for p in range(0, windows.size if alone else 0, 2 * _TILE):
                sums = (v, v, v, v, v, v, v, v, v, v, v, v)
                six = _six_from(p, last)
                others = _six_from(min(p + _TILE, last), last)
                b = _pick(windows, six)
                e = _pick(windows, others)
                for r in range(cells.size):
                    first = k * many + r * run
                    for i in range(run):
                        u = load(filters, (first + i) * LANES)
                        at = cells[r] + from_ + i
                        sums = _add_products_of_one(sums, padded, at, b, at, e, u)
                _store_column(y, n * P * K + c, K, _pick(outputs, six), sums[:6])
                _store_column(y, n * P * K + c, K, _pick(outputs, others), sums[6:])
            for p in range(0, 0 if alone else windows.size, _TILE):
                six = _six_from(p, last)
                w = load(bias, d)
                sums = (v, v, v, v, v, v, w, w, w, w, w, w)
                b = _pick(windows, six)
                for r in range(cells.size):
                    first = k * many + r * run
                    second = other * many + r * run
                    for i in range(run):
                        u = load(filters, (first + i) * LANES)
                        w = load(filters, (second + i) * LANES)
                        sums = _add_products(sums, padded, cells[r] + from_ + i, b, u, w)
                q = _pick(outputs, six)
                _store_column(y, n * P * K + c, K, q, sums[:6])
                _store_column(y, n * P * K + d, K, q, sums[6:])


@formula
def _six_from(p: Any, last: Any) -> Any:
    return (
        p,
        min(p + 1, last),
        min(p + 2, last),
        min(p + 3, last),
        min(p + 4, last),
        min(p + 5, last),
    )


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


@divided
def _gradient(
    x: Array4,
    room: Array4,
    ph: int,
    pw: int,
    windows: Integers,
    cells: Integers,
    y: Cube,
    some: int,
    pairs: Integers,
    total: Array5,
    thread: int,
    begin: int,
    stop: int,
) -> None:
    """total[register, cells, tile, number, lane] ← Σ x y over samples and windows; ``some`` windows
    are added up in registers. Tiles of pairs and cells are counted; these are some of them.
    """
    N, P, K = y.shape
    tiles = total.shape[2]
    padded = room[thread]
    b = (0, 1, 2, 3, 4, 5)
    z = fill(y.dtype.type(0))
    for n in range(N):
        pad_sample(x, n, ph, pw, padded)
        for start in range(0, P, some):
            end = min(start + some, P)
            for pair in range(0, pairs.size, _PAIR):
                k, other = pairs[pair], pairs[pair + 1]
                c, d = n * P * K + pairs[pair + 2], n * P * K + pairs[pair + 3]
                from_ = pairs[pair + 4]
                alone = other == k and tiles > 1  # one tile has no other beside it, either
                first = pair // _PAIR * cells.size * tiles
                for r in range(cells.size):
                    before = first + r * tiles
                    from_tile = min(max(begin - before, 0), tiles)
                    to_tile = min(max(stop - before, 0), tiles)
                    for tile in range(from_tile + from_tile % 2, to_tile if alone else 0, 2):
                        next_ = min(tile + 1, tiles - 1)
                        at = cells[r] + from_
                        sums = (z, z, z, z, z, z, z, z, z, z, z, z)
                        for p in range(start, end):
                            v = load(y, c + p * K)
                            i = windows[p] + at + tile * _TILE
                            j = windows[p] + at + next_ * _TILE
                            sums = _add_products_of_one(sums, padded, i, b, j, b, v)
                        o = (k * cells.size + r) * tiles * _TILE * LANES
                        _add_column(total, o + tile * _TILE * LANES, sums[:6])
                        if next_ > tile:
                            _add_column(total, o + next_ * _TILE * LANES, sums[6:])
                    for tile in range(from_tile, 0 if alone else to_tile):
                        at = cells[r] + from_ + tile * _TILE
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


@functools.lru_cache(maxsize=64)
def _pairs(K: int, groups: int, C: int) -> Array:
    """The registers that are computed together, two by two, of K filters in groups of C channels:
    for each pair both registers, their first filters, and the first channel that they see.
    """
    own = K // groups
    many = -(-own // LANES)
    found = []
    for g in range(groups):
        for k in range(0, many, 2):
            both = k, min(k + 1, many - 1)
            first = [g * own + min(z * LANES, own - LANES) for z in both]
            found += [*[g * many + z for z in both], *first, g * C]
    return np.array(found)


_PAIR = 5  # numbers


def _filters(cells: Array, groups: int) -> Array:
    """Filters (K, kernel · C) by registers: (registers, kernel · C, lanes)."""
    K, many = cells.shape
    own = cells.reshape(groups, K // groups, many)[:, registers(K // groups)]
    return np.ascontiguousarray(own.swapaxes(2, 3)).reshape(-1, many, LANES)


def convolve(x: Array, W: Array, bias: Array, windows: Windows, groups: int, y: Array) -> None:
    """y = x ∗ W + b of (N, H, W, C) and (K, C / groups, kh, kw), into y (N, OH, OW, K)."""
    cells = W.transpose(0, 2, 3, 1).reshape(len(W), -1)
    some = places.of_windows(windows, x.shape[3], by_cell=groups > 1)
    _apply(some, None, x, cells, bias, groups, y)


def transpose(y: Array, W: Array, bias: Array, windows: Windows, groups: int, x: Array) -> None:
    """x = y ∗ᵀ W + b of (N, OH, OW, K) and (K, C / groups, kh, kw), into x (N, H, W, C)."""
    if not places.sees_all(windows):
        x[...] = bias
    K, C = W.shape[:2]
    turned = W.reshape(groups, K // groups, C, *W.shape[2:]).transpose(0, 2, 3, 4, 1)
    room = None
    for some in places.of_image(windows, K):
        rows, columns = some.kernel
        cells = turned[:, :, rows][:, :, :, columns].reshape(groups * C, -1)
        room = _apply(some, room, y, cells, bias, groups, x)


def _apply(
    some: places.Places,
    room: Array | None,
    x: Array,
    cells: Array,
    bias: Array,
    groups: int,
    y: Array,
) -> Array:
    """Compute y; return the room for padded samples, which may have been given."""
    K = len(cells)
    out = y.reshape(len(y), -1, K)
    if K < LANES:
        more = np.zeros((LANES, cells.shape[1]), x.dtype)
        more[:K] = cells
        wide = np.empty((*out.shape[:2], LANES), x.dtype)
        bias = np.concatenate([bias, np.zeros(LANES - K, x.dtype)])
        into, filters = wide, _filters(more, groups)
    else:
        into, filters = out, _filters(cells, groups)
    tables = (some.windows, some.cells, some.outputs)
    pairs = _pairs(into.shape[2], groups, x.shape[3] // groups)
    threads = threads_for(len(x), x.size + out.size * cells.shape[1] // 8)
    if room is None or len(room) < threads:
        room = some.padded(x.dtype, threads)
    for n in _blocks(x, out, threads):
        arrays = x[n], room, *some.pad, *tables, filters, bias, pairs, into[n]
        run_loop(_convolve, n.stop - n.start, threads, *arrays)
    if into is not out:
        out[:, some.outputs] = into[:, some.outputs, :K]
    return room


def _blocks(x: Array, y: Array, threads: int) -> Iterator[slice]:
    """Samples, some at a time: between two blocks what travels during a backward advances."""
    sample = x[0].nbytes + y[0].nbytes
    return advance_between(even_slices(len(x), threads * (tuning.COLUMN_LOOP_BYTES // sample)))


def gradient(x: Array, y: Array, windows: Windows, groups: int, W_shape: tuple[int, ...]) -> Array:
    """The gradient of filters (K, C / groups, kh, kw) from x (N, H, W, C) and that of y."""
    K, C, kh, kw = W_shape
    some = places.of_windows(windows, x.shape[3], by_cell=groups > 1)
    given = y.reshape(len(y), -1, K)
    if K < LANES:
        wide = np.zeros((*given.shape[:2], LANES), x.dtype)
        wide[:, :, :K] = given
        given = wide
    own = given.shape[2] // groups
    of_filters = registers(own)
    run = some.run // groups
    tiles = -(-run // _TILE)
    total = np.zeros((groups * len(of_filters), len(some.cells), tiles, _TILE, LANES), x.dtype)
    tables = (some.windows, some.cells)
    pairs = _pairs(given.shape[2], groups, C)
    items = len(pairs) // _PAIR * len(some.cells) * tiles
    threads = threads_for(items, x.size + given.size * len(some.cells) * run // 8)
    room = some.padded(x.dtype, threads)
    for n in _blocks(x, given, 1):
        arrays = x[n], room, *some.pad, *tables, given[n], tuning.DIRECT_PIXELS, pairs, total
        run_loop(_gradient, items, threads, *arrays, each=1)
    sums = total.reshape(groups, len(of_filters), len(some.cells), -1, LANES)[:, :, :, :run]
    found = np.empty((groups, own, C * kh * kw), x.dtype)
    found[:, of_filters] = sums.reshape(groups, len(of_filters), -1, LANES).swapaxes(2, 3)
    return found.reshape(-1, kh, kw, C)[:K].transpose(0, 3, 1, 2)
