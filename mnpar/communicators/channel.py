"""Collectives, built on a transport: each begins with an *opening*, in which the ranks check that
their calls match.

The opening is an allgather of blocks of one size, whatever the collective (``OpeningBuffers``):
each rank states the operation, its number on this communicator, root, reduction, dtype and shape,
and the user's source line. So ranks whose calls do not match find out together, before any value is
delivered, and raise the same table. Small values travel inside the opening; how larger ones follow,
the ``Algorithm`` of each collective says, by the methods here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array, as_bytes
from mnpar.communicators import message
from mnpar.communicators.algorithms import Algorithm, owned, until_taken
from mnpar.communicators.handshake import Handshake
from mnpar.communicators.mailbox import lies_apart
from mnpar.communicators.message import Call
from mnpar.communicators.opening import Opening
from mnpar.communicators.operation import complete
from mnpar.communicators.reduction import reduce_arrays
from mnpar.communicators.transport import ANY, BACKWARD, PART, Pending, Steps, Waiting


class Channel(Handshake):
    """All communications of one order of differentiation on one communicator; all ranks start its
    collectives in one order.

    A non-blocking collective (``call.later``) starts with the same opening. But its values go as
    messages, matched by its number, and never by MPI's own collectives: MPI wants these started in
    one order on all ranks, and each rank notices the end of an opening at a moment of its own.
    """

    def barrier(self, call: Call) -> Steps[None]:
        """Return when every rank has come."""
        yield from self._open(call, None)

    def now(self, algorithm: Algorithm, x: Any, call: Call) -> tuple[Any, bool]:
        """Carry a collective out, and wait for it: its result on this rank, and whether any rank
        wants its gradient.
        """
        x, parts = (x, None) if algorithm.given is None else algorithm.given(self, x, call)
        if self.by_messages or call.later:
            opening = complete(self.transport, self._open(call, x, parts))
        else:
            opening = self._open_now(call, x, parts)
        if opening.inside:
            return algorithm.inside(opening, x), opening.wants
        return complete(self.transport, algorithm.outside(self, opening, x)), opening.wants

    def steps(self, algorithm: Algorithm, x: Any, call: Call) -> Steps[tuple[Any, bool]]:
        """:meth:`now` as steps, which ``complete`` or an ``Operation`` drives."""
        x, parts = (x, None) if algorithm.given is None else algorithm.given(self, x, call)
        opening = yield from self._open(call, x, parts)
        if opening.inside:
            return algorithm.inside(opening, x), opening.wants
        return (yield from algorithm.outside(self, opening, x)), opening.wants

    def allreduce_noted(
        self, x: Array, call: Call, note: bytes, usual: Callable[[list[bytes]], bool], out: Array
    ) -> bool:
        """Write the sum to ``out`` if the notes that the ranks send with it are as usual; returns
        whether they are. It waits.

        All ranks get the same notes, so they decide alike: there is a sum on all of them, or on
        none. If there is none, the arrays need not have one form.

        Raises:
            MismatchError: some ranks are in another collective, which has no notes.
        """
        host = backend.to_host(x)
        into = out if type(out) is np.ndarray else None
        opening = self._open_now(call, host, None, note)
        opening.check_identity()
        raw, block = opening.raw, opening.block
        if not usual(
            [bytes(raw[end - len(note) : end]) for end in range(block, len(raw) + 1, block)]
        ):
            return False
        if opening.agreed().inside:
            total = reduce_arrays(opening.arrays, call.reduction, into)
        else:
            total = complete(self.transport, self.reduced_apart(host, opening, None, into))
        if into is None or not np.may_share_memory(total, into):
            backend.copy_to(out, total)
        return True

    # ---- how larger values follow ----

    def reduced_apart(
        self, x: Array, opening: Opening, root: int | None, out: Array | None = None
    ) -> Steps[Array]:
        """The reduction of arrays of one form, on ``root`` or on all."""
        flat = np.ascontiguousarray(x).reshape(-1)
        reduction = opening.call.reduction
        waiting = self._waiting(opening)
        into = None if out is None or not out.flags.c_contiguous else out.reshape(-1)
        if not opening.call.later:
            total = yield from self.transport.reduce(
                flat, reduction, root, self.lane, waiting, into
            )
        else:
            total = yield from self.transport.reduce_in_parts(flat, reduction, waiting, root, into)
        return total.reshape(x.shape)

    def joined(self, body: Array, counts: list[int], opening: Opening) -> Steps[Array]:
        """The bytes of all ranks, joined; ``counts[r]`` of them are rank r's."""
        return (
            yield from self.transport.allgather(body, counts, self.lane, self._waiting(opening))
        )

    def spread(self, body: Array, opening: Opening) -> Steps[None]:
        """Fill ``body`` with the root's bytes."""
        yield from self.transport.bcast(body, opening.call.root, self.lane, self._waiting(opening))

    def traded(
        self, xs: Any, opening: Opening, own: Callable[[Any], Any] = owned
    ) -> Steps[tuple[Any, ...]]:
        """Send ``xs[q]`` to each rank q; returns what all sent to this one, in rank order (its own
        part by ``own``).
        """
        given = [self.post_part(xs[rank], opening, rank) for rank in self.others()]
        values = yield from self.fetched(opening, own(xs[self.transport.rank]))
        yield from until_taken(given)
        return tuple(values)

    def others(self) -> list[int]:
        """The other ranks, in an order that begins with the next one, so that not all ranks send to
        the same one first.
        """
        return [
            (self.transport.rank + step) % self.transport.size
            for step in range(1, self.transport.size)
        ]

    def post_part(self, x: Any, opening: Opening, dest: int) -> Pending | None:
        """Start sending a rank its part, a large one without a copy; returns what to wait for
        before the part may change.
        """
        call, seq = opening.call, opening.seq
        # all are here, and take it now
        if lies_apart(x) and not (call.later or self.by_messages or call.op.endswith("_obj")):
            self.transport.traffic.collective_bytes += x.nbytes
            waiting = Waiting(call.name, call.site, dest, ANY, order=self.order)
            tag = self.reply_tag(seq, PART)
            return self.transport.post_apart(
                message.header_of(x, call, seq), as_bytes(x), dest, tag, BACKWARD, waiting
            )
        frame = (
            message.encode_object(x, call, seq)
            if call.op.endswith("_obj")
            else message.encode(x, call, seq)
        )
        self.transport.traffic.collective_bytes += frame.nbytes - message.SIZE
        self.transport.post(frame, dest, self.reply_tag(seq, PART), BACKWARD)
        return None

    def fetched_part(self, opening: Opening, source: int) -> Steps[Any]:
        """Receive the part that a rank sent to this one."""
        waiting = Waiting(opening.call.name, opening.call.site, source, ANY, order=self.order)
        letter = yield from self._letter(
            source, self.reply_tag(opening.seq, PART), BACKWARD, waiting
        )
        return message.decode((yield from self.transport.read(letter, BACKWARD, waiting)))[0]

    def fetched(self, opening: Opening, mine: Any) -> Steps[list[Any]]:
        """Receive the parts that all ranks sent to this one; in rank order, with ``mine`` in its
        own place.
        """
        values = []
        for rank in range(self.transport.size):
            values.append(
                mine
                if rank == self.transport.rank
                else (yield from self.fetched_part(opening, rank))
            )
        return values

    def _waiting(self, opening: Opening) -> Waiting:
        call, seq = opening.call, opening.seq
        return Waiting(
            call.name,
            call.site,
            None,
            self.reply_tag(seq, PART),
            seq,
            self.order,
            opening.statement.words,
        )
