"""Batches on one rank, and where in which epoch they leave the iterator."""

from contextlib import suppress

import numpy as np
import pytest

import mnpar.random
from mnpar.datasets import DictDataset, PrefetchDataset, SubDataset, TupleDataset
from mnpar.iterators import (
    MultiprocessIterator,
    MultithreadIterator,
    SerialIterator,
    ShuffleOrderSampler,
)


class Memory:
    """A serializer in both directions, as the ones for files behave: arrays are read into the given
    array.
    """

    def __init__(self, values=None, path="", reading=False):
        self.values = {} if values is None else values
        self.path = path
        self.reading = reading

    def __getitem__(self, key):
        return Memory(self.values, f"{self.path}{key}/", self.reading)

    def __call__(self, key, value):
        key = self.path + key
        if not self.reading:
            self.values[key] = np.array(value)
            return value
        found = self.values[key]
        if isinstance(value, np.ndarray):
            np.copyto(value, found)
            return value
        return found[()]


def state(iterator):
    return (
        iterator.epoch,
        iterator.is_new_epoch,
        iterator.current_position,
        iterator.epoch_detail,
        iterator.previous_epoch_detail,
    )


def test_batches_wrap_into_the_next_epoch_and_the_state_says_so():
    iterator = SerialIterator(range(5), 2, shuffle=False)
    assert state(iterator) == (0, False, 0, 0.0, None)
    table = [
        ([0, 1], (0, False, 2, 0.4, 0.0)),
        ([2, 3], (0, False, 4, 0.8, 0.4)),
        ([4, 0], (1, True, 1, 1.2, 0.8)),
        ([1, 2], (1, False, 3, 1.6, 1.2)),
        ([3, 4], (2, True, 0, 2.0, 1.6)),
        ([0, 1], (2, False, 2, 2.4, 2.0)),
    ]
    for batch, expected in table:
        assert iterator.next() == batch
        assert state(iterator) == expected


def test_an_iterator_and_its_data_set_are_shown_with_their_sizes():
    iterator = SerialIterator(TupleDataset("abcde"), 2)
    iterator.next()
    assert repr(iterator) == "<SerialIterator of 5 examples, batch_size=2, at 2 in epoch 0>"
    assert repr(iterator.dataset) == "<TupleDataset of 5 examples>"
    assert repr(SubDataset("abcde", 1, 4)) == "<SubDataset of 3 examples>"
    assert repr(DictDataset(a="abc")) == "<DictDataset of 3 examples>"
    assert repr(PrefetchDataset("ab")) == "<PrefetchDataset of 2 examples>"


def test_without_repeat_the_last_batch_is_short_and_then_it_stops():
    iterator = SerialIterator(range(5), 2, repeat=False, shuffle=False)
    assert list(iterator) == [[0, 1], [2, 3], [4]]
    assert state(iterator) == (1, True, 0, 1.0, 0.8)
    with pytest.raises(StopIteration):
        iterator.next()
    iterator.reset()
    assert state(iterator) == (0, False, 0, 0.0, None)
    assert list(iterator) == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_batch_may_be_longer_than_several_epochs(shuffle):
    iterator = SerialIterator(range(3), 8, shuffle=shuffle)
    batch = iterator.next()
    assert sorted(batch[:3]) == sorted(batch[3:6]) == [0, 1, 2]
    assert len(batch) == 8
    assert (iterator.epoch, iterator.is_new_epoch, iterator.current_position) == (2, True, 2)
    assert sorted(batch[6:] + iterator.next()[:1]) == [0, 1, 2]
    assert list(SerialIterator(range(3), 8, repeat=False, shuffle=False)) == [[0, 1, 2]]


@pytest.mark.parametrize("n", [1, 2, 7, 12])
@pytest.mark.parametrize("batch_size", [1, 2, 3, 5])
def test_every_epoch_has_each_example_once(n, batch_size):
    iterator = SerialIterator(range(n), batch_size)
    drawn = [x for _ in range(3 * n) for x in iterator.next()]
    for begin in range(0, len(drawn) - n + 1, n):
        assert sorted(drawn[begin : begin + n]) == list(range(n))
    assert iterator.epoch == len(drawn) // n
    assert iterator.current_position == len(drawn) % n


def test_shuffling_gives_a_new_order_every_epoch():
    iterator = SerialIterator(range(50), 50)
    first = iterator.next()
    second = iterator.next()
    assert first != second
    assert first != list(range(50))


def test_orders_follow_the_ranks_generator_and_nothing_that_is_drawn_in_between():
    def orders(noise):
        mnpar.random.seed(3)
        iterator = SerialIterator(range(20), 10)
        out = []
        for _ in range(6):
            out.append(iterator.next())
            mnpar.random.generator().random(noise)
        return out

    assert orders(0) == orders(5)


def test_numpys_global_generator_is_left_alone():
    np.random.seed(0)
    before = np.random.get_state()[1].copy()
    SerialIterator(range(20), 10).next()
    np.testing.assert_array_equal(np.random.get_state()[1], before)


def test_an_order_sampler_with_a_random_state_gives_chainers_orders():
    iterator = SerialIterator(
        range(6), 6, order_sampler=ShuffleOrderSampler(np.random.RandomState(7))
    )
    random = np.random.RandomState(7)
    for _ in range(3):
        assert iterator.next() == random.permutation(6).tolist()


def test_an_order_sampler_of_ones_own_sees_order_and_position():
    seen = []

    def backwards(order, position):
        seen.append((order.tolist(), position))
        return order[::-1]

    iterator = SerialIterator("abcd", 3, order_sampler=backwards)
    assert iterator.next() == ["d", "c", "b"]
    assert iterator.next() == ["a", "a", "b"]
    assert seen == [([0, 1, 2, 3], 0), ([3, 2, 1, 0], 3)]


REFUSED = {
    "zero": (lambda: SerialIterator([1], 0), "batch_size = 0"),
    "negative": (lambda: SerialIterator([1], -2), "batch_size = -2"),
    "fraction": (lambda: SerialIterator([1], 1.5), "batch_size = 1.5"),
    "none": (lambda: SerialIterator([1], None), "batch_size = None"),
    "bool": (lambda: SerialIterator([1], True), "batch_size = True"),
    "both": (
        lambda: SerialIterator([1], 1, shuffle=True, order_sampler=lambda o, p: o),
        "leave shuffle out",
    ),
    "no order": (
        lambda: SerialIterator([1, 2], 1, order_sampler=lambda o, p: o[:, None]),
        r"order of shape \(2, 1\)",
    ),
    "an order of another length": (
        lambda: list(SerialIterator([1, 2, 3], 1, order_sampler=lambda o, p: o[1:])),
        "1 examples after an epoch of 2",
    ),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
def test_an_iterator_that_makes_no_sense_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("shuffle", [False, True])
def test_an_empty_data_set_ends_at_once_or_says_that_it_cannot_repeat(shuffle):
    iterator = SerialIterator([], 2, repeat=False, shuffle=shuffle)
    assert list(iterator) == []
    assert iterator.epoch_detail == 0.0
    with pytest.raises(ValueError, match=r"force_equal_length.*repeat=False"):
        SerialIterator([], 2, shuffle=shuffle).next()


def test_an_error_in_the_data_set_loses_no_example():
    class Flaky:
        broken = True

        def __len__(self):
            return 4

        def __getitem__(self, i):
            if i == 2 and self.broken:
                raise OSError("try again")
            return i

    dataset = Flaky()
    iterator = SerialIterator(dataset, 2, shuffle=False)
    assert iterator.next() == [0, 1]
    with pytest.raises(OSError, match="try again"):
        iterator.next()
    dataset.broken = False
    assert iterator.next() == [2, 3]


def test_an_error_in_the_data_set_changes_no_order():
    class Flaky(list):
        broken = False

        def __getitem__(self, i):
            if self.broken:
                self.broken = False
                raise OSError("try again")
            return super().__getitem__(i)

    data = Flaky(range(7))
    expected, iterator = (
        SerialIterator(x, 5, order_sampler=ShuffleOrderSampler(3)) for x in (range(7), data)
    )
    found = []
    while len(found) < 6:
        data.broken = len(found) % 2 == 1
        with suppress(OSError):
            found.append(iterator.next())
            continue
        found.append(iterator.next())  # once more
    assert found == [expected.next() for _ in range(6)]


def test_it_is_a_context_manager_and_can_be_finalized_twice():
    with SerialIterator([1, 2], 1, repeat=False, shuffle=False) as iterator:
        assert list(iterator) == [[1], [2]]
    iterator.finalize()


SAMPLERS = {
    "no shuffling": lambda: {"shuffle": False},
    "the default": dict,
    "RandomState": lambda: {"order_sampler": ShuffleOrderSampler(np.random.RandomState(1))},
    "Generator": lambda: {
        "order_sampler": ShuffleOrderSampler(np.random.Generator(np.random.PCG64(1)))
    },
    "Philox": lambda: {
        "order_sampler": ShuffleOrderSampler(np.random.Generator(np.random.Philox(1)))
    },
    "seed": lambda: {"order_sampler": ShuffleOrderSampler(1)},
}


@pytest.mark.parametrize("options", SAMPLERS.values(), ids=SAMPLERS)
@pytest.mark.parametrize("steps", [0, 1, 4, 7])
def test_a_saved_iterator_goes_on_with_the_same_batches_for_epochs(options, steps):
    iterator = SerialIterator(range(10), 3, **options())
    for _ in range(steps):
        iterator.next()
    saved = Memory()
    iterator.serialize(saved)
    other = SerialIterator(range(10), 3, **options())
    other.next()
    other.serialize(Memory(saved.values, reading=True))
    assert state(other) == state(iterator)
    for _ in range(15):
        assert other.next() == iterator.next()
        assert state(other) == state(iterator)


def test_what_chainer_saved_is_read():
    values = {
        "current_position": np.array(3),
        "epoch": np.array(2),
        "is_new_epoch": np.array(False),
        "order": np.array([4, 3, 2, 1, 0]),
        "previous_epoch_detail": np.array(2.2),
    }
    iterator = SerialIterator(range(5), 2)
    iterator.serialize(Memory(values, reading=True))
    assert iterator.next() == [1, 0]
    assert (iterator.epoch, iterator.previous_epoch_detail) == (3, 2.6)


def test_a_state_of_another_data_set_is_refused():
    saved = Memory()
    iterator = SerialIterator(range(10), 9, shuffle=False)
    iterator.next()
    iterator.serialize(saved)
    with pytest.raises(
        ValueError,
        match="at position 9, was saved with a data set of another length; this one has 5",
    ):
        SerialIterator(range(5), 2, shuffle=False).serialize(Memory(saved.values, reading=True))
    saved.values["order"] = np.arange(7)

    class Loose(Memory):  # returns what there is, whatever the shape
        def __call__(self, key, value):
            return self.values[key]

    other = SerialIterator(range(5), 2)
    with pytest.raises(ValueError, match="of 7 examples; this one has 5"):
        other.serialize(Loose(saved.values, reading=True))


@pytest.mark.parametrize(
    ("sampler", "steps", "position"),
    [
        (lambda order, _: np.tile(np.unique(order), 2), 10, 5),
        (lambda order, _: np.zeros(4, int), 3, 1),
    ],
    ids=["twice the data set", "always 4"],
)
def test_with_other_ranks_the_position_in_an_order_of_another_length_moves_as_the_data_set_does(
    sampler, steps, position
):
    saved = Memory()
    iterator = SerialIterator(range(6), 1, order_sampler=sampler)
    for _ in range(steps):
        iterator.next()
    iterator.serialize(saved)
    other = SerialIterator(range(3), 1, order_sampler=sampler)
    reading = Memory(saved.values, reading=True)
    reading.ranks_changed = True
    other.serialize(reading)
    assert other.current_position == position


def test_a_state_of_another_kind_of_generator_is_refused():
    saved = Memory()
    SerialIterator(
        range(5), 2, order_sampler=ShuffleOrderSampler(np.random.RandomState(0))
    ).serialize(saved)
    with pytest.raises(ValueError, match="does not fit this one, a Generator"):
        SerialIterator(range(5), 2).serialize(Memory(saved.values, reading=True))


@pytest.mark.parametrize(
    ("data", "name"),
    [(None, "None"), (5, "int"), ((i for i in range(3)), "generator"), ({1}, "set")],
)
def test_what_is_no_data_set_is_told(data, name):
    with pytest.raises(TypeError, match=rf"a data set has len\(\) and \[i\]; {name} has not"):
        SerialIterator(data, 3)


@pytest.mark.parametrize("kind", [SerialIterator, MultithreadIterator])
def test_the_data_sets_stop_iteration_is_no_end_of_the_data(kind):
    class Stops(list):
        def __getitem__(self, i):
            return next(iter([] if i == 2 else [i]))

    with kind(Stops(range(5)), 2, repeat=False, shuffle=False) as iterator:
        assert iterator.next() == [0, 1]
        with pytest.raises(RuntimeError, match="StopIteration"):
            iterator.next()


def test_a_data_set_that_has_become_shorter_does_not_make_a_longer_batch():
    data = list(range(6))
    iterator = SerialIterator(data, 4, shuffle=False)
    iterator.next()
    del data[3:]
    assert [iterator.next() for _ in range(2)] == [[0, 1, 2, 0], [1, 2, 0, 1]]


@pytest.mark.parametrize("order", [[0.0, 1.0], [0, 3], [-1, 0]], ids=str)
def test_an_order_of_what_are_no_examples_is_told(order):
    with pytest.raises(ValueError, match="for a data set of 3 examples"):
        SerialIterator("abc", 2, order_sampler=lambda current, position: np.array(order)).next()


@pytest.mark.parametrize(
    "make",
    [
        lambda: MultithreadIterator("abc", 1, n_threads=1.5),
        lambda: MultithreadIterator("abc", 1, n_threads=None),
        lambda: MultiprocessIterator("abc", 1, n_processes=1.5),
        lambda: MultiprocessIterator("abc", 1, n_prefetch=None),
    ],
    ids=["threads", "no threads", "processes", "prefetch"],
)
def test_fractions_of_readers_are_told(make):
    with pytest.raises(ValueError, match=r"one thread or more|a whole number"):
        make()
