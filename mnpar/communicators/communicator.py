"""The communicator: the ranks that work together, and every way in which they can exchange arrays
and objects.

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

The file is long because MPI has many methods; each of them is one line here, its steps are in
calls.py, its twin for Python objects is in objects.py, and what is done in memory that ranks share
is in in_memory.py. Nothing here is differentiable: ``mnpar.functions`` has the same operations for
Variables.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from mnpar import hints
from mnpar.backend import Array
from mnpar.communicators.operation import Operation, no_steps
from mnpar.communicators.shared_sum import InMemory
from mnpar.communicators.waiting import ANY

ANY_SOURCE = ANY


ANY_TAG = ANY


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
    """A wrong argument as errors name it, by its type: "an int"."""
    name = type(given).__name__
    return "None" if given is None else f"{'an' if name[0] in 'aeioAEIO' else 'a'} {name}"


@hints.knows(hints.COMMUNICATOR)
class Communicator(InMemory):
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

    # methods that work on models: parallel/data/communicator_methods.py adds them to this class
    if TYPE_CHECKING:
        bcast_data: Callable[..., None]
        broadcast_data: Callable[..., None]
        multi_node_mean_grad: Callable[..., None]
        allreduce_grad: Callable[..., None]

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
        """Whether this is rank 0, the one that prints."""
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
        self._now(self.channel(0).barrier(self._call("split")))
        transport = self.transport.split(None if color is None else int(color), int(key))
        other = None if transport is None else Communicator(transport)
        if self.parts is not None:
            self.parts.append((color, key, other))
            if other is not None:
                other.follow()
        return other

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
        """The value of an option, or all of them by name.

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
        if self._open:
            self._open = False
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
        """A model's copy works with the same ranks."""
        return self

    def __copy__(self) -> Communicator:
        return self

    def __reduce__(self) -> Any:
        """Raises TypeError: what holds a communicator stays in its process."""
        raise TypeError(
            f"{self!r} cannot be pickled, nor what holds it: save models with "
            "mnpar.serializers or mnpar.checkpoint, and give "
            "processes that load data no communicator"
        )

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
        self._send(data, dest, tag)

    def isend(self, data: Any, dest: int, tag: int = 0) -> Operation:
        """:meth:`send` as an operation, which is done at once, because the data was copied."""
        self._send(data, dest, tag)
        return self._later(no_steps())

    def recv(self, source: int, tag: int = 0) -> Any:
        """Wait for what a rank sent; it comes in its own shape, dtype and structure (a list comes
        as a tuple).

        Args:
            source: the rank that calls :meth:`send`, or ``ANY_SOURCE``.
            tag: the sender's, or ``ANY_TAG``.
        """
        return self._now(self._recv(source, tag))

    def irecv(self, source: int, tag: int = 0) -> Operation:
        """:meth:`recv`, later; receives take messages in the order in which they were posted."""
        return self._later(self._recv(source, tag))

    def sendrecv(self, data: Any, dest: int, source: int, tag: int = 0) -> Any:
        """Send to one rank and receive from another; it may return only when both are done, as
        large arrays are not copied.
        """
        return self._now(self._sendrecv(data, dest, source, tag))

    def isendrecv(self, data: Any, dest: int, source: int, tag: int = 0) -> Operation:
        """:meth:`sendrecv`, later; the array must not change before it is done."""
        return self._later(self._sendrecv(data, dest, source, tag))

    def shift(self, data: Any, steps: int = 1) -> Any:
        """Hand an array round the ring: to rank + steps, from rank - steps. All ranks call it."""
        return self._now(self._shift(data, steps))

    def ishift(self, data: Any, steps: int = 1) -> Operation:
        """:meth:`shift`, later; the array must not change before it is done."""
        return self._later(self._shift(data, steps))

    # ---- arrays: collectives; every rank calls them ----

    def bcast(self, x: Array | None = None, root: int = 0) -> Array:
        """The root's array on every rank, on the root itself the one it gave; the others' argument
        is not looked at.
        """
        return self._now(self._bcast(x, root))

    def ibcast(self, x: Array | None = None, root: int = 0) -> Operation:
        """:meth:`bcast`, later."""
        return self._later(self._bcast(x, root, later=True))

    def reduce(self, x: Array, root: int = 0, op: str = "sum") -> Array | None:
        """The elementwise ``'sum'``, ``'mean'``, ``'max'``, ``'min'`` or ``'prod'`` over ranks on
        the root; None elsewhere.
        """
        return self._now(self._reduce(x, root, op))

    def ireduce(self, x: Array, root: int = 0, op: str = "sum") -> Operation:
        """:meth:`reduce`, later."""
        return self._later(self._reduce(x, root, op, later=True))

    def allreduce(self, x: Array, op: str = "sum", out: Array | None = None) -> Array:
        """The elementwise ``'sum'``, ``'mean'``, ``'max'``, ``'min'`` or ``'prod'`` over ranks, on
        every rank.

        Args:
            x: an array, of one shape and dtype on all ranks.
            op: what is computed.
            out: an array like ``x``, or ``x`` itself, to write the result to.
        """
        return self._now(self._allreduce(x, op, out=out))

    def iallreduce(self, x: Array, op: str = "sum", out: Array | None = None) -> Operation:
        """:meth:`allreduce`, later; neither ``x`` nor ``out`` may change before it is done."""
        return self._later(self._allreduce(x, op, later=True, out=out))

    def gather(self, x: Array, root: int = 0) -> tuple[Array, ...] | None:
        """Every rank's array, whatever its shape, in rank order on the root; None elsewhere."""
        return self._now(self._gather(x, root))

    def igather(self, x: Array, root: int = 0) -> Operation:
        """:meth:`gather`, later."""
        return self._later(self._gather(x, root, later=True))

    def allgather(self, x: Array) -> tuple[Array, ...]:
        """Every rank's array, whatever its shape, in rank order on every rank."""
        return self._now(self._allgather(x))

    def iallgather(self, x: Array) -> Operation:
        """:meth:`allgather`, later."""
        return self._later(self._allgather(x, later=True))

    def scatter(self, xs: Any = None, root: int = 0) -> Array:
        """The root's ``xs[rank]`` on each rank: a list of arrays of any shapes, or one array whose
        first axis is cut.
        """
        return self._now(self._scatter(xs, root))

    def iscatter(self, xs: Any = None, root: int = 0) -> Operation:
        """:meth:`scatter`, later."""
        return self._later(self._scatter(xs, root, later=True))

    def alltoall(self, xs: Any) -> tuple[Array, ...]:
        """Rank r gets what each rank q has as its ``xs[r]``, in the order of q; shapes may all
        differ.
        """
        return self._now(self._alltoall(xs))

    def ialltoall(self, xs: Any) -> Operation:
        """:meth:`alltoall`, later."""
        return self._later(self._alltoall(xs, later=True))

    def reduce_scatter(self, xs: Any, op: str = "sum") -> Array:
        """Rank r gets the reduction over ranks of their ``xs[r]``; the shapes of different r may
        differ.
        """
        return self._now(self._reduce_scatter(xs, op))

    def ireduce_scatter(self, xs: Any, op: str = "sum") -> Operation:
        """:meth:`reduce_scatter`, later."""
        return self._later(self._reduce_scatter(xs, op, later=True))

    def scan(self, x: Array, op: str = "sum") -> Array:
        """The ``'sum'``, ``'max'``, ``'min'`` or ``'prod'`` of the ranks up to this one, its own
        included.
        """
        return self._now(self._scan(x, op, exclusive=False))

    def iscan(self, x: Array, op: str = "sum") -> Operation:
        """:meth:`scan`, later."""
        return self._later(self._scan(x, op, exclusive=False, later=True))

    def exscan(self, x: Array, op: str = "sum") -> Array:
        """The ``'sum'`` or ``'prod'`` of the ranks before this one; on rank 0 zeros, or ones."""
        return self._now(self._scan(x, op, exclusive=True))

    def iexscan(self, x: Array, op: str = "sum") -> Operation:
        """:meth:`exscan`, later."""
        return self._later(self._scan(x, op, exclusive=True, later=True))

    def barrier(self) -> None:
        """Return when every rank has called it."""
        self._now(self._barrier())

    def ibarrier(self) -> Operation:
        """:meth:`barrier`, later: done when every rank has called it."""
        return self._later(self._barrier(later=True))
