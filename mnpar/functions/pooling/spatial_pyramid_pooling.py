"""Spatial pyramid pooling: poolings over smaller and smaller parts of an image, joined to a vector
of fixed size.
"""

from __future__ import annotations

import math

from mnpar.backend import Array
from mnpar.functions.array.joining import concat
from mnpar.functions.array.shape import reshape
from mnpar.functions.pooling.pooling import max_pooling_2d
from mnpar.variable import Variable, as_variable


def spatial_pyramid_pooling_2d(
    x: Variable | Array, pyramid_height: int, pooling: str = "max"
) -> Variable:
    """Maxima over the whole image, over 2 x 2 parts of it, 4 x 4 parts …: a vector whose size
    depends on C only.

    Args:
        x: ``(N, C, H, W)``.
        pyramid_height: how many times; the last time there are 2^(pyramid_height - 1) parts along
            each axis.
        pooling: ``'max'``.

    Returns:
        ``(N, C (1 + 4 + 16 + …), 1, 1)``.

    Raises:
        ValueError: another pooling.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.spatial_pyramid_pooling_2d(np.arange(16.0).reshape(1, 1, 4, 4), 2).array.ravel()
        array([15.,  5.,  7., 13., 15.])

    Source:
        He et al., "Spatial pyramid pooling in deep convolutional networks for visual recognition",
        arXiv 1406.4729.
    """
    if pooling != "max":
        raise ValueError(f"spatial_pyramid_pooling_2d: pooling is 'max', not {pooling!r}")
    x, ys = as_variable(x), []
    for level in range(pyramid_height):
        parts = 2**level
        ksize = [-(-size // parts) for size in x.shape[2:]]
        pad = [(k * parts - size) // 2 for k, size in zip(ksize, x.shape[2:], strict=True)]
        y = max_pooling_2d(x, tuple(ksize), tuple(ksize), tuple(pad), cover_all=True)
        ys.append(reshape(y, (y.shape[0], math.prod(y.shape[1:]), 1, 1)))
    return concat(ys)
