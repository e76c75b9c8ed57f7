"""Rules of functions that read a window for each output, or add one to the image: they need a halo
(functions/divided/windows.py moves exactly its cells). The result is in even blocks again; where
it has a single cell along all axes that are cut, as a pooling over the whole image has, every rank
gets it. Samples (and, of poolings, channels) that are cut, too, need nothing of each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from mnpar.functions.array.resize_images import Band, Interpolation, Resize
from mnpar.functions.connection.convolution import (
    Convolution,
    Deconvolution,
    PaddedConvolution,
)
from mnpar.functions.connection.local_convolution import LocalConvolution, LocalDeconvolution
from mnpar.functions.divided.blocks import Block, windowed
from mnpar.functions.divided.layout import DividedVariable, GridLayout
from mnpar.functions.divided.rules.elementwise import own_cells
from mnpar.functions.divided.rules.reductions import extremum, summed
from mnpar.functions.divided.rules.table import layout_rule, only_first
from mnpar.functions.divided.windows import (
    convolved,
    deconvolved,
    locally_convolved,
    locally_deconvolved,
    lp_pooled,
    max_places,
    max_pooled,
    spread,
    sum_pooled,
    unpooled,
)
from mnpar.functions.node import is_divided
from mnpar.functions.normalization.local_contrast_normalization import Blur, BlurWithin
from mnpar.functions.pooling.lp_pooling import LpPooling
from mnpar.functions.pooling.pooling import (
    MaxPlaces,
    MaxPooling,
    Spread,
    SumPooling,
    Unpooling,
)
from mnpar.kernels.windows import Windows
from mnpar.plans import Box, Window
from mnpar.variable import Variable


@lru_cache(maxsize=1000)
def window_of(windows: Windows) -> Window:
    """Return one of the windows over a whole image; remembered."""
    window = Window.of(len(windows.K), windows.K, windows.stride, windows.pad, windows.dilate)
    if window.outputs(windows.size) != windows.out:
        window = window._replace(cover_all=True)
    return window


def block_of(
    node: Any, x: DividedVariable, channels: bool = False, to: GridLayout | None = None
) -> Block:
    """Return a divided image (N, C, …) as functions of blocks take it.

    Args:
        channels: whether the function does the same with each, so that these may be cut, too.
        to: of the outputs, where the parts have halos.
    """
    layout = x.layout
    if 1 in layout.cut_axes and not channels:
        layout.refuse(node.label, "axis 1, the channels, is cut, and each output needs all")
    held = None if layout.window is None or to is None else (_held(layout), _held(to))
    block = Block(x.part, layout.spatial(), x.shape[2:], held)
    whole = (*x.part.shape[:2], *block.have.shape)
    # a rank that the grid does not need has an empty block
    return block if x.part.shape == whole else block._replace(x=x.part.reshape(whole))


def _held(layout: GridLayout) -> Window:
    """Return the window whose halos parts have, on each spatial axis."""
    n, window = len(layout.shape) - 2, layout.window
    spans, steps = [1] * n, [1] * n
    for i, axis in enumerate(layout.axes):
        if window is not None and axis > 1:
            spans[axis - 2], steps[axis - 2] = window.kernel[i], window.stride[i]
    return Window.of(n, spans, steps)


def images_of(
    x: DividedVariable,
    y: Variable,
    channels: int,
    shape: Sequence[int],
    to: GridLayout | None = None,
) -> Variable:
    """Return images (N, channels, …) of ``shape`` of which this rank has the block ``y``."""
    layout = to or x.layout.like((x.shape[0], channels, *shape))
    divided = layout.divided(y)
    return divided.gather() if has_one_cell(layout) else divided


def has_one_cell(layout: GridLayout) -> bool:
    """Return whether an array has one cell along all axes that are cut."""
    return bool(layout.cut_axes) and all([layout.shape[a] == 1 for a in layout.cut_axes])


def is_spatial(x: DividedVariable) -> bool:
    """Return whether axes after the channels are cut."""
    return bool([a for a in x.layout.cut_axes if a > 1])


def _each_sample(
    node: Any, x: DividedVariable, params: Sequence[Any], channels: int, shape: Sequence[int]
) -> Variable:
    """Return the function of images of which no spatial axis is cut."""
    if 1 in x.layout.cut_axes and params:
        x.layout.refuse(node.label, "axis 1, the channels, is cut, and each output needs all")
    (y,) = node.apply((x.part, *[x.layout.shared(p) for p in params]))
    return images_of(x, y, channels, shape)


@layout_rule(Convolution, PaddedConvolution, halos=True)
def convolution(node: Any, x: Any, W: Any, b: Any = None) -> Any:
    """Convolve with the halo that windows see, beyond the edges of the image too; parameters are
    whole.
    """
    params, out = (W,) if b is None else (W, b), node.windows.out
    layout = only_first(node, x, *params)
    if not is_spatial(x):
        return _each_sample(node, x, params, W.shape[0], out)
    padded = isinstance(node, PaddedConvolution)
    window, mode = (node.window, node.modes) if padded else (window_of(node.windows), "constant")
    to = layout.after(node.label, window, (x.shape[0], W.shape[0], *out))
    block, (W, b) = block_of(node, x, to=to), layout.shared_all(W, b)
    y = convolved(block, window, W, b, node.groups, mode)
    return images_of(x, y, W.shape[0], out, to)


@layout_rule(Deconvolution)
def deconvolution(node: Any, x: Any, W: Any, b: Any = None) -> Any:
    """Spread values with the halo that outputs need; parameters are whole."""
    params, windows = (W,) if b is None else (W, b), node.windows
    layout, channels = only_first(node, x, *params), W.shape[1] * node.groups
    if not is_spatial(x):
        return _each_sample(node, x, params, channels, windows.size)
    block, (W, b) = block_of(node, x), layout.shared_all(W, b)
    y = deconvolved(block, window_of(windows), windows.size, W, b, node.groups)
    return images_of(x, y, channels, windows.size)


def _pooling(
    node: Any, x: DividedVariable, shape: Sequence[int], pool: Callable[[Block, Window], Variable]
) -> Variable:
    if not is_spatial(x):
        return _each_sample(node, x, (), x.shape[1], shape)
    window = window_of(node.windows)
    # (windows of the image that is made have no halos)
    to = x.layout.after(node.label, window, (*x.shape[:2], *shape))
    y = pool(block_of(node, x, channels=True, to=to), window)
    return images_of(x, y, x.shape[1], shape, to)


def _is_global(x: DividedVariable, windows: Windows) -> bool:
    """Return whether there is one window, which is the image, of which no cell is on two ranks."""
    return windows.size == windows.K and not any(windows.pad) and x.layout.window is None


@layout_rule(MaxPooling, halos=True)
def max_pooling(node: Any, x: Any) -> Any:
    """Take the maximum of each window with its halo; of whole images, one number is sent."""
    if is_spatial(x) and _is_global(x, node.windows):
        return extremum(node, x, tuple(range(2, x.ndim)), True, "max", first=True)
    return _pooling(node, x, node.windows.out, max_pooled)


@layout_rule(MaxPlaces, halos=True)
def places_of_maxima(node: Any, x: Any) -> Any:
    """Find where in its window each maximum is, with the halo that windows see."""
    return _pooling(node, x, node.windows.out, max_places)


@layout_rule(SumPooling, halos=True)
def sum_pooling(node: Any, x: Any) -> Any:
    """Add up each window with its halo; of whole images, one number is sent."""
    scale = node.scale
    if is_spatial(x) and _is_global(x, node.windows) and isinstance(scale, float | int):
        return summed(x, tuple(range(2, x.ndim)), True) * scale
    return _pooling(
        node, x, node.windows.out, lambda block, window: sum_pooled(block, window, scale)
    )


@layout_rule(LpPooling, halos=True)
def lp_pooling(node: Any, x: Any) -> Any:
    """Take the norm of each window with its halo."""
    return _pooling(
        node, x, node.windows.out, lambda block, window: lp_pooled(block, window, node.p)
    )


@layout_rule(Unpooling)
def unpooling(node: Any, x: Any) -> Any:
    """Spread values over their windows, with the halo that cells need."""
    scale, size = node.scale, node.windows.size
    if is_spatial(x) and not isinstance(scale, float | int):
        x, scale = x * scale, 1  # each window has a factor of its own
    return _pooling(node, x, size, lambda block, window: unpooled(block, window, size, scale))


@layout_rule(Spread)
def spread_rule(node: Any, x: Any) -> Any:
    """Put values to the places of their windows, with the halo that cells need."""
    places, size = node.places, node.windows.size
    if not is_divided(places):
        own = own_cells(places, x.layout)
    elif places.layout.matches(x.layout):
        own = places.part.array
    else:
        places.layout.refuse(node.label, f"the values are {x.layout}: both must be cut alike")
    if not is_spatial(x):
        return _each_sample(Spread(node.windows, own), x, (), x.shape[1], size)
    return _pooling(node, x, size, lambda block, window: spread(block, window, size, own))


@layout_rule(Blur)
def blur(node: Any, x: Any) -> Any:
    """The halo of one channel comes; beyond the edges of the image are zeros."""
    if not is_spatial(x):
        return x.layout.divided(node.apply((x.part,))[0])
    block, K = block_of(node, x, channels=True), tuple(map(len, node.weights))
    window = Window.of(len(K), K, 1, tuple([k // 2 for k in K]))

    def local(chunk: Variable, _: Box) -> Variable:
        return BlurWithin(node.weights).apply((chunk,))[0]

    nothing = block.x.shape[1], x.dtype
    return x.layout.divided(windowed(block, window, local, nothing))


@layout_rule(LocalConvolution, halos=True)
@layout_rule(LocalDeconvolution)
def local_convolution(node: Any, x: Any, W: Any, b: Any = None) -> Any:
    """Filters are whole on every rank, or cut as their places are; so are biases."""
    if not is_divided(x):
        other = next(p for p in (W, b) if is_divided(p))
        other.layout.refuse(node.label, f"the image, of shape {x.shape}, must be cut, too")
    windows, layout = node.windows, x.layout
    forward = isinstance(node, LocalConvolution)
    channels, out = (W.shape[0], windows.out) if forward else (W.shape[3], windows.size)
    window, dims = window_of(windows), [layout.parts_along(a) for a in (2, 3)]
    to = layout.after(node.label, window, (x.shape[0], channels, *out))
    block = block_of(node, x, to=to)

    def of_places(p: Any) -> Variable:
        """The part of a parameter (channels, height, width, …)."""
        grid = layout.grid.with_dims(dims)
        own = GridLayout.over(grid, p.shape, (1, 2))
        if not is_divided(p):
            # of a filter for each output, or of a value
            box = block.outputs(window) if forward else block.grid.block(p.shape[1:3])
            found: Variable = layout.shared(p)[(slice(None), *box.index)]
            return found
        if not own.matches(p.layout) or 0 in layout.cut_axes or to.window:
            p.layout.refuse(node.label, f"the image is {layout}: filters are cut as their places")
        part: Variable = p.part
        return part

    apply = locally_convolved if forward else locally_deconvolved
    y = apply(block, windows, of_places(W), None if b is None else of_places(b))
    return images_of(x, y, channels, out, to)


@layout_rule(Resize)
def resize(node: Any, x: Any) -> Any:
    """Resize one axis after the other, with the cells of other ranks that outputs are made of."""
    for axis, band in enumerate(node.bands, 2):
        if band is not None:
            x = _resize_along(axis, band, x)
    return x


def _resize_along(axis: int, band: Band, x: Any) -> Any:
    def resized(part: Variable, band: Band) -> Variable:
        return Resize([band if axis == i else None for i in (2, 3)]).apply((part,))[0]

    layout = x.layout.like((*x.shape[:axis], band.out, *x.shape[axis + 1 :]))
    if axis not in layout.cut_axes:
        return layout.divided(resized(x.part, band))
    wants, rank = [], layout.grid.comm.rank
    for box in layout.boxes:
        first, end = _seen(band.parts, box.start[axis], box.stop[axis])
        start, stop = list(box.start), list(box.stop)
        start[axis], stop[axis] = (first, end) if box.volume else (0, 0)
        wants.append(Box(tuple(start), tuple(stop)))
    chunk = x.layout.moved(x, layout, wants)
    own, cells = layout.box, wants[rank]
    if not own.volume:
        return layout.divided(empty_part(chunk, own))
    first, end = cells.start[axis], cells.stop[axis]
    parts = []
    for part in band.parts:
        a = max(part.outputs.start, own.start[axis])
        b = min(part.outputs.stop, own.stop[axis])
        if a < b:
            low, high = max(part.inputs.start, first), min(part.inputs.stop, end)
            rows = slice(a - part.outputs.start, b - part.outputs.start)
            columns = slice(low - part.inputs.start, high - part.inputs.start)
            outputs = slice(a - own.start[axis], b - own.start[axis])
            weights = part.weights[rows, columns]
            parts.append(Interpolation(outputs, slice(low - first, high - first), weights))
    return layout.divided(resized(chunk, Band(end - first, own.shape[axis], parts)))


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
