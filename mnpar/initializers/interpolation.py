"""Initializers with which a convolution resizes images by linear interpolation, each channel by
itself.
"""

from __future__ import annotations

import math
from functools import reduce

import numpy as np
from numpy.typing import DTypeLike

from mnpar.backend import Array
from mnpar.initializers.initializer import Initializer, put


def linear_filter(kernel: tuple[int, ...]) -> Array:
    """Return the product over the axes of 1 − |k − c| / f: a tent around the middle c = (K − 1) /
    2, of half the width f = ⌈K / 2⌉.
    """
    tents = [1 - abs(np.arange(k) - (k - 1) / 2) / ((k + 1) // 2) for k in kernel]
    tent: Array = reduce(np.multiply.outer, tents, np.ones(()))
    return tent


class _SamplingFilter(Initializer):
    def __init__(self, interpolation: str = "linear", dtype: DTypeLike | None = None) -> None:
        if interpolation != "linear":
            raise ValueError(
                f"{type(self).__name__} interpolates by 'linear', not by {interpolation!r}"
            )
        super().__init__(dtype)
        self.interpolation = interpolation

    def filter(self, kernel: tuple[int, ...]) -> Array:
        """Return the kernel of each channel, (K, …)."""
        return linear_filter(kernel)

    def __call__(self, array: Array) -> None:
        channels, others, *kernel = array.shape if array.ndim > 1 else (0, 0)
        if array.ndim < 3 or others not in (1, channels):
            raise ValueError(
                f"{type(self).__name__} fills weights of shape (C, C, K, …) or (C, 1, K, …), "
                "channel by channel, "
                f"not of shape {array.shape}"
            )
        values = np.zeros(array.shape)
        values[np.arange(channels), np.arange(channels) % max(others, 1)] = self.filter(
            tuple(kernel)
        )
        put(array, values)


class UpsamplingDeconvFilter(_SamplingFilter):
    """Weights by which a deconvolution of stride ⌈K / 2⌉ enlarges images, each channel by itself.

    The array is of shape (C, C, K, …), or (C, 1, K, …): all channels into one, or by ``groups=C``
    each into its own.

    Args:
        interpolation: ``'linear'``, the only one.
        dtype: of the parameter.

    Raises:
        ValueError: another interpolation, or an array of another shape.

    Example:
        >>> import mnpar
        >>> mnpar.Parameter(mnpar.initializers.UpsamplingDeconvFilter(), (1, 1, 4)).array
        array([[[0.25, 0.75, 0.75, 0.25]]], dtype=float32)

    Source:
        Long, Shelhamer and Darrell 2015, arXiv 1411.4038, section 3.3.
    """


class DownsamplingConvFilter(_SamplingFilter):
    """Weights by which a convolution of stride ⌈K / 2⌉ makes images smaller: weighted means, each
    channel by itself.

    The array is of shape (C, C, K, …), or (C, 1, K, …) for ``groups=C``.

    Args:
        interpolation: ``'linear'``, the only one.
        dtype: of the parameter.

    Raises:
        ValueError: another interpolation, or an array of another shape.

    Example:
        >>> import mnpar
        >>> mnpar.Parameter(mnpar.initializers.DownsamplingConvFilter(), (1, 1, 4)).array
        array([[[0.125, 0.375, 0.375, 0.125]]], dtype=float32)

    Source:
        Long, Shelhamer and Darrell 2015, arXiv 1411.4038, section 3.3.
    """

    def filter(self, kernel: tuple[int, ...]) -> Array:
        tent = linear_filter(kernel)
        tent /= tent.sum() if math.prod(kernel) else 1
        return tent
