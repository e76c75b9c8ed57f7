"""Posted receives, and the choice of the one that gets a message.

As in MPI, a message goes to the receive that was posted first among those that it matches, and
messages of one rank are taken in the order in which they were sent. Receives are kept by what they
match, so that to post one, and to find the one for a message, takes no longer where ten thousand
others are open.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from mnpar.communicators.transport import Envelope
from mnpar.communicators.waiting import ANY

Probe: TypeAlias = Callable[[int, int, int], "Envelope | None"]  # Transport.probe


class PostedReceive:
    """A receive of messages with this source and tag (each may be ANY) on this lane."""

    __slots__ = ("abandoned", "envelope", "lane", "number", "source", "tag")

    def __init__(self, source: int, tag: int, lane: int, number: int) -> None:
        self.source, self.tag, self.lane, self.number = source, tag, lane, number
        self.envelope: Envelope | None = None  # once a message has come
        self.abandoned = False


class PostedReceives:
    """The receives of one mailbox that somebody waits for.

    Args:
        size: how many ranks may send.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._numbers = itertools.count()
        self._waited_for = 0
        # receives without a message, by lane, source and tag, in the order of their posting
        self._open: dict[tuple[int, int, int], deque[PostedReceive]] = {}
        self._of_any_tag = 0  # so many of these

    def __len__(self) -> int:
        return self._waited_for

    def add(self, source: int, tag: int, lane: int) -> PostedReceive:
        """Post a receive."""
        receive = PostedReceive(source, tag, lane, next(self._numbers))
        self._open.setdefault((lane, source, tag), deque()).append(receive)
        self._of_any_tag += tag == ANY
        self._waited_for += 1
        return receive

    def remove(self, receive: PostedReceive) -> None:
        """Forget a receive: its message is taken, or nobody waits for one any more."""
        self._waited_for -= 1
        if receive.envelope is None:
            receive.abandoned = True
            self._first(receive.source, receive.tag, receive.lane)

    def look(self, receive: PostedReceive, probe: Probe) -> bool:
        """Return whether a receive has its message; messages for earlier ones are given to them on
        the way.
        """
        while receive.envelope is None:
            envelope = self._probe(receive, probe)
            if envelope is None:
                return False
            self._give(envelope, receive.lane)
        return True

    def _give(self, envelope: Envelope, lane: int) -> None:
        """Give a message to the first receive that it matches; there must be one."""
        source, tag = envelope.source, envelope.tag
        found = [
            self._first(*key, lane)
            for key in ((source, tag), (ANY, tag), (source, ANY), (ANY, ANY))
        ]
        first = min([one for one in found if one is not None], key=lambda one: one.number)
        first.envelope = envelope
        self._first(first.source, first.tag, lane)

    def _first(self, source: int, tag: int, lane: int) -> PostedReceive | None:
        """Return the first open receive of this source and tag; drop closed ones before it."""
        queue = self._open.get((lane, source, tag))
        if queue is None:
            return None
        while queue and (queue[0].envelope is not None or queue[0].abandoned):
            queue.popleft()
            self._of_any_tag -= tag == ANY
        if queue:
            return queue[0]
        del self._open[lane, source, tag]
        return None

    def _probe(self, receive: PostedReceive, probe: Probe) -> Envelope | None:
        """Return a message for a receive, or for an earlier one.

        If an earlier receive waits for any tag of a source, the oldest message of that source must
        be taken, whatever its tag: a search for this tag would give messages out in another order.
        """
        source, tag, lane = receive.source, receive.tag, receive.lane
        if tag == ANY or not self._of_any_tag:
            return probe(source, tag, lane)
        if self._is_before(ANY, receive):
            return probe(source, ANY, lane)
        for peer in range(self._size) if source == ANY else (source,):
            envelope = probe(peer, ANY if self._is_before(peer, receive) else tag, lane)
            if envelope is not None:
                return envelope
        return None

    def _is_before(self, source: int, receive: PostedReceive) -> bool:
        """Return whether an open receive of any tag of this source was posted earlier."""
        first = self._first(source, ANY, receive.lane)
        return first is not None and first.number < receive.number
