"""Pairwise testing: run only as many combinations of a test's parameters as cover every pair of
values.

    @pytest.mark.grid
    @pytest.mark.parametrize("dtype", ["f4", "f8"])
    @pytest.mark.parametrize("n", [0, 1, 7])
    @pytest.mark.ranks(1, 2, 3, 4)
    def test_sum(comm, n, dtype): ...

These are 48 combinations (on threads and on processes), and 24 run: each n with each dtype and on
each number of ranks of each kind. Faults that need three values to meet are rare: ``pytest
--sweep`` looks for them in the whole grid. A test that is asked for by name (``file.py::test``,
``-k``) runs in every combination.

(allpairspy takes full grids only: nine of this repository's 63 have holes, and it loses 119 pairs
there.)
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Sequence
from itertools import combinations

import pytest


def cover(combos: Sequence[Sequence[Hashable]]) -> list[int]:
    """Return the numbers of combinations that hold every pair of values that occurs in any: the
    same numbers each time.

    The next is always the first of those that hold the most pairs not held yet.

    Example:
        >>> from mnpar.testing import grids, product
        >>> all_of_them = product([["a", "b"], [1, 2], ["x", "y"]])
        >>> [all_of_them[number] for number in grids.cover(all_of_them)]
        [('a', 1, 'x'), ('a', 2, 'y'), ('b', 1, 'y'), ('b', 2, 'x')]
    """
    pairs = [set(combinations(enumerate(values), min(2, len(values)))) for values in combos]
    left = set[object]().union(*pairs)
    chosen = list[int]()
    heap = [(-len(held), number) for number, held in enumerate(pairs)]
    heapq.heapify(heap)
    while left:
        _, number = heapq.heappop(heap)
        new = len(pairs[number] & left)
        if heap and (-new, number) > heap[0]:
            heapq.heappush(heap, (-new, number))  # others may hold more by now
        else:
            left -= pairs[number]
            chosen.append(number)
    return sorted(chosen)


def covering(items: Sequence[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Return the tests that run, and those that are left to ``--sweep``."""
    grids = dict[str, list[pytest.Item]]()
    for item in items:
        if item.get_closest_marker("grid") is not None and hasattr(item, "callspec"):
            grids.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left = set[pytest.Item]()
    for grid in grids.values():
        calls = [item.callspec for item in grid]  # type: ignore[attr-defined]
        values = [[id(value) for value in call.params.values()] for call in calls]
        left |= set(grid) - {grid[number] for number in cover(values)}
    return [item for item in items if item not in left], [item for item in items if item in left]
