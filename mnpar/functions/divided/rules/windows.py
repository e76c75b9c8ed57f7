"""Rules of functions that read a window for each output, or add one to the image: they need a halo
(functions/divided/spatial_*.py move exactly its cells). The result is in even blocks again; where
it has a single cell along all axes that are cut, as a pooling over the whole image has, every rank
gets it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mnpar.functions.array.resize_images import Interpolation, Resize
from mnpar.functions.connection.convolution import Convolution, Deconvolution
from mnpar.functions.divided.blocks import transposed, unpadded_windows, windowed
from mnpar.functions.divided.layout import DividedVariable, GridLayout
from mnpar.functions.divided.rules.table import layout_rule, only_first
from mnpar.functions.divided.spatial_convolution import (
    spatial_convolution_nd,
    spatial_deconvolution_nd,
)
from mnpar.functions.divided.spatial_pooling import spatial_max_pooling_nd
from mnpar.functions.pooling.lp_pooling import LpPooling
from mnpar.functions.pooling.pooling import MaxPooling, SumPooling, Unpooling
from mnpar.kernels.windows import Windows
from mnpar.plans import Box, Window
from mnpar.variable import Variable


def window_of(windows: Windows) -> Window:
    """Return one of the windows over a whole image."""
    window = Window.of(len(windows.K), windows.K, windows.stride, windows.pad, windows.dilate)
    if window.outputs(windows.size) != windows.out:
        window = window._replace(cover_all=True)
    return window


class Block:
    """A divided image (N, C, …) as functions of blocks take it: the block, the grid of its spatial
    axes and their whole shape.
    """

    def __init__(self, node: Any, x: DividedVariable) -> None:
        self.layout, self.grid = x.layout, x.layout.spatial(node.label)
        self.shape = x.shape[2:]
        whole = (*x.shape[:2], *self.grid.block(self.shape).shape)
        # a rank that the grid does not need has an empty block
        self.x = x.part if x.part.shape == whole else x.part.reshape(whole)

    def result(self, y: Variable, shape: Sequence[int]) -> Variable:
        """Return the outputs, of which this rank has the block ``y`` (N, K, …) of ``shape``."""
        layout = self.layout.like((*y.shape[:2], *shape))
        divided = layout.divided(y)
        return divided.gather() if has_one_cell(layout) else divided


def has_one_cell(layout: GridLayout) -> bool:
    """Return whether an array has one cell along all axes that are cut."""
    return bool(layout.cut_axes) and all([layout.shape[a] == 1 for a in layout.cut_axes])


@layout_rule(Convolution)
def convolution(node: Any, x: Any, W: Any, b: Any = None) -> Any:
    only_first(node, x, W, *([] if b is None else [b]))
    block, windows = Block(node, x), node.windows
    window = window_of(windows)
    y = spatial_convolution_nd(
        block.x,
        block.grid,
        block.shape,
        W,
        b,
        windows.stride,
        windows.pad,
        window.cover_all,
        windows.dilate,
        node.groups,
    )
    return block.result(y, windows.out)


@layout_rule(Deconvolution)
def deconvolution(node: Any, x: Any, W: Any, b: Any = None) -> Any:
    only_first(node, x, W, *([] if b is None else [b]))
    block, windows = Block(node, x), node.windows
    y = spatial_deconvolution_nd(
        block.x,
        block.grid,
        block.shape,
        W,
        b,
        windows.stride,
        windows.pad,
        windows.size,
        windows.dilate,
        node.groups,
    )
    return block.result(y, windows.size)


@layout_rule(MaxPooling)
def max_pooling(node: Any, x: Any) -> Any:
    block, windows = Block(node, x), node.windows
    cover_all = window_of(windows).cover_all
    sizes = windows.K, windows.stride, windows.pad
    y = spatial_max_pooling_nd(block.x, block.grid, block.shape, *sizes, cover_all)
    return block.result(y, windows.out)


@layout_rule(SumPooling, LpPooling)
def pooling(node: Any, x: Any) -> Any:
    block, window = Block(node, x), window_of(node.windows)

    def local(chunk: Variable, out: Box) -> Variable:
        windows = unpadded_windows(node.label, chunk.shape[2:], window)
        if isinstance(node, LpPooling):
            return LpPooling(windows, node.p).apply((chunk,))[0]
        scale = node.scale if isinstance(node.scale, float | int) else node.scale[(..., *out.index)]
        return SumPooling(windows, scale).apply((chunk,))[0]

    nothing = x.shape[1], x.dtype
    y = windowed(block.x, block.grid, block.shape, window, local, nothing)
    return block.result(y, node.windows.out)


@layout_rule(Unpooling)
def unpooling(node: Any, x: Any) -> Any:
    if not isinstance(node.scale, float | int):
        x.layout.refuse(node.label, "each window has a factor of its own")
    block, window = Block(node, x), window_of(node.windows)

    def local(chunk: Variable, reached: Box) -> Variable:
        windows = unpadded_windows(node.label, reached.shape, window)
        return Unpooling(windows, node.scale).apply((chunk,))[0]

    size, nothing = node.windows.size, (x.shape[1], x.dtype)
    y = transposed([block.x], block.grid, block.shape, size, window, local, nothing)
    return block.result(y, size)


@layout_rule(Resize)
def resize(node: Any, x: Any) -> Any:
    axis = x.ndim - 1 if node.last else x.ndim - 2
    layout = x.layout.like((*x.shape[:axis], node.out, *x.shape[axis + 1 :]))
    if axis not in layout.cut_axes:
        return layout.divided(node.apply((x.part,))[0])
    wants, rank = [], layout.grid.comm.rank
    for box in layout.boxes:
        first, end = _seen(node.parts, box.start[axis], box.stop[axis])
        start, stop = list(box.start), list(box.stop)
        start[axis], stop[axis] = (first, end) if box.volume else (0, 0)
        wants.append(Box(tuple(start), tuple(stop)))
    chunk = x.layout.moved(x, layout, wants)
    own, cells = layout.box, wants[rank]
    if not own.volume:
        return layout.divided(empty_part(chunk, own))
    first, end = cells.start[axis], cells.stop[axis]
    parts = []
    for part in node.parts:
        a = max(part.outputs.start, own.start[axis])
        b = min(part.outputs.stop, own.stop[axis])
        if a < b:
            low, high = max(part.inputs.start, first), min(part.inputs.stop, end)
            rows = slice(a - part.outputs.start, b - part.outputs.start)
            columns = slice(low - part.inputs.start, high - part.inputs.start)
            outputs = slice(a - own.start[axis], b - own.start[axis])
            weights = part.weights[rows, columns]
            parts.append(Interpolation(outputs, slice(low - first, high - first), weights))
    y = Resize(end - first, own.shape[axis], parts, node.last).apply((chunk,))[0]
    return layout.divided(y)


def _seen(parts: Sequence[Interpolation], start: int, stop: int) -> tuple[int, int]:
    """Return the first cell that has a weight for some outputs, and the one after the last."""
    ends = []
    for part in parts:
        a, b = max(part.outputs.start, start), min(part.outputs.stop, stop)
        if a < b:
            rows = part.weights[a - part.outputs.start : b - part.outputs.start]
            columns = np.flatnonzero(rows.any(axis=0)) + part.inputs.start
            ends += [(int(columns[0]), int(columns[-1]) + 1)]
    return (min([a for a, _ in ends]), max([b for _, b in ends])) if ends else (0, 0)


def empty_part(x: Variable, box: Box) -> Variable:
    """Return an empty part, through which no gradient flows."""
    return Variable(x.xp.zeros(box.shape, x.dtype), requires_grad=False)
