"""The cell of long short-term memory as arrays, in one pass forward and one backward.

c = σ(f) c' + σ(i) tanh(a),  h = σ(o) tanh(c), of c' and the gates i, f, a, o of each unit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.kernels import tuning
from mnpar.kernels.compiler import Cube, Matrix, compiled, contiguous, formula, suits
from mnpar.kernels.logistic import logistic
from mnpar.kernels.over_time import Cell, CellLoops
from mnpar.kernels.scalar import logistic as logistic_of, tanh as tanh_of
from mnpar.kernels.sums import even_slices

# ---- one step of a sequence: gates one after the other ----


# A loop that writes several rows is computed number by number: the compiler cannot tell that they
# do not overlap. So each row is written by a loop of its own; it stays in the cache between them.


@formula
def lstm(x: Any, y: Any, states: Any, first: Any, gates: Any, memory: Any) -> Any:
    """One step of the rows of x; the states are h and c, of rows from the first on."""
    H = states.shape[2]
    for n in range(x.shape[0]):
        for j in range(2 * H):
            gates[n, j] = logistic_of(x[n, j] + y[n, j])
        for j in range(H):
            gates[n, j + 2 * H] = tanh_of(x[n, j + 2 * H] + y[n, j + 2 * H])
        for j in range(H):
            gates[n, j + 3 * H] = logistic_of(x[n, j + 3 * H] + y[n, j + 3 * H])
        for j in range(H):
            states[1, first + n, j] = (
                gates[n, j + H] * states[1, first + n, j] + gates[n, j] * gates[n, j + 2 * H]
            )
        for j in range(H):
            memory[n, j] = tanh_of(states[1, first + n, j])
        for j in range(H):
            states[0, first + n, j] = gates[n, j + 3 * H] * memory[n, j]


@formula
def lstm_gradient(
    gates: Any, memory: Any, before: Any, start: Any, gy: Any, gs: Any, first: Any, gx: Any, gp: Any
) -> Any:
    """Backward through a step, of which the states before are rows of ``before`` from start on,
    and the gradients of states those from the first on.
    """
    H = gs.shape[2]
    for n in range(gates.shape[0]):
        for j in range(H):
            gs[0, first + n, j] += gy[n, j]
        for j in range(H):
            gx[n, j + 3 * H] = gs[0, first + n, j] * gates[n, j + 3 * H]
        for j in range(H):
            m = memory[n, j]
            gs[1, first + n, j] += gx[n, j + 3 * H] * (1.0 - m * m)
        for j in range(H):
            i = gates[n, j]
            gx[n, j] = gs[1, first + n, j] * gates[n, j + 2 * H] * i * (1.0 - i)
        for j in range(H):
            f = gates[n, j + H]
            gx[n, j + H] = gs[1, first + n, j] * before[1, start + n, j] * f * (1.0 - f)
        for j in range(H):
            a = gates[n, j + 2 * H]
            gx[n, j + 2 * H] = gs[1, first + n, j] * gates[n, j] * (1.0 - a * a)
        for j in range(H):
            gx[n, j + 3 * H] *= memory[n, j] * (1.0 - gates[n, j + 3 * H])
        for j in range(H):
            gs[1, first + n, j] *= gates[n, j + H]
        for j in range(H):
            gs[0, first + n, j] = 0.0


class LSTMStep(Cell):
    """States h and c; for each step it keeps the gates i, f, a and o, and tanh(c)."""

    gates = 4
    states = 2
    extra = 1
    loops = CellLoops("lstm", lstm, lstm_gradient)

    @classmethod
    def forward(cls, x: Array, y: Array, states: Array, gates: Array, memory: Array) -> None:
        xp = backend.get_array_module(x)
        h, c = states[:, : len(x)]
        H = states.shape[2]
        xp.add(x, y, out=gates)
        i, f, a, o = [gates[:, k * H : (k + 1) * H] for k in range(4)]
        xp.tanh(a, out=memory)
        xp.negative(gates, out=gates)  # a's too: one pass over all is faster than three
        with np.errstate(over="ignore"):
            xp.exp(gates, out=gates)
        gates += 1
        xp.divide(1, gates, out=gates)
        a[...] = memory
        c *= f
        xp.multiply(i, a, out=h)
        c += h
        xp.tanh(c, out=memory)
        xp.multiply(o, memory, out=h)

    @classmethod
    def backward(
        cls,
        gates: Array,
        memory: Array,
        before: Array,
        start: int,
        gy: Array,
        gs: Array,
        gx: Array,
        gp: Array,
    ) -> None:
        n, H = gy.shape
        i, f, a, o = [gates[:, k * H : (k + 1) * H] for k in range(4)]
        gi, gf, ga, go = [gx[:, k * H : (k + 1) * H] for k in range(4)]
        gh, gc = gs[:, :n]
        gh += gy
        gh *= o
        go[...] = 1 - o
        go *= gh
        go *= memory
        gh *= 1 - memory * memory
        gc += gh
        gi[...] = 1 - i
        gi *= i
        gi *= a
        gi *= gc
        gf[...] = 1 - f
        gf *= f
        gf *= before[1, start : start + n]
        gf *= gc
        ga[...] = 1 - a * a
        ga *= i
        ga *= gc
        gc *= f
        gh[...] = 0


# ---- a cell by itself: gates of each unit side by side ----


@compiled
def _cell(x: Cube, before: Matrix, gates: Cube, memory: Matrix, c: Matrix, h: Matrix) -> None:
    H = c.shape[1]
    for n in range(c.shape[0]):
        for j in range(H):
            gates[n, 0, j] = x[n, j, 0]
            gates[n, 1, j] = x[n, j, 1]
            gates[n, 2, j] = x[n, j, 2]
            gates[n, 3, j] = x[n, j, 3]
        for j in range(H):
            gates[n, 0, j] = tanh_of(gates[n, 0, j])
        for k in range(1, 4):
            for j in range(H):
                gates[n, k, j] = logistic_of(gates[n, k, j])
        for j in range(H):
            c[n, j] = gates[n, 2, j] * before[n, j] + gates[n, 1, j] * gates[n, 0, j]
        for j in range(H):
            memory[n, j] = tanh_of(c[n, j])
        for j in range(H):
            h[n, j] = gates[n, 3, j] * memory[n, j]


@compiled
def _cell_gradient(
    gates: Cube, before: Matrix, memory: Matrix, gc: Matrix, gh: Matrix, gx: Cube, gb: Matrix
) -> None:
    H = memory.shape[1]
    for n in range(memory.shape[0]):
        for j in range(H):
            m = memory[n, j]
            gb[n, j] = gc[n, j] + gh[n, j] * gates[n, 3, j] * (1.0 - m * m)
        for j in range(H):
            a, i, f, o = gates[n, 0, j], gates[n, 1, j], gates[n, 2, j], gates[n, 3, j]
            g = gb[n, j]
            gx[n, j, 0] = g * i * (1.0 - a * a)
            gx[n, j, 1] = g * a * i * (1.0 - i)
            gx[n, j, 2] = g * before[n, j] * f * (1.0 - f)
            gx[n, j, 3] = gh[n, j] * memory[n, j] * o * (1.0 - o)
        for j in range(H):
            gb[n, j] *= gates[n, 2, j]


class Activated(NamedTuple):
    """The values that a cell's backward needs.

    Args:
        i, f, a, o: the activated gates, (N, H) each.
        memory: tanh(c).
        together: the gates in one array (N, 4, H), a first, of which the others are parts; None:
            they are in several.
    """

    i: Array
    f: Array
    a: Array
    o: Array
    memory: Array
    together: Array | None = None


def lstm_cell(
    c_prev: Array, gates: Array, split: Callable[[Array], list[Array]], mixed: bool
) -> tuple[Array, Array, Activated]:
    """Compute c = σ(f) c' + σ(i) tanh(a) and h = σ(o) tanh(c).

    Args:
        c_prev: c', (N, H, …).
        gates: (N, 4 H, …), before the activations.
        split: takes gates apart into i, f, a and o, (N, H, …) each.
        mixed: the gates a, i, f, o of each unit are side by side.

    Returns:
        c, h, and what backward needs.
    """
    if mixed and gates.ndim == 2 and suits(gates, c_prev):
        N, H = c_prev.shape
        together = np.empty((N, 4, H), gates.dtype)
        c, h, memory = [np.empty_like(c_prev) for _ in range(3)]
        _cell(gates.reshape(N, H, 4), c_prev, together, memory, c, h)
        a, i, f, o = [together[:, k] for k in range(4)]
        return c, h, Activated(i, f, a, o, memory, together)
    large = gates.nbytes > tuning.LSTM_BLOCKED_BYTES
    if large and gates.dtype == c_prev.dtype and gates.dtype.char in "fd":
        return _in_blocks(c_prev, gates, split)
    xp = backend.get_array_module(gates)
    i, f, _, o = split(logistic(gates))  # a's too: one pass over all is faster than three
    a = xp.tanh(split(gates)[2])
    c = f * c_prev + i * a
    memory = xp.tanh(c)
    return c, o * memory, Activated(i, f, a, o, memory)


def _in_blocks(
    c_prev: Array, gates: Array, split: Callable[[Array], list[Array]]
) -> tuple[Array, Array, Activated]:
    xp = backend.get_array_module(gates)
    ifo = xp.empty((3, *c_prev.shape), c_prev.dtype)  # each gate's values side by side
    a, c, memory, h = [xp.empty(c_prev.shape, c_prev.dtype) for _ in range(4)]
    n = max(1, backend.block_bytes(gates) // 8 // gates[:1].nbytes)
    for k in even_slices(len(gates), n):
        (i, f, new, o), z = split(gates[k]), ifo[:, k]
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
    return c, h, Activated(ifo[0], ifo[1], a, ifo[2], memory)


def lstm_cell_gradient(
    c_prev: Array, kept: Activated, gc: Array | None, gh: Array | None
) -> tuple[Array, Array] | None:
    """Return the gradients of c' and of the gates by one loop; None where
    :func:`lstm_cell` did not compute by a loop, h has no gradient, or an array does not suit one.
    """
    # without a gradient of h nothing comes from it, not even 0 times NaN
    if kept.together is None or gh is None:
        return None
    gh = contiguous(gh)
    gc = np.zeros_like(kept.memory) if gc is None else contiguous(gc)
    if not suits(kept.together, c_prev, gc, gh):
        return None
    N, H = c_prev.shape
    gx = np.empty((N, H, 4), c_prev.dtype)
    gb = np.empty_like(c_prev)
    _cell_gradient(kept.together, c_prev, kept.memory, gc, gh, gx, gb)
    return gb, gx.reshape(N, 4 * H)
