"""Batch normalization over the batches of all ranks, as if they were one.

It composes two differentiable functions: mean and variance over all ranks
(functions/normalization/multi_node_moments.py), and the normalization by a given mean and variance. So it is
differentiable any number of times.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, TypeVar

from mnpar.communicators.communicator import needed
from mnpar.configuration import config
from mnpar.functions.normalization.batch_normalization import (
    FixedBatchNormalization,
    arranged,
    arranged_back,
    update_running,
)
from mnpar.functions.normalization.multi_node_moments import multi_node_moments
from mnpar.link import Link
from mnpar.links.batch_normalization import Axis, BatchNormalization
from mnpar.variable import Variable

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator

L = TypeVar("L", bound=Link)


class MultiNodeBatchNormalization(BatchNormalization):
    """:class:`BatchNormalization` whose mean and variance are those of the batches of all ranks
    together.

    Batches may have different sizes, or be empty: the result is that of one process with all
    samples. While ``config.train`` is on, all ranks call it, in the same order; else each by
    itself. Running statistics are the same on every rank.

    As everywhere, backward is of the sum of the ranks' losses: x gets its whole gradient, through
    the statistics of all ranks; gamma and beta get this rank's share, and the shares of all ranks
    add up to what one process would have.

    Args:
        size, decay, eps, dtype, use_gamma, use_beta, initial_gamma, initial_beta, axis,
            initial_avg_mean, initial_avg_var: as :class:`BatchNormalization` has them.
        comm: the ranks that normalize together.
        communication_backend: ``'auto'``, ``'mpi'`` or ``'nccl'``; accepted for ChainerMN's
            programs, as the communicator decides; ``'nccl'`` needs a communicator of NCCL.

    Raises:
        ValueError: a size below 1, or no such backend.

    Example:
        >>> import numpy as np, mnpar, mnpar.links as L
        >>> def program(comm):
        ...     x = np.full(
        ...         (comm.rank + 1, 1), 3.0 * comm.rank
        ...     )  # 0 on one rank, twice 3 on the other
        ...     return L.MultiNodeBatchNormalization(1, comm)(x).array.round(2).tolist()
        >>> mnpar.run(program, ranks=2)
        [[[-1.41]], [[0.71], [0.71]]]
    """

    def __init__(
        self,
        size: int | tuple[int, ...] | None,
        comm: Communicator,
        decay: float = 0.9,
        eps: float = 2e-5,
        dtype: Any = None,
        use_gamma: bool = True,
        use_beta: bool = True,
        initial_gamma: Any = None,
        initial_beta: Any = None,
        communication_backend: str = "auto",
        axis: Axis = None,
        initial_avg_mean: Any = None,
        initial_avg_var: Any = None,
    ) -> None:
        needed(comm, "MultiNodeBatchNormalization(size, comm)")
        _check_backend(communication_backend, comm)
        super().__init__(
            size,
            decay,
            eps,
            dtype,
            use_gamma,
            use_beta,
            initial_gamma,
            initial_beta,
            axis,
            initial_avg_mean,
            initial_avg_var,
        )
        self.comm = comm

    def __deepcopy__(self, memo: dict[int, Any]) -> MultiNodeBatchNormalization:
        memo[id(self.comm)] = self.comm  # ranks are not copied
        other = memo[id(self)] = type(self).__new__(type(self))
        other.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return other

    def _by_batch(self, x: Any, gamma: Any, beta: Any, decay: float) -> Variable:
        if self.comm.size == 1:
            return super()._by_batch(x, gamma, beta, decay)
        x, order, shape = arranged(type(self).__name__, x, self.axis, gamma=gamma, beta=beta)
        mean, var, count = multi_node_moments(self.comm, x, shape)
        y = FixedBatchNormalization(shape, self.eps).apply((x, gamma, beta, mean, var))[0]
        if not config.in_recomputing:
            update_running(self.avg_mean, mean.array, count, decay)
            update_running(self.avg_var, var.array, count, decay, unbiased=True)
        return arranged_back(y, order)


def create_mnbn_model(link: L, comm: Communicator, communication_backend: str = "auto") -> L:
    """A copy of a model in which every BatchNormalization normalizes over the ranks of ``comm``.

    Args:
        link: a model of any structure; it is not changed. Links that it has in several places are
            shared in the copy, too.
        comm: the ranks that normalize together.
        communication_backend: as :class:`MultiNodeBatchNormalization` takes it.

    Returns:
        A deep copy, with the same parameters, running values and settings; a
        MultiNodeBatchNormalization if ``link`` is a BatchNormalization itself.

    Raises:
        ValueError: there is no such backend.

    Example:
        >>> import mnpar, mnpar.functions as F, mnpar.links as L
        >>> model = mnpar.Sequential(L.Linear(3, 4), L.BatchNormalization(4), F.relu)
        >>> [
        ...     type(layer).__name__
        ...     for layer in L.create_mnbn_model(model, mnpar.create_communicator("self"))
        ... ]
        ['Linear', 'MultiNodeBatchNormalization', 'function']
    """
    needed(comm, "create_mnbn_model(link, comm)")
    _check_backend(communication_backend, comm)
    memo: dict[int, Any] = {id(comm): comm}
    for serial in link.links():
        multi_node = isinstance(serial, MultiNodeBatchNormalization)
        if isinstance(serial, BatchNormalization) and not multi_node and id(serial) not in memo:
            memo[id(serial)] = twin = MultiNodeBatchNormalization.__new__(
                MultiNodeBatchNormalization
            )
            twin.__dict__.update(copy.deepcopy(serial.__dict__, memo), comm=comm)
    other: L = copy.deepcopy(link, memo)
    other.name = None
    return other


def _check_backend(communication_backend: str, comm: Communicator) -> None:
    if communication_backend not in ("auto", "mpi", "nccl"):
        raise ValueError(
            f"communication_backend is 'auto', 'mpi' or 'nccl', not {communication_backend!r}"
        )
    if communication_backend == "nccl" and comm.name != "nccl":
        raise ValueError(
            "communication_backend 'nccl' needs a communicator of NCCL, but this one is of "
            f"{comm.name!r}: use 'auto'"
        )
