"""Pickled examples in a file: read as they were written, and nothing else is run."""

import collections
import datetime
import io
import os
import pickle
import threading

import numpy as np
import pytest

import mnpar
from mnpar.datasets import (
    PickleDataset,
    PickleDatasetWriter,
    open_pickle_dataset,
    open_pickle_dataset_writer,
)
from mnpar.errors import DatasetError

EXAMPLES = [
    (np.arange(6.0).reshape(2, 3), np.int32(1), "one"),
    {"x": np.array(["a", "bc"]), "t": None, 3: [1.5, True, b"b", {2, 3}, frozenset(), 1 + 2j]},
    collections.OrderedDict(a=datetime.date(2020, 1, 2), b=collections.deque([1])),
    np.zeros((0, 3), "f4"),
    np.array([{"inside": 1}, None], object),
    np.float16(3),
    2**100,
]


class Own:
    """A user's class."""

    def __init__(self, x):
        self.x = x


class Runs:
    """A pickle that runs a program."""

    def __reduce__(self):
        return os.system, ("exit 3",)


def written(examples, protocol):
    file = io.BytesIO()
    writer = PickleDatasetWriter(file, protocol)
    for example in examples:
        writer.write(example)
    writer.flush()
    return file


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_examples_come_back_in_any_order(protocol):
    dataset = PickleDataset(written(EXAMPLES, protocol))
    assert len(dataset) == len(EXAMPLES)
    for i in [3, 0, 6, 2, 5, 1, 4]:
        assert repr(dataset[i]) == repr(EXAMPLES[i])


def test_an_empty_file_has_no_examples():
    assert len(PickleDataset(io.BytesIO())) == 0


@pytest.mark.parametrize(
    ("example", "asked"),
    [(Runs(), r"(posix|nt)\.system"), (Own(3), "classes=\\[Own\\]"), (eval, "builtins.eval")],
    ids=["a program", "a class", "a function"],
)
def test_what_is_no_data_is_refused(example, asked):
    with pytest.raises(DatasetError, match=f"example 1, at byte .*{asked}"):
        PickleDataset(written([3, example], 4))


def test_the_users_own_classes_can_be_named():
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert PickleDataset(written([Own(3)], protocol), classes=[Own])[0].x == 3


@pytest.mark.parametrize("end", [-1, -30])
def test_a_damaged_file_is_told(end):
    data = written(EXAMPLES, 4).getvalue()
    with pytest.raises(DatasetError, match="example 6"):
        PickleDataset(io.BytesIO(data[:end] if end == -1 else data[:-8] + b"\xff" * 8))


def test_a_file_that_cannot_seek_is_refused():
    read, write = os.pipe()
    os.close(write)
    with os.fdopen(read, "rb") as file, pytest.raises(ValueError, match="its file must seek"):
        PickleDataset(file)


@pytest.fixture
def path(tmp_path):
    with open_pickle_dataset_writer(tmp_path / "examples") as writer:
        for i in range(40):
            writer.write((np.full(3, i), i))
    return tmp_path / "examples"


@pytest.mark.parametrize("kind", ["MultithreadIterator", "MultiprocessIterator"])
def test_iterators_read_it_in_threads_and_processes(path, kind):
    with open_pickle_dataset(path) as dataset:
        iterator = getattr(mnpar.iterators, kind)(dataset, 8, repeat=False, shuffle=False)
        assert [t for batch in iterator for _, t in batch] == [*range(40)]
        iterator.finalize()


def test_threads_read_at_the_same_time(path):
    found = []
    with open_pickle_dataset(path) as dataset:
        threads = [
            threading.Thread(target=lambda: found.extend(dataset[i][1] for i in range(40)))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(found) == sorted([*range(40)] * 4)


def test_a_fork_has_a_place_in_the_file_of_its_own(path):
    with open_pickle_dataset(path) as dataset:
        dataset[3]
        child = os.fork()
        if child == 0:
            os._exit(0 if [dataset[i][1] for i in range(40)] == [*range(40)] else 1)
        assert [dataset[i][1] for i in reversed(range(40))] == [*reversed(range(40))]
        assert os.waitpid(child, 0)[1] == 0
