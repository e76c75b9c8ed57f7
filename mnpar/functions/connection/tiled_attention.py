"""Attention a tile at a time: some queries and some keys, whose scores are forgotten and computed
again in backward.

softmax(q kᵀ) v is a sum over keys, divided by another one, and both can be added up in any order: a
larger maximum that comes later scales what is there (Milakov and Gimelshein 2018, arXiv 1805.02867;
Rabe and Staats 2021, arXiv 2112.05682). Backward needs one number for each query, the
logarithm of the sum: exp(q kᵀ - lse) is the softmax (Dao et al. 2022, arXiv 2205.14135). So no
array is as large as queries times keys, but for one tile at a time.

The loop over tiles may run over the keys of one rank or of several: :class:`TiledAttention` has all
keys, and divided/ring_attention.py lets those of other ranks come by. Tiles in which causal
attention hides everything are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.configuration import is_recording
from mnpar.function_node import InputGradients
from mnpar.functions.array.broadcast import unbroadcast
from mnpar.functions.array.joining import Concat
from mnpar.functions.node import GenericFunction, Operand, array_of
from mnpar.functions.normalization.moments import cast
from mnpar.kernels import attention_tiles
from mnpar.kernels.attention_tiles import (
    NEVER,
    Hidden,
    Masks,
    OnlineSoftmax,
    first_shown,
)
from mnpar.kernels.blas import batched_matmul, matrix_transpose
from mnpar.kernels.dtypes import compute_dtype, upcast_halves
from mnpar.plans import in_order, rows_of
from mnpar.plans.ring import Cut, Stretch, finer, ways
from mnpar.variable import Variable

# a stretch of rows: the first, and the one after the last
Place: TypeAlias = tuple[int, int]


class Probabilities(GenericFunction):
    """exp(q kᵀ - lse): the softmax of a tile, its queries' logarithms of sums being known."""

    def __init__(self, hidden: Hidden | None) -> None:
        self.hidden = hidden

    def forward(self, q: Array, k: Array, lse: Array) -> Array:
        self.retain_inputs((0, 1))
        self.retain_outputs((0,))
        p = attention_tiles.scores(upcast_halves(q), upcast_halves(k), self.hidden)
        xp = backend.get_array_module(q)
        # the values have axes that the keys have not
        larger = np.broadcast_shapes(p.shape, lse.shape) != p.shape
        p = xp.subtract(p, lse, out=None if larger else p)
        return xp.exp(p, out=p).astype(q.dtype, copy=False)

    def backward(self, gp: Variable | Array) -> InputGradients:
        (q, k), (p,) = self.get_retained_inputs(), self.get_retained_outputs()
        gs = gp * p
        shown = mask_gradient(gs, self.hidden)
        return (
            lambda: unbroadcast(shown @ k, q.shape),
            lambda: unbroadcast(matrix_transpose(shown) @ q, k.shape),
            lambda: -unbroadcast(gs.sum(axis=-1, keepdims=True), self.inputs[2].shape),
        )


def mask_gradient(gs: Operand, hidden: Hidden | None) -> Operand:
    """A gradient of scores: none flows to what is hidden. Only of blind queries is there one."""
    if hidden is None or hidden.blind is None:
        return gs
    masked: Operand = gs * (~hidden.where).astype(gs.dtype)
    return masked


def batched_product(a: Variable | Array, b: Variable | Array) -> Variable | Array:
    """The product, of arrays in pieces of a size that BLAS likes, of Variables as a function."""
    return a @ b if isinstance(a, Variable) or isinstance(b, Variable) else batched_matmul(a, b)


def product_with_transpose(a: Variable | Array, b: Variable | Array) -> Variable | Array:
    """a bᵀ, for which small arrays are turned round first."""
    b = matrix_transpose(b)
    return batched_product(
        a, b if isinstance(b, Variable) else backend.get_array_module(b).ascontiguousarray(b)
    )


def tile_gradients(
    q: Variable | Array,
    k: Variable | Array,
    v: Variable | Array,
    lse: Variable | Array,
    go: Variable | Array,
    c: Variable | Array,
    hidden: Hidden | None,
) -> tuple[Variable | Array, Variable | Array, Variable | Array]:
    """The part of a tile in the gradients of q, k and v; of arrays or Variables.

    Args:
        q: (…, T, D), scaled.
        k, v: (…, S, D) and (…, S, E).
        lse: (…, T, 1).
        go: gradient of the means, (…, T, E).
        c: (…, T, 1), gradient of lse less Σ go · o.
        hidden: as forward.
    """
    q, k, v, go = [cast(x, compute_dtype(x)) for x in (q, k, v, go)]
    p = Probabilities(hidden)(q, k, lse)
    gv = unbroadcast(batched_product(matrix_transpose(p), go), v.shape)
    gs = product_with_transpose(go, v)
    gs += c  # of arrays in place; what broadcasts has the smaller shape
    gs *= p
    gs = mask_gradient(gs, hidden)
    return (
        unbroadcast(batched_product(gs, k), q.shape),
        unbroadcast(batched_product(matrix_transpose(gs), q), k.shape),
        gv,
    )


class QueryRows(NamedTuple):
    """The values of a stretch of queries that backward needs."""

    q: Any  # scaled
    lse: Any
    go: Any
    c: Any


class TiledAttention(GenericFunction):
    """The means (…, T, E), and the logarithms of the sums (…, T, 1).

    Args:
        causal: whether queries look only at keys up to their own place, counted from the end.
        scale: of the scores.
        shown: the mask, as in Masks.
        cut: of queries and keys among ranks; None: blocks in order.
    """

    rank = 0

    def __init__(
        self, causal: bool, scale: float, shown: Array | None, cut: Cut | None = None
    ) -> None:
        self.causal = causal
        self.scale = scale
        self.shown = shown
        self.cut = cut

    def forward(self, q: Array, k: Array, v: Array) -> Any:
        self.retain_inputs((0, 1, 2))
        self.retain_outputs((0, 1))
        self.xp = backend.get_array_module(q)
        self._agree(q, k, v)
        ring = self.ways.ring
        rank = self.rank
        scaled = q * self.scale
        lead = np.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2])
        rows = rows_of(ring.queries[rank])
        sums = {
            _key(r): OnlineSoftmax(scaled[..., r, :], (*lead, r.stop - r.start, v.shape[-1]))
            for r in rows
        }
        for h, keys, values in self._round(k, v, 0, False):
            for tile in ring.tiles(rank, h):
                hidden = self.masks.hidden(tile, self.xp)
                sums[_key(tile.rows)].add(
                    keys[..., tile.columns, :], values[..., tile.columns, :], hidden
                )
        o = self.xp.empty((*lead, q.shape[-2], v.shape[-1]), np.result_type(q.dtype, v.dtype))
        lse = self.xp.empty((*o.shape[:-1], 1), upcast_halves(scaled[..., :0]).dtype)
        for r in rows:
            o[..., r, :], lse[..., r, :] = sums[_key(r)].means()
        return o, lse

    def _agree(self, q: Array, k: Array, v: Array) -> None:
        """Find out what is to be done."""
        T = q.shape[-2]
        S = k.shape[-2]
        xp = self.xp
        cut = self.cut
        stretches = ((0, T),) if cut is None else cut[self.rank]
        late = first_shown(
            self.shown, xp.concatenate([xp.arange(*s) for s in stretches])[:, None], self.causal
        )
        told = self._tell([T, S, int(late.max()) if late.size else -NEVER], k, v)
        self._check(told)
        queries, keys = [in_order([t[i] for t in told]) if cut is None else cut for i in (0, 1)]
        ahead = keys[-1][-1][1] - queries[-1][-1][1] if self.causal and cut is None else 0
        starts = [ahead + (stretches[0][0] if cut is None else 0) for stretches in queries]
        thorough = tuple([t[2] > start for t, start in zip(told, starts, strict=True)])
        blind = late > starts[self.rank] if thorough[self.rank] else None
        shown = xp.ones((1, 1), bool) if self.shown is None and blind is not None else self.shown
        self.masks = Masks(shown, blind, ahead if self.causal else None)
        self.ways = ways(
            finer(queries), finer(keys), self.masks.ahead, thorough, k.shape[-1] + v.shape[-1]
        )

    def _tell(self, mine: list[int], k: Array, v: Array) -> list[list[int]]:
        """Return what each rank has: how many queries and keys, and by how much the first key shown
        to a query comes after it.
        """
        return [mine]

    def _check(self, told: list[list[int]]) -> None:
        (T, _, _), keys = told[self.rank][:3], sum([one[1] for one in told])
        if keys == 0 < sum([one[0] for one in told]):
            raise ValueError(f"{self.label}: there are no keys to look at")
        shape = (1, 1) if self.shown is None else self.shown.shape
        if shape[-1] not in (1, keys) or shape[-2] not in (1, T):
            raise ValueError(
                f"{self.label}: a mask of shape {shape} does not show {keys} keys to {T} queries"
            )

    def _round(
        self, k: Operand, v: Operand, order: int, record: bool
    ) -> Iterator[tuple[int, Operand, Operand]]:
        """The keys and values that are on this rank after 0, 1, … hops."""
        yield 0, k, v

    def backward(self, go: Variable | Array, glse: Variable | Array) -> InputGradients:
        (q, k, v), record = self.get_retained_inputs(), is_recording()
        ring, rank, D, (mine, gqs) = self.ways.ring, self.rank, k.shape[-1], self._mine(q, go, glse)
        own: list[Variable | Array | None] = []
        for h, keys, values in self._round(k, v, 1, record):
            added = self._look(h, keys, values, mine, gqs)
            if h == 0:
                own = added
            else:
                self._hand_on(h, added, own, k, v, record)
        self._landed(ring.length, own)
        gkv = self._stacked(own, ring.keys[rank], (*k.shape[:-1], D + v.shape[-1]), k, bool(mine))
        rows = rows_of(ring.queries[rank])
        gq = self._stacked(
            [gqs.get(_key(r)) for r in rows], ring.queries[rank], q.shape, q, bool(mine)
        )
        gq = None if gq is None else gq * self.scale
        return (gq, None, None) if gkv is None else (gq, _owned(gkv[..., :D]), _owned(gkv[..., D:]))

    def _hand_on(
        self,
        h: int,
        added: list[Variable | Array | None],
        own: list[Variable | Array | None],
        k: Variable | Array,
        v: Variable | Array,
        record: bool,
    ) -> None:
        """Let what was added to the gradients of others' keys go where they go."""

    def _landed(self, hops: int, own: list[Variable | Array | None]) -> Any:
        """Take what comes back for this rank's own keys."""

    def _mine(
        self, q: Variable | Array, go: Variable | Array, glse: Variable | Array
    ) -> tuple[dict[Place, QueryRows], dict[Place, Variable | Array]]:
        """For each stretch of this rank's queries, if there is a gradient; and room for the
        gradients of them.
        """
        if go is None and glse is None:
            return {}, {}
        o, lse = self.get_retained_outputs()
        go = self.xp.zeros(o.shape, o.dtype) if go is None else go
        c = -(cast(go, compute_dtype(go)) * cast(o, compute_dtype(o))).sum(axis=-1, keepdims=True)
        q = q * self.scale
        c = c if glse is None else c + glse
        rows = rows_of(self.ways.ring.queries[self.rank])
        return {_key(r): QueryRows(*[x[..., r, :] for x in (q, lse, go, c)]) for r in rows}, {}

    def _look(
        self,
        h: int,
        keys: Variable | Array,
        values: Variable | Array,
        mine: dict[Place, QueryRows],
        gqs: dict[Place, Variable | Array],
    ) -> list[Variable | Array | None]:
        """Return what this rank's queries add to the gradients of the keys and values that are here
        now, and these to theirs.
        """
        found: dict[Place, Variable | Array] = {}
        for tile in self.ways.ring.tiles(self.rank, h) if mine else ():
            hidden = self.masks.hidden(tile, self.xp)
            place = _key(tile.rows)
            key = _key(tile.columns)
            k = keys[..., tile.columns, :]
            v = values[..., tile.columns, :]
            one = mine[place]
            gq, gk, gv = tile_gradients(one.q, k, v, one.lse, one.go, one.c, hidden)
            gqs[place] = gqs[place] + gq if place in gqs else gq
            gkv = Concat(-1)(gk, gv)
            found[key] = found[key] + gkv if key in found else gkv
        return [found.get(_key(columns)) for columns in rows_of(self.ways.ring.held(self.rank, h))]

    def _stacked(
        self,
        parts: list[Variable | Array | None],
        stretches: Sequence[Stretch],
        shape: tuple[int, ...],
        like: Variable | Array,
        always: bool = False,
    ) -> Variable | Array | None:
        """The parts as one array, in the dtype in which such gradients are summed up; None if there
        is none.
        """
        dtype = upcast_halves(array_of(like)[..., :0]).dtype
        if not always and all([part is None for part in parts]):
            return None
        whole = [
            self.xp.zeros((*shape[:-2], b - a, shape[-1]), dtype) if part is None else part
            for part, (a, b) in zip(parts, stretches, strict=True)
        ]
        y = whole[0] if len(whole) == 1 else Concat(-2)(*whole)
        return y if y.dtype == dtype else y.astype(dtype)


def _key(rows: slice) -> Place:
    return rows.start, rows.stop


def _owned(x: Operand) -> Operand:
    """An array that is given away is no view."""
    return x if isinstance(x, Variable) else x.copy()
