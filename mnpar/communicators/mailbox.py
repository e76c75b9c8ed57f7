"""Messages from rank to rank, on one communicator and of one order of differentiation."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from threading import get_ident
from typing import Any

import numpy as np

from mnpar.backend import Array
from mnpar.communicators import wire
from mnpar.communicators.operation import complete, used_twice
from mnpar.communicators.posted_receives import PostedReceives
from mnpar.communicators.transport import EXCHANGE, REPLY, Envelope, Transport, numbered_tag
from mnpar.communicators.waiting import ANY, BACKWARD, FORWARD, Pending, Steps, Waiting, nothing
from mnpar.communicators.wire import CUT_ALIKE, OBJECT, Call, Header, read_header
from mnpar.errors import CommunicatorError, MismatchError

EAGER_LIMIT = 2**17  # bytes: smaller arrays travel in one message with their header


def is_rendezvous(x: Any) -> bool:
    """Return whether a value is sent from where it is, without a copy, after a message with its
    header: a large contiguous array.
    """
    return type(x) is np.ndarray and x.nbytes >= EAGER_LIMIT and x.flags.c_contiguous


class Mailbox:
    """A rank's messages of one order of differentiation: 0 is forward, 1 the gradients, 2 the
    gradients of gradients …
    """

    def __init__(self, transport: Transport, order: int) -> None:
        self.transport = transport
        self.order = order
        self.lane = FORWARD if order == 0 else BACKWARD
        # the numbers of messages to each rank
        self._sent: defaultdict[int, itertools.count[int]] = defaultdict(itertools.count)
        self._posted = PostedReceives(transport.size)

    def send(self, x: Any, call: Call, dest: int, tag: int) -> int:
        """Start sending a value (array, None, or tuple, list, dict of arrays); return the number of
        the message among those from this rank to ``dest``.
        """
        seq = next(self._sent[dest])
        frame = wire.encode(x, call, seq)
        traffic = self.transport.traffic
        traffic.messages += 1
        traffic.bytes += x.nbytes if type(x) is np.ndarray else wire.bytes_of(x)
        self.transport.post(frame, dest, tag, self.lane)
        return seq

    def refuse(self, call: Call, dest: int, tag: int) -> None:
        """Tell a rank that the gradient which it awaits from this one will never come."""
        seq = next(self._sent[dest])
        self._count(0)
        self.transport.post(wire.encode_refusal(call, seq), dest, tag, self.lane)

    def send_nocopy(self, x: Any, call: Call, dest: int, tag: int) -> tuple[int, Pending | None]:
        """Start sending a value that will not change before the ``Pending`` is ready. A large array
        is not copied, and the ``Pending`` is ready when the receiver has it; None: the value was
        copied.
        """
        if not is_rendezvous(x):
            return self.send(x, call, dest, tag), None
        seq = next(self._sent[dest])
        header = wire.pack_header(
            call, seq, wire.ARRAY, x.nbytes, x.shape, x.dtype, wire.WAITED_FOR
        )
        waiting = Waiting(call.name, call.site, dest, tag, order=self.order, head=header)
        self._count(x.nbytes)
        return seq, self.transport.post_rendezvous(
            header, x.reshape(-1).view(np.uint8), dest, tag, self.lane, waiting
        )

    def send_object(self, obj: Any, call: Call, dest: int, tag: int) -> None:
        """Start sending a pickled object."""
        seq = next(self._sent[dest])
        frame = wire.encode_object(obj, call, seq)
        self._count(frame.nbytes - wire.SIZE)
        self.transport.post(frame, dest, tag, self.lane)

    def _count(self, nbytes: int) -> None:
        """Count a message."""
        self.transport.traffic.messages += 1
        self.transport.traffic.bytes += nbytes

    def recv(
        self,
        call: Callable[[], Call],
        source: int,
        tag: int,
        later: bool = False,
        objects: bool = False,
    ) -> Steps[tuple[Any, Header, int, int]]:
        """Receive a message; return value, header, source and tag.

        Args:
            call: returns the call of this rank, which is needed only if the message does not come
                soon, or does not belong.
            source, tag: of the message; ANY.
            later: let other communications of this rank go on where it has to wait; else it waits
                itself, in :meth:`recv_now`.
            objects: whether a pickled object is awaited, and not arrays.

        Raises:
            MismatchError: an object came where an array is awaited, or the other way round.
        """
        if not later:
            return self.recv_now(call, source, tag, objects)
        waiting = self._awaiting(call(), source, tag)
        envelope = yield from self._arrived(source, tag, self.lane, waiting)
        frame = yield from self.transport.read(envelope, self.lane, waiting)
        return self._read(frame, envelope.source, envelope.tag, call, objects)

    def recv_now(
        self, call: Callable[[], Call], source: int, tag: int, objects: bool = False
    ) -> tuple[Any, Header, int, int]:
        """Receive a message, and wait for it: :meth:`recv` has the arguments. A message that comes
        soon takes no steps.
        """
        transport = self.transport
        if transport.in_use:
            raise self.used_twice(call())
        transport.in_use = get_ident()
        try:
            received = self._poll(call, source, tag)
            if received is not None:
                return self._read(*received, call, objects)
            return complete(transport, self.recv(call, source, tag, True, objects))
        finally:
            transport.in_use = 0

    def used_twice(self, call: Call) -> CommunicatorError:
        """Return the error of a call that is made while another one, on this communicator, waits in
        another thread.
        """
        return used_twice(self.transport, f"{call.name} at {call.site}")

    def _poll(
        self, call: Callable[[], Call], source: int, tag: int
    ) -> tuple[Array, int, int] | None:
        """Look for a message for a short time; return its bytes, source and tag."""
        if self._posted or self.transport.active:
            return None
        return self.transport.try_recv(
            source, tag, self.lane, lambda: self._awaiting(call(), source, tag)
        )

    def _read(
        self, frame: Array, source: int, tag: int, call: Callable[[], Call], objects: bool
    ) -> tuple[Any, Header, int, int]:
        """Return the value in a message with its header, source and tag, if it is of the kind that
        the call expects.
        """
        header = read_header(frame)
        if header.order != self.order or (header.kind == OBJECT) != objects:
            raise self._unexpected(header, source, tag, call())
        return wire.decode(frame, header)[0], header, source, tag

    def _unexpected(self, header: Header, source: int, tag: int, call: Call) -> MismatchError:
        """Return the error for a message that the call does not expect; its sender is told to raise
        it too.
        """
        wanted = "an object" if call.op == "recv_obj" else "arrays"
        text = (
            f"rank {self.transport.rank} waits in {call.name} at {call.site} for {wanted} from "
            f"rank {source}, tag {tag}, but {header.name} at {header.site} sent {header.form}: the "
            "two calls do not belong together"
        )
        self.transport.complain(source, text)
        return MismatchError(text)

    def _awaiting(self, call: Call, source: int, tag: int) -> Waiting:
        return Waiting(call.name, call.site, source, tag, order=self.order)

    def _arrived(self, source: int, tag: int, lane: int, waiting: Waiting) -> Steps[Envelope]:
        """Return the next message of this kind; among the receives that a message matches, the one
        that was posted first gets it.
        """
        posted, probe = self._posted, self.transport.probe
        if not posted and (first := probe(source, tag, lane)) is not None:
            return first
        mine = posted.add(source, tag, lane)
        try:
            if not posted.look(mine, probe):
                yield Pending(partial(posted.look, mine, probe), nothing, waiting)
        finally:
            posted.remove(mine)
        assert mine.envelope is not None
        return mine.envelope

    def send_exchange(self, frame: Array, dest: int, seq: int) -> None:
        """Start sending an encoded message of exchange ``seq``: one array, or nothing."""
        self._count(frame.nbytes - wire.SIZE)
        self.transport.post(frame, dest, self.reply_tag(seq, EXCHANGE), BACKWARD)

    def recv_exchange(self, call: Call, source: int, seq: int) -> Steps[tuple[Any, Header]]:
        """Return a rank's message of exchange ``seq``.

        Raises:
            MismatchError: it belongs to another exchange, or to another plan.
        """
        waiting = Waiting(call.name + call.whole, call.site, source, ANY, seq, self.order)
        envelope = yield from self._arrived(
            source, self.reply_tag(seq, EXCHANGE), BACKWARD, waiting
        )
        frame = yield from self.transport.read(envelope, BACKWARD, waiting)
        header = read_header(frame)
        if (header.op, header.order, header.seq, header.root) != (
            call.op,
            call.order,
            seq,
            call.root,
        ):
            what = "plans, or loss scales" if call.order else "plans"
            if call.whole or header.whole:
                what = f"plans. {CUT_ALIKE}"
            raise self.exchange_mismatch(
                source, f"exchange {seq} in {call.name} at {call.site}{call.whole}", header, what
            )
        return wire.decode(frame, header)[0], header

    def exchange_mismatch(
        self, source: int, wanted: str, header: Header, what: str
    ) -> MismatchError:
        """Return the error for a message of another exchange, or of another plan; its sender is
        told to raise it too.
        """
        text = (
            f"rank {self.transport.rank} waits for {wanted} from rank {source}, but "
            f"{header.name} at {header.site}{header.whole} sent "
            f"{header.form} for exchange {header.seq}: the two ranks have different {what}"
        )
        self.transport.complain(source, text)
        return MismatchError(text)

    def reply_tag(self, seq: int, kind: int = REPLY) -> int:
        """Return the tag of message ``seq``'s gradient, or of a part of collective or exchange
        ``seq``: matched by identity, not by arrival.
        """
        return numbered_tag(self.transport.tag_limit, seq, self.order, kind)
