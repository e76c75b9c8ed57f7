"""Non-blocking collectives: they return at once, and wait where their results are first used; in
backward, too.

All ranks start all collectives, blocking and non-blocking ones, in the same order; they use the
results in any order, or not at all. A rank that does not use a result takes part in its backward
all the same (law 4).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mnpar.functions.collective import (
    AllGather,
    AllToAll,
    allreducing,
    blocks_along,
    first,
    reducing_and_scattering,
    scanning,
    scanning_before,
)
from mnpar.functions.communication import peer
from mnpar.functions.joining import concat
from mnpar.functions.rooted import Bcast, Gather, reducing, scattering
from mnpar.functions.split_collective import later, several_later
from mnpar.future import Future

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator


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
