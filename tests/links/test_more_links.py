"""InceptionBN, Bilinear, Swish, dropped weights, other gates, trees: each against its formula in
numpy, sized and lazy.
"""

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from tests.harness.parts import paths

RNG = np.random.default_rng(0)
X = RNG.standard_normal((5, 3))


def sig(x):
    return 1 / (1 + np.exp(-x))


def drawn(link):
    """The link with parameters of float64 that are all different."""
    for param in link.params():
        param.array = RNG.standard_normal(param.shape)
    return {name: param.array for name, param in link.namedparams()}


def test_inception_with_all_branches_is_its_parts_side_by_side():
    mnpar.random.seed(0)
    layer = L.InceptionBN(3, 2, 2, 3, 2, 4, "max", 5)
    x = RNG.standard_normal((2, 3, 5, 5)).astype("f4")
    y = layer(x)
    twin = layer.copy("copy")

    def unit(name, v):
        return F.relu(twin[f"{name}n"](twin[name](v)))

    parts = [
        unit("conv1", x),
        unit("conv3", unit("proj3", x)),
        unit("conv33b", unit("conv33a", unit("proj33", x))),
        unit("poolp", F.max_pooling_2d(x, 3, stride=1, pad=1, cover_all=False)),
    ]
    np.testing.assert_allclose(y.array, F.concat(parts, axis=1).array, rtol=1e-6)
    assert y.shape == (2, 14, 5, 5)
    assert layer.conv1.b is None
    F.sum(y * y).backward()
    assert all(p.grad is not None for p in layer.params())


@pytest.mark.parametrize("pooltype", ["max", "avg"])
def test_inception_that_shrinks_passes_the_pooled_image_on(pooltype):
    layer = L.InceptionBN(None, 0, 2, 3, 2, 4, pooltype, stride=2)
    x = RNG.standard_normal((2, 3, 6, 6)).astype("f4")
    y = layer(x)
    pool = (
        F.max_pooling_2d(x, 3, 2, 1, cover_all=False)
        if pooltype == "max"
        else F.average_pooling_2d(x, 3, 2, 1)
    )
    assert y.shape == (2, 10, 3, 3)
    np.testing.assert_allclose(y.array[:, 7:], pool.array)


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


def test_swish_learns_its_slope():
    layer = L.Swish(None, 0.5)
    np.testing.assert_allclose(layer(X).array, X * sig(0.5 * X), rtol=1e-6)
    assert layer.beta.shape == (3,)
    F.sum(layer(X)).backward()
    np.testing.assert_allclose(
        layer.beta.grad, (X**2 * sig(0.5 * X) * sig(-0.5 * X)).sum(0), rtol=1e-5
    )


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


def test_a_peephole_lstm_is_its_formula():
    layer = L.StatefulPeepholeLSTM(3, 2)
    xs = RNG.standard_normal((3, 5, 3))
    p = drawn(layer)
    c = np.zeros((5, 2))
    h = np.zeros((5, 2))
    for x in xs:
        gates = x @ p["/upward/W"].T + p["/upward/b"] + h @ p["/lateral/W"].T
        a, i, f, o = np.moveaxis(gates.reshape(5, 2, 4), 2, 0)
        new = np.tanh(a) * sig(i + c @ p["/peep_i/W"].T) + sig(f + c @ p["/peep_f/W"].T) * c
        c, h = new, sig(o + new @ p["/peep_o/W"].T) * np.tanh(new)
        np.testing.assert_allclose(layer(x).array, h)
    np.testing.assert_allclose(layer.c.array, c)
    layer.reset_state()
    assert layer.c is layer.h is None


def test_a_zoneout_lstm_is_an_lstm_while_testing_and_keeps_while_training():
    layer = L.StatefulZoneoutLSTM(3, 2, 0.25, 0.5)
    xs = RNG.standard_normal((3, 5, 3))
    drawn(layer)
    twin = L.StatelessLSTM(3, 2)
    drawn(twin)
    twin.copyparams(layer)
    c = np.zeros((5, 2))
    h = np.zeros((5, 2))
    with mnpar.using_config("train", False):
        for x in xs:
            new_c, new_h = twin(c, h, x)
            c, h = new_c.array, new_h.array
            np.testing.assert_allclose(layer(x).array, h)
    layer.reset_state()
    mnpar.random.seed(1)
    new_c, new_h = twin(np.zeros((5, 2)), None, xs[0])
    y = layer(xs[0]).array
    assert ((y == 0) | np.isclose(y, new_h.array)).all()
    assert 0 < (y == 0).sum() < y.size
    with pytest.raises(ValueError, match="a batch of 4 after one of 5"):
        layer(xs[0][:4])


def test_a_minimal_gated_unit_is_its_formula():
    layer = L.StatefulMGU(3, 2)
    xs = RNG.standard_normal((3, 5, 3))
    p = drawn(layer)
    h = np.zeros((5, 2))
    for x in xs:
        f = sig(np.hstack([h, x]) @ p["/W_f/W"].T + p["/W_f/b"])
        h = f * np.tanh(np.hstack([f * h, x]) @ p["/W_h/W"].T + p["/W_h/b"]) + (1 - f) * h
        np.testing.assert_allclose(layer(x).array, h)
    layer.reset_state()
    assert layer.h is None


@pytest.mark.parametrize("n", [0, 1, 3])
def test_a_tree_of_summed_children_is_its_formula(n):
    layer = L.ChildSumTreeLSTM(3, 2)
    p = drawn(layer)
    cs = list(RNG.standard_normal((n, 5, 2)))
    hs = list(RNG.standard_normal((n, 5, 2)))
    gates = X @ p["/W_x/W"].T + p["/W_x/b"]
    a, i, o = np.split(gates[:, :6] + sum(hs, np.zeros((5, 2))) @ p["/W_h_aio/W"].T, 3, 1)
    expected = np.tanh(a) * sig(i) + sum(
        sig(gates[:, 6:] + h @ p["/W_h_f/W"].T) * c for c, h in zip(cs, hs, strict=True)
    )
    c, h = layer(*cs, *hs, X)
    np.testing.assert_allclose(c.array, expected)
    np.testing.assert_allclose(h.array, sig(o) * np.tanh(expected))


def test_a_tree_of_two_children_is_its_formula_and_takes_leaves():
    layer = L.NaryTreeLSTM(3, 2)
    p = drawn(layer)
    cs = RNG.standard_normal((2, 5, 2))
    hs = RNG.standard_normal((2, 5, 2))
    assert paths(layer) == ["/W_x/W", "/W_x/b", "/W_h1/W", "/W_h2/W"]
    x = X @ p["/W_x/W"].T + p["/W_x/b"]
    a, i, o, f, g = np.split(x + hs[0] @ p["/W_h1/W"].T + hs[1] @ p["/W_h2/W"].T, 5, 1)
    expected = np.tanh(a) * sig(i) + sig(f) * cs[0] + sig(g) * cs[1]
    c, h = layer(*cs, *hs, X)
    np.testing.assert_allclose(c.array, expected)
    np.testing.assert_allclose(h.array, sig(o) * np.tanh(expected))
    a, i, o, _, _ = np.split(x, 5, 1)
    np.testing.assert_allclose(layer(None, None, None, None, X)[0].array, np.tanh(a) * sig(i))


WRONG = {
    "pooltype": (lambda: L.InceptionBN(3, 1, 2, 3, 2, 4, "min", 5), NotImplementedError, "'min'"),
    "stride": (lambda: L.InceptionBN(3, 1, 2, 3, 2, 4, "max", 5, 2), ValueError, "out1 = 1"),
    "bias": (lambda: L.Bilinear(3, 2, 4, initial_bias=0), ValueError, "V1, V2 and b"),
    "children": (lambda: L.NaryTreeLSTM(3, 2)(X), ValueError, "memories, 2 outputs"),
    "outputs": (lambda: L.ChildSumTreeLSTM(3, 2)(X, X), ValueError, "not 2 arguments"),
    "n_ary": (lambda: L.NaryTreeLSTM(3, 2, 0), ValueError, "n_ary = 0"),
    "bilinear": (
        lambda: F.bilinear(X, X, np.ones((3, 2, 1))),
        ValueError,
        r"\(N, K\) and \(J, K, L\)",
    ),
    "bilinear: some": (
        lambda: F.bilinear(X, X, np.ones((3, 3, 1)), b=np.ones(1)),
        ValueError,
        "together or not at all",
    ),
    "slstm": (lambda: F.slstm(X, X, X, X), ValueError, "4 H"),
    "tree_lstm": (lambda: F.tree_lstm(X, X), ValueError, "H"),
    "dropconnect: ratio": (lambda: F.simplified_dropconnect(X, X, ratio=1), ValueError, "ratio 1"),
    "dropconnect: mask": (
        lambda: F.simplified_dropconnect(X, X, mask=X[:2]),
        ValueError,
        r"mask of shape \(2, 3\)",
    ),
    "zoneout": (lambda: F.zoneout(X, X[:2]), ValueError, r"\(5, 3\) and \(2, 3\)"),
    "zoneout: ratio": (lambda: F.zoneout(X, X, 1), ValueError, "ratio 1"),
    "gumbel": (lambda: F.gumbel_softmax(X, 0), ValueError, "tau = 0"),
    "rrelu": (lambda: F.rrelu(X, r=X[:1]), ValueError, r"\(1, 3\)"),
    "contrastive: margin": (
        lambda: F.contrastive(X, X, np.ones(5, int), 0),
        ValueError,
        "margin = 0",
    ),
    "contrastive: y": (lambda: F.contrastive(X, X, np.ones(5)), ValueError, "5 integers"),
    "triplet": (lambda: F.triplet(X, X, X[:2]), ValueError, "the same"),
    "covariance": (lambda: F.cross_covariance(X, X[:2]), ValueError, "N > 0"),
    "decov": (lambda: F.decov(X, "sum"), ValueError, "'sum'"),
    "inv": (lambda: F.inv(X), ValueError, r"\(5, 3\) is not \(D, D\)"),
    "inv: singular": (lambda: F.inv(np.ones((2, 2))), ValueError, "singular"),
    "batch_inv: singular": (
        lambda: F.batch_inv(np.stack([np.eye(2), np.ones((2, 2))])),
        ValueError,
        "number 1 of 2",
    ),
    "batch_matmul": (lambda: F.batch_matmul(X, X[:2]), ValueError, "batch_matmul"),
    "cumprod": (lambda: F.cumprod(X, 2), ValueError, "no axis 2"),
    "space2depth": (lambda: F.space2depth(np.ones((1, 1, 3, 2)), 2), ValueError, "r = 2"),
    "depth2space": (lambda: F.depth2space(np.ones((1, 3, 3, 2)), 2), ValueError, "r = 2"),
    "arctan2": (lambda: F.arctan2(X, X[0]), ValueError, "must be the same"),
    "summary": (
        lambda: F.classification_summary(X, np.full(5, 3), 3),
        ValueError,
        "3 … 3 are not 0 … 2",
    ),
    "summary: shapes": (
        lambda: F.precision(X, np.ones(4, int)),
        ValueError,
        r"\(5, 3\) and \(4,\)",
    ),
    "r2_score": (lambda: F.r2_score(X, X[0]), ValueError, "must be the same"),
    "r2_score: weights": (lambda: F.r2_score(X, X, X), NotImplementedError, "sample_weight"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_told(name):
    call, kind, match = WRONG[name]
    with pytest.raises(kind, match=match):
        call()


def test_a_determinant_of_0_has_no_gradient_here_and_says_so():
    x = mnpar.Variable(np.ones((2, 2)))
    y = F.det(x)
    assert y.array == 0
    with pytest.raises(ValueError, match="its determinant here no gradient"):
        y.backward()


def test_equal_pairs_have_no_direction_and_a_product_with_zeros_is_right():
    x = mnpar.Variable(np.ones((2, 3)))
    F.contrastive(x, np.ones((2, 3)), np.array([0, 1])).backward()
    np.testing.assert_array_equal(x.grad, 0)
    z = mnpar.Variable(np.array([2.0, 0.0, 3.0, 0.0]))
    F.sum(F.cumprod(z)).backward()
    np.testing.assert_array_equal(z.grad, [1, 2 + 6, 0, 0])


def test_labels_that_are_ignored_count_nowhere():
    y = np.eye(3)[[0, 1, 2, 2]]
    t = np.array([0, 1, 1, -1])
    precision, recall, f, support = [
        v.array.round(4).tolist() for v in F.classification_summary(y, t, 3)
    ]
    assert (precision, recall, f, support) == ([1, 1, 0], [1, 0.5, 0], [1, 0.6667, 0], [1, 2, 0])
    assert F.classification_summary(y, t)[3].shape == (2,)
