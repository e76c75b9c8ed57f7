"""Convolutions, poolings and their transposes of images in blocks: the serial functions on what a
rank's outputs read, or on what reaches its cells.

They are what the rules of these functions on divided Variables (rules/windows.py) are made of.
Parameters are whole on every rank, and their gradients here are
this rank's share.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mnpar.backend import Array, Index
from mnpar.functions.communication.exchange import exchange
from mnpar.functions.connection.convolution import Deconvolution, convolution_nd
from mnpar.functions.connection.local_convolution import (
    LocalConvolution,
    LocalDeconvolution,
    local_windows,
)
from mnpar.functions.divided.blocks import (
    Block,
    empty_block,
    should_hide,
    slices_within,
    transposed,
    unpadded_windows,
    windowed,
)
from mnpar.functions.divided.halo import brought
from mnpar.functions.divided.halo_convolution import halo_convolution
from mnpar.functions.math.scale import bias
from mnpar.functions.pooling.lp_pooling import LpPooling
from mnpar.functions.pooling.pooling import MaxPlaces, MaxPooling, Spread, SumPooling, Unpooling
from mnpar.kernels.windows import Windows
from mnpar.plans import Box, Window
from mnpar.variable import Variable


def convolved(
    block: Block,
    window: Window,
    W: Variable | Array,
    b: Any,
    groups: int,
    mode: Any = "constant",
) -> Variable:
    """Return this rank's block of the outputs of a convolution."""
    x, grid = block.x, block.grid
    if (
        grid.comm.size == 1
        and mode == "constant"
        and all([before == after for before, after in window.pad])
    ):
        one = tuple([before for before, _ in window.pad])
        return convolution_nd(
            x, W, b, window.stride, one, window.cover_all, window.dilation, groups
        )
    hide = should_hide(x, grid)
    if (out := block.outputs(window)).empty:
        brought(x, grid.comm, block.halo(window, mode))  # others want its cells
        return empty_block(x, out, (W.shape[0], np.result_type(x.dtype, W.dtype)))
    return halo_convolution(block, window, W, b, groups, mode, hide)


def deconvolved(
    block: Block,
    window: Window,
    image: tuple[int, ...],
    W: Variable | Array,
    b: Any,
    groups: int,
) -> Variable:
    """Return this rank's block of the ``image`` that a transposed convolution makes."""

    def local(chunk: Variable, reached: Box) -> Variable:
        windows = unpadded_windows("deconvolution", reached.shape, window)
        return Deconvolution(windows, groups).apply((chunk, W))[0]

    nothing = W.shape[1] * groups, np.result_type(block.x.dtype, W.dtype)
    y = transposed([block.x], block.grid, block.shape, image, window, local, nothing)
    return y if b is None else bias(y, b, axis=1)


def _pooled(
    block: Block, window: Window, local: Callable[..., Variable], fill: float = 0
) -> Variable:
    nothing = block.x.shape[1], block.x.dtype
    return windowed(block, window, local, nothing, fill)


def _inside(block: Block, window: Window, out: Box) -> Index:
    """Return which of the cells that a box of outputs reads lie inside the image."""
    reads = window.reads(out)
    return slices_within(reads & Box.whole(block.shape), reads)


def max_pooled(block: Block, window: Window) -> Variable:
    """Return this rank's block of the maxima of windows."""

    def local(chunk: Variable, out: Box) -> Variable:
        windows = unpadded_windows("max_pooling", chunk.shape[2:], window)
        return MaxPooling(windows, _inside(block, window, out)).apply((chunk,))[0]

    dtype = block.x.dtype
    return _pooled(block, window, local, -np.inf if dtype.kind == "f" else np.iinfo(dtype).min)


def max_places(block: Block, window: Window) -> Variable:
    """Return this rank's block of the offsets within their windows that maxima have, int32."""

    def local(chunk: Variable, out: Box) -> Variable:
        windows = unpadded_windows("max_pooling", chunk.shape[2:], window)
        return MaxPlaces(windows, _inside(block, window, out)).apply((chunk,))[0]

    x = Variable(block.x.array, requires_grad=False)
    nothing = x.shape[1], np.dtype(np.int32)
    fill = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    return windowed(block._replace(x=x), window, local, nothing, fill, hide=False)


def sum_pooled(block: Block, window: Window, scale: Any) -> Variable:
    """Return this rank's block of the sums of windows, times a number or, for all windows of the
    image, one each.
    """

    def local(chunk: Variable, out: Box) -> Variable:
        factor = scale if isinstance(scale, float | int) else scale[(..., *out.index)]
        windows = unpadded_windows("average_pooling", chunk.shape[2:], window)
        return SumPooling(windows, factor).apply((chunk,))[0]

    return _pooled(block, window, local)


def lp_pooled(block: Block, window: Window, p: float) -> Variable:
    """Return this rank's block of the p-norms of windows."""

    def local(chunk: Variable, _: Box) -> Variable:
        return LpPooling(unpadded_windows("lp_pooling", chunk.shape[2:], window), p).apply(
            (chunk,)
        )[0]

    return _pooled(block, window, local)


def unpooled(block: Block, window: Window, image: tuple[int, ...], scale: float) -> Variable:
    """Return this rank's block of the ``image`` to which each window adds its value."""

    def local(chunk: Variable, reached: Box) -> Variable:
        windows = unpadded_windows("unpooling", reached.shape, window)
        return Unpooling(windows, scale).apply((chunk,))[0]

    x, grid, shape = block.x, block.grid, block.shape
    nothing = x.shape[1], x.dtype
    return transposed([x], grid, shape, image, window, local, nothing)


def spread(block: Block, window: Window, image: tuple[int, ...], places: Array) -> Variable:
    """Return this rank's block of the ``image`` to which each window adds its value at one place;
    ``places`` are this rank's.
    """

    def local(chunk: Variable, own: Variable, reached: Box) -> Variable:
        windows = unpadded_windows("upsampling", reached.shape, window)
        return Spread(windows, own.array).apply((chunk,))[0]

    x, grid, shape = block.x, block.grid, block.shape
    nothing = x.shape[1], x.dtype
    places = places.reshape(x.shape)  # of a rank without a part, too
    return transposed([x, places], grid, shape, image, window, local, nothing, hide=False)


def locally_convolved(block: Block, windows: Windows, W: Variable, b: Any) -> Variable:
    """Return this rank's block of the outputs of local filters, of which it has those of its
    outputs.
    """
    window = Window.of(2, windows.K, windows.stride)
    chunk = brought(block.x, block.grid.comm, block.halo(window))
    own = local_windows("local_convolution_2d", chunk.shape[2:], windows.K, windows.stride)
    return LocalConvolution(own).apply((chunk, W) if b is None else (chunk, W, b))[0]


def locally_deconvolved(block: Block, windows: Windows, W: Variable, b: Any) -> Variable:
    """Return this rank's block of the image to which each place adds by its own filters, of which
    the rank has those of its places; and biases of its block.
    """
    window, size = Window.of(2, windows.K, windows.stride), windows.size
    reached = window.reads(block.grid.block(windows.out)).shape
    own = local_windows("local_deconvolution_2d", reached, windows.K, windows.stride)
    (chunk,) = LocalDeconvolution(own).apply((block.x, W))
    y: Variable = exchange(block.grid.comm, chunk, block.grid.halo(size, window, gaps=True).adjoint)
    return y if b is None else y + b
