"""The communicator: a group of ranks, and every way in which they exchange arrays and objects.

The contract, for whatever carries the bytes (tests/communicators/test_contract.py has a test for
each line):

1. ``send`` returns at once and owns its copy: the caller may change the array.
2. Messages of one (source, dest, tag) arrive in the order in which they were sent.
3. Shape, dtype and structure arrive as they left; the receiver is told nothing.
4. Shapes may differ between ranks wherever their parts are not added up.
5. It works on private duplicates of what it was given; gradients have a lane of their own.
6. Waiting longer than the patience raises a DeadlockError that says who waits for what and where.
7. An uncaught error on one rank ends all of them, with that rank's traceback.

Every method that exchanges anything has a non-blocking twin with an ``i`` before its name: it
starts the same exchange, returns an :class:`Operation` at once, and ``operation.wait()`` gives the
result. All ranks start their collectives in the same order, blocking or not; they may wait for them
in any. An array must not be changed before its operation is done.

Each exchange is written once, as steps: a generator that yields where it waits for others.
:func:`twins` makes both methods of it. Nothing here is differentiable: ``mnpar.functions`` has the
same operations for Variables.
"""

from __future__ import annotations

import functools
import operator
import os
import weakref
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, cast

import numpy as np

from mnpar import backend, hints
from mnpar.backend import Array
from mnpar.communicators import shared_sum
from mnpar.communicators.channel import Channel
from mnpar.communicators.collectives import (
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    BARRIER,
    BCAST,
    GATHER,
    REDUCE_SCATTER,
    SCANS,
    SCATTER,
    allreduce_into,
    listed,
)
from mnpar.communicators.operation import Operation, complete, no_steps
from mnpar.communicators.replication import (
    KnownModels,
    Model,
    allreduce_gradients,
    broadcast_persistents,
    initialize_alike,
)
from mnpar.communicators.shared_memory import SharedMemory
from mnpar.communicators.transport import Traffic, Transport
from mnpar.communicators.twins import present
from mnpar.communicators.waiting import ANY, Steps, T
from mnpar.communicators.wire import REDUCTIONS, UPDATE, Call, call_of, mean_of
from mnpar.configuration import is_debugging, is_recomputing
from mnpar.errors import CommunicatorError
from mnpar.runtime.callsite import call_site
from mnpar.runtime.process import NO_RANK

ANY_SOURCE = ANY
ANY_TAG = ANY

_FINALIZED, _FORKED = "finalized", "in a fork"

# the communicators of this process, which its forks must not use
_communicators: weakref.WeakKeyDictionary[Communicator, None] = weakref.WeakKeyDictionary()

_SEND_BY_LETTERS = "comm.send(array, dest), and array = comm.recv(source), which takes no buffer"
_INTEGERS = (int, np.integer)  # written in the calls, a union would be made again each time

P = ParamSpec("P")
Method = Callable[Concatenate["Communicator", P], T]


def twins(
    steps: Callable[Concatenate[Communicator, bool, P], Steps[T]],
) -> tuple[Method[P, T], Method[P, Operation]]:
    """Make a blocking method and its non-blocking twin.

    Args:
        steps: what both do, as a method that yields where it waits. It has their name after an
            underscore, the docstring of the blocking one, and one more argument: whether it is
            waited for later.
    """
    name = steps.__name__.removeprefix("_")
    steps.__qualname__ = f"Communicator.{name}"  # in the TypeError of a wrong call

    def wait(self: Communicator, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return complete(self.transport, steps(self, False, *args, **kwargs))

    def start(self: Communicator, /, *args: P.args, **kwargs: P.kwargs) -> Operation:
        return Operation(self.transport, steps(self, True, *args, **kwargs))

    result = steps.__annotations__["return"].removeprefix("Steps[").removesuffix("]")
    later = (
        f"Start :meth:`{name}`, and return at once: ``wait()`` of the operation gives the result."
    )
    present(wait, steps, name, result, steps.__doc__, hidden="later")
    present(start, steps, f"i{name}", "Operation", later, hidden="later")
    return wait, start


def require_communicator(comm: Any, call: str) -> None:
    """Raise TypeError if ``comm`` is no communicator; ``call`` shows in the message how the
    function is called.
    """
    if not isinstance(comm, Communicator):
        hint = (
            " (its axes are communicators, as mesh.model)" if hasattr(comm, "coordinates") else ""
        )
        if hasattr(comm, "Get_rank"):
            hint = " (mnpar.create_communicator(mpi_comm=…) makes one of mpi4py's)"
        raise TypeError(f"{call}: a communicator is needed where {described(comm)} was given{hint}")


def described(given: Any) -> str:
    """Name a wrong argument by its type, as errors do: "an int"."""
    name = type(given).__name__
    return "None" if given is None else f"{'an' if name[0] in 'aeioAEIO' else 'a'} {name}"


@hints.with_hints(hints.COMMUNICATOR)
class Communicator:
    """A group of ranks; :func:`mnpar.create_communicator` makes one.

    All ranks call each collective (every method but the point-to-point ones ``send``, ``recv`` and
    ``sendrecv``), in the same order, and each gets an array of its own. Arrays have any dtype and
    shape; a reduction needs the same ones on all ranks.

    Args:
        transport: what carries the bytes.

    Raises:
        MismatchError: from any method that waits: ranks are in different collectives, or their
            arrays do not belong together.
        DeadlockError: it waits for what can never come.
        ValueError: there is no such rank, tag or reduction.

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
        self._closed = ""  # the reason why it cannot be used any more
        _communicators[self] = None
        # the communicators split from it, with color and key; None: nobody called ``follow``
        self.parts: list[tuple[int | None, int, Communicator | None]] | None = None
        # how many objects of each kind were made on it that all ranks make in one order
        # (parallel/data/fingerprint.py)
        self.made: Counter[str] = Counter()
        self.models = KnownModels()
        # the groups that grids of its ranks need, which are freed with it: by the grid's parts, and
        # along which of its axes the ranks of a group lie (functions/divided/halo.py)
        self.groups: dict[Any, Communicator] = {}
        self._configs: dict[str, Any] = {"batched_copy": True, "allreduce_grad_dtype": None}

    # ---- the group ----

    @property
    def name(self) -> str:
        """The name of what carries the messages: 'mpi' or 'threads'."""
        return self.transport.name

    @property
    def intra_rank(self) -> int:
        """This rank's number among the ranks on its machine."""
        return self.transport.places()[0]

    @property
    def intra_size(self) -> int:
        """The number of ranks on this machine."""
        return self.transport.places()[1]

    @property
    def inter_rank(self) -> int:
        """The number of this machine among the machines."""
        return self.transport.places()[2]

    @property
    def inter_size(self) -> int:
        """The number of machines."""
        return self.transport.places()[3]

    @property
    def mpi_comm(self) -> Any:
        """The mpi4py communicator that it was made from.

        Raises:
            AttributeError: it does not use MPI.
        """
        if self.name != "mpi":
            raise AttributeError(
                f"{self!r} has no mpi_comm: no MPI is behind it; it has barrier(), "
                "allreduce(x, op) and so on"
            )
        return self.transport.mpi_comm  # type: ignore[attr-defined]

    @property
    def is_root(self) -> bool:
        """Return whether this is rank 0, the one that prints."""
        return self.rank == 0

    def split(self, color: int | None, key: int) -> Communicator | None:
        """Make a communicator for each color; all ranks call it.

        Args:
            color: ranks with the same one form a group; None for no group.
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
            raise ValueError(
                f"rank {self.rank}: the color of a split is a number from 0 on, or None, not "
                f"{color!r}"
            )
        if not (isinstance(key, int | np.integer) and abs(key) < 2**31):
            raise ValueError(f"rank {self.rank}: the key of a split is a number, not {key!r}")
        self.channel(0).now(BARRIER, None, self._call("split"))
        transport = self.transport.split(None if color is None else int(color), int(key))
        other = None if transport is None else Communicator(transport)
        if self.parts is not None:
            self.parts.append((color, key, other))
            if other is not None:
                other.follow()
        return other

    @property
    def batched_copy(self) -> bool:
        """ChainerMN's option of this name: remembered, and without an effect."""
        return bool(self._configs["batched_copy"])

    def set_config(self, name: str, value: Any = True) -> None:
        """Set one of ChainerMN's options on this communicator.

        Args:
            name: ``'allreduce_grad_dtype'``: the dtype in which
                :func:`mnpar.create_multi_node_optimizer` sends gradients, None for their own;
                ``'batched_copy'``: accepted, and without an effect (gradients lie together
                already).
            value: of the option.

        Raises:
            ValueError: there is no such option.
        """
        self.get_config(name)
        self._configs[name] = value

    def get_config(self, name: str | None = None) -> Any:
        """Return the value of an option, or all of them by name.

        Raises:
            ValueError: there is no such option.
        """
        if name is None:
            return dict(self._configs)
        if name not in self._configs:
            raise ValueError(
                f"there is no option {name!r}: a communicator has {', '.join(self._configs)}"
            )
        return self._configs[name]

    def finalize(self) -> None:
        """Free the communicator; all ranks call it, and none uses it afterwards."""
        if not self._closed:
            self._closed = _FINALIZED
            for group in self.groups.values():
                group.finalize()
            self.transport.finalize()

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:  # after an error the others may not come to a collective
            self.finalize()

    def __deepcopy__(self, memo: dict[int, Any]) -> Communicator:
        """Return the communicator itself: a model's copy works with the same ranks."""
        return self

    def __copy__(self) -> Communicator:
        return self

    def __reduce__(self) -> Any:
        """Raise TypeError: an object that holds a communicator stays in its process."""
        raise TypeError(
            f"{self!r} cannot be pickled, nor what holds it: save models with "
            "mnpar.serializers or mnpar.checkpoint, and give "
            "processes that load data no communicator"
        )

    def __repr__(self) -> str:
        return f"<mnpar communicator {self.name}, rank {self.rank} of {self.size}>"

    # ---- messages ----

    @property
    def traffic(self) -> Traffic:
        """The counts of what this rank has sent so far."""
        return self.transport.traffic

    def follow(self) -> None:
        """Keep the communicators that are split from it from now on, and from these, so that they
        can be given up and renewed with it.
        """
        self.parts = []

    def revoke(self) -> None:
        """Give up all messages under way here, and in the communicators split from it: nobody waits
        for them any more.
        """
        self.transport.revoke()
        for _, _, part in self.parts or ():
            if part is not None:
                part.revoke()

    def renew(self, transport: Transport) -> None:
        """Go on with new messages among the same ranks, after those under way were given up.
        Collective.

        The communicators that were split from it go on too, if all of its ranks had made them.
        """
        self.transport, self.rank, self.size = transport, transport.rank, transport.size
        self._channels = {}
        if self.parts is None:
            return
        del self.parts[min(self.allgather_obj(len(self.parts))) :]
        for color, key, part in self.parts:
            made = self.transport.split(color, key)
            if part is not None and made is not None:
                part.renew(made)

    def channel(self, order: int) -> Channel:
        """Return the messages of one order of differentiation: 0 forward, 1 its gradients …"""
        if self._closed:
            raise self._error_of_use(order)
        channel = self._channels.get(order)
        if channel is None:
            channel = self._channels[order] = Channel(self.transport, order)
        return channel

    def close_in_fork(self) -> None:
        """Refuse all calls from now on: this process is a fork of the rank's."""
        self._closed = self._closed or _FORKED
        self.transport.shared_sum = None

    def _error_of_use(self, order: int) -> Exception:
        """Return the error of a call on a communicator that is closed."""
        remedy = "create or split another one"
        if self._closed == _FORKED:
            return CommunicatorError(f"rank {self.rank}, {call_site()}: {NO_RANK}")
        if order:
            remedy = "let it live until backward has communicated on it"
        return ValueError(f"rank {self.rank}: this communicator is {self._closed}: {remedy}")

    def peer(self, rank: int, wildcard: int | None = None) -> int:
        """Return the number of a rank as an int; raise ValueError if there is no such rank."""
        if isinstance(rank, _INTEGERS) and (0 <= rank < self.size or rank == wildcard):
            return int(rank)
        if isinstance(rank, np.ndarray) and rank.ndim:
            raise TypeError(
                f"rank {self.rank}: the number of a rank is needed where an array was given: "
                f"{_SEND_BY_LETTERS}"
            )
        raise ValueError(
            f"rank {self.rank}: there is no rank {rank!r} in a communicator of {self.size} (0 "
            f"to {self.size - 1})"
        )

    def tag(self, tag: int, wildcard: int | None = None) -> int:
        """Return the tag as an int; raise ValueError if there is no such tag. Messages that ranks
        repeat in backward (functions.forget) have tags counted from the other end, so none of them
        is taken for a message that left after forward and is received after backward.
        """
        if isinstance(tag, _INTEGERS) and (0 <= tag <= self.transport.tag_limit or tag == wildcard):
            again = is_recomputing() and tag != wildcard
            return self.transport.tag_limit - int(tag) if again else int(tag)
        raise ValueError(
            f"rank {self.rank}: a tag is a number from 0 to {self.transport.tag_limit}, not {tag!r}"
        )

    def _call(
        self, what: str, root: int = 0, op: str = "sum", tag: int = 0, later: bool = False
    ) -> Call:
        if op not in REDUCTIONS:
            raise ValueError(f"rank {self.rank}: {what} knows {', '.join(REDUCTIONS)}, not {op!r}")
        return call_of((what, call_site(), False, False, root, op, 0, tag, later, 0))

    def _ring(self, steps: int) -> tuple[int, int]:
        """Return the rank so many steps up the ring, and the one as many steps down."""
        return (self.rank + steps) % self.size, (self.rank - steps) % self.size

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

    def isend(self, data: Any, dest: int, tag: int = 0) -> Operation:
        """Call :meth:`send`, and return an operation that is done, because the data was copied."""
        self.send(data, dest, tag)
        return Operation(self.transport, no_steps())

    def _recv(self, later: bool, source: int, tag: int = 0) -> Steps[Any]:
        """Wait for what a rank sent; it comes in its own shape, dtype and structure (a list comes
        as a tuple).

        Args:
            source: the rank that calls :meth:`send`, or ``ANY_SOURCE``.
            tag: the sender's, or ``ANY_TAG``. Receives take messages in the order in which they
                were posted.
        """
        source, tag = self.peer(source, ANY), self.tag(tag, ANY)
        call = functools.partial(self._call, "recv")
        return (yield from self.channel(0).recv(call, source, tag, later))[0]

    recv, irecv = twins(_recv)

    def _sendrecv(self, later: bool, data: Any, dest: int, source: int, tag: int = 0) -> Steps[Any]:
        """Send to one rank and receive from another; it may return only when both are done, as
        large arrays are not copied.
        """
        source = self.peer(source, ANY)  # a bad argument is refused before anything is sent
        _, given = self.channel(0).send_nocopy(
            data, self._call("send", tag=tag), self.peer(dest), self.tag(tag)
        )
        value = yield from self._recv(later, source, tag)
        if given is not None:
            yield given
        return value

    sendrecv, isendrecv = twins(_sendrecv)

    def _shift(self, later: bool, data: Any, steps: int = 1) -> Steps[Any]:
        """Pass an array round the ring: to rank + steps, from rank - steps. All ranks call it."""
        return (yield from self._sendrecv(later, data, *self._ring(steps)))

    shift, ishift = twins(_shift)

    # ---- arrays: collectives; every rank calls them ----

    def _bcast(self, later: bool, x: Array | None = None, root: int = 0) -> Steps[Array]:
        """Return the root's array on every rank, on the root itself the one it gave; the others'
        argument is not looked at.
        """
        call = self._call("bcast", self.peer(root), later=later)
        value, _ = yield from self.channel(0).steps(BCAST, x, call)
        result: Array = _like(value, x)
        return result

    bcast, ibcast = twins(_bcast)

    def _reduce(self, later: bool, x: Array, root: int = 0, op: str = "sum") -> Steps[Array | None]:
        """Return the elementwise ``'sum'``, ``'mean'``, ``'max'``, ``'min'`` or ``'prod'`` over
        ranks on the root; None elsewhere.
        """
        wide, call = _widened(x, self._call("reduce", self.peer(root), op, later=later))
        total, _ = yield from self.channel(0).steps(ALLREDUCE, wide, call)
        result: Array = _like(self._mean(total, op, x), x)
        return result

    reduce, ireduce = twins(_reduce)

    def _allreduce(
        self, later: bool, x: Array, op: str = "sum", out: Array | None = None
    ) -> Steps[Array]:
        """Return the elementwise ``'sum'``, ``'mean'``, ``'max'``, ``'min'`` or ``'prod'`` over
        ranks, on every rank.

        Args:
            x: an array, of one shape and dtype on all ranks.
            op: what is computed.
            out: an array like ``x``, or ``x`` itself, to write the result to.
        """
        into = out if type(out) is np.ndarray and op != "mean" else None
        algorithm = ALLREDUCE if into is None else allreduce_into(into)
        wide, call = _widened(x, self._call("allreduce", op=op, later=later))
        total, _ = yield from self.channel(0).steps(algorithm, wide, call)
        result: Array = _like(self._mean(total, op, x), x)
        if out is None:
            return result
        if not (type(out) is np.ndarray and np.shares_memory(result, out)):
            out[...] = result
        return out

    allreduce, iallreduce = twins(_allreduce)

    def _gather(self, later: bool, x: Array, root: int = 0) -> Steps[tuple[Array, ...] | None]:
        """Return every rank's array, whatever its shape, in rank order on the root; None
        elsewhere.
        """
        call = self._call("gather", self.peer(root), later=later)
        arrays: tuple[Array, ...]
        arrays, _ = yield from self.channel(0).steps(GATHER, x, call)
        return arrays

    gather, igather = twins(_gather)

    def _allgather(self, later: bool, x: Array) -> Steps[tuple[Array, ...]]:
        """Return every rank's array, whatever its shape, in rank order on every rank."""
        call = self._call("allgather", later=later)
        arrays: tuple[Array, ...]
        arrays, _ = yield from self.channel(0).steps(ALLGATHER, x, call)
        return arrays

    allgather, iallgather = twins(_allgather)

    def _scatter(self, later: bool, xs: Any = None, root: int = 0) -> Steps[Array]:
        """Return the root's ``xs[rank]`` on each rank: a list of arrays of any shapes, or one array
        whose first axis is cut.
        """
        call = self._call("scatter", self.peer(root), later=later)
        result: Array = (yield from self.channel(0).steps(SCATTER, xs, call))[0]
        return result

    scatter, iscatter = twins(_scatter)

    def _alltoall(self, later: bool, xs: Any) -> Steps[tuple[Array, ...]]:
        """Return on rank r what each rank q has as its ``xs[r]``, in the order of q; shapes may all
        differ.
        """
        call = self._call("alltoall", later=later)
        arrays: tuple[Array, ...]
        arrays, _ = yield from self.channel(0).steps(ALLTOALL, xs, call)
        return arrays

    alltoall, ialltoall = twins(_alltoall)

    def _reduce_scatter(self, later: bool, xs: Any, op: str = "sum") -> Steps[Array]:
        """Return on rank r the reduction over ranks of their ``xs[r]``; the shapes of different r
        may differ.
        """
        xs = wide = listed(xs)
        call = self._call("reduce_scatter", op=op, later=later)
        if isinstance(xs, tuple):
            parts = []
            for x in xs:
                part, call = _widened(x, call)
                parts.append(part)
            wide = tuple(parts)
        total, _ = yield from self.channel(0).steps(REDUCE_SCATTER, wide, call)
        result: Array = self._mean(total, op, xs[self.rank])
        return result

    reduce_scatter, ireduce_scatter = twins(_reduce_scatter)

    def _scan(self, later: bool, x: Array, op: str = "sum") -> Steps[Array]:
        """Return the ``'sum'``, ``'max'``, ``'min'`` or ``'prod'`` of the ranks up to this one, its
        own included.
        """
        return (yield from self._scan_steps(later, x, op, exclusive=False))

    scan, iscan = twins(_scan)

    def _exscan(self, later: bool, x: Array, op: str = "sum") -> Steps[Array]:
        """Return the ``'sum'`` or ``'prod'`` of the ranks before this one; on rank 0 zeros, or
        ones.
        """
        return (yield from self._scan_steps(later, x, op, exclusive=True))

    exscan, iexscan = twins(_exscan)

    def _scan_steps(self, later: bool, x: Array, op: str, exclusive: bool) -> Steps[Array]:
        if op == "mean" or (exclusive and op in ("max", "min")):
            name = "exscan" if exclusive else "scan"
            raise ValueError(f"rank {self.rank}: there is no {name} by {op!r}")
        call = self._call("scan", op=op, later=later)
        total, _ = yield from self.channel(0).steps(SCANS[exclusive, True], x, call)
        result: Array = _like(total, x)
        return result

    def _barrier(self, later: bool) -> Steps[None]:
        """Return when every rank has called it."""
        yield from self.channel(0).steps(BARRIER, None, self._call("barrier", later=later))

    barrier, ibarrier = twins(_barrier)

    def barrier_of(self, what: str) -> None:
        """Wait as in :meth:`barrier`, under the name of the function that errors are to show."""
        complete(self.transport, self.channel(0).steps(BARRIER, None, self._call(what)))

    # ---- objects, pickled, between the ranks of this job only; each method stands for that of
    # arrays without the ``_obj`` ----

    def send_obj(self, obj: Any, dest: int, tag: int = 0) -> None:
        """Start sending any object that can be pickled."""
        call = self._call("send_obj", tag=tag)
        self.channel(0).send_object(obj, call, self.peer(dest), self.tag(tag))

    def isend_obj(self, obj: Any, dest: int, tag: int = 0) -> Operation:
        """Call :meth:`send_obj`, and return an operation that is done."""
        self.send_obj(obj, dest, tag)
        return Operation(self.transport, no_steps())

    def _recv_obj(self, later: bool, source: int, status: Any = None, tag: int = ANY) -> Steps[Any]:
        """Wait for an object; ``status``, if given, gets ``source`` and ``tag`` as attributes."""
        source, tag = self.peer(source, ANY), self.tag(tag, ANY)
        call = functools.partial(self._call, "recv_obj")
        obj, _, source, tag = yield from self.channel(0).recv(call, source, tag, later, True)
        if status is not None:
            status.source, status.tag = source, tag
        return obj

    recv_obj, irecv_obj = twins(_recv_obj)

    def _sendrecv_obj(
        self, later: bool, obj: Any, dest: int, source: int, tag: int = 0
    ) -> Steps[Any]:
        """Send an object to one rank and receive one from another."""
        self.send_obj(obj, dest, tag)
        return (yield from self._recv_obj(later, source, None, tag))

    sendrecv_obj, isendrecv_obj = twins(_sendrecv_obj)

    def _shift_obj(self, later: bool, obj: Any, steps: int = 1) -> Steps[Any]:
        """Pass an object round the ring: to rank + steps, from rank - steps. All ranks call it."""
        return (yield from self._sendrecv_obj(later, obj, *self._ring(steps)))

    shift_obj, ishift_obj = twins(_shift_obj)

    def _bcast_obj(
        self, later: bool, obj: Any = None, max_buf_len: int = 0, root: int = 0
    ) -> Steps[Any]:
        """Return the root's object on every rank. (``max_buf_len``, ChainerMN's, is not needed:
        give ``root`` by its name.)
        """
        call = self._call("bcast_obj", self.peer(root), later=later)
        return (yield from self.channel(0).steps(BCAST, obj, call))[0]

    bcast_obj, ibcast_obj = twins(_bcast_obj)

    def _gather_obj(self, later: bool, obj: Any, root: int = 0) -> Steps[list[Any] | None]:
        """Return every rank's object in rank order on the root; None elsewhere."""
        call = self._call("gather_obj", self.peer(root), later=later)
        objs, _ = yield from self.channel(0).steps(GATHER, obj, call)
        return None if objs is None else list(objs)

    gather_obj, igather_obj = twins(_gather_obj)

    def _allgather_obj(self, later: bool, obj: Any) -> Steps[list[Any]]:
        """Return every rank's object in rank order on every rank."""
        call = self._call("allgather_obj", later=later)
        return list((yield from self.channel(0).steps(ALLGATHER, obj, call))[0])

    allgather_obj, iallgather_obj = twins(_allgather_obj)

    def _scatter_obj(self, later: bool, objs: Any = None, root: int = 0) -> Steps[Any]:
        """Return the root's ``objs[rank]`` on each rank."""
        call = self._call("scatter_obj", self.peer(root), later=later)
        return (yield from self.channel(0).steps(SCATTER, objs, call))[0]

    scatter_obj, iscatter_obj = twins(_scatter_obj)

    def _alltoall_obj(self, later: bool, objs: Any) -> Steps[list[Any]]:
        """Return on rank r what each rank q has as its ``objs[r]``."""
        call = self._call("alltoall_obj", later=later)
        return list((yield from self.channel(0).steps(ALLTOALL, objs, call))[0])

    alltoall_obj, ialltoall_obj = twins(_alltoall_obj)

    def _reduce_obj(self, later: bool, obj: Any, root: int = 0, op: str = "sum") -> Steps[Any]:
        """Return the same as :meth:`allreduce_obj` on the root; None elsewhere."""
        call = self._call("reduce_obj", self.peer(root), op, later=later)
        objs, _ = yield from self.channel(0).steps(GATHER, obj, call)
        return None if objs is None else _folded(objs, op)

    reduce_obj, ireduce_obj = twins(_reduce_obj)

    def _allreduce_obj(self, later: bool, obj: Any, op: str = "sum") -> Steps[Any]:
        """Return the sum (``+``), ``'mean'``, ``'max'``, ``'min'`` or ``'prod'`` (``*``) of the
        ranks' objects, on every rank.
        """
        call = self._call("allreduce_obj", op=op, later=later)
        return _folded((yield from self.channel(0).steps(ALLGATHER, obj, call))[0], op)

    allreduce_obj, iallreduce_obj = twins(_allreduce_obj)

    def _reduce_scatter_obj(self, later: bool, objs: Any, op: str = "sum") -> Steps[Any]:
        """Return on rank r the reduction over ranks of their ``objs[r]``."""
        call = self._call("reduce_scatter_obj", op=op, later=later)
        return _folded((yield from self.channel(0).steps(ALLTOALL, objs, call))[0], op)

    reduce_scatter_obj, ireduce_scatter_obj = twins(_reduce_scatter_obj)

    def _scan_obj(self, later: bool, obj: Any, op: str = "sum") -> Steps[Any]:
        """Return the reduction of the objects of the ranks up to this one, its own included."""
        call = self._call("scan_obj", op=op, later=later)
        objs, _ = yield from self.channel(0).steps(ALLGATHER, obj, call)
        return _folded(objs[: self.rank + 1], op)

    scan_obj, iscan_obj = twins(_scan_obj)

    def _exscan_obj(self, later: bool, obj: Any, op: str = "sum") -> Steps[Any]:
        """Return the reduction of the objects of the ranks before this one; None on rank 0."""
        call = self._call("exscan_obj", op=op, later=later)
        objs, _ = yield from self.channel(0).steps(ALLGATHER, obj, call)
        return _folded(objs[: self.rank], op) if self.rank else None

    exscan_obj, iexscan_obj = twins(_exscan_obj)

    # ---- models of which each rank has a copy: ChainerMN's methods ----

    def bcast_data(self, model: Model) -> None:
        """Give all ranks rank 0's parameters and persistent values; all call it.

        A parameter that has no array yet on rank 0 gets that of the first rank where it has one.

        Args:
            model: a link, of the same structure on all ranks.

        Raises:
            MismatchError: the models differ, with the first difference.

        Example:
            >>> import mnpar, mnpar.links as L
            >>> def program(comm):
            ...     model = L.Linear(1, 1, initialW=comm.rank + 5)
            ...     comm.bcast_data(model)
            ...     return float(model.W.array[0, 0])
            >>> mnpar.run(program, ranks=3)
            [5.0, 5.0, 5.0]
        """
        initialize_alike(self, model)
        for param in model.params(include_uninit=False):
            backend.copyto(param.array, self.bcast(param.array))
        broadcast_persistents(self, model)

    broadcast_data = bcast_data

    def multi_node_mean_grad(self, model: Model, zero_fill: bool = False) -> None:
        """Turn gradients into their means over ranks, each rank counted alike; all call it.

        A gradient that some ranks do not have counts as zeros there. (The multi-node optimizer
        weighs by samples instead.)

        Args:
            model: a link, of the same structure on all ranks.
            zero_fill: a gradient that no rank has becomes zeros, too; else it stays None.

        Raises:
            ValueError: with ``mnpar.config.debug``: a mean is not finite.

        Example:
            >>> import mnpar, mnpar.functions as F, mnpar.links as L
            >>> def program(comm):
            ...     model = L.Linear(1, 1, nobias=True)
            ...     F.sum(model.W * comm.rank).backward()
            ...     comm.multi_node_mean_grad(model)
            ...     return float(model.W.grad[0, 0])
            >>> mnpar.run(program, ranks=3)
            [1.0, 1.0, 1.0]
        """
        for param in model.params(include_uninit=False) if zero_fill else ():
            if param.grad is None and param.requires_grad:
                param.zerograd()
        allreduce_gradients(self, model, 1 / self.size)
        for path, param in model.namedparams(include_uninit=False) if is_debugging() else ():
            grad = param.grad
            if grad is not None and not backend.get_array_module(grad).isfinite(grad).all():
                raise ValueError(
                    f"training has diverged: the mean gradient of {path} has NaN or infinity"
                )

    allreduce_grad = multi_node_mean_grad

    # ---- memory that ranks of one machine share ----

    def share(self, nbytes: int) -> SharedMemory:
        """Allocate memory, ``nbytes`` zeros, that the ranks of each machine share
        (:class:`mnpar.SharedData`); all call it.
        """
        self.channel(0).now(BARRIER, None, self._call("share"))
        return self.transport.share(nbytes)

    def allreduce_if(
        self, x: Array, piggyback: bytes, accept: Callable[[list[bytes]], bool], out: Array
    ) -> bool:
        """Write the sum over ranks to ``out`` if what the ranks send with it is accepted; it waits.

        So ranks agree on whether to sum, and sum, in one message.

        Args:
            x: an array, of one shape and dtype on all ranks if ``accept`` returns True.
            piggyback: this rank's: bytes, as many on all ranks, at most 256.
            accept: called with the piggybacks in rank order, and returns the same on all ranks:
                False, and nothing is summed.
            out: an array like ``x``, or ``x`` itself.

        Returns:
            The result of ``accept``.

        Raises:
            ValueError: the piggyback is longer.

        Example:
            >>> import numpy as np, mnpar
            >>> def program(comm):
            ...     x = np.ones(2)
            ...     comm.allreduce_if(x, b"no" if comm.rank else b"ok", lambda b: b"no" not in b, x)
            ...     return bool(x[0] > 1)
            >>> mnpar.run(program, ranks=2)
            [False, False]
        """
        if len(piggyback) > shared_sum.PIGGYBACK:
            raise ValueError(
                f"rank {self.rank}: a piggyback has at most {shared_sum.PIGGYBACK} bytes, not "
                f"{len(piggyback)}"
            )
        shared, channel = self.transport.shared_sum, self.channel(0)
        if shared is not None and out is x and (form := shared.form(x)) is not None:
            shared.begin(form, x, piggyback, channel)
            if (summed := shared.end(accept, x, channel)) is not None:
                return bool(summed)
        return channel.allreduce_if(x, self._call(UPDATE), piggyback, accept, out)

    allreduce_noted = allreduce_if  # its earlier name

    def sum_in_shared_memory(self, wanted: bool = True) -> bool:
        """Let :meth:`allreduce_if` sum in shared memory, where all ranks have it in common; all
        ranks call it.

        Args:
            wanted: False: by messages again.

        Returns:
            True if it does: the ranks are processes of one machine, and their MPI is not Open MPI.
            Arrays of more than 32 KiB go by messages nevertheless, but for those of
            :meth:`share_vectors`.
        """
        transport = self.transport
        if transport.shared_sum is not None and not wanted:
            self.barrier()
            transport.shared_sum.free()
            transport.shared_sum = None
        elif transport.shared_sum is None and wanted and transport.can_sum_in_memory:
            memory = self.share(shared_sum.SharedSum.size(self.size))
            transport.shared_sum = shared_sum.SharedSum(
                cast("shared_sum.ProcessTransport", transport), memory
            )
        return transport.shared_sum is not None

    open_board = sum_in_shared_memory  # its earlier name

    def share_vectors(self, like: Array) -> shared_sum.SharedVectors | None:
        """Make a vector for each rank in shared memory, where :meth:`allreduce_if` sums them in
        place.

        Args:
            like: one-dimensional; all ranks call it with arrays of one form.

        Returns:
            None if there is no such memory.
        """
        if not self.sum_in_shared_memory():
            return None
        vectors = shared_sum.share_vectors(self, like, self.channel(0).next_number)
        if vectors is not None:
            self.transport.shared_sum.add_vectors(vectors)
        return vectors

    # ---- means ----

    def _mean(self, total: Any, op: str, x: Any) -> Any:
        """Return the mean of a sum, in the dtype of numpy's mean of ``x``."""
        if op != "mean" or total is None:
            return total
        mean = backend.wrap_scalar(total / self.size)
        return (
            mean.astype(x.dtype, copy=False)
            if backend.is_array(x) and x.dtype.kind in "fc"
            else mean
        )


def _close_in_fork() -> None:
    for communicator in tuple(_communicators):
        if communicator.size > 1:  # one that is alone speaks to nobody
            communicator.close_in_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_fork)


def _folded(objs: Any, op: str) -> Any:
    """Return the reduction of objects, in rank order."""
    if op in ("max", "min"):
        return (max if op == "max" else min)(objs)
    total = functools.reduce(operator.mul if op == "prod" else operator.add, objs)
    return total / len(objs) if op == "mean" else total


def _like(x: Any, given: Any) -> Any:
    """Return a result on the device of the argument."""
    return backend.to_device_of(x, given) if given is not None and x is not None else x


def _widened(x: Any, call: Call) -> tuple[Any, Call]:
    """Return the array that is summed for a mean, and the call that the header states: as in numpy,
    8-bit integers do not overflow on the way, nor 16-bit floats.
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
