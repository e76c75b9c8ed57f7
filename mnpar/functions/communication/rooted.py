"""Collectives with a root, in adjoint pairs: bcast ⇄ reduce, gather ⇄ scatter. The laws are in
collective.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mnpar.communicators.collectives import ALLREDUCE, BCAST, GATHER, SCATTER
from mnpar.functions.communication.base import Collective, Communication, peer
from mnpar.functions.communication.collective import (
    FOLDS,
    Reducing,
    averaged,
    check_op,
    first,
    fold,
)
from mnpar.variable import Variable

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator


class Rooted(Collective):
    """A collective in which one rank, the root, has or wants all."""

    def __init__(self, comm: Communicator, root: int, of: Communication | None = None) -> None:
        super().__init__(comm, of)
        self.root = root


class Bcast(Rooted):
    """The root has an array that every rank wants. Adjoint: the root gets the sum of the
    gradients.
    """

    op, algorithm = "bcast", BCAST

    def mirror(self) -> Communication:
        return Reduce(self.comm, self.root, of=self)


class Scatter(Rooted):
    """The root has P arrays, one for each rank. Adjoint: the root gets the gradient of each."""

    op, algorithm, several = "scatter", SCATTER, True

    def mirror(self) -> Communication:
        return Gather(self.comm, self.root, of=self)


class ToRoot(Rooted):
    """Only the root gets something, and only its gradients count."""

    def agreed(self, y: Any, wants: bool) -> Any:
        y = super().agreed(y, wants)
        # to have a Variable to call backward on
        return y if self.comm.rank == self.root else np.empty(0, np.float32)

    def given(self, gys: tuple[Any, ...]) -> tuple[Any, ...]:
        return gys if self.comm.rank == self.root else ()


class Reduce(ToRoot):
    """Every rank has an array, the root wants their sum. Adjoint: every rank gets the root's
    gradient.
    """

    op, algorithm, inputs_are = "reduce", ALLREDUCE, "terms"

    def mirror(self) -> Communication:
        return Bcast(self.comm, self.root, of=self)


class Gather(ToRoot):
    """Every rank has an array, the root wants them all. Adjoint: each rank gets the gradient of its
    own.
    """

    op, algorithm = "gather", GATHER

    def mirror(self) -> Communication:
        return Scatter(self.comm, self.root, of=self)


def reducing(comm: Communicator, root: int, op: str, x: Any) -> Reducing:
    """The collective, its inputs and what is made of its outputs, for :func:`reduce` and its
    non-blocking twin.
    """
    check_op("reduce", op)
    root = peer(comm, root, "reduce(comm, …)")
    if op in FOLDS:
        return (
            Gather(comm, root).part_of("reduce", op),
            (x,),
            (lambda ys: fold(ys, op)) if comm.rank == root else first,
        )
    what = Reduce(comm, root).part_of("reduce", op)
    return (what, (x,), first) if op == "sum" else averaged(what, (x,), comm.size)


def bcast(comm: Communicator, x: Any = None, root: int = 0) -> Variable:
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
    return Bcast(comm, root).apply((x,) if comm.rank == root else ())[0]


def reduce(comm: Communicator, x: Any, root: int = 0, op: str = "sum") -> Variable:
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
    if op == "sum":
        return Reduce(comm, peer(comm, root, "reduce(comm, …)")).apply((x,))[0]
    what, inputs, after = reducing(comm, root, op, x)
    return after(what.apply(inputs))


def gather(comm: Communicator, x: Any, root: int = 0) -> Any:
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
        >>> ys = mnpar.run(lambda comm: F.gather(comm, np.ones(comm.rank)), ranks=3)[0]
        >>> [y.shape for y in ys]
        [(0,), (1,), (2,)]
    """
    root = peer(comm, root, "gather(comm, …)")
    ys = Gather(comm, root).apply((x,))
    return ys if comm.rank == root else ys[0]


def scatter(comm: Communicator, xs: Any = None, root: int = 0) -> Variable:
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
    what, inputs = scattering(comm, xs, root, "scatter")
    return what.apply(inputs)[0]


def scattering(
    comm: Communicator, xs: Any, root: int, name: str
) -> tuple[Scatter, tuple[Any, ...]]:
    """The function and its inputs: on the root one for each rank."""
    root = peer(comm, root, f"{name}(comm, …)")
    if comm.rank != root:
        return Scatter(comm, root), ()
    if xs is None:
        raise ValueError(
            f"{name}(comm, xs): rank {root} is the root and gives {comm.size} arrays, not None"
        )
    return Scatter(comm, root), tuple(xs)
