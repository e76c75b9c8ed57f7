"""Linear: y = x Wᵀ + b, with sizes that are given or come from the first batch."""

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar import gradient_check
from mnpar.initializers import Normal, One
from tests.harness.parts import paths

RNG = np.random.default_rng(0)


@pytest.fixture
def layer():
    return L.Linear(3, 2, initialW=Normal(1.0, "f8"), initial_bias=Normal(1.0, "f8"))


SHAPES = {
    "matrix": ((4, 3), 1, (4, 2)),
    "flattened": ((4, 1, 3), 1, (4, 2)),
    "two batch axes": ((4, 5, 3), 2, (4, 5, 2)),
}


@pytest.mark.parametrize(("shape", "axes", "expected"), SHAPES.values(), ids=SHAPES)
def test_it_is_the_product_with_the_transpose_plus_the_bias(layer, shape, axes, expected):
    x = RNG.standard_normal(shape)
    y = layer(x, n_batch_axes=axes)
    assert y.shape == expected
    np.testing.assert_allclose(
        y.array.reshape(-1, 2), x.reshape(-1, 3) @ layer.W.array.T + layer.b.array
    )


def test_its_gradients_are_those_of_the_differences(layer):
    x = RNG.standard_normal((4, 3))
    gradient_check.check_backward(layer, x, RNG.standard_normal((4, 2)), [layer.W, layer.b])


def test_without_a_bias_there_is_none():
    layer = L.Linear(3, 2, nobias=True)
    assert layer.b is None
    assert [path for path, _ in layer.namedparams()] == ["/W"]
    x = np.ones((1, 3), "f4")
    np.testing.assert_allclose(layer(x).array, x @ layer.W.array.T, rtol=1e-6)


@pytest.mark.parametrize(
    "make", [lambda: L.Linear(2), lambda: L.Linear(None, 2)], ids=["Linear(2)", "Linear(None, 2)"]
)
def test_one_size_is_the_output_and_the_other_comes_with_the_first_batch(make):
    layer = make()
    assert (layer.in_size, layer.out_size) == (None, 2)
    assert not layer.W.is_initialized
    assert layer.b.shape == (2,)
    assert layer(np.ones((4, 5, 3), "f4"), n_batch_axes=2).shape == (4, 5, 2)
    assert (layer.in_size, layer.W.shape) == (3, (2, 3))
    with pytest.raises(ValueError, match="4"):
        layer(np.ones((4, 4), "f4"))


@pytest.mark.parametrize(
    ("shape", "axes"), [((3,), 1), ((4, 0), 1), ((4, 3), 2), ((4, 3), 0), ((), 1)]
)
def test_a_first_batch_without_features_leaves_the_layer_lazy(shape, axes):
    layer = L.Linear(2)
    with pytest.raises(
        ValueError,
        match=r"Linear\(None, 2\): x of shape .* (has no features after|must have 2 "
        r"axes.*x\[None\] is a batch)",
    ):
        layer(np.ones(shape, "f4"), n_batch_axes=axes)
    assert not layer.W.is_initialized
    assert layer(np.ones((1, 3), "f4")).shape == (1, 2)


@pytest.mark.parametrize("sizes", [(0,), (3, 0), (0, 3), (-1, 2), (None, None), (None, 0)], ids=str)
def test_sizes_are_one_or_more(sizes):
    with pytest.raises(ValueError, match=r"Linear\(.*\): sizes must be 1 or more"):
        L.Linear(*sizes)


STARTS = {
    "numbers": (2.0, 3, np.full((2, 3), 2.0), [3.0, 3.0]),
    "arrays": (
        np.arange(6.0).reshape(2, 3),
        np.array([1.0, 2.0]),
        np.arange(6.0).reshape(2, 3),
        [1.0, 2.0],
    ),
    "initializers": (One(), One(), np.ones((2, 3)), [1.0, 1.0]),
    "the default of b": (1, None, np.ones((2, 3)), [0.0, 0.0]),
}


@pytest.mark.parametrize("lazy", [False, True], ids=["sized", "lazy"])
@pytest.mark.parametrize(("initialW", "initial_bias", "W", "b"), STARTS.values(), ids=STARTS)
def test_parameters_start_from_what_is_given(initialW, initial_bias, W, b, lazy):
    layer = L.Linear(None if lazy else 3, 2, False, initialW, initial_bias)
    layer(np.ones((1, 3), "f4"))
    np.testing.assert_array_equal(layer.W.array, W)
    np.testing.assert_array_equal(layer.b.array, b)
    assert layer.W.dtype == layer.b.dtype == np.float32


def test_the_default_of_W_keeps_the_size_of_signals():
    mnpar.random.seed(0)
    W = L.Linear(400, 300).W.array
    assert abs(W.std() * np.sqrt(400) - 1) < 0.02
    assert abs(W.mean()) < 0.001


@pytest.mark.parametrize("initial", [[[1.0]], "name"], ids=["list", "text"])
def test_what_cannot_fill_W_is_refused(initial):
    with pytest.raises((TypeError, ValueError)):
        L.Linear(1, 1, initialW=initial)


def test_the_dtype_of_the_config_is_that_of_the_parameters():
    with mnpar.using_config("dtype", np.dtype("f8")):
        layer = L.Linear(3, 2)
    assert layer.W.dtype == layer.b.dtype == np.float64


def test_a_lazy_layer_learns_from_its_first_batch():
    layer = L.Linear(1)
    optimizer = mnpar.optimizers.SGD(1.0).setup(layer)
    optimizer.update(lambda: F.sum(layer(np.ones((1, 2), "f4"))))
    np.testing.assert_array_equal(layer.b.array, [-1.0])
    assert layer.W.update_rule.t == 1


X = RNG.standard_normal((5, 3))


def drawn(link):
    """The link with parameters of float64 that are all different."""
    for param in link.params():
        param.array = RNG.standard_normal(param.shape)
    return {name: param.array for name, param in link.namedparams()}


def test_a_bilinear_layer_is_its_formula():
    layer = L.Bilinear(3, 2, 4)
    assert paths(layer) == ["/W", "/V1", "/V2", "/b"]
    p = drawn(layer)
    y = RNG.standard_normal((5, 2))
    expected = np.einsum("nj,nk,jkl->nl", X, y, p["/W"]) + X @ p["/V1"] + y @ p["/V2"] + p["/b"]
    np.testing.assert_allclose(layer(X, y).array, expected)
    assert paths(L.Bilinear(3, 2, 4, nobias=True)) == ["/W"]
    np.testing.assert_array_equal(
        L.Bilinear(1, 1, 2, initial_bias=(1, 2, np.array([3.0, 4.0]))).b.array, [3, 4]
    )


def test_initial_biases_of_a_bilinear_layer_are_three():
    with pytest.raises(ValueError, match="V1, V2 and b"):
        L.Bilinear(3, 2, 4, initial_bias=0)


def test_weights_are_dropped_while_training_and_only_then():
    mnpar.random.seed(0)
    layer = L.SimplifiedDropconnect(None, 2, 0.25)
    layer(X)
    p = drawn(layer)
    mask = np.array([[1.0, 0, 1], [0, 1, 1]])
    np.testing.assert_allclose(layer(X, mask=mask).array, X @ (p["/W"] * mask / 0.75).T + p["/b"])
    plain = X @ p["/W"].T + p["/b"]
    np.testing.assert_allclose(layer(X, train=False).array, plain)
    with mnpar.using_config("train", False):
        np.testing.assert_allclose(layer(X).array, plain)
    many = layer(np.repeat(X[:1], 20000, 0)).array
    np.testing.assert_allclose(many.mean(0), plain[0], atol=0.05)
    assert np.unique(
        layer(np.repeat(X[:1], 50, 0), use_batchwise_mask=False).array, axis=0
    ).shape == (1, 2)
    assert np.unique(layer(np.repeat(X[:1], 50, 0)).array, axis=0).shape[0] > 1


def test_a_highway_is_rather_closed_at_first():
    x = RNG.standard_normal((5, 4))
    layer = L.Highway(4, activate=F.tanh)
    W = layer.plain.W.array
    V = layer.transform.W.array
    t = 1 / (1 + np.exp(1 - x @ V.T))
    np.testing.assert_allclose(layer(x).array, np.tanh(x @ W.T) * t + x * (1 - t), rtol=1e-6)
    assert paths(layer) == ["/plain/W", "/plain/b", "/transform/W", "/transform/b"]
    assert paths(L.Highway(4, nobias=True)) == ["/plain/W", "/transform/W"]
