"""Initializers that draw from N(0, σ²); most choose σ so that activations have the same variance in
all layers.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import DTypeLike

from mnpar.backend import Array
from mnpar.initializers.initializer import RandomInitializer, choose_fan, get_fans, put


class Normal(RandomInitializer):
    """Independent N(0, scale²).

    Args:
        scale: the standard deviation.
        dtype: of the parameter.
        rng: a numpy Generator (or RandomState) to draw from; None is the rank's.

    Example:
        >>> import numpy as np, mnpar
        >>> W = mnpar.Parameter(
        ...     mnpar.initializers.Normal(0.1, rng=np.random.default_rng(0)), (200, 100)
        ... )
        >>> round(float(W.array.std()), 2)
        0.1
    """

    def __init__(
        self,
        scale: float = 0.05,
        dtype: DTypeLike | None = None,
        rng: np.random.Generator | None = None,
    ) -> None:
        super().__init__(scale, dtype, rng)

    def deviation(self, shape: tuple[int, ...]) -> float:
        """σ for an array of this shape."""
        return self.scale

    def __call__(self, array: Array) -> None:
        put(array, self.generator.normal(0.0, self.deviation(array.shape), array.shape))


class LeCunNormal(Normal):
    """σ = scale · √(1 / fan_in): LeCun et al., Efficient BackProp (1998). The default of most
    links.

    Example:
        >>> import mnpar
        >>> mnpar.initializers.LeCunNormal().deviation((5, 4))
        0.5
    """

    def __init__(
        self,
        scale: float = 1.0,
        dtype: DTypeLike | None = None,
        rng: np.random.Generator | None = None,
    ) -> None:
        super().__init__(scale, dtype, rng)

    def deviation(self, shape: tuple[int, ...]) -> float:
        return self.scale * math.sqrt(1 / get_fans(shape)[0])


class GlorotNormal(Normal):
    """σ = scale · √(2 / (fan_in + fan_out)): Glorot and Bengio, AISTATS 2010.

    Example:
        >>> import mnpar
        >>> mnpar.initializers.GlorotNormal().deviation((4, 4))
        0.5
    """

    def __init__(
        self,
        scale: float = 1.0,
        dtype: DTypeLike | None = None,
        rng: np.random.Generator | None = None,
    ) -> None:
        super().__init__(scale, dtype, rng)

    def deviation(self, shape: tuple[int, ...]) -> float:
        return self.scale * math.sqrt(2 / sum(get_fans(shape)))


class HeNormal(Normal):
    """σ = scale · √(2 / fan): He et al., arXiv:1502.01852, for layers with relu.

    Args:
        scale, dtype, rng: as in :class:`Normal`.
        fan_option: ``'fan_in'`` keeps the variance of activations, ``'fan_out'`` that of gradients.

    Example:
        >>> import mnpar
        >>> mnpar.initializers.HeNormal(fan_option="fan_out").deviation((8, 2))
        0.5
    """

    def __init__(
        self,
        scale: float = 1.0,
        dtype: DTypeLike | None = None,
        fan_option: str = "fan_in",
        rng: np.random.Generator | None = None,
    ) -> None:
        super().__init__(scale, dtype, rng)
        self.fan_option = fan_option

    def deviation(self, shape: tuple[int, ...]) -> float:
        return self.scale * math.sqrt(2 / choose_fan(shape, self.fan_option))
