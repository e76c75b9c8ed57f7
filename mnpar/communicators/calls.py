"""What each method of a communicator does, as steps: its arguments checked, its result in the
caller's form.
"""

from __future__ import annotations

import functools
import operator
from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.communicators.channel import Channel
from mnpar.communicators.collectives import (
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    BCAST,
    GATHER,
    REDUCE_SCATTER,
    SCANS,
    SCATTER,
    allreduce_into,
    listed,
)
from mnpar.communicators.operation import Operation, complete
from mnpar.communicators.transport import Traffic, Transport
from mnpar.communicators.waiting import ANY, Steps, T
from mnpar.communicators.wire import REDUCTIONS, Call, mean_of
from mnpar.configuration import config
from mnpar.runtime.callsite import call_site

_ORDER = "comm.send(array, dest), and array = comm.recv(source), which takes no buffer"
_INTEGERS = (int, np.integer)  # written in the calls, a union would be made again each time


class Calls:
    """The calls of one rank: each method here is what a blocking and a non-blocking method of
    Communicator share.
    """

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.rank = transport.rank
        self.size = transport.size
        self._channels: dict[int, Channel] = {}
        self._open = True
        self.parts: list[tuple[int | None, int, Calls | None]] | None = None  # see follow
        # how many multi-node optimizers were made on it (parallel/data/update_record.py)
        self.optimizers = 0
        self._configs: dict[str, Any] = {"batched_copy": True, "allreduce_grad_dtype": None}

    @property
    def traffic(self) -> Traffic:
        """What this rank has sent so far."""
        return self.transport.traffic

    def follow(self) -> None:
        """Keep what is split from it from now on, and from that, so that all of it can be given up
        and renewed with it.
        """
        self.parts = []

    def revoke(self) -> None:
        """Give up all messages under way here, and in what was split from it: nobody waits for them
        any more.
        """
        self.transport.revoke()
        for _, _, part in self.parts or ():
            if part is not None:
                part.revoke()

    def renew(self, transport: Transport) -> None:
        """Go on with new messages among the same ranks, after those under way were given up.
        Collective.

        What was split from it goes on, too, but for what not all of its ranks had yet.
        """
        self.transport, self.rank, self.size = transport, transport.rank, transport.size
        self._channels = {}
        if self.parts is None:
            return
        del self.parts[min(self.allgather_obj(len(self.parts))) :]  # type: ignore[attr-defined]
        for color, key, part in self.parts:
            made = self.transport.split(color, key)
            if part is not None and made is not None:
                part.renew(made)

    def channel(self, order: int) -> Channel:
        """The messages of one order of differentiation: 0 forward, 1 its gradients …"""
        if not self._open:
            remedy = (
                "let it live until backward has communicated on it"
                if order
                else "create or split another one"
            )
            raise ValueError(f"rank {self.rank}: this communicator is finalized: {remedy}")
        channel = self._channels.get(order)
        if channel is None:
            channel = self._channels[order] = Channel(self.transport, order)
        return channel

    def peer(self, rank: int, wildcard: int | None = None) -> int:
        """The rank, checked."""
        if isinstance(rank, _INTEGERS) and (0 <= rank < self.size or rank == wildcard):
            return int(rank)
        if isinstance(rank, np.ndarray) and rank.ndim:
            raise TypeError(
                f"rank {self.rank}: the number of a rank is needed where an array was given: "
                f"{_ORDER}"
            )
        raise ValueError(
            f"rank {self.rank}: there is no rank {rank!r} in a communicator of {self.size} (0 "
            f"to {self.size - 1})"
        )

    def tag(self, tag: int, wildcard: int | None = None) -> int:
        """The tag, checked. What ranks repeat in backward (functions.forget) has tags of its own,
        counted from the other end: a message that left after forward, and is received after
        backward, is none of these.
        """
        if isinstance(tag, _INTEGERS) and (0 <= tag <= self.transport.tag_limit or tag == wildcard):
            return (
                self.transport.tag_limit - int(tag)
                if config.in_recomputing and tag != wildcard
                else int(tag)
            )
        raise ValueError(
            f"rank {self.rank}: a tag is a number from 0 to {self.transport.tag_limit}, not {tag!r}"
        )

    def _call(
        self, what: str, root: int = 0, op: str = "sum", tag: int = 0, later: bool = False
    ) -> Call:
        if op not in REDUCTIONS:
            raise ValueError(f"rank {self.rank}: {what} knows {', '.join(REDUCTIONS)}, not {op!r}")
        return Call(what, call_site(), root=root, reduction=op, tag=tag, later=later)

    # ---- arrays ----

    def _send(self, data: Any, dest: int, tag: int) -> None:
        self.channel(0).send(data, self._call("send", tag=tag), self.peer(dest), self.tag(tag))

    def _recv(self, source: int, tag: int) -> Steps[Any]:
        return (
            yield from self.channel(0).recv(
                self._call("recv"), self.peer(source, ANY), self.tag(tag, ANY)
            )
        )[0]

    def _shift(self, data: Any, steps: int) -> Steps[Any]:
        return (
            yield from self._sendrecv(
                data, (self.rank + steps) % self.size, (self.rank - steps) % self.size, 0
            )
        )

    def _bcast(self, x: Any, root: int, later: bool = False) -> Steps[Any]:
        value, _ = yield from self.channel(0).steps(
            BCAST, x, self._call("bcast", self.peer(root), later=later)
        )
        return _like(value, x)

    def _reduce(self, x: Any, root: int, op: str, later: bool = False) -> Steps[Any]:
        root = self.peer(root)
        wide, call = _widened(x, self._call("reduce", root, op, later=later))
        total, _ = yield from self.channel(0).steps(ALLREDUCE, wide, call)
        return _like(self._mean(total, op, x), x)

    def _allreduce(
        self, x: Any, op: str, later: bool = False, out: Array | None = None
    ) -> Steps[Any]:
        into = out if type(out) is np.ndarray and op != "mean" else None
        algorithm = ALLREDUCE if into is None else allreduce_into(into)
        total, _ = yield from self.channel(0).steps(
            algorithm, *_widened(x, self._call("allreduce", op=op, later=later))
        )
        total = _like(self._mean(total, op, x), x)
        if out is None:
            return total
        if not (type(out) is np.ndarray and np.shares_memory(total, out)):
            out[...] = total
        return out

    def _gather(self, x: Any, root: int, later: bool = False) -> Steps[tuple[Any, ...] | None]:
        values: tuple[Any, ...] | None
        values, _ = yield from self.channel(0).steps(
            GATHER, x, self._call("gather", self.peer(root), later=later)
        )
        return values

    def _allgather(self, x: Any, later: bool = False) -> Steps[tuple[Any, ...]]:
        values: tuple[Any, ...]
        values, _ = yield from self.channel(0).steps(
            ALLGATHER, x, self._call("allgather", later=later)
        )
        return values

    def _scatter(self, xs: Any, root: int, later: bool = False) -> Steps[Any]:
        return (
            yield from self.channel(0).steps(
                SCATTER, xs, self._call("scatter", self.peer(root), later=later)
            )
        )[0]

    def _alltoall(self, xs: Any, later: bool = False) -> Steps[tuple[Any, ...]]:
        values: tuple[Any, ...]
        values, _ = yield from self.channel(0).steps(
            ALLTOALL, xs, self._call("alltoall", later=later)
        )
        return values

    def _reduce_scatter(self, xs: Any, op: str, later: bool = False) -> Steps[Any]:
        xs = listed(xs)
        call = self._call("reduce_scatter", op=op, later=later)
        wide = list(xs) if isinstance(xs, tuple) else []
        for i, x in enumerate(wide):
            wide[i], call = _widened(x, call)
        total, _ = yield from self.channel(0).steps(
            REDUCE_SCATTER, tuple(wide) if isinstance(xs, tuple) else xs, call
        )
        return self._mean(total, op, xs[self.rank])

    def _scan(self, x: Any, op: str, exclusive: bool, later: bool = False) -> Steps[Any]:
        if op == "mean" or (exclusive and op in ("max", "min")):
            raise ValueError(
                f"rank {self.rank}: there is no {'exscan' if exclusive else 'scan'} by {op!r}"
            )
        total, _ = yield from self.channel(0).steps(
            SCANS[exclusive, True], x, self._call("scan", op=op, later=later)
        )
        return _like(total, x)

    def _barrier(self, later: bool = False) -> Steps[None]:
        yield from self.channel(0).barrier(self._call("barrier", later=later))

    # ---- objects ----

    def _send_obj(self, obj: Any, dest: int, tag: int) -> None:
        self.channel(0).send_object(
            obj, self._call("send_obj", tag=tag), self.peer(dest), self.tag(tag)
        )

    def _recv_obj(self, source: int, status: Any, tag: int) -> Steps[Any]:
        receiving = self.channel(0).recv(
            self._call("recv_obj"), self.peer(source, ANY), self.tag(tag, ANY)
        )
        obj, _, source, tag = yield from receiving
        if status is not None:
            status.source, status.tag = source, tag
        return obj

    def _bcast_obj(self, obj: Any, root: int, later: bool = False) -> Steps[Any]:
        return (
            yield from self.channel(0).steps(
                BCAST, obj, self._call("bcast_obj", self.peer(root), later=later)
            )
        )[0]

    def _gather_obj(self, obj: Any, root: int, later: bool = False) -> Steps[list[Any] | None]:
        values, _ = yield from self.channel(0).steps(
            GATHER, obj, self._call("gather_obj", self.peer(root), later=later)
        )
        return None if values is None else list(values)

    def _allgather_obj(self, obj: Any, later: bool = False) -> Steps[list[Any]]:
        return list(
            (
                yield from self.channel(0).steps(
                    ALLGATHER, obj, self._call("allgather_obj", later=later)
                )
            )[0]
        )

    def _scatter_obj(self, objs: Any, root: int, later: bool = False) -> Steps[Any]:
        return (
            yield from self.channel(0).steps(
                SCATTER, objs, self._call("scatter_obj", self.peer(root), later=later)
            )
        )[0]

    def _alltoall_obj(self, objs: Any, later: bool = False) -> Steps[list[Any]]:
        return list(
            (
                yield from self.channel(0).steps(
                    ALLTOALL, objs, self._call("alltoall_obj", later=later)
                )
            )[0]
        )

    def _allreduce_obj(self, obj: Any, op: str, later: bool = False) -> Steps[Any]:
        return _folded(
            (
                yield from self.channel(0).steps(
                    ALLGATHER, obj, self._call("allreduce_obj", op=op, later=later)
                )
            )[0],
            op,
        )

    def _reduce_obj(self, obj: Any, root: int, op: str, later: bool = False) -> Steps[Any]:
        objs, _ = yield from self.channel(0).steps(
            GATHER, obj, self._call("reduce_obj", self.peer(root), op, later=later)
        )
        return None if objs is None else _folded(objs, op)

    def _reduce_scatter_obj(self, objs: Any, op: str, later: bool = False) -> Steps[Any]:
        given, _ = yield from self.channel(0).steps(
            ALLTOALL, objs, self._call("reduce_scatter_obj", op=op, later=later)
        )
        return _folded(given, op)

    def _scan_obj(self, obj: Any, op: str, exclusive: bool, later: bool = False) -> Steps[Any]:
        call = self._call("exscan_obj" if exclusive else "scan_obj", op=op, later=later)
        objs = (yield from self.channel(0).steps(ALLGATHER, obj, call))[0][
            : self.rank + (not exclusive)
        ]
        return _folded(objs, op) if objs else None

    def _sendrecv(self, data: Any, dest: int, source: int, tag: int) -> Steps[Any]:
        source = self.peer(source, ANY)  # a bad argument is refused before anything is sent
        _, given = self.channel(0).hand(
            data, self._call("send", tag=tag), self.peer(dest), self.tag(tag)
        )
        value = yield from self._recv(source, tag)
        if given is not None:
            yield given
        return value

    def _sendrecv_obj(self, obj: Any, dest: int, source: int, tag: int) -> Steps[Any]:
        self._send_obj(obj, dest, tag)
        return (yield from self._recv_obj(source, None, tag))

    def _shift_obj(self, obj: Any, steps: int) -> Steps[Any]:
        return (
            yield from self._sendrecv_obj(
                obj, (self.rank + steps) % self.size, (self.rank - steps) % self.size, 0
            )
        )

    # ---- inside ----

    def _now(self, steps: Steps[T]) -> T:
        return complete(self.transport, steps)

    def _later(self, steps: Steps[Any]) -> Operation:
        return Operation(self.transport, steps)

    def _mean(self, total: Any, op: str, x: Any) -> Any:
        """A sum as the mean, in the dtype that numpy's mean of ``x`` has."""
        if op != "mean" or total is None:
            return total
        mean = backend.wrap_scalar(total / self.size)
        return (
            mean.astype(x.dtype, copy=False)
            if backend.is_array(x) and x.dtype.kind in "fc"
            else mean
        )


def _folded(objs: Any, op: str) -> Any:
    """The reduction of objects, in rank order."""
    if op in ("max", "min"):
        return (max if op == "max" else min)(objs)
    total = functools.reduce(operator.mul if op == "prod" else operator.add, objs)
    return total / len(objs) if op == "mean" else total


def _like(x: Any, given: Any) -> Any:
    """A result, on the device of the argument."""
    return backend.to_device_of(x, given) if given is not None and x is not None else x


def _widened(x: Any, call: Call) -> tuple[Any, Call]:
    """What is summed for a mean: as in numpy, 8-bit integers do not overflow on the way, nor 16-bit
    floats; what is told.
    """
    if (
        call.reduction[:4] != "mean"
        or not backend.is_array(x)
        or not (x.dtype.kind in "iu" or x.dtype == np.float16)
    ):
        return x, call
    return x.astype(np.float32 if x.dtype.kind == "f" else np.float64), call._replace(
        reduction=mean_of(x.dtype)
    )
