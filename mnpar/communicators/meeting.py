"""How every collective opens: each rank says what it is in, and hears the others; in steps, or, where it may wait, at once."""

from __future__ import annotations

from typing import Any

import numpy as np

from mnpar.backend import Array
from mnpar.communicators import message
from mnpar.communicators.mailbox import Mailbox
from mnpar.communicators.message import ARRAY, FAULT, IDENTITY, NOTHING, SIZE, TUPLE, Call
from mnpar.communicators.opening import EMPTY, Opening, form_of
from mnpar.communicators.operation import complete
from mnpar.communicators.parts import table, together
from mnpar.communicators.transport import BLOCK, Steps, Transport, Waiting

_AGAIN = 10_000  # headers that are remembered


class Meeting(Mailbox):
    """The openings of the collectives of one order on one communicator."""

    by_messages = False  # the openings too

    def __init__(self, transport: Transport, order: int) -> None:
        super().__init__(transport, order)
        self._collectives = 0
        self._room = transport.rooms[self.lane]
        self._known: dict[Any, tuple[bytes, bytes, int, bytes]] = {}  # what is said of values: programs repeat themselves

    @property
    def next_number(self) -> int:
        """Of the next collective; all of them are even, and those next to them are for Answers."""
        return self._collectives

    def next_exchange(self) -> int:
        """The number of an exchange by a plan (functions/exchange.py): all ranks call it, but it has no opening."""
        self._collectives += 2
        return self._collectives - 2

    def give_back(self, number: int) -> None:
        """Let the next exchange be this one: it has not been."""
        self._collectives = number

    def _open(self, call: Call, x: Any, parts: int | None = None) -> Steps[Opening]:
        """Say what this rank is in, hear the others, and agree."""
        seq = self.next_exchange()
        waiting = self._waiting_for(call, seq)
        block, body, fault = self._say(call, x, parts, seq)
        if self.by_messages:
            raw = yield from self._hear(block, waiting)
        else:
            raw = yield self.transport.exchange(block, self.lane, waiting, call.later)
        return self._heard(Opening(raw, self.transport.size, call, seq, body), fault)

    def _open_now(self, call: Call, x: Any, parts: int | None = None) -> Opening:
        """The same, waited for at once."""
        if self.by_messages or call.later:
            return complete(self.transport, self._open(call, x, parts))
        seq = self.next_exchange()
        block, body, fault = self._say(call, x, parts, seq)
        raw = self.transport.meet(block, self.lane, lambda: self._waiting_for(call, seq))
        return self._heard(Opening(raw, self.transport.size, call, seq, body), fault)

    def _open_noted(self, call: Call, x: Array, note: bytes) -> tuple[Opening, list[bytes]]:
        """The same, with what each rank says beside its value; that may be what they are to agree by, so they have not yet."""
        seq = self.next_exchange()
        block, body, _ = self._say(call, x, None, seq, len(note))
        raw = self.transport.meet(block + note, self.lane, lambda: self._waiting_for(call, seq))
        opening = Opening(raw, self.transport.size, call, seq, body, len(note))
        self._room.heard(opening.most + len(note))
        length = len(block) + len(note)
        return opening, [raw[end - len(note) : end] for end in range(length, len(raw) + 1, length)]

    def _heard(self, opening: Opening, fault: Exception | None) -> Opening:
        if not (self.by_messages or opening.call.later):  # those are heard by each rank at another moment
            room = self._room
            if room.size > BLOCK or opening.most > BLOCK - SIZE:
                room.heard(opening.most)
        if fault is not None:
            raise fault
        return opening if opening.alike else opening.agreed()

    def _waiting_for(self, call: Call, seq: int) -> Waiting:
        return Waiting(call.name, call.site, None, 0, seq, self.order)

    def _hear(self, block: bytes, waiting: Waiting) -> Steps[bytes]:
        """What all ranks say, in rank order, if it goes by messages."""
        raise NotImplementedError

    def _say(
        self, call: Call, x: Any, parts: int | None, seq: int, less: int = 0
    ) -> tuple[bytes, Array, Exception | None]:  # fmt: skip
        """This rank's block of an opening, its value as bytes, and what is wrong with it: the others shall hear of that too.

        ``less``: bytes of the block that are left for something else.
        """
        size = (BLOCK if self.by_messages else self._room.size) - less
        key = _key(call, x, parts)
        if key in self._known:  # the common case: numbers like those of the last time, from the same line
            front, rest, nbytes, text = self._known[key]
            head = front + seq.to_bytes(8, "little") + rest
            if not self._counted(nbytes, size) or x is None:
                return head.ljust(size, b"\0"), EMPTY, None
            return (head + (x.tobytes() if parts is None else together(text, x))).ljust(size, b"\0"), EMPTY, None
        fault = None
        try:
            kind, nbytes, shape, dtype, body, on_device = form_of(x, call, parts, size - SIZE)
        except Exception as error:  # an object can fail to be pickled for any reason
            fault, reason = error, np.frombuffer(str(error).encode()[: size - SIZE], np.uint8)
            kind, nbytes, shape, dtype, body, on_device = FAULT, len(reason), (0,), "", reason, False
        head = message.pack_header(call, seq, kind, nbytes, shape, dtype, on_device)
        if key is not None and kind in (ARRAY, TUPLE, NOTHING) and len(self._known) < _AGAIN:
            text = table(tuple([p if p is None else (message.check(p), p.shape) for p in x])) if kind == TUPLE else b""
            self._known[key] = head[: IDENTITY - 8], head[IDENTITY:], nbytes, text
        inside = self._counted(nbytes, size)
        return (head + (body.tobytes() if inside else b"")).ljust(size, b"\0"), EMPTY if kind == TUPLE else body, fault

    def _counted(self, nbytes: int, size: int) -> bool:
        """Whether a value goes with the opening, to all others; it is counted then."""
        traffic, inside = self.transport.traffic, nbytes + SIZE <= size
        traffic.collectives += 1
        if inside:
            traffic.collective_bytes += (self.transport.size - 1) * nbytes
        return inside


def _key(call: Call, x: Any, parts: int | None) -> Any:
    """What tells one form of values from another; None of what is not numpy's."""
    if type(x) is np.ndarray:
        return call, x.shape, x.dtype
    if x is None:
        return call
    if parts is None or type(x) is not tuple or len(x) != parts:
        return None
    if not all([p is None or type(p) is np.ndarray for p in x]):
        return None
    return call, tuple([None if p is None else (p.shape, p.dtype) for p in x])
