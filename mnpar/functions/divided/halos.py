"""Divided arrays with halos: what ``F.halo_exchange`` of a divided array returns.

It is the padded array. Of it each rank has what its block of the outputs of a window reads, so
parts overlap. A function of it sends nothing. One of single cells, or along whole axes, works on
all that a rank has. A window, or a slice, uses halos up: along an axis of which ranks have what
windows of k cells at a stride of s read, they have, of the outputs of windows of w cells at a
stride of t, what windows of (k - w) / t + 1 cells at a stride of s / t read. One cell at a stride
of 1 is a block without halos. What needs other cells, or would count those twice that several ranks
have, is an error.

Cells that several ranks have are computed by each of them alike, and each of them has a share of
their gradient: backward of the exchange adds the shares up at the cell's owner.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from operator import index
from typing import Any, NoReturn

import numpy as np

from mnpar.backend import Array
from mnpar.functions.array.get_item import get_item
from mnpar.functions.communication.exchange import exchange
from mnpar.functions.divided.blocks import slices_within
from mnpar.functions.divided.halo import SpatialGrid, halo_of, require_grid
from mnpar.functions.divided.layout import (
    REMEMBERED,
    DividedVariable,
    GridLayout,
    plan_between,
    zeros_like,
)
from mnpar.plans import Box, Window
from mnpar.plans.plan import plan_of_copies
from mnpar.variable import Variable

REMEDY = (
    "Functions of an array with halos send nothing: elementwise ones, concat and others along "
    "axes that are whole, windows (with no padding of their own) and slices that find in the "
    "halos all that they read. Call others with the array of which F.halo_exchange was made, and "
    "halo_exchange with the ksize, stride and dilate of the windows that follow; "
    "x.repartition(grid, axes) cuts the padded array into blocks without halos"
)
_TWICE = "some cells are on several ranks, which would count them twice"
Spans = tuple[tuple[int, int], ...]  # of windows on each axis of a grid, and their strides


class HaloLayout(GridLayout):
    """The layout of a padded array of which each rank has what its outputs read.

    Args:
        grid, shape, axes: as of :class:`GridLayout`; ``shape`` is that of the padded array.
        window: on each axis of the grid, without padding. One cell at a stride of 1 where parts
            are blocks.
    """

    __slots__ = ("window",)
    window: Window

    def __init__(
        self, grid: SpatialGrid, shape: Sequence[int], axes: Sequence[int], window: Window
    ) -> None:
        self.window = window
        super().__init__(grid, shape, axes)

    def __repr__(self) -> str:
        spans, steps = self.window.kernel, self.window.stride
        return f"{super().__repr__()}, with what windows of {spans} at strides of {steps} read"

    def like(self, shape: Sequence[int], axes: Sequence[int] | None = None) -> GridLayout:
        """Return the layout of another array, as long as this one along the axes that are cut."""
        axes = self.axes if axes is None else tuple(axes)
        if axes == self.axes and shape == self.shape:
            return self
        if [shape[a] for a in axes] != [self.shape[a] for a in self.axes]:
            self.refuse(f"an array of shape {tuple(shape)}", "its halos would be others")
        return with_halos(self.grid, shape, axes, self._spans)

    @property
    def _spans(self) -> Spans:
        return tuple(zip(self.window.kernel, self.window.stride, strict=True))

    def only(self, axes: Sequence[int]) -> GridLayout:
        """Return the layout of the same array cut along some of the axes alone."""
        kept = [i for i, a in enumerate(self.axes) if a in axes]
        grid = self.grid.with_dims([self.grid.dims[i] for i in kept])
        spans = tuple([self._spans[i] for i in kept])
        return with_halos(grid, self.shape, [self.axes[i] for i in kept], spans)

    def without(self, axes: Sequence[int]) -> NoReturn:
        """Raise LayoutError: what goes along an axis would be counted twice."""
        self.refuse(f"reading all of the axes {tuple(axes)}", _TWICE)

    def labels(self, who: str, t: Any, axis: int | None) -> NoReturn:
        """Raise LayoutError: a loss would count cells twice."""
        self.refuse(who, _TWICE)

    def refuse(self, who: str, why: str, remedy: str = REMEDY) -> NoReturn:
        """Raise LayoutError, with what can be done."""
        super().refuse(who, why, remedy)

    def after(self, who: str, windows: Window, shape: Sequence[int], first: int = 2) -> GridLayout:
        """Return the layout of the outputs of windows.

        Raises:
            LayoutError: they read more than the halos have, or are padded.
        """
        spans = list(self._spans)
        for i, (a, parts, (span, step)) in enumerate(
            zip(self.axes, self.grid.dims, self._spans, strict=True)
        ):
            if a < first or parts == 1:
                continue
            k, t, pad = windows.extent[a - first], windows.stride[a - first], windows.pad[a - first]
            if any(pad) or k > span or (span - k) % t or step % t:
                self.refuse(
                    who,
                    f"along axis {a}, windows that span {k} cells at a stride of {t}, padded by "
                    f"{pad}, do not fit the halos, of windows that span {span} at {step}",
                )
            spans[i] = ((span - k) // t + 1, step // t)
        return with_halos(self.grid, shape, self.axes, spans)

    def picked(self, who: str, axis: int, places: Array) -> GridLayout:
        """Return the layout of ``x[places]`` along an axis that is cut.

        Raises:
            LayoutError: a rank would need others' cells.
        """
        i, n = self.axes.index(axis), len(places)
        shape, spans = (*self.shape[:axis], n, *self.shape[axis + 1 :]), list(self._spans)
        if self.grid.dims[i] > 1:
            span, step = spans[i]
            outputs = (self.shape[axis] - span) // step + 1
            t = int(places[1] - places[0]) if n > 1 else 1
            alone = outputs == 1
            fits = n > 0 and t > 0 and bool((np.diff(places) == t).all())
            if fits and (alone or step % t == 0):
                kept = n if alone else n - step // t * (outputs - 1)
                spans[i] = kept, 1 if alone else step // t
                fits = kept > 0 and int(places[0]) + t * (kept - 1) < span
            else:
                fits = False
            if not fits:
                self.refuse(who, f"these places of axis {axis} are not within the halos")
        return with_halos(self.grid, shape, self.axes, spans)

    def moved(
        self, x: DividedVariable, to: GridLayout, wants: Sequence[Box] | None = None
    ) -> Variable:
        """Return the cells of ``x`` that this rank wants, and has.

        Raises:
            LayoutError: a rank wants others' cells.
        """
        wants = to.boxes if wants is None else tuple(wants)
        if not _within(tuple(wants), self.boxes):
            self.refuse("moving cells", "some ranks would need cells that others have")
        own = wants[self.grid.comm.rank]
        if own.empty:
            return Variable(x.xp.zeros(own.shape, x.dtype), requires_grad=False)
        return x.part if own == self.box else get_item(x.part, slices_within(own, self.box))

    def repartitioned(self, x: DividedVariable, to: GridLayout) -> Variable:
        """Return the cells that this rank has by another layout, each from one rank that has it.

        Raises:
            LayoutError: no rank has some cells, which the windows leave out.
        """
        plan = plan_of_copies(self.boxes, to.boxes)
        if not all([all(plan.route(rank).full) for rank in range(plan.size)]):
            self.refuse("repartition", "no rank has the cells between the windows")
        y: Variable = exchange(self.grid.comm, x.part, plan)
        return y

    def gathered(self, x: DividedVariable) -> Variable:
        """Return the whole padded array, on every rank, which own it together."""
        to = GridLayout.over(self.grid, self.shape, self.axes)
        return to.gathered(to.divided(self.repartitioned(x, to)))

    def gradient(self, part: Variable, g: Variable | None) -> DividedVariable:
        """Return the gradient: the sum of the shares that ranks have of their common cells."""
        share = zeros_like(part) if g is None else g
        return self.divided(exchange(self.grid.comm, share, plan_between(self.boxes, self.boxes)))


def with_halos(
    grid: SpatialGrid, shape: Sequence[int], axes: Sequence[int], spans: Sequence[tuple[int, int]]
) -> GridLayout:
    """Return the layout of an array of which ranks have what windows read; made once.

    Args:
        grid, shape, axes: as of :class:`GridLayout`.
        spans: of the windows on each axis of the grid, and their strides. On axes of one part,
            which are whole anyway, they count as one cell at a stride of 1; where all do, parts
            are blocks.
    """
    cut = [(1, 1) if d == 1 else span for d, span in zip(grid.dims, spans, strict=True)]
    if all([span == (1, 1) for span in cut]):
        return GridLayout.over(grid, shape, axes)
    key = tuple(shape), tuple(axes), tuple(cut)
    found: GridLayout | None = grid.layouts.get(key)
    if found is None:
        if len(grid.layouts) > REMEMBERED:
            grid.layouts.clear()
        window = Window.of(len(cut), [span for span, _ in cut], [step for _, step in cut])
        found = grid.layouts[key] = HaloLayout(grid, *key[:2], window)
    return found


def exchanged(
    x: DividedVariable,
    grid: SpatialGrid | None,
    shape: Sequence[int] | None,
    window: Sequence[Any],
    mode: Any,
    fill: float,
) -> DividedVariable:
    """Return the padded array of a divided one, with halos.

    Args:
        x: of blocks without halos.
        grid, shape: None, or those of x.
        window: ksize, stride, pad, dilate and cover_all.
        mode, fill: as of :func:`mnpar.functions.halo_exchange`.
    """
    who, layout = "halo_exchange", x.layout
    if type(layout) is not GridLayout:
        layout.refuse(who, "it takes blocks without halos, of rows, columns, …")
    first = 2 if shape is None else x.ndim - len(shape)
    if (
        first < 0
        or first >= x.ndim
        or (shape is not None and tuple(map(index, shape)) != x.shape[first:])
    ):
        raise ValueError(
            f"rank {layout.grid.comm.rank}: halo_exchange of a divided array of shape {x.shape}: "
            f"shape={shape} is not that of its last axes; without it, all axes from the third on "
            "are those of the window"
        )
    own, cells = layout.spatial(first), x.shape[first:]
    if grid is not None:
        require_grid(grid, "halo_exchange(x, grid, shape, ksize)")
    if grid is not None and (grid.comm is not own.comm or grid.dims != own.dims):
        layout.refuse(who, f"{grid} is not the grid by which it is cut", "Leave grid and shape out")
    reads = Window.of(len(cells), *window)
    block = (*x.part.shape[:first], *own.block(cells).shape)
    part = x.part if x.part.shape == block else x.part.reshape(block)
    with layout.as_input():
        y = halo_of(part, own, cells, reads, mode, fill, gaps=False)
    padded = reads.reads(Box.whole(reads.outputs(cells))).shape
    spans = [
        (1, 1) if a < first else (reads.extent[a - first], reads.stride[a - first])
        for a in layout.axes
    ]
    return with_halos(layout.grid, (*x.shape[:first], *padded), layout.axes, spans).divided(y)


@lru_cache(maxsize=1000)
def _within(wants: tuple[Box, ...], boxes: tuple[Box, ...]) -> bool:
    """Return whether each rank has all cells that it wants."""
    pairs = zip(wants, boxes, strict=True)
    return all([want.empty or want & box == want for want, box in pairs])
