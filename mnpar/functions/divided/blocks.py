"""Runs a local operation on blocks: it gets the cells that this rank's outputs read, and does not
know of other ranks.

``windowed`` is for what reads a window for each output (pooling; convolutions have
halo_convolution.py), ``transposed`` for what adds a window to the image for each value (transposed
convolution, unpooling). Both move exactly the cells that are needed, can work while these are on
their way, and leave a rank without outputs in the exchange: others may want its cells. SplitPieces
and JoinPieces are each other's adjoints.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mnpar import backend
from mnpar.backend import Array, Index
from mnpar.configuration import is_recording
from mnpar.function_node import InputGradients
from mnpar.functions.array.joining import concat, split_axis
from mnpar.functions.communication.exchange import exchange, iexchange
from mnpar.functions.communication.shared import CopyTo
from mnpar.functions.divided.halo import SpatialGrid, brought
from mnpar.functions.node import GenericFunction
from mnpar.kernels.windows import Windows
from mnpar.plans import Box, Plan, Window
from mnpar.plans.halo import grid_transposed, halo_boxes, held_plan
from mnpar.variable import Variable, as_variable

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator


Local = Callable[[Variable, Box], Variable]


class Block(NamedTuple):
    """This rank's block ``x`` (N, C, …) of an image of ``shape`` (its spatial axes); ``held``: with
    the halos of a window, and that whose halos outputs have (functions/divided/halos.py).
    """

    x: Variable
    grid: SpatialGrid
    shape: tuple[int, ...]
    held: tuple[Window, Window] | None = None

    @property
    def have(self) -> Box:
        """The cells of the image that ``x`` has."""
        return self._box(self.shape, 0)

    def outputs(self, window: Window) -> Box:
        """Return the outputs of a window that this rank computes."""
        return self._box(window.outputs(self.shape), 1)

    def _box(self, shape: tuple[int, ...], which: int) -> Box:
        grid = self.grid
        if self.held is None:
            return grid.block(shape)
        return halo_boxes(shape, grid.dims, grid.comm.size, self.held[which])[grid.comm.rank]

    def halo(self, window: Window, mode: Any = "constant") -> Plan:
        """Return the plan that brings what these outputs read."""
        grid, modes = self.grid, mode if isinstance(mode, str) else tuple(mode)
        if self.held is None:
            return grid.halo(self.shape, window, modes, gaps=True)
        return held_plan(grid.dims, grid.comm.size, self.shape, self.held, window, modes)


WORTH_HIDING = (
    2**16
    # cells, of all channels, that a rank has: with fewer the cutting and joining costs more than
    # the waiting
)


WORTH_PACKING = 2**16  # bytes of parameters at most, whose gradients travel in one message


class SplitPieces(GenericFunction):
    """Parts of an array, by slices of its last axes; they may overlap."""

    def __init__(self, places: Sequence[Index], infinite: bool = False) -> None:
        self.places, self.infinite = tuple(places), infinite

    def forward(self, x: Array) -> tuple[Array, ...]:
        return tuple([x[(..., *place)] for place in self.places])

    def backward(self, *gys: Any) -> InputGradients:
        shape = self.inputs[0].shape
        given = [i for i, gy in enumerate(gys) if gy is not None]
        if not given:
            return None
        node = JoinPieces([self.places[i] for i in given], shape[-len(self.places[0]) :])
        return lambda: node(*[gys[i] for i in given])


class JoinPieces(GenericFunction):
    """An array of zeros with parts added to it; ``full``: they cover it once."""

    def __init__(self, places: Sequence[Index], shape: Sequence[int], full: bool = False) -> None:
        self.places = tuple(places)
        self.shape = tuple(shape)
        self.full = full

    def forward(self, *xs: Array) -> Array:
        xp = backend.get_array_module(*xs)
        shape = (*xs[0].shape[: xs[0].ndim - len(self.shape)], *self.shape)
        y = xp.empty(shape, xs[0].dtype) if self.full else xp.zeros(shape, xs[0].dtype)
        for i, (place, x) in enumerate(zip(self.places, xs, strict=True)):
            if self.full or not i:
                y[(..., *place)] = x
            else:
                y[(..., *place)] += x
        return y

    def backward(self, gy: Variable | Array) -> InputGradients:
        return tuple([lambda place=place: gy[(..., *place)] for place in self.places])


def slices_within(box: Box, within: Box) -> Index:
    """Return where a box lies in the array of another."""
    axes = zip(box.start, box.stop, within.start, strict=True)
    return tuple([slice(a - start, b - start) for a, b, start in axes])


def join_pieces(parts: Sequence[Variable], boxes: Sequence[Box], whole: Box) -> Variable:
    """The array of a box, of parts that do not overlap; zeros where there is none."""
    full = sum([box.volume for box in boxes]) == whole.volume
    return JoinPieces([slices_within(box, whole) for box in boxes], whole.shape, full).apply(
        tuple(parts)
    )[0]


def unpadded_windows(who: str, size: Sequence[int], window: Window) -> Windows:
    """The same windows over a chunk, which has its padding already."""
    return Windows.over(who, tuple(size), window.kernel, window.stride, 0, window.dilation)


def should_hide(x: Variable, grid: SpatialGrid) -> bool:
    """Return whether to work while the halo is on its way; where the grid leaves it open, where
    ranks are on several hosts and have much to do.
    """
    # (all ranks ask: no short way)
    if grid.hide is None:
        return grid.comm.inter_size > 1 and x.size >= WORTH_HIDING
    return grid.hide


def windowed(
    block: Block,
    window: Window,
    local: Local,
    nothing: tuple[int, Any],
    fill: float = 0,
    hide: bool = True,
) -> Variable:
    """This rank's outputs of a local operation on windows.

    Args:
        block: of the image.
        window: what an output reads.
        local: from an array that has what a box of outputs reads, without padding, to these
            outputs; it also gets the box.
        nothing: channels and dtype of the outputs, for a rank that has none.
        fill: the padding.
        hide: where the grid hides halos, compute what needs none before it is awaited, if that is
            most of the block.
    """
    x, grid, plan = block.x, block.grid, block.halo(window)
    have, out = block.have, block.outputs(window)
    inner = window.inside(have) & out
    receives = not plan.idle(grid.comm.rank) and bool(plan.route(grid.comm.rank).receives)
    hide = hide and should_hide(x, grid)
    later = hide and receives and 2 * inner.volume > out.volume
    chunk = brought(x, grid.comm, plan, fill, later)
    if out.empty or not later:
        return empty_block(x, out, nothing) if out.empty else local(chunk, out)
    (mine,) = SplitPieces([slices_within(window.reads(inner), have)]).apply((x,))
    boxes = [inner, *out.minus(inner)]
    parts = [local(mine, inner)]
    strips = SplitPieces(
        [slices_within(window.reads(box), window.reads(out)) for box in boxes[1:]],
        infinite=not isfinite(fill),
    )
    parts += [local(part, box) for part, box in zip(strips.apply((chunk,)), boxes[1:], strict=True)]
    return join_pieces(parts, boxes, out)


def transposed(
    xs: Sequence[Any],
    grid: SpatialGrid,
    shape: tuple[int, ...],
    image: tuple[int, ...],
    window: Window,
    local: Callable[..., Variable],
    nothing: tuple[int, Any],
    hide: bool = True,
) -> Variable:
    """This rank's block of an image to which windows are added.

    Args:
        xs: blocks (N, C, …) of arrays of ``shape``, one value for each window.
        image: the shape of the whole image.
        window: of the image.
        local: from the values of some windows, and the box of cells that they reach, to an image of
            that box; linear in the first of them.
        nothing: channels and dtype of the image, for a rank that has nothing of it, or no window.
        hide: where the grid hides halos, add up this rank's own windows before those of others are
            awaited, if they are most of them.

    Returns:
        The block; cells that no window reaches are zeros.
    """
    plan = grid_transposed(grid.dims, grid.comm.size, shape, image, window)
    have = grid.block(shape)
    cells = grid.block(image)
    values = window.readers(cells) & Box.whole(shape)
    own = have & values
    receives = not plan.idle(grid.comm.rank) and bool(plan.route(grid.comm.rank).receives)
    hide = hide and should_hide(as_variable(xs[0]), grid)
    later = hide and receives and 2 * own.volume > values.volume
    chunks = [(iexchange if later else exchange)(grid.comm, x, plan) for x in xs]
    boxes = [own, *values.minus(own)] if later else [values]
    reached = [window.reads(box) for box in boxes]
    shown = [box & cells for box in reached]
    if values.empty or all([box.empty for box in shown]):
        return empty_block(as_variable(xs[0]), cells, nothing)
    parts: list[Variable] = []
    for box, wide, seen in zip(boxes, reached, shown, strict=True):
        arrays, within = (xs, have) if later and box is own else (chunks, values)
        taken = [
            x if box == within else SplitPieces([slices_within(box, within)]).apply((x,))[0]
            for x in arrays
        ]
        parts += SplitPieces([slices_within(seen, wide)]).apply((local(*taken, wide),))
    if len(parts) == 1 and shown == [cells]:
        return parts[0]
    (y,) = JoinPieces([slices_within(box, cells) for box in shown], cells.shape).apply(tuple(parts))
    return y


def empty_block(x: Variable, box: Box, nothing: tuple[int, Any]) -> Variable:
    """A block of zeros (N, channels, …), through which no gradient flows."""
    channels, dtype = nothing
    return Variable(x.xp.zeros((x.shape[0], channels, *box.shape), dtype), requires_grad=False)


def copy_all_to(comm: Communicator, *params: Any) -> tuple[Any, ...]:
    """:func:`copy_to` of several parameters that all ranks hold alike; the gradients of small ones
    are summed in one message.

    Args:
        comm: all its ranks call this.
        params: Variables of the same shapes on each rank; Nones stay Nones.

    Returns:
        The same values. The gradient of each is the sum over ranks, on every rank.
    """
    given = [as_variable(p) for p in params if p is not None]
    if comm.size == 1 or not given or not is_recording():
        return params
    if (
        len(given) == 1
        or len({p.dtype for p in given}) > 1
        or sum([p.array.nbytes for p in given]) > WORTH_PACKING
    ):
        return tuple([None if p is None else CopyTo(comm).apply((p,))[0] for p in params])
    (flat,) = CopyTo(comm).apply((concat([p.reshape((-1,)) for p in given], axis=0),))
    parts = iter(split_axis(flat, np.cumsum([p.size for p in given])[:-1].tolist(), axis=0))
    return tuple([None if p is None else next(parts).reshape(p.shape) for p in params])
