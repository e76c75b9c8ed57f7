"""CTC at its edges: labels that do not fit, one step, long sequences, float32, and the words of
errors.
"""

import numpy as np
import pytest

import mnpar.functions as F
from mnpar.variable import Variable, grad

ctc = F.connectionist_temporal_classification


@pytest.mark.usefixtures("debug_off")
def test_labels_that_do_not_fit_cost_infinitely_much_and_have_no_gradient():
    x = Variable(np.random.default_rng(0).standard_normal((2, 2, 3)))
    y = ctc(x, np.array([[1, 1], [1, 2]]), 0, reduce="no")  # 1 1 needs a blank between
    assert y.array[0] == np.inf
    assert np.isfinite(y.array[1])
    (g,) = grad([y], [x], [Variable(np.ones(2))])
    np.testing.assert_array_equal(g.array[:, 0], 0)
    assert (g.array[:, 1] != 0).any()


def test_one_step_is_softmax_cross_entropy():
    x = np.random.default_rng(0).standard_normal((5, 4))
    t = np.array([1, 2, 3, 1, 2])
    np.testing.assert_allclose(ctc([x], t[:, None], 0).array, F.softmax_cross_entropy(x, t).array)


def test_steps_that_do_not_count_get_no_gradient():
    x = Variable(np.random.default_rng(0).standard_normal((5, 2, 3)))
    (g,) = grad([ctc(x, np.array([[1], [2]]), 0, input_length=np.array([2, 5]))], [x])
    np.testing.assert_array_equal(g.array[2:, 0], 0)
    assert (g.array[:2, 0] != 0).any()
    assert (g.array[4, 1] != 0).any()


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_gradients_of_long_sequences_sum_to_0_over_symbols_and_stay_finite(dtype):
    rng = np.random.default_rng(0)
    x = Variable((rng.standard_normal((200, 3, 6)) * 30).astype(dtype))
    y = ctc(x, rng.integers(1, 6, (3, 40)), 0, reduce="no")
    assert np.isfinite(y.array).all()
    (g,) = grad([F.sum(y)], [x])
    assert np.isfinite(g.array).all()
    np.testing.assert_allclose(g.array.sum(2), 0, atol={"f4": 5e-3, "f8": 1e-9}[dtype])


def test_second_gradients_of_float16_are_finite():
    """The logarithm of 0 is no number of float16."""
    x = Variable(np.random.default_rng(0).standard_normal((3, 2, 3)).astype("f2"))
    (g,) = grad([ctc(x, np.array([[1], [2]]), 0)], [x], enable_double_backprop=True)
    (gg,) = grad([F.sum(g * g)], [x])
    assert g.dtype == gg.dtype == "f2"
    assert np.isfinite(gg.array).all()


ONES = np.ones((4, 2, 3))
WRONG = {
    "shapes": (lambda: ctc(ONES, np.ones((3, 1), int), 0), r"\(4, 2, 3\) and \(3, 1\)"),
    "dtype": (lambda: ctc(ONES, np.ones((2, 1)), 0), "integers"),
    "blank": (lambda: ctc(ONES, np.ones((2, 1), int), 3), "blank_symbol = 3"),
    "blank as label": (lambda: ctc(ONES, np.ones((2, 1), int), 1), "different numbers from 0 to 2"),
    "steps": (lambda: ctc(ONES, np.ones((2, 1), int), 0, np.array([5, 4])), "from 1 to 4"),
    "labels": (lambda: ctc(ONES, np.ones((2, 1), int), 0, None, np.array([1, 2])), "from 0 to 1"),
    "reduce": (lambda: ctc(ONES, np.ones((2, 1), int), 0, reduce="sum"), "'sum'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_is_named_with_its_numbers(name):
    call, match = WRONG[name]
    with pytest.raises(ValueError, match=match):
        call()
