"""Resizing of images: each axis is a product with a matrix of interpolation weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from mnpar.functions.products import matmul
from mnpar.functions.shape import swapaxes
from mnpar.variable import Variable, as_variable

MODES = ("bilinear", "nearest")


def resize_images(x: Any, output_shape: Any, mode: str = "bilinear", align_corners: bool = True) -> Variable:
    """Stretch or shrink images by interpolation.

    Args:
        x: ``(N, C, H, W)``.
        output_shape: ``(oH, oW)``.
        mode: ``'bilinear'``, or ``'nearest'``: cell ⌊i H / oH⌋.
        align_corners: the centres of the corner cells stay where they are; else the outer edges do. (``'bilinear'``)

    Returns:
        ``(N, C, oH, oW)``.

    Raises:
        ValueError: no images, no size, or no such mode.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.resize_images(np.array([[[[0.0, 1.0]]]]), (1, 3)).array
        array([[[[0. , 0.5, 1. ]]]])
    """
    y: Variable = as_variable(x)
    if y.ndim != 4 or len(output_shape) != 2 or min(*y.shape[2:], *output_shape) < 1:
        raise ValueError(f"resize_images: x (N, C, H, W) to (oH, oW), none of them 0; not {y.shape} to {output_shape}")
    if mode not in MODES:
        raise ValueError(f"resize_images knows the modes bilinear and nearest, not {mode!r}")
    dtype = y.dtype if y.dtype.kind == "f" else np.dtype("f4")
    for axis in (2, 3):
        size = y.shape[axis]
        table = weights_at(places(size, output_shape[axis - 2], mode, align_corners), np.arange(size))
        weights = y.xp.asarray(table.astype(dtype))
        y = matmul(weights, y) if axis == 2 else swapaxes(matmul(weights, swapaxes(y, 2, 3)), 2, 3)
    return y


def places(size: int, out: int, mode: str, align_corners: bool) -> Any:
    """Where each of ``out`` cells lies among ``size`` cells."""
    cells = np.arange(out)
    if mode == "nearest":
        return cells * size // out
    if align_corners:
        return cells * ((size - 1) / max(out - 1, 1))
    return np.clip((cells + 0.5) * (size / out) - 0.5, 0, size - 1)


def weights_at(at: Any, cells: Any) -> Any:
    """What some cells give to places among them: (places, cells)."""
    return np.maximum(0, 1 - abs(at[:, None] - cells))
