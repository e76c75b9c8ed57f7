"""Initializers that draw uniformly from [−s, s]; s is √3 times the σ of the normal initializer of
the same name.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import DTypeLike

from mnpar.backend import Array
from mnpar.initializers.initializer import RandomInitializer, choose_fan, get_fans, put


class Uniform(RandomInitializer):
    """Independent and uniform in [−scale, scale].

    Args:
        scale: the bound.
        dtype: of the parameter.
        rng: a numpy Generator (or RandomState) to draw from; None is the rank's.

    Example:
        >>> import mnpar
        >>> W = mnpar.Parameter(mnpar.initializers.Uniform(0.1), (200, 100))
        >>> bool(abs(W.array).max() <= 0.1)
        True
    """

    def __init__(
        self,
        scale: float = 0.05,
        dtype: DTypeLike | None = None,
        rng: np.random.Generator | None = None,
    ) -> None:
        super().__init__(scale, dtype, rng)

    def bound(self, shape: tuple[int, ...]) -> float:
        """s for an array of this shape."""
        return self.scale

    def __call__(self, array: Array) -> None:
        s = self.bound(array.shape)
        put(array, self.generator.uniform(-s, s, array.shape))


class LeCunUniform(Uniform):
    """s = scale · √(3 / fan_in): LeCun et al., Efficient BackProp (1998).

    Example:
        >>> import mnpar
        >>> mnpar.initializers.LeCunUniform().bound((5, 12))
        0.5
    """

    def __init__(
        self,
        scale: float = 1.0,
        dtype: DTypeLike | None = None,
        rng: np.random.Generator | None = None,
    ) -> None:
        super().__init__(scale, dtype, rng)

    def bound(self, shape: tuple[int, ...]) -> float:
        return self.scale * math.sqrt(3 / get_fans(shape)[0])


class GlorotUniform(Uniform):
    """s = scale · √(6 / (fan_in + fan_out)): Glorot and Bengio, AISTATS 2010.

    Example:
        >>> import mnpar
        >>> mnpar.initializers.GlorotUniform().bound((12, 12))
        0.5
    """

    def __init__(
        self,
        scale: float = 1.0,
        dtype: DTypeLike | None = None,
        rng: np.random.Generator | None = None,
    ) -> None:
        super().__init__(scale, dtype, rng)

    def bound(self, shape: tuple[int, ...]) -> float:
        return self.scale * math.sqrt(6 / sum(get_fans(shape)))


class HeUniform(Uniform):
    """s = scale · √(6 / fan): He et al., arXiv:1502.01852, for layers with relu.

    Args:
        scale, dtype, rng: as in :class:`Uniform`.
        fan_option: ``'fan_in'`` keeps the variance of activations, ``'fan_out'`` that of gradients.

    Example:
        >>> import mnpar
        >>> mnpar.initializers.HeUniform().bound((5, 24))
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

    def bound(self, shape: tuple[int, ...]) -> float:
        return self.scale * math.sqrt(6 / choose_fan(shape, self.fan_option))
