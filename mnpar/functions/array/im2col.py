"""``im2col``, the cells of each window of an image as channels, and its transpose."""

from __future__ import annotations

import math

from mnpar.backend import Array
from mnpar.function_node import InputGradients
from mnpar.functions.node import GenericFunction
from mnpar.kernels.dtypes import upcast_halves
from mnpar.kernels.windows import PerAxis, Windows, numbers_per_axis
from mnpar.variable import Variable, as_variable


class Im2Col(GenericFunction):
    """The cells that each window sees, as channels."""

    def __init__(self, windows: Windows) -> None:
        self.windows = windows

    def forward(self, x: Array) -> Array:
        n = len(self.windows.K)
        columns = self.windows.columns(self.windows.pad_image(x))  # (C, *K, N, *out)
        rows = x.shape[1] * math.prod(self.windows.K)
        return columns.transpose((n + 1, *range(n + 1), *range(n + 2, 2 * n + 2))).reshape(
            x.shape[0], rows, *self.windows.out
        )

    def backward(self, gy: Variable | Array) -> InputGradients:
        return lambda: Col2Im(self.windows)(gy)


class Col2Im(GenericFunction):
    """Channels added back to where the windows saw them: the transpose of Im2Col."""

    def __init__(self, windows: Windows) -> None:
        self.windows = windows

    def forward(self, y: Array) -> Array:
        K = self.windows.K
        channels = y[:, : y.shape[1] // math.prod(K)]
        x = self.windows.zeros(channels, upcast_halves(y[:0]).dtype)
        columns = y.reshape(*x.shape[:2], *K, *self.windows.out)  # (N, C, *K, *out)
        for offset, where in self.windows.offsets():
            x[(..., *where)] += columns[(slice(None), slice(None), *offset)]
        return x[(..., *self.windows.inside)].astype(y.dtype, copy=False)

    def backward(self, gx: Variable | Array) -> InputGradients:
        return lambda: Im2Col(self.windows)(gx)


def im2col(
    x: Variable | Array,
    ksize: PerAxis,
    stride: PerAxis = 1,
    pad: PerAxis = 0,
    cover_all: bool = False,
    dilate: PerAxis = 1,
) -> Variable:
    """Return the cells that each window of an image sees, as channels.

    Args:
        x: ``(N, C, H, W)`` (or with any other spatial axes).
        ksize, stride, pad, cover_all, dilate: of the windows.

    Returns:
        ``(N, C kH kW, oH, oW)``.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.im2col(np.arange(9.0).reshape(1, 1, 3, 3), 2).array[0, :, 0, 0]
        array([0., 1., 3., 4.])
    """
    x = as_variable(x)
    K = numbers_per_axis("im2col: ksize", ksize, x.ndim - 2, 1)
    return Im2Col(Windows.over("im2col", x.shape[2:], K, stride, pad, dilate, cover_all)).apply(
        (x,)
    )[0]
