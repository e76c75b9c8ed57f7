"""Layouts: which cells of the global array a rank's own array shows, and where.

A box is the plain case: an array of its shape, cell for cell. The array that a padded window reads
is not: beyond the edge of the global array it is filled, or shows other cells again, in order
(wrap), in reverse (reflect), or one cell many times (edge). On each axis such a map is a few
segments; a part of a layout is one segment of each axis.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from mnpar.backend import Array, Index
from mnpar.plans.box import Box

MODES = ("constant", "edge", "reflect", "symmetric", "wrap")


class View(NamedTuple):
    """The places of some cells in a rank's array."""

    slices: Index  # behind an Ellipsis, for the axes that an array has before the plan's
    # axes, counted from the last, on which one cell stands at all places of the slice
    spread: tuple[int, ...]
    place: Box

    def along(self, axis: int, start: int, stop: int, step: int) -> View:
        """Return the view of some of the cells: those from start to stop of an axis, in the order
        in which they travel.
        """
        own: Any = self.slices[axis + 1]
        if own.step == -1:
            last = own.start - (len(range(start, stop, step)) - 1) * step - start
            part = slice(own.start - start, last - 1 if last else None, -step)
        else:
            part = slice(own.start + start, own.start + stop, step)
        return self._replace(slices=(*self.slices[: axis + 1], part, *self.slices[axis + 2 :]))

    @property
    def one(self) -> View:
        """The view that has each cell at the first of its places only."""
        if not self.spread:
            return self
        stop = list(self.place.stop)
        slices = list(self.slices)
        for axis in self.spread:
            start = self.place.start[axis]
            stop[axis], slices[axis] = start + 1, slice(start, start + 1)
        return View(tuple(slices), (), Box(self.place.start, tuple(stop)))


@dataclass(frozen=True)
class Part:
    """Cells, and the place in a rank's array where they stand; a single cell can fill a longer
    place.

    Args:
        cells: of the global array.
        place: in the rank's array.
        reverse: for each axis whether the cells stand there in reverse.
    """

    cells: Box
    place: Box
    reverse: tuple[bool, ...]

    def view(self, cells: Box) -> View:
        """Return where some of its cells are."""
        index: list[Any] = [...]
        spread = []
        start = []
        stop = []
        for axis, (own, place) in enumerate(zip(self.cells.shape, self.place.shape, strict=True)):
            first = cells.start[axis] - self.cells.start[axis]
            last = cells.stop[axis] - self.cells.start[axis]
            if own != place:  # one cell, everywhere
                spread.append(axis - self.cells.ndim)
                first, last = 0, place
            elif self.reverse[axis]:
                first, last = own - last, own - first
            a = self.place.start[axis] + first
            b = self.place.start[axis] + last
            start.append(a)
            stop.append(b)
            index.append(
                slice(b - 1, a - 1 if a else None, -1) if self.reverse[axis] else slice(a, b)
            )
        return View(tuple(index), tuple(spread), Box(tuple(start), tuple(stop)))


# places on an axis: (start, stop, step) of each range
Places: TypeAlias = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class Layout:
    """A rank's array: its shape, and what of the global array it shows. Cells that no part covers
    are filled.

    Args:
        shape: of the rank's array.
        parts: their places have no common elements; their cells may.
        used: the places on each axis that the rank uses: of others' cells, only those travel whose
            place is used on all axes. None: all are.
    """

    shape: tuple[int, ...]
    parts: tuple[Part, ...]
    used: tuple[Places, ...] | None = None

    @classmethod
    def of(cls, box: Box) -> Layout:
        """Return the cells of a box as they are."""
        part = Part(box, Box.whole(box.shape), (False,) * box.ndim)
        return cls(box.shape, () if box.empty else (part,))

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)


def places_of(used: Array, step: int = 1) -> Places:
    """Return the places of a mask's True, as few ranges as they are with step 1 or with this one.

    Example:
        >>> import numpy as np
        >>> from mnpar.plans.layout import places_of
        >>> places_of(np.array([True, False, True, False, True, True]), step=2)
        ((0, 5, 2), (5, 6, 2))
    """
    found = []
    for s in (1, step):
        ranges = []
        for first in range(s):
            (at,) = np.nonzero(used[first::s])
            if len(at):
                for run in np.split(at, np.flatnonzero(np.diff(at) > 1) + 1):
                    start, last = first + s * int(run[0]), first + s * int(run[-1])
                    ranges.append((start, last + 1, s))
        found.append(tuple(ranges))
    return min(found, key=len)


class _Segment(NamedTuple):
    start: int  # cells of the global axis
    stop: int
    place: int  # where they begin in the rank's array
    length: int  # and how much of it they fill
    reverse: bool = False


def padded(box: Box, shape: Sequence[int], mode: str | Sequence[str] = "constant") -> Layout:
    """Return the array that shows a box which may reach beyond the global array, where it is padded
    as ``numpy.pad`` does.

    Args:
        box: what the rank reads.
        shape: of the global array.
        mode: one for all axes or one for each: ``'constant'`` (shows nothing there: it is filled),
            ``'edge'`` (the last cell), ``'reflect'`` and ``'symmetric'`` (the cells in reverse,
            without and with the last one), ``'wrap'`` (the cells from the other end).

    Returns:
        A layout of the box's shape.

    Raises:
        ValueError: there is no such mode.

    Example:
        >>> from mnpar.plans import Box, padded
        >>> [part.cells for part in padded(Box((-2,), (3,)), (5,), "wrap").parts]
        [Box(start=(3,), stop=(5,)), Box(start=(0,), stop=(3,))]
    """
    modes = (mode,) * box.ndim if isinstance(mode, str) else tuple(mode)
    if len(shape) != box.ndim or len(modes) != box.ndim or not all([m in MODES for m in modes]):
        raise ValueError(
            f"padded: {mode!r} is no padding of {box} on {tuple(shape)}: one of "
            f"{', '.join(MODES)} for each axis"
        )
    axes = [
        _segments(a, b, n, m) for a, b, n, m in zip(box.start, box.stop, shape, modes, strict=True)
    ]
    parts = [
        Part(
            Box(tuple([s.start for s in segments]), tuple([s.stop for s in segments])),
            Box(tuple([s.place for s in segments]), tuple([s.place + s.length for s in segments])),
            tuple([s.reverse for s in segments]),
        )
        for segments in itertools.product(*axes)
    ]
    return Layout(box.shape, tuple(parts))


def _segments(lo: int, hi: int, n: int, mode: str) -> list[_Segment]:
    """Return what an interval shows of an axis of ``n`` cells."""
    if n == 0 or hi <= lo:
        return []
    if mode == "constant":
        tiles = [(0, n, 0, n, False)]
    elif mode == "edge" or n == 1:  # the reflection of a single cell is that cell
        tiles = [
            (min(lo, 0), 0, 0, 1, False),
            (0, n, 0, n, False),
            (n, max(hi, n), n - 1, n, False),
        ]
    else:
        tiles = _tiles(lo, hi, n, mode)
    found = []
    for (
        start,
        stop,
        first,
        last,
        reverse,
    ) in tiles:  # the axis from start to stop shows the cells from first to last
        a = max(lo, start)
        b = min(hi, stop)
        if a >= b:
            continue
        if last - first == stop - start:  # a cell for each place
            first, last = (
                (last - (b - start), last - (a - start))
                if reverse
                else (first + a - start, first + b - start)
            )
        found.append(_Segment(first, last, a - lo, b - a, reverse))
    return found


def _tiles(lo: int, hi: int, n: int, mode: str) -> list[tuple[int, int, int, int, bool]]:
    """Return the copies of an axis that follow each other to the left and right of it, as far as
    they are seen.
    """
    if mode == "wrap":
        return [(k * n, k * n + n, 0, n, False) for k in range(lo // n, (hi - 1) // n + 1)]
    period = 2 * n - 2 if mode == "reflect" else 2 * n
    tiles = []
    for k in range(lo // period, (hi - 1) // period + 1):
        start = k * period
        back = (1, n - 1) if mode == "reflect" else (0, n)
        tiles += [(start, start + n, 0, n, False), (start + n, start + period, *back, True)]
    return tiles
