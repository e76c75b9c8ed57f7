"""ChainerMN's methods of communicators that work on a model: its values from rank 0, and its
gradients' mean over ranks.

A communicator knows arrays and no models, so these are functions here; a table at the end makes
methods of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mnpar import backend
from mnpar.communicators.communicator import Communicator, require_communicator
from mnpar.configuration import is_debugging
from mnpar.parallel.data.coalescing import allreduce_gradients
from mnpar.parallel.data.replicas import broadcast_model

if TYPE_CHECKING:
    from mnpar.link import Link


def bcast_data(comm: Communicator, model: Link) -> None:
    """``comm.bcast_data(model)``: rank 0's parameters and persistent values for all ranks;
    collective.

    Args:
        comm: the ranks that hold copies of the model.
        model: of the same structure on all of them.

    Example:
        >>> import mnpar, mnpar.links as L
        >>> def program(comm):
        ...     model = L.Linear(1, 1, initialW=comm.rank + 5)
        ...     comm.bcast_data(model)
        ...     return float(model.W.array[0, 0])
        >>> mnpar.run(program, ranks=3)
        [5.0, 5.0, 5.0]
    """
    require_communicator(comm, "bcast_data(comm, model)")
    broadcast_model(model, comm)


def multi_node_mean_grad(comm: Communicator, model: Link, zero_fill: bool = False) -> None:
    """``comm.multi_node_mean_grad(model)``: gradients become their means over ranks, each rank
    counted alike; collective.

    A gradient that some ranks do not have counts as zeros there. (The multi-node optimizer weighs
    by samples instead.)

    Args:
        comm: the ranks that hold copies of the model.
        model: of the same structure on all of them.
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
    require_communicator(comm, "multi_node_mean_grad(comm, model)")
    if zero_fill:
        for param in model.params(include_uninit=False):
            if param.grad is None and param.requires_grad:
                param.zerograd()
    allreduce_gradients(model, comm, 1 / comm.size)
    if is_debugging():
        _check_finite(model)


def _check_finite(model: Link) -> None:
    for path, param in model.namedparams(include_uninit=False):
        if (
            param.grad is not None
            and not backend.get_array_module(param.grad).isfinite(param.grad).all()
        ):
            raise ValueError(
                f"training has diverged: the mean gradient of {path} has NaN or infinity"
            )


METHODS = {
    "bcast_data": bcast_data,
    "broadcast_data": bcast_data,
    "multi_node_mean_grad": multi_node_mean_grad,
    "allreduce_grad": multi_node_mean_grad,
}


for _name, _method in METHODS.items():
    setattr(Communicator, _name, _method)
