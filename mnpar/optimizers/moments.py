"""Optimizers related to Adam: AdaMax, MSVAG, Novograd, LAMB."""

from __future__ import annotations

import math

from mnpar import backend
from mnpar.kernels import updates
from mnpar.kernels.blocks import blend, blocks, widened
from mnpar.optimizers.gradient_method import GradientMethod
from mnpar.optimizers.hyperparameter import DECAY, NONNEGATIVE, hyper
from mnpar.optimizers.update_rule import UpdateRule
from mnpar.parameter import Parameter


class AdaMaxRule(UpdateRule):
    """m ← β₁ m + (1−β₁) g,  u ← max(β₂ u, |g| + ε),  p ← p − α / (1 − β₁ᵗ) · m / u"""

    elementwise = True
    states = ("m", "u")  # the running mean and the running maximum

    def update_core(self, param: Parameter) -> None:
        get = self.hyperparam.get
        beta1 = get("beta1")
        rate = get("alpha") / (1 - beta1**self.t)
        states = self.state["m"], self.state["u"]
        numbers = beta1, 1 - beta1, get("beta2"), get("eps"), rate
        updates.adamax(param.array, param.grad, *states, *numbers)


class AdaMax(GradientMethod):
    """Adam with the largest gradient in place of the root of the mean square (Kingma and Ba 2015,
    section 7.1).

    Args:
        alpha: α, the step size.
        beta1, beta2: how much of the running values is kept at each step.
        eps: ε.

    Example:
        >>> import mnpar
        >>> mnpar.optimizers.AdaMax().alpha
        0.002
    """

    rule = AdaMaxRule
    alpha: float = hyper(default=0.002, within=NONNEGATIVE)
    beta1: float = hyper(default=0.9, within=DECAY)
    beta2: float = hyper(default=0.999, within=DECAY)
    eps: float = hyper(default=1e-8, within=NONNEGATIVE)


class MSVAGRule(UpdateRule):
    """m̂ and v̂: running means of g and g², their bias taken out;  ρ = (1−β)² (1−β²ᵗ) / ((1−βᵗ)²
    (1−β²)), at most 0.9999, s = (v̂ − m̂²) / (1 − ρ),  γ = m̂² / (m̂² + ρ s), in [0, 1],  p ← p − η
    (lr γ m̂ + λ p)
    """

    elementwise = True
    states = ("m", "v")  # both moments

    def update_core(self, param: Parameter) -> None:
        get = self.hyperparam.get
        beta = self.hyperparam.get("beta")
        fix = 1 - beta**self.t
        lr = get("eta") * get("lr")
        decay = get("eta") * get("weight_decay_rate")
        rho = min((1 - beta) ** 2 * (1 - beta ** (2 * self.t)) / (fix**2 * (1 - beta**2)), 0.9999)
        # one gradient has no variance: v̂ − m̂² is nothing but rounding errors
        odds = rho / (1 - rho) if self.t > 1 else 0.0
        states = self.state["m"], self.state["v"]
        numbers = beta, 1 - beta, fix, odds, lr, decay
        updates.msvag(param.array, param.grad, *states, *numbers)


class MSVAG(GradientMethod):
    """Momentum whose steps are short where the gradient is noisy (Balles and Hennig 2018, arXiv
    1705.07774).

    Args:
        lr: the learning rate.
        beta: β, how much of the running means is kept at each step.
        eta: η, multiplies step and decay.
        weight_decay_rate: λ, of the decoupled weight decay.

    Example:
        >>> import mnpar
        >>> mnpar.optimizers.MSVAG().lr
        0.1
    """

    rule = MSVAGRule
    lr: float = hyper(default=0.1, within=NONNEGATIVE)
    beta: float = hyper(default=0.9, within=DECAY)
    eta: float = hyper(default=1.0, within=NONNEGATIVE)
    weight_decay_rate: float = hyper(default=0.0, within=NONNEGATIVE)


class NovogradRule(UpdateRule):
    """v ← β₂ v + (1−β₂) ‖g‖² (at first ‖g‖²),  m ← β₁ m + g / (√v + ε) + λ p,  p ← p − lr · m"""

    states = ("m",)  # the running mean of steps
    scalars = ("v",)

    def init_state(self, param: Parameter) -> None:
        """Make the states; the square of the gradient's norm is one number."""
        super().init_state(param)
        self.state["v"] = backend.get_array_module(param.array).zeros((), "d")

    def update_core(self, param: Parameter) -> None:
        get = self.hyperparam.get
        v = self.state["v"]
        square = self.norms(param, widened(param.grad))[0] ** 2
        v[...] = square if self.t == 1 else get("beta2") * v + (1 - get("beta2")) * square
        lr = get("lr")
        beta1 = get("beta1")
        decay = get("weight_decay_rate")
        root = math.sqrt(float(v)) + get("eps")
        for p, g, m in blocks(param.array, param.grad, self.state["m"]):
            m *= beta1
            m += g / root
            if decay:
                m += decay * widened(p)
            p -= lr * m


class Novograd(GradientMethod):
    """Momentum over gradients that are normalized parameter by parameter (Ginsburg et al. 2019,
    arXiv 1905.11286).

    Args:
        lr: the learning rate.
        beta1, beta2: how much of the running values is kept at each step.
        eps: ε.
        weight_decay_rate: λ.

    Example:
        >>> import mnpar
        >>> mnpar.optimizers.Novograd().beta1
        0.95
    """

    rule = NovogradRule
    lr: float = hyper(default=0.01, within=NONNEGATIVE)
    beta1: float = hyper(default=0.95, within=DECAY)
    beta2: float = hyper(default=0.98, within=DECAY)
    eps: float = hyper(default=1e-8, within=NONNEGATIVE)
    weight_decay_rate: float = hyper(default=0.0, within=NONNEGATIVE)


class LAMBRule(UpdateRule):
    """m̂ and v̂ as Adam's without their bias,  r = m̂ / (√v̂ + ε) + λ p,  p ← p − α ‖p‖ / ‖r‖ ·
    r
    """

    states = ("m", "v")  # both moments

    def update_core(self, param: Parameter) -> None:
        get = self.hyperparam.get
        xp = backend.get_array_module(param.array)
        beta1 = get("beta1")
        beta2 = get("beta2")
        eps = get("eps")
        decay = get("weight_decay_rate")
        fix1 = 1 - beta1**self.t
        fix2 = 1 - beta2**self.t
        step = xp.empty_like(self.state["m"])
        for p, g, m, v, r in blocks(
            param.array, param.grad, self.state["m"], self.state["v"], step
        ):
            blend(m, beta1, g)
            blend(v, beta2, g * g)
            xp.divide(m, fix1 * (xp.sqrt(v / fix2) + eps), out=r)
            if decay:
                r += decay * widened(p)
        lengths = self.norms(param, widened(param.array), step)
        rate = get("alpha") * (lengths[0] / lengths[1] if all(lengths) else 1.0)
        for p, _, r in blocks(param.array, param.grad, step):
            p -= rate * r


class LAMB(GradientMethod):
    """Adam's step, scaled to the length α ‖p‖ for each parameter p (You et al. 2020, arXiv
    1904.00962).

    The norms of a parameter that is divided among ranks are those of the whole parameter
    (:meth:`mnpar.Parameter.sum_over_parts`).

    Args:
        alpha: α, the step size.
        beta1, beta2: how much of the running means is kept at each step.
        eps: ε.
        weight_decay_rate: λ.

    Example:
        >>> import mnpar
        >>> mnpar.optimizers.LAMB().eps
        1e-06
    """

    rule = LAMBRule
    alpha: float = hyper(default=0.001, within=NONNEGATIVE)
    beta1: float = hyper(default=0.9, within=DECAY)
    beta2: float = hyper(default=0.999, within=DECAY)
    eps: float = hyper(default=1e-6, within=NONNEGATIVE)
    weight_decay_rate: float = hyper(default=0.0, within=NONNEGATIVE)
