"""Recurrent networks of several layers over sequences of different lengths: LSTM, GRU, and the
simple one, in one or in both directions.

Sequences come as a list, the longer first; they run side by side, and at each step only those that
are that long. What a layer computes of its inputs alone is one matrix product over all steps of all
sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias

from mnpar.autograd.tape import Tape
from mnpar.backend import Array
from mnpar.function_node import InputGradients
from mnpar.functions.activation.relu import relu
from mnpar.functions.activation.sigmoid import sigmoid, tanh
from mnpar.functions.array.joining import concat, split_axis, stack
from mnpar.functions.connection.linear import linear
from mnpar.functions.math.arithmetic import identity
from mnpar.functions.node import GenericFunction, check_option, show_shapes
from mnpar.functions.noise import dropout
from mnpar.functions.rnn.lstm import LSTMCell
from mnpar.functions.rnn.packed_sequences import PackedSequences
from mnpar.kernels.gru import GRUStep
from mnpar.kernels.lstm import LSTMStep
from mnpar.kernels.over_time import Cell, OverTime, Plain, PlainRelu
from mnpar.variable import Variable, as_variable, grad

# from what a layer computed of a step's inputs, and its states before, to its states after: the
# first is the output
Step: TypeAlias = Callable[[Variable, tuple[Variable, ...]], tuple[Variable, ...]]
# the weights, or the biases, of a layer
Weights: TypeAlias = Sequence[Variable | Array]


class Layer(NamedTuple):
    """A layer's weights, those of its gates joined, and its cell.

    Args:
        cell: computes the steps, arrays in and arrays out.
        step: makes one step, in functions, from U and b.
        W, bias: compute x of the inputs.
        U, state_bias: compute y of the state.

    A bias that is None is 0; cells that see x + y alone have that of the state only.
    """

    cell: type[Cell]
    step: Callable[[Variable, Variable], Step]
    W: Variable
    bias: Variable | None
    U: Variable
    state_bias: Variable


# from a layer's weights and biases
MakeLayer: TypeAlias = Callable[[Weights, Weights], Layer]


class RecurrentLayer(GenericFunction):
    """A recurrent layer over all steps: x (total, G), U (G, H), b (G,), and the first states, (N,
    H) each → the outputs of all steps (total, H), and the last states.

    Args:
        layer: whose cell and step are used.
        counts: how many sequences have each step.
        backwards: the last step comes first.
    """

    joint_vjp = True

    def __init__(self, layer: Layer, counts: list[int], backwards: bool) -> None:
        self.layer = layer
        self.counts = counts
        self.backwards = backwards
        self.steps = OverTime(layer.cell, counts, backwards)

    def forward(self, x: Array, U: Array, b: Array, *first: Array) -> tuple[Array, ...]:
        self.retain_inputs(tuple(range(3 + len(first))))
        ys, finals = self.steps.forward(x, U, b, first, self.differentiable)
        return (ys, *finals)

    def backward(self, *gs: Any) -> InputGradients:
        x, U, b, *first = self.get_retained_inputs()
        if isinstance(x, Variable):
            return self._recorded((x, U, b, *first), gs)
        gx, gU, gb, firsts = self.steps.backward(U, first, gs[0], gs[1:])
        return gx, gU, gb, *firsts

    def _recorded(
        self, given: tuple[Variable, ...], gs: tuple[Variable | Array | None, ...]
    ) -> InputGradients:
        """The gradients by differentiable functions, step by step: slower, but differentiable any
        number of times.
        """
        with Tape():
            # Variables of its own: backward is to go as far as here, and no further
            inputs = [identity(one) for one in given]
            x, U, b, *first = inputs
            ys = written_out(self.layer, x, U, b, tuple(first), self.counts, self.backwards)
            pairs = [(y, as_variable(g)) for y, g in zip(ys, gs, strict=True) if g is not None]
            return tuple(
                grad(
                    [y for y, _ in pairs],
                    inputs,
                    [g for _, g in pairs],
                    enable_double_backprop=True,
                )
            )


def written_out(
    layer: Layer,
    x: Variable,
    U: Variable,
    b: Variable,
    first: tuple[Variable, ...],
    counts: list[int],
    backwards: bool,
) -> tuple[Variable, ...]:
    """Compute what :class:`RecurrentLayer` computes, in functions of single steps."""
    inputs: Any = split_axis(x, list(accumulate(counts))[:-1], 0, force_tuple=True)
    outputs, finals = _over_time(layer.step(U, b), inputs, first, backwards)
    return (concat(outputs, axis=0), *finals)


def over_time(
    layer: Layer, x: Variable, first: tuple[Variable, ...], counts: list[int], backwards: bool
) -> tuple[Variable, ...]:
    """The outputs of all steps, and the last states, by one function or, of other numbers than
    float32 or float64 of one kind, step by step.
    """
    U, b = layer.U, layer.state_bias
    inputs = (x, U, b, *first)
    if x.dtype.char in "fd" and all([one.dtype == x.dtype for one in inputs]):
        return RecurrentLayer(layer, counts, backwards).apply(inputs)
    return written_out(layer, x, U, b, first, counts, backwards)


def _over_time(
    step: Step, inputs: Sequence[Variable], states: tuple[Variable, ...], backwards: bool
) -> tuple[list[Variable], tuple[Variable, ...]]:
    """Run a layer over the steps: its outputs at each, and the states of all sequences after their
    last one.
    """
    now = list(states)
    outputs = list(inputs)  # the place of each step's output
    total, ended = len(states[0]), []
    order = range(len(inputs))
    if backwards:  # the longest begin alone, the others join with their first states
        running = tuple([state[: len(inputs[-1])] for state in states])
        for t in reversed(order):
            n = len(inputs[t])
            before = len(running[0])
            if n > before:
                running = tuple(
                    [concat((a, s[before:n]), axis=0) for a, s in zip(running, states, strict=True)]
                )
            running = step(inputs[t], running)
            outputs[t] = running[0]
        if len(running[0]) < total:
            running = tuple(
                [concat((a, s[len(a) :]), axis=0) for a, s in zip(running, states, strict=True)]
            )
        return outputs, running
    for t in order:
        n = len(inputs[t])
        if n < len(now[0]):  # the shorter have ended
            ended.append([state[n:] for state in now])
            now = [state[:n] for state in now]
        now = list(step(inputs[t], tuple(now)))
        outputs[t] = now[0]
    for late in reversed(ended):
        now = [concat((state, rest), axis=0) for state, rest in zip(now, late, strict=True)]
    return outputs, tuple(now)


def _n_step(
    who: str,
    n_layers: int,
    ratio: float,
    states: tuple[Variable | Array, ...],
    ws: Sequence[Weights],
    bs: Sequence[Weights],
    xs: Sequence[Variable | Array],
    both: bool,
    layer: MakeLayer,
) -> tuple[tuple[Variable, ...], Any]:
    """All layers, in one direction or both: their last states, and the outputs of the last one as
    the steps came, in a tuple or packed.
    """
    first = tuple([as_variable(state) for state in states])
    counts = xs.counts if isinstance(xs, PackedSequences) else [len(x) for x in xs]
    directions = 2 if both else 1
    if not counts or counts != sorted(counts, reverse=True):
        raise ValueError(
            f"{who}: each step has as many sequences as the one before or fewer, not {counts}: "
            "put the longest sequence first, and pass what F.transpose_sequence makes of them"
        )
    if any(
        s.shape[:2] != (n_layers * directions, first[0].shape[1]) or s.shape[1] < counts[0]
        for s in first
    ):
        raise ValueError(
            f"{who}: states of {n_layers} layers in {directions} directions over {counts[0]} "
            "sequences are "
            f"({n_layers * directions}, {counts[0]}, H), not "
            f"{show_shapes([state.shape for state in first])}"
        )
    rows = PackedSequences.of_steps(xs).rows
    last: list[tuple[Variable, ...]] = []
    for k in range(n_layers):
        found = []
        if k:
            rows = dropout(rows, ratio)
        for d in range(directions):
            i = k * directions + d
            if wrong := [v.shape for v in (*ws[i], *bs[i]) if v.shape[:1] != first[0].shape[2:]]:
                raise ValueError(
                    f"{who}: {wrong[0]} begins with another length than H = "
                    f"{first[0].shape[2]} of the states"
                )
            made = layer(ws[i], bs[i])
            x = linear(rows, made.W, made.bias)
            hs, *ends = over_time(
                made, x, tuple([state[i] for state in first]), counts, backwards=bool(d)
            )
            found.append(hs)
            last.append(tuple(ends))
        rows = found[0] if directions == 1 else concat(found, axis=1)
    finals = tuple([stack([ends[j] for ends in last]) for j in range(len(first))])
    outputs = PackedSequences(rows, counts)
    return finals, outputs if isinstance(xs, PackedSequences) else outputs.steps


def _lstm_layer(w: Weights, b: Weights) -> Layer:
    return Layer(
        LSTMStep,
        _lstm_step,
        concat(list(w[:4]), axis=0),  # (4 H, D)
        None,
        concat(list(w[4:]), axis=0),  # (4 H, H)
        concat([b[k] + b[k + 4] for k in range(4)], axis=0),
    )


def _lstm_step(U: Variable, bias: Variable) -> Step:
    def step(x: Variable, states: tuple[Variable, ...]) -> tuple[Variable, ...]:
        h, c = states
        c, h = LSTMCell().apply((c, x + linear(h, U, bias)))
        return h, c

    return step


def _gru_layer(w: Weights, b: Weights) -> Layer:
    return Layer(
        GRUStep,
        _gru_step,
        concat(list(w[:3]), axis=0),  # (3 H, D)
        concat(list(b[:3]), axis=0),
        concat(list(w[3:]), axis=0),  # (3 H, H)
        concat(list(b[3:]), axis=0),
    )


def _gru_step(U: Variable, state_bias: Variable) -> Step:
    H = U.shape[1]

    def step(x: Variable, states: tuple[Variable, ...]) -> tuple[Variable, ...]:
        (h,) = states
        y = linear(h, U, state_bias)
        gates = sigmoid(x[:, : 2 * H] + y[:, : 2 * H])
        r = gates[:, :H]
        z = gates[:, H:]
        new = tanh(x[:, 2 * H :] + r * y[:, 2 * H :])
        return (new + z * (h - new),)

    return step


def _rnn_layer(activation: str) -> MakeLayer:
    check_option("n_step_rnn", "activation", activation, "tanh", "relu")
    bend = tanh if activation == "tanh" else relu
    cell = Plain if activation == "tanh" else PlainRelu

    def step(U: Variable, bias: Variable) -> Step:
        return lambda x, states: (bend(x + linear(states[0], U, bias)),)

    return lambda w, b: Layer(
        cell, step, as_variable(w[0]), None, as_variable(w[1]), as_variable(b[0] + b[1])
    )


def n_step_lstm(
    n_layers: int,
    dropout_ratio: float,
    hx: Variable | Array,
    cx: Variable | Array,
    ws: Sequence[Weights],
    bs: Sequence[Weights],
    xs: Sequence[Variable | Array],
) -> tuple[Variable, Variable, tuple[Variable, ...]]:
    """Long short-term memory of several layers over sequences.

    i = σ(W₀x + W₄h + b₀ + b₄), f = σ(W₁x + W₅h + b₁ + b₅), a = tanh(W₂x + W₆h + b₂ + b₆), o = σ(W₃x
    + W₇h + b₃ + b₇), c ← f c + i a, h ← o tanh(c).

    Args:
        n_layers: S.
        dropout_ratio: of what goes from layer to layer.
        hx, cx: first states ``(S, N, H)``.
        ws: for each layer the eight W, the first four ``(H, D)`` (of the first layer, then ``(H,
            H)``), the others ``(H, H)``.
        bs: for each layer the eight b, ``(H,)``.
        xs: T steps ``(N_t, D)``, with the inputs of the N_t sequences that are still running: the
            longest come first. :func:`transpose_sequence` makes steps of sequences, and sequences
            of steps.

    Returns:
        The last states ``(S, N, H)`` twice, and a tuple of T outputs ``(N_t, H)``.

    Raises:
        ValueError: a step has more sequences than the one before, or shapes do not belong together.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> ws, bs = [[np.ones((2, 3))] * 4 + [np.ones((2, 2))] * 4], [[np.zeros(2)] * 8]
        >>> hx = np.zeros((1, 2, 2))
        >>> hy, cy, ys = F.n_step_lstm(
        ...     1, 0.0, hx, hx, ws, bs, [np.ones((2, 3)), np.ones((1, 3)), np.ones((1, 3))]
        ... )
        >>> hy.shape, [y.shape for y in ys]
        ((1, 2, 2), [(2, 2), (1, 2), (1, 2)])
    """
    (hy, cy), ys = _n_step(
        "n_step_lstm", n_layers, dropout_ratio, (hx, cx), ws, bs, xs, False, _lstm_layer
    )
    return hy, cy, ys


def n_step_bilstm(
    n_layers: int,
    dropout_ratio: float,
    hx: Variable | Array,
    cx: Variable | Array,
    ws: Sequence[Weights],
    bs: Sequence[Weights],
    xs: Sequence[Variable | Array],
) -> tuple[Variable, Variable, tuple[Variable, ...]]:
    """:func:`n_step_lstm` in both directions: states ``(2 S, N, H)``, of each layer forward, then
    backward; ys ``(N_t, 2 H)``.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> ws, bs = [[np.ones((2, 3))] * 4 + [np.ones((2, 2))] * 4] * 2, [[np.zeros(2)] * 8] * 2
        >>> hx = np.zeros((2, 1, 2))
        >>> F.n_step_bilstm(1, 0.0, hx, hx, ws, bs, [np.ones((1, 3))] * 4)[2][0].shape
        (1, 4)
    """
    (hy, cy), ys = _n_step(
        "n_step_bilstm", n_layers, dropout_ratio, (hx, cx), ws, bs, xs, True, _lstm_layer
    )
    return hy, cy, ys


def n_step_gru(
    n_layers: int,
    dropout_ratio: float,
    hx: Variable | Array,
    ws: Sequence[Weights],
    bs: Sequence[Weights],
    xs: Sequence[Variable | Array],
) -> tuple[Variable, tuple[Variable, ...]]:
    """Gated recurrent units of several layers over sequences (Cho et al. 2014, with the reset after
    the product, as cuDNN).

    r = σ(W₀x + W₃h + b₀ + b₃), z = σ(W₁x + W₄h + b₁ + b₄), h̄ = tanh(W₂x + b₂ + r (W₅h + b₅)), h ←
    (1 − z) h̄ + z h.

    Args:
        n_layers, dropout_ratio, hx, xs: as in :func:`n_step_lstm`.
        ws, bs: for each layer six W and six b.

    Returns:
        The last states ``(S, N, H)``, and a tuple of T outputs ``(N_t, H)``.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> ws, bs = [[np.ones((2, 3))] * 3 + [np.ones((2, 2))] * 3], [[np.zeros(2)] * 6]
        >>> hy, ys = F.n_step_gru(1, 0.0, np.zeros((1, 1, 2)), ws, bs, [np.ones((1, 3))] * 4)
        >>> hy.shape, ys[0].shape
        ((1, 1, 2), (1, 2))
    """
    (hy,), ys = _n_step("n_step_gru", n_layers, dropout_ratio, (hx,), ws, bs, xs, False, _gru_layer)
    return hy, ys


def n_step_bigru(
    n_layers: int,
    dropout_ratio: float,
    hx: Variable | Array,
    ws: Sequence[Weights],
    bs: Sequence[Weights],
    xs: Sequence[Variable | Array],
) -> tuple[Variable, tuple[Variable, ...]]:
    """:func:`n_step_gru` in both directions, as :func:`n_step_bilstm`.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> ws, bs = [[np.ones((2, 3))] * 3 + [np.ones((2, 2))] * 3] * 2, [[np.zeros(2)] * 6] * 2
        >>> F.n_step_bigru(1, 0.0, np.zeros((2, 1, 2)), ws, bs, [np.ones((1, 3))] * 4)[1][0].shape
        (1, 4)
    """
    (hy,), ys = _n_step(
        "n_step_bigru", n_layers, dropout_ratio, (hx,), ws, bs, xs, True, _gru_layer
    )
    return hy, ys


def n_step_rnn(
    n_layers: int,
    dropout_ratio: float,
    hx: Variable | Array,
    ws: Sequence[Weights],
    bs: Sequence[Weights],
    xs: Sequence[Variable | Array],
    activation: str = "tanh",
) -> tuple[Variable, tuple[Variable, ...]]:
    """Plain recurrent layers over sequences: h ← f(W₀x + W₁h + b₀ + b₁).

    Args:
        n_layers, dropout_ratio, hx, xs: as in :func:`n_step_lstm`.
        ws, bs: for each layer two W and two b.
        activation: f, ``'tanh'`` or ``'relu'``.

    Returns:
        The last states ``(S, N, H)``, and a tuple of T outputs ``(N_t, H)``.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> ws, bs = [[np.ones((2, 3)), np.ones((2, 2))]], [[np.zeros(2)] * 2]
        >>> F.n_step_rnn(1, 0.0, np.zeros((1, 1, 2)), ws, bs, [np.ones((1, 3))] * 4, "relu")[
        ...     0
        ... ].array[0, 0]
        array([45., 45.])
    """
    (hy,), ys = _n_step(
        "n_step_rnn", n_layers, dropout_ratio, (hx,), ws, bs, xs, False, _rnn_layer(activation)
    )
    return hy, ys


def n_step_birnn(
    n_layers: int,
    dropout_ratio: float,
    hx: Variable | Array,
    ws: Sequence[Weights],
    bs: Sequence[Weights],
    xs: Sequence[Variable | Array],
    activation: str = "tanh",
) -> tuple[Variable, tuple[Variable, ...]]:
    """:func:`n_step_rnn` in both directions, as :func:`n_step_bilstm`.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> ws, bs = [[np.ones((2, 3)), np.ones((2, 2))]] * 2, [[np.zeros(2)] * 2] * 2
        >>> F.n_step_birnn(1, 0.0, np.zeros((2, 1, 2)), ws, bs, [np.ones((1, 3))] * 4)[1][0].shape
        (1, 4)
    """
    (hy,), ys = _n_step(
        "n_step_birnn", n_layers, dropout_ratio, (hx,), ws, bs, xs, True, _rnn_layer(activation)
    )
    return hy, ys
