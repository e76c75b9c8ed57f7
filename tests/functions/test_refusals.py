"""Arguments that functions refuse, with what is wrong; edges at which gradients are undefined."""

import numpy as np
import pytest

import mnpar
import mnpar.functions as F

RNG = np.random.default_rng(0)
X = RNG.standard_normal((5, 3))


WRONG = {
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
