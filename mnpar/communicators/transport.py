"""The transport: the small protocol behind every communicator, by which bytes get from rank to
rank.

A transport knows neither Variables nor shapes nor what a gradient is: :class:`Channel` builds all
communications on these methods, so each of them is written, and proved, once for processes, threads
and a single rank. Each transport has two lanes, forward and backward: a rank that is still in
forward can never take a gradient for its data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from mnpar.backend import Array
from mnpar.communicators.matching import MatchBuffers
from mnpar.communicators.shared_memory import SharedMemory
from mnpar.communicators.waiting import Pending, Steps, Waiting

# The kind of a message on the backward lane: with its number it makes the tag by which the message
# is matched (``numbered_tag``).
REPLY, PART, EXCHANGE, PIECE_OF_MESSAGE, PIECE_OF_PART, MATCH, COMPARE = KINDS = range(7)


def numbered_tag(limit: int, seq: int, order: int, kind: int) -> int:
    """Return the tag of a message of this kind (``KINDS``) that belongs to message, collective or
    exchange number ``seq``.
    """
    return len(KINDS) * ((8 * seq + order) % (limit // len(KINDS))) + kind


@dataclass
class Traffic:
    """Counts of what a rank has sent so far on a communicator: values and gradients.

    ``messages`` and ``bytes``: the messages to single ranks (of ``send``, ``sendrecv`` and
    ``shift``, their gradients, and those of :func:`mnpar.functions.exchange`; one that says that
    there is no gradient counts, too), and the bytes of the arrays in them, or of pickled objects.
    ``collectives``, ``collective_messages`` and ``collective_bytes``: the collectives in which the
    rank took part, the messages in which it sent their arrays to other ranks, and the bytes of the
    arrays; ``check_messages`` and ``check_bytes``: those by which ranks find out whether their
    calls match. Headers are not counted elsewhere. MPI's own collectives count as good algorithms
    send them, by trees and by halves. Thread ranks send nothing: they count what processes would
    send.
    """

    messages: int = 0
    bytes: int = 0
    collectives: int = 0
    collective_bytes: int = 0
    collective_messages: int = 0
    check_messages: int = 0
    check_bytes: int = 0

    def count(self, messages: int, nbytes: int) -> None:
        """Count messages with arrays of a collective."""
        self.collective_messages += messages
        self.collective_bytes += nbytes

    def count_check(self, messages: int, nbytes: int) -> None:
        """Count messages by which ranks find out whether their calls match."""
        self.check_messages += messages
        self.check_bytes += nbytes


class Envelope(NamedTuple):
    """A message that has arrived, and is not read yet; ``handle`` is the transport's own."""

    source: int
    tag: int
    handle: Any


class Transport(Protocol):
    """A group of ranks. Arrays here are one-dimensional, contiguous and on the host.

    A method that has to wait returns a ``Pending``, or steps that yield some; the others return at
    once, unless they say that they wait. All ranks of the group start its collectives in the same
    order.
    """

    rank: int
    size: int
    tag_limit: int  # the largest tag
    name: str
    traffic: Traffic
    # the operations that this rank has started and not finished, on all its communicators, in the
    # order of their start
    active: dict[Any, None]
    # the thread that is in a communication of this group and waits for it; 0: none
    in_use: int
    # the number of operations that are looked at between two looks for the awaited message: where
    # the transport looks again and again they take turns, so a thousand of them slow nothing down
    at_once: int
    # the buffers of collectives' matches, for each lane
    match_buffers: tuple[MatchBuffers, MatchBuffers]
    # ranks are threads of one process: they may ``meet``
    in_one_process: bool
    shared_sum: Any  # a SharedSum, once one was made; else None
    can_sum_in_memory: bool  # a SharedSum can be made

    @property
    def world_ranks(self) -> list[int]:
        """The number that each rank of the group has in the job."""

    def wait(self, pending: Pending) -> None:
        """Return when it is ready; meanwhile signals are served, other ranks' errors raised, and
        deadlocks looked for.
        """

    def pause(self) -> None:
        """Let others go on: a rank that only looks and never waits calls this in between."""

    def post(self, frame: Array, dest: int, tag: int, lane: int) -> None:
        """Start sending bytes; ``frame`` belongs to the transport from now on."""

    def post_rendezvous(
        self, header: bytes, body: Array, dest: int, tag: int, lane: int, waiting: Waiting
    ) -> Pending:
        """Start sending a header and the bytes that follow it, without a copy. The bytes must not
        change before the result is ready: then they have been taken.
        """

    def probe(self, source: int, tag: int, lane: int) -> Envelope | None:
        """Take the oldest matching message out of the queue, if there is one."""

    def read(self, envelope: Envelope, lane: int, waiting: Waiting) -> Steps[Array]:
        """Return the bytes of a message that ``probe`` gave."""

    def try_recv(
        self, source: int, tag: int, lane: int, waiting: Callable[[], Waiting]
    ) -> tuple[Array, int, int] | None:
        """Return the bytes, source and tag of the oldest matching message; None if none comes while
        it polls for a short time.
        """

    def complain(self, rank: int, text: str) -> None:
        """Let a rank raise MismatchError with this text when it next waits, because what it sent
        does not belong.
        """

    def exchange(self, block: bytes, lane: int, waiting: Waiting) -> Pending:
        """Start an allgather of blocks of one size, in rank order. Other collectives may be started
        before it is ready. (A match that is waited for at once goes by the ``match_buffers``.)
        """

    def maximum(self, words: Array, lane: int, waiting: Waiting) -> Pending:
        """Start the elementwise maximum over ranks, on all of them, of a few integers. Other
        collectives may be started before it is ready.
        """

    def meet(self, thing: Any, waiting: Waiting, join: Callable[[list[Any]], list[Any]]) -> Pending:
        """Start to gather any things of ranks ``in_one_process``. ``join`` makes a list of them, in
        rank order: once, for all, and while all wait.
        """

    def bcast(self, array: Array, root: int, lane: int, waiting: Waiting) -> Steps[None]:
        """Fill ``array`` with the root's. The caller must wait at once, as for the next two."""

    def allgather(
        self, array: Array, counts: list[int], lane: int, waiting: Waiting
    ) -> Steps[Array]:
        """Return the bytes of all ranks, joined; ``counts[r]`` of them are rank r's."""

    def reduce(
        self,
        array: Array,
        reduction: str,
        root: int | None,
        lane: int,
        waiting: Waiting,
        out: Array | None = None,
    ) -> Steps[Array]:
        """Return the elementwise reduction over ranks; on ``root`` alone, or everywhere (None). It
        may be computed into ``out``.
        """

    def reduce_in_parts(
        self,
        array: Array,
        reduction: str,
        waiting: Waiting,
        root: int | None = None,
        out: Array | None = None,
    ) -> Steps[Array]:
        """Reduce as :meth:`reduce` does, by point-to-point messages of tag ``waiting.tag``; the
        caller may also wait for it later.
        """

    def split(self, color: int | None, key: int) -> Transport | None:
        """Return the group of those who gave the same color, ordered by (key, rank). It waits."""

    def places(self) -> tuple[int, int, int, int]:
        """Return intra_rank, intra_size, inter_rank and inter_size: the rank on its machine, the
        machine among machines. It waits.
        """

    def share(self, nbytes: int) -> SharedMemory:
        """Return memory of ``nbytes`` zeros on each machine, which its ranks share. It waits;
        called right after a barrier.
        """

    def finalize(self) -> None:
        """Give the group's resources back."""

    # ---- going on without ranks that are lost; for those that can (``survives``) ----

    @property
    def survives(self) -> bool:
        """Return whether ranks can go on when others of them have ended."""

    def revoke(self) -> None:
        """Let every rank fail that waits in this group, now or later."""

    def lost(self, error: BaseException) -> bool:
        """Return whether an error says that another rank was lost, and nothing of this one."""

    def agree(self, well: bool) -> bool:
        """Return whether all ranks are there, and all are well: the same on all of them. It waits
        for the ranks that are there.
        """

    def survivors(self, well: bool) -> Transport | None:
        """Return the group of the ranks that are there and well; None on one that is not. It waits
        for the ranks that are there.
        """
