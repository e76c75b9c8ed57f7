"""What the table cannot say: extremes, ties, labels of every kind, modes, and the words of
errors.
"""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest

import mnpar.functions as F
import mnpar.random
from mnpar.configuration import using_config
from mnpar.kernels.moments import channel_sums
from mnpar.variable import Variable, grad
from tests.harness.layouts import LAYOUTS

pytestmark = pytest.mark.usefixtures("debug_off")


def gradient(f, *arrays):
    xs = [Variable(np.asarray(x, float)) for x in arrays]
    return [g.array for g in grad([F.sum(f(*xs))], xs)]


HUGE = np.array([[1e4, -1e4, 0.0], [-1e300, 0.0, 1e300]])


@pytest.mark.parametrize(
    ("f", "expected"),
    [
        (F.softmax, [[1, 0, 0], [0, 0, 1]]),
        (F.log_softmax, [[0, -2e4, -1e4], [-2e300, -1e300, 0]]),
        (lambda x: F.logsumexp(x, 1), [1e4, 1e300]),
        (F.sigmoid, [[1, 0, 0.5], [0, 0.5, 1]]),
        (F.tanh, [[1, -1, 0], [-1, 0, 1]]),
        (F.softplus, [[1e4, 0, np.log(2)], [0, np.log(2), 1e300]]),
        (F.elu, [[1e4, -1, 0], [-1, 0, 1e300]]),
        (lambda x: F.softmax_cross_entropy(x, np.array([1, 0]), reduce="no"), [2e4, 2e300]),
        (
            lambda x: F.sigmoid_cross_entropy(x, np.array([[1, 1, 1], [0, 0, 0]]), reduce="no"),
            [[0, 1e4, np.log(2)], [0, np.log(2), 1e300]],
        ),
    ],
    ids=[
        "softmax",
        "log_softmax",
        "logsumexp",
        "sigmoid",
        "tanh",
        "softplus",
        "elu",
        "softmax_ce",
        "sigmoid_ce",
    ],
)
def test_huge_arguments_neither_overflow_nor_warn(f, expected):
    x = Variable(HUGE)
    y = f(x)
    np.testing.assert_allclose(y.array, expected, atol=1e-300)
    (g,) = grad([F.sum(y)], [x])
    assert np.isfinite(g.array).all()


@pytest.mark.parametrize(
    ("f", "slopes"),
    [(F.elu, [1, 0]), (lambda x: F.elu(x, -2.0), [1, 0]), (F.selu, [1.0507009873554805, 0])],
    ids=["elu", "below", "selu"],
)
def test_slopes_at_infinity_are_those_before_it(f, slopes):
    np.testing.assert_array_equal(gradient(f, [np.inf, -np.inf])[0], slopes)


def test_slopes_of_elu_far_below_0_have_all_digits():
    np.testing.assert_allclose(
        gradient(F.elu, [-1.0, -30.0, -300.0])[0], np.exp([-1.0, -30.0, -300.0]), rtol=1e-12
    )


@pytest.mark.parametrize("size", [1e-200, 1.0, 1e200])
def test_gradients_of_an_angle_do_not_depend_on_squares_of_the_distance(size):
    for g, e in zip(gradient(F.arctan2, [3 * size], [-4 * size]), ([-0.16], [-0.12]), strict=True):
        np.testing.assert_allclose(g * size, e, rtol=1e-12)


def test_the_origin_has_no_angle_and_gradient_0():
    np.testing.assert_array_equal(gradient(F.arctan2, [0.0, -0.0], [0.0, 0.0]), np.zeros((2, 2)))


@pytest.mark.parametrize("dtype", ["u1", "i1", "?", "u8"])
@pytest.mark.parametrize(
    "f",
    [
        F.softmax,
        lambda x: F.softmax(x, axis=0),
        F.log_softmax,
        lambda x: F.logsumexp(x, axis=1),
        F.sigmoid,
        lambda x: F.cumsum(x, axis=0),
        lambda x: F.cumprod(x, axis=0),
    ],
    ids=["softmax", "softmax: columns", "log_softmax", "logsumexp", "sigmoid", "cumsum", "cumprod"],
)
def test_integers_of_any_width_are_what_they_are_as_floats(f, dtype):
    x = np.array([[1, 3, 0], [100, 127, 2]]).astype(dtype)
    np.testing.assert_allclose(f(x).array, f(x.astype("f8")).array, rtol=1e-12)


@pytest.mark.parametrize("f", [F.erfc, F.ndtri, F.lgamma])
def test_what_is_of_real_numbers_takes_no_complex_ones(f):
    with pytest.raises(TypeError, match="real numbers, not complex128"):
        f(np.array([1 + 2j]))


@pytest.mark.parametrize("f", [F.softmax, F.log_softmax])
@pytest.mark.parametrize(("shape", "axis"), [((0, 3), 0), ((0, 3), 1), ((3, 0), 1), ((2, 0, 3), 1)])
def test_softmax_of_no_elements_is_empty(f, shape, axis):
    x = Variable(np.zeros(shape))
    y = f(x, axis=axis)
    y.grad = np.zeros(shape)
    y.backward()
    assert y.shape == x.grad.shape == shape


def test_logsumexp_of_no_elements_is_the_logarithm_of_0():
    x = Variable(np.zeros((2, 0)))
    y = F.logsumexp(x, axis=1)
    y.grad = np.ones(2)
    y.backward()
    np.testing.assert_array_equal(y.array, [-np.inf, -np.inf])
    assert x.grad.shape == (2, 0)


@pytest.mark.filterwarnings("ignore:overflow")
def test_pairs_that_are_too_far_apart_for_float16_cost_nothing():
    far = np.array([[300.0], [0.5]], "f2")
    labels = np.array([0, 0])
    np.testing.assert_array_equal(
        F.contrastive(far, np.zeros_like(far), labels, reduce="no").array, [0, 0.125]
    )


MANY = 5000  # ones: in float16 their sum, one by one, stays at 2048


@pytest.mark.parametrize(
    ("f", "expected"),
    [
        (lambda x: F.sum(x, 0), MANY),
        (lambda x: F.cumsum(x, 0)[-1], MANY),
        (lambda x: F.cumsum(x[::-1], 0)[-1], MANY),
        (lambda x: F.softmax(x, 0) * MANY, 1),
        (lambda x: F.log_softmax(x, 0), -np.log(MANY)),
        (lambda x: F.logsumexp(x, 0), 1 + np.log(MANY)),
        (lambda x: F.logsumexp(F.broadcast_to(x[:, :1], (MANY, 20))), 1 + np.log(20 * MANY)),
        (lambda x: F.average(x * 20, 0, np.ones(MANY)), 20),
        (lambda x: F.hinge(x * 20, np.ones(MANY, "i4")), 21),
        (lambda x: F.triplet(x * 20, x, x * 20), 722.2),
        (lambda x: F.contrastive(x * 20, x, np.ones(MANY, "i4")), 361),
        (
            lambda x: F.softmax_cross_entropy(
                x * np.array([20, 0], "f2"), np.eye(2, dtype="f2")[np.ones(MANY, int)]
            ),
            20,
        ),
        (
            lambda x: F.crf1d(
                np.zeros((2, 2), "f2"), [x * np.array([20, 0], "f2")], [np.ones(MANY, "i4")]
            ),
            20,
        ),
        (
            lambda x: F.connectionist_temporal_classification(
                [x * np.array([20, 0], "f2")], np.ones((MANY, 1), "i4"), 0
            ),
            20,
        ),
    ],
    ids=[
        "sum",
        "cumsum",
        "cumsum: reversed",
        "softmax",
        "log_softmax",
        "logsumexp",
        "logsumexp: all",
        "average",
        "hinge",
        "triplet",
        "contrastive",
        "soft targets",
        "crf1d",
        "ctc",
    ],
)
def test_many_halves_are_added_up_in_float32(f, expected):
    y = f(Variable(np.ones((MANY, 2), "f2")))
    assert y.dtype == np.float16
    np.testing.assert_allclose(y.array, np.full(y.shape, expected), rtol=1e-3)


def test_many_bfloat16_are_added_up_in_float32():
    x = Variable(np.ones((MANY, 2), ml_dtypes.bfloat16))
    b = Variable(np.ones(2, ml_dtypes.bfloat16))
    y = F.linear(x, np.ones((2, 2), ml_dtypes.bfloat16), b)
    y.grad = np.ones(y.shape, ml_dtypes.bfloat16)
    y.backward()
    for total in (
        F.sum(x, 0).array,
        F.cumsum(x, 0).array[-1],
        F.average(x, 0).array * ml_dtypes.bfloat16(MANY),  # numpy 2.0 makes float32 of the int
        b.grad,
    ):
        assert total.dtype == ml_dtypes.bfloat16
        np.testing.assert_allclose(total.astype("f8"), [MANY, MANY], rtol=2e-2)


@pytest.mark.parametrize(
    "f",
    [
        lambda b: F.broadcast_to(b, (MANY, 2)),
        lambda b: F.linear(np.ones((MANY, 3), "f2"), np.ones((2, 3), "f2"), b),
        lambda b: F.convolution_1d(np.ones((MANY, 3, 1), "f2"), np.ones((2, 3, 1), "f2"), b),
        lambda b: F.deconvolution_1d(np.ones((MANY, 3, 1), "f2"), np.ones((3, 2, 1), "f2"), b),
        lambda b: F.local_convolution_2d(
            np.ones((MANY, 1, 1, 1), "f2"), np.ones((2, 1, 1, 1, 1, 1), "f2"), b.reshape(2, 1, 1)
        ),
        lambda b: F.tile(b, (MANY, 1)),
        lambda b: F.repeat(b.reshape(1, 2), MANY, 0),
        lambda b: F.embed_id(np.zeros(MANY, "i4"), b.reshape(1, 2)),
        lambda b: b[np.tile([0, 1], MANY)],
    ],
    ids=[
        "broadcast_to",
        "linear",
        "convolution",
        "deconvolution",
        "local convolution",
        "tile",
        "repeat",
        "embed_id",
        "index",
    ],
)
def test_gradients_in_float16_are_added_up_in_float32(f):
    b = Variable(np.ones(2, "f2"))
    y = f(b)
    y.grad = np.ones(y.shape, "f2")
    y.backward()
    assert b.grad.dtype == np.float16
    np.testing.assert_allclose(b.grad, [MANY, MANY], rtol=1e-3)


def test_what_is_seen_from_nowhere_is_nan():
    places = np.zeros((1, 2, 1, 2))
    places[0, 0, 0, 1] = np.nan
    np.testing.assert_array_equal(
        F.spatial_transformer_sampler(np.ones((1, 1, 3, 3)), places).array.ravel(), [1, np.nan]
    )


def test_sigmoid_cross_entropy_of_infinite_scores_is_their_limit():
    x = np.array([np.inf, np.inf, -np.inf, -np.inf])
    t = np.array([1, 0, 1, 0])
    np.testing.assert_array_equal(
        F.sigmoid_cross_entropy(x, t, reduce="no").array, [0, np.inf, np.inf, 0]
    )


def test_scores_that_are_not_counted_may_be_anything():
    x = mnpar.Variable(np.array([np.inf, -np.inf, np.nan, 0.0]))
    y = F.sigmoid_cross_entropy(x, np.array([-1, -1, -1, 1]))
    y.backward()
    np.testing.assert_allclose([float(y.array), *x.grad], [np.log(2), 0, 0, 0, -0.5])


def test_an_ignored_number_is_zeros_whatever_the_table_has():
    W = mnpar.Variable(np.array([[np.nan, np.inf], [1.0, 2.0]]))
    y = F.embed_id(np.array([-1, 1]), W, ignore_label=-1)
    F.sum(y).backward()
    np.testing.assert_array_equal(y.array, [[0, 0], [1, 2]])
    np.testing.assert_array_equal(W.grad, [[0, 0], [1, 1]])


@pytest.mark.parametrize("bad", [[np.inf], [-np.inf], [np.nan], [np.inf, -np.inf, np.nan]])
@pytest.mark.parametrize(("size", "mode"), [((6, 2), "nearest"), ((7, 9), "bilinear")])
def test_a_cell_without_a_finite_number_spoils_only_what_is_made_of_it(size, mode, bad):
    a = np.arange(20.0).reshape(1, 1, 4, 5)
    a[0, 0, 1, : len(bad)] = bad
    x = mnpar.Variable(a)
    weights = np.zeros((20, *size))
    for i in range(20):  # what each cell gives to each place
        weights[i] = F.resize_images(np.eye(20)[i].reshape(1, 1, 4, 5), size, mode).array[0, 0]
    expected = np.zeros(size)
    with np.errstate(invalid="ignore"):  # ∞ - ∞
        for cell, weight in zip(a.ravel(), weights, strict=True):
            expected += np.where(weight > 0, cell, 0) * weight
    y = F.resize_images(x, size, mode)
    np.testing.assert_allclose(y.array[0, 0], expected)
    y.grad = np.zeros(y.shape)
    y.grad[0, 0, 2, 1] = np.inf
    y.backward()
    np.testing.assert_array_equal(np.isfinite(x.grad.ravel()), weights[:, 2, 1] == 0)


def test_sigmoid_cross_entropys_slope_has_all_digits_where_the_answer_is_right_beyond_doubt():
    x = mnpar.Variable(np.array([40.0, 300.0, -40.0, 5.0]))
    F.sum(F.sigmoid_cross_entropy(x, np.array([1, 1, 0, -1]), reduce="no")).backward()
    np.testing.assert_allclose(x.grad, [-np.exp(-40), -np.exp(-300), np.exp(-40), 0], rtol=1e-14)


@pytest.mark.parametrize("far", [25.0, 800.0, -25.0, -800.0])
def test_softmax_cross_entropy_is_right_however_far_the_labels_score_is_from_the_others(far):
    x = mnpar.Variable(np.array([[far, 0.0, 0.5], [0.0, -1.0, 1.0]]))
    t = np.array([0, 1])
    loss = F.softmax_cross_entropy(x, t, reduce="no")
    F.sum(loss).backward()
    # log Σ e^x of the other classes - x at the label
    others = np.array([np.logaddexp(0, 0.5) - far, np.logaddexp(0, 1) + 1])
    np.testing.assert_allclose(loss.array, np.logaddexp(0, others), rtol=1e-14, atol=1e-15)
    softmax = np.exp(x.array - np.logaddexp.reduce(x.array, axis=1, keepdims=True))
    np.testing.assert_allclose(x.grad, softmax - np.eye(3)[t], rtol=0, atol=1e-14)


@pytest.mark.parametrize("eps", [1e-5, 1e-8, 1e-20])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_vector_of_zeros_is_divided_by_eps_however_small(dtype, eps):
    x = Variable(np.zeros((1, 2), dtype))
    y = F.normalize(x, eps)
    y.grad = np.array([[1.0, -2.0]], dtype)
    y.backward()
    np.testing.assert_array_equal(y.array, [[0, 0]])
    np.testing.assert_allclose(x.grad, np.array([[1, -2]]) / eps, rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_vector_of_zeros_stays_0_without_eps(dtype):
    y = F.normalize(np.array([[0.0, 0.0], [3.0, 4.0]], dtype), 0)
    np.testing.assert_allclose(y.array, [[0, 0], [0.6, 0.8]], rtol=2 * np.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_sigmoid_has_all_digits_far_below_zero(dtype):
    x = np.array([-8.0], dtype)
    np.testing.assert_allclose(
        F.sigmoid(x).array, 1 / (1 + np.exp(8.0)), rtol=8 * np.finfo(dtype).eps
    )


def test_logsumexp_skips_minus_infinity():
    np.testing.assert_allclose(F.logsumexp(np.array([-np.inf, 0.0, 0.0])).array, np.log(2))
    assert F.logsumexp(np.array([-np.inf, -np.inf])).array == -np.inf


def test_accuracy_leaves_out_a_class_that_is_to_be_ignored():
    y = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [0.0, 1.0]])
    t = np.array([0, 0, 1, 1])
    assert F.accuracy(y, t).array == 0.75
    assert F.accuracy(y, t, ignore_label=1).array == 0.5


@pytest.mark.parametrize(
    ("f", "arrays", "expected"),
    [
        (F.max, ([2.0, 1.0, 2.0],), [[1, 0, 1]]),
        (lambda x: F.min(x, 0), ([2.0, 1.0, 1.0],), [[0, 1, 1]]),
        (F.maximum, ([1.0], [1.0]), [[1], [0]]),
        (F.minimum, ([1.0], [1.0]), [[1], [0]]),
        (lambda x: F.clip(x, 0, 1), ([0.0, 1.0, 2.0],), [[1, 1, 0]]),
        (F.relu, ([-1.0, 0.0, 1.0],), [[0, 0, 1]]),
        (F.leaky_relu, ([0.0],), [[0.2]]),
        (lambda x: F.elu(x, 0.5), ([0.0],), [[0.5]]),
        (F.relu6, ([0.0, 3.0, 6.0],), [[0, 1, 0]]),
        (lambda x: F.clipped_relu(x, 2), ([0.0, 1.0, 2.0],), [[0, 1, 0]]),
        (F.hard_sigmoid, ([-2.5, 0.0, 2.5],), [[0, 0.2, 0]]),
        (F.absolute, ([-1.0, 0.0],), [[-1, 0]]),
        (lambda x: x**2, ([0.0],), [[0]]),
        (lambda x: x**1, ([0.0],), [[1]]),
        (lambda x: x**0, ([0.0],), [[0]]),
        (lambda x, y: x**y, ([0.0, 0.0], [2.0, 0.0]), [[0, 0], [0, 0]]),
        (lambda x: x**3, ([-2.0],), [[12]]),
        (lambda x: F.max_pooling_2d(x, 2), ([[[[0.0, 1.0], [1.0, 0.0]]]],), [[[[[0, 1], [0, 0]]]]]),
        (lambda x: F.max_pooling_2d(x, 2), ([[[[0.0, 0.0], [0.0, 0.0]]]],), [[[[[1, 0], [0, 0]]]]]),
        (lambda x: F.max_pooling_1d(x, 2, 1), ([[[1.0, 1.0, 0.0]]],), [[[[1, 1, 0]]]]),
    ],
    ids=[
        "max",
        "min",
        "maximum",
        "minimum",
        "clip",
        "relu",
        "leaky_relu",
        "elu",
        "relu6",
        "clipped_relu",
        "hard_sigmoid",
        "absolute",
        "0**2",
        "0**1",
        "0**0",
        "0**y",
        "neg**3",
        "max_pooling: two",
        "max_pooling: zeros",
        "max_pooling: overlapping",
    ],
)
def test_gradients_at_ties_and_kinks_are_the_documented_ones(f, arrays, expected):
    for g, e in zip(gradient(f, *arrays), expected, strict=True):
        np.testing.assert_array_equal(g, e)


def test_where_lets_no_infinity_through():
    x = Variable(np.array([0.0, 4.0]))
    safe = F.where(x.array > 0, x, 1.0)
    (g,) = grad([F.sum(F.where(x.array > 0, F.sqrt(safe), 0.0))], [x])
    np.testing.assert_array_equal(g.array, [0, 0.25])


@pytest.mark.parametrize("dtype", ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"])
def test_labels_may_have_any_integer_dtype(dtype):
    x = np.array([[0.3, 1.0], [2.0, -1.0]])
    expected = F.softmax_cross_entropy(x, np.array([1, 0])).array
    np.testing.assert_array_equal(
        F.softmax_cross_entropy(x, np.array([1, 0], dtype)).array, expected
    )
    assert F.accuracy(x, np.array([1, 0], dtype)).array == 1


def test_no_label_is_ignored_when_none_is_to_be():
    with pytest.raises(ValueError, match="label -1"):
        F.softmax_cross_entropy(np.zeros((2, 3)), np.array([0, -1]), ignore_label=None)


def test_mean_loss_of_many_halves_does_not_overflow():
    for rows, columns in ((9000, 2000), (30000, 20)):  # their sum is beyond 65504
        x = np.zeros((rows, columns), np.float16)
        np.testing.assert_allclose(
            F.softmax_cross_entropy(x, np.zeros(rows, "i4")).array, np.log(columns), rtol=1e-3
        )
    np.testing.assert_allclose(F.mean(np.full(100000, 2, np.float16)).array, 2)


@pytest.mark.parametrize("axis", [None, 0, 1, (0, 1)], ids=str)
def test_the_mean_of_nothing_is_0_and_its_gradient_empty(axis):
    x = Variable(np.zeros((0, 3)))
    y = F.mean(x, axis)
    np.testing.assert_array_equal(y.array, np.zeros(x.array.sum(axis).shape))
    assert grad([F.sum(y)], [x])[0].shape == (0, 3)


def test_dropout_keeps_the_mean_and_scales_what_stays():
    mnpar.random.seed(0)
    x = Variable(np.ones((200, 500)))
    y, mask = F.dropout(x, 0.2, return_mask=True)
    assert set(np.unique(y.array)) == {0.0, 1.25}
    assert abs(y.array.mean() - 1) < 0.01
    np.testing.assert_array_equal(y.array, mask)
    (g,) = grad([F.sum(y * 3)], [x])
    np.testing.assert_array_equal(g.array, mask * 3)


def test_dropout_draws_from_the_rank_or_from_what_it_is_given():
    x = np.ones(100, np.float32)
    mnpar.random.seed(5)
    first = F.dropout(x).array
    second = F.dropout(x).array
    mnpar.random.seed(5)
    np.testing.assert_array_equal(F.dropout(x).array, first)
    assert (first != second).any()
    given = [F.dropout(x, rng=np.random.default_rng(1)).array for _ in range(2)]
    np.testing.assert_array_equal(*given)


def test_dropout_leaves_numpys_global_numbers_alone():
    before = np.random.get_state()[1].copy()
    F.dropout(np.ones(100))
    np.testing.assert_array_equal(np.random.get_state()[1], before)


def test_dropout_does_nothing_while_testing():
    x = Variable(np.ones(3))
    with using_config("train", False):
        assert F.dropout(x, 0.9) is x
        assert F.dropout(x, 0.9, return_mask=True) == (x, None)


def test_integers_beside_numbers_follow_numpy():
    x = Variable(np.array([1, 2], np.int32))
    for y, e in [
        (x + 1, np.int32),
        (x + 0.5, np.float64),
        (x / 2, np.float64),
        (x // 2, np.int32),
        (x**2, np.int32),
    ]:
        assert y.dtype == e
    np.testing.assert_array_equal((x + 0.5).array, [1.5, 2.5])


@pytest.mark.parametrize("other", ["a", None, [1.0, 2.0], {}], ids=["str", "None", "list", "dict"])
def test_operators_refuse_what_is_no_number(other):
    x = Variable(np.ones(2))
    with pytest.raises(TypeError):
        x + other
    with pytest.raises(TypeError):
        other * x


def test_a_shared_gradient_is_not_overwritten():
    x = Variable(np.ones(3))
    y = Variable(np.ones(3))
    z = F.sum(x + y)
    (z + F.sum(x * 2)).backward()
    np.testing.assert_array_equal(x.grad, [3, 3, 3])
    np.testing.assert_array_equal(y.grad, [1, 1, 1])
    x.grad[...] = 7
    np.testing.assert_array_equal(y.grad, [1, 1, 1])


def ones(*shape):
    return np.ones(shape)


WRONG = {
    "add": (lambda: Variable(ones(2, 3)) + ones(2), ["(2, 3)", "(2,)", "expand_dims"]),
    "rsub": (lambda: ones(2) - Variable(ones(2, 3)), ["(2, 3)", "(2,)"]),
    "add: none": (lambda: F.add(), ["an array, or more"]),
    "matmul": (lambda: F.matmul(ones(2, 3), ones(2, 3)), ["matmul", "(2, 3) and (2, 3)", "transb"]),
    "matmul: operator": (lambda: Variable(ones(2, 3)) @ ones(4), ["matmul", "(2, 3) and (4,)"]),
    "linear: features": (
        lambda: F.linear(ones(2, 3, 4), ones(5, 3)),
        ["linear", "(2, 3, 4)", "12 features", "(5, 3)"],
    ),
    "linear: bias": (
        lambda: F.linear(ones(2, 3), ones(5, 3), ones(3)),
        ["b of shape (3,)", "(5,)"],
    ),
    "linear: axes": (
        lambda: F.linear(ones(2, 3), ones(5, 3), None, 2),
        ["n_batch_axes = 2", "(2, 3)"],
    ),
    "reshape": (lambda: F.reshape(ones(2, 3), (4,)), ["6 elements", "(2, 3)", "(4,)"]),
    "transpose": (lambda: F.transpose(ones(2, 3), (0, 0)), ["(0, 0)", "(2, 3)"]),
    "broadcast_to": (lambda: F.broadcast_to(ones(2), (2, 3)), ["broadcast_to", "(2,)", "(2, 3)"]),
    "broadcast": (lambda: F.broadcast(ones(2), ones(3)), ["(2,) and (3,)"]),
    "sum_to": (lambda: F.sum_to(ones(2, 3), (2,)), ["sum_to", "(2,)", "(2, 3)"]),
    "squeeze": (lambda: F.squeeze(ones(2, 3), 1), ["squeeze", "axis 1", "(2, 3)", "length 3"]),
    "expand_dims": (lambda: F.expand_dims(ones(2), 3), ["expand_dims", "axis 3", "(2,)"]),
    "concat": (
        lambda: F.concat([ones(2, 3), ones(3, 3)]),
        ["concat", "(2, 3)", "(3, 3)", "axis 1"],
    ),
    "stack": (lambda: F.stack([ones(2), ones(3)]), ["stack", "(2,)", "(3,)"]),
    "split_axis: parts": (
        lambda: F.split_axis(ones(2, 5), 2, 1),
        ["split_axis", "length 5", "2 equal parts"],
    ),
    "split_axis: cuts": (lambda: F.split_axis(ones(2, 5), [3, 1], 1), ["[3, 1]", "do not rise"]),
    "split_axis: axis": (lambda: F.split_axis(ones(2, 5), 2, 2), ["no axis 2", "(2, 5)"]),
    "select_item": (lambda: F.select_item(ones(2, 3), np.array([0, 3])), ["select_item", "3"]),
    "average": (lambda: F.average(ones(2, 3), 1, ones(2)), ["average", "(2,)", "(2, 3)", "(3,)"]),
    "average: axis": (
        lambda: F.average(ones(2, 3), 3, ones(3)),
        ["average: x of shape (2, 3) has no axis 3"],
    ),
    "clip": (lambda: F.clip(ones(2), 2, 1), ["x_min = 2", "x_max = 1"]),
    "dropout: ratio": (lambda: F.dropout(ones(2), 1.0), ["1.0", "[0, 1)"]),
    "dropout: mask": (lambda: F.dropout(ones(2), mask=ones(3)), ["(3,)", "(2,)"]),
    "softmax_ce: label": (
        lambda: F.softmax_cross_entropy(ones(2, 3), np.array([0, 5])),
        ["label 5", "t[1]", "3 classes", "ignore_label = -1"],
    ),
    "softmax_ce: image": (
        lambda: F.softmax_cross_entropy(
            ones(2, 3, 2, 2), np.array([[[0, 0], [0, 0]], [[0, -3], [0, 9]]])
        ),
        ["label -3", "t[1, 0, 1]"],
    ),
    "softmax_ce: unsigned": (
        lambda: F.softmax_cross_entropy(ones(1, 3), np.array([255], "u1")),
        ["label 255", "t[0]"],
    ),
    "softmax_ce: shapes": (
        lambda: F.softmax_cross_entropy(ones(2, 3), np.array([0])),
        ["(2, 3) and (1,)", "here (2,)"],
    ),
    "softmax_ce: bool": (
        lambda: F.softmax_cross_entropy(ones(2, 3), np.array([True, False])),
        ["bool", "integers"],
    ),
    "softmax_ce: soft": (lambda: F.softmax_cross_entropy(ones(2, 3), ones(2)), ["(2,)", "(2, 3)"]),
    "softmax_ce: weights": (
        lambda: F.softmax_cross_entropy(ones(2, 3), np.array([0, 1]), class_weight=ones(2)),
        ["class_weight", "(2,)", "(3,)"],
    ),
    "softmax_ce: list of weights": (
        lambda: F.softmax_cross_entropy(ones(2, 3), np.array([0, 1]), class_weight=[1.0, 2.0, 3.0]),
        ["class_weight", "(list)", "(3,)"],
    ),
    "softmax_ce: reduce": (
        lambda: F.softmax_cross_entropy(ones(2, 3), np.array([0, 1]), reduce="sum"),
        ["'sum'", "'no'"],
    ),
    "sigmoid_ce: label": (lambda: F.sigmoid_cross_entropy(ones(2), np.array([0, 2])), ["0 … 2"]),
    "sigmoid_ce: shapes": (
        lambda: F.sigmoid_cross_entropy(ones(2), np.array([0])),
        ["(2,) and (1,)"],
    ),
    "mse": (
        lambda: F.mean_squared_error(ones(2), ones(2, 1)),
        ["mean_squared_error", "(2,) and (2, 1)"],
    ),
    "mae": (
        lambda: F.mean_absolute_error(ones(2), ones(1)),
        ["mean_absolute_error", "(2,) and (1,)"],
    ),
    "accuracy": (lambda: F.accuracy(ones(2, 3), np.array([0])), ["accuracy", "(2, 3) and (1,)"]),
    "accuracy: dtype": (lambda: F.accuracy(ones(2, 3), ones(2)), ["float64", "integers"]),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_is_named_with_its_numbers(name):
    call, parts = WRONG[name]
    with pytest.raises(ValueError, match=re.escape(parts[0])) as caught:
        call()
    for part in parts:
        assert part in str(caught.value)


AXES = {
    "squeeze": (lambda x, one: F.squeeze(x, one), (2, 3)),
    "moveaxis": (lambda x, one: F.moveaxis(x, one, one - 1), (1, 2, 3)),
    "prod": (lambda x, one: F.prod(x, one), (2, 3)),
    "prod: a list": (lambda x, one: F.prod(x, [one, 0]), (3,)),
    "average": (lambda x, one: F.average(x, one, np.ones(1)), (2, 3)),
    "tensordot": (lambda x, one: F.tensordot(x, x[:, 0], (one - 1, one - 1)), (1, 3, 3)),
    "flip": (lambda x, one: F.flip(x, one), (2, 1, 3)),
    "roll": (lambda x, one: F.roll(x, one, one), (2, 1, 3)),
}


@pytest.mark.parametrize("name", AXES)
def test_an_axis_may_be_one_of_numpys_numbers(name):
    call, shape = AXES[name]
    assert call(Variable(ones(2, 1, 3)), np.int64(1)).shape == shape


def test_sums_of_no_products_are_0_whatever_is_in_memory():
    """numpy's einsum multiplies 0 by what lies where an empty array with steps of 0 begins."""
    memory = np.full(64, np.nan, "f4")
    x, y = [
        np.lib.stride_tricks.as_strided(memory[i:], (1, 2, 0), (8 * i, 4 * i, 4 * i))
        for i in (1, 0)
    ]
    np.testing.assert_array_equal(F.einsum("acb,acb->ac", x, y).array, np.zeros((1, 2)))
    np.testing.assert_array_equal(channel_sums(x, y), np.zeros(2))


def test_a_complex_gradient_gives_the_change_of_the_loss_as_the_real_part_of_its_product():
    loss = lambda z: F.sum(F.absolute(z * z + F.exp(z)))
    z = np.array([1 + 2j, 0.5 - 1j])
    dz = np.array([3 - 1j, 2 + 4j])
    (g,) = grad([loss(x := Variable(z))], [x])
    change = (loss(z + 1e-6 * dz).item() - loss(z - 1e-6 * dz).item()) / 2e-6
    np.testing.assert_allclose((g.array * dz).real.sum(), change, rtol=1e-8)


@pytest.mark.parametrize(
    "f", [lambda z: F.real(z * z), lambda z: F.imag(z * z), lambda z: F.real(F.conj(z) * z * z)]
)
@pytest.mark.parametrize("dtype", ["c8", "c16"])
def test_parts_of_complex_numbers_have_complex_gradients(f, dtype):
    z = np.array([1 + 2j, 0.5 - 1j], dtype)
    dz = np.array([3 - 1j, 2 + 4j])
    y = F.sum(f(x := Variable(z)))
    y.backward()
    assert (y.dtype, x.grad.dtype) == (z.real.dtype, z.dtype)
    wide = z.astype("c16")
    change = (F.sum(f(wide + 1e-5 * dz)).item() - F.sum(f(wide - 1e-5 * dz)).item()) / 2e-5
    np.testing.assert_allclose((x.grad * dz).real.sum(), change, rtol=1e-6)


@pytest.mark.parametrize(
    ("dtype", "wide"), [("f2", "c8"), ("f4", "c8"), ("f8", "c16"), ("i4", "c16"), ("c8", "c8")]
)
@pytest.mark.parametrize(
    "number", [2j, np.array(2j), np.complex64(2j)], ids=["Python", "array", "numpy"]
)
def test_a_complex_number_beside_a_variable_is_not_cut(dtype, wide, number):
    x = np.array([1, 2], dtype)
    for y, e in (
        (Variable(x) * number, x * 2j),
        (number - Variable(x), 2j - x),
        (Variable(x) ** number, x.astype("c16") ** 2j),
    ):
        assert y.dtype == wide
        np.testing.assert_allclose(y.array, e, rtol=1e-6)


def test_what_was_cast_to_complex_gets_the_real_part_of_its_gradient_when_recorded_too():
    x = Variable(np.array([1.0, 2.0]))
    for record in (False, True):
        z = F.cast(x, "c16")
        (g,) = grad([F.sum(F.absolute(z * (1 + 2j) + 1j))], [x], enable_double_backprop=record)
        a = 1j + x.array * (1 + 2j)
        np.testing.assert_allclose(g.array, ((1 + 2j) * a.conj() / abs(a)).real)


def test_a_real_array_beside_complex_ones_gets_the_real_part_of_its_gradient():
    """And numpy does not warn, which would be at every step, of nothing that is wrong."""
    x = np.array([1.0, 2.0])
    z = np.array([1 + 2j, 0.5 - 1j])
    dx = np.array([3.0, -1.0])
    loss = lambda x: F.sum(F.absolute(x * z + z * z))
    loss(v := Variable(x)).backward()
    assert v.grad.dtype == x.dtype
    change = (loss(x + 1e-6 * dx).item() - loss(x - 1e-6 * dx).item()) / 2e-6
    np.testing.assert_allclose((v.grad * dx).sum(), change, rtol=1e-8)


COMPLEX = {
    "real": lambda x, z: (z * z).real ** 3,
    "imag": lambda x, z: (z * z).imag ** 3 + x.imag,
    "conj": lambda x, z: (z * z * z.conj() * (1 + 2j)).real * x.conj(),
    "of two real ones": lambda x, z: F.absolute(F.exp(x + 1j * x * x)) ** 3,
    "a real one beside complex ones": lambda x, z: ((x * z + z / 1j) ** 3).real,
    "cast": lambda x, z: (F.cast(x, "c16") * (2 - 1j) * z**3).imag,
}


@pytest.mark.parametrize("name", COMPLEX)
def test_gradients_of_gradients_of_complex_numbers(name):
    def slope(*xs):
        gs = [
            g
            for g in grad([F.sum(COMPLEX[name](*xs))], xs, enable_double_backprop=True)
            if g is not None
        ]
        return sum(F.sum((g * g.conj()).real * (i + 1)) for i, g in enumerate(gs))

    values = (np.array([0.4, -0.7]), np.array([1 + 2j, 0.5 - 1j]))
    steps = (np.array([0.2, 0.9]), np.array([0.3 - 1j, 0.2 + 0.4j]))
    there, back = (
        slope(*[Variable(v + e * d) for v, d in zip(values, steps, strict=True)]).item()
        for e in (1e-6, -1e-6)
    )
    slope(*(xs := [Variable(v) for v in values])).backward()
    found = sum(
        (x.grad * d).real.sum() for x, d in zip(xs, steps, strict=True) if x.grad is not None
    )
    np.testing.assert_allclose(found, (there - back) / 2e-6, rtol=1e-7)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_attention_of_seventy_places_takes_a_gradient_that_lies_anyhow(layout, causal):
    rng = np.random.default_rng(0)
    *arrays, gy = rng.standard_normal((4, 2, 70, 4))

    def gradients(gy):
        xs = [Variable(x) for x in arrays]
        y = F.scaled_dot_product_attention(*xs, causal=causal)
        return [g.array for g in grad([y], xs, [Variable(gy)])]

    for g, e in zip(gradients(LAYOUTS[layout](gy, rng)), gradients(gy), strict=True):
        np.testing.assert_allclose(g, e, rtol=1e-12, atol=1e-14)


def test_an_array_of_one_fraction_beside_integers_is_not_cut():
    np.testing.assert_array_equal((Variable(np.array([1, 2])) * np.array(1.5)).array, [1.5, 3.0])


OF_INTEGERS = {
    "mean_squared_error": lambda x: F.mean_squared_error(x, x[::-1] + 1),
    "mean_absolute_error": lambda x: F.mean_absolute_error(x, x[::-1] + 1),
    "sigmoid_cross_entropy": lambda x: F.sigmoid_cross_entropy(x, np.array([[0, 1], [1, 0]])),
    "inv": F.inv,
    "det": F.det,
    "normalize": F.normalize,
    "local_response_normalization": lambda x: F.local_response_normalization(x[None, :, :, None]),
    "accuracy": lambda x: F.accuracy(x, np.array([1, 0])),
    "r2_score": lambda x: F.r2_score(x, x * x),
    "softmax": F.softmax,
    "log_softmax": F.log_softmax,
    "logsumexp": F.logsumexp,
    "average": lambda x: F.average(x, 1, np.array([0.25, 0.5])),
    "erfc": F.erfc,
    "lgamma": lambda x: F.lgamma(x + 2),
    "polygamma": lambda x: F.polygamma(1, x),
    "cumsum of booleans": lambda x: F.cumsum(x.astype("?")),
}


@pytest.mark.parametrize("name", OF_INTEGERS)
def test_what_is_computed_from_integers_keeps_its_fractions(name):
    x = np.array([[1, 2], [3, 5]])
    function = OF_INTEGERS[name]
    np.testing.assert_allclose(function(x).array, function(x.astype("f8")).array, rtol=1e-12)
