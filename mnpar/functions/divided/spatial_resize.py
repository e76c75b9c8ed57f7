"""Resizing of images in blocks: :func:`resize_images` of a divided Variable."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

from mnpar.backend import Array
from mnpar.functions.array.resize_images import MODES, resize_images
from mnpar.functions.divided.blocks import check_block
from mnpar.functions.divided.halo import SpatialGrid
from mnpar.functions.divided.layout import divided
from mnpar.variable import Variable


def spatial_resize_images(
    x: Variable | Array,
    grid: SpatialGrid,
    shape: Sequence[int],
    output_shape: Any,
    mode: str = "bilinear",
    align_corners: bool = True,
) -> Variable:
    """:func:`resize_images` of images that are cut into blocks.

    Args:
        x: this rank's block (N, C, H, W).
        grid: all ranks of its communicator call this.
        shape: of the whole image.
        output_shape, mode, align_corners: as in :func:`resize_images`, of the whole image.

    Returns:
        This rank's block (N, C, H, W) of images of ``output_shape``.

    Raises:
        ValueError: ``x`` is not this rank's block, no size, or no such mode.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> def program(comm):
        ...     x, grid = np.full((1, 1, 1, 1), float(comm.rank)), mnpar.SpatialGrid(comm, (1, 2))
        ...     return F.spatial_resize_images(x, grid, (1, 2), (1, 3)).array
        >>> mnpar.run(program, ranks=2)
        [array([[[[0. , 0.5]]]]), array([[[[1.]]]])]
    """
    x, shape = check_block("spatial_resize_images", x, grid, shape)
    size = tuple(map(index, output_shape))
    if len(size) != 2 or min(*shape, *size) < 1 or mode not in MODES:
        raise ValueError(
            f"spatial_resize_images: {shape} to {size} by {mode!r}: two sizes from 1, "
            f"{' or '.join(MODES)}"
        )
    image = divided(x, grid, shape=(*x.shape[:2], *shape))
    y: Any = resize_images(image, size, mode, align_corners)
    part: Variable = y.part
    return part
