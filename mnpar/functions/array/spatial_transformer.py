"""Spatial transformers: a grid of sampling positions from an affine map, and bilinear sampling of
images at them.
"""

from __future__ import annotations

from typing import Any

from mnpar.backend import Array, Index
from mnpar.functions.array.get_item import get_item
from mnpar.functions.array.pad import pad
from mnpar.functions.array.shape import reshape, transpose
from mnpar.functions.math.matmul import matmul
from mnpar.functions.math.maximum import clip
from mnpar.functions.node import array_of, show_shapes
from mnpar.variable import Variable, as_variable


def spatial_transformer_grid(theta: Variable | Array, output_shape: tuple[int, int]) -> Variable:
    """Places in an image, -1 to 1, that an affine map makes of an even grid.

    Args:
        theta: the maps ``(N, 2, 3)``, applied to (x, y, 1).
        output_shape: ``(H, W)`` of the grid.

    Returns:
        ``(N, 2, H, W)``: x (along the width), then y.

    Raises:
        ValueError: ``theta`` has another shape.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.spatial_transformer_grid(np.eye(2, 3)[None], (2, 2)).array[0, 0]
        array([[-1.,  1.],
               [-1.,  1.]])

    Source:
        Jaderberg et al., "Spatial transformer networks", arXiv 1506.02025.
    """
    theta, (H, W) = as_variable(theta), output_shape
    if theta.shape[1:] != (2, 3):
        raise ValueError(f"spatial_transformer_grid: theta (N, 2, 3), not {theta.shape}")
    xp, even = theta.xp, theta.xp.empty((3, H, W), theta.dtype)
    even[0], even[1], even[2] = xp.linspace(-1, 1, W), xp.linspace(-1, 1, H)[:, None], 1
    return reshape(matmul(theta, even.reshape(3, H * W)), (theta.shape[0], 2, H, W))


def spatial_transformer_sampler(x: Variable | Array, grid: Variable | Array) -> Variable:
    """Return the values at given places of an image, by bilinear interpolation; around the image
    are zeros.

    Args:
        x: ``(N, C, H, W)``.
        grid: places ``(N, 2, oH, oW)``, x then y; (-1, -1) is the centre of the first cell, (1, 1)
            of the last.

    Returns:
        ``(N, C, oH, oW)``.

    Raises:
        ValueError: the shapes do not belong together.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> image, middle = np.array([[[[0.0, 1.0], [2.0, 3.0]]]]), np.zeros((1, 2, 1, 1))
        >>> F.spatial_transformer_sampler(image, middle).array
        array([[[[1.5]]]])
    """
    x = as_variable(x)
    grid = as_variable(grid)
    if x.ndim != 4 or grid.ndim != 4 or grid.shape[:2] != (x.shape[0], 2):
        raise ValueError(
            "spatial_transformer_sampler: x (N, C, H, W) and grid (N, 2, oH, oW), not "
            f"{show_shapes((x.shape, grid.shape))}"
        )
    xp, (N, C, H, W), places = x.xp, x.shape, grid.shape[2:]
    rows = reshape(
        transpose(pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), (0, 2, 3, 1)),
        (N * (H + 2) * (W + 2), C),
    )
    corners = [_corners(grid[:, axis], size) for axis, size in ((0, W), (1, H))]
    first = xp.arange(N)[:, None, None] * ((H + 2) * (W + 2))
    y: Any = 0
    for v, by_height in corners[1]:
        for u, by_width in corners[0]:
            seen = get_item(rows, first + v * (W + 2) + u)  # (N, oH, oW, C)
            y = y + seen * reshape(by_height * by_width, (N, *places, 1))
    return transpose(y, (0, 3, 1, 2))


def _corners(places: Variable, size: int) -> list[tuple[Index, Variable]]:
    """The cells of a padded axis on both sides of places from -1 to 1, and how much of each."""
    at = clip((places + 1) * ((size - 1) / 2) + 1, 0.0, float(size + 1))
    # what is seen from NaN is NaN, wherever that is
    low = at.xp.nan_to_num(at.xp.floor(array_of(at)).clip(0, size))
    return [(low.astype("i8"), (low + 1) - at), (low.astype("i8") + 1, at - low)]
