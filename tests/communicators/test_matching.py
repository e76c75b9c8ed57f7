"""Matches grow with the values that programs give, and shrink again, on all ranks alike."""

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
from mnpar.communicators.matching import BLOCK, CALM_MATCHES, MatchBuffer, MatchBuffers, block_sizes
from mnpar.communicators.mpi.transport import MpiMatchBuffer
from mnpar.errors import MismatchError


def buffers_of(ranks):
    return MatchBuffers([MatchBuffer(size, ranks) for size in block_sizes(ranks)])


def test_an_opening_is_as_large_as_was_needed_of_late():
    buffers = buffers_of(4)
    seen = []
    for most in (8, 320, 321, 100, 3000, 10**6, 8):
        buffers.resize(most)
        seen.append(buffers.now.size)
    assert seen == [512, 512, 2048, 2048, 4608, 4608, 4608]
    for _ in range(CALM_MATCHES):
        buffers.resize(1000)
    assert buffers.now.size == 2048
    for _ in range(2 * CALM_MATCHES):
        buffers.resize(10**6)  # what does not fit anyway needs no space
    assert buffers.now.size == BLOCK


def test_with_many_ranks_it_stays_small():
    buffers = buffers_of(17)
    buffers.resize(1000)
    assert buffers.now.size == BLOCK


class Library:
    """An MPI library with persistent collectives, which notes what is asked of it."""

    def __init__(self, vendor):
        self.vendor = vendor
        self.asked = []
        self.MPI = self
        self.size = 2
        self.active = []

    BYTE = None

    def get_vendor(self):
        return self.vendor, (2021, 18, 1)

    def __getattr__(self, name):
        return lambda *buffers: self.asked.append(name) or self

    def Test(self):
        return True


@pytest.mark.parametrize(
    ("vendor", "calls"),
    [
        ("MPICH", ["Allgather_init", "Start", "Start", "Free"]),
        ("Intel MPI", ["Iallgather", "Iallgather"]),
    ],
)
def test_a_library_whose_persistent_allgather_is_wrong_is_asked_for_another(vendor, calls):
    library = Library(vendor)
    buffer = MpiMatchBuffer(library, library, BLOCK)
    assert buffer.exchange()
    assert buffer.exchange()
    buffer.free()
    assert library.asked == calls


COLLECTIVES = {
    "allreduce": lambda comm, n: (
        comm.allreduce(np.full(n, comm.rank)).sum() == n * sum(range(comm.size))
    ),
    "allgather": lambda comm, n: (
        [len(x) for x in comm.allgather(np.ones(n + comm.rank))]
        == [n + r for r in range(comm.size)]
    ),
    "bcast": lambda comm, n: (
        len(comm.bcast(np.ones(n + comm.rank), root=comm.size - 1)) == n + comm.size - 1
    ),
    "gather": lambda comm, n: (
        [len(x) for x in comm.gather(np.ones(n + comm.rank), 0) or ()]
        == [n + r for r in range(comm.size)] * (comm.rank == 0)
    ),
    "scatter": lambda comm, n: (
        comm.scatter([np.full(n, r) for r in range(comm.size)], 0).tolist() == [comm.rank] * n
    ),
    "alltoall": lambda comm, n: (
        [x.tolist() for x in comm.alltoall([np.full(r, comm.rank, "f4") for r in range(comm.size)])]
        == [[q] * comm.rank for q in range(comm.size)]
    ),
    "reduce_scatter": lambda comm, n: (
        comm.reduce_scatter([np.full(n + r, r) for r in range(comm.size)]).tolist()
        == [comm.rank * comm.size] * (n + comm.rank)
    ),
    "scan": lambda comm, n: comm.scan(np.ones(n)).tolist() == [comm.rank + 1] * n,
    "objects": lambda comm, n: comm.allgather_obj("x" * n) == ["x" * n] * comm.size,
    "objects for each": lambda comm, n: (
        comm.alltoall_obj(["x" * n] * comm.size) == ["x" * n] * comm.size
    ),
    "later": lambda comm, n: comm.iallreduce(np.ones(n)).wait().sum() == n * comm.size,
}


@pytest.mark.usefixtures("both_matches")
@pytest.mark.ranks(1, 2, 3)
def test_values_of_all_sizes_in_any_order_arrive_whole(comm):
    rng = np.random.default_rng(0)  # the same on all ranks
    names = list(COLLECTIVES)
    for _ in range(300):
        name = names[rng.integers(len(names))]
        n = int(rng.choice([0, 1, 8, 40, 60, 200, 230, 900, 1100, 5000]))
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


@pytest.mark.usefixtures("both_matches")
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


@pytest.mark.usefixtures("both_matches")
@pytest.mark.parametrize("odd", [0, 1])
@pytest.mark.ranks(2, 3)
def test_ranks_without_a_note_in_another_collective_choose_the_same_room_afterwards(comm, odd):
    x = np.ones(20)  # fits into the smallest buffer, but not beside a note
    with pytest.raises(MismatchError, match="different collectives"):
        comm.scan(x) if comm.rank == odd else comm.allreduce_if(
            x, b"n" * 200, lambda notes: True, x
        )
    for n in (4, 40, 400):
        assert comm.allreduce(np.ones(n)).tolist() == [comm.size] * n


@pytest.mark.ranks(1, 2)
def test_a_piggyback_that_would_cover_values_is_refused(comm):
    x = np.ones(3)
    assert comm.allreduce_if(x, b"n" * 256, lambda notes: True, x)
    with pytest.raises(ValueError, match="a piggyback has at most 256 bytes, not 257"):
        comm.allreduce_if(x, b"n" * 257, lambda notes: True, x)
    np.testing.assert_array_equal(x, comm.size)


@pytest.mark.usefixtures("both_matches")
@pytest.mark.parametrize("n", [3, 300, 30_000])
@pytest.mark.parametrize("usual", [True, False])
@pytest.mark.ranks(2, 3)
def test_a_rank_that_cannot_take_part_in_a_sum_with_notes_spoils_no_number(comm, n, usual):
    def total():
        x, heard = np.full(n, comm.rank + 1.0), []
        assert comm.allreduce_if(
            x, b"note %d" % comm.rank, lambda notes: heard.append(notes) is None, x
        )
        assert heard == [[b"note %d" % rank for rank in range(comm.size)]]
        return x.tolist() == [comm.size * (comm.size + 1) / 2] * n

    def odd(x):
        return comm.allreduce_if(
            x, b"note", lambda notes: notes == [b"note"] * comm.size and usual, x
        )

    for _ in range(3):
        assert total()
        # which has no sum over ranks
        x = np.full(n, comm.rank + 1, "m8[s]" if comm.rank == 1 else "f8")
        before = x.copy()
        if usual:
            with pytest.raises(
                TypeError if comm.rank == 1 else MismatchError,
                match=r"cannot sum timedelta64|rank 1 could not",
            ):
                odd(x)
        else:
            assert not odd(x)
        np.testing.assert_array_equal(x, before)


@pytest.mark.ranks(1, 2, 3)
def test_what_was_said_last_time_is_not_taken_for_what_is_said_now(comm):
    """Forms that change on one rank or another, from one line."""
    rng = np.random.default_rng(0)  # the same on all ranks
    P, me = comm.size, comm.rank
    for step in range(150):
        lengths = rng.integers(1, 3, (P, P))
        kinds = rng.integers(0, 2, P)
        xs = [
            [
                np.full(lengths[q, r], 100 * step + 10 * q + r, ("f4", "f8")[kinds[q]])
                for r in range(P)
            ]
            for q in range(P)
        ]
        root = int(rng.integers(P))
        found = [
            *comm.allgather(xs[me][0]),
            *comm.alltoall(xs[me]),
            comm.bcast(xs[me][1 % P], root),
            comm.scatter(xs[me], root),
        ]
        expected = [*[x[0] for x in xs], *[x[me] for x in xs], xs[root][1 % P], xs[root][me]]
        for x, y in zip(found, expected, strict=True):
            assert x.dtype == y.dtype
            assert x.tolist() == y.tolist(), step


WRONG = {
    "dtype": lambda x: (x.astype("f4"), True),
    "shape": lambda x: (x.reshape(2, 4), True),
    "nothing recorded": lambda x: (x, False),
}


@pytest.mark.usefixtures("both_matches")
@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
@pytest.mark.ranks(2, 3)
def test_a_mismatch_is_told_however_often_all_was_well_and_all_can_be_well_again(comm, wrong):
    def total(x, on=True):
        with mnpar.using_config("enable_backprop", on):
            return F.allreduce(comm, mnpar.Variable(x)).array.tolist()

    x = np.arange(8.0)
    for _ in range(3):
        for _ in range(3):
            assert total(x) == (comm.size * x).tolist()
        with pytest.raises(MismatchError):
            total(*(wrong(x) if comm.rank == 1 else (x, True)))


@pytest.mark.usefixtures("both_matches")
@pytest.mark.ranks(2, 3)
def test_gradients_of_which_others_are_missing_each_time(comm):
    rng = np.random.default_rng(0)
    for _ in range(40):
        used = rng.integers(0, 2, (comm.size, comm.size))  # by whom, of whom
        xs = [mnpar.Variable(np.ones(5)) for _ in range(comm.size)]
        ys = F.alltoall(comm, xs)
        mnpar.backward(
            [F.sum(y * (10.0 * comm.rank + q)) for q, y in enumerate(ys) if used[comm.rank, q]]
        )
        for r, x in enumerate(xs):
            assert (x.grad is None) == (not used[r, comm.rank])
            assert x.grad is None or x.grad.tolist() == [10.0 * r + comm.rank] * 5
