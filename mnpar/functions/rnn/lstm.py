"""Recurrent networks: the LSTM's cell, and networks of several layers over sequences of different
lengths.

Sequences come as a list, the longer first; they run side by side, and at each step only those that
are that long. What a layer computes of its inputs alone is one matrix product over all steps of all
sequences. The file is long because there are three kinds of layers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.functions.activation.sigmoid import logistic, sigmoid, tanh
from mnpar.functions.array.get_item import get_item
from mnpar.functions.array.joining import Concat, Stack, concat
from mnpar.functions.node import GenericFunction, show_shapes
from mnpar.kernels.sums import parts
from mnpar.variable import Variable, as_variable


class LSTMCell(GenericFunction):
    """c = σ(f) c' + σ(i) tanh(a),  h = σ(o) tanh(c), of c' (N, H) and the gates (N, 4 H): i, f, a,
    o side by side; ``mixed``: a, i, f, o of the first unit, then of the next.
    """

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
            return Concat(1)(i, f, a, o)
        return Stack(2)(a, i, f, o).reshape((len(i), 4 * i.shape[1], *i.shape[2:]))

    def _again(self, c_prev: Any, gates: Any) -> tuple[tuple[Any, ...], Any]:
        """The gates and the memory as functions of Variables."""
        i, f, a, o = [
            (tanh if k == 2 else sigmoid).generic(gate) for k, gate in enumerate(self._gates(gates))
        ]
        return (i, f, a, o), tanh.generic(f * c_prev + i * a)


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
            f"{show_shapes((c_prev.shape, x.shape))}"
        )
    n = len(x)
    if n == len(c_prev):
        c, h = LSTMCell(mixed=True).apply((c_prev, x))
        return c, h
    now = get_item(c_prev, slice(0, n))
    rest = get_item(c_prev, slice(n, None))
    c, h = LSTMCell(mixed=True).apply((now, x))
    return concat((c, rest), axis=0), h
