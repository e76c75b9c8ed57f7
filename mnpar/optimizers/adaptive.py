"""Optimizers that divide by (running means of) squared gradients: AdaGrad, AdaDelta, RMSprop and
variants, SMORMS3.
"""

from __future__ import annotations

from mnpar.kernels import updates
from mnpar.optimizers.gradient_method import GradientMethod
from mnpar.optimizers.hyperparameter import FRACTION, NONNEGATIVE, hyper
from mnpar.optimizers.update_rule import UpdateRule
from mnpar.parameter import Parameter


def _in_and_outside(eps: float, inside: bool) -> tuple[float, float]:
    """ε inside the root, and outside."""
    return (eps, 0.0) if inside else (0.0, eps)


class AdaGradRule(UpdateRule):
    """h ← h + g²,  p ← p − lr · g / (√h + ε)"""

    elementwise = True
    states = ("h",)  # the sum of squares

    def update_core(self, param: Parameter) -> None:
        get = self.hyperparam.get
        eps = _in_and_outside(get("eps"), get("eps_inside_sqrt"))
        updates.adagrad(param.array, param.grad, self.state["h"], get("lr"), *eps)


class AdaGrad(GradientMethod):
    """h ← h + g²,  p ← p − lr · g / (√h + ε) (Duchi, Hazan and Singer 2011, JMLR 12).

    Args:
        lr: the learning rate.
        eps: ε.
        eps_inside_sqrt: divide by √(h + ε) instead.

    Example:
        >>> import mnpar
        >>> mnpar.optimizers.AdaGrad().lr
        0.001
    """

    rule = AdaGradRule
    lr: float = hyper(default=0.001, within=NONNEGATIVE)
    eps: float = hyper(default=1e-8, within=NONNEGATIVE)
    eps_inside_sqrt: bool = hyper(default=False)


class AdaDeltaRule(UpdateRule):
    """s ← ρ s + (1−ρ) g²,  d = √((x + ε) / (s + ε)) g,  x ← ρ x + (1−ρ) d²,  p ← p − d"""

    elementwise = True
    states = ("msg", "msdx")  # running means of the squares of gradients and steps

    def update_core(self, param: Parameter) -> None:
        rho = self.hyperparam.get("rho")
        states = self.state["msg"], self.state["msdx"]
        eps = self.hyperparam.get("eps")
        updates.adadelta(param.array, param.grad, *states, rho, 1 - rho, eps)


class AdaDelta(GradientMethod):
    """Steps in the parameter's own units, without a learning rate (Zeiler 2012, arXiv 1212.5701).

    Args:
        rho: ρ, how much of the running means is kept.
        eps: ε.

    Example:
        >>> import mnpar
        >>> mnpar.optimizers.AdaDelta().rho
        0.95
    """

    rule = AdaDeltaRule
    rho: float = hyper(default=0.95, within=FRACTION)
    eps: float = hyper(default=1e-6, within=NONNEGATIVE)


class RMSpropRule(UpdateRule):
    """s ← α s + (1−α) g²,  p ← p − lr · g / (√s + ε), or with ε inside the root"""

    elementwise = True
    states = ("ms",)  # the running mean of squares

    def update_core(self, param: Parameter) -> None:
        get = self.hyperparam.get
        alpha = get("alpha")
        eps = _in_and_outside(get("eps"), get("eps_inside_sqrt"))
        numbers = get("lr"), alpha, 1 - alpha
        updates.rmsprop(param.array, param.grad, self.state["ms"], *numbers, *eps)


class RMSprop(GradientMethod):
    """s ← α s + (1−α) g²,  p ← p − lr · g / (√s + ε) (Tieleman and Hinton 2012).

    Args:
        lr: the learning rate.
        alpha: α, how much of the running mean is kept.
        eps: ε.
        eps_inside_sqrt: divide by √(s + ε) instead.

    Example:
        >>> import mnpar
        >>> mnpar.optimizers.RMSprop().alpha
        0.99
    """

    rule = RMSpropRule
    lr: float = hyper(default=0.01, within=NONNEGATIVE)
    alpha: float = hyper(default=0.99, within=FRACTION)
    eps: float = hyper(default=1e-8, within=NONNEGATIVE)
    eps_inside_sqrt: bool = hyper(default=False)


class RMSpropGravesRule(UpdateRule):
    """n ← α n + (1−α) g²,  m ← α m + (1−α) g,  d ← μ d − lr · g / √(n − m² + ε),  p ← p + d"""

    elementwise = True
    states = ("n", "g", "delta")  # running means of squares and gradients, and the step

    def update_core(self, param: Parameter) -> None:
        get = self.hyperparam.get
        states = [self.state[name] for name in self.states]
        alpha = get("alpha")
        numbers = get("lr"), alpha, 1 - alpha, get("momentum"), get("eps")
        updates.rmsprop_graves(param.array, param.grad, *states, *numbers)


class RMSpropGraves(GradientMethod):
    """RMSprop by the variance of the gradient, with momentum (Graves 2013, arXiv 1308.0850, eq.
    38-45).

    Args:
        lr: the learning rate.
        alpha: α, how much of the running means is kept.
        momentum: μ.
        eps: ε.

    Example:
        >>> import mnpar
        >>> mnpar.optimizers.RMSpropGraves().alpha
        0.95
    """

    rule = RMSpropGravesRule
    lr: float = hyper(default=1e-4, within=NONNEGATIVE)
    alpha: float = hyper(default=0.95, within=FRACTION)
    momentum: float = hyper(default=0.9, within=FRACTION)
    eps: float = hyper(default=1e-4, within=NONNEGATIVE)


class SMORMS3Rule(UpdateRule):
    """r = 1 / (k + 1),  m ← (1−r) m + r g,  v ← (1−r) v + r g²,  x = m² / (v + ε),
    p ← p − g · min(lr, x) / (√v + ε),  k ← 1 + k (1 − x)"""

    elementwise = True
    states = ("mem", "g", "g2")  # the memory, and both running means

    def init_state(self, param: Parameter) -> None:
        """Make the memory, 1 at first."""
        super().init_state(param)
        self.state["mem"] += 1

    def update_core(self, param: Parameter) -> None:
        get = self.hyperparam.get
        states = [self.state[name] for name in self.states]
        updates.smorms3(param.array, param.grad, *states, get("lr"), get("eps"))


class SMORMS3(GradientMethod):
    """Squared mean over root mean squared, cubed (Funk 2015): a memory as long as the gradient is
    noisy.

    Args:
        lr: the largest step.
        eps: ε.

    Example:
        >>> import mnpar
        >>> mnpar.optimizers.SMORMS3().lr
        0.001
    """

    rule = SMORMS3Rule
    lr: float = hyper(default=0.001, within=NONNEGATIVE)
    eps: float = hyper(default=1e-16, within=NONNEGATIVE)
