"""Plan: what every rank has and what every rank wants (law 2), worked out alike on every rank,
without asking anybody.

Each wanted cell is the sum of those who have it, so a plan says all of a communication, and its
adjoint is the same plan with the two words exchanged. The messages follow from the boxes
alone, by intersection.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from mnpar.plans.box import Box
from mnpar.plans.layout import Layout, Part, Places, View

Layouts: TypeAlias = Layout | tuple[Layout, ...]  # a rank's array, or arrays


class Move(NamedTuple):
    """A box of cells that goes from an array of one rank to an array of another, or of the same."""

    source: int  # which of the arrays that the giver has
    give: View
    dest: int  # which of those that the taker wants
    take: View
    shape: tuple[int, ...]  # as it travels

    @property
    def back(self) -> Move:
        """The same cells the other way."""
        return Move(self.dest, self.take, self.source, self.give, self.shape)


class Parcel(NamedTuple):
    """All cells that one rank gives another, in one message."""

    rank: int  # to which, or from which, it goes
    moves: tuple[Move, ...]
    cells: int


class Route(NamedTuple):
    """One rank's part in a plan."""

    sends: tuple[Parcel, ...]  # the next rank first, so that not all send to the same one
    own: Parcel  # what stays on the rank
    receives: tuple[Parcel, ...]  # in rank order
    apart: tuple[bool, ...]  # for each wanted array: whether no two moves go to the same element
    full: tuple[bool, ...]  # … and every element gets a value
    idle: bool  # the rank wants just what it has, and nobody else wants or has any of it


@dataclass(frozen=True)
class Plan:
    """The boxes of one global array that each rank has, and those that each rank wants.

    Args:
        have: for each rank the box of cells it has, or a sequence of boxes if it has several
            arrays; also layouts.
        want: the same of what it wants.
        replicated: cells that several ranks have are copies of one another, and each wanted cell is
            taken from one of them: from the rank itself if it has it, else from the next rank that
            does. Otherwise it is the sum of all who have it.
        turned: (made by ``adjoint``) the copies are those of what is wanted.

    Raises:
        ValueError: not as many ranks that have as ranks that want, or boxes of different numbers of
            axes.

    Example:
        >>> from mnpar.plans import Box, Plan, blocks, everywhere
        >>> plan = Plan(
        ...     have=blocks((5,), (2,)), want=everywhere((5,), 2)
        ... )  # an allgather of 3 and 2 cells
        >>> plan.sent(0), plan.received(0)
        (3, 2)
        >>> plan.adjoint.sent(0), plan.adjoint.received(0)  # a reduce_scatter
        (2, 3)
    """

    have: Sequence[Any]
    want: Sequence[Any]
    replicated: bool = False
    turned: bool = False
    _routes: dict[int, Route] = field(default_factory=dict, init=False, repr=False, compare=False)
    _arrivals: dict[int, dict[int, list[Move]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "have", tuple([_layouts(entry) for entry in self.have]))
        object.__setattr__(self, "want", tuple([_layouts(entry) for entry in self.want]))
        axes = {layout.ndim for entry in (*self.have, *self.want) for layout in several(entry)}
        if len(self.have) != len(self.want) or len(axes) > 1:
            raise ValueError(
                "a plan needs one entry for each rank and boxes of one global array: "
                f"{len(self.have)} ranks have, "
                f"{len(self.want)} want, with {sorted(axes)} axes"
            )

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.have)

    @property
    def ndim(self) -> int:
        """The number of axes that are divided; arrays may have others before them, which are whole
        on every rank.
        """
        return next(
            (layout.ndim for entry in (*self.have, *self.want) for layout in several(entry)), 0
        )

    @cached_property
    def adjoint(self) -> Plan:
        """Return the plan with the two words exchanged."""
        plan = Plan(self.want, self.have, self.replicated, self.replicated and not self.turned)
        plan.__dict__["adjoint"] = self
        return plan

    @cached_property
    def fingerprint(self) -> int:
        """Return a number that different plans most likely do not share: messages carry it."""
        return zlib.crc32(repr((self.have, self.want, self.replicated, self.turned)).encode()) >> 1

    @cached_property
    def gives_alike(self) -> bool:
        """Return whether all ranks want the same cells."""
        return all([layouts == self.want[0] for layouts in self.want])

    def sent(self, rank: int) -> int:
        """Return how many cells leave a rank."""
        return sum([parcel.cells for parcel in self.route(rank).sends])

    def received(self, rank: int) -> int:
        """Return how many cells come to a rank."""
        return sum([parcel.cells for parcel in self.route(rank).receives])

    def idle(self, rank: int) -> bool:
        """Return whether a rank wants just what it has, and nobody else wants or has any of it."""
        return self.route(rank).idle

    def route(self, rank: int) -> Route:
        """Return what one rank gives, keeps and takes."""
        if rank not in self._routes:
            others = [(rank + step) % self.size for step in range(1, self.size)]
            given = [self._moves(giver, rank) for giver in range(self.size)]
            arriving = [move for moves in given for move in moves]
            sends = [_parcel(o, self._used(rank, o, self._moves(rank, o))) for o in others]
            receives = [_parcel(o, self._used(o, rank, given[o])) for o in sorted(others)]
            own = _parcel(rank, given[rank])
            cells = sum([parcel.cells for parcel in (own, *receives)])
            whole = cells == _parcel(rank, arriving).cells  # nothing that is not used stays away
            apart, full = [], []
            for i, layout in enumerate(several(self.want[rank])):
                places = [move.take.place for move in arriving if move.dest == i]
                apart.append(_no_overlap(places))
                full.append(
                    apart[-1]
                    and whole
                    and sum([place.volume for place in places]) == Box.whole(layout.shape).volume
                )
            sends = [parcel for parcel in sends if parcel.moves]
            receives = [parcel for parcel in receives if parcel.moves]
            idle = not (sends or receives) and (_shown(self.have[rank]) == _shown(self.want[rank]))
            self._routes[rank] = Route(
                tuple(sends), own, tuple(receives), tuple(apart), tuple(full), idle
            )
        return self._routes[rank]

    def _used(self, giver: int, taker: int, moves: list[Move]) -> list[Move]:
        """Return the moves from one rank to another without the cells that are not used."""
        have, want = several(self.have[giver]), several(self.want[taker])
        if all([layout.used is None for layout in (*have, *want)]):
            return moves
        moves = [p for move in moves for p in _pieces(move, want[move.dest].used, move.take)]
        return [p for move in moves for p in _pieces(move, have[move.source].used, move.give)]

    def _moves(self, giver: int, taker: int) -> list[Move]:
        if self.turned:
            return [move.back for move in self.adjoint._moves(taker, giver)]
        if self.replicated:
            if taker not in self._arrivals:
                self._arrivals[taker] = self._first_come(taker)
            return self._arrivals[taker].get(giver, [])
        wanted = _parts(self.want[taker])
        return [
            move
            for given in _parts(self.have[giver])
            for to in wanted
            for move in _meet(given, to, to[1].cells)
        ]

    def _first_come(self, taker: int) -> dict[int, list[Move]]:
        """Return each wanted cell from one of the ranks that have it."""
        moves: dict[int, list[Move]] = {}
        for to in _parts(self.want[taker]):
            missing = [to[1].cells]
            for step in range(self.size):
                giver = (taker + step) % self.size
                for given in _parts(self.have[giver]):
                    found = [move for box in missing for move in _meet(given, to, box)]
                    moves.setdefault(giver, []).extend(
                        [move._replace(give=move.give.one) for move in found]
                    )
                    missing = [rest for box in missing for rest in box.minus(given[1].cells)]
        return moves


@lru_cache(maxsize=1000)
def plan_of_copies(have: tuple[Any, ...], want: tuple[Any, ...]) -> Plan:
    """Return the plan with ``replicated=True``; remembered."""
    return Plan(have, want, replicated=True)


def several(entry: Layouts) -> tuple[Layout, ...]:
    """Return a rank's arrays as a tuple."""
    return entry if isinstance(entry, tuple) else (entry,)


def _layouts(entry: Any) -> Layouts:
    if isinstance(entry, Layout):
        return entry
    return (
        Layout.of(entry)
        if isinstance(entry, Box)
        else tuple([Layout.of(e) if isinstance(e, Box) else e for e in entry])
    )


def _parts(entry: Layouts) -> list[tuple[int, Part]]:
    return [(i, part) for i, layout in enumerate(several(entry)) for part in layout.parts]


def _meet(given: tuple[int, Part], wanted: tuple[int, Part], among: Box) -> Iterator[Move]:
    """Return the move of the cells of a box that two parts have in common; nothing if there are
    none.
    """
    cells = given[1].cells & among
    if not cells.empty:
        yield Move(given[0], given[1].view(cells), wanted[0], wanted[1].view(cells), cells.shape)


def _pieces(move: Move, used: tuple[Places, ...] | None, at: View) -> Iterator[Move]:
    """Yield a move in pieces that have the cells whose place ``at`` an array is used."""
    if used is None:
        yield move
        return
    axes = [_travelling(move.shape[a], places, at, a) for a, places in enumerate(used)]
    for ranges in itertools.product(*axes):
        give, take, shape = move.give, move.take, []
        for a, cells in enumerate(ranges):
            shape.append(len(range(*cells)))
            if shape[a] < move.shape[a]:
                give, take = give.along(a, *cells), take.along(a, *cells)
        yield move._replace(give=give, take=take, shape=tuple(shape))


def _travelling(n: int, places: Places, at: View, axis: int) -> list[tuple[int, int, int]]:
    """Return those of the n cells that travel along an axis whose place is used, as ranges."""
    start, stop = at.place.start[axis], at.place.stop[axis]
    view: Any = at.slices[axis + 1]
    found = []
    for first, last, step in places:
        # the first and the last one within the place
        low = max(first, start + (first - start) % step)
        high = min(last, stop)
        if low >= high:
            continue
        high = low + (high - 1 - low) // step * step
        if axis - at.place.ndim in at.spread:  # one cell, at all places
            return [(0, n, 1)]
        low, high = (
            (stop - 1 - high, stop - 1 - low) if view.step == -1 else (low - start, high - start)
        )
        found.append((low, high + 1, step))
    return found


def _shown(entry: Layouts) -> list[tuple[Any, ...]]:
    """Return what a rank's arrays show."""
    return [(layout.shape, layout.parts) for layout in several(entry)]


def _parcel(rank: int, moves: list[Move]) -> Parcel:
    return Parcel(rank, tuple(moves), sum([Box.whole(move.shape).volume for move in moves]))


def _no_overlap(boxes: list[Box]) -> bool:
    """Return whether no two boxes have a common cell."""
    if len(boxes) < 2:
        return True
    start = np.array([box.start for box in boxes])
    stop = np.array([box.stop for box in boxes])
    low = np.maximum(start[:, None], start[None])
    high = np.minimum(stop[:, None], stop[None])
    meet = (low < high).all(axis=2)
    return int(meet.sum()) == len(boxes)  # each meets itself
