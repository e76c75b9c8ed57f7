"""Recurrent networks: the LSTM's cell, and networks of several layers over sequences of different
lengths.

Sequences come as a list, the longer first; they run side by side, and at each step only those that
are that long. What a layer computes of its inputs alone is one matrix product over all steps of all
sequences. The file is long because there are three kinds of layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.function_node import FunctionNode
from mnpar.functions.activation import Sigmoid, Tanh, logistic, relu, sigmoid, tanh
from mnpar.functions.generic import check_option, either, listed
from mnpar.functions.indexing import get_item
from mnpar.functions.joining import Concat, Stack, concat, split_axis, stack
from mnpar.functions.noise import dropout
from mnpar.functions.products import linear
from mnpar.functions.rows import parts
from mnpar.variable import Variable, as_variable


class LSTMCell(FunctionNode):
    """c = σ(f) c' + σ(i) tanh(a),  h = σ(o) tanh(c), of c' (N, H) and the gates (N, 4 H): i, f, a,
    o side by side; ``mixed``: a, i, f, o of the first unit, then of the next.
    """

    generic = True

    def __init__(self, mixed: bool = False) -> None:
        self.mixed = mixed

    def _gates(self, gates: Any) -> list[Any]:
        """Those of i, f, a and o, (N, H) each."""
        H = gates.shape[1] // 4
        if self.mixed:
            return [gates[:, k::4] for k in (1, 2, 0, 3)]
        return [gates[:, k * H : (k + 1) * H] for k in range(4)]

    def forward(self, c_prev: Array, gates: Array) -> tuple[Array, Array]:
        self.retain_inputs((0, 1))
        if gates.nbytes > 2**15 and gates.dtype == c_prev.dtype and gates.dtype.char in "fd":
            return self._blocked(c_prev, gates)
        xp = backend.get_array_module(gates)
        # the new memory's too: one pass over all is faster than four
        i, f, _, o = self._gates(logistic(gates))
        a = xp.tanh(self._gates(gates)[2])
        c = f * c_prev + i * a
        self.memory = xp.tanh(c)
        self.gates = i, f, a, o
        return c, o * self.memory

    def _blocked(self, c_prev: Array, gates: Array) -> tuple[Array, Array]:
        """``forward`` of many cells: in blocks that stay in the cache, each gate's values side by
        side.
        """
        xp = backend.get_array_module(gates)
        ifo = xp.empty((3, *c_prev.shape), c_prev.dtype)
        a, c, memory, h = [xp.empty(c_prev.shape, c_prev.dtype) for _ in range(4)]
        n = max(1, backend.block_bytes(gates) // 8 // gates[:1].nbytes)
        for k in parts(len(gates), n):
            (i, f, new, o), z = self._gates(gates[k]), ifo[:, k]
            for gate, to in zip((i, f, o), z, strict=True):
                xp.negative(gate, out=to)
            with np.errstate(over="ignore"):
                xp.exp(z, out=z)
            z += 1
            xp.divide(1, z, out=z)
            a[k] = new
            xp.tanh(a[k], out=a[k])
            xp.multiply(z[1], c_prev[k], out=c[k])
            c[k] += z[0] * a[k]
            xp.multiply(z[2], xp.tanh(c[k], out=memory[k]), out=h[k])
        self.gates, self.memory = (ifo[0], ifo[1], a, ifo[2]), memory
        return c, h

    def backward(self, gc: Any, gh: Any) -> Any:
        c_prev, gates = self.get_retained_inputs()
        (i, f, a, o), memory = (
            self._again(c_prev, gates) if isinstance(gates, Variable) else (self.gates, self.memory)
        )
        inside = None if gh is None else gh * o * (1 - memory * memory)
        g = gc if inside is None else inside if gc is None else gc + inside
        shut = o * 0 if gh is None else gh * memory * o * (1 - o)
        parts = g * a * i * (1 - i), g * c_prev * f * (1 - f), g * i * (1 - a * a), shut
        return lambda: g * f, lambda: self._together(*parts)

    def _together(self, i: Any, f: Any, a: Any, o: Any) -> Any:
        """The inverse of ``_gates``."""
        if not self.mixed:
            return either(Concat(1), i, f, a, o)
        return either(Stack(2), a, i, f, o).reshape((len(i), 4 * i.shape[1], *i.shape[2:]))

    def _again(self, c_prev: Any, gates: Any) -> tuple[tuple[Any, ...], Any]:
        """The gates and the memory as functions of Variables."""
        i, f, a, o = [
            either(Tanh() if k == 2 else Sigmoid(), gate)
            for k, gate in enumerate(self._gates(gates))
        ]
        return (i, f, a, o), either(Tanh(), f * c_prev + i * a)


def lstm(c_prev: Any, x: Any) -> tuple[Variable, Variable]:
    """One step of long short-term memory: c = σ(f) c' + σ(i) tanh(a),  h = σ(o) tanh(c).

    Args:
        c_prev: the memory c', ``(N, H)`` or, of images, ``(N, H, …)``. If it has more samples than
            ``x``, the last ones stay as they are.
        x: the gates, ``(n, 4 H, …)``: of each unit a, i, f, o, one after the other.

    Returns:
        The memory ``(N, H, …)`` and the output ``(n, H, …)``.

    Raises:
        ValueError: the shapes do not belong together.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> c, h = F.lstm(np.zeros((1, 1)), np.array([[0.0, 100.0, 0.0, 100.0]]))
        >>> c.item(), h.item()
        (0.0, 0.0)

    Source:
        Hochreiter and Schmidhuber 1997, with the forget gates of Gers, Schmidhuber and Cummins
        2000.
    """
    c_prev = as_variable(c_prev)
    x = as_variable(x)
    if (
        c_prev.ndim < 2
        or x.shape[1:] != (4 * c_prev.shape[1], *c_prev.shape[2:])
        or len(x) > len(c_prev)
    ):
        raise ValueError(
            "lstm: memory (N, H, …) and gates (n, 4 H, …) with n ≤ N, not "
            f"{listed((c_prev.shape, x.shape))}"
        )
    n = len(x)
    if n == len(c_prev):
        c, h = LSTMCell(mixed=True).apply((c_prev, x))
        return c, h
    now = get_item(c_prev, slice(0, n))
    rest = get_item(c_prev, slice(n, None))
    c, h = LSTMCell(mixed=True).apply((now, x))
    return concat((c, rest), axis=0), h


Step = Callable[[Any, tuple[Any, ...]], tuple[Any, ...]]
"""From what a layer computed of a step's inputs, and its states before, to its states after: the
first is the output.
"""


def _over_time(
    step: Step, inputs: Sequence[Any], states: tuple[Any, ...], backwards: bool
) -> tuple[list[Any], tuple[Any, ...]]:
    """Run a layer over the steps: its outputs at each, and the states of all sequences after their
    last one.
    """
    now = list(states)
    outputs = [None] * len(inputs)
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
    states: tuple[Any, ...],
    ws: Any,
    bs: Any,
    xs: Sequence[Any],
    both: bool,
    layer: Callable[[Any, Any], tuple[Callable[[Any], Any], Step]],
) -> tuple[Any, ...]:
    """All layers, in one direction or both: their last states and the outputs of the last one."""
    steps = [as_variable(x) for x in xs]
    states = tuple([as_variable(state) for state in states])
    counts = [len(x) for x in steps]
    directions = 2 if both else 1
    if not steps or counts != sorted(counts, reverse=True):
        raise ValueError(
            f"{who}: each step has as many sequences as the one before or fewer, not {counts}: "
            "put the longest sequence first, "
            "and give its functions.transpose_sequence"
        )
    if any(
        s.shape[:2] != (n_layers * directions, states[0].shape[1]) or s.shape[1] < counts[0]
        for s in states
    ):
        raise ValueError(
            f"{who}: states of {n_layers} layers in {directions} directions over {counts[0]} "
            "sequences are "
            f"({n_layers * directions}, {counts[0]}, H), not "
            f"{listed([state.shape for state in states])}"
        )
    cuts = [sum(counts[:t]) for t in range(1, len(steps))]
    last: list[tuple[Any, ...]] = []
    for k in range(n_layers):
        found = []
        if k:
            steps = [dropout(s, ratio) for s in steps]
        rows = concat(steps, axis=0)  # all inputs, step by step
        for d in range(directions):
            i = k * directions + d
            if wrong := [v.shape for v in (*ws[i], *bs[i]) if v.shape[:1] != states[0].shape[2:]]:
                raise ValueError(
                    f"{who}: {wrong[0]} begins with another length than H = "
                    f"{states[0].shape[2]} of the states"
                )
            project, step = layer(ws[i], bs[i])
            inputs = list(split_axis(project(rows), cuts, 0))  # type: ignore[arg-type]
            outputs, ends = _over_time(
                step, inputs, tuple([state[i] for state in states]), backwards=bool(d)
            )
            found.append(outputs)
            last.append(ends)
        steps = (
            found[0]
            if directions == 1
            else [concat(pair, axis=1) for pair in zip(*found, strict=True)]
        )
    finals = tuple([stack([ends[j] for ends in last]) for j in range(len(states))])
    return (*finals, tuple(steps))


def transpose_back(steps: Sequence[Variable], lengths: Sequence[int]) -> tuple[Variable, ...]:
    """From one array for each step to one for each sequence."""
    starts = [sum(len(s) for s in steps[:t]) for t in range(len(steps))]
    places = [starts[t] + i for i, n in enumerate(lengths) for t in range(n)]
    rows = concat(list(steps), axis=0)[rows_at(steps[0], places)]
    cuts = [sum(lengths[:i]) for i in range(1, len(lengths))]
    return tuple(split_axis(rows, cuts, 0))  # type: ignore[arg-type]


def rows_at(like: Variable, places: Sequence[int]) -> Array:
    """Row numbers, beside an array."""
    return like.xp.asarray(places, "i8")


def _lstm_layer(w: Any, b: Any) -> tuple[Callable[[Any], Any], Step]:
    # (4 H, D), (4 H, H)
    W = concat(list(w[:4]), axis=0)
    U = concat(list(w[4:]), axis=0)
    bias = concat([b[k] + b[k + 4] for k in range(4)], axis=0)

    def step(x: Any, states: tuple[Any, ...]) -> tuple[Any, ...]:
        h, c = states
        c, h = LSTMCell().apply((c, x + linear(h, U)))
        return h, c

    return lambda rows: linear(rows, W, bias), step


def _gru_layer(w: Any, b: Any) -> tuple[Callable[[Any], Any], Step]:
    # (3 H, D), (3 H, H)
    W = concat(list(w[:3]), axis=0)
    U = concat(list(w[3:]), axis=0)
    bias = concat(list(b[:3]), axis=0)
    state_bias = concat(list(b[3:]), axis=0)
    H = len(b[0])

    def step(x: Any, states: tuple[Any, ...]) -> tuple[Any, ...]:
        (h,) = states
        y = linear(h, U, state_bias)
        gates = sigmoid(x[:, : 2 * H] + y[:, : 2 * H])
        r = gates[:, :H]
        z = gates[:, H:]
        new = tanh(x[:, 2 * H :] + r * y[:, 2 * H :])
        return (new + z * (h - new),)

    return lambda rows: linear(rows, W, bias), step


def _rnn_layer(activation: str) -> Callable[[Any, Any], tuple[Callable[[Any], Any], Step]]:
    check_option("n_step_rnn", "activation", activation, "tanh", "relu")
    bend = tanh if activation == "tanh" else relu

    def layer(w: Any, b: Any) -> tuple[Callable[[Any], Any], Step]:
        step: Step = lambda x, states: (bend(x + linear(states[0], w[1])),)
        return lambda rows: linear(rows, w[0], b[0] + b[1]), step

    return layer


def n_step_lstm(
    n_layers: int, dropout_ratio: float, hx: Any, cx: Any, ws: Any, bs: Any, xs: Any
) -> tuple[Any, ...]:
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
    return _n_step("n_step_lstm", n_layers, dropout_ratio, (hx, cx), ws, bs, xs, False, _lstm_layer)


def n_step_bilstm(
    n_layers: int, dropout_ratio: float, hx: Any, cx: Any, ws: Any, bs: Any, xs: Any
) -> tuple[Any, ...]:
    """:func:`n_step_lstm` in both directions: states ``(2 S, N, H)``, of each layer forward, then
    backward; ys ``(N_t, 2 H)``.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> ws, bs = [[np.ones((2, 3))] * 4 + [np.ones((2, 2))] * 4] * 2, [[np.zeros(2)] * 8] * 2
        >>> hx = np.zeros((2, 1, 2))
        >>> F.n_step_bilstm(1, 0.0, hx, hx, ws, bs, [np.ones((1, 3))] * 4)[2][0].shape
        (1, 4)
    """
    return _n_step(
        "n_step_bilstm", n_layers, dropout_ratio, (hx, cx), ws, bs, xs, True, _lstm_layer
    )


def n_step_gru(
    n_layers: int, dropout_ratio: float, hx: Any, ws: Any, bs: Any, xs: Any
) -> tuple[Any, ...]:
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
    return _n_step("n_step_gru", n_layers, dropout_ratio, (hx,), ws, bs, xs, False, _gru_layer)


def n_step_bigru(
    n_layers: int, dropout_ratio: float, hx: Any, ws: Any, bs: Any, xs: Any
) -> tuple[Any, ...]:
    """:func:`n_step_gru` in both directions, as :func:`n_step_bilstm`.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> ws, bs = [[np.ones((2, 3))] * 3 + [np.ones((2, 2))] * 3] * 2, [[np.zeros(2)] * 6] * 2
        >>> F.n_step_bigru(1, 0.0, np.zeros((2, 1, 2)), ws, bs, [np.ones((1, 3))] * 4)[1][0].shape
        (1, 4)
    """
    return _n_step("n_step_bigru", n_layers, dropout_ratio, (hx,), ws, bs, xs, True, _gru_layer)


def n_step_rnn(
    n_layers: int,
    dropout_ratio: float,
    hx: Any,
    ws: Any,
    bs: Any,
    xs: Any,
    activation: str = "tanh",
) -> tuple[Any, ...]:
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
    return _n_step(
        "n_step_rnn", n_layers, dropout_ratio, (hx,), ws, bs, xs, False, _rnn_layer(activation)
    )


def n_step_birnn(
    n_layers: int,
    dropout_ratio: float,
    hx: Any,
    ws: Any,
    bs: Any,
    xs: Any,
    activation: str = "tanh",
) -> tuple[Any, ...]:
    """:func:`n_step_rnn` in both directions, as :func:`n_step_bilstm`.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> ws, bs = [[np.ones((2, 3)), np.ones((2, 2))]] * 2, [[np.zeros(2)] * 2] * 2
        >>> F.n_step_birnn(1, 0.0, np.zeros((2, 1, 2)), ws, bs, [np.ones((1, 3))] * 4)[1][0].shape
        (1, 4)
    """
    return _n_step(
        "n_step_birnn", n_layers, dropout_ratio, (hx,), ws, bs, xs, True, _rnn_layer(activation)
    )
