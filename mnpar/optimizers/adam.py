"""Adam (Kingma and Ba 2015, arXiv 1412.6980), with decoupled weight decay (Loshchilov and Hutter
2019, arXiv 1711.05101).
"""

from __future__ import annotations

import math

from mnpar.kernels import updates
from mnpar.optimizers.gradient_method import GradientMethod
from mnpar.optimizers.hyperparameter import DECAY, NONNEGATIVE, Hyperparameter, hyper
from mnpar.optimizers.update_rule import UpdateRule, zeros_like
from mnpar.parameter import Parameter


class AdamRule(UpdateRule):
    """m ← m + (1−β₁)(g − m),  v ← v + (1−β₂)(g² − v),  p ← p − η (α_t m / (√v + ε) + λ p)

    With ``amsgrad`` the largest v so far in place of v; with ``adabound`` the rate α_t / (√v + ε)
    is kept between the bounds.
    """

    elementwise = True
    states = ("m", "v")  # both moments

    def __init__(self, parent_hyperparam: Hyperparameter | None = None) -> None:
        super().__init__(parent_hyperparam)
        self.initial_alpha = None if parent_hyperparam is None else self.hyperparam.get("alpha")

    def init_state(self, param: Parameter) -> None:
        """Make the moments, and for AMSGrad the largest v."""
        super().init_state(param)
        if self.hyperparam.get("amsgrad"):
            self.state["vhat"] = zeros_like(param)

    @property
    def alpha_t(self) -> float:
        """The step size with the moments' bias at update t taken out."""
        beta1 = self.hyperparam.get("beta1")
        beta2 = self.hyperparam.get("beta2")
        return float(
            self.hyperparam.get("alpha") * math.sqrt(1 - beta2**self.t) / (1 - beta1**self.t)
        )

    @property
    def bounds(self) -> tuple[float, float]:
        """AdaBound's bounds of the rate at update t: they close on ``final_lr``, which follows
        changes of α.
        """
        get = self.hyperparam.get
        final = get("final_lr") * get("alpha") / (self.initial_alpha or get("alpha"))
        gamma = get("gamma")
        return final * (1 - 1 / (gamma * self.t + 1)), final * (1 + 1 / (gamma * self.t))

    def update_core(self, param: Parameter) -> None:
        get = self.hyperparam.get
        eta = get("eta")
        low, high = self.bounds if get("adabound") else (-math.inf, math.inf)
        new = 1 - get("beta1"), 1 - get("beta2")
        numbers = eta * self.alpha_t, get("eps"), eta * get("weight_decay_rate")
        largest = [self.state["vhat"]] if get("amsgrad") else []
        states = self.state["m"], self.state["v"], *largest
        step = updates.amsgrad if largest else updates.adam
        bounds = eta * low, eta * high
        step(param.array, param.grad, *states, *new, *numbers, *bounds)


class Adam(GradientMethod):
    """Adam, with optional AMSGrad, AdaBound and decoupled weight decay; see the file for the
    sources.

    m ← m + (1−β₁)(g − m),  v ← v + (1−β₂)(g² − v),  p ← p − η (α_t m / (√v + ε) + λ p), where α_t
    is α with the bias corrections of both means.

    Args:
        alpha: α, the step size.
        beta1, beta2: β₁ and β₂, the decay rates of the running means of the gradient and of its
            square.
        eps: ε.
        eta: η, multiplies step and decay.
        weight_decay_rate: λ, of the decoupled weight decay.
        amsgrad: divide by the largest v so far.
        adabound: keep the rates between bounds that approach ``final_lr``, the faster the larger
            ``gamma`` is (Luo et al. 2019, arXiv 1902.09843).

    Example:
        >>> import mnpar
        >>> mnpar.optimizers.Adam().alpha
        0.001
    """

    rule = AdamRule
    alpha: float = hyper(default=0.001, within=NONNEGATIVE)
    beta1: float = hyper(default=0.9, within=DECAY)
    beta2: float = hyper(default=0.999, within=DECAY)
    eps: float = hyper(default=1e-8, within=NONNEGATIVE)
    eta: float = hyper(default=1.0, within=NONNEGATIVE)
    weight_decay_rate: float = hyper(default=0.0, within=NONNEGATIVE)
    amsgrad: bool = hyper(default=False)
    adabound: bool = hyper(default=False)
    final_lr: float = hyper(default=0.1, within=NONNEGATIVE)
    gamma: float = hyper(default=1e-3, within=NONNEGATIVE)

    @property
    def alpha_t(self) -> float:
        """The step size of the last update."""
        t = max(self.t, 1)
        return float(self.alpha * math.sqrt(1 - self.beta2**t) / (1 - self.beta1**t))

    @property
    def lr(self) -> float:
        """Chainer's other name of :attr:`alpha_t`, which is computed: the learning rate that is set
        is ``alpha``.
        """
        return self.alpha_t

    @lr.setter
    def lr(self, value: float) -> None:
        raise AttributeError(
            f"the lr of {type(self).__name__} is computed, from alpha and the number of "
            "updates: set alpha"
        )


class AdamW(Adam):
    """Adam with decoupled weight decay: :class:`Adam` with ``weight_decay_rate`` (Loshchilov and
    Hutter 2019).

    Args:
        alpha, beta1, beta2, eps, eta, weight_decay_rate: as :class:`Adam` takes them.

    Example:
        >>> import mnpar
        >>> mnpar.optimizers.AdamW(weight_decay_rate=0.01).weight_decay_rate
        0.01
    """

    def __init__(
        self,
        alpha: float = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        eta: float = 1.0,
        weight_decay_rate: float = 0.0,
    ) -> None:
        super().__init__(alpha, beta1, beta2, eps, eta, weight_decay_rate)


class AMSGrad(Adam):
    """Adam that divides by the largest v so far (Reddi, Kale and Kumar 2018).

    Args:
        alpha, beta1, beta2, eps, eta: as :class:`Adam` takes them.

    Example:
        >>> import mnpar
        >>> mnpar.optimizers.AMSGrad().amsgrad
        True
    """

    def __init__(
        self,
        alpha: float = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        eta: float = 1.0,
    ) -> None:
        super().__init__(alpha, beta1, beta2, eps, eta, amsgrad=True)


class AdaBound(Adam):
    """Adam whose rates are kept between bounds that close, so that it ends as SGD (Luo et al. 2019,
    arXiv 1902.09843).

    Args:
        alpha, beta1, beta2, eps, eta: as :class:`Adam` takes them.
        final_lr: the learning rate at the end.
        gamma: how fast the bounds close.

    Example:
        >>> import mnpar
        >>> mnpar.optimizers.AdaBound().final_lr
        0.1
    """

    def __init__(
        self,
        alpha: float = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        final_lr: float = 0.1,
        gamma: float = 1e-3,
        eps: float = 1e-8,
        eta: float = 1.0,
    ) -> None:
        super().__init__(
            alpha, beta1, beta2, eps, eta, adabound=True, final_lr=final_lr, gamma=gamma
        )


class AMSBound(Adam):
    """:class:`AdaBound` that divides by the largest v so far.

    Args:
        alpha, beta1, beta2, final_lr, gamma, eps, eta: as :class:`AdaBound` takes them.

    Example:
        >>> import mnpar
        >>> mnpar.optimizers.AMSBound().amsgrad
        True
    """

    def __init__(
        self,
        alpha: float = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        final_lr: float = 0.1,
        gamma: float = 1e-3,
        eps: float = 1e-8,
        eta: float = 1.0,
    ) -> None:
        super().__init__(
            alpha,
            beta1,
            beta2,
            eps,
            eta,
            amsgrad=True,
            adabound=True,
            final_lr=final_lr,
            gamma=gamma,
        )
