"""Ring attention: a sequence cut among ranks, and how its keys travel from rank to rank.

A *cut* says for each rank which stretches of the sequence it has, in the order in which its array
shows them. Keys travel from rank to rank, one hop at a time, and no further than to the last rank
that has a query which may look at them. In which direction that is shorter, and what each rank has
to compute at each distance, follows from the positions alone.

If a query looks only at keys before it (*causal*), the first ranks of a contiguous cut have little
to do and the last ones everything (Brandon et al. 2023, "Striped attention", arXiv 2311.09431). In
:func:`zigzag` each rank has a stretch from the front and one from the back, and the work is even
(as in the training of Llama 3, arXiv 2407.21783, section 3.3.2).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from typing import NamedTuple, TypeAlias

import numpy as np

from mnpar.backend import Array
from mnpar.plans.box import Box, block
from mnpar.plans.layout import Layout, Part
from mnpar.plans.plan import Plan

Stretch: TypeAlias = tuple[int, int]  # from a position up to, and without, another
Cut: TypeAlias = tuple[tuple[Stretch, ...], ...]


def in_order(lengths: Sequence[int]) -> Cut:
    """Return the cut in which the ranks have these lengths of the sequence, one after the other.

    Example:
        >>> from mnpar.plans import in_order
        >>> in_order([2, 0, 3])
        (((0, 2),), ((2, 2),), ((2, 5),))
    """
    return tuple([((start, stop),) for start, stop in pairwise(accumulate(lengths, initial=0))])


def zigzag(n: int, ranks: int) -> Cut:
    """Return the cut for causal attention: of 2P blocks, rank r has block r and block 2P - 1 - r,
    which together see as much as any.

    Args:
        n: length of the sequence.
        ranks: P.

    Returns:
        Two stretches for each rank; of lengths that P does not divide, some are empty or longer by
        one.

    Example:
        >>> from mnpar.plans import zigzag
        >>> zigzag(8, 2)
        (((0, 2), (6, 8)), ((2, 4), (4, 6)))
    """
    return tuple(
        [
            (block(n, 2 * ranks, rank), block(n, 2 * ranks, 2 * ranks - 1 - rank))
            for rank in range(ranks)
        ]
    )


def rows_of(stretches: Sequence[Stretch]) -> tuple[slice, ...]:
    """Return where in the array of a rank each of its stretches is.

    Example:
        >>> from mnpar.plans import rows_of
        >>> rows_of([(0, 2), (6, 8)])
        (slice(0, 2, None), slice(2, 4, None))
    """
    return tuple(
        [slice(a, b) for a, b in pairwise(accumulate([b - a for a, b in stretches], initial=0))]
    )


def positions(stretches: Sequence[Stretch]) -> Array:
    """Return where in the sequence the rows of a rank's array are: to take them out of data, or for
    an embedding of positions.

    Returns:
        (T,) int64.

    Example:
        >>> from mnpar.plans import positions, zigzag
        >>> positions(zigzag(8, 2)[0])
        array([0, 1, 6, 7])
    """
    return np.concatenate([np.arange(0), *[np.arange(start, stop) for start, stop in stretches]])


def finer(cut: Cut, length: int = 128, most: int = 16) -> Cut:
    """Return the same cut in shorter stretches.

    Args:
        cut: for each rank its stretches.
        length: that a stretch should not exceed,
        most: if it is not to become more than so many.

    Example:
        >>> from mnpar.plans.ring import finer
        >>> finer((((0, 5), (9, 10)),), 2)
        (((0, 2), (2, 4), (4, 5), (9, 10)),)
    """
    return tuple(
        [
            tuple([piece for stretch in stretches for piece in _pieces(*stretch, length, most)])
            for stretches in cut
        ]
    )


def _pieces(start: int, stop: int, length: int, most: int) -> list[Stretch]:
    parts = max(1, min(most, -(-(stop - start) // length)))
    ends = [block(stop - start, parts, i) for i in range(parts)]
    return [(start + a, start + b) for a, b in ends]


def check_cut(who: str, cut: Cut, ranks: int) -> None:
    """Raise ValueError if a cut is not for so many ranks, or leaves a position of the sequence out,
    or has it twice.
    """
    if len(cut) != ranks:
        raise ValueError(
            f"{who}: a cut for {len(cut)} ranks does not suit a communicator of {ranks}"
        )
    end = 0
    for start, stop in sorted(
        [stretch for stretches in cut for stretch in stretches if stretch[0] != stretch[1]]
    ):
        if start != end or stop < start:
            raise ValueError(
                f"{who}: the stretches of a cut have each position of the sequence once, but "
                f"after {end} comes "
                f"{start} … {stop} in {cut}"
            )
        end = stop


def layouts(cut: Cut, *axes: int) -> tuple[Layout, ...]:
    """Return the arrays of a cut, for :func:`mnpar.functions.repartition` and plans: the sequence,
    then ``axes``, whole.

    Args:
        cut: for each rank its stretches.
        axes: lengths of the axes after that of the sequence.

    Example:
        >>> from mnpar.plans import layouts, zigzag
        >>> [layout.shape for layout in layouts(zigzag(5, 2), 3)]
        [(3, 3), (2, 3)]
    """
    return tuple([_layout(stretches, axes) for stretches in cut])


def _layout(stretches: Sequence[Stretch], axes: tuple[int, ...]) -> Layout:
    parts, zeros = [], (0,) * len(axes)
    for (start, stop), rows in zip(stretches, rows_of(stretches), strict=True):
        box = Box((start, *zeros), (stop, *axes))
        if not box.empty:
            parts.append(
                Part(box, Box((rows.start, *zeros), (rows.stop, *axes)), (False,) * box.ndim)
            )
    return Layout((sum([b - a for a, b in stretches]), *axes), tuple(parts))


class Tile(NamedTuple):
    """A stretch of queries and a stretch of keys that it looks at."""

    rows: slice  # of the rank's queries
    columns: slice  # of the keys that are on the rank now
    queries: Stretch
    keys: Stretch
    in_part: bool  # some of these queries may not look at some of these keys


class Ring:
    """A plan of which rank computes what, and how far blocks travel.

    Args:
        queries, keys: how the two sequences are cut.
        ahead: a query at position t looks at keys up to t + ``ahead``; None: at all keys.
        thorough: for each rank whether it is to see all keys, whatever the positions say.

    Example:
        >>> from mnpar.plans import Ring, in_order
        >>> cut = in_order([2, 2, 2])
        >>> ring = Ring(cut, cut, ahead=0, thorough=(False,) * 3)
        >>> ring.way  # to the next rank; rank 0's keys go twice, rank 2's are of use to nobody else
        (1, [[2], [1], [0]])
        >>> [
        ...     (tile.queries, tile.keys, tile.in_part)
        ...     for hops in range(ring.length + 1)
        ...     for tile in ring.tiles(1, hops)
        ... ]
        [((2, 4), (2, 4), True), ((2, 4), (0, 2), False)]
    """

    def __init__(
        self, queries: Cut, keys: Cut, ahead: int | None, thorough: tuple[bool, ...]
    ) -> None:
        self.queries = queries
        self.keys = keys
        self.ahead = ahead
        self.thorough = thorough
        self.size = len(keys)

    def look(self, rank: int, queries: Stretch, keys: Stretch) -> tuple[bool, bool]:
        """Return whether one of the rank's queries in a stretch looks at one of the keys; and
        whether each of them looks at all.
        """
        (a, b), (c, d), ahead = queries, keys, self.ahead
        if a == b or c == d:
            return False, False
        if ahead is None:
            return True, True
        return c <= b - 1 + ahead or self.thorough[rank], d - 1 <= a + ahead

    def needs(self, rank: int, keys: Stretch) -> bool:
        """Return whether any of a rank's queries looks at one of these keys."""
        return any([self.look(rank, queries, keys)[0] for queries in self.queries[rank]])

    def _reach(self, step: int) -> list[list[int]]:
        """For each stretch of each rank: how many hops in this direction to the last rank that
        needs it.
        """
        P = self.size
        return [
            [
                max([h for h in range(1, P) if self.needs((owner + step * h) % P, keys)], default=0)
                for keys in stretches
            ]
            for owner, stretches in enumerate(self.keys)
        ]

    @cached_property
    def way(self) -> tuple[int, list[list[int]]]:
        """Return the direction in which less is sent, 1 or -1, and the hops."""
        return min(
            [(step, self._reach(step)) for step in (1, -1)], key=lambda found: self._cells(found[1])
        )

    def _cells(self, hops: list[list[int]]) -> int:
        pairs = zip(self.keys, hops, strict=True)
        return sum(
            [
                (b - a) * h
                for stretches, way in pairs
                for (a, b), h in zip(stretches, way, strict=True)
            ]
        )

    @cached_property
    def length(self) -> int:
        """Hops until everything is where it is needed."""
        return max([h for way in self.way[1] for h in way], default=0)

    def owner(self, rank: int, hops: int) -> int:
        """Whose keys are on a rank after so many hops."""
        return (rank - self.way[0] * hops) % self.size

    def held(self, rank: int, hops: int) -> tuple[Stretch, ...]:
        """Return the stretches that are on a rank after so many hops."""
        owner = self.owner(rank, hops)
        return tuple(
            [
                keys
                for keys, way in zip(self.keys[owner], self.way[1][owner], strict=True)
                if way >= hops
            ]
        )

    def ended(self, rank: int, hops: int) -> tuple[int, ...]:
        """Return the indexes of the rank's own stretches that travel exactly this number of
        hops.
        """
        return tuple([i for i, way in enumerate(self.way[1][rank]) if way == hops])

    def tiles(self, rank: int, hops: int) -> Iterator[Tile]:
        """Return what a rank computes after so many hops."""
        keys = self.held(rank, hops)
        for queries, rows in zip(self.queries[rank], rows_of(self.queries[rank]), strict=True):
            for seen, columns in zip(keys, rows_of(keys), strict=True):
                some, every = self.look(rank, queries, seen)
                if some:
                    yield Tile(rows, columns, queries, seen, not every)

    def onward(self, hops: int, width: int) -> Plan:
        """Return the plan of the hop after ``hops`` hops: stretches needed further on go to the
        next rank. ``width``: of the rows.
        """
        have = [self.held(rank, hops) for rank in range(self.size)]
        want = [self.held(rank, hops + 1) for rank in range(self.size)]
        return Plan(layouts(tuple(have), width), layouts(tuple(want), width))

    def homeward(self, hops: int, width: int) -> Plan:
        """Return the plan of sums for keys after ``hops`` hops: they go on with their keys; to the
        owner if the keys go no further.
        """
        have = [self.held(rank, hops) for rank in range(self.size)]
        on = [self.held(rank, hops + 1) for rank in range(self.size)]
        home = [
            tuple([self.keys[rank][i] for i in self.ended(rank, hops)]) for rank in range(self.size)
        ]
        want = zip(layouts(tuple(on), width), layouts(tuple(home), width), strict=True)
        return Plan(layouts(tuple(have), width), tuple(want))


class Ways(NamedTuple):
    """A ring with its plans, for rows of one width."""

    ring: Ring
    onward: tuple[Plan, ...]  # the hops, in order
    homeward: tuple[Plan, ...]  # after each of them


@lru_cache(maxsize=200)
def ways(
    queries: Cut, keys: Cut, ahead: int | None, thorough: tuple[bool, ...], width: int
) -> Ways:
    """Return the plans of a ring, remembered: the same object for the same cuts."""
    ring = Ring(queries, keys, ahead, thorough)
    hops = range(ring.length)
    return Ways(
        ring,
        tuple([ring.onward(h, width) for h in hops]),
        tuple([ring.homeward(h + 1, width) for h in hops]),
    )
