"""Layers between which the sequence is cut, and the hook that makes gradients whole, against one
process.
"""

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar.link_hooks import WholeGradients
from tests.harness.parts import mine

pytestmark = pytest.mark.usefixtures("float64")

N, D, H = 2, 5, 7


class Block(mnpar.Chain):
    """x + W₂ tanh(W₁ norm(x)), then another norm: whole, or cut along the sequence by ``comm``."""

    def __init__(self, comm=None):
        super().__init__()
        random = mnpar.initializers.Normal(0.5)
        self.norm, self.last = (
            L.LayerNormalization(D, initial_gamma=random, initial_beta=random) for _ in range(2)
        )
        if comm is None:
            self.one = L.Linear(D, H, initial_bias=random)
            self.two = L.Linear(H, D, initial_bias=random)
        else:
            cut = {"sequence_axis": 1, "initial_bias": random}
            self.one = L.ColumnParallelLinear(comm, D, H, gather_output=False, **cut)
            self.two = L.RowParallelLinear(comm, H, D, input_is_parallel=True, **cut)

    def forward(self, x):
        x = x + self.two(F.tanh(self.one(self.norm(x), n_batch_axes=2)), n_batch_axes=2)
        return self.last(x)


def derivatives(model, x0, comm=None, params=()):
    """Outputs, gradients and the gradients of a function of the gradients."""
    x = mnpar.Variable(x0)
    y = model(x)
    inputs = [x, *params]
    sum_of = lambda v: F.sum(v) if comm is None else F.reduce_from(comm, F.sum(v))
    gs = mnpar.grad([sum_of(F.sin(y) * y)], inputs, enable_double_backprop=True)
    divided = [True, *[p.box is not None for p in params]]
    seconds = [(sum_of if cut else F.sum)(F.sin(g)) for cut, g in zip(divided, gs, strict=True)]
    mnpar.backward([sum(seconds[1:], seconds[0])])
    return y.array, [g.array for g in gs], [v.grad for v in inputs]


@pytest.mark.parametrize("T", [4, 5, 2], ids=lambda T: f"T={T}")
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_a_block_is_that_of_one_process(ranks, T):
    """With T = 2 some ranks have nothing of the sequence."""
    x0 = np.random.default_rng(0).standard_normal((N, T, D))
    mnpar.random.seed(1)
    whole = Block()
    y1, firsts, seconds = derivatives(whole, x0, params=list(whole.params()))

    def program(comm):
        mnpar.random.seed(1)
        model = Block(comm)
        for norm in (model.norm, model.last):
            norm.add_hook(WholeGradients(comm))
        params = list(model.params())
        rows = mine(comm, T)
        y, gs, ggs = derivatives(model, x0[:, rows].copy(), comm, params)
        np.testing.assert_allclose(y, y1[:, rows], rtol=1e-12, atol=1e-13)
        for found, expected in ((gs, firsts), (ggs, seconds)):
            np.testing.assert_allclose(found[0], expected[0][:, rows], rtol=1e-11, atol=1e-12)
            for p, g, e in zip(params, found[1:], expected[1:], strict=True):
                part = () if p.box is None else tuple(map(slice, p.box.start, p.box.stop))
                np.testing.assert_allclose(g, e[part], rtol=1e-11, atol=1e-12)

    mnpar.run(program, ranks=ranks)


@pytest.mark.ranks(1, 2, 3)
def test_a_language_model_cut_along_its_sequence_learns_as_one_process_does(comm):
    """Table, block, and scores of all words: one hook for the whole model, which finds what lies
    whole on every rank.
    """
    words = np.random.default_rng(0).integers(0, 6, (N, 5))
    following = np.roll(words, -1, axis=1)

    def weights(cut):
        mnpar.random.seed(4)
        table = L.VocabularyParallelEmbedID(comm, 6, D, sequence_axis=1) if cut else L.EmbedID(6, D)
        body = Block(comm).add_hook(WholeGradients(comm)) if cut else Block()
        model = mnpar.Chain(table=table, body=body)

        def loss():
            h = model.body(model.table(words))
            if not cut:
                return F.softmax_cross_entropy(
                    F.linear(h, table.W, n_batch_axes=2).transpose(0, 2, 1), following
                )
            scores = F.linear(F.allgather(comm, h, axis=1), table.W, n_batch_axes=2).transpose(
                0, 2, 1
            )
            return F.vocabulary_parallel_softmax_cross_entropy(comm, scores, following)

        optimizer = mnpar.optimizers.MomentumSGD(0.1).setup(model)
        for _ in range(3):
            optimizer.update(loss)
        return [L.gather_parameter(comm, p) for p in model.params()]

    for w, w1 in zip(weights(True), weights(False), strict=True):
        np.testing.assert_allclose(w, w1, rtol=1e-9, atol=1e-12)


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("n", [4, 2])
def test_the_hook_makes_gradients_of_any_link_whole(comm, n):
    """A chain of lazy layers, called with each rank's part of a batch; with n = 2 of 3 ranks one
    has no part.
    """
    x0 = np.random.default_rng(3).standard_normal((n, 3))

    def gradients(hook):
        mnpar.random.seed(2)
        model = mnpar.Sequential(L.Linear(None, 4), F.tanh, L.Linear(None, 2))
        if hook:
            model.add_hook(WholeGradients(comm))
        params = lambda: [p for _, p in model.namedparams()]
        y = model(x0[mine(comm, n)] if hook else x0)
        F.sum(F.sin(y)).backward()
        assert all([type(p) is mnpar.Parameter for p in params()])
        return [p.grad for p in params()]

    for g, e in zip(gradients(True), gradients(False), strict=True):
        np.testing.assert_allclose(g, e, rtol=1e-12, atol=1e-13)


class Divided(mnpar.Chain):
    """Layers that are divided among ranks, if not among those along which the batch is cut; or by
    nobody (None).
    """

    def __init__(self, comm):
        super().__init__()
        self.heads = L.MultiHeadAttention(2, 4, comm)
        ranks = mnpar.create_communicator("self") if comm is None else comm
        self.one = L.ColumnParallelLinear(ranks, 4, 3, gather_output=False)
        self.two = L.RowParallelLinear(ranks, 3, 2, input_is_parallel=True)

    def forward(self, x):
        return self.two(F.tanh(self.one(self.heads(x), n_batch_axes=2)), n_batch_axes=2)


@pytest.mark.ranks(1, 2, 4, on="threads")
@pytest.mark.parametrize("alone", [False, True], ids=["divided", "plain"])
def test_the_hook_makes_gradients_whole_of_layers_that_are_divided_among_other_ranks_or_by_nobody(
    comm, alone
):
    mesh = mnpar.Mesh(comm, data=min(comm.size, 2), model=-1)
    x0 = np.random.default_rng(3).standard_normal((3, 2, 4))

    def gradients(hook):
        mnpar.random.seed(2)
        model = Divided(mesh.model if hook and not alone else None)
        if hook:
            model.add_hook(WholeGradients(mesh.data))
        F.sum(F.sin(model(x0[mine(mesh.data, 3)] if hook else x0))).backward()
        return dict(model.namedparams())

    whole = gradients(False)
    for path, p in gradients(True).items():
        part = () if p.box is None else p.box.index
        np.testing.assert_allclose(p.grad, whole[path].grad[part], rtol=1e-11, atol=1e-12)


def test_the_hook_gives_the_parameters_back_where_a_link_fails():
    def program(comm):
        link = L.LayerNormalization(3).add_hook(WholeGradients(comm))
        with pytest.raises(ValueError, match="layer_normalization"):
            link(np.ones((2, 4)))
        return type(link.gamma) is mnpar.Parameter

    assert mnpar.run(program, ranks=2) == [True, True]


def test_the_hook_is_one_links():
    with (
        pytest.raises(NotImplementedError, match="one link's"),
        WholeGradients(mnpar.create_communicator("self")),
    ):
        pass


@pytest.mark.parametrize("make", [L.ColumnParallelLinear, L.RowParallelLinear])
def test_a_sequence_that_is_not_among_the_examples_is_named(make):
    layer = make(mnpar.create_communicator("self"), 12, 3, sequence_axis=1)
    with pytest.raises(
        ValueError,
        match=r"sequence_axis 1 is not among the 1 axes that count examples: .*n_batch_axes=2",
    ):
        layer(np.ones((2, 3, 4)))


def test_an_axis_that_is_not_there_is_named():
    with pytest.raises(ValueError, match=r"x of shape \(2,\) has no axis 1"):
        F.reduce_scatter(mnpar.create_communicator("self"), np.ones(2), axis=1)


@pytest.mark.ranks(1, 2, 3, 4)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_reducing_blocks_of_an_array_is_the_inverse_of_gathering_them(comm, axis):
    x0 = np.arange(10.0).reshape(2, 5)
    x = mnpar.Variable(x0 + comm.rank)
    y = F.reduce_scatter(comm, x, axis=axis)
    total = comm.size * x0 + sum(range(comm.size))
    np.testing.assert_array_equal(F.allgather(comm, y, axis=axis).array, total)
    part = [slice(None)] * 2
    part[axis] = mine(comm, x0.shape[axis])
    np.testing.assert_array_equal(y.array, total[tuple(part)])
    F.sum(y * y).backward()
    np.testing.assert_array_equal(x.grad, 2 * total)
