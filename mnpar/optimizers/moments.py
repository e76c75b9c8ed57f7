"""Adam's relatives: by the largest gradient, by the norm of each layer's gradient, by the ratio of norms."""

from __future__ import annotations

import math

from mnpar import backend
from mnpar.backend import Array
from mnpar.optimizers.adaptive import blend
from mnpar.optimizers.optimizer import GradientMethod, hyperparameter
from mnpar.optimizers.update_rule import UpdateRule, widened, zeros_like
from mnpar.parameter import Parameter


class AdaMaxRule(UpdateRule):
    """m ← β₁ m + (1−β₁) g,  u ← max(β₂ u, |g| + ε),  p ← p − α / (1 − β₁ᵗ) · m / u"""

    def init_state(self, param: Parameter) -> None:
        """The running mean and the running maximum, 0 at first."""
        self.state["m"], self.state["u"] = zeros_like(param), zeros_like(param)

    def update_core(self, param: Parameter) -> None:
        get, m, u, g = self.hyperparam.get, self.state["m"], self.state["u"], widened(param)
        blend(m, get("beta1"), g)
        u *= get("beta2")
        backend.get_array_module(u).maximum(u, abs(g) + get("eps"), out=u)
        param.array -= get("alpha") / (1 - get("beta1") ** self.t) * m / u


class AdaMax(GradientMethod):
    """Adam with the largest gradient in place of the root of the mean square (Kingma and Ba 2015, section 7.1).

    Args:
        alpha: α, the step size.
        beta1, beta2: how much of the running values is kept at each step.
        eps: ε.

    Example:
        >>> import mnpar
        >>> mnpar.optimizers.AdaMax().alpha
        0.002
    """

    alpha = hyperparameter("alpha")
    beta1 = hyperparameter("beta1")
    beta2 = hyperparameter("beta2")
    eps = hyperparameter("eps")

    def __init__(self, alpha: float = 0.002, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8) -> None:
        super().__init__()
        self.alpha, self.beta1, self.beta2, self.eps = alpha, beta1, beta2, eps

    def create_update_rule(self) -> UpdateRule:
        """The rule for one parameter."""
        return AdaMaxRule(self.hyperparam)


def _norm(x: Array) -> float:
    flat = x.ravel()
    return math.sqrt(float(flat.dot(flat)))


class NovogradRule(UpdateRule):
    """v ← β₂ v + (1−β₂) ‖g‖² (at first ‖g‖²),  m ← β₁ m + g / (√v + ε) + λ p,  p ← p − lr · m"""

    def init_state(self, param: Parameter) -> None:
        """The running mean of steps, and the square of the gradient's norm, 0 at first."""
        self.state["m"] = zeros_like(param)
        self.state["v"] = backend.get_array_module(param.array).zeros((), "d")

    def update_core(self, param: Parameter) -> None:
        get, m, v, g = self.hyperparam.get, self.state["m"], self.state["v"], widened(param)
        square = _norm(g) ** 2
        v[...] = square if self.t == 1 else get("beta2") * v + (1 - get("beta2")) * square
        m *= get("beta1")
        m += g / (math.sqrt(float(v)) + get("eps"))
        if get("weight_decay_rate"):
            m += get("weight_decay_rate") * param.array
        param.array -= get("lr") * m


class Novograd(GradientMethod):
    """Momentum over gradients that are normalized parameter by parameter (Ginsburg et al. 2019, arXiv 1905.11286).

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

    lr = hyperparameter("lr")
    beta1 = hyperparameter("beta1")
    beta2 = hyperparameter("beta2")
    eps = hyperparameter("eps")
    weight_decay_rate = hyperparameter("weight_decay_rate")

    def __init__(
        self, lr: float = 0.01, beta1: float = 0.95, beta2: float = 0.98, eps: float = 1e-8, weight_decay_rate: float = 0.0
    ) -> None:  # fmt: skip
        super().__init__()
        self.lr, self.beta1, self.beta2, self.eps, self.weight_decay_rate = lr, beta1, beta2, eps, weight_decay_rate

    def create_update_rule(self) -> UpdateRule:
        """The rule for one parameter."""
        return NovogradRule(self.hyperparam)


class LAMBRule(UpdateRule):
    """m̂ and v̂ as Adam's without their bias,  r = m̂ / (√v̂ + ε) + λ p,  p ← p − α ‖p‖ / ‖r‖ · r"""

    def init_state(self, param: Parameter) -> None:
        """Both moments, 0 at first."""
        self.state["m"], self.state["v"] = zeros_like(param), zeros_like(param)

    def update_core(self, param: Parameter) -> None:
        get, m, v, g = self.hyperparam.get, self.state["m"], self.state["v"], widened(param)
        beta1, beta2, xp = get("beta1"), get("beta2"), backend.get_array_module(param.array)
        blend(m, beta1, g)
        blend(v, beta2, g * g)
        r = m / (1 - beta1**self.t) / (xp.sqrt(v / (1 - beta2**self.t)) + get("eps"))
        if get("weight_decay_rate"):
            r += get("weight_decay_rate") * param.array
        length, step = _norm(param.array.astype(r.dtype, copy=False)), _norm(r)
        param.array -= get("alpha") * (length / step if length and step else 1.0) * r


class LAMB(GradientMethod):
    """Adam's step, as long in proportion to each parameter as α says (You et al. 2020, arXiv 1904.00962).

    The norms are those of the parameter on this rank: of one that is cut over ranks, each rank takes its own part's.

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

    alpha = hyperparameter("alpha")
    beta1 = hyperparameter("beta1")
    beta2 = hyperparameter("beta2")
    eps = hyperparameter("eps")
    weight_decay_rate = hyperparameter("weight_decay_rate")

    def __init__(
        self, alpha: float = 0.001, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-6, weight_decay_rate: float = 0.0
    ) -> None:  # fmt: skip
        super().__init__()
        self.alpha, self.beta1, self.beta2, self.eps, self.weight_decay_rate = alpha, beta1, beta2, eps, weight_decay_rate

    def create_update_rule(self) -> UpdateRule:
        """The rule for one parameter."""
        return LAMBRule(self.hyperparam)
