"""Two more ways of having momentum."""

from __future__ import annotations

from mnpar.optimizers.optimizer import GradientMethod, hyperparameter
from mnpar.optimizers.update_rule import UpdateRule, widened, zeros_like
from mnpar.parameter import Parameter


class CorrectedMomentumSGDRule(UpdateRule):
    """v ← μ v − g,  p ← p + lr · v"""

    def init_state(self, param: Parameter) -> None:
        """The velocity, 0 at first."""
        self.state["v"] = zeros_like(param)

    def update_core(self, param: Parameter) -> None:
        v = self.state["v"]
        v *= self.hyperparam.get("momentum")
        v -= param.grad
        param.array += self.hyperparam.get("lr") * v


class CorrectedMomentumSGD(GradientMethod):
    """v ← μ v − g,  p ← p + lr · v: a change of the learning rate acts at once.

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

    def init_state(self, param: Parameter) -> None:
        """The velocity, 0 at first."""
        self.state["v"] = zeros_like(param)

    def update_core(self, param: Parameter) -> None:
        v, momentum = self.state["v"], self.hyperparam.get("momentum")
        step = widened(param) * self.hyperparam.get("lr")
        v *= momentum
        v -= step
        step -= momentum * v
        param.array -= step


class NesterovAG(GradientMethod):
    """v ← μ v − lr · g,  p ← p + μ v − lr · g (Nesterov 1983, in the form of Bengio et al. 2013, arXiv 1212.0901).

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
