"""Fingerprints tell values that differ by rounding from others, and equal values from plain
ones.
"""

import numpy as np
import pytest

from mnpar.checks.fingerprint import MISSING, equal_on_all, fingerprint

X = np.random.default_rng(0).normal(size=(4, 6))


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "c8", "c16"])
def test_rounding_makes_no_difference(dtype):
    x = X.astype(dtype)
    noise = 1 + np.finfo(dtype).eps * np.random.default_rng(1).uniform(-1, 1, X.shape)
    assert not fingerprint((x * noise).astype(dtype)).differs_from(fingerprint(x))


@pytest.mark.parametrize(
    "other",
    [X + 0.01, -X, X[::-1], X[:3], X[:, [1, 0, 2, 3, 4, 5]], None],
    ids=["larger", "negative", "rows turned", "shorter", "two columns exchanged", "missing"],
)
def test_other_values_differ(other):
    assert fingerprint(other).differs_from(fingerprint(X))


def test_equal_values_are_equal_on_all_ranks_to_the_last_digit():
    assert equal_on_all([fingerprint(X), fingerprint(X.copy())])
    assert not equal_on_all([fingerprint(X), fingerprint(np.nextafter(X, 9))])
    assert not equal_on_all([MISSING, MISSING])


@pytest.mark.parametrize(
    "x", [np.zeros(3), np.ones((2, 3)), np.arange(4.0), np.tile(X[0], (3, 1)), np.empty(0)]
)
def test_plain_values_may_be_equal_by_chance(x):
    assert not equal_on_all([fingerprint(x), fingerprint(x)])
