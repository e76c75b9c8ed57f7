"""Products with a packed matrix: against numpy's and against float64, ∞ and NaN, and within
recurrent layers.
"""

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
from mnpar.kernels import tuning
from mnpar.kernels.packed import PackedMatrix

pytest.importorskip("numba", reason="numba is not installed")
pytestmark = pytest.mark.skipif(
    tuning.PACKED_ROWS == 0, reason="matrices are packed for processors with AVX2 and AVX-512"
)

# rows that tall tiles take, low ones, and both; columns of whole panels and of others
SHAPES = [
    (1, 7, 32),
    (3, 1, 33),
    (4, 40, 64),
    (10, 40, 65),
    (19, 200, 100),
    (20, 5, 63),
    (31, 300, 96),
    (22, 4096, 40),
]


def factors(N, K, M):
    rng = np.random.default_rng(N + K + M)
    return [rng.standard_normal(shape, np.float32) for shape in ((N, K), (K, M), (M,))]


def multiplied(x, B, bias, turned=False):
    B = np.asfortranarray(B) if turned else B
    packed = PackedMatrix(B, bias, len(x), compiled=True)
    assert packed.panels is not None
    return packed.multiply(x, np.empty((len(x), B.shape[1]), x.dtype))


@pytest.mark.parametrize("turned", [False, True], ids=["as it is", "turned"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_product_is_as_accurate_as_that_of_numpy(shape, turned):
    x, B, bias = factors(*shape)
    truth = x.astype("d") @ B.astype("d") + bias
    error = np.abs(multiplied(x, B, bias, turned) - truth).max()
    assert error <= 4 * np.abs(x @ B + bias - truth).max() + 1e-7


def test_without_a_bias_nothing_is_added():
    x, B, _ = factors(5, 6, 40)
    np.testing.assert_array_equal(multiplied(x, B, None), multiplied(x, B, np.zeros(40, "f")))


@pytest.mark.parametrize("N", [1, 13, 20])
def test_infinity_and_nan_reach_the_sums_that_numpy_lets_them_reach(N):
    x, B, bias = factors(N, 6, 40)
    x[0, 2], B[3, 35], bias[7] = np.inf, np.nan, -np.inf
    x[-1, 1], B[1, 33] = -np.inf, 0
    with np.errstate(invalid="ignore"):
        expected = x @ B + bias
    np.testing.assert_allclose(multiplied(x, B, bias), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("dtype", "rows", "M", "compiled"),
    [
        ("d", 4, 64, True),
        ("f", tuning.PACKED_ROWS + 1, 64, True),
        ("f", 4, 31, True),
        ("f", 4, 64, False),
    ],
    ids=["float64", "many rows", "few columns", "not compiled"],
)
def test_other_products_are_left_to_numpy(dtype, rows, M, compiled):
    x, B, bias = [a.astype(dtype) for a in factors(rows, 6, M)]
    packed = PackedMatrix(B, bias, rows, compiled)
    assert packed.panels is None
    y = packed.multiply(x, np.empty((rows, M), dtype))
    np.testing.assert_allclose(y, x @ B + bias, rtol=1e-5, atol=1e-5)


H, D = 40, 33
LAYERS = {
    "lstm": (F.n_step_lstm, 8, 2),
    "lstm, both directions": (F.n_step_bilstm, 8, 2),
    "gru": (F.n_step_gru, 6, 1),
    "tanh": (F.n_step_rnn, 2, 1),
}


def outputs(name, dtype):
    """The last states and outputs of a layer over 23 sequences of two lengths, and its inputs."""
    function, weights, states = LAYERS[name]
    S = 2 if "both" in name else 1
    rng = np.random.default_rng(0)

    def some(*shape):
        return mnpar.Variable((rng.standard_normal(shape) / 4).astype("f").astype(dtype))

    first = [some(S, 23, H) for _ in range(states)]
    half = weights // 2
    ws = [[some(H, D if k < half else H) for k in range(weights)] for _ in range(S)]
    bs = [[some(H) for _ in range(weights)] for _ in range(S)]
    xs = [some(n, D) for n in (23, 23, 14)]
    *finals, ys = function(1, 0.0, *first, ws, bs, xs)
    y = F.concat([*[F.flatten(final) for final in finals], *[F.flatten(y) for y in ys]], axis=0)
    return y, [*first, *[v for vs in (*ws, *bs) for v in vs], *xs]


def gradients(name, dtype):
    """The outputs, and the gradients of the inputs."""
    y, inputs = outputs(name, dtype)
    F.sum(y * np.sin(np.arange(y.size)).astype(dtype)).backward()
    return [y.array, *[v.grad for v in inputs]]


@pytest.mark.parametrize("name", LAYERS)
def test_a_recurrent_layer_is_as_accurate_as_by_numpy(name, monkeypatch):
    truth = gradients(name, "d")
    packed = gradients(name, "f")
    monkeypatch.setattr(tuning, "PACKED_ROWS", 0)
    twin = gradients(name, "f")
    for found, other, right in zip(packed, twin, truth, strict=True):
        scale = np.abs(right).max()
        assert np.abs(found - right).max() <= 4 * np.abs(other - right).max() + 1e-7 * scale


@pytest.mark.parametrize("name", LAYERS)
def test_a_recurrent_layer_has_the_same_outputs_if_nothing_is_kept_for_backward(name):
    recorded = gradients(name, "f")[0]
    with mnpar.no_backprop_mode():
        np.testing.assert_array_equal(outputs(name, "f")[0].array, recorded)
