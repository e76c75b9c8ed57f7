"""Convolution of an image in blocks, and its transpose: the serial functions on what a rank's
outputs read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mnpar.backend import Array
from mnpar.functions.connection.convolution import (
    Deconvolution,
    check_filters,
    convolution_nd,
    depthwise_filters,
)
from mnpar.functions.divided.blocks import (
    check_block,
    copy_all_to,
    empty_block,
    output_shape,
    should_hide,
    transposed,
    unpadded_windows,
)
from mnpar.functions.divided.halo import SpatialGrid, halo_of
from mnpar.functions.divided.halo_convolution import halo_convolution
from mnpar.functions.math.scale import bias
from mnpar.kernels.windows import PerAxis, image_shape
from mnpar.plans import Window
from mnpar.variable import Variable, as_variable


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
    hide: bool | None = None,
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
        hide: compute the outputs that read only this block while the halo is on its way. None:
            where the ranks are on several hosts, and the blocks large; within one, the halo comes
            faster than outputs are cut and joined.

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
    (x, shape), W = check_block(who, x, grid, shape), as_variable(W)
    n = check_filters(who, x, W, b, groups, len(shape))
    window = Window.of(n, W.shape[2:], stride, pad, dilate, cover_all)
    output_shape(who, shape, window)
    if (
        grid.comm.size == 1
        and mode == "constant"
        and all([before == after for before, after in window.pad])
    ):
        one = tuple([before for before, _ in window.pad])
        return convolution_nd(x, W, b, window.stride, one, cover_all, window.dilation, groups)
    W, b = copy_all_to(grid.comm, W, b)
    hide = should_hide(x, grid, hide)
    if (out := grid.block(window.outputs(shape))).empty:
        halo_of(x, grid, shape, window, mode)  # others want its cells
        return empty_block(x, out, (W.shape[0], np.result_type(x.dtype, W.dtype)))
    return halo_convolution(x, grid, shape, window, W, b, groups, mode, hide)


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
    *,
    hide: bool | None = None,
) -> Variable:
    """:func:`deconvolution_nd` to an image that is cut into blocks, from values that are.

    Args:
        x: this rank's block (N, K, …) of the values.
        grid: all ranks of its communicator call this.
        shape: of all values, their spatial axes.
        W, b, stride, pad, outsize, dilate, groups: as in :func:`deconvolution_nd`; W and b are the
            same on every rank.
        hide: as in :func:`spatial_convolution_nd`.

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
    (x, shape), W = check_block(who, x, grid, shape), as_variable(W)
    n = check_filters(who, x, W, b, groups, len(shape), transposed=True)
    window = Window.of(n, W.shape[2:], stride, pad, dilate)
    image = image_shape(who, window, shape, outsize)
    W, b = copy_all_to(grid.comm, W, b)

    def local(chunk: Variable, reached: Any) -> Variable:
        return Deconvolution(unpadded_windows(who, reached.shape, window), groups).apply(
            (chunk, W)
        )[0]

    nothing = W.shape[1] * groups, np.result_type(x.dtype, W.dtype)
    y = transposed([x], grid, shape, image, window, local, nothing, hide)
    return y if b is None else bias(y, b, axis=1)
