"""LSTMs over trees: each against its formula in numpy."""

import numpy as np
import pytest

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
    "children": (lambda: L.NaryTreeLSTM(3, 2)(X), ValueError, "memories, 2 outputs"),
    "outputs": (lambda: L.ChildSumTreeLSTM(3, 2)(X, X), ValueError, "not 2 arguments"),
    "n_ary": (lambda: L.NaryTreeLSTM(3, 2, 0), ValueError, "n_ary = 0"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_told(name):
    call, kind, match = WRONG[name]
    with pytest.raises(kind, match=match):
        call()
