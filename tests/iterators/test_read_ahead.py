"""Iterators that read ahead, by threads or processes: the batches of a SerialIterator, whatever
happens to the readers.
"""

import copy
import gc
import itertools
import os
import select
from contextlib import suppress

import numpy as np
import pytest

import mnpar
import mnpar.random
from mnpar.datasets import TransformDataset, TupleDataset
from mnpar.iterators import (
    MultiprocessIterator,
    MultithreadIterator,
    SerialIterator,
    ShuffleOrderSampler,
    create_multi_node_iterator,
    create_synchronized_iterator,
)
from mnpar.serializers import DictionarySerializer, NpzDeserializer, load_npz, save_npz
from mnpar.training.extension import keep
from tests.iterators.sent import Arrays, Drawing, Failing, Kinds, Pids, Unready

KINDS = {  # starting processes takes some tenths of a second: threads are tried with more
    "threads": lambda *args, **kwargs: MultithreadIterator(*args, **kwargs, n_threads=2),
    "processes": lambda *args, **kwargs: MultiprocessIterator(*args, **kwargs, n_processes=2),
    "processes, far ahead": lambda *args, **kwargs: MultiprocessIterator(
        *args, **kwargs, n_processes=3, n_prefetch=3
    ),
}
PROCESSES = ("processes", "processes, far ahead")
TWO = {name: KINDS[name] for name in ("threads", "processes")}

every_kind = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
both_kinds = pytest.mark.parametrize("make", TWO.values(), ids=TWO)


def state(iterator):
    return (
        iterator.epoch,
        iterator.is_new_epoch,
        iterator.current_position,
        iterator.epoch_detail,
        iterator.previous_epoch_detail,
    )


def batches(iterator, n):
    """At most n batches, with what the iterator says after each."""
    found = []
    with iterator:
        for _ in range(n):
            try:
                found.append((iterator.next(), state(iterator)))
            except StopIteration:
                found.append(("the end", state(iterator)))
    return found


SHAPES = {
    "even": (6, 2, {}),
    "uneven": (7, 3, {}),
    "one at a time": (3, 1, {}),
    "several epochs a batch": (3, 8, {}),
    "not shuffled": (5, 2, {"shuffle": False}),
    "once": (5, 2, {"repeat": False}),
    "empty": (0, 2, {"repeat": False}),
}


FEW = ("one at a time", "uneven", "once", "empty")


@pytest.mark.parametrize(
    ("kind", "shape"),
    [*[("threads", shape) for shape in SHAPES], *[("processes", shape) for shape in FEW]],
)
def test_batches_and_states_are_a_serial_iterators(kind, shape):
    make, (n, batch_size, options) = KINDS[kind], SHAPES[shape]
    mnpar.random.seed(1)
    expected = batches(SerialIterator(list(range(n)), batch_size, **options), 6)
    drawn = mnpar.random.generator().random()
    mnpar.random.seed(1)
    iterator = make(list(range(n)), batch_size, **options)
    assert batches(iterator, 6) == expected
    # the program draws the same, whichever iterator it has
    assert mnpar.random.generator().random() == drawn


@both_kinds
def test_an_empty_data_set_that_is_to_repeat_is_refused(make):
    with pytest.raises(ValueError, match="empty data set"):
        make([], 2).next()


@pytest.mark.parametrize(
    ("make", "read"),
    [*[(KINDS["threads"], n) for n in range(3)], *[(KINDS[kind], 2) for kind in PROCESSES]],
    ids=[*[f"threads-{n}" for n in range(3)], *PROCESSES],
)
def test_what_was_read_ahead_before_a_state_was_loaded_is_forgotten(make, read):
    def made(make):
        return make(list(range(6)), 4, order_sampler=ShuffleOrderSampler(7))

    with made(SerialIterator) as one, made(make) as other:
        for _ in range(read):
            other.next()
        saved = DictionarySerializer()
        saved.save(one)
        NpzDeserializer(saved.target).load(other)
        one.reset()
        other.reset()
        assert [other.next() for _ in range(4)] == [one.next() for _ in range(4)]


@every_kind
def test_a_reset_draws_the_orders_that_a_serial_iterator_draws(make):
    def program(make):
        mnpar.random.seed(5)
        with make(list(range(5)), 2) as iterator:
            found = []
            for n in (2, 0, 4, 1):  # of which the readers are ahead, across an epoch too
                found += [iterator.next() for _ in range(n)]
                iterator.reset()
                found.append(state(iterator))
        return found

    assert program(make) == program(SerialIterator)


@pytest.mark.parametrize(
    ("make", "n_before"),
    [*[(KINDS["threads"], n) for n in range(4)], *[(KINDS[kind], 2) for kind in PROCESSES]],
    ids=[*[f"threads-{n}" for n in range(4)], *PROCESSES],
)
def test_a_resumed_run_has_the_same_order_and_position(make, n_before, tmp_path):
    data = list(range(5))
    mnpar.random.seed(n_before)
    with make(data, 2) as iterator, make(data, 2) as other, make(data, 2) as third:
        serial = SerialIterator(data, 2)
        for _ in range(n_before):
            iterator.next()
        save_npz(tmp_path / "state", iterator)  # the readers are one batch or more ahead
        other.next()
        for one in (other, serial):
            load_npz(tmp_path / "state", one)
            assert state(one) == state(iterator)
        expected = [iterator.next() for _ in range(9)]
        assert [other.next() for _ in range(9)] == expected
        assert [serial.next() for _ in range(9)] == expected
        serial.reset()
        save_npz(tmp_path / "serial", serial)
        load_npz(tmp_path / "serial", third)
        assert [third.next() for _ in range(5)] == [serial.next() for _ in range(5)]


@both_kinds
def test_an_order_sampler_is_asked_as_by_a_serial_iterator(make):
    def program(make):
        asked = []

        def sampler(order, position):
            asked.append((order.tolist(), position))
            return np.roll(order, 1)

        with make(list(range(5)), 2, order_sampler=sampler) as iterator:
            found = [iterator.next() for _ in range(9)]
        return found, asked[:4]

    assert program(make) == program(SerialIterator)


@pytest.mark.parametrize(
    ("make", "length"),
    [(TWO["threads"], 2), *[(make, 7) for make in TWO.values()]],
    ids=["threads, short", *TWO],
)
def test_an_epoch_is_as_long_as_the_order_that_the_sampler_drew(make, length):
    def program(make, **how):
        def sampler(order, position):
            return np.arange(length) % 3 if len(order) == 5 else np.roll(order, 1)

        found = []
        with make(list("abcde"), 2, order_sampler=sampler, **how) as iterator:
            for batch in itertools.islice(iterator, 6):
                found.append((batch, iterator.epoch_detail, iterator.is_new_epoch))
            saved = DictionarySerializer()
            saved.save(iterator)
        with make(list("abcde"), 2, order_sampler=sampler, **how) as iterator:
            NpzDeserializer(saved.target).load(iterator)
            return found, [*itertools.islice(iterator, 3)]

    assert program(make) == program(SerialIterator)
    once, _ = program(make, repeat=False)
    assert "".join(["".join(batch) for batch, *_ in once]) == "abcabca"[:length]


@both_kinds
def test_a_copy_goes_its_own_way(make):
    with make(list(range(6)), 2, shuffle=False) as iterator:
        iterator.next()
        with copy.copy(iterator) as other:
            assert other.next() == iterator.next() == [2, 3]
            assert iterator.next() == [4, 5]
            assert (other.current_position, iterator.current_position) == (4, 0)


# ---- examples ----


@both_kinds
def test_examples_of_any_kind_come_as_they_are(make):
    with make(Kinds(), 4, shuffle=False) as iterator:
        for example, expected in zip(
            iterator.next(), SerialIterator(Kinds(), 4, shuffle=False).next(), strict=True
        ):
            assert list(example) == list(expected)
            for key, value in expected.items():
                assert type(example[key]) is type(value)
                if isinstance(value, np.ndarray):
                    assert example[key].dtype == value.dtype
                    assert example[key].flags.writeable
                if key != "named":
                    np.testing.assert_array_equal(example[key], value)
            assert example["named"].a == expected["named"].a


def test_processes_share_the_arrays_of_a_data_set_and_may_change_their_own_view():
    data = Arrays()
    with MultiprocessIterator(data, 4, shuffle=False, n_processes=2) as iterator:
        assert np.array_equal(iterator.next(), np.arange(12).reshape(4, 3) * 2)
    assert np.array_equal(data.rows, np.arange(12).reshape(4, 3))


@both_kinds
def test_a_data_set_of_data_sets_is_read(make):
    x = np.arange(40, dtype=np.float32).reshape(10, 4)
    t = np.arange(10, dtype=np.int32)
    pairs = TransformDataset(TupleDataset(x, t), tuple)
    with make(pairs, 4, repeat=False, shuffle=False) as iterator:
        for i, batch in enumerate(iterator):
            images, labels = mnpar.dataset.concat_examples(batch)
            assert np.array_equal(images, x[4 * i : 4 * i + 4])
            assert np.array_equal(labels, t[4 * i : 4 * i + 4])
            assert (images.dtype, labels.dtype) == (np.float32, np.int32)


@both_kinds
def test_what_a_data_set_draws_repeats_and_is_resumed(make, tmp_path):
    # a thread shares numpy's and Python's generators with the program
    n = 2 if make is KINDS["threads"] else 4

    def drawn(iterator):
        return [example[:n] for _ in range(3) for example in iterator.next()]

    mnpar.random.seed(3)
    with make(Drawing(), 4) as iterator:
        iterator.next()
        save_npz(tmp_path / "state", iterator)
        expected = drawn(iterator)
    assert len({example[1] for example in expected}) == 12
    mnpar.random.seed(3)
    with make(Drawing(), 4) as iterator:
        iterator.next()
        assert drawn(iterator) == expected
    mnpar.random.seed(4)
    with make(Drawing(), 4) as iterator:
        load_npz(tmp_path / "state", iterator)
        assert drawn(iterator) == expected


# ---- what goes wrong ----


class Turning:
    """An order sampler whose state is a number, and which fails once, after that has changed."""

    def __init__(self):
        self.times, self.failures = 0, 1

    def __call__(self, order, position):
        self.times += 1
        if self.times == 3 and self.failures:
            self.failures = 0
            raise OSError("try again")
        return np.roll(order, self.times)

    def serialize(self, serializer):
        self.times = keep(serializer, "times", self.times, int)


@pytest.mark.parametrize("ahead", [0, 1, 4])
def test_an_error_of_an_order_sampler_changes_no_order(ahead):
    def program(iterator, n_errors):
        iterator.order_sampler.failures = n_errors
        found = []
        while len(found) < 6:
            with suppress(OSError):
                found.append(iterator.next())
        return found

    expected = program(SerialIterator(range(5), 4, order_sampler=Turning()), 0)
    assert program(SerialIterator(range(5), 4, order_sampler=Turning()), 1) == expected
    with MultithreadIterator(range(5), 4, order_sampler=Turning()) as iterator:
        iterator.n_prefetch = ahead
        assert program(iterator, 1) == expected


ERRORS = {
    "value": (ValueError, "spoilt"),
    "own": (Exception, "1 and 2"),
    "stop": (RuntimeError, "StopIteration"),
    "exit": (RuntimeError, "SystemExit"),
}


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        *[("threads", how) for how in ERRORS],
        *[("processes", how) for how in ("value", "own", "exit")],
    ],
)
def test_an_error_of_the_data_set_comes_with_its_number_and_loses_nothing(kind, how, tmp_path):
    make, (error, message) = KINDS[kind], ERRORS[how]
    stone = tmp_path / "stone"
    stone.touch()
    with make(Failing(str(stone), how), 2, repeat=False, shuffle=False) as iterator:
        assert iterator.next() == [0, 1]
        with pytest.raises(error, match=message) as caught:
            iterator.next()
        told = str(caught.value) + "".join(getattr(caught.value, "__notes__", []))
        assert "read example 2" in told
        if kind == "processes":
            assert "sent.py" in told  # the traceback there
        assert iterator.current_position == 2
        with pytest.raises(error, match=message):  # and is there as long as its reason is
            iterator.next()
        stone.unlink()
        assert list(iterator) == [[2, 3]]


def test_a_process_that_dies_is_named_with_the_reason_and_replaced(tmp_path):
    stone = tmp_path / "stone"
    stone.touch()
    with MultiprocessIterator(
        Failing(str(stone), "die"), 4, repeat=False, shuffle=False, n_processes=2
    ) as iterator:
        with pytest.raises(
            RuntimeError,
            match=r"worker process 1 \(pid \d+\) ended by signal SIGKILL.*examples \[2, 3\]",
        ):
            iterator.next()
        stone.unlink()
        assert list(iterator) == [[0, 1, 2, 3]]


def test_a_data_set_that_cannot_be_sent_is_refused_with_the_remedy():
    with pytest.raises(TypeError, match="MultithreadIterator"):
        MultiprocessIterator(TransformDataset([1], lambda x: x), 1).next()


def test_a_data_set_that_cannot_be_taken_over_is_reported_with_the_traceback_there():
    with pytest.raises(RuntimeError, match=r"(?s)could not take over.*not mounted.*__setstate__"):
        MultiprocessIterator(Unready(), 1).next()


def test_a_long_wait_is_a_warning():
    # no process starts within a millisecond
    with MultiprocessIterator([1, 2], 2, n_processes=1, dataset_timeout=0.001) as iterator:
        with pytest.warns(MultiprocessIterator.TimeoutWarning, match=r"at the examples \["):
            iterator.next()


@pytest.mark.parametrize(
    "options",
    [{"n_processes": -1}, {"dataset_timeout": 0}, {"maxtasksperchild": 0}, {"batch_size": 0}],
    ids=str,
)
def test_numbers_that_mean_nothing_are_refused(options):
    with pytest.raises(ValueError, match="positive"):
        MultiprocessIterator([1], **({"batch_size": 1} | options))
    with pytest.raises(ValueError, match="one thread or more"):
        MultithreadIterator([1], 1, n_threads=0)


# ---- processes come and go ----


def ended(pids):
    """Wait until processes have ended."""
    for pid in pids:
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        assert poll.poll(10_000), f"process {pid} goes on"
        os.close(fd)
    return True


def test_a_process_is_replaced_after_its_number_of_tasks():
    with MultiprocessIterator(
        Pids(), 2, shuffle=False, n_processes=1, maxtasksperchild=2
    ) as iterator:
        pids = [iterator.next()[0] for _ in range(6)]
    assert pids[0] == pids[1] != pids[2] == pids[3] != pids[4] == pids[5]
    assert ended(pids)


@pytest.mark.parametrize("how", ["finalize", "forget"])
def test_processes_end_with_the_iterator_and_leave_no_open_file(how):
    def files():
        return sorted(os.listdir("/proc/self/fd"))

    before = files()
    iterator = MultiprocessIterator(Pids(), 2, n_processes=2, n_prefetch=2)
    pids = iterator.next()
    if how == "finalize":
        iterator.finalize()
        iterator.finalize()
    del iterator
    gc.collect()
    assert ended(pids)
    assert files() == before


# ---- with ranks ----


@pytest.mark.ranks(2)
@both_kinds
def test_all_ranks_get_the_batches_of_the_masters_readers(comm, make):
    data = TupleDataset(np.arange(20.0).reshape(5, 4), list("abcde"))
    mine = make(data, 2, repeat=False, shuffle=False) if comm.rank == 0 else None
    with create_multi_node_iterator(mine, comm) as iterator:
        found = [([text for _, text in batch], state(iterator)) for batch in iterator]
        assert found == [
            (["a", "b"], (0, False, 2, 0.4, 0.0)),
            (["c", "d"], (0, False, 4, 0.8, 0.4)),
            (["e"], (1, True, 0, 1.0, 0.8)),
        ]


@both_kinds
def test_synchronized_readers_of_all_ranks_read_alike(make):
    def program(comm):
        with make(list(range(7)), 3) as iterator:
            iterator.next()  # ahead, each in an order of its own
            synchronized = create_synchronized_iterator(iterator, comm)
            return [synchronized.next() for _ in range(7)]

    first, *others = mnpar.run(program, ranks=2)
    assert all(other == first for other in others)
    assert sorted([i for batch in first for i in batch][:7]) == list(range(7))


def test_a_multi_node_snapshot_of_processes_is_resumed_by_all_ranks(tmp_path):
    def program(comm):
        def make():
            mine = (
                MultiprocessIterator(list(range(5)), 2, n_processes=1) if comm.rank == 0 else None
            )
            return create_multi_node_iterator(mine, comm)

        with make() as iterator, make() as other:
            iterator.next()
            save_npz(tmp_path / f"{comm.rank}", iterator)
            load_npz(tmp_path / f"{comm.rank}", other)
            return [iterator.next() for _ in range(5)] == [other.next() for _ in range(5)]

    assert mnpar.run(program, ranks=2) == [True, True]
