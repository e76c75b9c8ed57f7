"""Rows of recurrent functions and attention, each against loops over steps."""

from __future__ import annotations

import numpy as np

import mnpar.functions as F
from mnpar.functions.connection import attention
from mnpar.functions.connection.tiled_attention import Probabilities, TiledAttention
from mnpar.functions.rnn.lstm import LSTMCell
from mnpar.functions.rnn.n_step_rnn import RecurrentLayer
from mnpar.kernels.attention_tiles import Hidden
from tests.functions.cases.case import Case, N

H = 2


def sig(x):
    return 1 / (1 + np.exp(-x))


def lstm_step(x, states, w, b):
    h, c = states
    i, f, a, o = [x @ w[k].T + h @ w[k + 4].T + b[k] + b[k + 4] for k in range(4)]
    c = sig(f) * c + sig(i) * np.tanh(a)
    return sig(o) * np.tanh(c), c


def gru_step(x, states, w, b):
    (h,) = states
    r = sig(x @ w[0].T + h @ w[3].T + b[0] + b[3])
    z = sig(x @ w[1].T + h @ w[4].T + b[1] + b[4])
    new = np.tanh(x @ w[2].T + b[2] + r * (h @ w[5].T + b[5]))
    return ((1 - z) * new + z * h,)


def rnn_step(x, states, w, b):
    return (np.tanh(x @ w[0].T + states[0] @ w[1].T + b[0] + b[1]),)


def relu_step(x, states, w, b):
    return (np.maximum(x @ w[0].T + states[0] @ w[1].T + b[0] + b[1], 0),)


def truth(step, layers, directions, states, ws, bs, xs):
    """Each sequence by itself, layer by layer."""
    finals = [np.zeros_like(s) for s in states]
    outputs = []
    for n, x in enumerate(xs):
        for k in range(layers):
            parts = []
            for d in range(directions):
                i = k * directions + d
                now = tuple(s[i, n] for s in states)
                found = [None] * len(x)
                for t in reversed(range(len(x))) if d else range(len(x)):
                    now = step(x[t], now, ws[i], bs[i])
                    found[t] = now[0]
                for final, s in zip(finals, now, strict=True):
                    final[i, n] = s
                parts.append(np.stack(found))
            x = np.concatenate(parts, 1)
        outputs.append(x)
    return (*finals, *outputs)


def case(
    name,
    function,
    step,
    gates,
    n_states,
    layers=1,
    directions=1,
    sequences=((3, 2), (1, 2)),
    **kwargs,
):
    """A row: the states, then the weights and biases of all layers, packed, then the sequences."""
    S = layers * directions
    widths = [sequences[0][1] if i < directions else H * directions for i in range(S)]

    def unpack(arrays):
        states = arrays[:n_states]
        packed = arrays[n_states : n_states + 2 * S]
        xs = arrays[n_states + 2 * S :]
        ws, bs = [], []
        for i in range(S):
            W = packed[2 * i]
            b = packed[2 * i + 1]
            inputs = [W[k * H : (k + 1) * H, : widths[i]] for k in range(gates)]
            ws.append(inputs + [W[k * H : (k + 1) * H, widths[i] :] for k in range(gates)])
            bs.append([b[k * H : (k + 1) * H] for k in range(2 * gates)])
        return states, ws, bs, list(xs)

    def call(*arrays):
        states, ws, bs, xs = unpack(arrays)
        *finals, ys = function(layers, 0.0, *states, ws, bs, F.transpose_sequence(xs), **kwargs)
        return (*finals, *F.transpose_sequence(ys))

    def expected(*arrays):
        states, ws, bs, xs = unpack(arrays)
        return truth(step, layers, directions, states, ws, bs, xs)

    shapes = [(S, len(sequences), H)] * n_states
    for width in widths:
        shapes += [(gates * H, width + H), (2 * gates * H,)]
    return Case(
        name, (RecurrentLayer,), call, expected, (*shapes, *sequences), low=-1, high=1, halves=2e-2
    )


def cell(c, x):
    n = len(x)
    a, i, f, o = np.moveaxis(x.reshape(n, H, 4), 2, 0)
    new = sig(f) * c[:n] + sig(i) * np.tanh(a)
    return np.concatenate([new, c[n:]]), sig(o) * np.tanh(new)


def pixelwise(step):
    """The step of each pixel of images."""

    def truth(*xs):
        pixels = xs[0].shape[2:]
        each = [step(*[x[..., *place] for x in xs]) for place in np.ndindex(pixels)]
        return tuple(
            np.stack(ys, -1).reshape(*ys[0].shape, *pixels) for ys in zip(*each, strict=True)
        )

    return truth


def look(q, k, v, mask=None):
    fit = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
    if mask is not None:
        fit = np.where(mask, fit, -1e30)
    e = np.exp(fit - fit.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True) @ v


NUMBERS = np.array([[0, 2], [2, -1]])
BEFORE = np.tril(np.ones((3, 3), bool))
BLIND = np.array([[False], [True], [False]])
HIDDEN = Hidden(~BEFORE | BLIND, BLIND)
ATTENDED = ((N, 3, 2), (N, 3, 2), (N, 3, 2))

CASES = [
    Case("lstm", (LSTMCell,), F.lstm, cell, ((N, H), (N, 4 * H)), halves=1e-2),
    Case("lstm: some have ended", (), F.lstm, cell, ((3, H), (2, 4 * H)), halves=1e-2),
    Case(
        "lstm: images", (), F.lstm, pixelwise(cell), ((3, H, 2, 1), (2, 4 * H, 2, 1)), halves=1e-2
    ),
    case("n_step_lstm", F.n_step_lstm, lstm_step, 4, 2),
    case(
        "n_step_lstm: two layers",
        F.n_step_lstm,
        lstm_step,
        4,
        2,
        layers=2,
        sequences=((3, 1), (2, 1), (2, 1)),
    ),
    case("n_step_lstm: one sequence", F.n_step_lstm, lstm_step, 4, 2, sequences=((2, 2),)),
    case("n_step_bilstm", F.n_step_bilstm, lstm_step, 4, 2, layers=2, directions=2),
    case("n_step_gru", F.n_step_gru, gru_step, 3, 1, layers=2),
    case("n_step_gru: one sequence", F.n_step_gru, gru_step, 3, 1, sequences=((2, 2),)),
    case(
        "n_step_bigru",
        F.n_step_bigru,
        gru_step,
        3,
        1,
        directions=2,
        sequences=((3, 2), (2, 2), (1, 2)),
    ),
    case("n_step_rnn", F.n_step_rnn, rnn_step, 1, 1, layers=2),
    case("n_step_rnn: relu", F.n_step_rnn, relu_step, 1, 1, activation="relu"),
    case("n_step_birnn", F.n_step_birnn, rnn_step, 1, 1, directions=2),
    Case(
        "embed_id",
        (),
        lambda W: F.embed_id(np.maximum(NUMBERS, 0), W),
        lambda W: W[np.maximum(NUMBERS, 0)],
        ((3, 2),),
    ),
    Case(
        "embed_id: of a batch",
        (),
        lambda x, W: x + F.embed_id(np.arange(len(x)) % 3, W),
        lambda x, W: x + W[np.arange(len(x)) % 3],
        ((N, 2), (3, 2)),
    ),
    Case(
        "embed_id: ignoring",
        (),
        lambda W: F.embed_id(NUMBERS, W, -1),
        lambda W: np.where(NUMBERS[..., None] < 0, 0, W[NUMBERS]),
        ((3, 2),),
    ),
    Case(
        "scaled_dot_product_attention",
        (attention.Attention,),
        F.scaled_dot_product_attention,
        look,
        ATTENDED,
        halves=1e-2,
    ),
    Case(
        "scaled_dot_product_attention: causal",
        (),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, causal=True),
        lambda q, k, v: look(q, k, v, BEFORE),
        ATTENDED,
        halves=1e-2,
    ),
    Case(
        "scaled_dot_product_attention: masked",
        (),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, np.array([True, False, True])),
        lambda q, k, v: look(q, k, v, np.array([True, False, True])),
        ATTENDED,
        halves=1e-2,
    ),
    Case(
        "scaled_dot_product_attention: columns together",
        (attention.Dense,),
        lambda *qkv: F.scaled_dot_product_attention(*[F.swapaxes(x, -1, -2) for x in qkv]),
        lambda *qkv: look(*[x.swapaxes(-1, -2) for x in qkv]),
        ((N, 2, 3),) * 3,
        halves=1e-2,
    ),
    Case(
        "attention in tiles",
        (TiledAttention,),
        lambda q, k, v: TiledAttention(True, 0.5**0.5, None).apply((q, k, v))[0],
        lambda q, k, v: look(q, k, v, BEFORE),
        ATTENDED,
        halves=1e-2,
    ),
    Case(
        "a tile of attention",
        (Probabilities,),
        lambda q, k, lse: Probabilities(None).apply((q, k, lse))[0],
        lambda q, k, lse: np.exp(q @ k.swapaxes(-1, -2) - lse),
        ((N, 3, 2), (N, 4, 2), (N, 3, 1)),
        halves=2e-2,
    ),
    Case(
        "a tile of attention: hidden",
        (),
        lambda q, k, lse: Probabilities(HIDDEN).apply((q, k, lse))[0],
        lambda q, k, lse: (
            np.where(BLIND, 1, np.where(BEFORE, np.exp(q @ k.swapaxes(-1, -2)), 0)) * np.exp(-lse)
        ),
        ((N, 3, 2), (N, 3, 2), (N, 3, 1)),
        halves=2e-2,
    ),
]
