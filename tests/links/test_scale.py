"""Bias, Scale and Parameter: each against numpy."""

import numpy as np
import pytest

import mnpar.functions as F
import mnpar.links as L
from tests.harness.parts import paths

RNG = np.random.default_rng(0)
X = RNG.standard_normal((5, 4))


def test_a_bias_is_learnt_or_comes_with_x():
    b = RNG.standard_normal(4)
    np.testing.assert_allclose(L.Bias()(X, b).array, X + b)
    np.testing.assert_allclose(L.Bias(axis=0)(X, b[0] * np.ones(5)).array, X + b[0])
    layer = L.Bias(shape=(4,))
    F.sum(layer(X)).backward()
    assert paths(layer) == ["/b"]
    np.testing.assert_array_equal(layer.b.grad, [5, 5, 5, 5])
    for link, args in ((layer, (X, b)), (L.Bias(), (X,))):
        with pytest.raises(ValueError, match=f"Bias takes x .*, not {len(args)}"):
            link(*args)


def test_a_scale_is_learnt_or_comes_with_x_and_may_have_a_bias():
    w = RNG.standard_normal(4)
    np.testing.assert_allclose(L.Scale()(X, w).array, X * w)
    layer = L.Scale(W_shape=(4,), bias_term=True)
    F.sum(layer(X)).backward()
    assert paths(layer) == ["/W", "/bias/b"]
    np.testing.assert_allclose(layer.W.grad, X.sum(axis=0), rtol=1e-6)
    given = L.Scale(bias_term=True, bias_shape=(4,))
    given.bias.b.array[...] = 2
    np.testing.assert_allclose(given(X, w).array, X * w + 2)
    with pytest.raises(ValueError, match="needs its bias_shape"):
        L.Scale(bias_term=True)


def test_a_parameter_is_returned_and_learnt():
    array = np.ones(3)
    layer = L.Parameter(array)
    assert layer() is layer.W
    assert layer.W.array is array
    F.sum(layer() * 2).backward()
    np.testing.assert_array_equal(layer.W.grad, [2, 2, 2])
