"""The cell of a gated recurrent unit as arrays, in one pass forward and one backward.

r = σ(x_r + y_r), z = σ(x_z + y_z), n = tanh(x_n + r y_n),  h = n + z (h' − n), of what is computed
of the input, x, and of the last state, y.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.kernels.compiler import formula
from mnpar.kernels.over_time import Cell, CellLoops
from mnpar.kernels.scalar import logistic, tanh

# each row is written by a loop of its own, as in lstm.py


@formula
def gru(x: Any, y: Any, states: Any, first: Any, gates: Any, inner: Any) -> Any:
    """One step of the rows of x; the state is h, of rows from the first on."""
    H = states.shape[2]
    for k in range(x.shape[0]):
        for j in range(2 * H):
            gates[k, j] = logistic(x[k, j] + y[k, j])
        for j in range(H):
            inner[k, j] = y[k, j + 2 * H]
        for j in range(H):
            y[k, j + 2 * H] = tanh(x[k, j + 2 * H] + gates[k, j] * y[k, j + 2 * H])
        for j in range(H):
            gates[k, j + 2 * H] = y[k, j + 2 * H]
        for j in range(H):
            new = gates[k, j + 2 * H]
            states[0, first + k, j] = new + gates[k, j + H] * (states[0, first + k, j] - new)


@formula
def gru_gradient(
    gates: Any, inner: Any, before: Any, start: Any, gy: Any, gs: Any, first: Any, gx: Any, gp: Any
) -> Any:
    """Backward through a step, of which the states before are rows of ``before`` from start on,
    and the gradients of states those from the first on.
    """
    H = gs.shape[2]
    for k in range(gates.shape[0]):
        for j in range(H):
            gs[0, first + k, j] += gy[k, j]
        for j in range(H):
            new = gates[k, j + 2 * H]
            gx[k, j + 2 * H] = gs[0, first + k, j] * (1.0 - gates[k, j + H]) * (1.0 - new * new)
        for j in range(H):
            r = gates[k, j]
            gp[k, j] = gx[k, j + 2 * H] * inner[k, j] * r * (1.0 - r)
        for j in range(H):
            z = gates[k, j + H]
            change = before[0, start + k, j] - gates[k, j + 2 * H]
            gp[k, j + H] = gs[0, first + k, j] * change * z * (1.0 - z)
        for j in range(2 * H):
            gx[k, j] = gp[k, j]
        for j in range(H):
            gp[k, j + 2 * H] = gx[k, j + 2 * H] * gates[k, j]
        for j in range(H):
            gs[0, first + k, j] *= gates[k, j + H]


class GRUStep(Cell):
    """State h; for each step it keeps r, z and n, and y_n."""

    gates = 3
    extra = 1
    one_gradient = False
    loops = CellLoops("gru", gru, gru_gradient)

    @classmethod
    def forward(cls, x: Array, y: Array, states: Array, gates: Array, inner: Array) -> None:
        xp = backend.get_array_module(x)
        H = states.shape[2]
        rz = gates[:, : 2 * H]
        r, z, new = [gates[:, k * H : (k + 1) * H] for k in range(3)]
        xp.add(x[:, : 2 * H], y[:, : 2 * H], out=rz)
        xp.negative(rz, out=rz)
        with np.errstate(over="ignore"):
            xp.exp(rz, out=rz)
        rz += 1
        xp.divide(1, rz, out=rz)
        reset = y[:, 2 * H :]
        inner[...] = reset
        reset *= r
        xp.add(x[:, 2 * H :], reset, out=new)
        xp.tanh(new, out=new)
        h = states[0, : len(x)]
        h -= new
        h *= z
        h += new

    @classmethod
    def backward(
        cls,
        gates: Array,
        inner: Array,
        before: Array,
        start: int,
        gy: Array,
        gs: Array,
        gx: Array,
        gp: Array,
    ) -> None:
        n, H = gy.shape
        r, z, new = [gates[:, k * H : (k + 1) * H] for k in range(3)]
        gr, gz, gn = [gx[:, k * H : (k + 1) * H] for k in range(3)]
        gh = gs[0, :n]
        gh += gy
        gz[...] = before[0, start : start + n] - new
        gz *= z
        gz *= 1 - z
        gz *= gh
        gn[...] = 1 - new * new
        gn *= 1 - z
        gn *= gh
        gr[...] = 1 - r
        gr *= r
        gr *= inner
        gr *= gn
        gp[...] = gx
        gp[:, 2 * H :] *= r
        gh *= z
