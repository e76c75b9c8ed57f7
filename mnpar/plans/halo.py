"""Halos: which input cells a block of outputs reads, for any kernel, stride, padding and dilation,
on any number of axes.

On one axis, output o reads the cells o·s − p + j·d for j from 0 to k − 1. So outputs [o0, o1) read
[o0·s − p, (o1 − 1)·s − p + (k − 1)·d + 1), wherever those cells are: on this rank, on its
neighbour, two ranks on, or nowhere (padding). A window may also begin inside the own block: then
the rest of the block goes to others, or to nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from numbers import Integral
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from mnpar.backend import Array
from mnpar.plans.box import Box, blocks
from mnpar.plans.layout import Layout, Places, padded, places_of
from mnpar.plans.plan import Plan

PerAxis: TypeAlias = int | Sequence[int]  # one number for all axes, or one for each


class Window(NamedTuple):
    """The cells that one output of a convolution or pooling reads, on each axis; :meth:`of` makes
    one.

    Example:
        >>> from mnpar.plans import Window
        >>> window = Window.of(2, kernel=3, stride=2, pad=1)
        >>> window.outputs((7, 5))
        (4, 3)
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    pad: tuple[tuple[int, int], ...]  # before and after
    dilation: tuple[int, ...]
    cover_all: bool

    @classmethod
    def of(
        cls,
        ndim: int,
        kernel: PerAxis,
        stride: PerAxis = 1,
        pad: PerAxis = 0,
        dilation: PerAxis = 1,
        cover_all: bool = False,
    ) -> Window:
        """From numbers for all axes, or one for each; a pad may also be a pair (before, after) for
        each axis.

        Raises:
            ValueError: not one for each axis, a kernel, stride or dilation below 1, or a pad below
                0.
            TypeError: not whole numbers.
        """
        kernels, strides, pads, dilations = [
            _each(ndim, what) for what in (kernel, stride, pad, dilation)
        ]
        pairs = tuple(
            [(p, p) if type(p) is int or not isinstance(p, Sequence) else tuple(p) for p in pads]
        )
        for number in (*kernels, *strides, *dilations, *[end for pair in pairs for end in pair]):
            if type(number) is not int and not isinstance(number, Integral):  # 3 / 2 for one
                raise TypeError(
                    "the kernel, stride, pad and dilation of a window are whole numbers, not "
                    f"{number!r}"
                )
        if min((*kernels, *strides, *dilations), default=1) < 1:
            raise ValueError(
                f"a window of kernel {kernel}, stride {stride}, dilation {dilation} needs "
                "numbers from 1 on"
            )
        if any([len(pair) != 2 or min(pair) < 0 for pair in pairs]):
            raise ValueError(
                "a pad is a number from 0 on, or a pair (before, after) of them for each "
                f"axis, not {pad!r}"
            )
        return cls(kernels, strides, pairs, dilations, cover_all)

    @property
    def extent(self) -> tuple[int, ...]:
        """The length that it spans on each axis."""
        return tuple([(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilation, strict=True)])

    def outputs(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return how many outputs there are on each axis of an array of this shape; none where it
        does not fit.
        """
        return tuple(
            [
                max(0, (n + before + after - span + (s - 1 if self.cover_all else 0)) // s + 1)
                for n, s, (before, after), span in zip(
                    shape, self.stride, self.pad, self.extent, strict=True
                )
            ]
        )

    def image(self, outputs: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the smallest array that has so many outputs."""
        return tuple(
            [
                s * (n - 1) + span - before - after - (s - 1 if self.cover_all else 0)
                for n, s, (before, after), span in zip(
                    outputs, self.stride, self.pad, self.extent, strict=True
                )
            ]
        )

    def reads(self, out: Box) -> Box:
        """Return the cells that a box of outputs reads; it may reach beyond the array, by the
        padding.
        """
        axes = list(zip(out.start, out.stop, self.stride, self.pad, self.extent, strict=True))
        start = tuple([a * s - pad for a, _, s, (pad, _), _ in axes])
        return Box(
            start,
            tuple(
                [
                    (b - 1) * s - pad + span if b > a else a * s - pad
                    for a, b, s, (pad, _), span in axes
                ]
            ),
        )

    def used(self, out: Box) -> tuple[Places, ...] | None:
        """Return which of the cells between the first and the last that a box of outputs reads are
        read; None: all of them. A stride and a dilation can leave gaps.
        """
        axes = list(zip(out.shape, self.kernel, self.stride, self.dilation, strict=True))
        masks: list[Array] = [np.zeros(n, np.bool_) for n in self.reads(out).shape]
        for mask, (n, k, s, d) in zip(masks, axes, strict=True):
            for j in range(k):
                mask[j * d : j * d + n * s : s] = True
        return _places(masks, self.stride)

    def reaching(self, outputs: Box, cells: Box) -> tuple[Places, ...] | None:
        """Return which of some outputs read some of these cells; None: all do."""
        masks: list[Array] = []
        for axis, (first, last) in enumerate(zip(outputs.start, outputs.stop, strict=True)):
            start = np.arange(first, last) * self.stride[axis] - self.pad[axis][0]
            offsets = np.arange(self.kernel[axis]) * self.dilation[axis]
            read = start[:, None] + offsets
            inside = (read >= cells.start[axis]) & (read < cells.stop[axis])
            masks.append(np.asarray(inside.any(axis=1)))
        return _places(masks, (1,) * len(masks))

    def inside(self, cells: Box) -> Box:
        """Return the outputs that read these cells only: those that a rank can compute before its
        halo has arrived.
        """
        axes = list(zip(cells.start, cells.stop, self.stride, self.pad, self.extent, strict=True))
        start = tuple([-(-(a + pad) // s) for a, _, s, (pad, _), _ in axes])
        stop = [(b + pad - span) // s + 1 for _, b, s, (pad, _), span in axes]
        return Box(start, tuple(map(max, start, stop)))

    def readers(self, cells: Box) -> Box:
        """Return the outputs whose window reaches over some of these cells: what a transposed
        window reads to compute these.
        """
        axes = list(zip(cells.start, cells.stop, self.stride, self.pad, self.extent, strict=True))
        start = tuple([-(-(a + pad - span + 1) // s) for a, _, s, (pad, _), span in axes])
        stop = [
            (b - 1 + pad) // s + 1 if b > a else first
            for (a, b, s, (pad, _), _), first in zip(axes, start, strict=True)
        ]
        return Box(start, tuple(map(max, start, stop)))


def reads(
    out: Box, kernel: PerAxis, stride: PerAxis = 1, pad: PerAxis = 0, dilation: PerAxis = 1
) -> Box:
    """Return the input cells that a box of outputs reads; beyond the ends of the input they are
    padding.

    Args:
        out: of the output's cells.
        kernel, stride, dilation: a number for all axes, or one for each.
        pad: the same; or a pair (before, after) for each axis.

    Returns:
        A box of input cells; empty on the axes on which ``out`` is.

    Example:
        >>> from mnpar.plans import Box, reads
        >>> (
        ...     reads(Box((0,), (4,)), kernel=3, pad=1),
        ...     reads(Box((4,), (7,)), kernel=3, stride=2, dilation=2),
        ... )
        (Box(start=(-1,), stop=(5,)), Box(start=(8,), stop=(17,)))
    """
    return Window.of(out.ndim, kernel, stride, pad, dilation).reads(out)


def output_shape(
    shape: Sequence[int],
    kernel: PerAxis,
    stride: PerAxis = 1,
    pad: PerAxis = 0,
    dilation: PerAxis = 1,
    cover_all: bool = False,
) -> tuple[int, ...]:
    """Return how many outputs a window has on each axis.

    Args:
        shape: of the input.
        kernel, stride, pad, dilation: as in :func:`reads`.
        cover_all: one more where the last cells are in no window (Chainer's word; others say ceil
            mode).

    Example:
        >>> from mnpar.plans import output_shape
        >>> (
        ...     output_shape((28, 7), 5),
        ...     output_shape((7, 8), 2, 2),
        ...     output_shape((7, 8), 2, 2, cover_all=True),
        ... )
        ((24, 3), (3, 4), (4, 4))
    """
    return Window.of(len(shape), kernel, stride, pad, dilation, cover_all).outputs(shape)


def transposed_shape(
    shape: Sequence[int],
    kernel: PerAxis,
    stride: PerAxis = 1,
    pad: PerAxis = 0,
    dilation: PerAxis = 1,
    cover_all: bool = False,
) -> tuple[int, ...]:
    """Return the shape that a transposed convolution or unpooling makes of this one: the smallest
    with so many windows.

    Args:
        shape: of the array, a value for each window.
        kernel, stride, pad, dilation: as in :func:`reads`.
        cover_all: as in :func:`output_shape`.

    Example:
        >>> from mnpar.plans import transposed_shape
        >>> transposed_shape((4, 5), 4, stride=2, pad=1)
        (8, 10)
    """
    return Window.of(len(shape), kernel, stride, pad, dilation, cover_all).image(shape)


def halo_plan(
    have: Sequence[Box],
    outputs: Sequence[Box],
    shape: Sequence[int],
    window: Window,
    mode: str | Sequence[str] = "constant",
    gaps: bool = False,
) -> Plan:
    """Return the plan that brings each rank what its outputs read.

    Args:
        have: for each rank the block of the input that it has.
        outputs: for each rank the block of the output that it computes.
        shape: of the whole input.
        window: what an output reads.
        mode: the padding, as in :func:`padded`.
        gaps: leave out cells of others that no output reads, though cells before and behind them
            are read; the array is filled there.

    Returns:
        A plan whose wanted arrays have a window's outputs at exactly this rank's outputs, without
        any padding.

    Example:
        >>> from mnpar.plans import Window, blocks, halo_plan
        >>> plan = halo_plan(
        ...     blocks((28,), (2,)), blocks((24,), (2,)), (28,), Window.of(1, kernel=5)
        ... )
        >>> [layout.shape for layout in plan.want], plan.received(0)
        ([(16,), (16,)], 2)
    """
    want = [padded(window.reads(out), shape, mode) for out in outputs]
    if gaps:
        pairs = zip(want, outputs, strict=True)
        want = [replace(layout, used=window.used(out)) for layout, out in pairs]
    return Plan(have, want)


grid_blocks = lru_cache(maxsize=1000)(blocks)
"""The blocks of an array on a grid: all ranks' for all arrays of a program, remembered."""


@lru_cache(maxsize=1000)
def grid_halo(
    grid: tuple[int, ...],
    ranks: int,
    shape: tuple[int, ...],
    window: Window,
    mode: str | Sequence[str],
    gaps: bool = False,
) -> Plan:
    """Return the halo plan of an array, and of its outputs, both in even blocks on a grid;
    remembered.
    """
    have = blocks(shape, grid, ranks)
    outputs = blocks(window.outputs(shape), grid, ranks)
    return halo_plan(have, outputs, shape, window, mode, gaps)


def halo_boxes(
    shape: tuple[int, ...], grid: tuple[int, ...], ranks: int, window: Window
) -> tuple[Box, ...]:
    """Return what each rank's block of the outputs of a window reads, as boxes that overlap.

    Args:
        shape: of the array, with its padding.
        grid, ranks: as of :func:`mnpar.plans.blocks`.
        window: without padding.
    """
    return tuple([window.reads(out) for out in blocks(window.outputs(shape), grid, ranks)])


@lru_cache(maxsize=1000)
def held_plan(
    grid: tuple[int, ...],
    ranks: int,
    shape: tuple[int, ...],
    held: tuple[Window, Window],
    window: Window,
    mode: str | Sequence[str],
) -> Plan:
    """Return the plan that brings each rank what its outputs read, where it has halos already: a
    part of its own cells, and the padding of axes that are whole; remembered.

    Args:
        grid, ranks, shape: of the array, and who has it.
        held: the windows for which ranks have the cells that these read: of the array, and of the
            outputs.
        window, mode: what an output reads, and the padding.
    """
    before, after = held
    outputs = halo_boxes(window.outputs(shape), grid, ranks, after)
    want = [padded(window.reads(out), shape, mode) for out in outputs]
    return Plan(halo_boxes(shape, grid, ranks, before), want, replicated=True)


def transposed_plan(
    have: Sequence[Box],
    cells: Sequence[Box],
    outputs: Sequence[int],
    window: Window,
    gaps: bool = False,
) -> Plan:
    """Return the plan that brings each rank the outputs of a window that reach its block of cells:
    for transposed convolutions.

    Args:
        have: for each rank the block of outputs (here: what is spread) that it has.
        cells: for each rank the block of the image that it computes.
        outputs: the shape of all outputs.
        window: what an output reads of the image, and here gives to it.
        gaps: leave out outputs of others that reach over a block without giving to it; the array
            is filled there.

    Example:
        >>> from mnpar.plans import Window, blocks, transposed_plan
        >>> plan = transposed_plan(
        ...     blocks((4,), (2,)), blocks((9,), (2,)), (4,), Window.of(1, kernel=3, stride=2)
        ... )
        >>> [layout.shape for layout in plan.want], plan.received(0), plan.received(1)
        ([(3,), (2,)], 1, 0)
    """
    boxes = [window.readers(box) & Box.whole(outputs) for box in cells]
    if not gaps:
        return Plan(have, boxes)
    pairs = zip(boxes, cells, strict=True)
    return Plan(
        have, [replace(Layout.of(box), used=window.reaching(box, block)) for box, block in pairs]
    )


@lru_cache(maxsize=1000)
def grid_transposed(
    grid: tuple[int, ...],
    ranks: int,
    outputs: tuple[int, ...],
    shape: tuple[int, ...],
    window: Window,
) -> Plan:
    """Return the transposed plan of an image and its window's outputs, both in even blocks on a
    grid, with gaps; remembered.
    """
    return transposed_plan(
        blocks(outputs, grid, ranks), blocks(shape, grid, ranks), outputs, window, gaps=True
    )


def _places(masks: Sequence[Array], steps: Sequence[int]) -> tuple[Places, ...] | None:
    """Return the places of masks, one for each axis; None where all are True."""
    if all([mask.all() for mask in masks]):
        return None
    return tuple([places_of(mask, step) for mask, step in zip(masks, steps, strict=True)])


def _each(ndim: int, numbers: Any) -> tuple[Any, ...]:
    if type(numbers) is int:
        return (numbers,) * ndim
    given = tuple(numbers) if isinstance(numbers, Sequence) else (numbers,) * ndim
    if len(given) != ndim:
        raise ValueError(f"{numbers!r} is not one number for all, or one for each, of {ndim} axes")
    return given
