"""The cell of a gated recurrent unit as arrays, in one pass forward and one backward.

r = σ(x_r + y_r), z = σ(x_z + y_z), n = tanh(x_n + r y_n),  h = n + z (h' − n), of what is computed
of the input, x, and of the last state, y.
"""

from __future__ import annotations

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.kernels.compiler import Matrix, compiled
from mnpar.kernels.over_time import Cell
from mnpar.kernels.scalar import logistic, tanh

# each row is written by a loop of its own, as in lstm.py


@compiled
def _step(x: Matrix, y: Matrix, before: Matrix, gates: Matrix, inner: Matrix, h: Matrix) -> None:
    H = h.shape[1]
    for k in range(h.shape[0]):
        for j in range(2 * H):
            gates[k, j] = logistic(x[k, j] + y[k, j])
        for j in range(H):
            inner[k, j] = y[k, j + 2 * H]
        for j in range(H):
            h[k, j] = tanh(x[k, j + 2 * H] + gates[k, j] * inner[k, j])
        for j in range(H):
            gates[k, j + 2 * H] = h[k, j]
        for j in range(H):
            h[k, j] += gates[k, j + H] * (before[k, j] - h[k, j])


def _step_twin(x: Array, y: Array, before: Array, gates: Array, inner: Array, h: Array) -> None:
    xp = backend.get_array_module(x)
    H = h.shape[1]
    rz = gates[:, : 2 * H]
    r, z, new = [gates[:, k * H : (k + 1) * H] for k in range(3)]
    xp.add(x[:, : 2 * H], y[:, : 2 * H], out=rz)
    xp.negative(rz, out=rz)
    with np.errstate(over="ignore"):
        xp.exp(rz, out=rz)
    rz += 1
    xp.divide(1, rz, out=rz)
    inner[...] = y[:, 2 * H :]
    xp.multiply(r, inner, out=new)
    new += x[:, 2 * H :]
    xp.tanh(new, out=new)
    xp.subtract(before, new, out=h)
    h *= z
    h += new


@compiled
def _step_gradient(
    gates: Matrix, before: Matrix, inner: Matrix, gy: Matrix, gh: Matrix, gx: Matrix, gp: Matrix
) -> None:
    H = inner.shape[1]
    for k in range(inner.shape[0]):
        for j in range(H):
            gh[k, j] += gy[k, j]
        for j in range(H):
            new = gates[k, j + 2 * H]
            gx[k, j + 2 * H] = gh[k, j] * (1.0 - gates[k, j + H]) * (1.0 - new * new)
        for j in range(H):
            r = gates[k, j]
            gx[k, j] = gx[k, j + 2 * H] * inner[k, j] * r * (1.0 - r)
        for j in range(H):
            z = gates[k, j + H]
            gx[k, j + H] = gh[k, j] * (before[k, j] - gates[k, j + 2 * H]) * z * (1.0 - z)
        for j in range(2 * H):
            gp[k, j] = gx[k, j]
        for j in range(H):
            gp[k, j + 2 * H] = gx[k, j + 2 * H] * gates[k, j]
        for j in range(H):
            gh[k, j] *= gates[k, j + H]


def _step_gradient_twin(
    gates: Array, before: Array, inner: Array, gy: Array, gh: Array, gx: Array, gp: Array
) -> None:
    H = inner.shape[1]
    r, z, new = [gates[:, k * H : (k + 1) * H] for k in range(3)]
    gr, gz, gn = [gx[:, k * H : (k + 1) * H] for k in range(3)]
    gh += gy
    gz[...] = before - new
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


class GRUStep(Cell):
    """State h; for each step it keeps r, z and n, and y_n."""

    gates = 3
    kept = (3, 1)
    passes_state = True
    one_gradient = False

    def forward(
        self, x: Array, y: Array, before: list[Array], after: list[Array], kept: list[Array]
    ) -> None:
        step = _step if self.compiled else _step_twin
        step(x, y, before[0], kept[0], kept[1], after[0])

    def backward(
        self,
        before: list[Array],
        after: list[Array],
        kept: list[Array],
        gy: Array,
        gs: list[Array],
        gx: Array,
        gp: Array,
    ) -> None:
        step = _step_gradient if self.compiled else _step_gradient_twin
        step(kept[0], before[0], kept[1], gy, gs[0], gx, gp)
