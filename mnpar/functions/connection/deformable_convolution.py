"""Deformable convolution: the cells of each window are sampled at computed offsets, by
interpolation.
"""

from __future__ import annotations

import numpy as np

from mnpar.backend import Array
from mnpar.functions.array.joining import concat
from mnpar.functions.array.pad import pad as padded
from mnpar.functions.array.shape import reshape
from mnpar.functions.array.spatial_transformer import spatial_transformer_sampler
from mnpar.functions.math.matmul import matmul
from mnpar.kernels.windows import PerAxis, Windows, numbers_per_axis
from mnpar.variable import Variable, as_variable


def deformable_convolution_2d_sampler(
    x: Variable | Array,
    offset: Variable | Array,
    W: Variable | Array,
    b: Variable | Array | None = None,
    stride: PerAxis = 1,
    pad: PerAxis = 0,
) -> Variable:
    """:func:`convolution_2d` in which each cell of each window is sampled at an offset, by bilinear
    interpolation.

    Args:
        x: ``(N, C, H, W)``.
        offset: ``(N, 2 kH kW, oH, oW)``, in cells: first the kH kW moves along the width, then
            those along the height.
        W: ``(K, C, kH, kW)``.
        b: ``(K,)``, or None.
        stride, pad: as in :func:`convolution_2d`.

    Returns:
        ``(N, K, oH, oW)``.

    Raises:
        ValueError: the shapes do not belong together.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> x, W, right = (
        ...     np.arange(4.0).reshape(1, 1, 1, 4),
        ...     np.ones((1, 1, 1, 1)),
        ...     np.zeros((1, 2, 1, 4)),
        ... )
        >>> right[:, 0] = 0.5
        >>> F.deformable_convolution_2d_sampler(x, right, W).array
        array([[[[0.5, 1.5, 2.5, 1.5]]]])

    Source:
        Dai et al., "Deformable convolutional networks", arXiv 1703.06211.
    """
    x = as_variable(x)
    offset = as_variable(offset)
    W = as_variable(W)
    who = "deformable_convolution_2d_sampler"
    if x.ndim != 4 or W.ndim != 4 or x.shape[1] != W.shape[1]:
        raise ValueError(f"{who}: x (N, C, H, W) and W (K, C, kH, kW), not {x.shape} and {W.shape}")
    windows = Windows.over(who, x.shape[2:], W.shape[2:], stride, pad)
    (N, C), (K, _, *kernel), out = x.shape[:2], W.shape, windows.out
    cells = kernel[0] * kernel[1]
    if offset.shape != (N, 2 * cells, *out):
        raise ValueError(
            f"{who}: offset of shape {offset.shape} must have shape {(N, 2 * cells, *out)}"
        )
    margins = [(p, p) for p in numbers_per_axis(f"{who}: pad", pad, 2, 0)]
    seen = spatial_transformer_sampler(
        padded(x, [(0, 0), (0, 0), *margins]), _places(offset, windows)
    )
    y = matmul(reshape(W, (K, C * cells)), reshape(seen, (N, C * cells, out[0] * out[1])))
    y = reshape(y, (N, K, *out))
    return y if b is None else y + reshape(as_variable(b), (1, K, 1, 1))


def _places(offset: Variable, windows: Windows) -> Variable:
    """Return where the cells of the windows lie: (N, 2, kH kW, oH oW), −1 to 1 from the first to
    the last cell of the padded image.
    """
    N, cells, (oH, oW), (kH, kW) = offset.shape[0], offset.shape[1] // 2, windows.out, windows.K
    rows, columns, i, j = np.ogrid[:kH, :kW, :oH, :oW]
    even = (
        i * windows.stride[0] + rows + 0 * (columns + j),
        j * windows.stride[1] + columns + 0 * (rows + i),
    )
    parts = []
    for axis, half in ((1, offset[:, :cells]), (0, offset[:, cells:])):
        size = windows.size[axis] + 2 * windows.pad[axis]
        place = half + offset.xp.asarray(even[axis].reshape(1, cells, oH, oW), offset.dtype)
        parts.append(reshape(place * (2 / max(size - 1, 1)) - 1, (N, 1, cells, oH * oW)))
    return concat(parts, axis=1)
