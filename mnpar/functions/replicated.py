"""Values that all ranks hold alike and own together: copy_to ⇄ reduce_from.

Forward only reduce_from communicates, backward only copy_to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mnpar.communicators.collectives import ALLREDUCE
from mnpar.configuration import is_recording
from mnpar.function_node import FunctionNode
from mnpar.functions.arithmetic import Identity
from mnpar.functions.broadcasting import BroadcastTo
from mnpar.functions.communication import Collective, Communication
from mnpar.functions.counting import check_terms
from mnpar.functions.generic import either
from mnpar.functions.sameness import check_alike, check_parts
from mnpar.variable import Variable

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator


class CopyTo(Communication):
    """``y = x`` on each rank; ``gx`` is the sum of all ranks' ``gy``: only backward communicates.
    Megatron's f.
    """

    op, local = "copy_to", True

    def forward(self, x: Any) -> Any:
        check_alike(self, x)
        # forward no rank hears of the others: so it goes on every rank's tape
        self.differentiable = is_recording()
        return x

    def mirror(self) -> Communication:
        sum_of_gradients = ReduceFrom(self.comm, of=self)
        sum_of_gradients.alike = self.alike
        return sum_of_gradients


class ReduceFrom(Collective):
    """``y`` is the sum of all ranks' ``x``; ``gx = gy`` on each rank: only forward communicates.
    Megatron's g.
    """

    op, algorithm = "reduce_from", ALLREDUCE

    def forward(self, *xs: Any) -> Any:
        check_parts(self, xs[0])
        return super().forward(*xs)

    def mirror(self) -> Communication:
        return CopyTo(self.comm, of=self)


class AddOnce(FunctionNode):
    """``y + b`` on one rank, y on the others, before the ranks' y are added up; b (D,) is the same
    on each rank.

    The gradient of that sum is on every rank, whole: so each has the whole gradient of b without a
    message, but only one the derivative of it. The array of y is written to: nobody else may need
    it. Adjoint of the second input: SumOnce.
    """

    generic = True

    def __init__(self, here: bool) -> None:
        self.here = here

    def forward(self, y: Any, b: Any) -> Any:
        if self.here:
            y += b
        return y

    def backward(self, gy: Any) -> Any:
        return gy, lambda: either(SumOnce(self.here), gy)


class SumOnce(FunctionNode):
    """(…, D) → (D,), the sum over all other axes: on all ranks of the same array, whose gradient
    one of them gives.
    """

    generic = True

    def __init__(self, here: bool) -> None:
        self.here = here

    def forward(self, gy: Any) -> Any:
        self.shape = gy.shape
        return gy.sum(axis=tuple(range(gy.ndim - 1)))

    def backward(self, ggb: Any) -> Any:
        return (lambda: either(BroadcastTo(self.shape), ggb)) if self.here else None


def add_once(comm: Communicator, y: Variable, b: Any) -> Variable:
    """Add b (D,), which all ranks have alike, to what the ranks' y (…, D), soon to be added up,
    make together. It takes y.
    """
    return AddOnce(comm.rank == 0).apply((y, b))[0]


def copy_to(comm: Communicator, x: Any) -> Variable:
    """Identity forward, sum over ranks backward: for a value that all ranks hold alike and each
    uses for a part of the work.

    With :func:`reduce_from` at the end, the ranks compute one loss together, and the gradient is
    that of the loss once. (Megatron-LM's f and g: Shoeybi et al. 2019, arXiv 1909.08053, figure 3.)

    Args:
        comm: all its ranks call this.
        x: the same Variable on each rank.

    Returns:
        The same values.

    Raises:
        MismatchError: in backward, on all ranks: shapes or dtypes differ.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> def program(comm):
        ...     x = mnpar.Variable(np.array([2.0]))
        ...     part = F.copy_to(comm, x) * (comm.rank + 1)
        ...     F.sum(F.reduce_from(comm, part)).backward()
        ...     return x.grad.tolist()
        >>> mnpar.run(program, ranks=3)
        [[6.0], [6.0], [6.0]]
    """
    return _function(comm, CopyTo, x).apply((x,))[0]


def reduce_from(comm: Communicator, x: Any) -> Variable:
    """Sum over ranks forward, identity backward: the ranks own the sum together, and continue alike
    with it.

    Args:
        comm: all its ranks call this, and then do the same with the result.
        x: this rank's part of the sum, of the same shape and dtype on each rank.

    Returns:
        The sum, on every rank.

    Raises:
        MismatchError: shapes or dtypes differ; on all ranks.

    Example:
        See :func:`copy_to`.
    """
    function = _function(comm, ReduceFrom, x)
    check_terms(comm, "reduce_from", x)
    return function.apply((x,))[0]


def _function(comm: Communicator, kind: type[Communication], x: Any) -> FunctionNode:
    """The communication; one rank has nobody to speak to."""
    function = kind(comm)
    if comm.size > 1:
        return function
    function.all_there((x,))
    return Identity()
