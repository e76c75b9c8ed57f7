"""The tiles of attention as arrays: some queries and some keys, what is hidden in them, and the
sums that queries have so far.

softmax(q kᵀ) v is a sum over keys, divided by another one, and both can be added up in any order: a
larger maximum that comes later scales what is there (Milakov and Gimelshein 2018, arXiv 1805.02867;
Rabe and Staats 2021, arXiv 2112.05682). Backward needs one number for each query, the
logarithm of the sum: exp(q kᵀ - lse) is the softmax (Dao et al. 2022, arXiv 2205.14135). So no
array is as large as queries times keys, but for one tile at a time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mnpar import backend
from mnpar.backend import Array, ArrayModule
from mnpar.kernels.blas import batched_matmul, matrix_transpose
from mnpar.kernels.dtypes import upcast_halves
from mnpar.plans.ring import Tile


class Hidden(NamedTuple):
    """Which keys of a tile the queries may not look at."""

    where: Array  # boolean, broadcast to (…, T, S)
    blind: (
        Array | None
        # boolean, broadcast to (…, T, 1): queries that see no key of any tile, and take the mean of
        # all
    )


class Masks(NamedTuple):
    """The keys that a rank's queries may not look at.

    Args:
        shown: boolean (…, T or 1, n or 1), of the rank's rows and of all keys of the sequence;
            None: everything.
        blind: boolean (…, T or 1, 1), the rows that see nothing at all; None if there are none.
        ahead: how far beyond its own position a query looks, of causal attention.
    """

    shown: Array | None
    blind: Array | None
    ahead: int | None

    def hidden(self, tile: Tile, xp: ArrayModule) -> Hidden | None:
        """The entries that are hidden in a tile."""
        where = None
        if tile.in_part and self.ahead is not None:
            where = xp.arange(*tile.keys) > xp.arange(*tile.queries)[:, None] + self.ahead
        if self.shown is not None:
            columns = slice(*tile.keys) if self.shown.shape[-1] > 1 else slice(None)
            masked = ~_rows(self.shown, tile.rows)[..., columns]
            where = masked if where is None else where | masked
        return (
            None
            if where is None
            else Hidden(where, None if self.blind is None else _rows(self.blind, tile.rows))
        )


def _rows(x: Array, rows: slice) -> Array:
    return x[..., rows, :] if x.shape[-2] > 1 else x


NEVER = 2**40


def first_shown(shown: Array | None, positions: Array, causal: bool) -> Array:
    """By how many places the first key that a query is shown comes after it, (…, T, 1); NEVER if
    there is none.

    Args:
        shown: as in Masks.
        positions: (T, 1), of the queries.
        causal: else it is 0 for all that are shown any.
    """
    xp = backend.get_array_module(positions)
    first = xp.zeros((1, 1), "i8")
    if shown is not None and shown.shape[-1]:
        first = shown.argmax(axis=-1)[..., None]
    late = first - positions if causal else first * 0
    return late if shown is None else xp.where(shown.any(axis=-1, keepdims=True), late, NEVER)


def scores(q: Array, k: Array, hidden: Hidden | None) -> Array:
    """q kᵀ, (…, T, S); where keys are hidden a number so low that it counts for nothing beside any
    other, or 0 if all are.
    """
    k = backend.get_array_module(k).ascontiguousarray(matrix_transpose(k))
    s = batched_matmul(q, k)
    if hidden is not None:
        xp = backend.get_array_module(s)
        low = xp.asarray(np.finfo(s.dtype).min / 2, s.dtype)
        fill = low if hidden.blind is None else xp.where(hidden.blind, xp.zeros((), s.dtype), low)
        # the mask has axes that q and k have not
        if np.broadcast_shapes(hidden.where.shape, fill.shape, s.shape) != s.shape:
            return xp.where(hidden.where, fill, s)
        xp.copyto(s, fill, where=hidden.where)
    return s


class OnlineSoftmax:
    """The sums over the keys that some queries have seen so far.

    Args:
        q: (…, T, D), scaled.
        shape: (…, T, E) of the means.
    """

    def __init__(self, q: Array, shape: tuple[int, ...]) -> None:
        self.q = upcast_halves(q)
        xp = backend.get_array_module(q)
        self.values: Array = xp.zeros(shape, self.q.dtype)  # Σ exp(s - top) v
        self.total: Array = xp.zeros((*shape[:-1], 1), self.q.dtype)  # Σ exp(s - top)
        self.top: Array | None = None

    def add(self, k: Array, v: Array, hidden: Hidden | None) -> None:
        """Let them look at the keys of a tile."""
        xp = backend.get_array_module(k)
        s = scores(self.q, upcast_halves(k), hidden)
        top = s.max(axis=-1, keepdims=True)
        if self.top is not None:
            top = xp.maximum(top, self.top)
            less = xp.exp(self.top - top)
            self.values *= less
            self.total *= less
        self.top = top
        s -= top
        xp.exp(s, out=s)
        self.total += s @ xp.ones((s.shape[-1], 1), s.dtype)
        self.values += batched_matmul(s, upcast_halves(v))

    def means(self) -> tuple[Array, Array]:
        """(…, T, E), and the logarithms of the sums (…, T, 1)."""
        if self.top is None:  # no queries
            return self.values, self.total
        self.values /= self.total
        return self.values, backend.get_array_module(self.top).log(self.total) + self.top
