"""Images and windows as matrices, a block of samples at a time: what convolutions multiply.

A block is as large as stays in the cache, but no smaller than the filters, which are read anew for
each. Memory is taken once and used for all blocks. Samples stand before places in a row of a matrix
if rows of an image are long; if they are short, samples come last: numpy then copies and adds long
runs, where it would jump every few numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

from mnpar import backend
from mnpar.autograd.tape import advance_transfers
from mnpar.backend import Array, ArrayModule
from mnpar.kernels import tuning
from mnpar.kernels.sums import even_slices
from mnpar.kernels.windows import Numbers, Windows


class Buffers:
    """Memory that is used again and again, and so stays in the cache."""

    def __init__(self, xp: ArrayModule, dtype: Any) -> None:
        self.xp, self.dtype = xp, dtype
        self.kept: dict[str, Array] = {}

    def get(self, name: str, shape: Numbers) -> Array:
        """An array of this shape, with anything in it, in the memory that the last one of this name
        had.
        """
        size = math.prod(shape)
        if name not in self.kept or self.kept[name].size < size:
            self.kept[name] = backend.empty_aligned((size,), self.dtype, self.xp)
        return self.kept[name][:size].reshape(shape)


def advance_between(pieces: Iterable[slice]) -> Iterator[slice]:
    """Pieces, one after the other; between them what travels during a backward advances."""
    for piece in pieces:
        yield piece
        advance_transfers()


class Blocks:
    """The samples of ``like`` (N, …), of whose images (C, *size) windows are made.

    Args:
        windows, groups: of the convolution.
        C: channels of the image.
        dtype: what is computed in.
        like: an array of N samples.
        least: bytes that are read or written for each block.
    """

    def __init__(
        self, windows: Windows, groups: int, C: int, dtype: Any, like: Array, least: int
    ) -> None:
        self.windows = windows
        self.groups = groups
        self.C = C
        self.dtype = dtype
        self.N = len(like)
        self.xp = backend.get_array_module(like)
        kernel = math.prod(windows.K)
        out = math.prod(windows.out)
        # each sample is its columns
        self.same = (
            kernel == 1
            and windows.is_unpadded
            and windows.out == windows.size
            and out >= tuning.COLUMNS_SAME
        )
        column = C * kernel * out * dtype.itemsize
        alone = self.same or (out >= tuning.COLUMNS_LARGE and column >= tuning.COLUMNS_LEAST_BYTES)
        self.pieces = list(
            even_slices(
                self.N, 1 if alone else max(backend.block_bytes(like), least) // max(1, column)
            )
        )
        self.n = self.pieces[0].stop if self.pieces else 1
        run = self.n * (windows.out[-1] if windows.stride[-1] == 1 else 1)
        self.last = (
            windows.out[-1] <= tuning.COLUMNS_SHORT
            and run >= tuning.COLUMNS_LONGER * windows.out[-1]
        )
        self.buffers = Buffers(self.xp, dtype)

    def columns(self, x: Array) -> Iterator[tuple[slice, Array]]:
        """Each block, and what its windows see: (groups, C / groups · kernel, n · out), valid until
        the next one.
        """
        g, image = self.groups, None
        for block in advance_between(self.pieces):
            part = x[block]
            if self.same and part.dtype == self.dtype:
                yield block, part.reshape(g, self.C // g, -1)
                continue
            if not self.windows.is_unpadded or self.last:
                image = self._image() if image is None else image
                image[(slice(0, len(part)), slice(None), *self.windows.inside)] = part
                part = image[: len(part)]
            cells = self.windows.columns(part)  # (C, *K, n, *out)
            if self.last:
                cells = self.xp.moveaxis(cells, len(self.windows.K) + 1, -1)
            matrix = self.buffers.get("columns", cells.shape)
            matrix[...] = cells
            yield block, matrix.reshape(g, self.C // g * math.prod(self.windows.K), -1)

    def _image(self) -> Array:
        """Zeros (n, C, *padded), in memory as told above."""
        shape = (self.C, *self.windows.padded)
        if self.last:
            return self.xp.moveaxis(self.xp.zeros((*shape, self.n), self.dtype), -1, 0)
        return self.xp.zeros((self.n, *shape), self.dtype)

    def rows(self, y: Array) -> Array:
        """A block of outputs (n, K, *out) as a matrix (groups, K / groups, n · out), valid until
        the next one.
        """
        n, K = y.shape[:2]
        shape = self.groups, K // self.groups, n * math.prod(self.windows.out)
        if n == 1 and y.dtype == self.dtype:
            return y.reshape(shape)
        matrix = self.buffers.get("rows", shape)
        self._outputs(matrix, n, K)[...] = y.reshape(n, K, -1)
        return matrix

    def put(self, y: Array, matrix: Array) -> None:
        """The inverse of ``rows``, into ``y``."""
        n, K = y.shape[:2]
        y.reshape(n, K, -1)[...] = self._outputs(matrix, n, K)

    def _outputs(self, matrix: Array, n: int, K: int) -> Array:
        """A view (n, K, out) of a matrix (groups, K / groups, n · out)."""
        out = math.prod(self.windows.out)
        return (
            matrix.reshape(K, out, n).transpose(2, 0, 1)
            if self.last
            else matrix.reshape(K, n, out).transpose(1, 0, 2)
        )

    def add(self, matrix: Array) -> Array:
        """The transpose of ``columns``: an image (n, C, *size) in which each cell is the sum over
        the windows that see it.
        """
        n, (K, out) = len(self.windows.K), (self.windows.K, self.windows.out)
        if not self.last:
            return self.windows.add_columns(matrix.reshape(self.C, *K, -1, *out))
        cells = self.xp.moveaxis(matrix.reshape(self.C, *K, *out, -1), -1, n + 1)
        return self.windows.add_columns(cells, last=True)
