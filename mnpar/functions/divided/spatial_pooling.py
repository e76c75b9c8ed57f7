"""Poolings of an image in blocks, and their transposes: the serial functions on what a rank's
outputs read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.functions.divided.blocks import (
    check_block,
    output_shape,
    transposed,
    unpadded_windows,
    windowed,
)
from mnpar.functions.divided.halo import SpatialGrid
from mnpar.functions.pooling.lp_pooling import LpPooling
from mnpar.functions.pooling.pooling import MaxPooling, Spread, SumPooling, Unpooling
from mnpar.kernels.windows import PerAxis, image_shape
from mnpar.plans import Box, Window
from mnpar.variable import Variable


def _window(
    who: str,
    shape: Sequence[int],
    ksize: PerAxis,
    stride: PerAxis | None,
    pad: PerAxis,
    cover_all: bool,
) -> Window:
    window = Window.of(len(shape), ksize, ksize if stride is None else stride, pad, 1, cover_all)
    output_shape(who, shape, window)
    return window


def spatial_max_pooling_nd(
    x: Variable | Array,
    grid: SpatialGrid,
    shape: Sequence[int],
    ksize: PerAxis,
    stride: PerAxis | None = None,
    pad: PerAxis = 0,
    cover_all: bool = True,
    return_indices: bool = False,
    *,
    hide: bool | None = None,
) -> Any:
    """:func:`max_pooling_nd` of an image that is cut into blocks.

    Args:
        x: this rank's block (N, C, …).
        grid: all ranks of its communicator call this.
        shape: of the whole image, its spatial axes.
        ksize, stride, pad, cover_all, return_indices: as in :func:`max_pooling_nd`; a pad may also
            be a pair (before, after) for each axis.
        hide: as in :func:`spatial_convolution_nd`; not with ``return_indices``.

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
    x, shape = check_block(who, x, grid, shape)
    window = _window(who, shape, ksize, stride, pad, cover_all)
    for n, k, s, (before, _), o in zip(
        shape, window.kernel, window.stride, window.pad, window.outputs(shape), strict=True
    ):
        if before >= k or (o - 1) * s - before >= n:
            raise ValueError(
                f"{who}: with ksize {window.kernel}, stride {window.stride}, pad {window.pad} "
                f"a window over {shape} sees "
                "padding only, which has no maximum: pad less than the window, or leave "
                "cover_all out"
            )
    found: list[Array] = []

    def local(chunk: Variable, _: Any) -> Variable:
        node = MaxPooling(unpadded_windows(who, chunk.shape[2:], window))
        (y,) = node.apply((chunk,))
        if return_indices:
            found.append(node.places(chunk.array, y.array))
        return y

    fill = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    y = windowed(
        x,
        grid,
        shape,
        window,
        local,
        (x.shape[1], x.dtype),
        fill,
        hide=False if return_indices else hide,
    )
    if not return_indices:
        return y
    return y, (found[0] if found else y.xp.zeros(y.shape)).astype(np.int32)


def spatial_average_pooling_nd(
    x: Variable | Array,
    grid: SpatialGrid,
    shape: Sequence[int],
    ksize: PerAxis,
    stride: PerAxis | None = None,
    pad: PerAxis = 0,
    pad_value: Any = 0,
    *,
    hide: bool | None = None,
) -> Variable:
    """:func:`average_pooling_nd` of an image that is cut into blocks.

    Args:
        x, grid, shape: as in :func:`spatial_max_pooling_nd`.
        ksize, stride, pad, pad_value: as in :func:`average_pooling_nd`; a pad may also be a pair
            for each axis.
        hide: as in :func:`spatial_convolution_nd`.

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
    x, shape = check_block(who, x, grid, shape)
    backend.require_float_dtype(who, x.array)
    window = _window(who, shape, ksize, stride, pad, False)
    if pad_value not in (0, None):
        raise ValueError(
            f"{who}: pad_value is 0, or None to leave padding out of the means, not {pad_value!r}"
        )
    dtype = x.dtype if x.dtype.char != "e" else np.dtype("f4")

    def local(chunk: Variable, out: Box) -> Variable:
        scale: Any = 1 / math.prod(window.kernel)
        if pad_value is None and window.pad != ((0, 0),) * len(shape):
            scale = chunk.xp.asarray(1 / _counts(window, shape, out), dtype)
        return SumPooling(unpadded_windows(who, chunk.shape[2:], window), scale).apply((chunk,))[0]

    return windowed(x, grid, shape, window, local, (x.shape[1], x.dtype), hide=hide)


def _counts(window: Window, shape: Sequence[int], out: Box) -> Any:
    """Count how many cells of the image each of some windows sees."""
    counts: Any = np.ones(())
    for n, k, s, (pad, _), a, b in zip(
        shape, window.kernel, window.stride, window.pad, out.start, out.stop, strict=True
    ):
        first = np.arange(a, b) * s - pad
        counts = counts[..., None] * np.maximum(np.minimum(first + k, n) - np.maximum(first, 0), 0)
    return counts


def spatial_lp_pooling_nd(
    x: Variable | Array,
    grid: SpatialGrid,
    shape: Sequence[int],
    ksize: PerAxis,
    stride: PerAxis | None = None,
    pad: PerAxis = 0,
    cover_all: bool = False,
    p: float = 2,
    *,
    hide: bool | None = None,
) -> Variable:
    """:func:`lp_pooling_nd` (L2 pooling) of an image that is cut into blocks.

    Args:
        x, grid, shape: as in :func:`spatial_max_pooling_nd`.
        ksize, stride, pad, cover_all, p: as in :func:`lp_pooling_nd`; a pad may also be a pair for
            each axis.
        hide: as in :func:`spatial_convolution_nd`.

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
    x, shape = check_block(who, x, grid, shape)
    window = _window(who, shape, ksize, stride, pad, cover_all)
    if p < 1:
        raise ValueError(f"{who}: p = {p} is less than 1, which is no length")

    def local(chunk: Variable, _: Any) -> Variable:
        return LpPooling(unpadded_windows(who, chunk.shape[2:], window), p).apply((chunk,))[0]

    return windowed(x, grid, shape, window, local, (x.shape[1], x.dtype), hide=hide)


def _unpooled(
    who: str,
    shape: tuple[int, ...],
    ksize: PerAxis,
    stride: PerAxis | None,
    pad: PerAxis,
    outsize: PerAxis | None,
    cover_all: bool,
) -> tuple[Window, tuple[int, ...]]:
    window = Window.of(len(shape), ksize, ksize if stride is None else stride, pad, 1, cover_all)
    return window, image_shape(who, window, shape, outsize)


def spatial_unpooling_nd(
    x: Variable | Array,
    grid: SpatialGrid,
    shape: Sequence[int],
    ksize: PerAxis,
    stride: PerAxis | None = None,
    pad: PerAxis = 0,
    outsize: PerAxis | None = None,
    cover_all: bool = True,
    *,
    hide: bool | None = None,
) -> Variable:
    """:func:`unpooling_nd` to an image that is cut into blocks, from values that are.

    Args:
        x: this rank's block (N, C, …) of the values.
        grid: all ranks of its communicator call this.
        shape: of all values, their spatial axes.
        ksize, stride, pad, outsize, cover_all: as in :func:`unpooling_nd`.
        hide: as in :func:`spatial_convolution_nd`.

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
    x, shape = check_block(who, x, grid, shape)
    window, image = _unpooled(who, shape, ksize, stride, pad, outsize, cover_all)

    def local(chunk: Variable, reached: Box) -> Variable:
        return Unpooling(unpadded_windows(who, reached.shape, window), 1).apply((chunk,))[0]

    return transposed([x], grid, shape, image, window, local, (x.shape[1], x.dtype), hide)


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
        x, grid, shape: as in :func:`spatial_unpooling_nd`.
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
    x, shape = check_block(who, x, grid, shape)
    if indexes.shape != x.shape:
        raise ValueError(
            f"{who}: indexes of shape {indexes.shape} must have the shape of x, {x.shape}"
        )
    window, image = _unpooled(who, shape, ksize, stride, pad, outsize, cover_all)

    def local(chunk: Variable, places: Variable, reached: Box) -> Variable:
        return Spread(unpadded_windows(who, reached.shape, window), places.array).apply((chunk,))[0]

    return transposed([x, indexes], grid, shape, image, window, local, (x.shape[1], x.dtype))
