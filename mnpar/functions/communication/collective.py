"""Reductions over ranks other than the sum: all ranks' arrays are gathered, and reduced by
differentiable functions.

So max and min give the gradient to the lowest rank that holds the extremum (``maximum`` and
``minimum`` prefer their first argument), prod follows the product rule, zeros included, and all can
be differentiated any number of times.

Collectives in adjoint pairs: the adjoint exchanges what every rank has and what every rank wants
(law 2).

    bcast ⇄ reduce      gather ⇄ scatter      allgather ⇄ reduce_scatter
    allreduce, alltoall and scan: each its own (scan from the other end)

All ranks of the communicator call each of them, in the same order. ``backward`` differentiates the
sum over ranks of what they called it on (law 1): a loss that all ranks compute alike from gathered
values counts P times, unless only one of them calls ``loss.backward()`` and the others
``mnpar.backward()``, or the pair copy_to / reduce_from says that the ranks hold it together.

(The file is long because adjoints stand side by side.)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from mnpar import backend
from mnpar.communicators.collectives import ALLGATHER, ALLREDUCE, ALLTOALL, REDUCE_SCATTER, SCANS
from mnpar.communicators.communicator import require_communicator
from mnpar.communicators.wire import mean_of
from mnpar.functions.array.joining import concat, split_axis
from mnpar.functions.communication.base import Collective, Communication, communication_hook
from mnpar.functions.math.maximum import maximum, minimum
from mnpar.functions.node import normalize_axis
from mnpar.plans import block
from mnpar.variable import Variable, as_variable

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator


FOLDS: dict[str, Callable[[Any, Any], Variable]] = {
    "max": maximum,
    "min": minimum,
    "prod": lambda x, y: x * y,
}

OPS = ("sum", "mean", *FOLDS)


def check_op(name: str, op: str) -> None:
    """Raises ValueError if there is no such reduction."""
    if op not in OPS:
        raise ValueError(f"{name} knows the reductions {', '.join(OPS)}, not {op!r}")


def fold(parts: Sequence[Variable], op: str) -> Variable:
    """The reduction of Variables of one shape, in their order."""
    return functools.reduce(FOLDS[op], parts)


class AllGather(Collective):
    """Every rank has an array and wants those of all ranks. Adjoint: each rank gets the sum of the
    gradients of its own.
    """

    op, algorithm = "allgather", ALLGATHER

    def mirror(self) -> Communication:
        return ReduceScatter(self.comm, of=self)


class ReduceScatter(Collective):
    """Every rank has P arrays, one for each, and wants the sum of those for itself. Adjoint: every
    rank gets all gradients.
    """

    op = "reduce_scatter"
    algorithm = REDUCE_SCATTER
    several = True
    inputs_are = "terms"

    def mirror(self) -> Communication:
        return AllGather(self.comm, of=self)


class AllReduce(Collective):
    """Every rank has an array and wants the sum of all. Its own adjoint: ``gx`` is the sum of all
    ranks' ``gy``.
    """

    op, algorithm, inputs_are = "allreduce", ALLREDUCE, "terms"

    def __init__(self, comm: Communicator, of: AllReduce | None = None) -> None:
        super().__init__(comm, of)
        self.alike = of is not None and of.alike  # (a multiple of what all have is no sum of parts)

    def mirror(self) -> Communication:
        return type(self)(self.comm, of=self)


class Mean(AllReduce):
    """The sum divided by P: its own adjoint too."""

    reduction = "mean"

    def agreed(self, y: Any, wants: bool) -> Any:
        return super().agreed(None if y is None else backend.wrap_scalar(y / self.comm.size), wants)


class AllToAll(Collective):
    """Every rank has P arrays, one for each, and wants those meant for it. Its own adjoint:
    gradients go back.
    """

    op, algorithm, several = "alltoall", ALLTOALL, True

    def mirror(self) -> Communication:
        return AllToAll(self.comm, of=self)


class Scan(Collective):
    """Each rank gets the sum of the ranks up to itself (``up``) or from itself on. Adjoint: the
    other direction.
    """

    def __init__(
        self, comm: Communicator, exclusive: bool, up: bool = True, of: Communication | None = None
    ) -> None:
        self.op = "exscan" if exclusive else "scan"
        self.algorithm = SCANS[exclusive, up]
        super().__init__(comm, of)
        self.exclusive, self.up = exclusive, up

    def mirror(self) -> Communication:
        return Scan(self.comm, self.exclusive, not self.up, of=self)


Results: TypeAlias = Callable[[tuple[Variable, ...]], Variable]


"""What is made of a collective's outputs."""


Reducing: TypeAlias = tuple[Communication, tuple[Any, ...], Results]


"""A collective, its inputs, and what is made of its outputs."""


def first(ys: tuple[Variable, ...]) -> Variable:
    """The only output."""
    return ys[0]


def averaged(what: Communication, xs: tuple[Any, ...], number: int) -> Reducing:
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


def allreducing(comm: Communicator, op: str, x: Any) -> Reducing:
    """The collective, its inputs and what is made of its outputs, for :func:`allreduce` and its
    non-blocking twin.
    """
    check_op("allreduce", op)
    if op in FOLDS:
        return AllGather(comm).part_of("allreduce", op), (x,), lambda ys: fold(ys, op)
    if op == "sum":
        return AllReduce(comm), (x,), first
    return averaged(Mean(comm), (x,), 1)


def blocks_along(comm: Communicator, x: Any, axis: int) -> Any:
    """The block of each rank, for :func:`reduce_scatter` of one array."""
    require_communicator(comm, "reduce_scatter(comm, …)")
    x = as_variable(x)
    axis = normalize_axis("reduce_scatter", x, axis)
    cuts = [block(x.shape[axis], comm.size, rank)[0] for rank in range(1, comm.size)]
    return split_axis(x, cuts, axis)


def reducing_and_scattering(comm: Communicator, op: str, xs: Any) -> Reducing:
    """As :func:`allreducing`, for :func:`reduce_scatter`."""
    check_op("reduce_scatter", op)
    if op in FOLDS:
        return AllToAll(comm).part_of("reduce_scatter", op), tuple(xs), lambda ys: fold(ys, op)
    what = ReduceScatter(comm).part_of("reduce_scatter", op)
    return (what, tuple(xs), first) if op == "sum" else averaged(what, tuple(xs), comm.size)


def scanning(comm: Communicator, op: str, x: Any) -> Reducing:
    """As :func:`allreducing`, for :func:`scan`."""
    check_op("scan", op)
    if op in FOLDS:
        return AllGather(comm).part_of("scan", op), (x,), lambda ys: fold(ys[: comm.rank + 1], op)
    what = Scan(comm, exclusive=False).part_of("scan", op)
    return (what, (x,), first) if op == "sum" else averaged(what, (x,), comm.rank + 1)


def scanning_before(comm: Communicator, op: str) -> tuple[Communication, Results]:
    """As :func:`allreducing`, for :func:`exscan`, whose input is given apart."""
    if op == "prod":
        what = AllGather(comm).part_of("exscan", op)
        if comm.rank == 0:
            return what, lambda ys: Variable(ys[0].xp.ones_like(ys[0].array))
        return what, lambda ys: fold(ys[: comm.rank], op)
    if op != "sum":
        raise ValueError(
            f"exscan knows the reductions sum and prod, not {op!r}: rank 0 has nothing before it"
        )
    return Scan(comm, exclusive=True), first


def allgather(comm: Communicator, x: Any, axis: int | None = None) -> Any:
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
    ys = AllGather(comm).apply((x,))
    return ys if axis is None else concat(ys, axis=axis)


def reduce_scatter(
    comm: Communicator, xs: Any, op: str = "sum", axis: int | None = None
) -> Variable:
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
    if op == "sum":
        return ReduceScatter(comm).apply(tuple(xs))[0]
    what, inputs, after = reducing_and_scattering(comm, op, xs)
    return after(what.apply(inputs))


def allreduce(comm: Communicator, x: Any, op: str = "sum") -> Variable:
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
        return AllReduce(comm).apply((x,))[0]
    what, inputs, after = allreducing(comm, op, x)
    return after(what.apply(inputs))


def alltoall(comm: Communicator, xs: Any) -> tuple[Variable, ...]:
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
        >>> ys = mnpar.run(
        ...     lambda comm: F.alltoall(comm, [np.array([10 * comm.rank + r]) for r in range(2)]),
        ...     ranks=2,
        ... )[1]
        >>> [y.array for y in ys]
        [array([1]), array([11])]
    """
    return AllToAll(comm).apply(tuple(xs))


def scan(comm: Communicator, x: Any, op: str = "sum") -> Variable:
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
        return Scan(comm, exclusive=False).apply((x,))[0]
    what, inputs, after = scanning(comm, op, x)
    return after(what.apply(inputs))


def exscan(comm: Communicator, x: Any, op: str = "sum") -> Variable:
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
        return Scan(comm, exclusive=True).apply((x,))[0]
    what, after = scanning_before(comm, op)
    return after(what.apply((x,)))


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
