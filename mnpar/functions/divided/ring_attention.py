"""Attention over a sequence that is divided among ranks: blocks of keys and values are passed round
a ring of ranks.

Each rank keeps its queries. While it computes their attention to the block of keys that it holds,
it sends this block to the next rank and receives another one; after P - 1 hops all queries have
attended to all keys (Liu, Zaharia and Abbeel 2023, arXiv 2310.01889). No rank ever holds more than
two blocks of keys, nor the scores of more than one tile (kernels/attention_tiles.py), and only the
logarithms of sums are kept for backward. In backward the keys make the same way again, their
gradients follow one hop behind, and return to the keys' ranks at the end. So a rank receives each
block that it needs once forward, and block and gradient once backward; in causal attention no block
is sent further than to the last rank whose queries attend to it.

Backward is written for arrays and Variables alike, so it can be differentiated; its hops are then
functions of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from mnpar.backend import Array
from mnpar.communicators.collectives import ALLGATHER
from mnpar.communicators.communicator import require_communicator
from mnpar.communicators.operation import Operation
from mnpar.errors import MismatchError
from mnpar.functions.array.joining import Concat
from mnpar.functions.communication.base import Communication
from mnpar.functions.communication.exchange import Exchange
from mnpar.functions.connection.attention import prepare_arguments
from mnpar.functions.connection.tiled_attention import TiledAttention
from mnpar.plans import Plan, rows_of
from mnpar.plans.ring import Cut, check_cut
from mnpar.variable import Variable

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator


class Hop(Exchange):
    """An exchange inside another function, which says of what order it is, and its number."""

    def __init__(self, of: Communication, plan: Plan, order: int, number: int) -> None:
        super().__init__(of.comm, plan)
        self.site, self.order, self.seq = of.site, order, number


def _form(told: list[int]) -> str:
    """Return what ranks must have in common, from what one of them told."""
    causal, whole, D, E, dtype, *leading = told[3:]
    return (
        f"causal={bool(causal)}, {'no cut' if whole else 'a cut'}, D={D}, E={E}, leading axes "
        f"{tuple(leading)} and {np.dtype(chr(dtype))}"
    )


class RingAttention(TiledAttention, Communication):
    """Attention to the keys of all ranks, which are passed round the ring; arguments as for
    TiledAttention.
    """

    op, outputs_are = "ring_attention", "parts"
    communicates = True

    def __init__(
        self, comm: Communicator, causal: bool, scale: float, shown: Array | None, cut: Cut | None
    ) -> None:
        Communication.__init__(self, comm)
        TiledAttention.__init__(self, causal, scale, shown, cut)
        self.rank = comm.rank
        self._landing: Callable[[], tuple[Any, ...]] | None = None

    def forward(self, q: Array, k: Array, v: Array) -> Any:
        found = super().forward(q, k, v)
        # of the hops of backward
        self.numbers = [self.channel.take_number() for _ in range(2 * self.ways.ring.length)]
        return found

    def _tell(self, mine: list[int], k: Array, v: Array) -> list[list[int]]:
        form = (
            self.causal,
            self.cut is None,
            k.shape[-1],
            v.shape[-1],
            ord(k.dtype.char),
            *k.shape[:-2],
        )
        told, wants = self.channel.now(ALLGATHER, np.array([*mine, *form], "i8"), self.call())
        self.agreed(None, wants)
        return [one.tolist() for one in told]

    def _check(self, told: list[list[int]]) -> None:
        for rank, one in enumerate(told):
            if one[3:] != told[0][3:]:
                raise MismatchError(
                    f"{self.label}: rank {rank} has {_form(one)}, rank 0 {_form(told[0])}: all "
                    "ranks call it with the same, and only T and S may differ"
                )
            length = one[0] if self.cut is None else sum([b - a for a, b in self.cut[rank]])
            if self.cut is not None and not one[0] == one[1] == length:
                raise ValueError(
                    f"{self.label}: rank {rank} has {one[0]} queries and {one[1]} keys, but by "
                    f"the cut {length}"
                )
        super()._check(told)

    def _begin(
        self, plan: Plan, order: int, number: int, x: Any, record: bool
    ) -> Callable[[], tuple[Any, ...]]:
        """Send and let come what a plan says; what comes is waited for when the result is
        called.
        """
        hop = Hop(self, plan, order, number)
        xs = () if x is None else (x,)
        if not record:
            return Operation(self.comm.transport, hop.steps(*xs)).wait
        coming = hop.begin(*xs)
        return lambda: tuple([None if y.array is None else y for y in coming()])

    def _round(self, k: Any, v: Any, order: int, record: bool) -> Iterator[tuple[int, Any, Any]]:
        """The keys and values that are on this rank after 0, 1, … hops; the next ones are on their
        way meanwhile.
        """
        onward = self.ways.onward
        D = k.shape[-1]
        kv = Concat(-1)(k, v) if onward else None
        for h, plan in enumerate(onward):
            coming = self._begin(plan, order, self.numbers[h] if order else 0, kv, record)
            yield h, k, v
            (kv,) = coming()
            k = kv[..., :D]
            v = kv[..., D:]
        yield len(onward), k, v

    def _hand_on(
        self, h: int, added: list[Any], own: list[Any], k: Any, v: Any, record: bool
    ) -> None:
        """Let what was added to the gradients of others' keys go where they go."""
        (ring, _, homeward), carried = self.ways, self._landed(h - 1, own)
        held = ring.held(self.rank, h)
        if carried is not None:
            parts = [carried[..., rows, :] for rows in rows_of(held)]
            added = [
                part if one is None else one + part for one, part in zip(added, parts, strict=True)
            ]
        total = self._stacked(added, held, (*k.shape[:-1], k.shape[-1] + v.shape[-1]), k)
        self._landing = self._begin(
            homeward[h - 1], 1, self.numbers[ring.length + h - 1], total, record
        )

    def _landed(self, hops: int, own: list[Any]) -> Any:
        """Return what comes with the keys that are here now; what comes home is added to this
        rank's own.
        """
        if self._landing is None:
            return None
        (carried, home), ring, self._landing = self._landing(), self.ways.ring, None
        ended = ring.ended(self.rank, hops)
        for i, rows in zip(ended, rows_of([ring.keys[self.rank][i] for i in ended]), strict=True):
            if home is not None:
                own[i] = home[..., rows, :] if own[i] is None else own[i] + home[..., rows, :]
        return carried


def ring_attention(
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
    which keeps its queries.

    Args:
        comm: all its ranks call this.
        q: this rank's queries ``(…, T, D)``; lengths may differ between ranks, and be 0.
        k, v: its keys ``(…, S, D)`` and values ``(…, S, E)``.
        mask: boolean, broadcast to ``(…, T, n)``: True where one of this rank's queries attends to
            one of the n keys of the whole sequence, in its order.
        causal: a query attends only to keys up to its own position; the last query is at the
            position of the last key.
        scale: s; None is 1 / √D.
        cut: which stretches of the sequence each rank has, the same on all ranks; None: blocks in
            rank order, of any lengths. :func:`mnpar.plans.zigzag` makes causal attention equal work
            for all ranks; :func:`recut` leads there.

    Returns:
        ``(…, T, E)``. Time on P ranks is 1/P, and no array is larger than a rank's queries times
        one block of keys. Each rank receives each block of keys and values that its queries attend
        to once forward and once backward, and the block's gradient once backward.

    Raises:
        ValueError: the shapes do not fit together, or not to the cut.
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
        Liu, Zaharia and Abbeel 2023, "Ring attention with blockwise transformers", arXiv
        2310.01889.
    """
    require_communicator(comm, "ring_attention(comm, q, k, v)")
    q, k, v, shown, s = prepare_arguments(q, k, v, mask, scale)
    if cut is not None:
        check_cut("ring_attention", cut, comm.size)
    return RingAttention(comm, causal, s, shown, cut).apply((q, k, v))[0]
