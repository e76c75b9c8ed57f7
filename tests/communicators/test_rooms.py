"""Openings grow with the values that programs give, and shrink again, on all ranks alike."""

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
from mnpar.communicators.rooms import BLOCK, CALM, Room, Rooms, sizes_for
from mnpar.errors import MismatchError


def rooms_of(ranks):
    return Rooms([Room(size, ranks) for size in sizes_for(ranks)])


def test_an_opening_is_as_large_as_was_needed_of_late():
    rooms = rooms_of(4)
    seen = []
    for most in (8, 320, 321, 100, 3000, 10**6, 8):
        rooms.heard(most)
        seen.append(rooms.now.size)
    assert seen == [512, 512, 2048, 2048, 4608, 4608, 4608]
    for _ in range(CALM):
        rooms.heard(1000)
    assert rooms.now.size == 2048
    for _ in range(2 * CALM):
        rooms.heard(10**6)  # what does not fit anyway needs no room
    assert rooms.now.size == BLOCK


def test_with_many_ranks_it_stays_small():
    rooms = rooms_of(17)
    rooms.heard(1000)
    assert rooms.now.size == BLOCK


COLLECTIVES = {
    "allreduce": lambda comm, n: comm.allreduce(np.full(n, comm.rank)).sum() == n * sum(range(comm.size)),
    "allgather": lambda comm, n: [len(x) for x in comm.allgather(np.ones(n + comm.rank))] == [n + r for r in range(comm.size)],
    "bcast": lambda comm, n: len(comm.bcast(np.ones(n + comm.rank), root=comm.size - 1)) == n + comm.size - 1,
    "gather": lambda comm, n: (
        [len(x) for x in comm.gather(np.ones(n + comm.rank), 0) or ()] == [n + r for r in range(comm.size)] * (comm.rank == 0)
    ),
    "scatter": lambda comm, n: comm.scatter([np.full(n, r) for r in range(comm.size)], 0).tolist() == [comm.rank] * n,
    "alltoall": lambda comm, n: (
        [x.tolist() for x in comm.alltoall([np.full(r, comm.rank, "f4") for r in range(comm.size)])]
        == [[q] * comm.rank for q in range(comm.size)]
    ),
    "reduce_scatter": lambda comm, n: (
        comm.reduce_scatter([np.full(n + r, r) for r in range(comm.size)]).tolist() == [comm.rank * comm.size] * (n + comm.rank)
    ),
    "scan": lambda comm, n: comm.scan(np.ones(n)).tolist() == [comm.rank + 1] * n,
    "objects": lambda comm, n: comm.allgather_obj("x" * n) == ["x" * n] * comm.size,
    "objects for each": lambda comm, n: comm.alltoall_obj(["x" * n] * comm.size) == ["x" * n] * comm.size,
    "later": lambda comm, n: comm.iallreduce(np.ones(n)).wait().sum() == n * comm.size,
}


@pytest.mark.ranks(1, 2, 3)
def test_values_of_all_sizes_in_any_order_arrive_whole(comm):
    rng = np.random.default_rng(0)  # the same on all ranks
    names = list(COLLECTIVES)
    for _ in range(300):
        name, n = names[rng.integers(len(names))], int(rng.choice([0, 1, 8, 40, 60, 200, 230, 900, 1100, 5000]))
        assert COLLECTIVES[name](comm, n), (name, n)


@pytest.mark.ranks(2, 3)
def test_parts_that_came_with_the_opening_belong_to_who_got_them(comm):
    for _ in range(3):
        for parts in (
            comm.alltoall([np.ones(30)] * comm.size),
            comm.allgather(np.ones(30)),
            (comm.scatter(np.ones(comm.size)),),
        ):
            for part in parts:
                part += 1  # writeable, and nobody else's
    assert comm.scatter(np.ones(comm.size)) == 1


OTHERS = {
    "another shape": lambda comm: comm.allreduce(np.ones(901)),
    "a large one": lambda comm: comm.allreduce(np.ones(90_000)),
    "another collective": lambda comm: comm.allgather(np.ones(5000)),
    "an object": lambda comm: comm.allreduce_obj(np.ones(5000)),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
@pytest.mark.ranks(2, 3)
def test_a_mismatch_after_openings_have_grown_is_told_on_all_ranks(comm, other):
    for n in (8, 200, 900):
        comm.allreduce(np.ones(n))
    with pytest.raises(MismatchError):
        comm.allreduce(np.ones(900)) if comm.rank else other(comm)


def test_a_gradient_that_is_missing_on_some_ranks_still_comes_with_the_opening():
    def program(comm):
        xs = [mnpar.Variable(np.full(50, float(r))) for r in range(comm.size)]
        ys = F.alltoall(comm, xs)
        F.sum(ys[comm.rank] * 3).backward()  # of the others' parts nobody says anything
        return [None if x.grad is None else float(x.grad[0]) for x in xs]

    assert mnpar.run(program, ranks=3) == [[3.0, None, None], [None, 3.0, None], [None, None, 3.0]]
