"""Resizing of images in blocks: the part of the weights that a rank's outputs have, and the cells
that have a weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from operator import index
from typing import Any

import numpy as np

from mnpar.backend import Array
from mnpar.functions.array.resize_images import MODES, places, weights_at
from mnpar.functions.array.shape import swapaxes
from mnpar.functions.communication.exchange import exchange
from mnpar.functions.divided.blocks import check_block, empty_block
from mnpar.functions.divided.halo import SpatialGrid
from mnpar.functions.math.matmul import matmul
from mnpar.plans import Box, Plan, blocks
from mnpar.variable import Variable

Pair = tuple[int, int]


def _reads(out: Box, shape: Pair, size: Pair, mode: str, align_corners: bool) -> Box:
    """The cells that have a weight for some outputs."""
    ends = []
    for n, o, a, b in zip(shape, size, out.start, out.stop, strict=True):
        at = places(n, o, mode, align_corners)[a:b]
        if a == b:
            ends.append((0, 0))
        else:
            ends.append((int(np.floor(at[0])), min(n, int(np.ceil(at[-1])) + 1)))
    return Box(tuple([a for a, _ in ends]), tuple([b for _, b in ends]))


@lru_cache(maxsize=1000)
def _plan(
    dims: Pair, ranks: int, shape: Pair, size: Pair, mode: str, align_corners: bool
) -> tuple[Plan, tuple[Box, ...]]:
    wants = tuple(
        [_reads(out, shape, size, mode, align_corners) for out in blocks(size, dims, ranks)]
    )
    return Plan(blocks(shape, dims, ranks), wants), wants


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
    x, (H, W) = check_block("spatial_resize_images", x, grid, shape)
    size = tuple(map(index, output_shape))
    if len(size) != 2 or min(H, W, *size) < 1 or mode not in MODES:
        raise ValueError(
            f"spatial_resize_images: {(H, W)} to {size} by {mode!r}: two sizes from 1, "
            f"{' or '.join(MODES)}"
        )
    rank = grid.comm.rank
    out = grid.block(size)
    plan, wants = _plan(
        (grid.dims[0], grid.dims[1]),
        grid.comm.size,
        (H, W),
        (size[0], size[1]),
        mode,
        align_corners,
    )
    y = exchange(grid.comm, x, plan)
    dtype = x.dtype if x.dtype.kind == "f" else np.dtype("f4")
    if out.empty:
        return empty_block(x, out, (x.shape[1], dtype))
    for axis, n in enumerate((H, W)):
        at = places(n, size[axis], mode, align_corners)[out.start[axis] : out.stop[axis]]
        cells = np.arange(wants[rank].start[axis], wants[rank].stop[axis])
        weights = x.xp.asarray(weights_at(at, cells).astype(dtype))
        y = matmul(weights, y) if axis == 0 else swapaxes(matmul(weights, swapaxes(y, 2, 3)), 2, 3)
    return y  # type: ignore[no-any-return]
