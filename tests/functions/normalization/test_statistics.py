"""Normalization beyond the table: digits, running values, blocks of the cache, and the words of
errors.
"""

import ml_dtypes
import numpy as np
import pytest

import mnpar.functions as F
from mnpar.kernels import tuning
from mnpar.variable import Variable, grad

RNG = np.random.default_rng(0)


def normal(x, axis, eps):
    x = x.astype("d")
    return (x - x.mean(axis=axis, keepdims=True)) / np.sqrt(x.var(axis=axis, keepdims=True) + eps)


ONE = np.ones(4, "f4")
FORMS = {
    "batch": (lambda x: F.batch_normalization(x, ONE, 0 * ONE), (0, 2), 2e-5),
    "batch, last axis": (
        lambda x: F.batch_normalization(x, np.ones(200, "f4"), np.zeros(200, "f4"), axis=(0, 1)),
        (0, 1),
        2e-5,
    ),
    "layer": (lambda x: F.layer_normalization(x, np.ones(200, "f4"), np.zeros(200, "f4")), 2, 1e-5),
    "group": (lambda x: F.group_normalization(x, 4, ONE, 0 * ONE), 2, 1e-5),
}
every_form = pytest.mark.parametrize(("f", "axis", "eps"), FORMS.values(), ids=FORMS)


@every_form
def test_a_mean_of_a_million_costs_no_digits_in_float32(f, axis, eps):
    x = (1e6 + RNG.standard_normal((30, 4, 200)) + np.arange(4)[:, None]).astype("f4")
    w = RNG.standard_normal(x.shape).astype("f4")
    near = x.astype("d") - 1e6
    np.testing.assert_allclose(f(x).array, normal(near, axis, eps), rtol=3e-6, atol=3e-6)
    results = []
    for record, data in ((False, x), (True, x), (False, near.astype("f4"))):
        v = Variable(data)
        results.append(grad([F.sum(f(v) * w)], [v], enable_double_backprop=record)[0].array)
    np.testing.assert_allclose(results[0], results[2], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(results[1], results[2], rtol=1e-4, atol=1e-5)


@every_form
def test_halves_are_summed_in_float32(f, axis, eps):
    x = (200 + 10 * RNG.standard_normal((30, 4, 200))).astype("f2")  # squares exceed 65504
    np.testing.assert_allclose(f(x).array, normal(x, axis, eps), rtol=2e-3, atol=2e-3)


@every_form
def test_pieces_that_fit_the_cache_give_the_same_as_the_whole(f, axis, eps, monkeypatch):
    x = RNG.standard_normal((30, 4, 200))
    whole = gradients(f, x)
    monkeypatch.setattr(tuning, "MOMENTS_BLOCK", 1000)
    monkeypatch.setattr(tuning, "MOMENTS_CHANNELS", 1)
    monkeypatch.setattr(tuning, "LAYER_BLOCK", 1000)
    for a, b in zip(whole, gradients(f, x), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


def gradients(f, x):
    v = Variable(x)
    y = f(v)
    return y.array, grad([F.sum(y * y * x)], [v])[0].array


@pytest.mark.parametrize(
    "f",
    [*[f for f, _, _ in FORMS.values()], lambda x: F.local_contrast_normalization(x, 3)],
    ids=[*FORMS, "local contrast"],
)
def test_bfloat16_is_computed_in_float32(f):
    near = RNG.standard_normal((9, 4, 200)).astype(ml_dtypes.bfloat16)
    w = RNG.standard_normal(near.shape).astype(ml_dtypes.bfloat16)
    results = []
    for dtype in (near.dtype, np.dtype("d")):
        x = Variable(near.astype(dtype))
        y = f(x)
        y.grad = w.astype(dtype)
        y.backward()
        assert y.dtype == x.grad.dtype == dtype
        results.append((y.array, x.grad))
    for narrow, exact in zip(*results, strict=True):  # rounded once: half of the last of eight bits
        np.testing.assert_allclose(narrow.astype("d"), exact, rtol=2**-8, atol=1e-5)


def test_running_values_move_in_place_by_the_unbiased_variance():
    x = RNG.standard_normal((5, 3, 2))
    mean = np.full(3, 2.0)
    var = np.full(3, 4.0)
    F.batch_normalization(
        x, np.ones(3), np.zeros(3), running_mean=mean, running_var=var, decay=0.75
    )
    np.testing.assert_allclose(mean, 1.5 + 0.25 * x.mean(axis=(0, 2)))
    np.testing.assert_allclose(var, 3 + 0.25 * x.var(axis=(0, 2), ddof=1))


def test_gamma_of_another_dtype_than_x():
    x = RNG.standard_normal((8, 3)).astype("f2")
    g = Variable(np.full(3, 2.0, "f4"))
    y = F.batch_normalization(x, g, np.zeros(3, "f4"))
    F.sum(y * y).backward()
    assert (y.dtype, g.grad.dtype) == (np.float16, np.float32)


def test_x_that_needs_no_gradient_leaves_those_of_gamma_and_beta():
    for f in (F.batch_normalization, F.layer_normalization):
        x = RNG.standard_normal((6, 3))
        results = []
        for needs in (True, False):
            g = Variable(np.full(3, 2.0))
            b = Variable(np.zeros(3))
            F.sum(f(Variable(x, requires_grad=needs), g, b) * x).backward()
            results += [g.grad, b.grad]
        np.testing.assert_allclose(results[0], results[2], rtol=1e-12)
        np.testing.assert_allclose(results[1], results[3], rtol=1e-12)


def test_the_gradient_of_a_zero_vector_is_finite():
    x = Variable(np.array([[0.0, 0.0], [3.0, 4.0]]))
    (g,) = grad(
        [F.sum(F.normalize(x, eps=0.5) * np.array([[1.0, 2.0], [0.0, 0.0]]))],
        [x],
        enable_double_backprop=True,
    )
    np.testing.assert_array_equal(g.array, [[2, 4], [0, 0]])
    g.grad = np.ones((2, 2))
    g.backward()
    assert np.isfinite(x.grad).all()


@pytest.mark.parametrize(
    ("f", "error", "words"),
    [
        (
            lambda: F.batch_normalization(np.ones((2, 3)), np.ones(2), np.ones(3)),
            ValueError,
            r"gamma of shape \(2,\) must have",
        ),
        (
            lambda: F.batch_normalization(np.ones((2, 3)), np.ones(3), np.ones(2)),
            ValueError,
            r"beta of shape \(2,\) must have",
        ),
        (
            lambda: F.batch_normalization(np.ones((2, 3), int), np.ones(3), np.ones(3)),
            TypeError,
            "cast it first",
        ),
        (
            lambda: F.fixed_batch_normalization(np.ones((2, 3)), *[np.ones(3)] * 3, np.ones(2)),
            ValueError,
            "var of shape",
        ),
        (
            lambda: F.layer_normalization(np.ones((2, 3)), np.ones(2), np.ones(2)),
            ValueError,
            "the last axes of x",
        ),
        (
            lambda: F.layer_normalization(np.ones((2, 3), int), np.ones(3), np.ones(3)),
            TypeError,
            "cast it first",
        ),
        (
            lambda: F.layer_normalization(np.ones(3), np.ones(3), np.ones(3)),
            ValueError,
            "batch axes before them",
        ),
        (
            lambda: F.group_normalization(np.ones((2, 3)), 2, np.ones(3), np.ones(3)),
            ValueError,
            "do not divide the channels",
        ),
        (
            lambda: F.group_normalization(np.ones((2, 3)), 3.0, np.ones(3), np.ones(3)),
            TypeError,
            "groups is an int",
        ),
        (
            lambda: F.group_normalization(np.ones((2, 3)), 3, np.ones(2), np.ones(3)),
            ValueError,
            "one for each channel",
        ),
        (lambda: F.local_response_normalization(np.ones(3)), ValueError, r"\(N, C, …\)"),
        (
            lambda: F.batch_normalization(np.ones((2, 3)), np.ones(3), np.ones(3), axis=(0, -2)),
            ValueError,
            "one twice",
        ),
        (
            lambda: F.bias(np.ones((2, 3)), np.ones(2)),
            ValueError,
            r"shape \(2,\) is not that of x \(2, 3\) from axis 1 on",
        ),
        (lambda: F.scale(np.ones((2, 3)), np.ones(3), axis=-1), ValueError, "from axis -1 on"),
        (lambda: F.prelu(np.ones((2, 3)), np.ones(2)), ValueError, "from axis 1 on"),
        (lambda: F.maxout(np.ones((2, 3)), 2), ValueError, "cannot be cut into pools of 2"),
    ],
)
def test_errors_say_what_is_wrong(f, error, words):
    with pytest.raises(error, match=words):
        f()


@pytest.mark.parametrize("offsets", [(0, 0, 0, 0), (0, 1e4, 0, -1e4), (3, -3, 0, 1e6)])
@every_form
def test_every_mixture_of_means_is_taken_away(f, axis, eps, offsets):
    x = (RNG.standard_normal((30, 4, 200)) + (np.array(offsets)[:, None])).astype("f4")
    np.testing.assert_allclose(f(x).array, normal(x, axis, eps), rtol=5e-6, atol=5e-6)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_layer_normalization_of_columns_is_that_of_rows(dtype):
    """Linear layers of few rows hand on arrays whose columns lie together, and their gradients."""
    rng = np.random.default_rng(0)
    x, gy = rng.standard_normal((2, 30, 40)).astype(dtype)
    gamma, beta = rng.standard_normal((2, 40)).astype(dtype)

    def results(order):
        given = [Variable(np.array(a, order=order)) for a in (x, gamma, beta)]
        y = F.layer_normalization(*given)
        return [y, *grad([y], given, [Variable(np.array(gy, order=order))])]

    for found, expected in zip(results("F"), results("C"), strict=True):
        assert found.dtype == dtype
        np.testing.assert_array_equal(found.array, expected.array)
