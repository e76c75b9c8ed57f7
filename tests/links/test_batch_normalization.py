"""BatchNormalization: its statistics, its running values, its sizes that come with the first batch,
and what it saves.
"""

import copy
import pickle

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L

RNG = np.random.default_rng(0)


def normal(x, axis, eps=2e-5):
    return (x - x.mean(axis=axis, keepdims=True)) / np.sqrt(x.var(axis=axis, keepdims=True) + eps)


@pytest.mark.parametrize(
    ("size", "axis", "shape", "reduced"),
    [
        (3, None, (5, 3), 0),
        (3, None, (5, 3, 4, 2), (0, 2, 3)),
        ((3, 4), None, (5, 3, 4, 2), (0, 3)),
        (None, None, (5, 3, 4), (0, 2)),
        (None, 0, (5, 3, 4), 0),
        (None, (0, 1), (5, 3, 4), (0, 1)),
        (None, (0, -2), (5, 2, 3, 4), (0, 2)),
    ],
    ids=str,
)
def test_each_channel_gets_mean_0_and_deviation_1(size, axis, shape, reduced):
    bn = L.BatchNormalization(size, axis=axis, dtype="d")
    x = 3 * RNG.standard_normal(shape) + 7
    np.testing.assert_allclose(bn(x).array, normal(x, reduced), rtol=1e-10, atol=1e-12)
    kept = x.mean(axis=reduced).shape
    assert bn.gamma.shape == bn.beta.shape == bn.avg_mean.shape == bn.avg_var.shape == kept
    np.testing.assert_allclose(bn.avg_mean, 0.1 * x.mean(axis=reduced))
    m = x.size / bn.avg_mean.size
    np.testing.assert_allclose(bn.avg_var, 0.9 + 0.1 * x.var(axis=reduced) * m / (m - 1))
    with mnpar.using_config("train", False):
        y = bn(x).array
    mean, var = [
        a.reshape(x.mean(axis=reduced, keepdims=True).shape) for a in (bn.avg_mean, bn.avg_var)
    ]
    np.testing.assert_allclose(y, (x - mean) / np.sqrt(var + 2e-5))


def test_gamma_and_beta_are_learnt_unless_they_are_not_used():
    x = RNG.standard_normal((4, 2))
    w = RNG.standard_normal((4, 2))
    bn = L.BatchNormalization(2, dtype="d", initial_gamma=np.array([2.0, 3.0]), initial_beta=5)
    F.sum(bn(x) * w).backward()
    np.testing.assert_allclose(bn.gamma.grad, (normal(x, 0) * w).sum(axis=0))
    np.testing.assert_allclose(bn.beta.grad, w.sum(axis=0))
    np.testing.assert_allclose(bn(x).array, normal(x, 0) * [2, 3] + 5)
    plain = L.BatchNormalization(2, dtype="d", use_gamma=False, use_beta=False)
    assert (plain.gamma, plain.beta, list(plain.params())) == (None, None, [])
    np.testing.assert_allclose(plain(x).array, normal(x, 0))


def test_the_running_values_start_where_they_are_told_and_follow_by_the_decay():
    bn = L.BatchNormalization(
        1, decay=0.5, dtype="d", initial_avg_mean=4, initial_avg_var=mnpar.initializers.Constant(2)
    )
    bn(np.array([[1.0], [3.0]]))
    # 4/2 + 2/2; the unbiased variance of the batch is 2
    assert (bn.avg_mean[0], bn.avg_var[0]) == (
        3,
        2,
    )
    assert bn.avg_mean.dtype == bn.avg_var.dtype == np.float64


def test_finetuning_makes_plain_means_over_batches():
    bn = L.BatchNormalization(1, dtype="d")
    bn(np.array([[100.0]]))
    bn.start_finetuning()
    for value in (1.0, 2.0, 6.0):
        bn(np.array([[value], [value + 2]]), finetune=True)
    assert bn.N == 3
    np.testing.assert_allclose([bn.avg_mean[0], bn.avg_var[0]], [4, 2])


def test_a_batch_of_one_gives_beta_and_one_of_none_changes_nothing():
    bn = L.BatchNormalization(2, initial_beta=3)
    y = bn(np.zeros((0, 2), "f4"))
    F.sum(y).backward()
    assert y.shape == (0, 2)
    assert (bn.gamma.grad.tolist(), bn.avg_mean.tolist(), bn.avg_var.tolist()) == (
        [0, 0],
        [0, 0],
        [1, 1],
    )
    assert bn(np.full((1, 2), 8, "f4")).array.tolist() == [[3, 3]]
    np.testing.assert_allclose(bn.avg_var, [0.9, 0.9], rtol=1e-6)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_the_dtype_of_x_is_kept_and_that_of_the_parameters_chosen(dtype):
    x = RNG.standard_normal((4, 3)).astype(dtype)
    for bn in (L.BatchNormalization(3), L.BatchNormalization(3, dtype=dtype)):
        y = bn(x)
        F.sum(y * y).backward()
        assert y.dtype == dtype
        assert bn.gamma.dtype == bn.gamma.grad.dtype == bn.avg_var.dtype == bn.dtype
    # halves only where they are asked for: running values change by small steps
    assert bn.dtype == dtype
    assert L.BatchNormalization(3).dtype == "f4"


def test_what_was_saved_comes_back_even_into_a_link_without_sizes():
    bn = L.BatchNormalization(axis=0)
    bn(RNG.standard_normal((4, 3)).astype("f4"))
    lazy = L.BatchNormalization(axis=0)
    assert dict(lazy.namedpersistents()) == {"/avg_mean": None, "/avg_var": None, "/N": 0}
    x = RNG.standard_normal((2, 3)).astype("f4")
    with mnpar.using_config("train", False):
        expected = bn(x).array
        lazy.copyparams(bn)
        for other in (lazy, copy.deepcopy(bn), bn.copy(), pickle.loads(pickle.dumps(bn))):
            np.testing.assert_array_equal(other(x).array, expected)


def test_wrong_shapes_are_told():
    with pytest.raises(
        ValueError,
        match=r"gamma of shape \(3,\) must have shape \(2,\): x \(4, 2\) without its axes \(0,\)",
    ):
        L.BatchNormalization(3)(np.ones((4, 2), "f4"))
    with pytest.raises(ValueError, match="not 1 or more"):
        L.BatchNormalization(0)
    with pytest.raises(ValueError, match="not 1 or more"):
        L.BatchNormalization()(np.ones((4, 0), "f4"))
    with pytest.raises(TypeError, match="cast it first"):
        L.BatchNormalization(1)(np.ones((2, 1), "i4"))


def test_a_lazy_layer_learns_from_its_first_batch():
    bn = L.BatchNormalization()
    optimizer = mnpar.optimizers.SGD(1.0).setup(bn)
    optimizer.update(lambda: F.sum(bn(np.ones((2, 3), "f4"))))
    np.testing.assert_array_equal(bn.beta.array, [-2, -2, -2])


def test_it_shows_its_sizes():
    text = (
        "BatchNormalization(size=(3,), decay=0.9, eps=2e-05, dtype=float32, use_gamma=True, "
        "use_beta=False)"
    )
    assert repr(L.BatchNormalization(3, use_beta=False)) == text


def test_renormalization_trains_on_what_it_tests_with():
    bn = L.BatchRenormalization(
        3, rmax=100, dmax=100, dtype="d", initial_avg_mean=1, initial_avg_var=4
    )
    x = RNG.standard_normal((5, 3, 2)) * 3
    with mnpar.using_config("train", False):
        testing = bn(x).array
    np.testing.assert_allclose(bn(x).array, testing)
    np.testing.assert_allclose(bn.avg_mean, 0.9 + 0.1 * x.mean(axis=(0, 2)))
    np.testing.assert_allclose(bn.avg_var, 0.9 * 4 + 0.1 * x.var(axis=(0, 2)) * 10 / 9)


def test_corrections_of_renormalization_are_clipped_and_are_constants_to_backward():
    x = mnpar.Variable(RNG.standard_normal((6, 2)) * 3 + 1)
    w = RNG.standard_normal((6, 2))
    mean = np.array([0.5, -40])
    var = np.array([9.0, 0.01])
    gamma = np.array([2.0, 3.0])
    beta = np.zeros(2)
    sigma = np.sqrt(var + 2e-5)
    r = np.clip(np.sqrt(x.array.var(axis=0) + 2e-5) / sigma, 1 / 2, 2)
    d = np.clip((x.array.mean(axis=0) - mean) / sigma, -3, 3)
    assert r[0] < 2 == r[1]
    assert abs(d[0]) < 3 == d[1]
    y = F.batch_renormalization(x, gamma, beta, 2, 3, running_mean=mean, running_var=var)
    np.testing.assert_allclose(y.array, gamma * (normal(x.array, 0) * r + d))
    (gx,) = mnpar.grad([F.sum(y * w)], [x])
    (expected,) = mnpar.grad([F.sum(F.batch_normalization(x, gamma * r, beta) * w)], [x])
    np.testing.assert_allclose(gx.array, expected.array)
    assert mean.tolist() == [0.5, -40]


def test_renormalization_computes_again_what_it_had_computed():
    bn = L.BatchRenormalization(2, rmax=2, dmax=1, dtype="d")
    x = mnpar.Variable(RNG.standard_normal((4, 2)))
    bn(x)
    y = F.forget(bn, x)
    kept = bn.avg_mean.copy()
    F.sum(y * y).backward()
    np.testing.assert_array_equal(bn.avg_mean, kept)
    again = L.BatchRenormalization(2, rmax=2, dmax=1, dtype="d")
    again(x)
    x.cleargrad(), F.sum(again(x) ** 2).backward()
    np.testing.assert_allclose(bn.gamma.grad, again.gamma.grad)


def test_whitening_follows_the_batches_and_tests_with_what_it_followed():
    bn = L.DecorrelatedBatchNormalization(4, groups=2, dtype="d", eps=1e-9)
    x = RNG.standard_normal((50, 4, 3)) @ np.ones((3, 3)) + RNG.standard_normal((50, 4, 3))
    for _ in range(2):
        y = bn(x, finetune=True).array.transpose(1, 0, 2).reshape(2, 2, 150)
    np.testing.assert_allclose(y @ y.swapaxes(1, 2) / 150, [np.eye(2)] * 2, atol=1e-6)
    np.testing.assert_allclose(bn.avg_mean, x.mean(axis=(0, 2)).reshape(2, 2))
    with mnpar.using_config("train", False):
        z = bn(x).array.transpose(1, 0, 2).reshape(2, 2, 150)
    np.testing.assert_allclose(z, y * 150 / 149)
    assert {name: value.shape for name, value in mnpar.serializers.serialize(bn).items()} == {
        "avg_mean": (2, 2),
        "avg_projection": (2, 2, 2),
        "N": (),
    }
    with pytest.raises(ValueError, match="5 channels cannot be divided into 2 groups"):
        L.DecorrelatedBatchNormalization(5, groups=2)
