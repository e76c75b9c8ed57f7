"""Linear layers divided among ranks, against one Linear: outputs, gradients, gradients of
gradients, first weights.
"""

import copy
import itertools

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar.plans import block
from tests.harness.parts import mine, on_blocks

pytestmark = pytest.mark.usefixtures("float64")

SIZES = [(7, 5), (784, 10), (3, 2), (1, 1)]  # some with fewer features than ranks
KINDS = {
    "columns": (L.ColumnParallelLinear, {}),
    "columns, not gathered": (L.ColumnParallelLinear, {"gather_output": False}),
    "rows": (L.RowParallelLinear, {}),
    "rows of a divided input": (L.RowParallelLinear, {"input_is_parallel": True}),
}


def first_gradients(layer, x):
    """The output, and the gradients of a loss whose derivatives all differ."""
    y = layer(x)
    F.sum(F.sin(y) * y).backward()
    return y.array, [v.grad for v in (x, layer.W, layer.b) if v is not None]


def serial(x0, sizes, nobias):
    mnpar.random.seed(3)
    layer = L.Linear(*sizes, nobias=nobias, initial_bias=mnpar.initializers.Normal())
    return layer, first_gradients(layer, mnpar.Variable(x0))


@pytest.mark.grid
@pytest.mark.parametrize("nobias", [False, True], ids=["bias", "no bias"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("ranks", "sizes"), [*itertools.product(range(1, 7), SIZES)], ids=str)
def test_outputs_and_gradients_are_those_of_one_layer(ranks, sizes, kind, nobias):
    make, options = KINDS[kind]
    x0 = np.random.default_rng(0).standard_normal((4, sizes[0]))
    whole, (y1, firsts) = serial(x0, sizes, nobias)

    def program(comm):
        mnpar.random.seed(3)
        layer = make(
            comm, *sizes, nobias=nobias, initial_bias=mnpar.initializers.Normal(), **options
        )
        np.testing.assert_array_equal(L.gather_parameter(comm, layer.W), whole.W.array)
        columns = kind.startswith("columns")
        rows, cols = (
            (mine(comm, sizes[1]), slice(None)) if columns else (slice(None), mine(comm, sizes[0]))
        )
        divided = options.get("input_is_parallel", False)
        x = mnpar.Variable(x0[:, cols].copy() if divided else x0)
        y = layer(x)
        local = options.get("gather_output") is False
        loss = F.sum(F.sin(y) * y)
        (F.reduce_from(comm, loss) if local else loss).backward()
        np.testing.assert_allclose(y.array, y1[:, rows] if local else y1, rtol=1e-12, atol=1e-13)
        expected = [firsts[0][:, cols] if divided else firsts[0], firsts[1][rows, cols]]
        expected += [] if nobias else [firsts[2][rows] if columns else firsts[2]]
        for v, g in zip([x, layer.W, *([] if nobias else [layer.b])], expected, strict=True):
            np.testing.assert_allclose(v.grad, g, rtol=1e-12, atol=1e-12)

    mnpar.run(program, ranks=ranks)


@pytest.mark.parametrize("ranks", [1, 2, 3, 6])
def test_gradients_of_gradients_are_those_of_one_process(ranks):
    """Two layers in a row, the first's output divided as the second wants it: one message each
    way.
    """
    x0 = np.random.default_rng(1).standard_normal((3, 5))
    mnpar.random.seed(5)
    one = mnpar.ChainList(L.Linear(5, 7), L.Linear(7, 4))
    _, firsts, seconds = derivatives_of(one, x0)

    def program(comm):
        mnpar.random.seed(5)
        first = L.ColumnParallelLinear(comm, 5, 7, gather_output=False)
        second = L.RowParallelLinear(comm, 7, 4, input_is_parallel=True)
        _, gs, ggs = derivatives_of(mnpar.ChainList(first, second), x0, comm)
        cut = mine(comm, 7)
        for all_of, parts in ((firsts, gs), (seconds, ggs)):
            expected = [all_of[0], all_of[1][cut], all_of[2][cut], all_of[3][:, cut], all_of[4]]
            for g, e in zip(parts, expected, strict=True):
                np.testing.assert_allclose(g, e, rtol=1e-11, atol=1e-12)

    mnpar.run(program, ranks=ranks)


def derivatives_of(layers, x0, comm=None):
    x = mnpar.Variable(x0)
    y = layers[1](F.tanh(layers[0](x)))
    inputs = [x, layers[0].W, layers[0].b, layers[1].W, layers[1].b]
    gs = mnpar.grad([F.sum(F.sin(y) * y)], inputs, enable_double_backprop=True)
    losses = [F.sum(F.sin(g)) for g in gs]
    # of the divided gradients each rank has its part, the others all have alike
    if comm is not None:
        losses = [F.reduce_from(comm, v) if i in (1, 2, 3) else v for i, v in enumerate(losses)]
    mnpar.backward([losses[0] + losses[1] + losses[2] + losses[3] + losses[4]])
    return y.array, [g.array for g in gs], [v.grad for v in inputs]


@pytest.mark.ranks(1, 2, 3)
def test_neons_network_784_100_10_keeps_the_weights_of_one_process_while_it_learns(comm):
    """vecpar: every layer cut by its inputs, bias and all, on thread ranks and on mpiexec ranks."""
    rng = np.random.default_rng(2)
    x = rng.standard_normal((20, 784))
    t = rng.integers(10, size=20)

    def weights(make):
        mnpar.random.seed(0)
        model = mnpar.Sequential(make(784, 100), F.relu, make(100, 10))
        optimizer = mnpar.optimizers.MomentumSGD(lr=0.05).setup(model)
        for _ in range(3):
            optimizer.update(lambda: F.softmax_cross_entropy(model(x), t))
        return [L.gather_parameter(comm, p) for p in model.params()]

    for w, w1 in zip(
        weights(lambda *n: L.RowParallelLinear(comm, *n)), weights(L.Linear), strict=True
    ):
        np.testing.assert_allclose(w, w1, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("kind", KINDS)
def test_sizes_may_come_from_the_first_batch(kind):
    make, options = KINDS[kind]
    x0 = np.arange(24.0).reshape(2, 3, 4)

    def program(comm):
        layer = make(comm, 5, **options)
        divided = options.get("input_is_parallel", False)
        x = x0.reshape(2, 3, 4)[:, :, mine(comm, 4)] if divided else x0
        return layer(x, n_batch_axes=2).shape, layer.in_size, layer.W.shape

    for rank, (shape, in_size, W) in enumerate(mnpar.run(program, ranks=2)):
        assert in_size == 4
        assert ((5 // 2 + 1 - rank, 4) if kind.startswith("columns") else (5, 2)) == W
        assert shape == (2, 3, W[0])[:3] if "not gathered" in kind else shape == (2, 3, 5)


def test_a_wrong_number_of_features_is_named():
    def program(comm):
        L.RowParallelLinear(comm, 5, 2, input_is_parallel=True)(np.ones((1, 5)))

    with pytest.raises(ValueError, match=r"x has 5 features, not [32] \(its block \d … \d of 5\)"):
        mnpar.run(program, ranks=2)


@pytest.mark.ranks(1, 2, 3, 4)
def test_cutting_and_joining_are_each_others_inverse_and_gradient(comm):
    x0 = np.arange(14.0).reshape(2, 7)
    x = mnpar.Variable(x0)
    part = F.scatter_to(comm, x)
    np.testing.assert_array_equal(part.array, x0[:, mine(comm, 7)])
    y = F.gather_from(comm, part * part)
    np.testing.assert_array_equal(y.array, x0 * x0)
    F.sum(y * y).backward()
    np.testing.assert_allclose(x.grad, 4 * x0**3)


@pytest.mark.ranks(2, 3)
def test_what_nobody_uses_does_not_hang(comm):
    x = mnpar.Variable(np.ones(5))
    F.gather_from(comm, F.scatter_to(comm, x))
    mnpar.backward()
    assert x.grad is None


@pytest.mark.parametrize("function", [F.scatter_to, F.gather_from])
def test_an_axis_that_is_not_there_is_named(function):
    with pytest.raises(ValueError, match=r"x of shape \(2,\) has no axis 1"):
        function(mnpar.create_communicator("self"), np.ones(2), axis=1)


# ---- neon's vecpar (N8), also where nothing divides anything ----


def found(model, x, function=None):
    """The output, the gradient of x, and of each parameter: its whole shape, which part of it this
    is, that part's gradient.
    """
    x = mnpar.Variable(x)
    y = (function or model)(x)
    F.sum(F.sin(y) * y).backward()
    parts = [
        (p.whole or p.shape, ... if p.box is None else p.box.index, p.grad) for p in model.params()
    ]
    return y.array, x.grad, parts


def check(own, truth, cells=...):
    """Of x a rank has these cells."""
    np.testing.assert_allclose(own[0], truth[0], rtol=1e-10)
    np.testing.assert_allclose(own[1], truth[1][cells], rtol=1e-10, atol=1e-12)
    for (whole, index, part), (_, _, grad) in zip(own[2], truth[2], strict=True):
        np.testing.assert_allclose(part, grad.reshape(whole)[index], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "make", [L.RowParallelLinear, L.ColumnParallelLinear], ids=["by inputs", "by outputs"]
)
@pytest.mark.parametrize("ranks", range(1, 7))
def test_neons_network_784_100_10_has_the_outputs_and_gradients_of_one_process(ranks, make):
    """5 does not divide 784; 3 and 6 do not divide 100; 3, 4 and 6 do not divide 10."""
    x = np.random.default_rng(0).standard_normal((3, 784))

    def network(make, *comm):
        mnpar.random.seed(3)
        one, two = [
            make(*comm, *sizes, initial_bias=mnpar.initializers.Normal())
            for sizes in ((784, 100), (100, 10))
        ]
        return mnpar.Sequential(one, F.sigmoid, two)

    truth = found(network(L.Linear), x)
    for rank, own in enumerate(mnpar.run(lambda comm: found(network(make, comm), x), ranks=ranks)):
        check(own, truth)
        n = np.diff(block(784 if make is L.RowParallelLinear else 100, ranks, rank))[0]
        assert own[2][0][2].size == n * (100 if make is L.RowParallelLinear else 784)


@pytest.mark.usefixtures("debug_off")
@pytest.mark.parametrize("dims", [(1, 1), (2, 1), (1, 3), (2, 2), (5, 1), (3, 2)], ids=str)
def test_between_a_convolution_and_the_linear_layer_after_it_nothing_travels(dims):
    """The linear layer is cut as the image is: its inputs stay where they are, and only its outputs
    are added up.
    """
    x = np.random.default_rng(0).standard_normal((3, 2, 12, 11))
    P = dims[0] * dims[1]

    def network(fc):
        mnpar.random.seed(3)
        return mnpar.Sequential(L.Convolution2D(2, 3, 5), F.relu, fc())

    truth = found(network(lambda: L.Linear(3 * 8 * 7, 10)), x)

    def program(comm):
        grid = mnpar.SpatialGrid(comm, dims)
        net = network(lambda: L.SpatialLinear(grid, (3, 8, 7), 10))
        cells = (..., *grid.block((12, 11)).index)
        function = on_blocks(net, grid, (12, 11))
        function(mnpar.Variable(x[cells]))  # the grid has met the shapes of all arrays
        h = F.relu(net[0](grid.cut(x)))
        before = copy.copy(comm.traffic)
        net[2](h).unchain_backward()
        sent = [
            getattr(comm.traffic, name) - getattr(before, name)
            for name in ("messages", "collectives", "collective_bytes")
        ]
        return cells, sent, found(net, x[cells], function)

    for cells, sent, own in mnpar.run(program, ranks=P):
        assert sent == [0, P > 1, (P - 1) * truth[0].nbytes]
        check(own, truth, cells)
