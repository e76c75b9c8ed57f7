"""Sums by products with ones: of arrays that lie in memory in any order."""

import itertools

import numpy as np
import pytest

from mnpar.kernels.sums import sum_array, sum_to

AXES = [None, 0, -1, *itertools.chain(*[itertools.combinations(range(4), n) for n in range(1, 5)])]


@pytest.mark.parametrize("axis", AXES)
def test_sums_are_numpys_whatever_the_order_in_memory(axis):
    shape = (6, 16, 10, 12)
    for order in itertools.permutations(range(4)):
        back = [order.index(a) for a in range(4)]
        flat = np.random.default_rng(0).standard_normal([shape[a] for a in order])
        x = flat.transpose(back)
        assert x.shape == shape
        for keepdims in (False, True):
            expected = x.sum(axis=axis, keepdims=keepdims)
            found = sum_array(x, axis, keepdims)
            assert found.shape == expected.shape
            np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-11)
    gaps = x[:, :, 1:]  # which no order makes contiguous
    np.testing.assert_allclose(sum_array(gaps, axis), gaps.sum(axis=axis), rtol=1e-12, atol=1e-11)


def test_sums_over_what_was_repeated_of_channels_that_come_last_in_memory():
    x = np.random.default_rng(0).standard_normal((6, 10, 12, 16)).transpose(0, 3, 1, 2)
    found = sum_to(x, (1, 16, 1, 1))
    assert found.shape == (1, 16, 1, 1)
    np.testing.assert_allclose(found, x.sum((0, 2, 3), keepdims=True), rtol=1e-12, atol=1e-11)


def test_axes_that_numpy_refuses_are_refused():
    x = np.zeros((6, 10, 12, 16)).transpose(0, 3, 1, 2)
    for axis in (4, (0, 0), (1, -3)):
        with pytest.raises((ValueError, np.exceptions.AxisError)):
            sum_array(x, axis)
