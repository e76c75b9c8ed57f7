"""A link hook that gives each output's weights mean 0 and variance 1."""

from __future__ import annotations

from mnpar.functions import mean, rsqrt
from mnpar.link_hooks.substitution import WeightSubstitution
from mnpar.parameter import Parameter
from mnpar.variable import Variable


class WeightStandardization(WeightSubstitution):
    """Lets a link compute with (W - μ) / √(σ² + eps), with the mean and the variance of each
    output's weights. (Of a deconvolution too, where Chainer takes those of each input.) A weight
    divided among ranks is divided by outputs.

    To be added to a link (``link.add_hook(hook)``), one hook for each link.

    Args:
        eps: added to the variance.
        weight_name: of the parameter.
        name: of the hook; None: ``'WeightStandardization'``.

    Raises:
        ValueError: on being added: the link has no such parameter; when called: each rank has some
            of an output's weights only.

    Example:
        >>> import numpy as np, mnpar, mnpar.links as L
        >>> layer = L.Linear(2, 1, initialW=np.array([[3.0, 1.0]])).add_hook(
        ...     mnpar.link_hooks.WeightStandardization()
        ... )
        >>> layer(np.array([[1.0, 0.0]])).array.round(3)
        array([[1.]])

    Source:
        Qiao et al., "Weight standardization", arXiv 1903.10520.
    """

    name = "WeightStandardization"

    def __init__(
        self, eps: float = 1e-5, *, weight_name: str = "W", name: str | None = None
    ) -> None:
        super().__init__(weight_name, name)
        self.eps = eps

    def check(self, W: Parameter) -> None:
        W.check_whole(self.name, "use a layer that is divided by outputs", but=self.axis)

    def of(self, link: object, W: Variable) -> Variable:
        axes = tuple([axis for axis in range(W.ndim) if axis != self.axis])
        d = W - mean(W, axis=axes, keepdims=True)
        y: Variable = d * rsqrt(mean(d * d, axis=axes, keepdims=True) + self.eps)
        return y
