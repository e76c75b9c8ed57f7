"""Batch normalization over the batches of all ranks, as if they were one.

Each rank says how many values it has of each channel, their mean and the sum of their squared differences from it; these
combine without a difference of large numbers (Chan, Golub and LeVeque 1979, "Updating formulae and a pairwise algorithm for
computing sample variances", eq. 2.1):

    n = Σ nᵣ,   μ = Σ nᵣ μᵣ / n,   n σ² = Σ Mᵣ + Σ nᵣ (μᵣ − μ)²

All of it is made of mnpar's functions, so its gradients come by themselves, over the ranks too: one allgather forward and one
reduce_scatter backward. Batches may differ in size, and be empty.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from mnpar import functions as F
from mnpar.chain import ChainList
from mnpar.config import config
from mnpar.functions.normalization import exact_sum
from mnpar.link import Link
from mnpar.links.normalization import BatchNormalization
from mnpar.variable import Variable, as_variable

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator


class MultiNodeBatchNormalization(BatchNormalization):
    """Normalize each channel over the batches of all ranks; they all call it in training, and none waits in evaluation.

    By law 1 the gradient of gamma and beta on a rank is that rank's share: summed over ranks it is that of one process.

    Args:
        size, decay, eps, dtype, use_gamma, use_beta, initial_gamma, initial_beta: as in :class:`BatchNormalization`.
        comm: the ranks whose batches count as one.
        communication_backend: ChainerMN's; accepted and not needed.
        axis: over which means are taken; None: all but the second.

    Example:
        >>> import numpy as np, mnpar, mnpar.links as L
        >>> def program(comm):
        ...     layer = L.MultiNodeBatchNormalization(1, comm)
        ...     return layer(np.array([[1.0 + 2 * comm.rank]], "f4")).array.round(2).item()
        >>> mnpar.run(program, ranks=2)
        [-1.0, 1.0]
    """

    def __init__(
        self, size: Any, comm: Communicator, decay: float = 0.9, eps: float = 2e-5, dtype: Any = None, use_gamma: bool = True,
        use_beta: bool = True, initial_gamma: Any = None, initial_beta: Any = None, communication_backend: str = "auto",
        axis: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(size, decay, eps, dtype, use_gamma, use_beta, initial_gamma, initial_beta, axis)
        self.comm = comm

    def forward(self, x: Any, finetune: bool = False) -> Variable:
        """(N, C, …) → the same shape; N may differ between ranks, and be 0."""
        if not config.train:
            return super().forward(x)
        x = as_variable(x)
        gamma, beta = self._ready(x)
        axes = self._axes(x)
        full = tuple([1 if i in axes else n for i, n in enumerate(x.shape)])
        values = F.cast(x, self._dtype)
        count, mean, var = self._statistics(values, axes, full)
        scale = (var + self.eps) ** -0.5
        y = (values - mean) * (scale * F.reshape(gamma, full)) + F.reshape(beta, full)
        self._remember(mean.array, var.array, count, finetune)
        return F.cast(y, x.dtype)

    def _statistics(self, x: Variable, axes: tuple[int, ...], full: tuple[int, ...]) -> tuple[float, Variable, Variable]:
        """The number of values of each channel on all ranks, their mean and their variance."""
        n = x.size // max(1, math.prod(full))
        near = exact_sum(x.array, axes) / max(n, 1)  # a constant: what is left is small, and its sum exact
        mean = F.sum(x - near, axes, keepdims=True) / max(n, 1) + near
        squares = F.sum((x - mean) ** 2, axes, keepdims=True)
        mine = F.stack((x.xp.full(full, n, x.dtype), mean, squares))  # (3, *full)
        parts = F.stack(F.allgather(self.comm, mine))  # (P, 3, *full)
        counts, means, squares = parts.array[:, 0], parts[:, 1], parts[:, 2]
        total = max(float(counts.reshape(self.comm.size, -1)[:, :1].sum()), 1.0) if math.prod(full) else 1.0
        mean = F.sum(means * (counts / total), axis=0)
        var = (F.sum(squares, axis=0) + F.sum((means - mean) ** 2 * counts, axis=0)) / total
        return total, mean, var

    def _remember(self, mean: Any, var: Any, count: float, finetune: bool) -> None:
        decay = self.decay
        if finetune:
            self.N += 1
            decay = 1 - 1 / self.N
        unbiased = count / max(count - 1, 1)
        for running, now in ((self.avg_mean, mean), (self.avg_var, var * unbiased)):
            running *= decay
            running += (1 - decay) * now.reshape(running.shape)


def create_mnbn_model(link: Link, comm: Communicator, communication_backend: str = "auto") -> Link:
    """A copy of a model in which every batch normalization is over the batches of all ranks; the model stays as it is.

    Args:
        link: a model of any structure.
        comm: the ranks whose batches count as one.
        communication_backend: ChainerMN's; accepted and not needed.

    Returns:
        A model of the same structure, with copies of all values.

    Example:
        >>> import mnpar, mnpar.links as L
        >>> model = mnpar.Sequential(L.Linear(2, 3), L.BatchNormalization(3))
        >>> twin = mnpar.run(lambda comm: L.create_mnbn_model(model, comm), ranks=1)[0]
        >>> [type(layer).__name__ for layer in twin]
        ['Linear', 'MultiNodeBatchNormalization']
    """
    return _replaced(link.copy("copy"), comm)


def _replaced(link: Link, comm: Communicator) -> Link:
    if isinstance(link, BatchNormalization):
        if isinstance(link, MultiNodeBatchNormalization):
            return link
        twin = MultiNodeBatchNormalization(None, comm)
        twin.__dict__.update({**link.__dict__, "comm": comm})
        return twin
    for name, child in list(link._named_children()):
        new = _replaced(child, comm)
        if new is not child:
            if isinstance(link, ChainList):
                link[int(name)] = new
            else:
                setattr(link, name, new)
    return link
