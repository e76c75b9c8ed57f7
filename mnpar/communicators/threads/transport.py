"""Ranks that are threads of one process: for tests, teaching and debugging, never for speed.

Only one of them runs at a time (``World``), so they exchange entries of dicts that no lock guards.
"""

from __future__ import annotations

import contextvars
import itertools
import os
import sys
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, cast

import numpy as np

from mnpar.backend import Array
from mnpar.communicators.matching import (
    MatchBuffer,
    MatchBuffers,
    SharedBlocks,
    block_sizes,
)
from mnpar.communicators.operation import wait
from mnpar.communicators.reduction import (
    DIRECT,
    GATHERED,
    bytes_of_reduction,
    count_in_halves,
    messages_of_reduction,
    reduce_arrays,
    rounds,
)
from mnpar.communicators.shared_memory import OwnMemory, allocate
from mnpar.communicators.threads.scheduler import Meeting, MessageQueue, World
from mnpar.communicators.transport import Envelope, Traffic
from mnpar.communicators.waiting import ANY, BACKWARD, FORWARD, Pending, Steps, Waiting, nothing
from mnpar.errors import CommunicatorError, DeadlockError, RankFailedError, UnreceivedWarning
from mnpar.runtime.callsite import call_site, warn_user
from mnpar.runtime.process import NO_RANK

# ranks: more share what is found in the blocks of all; of so few each keeps its last match
_FEW = 8


def _joined(blocks: list[bytes]) -> bytes:
    joined = b"".join(blocks)
    return joined if len(blocks) <= _FEW else SharedBlocks(joined)


class ThreadMatchBuffer(MatchBuffer):
    """The matches among thread ranks: each is an ``exchange``."""

    def __init__(self, transport: ThreadTransport, lane: int, size: int) -> None:
        super().__init__(size, transport.size)
        self._transport, self._lane = transport, lane

    def exchange(self) -> bool:
        return False

    def wait(self, waiting: Waiting) -> None:
        pending = self._transport.exchange(bytes(self.mine), self._lane, waiting)
        wait(self._transport, pending)
        joined = pending.value()
        if type(joined) is SharedBlocks:
            self.whole = joined
        elif self.whole:
            self.whole[:] = joined
        else:
            self.whole = bytearray(joined)

    def maximum(self, words: Array, waiting: Waiting) -> Array:
        pending = self._transport.maximum(words, self._lane, waiting)
        wait(self._transport, pending)
        largest: Array = pending.value()
        return largest


class ThreadTransport:
    """The transport of thread ranks."""

    name = "threads"
    in_one_process = True
    at_once = sys.maxsize  # a rank that cannot go on is found out by one look
    shared_sum: Any = None
    can_sum_in_memory = False
    tag_limit = 2**31 - 1

    def __init__(self, world: World, group: int, members: list[int], rank: int) -> None:
        self._world, self._group, self._members = world, group, members
        self.rank, self.size = rank, len(members)
        self._me = members[rank]
        world.members[group] = members
        self._splits = self._shares = self._musters = 0  # so far
        self.active = world.active[self._me]
        self.match_buffers = (
            MatchBuffers(self._new_buffers(FORWARD)),
            MatchBuffers(self._new_buffers(BACKWARD)),
        )
        self.traffic = Traffic()
        self.in_use = 0

    @property
    def world_ranks(self) -> list[int]:
        return self._members

    def _new_buffers(self, lane: int) -> list[ThreadMatchBuffer]:
        return [ThreadMatchBuffer(self, lane, size) for size in block_sizes(self.size)]

    def post(self, frame: Array, dest: int, tag: int, lane: int) -> None:
        self._queue(dest, lane).put(tag, frame)

    def _queue(self, dest: int, lane: int) -> MessageQueue:
        return self._world.mail.setdefault((self._group, lane, self.rank, dest), MessageQueue())

    def post_rendezvous(
        self, header: bytes, body: Array, dest: int, tag: int, lane: int, waiting: Waiting
    ) -> Pending:
        frame = np.concatenate([np.frombuffer(header, np.uint8), body])
        queue = self._queue(dest, lane)
        number = queue.put(tag, frame)
        return Pending(lambda: not queue.holds(number), nothing, waiting)

    def wait(self, pending: Pending) -> None:
        world, group = self._world, self._group
        world.wait(
            self._me,
            lambda: pending.ready() or group in world.revoked,
            pending.waiting,
            group,
        )
        if group in world.revoked and not pending.ready():
            raise RankFailedError(
                f"rank {self.rank} stops to wait in {pending.waiting}: a rank of its "
                "communicator is lost"
            )

    def pause(self) -> None:
        self._world.pause(self._me)

    def probe(self, source: int, tag: int, lane: int) -> Envelope | None:
        for peer in range(self.size) if source == ANY else (source,):
            queue = self._world.mail.get((self._group, lane, peer, self.rank))
            if queue and (message := queue.take(tag)) is not None:
                return Envelope(peer, *message)
        return None

    def read(self, envelope: Envelope, lane: int, waiting: Waiting) -> Steps[Array]:
        frame: Array = envelope.handle
        return frame
        yield  # makes it steps, though it never waits

    def try_recv(
        self, source: int, tag: int, lane: int, waiting: Callable[[], Waiting]
    ) -> tuple[Array, int, int] | None:
        envelope = self.probe(source, tag, lane)
        return None if envelope is None else (envelope.handle, envelope.source, envelope.tag)

    def complain(self, rank: int, text: str) -> None:
        self._world.complaints[self._members[rank]] = text

    def _meet(
        self, thing: Any, key: Any, waiting: Waiting, join: Callable[[list[Any]], Any] = list
    ) -> Pending:
        """Start an allgather of any things.

        Args:
            thing: this rank's.
            key: the same on all ranks.
            waiting: describes the wait.
            join: makes the value of the things in rank order; once, for all ranks.
        """
        meetings = self._world.meetings
        key = (self._group, key)
        meeting = meetings.setdefault(key, Meeting())
        meeting.things[self.rank] = thing

        def value() -> Any:
            if meeting.joined is None:
                if meetings.get(key) is meeting:
                    del meetings[key]  # ranks that come later hold it already
                meeting.joined = join([meeting.things[rank] for rank in range(self.size)])
            return meeting.joined

        return Pending(lambda: len(meeting.things) == self.size, value, waiting)

    def exchange(self, block: bytes, lane: int, waiting: Waiting) -> Pending:
        return self._meet(block, ("match", waiting.order, waiting.seq), waiting, _joined)

    def maximum(self, words: Array, lane: int, waiting: Waiting) -> Pending:
        key = ("compared", waiting.order, waiting.seq)
        return self._meet(words, key, waiting, np.maximum.reduce)

    def meet(self, thing: Any, waiting: Waiting, join: Callable[[list[Any]], list[Any]]) -> Pending:
        return self._meet(thing, ("things", waiting.order, waiting.seq), waiting, join)

    def bcast(self, array: Array, root: int, lane: int, waiting: Waiting) -> Steps[None]:
        mine = array.copy() if self.rank == root else None
        sent = (yield self._meet(mine, ("data", waiting.order, waiting.seq), waiting))[root]
        if self.rank != root:  # the root's may be read-only
            array[...] = sent

    def allgather(
        self, array: Array, counts: list[int], lane: int, waiting: Waiting
    ) -> Steps[Array]:
        others = self.size - 1
        self.traffic.count(
            rounds(self.size) if self.size > DIRECT else others, others * array.nbytes
        )
        key = ("data", waiting.order, waiting.seq)
        joined: Array = yield self._meet(array.copy(), key, waiting, np.concatenate)
        return joined.copy()

    def reduce(
        self,
        array: Array,
        reduction: str,
        root: int | None,
        lane: int,
        waiting: Waiting,
        out: Array | None = None,
    ) -> Steps[Array]:
        if self.size <= DIRECT and array.nbytes > GATHERED:
            return (yield from self.reduce_in_parts(array, reduction, waiting, root))
        if self.size <= DIRECT:
            self.traffic.count(self.size - 1, (self.size - 1) * array.nbytes)
        else:
            self.traffic.count(*count_in_halves(array.nbytes, self.rank, self.size, root))
        return (yield from self._reduce(array, reduction, waiting))

    def reduce_in_parts(
        self,
        array: Array,
        reduction: str,
        waiting: Waiting,
        root: int | None = None,
        out: Array | None = None,
    ) -> Steps[Array]:
        if self.size > DIRECT:
            self.traffic.count(*count_in_halves(array.nbytes, self.rank, self.size, None))
        else:
            self.traffic.count(
                messages_of_reduction(self.rank, self.size, root),
                bytes_of_reduction(array, self.rank, self.size, root),
            )
        return (yield from self._reduce(array, reduction, waiting))

    def _reduce(self, array: Array, reduction: str, waiting: Waiting) -> Steps[Array]:
        key = ("data", waiting.order, waiting.seq)
        reduce = partial(reduce_arrays, reduction=reduction)
        total: Array = yield self._meet(array.copy(), key, waiting, reduce)
        return total.copy()

    def split(self, color: int | None, key: int) -> ThreadTransport | None:
        self._splits += 1
        waiting = Waiting("split", "")
        keys = self._now(self._meet((color, key), ("split", self._splits), waiting))
        groups = self._now(self._meet(self._new_groups(keys), ("groups", self._splits), waiting))[0]
        if color is None:
            return None
        mine = sorted((k, rank) for rank, (c, k) in enumerate(keys) if c == color)
        members = [self._members[rank] for _, rank in mine]
        return ThreadTransport(
            self._world, groups[color], members, [rank for _, rank in mine].index(self.rank)
        )

    def _now(self, meeting: Pending) -> Any:
        wait(self, meeting)
        return meeting.value()

    def _new_groups(self, keys: list[tuple[int | None, int]]) -> dict[int, int]:
        """Number the new groups on rank 0, for all."""
        if self.rank != 0:
            return {}
        colors = list(dict.fromkeys(color for color, _ in keys if color is not None))
        first = self._world.groups
        self._world.groups = self._world.groups + len(colors)
        return {color: first + i for i, color in enumerate(colors)}

    def duplicate(self) -> ThreadTransport:
        """Return the same ranks with messages of their own."""
        if os.getpid() != self._world.pid and self.size > 1:
            raise CommunicatorError(f"{call_site()}: {NO_RANK}")
        return self.split(0, self.rank) or self

    def places(self) -> tuple[int, int, int, int]:
        return self.rank, self.size, 0, 1

    def share(self, nbytes: int) -> OwnMemory:
        self._shares += 1
        mine = allocate(nbytes) if self.rank == 0 else None
        return OwnMemory(
            self._now(self._meet(mine, ("share", self._shares), Waiting("share", "")))[0]
        )

    def unreceived(self) -> list[str]:
        """Return the messages that have arrived and that nobody took, in words."""
        mine = [
            where for where in self._world.mail if (where[0], where[3]) == (self._group, self.rank)
        ]
        return [text for where in mine for text in self._world.untaken(where)]

    def finalize(self) -> None:
        pass

    # ---- going on without ranks that are lost ----

    survives = True

    def revoke(self) -> None:
        self._world.revoked.add(self._group)

    def lost(self, error: BaseException) -> bool:
        return isinstance(error, RankFailedError)

    def agree(self, well: bool) -> bool:
        said = self._muster(well)
        return len(said) == self.size and all(said.values())

    def survivors(self, well: bool) -> ThreadTransport | None:
        said = self._muster(well)
        left = [rank for rank in range(self.size) if said.get(rank)]
        if not well:
            return None
        group = self._world.successors.setdefault((self._group, self._musters), self._world.groups)
        self._world.groups = max(self._world.groups, group + 1)
        return ThreadTransport(
            self._world, group, [self._members[rank] for rank in left], left.index(self.rank)
        )

    def _muster(self, well: bool) -> dict[int, bool]:
        """Exchange ``well`` among the ranks whose programs have not ended; return what each of them
        gave.
        """
        self._musters += 1
        world = self._world
        key = (self._group, ("muster", self._musters))
        said: dict[int, bool] = world.meetings.setdefault(key, Meeting()).things
        said[self.rank] = well
        others = [(rank, self._members[rank]) for rank in range(self.size)]
        world.wait(
            self._me,
            lambda: all([r in said or world.done[m] for r, m in others]),
            Waiting("those that are left", ""),
        )
        return said


current_transport: contextvars.ContextVar[ThreadTransport | None] = contextvars.ContextVar(
    "mnpar.transport", default=None
)

# tells thread ranks apart, those of other programs too:
claimant: contextvars.ContextVar[int] = contextvars.ContextVar("mnpar.claimant", default=0)
_numbers = itertools.count(1)
_owners: weakref.WeakKeyDictionary[Any, tuple[Any, int]] = weakref.WeakKeyDictionary()


def claim(thing: Any) -> None:
    """Note that this rank is going to change ``thing``: objects that were made outside of the
    program are shared by all thread ranks.

    Raises:
        RuntimeError: another thread rank has claimed it too.
    """
    transport = current_transport.get()
    if transport is not None:
        world, rank = _owners.get(thing, (None, 0))
        if world is not None and world() is transport._world and rank != transport.rank:
            raise RuntimeError(
                f"rank {transport.rank}: this {type(thing).__name__} is rank {rank}'s too. "
                "Thread ranks share what is made "
                "outside of the program: make the model inside it, or take a copy.deepcopy there"
            )
        _owners[thing] = weakref.ref(transport._world), transport.rank


T = TypeVar("T")


def run_threads(program: Callable[[ThreadTransport], T], ranks: int) -> list[T]:
    """Run ``program`` on thread ranks; return their results in rank order, or raise the error of
    the first rank that failed, with a note of its number.
    """
    __tracebackhide__ = True
    world = World(ranks)
    results: list[T | None] = [None] * ranks
    ends: list[SystemExit] = []

    def body(rank: int) -> None:
        transport = ThreadTransport(world, 0, list(range(ranks)), rank)
        current_transport.set(transport)
        claimant.set(next(_numbers))
        error: BaseException | None = None
        world.take(rank)
        try:
            results[rank] = program(transport)
        except BaseException as caught:
            # it ends as a program does: whoever waits for it says so
            if isinstance(caught, SystemExit) and not caught.code:
                ends.append(caught)
            else:
                error = caught
        world.leave(rank, error)

    threads = [
        threading.Thread(
            target=contextvars.copy_context().run,
            args=(body, rank),
            name=f"rank {rank}",
            daemon=True,
        )
        for rank in range(ranks)
    ]
    for thread in threads:
        thread.start()
    world.start()
    try:
        for thread in threads:
            thread.join()
    except KeyboardInterrupt as interrupt:
        # the ranks stop at their next communication; they are daemons if they have none
        world.failure = (
            0,
            interrupt,
        )
        raise
    if world.failure is not None:
        rank, error = world.failure
        if not isinstance(error, DeadlockError) and sys.version_info >= (3, 11):
            error.add_note(f"on rank {rank} of {ranks}")
        raise error
    for text in world.unreceived():
        warn_user(text, category=UnreceivedWarning)
    if ends:
        raise ends[0]
    return cast("list[T]", results)
