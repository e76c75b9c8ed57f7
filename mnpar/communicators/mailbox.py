"""Messages from rank to rank, on one communicator and of one order of differentiation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mnpar.backend import Array
from mnpar.communicators import wire
from mnpar.communicators.operation import complete
from mnpar.communicators.transport import EXCHANGE, REPLY, Letter, Transport, numbered_tag
from mnpar.communicators.waiting import ANY, BACKWARD, FORWARD, Pending, Steps, Waiting, nothing
from mnpar.communicators.wire import OBJECT, Call, Header, read_header
from mnpar.errors import MismatchError

_LARGE = 2**17  # bytes: smaller arrays travel in one message with their header


def lies_apart(x: Any) -> bool:
    """Whether a value is sent from where it is, without a copy, after a message with its header: a
    large contiguous array.
    """
    return type(x) is np.ndarray and x.nbytes >= _LARGE and x.flags.c_contiguous


class Receive:
    """A receive that was posted: it gets the first message that matches it and no receive that was
    posted earlier.
    """

    __slots__ = ("lane", "letter", "source", "tag")

    def __init__(self, source: int, tag: int, lane: int) -> None:
        self.source, self.tag, self.lane = source, tag, lane
        self.letter: Letter | None = None

    def suits(self, letter: Letter, lane: int) -> bool:
        """Whether this receive is open, and matches the message."""
        free = self.letter is None and self.lane == lane
        return free and self.source in (ANY, letter.source) and self.tag in (ANY, letter.tag)


class Mailbox:
    """A rank's messages of one order of differentiation: 0 is forward, 1 the gradients, 2 the
    gradients of gradients …
    """

    def __init__(self, transport: Transport, order: int) -> None:
        self.transport = transport
        self.order = order
        self.lane = FORWARD if order == 0 else BACKWARD
        self._sent = [0] * transport.size
        self._posted: list[Receive] = []

    def send(self, x: Any, call: Call, dest: int, tag: int) -> int:
        """Start sending a value (array, None, or tuple, list, dict of arrays); returns the number
        of the message: it counts those from this rank to ``dest``.
        """
        seq = self._sent[dest]
        self._sent[dest] += 1
        self.transport.post(wire.encode(x, call, seq), dest, tag, self.lane)
        return seq

    def refuse(self, call: Call, dest: int, tag: int) -> None:
        """Tell a rank that what it waits for, here, will never come."""
        seq = self._sent[dest]
        self._sent[dest] += 1
        self.transport.post(wire.encode_refusal(call, seq), dest, tag, self.lane)

    def give(self, x: Any, call: Call, dest: int, tag: int) -> tuple[int, None]:
        """:meth:`send`, with nothing to wait for."""
        return self.send(x, call, dest, tag), None

    def hand(self, x: Any, call: Call, dest: int, tag: int) -> tuple[int, Pending | None]:
        """:meth:`send` of a value that will not change before the ``Pending`` is ready: a large
        array is not copied, and the ``Pending`` is ready when it has been taken. (None: the value
        was copied.)
        """
        if not lies_apart(x):
            return self.send(x, call, dest, tag), None
        seq = self._sent[dest]
        self._sent[dest] += 1
        header = wire.header_of(x, call, seq, wire.WAITED_FOR)
        waiting = Waiting(call.name, call.site, dest, tag, order=self.order, head=header)
        return seq, self.transport.post_apart(
            header, x.reshape(-1).view(np.uint8), dest, tag, self.lane, waiting
        )

    def send_object(self, obj: Any, call: Call, dest: int, tag: int) -> None:
        """Start sending a pickled object."""
        seq = self._sent[dest]
        self._sent[dest] += 1
        self.transport.post(wire.encode_object(obj, call, seq), dest, tag, self.lane)

    def recv(self, call: Call, source: int, tag: int) -> Steps[tuple[Any, Header, int, int]]:
        """Take a message: value, header, source, tag.

        Raises:
            MismatchError: an object came where an array is awaited, or the other way round.
        """
        return (yield from self._receiving(call, source, tag))

    def _receiving(self, call: Call, source: int, tag: int) -> Steps[tuple[Any, Header, int, int]]:
        """:meth:`recv` as other methods use it, so that a profile sees one message and not two."""
        waiting = self._awaiting(call, source, tag)
        letter = yield from self._letter(source, tag, self.lane, waiting)
        return self._taken(
            (yield from self.transport.read(letter, self.lane, waiting)), letter, call
        )

    def _taken(self, frame: Array, letter: Letter, call: Call) -> tuple[Any, Header, int, int]:
        """The value in a message, if it is what the call expects."""
        header = read_header(frame)
        if (header.kind == OBJECT) != (call.op == "recv_obj") or header.order != self.order:
            raise self._stray(header, letter.source, letter.tag, call)
        return wire.decode(frame, header)[0], header, letter.source, letter.tag

    def _stray(self, header: Header, source: int, tag: int, call: Call) -> MismatchError:
        """The error for a message that the call does not expect; the sender is told to raise it
        too.
        """
        wanted = "an object" if call.op == "recv_obj" else "arrays"
        text = (
            f"rank {self.transport.rank} waits in {call.name} at {call.site} for {wanted} from "
            f"rank {source}, "
            f"tag {tag}, but {header.name} at {header.site} sent {header.form}: the two calls "
            "do not belong together"
        )
        self.transport.complain(source, text)
        return MismatchError(text)

    def recv_now(
        self, receipt: Callable[[], Call], source: int, tag: int
    ) -> tuple[Any, Header, int, int]:
        """``complete(recv(receipt(), source, tag))``, of arrays, without steps where the message
        comes soon.
        """
        transport, lane = self.transport, self.lane
        if not (self._posted or transport.active):
            taken = transport.take(
                source, tag, lane, lambda: self._awaiting(receipt(), source, tag)
            )
            if taken is not None:
                frame, source, tag = taken
                header = read_header(frame)
                if header.kind == OBJECT or header.order != self.order:
                    raise self._stray(header, source, tag, receipt())
                return wire.decode(frame, header)[0], header, source, tag
        return complete(transport, self._receiving(receipt(), source, tag))

    def _awaiting(self, call: Call, source: int, tag: int) -> Waiting:
        return Waiting(call.name, call.site, source, tag, order=self.order)

    def _letter(self, source: int, tag: int, lane: int, waiting: Waiting) -> Steps[Letter]:
        """The next message of this kind: among receives that a message suits, the one that was
        posted first gets it.
        """
        posted, probe = self._posted, self.transport.probe
        if not posted and (first := probe(source, tag, lane)) is not None:
            return first
        mine = Receive(source, tag, lane)
        posted.append(mine)

        def arrived() -> bool:
            # the earlier ones have the first choice
            for receive in tuple(posted) if mine.letter is None else ():
                while receive.letter is None and (letter := self._probe(receive)) is not None:
                    next(
                        earlier for earlier in posted if earlier.suits(letter, receive.lane)
                    ).letter = letter
                if receive is mine:
                    break
            return mine.letter is not None

        try:
            if not arrived():
                yield Pending(arrived, nothing, waiting)
        finally:
            posted.remove(mine)
        assert mine.letter is not None
        return mine.letter

    def _probe(self, receive: Receive) -> Letter | None:
        """A message for a receive, or for an earlier one that it suits too.

        What has come from a source may be looked for by its tag only where no earlier receive waits
        for any tag of that source: that one gets the oldest message, which may have come after it
        was looked for, together with the one of this tag.
        """
        probe, lane = self.transport.probe, receive.lane
        if receive.tag == ANY or len(self._posted) == 1:
            return probe(receive.source, receive.tag, lane)
        earlier = self._posted[: self._posted.index(receive)]
        taken = {
            one.source
            for one in earlier
            if one.tag == ANY and one.letter is None and one.lane == lane
        }
        if ANY in taken or receive.source in taken:
            return None
        if not taken or receive.source != ANY:
            return probe(receive.source, receive.tag, lane)
        letters = (
            probe(source, receive.tag, lane)
            for source in range(self.transport.size)
            if source not in taken
        )
        return next((letter for letter in letters if letter is not None), None)

    def post(self, frame: Array, dest: int, seq: int) -> None:
        """Start sending an encoded message of exchange ``seq``."""
        self.transport.post(frame, dest, self.reply_tag(seq, EXCHANGE), BACKWARD)

    def fetch(self, call: Call, source: int, seq: int) -> Steps[tuple[Any, Header]]:
        """A rank's message of exchange ``seq``.

        Raises:
            MismatchError: it belongs to another exchange, or to another plan.
        """
        waiting = Waiting(call.name, call.site, source, ANY, seq, self.order)
        letter = yield from self._letter(source, self.reply_tag(seq, EXCHANGE), BACKWARD, waiting)
        frame = yield from self.transport.read(letter, BACKWARD, waiting)
        header = read_header(frame)
        if (header.op, header.order, header.seq, header.root) != (
            call.op,
            call.order,
            seq,
            call.root,
        ):
            raise self.misfit(
                source, f"exchange {seq} in {call.name} at {call.site}", header, "plans"
            )
        return wire.decode(frame, header)[0], header

    def misfit(self, source: int, wanted: str, header: Header, what: str) -> MismatchError:
        """The error for a message of another exchange, or of another plan; its sender is told to
        raise it too.
        """
        text = (
            f"rank {self.transport.rank} waits for {wanted} from rank {source}, but "
            f"{header.name} at {header.site} sent "
            f"{header.form} for exchange {header.seq}: the two ranks have different {what}"
        )
        self.transport.complain(source, text)
        return MismatchError(text)

    def reply_tag(self, seq: int, kind: int = REPLY) -> int:
        """The tag of message ``seq``'s gradient, or of a part of collective or exchange ``seq``:
        matched by identity, not by arrival.
        """
        return numbered_tag(self.transport.tag_limit, seq, self.order, kind)
