"""Collectives that know what they are, built on a transport.

Every collective opens with one exchange of one size, the same for all (``Rooms``): each rank says which operation it is in, as
its how-manieth on this communicator, with which root, reduction, dtype and shape, and from which source line. Ranks that do not
mean the same thing so find out together, before any value is delivered, and raise the same table. Small values travel inside
the opening; larger ones follow by the MPI collective or, where parts differ, as self-describing messages.
A rank may have *nothing* to give (None): a gradient that does not exist. Reductions skip it; others deliver None.
(The file is long because all collectives are here, each in steps and, for what need not wait, without.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.communicators import message
from mnpar.communicators.meeting import Meeting
from mnpar.communicators.message import NOTHING, TUPLE, Call
from mnpar.communicators.opening import Opening, as_bytes, value_of
from mnpar.communicators.operation import complete
from mnpar.communicators.reduction import reduce_arrays
from mnpar.communicators.transport import ANY, BACKWARD, PART, Steps, Waiting

_PIECE = 2**30  # bytes; more than this is sent part by part


class Channel(Meeting):
    """All communications of one order on one communicator. All its ranks start its collectives in the same order.

    What has to wait comes as steps, to be driven by ``complete`` or an ``Operation``. A collective that is waited for
    ``call.later`` starts with the same opening, but its values go as messages only, matched by its number: MPI's own
    collectives have to follow each other in one order on all ranks, and an opening is answered at another moment on each.

    What functions call, and wait for at once, has a second form, ``..._now``: the same, without steps where all values came
    with the opening.
    """

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

    def allreduce_now(self, x: Array | None, call: Call, root: int | None = None) -> tuple[Array | None, bool]:
        """``complete(allreduce(x, call, root))``."""
        opening = self._open_now(call, x)
        if opening.alike and type(x) is np.ndarray and x.nbytes <= opening.room:
            here = root is None or root == self.transport.rank
            return (reduce_arrays(opening.arrays(x), call.reduction) if here else None), opening.wants
        return complete(self.transport, self._reduced(opening, x, root))

    def _reduced(
        self, opening: Opening, x: Array | None, root: int | None = None, out: Array | None = None
    ) -> Steps[tuple[Array | None, bool]]:
        call, room = opening.call, opening.room
        if opening.alike and type(x) is np.ndarray:  # the common case, without a detour
            if x.nbytes <= room:
                total = reduce_arrays(opening.arrays(x), call.reduction)
            else:
                total = yield from self._reduce(x, opening, root, out)
            return (total if root is None or root == self.transport.rank else None), opening.wants
        headers = opening.headers()
        given = [rank for rank, header in enumerate(headers) if header.kind != NOTHING]
        if not given:
            return None, opening.wants
        if len(given) < len(headers) and call.reduction in ("max", "min"):
            raise opening.mismatch(f"some ranks have nothing to give to {call.name} ({call.reduction})")
        form = headers[given[0]]
        if form.nbytes <= room:
            total = reduce_arrays([backend.to_host(opening.value(rank, form)) for rank in given], call.reduction)
        else:
            if x is None:
                x = np.full(form.shape, 1 if call.reduction == "prod" else 0, form.dtype)
            total = yield from self._reduce(backend.to_host(x), opening, root)
        if root is not None and root != self.transport.rank:
            return None, opening.wants
        return (backend.on_device(total) if form.flags & message.ON_DEVICE else total), opening.wants

    def allreduce_noted(self, x: Array, call: Call, note: bytes, usual: Callable[[list[bytes]], bool], out: Array) -> bool:
        """The sum, into ``out``, if what the ranks say beside it is as usual: whether it is. It waits.

        All ranks judge alike, as they all hear the same: there is a sum on all of them, or on none. Where there is none the
        arrays need not be alike.
        """
        host, into = backend.to_host(x), out if type(out) is np.ndarray else None
        opening, notes = self._open_noted(call, host, note)
        if not usual(notes):
            return False
        if opening.agreed().alike and host.nbytes <= opening.room:
            total = reduce_arrays(opening.arrays(host), call.reduction, into)
        else:
            total = complete(self.transport, self._reduce(host, opening, None, into))
        if into is None or not np.may_share_memory(total, into):
            backend.copy_to(out, total)
        return True

    def scan(self, x: Array | None, call: Call, exclusive: bool, up: bool) -> Steps[tuple[Array | None, bool]]:
        """The reduction of the ranks up to this one (or from it on), with or without its own."""
        parts, wants = yield from self.allgather(x, call)
        return self._scanned(parts, call, exclusive, up), wants

    def scan_now(self, x: Array | None, call: Call, exclusive: bool, up: bool) -> tuple[Array | None, bool]:
        """``complete(scan(x, call, exclusive, up))``."""
        parts, wants = self.allgather_now(x, call)
        return self._scanned(parts, call, exclusive, up), wants

    def _scanned(self, parts: tuple[Array | None, ...], call: Call, exclusive: bool, up: bool) -> Array | None:
        me = self.transport.rank
        some = parts[: me + (not exclusive)] if up else parts[me + exclusive :]
        given = [part for part in some if part is not None]
        like = next((part for part in parts if part is not None), None)
        if like is None:
            return None
        return reduce_arrays(given, call.reduction) if given else np.full_like(like, call.reduction == "prod")

    def bcast(self, x: Any, call: Call) -> Steps[tuple[Any, bool]]:
        """The root's value on every rank (an object where ``call.op`` ends in _obj)."""
        opening = yield from self._open(call, x if self.transport.rank == call.root else None)
        return (yield from self._broadcast(opening, x))

    def bcast_now(self, x: Any, call: Call) -> tuple[Any, bool]:
        """``complete(bcast(x, call))``."""
        opening = self._open_now(call, x if self.transport.rank == call.root else None)
        header = opening.header(call.root)
        if header.nbytes <= opening.room:
            return (x if self.transport.rank == call.root else opening.value(call.root, header)), opening.wants
        return complete(self.transport, self._broadcast(opening, x))

    def _broadcast(self, opening: Opening, x: Any) -> Steps[tuple[Any, bool]]:
        transport, call, root = self.transport, opening.call, opening.call.root
        at_root, header = transport.rank == root, opening.header(root)
        if header.nbytes <= opening.room:
            return (x if at_root else opening.value(root, header)), opening.wants
        if call.later:
            if at_root:
                for rank in self._others():
                    self._post_part(x, opening, rank)
            return (x if at_root else (yield from self._fetch_part(opening, root))), opening.wants
        body = _body(x, opening) if at_root else np.empty(header.nbytes, np.uint8)
        yield from transport.bcast(body, root, self.lane, self._waiting(opening))
        return (x if at_root else value_of(body, header)), opening.wants

    def allgather(self, x: Any, call: Call) -> Steps[tuple[tuple[Any, ...], bool]]:
        """Every rank's value on every rank, in rank order."""
        return (yield from self._allgathered((yield from self._open(call, x)), x))

    def allgather_now(self, x: Any, call: Call) -> tuple[tuple[Any, ...], bool]:
        """``complete(allgather(x, call))``."""
        opening = self._open_now(call, x)
        if opening.alike and type(x) is np.ndarray and x.nbytes <= opening.room:
            return tuple([array.copy() for array in opening.arrays(x)]), opening.wants
        return complete(self.transport, self._allgathered(opening, x))

    def _allgathered(self, opening: Opening, x: Any) -> Steps[tuple[tuple[Any, ...], bool]]:
        if opening.inside:
            return tuple(opening.values()), opening.wants
        headers = opening.headers()
        counts = [header.nbytes for header in headers]
        if opening.call.later or sum(counts) > _PIECE:
            return (yield from self._trade([x] * self.transport.size, opening)), opening.wants
        joined = yield from self.transport.allgather(_body(x, opening), counts, self.lane, self._waiting(opening))
        values, start = [], 0
        for header in headers:
            part = joined[start : start + header.nbytes]
            start += header.nbytes
            values.append(value_of(part, header))
        return tuple(values), opening.wants

    def gather(self, x: Any, call: Call) -> Steps[tuple[tuple[Any, ...] | None, bool]]:
        """Every rank's value on the root, in rank order; None elsewhere."""
        return (yield from self._gathered((yield from self._open(call, x)), x))

    def gather_now(self, x: Any, call: Call) -> tuple[tuple[Any, ...] | None, bool]:
        """``complete(gather(x, call))``."""
        opening = self._open_now(call, x)
        if opening.alike and type(x) is np.ndarray and x.nbytes <= opening.room:
            here = self.transport.rank == call.root
            return (tuple([array.copy() for array in opening.arrays(x)]) if here else None), opening.wants
        return complete(self.transport, self._gathered(opening, x))

    def _gathered(self, opening: Opening, x: Any) -> Steps[tuple[tuple[Any, ...] | None, bool]]:
        me, root = self.transport.rank, opening.call.root
        if opening.inside:
            values = opening.values() if me == root else None
        elif me != root:
            self._post_part(x, opening, root)
            values = None
        else:
            values = yield from self._fetch_parts(opening, x)
        return (None if values is None else tuple(values)), opening.wants

    def scatter(self, xs: Any, call: Call) -> Steps[tuple[Any, bool]]:
        """The root's ``xs[rank]`` on each rank."""
        xs, parts = self._scattering(xs, call)
        return (yield from self._scattered((yield from self._open(call, xs, parts)), xs))

    def scatter_now(self, xs: Any, call: Call) -> tuple[Any, bool]:
        """``complete(scatter(xs, call))``."""
        xs, parts = self._scattering(xs, call)
        opening = self._open_now(call, xs, parts)
        if opening.kind(call.root) == TUPLE and opening.inside:
            return opening.part(call.root, self.transport.rank), opening.wants
        return complete(self.transport, self._scattered(opening, xs))

    def _scattering(self, xs: Any, call: Call) -> tuple[Any, int | None]:
        return (listed(xs), self.transport.size) if self.transport.rank == call.root else (None, None)

    def _scattered(self, opening: Opening, xs: Any) -> Steps[tuple[Any, bool]]:
        me, root = self.transport.rank, opening.call.root
        if opening.kind(root) == TUPLE and opening.inside:
            return opening.part(root, me), opening.wants
        if me != root:
            return (yield from self._fetch_part(opening, root)), opening.wants
        for rank in self._others():
            self._post_part(xs[rank], opening, rank)
        return _owned(xs[me]), opening.wants

    def alltoall(self, xs: Any, call: Call) -> Steps[tuple[tuple[Any, ...], bool]]:
        """On rank r, what each rank q had as its ``xs[r]``, in the order of q."""
        xs = listed(xs)
        opening = yield from self._open(call, xs, self.transport.size)
        return (yield from self._traded(opening, xs)), opening.wants

    def alltoall_now(self, xs: Any, call: Call) -> tuple[tuple[Any, ...], bool]:
        """``complete(alltoall(xs, call))``."""
        xs = listed(xs)
        opening = self._open_now(call, xs, self.transport.size)
        return self._traded_now(opening, xs), opening.wants

    def reduce_scatter(self, xs: Any, call: Call) -> Steps[tuple[Array | None, bool]]:
        """On rank r, the reduction over ranks of their ``xs[r]``, summed in rank order."""
        xs = listed(xs)
        opening = yield from self._open(call, xs, self.transport.size)
        return _reduced_parts((yield from self._traded(opening, xs)), call), opening.wants

    def reduce_scatter_now(self, xs: Any, call: Call) -> tuple[Array | None, bool]:
        """``complete(reduce_scatter(xs, call))``."""
        xs = listed(xs)
        opening = self._open_now(call, xs, self.transport.size)
        return _reduced_parts(self._traded_now(opening, xs), call), opening.wants

    # ---- inside ----

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

    def _traded(self, opening: Opening, xs: Any) -> Steps[tuple[Any, ...]]:
        """What all ranks have for this one."""
        if opening.inside and not opening.call.op.endswith("_obj"):
            return self._parts(opening)
        return (yield from self._trade(xs, opening))

    def _traded_now(self, opening: Opening, xs: Any) -> tuple[Any, ...]:
        return self._parts(opening) if opening.inside else complete(self.transport, self._traded(opening, xs))

    def _parts(self, opening: Opening) -> tuple[Any, ...]:
        return tuple([opening.part(rank, self.transport.rank) for rank in range(self.transport.size)])

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
    if type(xs) is tuple:
        return xs
    if backend.is_array(xs):
        return tuple([xs[i, ...] for i in range(len(xs))]) if xs.ndim else xs
    return tuple(xs) if isinstance(xs, Iterable) else xs


def _reduced_parts(parts: tuple[Any, ...], call: Call) -> Array | None:
    given = [part for part in parts if part is not None]
    if not given:
        return None
    if type(given[0]) is np.ndarray:
        return reduce_arrays(given, call.reduction)
    return backend.beside(reduce_arrays([backend.to_host(part) for part in given], call.reduction), given[0])


def _body(x: Any, opening: Opening) -> Array:
    """This rank's own value as bytes; of an array from a known line they were not made yet."""
    return as_bytes(x) if type(x) is np.ndarray and not opening.call.op.endswith("_obj") else opening.body


def _owned(x: Any) -> Any:
    """A rank's own part is a copy too, like the parts of the others."""
    return x.copy() if backend.is_array(x) else x
