"""Negative log-likelihoods of distributions, their divergence, and samples: variational
autoencoders.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.functions.activation.softplus import softplus
from mnpar.functions.math.average import mean as mean_of
from mnpar.functions.math.exponential import exp
from mnpar.functions.math.reduction import sum as sum_of
from mnpar.functions.node import check_option, check_shapes
from mnpar.random import generator
from mnpar.variable import Variable, as_variable


def _reduced(who: str, loss: Variable, reduce: str) -> Variable:
    check_option(who, "reduce", reduce, "sum", "mean", "no")
    if reduce == "no":
        return loss
    return mean_of(loss) if reduce == "mean" and loss.size else sum_of(loss)


def require_same_shapes(who: str, *xs: Variable | Array) -> list[Variable]:
    """Return arrays as Variables; ValueError, which names ``who``, if their shapes differ."""
    found = [as_variable(x) for x in xs]
    check_shapes(who, *found)
    return found


def gaussian_kl_divergence(
    mean: Variable | Array, ln_var: Variable | Array, reduce: str = "sum"
) -> Variable:
    """The Kullback-Leibler divergence of N(μ, σ²) from N(0, 1): Σ (μ² + σ² − ln σ² − 1) / 2.

    Args:
        mean, ln_var: μ and ln σ², of one shape.
        reduce: ``'sum'``, ``'mean'`` or ``'no'``.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.gaussian_kl_divergence(np.ones(2), np.zeros(2)).item()
        1.0
    """
    mean, ln_var = require_same_shapes("gaussian_kl_divergence", mean, ln_var)
    return _reduced(
        "gaussian_kl_divergence", (mean * mean + exp(ln_var) - ln_var - 1) * 0.5, reduce
    )


def gaussian_nll(
    x: Variable | Array, mean: Variable | Array, ln_var: Variable | Array, reduce: str = "sum"
) -> Variable:
    """The negative log-likelihood of normal distributions: (ln σ² + ln 2π + (x − μ)² / σ²) / 2.

    Args:
        x: the observations.
        mean, ln_var: μ and ln σ², of the same shape.
        reduce: ``'sum'``, ``'mean'`` or ``'no'``.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> round(F.gaussian_nll(np.zeros(1), np.zeros(1), np.zeros(1)).item(), 4)
        0.9189
    """
    x, mean, ln_var = require_same_shapes("gaussian_nll", x, mean, ln_var)
    d = x - mean
    return _reduced(
        "gaussian_nll", (ln_var + math.log(2 * math.pi) + d * d * exp(-ln_var)) * 0.5, reduce
    )


def bernoulli_nll(x: Variable | Array, y: Variable | Array, reduce: str = "sum") -> Variable:
    """The negative log-likelihood of Bernoulli distributions: ln(1 + e^y) − x y.

    Args:
        x: the observations, 0 to 1.
        y: the logits, of the same shape.
        reduce: ``'sum'``, ``'mean'`` or ``'no'``.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> round(F.bernoulli_nll(np.ones(1), np.zeros(1)).item(), 4)
        0.6931
    """
    x, y = require_same_shapes("bernoulli_nll", x, y)
    return _reduced("bernoulli_nll", softplus(y) - x * y, reduce)


def gaussian(
    mean: Variable | Array,
    ln_var: Variable | Array,
    *,
    eps: Variable | Array | None = None,
    return_eps: bool = False,
    rng: np.random.Generator | None = None,
) -> Any:
    """Draw from normal distributions by the reparameterization trick, μ + σ ε: gradients reach
    means and variances.

    Args:
        mean, ln_var: μ and ln σ², of one shape.
        eps: ε, if it is not to be drawn.
        return_eps: return ε too.
        rng: where numbers are drawn from; None takes this rank's :func:`mnpar.random.generator`.

    Returns:
        The shape of ``mean``, or a pair with ε.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.gaussian(np.ones(2), np.zeros(2), eps=np.array([0.5, -0.5])).array
        array([1.5, 0.5])
    """
    mean, ln_var = require_same_shapes("gaussian", mean, ln_var)
    if eps is None:
        eps = backend.to_device_of(
            (rng or generator()).standard_normal(mean.shape).astype(mean.dtype), mean.array
        )
    y: Variable = mean + exp(ln_var * 0.5) * eps
    return (y, eps) if return_eps else y
