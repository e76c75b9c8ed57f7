"""Stochastic gradient descent, plain and with momentum."""

from __future__ import annotations

import numpy as np

from mnpar.backend import Array
from mnpar.optimizers.optimizer import GradientMethod, hyperparameter
from mnpar.optimizers.update_rule import UpdateRule, zeros_like
from mnpar.parameter import Parameter

_BLOCK = 16384  # elements that stay in the cache between the product and the difference


def subtract_scaled(p: Array, lr: float, g: Array) -> None:
    """p ← p − lr · g in place, in blocks: one pass over memory, and no array as large as p beside it."""
    if type(p) is not np.ndarray or p.size <= _BLOCK or not (p.flags.c_contiguous and g.flags.c_contiguous):
        p -= lr * g
        return
    flat, gradient, work = p.reshape(-1), g.reshape(-1), np.empty(_BLOCK, p.dtype)
    for start in range(0, flat.size, _BLOCK):
        block = flat[start : start + _BLOCK]
        part = work[: block.size]
        np.multiply(gradient[start : start + _BLOCK], lr, out=part)
        np.subtract(block, part, out=block)


class SGDRule(UpdateRule):
    """p ← p − lr · g"""

    def update_core(self, param: Parameter) -> None:
        subtract_scaled(param.array, self.hyperparam.get("lr"), param.grad)


class SGD(GradientMethod):
    """p ← p − lr · g

    Args:
        lr: the learning rate.

    Example:
        >>> import mnpar
        >>> mnpar.optimizers.SGD(lr=0.5).lr
        0.5
    """

    lr = hyperparameter("lr")

    def __init__(self, lr: float = 0.01) -> None:
        super().__init__()
        self.lr = lr

    def create_update_rule(self) -> UpdateRule:
        """The rule for one parameter."""
        return SGDRule(self.hyperparam)


class MomentumSGDRule(UpdateRule):
    """v ← μ v − lr · g,  p ← p + v"""

    def init_state(self, param: Parameter) -> None:
        """The velocity, 0 at first."""
        self.state["v"] = zeros_like(param)

    def update_core(self, param: Parameter) -> None:
        v = self.state["v"]
        v *= self.hyperparam.get("momentum")
        v -= self.hyperparam.get("lr") * param.grad.astype(v.dtype, copy=False)
        param.array += v


class MomentumSGD(GradientMethod):
    """v ← μ v − lr · g,  p ← p + v

    Args:
        lr: the learning rate.
        momentum: μ.

    Example:
        >>> import mnpar
        >>> mnpar.optimizers.MomentumSGD().momentum
        0.9
    """

    lr = hyperparameter("lr")
    momentum = hyperparameter("momentum")

    def __init__(self, lr: float = 0.01, momentum: float = 0.9) -> None:
        super().__init__()
        self.lr, self.momentum = lr, momentum

    def create_update_rule(self) -> UpdateRule:
        """The rule for one parameter."""
        return MomentumSGDRule(self.hyperparam)
