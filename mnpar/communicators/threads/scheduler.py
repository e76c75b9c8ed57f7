"""The scheduler of thread ranks: a baton goes round, and only the rank that holds it runs.

A rank that must wait hands the baton on, to the next rank (in rank order) that can go on. So a
program runs the same way each time. If no rank can go on, that is a deadlock: it is found at once,
and shown as a table with a row for each rank. A single process is a world of one rank.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Any

from mnpar import random
from mnpar.backend import Array
from mnpar.communicators.waiting import (
    ANY,
    FORWARD,
    Waiting,
    on_communicator,
    on_ranks,
    unfinished,
    untaken,
)
from mnpar.communicators.wire import read_header
from mnpar.errors import DeadlockError, MismatchError, RankFailedError


class MessageQueue:
    """The messages from one rank to another that have not been received, the oldest first."""

    def __init__(self) -> None:
        self._messages: OrderedDict[int, tuple[int, Array]] = OrderedDict()  # tag and bytes
        self._by_tag: dict[int, deque[int]] = {}
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[tuple[int, Array]]:
        return iter(self._messages.values())

    def put(self, tag: int, frame: Array) -> int:
        """Add a message; return its number."""
        number = next(self._numbers)
        self._messages[number] = tag, frame
        self._by_tag.setdefault(tag, deque()).append(number)
        return number

    def holds(self, number: int) -> bool:
        """Return whether the message of this number has not been received."""
        return number in self._messages

    def take(self, tag: int) -> tuple[int, Array] | None:
        """Take out the oldest message with this tag (or ANY); return its tag and bytes."""
        if tag == ANY:
            if not self._messages:
                return None
            tag = next(iter(self))[0]
        numbers = self._by_tag.get(tag)
        if numbers is None:
            return None
        message = self._messages.pop(numbers.popleft())
        if not numbers:
            del self._by_tag[tag]
        return message


class Meeting:
    """The contributions of ranks to one collective, by rank, and the one result that is made of
    all of them (``joined``).
    """

    __slots__ = ("joined", "things")

    def __init__(self) -> None:
        self.things: dict[int, Any] = {}
        self.joined: Any = None


class World:
    """The ranks of one program, the baton, and the messages under way."""

    def __init__(self, size: int) -> None:
        self.size, self.pid = size, os.getpid()
        # (group, lane, source, dest) -> the messages
        self.mail: dict[tuple[int, int, int, int], MessageQueue] = {}
        self.meetings: dict[Any, Meeting] = {}  # by (group, (what, number))
        self.active: list[dict[Any, None]] = [{} for _ in range(size)]  # each rank's operations
        self.groups = 1
        self.members: dict[int, list[int]] = {}  # by the number of the group
        # (group, number of its muster) -> the group of the survivors
        self.successors: dict[tuple[int, int], int] = {}
        self.revoked: set[int] = set()  # groups in which nobody waits any more
        self.failure: tuple[int, BaseException] | None = None
        self.complaints: dict[int, str] = {}
        self.done = [False] * size
        # the wait of each rank: its end, its description, and the number of its group
        self.waiting: list[tuple[Callable[[], bool], Waiting, int] | None] = [None] * size
        # plain locks: a Semaphore is a Condition, and that two of them
        self._batons = [threading.Lock() for _ in range(size)]
        for baton in self._batons:
            baton.acquire()

    def start(self) -> None:
        """Give the baton to rank 0."""
        self._batons[0].release()

    def take(self, rank: int) -> None:
        """Wait for the baton the first time."""
        self._batons[rank].acquire()

    def wait(self, rank: int, ready: Callable[[], bool], waiting: Waiting, group: int = 0) -> None:
        """Go on when ``ready()``; until then let the others run. ``group`` is that of the
        communicator.
        """
        self._raise_failure(rank)
        if ready():
            return
        if self.done[rank]:
            raise DeadlockError(
                f"rank {rank} has ended its program: wait for {waiting} inside it, the others "
                "have ended too"
            )
        self._let_others_run(rank, ready, waiting, group)

    def pause(self, rank: int) -> None:
        """Let every other rank that can go on do so first."""
        if not self.done[rank]:
            self._let_others_run(rank, lambda: True, Waiting("a pause", ""), 0)

    def _let_others_run(
        self, rank: int, ready: Callable[[], bool], waiting: Waiting, group: int
    ) -> None:
        self.waiting[rank] = (ready, waiting, group)
        numbers = random.put_aside()
        self._hand_on(rank)
        self._batons[rank].acquire()
        random.take_up(numbers)
        self.waiting[rank] = None
        self._raise_failure(rank)

    def leave(self, rank: int, error: BaseException | None) -> None:
        """Note that the rank's program has ended, and hand the baton on."""
        if error is not None and self.failure is None:
            self.failure = (rank, error)
        elif isinstance(error, DeadlockError) and self.failure is not None:
            # the failure was made where no rank stood
            first = self.failure[1]
            first.__traceback__ = first.__traceback__ or error.__traceback__
        self.done[rank] = True
        self._hand_on(rank)

    def _hand_on(self, rank: int) -> None:
        while True:
            for step in range(1, self.size + 1):
                other = (rank + step) % self.size
                if not self.done[other] and self._can_run(other):
                    self._batons[other].release()
                    return
            if not self._step_for_the_done():
                break
        if not all(self.done):
            self.failure = (rank, DeadlockError(self._table()))
            self._batons[self.done.index(False)].release()

    def _step_for_the_done(self) -> bool:
        """Go on with the operations that ended ranks have left under way, for which others may
        wait; return whether there were any.
        """
        ready = [
            one
            for rank, active in enumerate(self.active)
            if self.done[rank]
            for one in active
            if one.ready()
        ]
        for operation in ready:
            operation.step()
        return bool(ready)

    def _can_run(self, rank: int) -> bool:
        entry = self.waiting[rank]
        return self.failure is not None or rank in self.complaints or entry is None or entry[0]()

    def _raise_failure(self, rank: int) -> None:
        if rank in self.complaints:
            raise MismatchError(self.complaints.pop(rank))
        if self.failure is None:
            return
        culprit, error = self.failure
        if self.size == 1:
            self.failure = None  # the process goes on: its world can be used again
        if isinstance(error, DeadlockError):
            raise DeadlockError(*error.args)
        raise RankFailedError(
            f"rank {rank} stops because rank {culprit} failed: {type(error).__name__}: {error}"
        ) from error

    def unreceived(self) -> list[str]:
        """Return the messages that nobody took, and the operations that were never waited for and
        could not end, in words.
        """
        left = [
            unfinished(rank, str(one.waiting))
            for rank, active in enumerate(self.active)
            for one in active
        ]
        return [text for where in self.mail for text in self.untaken(where)] + left

    def untaken(self, where: tuple[int, int, int, int]) -> list[str]:
        """Return the messages of one queue of the mail, in words."""
        group, _, source, dest = where
        ends = self.members[group][dest], self.members[group][source]
        return [untaken(*ends, tag, read_header(frame).text) for tag, frame in self.mail[where]]

    def _table(self) -> str:
        rows = [f"  rank {rank}: {self._doing(rank)}" for rank in range(self.size)]
        waiting = [entry[1] for entry in self.waiting if entry is not None]
        advice = {wait.advice(any(self.done), "\n".join(rows)) for wait in waiting} - {""}
        return "\n".join(["no rank can go on, each waits for another:", *rows, *sorted(advice)])

    def _doing(self, rank: int) -> str:
        entry = self.waiting[rank]
        if entry is not None:
            _, waiting, group = entry
            beside = waiting.beside(self.members[group], rank, self.size)
            return f"waits in {waiting}{beside}{self._named(group)}{self._beside(rank, group)}"
        return "has finished" if self.done[rank] else "has not started"

    def _named(self, group: int) -> str:
        """Return the name of a group's communicator, where another one has the same ranks."""
        known = list(self.members.values())
        return on_communicator(str(group)) if known.count(self.members[group]) > 1 else ""

    def _beside(self, rank: int, here: int) -> str:
        """Describe the first message that has come to a rank and is not awaited there."""
        for (group, lane, source, dest), queue in self.mail.items():
            if lane == FORWARD and queue and self.members[group][dest] == rank:
                tag, frame = next(iter(queue))
                whom = self.members[group][source]
                text = read_header(frame).text
                there = self._named(group) or on_ranks(self.members[group])
                there = "" if group == here else there
                return (
                    f"; a message with tag {tag} from rank {whom} has come{there}, which nobody "
                    f"has received: {text}"
                )
        return ""
