"""Reductions over processes: computed by numpy, in rank order, up to 16 ranks; with more by the MPI
library's own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from mnpar.backend import Array
from mnpar.communicators.reduction import (
    DIRECT,
    GATHERED,
    UFUNCS,
    Halving,
    bytes_of_reduction,
    count_in_halves,
    messages_of_reduction,
    reduce_arrays,
    rounds,
    widened,
)
from mnpar.communicators.transport import Traffic
from mnpar.communicators.waiting import BACKWARD, Pending, Steps, Waiting, nothing
from mnpar.communicators.wire import MEANS
from mnpar.runtime.process import Process

PIECE = 2**30  # bytes: no MPI library is asked for more at once

# bytes: so much in all is sent from each rank to each, which starts sooner than the library's
# allgather
_SHORT = 2**20

# bytes of a message between machines: UCX over TCP moves a larger one, often, one way at a time
_WIRE = 2**20
_OPS = {"sum": "SUM", **dict.fromkeys(MEANS, "SUM"), "max": "MAX", "min": "MIN", "prod": "PROD"}


def _numpys(dtype: Any, ufunc: Any) -> Callable[[Any, Any, Any], None]:
    """Return a numpy function as an MPI operation on buffers of this dtype."""

    def combine(one: Any, other: Any, _: Any) -> None:
        target = np.frombuffer(other, dtype)
        ufunc(np.frombuffer(one, dtype), target, out=target)

    return combine


class Reductions:
    """The reductions, and the allgather of bytes, of a transport of MPI processes."""

    rank: int
    size: int
    MPI: Any
    lanes: list[Any]  # duplicates of the communicator, forward and backward
    label: str  # the same on all its ranks, and no other's
    process: Process
    traffic: Traffic
    apart: bool  # on several machines

    def meeting(self, waiting: Waiting, what: str = "") -> tuple[str, int, int, str]:
        """Return the name of a collective's step, the same on all ranks that are in it."""
        return self.label, waiting.order, waiting.seq, what

    def allgather(
        self, array: Array, counts: list[int], lane: int, waiting: Waiting
    ) -> Steps[Array]:
        whole = np.empty(sum(counts), np.uint8)
        comm = self.lanes[BACKWARD]
        others = self.size - 1
        if (self.size > DIRECT or whole.nbytes > _SHORT) and not (self.apart and self.size == 2):
            self.traffic.count(rounds(self.size), others * array.nbytes)
            request = self.lanes[lane].Iallgatherv(array, [whole, counts])
            yield Pending(request.Test, nothing, waiting, self.meeting(waiting, "data"))
            return whole
        self.traffic.count(others, others * array.nbytes)
        places = [
            whole[end - count : end]
            for count, end in zip(counts, itertools.accumulate(counts), strict=True)
        ]
        peers = [(self.rank + step) % self.size for step in range(1, self.size)]
        sent = [comm.Isend(piece, r, waiting.tag) for r in peers for piece in self._cut(array)]
        received = [
            comm.Irecv(piece, r, waiting.tag) for r in peers for piece in self._cut(places[r])
        ]
        places[self.rank][...] = array
        yield self._all([*received, *sent], waiting, "data")
        return whole

    def reduce(
        self,
        array: Array,
        reduction: str,
        root: int | None,
        lane: int,
        waiting: Waiting,
        out: Array | None = None,
    ) -> Steps[Array]:
        if self.size > DIRECT:
            return (yield from self._reduce_by_mpi(array, reduction, root, lane, waiting))
        if array.nbytes > GATHERED:
            return (yield from self.reduce_in_parts(array, reduction, waiting, root, out))
        gathered = yield from self.allgather(
            array.view(np.uint8), [array.nbytes] * self.size, lane, waiting
        )
        return reduce_arrays(list(gathered.view(array.dtype).reshape(self.size, -1)), reduction)

    def reduce_in_parts(
        self,
        array: Array,
        reduction: str,
        waiting: Waiting,
        root: int | None = None,
        out: Array | None = None,
    ) -> Steps[Array]:
        """Reduce one part on each rank, in rank order, and give it to the others (to the root).

        No rank receives more than two arrays' worth; numpy adds faster than the MPI libraries do;
        and all ranks, thread ranks too, get the same bits. Many ranks reduce in halves: on all of
        them, in another order. ``out`` may be ``array``: nothing that
        was sent is needed again.
        """
        total = np.empty_like(array) if out is None else out
        if self.size > DIRECT:
            yield from self._reduce_in_halves(array, total, reduction, waiting)
            return total
        length = PIECE // array.itemsize
        for start in range(0, array.size, length):
            piece = slice(start, start + length)
            yield from self._reduce_piece(array[piece], total[piece], reduction, waiting, root)
        return total

    def _reduce_piece(
        self, array: Array, total: Array, reduction: str, waiting: Waiting, root: int | None
    ) -> Steps[None]:
        P = self.size
        me = self.rank
        comm = self.lanes[BACKWARD]
        tag = waiting.tag
        if P == 2 and self.apart and root is None:
            yield from self._reduce_both(array, total, reduction, waiting)
            return
        others = [(me + step) % P for step in range(1, P)]
        parts = [slice(array.size * r // P, array.size * (r + 1) // P) for r in range(P)]
        self.traffic.count(
            messages_of_reduction(me, P, root), bytes_of_reduction(array, me, P, root)
        )
        own = array[parts[me]]
        if me > 1 and np.may_share_memory(own, total):  # the first two are summed before it is read
            own = own.copy()
        mine = [own if r == me else np.empty_like(own) for r in range(P)]
        received = [comm.Irecv(piece, r, tag) for r in others for piece in self._cut(mine[r])]
        sent = [comm.Isend(piece, r, tag) for r in others for piece in self._cut(array[parts[r]])]
        yield self._all([*received, *sent], waiting, "parts")
        reduce_arrays(mine, reduction, out=total[parts[me]])
        received = [
            comm.Irecv(piece, r, tag)
            for r in others
            if root in (None, me)
            for piece in self._cut(total[parts[r]])
        ]
        sent = [
            comm.Isend(piece, r, tag)
            for r in others
            if root in (None, r)
            for piece in self._cut(total[parts[me]])
        ]
        yield self._all([*received, *sent], waiting, "sums")

    def _reduce_in_halves(
        self, array: Array, total: Array, reduction: str, waiting: Waiting
    ) -> Steps[None]:
        """Reduce among many ranks, by few messages: see :class:`Halving`."""
        spare, is_spare, ways = Halving.of(self.rank, self.size, array.size)
        self.traffic.count(*count_in_halves(array.nbytes, self.rank, self.size, None))
        if is_spare:
            yield from self._swap(spare, array, total[:0], waiting)
            yield from self._swap(spare, array[:0], total, waiting)
            return
        sums = widened(array).copy()
        other = np.empty_like(array)
        if spare >= 0:
            yield from self._swap(spare, array[:0], other, waiting)
            sums = reduce_arrays([sums, widened(other)], reduction, out=sums)
        wide = np.empty_like(sums)
        for partner, given, kept in ways:
            yield from self._swap(partner, sums[given], wide[kept], waiting)
            both = [sums[kept], wide[kept]]
            reduce_arrays(both if self.rank < partner else both[::-1], reduction, out=sums[kept])
        total[...] = sums
        for partner, given, kept in reversed(ways):
            yield from self._swap(partner, total[kept], total[given], waiting)
        if spare >= 0:
            yield from self._swap(spare, total, array[:0], waiting)

    def _swap(self, peer: int, given: Array, taken: Array, waiting: Waiting) -> Steps[None]:
        """Send an array to a rank, and receive one from it; nothing, if it is empty."""
        comm = self.lanes[BACKWARD]
        received = [comm.Irecv(piece, peer, waiting.tag) for piece in self._cut(taken)]
        sent = [comm.Isend(piece, peer, waiting.tag) for piece in self._cut(given)]
        yield self._all([*received, *sent], waiting, "halves")

    def _reduce_both(
        self, array: Array, total: Array, reduction: str, waiting: Waiting
    ) -> Steps[None]:
        """Reduce between two ranks on two machines: they exchange their whole arrays, and both
        compute the whole sum: as many bytes as in parts, but in one step, so that no rank waits for
        sums from one that is busy.
        """
        other = np.empty_like(array)
        comm = self.lanes[BACKWARD]
        self.traffic.count(1, array.nbytes)
        received = [comm.Irecv(piece, 1 - self.rank, waiting.tag) for piece in self._cut(other)]
        sent = [comm.Isend(piece, 1 - self.rank, waiting.tag) for piece in self._cut(array)]
        yield self._all([*received, *sent], waiting, "wholes")
        reduce_arrays([array, other] if self.rank == 0 else [other, array], reduction, out=total)

    def _cut(self, array: Array) -> list[Array]:
        """Return the array's bytes, cut into the messages in which they travel."""
        whole = array.view(np.uint8)
        most = _WIRE if self.apart else PIECE
        if 0 < whole.size <= most:  # nearly always
            return [whole]
        return [whole[start : start + most] for start in range(0, whole.size, most)]

    def _all(self, requests: list[Any], waiting: Waiting, what: str) -> Pending:
        return Pending(
            lambda: self.MPI.Request.Testall(requests),
            nothing,
            waiting,
            self.meeting(waiting, what),
        )

    def _reduce_by_mpi(
        self, array: Array, reduction: str, root: int | None, lane: int, waiting: Waiting
    ) -> Steps[Array]:
        """Reduce by the MPI library: 16-bit floats in 32 bits, other byte orders in the machine's,
        and times as integers.
        """
        dtype = array.dtype
        if dtype.itemsize == 2 and dtype.kind in "fV":
            array = array.astype(np.float32)
        elif dtype.kind == "b":
            array = array.view(np.uint8)
        elif not dtype.isnative:
            array = array.astype(dtype.newbyteorder("="))
        op = self._operation(array.dtype, reduction)
        if dtype.kind in "mM":
            array = array.view(np.int64)
        here = root is None or root == self.rank
        # as good algorithms do
        self.traffic.count(*count_in_halves(array.nbytes, self.rank, self.size, root))
        total = np.empty_like(array) if here else array
        comm = self.lanes[lane]
        length = PIECE // array.itemsize
        for start in range(0, array.size, length):
            part = array[start : start + length]
            out = total[start : start + length] if here else None
            request = (
                comm.Iallreduce(part, out, op)
                if root is None
                else comm.Ireduce(part, out, op, root)
            )
            yield Pending(request.Test, nothing, waiting, self.meeting(waiting, "data"))
        if not here:
            return array  # nobody looks at it
        if dtype.kind in "bmM":
            total = total.view(dtype.newbyteorder("="))
        return total.astype(dtype, copy=False)

    def _operation(self, dtype: Any, reduction: str) -> Any:
        """Return MPI's operation; for maxima and minima of values that may be NaN (or NaT), which
        MPI drops or keeps by chance, numpy's.
        """
        if reduction not in ("max", "min") or dtype.kind not in "fmM":
            return getattr(self.MPI, _OPS[reduction])
        # their integers are ordered alike in all units
        form = np.dtype("M8[s]") if dtype.kind in "mM" else dtype
        operations = self.process.operations
        if (form, reduction) not in operations:
            operations[form, reduction] = self.MPI.Op.Create(
                _numpys(form, UFUNCS[reduction]), commute=True
            )
        return operations[form, reduction]
