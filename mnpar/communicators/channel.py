"""All communications, built on a transport: point to point, and collectives that know what they are.

Every collective opens with one exchange of fixed size, the same for all: each rank says which operation it is in, as its
how-manieth on this communicator, with which root, reduction, dtype and shape, and from which source line. Ranks that do not
mean the same thing so find out together, before any value is delivered, and raise the same table. Values of up to 320 bytes
travel inside the opening; larger ones follow by the MPI collective or, where parts differ, as self-describing messages.
A rank may have *nothing* to give (None): a gradient that does not exist. Reductions skip it; others deliver None.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.communicators import message
from mnpar.communicators.message import ARRAY, FAULT, NOTHING, OBJECT, Call, Header, read_header
from mnpar.communicators.opening import EMPTY, Opening, as_bytes, form_of
from mnpar.communicators.reduction import reduce_arrays
from mnpar.communicators.transport import ANY, BACKWARD, BLOCK, FORWARD, ROOM, Transport, Waiting
from mnpar.errors import MismatchError

_PIECE = 2**30  # bytes; more than this is sent part by part


class Channel:
    """One order of differentiation on one communicator: 0 its forward, 1 the gradients, 2 the gradients of gradients …

    All ranks of the communicator call its collectives, in the same order.
    """

    def __init__(self, transport: Transport, order: int) -> None:
        self.transport = transport
        self.order = order
        self.lane = FORWARD if order == 0 else BACKWARD
        self._collectives = 0
        self._sent = [0] * transport.size
        self._known: dict[Any, bytes] = {}  # headers of collectives by call, shape and dtype: programs repeat themselves

    # ---- point to point ----

    def send(self, x: Any, call: Call, dest: int, tag: int) -> int:
        """Start sending a value (array, None, or tuple, list, dict of arrays); the message's number between the two ranks."""
        seq = self._sent[dest]
        self._sent[dest] += 1
        self.transport.post(message.encode(x, call, seq), dest, tag, self.lane)
        return seq

    def send_object(self, obj: Any, call: Call, dest: int, tag: int) -> None:
        """Start sending a pickled object."""
        seq = self._sent[dest]
        self._sent[dest] += 1
        self.transport.post(message.encode_object(obj, call, seq), dest, tag, self.lane)

    def recv(self, call: Call, source: int, tag: int) -> tuple[Any, Header, int, int]:
        """Wait for a message: value, header, source, tag.

        Raises:
            MismatchError: an object came where an array is awaited, or the other way round.
        """
        me, wanted = self.transport.rank, "an object" if call.op == "recv_obj" else "arrays"
        frame, source, tag = self.transport.fetch(source, tag, self.lane, Waiting(call.name, call.site, source, tag))
        header = read_header(frame[: message.SIZE].tobytes())
        if (header.kind == OBJECT) != (call.op == "recv_obj") or header.order != self.order:
            text = (
                f"rank {me} waits in {call.name} at {call.site} for {wanted} from rank {source}, tag {tag}, but {header.name} "
                f"at {header.site} sent {header.form}: the two calls do not belong together"
            )
            self.transport.complain(source, text)
            raise MismatchError(text)
        return message.decode(frame, header)[0], header, source, tag

    def reply_tag(self, seq: int, part: bool = False) -> int:
        """The tag of message ``seq``'s gradient, or of a part of collective ``seq``: matched by identity, not by arrival."""
        return 2 * ((8 * seq + self.order) % (self.transport.tag_limit // 2)) + part

    # ---- collectives ----

    def barrier(self, call: Call) -> None:
        """Return when every rank has come."""
        self._open(call, None)

    def allreduce(self, x: Array | None, call: Call, root: int | None = None) -> tuple[Array | None, bool]:
        """The reduction over ranks (on ``root`` alone, or on all), and whether any rank wants its gradient."""
        opening, _ = self._open(call, x)
        if opening.alike and type(x) is np.ndarray:  # the common case, without a detour
            small = x.nbytes <= ROOM
            total = reduce_arrays(opening.arrays(x), call.reduction) if small else self._reduce(x, call, root)
            return (total if root is None or root == self.transport.rank else None), opening.wants
        if not opening.same_form():
            raise self._mismatch(opening, "ranks reduce values of different dtype or shape")
        headers = opening.headers()
        given = [rank for rank, header in enumerate(headers) if header.kind != NOTHING]
        if not given:
            return None, opening.wants
        if len(given) < len(headers) and call.reduction in ("max", "min"):
            raise self._mismatch(opening, f"some ranks have nothing to give to {call.name} ({call.reduction})")
        form = headers[given[0]]
        if form.nbytes <= ROOM:
            total = reduce_arrays([backend.to_host(opening.value(rank, form)) for rank in given], call.reduction)
        else:
            if x is None:
                x = np.full(form.shape, 1 if call.reduction == "prod" else 0, form.dtype)
            total = self._reduce(backend.to_host(x), call, root)
        if root is not None and root != self.transport.rank:
            return None, opening.wants
        return (backend.on_device(total) if form.flags & message.ON_DEVICE else total), opening.wants

    def scan(self, x: Array | None, call: Call, exclusive: bool, up: bool) -> tuple[Array | None, bool]:
        """The sum of the ranks up to this one (or from it on), with or without its own."""
        parts, wants = self.allgather(x, call)
        me = self.transport.rank
        some = parts[: me + (not exclusive)] if up else parts[me + exclusive :]
        given = [part for part in some if part is not None]
        like = next((part for part in parts if part is not None), None)
        if like is None:
            return None, wants
        return (reduce_arrays(given, "sum") if given else np.zeros_like(like)), wants

    def bcast(self, x: Any, call: Call) -> tuple[Any, bool]:
        """The root's value on every rank (an object where ``call.op`` ends in _obj)."""
        root = call.root
        opening, body = self._open(call, x if self.transport.rank == root else None)
        header = opening.header(root)
        if header.nbytes <= ROOM:
            return (x if self.transport.rank == root else opening.value(root, header)), opening.wants
        if self.transport.rank != root:
            body = np.empty(header.nbytes, np.uint8)
        self.transport.bcast(body, root, self.lane, self._waiting(call))
        if self.transport.rank == root:
            return x, opening.wants
        return (pickle.loads(body) if header.kind == OBJECT else message.as_array(body, header)), opening.wants

    def allgather(self, x: Any, call: Call) -> tuple[tuple[Any, ...], bool]:
        """Every rank's value on every rank, in rank order."""
        opening, body = self._open(call, x)
        if call.op == "scan" and not opening.same_form():
            raise self._mismatch(opening, "ranks add up values of different dtype or shape")
        headers = opening.headers()
        counts = [header.nbytes for header in headers]
        if max(counts) <= ROOM:
            return tuple([opening.value(rank, header) for rank, header in enumerate(headers)]), opening.wants
        if sum(counts) > _PIECE:
            return self._trade([x] * self.transport.size, call), opening.wants
        joined = self.transport.allgather(body, counts, self.lane, self._waiting(call))
        values, start = [], 0
        for header in headers:
            part = joined[start : start + header.nbytes]
            start += header.nbytes
            values.append(_value(part, header))
        return tuple(values), opening.wants

    def gather(self, x: Any, call: Call) -> tuple[tuple[Any, ...] | None, bool]:
        """Every rank's value on the root, in rank order; None elsewhere."""
        opening, _ = self._open(call, x)
        headers, me, root = opening.headers(), self.transport.rank, call.root
        if max(header.nbytes for header in headers) <= ROOM:
            values = [opening.value(rank, header) for rank, header in enumerate(headers)] if me == root else None
        elif me != root:
            self._post_part(x, call, root)
            values = None
        else:
            values = [_owned(x) if rank == me else self._fetch_part(call, rank) for rank in range(self.transport.size)]
        return (None if values is None else tuple(values)), opening.wants

    def scatter(self, xs: Any, call: Call) -> tuple[Any, bool]:
        """The root's ``xs[rank]`` on each rank."""
        me, root = self.transport.rank, call.root
        xs = listed(xs) if me == root else None
        opening, _ = self._open(call, xs, parts=self.transport.size if me == root else None)
        if me != root:
            return self._fetch_part(call, root), opening.wants
        for rank, x in enumerate(xs):
            if rank != me:
                self._post_part(x, call, rank)
        return _owned(xs[me]), opening.wants

    def alltoall(self, xs: Any, call: Call) -> tuple[tuple[Any, ...], bool]:
        """On rank r, what each rank q had as its ``xs[r]``, in the order of q."""
        xs = listed(xs)
        opening, _ = self._open(call, xs, parts=self.transport.size)
        return self._trade(xs, call), opening.wants

    def reduce_scatter(self, xs: Any, call: Call) -> tuple[Array | None, bool]:
        """On rank r, the reduction over ranks of their ``xs[r]``, summed in rank order."""
        xs = listed(xs)
        opening, _ = self._open(call, xs, parts=self.transport.size)
        if not opening.same_form():
            raise self._mismatch(opening, "ranks reduce lists of different dtypes or shapes")
        given = [x for x in self._trade(xs, call) if x is not None]
        if not given:
            return None, opening.wants
        return backend.beside(reduce_arrays([backend.to_host(x) for x in given], call.reduction), given[0]), opening.wants

    # ---- inside ----

    def _open(self, call: Call, x: Any, parts: int | None = None) -> tuple[Opening, Array]:
        """Say what this rank is in, hear the others, and agree; also this rank's value as bytes."""
        transport, seq = self.transport, self._collectives
        self._collectives += 1
        block, body, fault = self._say(call, x, parts, seq)
        raw = transport.exchange(block, self.lane, Waiting(call.name, call.site, seq=seq))
        if fault is not None:
            raise fault
        opening = Opening(raw, transport.size)
        identity = raw[: message.IDENTITY]
        for start in () if opening.alike else range(0, len(raw), BLOCK):
            if raw[start : start + message.IDENTITY] != identity:
                raise self._mismatch(opening, "ranks are in different collectives")
            if raw[start + message.FORM.start] == FAULT:
                header = opening.header(start // BLOCK)
                text = raw[start + message.SIZE : start + message.SIZE + header.nbytes].decode(errors="replace")
                raise MismatchError(f"rank {start // BLOCK} could not take part in {header.name} at {header.site}: {text}")
        if opening.wants and not opening.all_record:
            raise self._mismatch(opening, "some ranks record for backward and others do not (no_backprop_mode)")
        return opening, body

    def _say(self, call: Call, x: Any, parts: int | None, seq: int) -> tuple[bytes, Array, Exception | None]:
        """This rank's block of an opening, its value as bytes, and what is wrong with it: the others shall hear of that too."""
        key = (call, x.shape, x.dtype) if type(x) is np.ndarray else None
        if key in self._known:  # the common case: numbers like those of the last time, from the same line
            inside = x.nbytes <= ROOM
            block = message.numbered(self._known[key], seq) + (x.tobytes() if inside else b"")
            return block.ljust(BLOCK, b"\0"), EMPTY if inside else as_bytes(x), None
        fault = None
        try:
            kind, nbytes, shape, dtype, body, on_device = form_of(x, call, parts)
        except Exception as error:  # an object can fail to be pickled for any reason
            fault, reason = error, np.frombuffer(str(error).encode()[:ROOM], np.uint8)
            kind, nbytes, shape, dtype, body, on_device = FAULT, len(reason), (0,), "", reason, False
        head = message.pack_header(call, seq, kind, nbytes, shape, dtype, on_device)
        if kind == ARRAY and key is not None and len(self._known) < 10_000:
            self._known[key] = head
        return (head + (body.tobytes() if nbytes <= ROOM else b"")).ljust(BLOCK, b"\0"), body, fault

    def _mismatch(self, opening: Opening, what: str) -> MismatchError:
        rows = []
        for rank, h in enumerate(opening.headers()):
            root = (
                f", root {h.root}"
                if h.op in ("bcast", "reduce", "gather", "scatter", "bcast_obj", "gather_obj", "scatter_obj")
                else ""
            )
            mode = ", not recording" if opening.wants and not h.flags & message.RECORDING else ""
            rows.append(f"  rank {rank}: collective {h.seq}, {h.name}{root} of {h.form}{mode}, at {h.site}")
        return MismatchError(
            f"{what}:\n" + "\n".join(rows) + "\nall ranks of a communicator make the same calls in the same order"
        )

    def _reduce(self, x: Array, call: Call, root: int | None) -> Array:
        flat = np.ascontiguousarray(x).reshape(-1)
        return self.transport.reduce(flat, call.reduction, root, self.lane, self._waiting(call)).reshape(x.shape)

    def _waiting(self, call: Call) -> Waiting:
        return Waiting(call.name, call.site, tag=self.reply_tag(self._collectives, part=True), seq=self._collectives)

    def _trade(self, xs: Any, call: Call) -> tuple[Any, ...]:
        """Give ``xs[q]`` to each rank q; what they gave, in rank order."""
        me, size = self.transport.rank, self.transport.size
        for step in range(1, size):
            self._post_part(xs[(me + step) % size], call, (me + step) % size)
        return tuple([_owned(xs[me]) if rank == me else self._fetch_part(call, rank) for rank in range(size)])

    def _post_part(self, x: Any, call: Call, dest: int) -> None:
        seq = self._collectives
        frame = message.encode_object(x, call, seq) if call.op.endswith("_obj") else message.encode(x, call, seq)
        self.transport.post(frame, dest, self.reply_tag(seq, part=True), BACKWARD)

    def _fetch_part(self, call: Call, source: int) -> Any:
        tag = self.reply_tag(self._collectives, part=True)
        frame, _, _ = self.transport.fetch(source, tag, BACKWARD, Waiting(call.name, call.site, source, ANY))
        return message.decode(frame)[0]


def listed(xs: Any) -> Any:
    """One part for each rank, as a tuple; an array is cut along its first axis. ``form_of`` refuses what has no parts."""
    if backend.is_array(xs):
        return tuple([xs[i, ...] for i in range(len(xs))]) if xs.ndim else xs
    return tuple(xs) if isinstance(xs, Iterable) else xs


def _value(body: Array, header: Header) -> Any:
    if header.kind == NOTHING:
        return None
    return pickle.loads(body) if header.kind == OBJECT else message.as_array(body, header)


def _owned(x: Any) -> Any:
    """A rank's own part is a copy too, like the parts of the others."""
    return x.copy() if backend.is_array(x) else x
