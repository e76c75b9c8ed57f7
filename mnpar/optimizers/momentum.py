"""Two variants of SGD with momentum: corrected momentum, and Nesterov's accelerated gradient."""

from __future__ import annotations

from mnpar.optimizers.blocks import blocks
from mnpar.optimizers.gradient_method import GradientMethod, hyperparameter
from mnpar.optimizers.update_rule import UpdateRule, zeros_like
from mnpar.parameter import Parameter


class CorrectedMomentumSGDRule(UpdateRule):
    """v ← μ v − g,  p ← p + lr · v"""

    elementwise = True

    def init_state(self, param: Parameter) -> None:
        """The velocity, 0 at first."""
        self.state["v"] = zeros_like(param)

    def update_core(self, param: Parameter) -> None:
        lr, momentum = self.hyperparam.get("lr"), self.hyperparam.get("momentum")
        for p, g, v in blocks(param, self.state["v"]):
            v *= momentum
            v -= g
            p += lr * v


class CorrectedMomentumSGD(GradientMethod):
    """v ← μ v − g,  p ← p + lr · v: a change of the learning rate applies to the accumulated velocity, too.

    Args:
        lr: the learning rate.
        momentum: μ.

    Example:
        >>> import mnpar
        >>> mnpar.optimizers.CorrectedMomentumSGD().momentum
        0.9
    """

    lr = hyperparameter("lr")
    momentum = hyperparameter("momentum")

    def __init__(self, lr: float = 0.01, momentum: float = 0.9) -> None:
        super().__init__()
        self.lr, self.momentum = lr, momentum

    def create_update_rule(self) -> UpdateRule:
        """The rule for one parameter."""
        return CorrectedMomentumSGDRule(self.hyperparam)


class NesterovAGRule(UpdateRule):
    """v ← μ v − lr · g,  p ← p + μ v − lr · g"""

    elementwise = True

    def init_state(self, param: Parameter) -> None:
        """The velocity, 0 at first."""
        self.state["v"] = zeros_like(param)

    def update_core(self, param: Parameter) -> None:
        lr, momentum = self.hyperparam.get("lr"), self.hyperparam.get("momentum")
        for p, g, v in blocks(param, self.state["v"]):
            step = lr * g
            v *= momentum
            v -= step
            p += momentum * v - step


class NesterovAG(GradientMethod):
    """v ← μ v − lr · g,  p ← p + μ v − lr · g (Nesterov 1983, in the form of Bengio et al. 2013, arXiv 1212.0901).

    This is the papers' rule, p ← p + μ² v − (1 + μ) lr · g with the v of before the step, and PyTorch's. Chainer 7 takes the v
    of after the step in that formula, so its results differ.

    Args:
        lr: the learning rate.
        momentum: μ.

    Example:
        >>> import mnpar
        >>> mnpar.optimizers.NesterovAG().lr
        0.01
    """

    lr = hyperparameter("lr")
    momentum = hyperparameter("momentum")

    def __init__(self, lr: float = 0.01, momentum: float = 0.9) -> None:
        super().__init__()
        self.lr, self.momentum = lr, momentum

    def create_update_rule(self) -> UpdateRule:
        """The rule for one parameter."""
        return NesterovAGRule(self.hyperparam)
