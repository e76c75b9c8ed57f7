"""Losses element by element, robust ones, and those of distributions (variational autoencoders)."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.function_node import FunctionNode
from mnpar.functions.activation import softplus
from mnpar.functions.elementwise import absolute, exp
from mnpar.functions.extrema import Clip
from mnpar.functions.generic import check_labels, check_option, check_shapes, either, listed
from mnpar.functions.reduction import mean as mean_of
from mnpar.functions.reduction import sum as sum_of
from mnpar.random import generator
from mnpar.variable import Variable, as_variable


def _reduced(who: str, loss: Variable, reduce: str) -> Variable:
    check_option(who, "reduce", reduce, "sum", "mean", "no")
    return (
        loss
        if reduce == "no"
        else sum_of(loss)
        if reduce == "sum"
        else mean_of(loss)
        if loss.size
        else sum_of(loss)
    )


def _alike(who: str, *xs: Any) -> list[Variable]:
    found = [as_variable(x) for x in xs]
    check_shapes(who, *found)
    return found


def squared_error(x0: Any, x1: Any) -> Variable:
    """The squared difference of each element.

    Args:
        x0, x1: arrays or Variables of one shape; nothing is broadcast.

    Returns:
        Their shape.

    Raises:
        ValueError: the shapes differ.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.squared_error(np.array([1.0, 2.0]), np.array([3.0, 3.0])).array
        array([4., 1.])
    """
    x0, x1 = _alike("squared_error", x0, x1)
    y: Variable = (x0 - x1) ** 2
    return y


def absolute_error(x0: Any, x1: Any) -> Variable:
    """The absolute difference of each element; arguments, shape and errors as in
    :func:`squared_error`.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.absolute_error(np.array([1.0, 2.0]), np.array([3.0, 3.0])).array
        array([2., 1.])
    """
    x0, x1 = _alike("absolute_error", x0, x1)
    return absolute(x0 - x1)


class HuberLoss(FunctionNode):
    """c·(d - c/2) of d = x - t and c, which is d between -δ and δ; its derivative is c."""

    generic = True

    def __init__(self, delta: float) -> None:
        self.delta = delta

    def forward(self, x: Array, t: Array) -> Array:
        self.retain_inputs((0, 1))
        d = x - t
        c = d.clip(-self.delta, self.delta)
        d -= c * 0.5
        d *= c
        return d

    def backward(self, gy: Any) -> Any:
        x, t = self.get_retained_inputs()
        c = functools.cache(lambda: either(Clip(-self.delta, self.delta), x - t))
        return lambda: gy * c(), lambda: gy * -c()


def huber_loss(x: Any, t: Any, delta: float, reduce: str = "sum_along_second_axis") -> Variable:
    """The Huber loss: squared for errors up to ``delta``, linear for larger ones (Huber 1964).

    Args:
        x: predictions, ``(N, …)``.
        t: targets, of the same shape.
        delta: the error at which the loss becomes linear.
        reduce: ``'sum_along_second_axis'``, or ``'no'``.

    Returns:
        ``(N, …)`` without the second axis, or the shape of ``x``.

    Raises:
        ValueError: the shapes differ, an unknown option.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.huber_loss(np.array([[0.5, 3.0]]), np.zeros((1, 2)), 1.0).array
        array([2.625])
    """
    check_option("huber_loss", "reduce", reduce, "sum_along_second_axis", "no")
    x, t = _alike("huber_loss", x, t)
    loss = HuberLoss(delta).apply((x, t))[0]
    return loss if reduce == "no" else sum_of(loss, axis=1)


class Hinge(FunctionNode):
    """max(0, 1 + sign·x) or its square."""

    generic = True

    def __init__(self, sign: Array, square: bool) -> None:
        self.sign, self.square = sign, square

    def forward(self, x: Array) -> Array:
        self.retain_inputs((0,) if self.square else ())
        loss = x * self.sign
        loss += 1
        loss = loss.clip(0, None, out=loss)
        if self.differentiable and not self.square:
            self.sign = self.sign * (loss > 0)
        return loss * loss if self.square else loss

    def backward(self, gy: Any) -> Any:
        if not self.square:
            return lambda: gy * self.sign
        (x,) = self.get_retained_inputs()
        return lambda: gy * either(Hinge(self.sign, False), x) * (self.sign * 2)


def hinge(x: Any, t: Any, norm: str = "L1", reduce: str = "mean") -> Variable:
    """The one-against-all hinge loss: Σ over classes of max(0, 1 - s x), with s = 1 for the right
    class, else -1.

    Args:
        x: scores ``(N, C)``.
        t: integer labels ``(N,)`` from 0 to C - 1.
        norm: ``'L1'``, or ``'L2'`` for the squares.
        reduce: ``'mean'`` over N of the sum over C, or ``'no'``.

    Returns:
        0-d, or ``(N, C)``.

    Raises:
        ValueError: shapes or labels of another kind, a label that is no class, an unknown option.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.hinge(np.array([[2.0, 0.5]]), np.array([0])).item()
        1.5
    """
    x = as_variable(x)
    labels = as_variable(t).array
    if x.ndim != 2 or labels.shape != x.shape[:1] or labels.dtype.kind not in "iu":
        raise ValueError(
            f"hinge: scores (N, C) and integer labels (N,), not {listed((x.shape, labels.shape))}"
        )
    check_labels("hinge", labels, x.shape[1])
    check_option("hinge", "norm", norm, "L1", "L2")
    check_option("hinge", "reduce", reduce, "mean", "no")
    sign = x.xp.ones(x.shape, x.dtype)
    sign[x.xp.arange(len(labels)), labels] = -1
    loss = Hinge(sign, norm == "L2").apply((x,))[0]
    # the whole sum would be too large for float16
    return loss if reduce == "no" else sum_of(mean_of(loss, axis=0))


def gaussian_kl_divergence(mean: Any, ln_var: Any, reduce: str = "sum") -> Variable:
    """The Kullback-Leibler divergence of N(μ, σ²) from N(0, 1): Σ (μ² + σ² − ln σ² − 1) / 2.

    Args:
        mean, ln_var: μ and ln σ², of one shape.
        reduce: ``'sum'``, ``'mean'`` or ``'no'``.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.gaussian_kl_divergence(np.ones(2), np.zeros(2)).item()
        1.0
    """
    mean, ln_var = _alike("gaussian_kl_divergence", mean, ln_var)
    return _reduced(
        "gaussian_kl_divergence", (mean * mean + exp(ln_var) - ln_var - 1) * 0.5, reduce
    )


def gaussian_nll(x: Any, mean: Any, ln_var: Any, reduce: str = "sum") -> Variable:
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
    x, mean, ln_var = _alike("gaussian_nll", x, mean, ln_var)
    d = x - mean
    return _reduced(
        "gaussian_nll", (ln_var + math.log(2 * math.pi) + d * d * exp(-ln_var)) * 0.5, reduce
    )


def bernoulli_nll(x: Any, y: Any, reduce: str = "sum") -> Variable:
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
    x, y = _alike("bernoulli_nll", x, y)
    return _reduced("bernoulli_nll", softplus(y) - x * y, reduce)


def gaussian(
    mean: Any,
    ln_var: Any,
    *,
    eps: Any = None,
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
    mean, ln_var = _alike("gaussian", mean, ln_var)
    if eps is None:
        eps = backend.like(
            (rng or generator()).standard_normal(mean.shape).astype(mean.dtype), mean.array
        )
    y: Variable = mean + exp(ln_var * 0.5) * eps
    return (y, eps) if return_eps else y
