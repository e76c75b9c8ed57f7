"""The communicator: the ranks that work together, and every way in which they can exchange arrays and objects.

The contract, for whatever carries the bytes (tests/communicators/test_contract.py has a test for each line):

1. ``send`` returns at once and owns its copy: the caller may change the array.
2. Messages of one (source, dest, tag) arrive in the order in which they were sent.
3. Shape, dtype and structure arrive as they left; the receiver is told nothing.
4. Shapes may differ between ranks wherever their parts are not added up.
5. It works on private duplicates of what it was given; gradients have a lane of their own.
6. Waiting longer than the patience raises a DeadlockError that says who waits for what and where.
7. An uncaught error on one rank ends all of them, with that rank's traceback.

Nothing here is differentiable: ``mnpar.functions`` has the same operations for Variables.
"""

from __future__ import annotations

import functools
import operator
from types import TracebackType
from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.communicators.channel import Channel, listed
from mnpar.communicators.message import REDUCTIONS, Call, call_site
from mnpar.communicators.transport import ANY, Transport

ANY_SOURCE = ANY
ANY_TAG = ANY


class Communicator:
    """A group of ranks; :func:`mnpar.create_communicator` makes one.

    Args:
        transport: what carries the bytes.

    Example:
        >>> import numpy as np, mnpar
        >>> def program(comm):
        ...     return comm.allreduce(np.array([comm.rank, 1]))
        >>> mnpar.run(program, ranks=3)[0]
        array([3, 3])
    """

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.rank = transport.rank
        self.size = transport.size
        self._channels: dict[int, Channel] = {}
        self._open = True

    def channel(self, order: int) -> Channel:
        """The messages of one order of differentiation: 0 forward, 1 its gradients …"""
        if not self._open:
            raise ValueError("this communicator is finalized: create or split another one")
        channel = self._channels.get(order)
        if channel is None:
            channel = self._channels[order] = Channel(self.transport, order)
        return channel

    # ---- the group ----

    @property
    def name(self) -> str:
        """What carries the messages: 'mpi' or 'threads'."""
        return self.transport.name

    @property
    def intra_rank(self) -> int:
        """This rank's number among the ranks on its machine."""
        return self.transport.places()[0]

    @property
    def intra_size(self) -> int:
        """How many ranks are on this machine."""
        return self.transport.places()[1]

    @property
    def inter_rank(self) -> int:
        """The number of this machine among the machines."""
        return self.transport.places()[2]

    @property
    def inter_size(self) -> int:
        """How many machines there are."""
        return self.transport.places()[3]

    @property
    def is_root(self) -> bool:
        """Whether this is rank 0, the one that prints."""
        return self.rank == 0

    def split(self, color: int | None, key: int) -> Communicator | None:
        """Make a communicator for each color; all ranks call it.

        Args:
            color: ranks with the same one come together; None for no group.
            key: orders the ranks of a group (ties by rank).

        Returns:
            The communicator of this rank's group; None if the color was None.

        Example:
            >>> import mnpar
            >>> def program(comm):
            ...     half = comm.split(comm.rank // 2, comm.rank)
            ...     return half.rank, half.size
            >>> mnpar.run(program, ranks=4)
            [(0, 2), (1, 2), (0, 2), (1, 2)]
        """
        if color is not None and not (isinstance(color, int | np.integer) and 0 <= color < 2**31):
            raise ValueError(f"rank {self.rank}: the color of a split is a number from 0 on, or None, not {color!r}")
        if not (isinstance(key, int | np.integer) and abs(key) < 2**31):
            raise ValueError(f"rank {self.rank}: the key of a split is a number, not {key!r}")
        self.channel(0).barrier(self._call("split"))
        transport = self.transport.split(None if color is None else int(color), int(key))
        return None if transport is None else Communicator(transport)

    def finalize(self) -> None:
        """Give its resources back; all ranks call it, and none uses it afterwards."""
        if self._open:
            self._open = False
            self.transport.finalize()

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:  # after an error the others may not come to a collective
            self.finalize()

    def __repr__(self) -> str:
        return f"<mnpar communicator {self.name}, rank {self.rank} of {self.size}>"

    # ---- arrays: point to point ----

    def send(self, data: Any, dest: int, tag: int = 0) -> None:
        """Start sending to a rank, and return at once.

        Args:
            data: an array of any dtype and shape, or a tuple, list or dict of arrays.
            dest: the rank that calls :meth:`recv`.
            tag: tells messages between the same ranks apart.

        Raises:
            ValueError: no such rank or tag.
            TypeError: not an array.
        """
        self.channel(0).send(data, self._call("send", tag=tag), self.peer(dest), self.tag(tag))

    def recv(self, source: int, tag: int = 0) -> Any:
        """Wait for what a rank sent; it comes in its own shape, dtype and structure (a list comes as a tuple).

        Args:
            source: the rank that calls :meth:`send`, or ``ANY_SOURCE``.
            tag: the sender's, or ``ANY_TAG``.
        """
        return self.channel(0).recv(self._call("recv"), self.peer(source, ANY_SOURCE), self.tag(tag, ANY_TAG))[0]

    # ---- arrays: collectives; every rank calls them ----

    def bcast(self, x: Array | None = None, root: int = 0) -> Array:
        """The root's array on every rank; the others' argument is not looked at."""
        return self._result(self.channel(0).bcast(x, self._call("bcast", self.peer(root)))[0], x)

    def reduce(self, x: Array, root: int = 0, op: str = "sum") -> Array | None:
        """The elementwise ``'sum'``, ``'mean'``, ``'max'``, ``'min'`` or ``'prod'`` over ranks on the root; None elsewhere."""
        call = self._call("reduce", self.peer(root), op)
        return self._result(self._mean(self.channel(0).allreduce(_wide(x, op), call, root)[0], op, x), x)

    def allreduce(self, x: Array, op: str = "sum") -> Array:
        """The elementwise ``'sum'``, ``'mean'``, ``'max'``, ``'min'`` or ``'prod'`` over ranks, on every rank."""
        total = self.channel(0).allreduce(_wide(x, op), self._call("allreduce", op=op))[0]
        return self._result(self._mean(total, op, x), x)

    def gather(self, x: Array, root: int = 0) -> tuple[Array, ...] | None:
        """Every rank's array, whatever its shape, in rank order on the root; None elsewhere."""
        return self.channel(0).gather(x, self._call("gather", self.peer(root)))[0]

    def allgather(self, x: Array) -> tuple[Array, ...]:
        """Every rank's array, whatever its shape, in rank order on every rank."""
        return self.channel(0).allgather(x, self._call("allgather"))[0]

    def scatter(self, xs: Any = None, root: int = 0) -> Array:
        """The root's ``xs[rank]`` on each rank: a list of arrays of any shapes, or one array whose first axis is cut."""
        return self.channel(0).scatter(xs, self._call("scatter", self.peer(root)))[0]

    def alltoall(self, xs: Any) -> tuple[Array, ...]:
        """Rank r gets what each rank q has as its ``xs[r]``, in the order of q; shapes may all differ."""
        return self.channel(0).alltoall(xs, self._call("alltoall"))[0]

    def reduce_scatter(self, xs: Any, op: str = "sum") -> Array:
        """Rank r gets the reduction over ranks of their ``xs[r]``; the shapes of different r may differ."""
        xs = listed(xs)
        wide = tuple([_wide(x, op) for x in xs]) if isinstance(xs, tuple) else xs
        total = self.channel(0).reduce_scatter(wide, self._call("reduce_scatter", op=op))[0]
        return self._mean(total, op, xs[self.rank])

    def barrier(self) -> None:
        """Return when every rank has called it."""
        self.channel(0).barrier(self._call("barrier"))

    # ---- objects: pickled, between the ranks of this job only ----

    def send_obj(self, obj: Any, dest: int, tag: int = 0) -> None:
        """Start sending any object that can be pickled."""
        self.channel(0).send_object(obj, self._call("send_obj", tag=tag), self.peer(dest), self.tag(tag))

    def recv_obj(self, source: int, status: Any = None, tag: int = ANY_TAG) -> Any:
        """Wait for an object; ``status``, if given, gets ``source`` and ``tag`` as attributes."""
        call = self._call("recv_obj")
        obj, _, source, tag = self.channel(0).recv(call, self.peer(source, ANY_SOURCE), self.tag(tag, ANY_TAG))
        if status is not None:
            status.source, status.tag = source, tag
        return obj

    def bcast_obj(self, obj: Any = None, max_buf_len: int = 0, root: int = 0) -> Any:
        """The root's object on every rank. (``max_buf_len``, ChainerMN's, is not needed: any size goes.)"""
        return self.channel(0).bcast(obj, self._call("bcast_obj", self.peer(root)))[0]

    def gather_obj(self, obj: Any, root: int = 0) -> list[Any] | None:
        """Every rank's object in rank order on the root; None elsewhere."""
        values, _ = self.channel(0).gather(obj, self._call("gather_obj", self.peer(root)))
        return None if values is None else list(values)

    def allgather_obj(self, obj: Any) -> list[Any]:
        """Every rank's object in rank order on every rank."""
        return list(self.channel(0).allgather(obj, self._call("allgather_obj"))[0])

    def scatter_obj(self, objs: Any = None, root: int = 0) -> Any:
        """The root's ``objs[rank]`` on each rank."""
        return self.channel(0).scatter(objs, self._call("scatter_obj", self.peer(root)))[0]

    def alltoall_obj(self, objs: Any) -> list[Any]:
        """Rank r gets what each rank q has as its ``objs[r]``."""
        return list(self.channel(0).alltoall(objs, self._call("alltoall_obj"))[0])

    def allreduce_obj(self, obj: Any, op: str = "sum") -> Any:
        """The sum (``+``), ``'mean'``, ``'max'``, ``'min'`` or ``'prod'`` (``*``) of the ranks' objects, on every rank."""
        objs = self.channel(0).allgather(obj, self._call("allreduce_obj", op=op))[0]
        if op in ("max", "min"):
            return (max if op == "max" else min)(objs)
        total = functools.reduce(operator.mul if op == "prod" else operator.add, objs)
        return total / self.size if op == "mean" else total

    # ---- inside ----

    def peer(self, rank: int, wildcard: int | None = None) -> int:
        """The rank, checked."""
        if isinstance(rank, int | np.integer) and (0 <= rank < self.size or rank == wildcard):
            return int(rank)
        raise ValueError(f"rank {self.rank}: there is no rank {rank!r} in a communicator of {self.size} (0 to {self.size - 1})")

    def tag(self, tag: int, wildcard: int | None = None) -> int:
        """The tag, checked."""
        if isinstance(tag, int | np.integer) and (0 <= tag <= self.transport.tag_limit or tag == wildcard):
            return int(tag)
        raise ValueError(f"rank {self.rank}: a tag is a number from 0 to {self.transport.tag_limit}, not {tag!r}")

    def _call(self, what: str, root: int = 0, op: str = "sum", tag: int = 0) -> Call:
        reduction = "sum" if op == "mean" else op
        if reduction not in REDUCTIONS:
            raise ValueError(f"rank {self.rank}: {what} knows 'mean' and {REDUCTIONS}, not {op!r}")
        return Call(what, call_site(), root=root, reduction=reduction, tag=tag)

    def _mean(self, total: Any, op: str, x: Any) -> Any:
        """A sum as the mean, in the dtype that numpy's mean of ``x`` has."""
        if op != "mean" or total is None:
            return total
        mean = backend.unscalar(total / self.size)
        return mean.astype(x.dtype, copy=False) if backend.is_array(x) and x.dtype.kind in "fc" else mean

    def _result(self, x: Any, given: Any) -> Any:
        return backend.like(x, given) if given is not None and x is not None else x


def _wide(x: Any, op: str) -> Any:
    """What is summed for a mean: as in numpy, 8-bit integers do not overflow on the way, nor 16-bit floats."""
    if op != "mean" or not backend.is_array(x) or not (x.dtype.kind in "iu" or x.dtype == np.float16):
        return x
    return x.astype(np.float32 if x.dtype.kind == "f" else np.float64)
