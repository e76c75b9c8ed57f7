"""Attention of one rank, in blocks: queries whose scores with all keys stay in the cache, forward
and in backward.

The scores of a block are made turned round, k qᵀ: (…, S, T). Then what belongs to a query, its
maximum and its sum, runs along the first axis, where numpy is several times as fast as along the
last. The weights, exp(s k qᵀ - maximum), are not divided by their sums: what is multiplied with
them is, forward the result, in backward its gradient, which are smaller. The maximum is taken only
where sums without it come near either end of the numbers. Few weights are kept for backward; of
many only a maximum and a sum for each query, with which backward makes them again, so that no array
is as large as queries times keys.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.kernels import tuning
from mnpar.kernels.blas import batched_matmul, matrix_transpose
from mnpar.kernels.columns import Buffers
from mnpar.kernels.compiler import Cube, Matrix, Real, Vector, compiled, contiguous, suits
from mnpar.kernels.dtypes import upcast_halves
from mnpar.kernels.moments import RUN
from mnpar.kernels.scalar import exp

# sums of exponentials up to here, and down to 1 / here, are far from both ends of float32
ENOUGH = 1e13


@compiled
def _exponentials(p: Cube, sums: Matrix, some: Vector) -> None:
    A, S, T = p.shape
    sums[:, :] = 0.0
    for a in range(A):
        for start in range(0, S, RUN):
            some[:] = 0.0
            for s in range(start, min(start + RUN, S)):
                row = p[a, s]
                for t in range(T):
                    e = exp(row[t])
                    row[t] = e
                    some[t] += e
            for t in range(T):
                sums[a, t] += some[t]


def exponentials(p: Array) -> Array:
    """p ← eᵖ, in place, of scores (…, S, T); return the sums over the keys, (…, T).

    Example:
        >>> exponentials(np.zeros((2, 3)))
        array([2., 2., 2.])
    """
    if suits(p):
        sums = np.empty((*p.shape[:-2], p.shape[-1]), p.dtype)
        some = np.empty(p.shape[-1], p.dtype)
        _exponentials(p.reshape(-1, *p.shape[-2:]), sums.reshape(-1, p.shape[-1]), some)
        return sums
    xp = backend.get_array_module(p)
    found: Array = xp.ones(p.shape[-2], p.dtype) @ xp.exp(p, out=p)
    return found


@compiled
def _slopes(gp: Cube, means: Matrix, p: Cube) -> None:
    A, S, T = p.shape
    for a in range(A):
        for s in range(S):
            for t in range(T):
                gp[a, s, t] = (gp[a, s, t] - means[a, t]) * p[a, s, t]


def slopes(gp: Array, means: Array, p: Array) -> None:
    """gp ← p (gp - means), in place, of (…, S, T) and means (…, T)."""
    if suits(gp, p, means):
        matrices = (-1, *p.shape[-2:])
        _slopes(gp.reshape(matrices), means.reshape(-1, p.shape[-1]), p.reshape(matrices))
        return
    gp -= means[..., None, :]
    gp *= p


@compiled
def _attend(
    q: Cube,
    k: Cube,
    v: Cube,
    p: Cube,
    top: Vector,
    part: Matrix,
    o: Cube,
    ahead: int,
    scale: Real,
    low: Real,
) -> None:
    """p ← e^(s k qᵀ - its maximum), part ← 1 / its sums, o ← part pᵀ v; query t sees keys up to
    t + ahead.
    """
    A, S, T = p.shape
    D = q.shape[2]
    E = v.shape[2]
    for a in range(A):
        for s in range(S):
            for t in range(T):
                score = 0.0
                for d in range(D):
                    score += k[a, s, d] * (q[a, t, d] * scale)
                p[a, s, t] = score + low if s > t + ahead else score
        for t in range(T):
            top[t] = p[a, 0, t]
            part[a, t] = 0.0
        for s in range(1, S):
            for t in range(T):
                top[t] = p[a, s, t] if p[a, s, t] > top[t] else top[t]
        for s in range(S):
            for t in range(T):
                e = exp(p[a, s, t] - top[t])
                p[a, s, t] = e
                part[a, t] += e
        for t in range(T):
            part[a, t] = 1.0 / part[a, t]
            o[a, t, :] = 0.0
            for s in range(S):
                w = p[a, s, t] * part[a, t]
                for e in range(E):
                    o[a, t, e] += w * v[a, s, e]


@compiled
def _attend_gradients(
    q: Cube,
    k: Cube,
    v: Cube,
    p: Cube,
    part: Matrix,
    o: Cube,
    go: Cube,
    gq: Cube,
    gk: Cube,
    gv: Cube,
    scale: Real,
) -> None:
    """The gradients of q, k and v."""
    A, S, T = p.shape
    D = q.shape[2]
    E = v.shape[2]
    for a in range(A):
        gk[a, :, :] = 0.0
        gv[a, :, :] = 0.0
        for t in range(T):
            gq[a, t, :] = 0.0
            mean = 0.0
            for e in range(E):
                mean += go[a, t, e] * o[a, t, e]
            for s in range(S):
                w = p[a, s, t] * part[a, t]
                slope = 0.0
                for e in range(E):
                    slope += v[a, s, e] * go[a, t, e]
                    gv[a, s, e] += w * go[a, t, e]
                slope = (slope - mean) * w * scale
                for d in range(D):
                    gq[a, t, d] += slope * k[a, s, d]
                    gk[a, s, d] += slope * q[a, t, d]


# what is added to scores that a query may not look at
_LOW = {char: float(np.finfo(char).min) / 2 for char in "fd"}


class HeadBlock(NamedTuple):
    """Queries, and the keys that they may look at."""

    heads: tuple[Any, ...]  # of the leading axes
    rows: slice
    keys: slice

    def of(self, x: Array, places: slice) -> Array:
        """Some queries or keys."""
        return upcast_halves(x[self.heads][..., places, :])


class BlockedAttention:
    """softmax(s q kᵀ) v for q (…, T, D), k (…, S, D) and v (…, S, E) with the same leading axes and
    at least one key, and its gradients.

    Args:
        scale: s.
        causal: a query looks only at keys up to its own place, counted from the end; then T ≤ S and
            there is no mask.
        shown: boolean (…, T, S), where a query may look; None is everywhere. One that may look
            nowhere looks everywhere.
        order: of the result's axes in memory.
    """

    def __init__(
        self, scale: float, causal: bool, shown: Array | None, order: tuple[int, ...]
    ) -> None:
        self.scale = scale
        self.causal = causal
        self.shown = shown
        self.order = order
        rows: Any = None if shown is None else shown.any(axis=-1)
        self.sees: Array | None = None if rows is None else rows[..., None, :]  # (…, 1, T)
        self.sees_some = self.sees is None or bool(self.sees.all())

    def forward(self, q: Array, k: Array, v: Array, differentiable: bool) -> Array:
        """Compute the result (…, T, E); ``differentiable``: :meth:`gradients` will be asked for."""
        xp = backend.get_array_module(q)
        shape = (*k.shape[:-1], q.shape[-2])
        dtype = np.result_type(q.dtype, k.dtype)
        self.dtype = np.dtype("f4") if dtype.char in backend.HALVES else dtype
        o = backend.empty_in_order(
            (*q.shape[:-1], v.shape[-1]), np.result_type(q, v), self.order, xp
        )
        self.top: Array | None = None  # where a maximum was needed
        self.part = xp.zeros((*shape[:-2], 1, shape[-1]), self.dtype)
        self.weights: list[Array] = []  # of each piece, or of none
        self.by_loop: Array | None = None  # the weights that one loop computed
        if self._is_small(q, k, v, o):
            self._attend(q, k, v, o, differentiable)
            return o
        keeps = (
            differentiable
            and math.prod(shape) <= tuning.ATTENTION_WEIGHTS
            and math.prod(shape[-2:]) <= tuning.ATTENTION_WEIGHTS_OF_HEAD
        )
        buffers = Buffers(xp, self.dtype)
        for piece in self._pieces(q, k):
            part = self.part[piece.heads][..., piece.rows]
            p = self._weights(piece, q, k, part, buffers, keeps)
            if keeps:
                self.weights.append(p)
            found = buffers.get("o", (*p.shape[:-2], p.shape[-1], v.shape[-1]))
            batched_matmul(matrix_transpose(p), piece.of(v, piece.keys), found)
            xp.multiply(
                found,
                matrix_transpose(part),
                out=o[piece.heads][..., piece.rows, :],
                casting="same_kind",
            )
        return o

    def _is_small(self, q: Array, k: Array, v: Array, o: Array) -> bool:
        """Return whether a loop takes less time than what products of small matrices wait for."""
        multiplications = k.size * q.shape[-2] + o.size * k.shape[-2]
        return (
            self.shown is None
            and 0 < multiplications <= tuning.ATTENTION_LOOP_MOST
            and suits(k, q, v, o)
        )

    def _attend(self, q: Array, k: Array, v: Array, o: Array, differentiable: bool) -> None:
        """Compute o by one loop; the weights are kept if :meth:`gradients` will be asked for."""
        S, T = k.shape[-2], q.shape[-2]
        p = np.empty((*k.shape[:-1], T), q.dtype)
        top = np.empty(T, q.dtype)
        part = self.part.reshape(-1, T)
        ahead = S - T if self.causal else S
        low = _LOW[q.dtype.char]
        q, k, v, cube, o = map(_as_cube, (q, k, v, p, o))
        _attend(q, k, v, cube, top, part, o, ahead, self.scale, low)
        if differentiable:
            self.by_loop = p

    def _pieces(self, q: Array, k: Array) -> Iterator[HeadBlock]:
        """Yield as many heads at once as the cache has room for, or some queries of one; late
        queries first, which see all keys.
        """
        (*lead, T, _), S, room = (
            q.shape,
            k.shape[-2],
            backend.block_bytes(q) // 4 // self.dtype.itemsize,
        )
        if not math.prod((*lead, T)):
            return
        step = min(
            T,
            max(
                tuning.ATTENTION_LEAST_QUERIES,
                min(
                    room // max(S, 1),
                    max(tuning.ATTENTION_QUERIES, T // 8)
                    if self.causal
                    else 2 * tuning.ATTENTION_QUERIES,
                ),
            ),
        )
        axis = len(lead)
        size = step * S
        while axis and size * lead[axis - 1] <= room:
            axis -= 1
            size *= lead[axis]
        some = max(1, room // max(size, 1))
        starts = range(0, lead[axis - 1], some) if axis else (None,)
        for before in np.ndindex(*lead[: max(axis - 1, 0)]):
            for start in starts:
                heads = before if start is None else (*before, slice(start, start + some))
                for stop in range(T, 0, -step):
                    yield HeadBlock(
                        heads,
                        slice(max(stop - step, 0), stop),
                        slice(0, stop + S - T if self.causal else S),
                    )

    def _weights(
        self, piece: HeadBlock, q: Array, k: Array, part: Array, buffers: Buffers, keeps: bool
    ) -> Array:
        """Exponentials, (…, S, T), in memory of their own if they are kept; 1 over their sums is
        left in ``part``.
        """
        p = self._scores(piece, q, k, buffers, keeps)
        xp = buffers.xp
        one = part[..., 0, :]
        if self.sees_some:
            with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
                sums = exponentials(p)
                xp.divide(1, sums, out=one)
            if sums.max() <= ENOUGH and sums.min() >= 1 / ENOUGH:
                return p
            p = self._scores(piece, q, k, buffers, keeps)
        self.top = xp.zeros(self.part.shape, self.dtype) if self.top is None else self.top
        p -= xp.max(p, axis=-2, keepdims=True, out=self.top[piece.heads][..., piece.rows])
        xp.divide(1, exponentials(p), out=one)
        return p

    def _scores(self, piece: HeadBlock, q: Array, k: Array, buffers: Buffers, keeps: bool) -> Array:
        """The scores of queries with keys, s k qᵀ (…, S, T)."""
        q = matrix_transpose(piece.of(q, piece.rows))
        k = piece.of(k, piece.keys)
        scaled = buffers.xp.multiply(q, self.scale, out=buffers.get("q", q.shape))
        shape = (*k.shape[:-1], q.shape[-1])
        scores = batched_matmul(
            k,
            scaled,
            backend.empty_aligned(shape, self.dtype, buffers.xp)
            if keeps
            else buffers.get("p", shape),
        )
        self._hide(piece, scores, buffers)
        return scores

    def _hide(self, piece: HeadBlock, scores: Array, buffers: Buffers) -> None:
        """Let what a query may not look at be so low that it counts for nothing beside any
        other.
        """
        xp = buffers.xp
        n = scores.shape[-1]
        low = np.finfo(scores.dtype).min / 2
        if self.causal:  # the last n of its keys are at the places of the queries
            if "low" not in buffers.kept or buffers.kept["low"].shape != (n, n):
                buffers.kept["low"] = xp.tril(xp.full((n, n), low, scores.dtype), -1)
            scores[..., -n:, :] += buffers.kept["low"]
        elif self.shown is not None:
            scores += xp.multiply(
                matrix_transpose(~self.shown[piece.heads][..., piece.rows, :]),
                low,
                dtype=scores.dtype,
            )

    def gradients(self, q: Array, k: Array, v: Array, o: Array, go: Array) -> list[Array]:
        """Compute the gradients of q, k and v from the result and its gradient."""
        xp = backend.get_array_module(q)
        make = xp.empty if q.shape[-2] else xp.zeros
        grads = [make(x.shape, self.dtype) for x in (q, k, v)]
        if self.by_loop is not None:
            part = self.part.reshape(-1, q.shape[-2])
            gq, gk, gv, p = map(_as_cube, (*grads, self.by_loop))
            q, k, v, o, go = (_as_cube(contiguous(x)) for x in (q, k, v, o, go))
            _attend_gradients(q, k, v, p, part, o, go, gq, gk, gv, self.scale)
            return grads
        buffers = Buffers(xp, self.dtype)
        for i, piece in enumerate(self._pieces(q, k)):
            gq, gk, gv = (x[piece.heads] for x in grads)
            p = self.weights[i] if self.weights else self._again(piece, q, k, buffers)
            g = piece.of(go, piece.rows)
            g = xp.multiply(
                g,
                matrix_transpose(self.part[piece.heads][..., piece.rows]),
                out=buffers.get("g", g.shape),
            )
            gs = self._of_scores(
                piece, p, g, piece.of(o, piece.rows), piece.of(v, piece.keys), buffers
            )
            first = piece.rows.stop == q.shape[-2]
            for y, a, b in ((gk, gs, piece.of(q, piece.rows)), (gv, p, g)):
                if first:
                    batched_matmul(a, b, y)
                else:
                    y[..., piece.keys, :] += batched_matmul(
                        a, b, buffers.get("more", (*a.shape[:-1], b.shape[-1]))
                    )
            batched_matmul(matrix_transpose(gs), piece.of(k, piece.keys), gq[..., piece.rows, :])
        return [g.astype(x.dtype, copy=False) for g, x in zip(grads, (q, k, v), strict=True)]

    def _of_scores(
        self, piece: HeadBlock, p: Array, g: Array, o: Array, v: Array, buffers: Buffers
    ) -> Array:
        """The gradient of the products k qᵀ, s p (v gᵀ - Σ g o): of v gᵀ by the weights o has made
        the mean.
        """
        xp, turned = buffers.xp, matrix_transpose(g)
        turned = xp.multiply(turned, self.scale, out=buffers.get("q", turned.shape))
        gs = batched_matmul(v, turned, buffers.get("gs", p.shape))
        means = xp.multiply(g, o, out=buffers.get("o", g.shape)) @ xp.full(
            g.shape[-1], self.scale, g.dtype
        )
        slopes(gs, means, p)
        if not (self.sees_some or self.sees is None):
            gs *= self.sees[piece.heads][..., piece.rows]
        return gs

    def _again(self, piece: HeadBlock, q: Array, k: Array, buffers: Buffers) -> Array:
        """The weights, as forward had them."""
        p = self._scores(piece, q, k, buffers, False)
        if self.top is not None:
            p -= self.top[piece.heads][..., piece.rows]
        exponentials(p)
        return p


def _as_cube(x: Array) -> Array:
    """The heads (…, T, D) as (heads, T, D), a view."""
    return x.reshape(-1, *x.shape[-2:])
