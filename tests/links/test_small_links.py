"""Layer and group normalization, Bias, Scale, Parameter, PReLU, Maxout, Highway: each against
numpy, sized and lazy.
"""

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from tests.harness.parts import paths

RNG = np.random.default_rng(0)
X = RNG.standard_normal((5, 4))


@pytest.mark.parametrize(
    ("size", "shape"),
    [(4, (5, 4)), (None, (5, 4)), (None, (2, 5, 4)), ((3, 4), (5, 3, 4))],
    ids=str,
)
def test_layer_normalization_is_over_the_features(size, shape):
    layer = L.LayerNormalization(size, initial_gamma=2, initial_beta=1)
    x = RNG.standard_normal(shape)
    axis = tuple(
        range(x.ndim - layer.gamma.ndim if layer.gamma.is_initialized else x.ndim - 1, x.ndim)
    )
    d = x - x.mean(axis=axis, keepdims=True)
    np.testing.assert_allclose(
        layer(x).array,
        2 * d / np.sqrt((d * d).mean(axis=axis, keepdims=True) + 1e-6) + 1,
        rtol=1e-6,
    )
    assert layer.gamma.shape == layer.beta.shape == shape[axis[0] :]


@pytest.mark.parametrize("size", [4, None], ids=str)
def test_group_normalization_is_over_groups_of_channels(size):
    layer = L.GroupNormalization(2, size)
    x = RNG.standard_normal((3, 4, 2, 2))
    cut = x.reshape(3, 2, 8)
    d = cut - cut.mean(axis=2, keepdims=True)
    expected = (d / np.sqrt((d * d).mean(axis=2, keepdims=True) + 1e-5)).reshape(x.shape)
    np.testing.assert_allclose(layer(x).array, expected, rtol=1e-6)
    assert layer.gamma.shape == (4,)
    assert repr(layer) == "GroupNormalization(groups=2, size=4, eps=1e-05)"


@pytest.mark.parametrize(
    "make",
    [lambda s: L.LayerNormalization(s), lambda s: L.GroupNormalization(1, s)],
    ids=["layer", "group"],
)
def test_normalization_without_features_is_refused(make):
    with pytest.raises(ValueError, match="not 1 or more"):
        make(0)
    with pytest.raises(ValueError, match="no batch and channels"):
        make(None)(np.ones(3))


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


def test_a_highway_is_rather_closed_at_first():
    layer = L.Highway(4, activate=F.tanh)
    W = layer.plain.W.array
    V = layer.transform.W.array
    t = 1 / (1 + np.exp(1 - X @ V.T))
    np.testing.assert_allclose(layer(X).array, np.tanh(X @ W.T) * t + X * (1 - t), rtol=1e-6)
    assert paths(layer) == ["/plain/W", "/plain/b", "/transform/W", "/transform/b"]
    assert paths(L.Highway(4, nobias=True)) == ["/plain/W", "/transform/W"]


@pytest.mark.parametrize(
    "make",
    [
        L.LayerNormalization,
        lambda: L.GroupNormalization(2),
        lambda: L.Maxout(None, 2, 2),
        L.BatchNormalization,
    ],
    ids=["layer", "group", "maxout", "batch"],
)
def test_lazy_links_learn_from_their_first_batch(make):
    layer = make()
    optimizer = mnpar.optimizers.SGD(1.0).setup(layer)
    optimizer.update(lambda: F.sum(layer(X.astype("f4"))))
    assert all(p.is_initialized and p.update_rule.t == 1 for p in layer.params())
