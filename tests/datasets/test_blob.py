"""Examples in one file: what comes out is what went in, and a damaged file is refused with its name
and place.
"""

import numpy as np
import pytest

from mnpar.datasets import FileBlobDataset, MemoryBlobDataset, PrefetchDataset
from mnpar.errors import DatasetError

EXAMPLES = [
    (np.arange(6, dtype="i4").reshape(2, 3), np.array(2.5)),
    (np.zeros((0, 4), "f2"),),
    (np.asfortranarray(np.arange(12.0).reshape(3, 4)), np.array("word"), np.array([True])),
]


def same(blob):
    assert len(blob) == len(EXAMPLES)
    for i in (2, 0, 1, -1):
        for one, other in zip(blob[i], EXAMPLES[i], strict=True):
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one, other)


@pytest.fixture
def path(tmp_path):
    with FileBlobDataset(tmp_path / "a.blob", create=True) as blob:
        for example in EXAMPLES:
            blob.add(*example)
        blob.write_index()
        same(blob)
    return tmp_path / "a.blob"


def test_examples_come_back_in_any_order(path):
    memory = MemoryBlobDataset()
    for example in EXAMPLES:
        memory.add(*example)
    same(memory)
    with FileBlobDataset(path) as blob, PrefetchDataset(blob, 2, 2) as ahead:
        same(blob)
        same(ahead)


def test_more_can_be_added_and_the_index_is_written_again(path):
    with FileBlobDataset(path) as blob:
        blob.add(np.ones(2))
        blob.write_index()
    with FileBlobDataset(path) as blob:
        assert len(blob) == 4
        np.testing.assert_array_equal(blob[3][0], [1, 1])


def test_a_file_without_index_cut_off_or_of_something_else_is_refused(path):
    whole = path.read_bytes()
    for content in (
        b"",
        b"x" * 100,
        whole[:-1],
        whole[: len(whole) // 2],
        b"\xff" * 8 + b"MNPARBLB",
        b"[[9]]\5" + bytes(7) + b"MNPARBLB",
    ):
        path.write_bytes(content)
        with pytest.raises(DatasetError, match=r"a\.blob"):
            FileBlobDataset(path)


def test_a_damaged_example_is_named(path):
    content = bytearray(path.read_bytes())
    content[:6] = b"broken"
    path.write_bytes(bytes(content))
    with FileBlobDataset(path) as blob:
        with pytest.raises(DatasetError, match="example 0, at byte 0"):
            blob[0]
        assert len(blob[1]) == 1


def test_objects_are_refused():
    with pytest.raises(ValueError, match="not of Python's objects"):
        MemoryBlobDataset().add(np.array([None, {}]))
