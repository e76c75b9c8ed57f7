"""flashlight's partitions (F6) and data sets of data sets (F8), with its numbers."""

import pickle
import sys
import threading

import numpy as np
import pytest

import mnpar
from mnpar.datasets import (
    BatchDataset,
    ConcatenatedDataset,
    DictDataset,
    MergeDataset,
    PrefetchDataset,
    ResampleDataset,
    ShuffleDataset,
    SubDataset,
    TransformDataset,
    TupleDataset,
    dynamic_partition_by_round_robin,
    partition_by_round_robin,
)
from mnpar.iterators import MultithreadIterator

ROUND_ROBIN = {
    11: ([0, 1, 4, 5, 8, 9], [2, 3, 6, 7, 10]),
    10: ([0, 1, 4, 5, 8], [2, 3, 6, 7, 9]),
    9: ([0, 1, 4, 5], [2, 3, 6, 7]),
    8: ([0, 1, 4, 5], [2, 3, 6, 7]),
    1: ([], []),
    0: ([], []),
}


@pytest.mark.parametrize(("n", "parts"), ROUND_ROBIN.items(), ids=map(str, ROUND_ROBIN))
def test_batches_go_round(n, parts):
    assert tuple(partition_by_round_robin(n, rank, 2, 2) for rank in range(2)) == parts


def test_a_rest_that_is_not_enough_for_all_may_be_shared():
    assert partition_by_round_robin(9, 0, 2, 2, allow_empty=True) == [0, 1, 4, 5, 8]
    assert partition_by_round_robin(9, 1, 2, 2, allow_empty=True) == [2, 3, 6, 7]


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("batch_size", [1, 2, 4])
def test_each_example_is_on_one_rank(size, batch_size):
    for n in range(20):
        parts = [
            partition_by_round_robin(n, rank, size, batch_size, allow_empty=True)
            for rank in range(size)
        ]
        assert sorted(i for part in parts for i in part) == list(range(n))
        equal = [partition_by_round_robin(n, rank, size, batch_size) for rank in range(size)]
        assert len({-(-len(part) // batch_size) for part in equal}) == 1  # as many steps


LENGTHS = [2, 4, 1, 2, 3, 7, 4, 3]


def test_batches_within_a_budget_go_round():
    assert dynamic_partition_by_round_robin(LENGTHS, 0, 2, 12) == ([0, 1, 2, 5], [3, 1])
    assert dynamic_partition_by_round_robin(LENGTHS, 1, 2, 12) == ([3, 4, 6, 7], [2, 2])
    # the last round is for one rank only
    assert dynamic_partition_by_round_robin(LENGTHS, 0, 3, 12) == (
        [0, 1, 2],
        [3],
    )
    assert dynamic_partition_by_round_robin(LENGTHS, 0, 3, 12, allow_empty=True) == (
        [0, 1, 2, 6, 7],
        [3, 2],
    )
    # one exceeds it
    assert dynamic_partition_by_round_robin([9, 20, 1], 0, 1, 12) == (
        [0, 1, 2],
        [1, 1, 1],
    )
    assert dynamic_partition_by_round_robin([], 0, 1, 12) == ([], [])


@pytest.mark.parametrize(
    "call",
    [
        lambda: partition_by_round_robin(4, 2, 2),
        lambda: partition_by_round_robin(-1, 0, 2),
        lambda: partition_by_round_robin(4, 0, 2, 0),
        lambda: dynamic_partition_by_round_robin([1], 0, 1, 0),
        lambda: dynamic_partition_by_round_robin([1], -1, 1, 2),
    ],
    ids=["rank", "examples", "batch", "budget", "no rank"],
)
def test_impossible_partitions_are_errors(call):
    with pytest.raises(ValueError, match=r"not 0|cannot take"):
        call()


# ---- batches ----


@pytest.mark.parametrize(
    ("policy", "sizes"), [("include_last", [10] * 4 + [2]), ("skip_last", [10] * 4)]
)
def test_the_last_batch_is_shorter_or_left_out(policy, sizes):
    batches = BatchDataset(np.arange(42), 10, policy)
    assert [len(batch) for batch in batches] == sizes
    np.testing.assert_array_equal(batches[-1][-1], sum(sizes) - 1)


def test_what_is_not_divisible_is_an_error_where_it_must_be():
    with pytest.raises(ValueError, match="42 examples are not divisible into batches of 10"):
        BatchDataset(np.arange(42), 10, "divisible_only")
    assert len(BatchDataset(np.arange(40), 10, "divisible_only")) == 4


def test_batches_of_given_sizes_and_as_lists():
    assert list(BatchDataset("abcde", [2, 3], converter=None)) == [["a", "b"], ["c", "d", "e"]]
    for sizes in ([3, 3], [0], 0):
        with pytest.raises(ValueError, match="examples"):
            BatchDataset("abcde", sizes)
    with pytest.raises(ValueError, match="policy is one of"):
        BatchDataset("abcde", 2, "most")


def test_a_rank_makes_batches_of_its_dynamic_part():
    mine, sizes = dynamic_partition_by_round_robin(LENGTHS, 0, 2, 12)
    batches = BatchDataset(ResampleDataset(LENGTHS, mine), sizes, converter=None)
    assert list(batches) == [[2, 4, 1], [7]]


# ---- the others ----


def test_data_sets_one_after_the_other():
    whole = ConcatenatedDataset([], "ab", [], "cde", [])
    assert len(whole) == 5
    assert list(whole) == list("abcde")
    assert whole[-1] == "e"
    assert whole[1:4] == ["b", "c", "d"]
    with pytest.raises(IndexError):
        whole[5]


def test_data_sets_side_by_side():
    assert MergeDataset("ab", [1, 2, 3])[:] == [("a", 1), ("b", 2), (3,)]
    with pytest.raises(ValueError, match="at least one"):
        MergeDataset()


def test_any_choice_of_examples():
    assert list(ResampleDataset("abc", lambda i: i % 2, n=5)) == list("ababa")
    assert list(ResampleDataset("abc", [])) == []
    for bad in ([3], [-1], [0.5]):
        with pytest.raises(IndexError):
            ResampleDataset("abc", bad)


def test_drawn_orders_are_the_same_for_a_seed_and_change():
    one, other = (ShuffleDataset(range(20), seed=3) for _ in range(2))
    first = list(one)
    assert first == list(other)
    one.resample()
    other.resample()
    assert list(one) == list(other) != first
    assert sorted(one) == list(range(20))
    mnpar.random.seed(0)
    assert sorted(ShuffleDataset(range(9))) == list(range(9))


@pytest.mark.parametrize(
    "order", [range(10), [5, 6, 2, 9, 0, 1, 9]], ids=["in sequence", "any order"]
)
@pytest.mark.parametrize("n_threads", [0, 1, 3])
def test_examples_read_ahead_are_those_of_the_data_set(order, n_threads):
    with PrefetchDataset(TransformDataset(range(10), lambda x: x * x), n_threads, 4) as ahead:
        assert [ahead[i] for i in order] == [i * i for i in order]
    assert ahead[3] == 9


def test_the_next_examples_are_read_by_other_threads_with_the_settings_of_the_first():
    read, settings = {}, {}
    event = threading.Event()

    def look(i):
        read[i], settings[i] = threading.current_thread().name, mnpar.config.train
        if i == 2:
            event.set()
        return i

    with PrefetchDataset(TransformDataset(range(9), look), n_threads=1, n_prefetch=2) as ahead:
        with mnpar.using_config("train", False):
            assert ahead[0] == 0
            assert event.wait(10)
    assert read[0] == threading.current_thread().name
    assert read[1].startswith("prefetch")
    assert settings == dict.fromkeys((0, 1, 2), False)


def test_an_error_in_reading_is_raised_where_the_example_is_asked_for():
    with PrefetchDataset(TransformDataset([1, 0, 2], lambda x: 1 / x), 2, 2) as ahead:
        assert ahead[0] == 1
        with pytest.raises(ZeroDivisionError):
            ahead[1]
        assert ahead[2] == 0.5


@pytest.fixture
def threads_take_turns_often():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("threads_take_turns_often")
def test_several_threads_may_ask_for_what_is_read_ahead():
    """Two of them came for one example, nearly always in so many rounds, and the second got a
    KeyError.
    """
    for _ in range(20):
        with (
            PrefetchDataset(range(200), 4, 6) as data,
            MultithreadIterator(data, 16, False, False, n_threads=4) as batches,
        ):
            assert [i for batch in batches for i in batch] == list(range(200))


def test_a_pickle_of_what_is_read_ahead_has_threads_of_its_own():
    with PrefetchDataset(range(9), 2, 3) as data:
        assert data[0] == 0
        with pickle.loads(pickle.dumps(data)) as other:
            assert list(other) == list(data) == list(range(9))


WRAPPERS = {
    "batches": lambda data: BatchDataset(data, 2),
    "concatenated": lambda data: ConcatenatedDataset([], data),
    "merged": lambda data: MergeDataset([], data),
    "read ahead": lambda data: PrefetchDataset(data),
    "resampled": lambda data: ResampleDataset(data, [0]),
    "shuffled": lambda data: ShuffleDataset(data),
    "transformed": lambda data: TransformDataset(data, str),
    "tuples": lambda data: TupleDataset(data),
    "dicts": lambda data: DictDataset(a=data),
    "part": lambda data: SubDataset(data, 0, 1),
}


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
@pytest.mark.parametrize("data", [None, 5, (i for i in range(3))], ids=["None", "5", "a generator"])
def test_what_is_no_data_set_is_told_when_it_is_wrapped(wrap, data):
    with pytest.raises(TypeError, match=r"a data set has len\(\) and \[i\]"):
        wrap(data)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: BatchDataset("abc", 1.5), ValueError, "1 or more examples, not 1.5"),
        (lambda: BatchDataset("abc", [1.5]), ValueError, "1 or more examples, not 1.5"),
        (lambda: SubDataset("abc", 0.5, 2), ValueError, "are no part"),
        (lambda: SubDataset("abc", 0, 2)[0.5], TypeError, "an example is chosen by an integer"),
        (lambda: SubDataset("abc", 0, 3, [0.5, 1, 2])[0], TypeError, "integer"),
        (lambda: ResampleDataset("abc", lambda i: -1)[0], IndexError, r"order\(0\) is -1"),
        (lambda: ResampleDataset(np.arange(3), lambda i: i, 4)[3], IndexError, r"order\(3\) is 3"),
        (lambda: ResampleDataset("abc", [[0, 1]]), IndexError, "a list of integers"),
        (lambda: ResampleDataset("abc", str, -1), ValueError, "a number of examples, not -1"),
        (
            lambda: dynamic_partition_by_round_robin([1, np.nan], 0, 1, 5),
            ValueError,
            "example 1 is nan",
        ),
    ],
    ids=["batch", "sizes", "part", "index", "order", "before", "behind", "axes", "n", "length"],
)
def test_fractions_and_numbers_of_no_example_are_told(make, error, message):
    with pytest.raises(error, match=message):
        make()
