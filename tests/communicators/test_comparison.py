"""Collectives of many ranks, which compare digests of what they state before they gather it: the
results are those of few ranks, errors have the same texts, and no more travels than is needed.
"""

import numpy as np
import pytest

import mnpar
from mnpar.communicators import channel, comparison, matching, reduction
from mnpar.communicators.comparison import CALL, FORM, NEITHER, VALUE, Comparison
from mnpar.communicators.mpi import reduction as by_mpi
from mnpar.communicators.threads import transport as by_threads
from mnpar.errors import MismatchError

pytestmark = pytest.mark.usefixtures("digests")


@pytest.fixture
def digests(monkeypatch):
    monkeypatch.setattr(matching, "MOST_GATHERED", 1)


def numbers(rank, n, dtype):
    return (np.arange(n) * (rank + 1) % 7 + 1).astype(dtype)


RESULTS = {  # of a rank, from the arrays of all
    "allreduce": (lambda comm, x: comm.allreduce(x), lambda xs, me: sum(xs)),
    "a maximum": (lambda comm, x: comm.allreduce(x, "max"), lambda xs, me: np.max(xs, 0)),
    "iallreduce": (lambda comm, x: comm.iallreduce(x).wait(), lambda xs, me: sum(xs)),
    "reduce": (lambda comm, x: comm.reduce(x, 1), lambda xs, me: sum(xs) if me == 1 else None),
    "ireduce": (
        lambda comm, x: comm.ireduce(x, 1).wait(),
        lambda xs, me: sum(xs) if me == 1 else None,
    ),
    "scan": (lambda comm, x: comm.scan(x), lambda xs, me: sum(xs[: me + 1])),
    "a scan of products": (
        lambda comm, x: comm.scan(x, "prod"),
        lambda xs, me: np.prod(xs[: me + 1], 0, xs[0].dtype),
    ),
    "exscan": (lambda comm, x: comm.exscan(x), lambda xs, me: sum(xs[:me], 0 * xs[0])),
    "iexscan": (lambda comm, x: comm.iexscan(x).wait(), lambda xs, me: sum(xs[:me], 0 * xs[0])),
    "allgather": (lambda comm, x: comm.allgather(x), lambda xs, me: xs),
    "an allgather of one value": (
        lambda comm, x: comm.allgather(0 * x),
        lambda xs, me: [0 * x for x in xs],
    ),
    "uneven arrays": (
        lambda comm, x: comm.allgather(x[comm.rank :]),
        lambda xs, me: [x[r:] for r, x in enumerate(xs)],
    ),
    "iallgather": (lambda comm, x: comm.iallgather(x).wait(), lambda xs, me: xs),
    "gather": (lambda comm, x: comm.gather(x, 1), lambda xs, me: xs if me == 1 else None),
    "bcast": (lambda comm, x: comm.bcast(x, 1), lambda xs, me: xs[1]),
    "ibcast": (lambda comm, x: comm.ibcast(x, 1).wait(), lambda xs, me: xs[1]),
    "scatter": (
        lambda comm, x: comm.scatter([x + r for r in range(comm.size)], 1),
        lambda xs, me: xs[1] + me,
    ),
    "alltoall": (
        lambda comm, x: comm.alltoall([x + r for r in range(comm.size)]),
        lambda xs, me: [x + me for x in xs],
    ),
    "reduce_scatter": (
        lambda comm, x: comm.reduce_scatter([x + r for r in range(comm.size)]),
        lambda xs, me: sum(x + me for x in xs),
    ),
    "parts of several dtypes": (
        lambda comm, x: comm.reduce_scatter([x, x.astype("f4"), *[x] * (comm.size - 2)]),
        lambda xs, me: sum(x.astype("f4") if me == 1 else x for x in xs),
    ),
}


@pytest.mark.parametrize("n", [3, 30_000])
@pytest.mark.parametrize("dtype", ["f2", "i4"])
@pytest.mark.parametrize("name", RESULTS)
@pytest.mark.ranks(3, 4)
def test_results_are_those_of_few_ranks(comm, name, dtype, n, monkeypatch):
    for module in (channel, by_mpi, by_threads):
        monkeypatch.setattr(module, "DIRECT", 1)  # algorithms of many ranks
    collective, expected = RESULTS[name]
    xs = [numbers(rank, n, dtype) for rank in range(comm.size)]
    wanted = expected(xs, comm.rank)
    for _ in range(2):
        found = collective(comm, numbers(comm.rank, n, dtype))
        assert (found is None) == (wanted is None)
        if isinstance(found, tuple):
            assert [x.dtype for x in found] == [x.dtype for x in wanted]
            assert [x.tolist() for x in found] == [x.tolist() for x in wanted]
        elif found is not None:
            assert found.dtype == wanted.dtype
            assert found.tolist() == wanted.tolist()


@pytest.mark.parametrize("obj", [lambda rank: "alike", lambda rank: ["x"] * rank])
@pytest.mark.ranks(2, 3)
def test_objects_alike_or_not(comm, obj):
    assert comm.allgather_obj(obj(comm.rank)) == [obj(rank) for rank in range(comm.size)]
    assert comm.iallgather_obj(obj(comm.rank)).wait() == [obj(rank) for rank in range(comm.size)]
    assert comm.bcast_obj(obj(comm.rank), root=1) == obj(1)
    gathered = comm.gather_obj(obj(comm.rank))
    assert comm.rank or gathered == [obj(rank) for rank in range(comm.size)]
    passed = comm.alltoall_obj([(comm.rank, rank) for rank in range(comm.size)])
    assert passed == [(rank, comm.rank) for rank in range(comm.size)]


@pytest.mark.ranks(2, 3)
def test_results_belong_to_the_rank_that_gets_them(comm):
    given = [np.zeros(2) for _ in range(comm.size)]
    for found in (
        comm.allgather(np.zeros(2)),
        comm.alltoall(given),
        [comm.bcast(np.zeros(2)) if comm.rank else comm.bcast(given[0]).copy()],
        [comm.scan(np.zeros(2)), comm.reduce_scatter(given)],
    ):
        for x in found:
            x += comm.rank + 1
            comm.barrier()
            assert x.tolist() == [comm.rank + 1] * 2
    for x in given:
        assert x.tolist() == [0, 0]


@pytest.mark.ranks(2, 3)
def test_piggybacks_alike_or_not_are_those_of_all_ranks(comm):
    for piggybacks in ([b"same"] * comm.size, [b"of %d" % rank for rank in range(comm.size)]):
        heard = []

        def accept(notes, heard=heard):
            heard += notes
            return True

        x = np.ones(3)
        assert comm.allreduce_if(x, piggybacks[comm.rank], accept, x)
        assert x.tolist() == [comm.size] * 3
        assert heard == piggybacks
    x = np.ones(comm.rank + 1)  # of several forms, which do not matter where nothing is summed
    assert not comm.allreduce_if(x, b"same", lambda _: False, x)
    with pytest.raises(MismatchError, match="different dtype or shape"):
        comm.allreduce_if(x, b"same", lambda _: True, x)


MISTAKES = {
    "forms": lambda comm: comm.allreduce(np.ones(1 + comm.rank)),
    "dtypes": lambda comm: comm.scan(np.ones(2, ["f4", "f8"][comm.rank % 2])),
    "calls": lambda comm: comm.barrier() if comm.rank == 1 else comm.allreduce(np.ones(2)),
    "roots": lambda comm: comm.bcast(np.ones(2), comm.rank % 2),
    "an object": lambda comm: comm.gather(np.array([None]) if comm.rank == 1 else np.ones(2)),
    "later and at once": lambda comm: (
        comm.iallreduce(np.ones(2)).wait() if comm.rank == 1 else comm.allreduce(np.ones(2))
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.ranks(2, 3)
def test_errors_have_the_texts_that_few_ranks_get(comm, mistake, monkeypatch):
    told = []
    for most in (1, 16) if mistake != "later and at once" else (1,):
        monkeypatch.setattr(matching, "MOST_GATHERED", most)
        group = comm.split(0, comm.rank)
        group.allreduce(np.ones(2))
        with pytest.raises((MismatchError, TypeError)) as error:
            MISTAKES[mistake](group)
        told.append(str(error.value))
        assert group.allreduce(np.ones(2)).tolist() == [comm.size] * 2  # all can go on
    assert len(set(told)) == 1


def words(**changed):
    given = {"call": 1, "number": 4, "mode": 0, "form": 7, "low": 8, "high": 9, **changed}
    alike = np.array([given[name] for name in ("call", "number", "mode", "form", "low", "high")])
    rest = [given.get("wants", 0), given.get("silent", 0), given.get("fault", 0)]
    return np.concatenate([alike, ~alike, rest])


@pytest.mark.parametrize(
    ("other", "level"),
    [
        ({}, VALUE),
        ({"low": -3}, FORM),
        ({"high": 10}, FORM),
        ({"form": -7}, CALL),
        ({"mode": 2}, NEITHER),
        ({"number": 6}, NEITHER),
        ({"call": 2}, NEITHER),
        ({"fault": 1}, NEITHER),
        ({"wants": 1}, VALUE),
        ({"silent": 1}, VALUE),
        ({"wants": 1, "silent": 1}, NEITHER),
    ],
    ids=str,
)
def test_what_a_maximum_of_words_shows(other, level):
    found = Comparison(np.maximum(words(), words(**other)))
    assert found.level == level
    assert found.same_call == (not {"number", "call"} & {*other})
    assert len(words()) == comparison.WORDS


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 16, 37])
@pytest.mark.parametrize("root", [0, 2])
def test_a_tree_reaches_every_rank_once(ranks, root):
    root %= ranks
    senders = {}
    for rank in range(ranks):
        for child in reduction.children(rank, root, ranks):
            assert child not in senders
            senders[child] = rank
    assert senders == {r: reduction.parent(r, root, ranks) for r in range(ranks) if r != root}


def test_many_thread_ranks_get_what_few_get():
    def program(comm):
        x = np.full(2, comm.rank)
        return [
            comm.allreduce(x).tolist(),
            comm.scan(x).tolist(),
            [int(one[0]) for one in comm.allgather(x)] == [*range(comm.size)],
            comm.allgather_obj(comm.rank) == [*range(comm.size)],
            comm.reduce_scatter([x + r for r in range(comm.size)]).tolist(),
            [int(one[0]) for one in comm.alltoall([x + r for r in range(comm.size)])],
        ]

    P = 40
    found = mnpar.run(program, P)
    total = P * (P - 1) // 2
    for rank, (all_, some, gathered, objects, part, parts) in enumerate(found):
        assert all_ == [total] * 2
        assert some == [rank * (rank + 1) // 2] * 2
        assert gathered
        assert objects
        assert part == [total + P * rank] * 2
        assert parts == [r + rank for r in range(P)]
