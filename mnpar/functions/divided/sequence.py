"""A sequence that is cut among ranks: cut in another way, and, for attention, cut by heads for a
while.

Attention mixes positions and leaves heads apart; everything else in a transformer mixes features
and leaves positions apart. So between the two a repartition is enough (Jacobs et al. 2023,
"DeepSpeed Ulysses", arXiv 2309.14509): what each rank sends is (P - 1) / P of its queries, keys,
values and means, however many ranks there are, where a ring sends all keys to all ranks. But no
more ranks than heads have work.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from mnpar.backend import Array
from mnpar.communicators.communicator import require_communicator
from mnpar.functions.array.joining import SplitAxis, concat
from mnpar.functions.communication.exchange import exchange, repartition
from mnpar.functions.connection.attention import require_boolean, scaled_dot_product_attention
from mnpar.functions.node import normalize_axis, show_shapes
from mnpar.plans import Box, Layout, Part, Plan, block, in_order, layouts, rows_of
from mnpar.plans.ring import Cut, Stretch, check_cut
from mnpar.variable import Variable, as_variable

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator


def recut(
    comm: Communicator, x: Variable | Array, have: Cut, want: Cut, axis: int = -2
) -> Variable:
    """Divide a sequence among the ranks in another way: contiguous blocks to
    :func:`mnpar.plans.zigzag`, or back.

    Args:
        comm: all its ranks call this.
        x: this rank's part.
        have, want: which stretches each rank has, before and after.
        axis: of the sequence.

    Returns:
        This rank's new part.

    Raises:
        ValueError: x is not as long as ``have`` says, or nobody has some of what this rank wants.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> from mnpar.plans import in_order, zigzag
        >>> def program(comm):
        ...     x = np.arange(4.0)[:, None] + 4 * comm.rank
        ...     return F.recut(comm, x, in_order([4, 4]), zigzag(8, 2)).array.ravel()
        >>> mnpar.run(program, ranks=2)
        [array([0., 1., 6., 7.]), array([2., 3., 4., 5.])]
    """
    require_communicator(comm, "recut(comm, x, have, want)")
    x = as_variable(x)
    after = x.shape[normalize_axis("recut", x, axis) + 1 :]
    return repartition(comm, x, layouts(have, *after), layouts(want, *after))


@lru_cache(maxsize=200)
def _to_heads(cut: Cut, heads: int, split: bool, width: int) -> Plan:
    """From a part of the sequence with all heads to a part of the heads with all of the sequence,
    (heads, sequence, width).

    Without ``split`` every rank gets all heads.
    """
    P = len(cut)
    whole = ((0, max([stop for stretches in cut for _, stop in stretches], default=0)),)
    blocks = [block(heads, P, rank) if split else (0, heads) for rank in range(P)]
    have = [_layout((0, heads), stretches, width) for stretches in cut]
    return Plan(have, [_layout(own, whole, width) for own in blocks])


def _layout(heads: Stretch, stretches: Sequence[Stretch], width: int) -> Layout:
    h, parts = heads[1] - heads[0], []
    for (start, stop), rows in zip(stretches, rows_of(stretches), strict=True):
        cells = Box((heads[0], start, 0), (heads[1], stop, width))
        if not cells.empty:
            parts.append(Part(cells, Box((0, rows.start, 0), (h, rows.stop, width)), (False,) * 3))
    return Layout((h, sum([b - a for a, b in stretches]), width), tuple(parts))


def all_to_all_attention(
    comm: Communicator,
    q: Variable | Array,
    k: Variable | Array,
    v: Variable | Array,
    mask: Variable | Array | None = None,
    causal: bool = False,
    scale: float | None = None,
    cut: Cut | None = None,
) -> Variable:
    """:func:`scaled_dot_product_attention` over a sequence that is divided among ranks, each of
    which computes some heads.

    Args:
        comm: all its ranks call this.
        q: this rank's queries ``(…, H, T, D)``; lengths may differ between ranks, and be 0.
        k, v: its keys ``(…, H, S, D)`` and values ``(…, H, S, E)``; of one head for all queries, H
            is 1.
        mask: boolean, broadcast to ``(…, H, T, n)``: at which keys of the whole sequence, in its
            order, these queries may look. If it has length 1 on the axis of the queries, it is the
            same on all ranks; else it is exchanged too.
        causal, scale, cut: as in :func:`ring_attention`.

    Returns:
        ``(…, H, T, E)``. Queries, keys and values leave in one message to each rank, means in
        another; rank r computes :func:`mnpar.plans.block` r of the heads, which may be empty, over
        the whole sequence.

    Raises:
        ValueError: the shapes do not belong together, or not to the cut.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> def program(comm):
        ...     v = mnpar.Variable(np.array([[[0.0], [2.0]]]) + 4 * comm.rank)
        ...     y = F.all_to_all_attention(
        ...         comm, np.zeros((1, 2, 1)), np.zeros((1, 2, 1)), v, causal=True
        ...     )
        ...     return y.array.ravel()
        >>> mnpar.run(program, ranks=2)  # one head: the other rank has none
        [array([0., 1.]), array([2., 3.])]

    Source:
        Jacobs et al. 2023, "DeepSpeed Ulysses", arXiv 2309.14509.
    """
    require_communicator(comm, "all_to_all_attention(comm, q, k, v)")
    q = as_variable(q)
    k = as_variable(k)
    v = as_variable(v)
    if (
        min(q.ndim, k.ndim, v.ndim) < 3
        or q.shape[-1] != k.shape[-1]
        or k.shape[-3:-1] != v.shape[-3:-1]
    ):
        raise ValueError(
            "attention: q (…, H, T, D), k (…, H, S, D), v (…, H, S, E); not "
            f"{show_shapes((q.shape, k.shape, v.shape))}"
        )
    H = q.shape[-3]
    if k.shape[-3] not in (1, H):
        raise ValueError(
            f"attention: {k.shape[-3]} heads of keys do not belong to {H} heads of queries: as "
            "many, or 1"
        )
    shown = None if mask is None else require_boolean(mask, q.xp)
    queries, keys, by_row = _lengths(comm, q.shape[-2], k.shape[-2], shown, cut)
    if shown is not None:
        shown = _heads_of(comm, shown[(None,) * (3 - shown.ndim)], queries if by_row else None, H)
    if (
        queries == keys
        and q.dtype == k.dtype == v.dtype
        and q.shape[:-2] == k.shape[:-2] == v.shape[:-2]
    ):
        D = q.shape[-1]
        joined = concat((q, k, v), axis=-1)
        arrived = exchange(comm, joined, _to_heads(keys, H, True, joined.shape[-1]))
        q, k, v = SplitAxis((0, D, 2 * D, joined.shape[-1]), joined.ndim - 1).apply((arrived,))
    else:
        q = exchange(comm, q, _to_heads(queries, H, True, q.shape[-1]))
        k, v = [
            exchange(comm, x, _to_heads(keys, x.shape[-3], x.shape[-3] == H, x.shape[-1]))
            for x in (k, v)
        ]
    y = scaled_dot_product_attention(q, k, v, shown, causal, scale)
    plan = _to_heads(queries, H, True, y.shape[-1])
    return exchange(comm, y, plan.adjoint)  # type: ignore[no-any-return]


def _lengths(
    comm: Communicator, T: int, S: int, shown: Array | None, cut: Cut | None
) -> tuple[Cut, Cut, bool]:
    """Return how queries and keys are cut, and whether the masks have a row for each query."""
    if cut is not None:
        check_cut("all_to_all_attention", cut, comm.size)
    if cut is not None and shown is None:
        return cut, cut, False
    rows = 1 if shown is None or shown.ndim < 2 else shown.shape[-2]
    told = [one.tolist() for one in comm.allgather(np.array([T, S, rows]))]
    queries, keys = [in_order([one[i] for one in told]) if cut is None else cut for i in (0, 1)]
    return queries, keys, all([one[0] == one[2] for one in told])


def _heads_of(comm: Communicator, shown: Array, cut: Cut | None, H: int) -> Array:
    """The mask of this rank's heads and all queries; of a cut, its rows come from all ranks."""
    heads, (first, last) = shown.shape[-3], block(H, comm.size, comm.rank)
    if cut is not None:
        result: Array = exchange(
            comm, shown, _to_heads(cut, heads, heads == H, shown.shape[-1])
        ).array
        return result
    return shown if heads == 1 else shown[..., first:last, :, :]
