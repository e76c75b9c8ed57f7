"""Layers that normalize, on one rank and over several."""

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar.initializers import Normal

RNG = np.random.default_rng(0)
EVERY = pytest.mark.ranks(1, 2, 3, 4)
SIZES = {"even": lambda r: 3, "uneven": lambda r: 1 + r, "some empty": lambda r: 3 * (r % 2 == 0)}


def layer(**kwargs):
    return L.BatchNormalization(
        3, dtype="d", initial_gamma=Normal(1, "d", np.random.default_rng(1)), **kwargs
    )


def test_running_statistics_are_the_unbiased_ones_of_the_batches():
    bn = layer(decay=0.7)
    mean = np.zeros(3)
    var = np.ones(3)
    for _ in range(3):
        x = RNG.standard_normal((5, 3, 2))
        y = bn(x)
        mean = 0.7 * mean + 0.3 * x.mean((0, 2))
        var = 0.7 * var + 0.3 * x.var((0, 2), ddof=1)
    np.testing.assert_allclose(bn.avg_mean, mean)
    np.testing.assert_allclose(bn.avg_var, var)
    normal = (x - x.mean((0, 2), keepdims=True)) / np.sqrt(x.var((0, 2), keepdims=True) + 2e-5)
    np.testing.assert_allclose(y.array, normal * bn.gamma.array[:, None])
    with mnpar.using_config("train", False):
        expected = (x - mean[:, None]) / np.sqrt(var[:, None] + 2e-5) * bn.gamma.array[:, None]
        np.testing.assert_allclose(bn(x).array, expected)


def test_finetuning_takes_the_mean_over_all_batches():
    bn = layer()
    xs = RNG.standard_normal((4, 5, 3))
    bn.start_finetuning()
    for x in xs:
        bn(x, finetune=True)
    np.testing.assert_allclose(bn.avg_mean, xs.mean((0, 1)))
    np.testing.assert_allclose(bn.avg_var, xs.var(1, ddof=1).mean(0))


def test_what_is_saved_is_parameters_and_statistics():
    bn = layer()
    assert [path for path, _ in bn.namedparams()] == ["/gamma", "/beta"]
    assert [path for path, _ in bn.namedpersistents()] == ["/avg_mean", "/avg_var", "/N"]
    other = L.BatchNormalization(dtype="d")
    bn(RNG.standard_normal((4, 3)))
    other.copyparams(bn)
    np.testing.assert_array_equal(other.avg_mean, bn.avg_mean)
    np.testing.assert_array_equal(other.gamma.array, bn.gamma.array)


@pytest.mark.parametrize(
    ("shape", "axis", "size"),
    [((4, 3), None, (3,)), ((4, 3, 2), (0, 1), (2,)), ((4, 3, 2), 0, (3, 2))],
)
def test_the_size_may_come_from_the_first_batch(shape, axis, size):
    bn = L.BatchNormalization(axis=axis, use_gamma=False)
    y = bn(RNG.standard_normal(shape).astype("f4"))
    assert (y.dtype, bn.avg_mean.shape, bn.beta.shape, bn.gamma) == (np.float32, size, size, None)


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize(("dtype", "of_statistics"), [("e", "e"), (mnpar.mixed16, "f")])
@pytest.mark.parametrize("kind", ["BatchNormalization", "BatchRenormalization", "multi-node"])
def test_halves_stay_halves_and_their_statistics_are_wider_in_mixed16(
    train, dtype, of_statistics, kind
):
    def make(dtype):
        if kind == "multi-node":
            return L.MultiNodeBatchNormalization(3, mnpar.create_communicator("self"), dtype=dtype)
        return getattr(L, kind)(3, dtype=dtype)

    bn = make(dtype)
    wide = make("f")
    x = (5 + RNG.standard_normal((8, 3))).astype("e")
    with mnpar.using_config("train", train):
        y = bn(x)
        expected = wide(x.astype("f"))
    assert y.dtype == np.float16
    assert bn.avg_mean.dtype == bn.avg_var.dtype == bn.gamma.dtype == bn.beta.dtype == of_statistics
    np.testing.assert_allclose(y.array, expected.array, rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(bn.avg_mean, wide.avg_mean, rtol=2e-3)
    np.testing.assert_allclose(bn.avg_var, wide.avg_var, rtol=2e-3)


def test_large_means_do_not_spoil_the_variance():
    x = (1e4 + RNG.standard_normal((1000, 3))).astype("f4")
    y = L.BatchNormalization(3)(x).array
    exact = (x.astype("d") - x.astype("d").mean(0)) / x.astype("d").std(0)
    np.testing.assert_allclose(y, exact, atol=2e-3)


@pytest.mark.parametrize(
    ("link", "shape"),
    [
        (lambda: L.LayerNormalization(), (4, 3)),
        (lambda: L.GroupNormalization(2), (4, 6, 2)),
        (lambda: L.LayerNormalization(3), (2, 4, 3)),
    ],
)
def test_layers_and_groups_are_normal(link, shape):
    y = link()(RNG.standard_normal(shape).astype("f4")).array
    parts = y.reshape(4, 2, -1) if shape[1] == 6 else y
    np.testing.assert_allclose(parts.mean(-1), 0, atol=1e-6)
    np.testing.assert_allclose(parts.std(-1), 1, atol=1e-3)


# ---- over ranks ----


def batches(comm, rule, axes=(), seed=0):
    return [
        np.random.default_rng([seed, r]).standard_normal((rule(r), 3, *axes))
        for r in range(comm.size)
    ]


@pytest.mark.grid
@pytest.mark.parametrize("axes", [(), (2,), (2, 2)], ids=["features", "sequences", "images"])
@pytest.mark.parametrize("rule", SIZES.values(), ids=SIZES)
@EVERY
def test_over_ranks_it_is_the_normalization_of_all_batches(comm, rule, axes):
    xs = batches(comm, rule, axes)
    gys = batches(comm, rule, axes, seed=1)
    serial = layer()
    twin = L.MultiNodeBatchNormalization(3, comm, dtype="d")
    twin.copyparams(serial)
    results = []
    for bn, x, gy in (
        (serial, np.concatenate(xs), np.concatenate(gys)),
        (twin, xs[comm.rank], gys[comm.rank]),
    ):
        x = mnpar.Variable(x)
        y = bn(x)
        loss = F.sum(y * y * gy)
        (g,) = mnpar.grad([loss], [x], enable_double_backprop=True)
        bn.cleargrads()
        F.sum(g * g).backward()
        results.append((y.array, g.array, x.grad, bn.gamma.grad, bn.avg_mean, bn.avg_var))
    start = sum(len(x) for x in xs[: comm.rank])
    mine = slice(start, start + len(xs[comm.rank]))
    for one, part in list(zip(*results, strict=True))[:3]:
        np.testing.assert_allclose(part, one[mine], rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(comm.allreduce(results[1][3]), results[0][3], rtol=1e-9, atol=1e-10)
    for one, part in list(zip(*results, strict=True))[4:]:
        np.testing.assert_allclose(part, one, rtol=1e-12, atol=1e-13)


@pytest.mark.ranks(2, 3)
def test_over_ranks_large_means_do_not_spoil_the_variance(comm):
    xs = [(1e4 + 3 * r + x).astype("f4") for r, x in enumerate(batches(comm, lambda r: 500))]
    whole = np.concatenate(xs).astype("d")
    y = L.MultiNodeBatchNormalization(3, comm)(xs[comm.rank]).array
    np.testing.assert_allclose(y, ((xs[comm.rank] - whole.mean(0)) / whole.std(0)), atol=3e-3)


@pytest.mark.ranks(1, 2)
def test_in_evaluation_nobody_waits(comm):
    bn = L.MultiNodeBatchNormalization(3, comm, dtype="d")
    if comm.rank == 0:
        with mnpar.using_config("train", False):
            np.testing.assert_allclose(bn(np.ones((2, 3))).array, 1, rtol=1e-4)


class Net(mnpar.Chain):
    def __init__(self):
        super().__init__()
        self.first = L.Linear(4, 3)
        self.bn = L.BatchNormalization(3)
        self.rest = mnpar.Sequential(
            F.relu, mnpar.ChainList(L.BatchNormalization(), L.Linear(3, 2))
        )


@pytest.mark.ranks(1, 2)
def test_a_model_is_copied_with_every_normalization_over_the_ranks(comm):
    net = Net()
    net.bn.avg_mean[:] = 5
    twin = L.create_mnbn_model(net, comm)
    kinds = [type(link).__name__ for link in twin.links()]
    assert kinds == [
        "Net",
        "Linear",
        "MultiNodeBatchNormalization",
        "Sequential",
        "ChainList",
        "MultiNodeBatchNormalization",
        "Linear",
    ]
    assert [path for path, _ in twin.namedparams()] == [path for path, _ in net.namedparams()]
    assert type(net.bn) is L.BatchNormalization
    assert twin.bn.comm is comm
    np.testing.assert_array_equal(twin.bn.avg_mean, net.bn.avg_mean)
    twin.bn.gamma.array[:] = 7
    twin.bn.avg_mean[:] = 6
    assert (net.bn.gamma.array == 1).all()
    assert (net.bn.avg_mean == 5).all()
    assert twin.copy("copy").bn.comm is comm


# ---- small layers ----


def test_small_layers_are_what_they_say():
    x = RNG.standard_normal((2, 3, 4))
    v = RNG.standard_normal(3)
    np.testing.assert_allclose(L.Bias()(x, v).array, x + v[:, None])
    np.testing.assert_allclose(L.Scale()(x, v).array, x * v[:, None])
    scale = L.Scale(W_shape=(3, 4), bias_term=True)
    scale.bias.b.array[:] = 2
    np.testing.assert_allclose(scale(x).array, x + 2)
    np.testing.assert_allclose(L.Bias(2, (4,))(x).array, x)
    np.testing.assert_allclose(L.PReLU((3,), 0.5)(x).array, np.where(x > 0, x, x / 2))
    maxout = L.Maxout(4, 2, 3, initialW=Normal(1, "d"))
    flat = x.reshape(6, 4)
    np.testing.assert_allclose(
        maxout(flat).array, (flat @ maxout.linear.W.array.T).reshape(6, 2, 3).max(2)
    )
    highway = L.Highway(4)
    t = 1 / (1 + np.exp(-(flat @ highway.transform.W.array.T - 1)))
    np.testing.assert_allclose(
        highway(flat).array,
        np.maximum(flat @ highway.plain.W.array.T, 0) * t + flat * (1 - t),
        rtol=1e-5,
    )


BAD = {
    "channels": (
        lambda: F.batch_normalization(np.ones((2, 3)), np.ones(2), np.zeros(2)),
        r"\(2,\) must have shape \(3,\)",
    ),
    "axis": (
        lambda: F.batch_normalization(np.ones((2, 3)), np.ones(3), np.zeros(3), axis=5),
        "names no axes",
    ),
    "groups": (
        lambda: F.group_normalization(np.ones((2, 3)), 2, np.ones(3), np.zeros(3)),
        "do not divide the channels",
    ),
    "gamma of groups": (
        lambda: F.group_normalization(np.ones((2, 4)), 2, np.ones(3), np.zeros(3)),
        "one for each channel",
    ),
    "no features": (
        lambda: F.layer_normalization(np.ones(2), np.ones(2), np.zeros(2)),
        "batch axes before them",
    ),
    "n": (lambda: F.local_response_normalization(np.ones((2, 3)), n=0), "at least 1"),
    "slopes": (
        lambda: F.prelu(np.ones((2, 3)), np.ones(2)),
        r"is not that of x \(2, 3\) from axis 1",
    ),
    "pools": (lambda: F.maxout(np.ones((2, 3)), 2), "pools of 2"),
    "two shifts": (lambda: L.Bias(shape=(2,))(np.ones((1, 2)), np.ones(2)), "takes x alone, not 2"),
    "no bias_shape": (lambda: L.Scale(bias_term=True), "needs its bias_shape"),
    "place": (lambda: L.Bias(shape=(2,))(np.ones((1, 3))), "is not that of x"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_does_not_belong_together_is_told(name):
    call, match = BAD[name]
    with pytest.raises(ValueError, match=match):
        call()


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


@pytest.mark.parametrize(
    "make",
    [
        lambda **numbers: L.BatchNormalization(3, **numbers),
        lambda **numbers: L.BatchRenormalization(3, **numbers),
        lambda **numbers: L.DecorrelatedBatchNormalization(3, 1, **numbers),
    ],
)
@pytest.mark.parametrize(
    "numbers", [{"decay": 2.0}, {"decay": -0.1}, {"eps": -1.0}, {"eps": float("nan")}]
)
def test_a_decay_or_eps_that_makes_no_sense_is_told_at_once(make, numbers):
    with pytest.raises(ValueError, match=r"alization: decay = .* lies in \[0, 1\]"):
        make(**numbers)
