"""Stochastic gradient descent, plain and with momentum."""

from __future__ import annotations

from mnpar.kernels import updates
from mnpar.optimizers.gradient_method import GradientMethod
from mnpar.optimizers.hyperparameter import FRACTION, NONNEGATIVE, hyper
from mnpar.optimizers.update_rule import UpdateRule
from mnpar.parameter import Parameter


class SGDRule(UpdateRule):
    """p ← p − lr · g"""

    elementwise = True

    def update_core(self, param: Parameter) -> None:
        updates.sgd(param.array, param.grad, self.hyperparam.get("lr"))


class SGD(GradientMethod):
    """p ← p − lr · g

    Args:
        lr: the learning rate.

    Example:
        >>> import mnpar
        >>> mnpar.optimizers.SGD(lr=0.5).lr
        0.5
    """

    rule = SGDRule
    lr: float = hyper(default=0.01, within=NONNEGATIVE)


class MomentumSGDRule(UpdateRule):
    """v ← μ v − lr · g,  p ← p + v"""

    elementwise = True
    states = ("v",)  # the velocity

    def update_core(self, param: Parameter) -> None:
        get = self.hyperparam.get
        updates.momentum_sgd(param.array, param.grad, self.state["v"], get("lr"), get("momentum"))


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

    rule = MomentumSGDRule
    lr: float = hyper(default=0.01, within=NONNEGATIVE)
    momentum: float = hyper(default=0.9, within=FRACTION)
