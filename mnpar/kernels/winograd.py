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
    for samples, rows, seen in tiling.inputs(x, filters.nbytes, K):  # (place, C, n·tiles)
        shape = (len(seen), groups, K // groups, seen.shape[-1])
        P = seen.shape[-1]
        # those were read
        products = xp.matmul(
            filters, seen.reshape(len(seen), groups, -1, P), out=tiling.get("tiles", shape)
        )
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
    for samples, rows, seen in tiling.inputs(x, 2 * total.nbytes, K):
        P = seen.shape[-1]
        given = tiling.get("tiles", (len(seen), K * P))
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
        self.last = (
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
