"""From examples to arrays."""

import numpy as np
import pytest

from mnpar.dataset import concat_examples


def test_tuples_become_a_tuple_of_arrays():
    batch = [(np.full(2, i, np.float32), np.int32(i), 0.5) for i in range(3)]
    x, t, w = concat_examples(batch)
    np.testing.assert_array_equal(x, [[0, 0], [1, 1], [2, 2]])
    np.testing.assert_array_equal(t, [0, 1, 2])
    np.testing.assert_array_equal(w, [0.5] * 3)
    assert (x.dtype, t.dtype, w.dtype) == (np.float32, np.int32, np.float64)


def test_dicts_become_a_dict_of_arrays():
    out = concat_examples([{"x": np.ones(2), "t": i} for i in range(3)])
    assert list(out) == ["x", "t"]
    assert out["x"].shape == (3, 2)
    np.testing.assert_array_equal(out["t"], [0, 1, 2])


BARE = {
    "arrays": ([np.arange(2), np.arange(2)], [[0, 1], [0, 1]]),
    "0-d arrays": ([np.array(1.5), np.array(2.5)], [1.5, 2.5]),
    "numbers": ([1, 2, 3], [1, 2, 3]),
    "lists": ([[1, 2], [3, 4]], [[1, 2], [3, 4]]),
}


@pytest.mark.parametrize(("batch", "expected"), BARE.values(), ids=BARE)
def test_bare_examples_become_one_array(batch, expected):
    np.testing.assert_array_equal(concat_examples(batch), expected)


def test_empty_examples_become_an_empty_tuple_so_that_the_model_gets_no_arguments():
    assert concat_examples([(), (), ()]) == ()


def test_padding_fills_what_an_example_does_not_have():
    batch = [(np.array([1, 2]), np.zeros((1, 2))), (np.array([], int), np.ones((2, 1)))]
    x, y = concat_examples(batch, padding=(9, -1))
    np.testing.assert_array_equal(x, [[1, 2], [9, 9]])
    np.testing.assert_array_equal(y, [[[0, 0], [-1, -1]], [[1, -1], [1, -1]]])
    np.testing.assert_array_equal(
        concat_examples([{"a": [1]}, {"a": [1, 2]}], padding={"a": 0})["a"], [[1, 0], [1, 2]]
    )
    np.testing.assert_array_equal(concat_examples([1, 2], padding=0), [1, 2])


def test_device_minus_one_is_the_host():
    assert isinstance(concat_examples([np.ones(2)], device=-1), np.ndarray)


REFUSED = {
    "empty": ([], ValueError, "empty batch"),
    "shapes": (
        [(np.ones(2), 0), (np.ones(3), 0)],
        ValueError,
        r"part 0 of the examples.*different shapes: \(2,\), \(3,\)",
    ),
    "ragged lists": ([[1, 2], [3]], ValueError, r"different shapes: \(1,\), \(2,\)"),
    "lengths": (
        [(1, 2), (1, 2, 3)],
        ValueError,
        "example 0 is a tuple of length 2, example 1 is a tuple of length 3",
    ),
    "keys": (
        [{"a": 1}, {"b": 1}],
        ValueError,
        r"a dict with the keys \['a'\], example 1 is a dict with the keys \['b'\]",
    ),
    "kinds": ([(1, 2), None], ValueError, "example 1 is a NoneType"),
    "objects": ([(None, 1), (None, 2)], TypeError, "part 0 .* NoneType"),
}


@pytest.mark.parametrize(("batch", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_a_batch_that_makes_no_arrays_is_refused_with_the_reason(batch, error, message):
    with pytest.raises(error, match=message):
        concat_examples(batch)


def test_padding_does_not_join_arrays_of_different_numbers_of_axes():
    with pytest.raises(ValueError, match=r"one number of axes; these have \[1, 2\]"):
        concat_examples([np.ones(2), np.ones((2, 2))], padding=0)


def test_padding_keeps_the_digits_of_every_example_as_joining_does():
    for padding in (None, 0):
        np.testing.assert_array_equal(
            concat_examples([np.array([1, 2]), np.array([1.5, 2])], padding=padding),
            [[1, 2], [1.5, 2]],
        )
    np.testing.assert_array_equal(
        concat_examples([np.array([1]), np.array([1.5, 2])], padding=-1), [[1, -1], [1.5, 2]]
    )


@pytest.mark.parametrize("padding", [0.5, np.nan, np.inf], ids=str)
def test_a_padding_that_the_examples_dtype_cannot_hold_is_told(padding):
    with pytest.raises(ValueError, match="part 1 of the examples are int64, and cannot be padded"):
        concat_examples([(np.ones(2), np.arange(2)), (np.ones(3), np.arange(3))], padding=padding)


def test_a_part_without_padding_is_told_and_so_is_an_unknown_device():
    with pytest.raises(ValueError, match=r"padding has nothing for the parts \[1\]"):
        concat_examples([(np.ones(2), np.ones(2)), (np.ones(3), np.ones(2))], padding=(0,))
    with pytest.raises(ValueError, match=r"padding has nothing for the parts \['b'\]"):
        concat_examples([{"a": np.ones(2), "b": np.ones(2)}], padding={"a": 0})
    with pytest.raises(ValueError, match="unknown device 'foo'"):
        concat_examples([np.ones(2)], device="foo")
