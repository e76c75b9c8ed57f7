"""Attention over a sequence that is cut among ranks: keys and values travel round a ring of them.

Each rank keeps its queries. While it computes what they see of the keys that it has, those leave for the next rank and others
come; after P - 1 hops all queries have seen all keys (Liu, Zaharia and Abbeel 2023, arXiv 2310.01889). No rank ever holds more
than two blocks of keys, nor fits of more than one tile (tiles.py), and nothing but the logarithms of sums is kept for backward:
there the keys make the same way again, and their gradients go with them, a hop behind, and home. So what is sent is what a rank
needs of others, once forward and twice backward; of causal attention nothing travels further than it is looked at.

Backward is written for arrays and Variables alike, so it can be differentiated; its hops are then functions of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.communicators.operation import Operation, complete
from mnpar.config import is_recording
from mnpar.errors import MismatchError
from mnpar.functions.broadcasting import broadcast_to
from mnpar.functions.communication import Communication
from mnpar.functions.exchange import Exchange
from mnpar.functions.generic import either, listed, plain, wide
from mnpar.functions.joining import Concat
from mnpar.functions.shape import cast
from mnpar.functions.tiles import NEVER, Masks, Sums, first_shown, tile_gradients
from mnpar.plans import Plan, in_order, rows_of
from mnpar.plans.ring import Cut, Stretch, ways
from mnpar.variable import Variable, as_variable

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator


class Hop(Exchange):
    """An exchange inside another function, which says of what order it is, and its number."""

    def __init__(self, of: Communication, plan: Plan, order: int, number: int) -> None:
        super().__init__(of.comm, plan)
        self.site, self.order, self.seq = of.site, order, number


class Mine(NamedTuple):
    """What backward needs of a stretch of queries."""

    q: Any  # scaled
    lse: Any
    go: Any
    c: Any


class RingAttention(Communication):
    """The means (…, T, E), and the logarithms of the sums (…, T, 1).

    Args:
        comm: the ranks of the sequence.
        cut: of queries and keys; None: blocks in order.
        causal: whether queries look only at keys up to their own place.
        scale: of the fits.
        shown: the mask, as in Masks.
    """

    op = "ring_attention"

    def __init__(self, comm: Communicator, cut: Cut | None, causal: bool, scale: float, shown: Array | None) -> None:
        super().__init__(comm)
        self.cut, self.causal, self.scale, self.shown = cut, causal, scale, shown

    def forward(self, q: Array, k: Array, v: Array) -> Any:
        self.retain_inputs((0, 1, 2))
        self.retain_outputs((0, 1))
        self.xp = backend.get_array_module(q)
        self._agree(q, k, v)
        ring, rank, scaled = self.ways.ring, self.comm.rank, q * self.scale
        lead = np.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2])
        rows = rows_of(ring.queries[rank])
        sums = {_key(r): Sums(scaled[..., r, :], (*lead, r.stop - r.start, v.shape[-1])) for r in rows}
        for h, keys, values in self._round(k, v, 0, False):
            for tile in ring.tiles(rank, h):
                hidden = self.masks.hidden(tile, self.xp)
                sums[_key(tile.rows)].add(keys[..., tile.columns, :], values[..., tile.columns, :], hidden)
        self.numbers = [self.channel.next_exchange() for _ in range(2 * ring.length)]
        o = self.xp.empty((*lead, q.shape[-2], v.shape[-1]), np.result_type(q, v))
        lse = self.xp.empty((*o.shape[:-1], 1), wide(scaled[..., :0]).dtype)
        for r in rows:
            o[..., r, :], lse[..., r, :] = sums[_key(r)].means()
        return o, lse

    def _agree(self, q: Array, k: Array, v: Array) -> None:
        """Tell all ranks what this one has, and find out what is to be done."""
        T, S, rank, cut, xp = q.shape[-2], k.shape[-2], self.comm.rank, self.cut, self.xp
        stretches = ((0, T),) if cut is None else cut[rank]
        late = first_shown(self.shown, xp.concatenate([xp.arange(*s) for s in stretches])[:, None], self.causal)
        form = (self.causal, cut is None, k.shape[-1], v.shape[-1], ord(k.dtype.char), *k.shape[:-2])
        said = np.array([T, S, int(late.max()) if late.size else -NEVER, *form], "i8")
        told, wants = complete(self.comm.transport, self.channel.allgather(said, self.call()))
        self.agreed(None, wants)
        self._check([one.tolist() for one in told])
        queries, keys = [in_order([int(t[i]) for t in told]) if cut is None else cut for i in (0, 1)]
        ahead = keys[-1][-1][1] - queries[-1][-1][1] if self.causal and cut is None else 0
        starts = [ahead + (stretches[0][0] if cut is None else 0) for stretches in queries]
        thorough = tuple([bool(t[2] > start) for t, start in zip(told, starts, strict=True)])
        blind = late > starts[rank] if thorough[rank] else None
        shown = xp.ones((1, 1), bool) if self.shown is None and blind is not None else self.shown
        self.masks = Masks(shown, blind, ahead if self.causal else None)
        self.ways = ways(queries, keys, self.masks.ahead, thorough, k.shape[-1] + v.shape[-1])

    def _check(self, told: list[list[int]]) -> None:
        cut, keys = self.cut, sum([one[1] for one in told])
        for rank, one in enumerate(told):
            if one[3:] != told[0][3:]:
                what = "(causal, without a cut, D, E, dtype, leading axes)"
                raise MismatchError(f"{self.label}: rank {rank} has {what} {one[3:]}, rank 0 {told[0][3:]}")
            length = sum([b - a for a, b in cut[rank]]) if cut is not None else 0
            if cut is not None and not one[0] == one[1] == length:
                raise ValueError(f"{self.label}: rank {rank} has {one[0]} queries and {one[1]} keys, but by the cut {length}")
        if keys == 0 < sum([one[0] for one in told]):
            raise ValueError(f"{self.label}: there are no keys to look at")
        if self.shown is not None:
            T, shape = told[self.comm.rank][0], self.shown.shape
            if shape[-1] not in (1, keys) or shape[-2] not in (1, T):
                raise ValueError(f"{self.label}: a mask of shape {shape} does not show {keys} keys to {T} queries")

    def _begin(self, plan: Plan, order: int, number: int, x: Any, record: bool) -> Callable[[], tuple[Any, ...]]:
        """Send and let come what a plan says; what comes is waited for when the result is called."""
        hop, xs = Hop(self, plan, order, number), () if x is None else (x,)
        if not record:
            return Operation(self.comm.transport, hop.steps(*xs)).wait
        coming = hop.begin(*xs)
        return lambda: tuple([None if y.array is None else y for y in coming()])

    def _round(self, k: Any, v: Any, order: int, record: bool) -> Iterator[tuple[int, Any, Any]]:
        """The keys and values that are on this rank after 0, 1, … hops; the next ones are on their way meanwhile."""
        onward, D = self.ways.onward, k.shape[-1]
        kv = either(Concat(-1), k, v) if onward else None
        for h, plan in enumerate(onward):
            coming = self._begin(plan, order, self.numbers[h] if order else 0, kv, record)
            yield h, k, v
            (kv,) = coming()
            k, v = kv[..., :D], kv[..., D:]
        yield len(onward), k, v

    def backward(self, go: Any, glse: Any) -> Any:
        (q, k, v), record = self.get_retained_inputs(), is_recording()
        ring, rank, D, (mine, gqs) = self.ways.ring, self.comm.rank, k.shape[-1], self._mine(q, go, glse)
        own: list[Any] = []
        landing = None
        for h, keys, values in self._round(k, v, 1, record):
            added = self._look(h, keys, values, mine, gqs)
            if h == 0:
                own = added
                continue
            total = self._sum(added, self._landed(landing, h - 1, own), ring.held(rank, h), k, v)
            landing = self._begin(self.ways.homeward[h - 1], 1, self.numbers[ring.length + h - 1], total, record)
        self._landed(landing, ring.length, own)
        gkv = self._stacked(own, ring.keys[rank], (*k.shape[:-1], D + v.shape[-1]), k, bool(mine))
        rows = rows_of(ring.queries[rank])
        gq = self._stacked([gqs.get(_key(r)) for r in rows], ring.queries[rank], q.shape, q, bool(mine))
        gq = None if gq is None else gq * self.scale
        return (gq, None, None) if gkv is None else (gq, _owned(gkv[..., :D]), _owned(gkv[..., D:]))

    def _mine(self, q: Any, go: Any, glse: Any) -> tuple[dict[Any, Mine], dict[Any, Any]]:
        """For each stretch of this rank's queries, if there is a gradient; and room for the gradients of them."""
        if go is None and glse is None:
            return {}, {}
        o, lse = self.get_retained_outputs()
        go = self.xp.zeros(o.shape, o.dtype) if go is None else go
        c, q = -(wide(go) * wide(o)).sum(axis=-1, keepdims=True), q * self.scale
        c = c if glse is None else c + glse
        rows = rows_of(self.ways.ring.queries[self.comm.rank])
        return {_key(r): Mine(*[x[..., r, :] for x in (q, lse, go, c)]) for r in rows}, {}

    def _look(self, h: int, keys: Any, values: Any, mine: dict[Any, Mine], gqs: dict[Any, Any]) -> list[Any]:
        """What this rank's queries add to the gradients of the keys and values that are here now, and these to theirs."""
        found: dict[Any, Any] = {}
        for tile in self.ways.ring.tiles(self.comm.rank, h) if mine else ():
            hidden, place, key = self.masks.hidden(tile, self.xp), _key(tile.rows), _key(tile.columns)
            k, v = keys[..., tile.columns, :], values[..., tile.columns, :]
            one = mine[place]
            gq, *gkv = tile_gradients(one.q, k, v, one.lse, one.go, one.c, hidden)
            gqs[place] = gqs[place] + gq if place in gqs else gq
            gkv = either(Concat(-1), *gkv)
            found[key] = found[key] + gkv if key in found else gkv
        return [found.get(_key(columns)) for columns in rows_of(self.ways.ring.held(self.comm.rank, h))]

    def _landed(self, landing: Any, hops: int, own: list[Any]) -> Any:
        """What comes with the keys that are here now; what came home is added to this rank's own."""
        if landing is None:
            return None
        (carried, home), ring, rank = landing(), self.ways.ring, self.comm.rank
        ended = ring.ended(rank, hops)
        for i, rows in zip(ended, rows_of([ring.keys[rank][i] for i in ended]), strict=True):
            if home is not None:
                own[i] = home[..., rows, :] if own[i] is None else own[i] + home[..., rows, :]
        return carried

    def _sum(self, added: list[Any], carried: Any, held: Sequence[Stretch], k: Any, v: Any) -> Any:
        if carried is not None:
            parts = [carried[..., rows, :] for rows in rows_of(held)]
            added = [part if one is None else one + part for one, part in zip(added, parts, strict=True)]
        return self._stacked(added, held, (*k.shape[:-1], k.shape[-1] + v.shape[-1]), k)

    def _stacked(
        self, parts: list[Any], stretches: Sequence[Stretch], shape: tuple[int, ...], like: Any, always: bool = False
    ) -> Any:
        """The parts as one array, in the dtype in which such gradients are summed up; None if there is none."""
        dtype = wide(plain(like)[..., :0]).dtype
        if not always and all([part is None for part in parts]):
            return None
        whole = [
            self.xp.zeros((*shape[:-2], b - a, shape[-1]), dtype) if part is None else part
            for part, (a, b) in zip(parts, stretches, strict=True)
        ]
        y = whole[0] if len(whole) == 1 else either(Concat(-2), *whole)
        return y if y.dtype == dtype else y.astype(dtype)


def _key(rows: slice) -> tuple[int, int]:
    return rows.start, rows.stop


def _owned(x: Any) -> Any:
    """An array that is given away is no view."""
    return x if isinstance(x, Variable) else x.copy()


def ring_attention(
    comm: Communicator, q: Any, k: Any, v: Any, mask: Any = None, causal: bool = False, scale: float | None = None,
    cut: Cut | None = None,
) -> Variable:  # fmt: skip
    """:func:`scaled_dot_product_attention` over a sequence that is cut among ranks, each of which keeps its queries.

    Args:
        comm: all its ranks call this.
        q: this rank's queries ``(…, T, D)``; lengths may differ between ranks, and be 0.
        k, v: its keys ``(…, S, D)`` and values ``(…, S, E)``.
        mask: boolean, broadcast to ``(…, T, n)``: at which keys of the whole sequence, in its order, these queries may look.
        causal: a query looks only at keys up to its own place, counted from the end.
        scale: s; None is 1 / √D.
        cut: which stretches of the sequence each rank has, the same on all ranks; None: blocks in rank order, of any
            lengths. :func:`mnpar.plans.zigzag` makes causal attention equal work for all ranks; :func:`recut` leads there.

    Returns:
        ``(…, T, E)``. Time on P ranks is 1/P, and no array larger than a rank's queries times one stretch of keys is made.
        Each rank receives each stretch of keys and values that it looks at once forward, once more backward, and then its
        gradient goes on: nothing else is sent.

    Raises:
        ValueError: the shapes do not belong together, or not to the cut.
        MismatchError: ranks differ in dtype, D, E, leading axes or ``causal``; on all of them.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> def program(comm):
        ...     v = mnpar.Variable(np.array([[0.0], [2.0]]) + 4 * comm.rank)
        ...     y = F.ring_attention(comm, np.zeros((2, 1)), np.zeros((2, 1)), v, causal=True)
        ...     F.sum(y).backward()
        ...     return y.array.ravel(), v.grad.ravel().round(2)
        >>> mnpar.run(program, ranks=2)  # the means of 0, 2, 4, 6 up to each place
        [(array([0., 1.]), array([2.08, 1.08])), (array([2., 3.]), array([0.58, 0.25]))]

    Source:
        Liu, Zaharia and Abbeel 2023, "Ring attention with blockwise transformers", arXiv 2310.01889.
    """
    q, k, v = as_variable(q), as_variable(k), as_variable(v)
    if min(q.ndim, k.ndim, v.ndim) < 2 or q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise ValueError(f"attention: q (…, T, D), k (…, S, D), v (…, S, E), not {listed((q.shape, k.shape, v.shape))}")
    if k.dtype != v.dtype:
        k, v = [cast(x, np.result_type(k.dtype, v.dtype)) for x in (k, v)]
    if k.shape[:-2] != v.shape[:-2]:
        lead = np.broadcast_shapes(k.shape[:-2], v.shape[:-2])
        k, v = [broadcast_to(x, (*lead, *x.shape[-2:])) for x in (k, v)]
    if cut is not None and len(cut) != comm.size:
        raise ValueError(f"ring_attention: a cut for {len(cut)} ranks does not suit a communicator of {comm.size}")
    shown = None if mask is None else q.xp.atleast_2d(plain(mask)).astype(bool, copy=False)
    s = 1 / math.sqrt(max(q.shape[-1], 1)) if scale is None else scale
    return RingAttention(comm, cut, causal, s, shown).apply((q, k, v))[0]
