"""Batch renormalization: batch normalization whose results are corrected towards those of the
running statistics.

With r = σ / σ' and d = (μ − μ') / σ', where the primed ones are running, (x − μ)/σ · r + d = (x −
μ')/σ': the same as while testing. r and d are clipped, and are constants to backward. So it is
batch normalization with γ·r and β + γ·d.
"""

from __future__ import annotations

from mnpar.backend import Array
from mnpar.functions.normalization.batch_normalization import (
    BatchNormalization,
    fixed_batch_normalization,
    from_channel_view,
    to_channel_view,
    update_running,
)
from mnpar.functions.normalization.moments import Moments
from mnpar.variable import Variable, as_variable


def batch_renormalization(
    x: Variable | Array,
    gamma: Variable | Array,
    beta: Variable | Array,
    rmax: float,
    dmax: float,
    eps: float = 2e-5,
    running_mean: Array | None = None,
    running_var: Array | None = None,
    decay: float = 0.9,
    update_statistics: bool = False,
) -> Variable:
    """Batch normalization, :func:`batch_normalization`, corrected towards the running statistics.

    Args:
        x: ``(N, C, …)``; of 16 bits, it is computed in float32.
        gamma, beta: ``(C,)``.
        rmax: the deviations' ratio is clipped to 1 / rmax … rmax; 1: it is not corrected.
        dmax: the means' difference, in running deviations, is clipped to −dmax … dmax; 0: it is not
            corrected.
        eps: added to both variances.
        running_mean, running_var: arrays like ``gamma``.
        decay, update_statistics: let them follow the batch afterwards, as in
            :func:`batch_normalization`.

    Returns:
        ``x``'s shape and dtype.

    Raises:
        TypeError: there are no running statistics, or ``x`` has no floats; ValueError: shapes do
            not belong together.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> x, one, zero = np.array([[1.0], [3.0]]), np.ones(1), np.zeros(1)
        >>> F.batch_renormalization(
        ...     x, one, zero, 1, 0, running_mean=zero, running_var=4 * one
        ... ).array.round(3).tolist()
        [[-1.0], [1.0]]
        >>> F.batch_renormalization(
        ...     x, one, zero, 3, 5, running_mean=zero, running_var=4 * one
        ... ).array.round(3).tolist()
        [[0.5], [1.5]]

    Source:
        Ioffe, "Batch renormalization: towards reducing minibatch dependence in batch-normalized
        models", arXiv 1702.03275.
    """
    if running_mean is None or running_var is None:
        raise TypeError(
            "batch_renormalization: running_mean and running_var are needed, arrays like gamma"
        )
    gamma = as_variable(gamma)
    beta = as_variable(beta)
    x, order, shape = to_channel_view(
        "batch_renormalization", x, None, gamma=gamma, beta=beta, mean=running_mean, var=running_var
    )
    count = shape[0] * shape[2]
    mean, squares = Moments(shape).forward(x.array)
    var, xp = squares / max(count, 1), x.xp
    sigma = (running_var.reshape(-1).astype("d") + eps) ** 0.5
    r = xp.clip((var + eps) ** 0.5 / sigma, 1 / rmax, rmax).astype(gamma.dtype).reshape(gamma.shape)
    d = (
        xp.clip((mean - running_mean.reshape(-1)) / sigma, -dmax, dmax)
        .astype(gamma.dtype)
        .reshape(gamma.shape)
    )
    y = from_channel_view(
        BatchNormalization(shape, eps).apply((x, gamma * r, beta + gamma * d))[0], order
    )
    if update_statistics:
        update_running(running_mean, mean, count, decay)
        update_running(running_var, var, count, decay, unbiased=True)
    return y


def fixed_batch_renormalization(
    x: Variable | Array,
    gamma: Variable | Array,
    beta: Variable | Array,
    mean: Variable | Array,
    var: Variable | Array,
    eps: float = 2e-5,
) -> Variable:
    """:func:`fixed_batch_normalization` by another name: while testing there is nothing to correct.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> one = np.ones(2)
        >>> F.fixed_batch_renormalization(
        ...     np.array([[1.0, 5.0]]), one, one, one, 4 * one
        ... ).array.round(3)
        array([[1., 3.]])
    """
    return fixed_batch_normalization(x, gamma, beta, mean, var, eps)
