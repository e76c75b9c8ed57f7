"""Mean and variance over the arrays of all ranks, as if they were one.

No squares of the data are ever added up: a first allreduce, without a gradient, finds the mean K of
all; the second carries Σ(x - K) and Σ(x - K)², whose sums have the same derivatives for any
constant K, and lose no digits for this one. Backward is one allreduce. Statistics travel in
float64, at most 2C of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mnpar import backend
from mnpar.functions.array.joining import concat
from mnpar.functions.communication.collective import allreduce
from mnpar.functions.normalization.moments import Moments
from mnpar.kernels.moments import ChannelView
from mnpar.variable import Variable

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator


def multi_node_moments(
    comm: Communicator, x: Variable, shape: ChannelView
) -> tuple[Variable, Variable, int]:
    """Mean and variance of each channel over the arrays of all ranks, which may be of different
    sizes, and empty.

    Args:
        comm: all its ranks call this.
        x: read as ``shape`` (A, C, B); the statistics are over A, B and the ranks.

    Returns:
        Mean (C,), variance (C,), both float64, and how many numbers each is of.
    """
    (A, C, B), xp = shape, backend.get_array_module(x)
    mean, squares = Moments(shape).apply((x,))
    n = A * B
    rough = comm.allreduce(xp.append(mean.array * n, float(n)))
    count = int(rough[C])
    far = mean - rough[:C] / max(count, 1)  # this rank's mean from that of all, a constant
    total = allreduce(comm, concat((far * n, squares + far * far * n), axis=0)) * (
        1 / max(count, 1)
    )
    first = total[:C]
    second = total[C:]
    return first + rough[:C] / max(count, 1), second - first * first, count
