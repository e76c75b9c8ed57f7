"""Boxes of cells: half-open intervals on each axis, and how lengths are cut into blocks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Box:
    """The cells from ``start`` up to, and without, ``stop`` on each axis of a global array.

    Args:
        start, stop: one number for each axis; they may lie outside the array, and a box may be
            empty.

    Raises:
        ValueError: not as many starts as stops, or a stop before its start.

    Example:
        >>> from mnpar.plans import Box
        >>> a, b = Box((0, 0), (4, 4)), Box((2, 3), (6, 9))
        >>> a & b
        Box(start=(2, 3), stop=(4, 4))
        >>> (a & b).volume, (a & b).shape, (a & b.shift((9, 0))).empty
        (2, (2, 1), True)
    """

    start: tuple[int, ...]
    stop: tuple[int, ...]

    def __post_init__(self) -> None:
        start = tuple(map(int, self.start))
        stop = tuple(map(int, self.stop))
        if len(start) != len(stop) or any([b < a for a, b in zip(start, stop, strict=True)]):
            raise ValueError(
                f"a box from {start} to {stop} is none: each axis needs a stop that is not "
                "before its start"
            )
        object.__setattr__(self, "start", start)
        object.__setattr__(self, "stop", stop)

    @classmethod
    def whole(cls, shape: Sequence[int]) -> Box:
        """Return all cells of an array."""
        return cls((0,) * len(shape), tuple(shape))

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.start)

    @property
    def shape(self) -> tuple[int, ...]:
        """The length on each axis."""
        return tuple([b - a for a, b in zip(self.start, self.stop, strict=True)])

    @property
    def index(self) -> tuple[slice, ...]:
        """The index of its cells in the whole array."""
        return tuple([slice(a, b) for a, b in zip(self.start, self.stop, strict=True)])

    @property
    def volume(self) -> int:
        """The number of cells."""
        return math.prod(self.shape)

    @property
    def empty(self) -> bool:
        """True if it has no cells."""
        return self.volume == 0

    def __and__(self, other: Box) -> Box:
        """Return the cells of both."""
        start = tuple(map(max, self.start, other.start))
        return Box(start, tuple(map(max, start, map(min, self.stop, other.stop))))

    def shift(self, steps: Sequence[int]) -> Box:
        """Return the box moved along each axis."""
        return Box(
            tuple([a + s for a, s in zip(self.start, steps, strict=True)]),
            tuple([b + s for b, s in zip(self.stop, steps, strict=True)]),
        )

    def minus(self, other: Box) -> list[Box]:
        """Return its cells that are not the other's, as boxes without common cells."""
        rest, common = self, self & other
        if common.empty:
            return [] if self.empty else [self]
        boxes = []
        for axis in range(self.ndim):  # cut off what lies before and after, axis by axis
            cuts = (rest.start[axis], common.start[axis], common.stop[axis], rest.stop[axis])
            boxes += [
                _between(rest, axis, cuts[0], cuts[1]),
                _between(rest, axis, cuts[2], cuts[3]),
            ]
            rest = _between(rest, axis, cuts[1], cuts[2])
        return [box for box in boxes if not box.empty]


def _between(box: Box, axis: int, start: int, stop: int) -> Box:
    before = slice(None, axis)
    after = slice(axis + 1, None)
    return Box(
        (*box.start[before], start, *box.start[after]),
        (*box.stop[before], stop, *box.stop[after]),
    )


def block(n: int, parts: int, index: int) -> tuple[int, int]:
    """Return where one of ``parts`` blocks of ``n`` cells begins and ends: lengths differ by 1 at
    most, the longer ones come first.

    Args:
        n: cells, 0 or more.
        parts: blocks, 1 or more; if there are more of them than cells, the last ones are empty.
        index: which block, 0 to ``parts`` - 1.

    Returns:
        Start and stop.

    Raises:
        ValueError: there is no such block.

    Example:
        >>> from mnpar.plans import block
        >>> [block(7, 3, i) for i in range(3)], block(1, 3, 2)
        ([(0, 3), (3, 5), (5, 7)], (1, 1))
    """
    if n < 0 or not 0 <= index < parts:
        raise ValueError(
            f"block: {n} cells in {parts} parts have no part {index}: it counts from 0 to "
            f"{parts - 1}"
        )
    small, more = divmod(n, parts)
    start = index * small + min(index, more)
    return start, start + small + (index < more)


def blocks(shape: Sequence[int], grid: Sequence[int], ranks: int | None = None) -> tuple[Box, ...]:
    """Return the blocks of an array on a grid of ranks, one for each rank, rows of the grid first.

    Args:
        shape: of the global array.
        grid: how many parts on each axis: ``(P, 1)`` cuts rows, ``(1, P)`` columns.
        ranks: if there are more of them than parts, the last ones get empty boxes.

    Returns:
        A box for each rank.

    Raises:
        ValueError: shape and grid have not the same axes, or there are more parts than ranks.

    Example:
        >>> from mnpar.plans import blocks
        >>> [box.shape for box in blocks((5, 3), (2, 2))]
        [(3, 2), (3, 1), (2, 2), (2, 1)]
    """
    shape = tuple(shape)
    grid = tuple(grid)
    parts = math.prod(grid)
    ranks = parts if ranks is None else ranks
    if len(shape) != len(grid) or min(grid, default=1) < 1 or parts > ranks:
        raise ValueError(
            f"blocks: a grid of {grid} parts does not cut an array of shape {shape} for "
            f"{ranks} ranks"
        )
    boxes = []
    for place in itertools.product(*map(range, grid)):
        ends = [block(n, p, i) for n, p, i in zip(shape, grid, place, strict=True)]
        boxes.append(Box(tuple([a for a, _ in ends]), tuple([b for _, b in ends])))
    return (*boxes, *[Box(shape, shape)] * (ranks - parts))


def everywhere(shape: Sequence[int], ranks: int) -> tuple[Box, ...]:
    """Return the whole array on every rank.

    Example:
        >>> from mnpar.plans import everywhere
        >>> [box.shape for box in everywhere((2, 3), 2)]
        [(2, 3), (2, 3)]
    """
    return (Box.whole(shape),) * ranks
