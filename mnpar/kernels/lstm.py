"""The cell of long short-term memory as arrays: of many cells in blocks that stay in the cache."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.kernels import tuning
from mnpar.kernels.logistic import logistic
from mnpar.kernels.sums import even_slices

Gates = tuple[Array, Array, Array, Array]


def lstm_cell(
    c_prev: Array, gates: Array, split: Callable[[Array], list[Array]]
) -> tuple[Array, Array, Gates, Array]:
    """Compute c = σ(f) c' + σ(i) tanh(a) and h = σ(o) tanh(c).

    Args:
        c_prev: c', (N, H).
        gates: (N, 4 H), before the activations.
        split: takes gates apart into i, f, a and o, (N, H) each.

    Returns:
        c, h, the activated gates i, f, a, o, and tanh(c), which backward needs.
    """
    large = gates.nbytes > tuning.LSTM_BLOCKED_BYTES
    if large and gates.dtype == c_prev.dtype and gates.dtype.char in "fd":
        return _in_blocks(c_prev, gates, split)
    xp = backend.get_array_module(gates)
    i, f, _, o = split(logistic(gates))  # a's too: one pass over all is faster than three
    a = xp.tanh(split(gates)[2])
    c = f * c_prev + i * a
    memory = xp.tanh(c)
    return c, o * memory, (i, f, a, o), memory


def _in_blocks(
    c_prev: Array, gates: Array, split: Callable[[Array], list[Array]]
) -> tuple[Array, Array, Gates, Array]:
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
    return c, h, (ifo[0], ifo[1], a, ifo[2]), memory
