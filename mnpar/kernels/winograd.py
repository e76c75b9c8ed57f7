"""Convolution at stride 1 with fewer products: Winograd's method, on tiles of the image.

A tile of m outputs along an axis needs a = m + r - 1 inputs of a kernel of r, and m·r products. As
a product of polynomials taken at a points and interpolated, it needs a:

    y = A [(G w) ⊙ (B x)]    with B (a, a), G (a, r), A (m, a) from Toom's and Cook's algorithm

and for images the same along each axis. With 3 x 3 and m = 4 this is a fourth of the products. ⊙
sums over channels, so it is a product of matrices for each of the a x a places, over all tiles; and
the transforms, of all axes at once, are a product with the Kronecker product of the matrices: few
large products, which a computer makes at full speed.

The points decide how many digits are lost. 0, ±5/8, ±3/2 and ∞ lose half a digit against the sum
written out, where the usual 0, ±1, ±2 and ∞ lose a whole one; a rank that hands its results on to
others should not be less exact than they.

Source: Lavin and Gray, "Fast algorithms for convolutional neural networks", CVPR 2016, arXiv
1509.09308.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array, Index
from mnpar.kernels import tuning
from mnpar.kernels.columns import Buffers, advance_between
from mnpar.kernels.compiler import Array4, compiled, formula, suits
from mnpar.kernels.sums import even_slices
from mnpar.kernels.windows import Numbers, Windows

# for each kernel's size that is done so, the points beside ∞; there are m + r - 2
POINTS = {3: (0.0, 0.625, -0.625, 1.5, -1.5)}


def is_faster(windows: Windows, N: int, W: Numbers, gradient: bool = False) -> bool:
    """Tell whether this is faster than the sum written out. ``W`` is the shape of the filters of a
    group: (K, C, *kernel).

    ``gradient``: that of the filters is asked for, which saves a little less.
    """
    r = windows.K[0]
    n = len(windows.K)
    if r not in POINTS or {*windows.K} != {r} or {*windows.stride, *windows.dilate} != {1}:
        return False
    m = _step(r)
    tiles = N * _tiles(windows, m)
    outputs = N * math.prod(windows.out)
    kernel = r**n
    place = (m + r - 1) ** n
    K, C = W[:2]
    written_out = outputs * kernel * C * (K + tuning.WINOGRAD_TOUCH)
    image = (
        tiles
        * place
        * (C * (place + tuning.WINOGRAD_TOUCH) + K * (m**n + tuning.WINOGRAD_TOUCH) + C * K)
    )
    filters = (
        place
        * C
        * K
        * (
            kernel
            + (
                tuning.WINOGRAD_TOUCH
                if place * C * K < tuning.WINOGRAD_CACHE
                else 3 * tuning.WINOGRAD_TOUCH
            )
        )
    )
    share = tuning.WINOGRAD_PAYS_GRADIENT if gradient else tuning.WINOGRAD_PAYS
    return bool(image + filters < share * written_out)


def convolve(
    x: Array, W: Array, windows: Windows, groups: int, dtype: Any, turned: bool = False
) -> Array:
    """y = x ∗ W of (N, C, *size) and (K, C / groups, *kernel), computed in ``dtype``: (N, K, *out).

    ``turned``: W is the (C, K / groups, *kernel) of a convolution from y to x, of which this is the
    transpose.
    """
    tiling = Tiling(windows, dtype, x)
    xp = backend.get_array_module(x)
    N = x.shape[0]
    # (r·r·…, K·C / groups)
    kernels = W.reshape(len(W) * W.shape[1], -1).T.astype(dtype, copy=False)
    filters = (tiling.G[:, ::-1].copy() if turned else tiling.G) @ kernels
    # (place, groups, K / groups, C / groups)
    filters = filters.reshape(len(tiling.B), groups, len(W) // groups, W.shape[1])
    if turned:
        filters = filters.swapaxes(2, 3)
    K = groups * filters.shape[2]
    y = xp.empty((N, K, *windows.out), dtype)
    tiling.by_loops = windows.K == (3, 3) and suits(x, y)
    for samples, rows, seen in tiling.inputs(x, filters.nbytes, K):  # (place, C, n·tiles)
        shape = (len(seen), groups, K // groups, seen.shape[-1])
        P = seen.shape[-1]
        # those were read
        products = xp.matmul(
            filters, seen.reshape(len(seen), groups, -1, P), out=tiling.get("tiles", shape)
        )
        if tiling.by_loops:
            _transform_outputs(
                products.reshape(len(seen), K, -1, _LANES), y, *_place(samples, rows)
            )
            continue
        found = tiling.get("found", (K * P, len(tiling.A)))
        tiling.write(
            y, samples, rows, xp.matmul(products.reshape(len(seen), -1).T, tiling.A.T, out=found)
        )
    return y


def gradient(x: Array, y: Array, windows: Windows, groups: int, gW: Array, dtype: Any) -> None:
    """gW = x ⋆ y, written into ``gW``, computed in ``dtype``: the same with the transposed
    matrices.
    """
    tiling = Tiling(windows, dtype, x)
    xp = backend.get_array_module(x)
    C = x.shape[1]
    K = y.shape[1]
    total = xp.empty((len(tiling.G), groups, K // groups, C // groups), dtype)
    first = True
    tiling.by_loops = windows.K == (3, 3) and suits(x, y) and y.dtype == dtype
    for samples, rows, seen in tiling.inputs(x, 2 * total.nbytes, K):
        P = seen.shape[-1]
        given = tiling.get("tiles", (len(seen), K * P))
        if tiling.by_loops:
            _transpose_outputs(y, *_place(samples, rows), given.reshape(len(seen), K, -1, _LANES))
        else:
            met = tiling.read(y, samples, rows, tiling.get("found", (K * P, len(tiling.A))))
            xp.matmul(tiling.A.T, met.T, out=given)
        given = given.reshape(len(seen), groups, K // groups, P)
        seen = seen.reshape(len(seen), groups, -1, P).swapaxes(2, 3)
        product = xp.matmul(given, seen, out=total if first else tiling.get("sum", total.shape))
        total, first = total if first else xp.add(total, product, out=total), False
    if first:  # there is no sample
        total[...] = 0
    matrix = gW.reshape(-1, tiling.r**tiling.n)
    terms = total.reshape(len(total), -1).T
    if matrix.dtype == dtype:
        xp.matmul(terms, tiling.G, out=matrix)
    else:
        matrix[...] = terms @ tiling.G


class Tiling:
    """The outputs of an image cut into tiles of m along each axis, the last ones perhaps reaching
    beyond it.

    A part of them is some samples with all their tiles, or one sample with some rows of tiles.
    Where there are few tiles and many samples, these come last in memory: what is copied are runs
    of them.
    """

    def __init__(self, windows: Windows, dtype: Any, like: Array) -> None:
        self.windows = windows
        self.dtype = dtype
        self.r = windows.K[0]
        self.n = len(windows.K)
        self.m = _step(self.r)
        self.a = self.m + self.r - 1
        self.tiles = tuple([-(-o // self.m) for o in windows.out])
        self.last, self.buffers = False, Buffers(backend.get_array_module(like), dtype)
        self.by_loops = False  # the transforms are compiled
        self.A, self.B, self.G = [
            backend.to_device_of(z, like) for z in matrices(self.r, self.n, dtype)
        ]

    def inputs(self, x: Array, least: int, K: int) -> Iterator[tuple[slice, slice, Array]]:
        """Parts, and what their tiles see, transformed: (place, C, n·tiles), valid until the next.
        A part fits the cache, but is no smaller than ``least`` bytes, which are read or written for
        each part.
        """
        xp, (N, C) = backend.get_array_module(x), x.shape[:2]
        row = (C + max(C, K)) * self.a**self.n * math.prod(self.tiles[1:]) * self.dtype.itemsize
        rows = max(1, max(backend.block_bytes(x), least) // max(1, row))
        pieces = list(even_slices(N, rows // self.tiles[0]))
        n = pieces[0].stop if pieces else 0
        self.last = not self.by_loops and (
            self.tiles[-1] <= tuning.WINOGRAD_FEW_TILES and n >= tuning.WINOGRAD_MANY_SAMPLES
        )
        padded = self._zeros(n, C, tuple([t * self.m + self.r - 1 for t in self.tiles]))
        ends = zip(self.windows.pad, self.windows.size, padded.shape[2:], strict=True)
        inside = tuple([slice(p, min(p + size, end)) for p, size, end in ends])
        image = tuple([slice(0, place.stop - place.start) for place in inside])
        for samples in pieces:
            n = samples.stop - samples.start
            padded[(slice(0, n), slice(None), *inside)] = x[(samples, slice(None), *image)]
            for part in advance_between(even_slices(self.tiles[0], rows)):
                if self.by_loops:
                    some = part.stop - part.start
                    blocks = -(-n * some * self.tiles[1] // _LANES)
                    lanes = self.get("places", (len(self.B), C, blocks, _LANES))
                    _transform_inputs(padded[:n], part.start, some, self.tiles[1], lanes)
                    yield samples, part, lanes.reshape(len(self.B), C, -1)
                    continue
                seen = self._view(padded[:n])[(slice(None),) * (self.n + 2) + (part,)]
                seen = xp.moveaxis(seen, self.n + 1, -1) if self.last else seen
                tiles = self.get("tiles", seen.shape)
                tiles[...] = seen
                places = self.get("places", (len(self.B), tiles.size // len(self.B)))
                yield (
                    samples,
                    part,
                    xp.matmul(self.B, tiles.reshape(places.shape), out=places).reshape(
                        len(self.B), C, -1
                    ),
                )

    def get(self, name: str, shape: Numbers) -> Array:
        """Memory, used again for each part."""
        return self.buffers.get(name, shape)

    def _zeros(self, n: int, C: int, size: Numbers) -> Array:
        """An image (n, C, *size), in memory with the samples last if they are to be so."""
        xp = backend.get_array_module(self.B)
        return (
            xp.moveaxis(xp.zeros((C, *size, n), self.dtype), -1, 0)
            if self.last
            else xp.zeros((n, C, *size), self.dtype)
        )

    def _view(self, padded: Array) -> Array:
        """(*a, C, n, *tiles) of a padded image (n, C, …): tiles overlap."""
        steps = padded.strides[2:]
        strides = (*steps, padded.strides[1], padded.strides[0], *[step * self.m for step in steps])
        shape = (*[self.a] * self.n, padded.shape[1], padded.shape[0], *self.tiles)
        result: Array = backend.get_array_module(padded).lib.stride_tricks.as_strided(
            padded, shape, strides
        )
        return result

    def _part(self, y: Array, samples: slice, rows: slice) -> tuple[Array, Array | None]:
        """The outputs of a part; and an image of whole tiles, if they do not end there or their
        rows are no runs of memory.
        """
        first = slice(rows.start * self.m, min(rows.stop * self.m, self.windows.out[0]))
        part = y[(samples, slice(None), first)]
        whole = (rows.stop - rows.start) * self.m, *[t * self.m for t in self.tiles[1:]]
        if (
            part.shape[2:] == whole
            and part.dtype == self.dtype
            and part.strides[-1] == part.itemsize
        ):
            return part, None
        return part, self.get("whole", (*part.shape[:2], *whole))

    def _cut(self, image: Array) -> Array:
        """(n, K, *whole) as (n, K, tiles, m, tiles, m, …)."""
        return image.reshape(
            *image.shape[:2], *[k for size in image.shape[2:] for k in (size // self.m, self.m)]
        )

    def _order(self, matrix: Array, shape: Numbers) -> Array:
        """A matrix (K·n·tiles, m·m·…) as (n, K, tiles, m, tiles, m, …), of this shape."""
        n, (N, K), tiles, m = self.n, shape[:2], shape[2::2], shape[3::2]
        if self.last:
            matrix = backend.get_array_module(matrix).moveaxis(
                matrix.reshape(K, *tiles, N, *m), n + 1, 1
            )
        else:
            matrix = matrix.reshape(K, N, *tiles, *m)
        return matrix.transpose((1, 0, *[axis for i in range(n) for axis in (2 + i, 2 + n + i)]))

    def write(self, y: Array, samples: slice, rows: slice, found: Array) -> None:
        """Put the outputs of a part, (K·n·tiles, m·m·…), in their places."""
        part, whole = self._part(y, samples, rows)
        cut = self._cut(part if whole is None else whole)
        _runs(cut)[...] = _runs(self._order(found, cut.shape))
        if whole is not None:
            part[...] = whole[_corner(part.shape[2:])]

    def read(self, y: Array, samples: slice, rows: slice, out: Array) -> Array:
        """The transpose of ``write``, into ``out`` (K·n·tiles, m·m·…)."""
        part, whole = self._part(y, samples, rows)
        if whole is not None:
            whole[...] = 0
            whole[_corner(part.shape[2:])] = part
        cut = self._cut(part if whole is None else whole)
        _runs(self._order(out, cut.shape))[...] = _runs(cut)
        return out


def _place(samples: slice, rows: slice) -> tuple[int, int, int, int]:
    """A part as loops want it: where the samples begin and how many there are, and the rows."""
    return (
        samples.start,
        samples.stop - samples.start,
        rows.start,
        rows.stop - rows.start,
    )


def _corner(shape: Sequence[int]) -> Index:
    """The index of the first cells along the last axes."""
    return (..., *[slice(0, o) for o in shape])


def _runs(x: Array) -> Array:
    """x with its last axis as one element each, which the host copies at once: several times faster
    than m numbers.
    """
    return x.view(np.dtype((np.void, x.shape[-1] * x.itemsize))) if type(x) is np.ndarray else x


def _step(r: int) -> int:
    """m: how many outputs along an axis a tile has."""
    return len(POINTS[r]) + 2 - r


def _tiles(windows: Windows, m: int) -> int:
    return math.prod([-(-o // m) for o in windows.out])


@functools.cache
def matrices(r: int, n: int, dtype: Any) -> tuple[Array, Array, Array]:
    """A, B and G for n axes."""
    A, B, G = [functools.reduce(np.kron, [z] * n).astype(dtype) for z in toom_cook(r, POINTS[r])]
    return A, B, G


def toom_cook(r: int, points: tuple[float, ...]) -> tuple[Array, Array, Array]:
    """A (m, a), B (a, a) and G (a, r) for one axis, a = len(points) + 1 = m + r - 1.

    Example:
        >>> import numpy as np
        >>> from mnpar.kernels.winograd import toom_cook
        >>> A, B, G = toom_cook(3, (0.0, 1.0, -1.0))
        >>> (A @ ((G @ np.array([1.0, 10.0, 100.0])) * (B @ np.array([1.0, 2.0, 3.0, 4.0])))).round(
        ...     6
        ... )
        array([321., 432.])
    """
    a = len(points) + 1
    A = np.zeros((a + 1 - r, a))
    B = np.zeros((a, a))
    G = np.zeros((a, r))
    for j, p in enumerate(points):
        others = [q for q in points if q != p]
        A[:, j] = p ** np.arange(a + 1 - r)
        G[j] = p ** np.arange(r) / np.prod([p - q for q in others])
        B[j, : a - 1] = np.polynomial.polynomial.polyfromroots(others)
    A[-1, -1] = G[-1, -1] = 1  # ∞
    B[-1] = np.polynomial.polynomial.polyfromroots(points)
    return A, B, G


# Compiled loops of the transforms, for images of two axes. They take tiles sixteen at a time, side
# by side, so that each operation is one on a register. With points 0, ±p, ±q and ∞ the matrices
# have the structure that the formulas below use: what differs for ±p is the sign of odd powers.
_LANES = 16
_P, _Q = POINTS[3][1], POINTS[3][3]
_PP, _QQ = _P * _P, _Q * _Q
_PPP, _QQQ = _PP * _P, _QQ * _Q
_SUM, _PRODUCT = _PP + _QQ, _PP * _QQ


@compiled
def _transform_inputs(image: Array4, first: int, rows: int, tiles: int, seen: Array4) -> None:
    """seen[place, c, tile] ← B x Bᵀ of the tiles of images (n, C, …) from row ``first`` on."""
    n, C = image.shape[:2]
    many = n * rows * tiles
    d = np.empty((36, _LANES), image.dtype)
    for c in range(C):
        for block in range(seen.shape[2]):
            lanes = min(_LANES, many - block * _LANES)
            if lanes < _LANES:
                d[:] = 0.0
            for lane in range(lanes):
                t = block * _LANES + lane
                j = 4 * (t % tiles)
                i = 4 * (first + (t // tiles) % rows)
                part = image[t // (tiles * rows), c]
                for a in range(6):
                    for b in range(6):
                        d[6 * a + b, lane] = part[i + a, j + b]
            for b in range(6):
                _inputs_along(d, b, 6)
            for a in range(6):
                _inputs_along(d, 6 * a, 1)
            for place in range(36):
                for lane in range(_LANES):
                    seen[place, c, block, lane] = d[place, lane]


@formula
def _inputs_along(d: Any, k: Any, step: Any) -> Any:
    """B along one axis, in place: six rows of d."""
    for lane in range(_LANES):
        d0 = d[k, lane]
        d1 = d[k + step, lane]
        d2 = d[k + 2 * step, lane]
        d3 = d[k + 3 * step, lane]
        d4 = d[k + 4 * step, lane]
        d5 = d[k + 5 * step, lane]
        d[k, lane] = d4 - _SUM * d2 + _PRODUCT * d0
        even = d4 - _QQ * d2
        odd = _P * (d3 - _QQ * d1)
        d[k + step, lane] = even + odd
        d[k + 2 * step, lane] = even - odd
        even = d4 - _PP * d2
        odd = _Q * (d3 - _PP * d1)
        d[k + 3 * step, lane] = even + odd
        d[k + 4 * step, lane] = even - odd
        d[k + 5 * step, lane] = d5 - _SUM * d3 + _PRODUCT * d1


@compiled
def _transform_outputs(
    products: Array4, y: Array4, sample: int, samples: int, first: int, rows: int
) -> None:
    """y ← A m Aᵀ of products[place, k, tile], of samples from ``sample`` and rows of tiles from
    ``first`` on.
    """
    K = products.shape[1]
    H, W = y.shape[2:]
    tiles = (W + 3) // 4
    many = samples * rows * tiles
    d = np.empty((36, _LANES), y.dtype)
    for k in range(K):
        for block in range(products.shape[2]):
            lanes = min(_LANES, many - block * _LANES)
            for place in range(36):
                for lane in range(_LANES):
                    d[place, lane] = products[place, k, block, lane]
            for b in range(6):
                _outputs_along(d, b, 6)
            for a in range(4):
                _outputs_along(d, 6 * a, 1)
            for lane in range(lanes):
                t = block * _LANES + lane
                j = 4 * (t % tiles)
                i = 4 * (first + (t // tiles) % rows)
                s = sample + t // (tiles * rows)
                if i + 4 <= H and j + 4 <= W:
                    part = y[s, k]
                    for a in range(4):
                        for b in range(4):
                            part[i + a, j + b] = d[6 * a + b, lane]
                else:
                    for a in range(min(4, H - i)):
                        for b in range(min(4, W - j)):
                            y[s, k, i + a, j + b] = d[a * 6 + b, lane]


@formula
def _outputs_along(d: Any, k: Any, step: Any) -> Any:
    """A along one axis, in place: six rows of d become the first four."""
    for lane in range(_LANES):
        m0 = d[k, lane]
        plus = d[k + step, lane] + d[k + 2 * step, lane]
        minus = d[k + step, lane] - d[k + 2 * step, lane]
        both = d[k + 3 * step, lane] + d[k + 4 * step, lane]
        other = d[k + 3 * step, lane] - d[k + 4 * step, lane]
        m5 = d[k + 5 * step, lane]
        d[k, lane] = m0 + plus + both
        d[k + step, lane] = _P * minus + _Q * other
        d[k + 2 * step, lane] = _PP * plus + _QQ * both
        d[k + 3 * step, lane] = _PPP * minus + _QQQ * other + m5


@compiled
def _transpose_outputs(
    y: Array4, sample: int, samples: int, first: int, rows: int, given: Array4
) -> None:
    """given[place, k, tile] ← Aᵀ y A: the transpose of :func:`_transform_outputs`."""
    K = given.shape[1]
    H, W = y.shape[2:]
    tiles = (W + 3) // 4
    many = samples * rows * tiles
    d = np.empty((36, _LANES), y.dtype)
    for k in range(K):
        for block in range(given.shape[2]):
            lanes = min(_LANES, many - block * _LANES)
            if lanes < _LANES:
                d[:] = 0.0
            for lane in range(lanes):
                t = block * _LANES + lane
                j = 4 * (t % tiles)
                i = 4 * (first + (t // tiles) % rows)
                s = sample + t // (tiles * rows)
                if i + 4 <= H and j + 4 <= W:
                    part = y[s, k]
                    for a in range(4):
                        for b in range(4):
                            d[6 * a + b, lane] = part[i + a, j + b]
                else:
                    for a in range(4):
                        for b in range(4):
                            inside = i + a < H and j + b < W
                            d[a * 6 + b, lane] = y[s, k, i + a, j + b] if inside else 0.0
            for a in range(4):
                _given_along(d, 6 * a, 1)
            for b in range(6):
                _given_along(d, b, 6)
            for place in range(36):
                for lane in range(_LANES):
                    given[place, k, block, lane] = d[place, lane]


@formula
def _given_along(d: Any, k: Any, step: Any) -> Any:
    """Aᵀ along one axis, in place: four rows of d become six."""
    for lane in range(_LANES):
        y0 = d[k, lane]
        y1 = d[k + step, lane]
        y2 = d[k + 2 * step, lane]
        y3 = d[k + 3 * step, lane]
        even = y0 + _PP * y2
        odd = _P * y1 + _PPP * y3
        d[k + step, lane] = even + odd
        d[k + 2 * step, lane] = even - odd
        even = y0 + _QQ * y2
        odd = _Q * y1 + _QQQ * y3
        d[k + 3 * step, lane] = even + odd
        d[k + 4 * step, lane] = even - odd
        d[k + 5 * step, lane] = y3
