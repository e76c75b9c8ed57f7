"""Each rank draws numbers of its own, whatever the others do, and the same ones again after the same seed."""

from __future__ import annotations

import numpy as np

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
