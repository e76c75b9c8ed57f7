"""Each rank draws numbers of its own, whatever the others do, and the same ones again after the
same seed.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
from mnpar.datasets import scatter_dataset, split_dataset_random
from mnpar.iterators import (
    MultithreadIterator,
    SerialIterator,
    create_multi_node_iterator,
    create_synchronized_iterator,
)


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


# ---- numpy's seed ----


@pytest.fixture(autouse=True)
def _numpys_own_stream():
    """Other tests find numpy's global stream as it was."""
    numbers = mnpar.random.put_aside()
    yield
    mnpar.random.take_up(numbers)
    mnpar.random.seed(0)


def drawn_by_all():
    """Weights, a mask, an order, and numpy's own numbers: an odd number of normal ones."""
    return [
        mnpar.links.Linear(3, 2).W.array,
        F.dropout(np.ones(8)).array,
        mnpar.iterators.SerialIterator(range(9), 9).next(),
        np.random.randn(3),
    ]


def equal(a, b):
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def test_numpys_seed_gives_the_same_weights_and_numbers_again():
    np.random.seed(7)
    first = drawn_by_all()
    second = drawn_by_all()
    np.random.seed(7)
    assert equal(drawn_by_all(), first)
    assert equal(drawn_by_all(), second)
    assert not equal(first, second)
    np.random.seed(8)
    assert not equal(drawn_by_all(), first)


def test_what_is_seeded_last_counts():
    mnpar.random.seed(1)
    mine = mnpar.random.generator().random(3)
    np.random.seed(1)
    numpys = mnpar.random.generator().random(3)
    mnpar.random.seed(1)
    assert equal(mnpar.random.generator().random(3), mine)
    np.random.seed(1)
    assert equal(mnpar.random.generator().random(3), numpys)


def test_seeding_mnpar_leaves_numpys_numbers_as_they_would_be():
    np.random.seed(1)
    expected = np.random.randn(5)
    np.random.seed(1)
    found = np.random.randn(3)  # the fourth is in store
    mnpar.random.seed(1)
    assert equal([*found, *np.random.randn(2)], expected)


def test_a_generator_that_is_insisted_on_is_not_seeded_by_numpy():
    np.random.seed(1)
    with mnpar.random.using(np.random.default_rng(3)):
        np.random.seed(2)
        assert mnpar.random.generator().random() == np.random.default_rng(3).random()
    drawn = mnpar.random.generator().random(2)
    np.random.seed(2)
    assert equal(mnpar.random.generator().random(2), drawn)


def test_streams_that_are_spawned_follow_numpys_seed():
    np.random.seed(5)
    drawn = [rng.random() for rng in mnpar.random.spawn(3)]
    np.random.seed(5)
    assert [rng.random() for rng in mnpar.random.spawn(3)] == drawn
    assert len(set(drawn)) == 3


def seeded_on_each_rank(comm):
    """As under mpiexec: with one seed on all ranks, whatever they do in between."""
    np.random.seed(3)
    first = drawn_by_all()
    comm.allreduce(np.ones(1))
    np.random.rand(comm.rank)  # ranks draw differently from here on
    comm.barrier()
    second = drawn_by_all()
    np.random.seed(3 + comm.rank)
    comm.barrier()
    return first, second, drawn_by_all()


@pytest.mark.ranks(1, 3)
def test_each_rank_has_a_stream_of_its_own_which_it_seeds(comm):
    found = seeded_on_each_rank(comm)
    np.random.seed(3)
    assert equal(found[0], drawn_by_all())
    np.random.rand(comm.rank)
    assert equal(found[1], drawn_by_all())
    np.random.seed(3 + comm.rank)
    assert equal(found[2], drawn_by_all())


def test_thread_ranks_begin_with_what_the_caller_seeded():
    np.random.seed(4)
    expected = drawn_by_all()
    np.random.seed(4)
    found = mnpar.run(lambda comm: drawn_by_all(), ranks=3)
    assert all(equal(one, expected) for one in found)
    assert equal(drawn_by_all(), expected)


def test_what_is_drawn_leaves_numpys_stream_alone():
    np.random.seed(4)
    expected = np.random.randn(5)
    np.random.seed(4)
    mnpar.links.Linear(3, 2)
    found = np.random.randn(3)
    F.dropout(np.ones(8))
    assert equal([*found, *np.random.randn(2)], expected)


def test_a_seed_on_thread_ranks_is_not_the_callers():
    mnpar.random.seed(2)
    expected = mnpar.random.generator().random(4)
    mnpar.random.seed(2)

    def program(comm):
        np.random.seed(comm.rank)
        comm.barrier()
        return float(np.random.rand())

    found = mnpar.run(program, ranks=2)
    assert found == [np.random.RandomState(rank).rand() for rank in range(2)]
    assert equal(mnpar.random.generator().random(4), expected)


def test_only_the_rank_that_seeds_numpy_is_seeded():
    def program(comm):
        if comm.rank == 1:
            np.random.seed(0)
        comm.barrier()
        return mnpar.random.generator().random()

    assert mnpar.run(program, ranks=3)[0] != mnpar.run(program, ranks=3)[0]
    assert mnpar.run(program, ranks=3)[1] == mnpar.run(program, ranks=3)[1]


ORDERS = {  # what draws the orders of examples, on some ranks or on all
    "scatter_dataset": lambda comm: scatter_dataset(
        range(9) if comm.rank == 0 else None, comm, shuffle=True
    ),
    "a synchronized iterator": lambda comm: create_synchronized_iterator(
        SerialIterator(range(9), 3), comm
    ),
    "a multi-node iterator": lambda comm: create_multi_node_iterator(
        SerialIterator(range(9), 3) if comm.rank == 0 else None, comm
    ),
    "a split on one rank": lambda comm: comm.rank or split_dataset_random(range(9), 5),
    "a thread iterator on one rank": lambda comm: (
        comm.rank or MultithreadIterator(range(9), 3).finalize()
    ),
}


@pytest.mark.parametrize("order", ORDERS)
def test_generators_that_are_alike_stay_alike_when_some_ranks_draw_orders(order):
    def program(comm):
        mnpar.random.seed(3)
        ORDERS[order](comm)
        return mnpar.random.generator().integers(2**32)

    mnpar.random.seed(3)
    assert mnpar.run(program, ranks=3) == [mnpar.random.generator().integers(2**32)] * 3
