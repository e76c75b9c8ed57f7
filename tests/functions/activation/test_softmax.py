"""Functions of rows give the same in blocks of any size, in every dtype, of large numbers and of
small ones.
"""

import numpy as np
import pytest

import mnpar.functions as F
from mnpar import backend
from mnpar.kernels import sums, tuning
from mnpar.variable import Variable, grad


@pytest.mark.parametrize(("dtype", "tolerance"), [("f4", 1e-6), ("f8", 1e-14)])
@pytest.mark.parametrize("room", [2**10, 2**21])
@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize("turned", [False, True])
def test_softmax_in_blocks_of_rows(turned, size, room, dtype, tolerance, monkeypatch):
    monkeypatch.setattr(tuning, "SUM_LEAST", 1)
    monkeypatch.setattr(backend, "block_bytes", lambda x: room)
    x, g = np.random.default_rng(0).standard_normal((2, 7, 5, 30))
    x[3] *= size
    if turned:
        x = x.transpose(1, 0, 2)
        g = g.transpose(1, 0, 2).copy()
    v = Variable(x.astype(dtype))
    x = v.array.astype("d")
    e = np.exp(x - x.max(-1, keepdims=True))
    e /= e.sum(-1, keepdims=True)
    y = F.softmax(v, axis=-1)
    np.testing.assert_allclose(y.array, e, rtol=10 * tolerance, atol=tolerance)
    (gx,) = grad([y], [v], [Variable(g.astype(dtype))])
    np.testing.assert_allclose(
        gx.array, e * (g - (g * e).sum(-1, keepdims=True)), atol=5 * tolerance
    )


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize(
    "axis",
    [None, 0, -1, 1, -2, (1, 2), (2, 1), (0, 2), (0, 1), (0, 1, 2), (0, -1), (1, 3), (0, 2, 3), ()],
)
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("limit", [2, 3, 1024])
def test_sums_over_any_axes_are_numpys(limit, order, axis, keepdims, monkeypatch):
    monkeypatch.setattr(tuning, "SUM_LEAST", 1)
    monkeypatch.setattr(sums, "TERMS", limit)
    monkeypatch.setattr(tuning, "ONES_KEPT", limit)
    monkeypatch.setattr(sums, "largest_divisor", sums.largest_divisor.__wrapped__)
    for shape in (6, 5, 4, 36), (2, 1, 37, 64):
        x = np.asarray(np.random.default_rng(0).standard_normal(shape), order=order)
        expected = x.sum(axis=axis, keepdims=keepdims)
        np.testing.assert_allclose(
            sums.sum_array(x, axis, keepdims), expected, rtol=1e-12, atol=1e-12, strict=True
        )


@pytest.mark.parametrize("axis", [2, -3, (0, 2), (0, -2), (0, 0), 1.0, True])
@pytest.mark.parametrize("f", [F.sum, F.mean, F.softmax])
def test_axes_that_a_large_array_does_not_have_are_told_as_of_a_small_one(f, axis):
    with pytest.raises((ValueError, TypeError)) as small:
        f(np.ones((2, 2)), axis=axis)
    with pytest.raises(small.type):
        f(np.ones((100, 100)), axis=axis)


def test_a_sum_over_no_axis_is_a_copy_and_an_axis_may_be_numpys_integer():
    x = np.ones((100, 100))
    assert not np.shares_memory(F.sum(x, axis=()).array, x)
    assert F.sum(x, axis=np.int64(1)).shape == (100,)


def test_sums_of_no_rows_and_of_empty_rows(monkeypatch):
    monkeypatch.setattr(tuning, "SUM_LEAST", 0)
    assert sums.sum_array(np.ones((0, 3)), 1).shape == (0,)
    assert sums.sum_array(np.ones((2, 0)), -1).tolist() == [0, 0]


@pytest.mark.parametrize("shape", [(200, 128), (64, 1024), (20, 50_000), (5, 4099), (16384, 3)])
def test_sums_in_float32_keep_their_digits(shape):
    x = np.random.default_rng(0).random(shape, "f4")
    for axis in 0, 1, None:
        np.testing.assert_allclose(
            F.sum(x, axis=axis).array, x.astype("d").sum(axis), rtol=2e-6 if axis == 0 else 5e-7
        )


@pytest.mark.parametrize(("dtype", "tolerance"), [("f4", 2e-6), ("f8", 1e-14)])
@pytest.mark.parametrize("room", [2**8, 2**21])
@pytest.mark.parametrize("shape", [(1,), (5,), (5, 6), ()])
def test_swish_in_blocks_of_samples(shape, room, dtype, tolerance, monkeypatch):
    monkeypatch.setattr(backend, "block_bytes", lambda x: room)
    random = np.random.default_rng(0)
    x, g = random.standard_normal((2, 7, 5, 6)).astype(dtype)
    x[0, 0, :2] = -1000, 1000  # the exponential overflows: then y is 0 or x
    b = random.standard_normal(shape).astype(dtype)
    vs = Variable(x), Variable(b)
    y = F.swish(*vs)
    wide = x.astype("g")
    beta = b.astype("g").reshape((*b.shape, *[1] * (2 - b.ndim)) if b.size > 1 else (1,))
    with np.errstate(over="ignore"):
        s = 1 / (1 + np.exp(-wide * beta))
    h = wide * s * (1 - s)
    gb = (
        (wide * h * g).reshape((7, *b.shape, -1)).sum((0, -1))
        if b.size > 1
        else (wide * h * g).sum().reshape(b.shape)
    )
    np.testing.assert_allclose(y.array, wide * s, rtol=tolerance, atol=1e-37)
    found = grad([y], vs, [Variable(g)])
    for v, expected in zip(found, (g * (s + beta * h), gb), strict=True):
        assert v.dtype == dtype
        np.testing.assert_allclose(v.array, expected, atol=20 * tolerance)
    (alone,) = grad([F.swish(vs[0], b)], [vs[0]], [Variable(g)])  # of a constant slope
    np.testing.assert_array_equal(alone.array, found[0].array)


@pytest.mark.parametrize("room", [2**6, 2**8, 2**10, 2**21])
@pytest.mark.parametrize("N", [1, 3, 4, 7])
def test_bias_and_scale_of_many_samples_and_slopes_in_blocks(N, room, monkeypatch):
    monkeypatch.setattr(backend, "block_bytes", lambda x: room)
    random = np.random.default_rng(0)
    x, g = random.standard_normal((2, N, 3, 2, 5))
    b = random.standard_normal(3)
    per_channel = b[:, None, None]
    for f, y, gx, gb in (
        (F.bias, x + per_channel, g, g),
        (F.scale, x * per_channel, g * per_channel, g * x),
        (lambda x, b: F.tanh(x), np.tanh(x), g / np.cosh(x) ** 2, None),
        (lambda x, b: F.sigmoid(x), 1 / (1 + np.exp(-x)), g / (2 + 2 * np.cosh(x)), None),
    ):
        for turned in (False, True):  # the same, in another order in memory
            vs = Variable(x.T.copy().T if turned else x), Variable(b)
            z = f(*vs)
            np.testing.assert_allclose(z.array, y, rtol=1e-13)
            z.grad = g
            z.backward()
            np.testing.assert_allclose(vs[0].grad, gx, rtol=1e-12, atol=1e-14)
            if gb is not None:
                np.testing.assert_allclose(vs[1].grad, gb.sum((0, 2, 3)), rtol=1e-12, atol=1e-14)
