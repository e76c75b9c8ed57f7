"""Functions of images in blocks, for programs that work on plain blocks instead of divided
Variables: each takes this rank's block, the grid and the shape of the whole image, does what the
ordinary function does with a divided Variable, and returns this rank's part of the result.

Parameters are whole on every rank, and each rank gets their whole gradient. Outputs without spatial
axes are the same on every rank, which own them together (:func:`reduce_from`): all ranks continue
alike and compute one loss, which counts once. So parameters used afterwards get their whole
gradient on each rank without a message.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import index
from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.functions.array.resize_images import MODES, resize_images
from mnpar.functions.communication.shared import reduce_from
from mnpar.functions.connection.convolution import check_filters, depthwise_filters
from mnpar.functions.connection.linear import linear
from mnpar.functions.divided.blocks import check_block, copy_all_to, output_shape
from mnpar.functions.divided.halo import SpatialGrid
from mnpar.functions.divided.layout import DividedVariable, divided
from mnpar.functions.divided.windows import (
    Block,
    cells_seen,
    convolved,
    deconvolved,
    lp_pooled,
    max_places,
    max_pooled,
    spread,
    sum_pooled,
    unpooled,
)
from mnpar.functions.math.reduction import mean
from mnpar.functions.noise import dropout
from mnpar.functions.normalization.layer_normalization import (
    group_normalization,
    layer_normalization,
)
from mnpar.functions.normalization.local_contrast_normalization import local_contrast_normalization
from mnpar.functions.pooling.pooling import check_maxima, max_pooling_nd
from mnpar.kernels.windows import PerAxis, image_shape
from mnpar.plans import Window
from mnpar.variable import Variable, as_variable


def block_of(who: str, x: Any, grid: SpatialGrid, shape: Sequence[int]) -> Block:
    """Return this rank's block; ValueError if x is not the block of an image of ``shape``."""
    x, shape = check_block(who, x, grid, shape)
    return Block(x, grid, shape)


def _image(who: str, x: Any, grid: SpatialGrid, shape: Sequence[int]) -> Any:
    """Return the image of which x is this rank's block."""
    x, _, shape = block_of(who, x, grid, shape)
    if who.startswith("spatial_global") and 0 in shape:
        raise ValueError(f"{who}: an image of {shape} has no cells")
    return divided(x, grid, shape=(*x.shape[:2], *shape))


def _part(y: Any) -> Variable:
    part: Variable = y.part
    return part


def _whole(y: Any) -> Variable:
    """Return what all ranks have; a grid of one rank has a part that is the whole."""
    return y.part if isinstance(y, DividedVariable) else y


def spatial_convolution_nd(
    x: Variable | Array,
    grid: SpatialGrid,
    shape: Sequence[int],
    W: Variable | Array,
    b: Variable | Array | None = None,
    stride: PerAxis = 1,
    pad: PerAxis = 0,
    cover_all: bool = False,
    dilate: PerAxis = 1,
    groups: int = 1,
    *,
    mode: Any = "constant",
) -> Variable:
    """:func:`convolution_nd` of an image that is cut into blocks; on one axis, two or three, as the
    grid has.

    Args:
        x: this rank's block (N, C, …).
        grid: all ranks of its communicator call this.
        shape: of the whole image, its spatial axes.
        W, b: as in :func:`convolution_nd`, the same on every rank; each rank gets their whole
            gradient, summed over ranks.
        stride, pad, cover_all, dilate, groups: as in :func:`convolution_nd`; a pad may also be a
            pair (before, after) for each axis.
        mode: how the image goes on beyond its edges, as in :func:`halo_exchange`; ``'constant'`` is
            zeros.

    Returns:
        This rank's block (N, K, …) of the outputs, whose whole shape is
        ``mnpar.plans.output_shape(shape, ksize, stride, …)``.

    Raises:
        ValueError: ``x`` is not this rank's block, or channels, groups and sizes do not belong
            together.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> def program(comm):
        ...     grid, W = mnpar.SpatialGrid(comm, (2,)), mnpar.Variable(np.ones((1, 1, 3)))
        ...     x = np.arange(5.0)[grid.block((5,)).start[0] : grid.block((5,)).stop[0]].reshape(
        ...         1, 1, -1
        ...     )
        ...     y = F.spatial_convolution_nd(x, grid, (5,), W, pad=1)
        ...     F.sum(y).backward()
        ...     return y.array.tolist(), W.grad.tolist()
        >>> mnpar.run(program, ranks=2)
        [([[[1.0, 3.0, 6.0]]], [[[6.0, 10.0, 10.0]]]), ([[[9.0, 7.0]]], [[[6.0, 10.0, 10.0]]])]
    """
    who = "spatial_convolution_nd"
    block, W = block_of(who, x, grid, shape), as_variable(W)
    n = check_filters(who, block.x, W, b, groups, len(block.shape))
    window = Window.of(n, W.shape[2:], stride, pad, dilate, cover_all)
    output_shape(who, block.shape, window)
    W, b = copy_all_to(grid.comm, W, b)
    return convolved(block, window, W, b, groups, mode)


def spatial_depthwise_convolution_2d(
    x: Variable | Array,
    grid: SpatialGrid,
    shape: Sequence[int],
    W: Variable | Array,
    b: Variable | Array | None = None,
    stride: PerAxis = 1,
    pad: PerAxis = 0,
) -> Variable:
    """:func:`depthwise_convolution_2d` of an image that is cut into blocks.

    Args:
        x, grid, shape: as in :func:`spatial_convolution_nd`.
        W, b, stride, pad: as in :func:`depthwise_convolution_2d`.

    Returns:
        This rank's block (N, C M, …) of the outputs.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> def program(comm):
        ...     x, W = np.ones((1, 2, 2, 3)), np.ones((3, 2, 2, 2))
        ...     return F.spatial_depthwise_convolution_2d(
        ...         x, mnpar.SpatialGrid(comm, (2, 1)), (4, 3), W
        ...     ).shape
        >>> mnpar.run(program, ranks=2)
        [(1, 6, 2, 2), (1, 6, 1, 2)]
    """
    filters, C = depthwise_filters("spatial_depthwise_convolution_2d", W)
    return spatial_convolution_nd(x, grid, shape, filters, b, stride, pad, groups=C)


def spatial_deconvolution_nd(
    x: Variable | Array,
    grid: SpatialGrid,
    shape: Sequence[int],
    W: Variable | Array,
    b: Variable | Array | None = None,
    stride: PerAxis = 1,
    pad: PerAxis = 0,
    outsize: PerAxis | None = None,
    dilate: PerAxis = 1,
    groups: int = 1,
) -> Variable:
    """:func:`deconvolution_nd` to an image that is cut into blocks, from values that are.

    Args:
        x: this rank's block (N, K, …) of the values.
        grid: all ranks of its communicator call this.
        shape: of all values, their spatial axes.
        W, b, stride, pad, outsize, dilate, groups: as in :func:`deconvolution_nd`; W and b are the
            same on every rank.

    Returns:
        This rank's block (N, C, …) of the image, whose whole shape is ``outsize`` or
        ``mnpar.plans.transposed_shape(shape, ksize, stride, pad, dilate)``.

    Raises:
        ValueError: ``x`` is not this rank's block, or channels, groups and sizes do not belong
            together.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> def program(comm):
        ...     x = np.ones((1, 1, 1)) if comm.rank == 0 else np.full((1, 1, 1), 10.0)
        ...     return F.spatial_deconvolution_nd(
        ...         x, mnpar.SpatialGrid(comm, (2,)), (2,), np.ones((1, 1, 3)), stride=2
        ...     ).array
        >>> np.concatenate(mnpar.run(program, ranks=2), axis=2)
        array([[[ 1.,  1., 11., 10., 10.]]])
    """
    who = "spatial_deconvolution_nd"
    block, W = block_of(who, x, grid, shape), as_variable(W)
    n = check_filters(who, block.x, W, b, groups, len(block.shape), transposed=True)
    window = Window.of(n, W.shape[2:], stride, pad, dilate)
    image = image_shape(who, window, block.shape, outsize)
    W, b = copy_all_to(grid.comm, W, b)
    return deconvolved(block, window, image, W, b, groups)


def _pooling(
    who: str,
    x: Any,
    grid: SpatialGrid,
    shape: Sequence[int],
    ksize: PerAxis,
    stride: PerAxis | None,
    pad: PerAxis,
    cover_all: bool,
) -> tuple[Block, Window]:
    """Return the block and the windows of a pooling: ``stride=None`` is ksize."""
    block = block_of(who, x, grid, shape)
    n, stride = len(block.shape), ksize if stride is None else stride
    window = Window.of(n, ksize, stride, pad, 1, cover_all)
    output_shape(who, block.shape, window)
    return block, window


def spatial_max_pooling_nd(
    x: Variable | Array,
    grid: SpatialGrid,
    shape: Sequence[int],
    ksize: PerAxis,
    stride: PerAxis | None = None,
    pad: PerAxis = 0,
    cover_all: bool = True,
    return_indices: bool = False,
) -> Any:
    """:func:`max_pooling_nd` of an image that is cut into blocks.

    Args:
        x, grid, shape: as in :func:`spatial_convolution_nd`.
        ksize, stride, pad, cover_all, return_indices: as in :func:`max_pooling_nd`; a pad may also
            be a pair (before, after) for each axis.

    Returns:
        This rank's block (N, C, …) of the outputs, whose whole shape is
        ``mnpar.plans.output_shape(shape, ksize, stride, pad, cover_all=True)``; or a pair of it and
        the offsets within the windows.

    Raises:
        ValueError: ``x`` is not this rank's block, sizes do not belong together, or a window sees
            padding only.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> def program(comm):
        ...     x = np.array([[[1.0, 5.0, 3.0]]]) if comm.rank == 0 else np.array([[[4.0, 2.0]]])
        ...     return F.spatial_max_pooling_nd(x, mnpar.SpatialGrid(comm, (2,)), (5,), 2).array
        >>> mnpar.run(program, ranks=2)
        [array([[[5., 4.]]]), array([[[2.]]])]
    """
    who = "spatial_max_pooling_nd"
    block, window = _pooling(who, x, grid, shape, ksize, stride, pad, cover_all)
    before, out = [first for first, _ in window.pad], window.outputs(block.shape)
    check_maxima(who, block.shape, window.kernel, window.stride, before, out)
    y = max_pooled(block, window, hide=not return_indices)
    return (y, max_places(block, window).array) if return_indices else y


def spatial_average_pooling_nd(
    x: Variable | Array,
    grid: SpatialGrid,
    shape: Sequence[int],
    ksize: PerAxis,
    stride: PerAxis | None = None,
    pad: PerAxis = 0,
    pad_value: Any = 0,
) -> Variable:
    """:func:`average_pooling_nd` of an image that is cut into blocks.

    Args:
        x, grid, shape: as in :func:`spatial_convolution_nd`.
        ksize, stride, pad, pad_value: as in :func:`average_pooling_nd`; a pad may also be a pair
            for each axis.

    Returns:
        This rank's block (N, C, …) of the outputs.

    Raises:
        ValueError: ``x`` is not this rank's block, windows do not fit, or another pad_value.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> def program(comm):
        ...     x = np.ones((1, 1, 2))
        ...     return F.spatial_average_pooling_nd(
        ...         x, mnpar.SpatialGrid(comm, (2,)), (4,), 3, 1, 1
        ...     ).array.round(2)
        >>> mnpar.run(program, ranks=2)
        [array([[[0.67, 1.  ]]]), array([[[1.  , 0.67]]])]
    """
    who = "spatial_average_pooling_nd"
    block, window = _pooling(who, x, grid, shape, ksize, stride, pad, False)
    backend.require_float_dtype(who, block.x.array)
    if pad_value not in (0, None):
        raise ValueError(
            f"{who}: pad_value is 0, or None to leave padding out of the means, not {pad_value!r}"
        )
    scale: Any = 1 / math.prod(window.kernel)
    if pad_value is None and window.pad != ((0, 0),) * len(block.shape):
        dtype = block.x.dtype if block.x.dtype.char != "e" else np.dtype("f4")
        scale = block.x.xp.asarray(1 / cells_seen(window, block.shape), dtype)
    return sum_pooled(block, window, scale)


def spatial_lp_pooling_nd(
    x: Variable | Array,
    grid: SpatialGrid,
    shape: Sequence[int],
    ksize: PerAxis,
    stride: PerAxis | None = None,
    pad: PerAxis = 0,
    cover_all: bool = False,
    p: float = 2,
) -> Variable:
    """:func:`lp_pooling_nd` (L2 pooling) of an image that is cut into blocks.

    Args:
        x, grid, shape: as in :func:`spatial_convolution_nd`.
        ksize, stride, pad, cover_all, p: as in :func:`lp_pooling_nd`; a pad may also be a pair for
            each axis.

    Returns:
        This rank's block (N, C, …) of the outputs.

    Raises:
        ValueError: ``x`` is not this rank's block, windows do not fit, or p is less than 1.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> def program(comm):
        ...     x = np.array([[[3.0, 4.0]]])
        ...     return F.spatial_lp_pooling_nd(x, mnpar.SpatialGrid(comm, (2,)), (4,), 2, 1).array
        >>> mnpar.run(program, ranks=2)
        [array([[[5., 5.]]]), array([[[5.]]])]
    """
    who = "spatial_lp_pooling_nd"
    block, window = _pooling(who, x, grid, shape, ksize, stride, pad, cover_all)
    if p < 1:
        raise ValueError(f"{who}: p = {p} is less than 1, which is no length")
    return lp_pooled(block, window, p)


def _unpooling(
    who: str,
    x: Any,
    grid: SpatialGrid,
    shape: Sequence[int],
    ksize: PerAxis,
    stride: PerAxis | None,
    pad: PerAxis,
    outsize: PerAxis | None,
    cover_all: bool,
) -> tuple[Block, Window, tuple[int, ...]]:
    """Return the block, the windows and the shape of the image of an unpooling."""
    block = block_of(who, x, grid, shape)
    n, stride = len(block.shape), ksize if stride is None else stride
    window = Window.of(n, ksize, stride, pad, 1, cover_all)
    return block, window, image_shape(who, window, block.shape, outsize)


def spatial_unpooling_nd(
    x: Variable | Array,
    grid: SpatialGrid,
    shape: Sequence[int],
    ksize: PerAxis,
    stride: PerAxis | None = None,
    pad: PerAxis = 0,
    outsize: PerAxis | None = None,
    cover_all: bool = True,
) -> Variable:
    """:func:`unpooling_nd` to an image that is cut into blocks, from values that are.

    Args:
        x, grid, shape: as in :func:`spatial_deconvolution_nd`.
        ksize, stride, pad, outsize, cover_all: as in :func:`unpooling_nd`.

    Returns:
        This rank's block (N, C, …) of the image, whose whole shape is ``outsize`` or
        ``mnpar.plans.transposed_shape(…)``.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> def program(comm):
        ...     x = np.array([[[1.0, 2.0]]]) if comm.rank == 0 else np.array([[[3.0]]])
        ...     return F.spatial_unpooling_nd(
        ...         x, mnpar.SpatialGrid(comm, (2,)), (3,), 2, cover_all=False
        ...     ).array
        >>> mnpar.run(program, ranks=2)
        [array([[[1., 1., 2.]]]), array([[[2., 3., 3.]]])]
    """
    who = "spatial_unpooling_nd"
    given = _unpooling(who, x, grid, shape, ksize, stride, pad, outsize, cover_all)
    return unpooled(*given, 1)


def spatial_upsampling_2d(
    x: Variable | Array,
    grid: SpatialGrid,
    shape: Sequence[int],
    indexes: Array,
    ksize: PerAxis,
    stride: PerAxis | None = None,
    pad: PerAxis = 0,
    outsize: PerAxis | None = None,
    cover_all: bool = True,
) -> Variable:
    """:func:`upsampling_2d` to an image that is cut into blocks: values back to where their maxima
    were.

    Args:
        x, grid, shape: as in :func:`spatial_convolution_nd`.
        indexes: as :func:`spatial_max_pooling_nd` returned them, of the shape of ``x``.
        ksize, stride, pad, outsize, cover_all: as in :func:`unpooling_nd`.

    Returns:
        This rank's block (N, C, H, W) of the image.

    Raises:
        ValueError: ``x`` is not this rank's block, or ``indexes`` have another shape.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> def program(comm):
        ...     grid, x = (
        ...         mnpar.SpatialGrid(comm, (2, 1)),
        ...         np.array([[[[1.0, 3.0, 2.0]]]]) - comm.rank,
        ...     )
        ...     y, places = F.spatial_max_pooling_nd(x, grid, (2, 3), (2, 3), return_indices=True)
        ...     return F.spatial_upsampling_2d(
        ...         y, grid, (1, 1), places, (2, 3), outsize=(2, 3)
        ...     ).array.tolist()
        >>> mnpar.run(program, ranks=2)
        [[[[[0.0, 3.0, 0.0]]]], [[[[0.0, 0.0, 0.0]]]]]
    """
    who = "spatial_upsampling_2d"
    given = _unpooling(who, x, grid, shape, ksize, stride, pad, outsize, cover_all)
    if indexes.shape != x.shape:
        raise ValueError(
            f"{who}: indexes of shape {indexes.shape} must have the shape of x, {x.shape}"
        )
    return spread(*given, indexes)


def spatial_global_average_pooling(
    x: Variable | Array, grid: SpatialGrid, shape: Sequence[int]
) -> Variable:
    """The mean of each channel over the whole image.

    Args:
        x: this rank's block (N, C, …).
        grid: all ranks of its communicator call this, and then do the same with the result.
        shape: of the whole image, its spatial axes.

    Returns:
        (N, C), the same on every rank; a loss computed from it on every rank counts once.

    Raises:
        ValueError: ``x`` is not this rank's block, or the image has no cells.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> def program(comm):
        ...     x = mnpar.Variable(np.full((1, 1, 2), float(comm.rank)))
        ...     y = F.spatial_global_average_pooling(x, mnpar.SpatialGrid(comm, (2,)), (4,))
        ...     F.sum(y).backward()
        ...     return y.array.tolist(), x.grad.tolist()
        >>> mnpar.run(program, ranks=2)
        [([[0.5]], [[[0.25, 0.25]]]), ([[0.5]], [[[0.25, 0.25]]])]
    """
    x = _image("spatial_global_average_pooling", x, grid, shape)
    return _whole(mean(x, axis=tuple(range(2, x.ndim))))


def spatial_global_max_pooling(
    x: Variable | Array, grid: SpatialGrid, shape: Sequence[int]
) -> Variable:
    """The largest number of each channel in the whole image; its gradient goes to where it is, the
    first place of several.

    Args:
        x, grid, shape: as in :func:`spatial_global_average_pooling`.

    Returns:
        (N, C), the same on every rank; a loss computed from it on every rank counts once.

    Raises:
        ValueError: ``x`` is not this rank's block, or the image has no cells.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> def program(comm):
        ...     x = mnpar.Variable(np.array([[[3.0, 5.0]]]) - comm.rank)
        ...     y = F.spatial_global_max_pooling(x, mnpar.SpatialGrid(comm, (2,)), (4,))
        ...     F.sum(y).backward()
        ...     return y.item(), x.grad.tolist()
        >>> mnpar.run(program, ranks=2)
        [(5.0, [[[0.0, 1.0]]]), (5.0, [[[0.0, 0.0]]])]
    """
    x = _image("spatial_global_max_pooling", x, grid, shape)
    return _whole(max_pooling_nd(x, x.shape[2:]).reshape(x.shape[:2]))


def spatial_linear(
    x: Variable | Array,
    grid: SpatialGrid,
    shape: Sequence[int],
    W: Variable | Array,
    b: Variable | Array | None = None,
) -> Variable:
    """:func:`linear` of whole images that are cut into blocks: each rank multiplies its block with
    its columns of the matrix.

    Only the outputs travel: a sum over ranks of (N, out) numbers. Nothing is gathered, and W needs
    no message in backward.

    Args:
        x: this rank's block (N, C, …).
        grid: all ranks of its communicator call this, and then do the same with the result.
        shape: of the whole image, its spatial axes.
        W: of the whole (out, C, …) the cells of this rank's block; or these as columns of a matrix,
            (out, C · cells).
        b: (out,), the same on every rank, or None.

    Returns:
        (N, out), the same on every rank; a loss computed from it on every rank counts once.

    Raises:
        ValueError: ``x`` is not this rank's block, or W has other columns.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> def program(comm):
        ...     x, W = (
        ...         np.ones((1, 1, 2)) if comm.rank == 0 else np.ones((1, 1, 1)),
        ...         np.full((4, 2 - comm.rank), 3.0),
        ...     )
        ...     return F.spatial_linear(x, mnpar.SpatialGrid(comm, (2,)), (3,), W).array.tolist()
        >>> mnpar.run(program, ranks=2)
        [[[9.0, 9.0, 9.0, 9.0]], [[9.0, 9.0, 9.0, 9.0]]]
    """
    who = "spatial_linear"
    (x, grid, shape), W = block_of(who, x, grid, shape), as_variable(W)
    columns = x.shape[1] * grid.block(shape).volume
    if W.shape[1:] not in ((columns,), x.shape[1:]):
        raise ValueError(
            f"{who}: rank {grid.comm.rank} has W {W.shape}, but {columns} columns belong to x "
            f"{x.shape}"
        )
    y = reduce_from(
        grid.comm, linear(x.reshape((x.shape[0], columns)), W.reshape((W.shape[0], columns)))
    )
    return y if b is None else y + b


def spatial_local_contrast_normalization(
    x: Variable | Array, grid: SpatialGrid, shape: Sequence[int], ksize: PerAxis
) -> Variable:
    """:func:`local_contrast_normalization` of an image that is cut into blocks.

    Args:
        x, grid, shape: as in :func:`spatial_convolution_nd`.
        ksize: as in :func:`local_contrast_normalization`.

    Returns:
        ``x``'s shape and dtype.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> def program(comm):
        ...     x = np.array([[[0.0, 0.0, 0.0]]]) if comm.rank == 0 else np.array([[[1.0, 1.0]]])
        ...     return F.spatial_local_contrast_normalization(
        ...         x, mnpar.SpatialGrid(comm, (2,)), (5,), 3
        ...     ).array.round(2)
        >>> mnpar.run(program, ranks=2)
        [array([[[ 0.  ,  0.  , -1.01]]]), array([[[1.  , 1.01]]])]
    """
    x = _image("spatial_local_contrast_normalization", x, grid, shape)
    return _part(local_contrast_normalization(x, ksize))


def spatial_layer_normalization(
    x: Variable | Array,
    grid: SpatialGrid,
    shape: Sequence[int],
    gamma: Variable | Array,
    beta: Variable | Array,
    eps: float = 1e-5,
) -> Variable:
    """:func:`layer_normalization` of samples that are cut into blocks.

    Args:
        x, grid, shape: as in :func:`spatial_convolution_nd`.
        gamma, beta: as in :func:`layer_normalization`, whole and the same on every rank: (C, …), or
            the spatial axes alone.
        eps: added to the variance.

    Returns:
        ``x``'s shape and dtype.

    Raises:
        ValueError: ``x`` is not this rank's block, or gamma and beta do not have the last axes of
            the whole.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> def program(comm):
        ...     x, one = np.full((1, 1, 1), 2.0 * comm.rank), np.ones((1, 2))
        ...     return F.spatial_layer_normalization(
        ...         x, mnpar.SpatialGrid(comm, (2,)), (2,), one, 0 * one
        ...     ).array.round(3)
        >>> mnpar.run(program, ranks=2)
        [array([[[-1.]]]), array([[[1.]]])]
    """
    who = "spatial_layer_normalization"
    x = _image(who, x, grid, shape)
    n, D = len(shape), gamma.shape
    if not n <= len(D) < x.ndim or x.shape[x.ndim - len(D) :] != D or beta.shape != D:
        raise ValueError(
            f"{who}: gamma of shape {D} and beta of shape {beta.shape} must have the last axes "
            f"of the whole, {x.shape}, all spatial ones among them"
        )
    return _part(layer_normalization(x, gamma, beta, eps))


def spatial_group_normalization(
    x: Variable | Array,
    grid: SpatialGrid,
    shape: Sequence[int],
    groups: int,
    gamma: Variable | Array,
    beta: Variable | Array,
    eps: float = 1e-5,
) -> Variable:
    """:func:`group_normalization` of samples that are cut into blocks.

    Args:
        x, grid, shape: as in :func:`spatial_layer_normalization`.
        groups, gamma, beta, eps: as in :func:`group_normalization`; gamma and beta (C,) are the
            same on every rank.

    Returns:
        ``x``'s shape and dtype.

    Raises:
        ValueError: ``x`` is not this rank's block, the groups do not divide the channels, or gamma
            or beta is not (C,).

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> def program(comm):
        ...     x, one = np.array([[[1.0], [5.0]]]) + 2 * comm.rank, np.ones(2)
        ...     return F.spatial_group_normalization(
        ...         x, mnpar.SpatialGrid(comm, (2,)), (2,), 2, one, 0 * one
        ...     ).array.round(3)
        >>> mnpar.run(program, ranks=2)
        [array([[[-1.],
                [-1.]]]), array([[[1.],
                [1.]]])]
    """
    x = _image("spatial_group_normalization", x, grid, shape)
    return _part(group_normalization(x, groups, gamma, beta, eps))


def spatial_dropout(
    x: Any,
    grid: SpatialGrid,
    shape: Sequence[int],
    ratio: float = 0.5,
    *,
    rng: np.random.Generator | None = None,
) -> Variable:
    """:func:`dropout` of an image that is cut into blocks, with the mask that the whole image gets
    in one process.

    Every rank draws the numbers of the whole and keeps its own, so the ranks' generators stay alike
    if they were seeded alike; with different seeds each block has a mask of its own.

    Args:
        x: this rank's block (N, C, …).
        grid, shape: the grid, and the shape of the whole image, its spatial axes.
        ratio, rng: as in :func:`dropout`.

    Returns:
        ``x``'s shape and dtype; ``x`` itself while ``config.train`` is off.

    Raises:
        ValueError: ``x`` is not this rank's block, or the ratio is outside [0, 1).

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> def program(comm):
        ...     grid, rng = mnpar.SpatialGrid(comm, (2,)), np.random.default_rng(0)
        ...     return F.spatial_dropout(np.ones((1, 1, 2)), grid, (4,), rng=rng).array
        >>> (
        ...     np.concatenate(mnpar.run(program, ranks=2), axis=2),
        ...     F.dropout(np.ones(4), rng=np.random.default_rng(0)).array,
        ... )
        (array([[[2., 2., 2., 0.]]]), array([2., 2., 2., 0.]))
    """
    x, _, shape = block_of("spatial_dropout", x, grid, shape)
    whole, box = (*x.shape[:2], *shape), grid.block(shape)
    part = (slice(None), slice(None), *box.index)
    return dropout(x, ratio, rng=rng, whole=whole, part=part)  # type: ignore[no-any-return]


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
    who = "spatial_resize_images"
    x = _image(who, x, grid, shape)
    size = tuple(map(index, output_shape))
    if len(size) != 2 or min(*x.shape[2:], *size) < 1 or mode not in MODES:
        raise ValueError(
            f"{who}: {tuple(shape)} to {size} by {mode!r}: two sizes from 1, {' or '.join(MODES)}"
        )
    return _part(resize_images(x, size, mode, align_corners))
