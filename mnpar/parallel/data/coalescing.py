"""Many arrays reduced by few messages: for programs that handle gradients themselves."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from mnpar.autograd.graph import VariableNode
from mnpar.backend import Array
from mnpar.communicators import replication
from mnpar.communicators.communicator import require_communicator
from mnpar.communicators.replication import BUCKET
from mnpar.link import Link

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator


def allreduce_multiple(
    comm: Communicator, arrays: Iterable[Array], scale: float = 1.0, bucket_bytes: int = BUCKET
) -> None:
    """Sum each of several arrays over ranks and scale it, in place; arrays of one dtype travel
    together.

    Args:
        comm: its ranks call this with arrays of the same shapes and dtypes, in the same order.
        arrays: on one kind of device.
        scale: multiplies the sums.
        bucket_bytes: how much travels at once; a larger array travels alone.

    Raises:
        MismatchError: the ranks' arrays differ.

    Example:
        >>> import numpy as np, mnpar
        >>> from mnpar.parallel import allreduce_multiple
        >>> def program(comm):
        ...     arrays = [np.full(2, comm.rank + 1.0) for _ in range(3)]
        ...     allreduce_multiple(comm, arrays, scale=2)
        ...     return arrays[2]
        >>> mnpar.run(program, ranks=3)[0]
        array([12., 12.])
    """
    require_communicator(comm, "allreduce_multiple(comm, arrays)")
    replication.allreduce_many(comm, arrays, scale, bucket_bytes)


def allreduce_parameters(model: Link, comm: Communicator) -> None:
    """Replace each parameter by its mean over ranks, on all of them (flashlight's
    allReduceParameters).

    Args:
        model: of the same structure on all ranks.
        comm: the ranks; all call this.

    Raises:
        MismatchError: the ranks name different models.

    Example:
        >>> import mnpar, mnpar.links as L
        >>> from mnpar.parallel import allreduce_parameters
        >>> def program(comm):
        ...     model = L.Linear(1, 1, initialW=comm.rank)
        ...     allreduce_parameters(model, comm)
        ...     return float(model.W.array[0, 0])
        >>> mnpar.run(program, ranks=3)
        [1.0, 1.0, 1.0]
    """
    require_communicator(comm, "allreduce_parameters(model, comm)")
    replication.check_same_model(comm, model)
    allreduce_multiple(
        comm, [param.array for param in model.params(include_uninit=False)], 1 / comm.size
    )


def allreduce_gradients(model: Link, comm: Communicator, scale: float = 1.0) -> None:
    """Sum each parameter's gradient over ranks, and scale it; one that some ranks do not have
    counts as zeros there.

    Args:
        model: of the same structure on all ranks.
        comm: the ranks; all call this.
        scale: multiplies the sums: ``1 / comm.size`` for means.

    Example:
        >>> import mnpar, mnpar.functions as F, mnpar.links as L
        >>> from mnpar.parallel import allreduce_gradients
        >>> def program(comm):
        ...     model = L.Linear(1, 1, nobias=True)
        ...     F.sum(model.W * comm.rank).backward()
        ...     allreduce_gradients(model, comm)
        ...     return float(model.W.grad[0, 0])
        >>> mnpar.run(program, ranks=3)
        [3.0, 3.0, 3.0]
    """
    require_communicator(comm, "allreduce_gradients(model, comm)")
    replication.allreduce_gradients(comm, model, scale)


class InlineReducer:
    """Reduces each gradient as soon as it is final, alone.

    Args:
        comm: the ranks; their backwards find the same gradients in the same order.
        scale: multiplies the sums: ``1 / comm.size`` for means.

    Example:
        >>> import numpy as np, mnpar
        >>> from mnpar.parallel import InlineReducer
        >>> def program(comm):
        ...     g = np.full(2, comm.rank, "f4")
        ...     InlineReducer(comm, scale=0.5).add(g)
        ...     return g
        >>> mnpar.run(program, ranks=3)[0]
        array([1.5, 1.5], dtype=float32)
    """

    def __init__(self, comm: Communicator, scale: float = 1.0) -> None:
        require_communicator(comm, "InlineReducer(comm)")
        self.comm, self.scale = comm, scale

    def add(self, gradient: Array) -> None:
        """Reduce an array in place."""
        allreduce_multiple(self.comm, [gradient], self.scale)

    def finalize(self) -> None:
        """Do nothing: everything is reduced already."""


class CoalescingReducer:
    """Collects gradients until a bucket is full, and reduces them together; ``finalize`` before
    they are used.

    Args:
        comm: the ranks; their backwards find the same gradients in the same order.
        scale: multiplies the sums: ``1 / comm.size`` for means.
        bucket_bytes: the size of a bucket; a larger gradient is reduced alone.

    Example:
        >>> import numpy as np, mnpar
        >>> from mnpar.parallel import CoalescingReducer
        >>> def program(comm):
        ...     reducer, gradients = CoalescingReducer(comm), [np.ones(2) for _ in range(3)]
        ...     for g in gradients:
        ...         reducer.add(g)
        ...     reducer.finalize()
        ...     return float(sum(g.sum() for g in gradients))
        >>> mnpar.run(program, ranks=2)
        [12.0, 12.0]
    """

    def __init__(self, comm: Communicator, scale: float = 1.0, bucket_bytes: int = BUCKET) -> None:
        require_communicator(comm, "CoalescingReducer(comm)")
        self.comm, self.scale, self.bucket_bytes = comm, scale, bucket_bytes
        self._held: list[Array] = []

    def add(self, gradient: Array) -> None:
        """Take an array; it is reduced in place, now or later."""
        if (
            self._held
            and sum(held.nbytes for held in self._held) + gradient.nbytes > self.bucket_bytes
        ):
            self.finalize()
        self._held.append(gradient)

    def finalize(self) -> None:
        """Reduce what is held."""
        held, self._held = self._held, []
        allreduce_multiple(self.comm, held, self.scale, self.bucket_bytes)


def distribute_module_grads(model: Link, reducer: InlineReducer | CoalescingReducer) -> None:
    """Let a reducer have each parameter's gradient when backward has found it; call its
    ``finalize`` before the update.

    Args:
        model: its parameters are initialized.
        reducer: one of the two above, or anything with their ``add``.

    Example:
        >>> import mnpar, mnpar.functions as F, mnpar.links as L
        >>> from mnpar.parallel import CoalescingReducer, distribute_module_grads
        >>> def program(comm):
        ...     model, reducer = (
        ...         L.Linear(1, 1, initialW=1),
        ...         CoalescingReducer(comm, scale=1 / comm.size),
        ...     )
        ...     distribute_module_grads(model, reducer)
        ...     F.sum(model.W * comm.rank).backward()
        ...     reducer.finalize()
        ...     return float(model.W.grad[0, 0])
        >>> mnpar.run(program, ranks=3)
        [1.0, 1.0, 1.0]
    """

    def add(node: VariableNode) -> None:
        # of a recorded backward it is a Variable
        g: Any = node.gradient
        reducer.add(getattr(g, "array", g))

    for param in model.params():
        param.register_hook(add, after=True)
