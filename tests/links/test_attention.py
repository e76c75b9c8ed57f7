"""Attention with its heads divided among ranks, against the layer of one rank and against a few
lines of numpy.
"""

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar.plans import block, zigzag

pytestmark = pytest.mark.usefixtures("float64")

PARAMETERS = {"W_qkv": 1, "b_qkv": 1, "W_out": 1, "b_out": None}  # the axis of the heads


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def layer_of(comm=None, heads=3, **options):
    mnpar.random.seed(7)
    return L.MultiHeadAttention(heads, 6, comm, initial_bias=mnpar.initializers.Normal(), **options)


def run(layer, x0, s0=None, mask=None):
    """The output, and the gradients of a loss whose derivatives all differ."""
    x = mnpar.Variable(x0)
    s = None if s0 is None else mnpar.Variable(s0)
    y = layer(x, s, mask)
    F.sum(F.sin(y) * y).backward()
    return (
        y.array,
        [v.grad for v in (x, s) if v is not None],
        {name: getattr(layer, name).grad for name in PARAMETERS},
    )


def softmax(s):
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize("causal", [False, True])
def test_the_layer_is_a_few_lines_of_numpy(causal):
    layer = layer_of(causal=causal)
    x = numbers(2, 5, 6)
    q, k, v = (
        np.einsum("nti,ahdi->anhtd", x, layer.W_qkv.array) + layer.b_qkv.array[:, None, :, None]
    )
    fit = q @ k.swapaxes(-1, -2) / np.sqrt(2)
    fit = np.where(np.tril(np.ones((5, 5), bool)), fit, -np.inf) if causal else fit
    y = np.einsum("nhtd,ohd->nto", softmax(fit) @ v, layer.W_out.array) + layer.b_out.array
    np.testing.assert_allclose(layer(x).array, y, rtol=1e-12)


@pytest.mark.parametrize("what", ["itself", "causal", "a source", "masked"])
@pytest.mark.parametrize(("ranks", "heads"), [(1, 3), (2, 3), (2, 1), (3, 2), (4, 6)])
def test_outputs_and_gradients_are_those_of_one_rank(ranks, heads, what):
    x0 = numbers(2, 4, 6)
    s0 = numbers(2, 5, 6, seed=1) if what == "a source" else None
    mask = numbers(2, 1, 1, 4, seed=2) > 0 if what == "masked" else None
    y1, gxs1, firsts = run(layer_of(heads=heads, causal=what == "causal"), x0, s0, mask)

    def program(comm):
        layer = layer_of(comm, heads, causal=what == "causal")
        y, gxs, gs = run(layer, x0, s0, mask)
        np.testing.assert_allclose(y, y1, rtol=1e-11, atol=1e-13)
        for g, g1 in zip(gxs, gxs1, strict=True):
            np.testing.assert_allclose(g, g1, rtol=1e-11, atol=1e-12)
        mine = slice(*block(heads, comm.size, comm.rank))
        for name, axis in PARAMETERS.items():
            expected = firsts[name] if axis is None else firsts[name][:, mine]
            np.testing.assert_allclose(gs[name], expected, rtol=1e-11, atol=1e-12, err_msg=name)

    mnpar.run(program, ranks=ranks)


def test_gradients_of_gradients_are_those_of_one_rank():
    x0 = numbers(1, 3, 6)

    def second(layer, comm=None):
        x = mnpar.Variable(x0)
        y = layer(x)
        (gx,) = mnpar.grad([F.sum(F.sin(y) * y)], [x], enable_double_backprop=True)
        F.sum(gx * gx).backward()
        return x.grad, layer.b_out.grad, layer.W_out.grad

    one = second(layer_of())

    def program(comm):
        x, b, W = second(layer_of(comm), comm)
        np.testing.assert_allclose(x, one[0], rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(b, one[1], rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(
            W, one[2][:, slice(*block(3, comm.size, comm.rank))], rtol=1e-10, atol=1e-12
        )

    mnpar.run(program, ranks=2)


@pytest.mark.parametrize("sequence", ["ring", "all_to_all"])
@pytest.mark.parametrize(("heads_ranks", "sequence_ranks"), [(1, 2), (1, 3), (2, 2), (2, 1)])
@pytest.mark.parametrize("whole", [True, False], ids=["whole gradients", "shares"])
def test_heads_and_sequence_may_both_be_cut(heads_ranks, sequence_ranks, sequence, whole):
    x0 = numbers(2, 7, 6)
    mask = numbers(3, 7, 7) > -0.5
    y1, (gx1,), firsts = run(layer_of(causal=True), x0, mask=mask)
    cut = zigzag(7, sequence_ranks)

    def program(comm):
        among_heads = comm.split(comm.rank // heads_ranks, comm.rank)
        among_parts = comm.split(comm.rank % heads_ranks, comm.rank)
        mine = [t for stretch in cut[among_parts.rank] for t in range(*stretch)]
        layer = layer_of(
            among_heads,
            causal=True,
            sequence_comm=among_parts,
            sequence=sequence,
            whole_gradients=whole,
        )
        x = mnpar.Variable(x0[:, mine])
        y = layer(x, mask=mask[:, mine], cut=cut)
        F.sum(F.sin(y) * y).backward()
        np.testing.assert_allclose(y.array, y1[:, mine], rtol=1e-11, atol=1e-13)
        np.testing.assert_allclose(x.grad, gx1[:, mine], rtol=1e-11, atol=1e-12)
        heads = slice(*block(3, among_heads.size, among_heads.rank))
        for name, axis in PARAMETERS.items():
            expected = firsts[name] if axis is None else firsts[name][:, heads]
            g = getattr(layer, name).grad
            g = g if whole else among_parts.allreduce(g)
            np.testing.assert_allclose(g, expected, rtol=1e-10, atol=1e-12, err_msg=name)

    mnpar.run(program, ranks=heads_ranks * sequence_ranks)


def test_a_source_of_another_length_may_be_cut_too():
    x0 = numbers(1, 5, 6)
    s0 = numbers(1, 7, 6, seed=1)
    y1, (gx1, gs1), _ = run(layer_of(), x0, s0)

    def program(comm):
        q = slice(*block(5, comm.size, comm.rank))
        k = slice(*block(7, comm.size, comm.rank))
        y, (gx, gs), _ = run(layer_of(sequence_comm=comm), x0[:, q], s0[:, k])
        for found, expected in ((y, y1[:, q]), (gx, gx1[:, q]), (gs, gs1[:, k])):
            np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-12)

    mnpar.run(program, ranks=3)


@pytest.mark.ranks(1, 2, 3)
def test_any_number_of_ranks_learns_the_same_weights(comm):
    x = numbers(4, 5, 6)

    def weights(layer):
        optimizer = mnpar.optimizers.Adam().setup(layer)
        for _ in range(3):
            optimizer.update(lambda: F.mean_squared_error(layer(x), x[:, ::-1]))
        return [L.gather_parameter(comm, p) for p in layer.params()]

    for w, w1 in zip(weights(layer_of(comm)), weights(layer_of()), strict=True):
        np.testing.assert_allclose(w, w1, rtol=1e-9, atol=1e-12)


def test_files_hold_whole_parameters(tmp_path):
    whole = layer_of()
    mnpar.serializers.save_npz(tmp_path / "whole", whole)

    def program(comm):
        layer = L.MultiHeadAttention(3, 6, comm)
        mnpar.serializers.load_npz(tmp_path / "whole", layer)
        return [L.gather_parameter(comm, p) for p in layer.params()]

    for found in mnpar.run(program, ranks=2):
        for w, p in zip(found, whole.params(), strict=True):
            np.testing.assert_array_equal(w, p.array)


def test_sizes_that_make_no_heads_are_named():
    with pytest.raises(ValueError, match="6 features are not 4 heads of equal size"):
        L.MultiHeadAttention(4, 6)
    assert L.MultiHeadAttention(4, 6, head_size=2)(np.ones((1, 2, 6))).shape == (1, 2, 6)
    with pytest.raises(ValueError, match="sequence is one of 'ring', 'all_to_all', not 'circle'"):
        L.MultiHeadAttention(2, 6, sequence="circle")
    with pytest.raises(ValueError, match=r"x of shape \(2, 5\) is not \(…, T, 6\)"):
        L.MultiHeadAttention(2, 6)(np.ones((2, 5)))
