"""Collectives, built on a transport: each begins with a *match*, an exchange in which the ranks
check that their calls match.

The match is an allgather of blocks of one size, whatever the collective (matching.py): each rank
states the operation, its number on this communicator, root, reduction, dtype and shape, and the
user's source line. So ranks whose calls do not match find out together, before any value is
delivered, and raise the same table. Small values travel inline, in the blocks; larger ones follow
as the ``Algorithm`` of each collective says, by the methods here.

Among many ranks a small reduction comes first, which shows whether all state the same
(comparison.py). They nearly always do, and then all values follow as the larger ones do. The blocks
are gathered only where the ranks differ in what the algorithm has to know.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from functools import partial
from threading import get_ident
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from mnpar import backend
from mnpar.backend import Array, as_bytes
from mnpar.communicators import comparison, matching, wire
from mnpar.communicators.comparison import AgreedMatch, Comparison, value_of, words_of
from mnpar.communicators.mailbox import Mailbox, is_rendezvous
from mnpar.communicators.matching import (
    BLOCK,
    EMPTY,
    CallRecord,
    Match,
    MatchBuffer,
    describe_value,
    part,
    part_forms,
    table,
)
from mnpar.communicators.operation import complete
from mnpar.communicators.reduction import (
    DIRECT,
    REDUCING,
    children,
    narrowed,
    parent,
    reduce_arrays,
    reduce_parts,
    rounds,
    scan_arrays,
    unit_like,
    widened,
)
from mnpar.communicators.transport import COMPARE, MATCH, PART, Transport, numbered_tag
from mnpar.communicators.waiting import ANY, BACKWARD, Pending, Steps, Waiting
from mnpar.communicators.wire import ARRAY, FAULT, NOTHING, OWN_NUMBER, SIZE, TUPLE, Call

Given: TypeAlias = "tuple[Any, int | None]"


class Algorithm(NamedTuple):
    """The algorithm of a collective: how its result is made."""

    inline: Callable[[Match, Any], Any]  # makes the result if all values came in the match
    transfer: Callable[[Channel, Match, Any], Steps[Any]]  # makes it otherwise
    # the value for the match, and the number of its parts; None: x itself, which is one
    given: Callable[[Channel, Any, Call], Given] | None = None
    # what must be alike on all ranks for ``transfer`` among ranks that know nothing else of each
    # other: comparison.CALL or FORM
    needs: int = comparison.FORM
    # each rank gets all values, so nothing more need travel if they are alike
    gathers: bool = False


def owned(x: Any) -> Any:
    """Return a copy of a rank's own part, as the parts of the other ranks are copies."""
    return x.copy() if backend.is_array(x) else x


def until_taken(given: Iterable[Pending | None]) -> Steps[None]:
    """Return when all parts that were sent without a copy have been taken."""
    for pending in given:
        if pending is not None:
            yield pending


class Channel(Mailbox):
    """All communications of one order of differentiation on one communicator; all ranks start its
    collectives in one order.

    A non-blocking collective (``call.later``) starts with the same match. But its values go as
    messages, matched by its number, and never by MPI's own collectives: MPI requires that all ranks
    start these in one order, and each rank notices the end of a match at another moment.
    """

    by_messages = False  # True: matches, too, go by point-to-point messages (AdjointChannel)

    def __init__(self, transport: Transport, order: int) -> None:
        super().__init__(transport, order)
        # the number of the next collective. All are even; the odd number after each is for its
        # adjoint (AdjointChannel).
        self.next_number = 0
        self._buffers = transport.match_buffers[self.lane]
        self._compares = transport.size > matching.MOST_GATHERED
        self._rounds = rounds(transport.size)

    def take_number(self) -> int:
        """Take a number for an exchange by a plan (functions/communication/exchange.py), which all
        ranks call, and which has no match.
        """
        self.next_number += 2
        return self.next_number - 2

    def return_number(self, number: int) -> None:
        """Give the last number back: its exchange did not take place."""
        self.next_number = number

    def _match(
        self, algorithm: Algorithm, call: Call, x: Any, parts: int | None = None
    ) -> Steps[Match]:
        """Exchange the blocks of all ranks, and check that their calls match."""
        seq = self.take_number()
        size = BLOCK if self.by_messages else self._buffers.now.size
        record = self._record(call, x, parts, size)
        traffic = self.transport.traffic
        traffic.collectives += 1
        block = wire.numbered(record.head, seq).ljust(size, b"\0")
        waiting = self._waiting_for(call, seq, record)
        number = seq
        if self._compares:
            value = self._comparable(algorithm, x, record)
            words = words_of(record, seq, value)
            traffic.count_check(self._rounds, self._rounds * words.nbytes)
            if self.by_messages:
                words = yield from self._maximum(words, record.head, waiting)
            else:
                words = yield self.transport.maximum(words, self.lane, waiting)
            found = Comparison(words)
            if found.level >= _needed(algorithm, call):
                return self._agreed(found, call, record, seq, value)
            number = seq if found.same_call else found.number
        traffic.collective_bytes += record.sent
        if self.by_messages or self._compares:
            raw = yield from self._gather_blocks(block, waiting, number)
        else:
            traffic.count_check(self._rounds, (self.transport.size - 1) * size)
            raw = yield self.transport.exchange(block, self.lane, waiting)
        match = Match.of(raw, self.transport.size, self.transport.rank, call, record)
        match.seq = seq
        return match.checked()

    def _match_now(
        self,
        algorithm: Algorithm,
        call: Call,
        x: Any,
        parts: int | None = None,
        piggyback: bytes = b"",
        of: int = 0,
    ) -> Match:
        """Exchange the blocks as :meth:`_match` does, and wait. With a piggyback the calls are not
        checked yet, unless all ranks have stated the same: the caller looks at the piggybacks
        first. ``of`` is the number of the collective whose gradient this one carries.
        """
        buffers = self._buffers
        seq = self.next_number
        less = len(piggyback)
        self.next_number = seq + 2
        buffer = buffers.now
        number = (seq & OWN_NUMBER | (of & OWN_NUMBER) << 32).to_bytes(8, "little")
        key = (call, x.shape, x.dtype, less) if type(x) is np.ndarray else _key(call, x, parts)
        record = buffer.known.get(key) or self._record(
            call, x, parts, buffer.size - less, key, buffer
        )
        traffic = self.transport.traffic
        traffic.collectives += 1
        if self._compares and (
            agreed := self._agreed_now(algorithm, call, x, record, seq, number, piggyback)
        ):
            return agreed
        traffic.collective_bytes += record.sent
        traffic.check_messages += self._rounds
        traffic.check_bytes += buffer.sent
        buffer.fill(record, number, x)
        if piggyback:
            buffer.mine[-less:] = piggyback
        if not buffer.exchange():
            buffer.wait(self._waiting_for(call, seq, record))
        size = self.transport.size
        me = self.transport.rank
        match = record.repeated(buffer.whole, number) or Match.of(
            buffer.whole, size, me, call, record, less
        )
        match.seq = seq
        # else some may have a piggyback and others none, and choose different buffers
        if match.resizes and match.same_call:
            buffers.resize(match.required)
        return match if piggyback or match is record.match else match.checked()

    def _agreed_now(
        self,
        algorithm: Algorithm,
        call: Call,
        x: Any,
        record: CallRecord,
        seq: int,
        number: bytes,
        piggyback: bytes,
    ) -> Match | None:
        """Compare what the ranks state, and wait. Return the match of ranks that state the same;
        None: the blocks have to be gathered.

        Raises:
            MismatchError: ranks are in different collectives.
        """
        transport = self.transport
        waiting = self._waiting_for(call, seq, record)
        # a piggyback is no value, but with it, too, nobody needs the others' if all are alike
        value = piggyback if call.op == wire.UPDATE else self._comparable(algorithm, x, record)
        words = words_of(record, int.from_bytes(number, "little"), value)
        transport.traffic.count_check(self._rounds, self._rounds * words.nbytes)
        buffer = self._buffers.now
        found = Comparison(buffer.maximum(words, waiting))
        if call.op == wire.UPDATE:
            if found.level == comparison.VALUE:
                return self._agreed(found, call, record, seq, None)
        elif found.level >= _needed(algorithm, call):
            return self._agreed(found, call, record, seq, value)
        if found.same_call:
            return None
        # ranks that do not wait for theirs are in other collectives, and do not come to the buffers
        buffer.fill(record, number, x)
        block = bytes(buffer.mine)
        raw = complete(transport, self._gather_blocks(block, waiting, found.number))
        match = Match.of(raw, transport.size, transport.rank, call, record)
        match.seq = seq
        return match.checked()

    def _comparable(self, algorithm: Algorithm, x: Any, record: CallRecord) -> bytes | None:
        """Return the value that this rank compares with those of the others, as bytes; None: it
        compares the form alone.
        """
        if record.head[wire.FORM.start] == NOTHING:
            return b""
        return value_of(x, record, BLOCK - SIZE) if algorithm.gathers else None

    def _agreed(
        self, found: Comparison, call: Call, record: CallRecord, seq: int, value: bytes | None
    ) -> Match:
        transport = self.transport
        match = AgreedMatch(found, transport.size, transport.rank, call, record, value)
        match.seq = seq
        return match

    def _waiting_for(self, call: Call, seq: int, record: CallRecord) -> Waiting:
        return Waiting(call.name, call.site, None, 0, seq, self.order, record.head)

    def _gather_blocks(self, block: bytes, waiting: Waiting, number: int) -> Steps[bytes]:
        """Return the blocks of all ranks, joined in rank order, by point-to-point messages;
        ``number`` is the same on all of them.
        """
        transport = self.transport
        same = number == waiting.seq
        tag = numbered_tag(
            transport.tag_limit, number & OWN_NUMBER, self.order if same else 0, MATCH
        )
        blocks = []
        for rank in self.others():
            transport.post(np.frombuffer(block, np.uint8), rank, tag, BACKWARD)
        transport.traffic.count_check(transport.size - 1, (transport.size - 1) * len(block))
        for rank in range(transport.size):
            if rank == transport.rank:
                blocks.append(block)
            else:
                envelope = yield from self._arrived(
                    rank, tag, BACKWARD, waiting._replace(peer=rank, tag=ANY)
                )
                blocks.append((yield from transport.read(envelope, BACKWARD, waiting)).tobytes())
        return b"".join(blocks)

    def _maximum(self, words: Array, head: bytes, waiting: Waiting) -> Steps[Array]:
        """Return the maximum of all ranks' words, by point-to-point messages, behind the header:
        after each round a rank knows that of twice as many ranks.
        """
        transport = self.transport
        tag = self.reply_tag(waiting.seq, COMPARE)
        step = 1
        while step < transport.size:
            up, down = [(transport.rank + way * step) % transport.size for way in (1, -1)]
            frame = np.frombuffer(head[:SIZE] + words.tobytes(), np.uint8)
            transport.post(frame, up, tag, BACKWARD)
            envelope = yield from self._arrived(
                down, tag, BACKWARD, waiting._replace(peer=down, tag=ANY)
            )
            frame = yield from transport.read(envelope, BACKWARD, waiting)
            words = np.maximum(words, frame[SIZE:].view(np.int64))
            step *= 2
        return words

    def _record(
        self,
        call: Call,
        x: Any,
        parts: int | None,
        size: int,
        key: Any = None,
        buffer: MatchBuffer | None = None,
    ) -> CallRecord:
        """Make the record of this rank's call and value, for a block of ``size`` bytes.

        The buffer keeps the record under the key, if the next value of this form will have the same
        one.
        """
        fault = None
        try:
            kind, nbytes, shape, dtype, body, flags = describe_value(x, call, parts, size - SIZE)
        except Exception as error:  # an object can fail to be pickled for any reason
            fault = error
            reason = np.frombuffer(str(error).encode(errors="replace")[: size - SIZE], np.uint8)
            kind = FAULT
            nbytes = len(reason)
            shape = (0,)
            dtype = None
            body = reason
            flags = 0
        header = wire.pack_header(call, 0, kind, nbytes, shape, dtype, flags)
        inside = nbytes + SIZE <= size
        record = CallRecord(
            header,
            (self.transport.size - 1) * nbytes if inside else 0,
            EMPTY if kind == TUPLE else body,
            fault,
        )
        if buffer is None or key is None or kind not in (ARRAY, TUPLE, NOTHING):
            record.head += body.tobytes() if inside else b""
            return record
        record.body, record.repeats = EMPTY, True
        if inside and kind == ARRAY:
            record.place = np.ndarray(x.shape, x.dtype, buffer.mine, SIZE)
        elif inside and kind == TUPLE:
            text = table(part_forms(x))
            record.head += text
            record.parts = [
                (i, part(buffer.mine, SIZE, text, i)) for i, p in enumerate(x) if p is not None
            ]
        buffer.keep(key, record)
        return record

    # ---- collectives ----

    def steps(self, algorithm: Algorithm, x: Any, call: Call) -> Steps[tuple[Any, bool]]:
        """Carry a collective out: its result on this rank, and whether any rank wants its
        gradient. One that is not awaited later has one step, :meth:`now`.
        """
        if not (call.later or self.by_messages):
            return self.now(algorithm, x, call)
        x, parts = (x, None) if algorithm.given is None else algorithm.given(self, x, call)
        match = yield from self._match(algorithm, call, x, parts)
        if match.inline:
            return algorithm.inline(match, x), match.wants
        return (yield from algorithm.transfer(self, match, x)), match.wants

    def now(self, algorithm: Algorithm, x: Any, call: Call, of: int = 0) -> tuple[Any, bool]:
        """Carry a collective out, and wait for it: returns what :meth:`steps` does. Small values,
        which come with the calls, take no steps. ``of`` is the number of the collective whose
        gradient this one carries.
        """
        x, parts = (x, None) if algorithm.given is None else algorithm.given(self, x, call)
        transport = self.transport
        if transport.in_use:
            raise self.used_twice(call)
        transport.in_use = get_ident()
        try:
            match = self._match_now(algorithm, call, x, parts, of=of)
            if match.inline:
                return algorithm.inline(match, x), match.wants
            return complete(transport, algorithm.transfer(self, match, x)), match.wants
        finally:
            transport.in_use = 0

    def allreduce_if(
        self,
        x: Array,
        call: Call,
        piggyback: bytes,
        accept: Callable[[list[bytes]], bool],
        out: Array,
    ) -> bool:
        """Write the sum to ``out`` if ``accept`` returns True for the piggybacks of all ranks,
        which travel with it; wait, and return whether it did.

        All ranks get the same piggybacks, so they decide alike: there is a sum on all of them, or
        on none. If there is none, the arrays need not have one form.

        Raises:
            MismatchError: some ranks are in another collective, which has no piggybacks.
        """
        host = backend.to_host(x)
        into = out if type(out) is np.ndarray else None
        transport = self.transport
        if transport.in_use:
            raise self.used_twice(call)
        transport.in_use = get_ident()
        try:
            match = self._match_now(_UPDATE, call, host, None, piggyback)
            if match.agreed:
                piggybacks = [piggyback] * transport.size
            else:
                match.check_identity()
                raw, block, less = match.raw, match.block, len(piggyback)
                ends = range(block, len(raw) + 1, block)
                piggybacks = [bytes(raw[end - less : end]) for end in ends]
            if not accept(piggybacks):
                return False
            if not match.checked().inline:
                total = complete(transport, self.reduce_large(host, match, None, into))
            elif match.is_shared:
                total = match.total()
            else:
                total = reduce_arrays(match.arrays, call.reduction, into)
        finally:
            transport.in_use = 0
        if into is None or not np.may_share_memory(total, into):
            backend.copyto(out, total)
        return True

    # ---- how larger values follow ----

    def reduce_large(
        self, x: Array, match: Match, root: int | None, out: Array | None = None
    ) -> Steps[Array]:
        """Return the reduction of arrays of one form, on ``root`` or on all."""
        flat = np.ascontiguousarray(x).reshape(-1)
        reduction = match.call.reduction
        waiting = self._waiting(match)
        into = None if out is None or not out.flags.c_contiguous else out.reshape(-1)
        if not match.call.later:
            total = yield from self.transport.reduce(
                flat, reduction, root, self.lane, waiting, into
            )
        else:
            total = yield from self.transport.reduce_in_parts(flat, reduction, waiting, root, into)
        return total.reshape(x.shape)

    def allgather_bytes(self, body: Array, counts: list[int], match: Match) -> Steps[Array]:
        """Return the bytes of all ranks, joined; ``counts[r]`` of them are rank r's."""
        return (yield from self.transport.allgather(body, counts, self.lane, self._waiting(match)))

    def bcast_bytes(self, body: Array, match: Match) -> Steps[None]:
        """Fill ``body`` with the root's bytes."""
        root = match.call.root
        sent = len(children(self.transport.rank, root, self.transport.size))
        self.transport.traffic.count(sent, sent * body.nbytes)
        yield from self.transport.bcast(body, root, self.lane, self._waiting(match))

    def bcast_block(self, x: Array, match: Match) -> Steps[Array]:
        """Return the root's block: its header, and its value where that fits."""
        root = match.call.root
        block = np.zeros(BLOCK, np.uint8)
        if match.me == root:
            head = match.record.head[:SIZE]
            block[:SIZE] = np.frombuffer(head, np.uint8)
            if x.nbytes <= BLOCK - SIZE:
                block[SIZE : SIZE + x.nbytes] = x
        sent = len(children(self.transport.rank, root, self.transport.size))
        self.transport.traffic.count_check(sent, sent * BLOCK)
        yield from self.transport.bcast(block, root, self.lane, self._waiting(match))
        return block

    def pass_on(self, x: Any, match: Match) -> Steps[Any]:
        """Return the root's value, by point-to-point messages: from it to all other ranks, among
        many of them along a tree.
        """
        me, root, P = match.me, match.call.root, match.size
        if P > DIRECT:
            source, targets = parent(me, root, P), children(me, root, P)
        else:
            source, targets = root, self.others() if me == root else []
        value = x if me == root else (yield from self.recv_part(match, source))
        for rank in targets:
            self.send_part(value, match, rank)
        return value

    def exchange_parts(
        self, xs: Any, match: Match, own: Callable[[Any], Any] = owned
    ) -> Steps[tuple[Any, ...]]:
        """Send ``xs[q]`` to each rank q, and return what all sent to this one, in rank order (its
        own part by ``own``).
        """
        if self.transport.in_one_process:
            return (yield from self._exchange_together(xs, match, own))
        given = [self.send_part(xs[rank], match, rank) for rank in self.others()]
        values = yield from self.recv_parts(match, own(xs[self.transport.rank]))
        yield from until_taken(given)
        return tuple(values)

    def _exchange_together(
        self, xs: Any, match: Match, own: Callable[[Any], Any]
    ) -> Steps[tuple[Any, ...]]:
        """Exchange parts in one process, where each of them need only be copied."""
        me = self.transport.rank
        if match.call.op.endswith("_obj"):
            given = [pickle.dumps(x, protocol=pickle.HIGHEST_PROTOCOL) for x in xs]
            self._count_parts([len(text) for text in given])
            lists = yield self.transport.meet(given, self._waiting(match), _transposed)
            return tuple(
                [xs[me] if r == me else pickle.loads(text) for r, text in enumerate(lists[me])]
            )
        self._count_parts([0 if x is None else x.nbytes for x in xs])
        lists = yield self.transport.meet(
            [own(x) if r == me else _copied(x) for r, x in enumerate(xs)],
            self._waiting(match),
            _transposed,
        )
        return tuple(lists[me])

    def reduce_parts_together(self, xs: Any, match: Match) -> Steps[list[Array]]:
        """Return the reductions for all ranks of the parts for each, in one process; none if some
        parts are missing or not on the host.
        """
        join = partial(_reduced_parts, reduction=match.call.reduction)
        totals: list[Array] = yield self.transport.meet(tuple(xs), self._waiting(match), join)
        if totals:
            self._count_parts([x.nbytes for x in xs])
        return totals

    def _count_parts(self, sizes: list[int]) -> None:
        """Count the parts for the other ranks, which processes would send."""
        me = self.transport.rank
        self.transport.traffic.count(len(sizes) - 1, sum(sizes) - sizes[me])

    def scan(self, x: Array, match: Match, exclusive: bool, up: bool) -> Steps[Array]:
        """Return the reduction of the ranks' arrays up to this one's (or from it on), with or
        without it. All have one form. After each round a rank knows that of twice as many ranks.
        """
        transport, reduction = self.transport, match.call.reduction
        me, P = transport.rank, transport.size
        way = 1 if up else -1
        steps = [way << k for k in range(self._rounds)]
        if transport.in_one_process:
            sent = sum([0 <= me + step < P for step in steps])
            transport.traffic.count(sent, sent * x.nbytes)
            join = partial(scan_arrays, reduction=reduction, exclusive=exclusive, up=up)
            totals: list[Array] = yield transport.meet(x, self._waiting(match), join)
            return totals[me]
        total = widened(x)
        before: Array | None = None  # of the others
        given = []
        for step in steps:
            if 0 <= me + step < P:
                given.append(self.send_part(total, match, me + step))
            if 0 <= me - step < P:
                part = yield from self.recv_part(match, me - step)
                both = [part] if before is None else [part, before][::way]
                before = reduce_arrays(both, reduction)
                total = reduce_arrays([part, total][::way], reduction)
        yield from until_taken(given)
        if not exclusive:
            return narrowed(total, x) if before is not None else owned(x)
        return unit_like(x, reduction) if before is None else narrowed(before, x)

    def others(self) -> list[int]:
        """Return the other ranks, in an order that begins with the next one, so that not all ranks
        send to the same one first.
        """
        return [
            (self.transport.rank + step) % self.transport.size
            for step in range(1, self.transport.size)
        ]

    def send_part(self, x: Any, match: Match, dest: int) -> Pending | None:
        """Start sending a rank its part, a large one without a copy. Return the ``Pending`` after
        which the part may change; None: it was copied.
        """
        call, seq = match.call, match.seq
        # all are here, and take it now
        if is_rendezvous(x) and not (call.later or self.by_messages or call.op.endswith("_obj")):
            self.transport.traffic.count(1, x.nbytes)
            waiting = Waiting(call.name, call.site, dest, ANY, order=self.order)
            tag = self.reply_tag(seq, PART)
            header = wire.pack_header(call, seq, ARRAY, x.nbytes, x.shape, x.dtype)
            return self.transport.post_rendezvous(header, as_bytes(x), dest, tag, BACKWARD, waiting)
        frame = (
            wire.encode_object(x, call, seq)
            if call.op.endswith("_obj")
            else wire.encode(x, call, seq)
        )
        self.transport.traffic.count(1, frame.nbytes - wire.SIZE)
        self.transport.post(frame, dest, self.reply_tag(seq, PART), BACKWARD)
        return None

    def recv_part(self, match: Match, source: int) -> Steps[Any]:
        """Receive the part that a rank sent to this one."""
        waiting = Waiting(match.call.name, match.call.site, source, ANY, order=self.order)
        envelope = yield from self._arrived(
            source, self.reply_tag(match.seq, PART), BACKWARD, waiting
        )
        return wire.decode((yield from self.transport.read(envelope, BACKWARD, waiting)))[0]

    def recv_parts(self, match: Match, mine: Any) -> Steps[list[Any]]:
        """Receive the parts that all ranks sent to this one; in rank order, with ``mine`` in its
        own place.
        """
        values = []
        for rank in range(self.transport.size):
            values.append(
                mine if rank == self.transport.rank else (yield from self.recv_part(match, rank))
            )
        return values

    def _waiting(self, match: Match) -> Waiting:
        call, seq = match.call, match.seq
        return Waiting(
            call.name,
            call.site,
            None,
            self.reply_tag(seq, PART),
            seq,
            self.order,
            match.record.head,
        )


class AdjointChannel(Channel):
    """A channel for one adjoint only, whose matches go by point-to-point messages.

    Args:
        channel: of the same order of differentiation.
        number: of the collective whose adjoint this is. All of these are even: the adjoint has the
            odd number after it.
    """

    by_messages = True

    def __init__(self, channel: Channel, number: int) -> None:
        super().__init__(channel.transport, channel.order)
        self.next_number = number | 1


# the sum of an update: what all ranks have to tell beside it is the piggyback
_UPDATE = Algorithm(
    lambda match, x: None, lambda channel, match, x: channel.reduce_large(x, match, None)
)


def _transposed(lists: list[list[Any]]) -> list[tuple[Any, ...]]:
    return list(zip(*lists, strict=True))


def _copied(x: Any) -> Any:
    """Return a copy of a part as messages bring it: contiguous, and of no subclass."""
    return np.array(x, order="C", subok=False) if isinstance(x, np.ndarray) else owned(x)


def _reduced_parts(lists: list[tuple[Any, ...]], reduction: str) -> list[Array]:
    there = all([type(x) is np.ndarray for xs in lists for x in xs])
    return reduce_parts(lists, reduction) if there else []


def _needed(algorithm: Algorithm, call: Call) -> int:
    """Return what must be alike on all ranks. (A maximum, for example, is differentiable by what
    ranks gather for it.)
    """
    return comparison.FORM if call.op in REDUCING else algorithm.needs


def _key(call: Call, x: Any, parts: int | None) -> Any:
    """Return the key under which a buffer keeps what is stated of values of this form; None if they
    are not all numpy arrays.
    """
    if x is None:
        return call
    if parts is None or type(x) is not tuple or len(x) != parts:
        return None
    forms = [None if p is None else (p.shape, p.dtype) if type(p) is np.ndarray else 0 for p in x]
    return None if 0 in forms else (call, *forms)
