"""Attention of one rank, in blocks: queries whose fits with all keys stay in the cache, forward and in backward.

The fits of a block are made turned round, kᵀ before q: (…, S, T). Then what belongs to a query, its maximum and its sum, runs
along the first axis, where numpy is several times as fast as along the last. The softmax is never divided out: what the
exponentials are multiplied with has the width of the values, not of all keys, and is divided instead. Few exponentials are kept
for backward; of many only one maximum and one sum for each query, with which backward makes them again, so that no array is as
large as queries times keys.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.function_node import FunctionNode
from mnpar.functions.activation import Softmax
from mnpar.functions.blocks import Buffers
from mnpar.functions.generic import either, wide
from mnpar.functions.indexing import Where
from mnpar.variable import Variable

MODEST = 30  # exponentials of fits up to here, and sums of them, are far from both ends of float32: no maximum is needed
KEPT = 2**22  # exponentials at most: to make more again takes less than to fetch them, and no memory
LEAST = 32  # queries of a block, however many the keys


class Piece(NamedTuple):
    """Queries, and the keys that they may look at."""

    index: tuple[Any, ...]  # of the leading axes
    rows: slice
    keys: slice


class Attention(FunctionNode):
    """softmax(s q kᵀ) v for q (…, T, D), k (…, S, D) and v (…, S, E) with the same leading axes and at least one key.

    Args:
        scale: s.
        causal: a query looks only at keys up to its own place, counted from the end; then T ≤ S and there is no mask.
        shown: boolean (…, T, S), where a query may look; None is everywhere. One that may look nowhere looks everywhere.
    """

    generic = True

    def __init__(self, scale: float, causal: bool, shown: Array | None) -> None:
        self.scale, self.causal, self.shown = scale, causal, shown
        self.sees = None if shown is None else shown.any(axis=-1)[..., None, :]  # (…, 1, T)
        self.modest = shown is None or bool(self.sees.all())

    def forward(self, q: Array, k: Array, v: Array) -> Array:
        self.retain_inputs((0, 1, 2))
        self.retain_outputs((0,))
        xp = backend.get_array_module(q)
        self.dtype = wide(xp.empty(0, np.result_type(q, k))).dtype
        o = xp.empty((*q.shape[:-1], v.shape[-1]), np.result_type(q, v))
        self.top, self.part = (xp.zeros((*q.shape[:-2], 1, q.shape[-2]), self.dtype) for _ in range(2))  # (…, 1, T)
        buffers, shape = Buffers(xp, self.dtype), (*k.shape[:-1], q.shape[-2])
        self.e = xp.empty(shape, self.dtype) if self.differentiable and math.prod(shape) <= KEPT else None
        for piece in self._pieces(q, k):
            e = self._fits(piece, self._scaled(piece, q, buffers), k, buffers)
            top, part = (x[piece.index][..., piece.rows] for x in (self.top, self.part))
            if not self.modest or e.max() > MODEST or e.min() < -MODEST:
                xp.max(self._hide(piece, e), axis=-2, keepdims=True, out=top)
                e -= top
            else:
                self._hide(piece, e)
            xp.exp(e, out=e)
            xp.reciprocal(xp.ones(e.shape[-2], e.dtype) @ e, out=part[..., 0, :])
            y = _turned(e) @ wide(v[piece.index][..., piece.keys, :])
            xp.multiply(y, _turned(part), out=o[piece.index][..., piece.rows, :], casting="same_kind")
        return o

    def _pieces(self, q: Array, k: Array) -> Iterator[Piece]:
        """As many heads at once as the cache has room for, or some queries of one; late queries first, which see all keys."""
        (*lead, T, _), S, room = q.shape, k.shape[-2], backend.block_bytes(q) // 8 // self.dtype.itemsize
        axis, size = len(lead), T * S
        while axis and size * lead[axis - 1] <= room:
            axis -= 1
            size *= lead[axis]
        step = T if size <= room else max(LEAST, room // S)
        some = max(1, room // max(size, 1))
        heads = range(0, lead[axis - 1], some) if axis else (None,)
        for before in np.ndindex(*lead[: max(axis - 1, 0)]):
            for head in heads:
                index = before if head is None else (*before, slice(head, head + some))
                for stop in range(T, 0, -max(step, 1)):
                    yield Piece(index, slice(max(stop - step, 0), stop), slice(0, stop + S - T if self.causal else S))

    def _scaled(self, piece: Piece, q: Array, buffers: Buffers) -> Array:
        part = q[piece.index][..., piece.rows, :]
        return buffers.xp.multiply(part, self.scale, out=buffers.get("q", part.shape), casting="same_kind")

    def _fits(self, piece: Piece, q: Array, k: Array, buffers: Buffers) -> Array:
        """Of scaled queries with keys, (…, S, T)."""
        k = wide(k[piece.index][..., piece.keys, :])
        room = buffers.get("e", (*k.shape[:-1], q.shape[-2])) if self.e is None else self._kept(piece)
        return buffers.xp.matmul(k, _turned(q), out=room)

    def _kept(self, piece: Piece) -> Array:
        return self.e[piece.index][..., piece.keys, piece.rows]

    def _hide(self, piece: Piece, fits: Array) -> Array:
        """Let what a query may not look at be so low that it counts for nothing beside any other."""
        xp, low = backend.get_array_module(fits), np.finfo(fits.dtype).min / 2
        if self.causal:
            n = fits.shape[-1]
            fits[..., -n:, :] += xp.tril(xp.full((n, n), low, fits.dtype), -1)
        elif self.shown is not None:
            hidden = _turned(~self.shown[piece.index][..., piece.rows, :])
            fits += xp.multiply(hidden, low, dtype=fits.dtype)
        return fits

    def backward(self, go: Any) -> Any:
        (q, k, v), found = self.get_retained_inputs(), []

        def of(i: int) -> Any:
            if not found:
                found.extend((self._recorded if isinstance(go, Variable) else self._sweep)(q, k, v, go))
            return found[i]

        return lambda: of(0), lambda: of(1), lambda: of(2)

    def _sweep(self, q: Array, k: Array, v: Array, go: Array) -> list[Array]:
        """The gradients of q, k and v."""
        (o,), xp = self.get_retained_outputs(), backend.get_array_module(q)
        grads = [xp.empty(x.shape, self.dtype) for x in (q, k, v)]
        buffers = Buffers(xp, self.dtype)
        for piece in self._pieces(q, k):
            gq, gk, gv = (x[piece.index] for x in grads)
            gq, gk, gv = gq[..., piece.rows, :], gk[..., piece.keys, :], gv[..., piece.keys, :]
            scaled = self._scaled(piece, q, buffers)
            e = self._kept(piece) if self.e is not None else self._again(piece, scaled, k, buffers)
            g, gs = self._of_fits(piece, v, go, o, e, buffers)
            first = piece.rows.stop == q.shape[-2]
            for y, a, b in ((gk, gs, scaled), (gv, e, g)):
                if first:
                    xp.matmul(a, b, out=y)
                else:
                    y += a @ b
            xp.matmul(_turned(gs), wide(k[piece.index][..., piece.keys, :]), out=gq)
            gq *= self.scale
        return [g.astype(x.dtype, copy=False) for g, x in zip(grads, (q, k, v), strict=True)]

    def _again(self, piece: Piece, scaled: Array, k: Array, buffers: Buffers) -> Array:
        """The exponentials, as forward had them."""
        e = self._hide(piece, self._fits(piece, scaled, k, buffers))
        e -= self.top[piece.index][..., piece.rows]
        return buffers.xp.exp(e, out=e)

    def _of_fits(self, piece: Piece, v: Array, go: Array, o: Array, e: Array, buffers: Buffers) -> tuple[Array, Array]:
        """The gradient of the means, divided by the sums, and that of the fits (…, S, T)."""
        xp, get = buffers.xp, buffers.get
        go, o = (x[piece.index][..., piece.rows, :] for x in (go, o))
        part = self.part[piece.index][..., piece.rows]
        g = xp.multiply(go, _turned(part), out=get("g", go.shape), casting="same_kind")
        gs = xp.matmul(wide(v[piece.index][..., piece.keys, :]), _turned(g), out=get("gs", e.shape))
        gs -= xp.einsum("...te,...te->...t", g, wide(o))[..., None, :]
        gs *= e
        if not self.modest:
            gs *= self.sees[piece.index][..., piece.rows]
        return g, gs

    def _recorded(self, q: Variable, k: Variable, v: Variable, go: Variable) -> list[Any]:
        """The same in functions of Variables, differentiable any number of times."""
        xp, (T, S), shown = q.xp, (q.shape[-2], k.shape[-2]), self.shown
        if self.causal:
            shown = xp.tri(T, S, S - T, dtype=bool)
        fits = (q * self.scale) @ _turned(k)
        if shown is not None:
            shown = xp.broadcast_to(shown, fits.shape)
            fits = either(Where(shown), fits, xp.asarray(np.finfo(fits.dtype).min / 2, fits.dtype))
        p = either(Softmax(-1), fits)
        gp = go @ _turned(v)
        gs = p * (gp - (gp * p).sum(axis=-1, keepdims=True))
        if not self.modest:
            gs = either(Where(shown), gs, xp.zeros((), gs.dtype))
        gs = gs * self.scale
        return [gs @ k, _turned(gs) @ q, _turned(p) @ go]


def _turned(x: Any) -> Any:
    """The last two axes exchanged."""
    return x.transpose((*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


def attend(q: Variable, k: Variable, v: Variable, scale: float, causal: bool, shown: Array | None) -> Variable:
    """The function, with the one mask that stands for both where queries may see nothing of what comes before them."""
    T, S, xp = q.shape[-2], k.shape[-2], q.xp
    if causal and (shown is not None or T > S):
        seen = xp.tri(T, S, S - T, dtype=bool)
        shown, causal = seen if shown is None else shown & seen, False
    if shown is not None:
        shown = xp.broadcast_to(shown, (*q.shape[:-1], S))
    return Attention(scale, causal, shown).apply((q, k, v))[0]
