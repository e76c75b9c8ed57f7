"""Activations with parameters: each against its formula in numpy."""

import numpy as np
import pytest

import mnpar.functions as F
import mnpar.links as L
from tests.harness.parts import paths

RNG = np.random.default_rng(0)
X = RNG.standard_normal((5, 4))


def sig(x):
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize(
    ("shape", "init"),
    [((), 0.25), ((4,), 0.1), ((4,), np.arange(4.0))],
    ids=["one", "some", "array"],
)
def test_prelu_has_a_slope_for_negative_numbers(shape, init):
    layer = L.PReLU(shape, init)
    np.testing.assert_allclose(layer(X).array, np.where(X < 0, init * X, X), rtol=1e-6)
    F.sum(layer(X)).backward()
    np.testing.assert_allclose(
        layer.W.grad, np.minimum(X, 0).sum(axis=0 if shape else None), rtol=1e-6
    )


@pytest.mark.parametrize("in_size", [4, None], ids=str)
def test_maxout_takes_the_largest_of_some_linear_functions(in_size):
    W = RNG.standard_normal((2, 3, 4)).astype("f4")
    b = RNG.standard_normal((2, 3)).astype("f4")
    layer = L.Maxout(in_size, 2, 3, W, b) if in_size else L.Maxout(None, 2, 3)
    y = layer(X).array
    if not in_size:
        W = layer.linear.W.array.reshape(2, 3, 4)
        b = layer.linear.b.array.reshape(2, 3)
    np.testing.assert_allclose(y, (np.einsum("opd,nd->nop", W, X) + b).max(axis=2), rtol=1e-6)
    assert paths(layer) == ["/linear/W", "/linear/b"]
    assert paths(L.Maxout(4, 2, 3, initial_bias=None)) == ["/linear/W"]
    with pytest.raises(ValueError, match="1 or more"):
        L.Maxout(4, 0, 3)


def test_swish_learns_its_slope():
    x = RNG.standard_normal((5, 3))
    layer = L.Swish(None, 0.5)
    np.testing.assert_allclose(layer(x).array, x * sig(0.5 * x), rtol=1e-6)
    assert layer.beta.shape == (3,)
    F.sum(layer(x)).backward()
    np.testing.assert_allclose(
        layer.beta.grad, (x**2 * sig(0.5 * x) * sig(-0.5 * x)).sum(0), rtol=1e-5
    )
