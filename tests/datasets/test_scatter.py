"""One data set over the ranks: everyone gets its part and nothing else, or everyone gets the
error.
"""

import pickle
import sys

import numpy as np
import pytest

import mnpar
from mnpar.communicators.consensus import run_on_root
from mnpar.dataset import DatasetMixin
from mnpar.datasets import (
    DataSizeError,
    ScatteredDataset,
    SubDataset,
    TransformDataset,
    TupleDataset,
    scatter_dataset,
    scatter_index,
)

RANKS = [1, 2, 3, 4]


def negative(x):
    return -x


def double(pair):
    return pair[0] * 2, pair[1]


class Words(DatasetMixin):
    """Data of one's own, read example by example."""

    def __init__(self, n):
        self.words = [f"word {i}" for i in range(n)]

    def __len__(self):
        return len(self.words)

    def get_example(self, i):
        return self.words[i], i


class Lazy(Words):
    """Data of one's own that sends its names, not its contents."""

    def get_example(self, i):
        return self.words[i].upper()

    def take_examples(self, indices):
        part = Lazy(0)
        part.words = [self.words[i] for i in indices]
        return part


KINDS = {
    "array": lambda n: np.arange(2 * n, dtype=np.float32).reshape(n, 2),
    "big-endian array": lambda n: np.arange(n, dtype=">i4"),
    "array of strings": lambda n: np.array([f"s{i}" for i in range(n)], "U4"),
    "array of objects": lambda n: np.array([None, *range(n)], object)[1:],
    "list of numbers": lambda n: list(range(n)),
    "list of pairs": lambda n: [(np.full(2, i, np.float32), np.int32(i)) for i in range(n)],
    "list of strings": lambda n: [f"s{i}" for i in range(n)],
    "list of sequences": lambda n: [np.arange(i) for i in range(n)],
    "tuple of arrays": lambda n: tuple(np.full(3, i) for i in range(n)),
    "tuple data set": lambda n: TupleDataset(
        np.arange(3.0 * n).reshape(n, 3), np.arange(n, dtype=np.int8)
    ),
    "tuple data set with a list": lambda n: TupleDataset(np.arange(n), [f"s{i}" for i in range(n)]),
    "sub data set": lambda n: SubDataset(np.arange(n + 3), 2, n + 2),
    "sub data set with order": lambda n: SubDataset(np.arange(n + 1), 0, n, list(range(n, -1, -1))),
    "sub of tuple": lambda n: SubDataset(TupleDataset(np.arange(n + 1), np.ones(n + 1)), 1, n + 1),
    "transformed": lambda n: TransformDataset(np.arange(n), negative),
    "transformed pairs": lambda n: TransformDataset(
        TupleDataset(np.arange(n), list(range(n))), double
    ),
    "own class": Words,
    "own class that sends names": Lazy,
    "range": range,
}


def run(make, ranks, root=0, **options):
    def program(comm):
        dataset = make() if comm.rank == root else None
        return scatter_dataset(dataset, comm, root, **options)

    return mnpar.run(program, ranks=ranks)


def equal(a, b):
    assert type(a) is type(b)
    if isinstance(a, tuple):
        for x, y in zip(a, b, strict=True):
            equal(x, y)
    else:
        np.testing.assert_array_equal(a, b)
        assert getattr(a, "dtype", None) == getattr(b, "dtype", None)


@pytest.mark.grid
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("force_equal_length", [True, False])
def test_each_rank_gets_its_examples_as_they_were(make, ranks, force_equal_length):
    whole = make(10)
    for part in run(lambda: make(10), ranks, force_equal_length=force_equal_length):
        assert isinstance(part, ScatteredDataset)
        assert len(part) == part.end - part.begin
        for mine, truth in zip(part, [whole[i] for i in range(part.begin, part.end)], strict=True):
            equal(mine, truth)


@pytest.mark.grid
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("n", [0, 1, 3, 4, 5, 19])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("kind", ["array", "list of numbers", "tuple data set"])
def test_equal_parts_cover_the_whole_and_know_their_duplicates(kind, n, ranks, shuffle):
    parts = run(lambda: KINDS[kind](n), ranks, shuffle=shuffle, seed=1)
    assert {len(part) for part in parts} == {-(-n // ranks)}
    key = [str(x) for x in KINDS[kind](n)]
    assert {str(x) for part in parts for x in part} == set(key)
    assert sorted(str(x) for part in parts for x in part.without_duplicates()) == sorted(key)
    assert sum(len(part) - part.n_duplicates for part in parts) == n
    assert all(part.total == n for part in parts)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("n", [0, 1, 3, 4, 5, 19])
@pytest.mark.parametrize("shuffle", [False, True])
def test_exact_parts_have_each_example_once_and_differ_by_one_at_most(n, ranks, shuffle):
    parts = run(lambda: np.arange(n), ranks, shuffle=shuffle, seed=2, force_equal_length=False)
    assert sorted(int(x) for part in parts for x in part) == list(range(n))
    lengths = [len(part) for part in parts]
    assert max(lengths) - min(lengths) <= 1
    assert lengths == sorted(lengths, reverse=True)
    assert [part.n_duplicates for part in parts] == [0] * ranks


@pytest.mark.parametrize("root", [0, 1, 2])
def test_any_rank_can_be_the_root_and_only_its_arguments_count(root):
    def program(comm):
        if comm.rank == root:
            return scatter_dataset(
                np.arange(7), comm, root, shuffle=True, seed=4, force_equal_length=False
            )
        return scatter_dataset("not looked at", comm, root)

    parts = mnpar.run(program, ranks=3)
    np.testing.assert_array_equal(
        [x for part in parts for x in part], np.random.RandomState(4).permutation(7)
    )


def test_shuffling_without_a_seed_follows_the_ranks_generator():
    def program(comm):
        mnpar.random.seed([9, comm.rank])
        return [
            int(x)
            for x in scatter_dataset(np.arange(40) if comm.rank == 0 else None, comm, shuffle=True)
        ]

    assert mnpar.run(program, ranks=2) == mnpar.run(program, ranks=2)
    assert mnpar.run(program, ranks=2)[0] != list(range(20))


@pytest.mark.parametrize(
    "kind", ["array", "tuple data set", "list of pairs", "own class", "sub of tuple"]
)
def test_no_rank_is_sent_more_than_its_part(kind):
    sent = []  # bytes, by any rank to any rank
    whole = KINDS[kind](2000)

    def program(comm):
        send, bcast_obj = comm.send, comm.bcast_obj
        comm.send = lambda x, dest, tag=0: (sent.append(np.asarray(x).nbytes), send(x, dest, tag))[
            1
        ]
        comm.bcast_obj = lambda x=None, *a, **k: (
            sent.append(len(pickle.dumps(x))),
            bcast_obj(x, *a, **k),
        )[1]
        scatter_dataset(whole if comm.rank == 0 else None, comm)

    mnpar.run(program, ranks=3)
    # two of three parts leave the root; a broadcast would be the whole at least, and twice that
    assert sum(sent) < len(pickle.dumps([whole[i] for i in range(2000)]))


@pytest.mark.parametrize(
    "kind", ["array", "tuple data set", "list of pairs", "sub data set with order"]
)
def test_arrays_are_never_pickled(kind, monkeypatch):
    class Watched(pickle.Pickler):
        def reducer_override(self, obj):
            if isinstance(obj, np.ndarray) and obj.size:
                raise AssertionError("an array was pickled")
            return NotImplemented

    def dumps(obj, protocol=None, **options):
        import io

        file = io.BytesIO()
        Watched(file, protocol).dump(obj)
        return file.getvalue()

    from mnpar.datasets import scatter

    monkeypatch.setattr(scatter.pickle, "dumps", dumps)
    assert sum(map(len, run(lambda: KINDS[kind](12), 3))) == 12


def test_the_part_is_a_copy_so_that_the_root_can_drop_the_whole():
    whole = np.arange(6)

    def program(comm):
        part = scatter_dataset(whole if comm.rank == 0 else None, comm)
        whole[:] = -1
        return [int(x) for x in part]

    assert mnpar.run(program, ranks=1) == [list(range(6))]


def test_a_part_can_be_scattered_again():
    def program(comm):
        part = scatter_dataset(
            np.arange(10) if comm.rank == 0 else None, comm, force_equal_length=False
        )
        return [
            int(x)
            for x in scatter_dataset(
                part if comm.rank == 1 else None, comm, 1, force_equal_length=False
            )
        ]

    assert mnpar.run(program, ranks=2) == [[5, 6, 7], [8, 9]]


def test_messages_of_the_program_that_are_under_way_are_left_alone():
    def program(comm):
        if comm.rank == 0:
            comm.send(np.array([42]), 1)
        part = scatter_dataset(np.arange(4) if comm.rank == 0 else None, comm)
        return int(comm.recv(0)[0]) if comm.rank == 1 else len(part)

    assert mnpar.run(program, ranks=2) == [2, 42]


# ---- errors ----


def caught(program, ranks=3):
    """The error that each rank raised, and nobody was left waiting."""

    def guarded(comm):
        try:
            program(comm)
        except Exception as error:
            comm.barrier()
            return type(error), str(error)
        return None

    return mnpar.run(guarded, ranks=ranks)


class Unreadable(Words):
    def get_example(self, i):
        if i == 7:
            raise OSError("file 7 cannot be read")
        return i


class UnpicklableError(Exception):
    def __init__(self, a, b):
        super().__init__(f"{a} {b}")


class Strange(Words):
    def get_example(self, i):
        raise UnpicklableError("no", "pickle")


BAD = {
    "None": (lambda: None, {}, TypeError, "got None as the data set of the root"),
    "generator": (
        lambda: (i for i in range(3)),
        {},
        TypeError,
        "a generator has no length: make a list of it",
    ),
    "unreadable example": (lambda: Unreadable(10), {}, OSError, "file 7 cannot be read"),
    "lambda": (lambda: TransformDataset(np.arange(9), lambda x: x), {}, Exception, "lambda"),
    "max_buf_len": (lambda: np.arange(9), {"max_buf_len": -1}, ValueError, "max_buf_len = -1"),
    "seed": (lambda: np.arange(9), {"shuffle": True, "seed": -1}, ValueError, "Seed"),
}


@pytest.mark.parametrize(("make", "options", "kind", "message"), BAD.values(), ids=BAD)
@pytest.mark.parametrize("root", [0, 2])
def test_an_error_on_the_root_is_raised_on_every_rank(make, options, kind, message, root):
    errors = caught(
        lambda comm: scatter_dataset(make() if comm.rank == root else None, comm, root, **options)
    )
    assert len(errors) == 3
    for error, text in errors:
        assert issubclass(error, kind)
        assert message in text


def test_an_error_that_cannot_be_pickled_arrives_as_its_text():
    errors = caught(lambda comm: scatter_dataset(Strange(3) if comm.rank == 0 else None, comm))
    assert errors == [
        (UnpicklableError, "no pickle"),
        *[(RuntimeError, "UnpicklableError: no pickle")] * 2,
    ]


def test_the_other_ranks_say_where_it_was_raised():
    def program(comm):
        try:
            run_on_root(comm, 1, lambda: 1 / 0)
        except ZeroDivisionError as error:
            return getattr(error, "__notes__", [])
        return None

    assert mnpar.run(program, ranks=2) == [
        ["(raised on rank 1, which does this work for all ranks)"],
        [],
    ]


@pytest.mark.parametrize("root", [-1, 3, True, 0.0])
def test_a_root_that_does_not_exist_is_refused(root):
    for function in (
        lambda comm: scatter_dataset([], comm, root),
        lambda comm: scatter_index(1, comm, root),
    ):
        for error, text in caught(function):
            assert error is ValueError
            assert f"root = {root!r} is no rank of a communicator of 3" in text


def test_after_an_error_the_communicator_still_works():
    def program(comm):
        with pytest.raises(OSError, match="file 7"):
            scatter_dataset(Unreadable(10) if comm.rank == 0 else None, comm)
        return len(scatter_dataset([1, 2, 3] if comm.rank == 0 else None, comm))

    assert mnpar.run(program, ranks=3) == [1, 1, 1]


# ---- indices ----

TABLE = [
    (10, 3, True, [(0, 4), (3, 7), (6, 10)]),
    (10, 3, False, [(0, 4), (4, 7), (7, 10)]),
    (2, 4, True, [(0, 1), (0, 1), (1, 2), (1, 2)]),
    (2, 4, False, [(0, 1), (1, 2), (2, 2), (2, 2)]),
    (0, 3, True, [(0, 0)] * 3),
    (0, 3, False, [(0, 0)] * 3),
    (12, 4, True, [(0, 3), (3, 6), (6, 9), (9, 12)]),
    (7, 1, True, [(0, 7)]),
]


@pytest.mark.parametrize(("n", "ranks", "equal_length", "expected"), TABLE)
@pytest.mark.parametrize("root", [0, -1])
def test_indices_are_cut_as_chainermn_cuts_them(n, ranks, equal_length, expected, root):
    def program(comm):
        at = root % comm.size
        return scatter_index(
            n if comm.rank == at else None, comm, at, force_equal_length=equal_length
        )

    assert mnpar.run(program, ranks=ranks) == expected


@pytest.mark.parametrize(
    ("n", "kind"), [(-1, ValueError), (None, TypeError), (2.0, TypeError), (True, TypeError)]
)
def test_a_number_of_samples_that_is_none_is_refused_on_every_rank(n, kind):
    for error, text in caught(lambda comm: scatter_index(n, comm)):
        assert error is kind
        assert repr(n) in text


def test_a_large_number_of_samples_stays_exact():
    n = 2**53 + 1
    assert mnpar.run(lambda comm: scatter_index(n, comm, force_equal_length=False), ranks=2)[1] == (
        2**52 + 1,
        n,
    )


def test_chainermns_error_is_there_for_programs_that_catch_it():
    assert issubclass(DataSizeError, Exception)
    assert sys.modules["mnpar.datasets"].DataSizeError is DataSizeError


def test_an_array_of_more_axes_than_can_be_sent_is_handed_out_too():
    x = np.arange(4).reshape(4, *[1] * 13)
    parts = mnpar.run(lambda comm: [int(part.item()) for part in scatter_dataset(x, comm)], ranks=2)
    assert parts == [[0, 1], [2, 3]]


def test_a_transform_that_cannot_be_sent_is_told_with_the_remedy_on_every_rank():
    for error, text in caught(
        lambda comm: scatter_dataset(TransformDataset([1, 2], lambda x: x), comm)
    ):
        assert error is TypeError
        assert "no lambda" in text
