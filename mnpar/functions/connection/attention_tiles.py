"""Attention a tile at a time: some queries and some keys, whose scores are forgotten and computed
again in backward.

softmax(q kᵀ) v is a sum over keys, divided by another one, and both can be added up in any order: a
larger maximum that comes later scales what is there (Milakov and Gimelshein 2018, arXiv 1805.02867;
Rabe and Staats 2021, arXiv 2112.05682). Of all that backward needs one number for each query, the
logarithm of the sum: exp(q kᵀ - lse) is the softmax (Dao et al. 2022, arXiv 2205.14135). So no
array is as large as queries times keys, but for one tile at a time.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mnpar import backend
from mnpar.backend import Array, ArrayModule
from mnpar.functions.array.broadcast import fit
from mnpar.functions.node import GenericFunction, matrix_transpose, upcast_halves
from mnpar.kernels.blas import stacked
from mnpar.plans.ring import Tile
from mnpar.variable import Variable


class Hidden(NamedTuple):
    """Which keys of a tile the queries may not look at."""

    where: Array  # boolean, broadcast to (…, T, S)
    blind: (
        Array | None
        # boolean, broadcast to (…, T, 1): queries that see no key of any tile, and take the mean of
        # all
    )


class Masks(NamedTuple):
    """What a rank's queries may not look at.

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
        """What is hidden in a tile."""
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
    first = xp.zeros((1, 1), "i8") if shown is None else shown.argmax(axis=-1)[..., None]
    late = first - positions if causal else first * 0
    return late if shown is None else xp.where(shown.any(axis=-1, keepdims=True), late, NEVER)


def times(a: Any, b: Any) -> Any:
    """The product, of arrays in pieces of a size that BLAS likes, of Variables as a function."""
    return a @ b if isinstance(a, Variable) or isinstance(b, Variable) else stacked(a, b)


def times_turned(a: Any, b: Any) -> Any:
    """a bᵀ, for which small arrays are turned round first."""
    b = matrix_transpose(b)
    return times(
        a, b if isinstance(b, Variable) else backend.get_array_module(b).ascontiguousarray(b)
    )


def scores(q: Array, k: Array, hidden: Hidden | None) -> Array:
    """q kᵀ, (…, T, S); where keys are hidden a number so low that it counts for nothing beside any
    other, or 0 if all are.
    """
    s: Array = times_turned(q, k)
    if hidden is not None:
        xp = backend.get_array_module(s)
        low = xp.asarray(np.finfo(s.dtype).min / 2, s.dtype)
        fill = low if hidden.blind is None else xp.where(hidden.blind, xp.zeros((), s.dtype), low)
        # the mask has axes that q and k have not
        if np.broadcast_shapes(hidden.where.shape, fill.shape, s.shape) != s.shape:
            return xp.where(hidden.where, fill, s)
        xp.copyto(s, fill, where=hidden.where)
    return s


class Sums:
    """What some queries have seen so far.

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
        self.values += times(s, upcast_halves(v))

    def means(self) -> tuple[Array, Array]:
        """(…, T, E), and the logarithms of the sums (…, T, 1)."""
        if self.top is None:  # no queries
            return self.values, self.total
        self.values /= self.total
        return self.values, backend.get_array_module(self.top).log(self.total) + self.top


class Probabilities(GenericFunction):
    """exp(q kᵀ - lse): the softmax of a tile, its queries' logarithms of sums being known."""

    def __init__(self, hidden: Hidden | None) -> None:
        self.hidden = hidden

    def forward(self, q: Array, k: Array, lse: Array) -> Array:
        self.retain_inputs((0, 1))
        self.retain_outputs((0,))
        p = scores(upcast_halves(q), upcast_halves(k), self.hidden)
        xp = backend.get_array_module(q)
        # the values have axes that the keys have not
        larger = np.broadcast_shapes(p.shape, lse.shape) != p.shape
        p = xp.subtract(p, lse, out=None if larger else p)
        return xp.exp(p, out=p).astype(q.dtype, copy=False)

    def backward(self, gp: Any) -> Any:
        (q, k), (p,) = self.get_retained_inputs(), self.get_retained_outputs()
        gs = gp * p
        shown = blinded(gs, self.hidden)
        return (
            lambda: fit(shown @ k, q.shape),
            lambda: fit(matrix_transpose(shown) @ q, k.shape),
            lambda: -fit(gs.sum(axis=-1, keepdims=True), self.inputs[2].shape),
        )


def blinded(gs: Any, hidden: Hidden | None) -> Any:
    """A gradient of scores: none flows to what is hidden. Only of blind queries is there one."""
    if hidden is None or hidden.blind is None:
        return gs
    return gs * (~hidden.where).astype(gs.dtype)


def tile_gradients(
    q: Any, k: Any, v: Any, lse: Any, go: Any, c: Any, hidden: Hidden | None
) -> tuple[Any, Any, Any]:
    """The part of a tile in the gradients of q, k and v; of arrays or Variables.

    Args:
        q: (…, T, D), scaled.
        k, v: (…, S, D) and (…, S, E).
        lse: (…, T, 1).
        go: gradient of the means, (…, T, E).
        c: (…, T, 1), gradient of lse less Σ go · o.
        hidden: as forward.
    """
    q = upcast_halves(q)
    k = upcast_halves(k)
    v = upcast_halves(v)
    go = upcast_halves(go)
    p = Probabilities(hidden)(q, k, lse)
    gv = fit(times(matrix_transpose(p), go), v.shape)
    gs = times_turned(go, v)
    gs += c  # of arrays in place; what broadcasts has the smaller shape
    gs *= p
    gs = blinded(gs, hidden)
    return fit(times(gs, k), q.shape), fit(times(matrix_transpose(gs), q), k.shape), gv
