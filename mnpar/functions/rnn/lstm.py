"""Long short-term memory: its cell as a function of the memory and the gates."""

from __future__ import annotations

from typing import Any

from mnpar.backend import Array
from mnpar.function_node import InputGradients
from mnpar.functions.activation.sigmoid import sigmoid, tanh
from mnpar.functions.array.get_item import get_item
from mnpar.functions.array.joining import Concat, Stack, concat
from mnpar.functions.node import GenericFunction, Operand, show_shapes
from mnpar.kernels.lstm import lstm_cell, lstm_cell_gradient
from mnpar.variable import Variable, as_variable


class LSTMCell(GenericFunction):
    """c = σ(f) c' + σ(i) tanh(a),  h = σ(o) tanh(c), of c' (N, H) and the gates (N, 4 H): i, f, a,
    o side by side; ``mixed``: a, i, f, o of the first unit, then of the next.
    """

    def __init__(self, mixed: bool = False) -> None:
        self.mixed = mixed

    def _gates(self, gates: Operand) -> list[Operand]:
        """Return the values of i, f, a and o, (N, H) each."""
        H = gates.shape[1] // 4
        if self.mixed:
            return [gates[:, k::4] for k in (1, 2, 0, 3)]
        return [gates[:, k * H : (k + 1) * H] for k in range(4)]

    def forward(self, c_prev: Array, gates: Array) -> tuple[Array, Array]:
        self.retain_inputs((0, 1))
        c, h, self.activated = lstm_cell(c_prev, gates, self._gates, self.mixed)
        return c, h

    def backward(self, gc: Any, gh: Any) -> InputGradients:
        c_prev, gates = self.get_retained_inputs()
        kept: Any = self.activated[:5]
        if isinstance(gates, Variable):
            kept = self._gates_again(c_prev, gates)
        elif (found := lstm_cell_gradient(c_prev, self.activated, gc, gh)) is not None:
            return found
        i, f, a, o, memory = kept
        inside = None if gh is None else gh * o * (1 - memory * memory)
        g = gc if inside is None else inside if gc is None else gc + inside
        shut = o * 0 if gh is None else gh * memory * o * (1 - o)
        parts = g * a * i * (1 - i), g * c_prev * f * (1 - f), g * i * (1 - a * a), shut
        return lambda: g * f, lambda: self._join_gates(*parts)

    def _join_gates(self, i: Operand, f: Operand, a: Operand, o: Operand) -> Operand:
        """The inverse of ``_gates``."""
        if not self.mixed:
            return Concat(1)(i, f, a, o)
        return Stack(2)(a, i, f, o).reshape((len(i), 4 * i.shape[1], *i.shape[2:]))

    def _gates_again(self, c_prev: Variable, gates: Variable) -> tuple[Variable, ...]:
        """The gates and the memory as functions of Variables."""
        i, f, a, o = [
            (tanh if k == 2 else sigmoid).generic(gate) for k, gate in enumerate(self._gates(gates))
        ]
        return i, f, a, o, tanh.generic(f * c_prev + i * a)


def lstm(c_prev: Variable | Array, x: Variable | Array) -> tuple[Variable, Variable]:
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
