"""The base classes of initializers, which fill arrays, and the fans of a weight, by which most of
them scale.

Random values are drawn on the host, in float64, from the rank's generator (:mod:`mnpar.random`),
then cast and copied: a seed gives the same weights, up to rounding, in every dtype and on every
device.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from mnpar import backend, random
from mnpar.backend import Array
from mnpar.hints import KeywordHints

# an argument that becomes an initializer: a function that fills an array, or values (None: default)
InitialValue: TypeAlias = Callable[[Array], None] | Array | float | None


class Initializer(KeywordHints):
    """Fills arrays; a subclass defines ``__call__(self, array)``.

    Args:
        dtype: of the parameters it fills; None leaves the choice to ``mnpar.config.dtype``.

    Example:
        >>> import numpy as np, mnpar
        >>> class Ramp(mnpar.Initializer):
        ...     def __call__(self, array):
        ...         array[...] = np.linspace(0, 1, array.size).reshape(array.shape)
        >>> mnpar.Parameter(Ramp("d"), (3,)).array
        array([0. , 0.5, 1. ])
    """

    def __init__(self, dtype: DTypeLike | None = None) -> None:
        self.dtype = dtype

    def __call__(self, array: Array) -> None:
        """Fill ``array`` in place."""
        raise NotImplementedError(f"{type(self).__name__} does not define __call__(self, array)")

    def __repr__(self) -> str:
        values = ", ".join(
            f"{key}={value!r}" for key, value in vars(self).items() if value is not None
        )
        return f"{type(self).__name__}({values})"


class RandomInitializer(Initializer):
    """An initializer that draws random numbers, scaled by ``scale``, from ``rng`` or, if that is
    None, the rank's generator.
    """

    def __init__(
        self, scale: float, dtype: DTypeLike | None = None, rng: np.random.Generator | None = None
    ) -> None:
        super().__init__(dtype)
        self.scale = scale
        self.rng = rng

    @property
    def generator(self) -> Any:
        """The generator to draw from."""
        return random.generator() if self.rng is None else self.rng


def put(array: Array, values: Array) -> None:
    """Copy values of the host into ``array``, wherever that lies."""
    array[...] = backend.to_device_of(np.asarray(values, array.dtype), array)


def get_fans(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return how many inputs feed one output of a weight of this shape, and how many outputs one
    input feeds.

    Args:
        shape: (outputs, inputs, kernel height, …) of the weight.

    Returns:
        ``(fan_in, fan_out)``.

    Raises:
        ValueError: the shape has less than two axes.

    Example:
        >>> from mnpar.initializers import get_fans
        >>> get_fans((16, 3, 5, 5))
        (75, 400)
    """
    if not isinstance(shape, tuple) or len(shape) < 2:
        raise ValueError(
            f"a weight of shape {shape} has no fans, which take (outputs, inputs, …): "
            "use an initializer that does not scale by them (Normal, Uniform, Constant), or "
            "give it two axes"
        )
    kernel = math.prod(shape[2:])
    return shape[1] * kernel, shape[0] * kernel


def choose_fan(shape: tuple[int, ...], fan_option: str) -> int:
    """``fan_in`` or ``fan_out`` of the shape, as the option says."""
    fan_in, fan_out = get_fans(shape)
    if fan_option not in ("fan_in", "fan_out"):
        raise ValueError(f"fan_option is 'fan_in' or 'fan_out', not {fan_option!r}")
    return fan_in if fan_option == "fan_in" else fan_out
