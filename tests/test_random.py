"""Each rank draws numbers of its own, whatever the others do, and the same ones again after the
same seed.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

import mnpar
import mnpar.functions as F


def drawn(comm):
    return F.dropout(np.ones(64)).array


def test_thread_ranks_draw_different_numbers_which_the_callers_seed_repeats():
    mnpar.random.seed(3)
    first = mnpar.run(drawn, ranks=3)
    mnpar.random.seed(3)
    again = mnpar.run(drawn, ranks=3)
    np.testing.assert_array_equal(first, again)
    assert len({y.tobytes() for y in first}) == 3


def test_a_rank_draws_the_same_whatever_the_others_draw():
    def program(comm, ranks_that_draw):
        return drawn(comm) if comm.rank in ranks_that_draw else None

    mnpar.random.seed(3)
    alone = mnpar.run(program, 2, ([1],))[1]
    mnpar.random.seed(3)
    np.testing.assert_array_equal(mnpar.run(program, 2, ([0, 1],))[1], alone)


def test_seed_and_rank_give_each_rank_its_own_numbers_everywhere():
    def program(comm):
        mnpar.random.seed([7, comm.rank])
        return drawn(comm)

    for rank, y in enumerate(mnpar.run(program, ranks=2)):
        mnpar.random.seed([7, rank])
        np.testing.assert_array_equal(drawn(None), y)


@pytest.mark.parametrize("kind", ["PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"])
def test_a_state_that_went_through_json_draws_and_spawns_what_was_to_come(kind):
    mnpar.random.use(np.random.Generator(getattr(np.random, kind)([3, 4])))
    mnpar.random.spawn(2)
    mnpar.random.generator().normal(size=5)
    state = json.loads(json.dumps(mnpar.random.get_state()))
    drawn = mnpar.random.generator().random(3)
    spawned = mnpar.random.spawn(1)[0].random()
    mnpar.random.seed(0)
    mnpar.random.set_state(state)
    assert mnpar.random.generator().random(3).tolist() == drawn.tolist()
    assert mnpar.random.spawn(1)[0].random() == spawned


@pytest.mark.parametrize(
    "state", [{}, {"generator": {"bit_generator": "os.system"}}, {"generator": 3}], ids=str
)
def test_what_is_no_state_is_refused(state):
    with pytest.raises(ValueError, match="no state of a random generator"):
        mnpar.random.set_state(state)


@pytest.mark.ranks(1, 2, 3, 4, on="threads")
@pytest.mark.parametrize("axis", [0, 1])
def test_a_divided_array_drops_what_the_whole_one_drops_in_one_process(comm, axis):
    """Rows of a batch or columns of a layer, uneven, one rank without any; twice, as generators
    stay alike.
    """
    x = np.random.default_rng(1).normal(size=(7, 7))
    edges = [*[0, 4, 6, 7][: comm.size], 7]
    part = (slice(None),) * axis + (slice(edges[comm.rank], edges[comm.rank + 1]),)

    def dropped_twice(x, **divided):
        mnpar.random.seed(5)
        x = mnpar.Variable(x)
        y = F.dropout(F.dropout(x, 0.3, **divided) ** 2, 0.5, **divided)
        F.sum(y).backward()
        return y.array, x.grad

    whole = dropped_twice(x)
    for mine, all_of_it in zip(
        dropped_twice(x[part], whole=x.shape, part=part), whole, strict=True
    ):
        np.testing.assert_array_equal(mine, all_of_it[part])


def test_a_part_that_is_none_of_the_whole_is_refused():
    with pytest.raises(
        ValueError,
        match=r"part=1 of an array of shape \(4, 3\) has shape \(3,\), and x has \(2, 3\)",
    ):
        F.dropout(np.ones((2, 3)), whole=(4, 3), part=1)
    with pytest.raises(ValueError, match=r"whole=\(N, D\), part="):
        F.dropout(np.ones((2, 3)), whole=(4, 3))
