"""ChainerMN's methods of communicators that work on models. Communicators know no links, so they get these from here."""

from __future__ import annotations

from mnpar import backend
from mnpar.communicators import Communicator
from mnpar.config import config
from mnpar.link import Link
from mnpar.parallel.agreement import broadcast_model
from mnpar.parallel.reducing import allreduce_gradients


def bcast_data(comm: Communicator, model: Link) -> None:
    """Give all ranks rank 0's parameters and persistent values: :func:`broadcast_model`."""
    broadcast_model(comm, model)


def multi_node_mean_grad(comm: Communicator, model: Link, zero_fill: bool = False) -> None:
    """The mean over ranks of each parameter's gradient, on all of them.

    Args:
        comm: its ranks all call this.
        model: of the same structure on all ranks.
        zero_fill: parameters without a gradient on any rank get zeros. One that only some ranks lack counts as zeros there.

    Raises:
        ValueError: ``mnpar.config.debug`` is on and a gradient is NaN or infinite: training has diverged.
    """
    if zero_fill:
        for param in model.params(include_uninit=False):
            if param.grad is None and param.requires_grad:
                param.zerograd()
    allreduce_gradients(model, comm, 1 / comm.size)
    if config.debug:
        for path, param in model.namedparams(include_uninit=False):
            g = param.grad
            if g is not None and not backend.get_array_module(g).isfinite(g).all():
                raise ValueError(f"the gradient of {path} is not finite: training has diverged")


Communicator.bcast_data = bcast_data  # type: ignore[assignment]
Communicator.multi_node_mean_grad = Communicator.allreduce_grad = multi_node_mean_grad
