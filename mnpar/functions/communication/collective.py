"""Collectives in adjoint pairs: the adjoint exchanges what every rank has and what every rank wants
(law 2).

    bcast ⇄ reduce      gather ⇄ scatter      allgather ⇄ reduce_scatter
    allreduce, alltoall and scan: each its own (scan from the other end)

All ranks of the communicator call each of them, in the same order. ``backward`` differentiates the
sum over ranks of what they called it on (law 1): a loss that all ranks compute alike from gathered
values counts P times, unless only one of them calls ``loss.backward()`` and the others
``mnpar.backward()``, or the pair copy_to / reduce_from says that the ranks hold it together.

Reductions other than the sum gather all ranks' arrays, and reduce them by differentiable functions.
So max and min give the gradient to the lowest rank that holds the extremum (``maximum`` and
``minimum`` prefer their first argument), prod follows the product rule, zeros included, and all can
be differentiated any number of times.

Each function is written once, as what it prepares: ``blocking`` makes it run that and wait, and
``later`` makes its non-blocking twin, whose name has an ``i`` before it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from mnpar import backend
from mnpar.communicators.collectives import (
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    BCAST,
    GATHER,
    REDUCE_SCATTER,
    SCANS,
    SCATTER,
)
from mnpar.communicators.communicator import require_communicator
from mnpar.communicators.wire import mean_of
from mnpar.functions.array.joining import concat, split_axis
from mnpar.functions.communication.base import (
    Collective,
    Communication,
    communication_hook,
    peer,
)
from mnpar.functions.communication.later import Prepared, blocking, every, first, later
from mnpar.functions.math.maximum import maximum, minimum
from mnpar.functions.node import normalize_axis
from mnpar.plans import block
from mnpar.variable import Variable, as_variable

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator


# ---- the communications, each beside its adjoint ----


class Rooted(Collective):
    """A collective in which one rank, the root, has or wants all."""

    def __init__(self, comm: Communicator, root: int, of: Communication | None = None) -> None:
        super().__init__(comm, of)
        self.root = root


class ToRoot(Rooted):
    """Only the root gets something, and only its gradients count."""

    def agreed(self, y: Any, wants: bool) -> Any:
        y = super().agreed(y, wants)
        # to have a Variable to call backward on
        return y if self.comm.rank == self.root else np.empty(0, np.float32)

    def given(self, gys: tuple[Any, ...]) -> tuple[Any, ...]:
        return gys if self.comm.rank == self.root else ()


class Bcast(Rooted):
    """The root has an array that every rank wants. Adjoint: the root gets the sum of the
    gradients.
    """

    op, algorithm, outputs_are = "bcast", BCAST, "alike"

    def mirror(self) -> Communication:
        return Reduce(self.comm, self.root, of=self)


class Reduce(ToRoot):
    """Every rank has an array, the root wants their sum. Adjoint: every rank gets the root's
    gradient.
    """

    op, algorithm = "reduce", ALLREDUCE
    inputs_are, outputs_are = "terms", "own"

    def mirror(self) -> Communication:
        return Bcast(self.comm, self.root, of=self)


class Gather(ToRoot):
    """Every rank has an array, the root wants them all. Adjoint: each rank gets the gradient of its
    own.
    """

    op, algorithm, outputs_are = "gather", GATHER, "own"

    def mirror(self) -> Communication:
        return Scatter(self.comm, self.root, of=self)


class Scatter(Rooted):
    """The root has P arrays, one for each rank. Adjoint: the root gets the gradient of each."""

    op, algorithm, several = "scatter", SCATTER, True
    outputs_are = "own"

    def all_there(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        if self.order == 0 and len(inputs) == 1 and inputs[0] is None:
            raise ValueError(
                f"{'i' * self.later}scatter(comm, xs): rank {self.root} is the root and gives "
                f"{self.comm.size} arrays, not None"
            )
        return super().all_there(inputs)

    def mirror(self) -> Communication:
        return Gather(self.comm, self.root, of=self)


class AllGather(Collective):
    """Every rank has an array and wants those of all ranks. Adjoint: each rank gets the sum of the
    gradients of its own.
    """

    op, algorithm, outputs_are = "allgather", ALLGATHER, "alike"

    def mirror(self) -> Communication:
        return ReduceScatter(self.comm, of=self)


class ReduceScatter(Collective):
    """Every rank has P arrays, one for each, and wants the sum of those for itself. Adjoint: every
    rank gets all gradients.
    """

    op = "reduce_scatter"
    algorithm = REDUCE_SCATTER
    several = True
    inputs_are, outputs_are = "terms", "parts"

    def mirror(self) -> Communication:
        return AllGather(self.comm, of=self)


class AllReduce(Collective):
    """Every rank has an array and wants the sum of all. Its own adjoint: ``gx`` is the sum of all
    ranks' ``gy``.
    """

    op, algorithm = "allreduce", ALLREDUCE
    inputs_are, outputs_are = "terms", "sum"

    def mirror(self) -> Communication:
        mirror = type(self)(self.comm, of=self)
        mirror.alike = self.alike  # (a multiple of what all have is no sum of parts)
        return mirror


class AllReduceMean(AllReduce):
    """The sum divided by P: its own adjoint too."""

    reduction = "mean"

    def agreed(self, y: Any, wants: bool) -> Any:
        return super().agreed(None if y is None else backend.wrap_scalar(y / self.comm.size), wants)


class AllToAll(Collective):
    """Every rank has P arrays, one for each, and wants those meant for it. Its own adjoint:
    gradients go back.
    """

    op, algorithm, several = "alltoall", ALLTOALL, True
    outputs_are = "own"

    def mirror(self) -> Communication:
        return AllToAll(self.comm, of=self)


class Scan(Collective):
    """Each rank gets the sum of the ranks up to itself (``up``) or from itself on. Adjoint: the
    other direction.
    """

    outputs_are = "own"

    def __init__(
        self, comm: Communicator, exclusive: bool, up: bool = True, of: Communication | None = None
    ) -> None:
        self.op = "exscan" if exclusive else "scan"
        self.algorithm = SCANS[exclusive, up]
        super().__init__(comm, of)
        self.exclusive, self.up = exclusive, up

    def mirror(self) -> Communication:
        return Scan(self.comm, self.exclusive, not self.up, of=self)


# ---- reductions other than the sum ----

FOLDS: dict[str, Callable[[Any, Any], Variable]] = {
    "max": maximum,
    "min": minimum,
    "prod": lambda x, y: x * y,
}

OPS = ("sum", "mean", *FOLDS)


def check_op(name: str, op: str) -> None:
    """Raise ValueError if there is no such reduction."""
    if op not in OPS:
        raise ValueError(f"{name} knows the reductions {', '.join(OPS)}, not {op!r}")


def fold(op: str, parts: Sequence[Variable]) -> Variable:
    """Reduce Variables of one shape, in their order."""
    return functools.reduce(FOLDS[op], parts)


def folded(what: Communication, name: str, op: str, xs: tuple[Any, ...]) -> Prepared[Variable]:
    """Prepare a reduction of what ``what`` brings here from all ranks."""
    return what.part_of(name, op), xs, functools.partial(fold, op)


def averaged(what: Communication, xs: tuple[Any, ...], number: int) -> Prepared[Variable]:
    """The collective, what is summed for a mean over ``number`` ranks, and what divides it; as in
    numpy, nothing overflows.
    """
    variables = tuple([as_variable(x) for x in xs])
    narrow_ones = [
        x.dtype
        for x in variables
        if x.array is not None and (x.dtype.kind in "iu" or x.dtype == np.float16)
    ]
    if not narrow_ones:
        return what, variables, first if number == 1 else lambda ys: ys[0] / number
    what.reduction = mean_of(narrow_ones[0])
    wide = tuple([x.astype(np.float32 if x.dtype.kind == "f" else np.float64) for x in variables])
    narrow = np.float16 if variables[0].dtype == np.float16 else np.float64
    return what, wide, lambda ys: (ys[0] / number).astype(narrow)


def blocks_along(comm: Communicator, x: Any, axis: int) -> Any:
    """The block of each rank, for :func:`reduce_scatter` of one array."""
    require_communicator(comm, "reduce_scatter(comm, …)")
    x = as_variable(x)
    axis = normalize_axis("reduce_scatter", x, axis)
    cuts = [block(x.shape[axis], comm.size, rank)[0] for rank in range(1, comm.size)]
    return split_axis(x, cuts, axis)


# ---- the functions ----


@blocking
def bcast(comm: Communicator, x: Any = None, root: int = 0) -> Prepared[Variable]:
    """The root's array on every rank; its gradient is the sum of all ranks' gradients.

    Args:
        comm: all its ranks call this.
        x: on the root a Variable or array of any shape; elsewhere not looked at.
        root: whose array it is.

    Returns:
        A Variable of the root's shape and dtype, on every rank.

    Raises:
        ValueError: the root has no array.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> def program(comm):
        ...     x = mnpar.Variable(np.array([1.0, 2.0])) if comm.rank == 0 else None
        ...     F.sum(F.bcast(comm, x)).backward()
        ...     return x.grad if x is not None else None
        >>> mnpar.run(program, ranks=3)[0]
        array([3., 3.])
    """
    root = peer(comm, root, "bcast(comm, …)")
    return Bcast(comm, root), (x,) if comm.rank == root else (), first


ibcast = later(bcast)


@blocking
def reduce(comm: Communicator, x: Any, root: int = 0, op: str = "sum") -> Prepared[Variable]:
    """The sum over ranks, on the root; every rank's gradient is the root's.

    Args:
        comm: all its ranks call this.
        x: a Variable or array, of the same shape and dtype on each rank.
        root: who gets the sum.
        op: ``'sum'``, or ``'mean'``, ``'max'``, ``'min'``, ``'prod'``, as in :func:`allreduce`.

    Returns:
        On the root the sum; elsewhere an empty Variable, on which backward may be called.

    Raises:
        MismatchError: shapes or dtypes differ; on all ranks.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> mnpar.run(lambda comm: F.reduce(comm, np.array([comm.rank])).array, ranks=3)[0]
        array([3])
    """
    root = peer(comm, root, "reduce(comm, …)")
    if op == "sum":
        return Reduce(comm, root), (x,), first
    check_op("reduce", op)
    if op == "mean":
        return averaged(Reduce(comm, root).part_of("reduce", op), (x,), comm.size)
    what, xs, result = folded(Gather(comm, root), "reduce", op, (x,))
    return what, xs, result if comm.rank == root else first


ireduce = later(reduce)


@blocking
def gather(comm: Communicator, x: Any, root: int = 0) -> Prepared[Any]:
    """Every rank's array on the root; each gets back its own gradient.

    Args:
        comm: all its ranks call this.
        x: a Variable or array; shapes may differ between ranks.
        root: who gets them.

    Returns:
        On the root a tuple of P Variables in rank order; elsewhere an empty Variable, on which
        backward may be called.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> def program(comm):
        ...     ys = F.gather(comm, np.ones(comm.rank))
        ...     return [y.shape for y in ys] if comm.rank == 0 else ys.shape
        >>> mnpar.run(program, ranks=3)
        [[(0,), (1,), (2,)], (0,), (0,)]
    """
    root = peer(comm, root, "gather(comm, …)")
    return Gather(comm, root), (x,), every if comm.rank == root else first


igather = later(gather)


@blocking
def scatter(comm: Communicator, xs: Any = None, root: int = 0) -> Prepared[Variable]:
    """The root's ``xs[rank]`` on each rank; the root gets back all gradients.

    Args:
        comm: all its ranks call this.
        xs: on the root P Variables or arrays of any shapes; elsewhere not looked at.
        root: whose arrays they are.

    Returns:
        This rank's part.

    Raises:
        ValueError: on the root, not P arrays; MismatchError then on the others.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> parts = mnpar.run(
        ...     lambda comm: F.scatter(comm, [np.full(2, r) for r in range(3)]).array, ranks=3
        ... )
        >>> parts[2]
        array([2, 2])
    """
    root = peer(comm, root, "scatter(comm, …)")
    if comm.rank != root:  # what they give is not looked at
        return Scatter(comm, root), (), first
    return Scatter(comm, root), (None,) if xs is None else tuple(xs), first


iscatter = later(scatter)


@overload
@blocking
def allgather(comm: Communicator, x: Any, axis: None = None) -> Prepared[tuple[Variable, ...]]: ...
@overload
@blocking
def allgather(comm: Communicator, x: Any, axis: int) -> Prepared[Variable]: ...
@blocking
def allgather(comm: Communicator, x: Any, axis: int | None = None) -> Prepared[Any]:
    """Every rank's array on every rank; each gets back the sum over ranks of the gradients of its
    own.

    Args:
        comm: all its ranks call this.
        x: a Variable or array; shapes may differ between ranks (with ``axis``: along that axis
            only).
        axis: join the arrays along it.

    Returns:
        A tuple of P Variables in rank order; one Variable if ``axis`` is given.

    Raises:
        ValueError: with ``axis``: the arrays cannot be joined along it.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> mnpar.run(
        ...     lambda comm: F.allgather(comm, np.full(comm.rank, comm.rank), axis=0).array, ranks=3
        ... )[0]
        array([1, 2, 2])
    """
    result = every if axis is None else functools.partial(concat, axis=axis)
    return AllGather(comm), (x,), result


iallgather = later(allgather)


@blocking
def reduce_scatter(
    comm: Communicator, xs: Any, op: str = "sum", axis: int | None = None
) -> Prepared[Variable]:
    """Rank r gets the sum over ranks of their ``xs[r]``; each ``xs[r]`` gets rank r's gradient.

    Args:
        comm: all its ranks call this.
        xs: P Variables or arrays; ``xs[r]`` has the same shape and dtype on each rank.
        op: ``'sum'``, ``'mean'``, ``'max'``, ``'min'`` or ``'prod'``.
        axis: ``xs`` is one array, of the same shape on each rank, to be cut along it into the
            blocks of :func:`mnpar.plans.block`: the inverse of :func:`allgather` with ``axis``.

    Returns:
        The reduction of this rank's parts.

    Raises:
        ValueError: the array has no such axis, or there are not P arrays.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> mnpar.run(lambda comm: F.reduce_scatter(comm, [np.ones(1), np.ones(2)]).array, ranks=2)
        [array([2.]), array([2., 2.])]
        >>> mnpar.run(lambda comm: F.reduce_scatter(comm, np.arange(3.0), axis=0).array, ranks=2)
        [array([0., 2.]), array([4.])]
    """
    if axis is not None:
        hook = communication_hook()
        if hook is not None:
            hook.check_terms(comm, "reduce_scatter", xs)
        xs = blocks_along(comm, xs, axis)
    xs = tuple(xs)
    if op == "sum":
        return ReduceScatter(comm), xs, first
    check_op("reduce_scatter", op)
    if op == "mean":
        return averaged(ReduceScatter(comm).part_of("reduce_scatter", op), xs, comm.size)
    return folded(AllToAll(comm), "reduce_scatter", op, xs)


ireduce_scatter = later(reduce_scatter)


@blocking
def allreduce(comm: Communicator, x: Any, op: str = "sum") -> Prepared[Variable]:
    """The sum over ranks, on every rank; the gradient is the sum of all ranks' gradients.

    If every rank then computes the same loss from it and calls backward, that loss counts P times:
    see :func:`reduce_from`.

    Args:
        comm: all its ranks call this.
        x: a Variable or array, of the same shape and dtype on each rank.
        op: ``'sum'``, or ``'mean'``, ``'max'``, ``'min'``, ``'prod'``, each with its own
            derivative: max and min give the gradient to the lowest rank that holds the extremum;
            NaN on any rank is NaN in the result.

    Returns:
        The sum.

    Raises:
        MismatchError: shapes or dtypes differ; on all ranks.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> def program(comm):
        ...     x = mnpar.Variable(np.array([1.0]))
        ...     y = F.allreduce(comm, x)
        ...     F.sum(y * (comm.rank + 1)).backward()
        ...     return x.grad.tolist()
        >>> mnpar.run(program, ranks=2)
        [[3.0], [3.0]]
    """
    if op == "sum":
        return AllReduce(comm), (x,), first
    check_op("allreduce", op)
    return (
        averaged(AllReduceMean(comm), (x,), 1)
        if op == "mean"
        else folded(AllGather(comm), "allreduce", op, (x,))
    )


iallreduce = later(allreduce)


@blocking
def alltoall(comm: Communicator, xs: Any) -> Prepared[tuple[Variable, ...]]:
    """Rank r gets what each rank q has as its ``xs[r]``; gradients go back the same ways.

    Args:
        comm: all its ranks call this.
        xs: P Variables or arrays of any shapes.

    Returns:
        P Variables, in the order of the ranks they come from.

    Raises:
        ValueError: not P arrays; MismatchError then on the others.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> def program(comm):
        ...     ys = F.alltoall(comm, [np.array(10 * comm.rank + r) for r in range(2)])
        ...     return [y.item() for y in ys]
        >>> mnpar.run(program, ranks=2)
        [[0, 10], [1, 11]]
    """
    return AllToAll(comm), tuple(xs), every


ialltoall = later(alltoall)


@blocking
def scan(comm: Communicator, x: Any, op: str = "sum") -> Prepared[Variable]:
    """On rank r the sum of the arrays of ranks 0 to r.

    Args:
        comm: all its ranks call this.
        x: a Variable or array, of the same shape and dtype on each rank.
        op: ``'sum'``, ``'mean'``, ``'max'``, ``'min'`` or ``'prod'``, each with its own derivative.

    Returns:
        The sum up to this rank.

    Raises:
        ValueError: there is no such ``op``.
        MismatchError: shapes or dtypes differ; on all ranks.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> mnpar.run(lambda comm: F.scan(comm, np.array(comm.rank + 1)).item(), ranks=3)
        [1, 3, 6]
    """
    if op == "sum":
        return Scan(comm, exclusive=False), (x,), first
    check_op("scan", op)
    if op == "mean":
        return averaged(Scan(comm, exclusive=False).part_of("scan", op), (x,), comm.rank + 1)
    what = AllGather(comm).part_of("scan", op)
    return what, (x,), lambda ys: fold(op, ys[: comm.rank + 1])


iscan = later(scan)


@blocking
def exscan(comm: Communicator, x: Any, op: str = "sum") -> Prepared[Variable]:
    """On rank r the sum of the arrays of the ranks before it; zeros on rank 0, where MPI leaves it
    undefined.

    Args:
        comm: all its ranks call this.
        x: a Variable or array, of the same shape and dtype on each rank.
        op: ``'sum'``, or ``'prod'``: ones on rank 0.

    Returns:
        The sum up to the rank before.

    Raises:
        ValueError: there is no such ``op``.
        MismatchError: shapes or dtypes differ; on all ranks.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> mnpar.run(lambda comm: F.exscan(comm, np.array(comm.rank + 1)).item(), ranks=3)
        [0, 1, 3]
    """
    if op == "sum":
        return Scan(comm, exclusive=True), (x,), first
    if op != "prod":
        raise ValueError(
            f"exscan knows the reductions sum and prod, not {op!r}: rank 0 has nothing before it"
        )
    what = AllGather(comm).part_of("exscan", op)
    if comm.rank == 0:
        return what, (x,), lambda ys: Variable(ys[0].xp.ones_like(ys[0].array))
    return what, (x,), lambda ys: fold(op, ys[: comm.rank])


iexscan = later(exscan)


def barrier(comm: Communicator) -> None:
    """Return when every rank has called it. Nothing flows through it, so backward does not repeat
    it.

    Args:
        comm: all its ranks call this.

    Example:
        >>> import mnpar
        >>> import mnpar.functions as F
        >>> mnpar.run(F.barrier, ranks=2)
        [None, None]
    """
    require_communicator(comm, "barrier(comm)")
    comm.barrier()
