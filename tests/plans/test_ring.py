"""A ring's tiles are all pairs of queries and keys that look at each other, and its hops carry
nothing else.
"""

from itertools import pairwise

import numpy as np
import pytest

from mnpar.plans import Ring, in_order, zigzag
from mnpar.plans.ring import ways


def random_cut(rng, n, ranks):
    """Stretches in any order on any rank; some ranks have none."""
    ends = np.unique(np.concatenate([[0, n], rng.integers(n + 1, size=2 * ranks)]))
    stretches = [(int(a), int(b)) for a, b in pairwise(ends)]
    owners = rng.integers(ranks, size=len(stretches))
    return tuple(
        tuple(s for s, owner in zip(stretches, owners, strict=True) if owner == r)
        for r in range(ranks)
    )


CUTS = [
    in_order([3, 0, 4]),
    zigzag(13, 4),
    zigzag(2, 3),
    in_order([5]),
    zigzag(5, 1),
    zigzag(64, 8),
]
CUTS += [
    random_cut(np.random.default_rng(seed), 12, ranks) for seed in range(8) for ranks in (2, 3, 5)
]


@pytest.mark.parametrize("ahead", [None, 0, 2, -3])
@pytest.mark.parametrize("cut", CUTS, ids=range(len(CUTS)))
def test_every_pair_that_looks_is_in_one_tile(cut, ahead):
    n = max([b for stretches in cut for _, b in stretches])
    seen = np.zeros((n, n), int)
    ring = Ring(cut, cut, ahead, (False,) * len(cut))
    for rank in range(len(cut)):
        for hops in range(ring.length + 1):
            for tile in ring.tiles(rank, hops):
                t = np.arange(*tile.queries)[:, None]
                s = np.arange(*tile.keys)
                shown = np.ones((len(t), s.shape[0]), bool) if ahead is None else s <= t + ahead
                assert shown.all() != tile.in_part
                assert shown.any()
                seen[t, s] += shown
    truth = np.ones((n, n), int) if ahead is None else np.tri(n, n, ahead, int)
    np.testing.assert_array_equal(seen, truth)


@pytest.mark.parametrize("ahead", [None, 0])
@pytest.mark.parametrize(
    "cut", [in_order([3, 1, 4]), zigzag(13, 4), in_order([5]), zigzag(64, 8)], ids=range(4)
)
def test_ranks_receive_only_what_they_look_at_and_give_back_as_much(cut, ahead):
    P = len(cut)
    ring, onward, homeward = ways(cut, cut, ahead, (False,) * P, 1)
    for rank in range(P):
        others = [keys for other in range(P) if other != rank for keys in cut[other]]
        needed = sum([b - a for a, b in others if ring.needs(rank, (a, b))])
        assert sum([plan.received(rank) for plan in onward]) == needed
        assert sum([plan.sent(rank) for plan in homeward]) == needed


def received(cut):
    plans = ways(cut, cut, 0, (False,) * len(cut), 1).onward
    return [sum([plan.received(rank) for plan in plans]) for rank in range(len(cut))]


def test_a_rank_without_queries_hands_on_what_the_next_one_needs():
    assert received(in_order([2, 0, 3])) == [0, 0, 2]  # the other way round there is no such rank
    assert received(in_order([2, 0, 3, 0])) == [0, 2, 2, 0]


def test_the_shorter_direction_is_taken():
    up = Ring(in_order([2] * 4), in_order([2] * 4), 0, (False,) * 4)
    down = Ring(zigzag(16, 4), zigzag(16, 4), 0, (False,) * 4)
    assert up.way == (1, [[3], [2], [1], [0]])
    assert down.way == (-1, [[3, 0], [3, 1], [3, 2], [3, 3]])


def test_who_is_thorough_gets_everything():
    ring = Ring(in_order([2] * 3), in_order([2] * 3), 0, (True, False, False))
    assert [tile.in_part for hops in range(ring.length + 1) for tile in ring.tiles(0, hops)] == [
        True
    ] * 3
