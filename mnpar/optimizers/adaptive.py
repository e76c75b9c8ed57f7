"""Optimizers that divide by (running means of) squared gradients: AdaGrad, AdaDelta, RMSprop and
variants, SMORMS3.
"""

from __future__ import annotations

from mnpar import backend
from mnpar.optimizers.blocks import blend, blocks
from mnpar.optimizers.gradient_method import GradientMethod
from mnpar.optimizers.hyperparameter import FRACTION, NONNEGATIVE, hyper
from mnpar.optimizers.update_rule import UpdateRule
from mnpar.parameter import Parameter


class AdaGradRule(UpdateRule):
    """h ← h + g²,  p ← p − lr · g / (√h + ε)"""

    elementwise = True
    states = ("h",)  # the sum of squares

    def update_core(self, param: Parameter) -> None:
        lr = self.hyperparam.get("lr")
        eps = self.hyperparam.get("eps")
        xp = backend.get_array_module(param.array)
        inside = self.hyperparam.get("eps_inside_sqrt")
        for p, g, h in blocks(param, self.state["h"]):
            h += g * g
            p -= lr * g / (xp.sqrt(h + eps) if inside else xp.sqrt(h) + eps)


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
        eps = self.hyperparam.get("eps")
        xp = backend.get_array_module(param.array)
        for p, g, s, x in blocks(param, self.state["msg"], self.state["msdx"]):
            blend(s, rho, g * g)
            d = xp.sqrt((x + eps) / (s + eps)) * g
            blend(x, rho, d * d)
            p -= d


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
        xp = backend.get_array_module(param.array)
        lr = get("lr")
        alpha = get("alpha")
        eps = get("eps")
        inside = get("eps_inside_sqrt")
        for p, g, s in blocks(param, self.state["ms"]):
            blend(s, alpha, g * g)
            p -= lr * g / (xp.sqrt(s + eps) if inside else xp.sqrt(s) + eps)


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
        state = self.state
        xp = backend.get_array_module(param.array)
        lr = get("lr")
        alpha = get("alpha")
        momentum = get("momentum")
        eps = get("eps")
        for p, g, n, m, d in blocks(param, state["n"], state["g"], state["delta"]):
            blend(n, alpha, g * g)
            blend(m, alpha, g)
            d *= momentum
            d -= lr * g / xp.sqrt(n - m * m + eps)
            p += d


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
        lr = self.hyperparam.get("lr")
        eps = self.hyperparam.get("eps")
        xp = backend.get_array_module(param.array)
        for p, g, k, m, v in blocks(param, self.state["mem"], self.state["g"], self.state["g2"]):
            r = 1 / (k + 1)
            m += r * (g - m)
            v += r * (g * g - v)
            x = m * m / (v + eps)
            p -= g * xp.minimum(lr, x) / (xp.sqrt(v) + eps)
            k *= 1 - x
            k += 1


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
