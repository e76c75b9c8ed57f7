"""The tests' own ``assert_allclose`` judges as numpy's, which it asks only where a glance is not
enough.
"""

import itertools
import warnings

import numpy as np
import pytest

ASKED = np.testing.assert_allclose.__wrapped__
VALUES = [-0.0, 1.0, -1.0, 1 + 1e-3, 1 - 1e-7, 5e-324, 1e308, -np.inf, np.inf, np.nan]
TOLERANCES = [(0, 0), (1e-7, 0), (0, 1e-7), (1e-2, 1e-3), (2, 0)]


def judged(check, x, y, **how):
    """Whether arrays are close; or what else became of it."""
    try:
        check(x, y, **how)
    except AssertionError:
        return False
    except (RuntimeWarning, TypeError, ValueError) as error:
        return type(error)
    return True


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_any_two_numbers_are_as_close_as_numpy_says(dtype):
    with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):
        values = np.array(VALUES).astype(dtype)
    verdicts = set()
    for (x, y), (rtol, atol) in itertools.product(itertools.product(values, values), TOLERANCES):
        for actual, desired in (
            (np.array([x]), np.array([y])),
            (np.array([[y, x]]), np.array([[y, y]])),
        ):
            found = judged(np.testing.assert_allclose, actual, desired, rtol=rtol, atol=atol)
            assert found == judged(ASKED, actual, desired, rtol=rtol, atol=atol), (x, y, rtol, atol)
            verdicts.add(found)
    assert verdicts >= {True, False}


OTHERS = {
    "of other shapes": (np.ones(2), np.ones(3), {}),
    "that are broadcast": (np.ones((2, 3)), np.ones(3), {}),
    "of which one is a number": (np.ones(2), 1.0, {}),
    "empty": (np.ones(0), np.ones(0), {}),
    "of whole numbers without a sign": (np.zeros(2, "u1"), np.full(2, 255, "u1"), {"atol": 1}),
    "of another dtype, strictly": (np.ones(2, "f4"), np.ones(2), {"strict": True}),
    "without numbers, which are not equal": (
        np.full(2, np.nan),
        np.full(2, np.nan),
        {"equal_nan": False},
    ),
    "complex": (np.ones(2) * 1j, np.ones(2) * -1j, {}),
}


@pytest.mark.parametrize(("actual", "desired", "how"), OTHERS.values(), ids=OTHERS)
def test_arrays_are_judged_by_numpy(actual, desired, how):
    assert judged(np.testing.assert_allclose, actual, desired, **how) == judged(
        ASKED, actual, desired, **how
    )


def test_numpy_says_what_differs():
    with pytest.raises(AssertionError, match="Mismatched elements: 1 / 2"):
        np.testing.assert_allclose(np.ones(2), np.array([1.0, 2.0]), err_msg="mine")
