"""Values that all ranks hold alike and own together (law 1): the entrances and exits of layers that
are divided among ranks.

    copy_to ⇄ reduce_from      scatter_to ⇄ gather_from

Forward only reduce_from and gather_from communicate, backward only copy_to and scatter_to. Forward,
:func:`gather_from` is an allgather; but all ranks compute the same loss from the joined array, and
it counts once. So each rank has the gradient of the whole array, and takes its part of it without a
message. :func:`scatter_to` is the adjoint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mnpar import backend
from mnpar.backend import Array
from mnpar.communicators.collectives import ALLGATHER, ALLREDUCE
from mnpar.communicators.communicator import require_communicator
from mnpar.configuration import is_recording
from mnpar.errors import MismatchError
from mnpar.function_node import FunctionNode
from mnpar.functions.array.broadcast import BroadcastTo
from mnpar.functions.communication.base import (
    Collective,
    Communication,
    communication_hook,
    occasional_hook,
)
from mnpar.functions.math.arithmetic import PassThrough
from mnpar.functions.node import GenericFunction, normalize_axis
from mnpar.plans import block
from mnpar.variable import Variable, as_variable

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator


class CopyTo(Communication):
    """``y = x`` on each rank; ``gx`` is the sum of all ranks' ``gy``: only backward communicates.
    Megatron's f.
    """

    op, silent_forward = "copy_to", True
    inputs_are, outputs_are = "copies", "alike"
    described: Any = None  # of the input, what the ranks compare in backward

    def forward(self, x: Any) -> Any:
        self.check_inputs(x)
        # forward no rank hears of the others: so it goes on every rank's tape
        self.differentiable = is_recording()
        if self.differentiable and not self.order and (hook := occasional_hook()) is not None:
            self.described = hook.describe_copies(self, x)
        return x

    def mirror(self) -> Communication:
        sum_of_gradients = ReduceFrom(self.comm, of=self)
        if self.described is not None and (hook := occasional_hook()) is not None:
            # here, where ranks wait for each other in any case
            described, self.described = self.described, None
            hook.compare_copies(self, sum_of_gradients, described)
        sum_of_gradients.alike = self.alike
        return sum_of_gradients


class ReduceFrom(Collective):
    """``y`` is the sum of all ranks' ``x``; ``gx = gy`` on each rank: only forward communicates.
    Megatron's g.
    """

    op, algorithm = "reduce_from", ALLREDUCE
    inputs_are, outputs_are = "parts", "together"
    silent_backward = True

    def mirror(self) -> Communication:
        return CopyTo(self.comm, of=self)


class AddOnce(GenericFunction):
    """``y + b`` on one rank, y on the others, before the ranks' y are added up; b (D,) is the same
    on each rank.

    The gradient of that sum is on every rank, whole: so each has the whole gradient of b without a
    message, but only one the derivative of it. The array of y is written to: nobody else may need
    it. Adjoint of the second input: SumOnce.
    """

    adds_once = True  # for checks/states.py

    def __init__(self, here: bool) -> None:
        self.here = here

    def forward(self, y: Any, b: Any) -> Any:
        if self.here:
            y += b
        return y

    def backward(self, gy: Any) -> Any:
        return gy, lambda: SumOnce(self.here)(gy)


class SumOnce(GenericFunction):
    """(…, D) → (D,), the sum over all other axes: on all ranks of the same array, whose gradient
    one of them gives.
    """

    def __init__(self, here: bool) -> None:
        self.here = here

    def forward(self, gy: Any) -> Any:
        self.shape = gy.shape
        return gy.sum(axis=tuple(range(gy.ndim - 1)))

    def backward(self, ggb: Any) -> Any:
        return (lambda: BroadcastTo(self.shape)(ggb)) if self.here else None


def add_once(comm: Communicator, y: Variable, b: Any) -> Variable:
    """Add b (D,), which all ranks have alike, to what the ranks' y (…, D), soon to be added up,
    make together. It takes y.
    """
    return AddOnce(comm.rank == 0).apply((y, b))[0]


def copy_to(comm: Communicator, x: Variable | Array) -> Variable:
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


def reduce_from(comm: Communicator, x: Variable | Array) -> Variable:
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
    hook = communication_hook()
    if hook is not None:
        hook.check_terms(comm, "reduce_from", x)
    return function.apply((x,))[0]


def _function(comm: Communicator, kind: type[Communication], x: Any) -> FunctionNode:
    """The communication; one rank has nobody to speak to."""
    function = kind(comm)
    if comm.size > 1:
        return function
    function.all_there((x,))
    return PassThrough()


Sizes = tuple[int, ...]  # of each rank's part along the axis


class ScatterTo(Communication):
    """This rank's part of an array that all have. Adjoint: GatherFrom."""

    op, silent_forward = "scatter_to", True
    inputs_are, outputs_are = "copies", "parts"

    def __init__(
        self, comm: Communicator, axis: int, sizes: Sizes, of: GatherFrom | None = None
    ) -> None:
        super().__init__(comm, of)
        self.axis, self.sizes = axis, sizes

    def forward(self, x: Any) -> Any:
        self.check_inputs(x)
        # forward no rank hears of the others: so it goes on every rank's tape
        self.differentiable = is_recording()
        if x is None:
            return None
        start = sum(self.sizes[: self.comm.rank])
        index = (slice(None),) * self.axis + (slice(start, start + self.sizes[self.comm.rank]),)
        return x[index].copy()  # a copy, because a gradient is given away

    def backward(self, gy: Any) -> Any:
        return self.adjoint(GatherFrom(self.comm, self.axis, self.sizes, of=self), gy)


class GatherFrom(Collective):
    """All ranks' parts joined, of which each keeps its own gradient. Adjoint: ScatterTo."""

    op, algorithm = "gather_from", ALLGATHER
    inputs_are, outputs_are = "parts", "together"
    silent_backward = True

    def __init__(
        self, comm: Communicator, axis: int, sizes: Sizes = (), of: ScatterTo | None = None
    ) -> None:
        super().__init__(comm, of)
        self.axis, self.sizes = axis, sizes

    def agreed(self, parts: Any, wants: bool) -> Any:
        if self.order == 0:
            shapes = [part.shape for part in parts]
            if len({(*shape[: self.axis], None, *shape[self.axis + 1 :]) for shape in shapes}) > 1:
                raise MismatchError(
                    f"gather_from at {self.site}: the parts on the ranks of {self.comm!r} have "
                    f"shapes {shapes} and do not "
                    f"join along axis {self.axis}. It joins what scatter_to with the same "
                    "communicator and axis has cut"
                )
            self.sizes = tuple([shape[self.axis] for shape in shapes])
        return super().agreed(self._joined(parts), wants)

    def _joined(self, parts: tuple[Array | None, ...]) -> Array | None:
        given = next((part for part in parts if part is not None), None)
        if given is None:  # no rank has a gradient
            return None
        xp, arrays = backend.get_array_module(given), []
        for part, size in zip(parts, self.sizes, strict=True):
            shape = (*given.shape[: self.axis], size, *given.shape[self.axis + 1 :])
            arrays.append(xp.zeros(shape, given.dtype) if part is None else part)
        return xp.concatenate(arrays, axis=self.axis)

    def backward(self, gy: Any) -> Any:
        return self.adjoint(ScatterTo(self.comm, self.axis, self.sizes, of=self), gy)


def scatter_to(comm: Communicator, x: Variable | Array, axis: int = -1) -> Variable:
    """This rank's block of a value that all ranks hold alike and own together; backward joins the
    blocks' gradients.

    Blocks are those of :func:`mnpar.plans.block`: as even as they can be, the longer ones first.

    Args:
        comm: all its ranks call this.
        x: the same Variable or array on each rank.
        axis: the one that is cut.

    Returns:
        The block of this rank; nothing is sent forward.

    Raises:
        ValueError: x has no such axis.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> def program(comm):
        ...     x = mnpar.Variable(np.array([1.0, 2.0, 3.0]))
        ...     part = F.scatter_to(comm, x)
        ...     F.sum(F.reduce_from(comm, F.sum(part * part))).backward()
        ...     return part.array.tolist(), x.grad.tolist()
        >>> mnpar.run(program, ranks=2)
        [([1.0, 2.0], [2.0, 4.0, 6.0]), ([3.0], [2.0, 4.0, 6.0])]
    """
    require_communicator(comm, "scatter_to(comm, x)")
    x = as_variable(x)
    axis = normalize_axis("scatter_to", x, axis)
    ends = [block(x.shape[axis], comm.size, rank) for rank in range(comm.size)]
    return ScatterTo(comm, axis, tuple([b - a for a, b in ends])).apply((x,))[0]


def gather_from(comm: Communicator, x: Variable | Array, axis: int = -1) -> Variable:
    """All ranks' parts joined along an axis, as a value that they own together: backward gives each
    rank its part's gradient.

    Unlike :func:`allgather`, whose gradient is the sum over ranks: that of a loss that all compute
    alike would count P times.

    Args:
        comm: all its ranks call this, and then do the same with the result.
        x: this rank's part; parts may differ in length along the axis.
        axis: along which they are joined.

    Returns:
        The same array on each rank.

    Raises:
        ValueError: x has no such axis.
        MismatchError: on all ranks: their parts differ along another axis.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> def program(comm):
        ...     x = mnpar.Variable(np.full(comm.rank + 1, comm.rank + 1.0))
        ...     y = F.gather_from(comm, x)
        ...     F.sum(y * y).backward()
        ...     return y.array.tolist(), x.grad.tolist()
        >>> mnpar.run(program, ranks=2)
        [([1.0, 2.0, 2.0], [2.0]), ([1.0, 2.0, 2.0], [4.0, 4.0])]
    """
    x = as_variable(x)
    return GatherFrom(comm, normalize_axis("gather_from", x, axis)).apply((x,))[0]
