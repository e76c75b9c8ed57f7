"""Examples taken apart and put together again are what they were."""

from typing import NamedTuple

import numpy as np
import pytest

from mnpar.dataset.packing import fold


class Point(NamedTuple):
    x: float
    y: float


def numbers(dtype):
    return [np.array([0, 1, 1], dtype) for _ in range(2)]


BATCHES = {
    "empty": [],
    "arrays": [np.arange(6.0).reshape(2, 3), np.ones((2, 3))],
    **{
        str(np.dtype(dtype)): numbers(dtype)
        for dtype in ("?", "i1", "u8", "f2", "f8", "c8", ">f4", ">i8")
    },
    "0-d arrays": [np.array(1.5), np.array(2.5)],
    "empty arrays": [np.zeros((0, 3)), np.zeros((0, 3))],
    "arrays of different lengths": [np.arange(3), np.arange(0), np.arange(5)],
    "arrays of different shapes": [np.ones((1, 2)), np.ones((3, 1)), np.ones((0, 4))],
    "big-endian, different lengths": [np.arange(3, dtype=">i2"), np.arange(2, dtype=">i2")],
    "arrays of different dtypes": [np.ones(2, np.float32), np.ones(2, np.float64)],
    "arrays of different ndims": [np.ones(2), np.ones((2, 2))],
    "fortran order": [np.asfortranarray(np.arange(6).reshape(2, 3))] * 2,
    "strided": [np.arange(10)[::2], np.arange(10)[1::2]],
    "arrays of objects": [np.array(["a", None], object)],
    "arrays of strings": [np.array(["ab", "c"])],
    "many axes": [np.ones((1,) * 12)] * 2,
    "ints": [1, 2, -3],
    "large ints": [2**62, -(2**63)],
    "larger ints": [2**63, 1],
    "bools": [True, False],
    "ints and bools": [1, True],
    "floats": [1.5, float("inf"), -0.0],
    "complex": [1j, 2.0 + 0j],
    "numpy numbers": [np.float32(1.5), np.float32(2.5)],
    "mixed numpy numbers": [np.float32(1.5), np.int8(2)],
    "numpy dates": [np.datetime64("2024-01-01"), np.datetime64("2024-01-02")],
    "strings": ["a", "bc"],
    "none": [None, None],
    "pairs": [(np.ones(2, np.float32), np.int32(1)), (np.zeros(2, np.float32), np.int32(2))],
    "triples with a string": [(np.ones(2), 1, "one"), (np.zeros(2), 2, "two")],
    "empty tuples": [(), (), ()],
    "empty dicts": [{}, {}],
    "named tuples": [Point(1.0, 2.0), Point(3.0, 4.0)],
    "tuples of different lengths": [(1,), (1, 2)],
    "dicts": [{"x": np.ones(2), "t": 1}, {"x": np.zeros(2), "t": 2}],
    "dicts of dicts": [{"a": {"b": (1, np.ones(2))}}, {"a": {"b": (2, np.ones(3))}}],
    "dicts with different keys": [{"a": 1}, {"b": 1}],
    "lists of different lengths": [[1, 2, 3], [], [4]],
    "lists of lists of arrays": [[[np.ones(1)], []], [[np.ones(2), np.ones(3)]]],
    "mixed list": [[np.ones(2), 1], [None, "x"]],
}


def same(a, b):
    assert type(a) is type(b)
    if isinstance(a, np.ndarray):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b, strict=True)
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            same(a[key], b[key])
    elif isinstance(a, (tuple, list)):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            same(x, y)
    else:
        assert a == b
        assert repr(a) == repr(b)


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
def test_every_type_and_dtype_comes_back(batch):
    same(fold(batch).unfold(), batch)


@pytest.mark.parametrize(
    "name",
    ["arrays", "pairs", "dicts", "arrays of different lengths", "lists of different lengths"],
)
def test_numbers_and_arrays_are_never_left_to_pickle(name):
    assert fold(BATCHES[name]).objects == []


def test_the_structure_does_not_depend_on_how_many_or_how_long():
    def spec(n, m):
        return fold([(np.ones((m,)), [1] * i, {"k": 1.0}) for i in range(n)]).spec

    assert spec(3, 4) == spec(5, 2)


def test_a_batch_of_pairs_is_two_arrays():
    folded = fold([(np.ones((28, 28)), np.int32(i)) for i in range(100)])
    assert [array.shape for array in folded.arrays] == [(100, 28, 28), (100,)]
