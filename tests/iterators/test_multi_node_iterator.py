"""The master's batches on all ranks: as they were, with the same count of epochs, ending and
failing together.
"""

from typing import NamedTuple

import numpy as np
import pytest

import mnpar
from mnpar.dataset import Iterator
from mnpar.datasets import TupleDataset
from mnpar.errors import MismatchError
from mnpar.iterators import SerialIterator, ShuffleOrderSampler, create_multi_node_iterator

RANKS = [1, 2, 3, 4]


class Point(NamedTuple):
    x: float
    label: str


EXAMPLES = {
    "arrays": lambda i: np.full((2, 3), i, np.float64),
    "0-d arrays": lambda i: np.array(i, np.float16),
    "numbers": lambda i: i,
    "floats": lambda i: i / 3,
    "numpy numbers": lambda i: np.int8(i),
    "strings in tuples": lambda i: (f"s{i}",),
    "numpy strings": lambda i: np.str_(i),
    "pairs of classification": lambda i: (np.full(4, i, np.float32), np.int32(i)),
    "pairs of regression": lambda i: (np.full(4, i, np.float64), np.float64(i) + 0.1),
    "triples": lambda i: (np.ones(2), i, f"s{i}"),
    "large numbers": lambda i: (2**53 + i, np.int64(2**62 + i)),
    "dicts": lambda i: {"x": np.full(2, i), "meta": {"name": f"s{i}", "t": i}},
    "lists": lambda i: [float(i)] * i,
    "sequences": lambda i: (np.arange(i, dtype=np.int16), i),
    "named tuples": lambda i: Point(i / 2, f"s{i}"),
    "nothing": lambda i: (),
    "none in lists": lambda i: [None],
    "sometimes none": lambda i: (None,) if i % 2 else (i, np.ones(i)),
    "changing dtypes": lambda i: np.ones(2, np.float32 if i < 5 else np.float64),
    "big-endian": lambda i: np.full(2, i, ">f4"),
    "complex": lambda i: np.full(2, 1j * i),
}


def same(a, b):
    assert type(a) is type(b)
    if isinstance(a, np.ndarray):
        np.testing.assert_array_equal(a, b, strict=True)
    elif isinstance(a, dict):
        assert list(a) == list(b)
        same(list(a.values()), list(b.values()))
    elif isinstance(a, (tuple, list)):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            same(x, y)
    else:
        assert a == b


@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
def test_every_kind_of_example_arrives_as_it_was_on_every_rank(example):
    def program(comm):
        mine = (
            SerialIterator([example(i) for i in range(10)], 4, shuffle=False)
            if comm.rank == 0
            else None
        )
        iterator = create_multi_node_iterator(mine, comm)
        return [iterator.next() for _ in range(6)]

    plain = SerialIterator([example(i) for i in range(10)], 4, shuffle=False)
    truth = [plain.next() for _ in range(6)]
    for batches in mnpar.run(program, ranks=3):
        same(batches, truth)


def book(iterator):
    return (
        iterator.epoch,
        iterator.is_new_epoch,
        iterator.epoch_detail,
        iterator.previous_epoch_detail,
        iterator.current_position,
        iterator.batch_size,
        iterator.repeat,
        len(iterator.dataset),
    )


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("batch_size", [4, 7, 100, 250])
def test_the_count_of_epochs_is_the_masters_everywhere(ranks, batch_size):
    master = ranks - 1
    dataset = TupleDataset(np.random.rand(100, 3), np.arange(100))

    def program(comm):
        mine = SerialIterator(
            dataset, batch_size, order_sampler=ShuffleOrderSampler(np.random.RandomState(0))
        )
        iterator = create_multi_node_iterator(mine, comm, master)
        out = [book(iterator)]
        while iterator.epoch < 3:
            iterator.next()
            out.append(book(iterator))
        return out

    plain = SerialIterator(
        dataset, batch_size, order_sampler=ShuffleOrderSampler(np.random.RandomState(0))
    )
    truth = [book(plain)]
    while plain.epoch < 3:
        plain.next()
        truth.append(book(plain))
    assert mnpar.run(program, ranks=ranks) == [truth] * ranks


@pytest.mark.parametrize("ranks", RANKS)
def test_all_ranks_stop_together_and_can_start_again(ranks):
    def program(comm):
        iterator = create_multi_node_iterator(
            SerialIterator(range(5), 2, repeat=False, shuffle=False) if comm.rank == 0 else None,
            comm,
        )
        first = list(iterator)
        with pytest.raises(StopIteration):
            iterator.next()
        ended = book(iterator)
        iterator.reset()
        return first, ended, book(iterator), list(iterator)

    batches = [[0, 1], [2, 3], [4]]
    ended = (1, True, 1.0, 0.8, 0, 2, False, 5)
    assert (
        mnpar.run(program, ranks=ranks)
        == [(batches, ended, (0, False, 0.0, None, 0, 2, False, 5), batches)] * ranks
    )


def test_the_other_ranks_iterators_are_not_looked_at():
    def program(comm):
        iterator = create_multi_node_iterator(SerialIterator([comm.rank] * 3, 1), comm, 1)
        return iterator.next()

    assert mnpar.run(program, ranks=3) == [[1]] * 3


def test_batches_of_one_rank_can_be_changed_without_changing_anothers():
    def program(comm):
        iterator = create_multi_node_iterator(
            SerialIterator([np.zeros(2)], 1) if comm.rank == 0 else None, comm
        )
        (x,) = iterator.next()
        x += comm.rank
        comm.barrier()
        return x[0]

    assert mnpar.run(program, ranks=3) == [0, 1, 2]


class Odd(Iterator):
    """An iterator whose batches are no lists, with none of the usual attributes."""

    def __init__(self, batches):
        self.batches = iter(batches)

    def __next__(self):
        return next(self.batches)


ODD = {
    "array": [np.ones((3, 2)), np.zeros((1, 2))],
    "tuple of arrays": [(np.ones((3, 2)), np.arange(3)), (np.ones((1, 2)), np.arange(1))],
    "dict of arrays": [{"x": np.ones(3)}],
    "number": [1, 2.5, np.float16(3)],
    "empty list": [[], [1], []],
}


@pytest.mark.parametrize("batches", ODD.values(), ids=ODD)
def test_a_batch_need_not_be_a_list_and_an_iterator_need_not_count(batches):
    def program(comm):
        iterator = create_multi_node_iterator(Odd(batches) if comm.rank == 0 else None, comm)
        out = list(iterator)
        assert (iterator.epoch, iterator.previous_epoch_detail, iterator.batch_size) == (
            0,
            None,
            None,
        )
        return out

    for out in mnpar.run(program, ranks=2):
        same(out, batches)


def test_an_ordinary_generator_can_be_the_masters_iterator():
    def program(comm):
        return list(
            create_multi_node_iterator(([i] for i in range(3)) if comm.rank == 0 else None, comm)
        )

    assert mnpar.run(program, ranks=2) == [[[0], [1], [2]]] * 2


def test_the_length_of_the_data_set_is_known_everywhere_and_its_examples_on_the_master():
    def program(comm):
        iterator = create_multi_node_iterator(
            SerialIterator(range(10), 3) if comm.rank == 0 else None, comm
        )
        if comm.rank == 1:
            with pytest.raises(RuntimeError, match="example 2 is on rank 0"):
                iterator.dataset[2]
        return len(iterator.dataset)

    assert mnpar.run(program, ranks=2) == [10, 10]


def test_a_length_that_the_master_does_not_know_is_an_error():
    def program(comm):
        iterator = create_multi_node_iterator(Odd([]) if comm.rank == 0 else None, comm)
        with pytest.raises(
            AttributeError, match="dataset" if comm.rank == 0 else "no data set with a length"
        ):
            iterator.dataset  # noqa: B018
        return comm.rank

    assert mnpar.run(program, ranks=2) == [0, 1]


def test_the_structure_of_the_batch_is_sent_once():
    sizes = []

    def program(comm):
        mine = (
            SerialIterator([{"image": np.ones((5, 5)), "label": i} for i in range(8)], 2)
            if comm.rank == 0
            else None
        )
        iterator = create_multi_node_iterator(mine, comm)
        bcast = comm.bcast
        if comm.rank == 0:
            comm.bcast = lambda x=None, root=0: (sizes.append((x.nbytes, x.dtype)), bcast(x, root))[
                1
            ]
        for _ in range(3):
            iterator.next()

    mnpar.run(program, ranks=2)
    head = 12 * 8
    arrays = [(2 * 25 * 8, np.float64), (2 * 8, np.int64)]
    assert sizes[0][0] > head
    assert sizes[1:3] == arrays
    assert sizes[3:] == [(head, np.uint8), *arrays] * 2


# ---- errors ----


class BrokenError(Exception):
    pass


class Failing(SerialIterator):
    def __next__(self):
        batch = super().__next__()
        if batch == [2, 3]:
            raise BrokenError("example 2 cannot be read")
        return batch


def test_an_error_of_the_masters_iterator_is_raised_everywhere_and_the_next_batch_still_comes():
    def program(comm):
        iterator = create_multi_node_iterator(
            Failing(range(6), 2, shuffle=False) if comm.rank == 1 else None, comm, 1
        )
        assert iterator.next() == [0, 1]
        with pytest.raises(BrokenError, match="example 2 cannot be read") as caught:
            iterator.next()
        return getattr(caught.value, "__notes__", []), iterator.next()

    note = ["(raised on rank 1, which does this work for all ranks)"]
    assert mnpar.run(program, ranks=3) == [(note, [4, 5]), ([], [4, 5]), (note, [4, 5])]


def test_a_batch_that_cannot_be_sent_is_an_error_everywhere():
    def program(comm):
        iterator = create_multi_node_iterator(
            SerialIterator([(lambda: 0,)], 1) if comm.rank == 0 else None, comm
        )
        with pytest.raises(Exception, match="lambda"):
            iterator.next()
        return comm.rank

    assert mnpar.run(program, ranks=2) == [0, 1]


@pytest.mark.parametrize("example", ["test", b"test", None, {1, 2}, object()], ids=repr)
@pytest.mark.parametrize("alone", [False, True], ids=["in a list", "alone"])
def test_an_example_without_arrays_and_numbers_is_a_type_error_everywhere(example, alone):
    def program(comm):
        mine = Odd([example, 3] if alone else [[1.0, example], [2.0]])
        iterator = create_multi_node_iterator(mine if comm.rank == 0 else None, comm)
        with pytest.raises(TypeError, match=f"this one is a {type(example).__name__}, "):
            iterator.next()
        return iterator.next()

    assert mnpar.run(program, ranks=3) == [3 if alone else [2.0]] * 3


class OnlyCalls(mnpar.Serializer, mnpar.Deserializer):
    """A serializer in either direction that knows no parts."""

    def __init__(self, values, reading=False):
        self.values, self.reading = values, reading

    def __call__(self, key, value):
        if not self.reading:
            self.values[key] = value
        elif isinstance(value, np.ndarray):
            np.copyto(value, self.values[key])
        elif value is not None:
            return type(value)(np.asarray(self.values[key]))
        return value if isinstance(value, np.ndarray) else self.values[key]


@pytest.mark.parametrize("plain", [False, True], ids=["a class", "a function"])
@pytest.mark.parametrize("make", ["multi-node", "synchronized"])
@pytest.mark.parametrize("kind", ["SerialIterator", "MultithreadIterator", "MultiprocessIterator"])
def test_a_serializer_need_only_know_calls(make, kind, plain):
    def serializer(*args):
        made = OnlyCalls(*args)
        return made.__call__ if plain else made

    def program(comm):
        made = getattr(mnpar.iterators, kind)(np.arange(6.0), 2)
        if make == "multi-node":
            iterator = create_multi_node_iterator(made, comm)
        else:
            iterator = mnpar.iterators.create_synchronized_iterator(made, comm)
        values = {}
        read = iterator.next() + iterator.next()
        iterator.serialize(serializer(values))
        iterator.finalize()
        other = SerialIterator(np.arange(6.0), 2)
        other.serialize(serializer(values, True))
        assert (other.epoch_detail, other.is_new_epoch) == (2 / 3, False)
        return sorted(read + other.next())

    assert mnpar.run(program, ranks=2) == [[0, 1, 2, 3, 4, 5]] * 2


@pytest.mark.parametrize("bad", [None, [1, 2], 3])
def test_a_master_without_an_iterator_is_an_error_everywhere(bad):
    def program(comm):
        with pytest.raises(
            ValueError, match="the master of a multi-node iterator needs an iterator"
        ):
            create_multi_node_iterator(bad, comm)
        return comm.rank

    assert mnpar.run(program, ranks=2) == [0, 1]


@pytest.mark.parametrize("master", [-1, 2, None])
def test_a_master_that_does_not_exist_is_refused(master):
    def program(comm):
        with pytest.raises(
            ValueError, match=f"rank_master = {master} is no rank of a communicator of 2"
        ):
            create_multi_node_iterator(SerialIterator([1], 1), comm, master)
        return comm.rank

    assert mnpar.run(program, ranks=2) == [0, 1]


@pytest.mark.usefixtures("both_matches")
def test_ranks_that_make_different_calls_are_told_so():
    def program(comm):
        iterator = create_multi_node_iterator(
            SerialIterator([None], 1) if comm.rank == 0 else None, comm
        )
        if comm.rank == 0:
            iterator.reset()
        else:
            iterator.next()

    with pytest.raises(
        MismatchError, match=r"rank 1 called next\(\) .* its master, rank 0, called reset\(\)"
    ):
        mnpar.run(program, ranks=2)


# ---- saving ----


class Memory:
    def __init__(self, values, reading=False, path=""):
        self.values = values
        self.reading = reading
        self.path = path

    def __getitem__(self, key):
        return Memory(self.values, self.reading, f"{self.path}{key}/")

    def __call__(self, key, value):
        if self.reading:
            return self.values[self.path + key]
        self.values[self.path + key] = np.array(value)
        return value


def plain_iterator(seed):
    return SerialIterator(range(10), 3, order_sampler=ShuffleOrderSampler(seed))


def test_any_ranks_file_lets_a_plain_iterator_go_on():
    def program(comm):
        iterator = create_multi_node_iterator(plain_iterator(1) if comm.rank == 0 else None, comm)
        for _ in range(5):
            iterator.next()
        values = {}
        iterator.serialize(Memory(values))
        return values, [iterator.next() for _ in range(10)]

    for values, batches in mnpar.run(program, ranks=3):
        resumed = plain_iterator(2)
        resumed.serialize(Memory(values, reading=True))
        assert [resumed.next() for _ in range(10)] == batches


@pytest.mark.parametrize("others_saved", ["the same", "something else", "nothing"])
def test_a_saved_run_goes_on_with_the_masters_state_whatever_the_others_files_say(others_saved):
    values, other_values = {}, {}
    saved = plain_iterator(1)
    for _ in range(5):
        saved.next()
    saved.serialize(Memory(values))
    plain_iterator(3).serialize(Memory(other_values))
    others = {"the same": values, "something else": other_values, "nothing": {}}[others_saved]

    def program(comm):
        iterator = create_multi_node_iterator(plain_iterator(5) if comm.rank == 0 else None, comm)
        iterator.serialize(Memory(values if comm.rank == 0 else others, reading=True))
        at_once = book(iterator)
        return at_once, [iterator.next() for _ in range(10)]

    truth = book(saved), [saved.next() for _ in range(10)]
    assert mnpar.run(program, ranks=3) == [truth] * 3


def test_a_master_that_cannot_read_its_file_fails_everywhere():
    def program(comm):
        iterator = create_multi_node_iterator(plain_iterator(5) if comm.rank == 0 else None, comm)
        with pytest.raises(KeyError, match="current_position"):
            iterator.serialize(Memory({}, reading=True))
        return comm.rank

    assert mnpar.run(program, ranks=2) == [0, 1]


def test_finalize_waits_for_nobody():
    class Closing(Odd):
        closed = False

        def finalize(self):
            self.closed = True

    def program(comm):
        mine = Closing([[1]])
        with create_multi_node_iterator(mine if comm.rank == 0 else None, comm) as iterator:
            if comm.rank == 1:
                iterator.finalize()
        return mine.closed

    assert mnpar.run(program, ranks=2) == [True, False]


@pytest.mark.parametrize(
    ("given", "name"), [(None, "None"), (list(range(10_000)), "a list")], ids=["None", "a list"]
)
def test_what_is_no_iterator_is_named_and_not_printed(given, name):
    def program(comm):
        with pytest.raises(
            ValueError, match=rf"needs an iterator, not {name}(\n\(raised on rank 1.*)?$"
        ):
            create_multi_node_iterator(given, comm, 1)
        return comm.rank

    assert mnpar.run(program, ranks=2) == [0, 1]
