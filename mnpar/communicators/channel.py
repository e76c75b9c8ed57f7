"""Collectives that know what they are, built on a transport.

Every collective opens with one exchange of fixed size, the same for all: each rank says which operation it is in, as its
how-manieth on this communicator, with which root, reduction, dtype and shape, and from which source line. Ranks that do not
mean the same thing so find out together, before any value is delivered, and raise the same table. Values of up to 320 bytes
travel inside the opening; larger ones follow by the MPI collective or, where parts differ, as self-describing messages.
A rank may have *nothing* to give (None): a gradient that does not exist. Reductions skip it; others deliver None.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.communicators import message
from mnpar.communicators.mailbox import Mailbox
from mnpar.communicators.message import ARRAY, FAULT, NOTHING, Call
from mnpar.communicators.opening import EMPTY, Opening, as_bytes, form_of, value_of
from mnpar.communicators.operation import complete, wait
from mnpar.communicators.reduction import reduce_arrays
from mnpar.communicators.transport import ANY, BACKWARD, BLOCK, PART, ROOM, Steps, Transport, Waiting

_PIECE = 2**30  # bytes; more than this is sent part by part


class Channel(Mailbox):
    """All communications of one order on one communicator. All its ranks start its collectives in the same order.

    What has to wait comes as steps, to be driven by ``complete`` or an ``Operation``. A collective that is waited for
    ``call.later`` starts with the same opening, but its values go as messages only, matched by its number: MPI's own
    collectives have to follow each other in one order on all ranks, and an opening is answered at another moment on each.
    """

    by_messages = False  # the openings too

    def __init__(self, transport: Transport, order: int) -> None:
        super().__init__(transport, order)
        self._collectives = 0
        self._known: dict[Any, bytes] = {}  # headers of collectives by call, shape and dtype: programs repeat themselves

    @property
    def next_number(self) -> int:
        """Of the next collective; all of them are even, and those next to them are for Answers."""
        return self._collectives

    def next_exchange(self) -> int:
        """The number of an exchange by a plan (functions/exchange.py): all ranks call it, but it has no opening."""
        self._collectives += 2
        return self._collectives - 2

    def barrier(self, call: Call) -> Steps[None]:
        """Return when every rank has come."""
        yield from self._open(call, None)

    def allreduce(
        self, x: Array | None, call: Call, root: int | None = None, out: Array | None = None
    ) -> Steps[tuple[Array | None, bool]]:
        """The reduction over ranks (on ``root`` alone, or on all), and whether any rank wants its gradient.

        Where it can be done, it is computed into ``out``, a contiguous array like ``x``, or ``x`` itself.
        """
        return (yield from self._reduced((yield from self._open(call, x)), x, root, out))

    def allreduce_now(self, x: Array | None, call: Call) -> tuple[Array | None, bool]:
        """``complete(allreduce(x, call))``; without steps where small arrays of one form come from a line known already."""
        transport = self.transport
        known = self._known.get((call, x.shape, x.dtype)) if type(x) is np.ndarray and x.nbytes <= ROOM else None
        if known is None or x is None:
            return complete(transport, self.allreduce(x, call))
        seq, waiting = self._number(call)
        transport.traffic.collective_bytes += (transport.size - 1) * x.nbytes
        block = (message.numbered(known, seq) + x.tobytes()).ljust(BLOCK, b"\0")
        exchange = transport.exchange(block, self.lane, waiting)
        wait(transport, exchange)
        raw, head = exchange.value(), block[: message.FLAGS + 1]
        if all([raw.startswith(head, start) for start in range(0, len(raw), BLOCK)]):
            arrays = [np.ndarray(x.shape, x.dtype, raw, start) for start in range(message.SIZE, len(raw), BLOCK)]
            return reduce_arrays(arrays, call.reduction), call.wants
        return complete(transport, self._reduced(Opening(raw, transport.size, call, seq, EMPTY).agreed(), x))

    def _reduced(
        self, opening: Opening, x: Array | None, root: int | None = None, out: Array | None = None
    ) -> Steps[tuple[Array | None, bool]]:
        call = opening.call
        if opening.alike and type(x) is np.ndarray:  # the common case, without a detour
            small = x.nbytes <= ROOM
            total = (
                reduce_arrays(opening.arrays(x), call.reduction) if small else (yield from self._reduce(x, opening, root, out))
            )
            return (total if root is None or root == self.transport.rank else None), opening.wants
        headers = opening.headers()
        given = [rank for rank, header in enumerate(headers) if header.kind != NOTHING]
        if not given:
            return None, opening.wants
        if len(given) < len(headers) and call.reduction in ("max", "min"):
            raise opening.mismatch(f"some ranks have nothing to give to {call.name} ({call.reduction})")
        form = headers[given[0]]
        if form.nbytes <= ROOM:
            total = reduce_arrays([backend.to_host(opening.value(rank, form)) for rank in given], call.reduction)
        else:
            if x is None:
                x = np.full(form.shape, 1 if call.reduction == "prod" else 0, form.dtype)
            total = yield from self._reduce(backend.to_host(x), opening, root)
        if root is not None and root != self.transport.rank:
            return None, opening.wants
        return (backend.on_device(total) if form.flags & message.ON_DEVICE else total), opening.wants

    def scan(self, x: Array | None, call: Call, exclusive: bool, up: bool) -> Steps[tuple[Array | None, bool]]:
        """The reduction of the ranks up to this one (or from it on), with or without its own."""
        parts, wants = yield from self.allgather(x, call)
        me = self.transport.rank
        some = parts[: me + (not exclusive)] if up else parts[me + exclusive :]
        given = [part for part in some if part is not None]
        like = next((part for part in parts if part is not None), None)
        if like is None:
            return None, wants
        return (reduce_arrays(given, call.reduction) if given else np.full_like(like, call.reduction == "prod")), wants

    def bcast(self, x: Any, call: Call) -> Steps[tuple[Any, bool]]:
        """The root's value on every rank (an object where ``call.op`` ends in _obj)."""
        transport, root = self.transport, call.root
        at_root = transport.rank == root
        opening = yield from self._open(call, x if at_root else None)
        header = opening.header(root)
        if header.nbytes <= ROOM:
            return (x if at_root else opening.value(root, header)), opening.wants
        if call.later:
            if at_root:
                for rank in self._others():
                    self._post_part(x, opening, rank)
            return (x if at_root else (yield from self._fetch_part(opening, root))), opening.wants
        body = opening.body if at_root else np.empty(header.nbytes, np.uint8)
        yield from transport.bcast(body, root, self.lane, self._waiting(opening))
        return (x if at_root else value_of(body, header)), opening.wants

    def allgather(self, x: Any, call: Call) -> Steps[tuple[tuple[Any, ...], bool]]:
        """Every rank's value on every rank, in rank order."""
        opening = yield from self._open(call, x)
        headers = opening.headers()
        counts = [header.nbytes for header in headers]
        if max(counts) <= ROOM:
            return tuple([opening.value(rank, header) for rank, header in enumerate(headers)]), opening.wants
        if call.later or sum(counts) > _PIECE:
            return (yield from self._trade([x] * self.transport.size, opening)), opening.wants
        body = as_bytes(x) if type(x) is np.ndarray else opening.body  # a small one beside large ones: it was not made
        joined = yield from self.transport.allgather(body, counts, self.lane, self._waiting(opening))
        values, start = [], 0
        for header in headers:
            part = joined[start : start + header.nbytes]
            start += header.nbytes
            values.append(value_of(part, header))
        return tuple(values), opening.wants

    def gather(self, x: Any, call: Call) -> Steps[tuple[tuple[Any, ...] | None, bool]]:
        """Every rank's value on the root, in rank order; None elsewhere."""
        opening = yield from self._open(call, x)
        headers, me, root = opening.headers(), self.transport.rank, call.root
        if max(header.nbytes for header in headers) <= ROOM:
            values = [opening.value(rank, header) for rank, header in enumerate(headers)] if me == root else None
        elif me != root:
            self._post_part(x, opening, root)
            values = None
        else:
            values = yield from self._fetch_parts(opening, x)
        return (None if values is None else tuple(values)), opening.wants

    def scatter(self, xs: Any, call: Call) -> Steps[tuple[Any, bool]]:
        """The root's ``xs[rank]`` on each rank."""
        me, root = self.transport.rank, call.root
        xs = listed(xs) if me == root else None
        opening = yield from self._open(call, xs, self.transport.size if me == root else None)
        if me != root:
            return (yield from self._fetch_part(opening, root)), opening.wants
        for rank in self._others():
            self._post_part(xs[rank], opening, rank)
        return _owned(xs[me]), opening.wants

    def alltoall(self, xs: Any, call: Call) -> Steps[tuple[tuple[Any, ...], bool]]:
        """On rank r, what each rank q had as its ``xs[r]``, in the order of q."""
        xs = listed(xs)
        opening = yield from self._open(call, xs, self.transport.size)
        return (yield from self._trade(xs, opening)), opening.wants

    def reduce_scatter(self, xs: Any, call: Call) -> Steps[tuple[Array | None, bool]]:
        """On rank r, the reduction over ranks of their ``xs[r]``, summed in rank order."""
        xs = listed(xs)
        opening = yield from self._open(call, xs, self.transport.size)
        given = [x for x in (yield from self._trade(xs, opening)) if x is not None]
        if not given:
            return None, opening.wants
        return backend.beside(reduce_arrays([backend.to_host(x) for x in given], call.reduction), given[0]), opening.wants

    # ---- inside ----

    def _open(self, call: Call, x: Any, parts: int | None = None) -> Steps[Opening]:
        """Say what this rank is in, hear the others, and agree."""
        seq, waiting = self._number(call)
        block, body, fault = self._say(call, x, parts, seq)
        if self.by_messages:
            raw = yield from self._hear(block, waiting)
        else:
            raw = yield self.transport.exchange(block, self.lane, waiting, call.later)
        if fault is not None:
            raise fault
        return Opening(raw, self.transport.size, call, seq, body).agreed()

    def _number(self, call: Call) -> tuple[int, Waiting]:
        """The number of a collective that begins now, and what it waits for."""
        seq = self._collectives
        self._collectives += 2
        self.transport.traffic.collectives += 1
        return seq, Waiting(call.name, call.site, None, 0, seq, self.order)

    def _hear(self, block: bytes, waiting: Waiting) -> Steps[bytes]:
        """What all ranks say, in rank order, if it goes by messages."""
        raise NotImplementedError

    def _say(self, call: Call, x: Any, parts: int | None, seq: int) -> tuple[bytes, Array, Exception | None]:
        """This rank's block of an opening, its value as bytes, and what is wrong with it: the others shall hear of that too."""
        key = (call, x.shape, x.dtype) if type(x) is np.ndarray else None
        if key in self._known:  # the common case: numbers like those of the last time, from the same line
            inside = x.nbytes <= ROOM
            self._count(x.nbytes)
            block = message.numbered(self._known[key], seq) + (x.tobytes() if inside else b"")
            return block.ljust(BLOCK, b"\0"), EMPTY if inside else as_bytes(x), None
        fault = None
        try:
            kind, nbytes, shape, dtype, body, on_device = form_of(x, call, parts)
        except Exception as error:  # an object can fail to be pickled for any reason
            fault, reason = error, np.frombuffer(str(error).encode()[:ROOM], np.uint8)
            kind, nbytes, shape, dtype, body, on_device = FAULT, len(reason), (0,), "", reason, False
        self._count(nbytes)
        head = message.pack_header(call, seq, kind, nbytes, shape, dtype, on_device)
        if kind == ARRAY and key is not None and len(self._known) < 10_000:
            self._known[key] = head
        return (head + (body.tobytes() if nbytes <= ROOM else b"")).ljust(BLOCK, b"\0"), body, fault

    def _count(self, nbytes: int) -> None:
        """A small value travels in the opening, to all others."""
        if nbytes <= ROOM:
            self.transport.traffic.collective_bytes += (self.transport.size - 1) * nbytes

    def _reduce(self, x: Array, opening: Opening, root: int | None, out: Array | None = None) -> Steps[Array]:
        flat, reduction, waiting = np.ascontiguousarray(x).reshape(-1), opening.call.reduction, self._waiting(opening)
        into = None if out is None or not out.flags.c_contiguous else out.reshape(-1)
        if not opening.call.later:
            total = yield from self.transport.reduce(flat, reduction, root, self.lane, waiting, into)
        else:
            total = yield from self.transport.reduce_in_parts(flat, reduction, waiting, root, into)
        return total.reshape(x.shape)

    def _waiting(self, opening: Opening) -> Waiting:
        call, seq = opening.call, opening.seq
        return Waiting(call.name, call.site, None, self.reply_tag(seq, PART), seq, self.order)

    def _others(self) -> list[int]:
        """The other ranks, each rank beginning with the next one: not all send to the same one first."""
        return [(self.transport.rank + step) % self.transport.size for step in range(1, self.transport.size)]

    def _trade(self, xs: Any, opening: Opening) -> Steps[tuple[Any, ...]]:
        """Give ``xs[q]`` to each rank q; what they gave, in rank order."""
        for rank in self._others():
            self._post_part(xs[rank], opening, rank)
        return tuple((yield from self._fetch_parts(opening, xs[self.transport.rank])))

    def _post_part(self, x: Any, opening: Opening, dest: int) -> None:
        call, seq = opening.call, opening.seq
        frame = message.encode_object(x, call, seq) if call.op.endswith("_obj") else message.encode(x, call, seq)
        self.transport.traffic.collective_bytes += frame.nbytes - message.SIZE
        self.transport.post(frame, dest, self.reply_tag(seq, PART), BACKWARD)

    def _fetch_part(self, opening: Opening, source: int) -> Steps[Any]:
        waiting = Waiting(opening.call.name, opening.call.site, source, ANY, order=self.order)
        letter = yield from self._letter(source, self.reply_tag(opening.seq, PART), BACKWARD, waiting)
        return message.decode((yield from self.transport.read(letter, BACKWARD, waiting)))[0]

    def _fetch_parts(self, opening: Opening, mine: Any) -> Steps[list[Any]]:
        values = []
        for rank in range(self.transport.size):
            values.append(_owned(mine) if rank == self.transport.rank else (yield from self._fetch_part(opening, rank)))
        return values


def listed(xs: Any) -> Any:
    """One part for each rank, as a tuple; an array is cut along its first axis. ``form_of`` refuses what has no parts."""
    if backend.is_array(xs):
        return tuple([xs[i, ...] for i in range(len(xs))]) if xs.ndim else xs
    return tuple(xs) if isinstance(xs, Iterable) else xs


def _owned(x: Any) -> Any:
    """A rank's own part is a copy too, like the parts of the others."""
    return x.copy() if backend.is_array(x) else x
