"""Convolutions divided among ranks by filters and by channels, against one Convolution2D."""

import itertools

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from tests.harness.parts import mine

pytestmark = pytest.mark.usefixtures("float64")

SIZES = [(4, 6), (3, 5), (1, 2)]  # some with fewer channels than ranks
GEOMETRY = {
    "plain": {"ksize": 3},
    "padded and strided": {"ksize": (2, 3), "stride": 2, "pad": (1, 0)},
    "dilated": {"ksize": 2, "dilate": 2, "pad": 1},
    "of 1 × 1, no bias": {"ksize": 1, "nobias": True},
}
KINDS = {
    "filters": (L.FilterParallelConvolution2D, {}),
    "filters, not gathered": (L.FilterParallelConvolution2D, {"gather_output": False}),
    "channels": (L.ChannelParallelConvolution2D, {}),
    "channels of a divided input": (L.ChannelParallelConvolution2D, {"input_is_parallel": True}),
}


def derivatives(layers, x0, comm=None):
    """Outputs, first gradients, and gradients of a function of them; what is divided is summed over
    the ranks.
    """
    x = mnpar.Variable(x0)
    y = layers(x)
    params = [x, *layers.params()]
    total = lambda v, cut: F.reduce_from(comm, F.sum(v)) if cut else F.sum(v)
    cut = [comm is not None and getattr(v, "box", None) is not None for v in params]
    cut[0] = comm is not None and layers.divided[0]
    gs = mnpar.grad(
        [total(F.sin(y) * y, comm is not None and layers.divided[1])],
        params,
        enable_double_backprop=True,
    )
    seconds = [total(F.sin(g), part) for g, part in zip(gs, cut, strict=True)]
    mnpar.backward([sum(seconds[1:], seconds[0])])
    return y.array, [g.array for g in gs], [v.grad for v in params]


class Layers(mnpar.ChainList):
    """Layers with tanh between them; ``divided`` says whether what goes in and what comes out is
    cut by channels.
    """

    def __init__(self, *layers, divided=(False, False)):
        super().__init__(*layers)
        self.divided = divided

    def forward(self, x):
        for i, layer in enumerate(self):
            x = layer(F.tanh(x) if i else x)
        return x


def part_of(param):
    return () if param.box is None else tuple(map(slice, param.box.start, param.box.stop))


def compare(comm, layers, x0, truth):
    y1, *orders = truth
    inner, outer = (
        mine(comm, n) if cut else slice(None)
        for n, cut in zip((x0.shape[1], y1.shape[1]), layers.divided, strict=True)
    )
    y, *found = derivatives(layers, x0[:, inner].copy(), comm)
    np.testing.assert_allclose(y, y1[:, outer], rtol=1e-11, atol=1e-12)
    for gs, all_of in zip(found, orders, strict=True):
        parts = [(slice(None), inner), *[part_of(p) for p in layers.params()]]
        for g, e, part in zip(gs, all_of, parts, strict=True):
            np.testing.assert_allclose(g, e[part], rtol=1e-10, atol=1e-11)


@pytest.mark.grid
@pytest.mark.parametrize("geometry", GEOMETRY)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("ranks", "sizes"), [*itertools.product((1, 2, 3, 4), SIZES)], ids=str)
def test_outputs_and_derivatives_are_those_of_one_layer(ranks, sizes, kind, geometry):
    (make, options), shape = (
        KINDS[kind],
        {"initial_bias": mnpar.initializers.Normal(), **GEOMETRY[geometry]},
    )
    x0 = np.random.default_rng(0).standard_normal((2, sizes[0], 5, 4))
    mnpar.random.seed(3)
    whole = Layers(L.Convolution2D(*sizes, **shape))
    truth = derivatives(whole, x0)

    def program(comm):
        mnpar.random.seed(3)
        layer = make(comm, *sizes, **shape, **options)
        np.testing.assert_array_equal(L.gather_parameter(comm, layer.W), whole[0].W.array)
        divided = options.get("input_is_parallel", False), not options.get("gather_output", True)
        compare(comm, Layers(layer, divided=divided), x0, truth)

    mnpar.run(program, ranks=ranks)


@pytest.mark.parametrize("sizes", [(6, 6, 6), (6, 12, 3), (4, 4, 2)], ids=str)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_groups_are_divided_among_ranks(ranks, sizes):
    C, K, groups = sizes
    x0 = np.random.default_rng(1).standard_normal((2, C, 4, 4))
    mnpar.random.seed(3)
    truth = derivatives(Layers(L.Convolution2D(C, K, 3, pad=1, groups=groups)), x0)

    def program(comm):
        mnpar.random.seed(3)
        compare(
            comm,
            Layers(L.FilterParallelConvolution2D(comm, C, K, 3, pad=1, groups=groups)),
            x0,
            truth,
        )

    mnpar.run(program, ranks=ranks)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_filters_then_each_channel_alone_then_channels(ranks):
    """A depthwise convolution between a pair: nothing is gathered on the way."""
    x0 = np.random.default_rng(1).standard_normal((2, 3, 5, 5))
    mnpar.random.seed(3)
    sizes = [(3, 7, 1), (7, 7, 3), (7, 4, 1)]
    truth = derivatives(
        Layers(*[L.Convolution2D(*s, groups=g) for s, g in zip(sizes, (1, 7, 1), strict=True)]), x0
    )

    def program(comm):
        mnpar.random.seed(3)
        layers = Layers(
            L.FilterParallelConvolution2D(comm, *sizes[0], gather_output=False),
            L.FilterParallelConvolution2D(
                comm, *sizes[1], groups=7, gather_output=False, input_is_parallel=True
            ),
            L.ChannelParallelConvolution2D(comm, *sizes[2], input_is_parallel=True),
        )
        before = comm.traffic.collectives
        with mnpar.no_backprop_mode():
            layers(x0)
        assert comm.traffic.collectives - before == 1
        compare(comm, layers, x0, truth)

    mnpar.run(program, ranks=ranks)


@pytest.mark.ranks(1, 2, 3)
def test_a_pair_learns_as_two_layers_do(comm):
    rng = np.random.default_rng(2)
    x = rng.standard_normal((6, 2, 6, 6))
    t = rng.integers(3, size=6)

    def weights(one, two):
        mnpar.random.seed(0)
        model = mnpar.Sequential(one(2, 5, 3), F.relu, two(5, 3, 2), lambda h: h.sum(axis=(2, 3)))
        optimizer = mnpar.optimizers.MomentumSGD(lr=0.05).setup(model)
        for _ in range(3):
            optimizer.update(lambda: F.softmax_cross_entropy(model(x), t))
        return [L.gather_parameter(comm, p) for p in model.params()]

    first = lambda *size: L.FilterParallelConvolution2D(comm, *size, gather_output=False)
    second = lambda *size: L.ChannelParallelConvolution2D(comm, *size, input_is_parallel=True)
    for w, w1 in zip(
        weights(first, second), weights(L.Convolution2D, L.Convolution2D), strict=True
    ):
        np.testing.assert_allclose(w, w1, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("kind", KINDS)
def test_channels_may_come_from_the_first_batch(kind):
    make, options = KINDS[kind]
    divided = options.get("input_is_parallel", False)

    def program(comm):
        layer = make(comm, None, 5, 3, **options)
        layer(np.ones((1, 4, 4, 4))[:, mine(comm, 4) if divided else slice(None)])
        return layer.in_channels, layer.W.shape

    filters = kind.startswith("filters")
    expected = [(4, (3 - r, 4, 3, 3) if filters else (5, 2, 3, 3)) for r in range(2)]
    assert mnpar.run(program, ranks=2) == expected


WRONG = {
    "other channels": (
        lambda comm: L.ChannelParallelConvolution2D(comm, 5, 2, 1)(np.ones((1, 4, 3, 3))),
        r"x of shape \(1, 4, 3, 3\) has not \(N, 5, H, W\) \(in_channels\)",
    ),
    "a block of other channels": (
        lambda comm: L.ChannelParallelConvolution2D(comm, 5, 2, 1, input_is_parallel=True)(
            np.ones((1, 5, 3, 3))
        ),
        r"has not \(N, [32], H, W\) \(its block \d … \d of 5\)",
    ),
    "a divided input without groups": (
        lambda comm: L.FilterParallelConvolution2D(comm, 4, 2, 1, input_is_parallel=True),
        "each filter reads all channels",
    ),
    "groups that do not divide": (
        lambda comm: L.FilterParallelConvolution2D(comm, None, 4, 1, groups=2)(
            np.ones((1, 3, 2, 2))
        ),
        "3 channels cannot be divided into 2 groups",
    ),
    "no image": (
        lambda comm: L.FilterParallelConvolution2D(comm, None, 4, 1)(np.ones((1, 3))),
        r"must have 4 axes",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_is_named(wrong):
    program, message = WRONG[wrong]
    with pytest.raises(ValueError, match=message):
        mnpar.run(program, ranks=2)
