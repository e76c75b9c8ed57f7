"""ChainerMN's methods of communicators that work on a model, as functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mnpar.communicators.communicator import Communicator, require_communicator

if TYPE_CHECKING:
    from mnpar.link import Link


def bcast_data(comm: Communicator, model: Link) -> None:
    """Call ``comm.bcast_data(model)``: rank 0's parameters and persistent values for all ranks.

    Args:
        comm: the ranks that hold copies of the model; all call this.
        model: of the same structure on all of them.

    Example:
        See :meth:`mnpar.Communicator.bcast_data`.
    """
    require_communicator(comm, "bcast_data(comm, model)")
    comm.bcast_data(model)


def multi_node_mean_grad(comm: Communicator, model: Link, zero_fill: bool = False) -> None:
    """Call ``comm.multi_node_mean_grad(model, zero_fill)``: gradients become their means over
    ranks.

    Args:
        comm: the ranks that hold copies of the model; all call this.
        model: of the same structure on all of them.
        zero_fill: a gradient that no rank has becomes zeros, too; else it stays None.

    Example:
        See :meth:`mnpar.Communicator.multi_node_mean_grad`.
    """
    require_communicator(comm, "multi_node_mean_grad(comm, model)")
    comm.multi_node_mean_grad(model, zero_fill)
