"""The opening of a collective: each rank states its call and its value, and learns what all ranks
have stated.

It comes in two forms, as steps and as a function that waits: the second does the same with less
overhead.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mnpar.communicators import message
from mnpar.communicators.mailbox import Mailbox
from mnpar.communicators.message import ARRAY, FAULT, NOTHING, SIZE, TUPLE, Call
from mnpar.communicators.opening import EMPTY, Opening, form_of
from mnpar.communicators.opening_buffers import BLOCK, OpeningBuffer, Statement
from mnpar.communicators.opening_parts import forms_of, part, table
from mnpar.communicators.transport import Steps, Transport, Waiting


class Handshake(Mailbox):
    """The openings of the collectives of one order on one communicator."""

    by_messages = False  # whether openings, too, go by point-to-point messages (adjoint_channel.py)

    def __init__(self, transport: Transport, order: int) -> None:
        super().__init__(transport, order)
        self._collectives = 0
        self._buffers = transport.opening_buffers[self.lane]

    @property
    def next_number(self) -> int:
        """The number of the next collective. All are even; the odd number after each is for its
        adjoint (AdjointChannel).
        """
        return self._collectives

    def next_exchange(self) -> int:
        """Take a number for an exchange by a plan (functions/exchanges.py), which all ranks call,
        and which has no opening.
        """
        self._collectives += 2
        return self._collectives - 2

    def give_back(self, number: int) -> None:
        """Give the last number back: what it was taken for did not take place."""
        self._collectives = number

    def _open(self, call: Call, x: Any, parts: int | None = None) -> Steps[Opening]:
        """Exchange the blocks of all ranks, and check that their calls match."""
        if not (self.by_messages or call.later):
            return self._open_now(call, x, parts)
        seq = self.next_exchange()
        size = BLOCK if self.by_messages else self._buffers.now.size
        statement = self._words(call, x, parts, size)
        self.transport.traffic.collectives += 1
        self.transport.traffic.collective_bytes += statement.sent
        block = message.numbered(statement.words, seq).ljust(size, b"\0")
        waiting = self._waiting_for(call, seq, statement)
        if self.by_messages:
            raw = yield from self._hear(block, waiting)
        else:
            raw = yield self.transport.exchange(block, self.lane, waiting)
        opening = Opening(raw, self.transport.size, self.transport.rank, call, statement)
        opening.seq = seq
        return opening.agreed()

    def _open_now(self, call: Call, x: Any, parts: int | None = None, note: bytes = b"") -> Opening:
        """:meth:`_open`, waited for at once. With a note the calls are not checked yet: the caller
        looks at the notes first.
        """
        buffers = self._buffers
        seq = self._collectives
        less = len(note)
        self._collectives = seq + 2
        buffer, number = buffers.now, seq.to_bytes(8, "little")
        key = (call, x.shape, x.dtype, less) if type(x) is np.ndarray else _key(call, x, parts)
        statement = buffer.known.get(key) or self._words(
            call, x, parts, buffer.size - less, key, buffer
        )
        traffic = self.transport.traffic
        traffic.collectives += 1
        traffic.collective_bytes += statement.sent
        buffer.fill(statement, number, x)
        if note:
            buffer.mine[-less:] = note
        if not buffer.exchange():
            buffer.wait(self._waiting_for(call, seq, statement))
        size = self.transport.size
        me = self.transport.rank
        opening = statement.heard(buffer.whole, number) or Opening(
            buffer.whole, size, me, call, statement, less
        )
        opening.seq = seq
        # else some may have a note and others none, and choose different buffers
        if opening.tells and opening.together:
            buffers.adapt(opening.asks)
        return opening if note or opening is statement.opening else opening.agreed()

    def _waiting_for(self, call: Call, seq: int, statement: Statement) -> Waiting:
        return Waiting(call.name, call.site, None, 0, seq, self.order, statement.words)

    def _hear(self, block: bytes, waiting: Waiting) -> Steps[bytes]:
        """The blocks of all ranks, joined in rank order, where they go by messages."""
        raise NotImplementedError

    def _words(
        self,
        call: Call,
        x: Any,
        parts: int | None,
        size: int,
        key: Any = None,
        buffer: OpeningBuffer | None = None,
    ) -> Statement:
        """What this rank states of a value, for a block of ``size`` bytes.

        With a key it is kept in the buffer, if it will be the same for the next value of this form.
        """
        fault = None
        try:
            kind, nbytes, shape, dtype, body, on_device = form_of(x, call, parts, size - SIZE)
        except Exception as error:  # an object can fail to be pickled for any reason
            fault = error
            reason = np.frombuffer(str(error).encode(errors="replace")[: size - SIZE], np.uint8)
            kind = FAULT
            nbytes = len(reason)
            shape = (0,)
            dtype = ""
            body = reason
            on_device = False
        header = message.pack_header(call, 0, kind, nbytes, shape, dtype, on_device)
        inside = nbytes + SIZE <= size
        statement = Statement(
            header,
            (self.transport.size - 1) * nbytes if inside else 0,
            EMPTY if kind == TUPLE else body,
            fault,
        )
        if buffer is None or key is None or kind not in (ARRAY, TUPLE, NOTHING):
            statement.words += body.tobytes() if inside else b""
            return statement
        statement.body, statement.again = EMPTY, True
        if inside and kind == ARRAY:
            statement.place = np.ndarray(x.shape, x.dtype, buffer.mine, SIZE)
        elif inside and kind == TUPLE:
            text = table(forms_of(x))
            statement.words += text
            statement.parts = [
                (i, part(buffer.mine, SIZE, text, i)) for i, p in enumerate(x) if p is not None
            ]
        buffer.keep(key, statement)
        return statement


def _key(call: Call, x: Any, parts: int | None) -> Any:
    """The key under which a buffer keeps what is stated of values of this form; None if they are
    not all numpy arrays.
    """
    if x is None:
        return call
    if parts is None or type(x) is not tuple or len(x) != parts:
        return None
    forms = [None if p is None else (p.shape, p.dtype) if type(p) is np.ndarray else 0 for p in x]
    return None if 0 in forms else (call, *forms)
