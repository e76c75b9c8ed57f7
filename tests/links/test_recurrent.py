"""Recurrent links: step by step, over sequences, over ranks."""

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar.initializers import HeNormal, Normal, Orthogonal, initialize_by_path

RNG = np.random.default_rng(0)
W = Normal(0.7, "d")


def sig(x):
    return 1 / (1 + np.exp(-x))


def test_an_lstm_remembers_and_is_the_stateless_one_step_by_step():
    layer = L.LSTM(3, 2, upward_init=W, lateral_init=W)
    xs = RNG.standard_normal((4, 5, 3))
    twin = L.StatelessLSTM(3, 2, upward_init=W, lateral_init=W)
    c = None
    h = None
    twin.copyparams(layer)
    for n, x in zip((5, 5, 3, 2), xs, strict=True):  # sequences end
        y = layer(x[:n])
        c, h = twin(c if c is None else c[:n], h if h is None else h[:n], x[:n])
        np.testing.assert_allclose(y.array, h.array, rtol=1e-6)
    assert layer.c.shape == layer.h.shape == (5, 2)
    F.sum(layer.h).backward()
    assert layer.lateral.W.grad is not None
    with pytest.raises(ValueError, match="a batch of 6 after one of 5"):
        layer(np.ones((6, 3)))
    layer.reset_state()
    assert layer.c is layer.h is None


def test_an_lstms_forget_gates_begin_open():
    layer = L.LSTM(None, 2, bias_init=0.5)
    assert layer.upward.b.array.reshape(2, 4).tolist() == [[0.5, 0.5, 1.0, 0.5]] * 2
    layer(np.ones((1, 3), "f4"))
    assert layer.upward.W.shape == (8, 3)


@pytest.mark.parametrize("in_size", [5, None])
def test_the_weights_of_an_lstms_gates_are_four_matrices_to_initializers(in_size):
    layer = L.LSTM(
        in_size, 4, Orthogonal(1, "d"), Orthogonal(1, "d"), Normal(1, "d"), HeNormal(dtype="d")
    )
    layer(np.ones((1, 5)))
    for W in layer.lateral.W.array, layer.upward.W.array:
        assert W.shape[0] == 16
        for gate in W.reshape(4, 4, -1):
            np.testing.assert_allclose(gate @ gate.T, np.eye(4), atol=1e-12)
    assert np.unique(layer.upward.b.array).size == 16


def test_an_array_for_an_lstms_gates_is_one_gates_or_all():
    one = RNG.standard_normal((2, 3))
    all_ = RNG.standard_normal((8, 3))
    layer = L.LSTM(3, 2, upward_init=one, lateral_init=all_[:, :2])
    np.testing.assert_array_equal(layer.upward.W.array, np.tile(one, (4, 1)).astype("f4"))
    np.testing.assert_array_equal(layer.lateral.W.array, all_[:, :2].astype("f4"))


def test_forget_gates_that_are_drawn_by_path_begin_open_too():
    layer = initialize_by_path(L.LSTM(3, 2), seed=0)
    assert layer.upward.b.array.reshape(2, 4).tolist() == [[0, 0, 1, 0]] * 2


def test_a_gru_is_its_formula():
    layer = L.GRU(3, 2, init=W, inner_init=W, bias_init=W)
    p = {name: param.array for name, param in layer.namedparams()}
    x, h = RNG.standard_normal((2, 4, 3)), None
    for t in range(2):

        def part(name, v, kind):
            return v @ p[f"/{kind}{name}/W"].T + p[f"/{kind}{name}/b"]

        if h is None:
            h = sig(part("_z", x[t], "W")) * np.tanh(part("", x[t], "W"))
        else:
            r, z = (sig(part(k, x[t], "W") + part(k, h, "U")) for k in ("_r", "_z"))
            h = (1 - z) * h + z * np.tanh(part("", x[t], "W") + part("", r * h, "U"))
        np.testing.assert_allclose(layer(x[t]).array, h)
    layer.set_state(np.zeros((4, 2)))
    assert L.StatefulGRU is L.GRU
    layer.reset_state()


KINDS = [
    L.NStepLSTM,
    L.NStepBiLSTM,
    L.NStepGRU,
    L.NStepBiGRU,
    L.NStepRNNTanh,
    L.NStepBiRNNTanh,
    L.NStepRNNReLU,
    L.NStepBiRNNReLU,
]
every_kind = pytest.mark.parametrize("kind", KINDS)


@every_kind
def test_sequences_come_in_any_order_and_do_not_see_each_other(kind):
    rnn = kind(2, 3, 2, 0.0, initialW=W, initial_bias=W)
    xs = [RNG.standard_normal((n, 3)) for n in (2, 4, 1, 4)]
    *finals, ys = rnn(*[None] * rnn.n_cells, xs)
    for i, x in enumerate(xs):
        *alone, (y,) = rnn(*[None] * rnn.n_cells, [x])
        np.testing.assert_allclose(ys[i].array, y.array, rtol=1e-12)
        for final, one in zip(finals, alone, strict=True):
            np.testing.assert_allclose(final.array[:, i], one.array[:, 0], rtol=1e-12)
    assert [path for path, _ in rnn.namedparams()][:2] == ["/0/w0", "/0/w1"]


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if not kind.use_bi_direction]
)  # the others begin at both ends
def test_final_states_let_a_sequence_that_was_cut_go_on(kind):
    rnn = kind(1, 3, 2, 0.0, initialW=W)
    xs = [RNG.standard_normal((6, 3)), RNG.standard_normal((6, 3))]
    *_, whole = rnn(*[None] * rnn.n_cells, xs)
    *states, first = rnn(*[None] * rnn.n_cells, [x[:2] for x in xs])
    *_, second = rnn(*states, [x[2:] for x in xs])
    for y, a, b in zip(whole, first, second, strict=True):
        np.testing.assert_allclose(y.array, np.concatenate([a.array, b.array]), rtol=1e-12)


def test_dropout_is_between_layers_and_in_training_only():
    rnn = L.NStepGRU(2, 3, 50, 0.5)
    x = [np.ones((3, 3), "f4")]
    first, second = (rnn(None, x)[1][0].array for _ in range(2))
    assert (first != second).any()
    with mnpar.using_config("train", False):
        first, second = (rnn(None, x)[1][0].array for _ in range(2))
    np.testing.assert_array_equal(first, second)


@every_kind
@pytest.mark.ranks(2, 3)
def test_layers_on_several_ranks_are_one_after_the_other(comm, kind):
    rngs = [np.random.default_rng(r) for r in range(comm.size)]
    layers = [kind(2, 3, 2, 0.0, initialW=Normal(0.7, "d", rng), initial_bias=0.1) for rng in rngs]
    parts = [[rng.standard_normal((n, 3)) for n in (1, 3, 2)] for rng in rngs]
    states, loss = [None] * layers[0].n_cells, 0
    for layer, xs in zip(layers, parts, strict=True):
        *states, ys = layer(*states, xs)
        loss = loss + sum(F.sum(y * y) for y in ys)
    expected = mnpar.grad([loss], list(layers[comm.rank].params()))
    mine = layers[comm.rank]
    rnn = L.create_multi_node_n_step_rnn(
        mine,
        comm,
        comm.rank - 1 if comm.rank else None,
        comm.rank + 1 if comm.rank + 1 < comm.size else None,
    )
    *_, ys, delegate = rnn(parts[comm.rank])
    assert (delegate is None) == (comm.rank == comm.size - 1)
    mnpar.backward([F.sum(y * y) for y in ys])
    for param, g in zip(mine.params(), expected, strict=True):
        np.testing.assert_allclose(param.grad, g.array, rtol=1e-10, atol=1e-12)


@pytest.mark.ranks(2, on="threads")
def test_layers_of_two_kinds_do_not_go_together(comm):
    kind, ends = (L.NStepGRU, {"rank_out": 1}) if comm.rank == 0 else (L.NStepLSTM, {"rank_in": 0})
    rnn = L.create_multi_node_n_step_rnn(kind(1, 3, 2, 0.0), comm, **ends)
    if comm.rank == 0:
        rnn([np.ones((1, 3), "f4")])
    else:
        with pytest.raises(ValueError, match="has 2 states, but rank 0 sent 1"):
            rnn([np.ones((1, 3), "f4")])


@pytest.mark.parametrize("n", [0, 1, 3])
@pytest.mark.parametrize(
    "kind", [L.NStepLSTM, L.NStepGRU, L.NStepRNNTanh, L.NStepBiLSTM, L.NStepBiRNNReLU]
)
def test_sequences_without_a_step_leave_the_states_as_they_are(kind, n):
    """A rank's part of a batch may have no sequences, or only empty ones."""
    layer = kind(2, 3, 4, 0.0)
    states = [
        mnpar.Variable(RNG.standard_normal((2 * layer.direction, n, 4)))
        for _ in range(layer.n_cells)
    ]
    *last, ys = layer(*states, [np.zeros((0, 3))] * n)
    assert [y.shape for y in ys] == [(0, 4 * layer.direction)] * n
    sum(F.sum(state * state) for state in last).backward()
    for state, end in zip(states, last, strict=True):
        np.testing.assert_array_equal(end.array, state.array)
        np.testing.assert_array_equal(state.grad, 2 * state.array)
    assert all(
        h.shape == (2 * layer.direction, n, 4)
        for h in layer(*[None] * layer.n_cells, [np.zeros((0, 3))] * n)[:-1]
    )


ALONE = mnpar.create_communicator("self")
BAD = {
    "no NStep": (
        lambda: L.create_multi_node_n_step_rnn(L.Linear(2, 2), ALONE),
        ValueError,
        "takes an NStep link",
    ),
    "no list": (
        lambda: L.NStepGRU(1, 3, 2, 0.0)(None, np.ones((2, 3))),
        TypeError,
        "takes a list of sequences",
    ),
    "no rows": (
        lambda: L.EmbedID(3, 2)(np.array([3])),
        ValueError,
        "do not all name one of 3 rows",
    ),
    "floats": (lambda: L.EmbedID(3, 2)(np.array([1.0])), ValueError, "names rows by integers"),
    "sizes": (lambda: L.LSTM(0), ValueError, "sizes must be 1 or more"),
    "gates": (
        lambda: F.lstm(np.ones((2, 3)), np.ones((2, 3))),
        ValueError,
        "memory .N, H, …. and gates",
    ),
    "order": (
        lambda: F.n_step_rnn(1, 0, np.ones((1, 2, 1)), [], [], [np.ones((1, 1)), np.ones((2, 1))]),
        ValueError,
        r"not \[1, 2\]: put the longest sequence first",
    ),
    "states": (
        lambda: F.n_step_rnn(1, 0, np.ones((2, 1, 1)), [], [], [np.ones((1, 1))]),
        ValueError,
        "states of 1 layers",
    ),
    "activation": (
        lambda: F.n_step_rnn(1, 0, np.ones((1, 1, 1)), [], [], [np.ones((1, 1))], "gelu"),
        ValueError,
        "'tanh' or 'relu'",
    ),
    "attention": (
        lambda: F.scaled_dot_product_attention(np.ones((2, 3)), np.ones((2, 2)), np.ones((2, 2))),
        ValueError,
        "attention: q",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_does_not_belong_together_is_told(name):
    call, error, match = BAD[name]
    with pytest.raises(error, match=match):
        call()


def test_attention_that_may_look_nowhere_is_finite():
    q = mnpar.Variable(np.ones((2, 3)))
    y = F.scaled_dot_product_attention(q, q, q, mask=np.zeros((2, 2), bool))
    F.sum(y).backward()
    np.testing.assert_allclose(y.array, 1)
    assert np.isfinite(q.grad).all()


@pytest.mark.parametrize("room", [2**13, 2**17, 2**21])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_many_cells_in_blocks_are_what_each_sample_is_alone(dtype, room, monkeypatch):
    monkeypatch.setattr("mnpar.backend.block_bytes", lambda x: room)
    rng = np.random.default_rng(0)
    c = rng.standard_normal((65, 16, 3)).astype(dtype)
    x = 9 * rng.standard_normal((65, 64, 3)).astype(dtype)
    x[0, :4] = [[1000]] * 4
    x[1, :4] = [[-1000]] * 4
    g = rng.standard_normal((2, 65, 16, 3)).astype(dtype)

    def step(k):
        vs = mnpar.Variable(c[k].copy()), mnpar.Variable(x[k].copy())
        ys = F.lstm(*vs)
        for y, gy in zip(ys, g[:, k], strict=True):
            y.grad = gy
        mnpar.backward(ys)
        return *[y.array for y in ys], *[v.grad for v in vs]

    assert x[:1].nbytes < 2**15 < x.nbytes  # one is computed as a whole, all in blocks
    alone = [step(slice(i, i + 1)) for i in range(65)]
    for found, parts in zip(step(slice(None)), zip(*alone, strict=True), strict=True):
        tolerance = 1e-5 if dtype == "f4" else 1e-13
        np.testing.assert_allclose(found, np.concatenate(parts), rtol=tolerance, atol=tolerance)


X = RNG.standard_normal((5, 3))


def drawn(link):
    """The link with parameters of float64 that are all different."""
    for param in link.params():
        param.array = RNG.standard_normal(param.shape)
    return {name: param.array for name, param in link.namedparams()}


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
