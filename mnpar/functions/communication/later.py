"""Non-blocking collectives as two functions: one where the collective starts, one where its result
is first used.

Each phase is a function of its own on the tape, with its own number in time, and each is the
other's adjoint: backward starts the adjoint collective where forward finished the collective,
finishes it where forward started it, and computes in between. That cannot deadlock: forward, every
rank finished after every rank had started (the opening message ensures that), so in the reversed
order of events every rank starts before any rank has to finish (docs/backward_order.md). Ranks
finish collectives in different orders, though, so they start the adjoints in different orders: see
communicators/channel.py.

Non-blocking collectives: they return at once, and wait where their results are first used; in
backward, too.

All ranks start all collectives, blocking and non-blocking ones, in the same order; they use the
results in any order, or not at all. A rank that does not use a result takes part in its backward
all the same (law 4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from mnpar.autograd.graph import tick
from mnpar.communicators.channel import AdjointChannel
from mnpar.communicators.collectives import ALLGATHER
from mnpar.communicators.operation import Operation
from mnpar.configuration import is_recording
from mnpar.function_hook import FunctionHook, function_hooks
from mnpar.function_node import FunctionNode
from mnpar.functions.array.joining import concat
from mnpar.functions.communication.base import (
    Communication,
    CommunicationHook,
    communication_hook,
    peer,
)
from mnpar.functions.communication.collective import (
    AllGather,
    AllToAll,
    allreducing,
    blocks_along,
    first,
    reducing_and_scattering,
    scanning,
    scanning_before,
)
from mnpar.functions.communication.future import Future, Once, when_used
from mnpar.functions.communication.rooted import Bcast, Gather, reducing, scattering
from mnpar.variable import Variable

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator


class Phase(FunctionNode):
    """The base of both phases.

    Args:
        whole: the collective whose phases they are.
    """

    generic = True
    communicates = True

    def __init__(self, whole: SplitCollective) -> None:
        self.whole = whole
        self.op = whole.what.op

    @property
    def label(self) -> str:
        return self.whole.what.label


class Start(Phase):
    """The first phase: starts the collective with the inputs; it has no outputs."""

    def backward(self) -> Any:
        return self.whole.take_adjoint().finish()[: len(self.inputs)]


class Finish(Phase):
    """The second phase: waits for the results; it has no inputs."""

    def backward(self, *gys: Any) -> Any:
        self.whole.start_adjoint(gys)
        return ()


class SplitCollective:
    """A collective under way.

    Args:
        what: the collective as a function that would wait for it at once; it says what is done, and
            what is the adjoint.
        number: the number of the collective whose adjoint it is; in forward it gets one.
        asked: the number of the question that may be asked before that (``_ask``); in forward it
            gets one.
    """

    def __init__(
        self, what: Communication, number: int | None = None, asked: int | None = None
    ) -> None:
        self.what = what
        what.later, what.adjoint_of = True, number
        self.number, self.asked = number, asked
        self._first, self._second = Start(self), Finish(self)
        self._adjoint: SplitCollective | None = None

    def start(self, inputs: tuple[Any, ...]) -> None:
        """Give the values, and return at once."""
        what, first = self.what, self._first
        self._nodes, given = first.prepare(what.all_there(inputs))
        what.differentiable = first.differentiable
        first.number = tick()
        arrays = tuple(given)
        for hook in self._hooks():
            hook.forward_preprocess(first, arrays)
        self._question = self._ask(arrays)
        if self.number is None:
            self.number = what.channel.next_number
        self._operation = Operation(what.comm.transport, what.steps(*arrays))
        for hook in self._hooks():
            hook.forward_postprocess(first, arrays)

    def _ask(self, arrays: tuple[Any, ...]) -> tuple[CommunicationHook, Operation] | None:
        """Start the question of the hook, if it has one, about what the ranks add up."""
        hook = communication_hook()
        if hook is None:
            return None
        what = self.what
        comm = self.what.comm
        question = hook.question(what, arrays)
        channel = comm.channel(what.order)
        if self.asked is not None:
            channel = AdjointChannel(channel, self.asked)
        elif (
            self.number is not None
        ):  # the adjoint of one that was called where nothing is looked at
            return None
        elif hook.asks(comm):  # (the adjoint's question has a number in any case)
            self.asked = channel.next_number if question is not None else channel.next_exchange()
        return (
            None
            if question is None
            else (hook, Operation(comm.transport, channel.steps(ALLGATHER, *question)))
        )

    def _hooks(self) -> Iterable[FunctionHook]:
        """The function hooks to call: none for an adjoint that is not recorded, which is part of a
        backward.
        """
        return function_hooks().values() if self.what.order == 0 or is_recording() else ()

    def finish(self) -> tuple[Variable, ...]:
        """Wait for the results. Both phases go on the tape only now, when the ranks have said
        whether they want gradients.
        """
        for hook in self._hooks():
            hook.forward_preprocess(self._second, ())
        ys = self._operation.wait()
        if self._question is not None:
            asking, answers = self._question
            asking.judge(self.what, answers.wait()[0])
        for hook in self._hooks():
            hook.forward_postprocess(self._second, ())
        first, second, nodes = self._first, self._second, self._nodes
        del self._first, self._second, self._nodes  # the phases keep this alive, and not the arrays
        del self._operation, self._question
        first.differentiable = second.differentiable = self.what.differentiable
        first.connect(nodes, [], ())
        second.extra_inputs = self.what.inputs = first.inputs
        return second.connect([], [], ys)

    def start_adjoint(self, gys: tuple[Any, ...]) -> None:
        """Start the adjoint."""
        self._adjoint = SplitCollective(self.what.mirror(), self.number, self.asked)
        self._adjoint.start(self.what.given(gys))

    def take_adjoint(self) -> SplitCollective:
        """The adjoint that was started."""
        adjoint, self._adjoint = self._adjoint, None
        assert adjoint is not None, f"{self.what.label} was visited by half"
        return adjoint


def started(
    what: Communication, inputs: tuple[Any, ...], after: Callable[[tuple[Variable, ...]], Any]
) -> Once:
    """Start a collective whose results become those of ``after``, where they are first used."""
    collective = SplitCollective(what)
    collective.start(inputs)

    def finish() -> tuple[Variable, ...]:
        result = after(collective.finish())
        return result if isinstance(result, tuple) else (result,)

    return when_used(finish)


def later(
    what: Communication, inputs: tuple[Any, ...], after: Callable[[tuple[Variable, ...]], Any]
) -> Future:
    """The one result of a collective that is waited for later."""
    return Future(started(what, inputs, after))


def several_later(what: Communication, inputs: tuple[Any, ...]) -> tuple[Future, ...]:
    """A result from each rank."""
    results = started(what, inputs, lambda ys: ys)
    return tuple([Future(results, rank) for rank in range(what.comm.size)])


def iallreduce(comm: Communicator, x: Any, op: str = "sum") -> Future:
    """:func:`allreduce`, but wait for it only where it is first used.

    Args:
        comm, op: as in :func:`allreduce`.
        x: as there; not to be changed in place before the result has been used.

    Returns:
        A :class:`mnpar.Future`; backward visits it even if nobody uses it.

    Raises:
        MismatchError: where it is used, on all ranks: they started different collectives, or shapes
            or dtypes differ.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> def program(comm):
        ...     x = mnpar.Variable(np.array([comm.rank + 1.0]))
        ...     y = F.iallreduce(comm, x)  # started
        ...     z = x * x  # meanwhile
        ...     F.sum(z * y).backward()  # waited for
        ...     return x.grad.tolist()
        >>> mnpar.run(program, ranks=2)  # (x0² + x1²)·(x0 + x1)
        [[11.0], [17.0]]
    """
    what, inputs, after = allreducing(comm, op, x)
    return later(what, inputs, after)


def iallgather(comm: Communicator, x: Any, axis: int | None = None) -> Any:
    """:func:`allgather`, but wait for it only where it is first used.

    Args:
        comm, axis: as in :func:`allgather`.
        x: as there; not to be changed in place before a result has been used.

    Returns:
        A tuple of P Futures in rank order; one Future if ``axis`` is given.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> mnpar.run(
        ...     lambda comm: F.iallgather(comm, np.full(comm.rank, comm.rank), axis=0).array,
        ...     ranks=3,
        ... )[0]
        array([1, 2, 2])
    """
    if axis is None:
        return several_later(AllGather(comm), (x,))
    return later(AllGather(comm), (x,), lambda ys: concat(ys, axis=axis))


def ibcast(comm: Communicator, x: Any = None, root: int = 0) -> Future:
    """:func:`bcast`, but wait for it only where it is first used.

    Args:
        comm, root: as in :func:`bcast`.
        x: as there; not to be changed in place before the result has been used.

    Returns:
        A Future of the root's shape and dtype, on every rank.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> mnpar.run(
        ...     lambda comm: F.ibcast(comm, np.array(5) if comm.rank == 0 else None).item(), ranks=2
        ... )
        [5, 5]
    """
    root = peer(comm, root, "ibcast(comm, …)")
    return later(Bcast(comm, root), (x,) if comm.rank == root else (), first)


def ireduce(comm: Communicator, x: Any, root: int = 0, op: str = "sum") -> Future:
    """:func:`reduce`, but wait for it only where it is first used.

    Args:
        comm, root, op: as in :func:`reduce`.
        x: as there; not to be changed in place before the result has been used.

    Returns:
        A Future: on the root of the reduction, elsewhere of an empty array.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> mnpar.run(lambda comm: F.ireduce(comm, np.array([comm.rank])).array, ranks=3)[0]
        array([3])
    """
    what, inputs, after = reducing(comm, root, op, x)
    return later(what, inputs, after)


def igather(comm: Communicator, x: Any, root: int = 0) -> Any:
    """:func:`gather`, but wait for it only where it is first used.

    Args:
        comm, root: as in :func:`gather`.
        x: as there; not to be changed in place before a result has been used.

    Returns:
        On the root a tuple of P Futures in rank order; elsewhere a Future of an empty array.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> def program(comm):
        ...     ys = F.igather(comm, np.ones(comm.rank))
        ...     return [y.shape for y in ys] if comm.rank == 0 else ys.shape
        >>> mnpar.run(program, ranks=3)
        [[(0,), (1,), (2,)], (0,), (0,)]
    """
    root = peer(comm, root, "igather(comm, …)")
    what = Gather(comm, root)
    return several_later(what, (x,)) if comm.rank == root else later(what, (x,), first)


def iscatter(comm: Communicator, xs: Any = None, root: int = 0) -> Future:
    """:func:`scatter`, but wait for it only where it is first used.

    Args:
        comm, root: as in :func:`scatter`.
        xs: as there; not to be changed in place before the result has been used.

    Returns:
        A Future of this rank's part.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> mnpar.run(
        ...     lambda comm: F.iscatter(comm, [np.full(2, r) for r in range(3)]).array, ranks=3
        ... )[2]
        array([2, 2])
    """
    what, inputs = scattering(comm, xs, root, "iscatter")
    return later(what, inputs, first)


def ireduce_scatter(
    comm: Communicator, xs: Any, op: str = "sum", axis: int | None = None
) -> Future:
    """:func:`reduce_scatter`, but wait for it only where it is first used.

    Args:
        comm, op, axis: as in :func:`reduce_scatter`.
        xs: as there; not to be changed in place before the result has been used.

    Returns:
        A Future of the reduction of this rank's parts.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> mnpar.run(lambda comm: F.ireduce_scatter(comm, [np.ones(1), np.ones(2)]).array, ranks=2)
        [array([2.]), array([2., 2.])]
    """
    xs = xs if axis is None else blocks_along(comm, xs, axis)
    what, inputs, after = reducing_and_scattering(comm, op, xs)
    return later(what, inputs, after)


def ialltoall(comm: Communicator, xs: Any) -> tuple[Future, ...]:
    """:func:`alltoall`, but wait for it only where it is first used.

    Args:
        comm: as in :func:`alltoall`.
        xs: as there; not to be changed in place before a result has been used.

    Returns:
        P Futures, in the order of the ranks they come from.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> def program(comm):
        ...     return [
        ...         y.item()
        ...         for y in F.ialltoall(comm, [np.array(10 * comm.rank + r) for r in range(2)])
        ...     ]
        >>> mnpar.run(program, ranks=2)
        [[0, 10], [1, 11]]
    """
    return several_later(AllToAll(comm), tuple(xs))


def iscan(comm: Communicator, x: Any, op: str = "sum") -> Future:
    """:func:`scan`, but wait for it only where it is first used.

    Args:
        comm, op: as in :func:`scan`.
        x: as there; not to be changed in place before the result has been used.

    Returns:
        A Future of the reduction up to this rank.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> mnpar.run(lambda comm: F.iscan(comm, np.array(comm.rank + 1)).item(), ranks=3)
        [1, 3, 6]
    """
    what, inputs, after = scanning(comm, op, x)
    return later(what, inputs, after)


def iexscan(comm: Communicator, x: Any, op: str = "sum") -> Future:
    """:func:`exscan`, but wait for it only where it is first used.

    Args:
        comm, op: as in :func:`exscan`.
        x: as there; not to be changed in place before the result has been used.

    Returns:
        A Future of the reduction up to the rank before.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> mnpar.run(lambda comm: F.iexscan(comm, np.array(comm.rank + 1)).item(), ranks=3)
        [0, 1, 3]
    """
    what, after = scanning_before(comm, op)
    return later(what, (x,), after)
