"""Recurrent layers over whole sequences, arrays in and arrays out: what a cell computes of its
inputs comes for all steps at once, and the gradient of the state's weights is one product over all
steps. Between the steps there are only the products with the state and the cell itself: one
compiled loop over all steps, where the products are those of packed.py.

Sequences lie step by step, one row for each sequence that has this step; the longest are first. The
states of all sequences, (states, N, H), are overwritten at each step, the rows of those that have
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, ClassVar

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.kernels import activation
from mnpar.kernels.blas import product
from mnpar.kernels.compiler import Cube, Formula, Integers, Loop, Matrix, Vector, suits
from mnpar.kernels.packed import PackedMatrix, multiply_rows
from mnpar.kernels.side_by_side import run_loop, threads_for
from mnpar.kernels.sums import sum_over
from mnpar.kernels.translation import Entry

_cell: Any = None  # stands for a cell's formula in the loops below


def _step(x: Matrix, y: Matrix, states: Cube, gates: Matrix, extra: Matrix) -> None:
    _cell(x, y, states, 0, gates, extra)


def _gradient(
    gates: Matrix,
    extra: Matrix,
    before: Cube,
    start: int,
    gy: Matrix,
    gs: Cube,
    gx: Matrix,
    gp: Matrix,
) -> None:
    _cell(gates, extra, before, start, gy, gs, 0, gx, gp)


def _all_steps(
    x: Matrix,
    panels: Cube,
    bias: Vector,
    starts: Integers,
    counts: Integers,
    states: Cube,
    before: Cube,
    gates: Matrix,
    extra: Matrix,
    y: Matrix,
    hs: Matrix,
    keeps: int,
    thread: int,
    first: int,
    last: int,
) -> None:
    """Run a cell over the steps that begin in rows ``starts`` and have ``counts`` of them, for some
    sequences. Unless it ``keeps`` what backward needs, ``before``, ``gates`` and ``extra`` have
    room for one step.
    """
    S, H = states.shape[0], states.shape[2]
    for k in range(starts.size):
        start, n = starts[k], min(counts[k], last)
        if n <= first:
            continue  # the others have ended, or not begun
        place = start if keeps else 0
        here, there = slice(first, n), slice(place + first, place + n)
        for s in range(S):
            for i in range(first, n):
                for j in range(H):
                    before[s, place + i, j] = states[s, i, j]
        multiply_rows(states[0, here], panels, bias, y[here])
        seen = x[start + first : start + n]
        _cell(seen, y[here], states, first, gates[there], extra[there])
        for i in range(first, n):
            for j in range(H):
                hs[start + i, j] = states[0, i, j]


def _all_gradients(
    gates: Matrix,
    extra: Matrix,
    before: Cube,
    panels: Cube,
    bias: Vector,
    starts: Integers,
    counts: Integers,
    gys: Matrix,
    gs: Cube,
    gx: Matrix,
    gp: Matrix,
    gh: Matrix,
    thread: int,
    first: int,
    last: int,
) -> None:
    """Go backward through the steps, for some sequences; ``bias`` is 0, and ``gh`` room for a
    product.
    """
    for k in range(starts.size - 1, -1, -1):
        n = min(counts[k], last)
        if n <= first:
            continue
        start, end = starts[k] + first, starts[k] + n
        of_step = gates[start:end], extra[start:end]
        _cell(*of_step, before, start, gys[start:end], gs, first, gx[start:end], gp[start:end])
        multiply_rows(gp[start:end], panels, bias, gh[first:n])
        for i in range(first, n):
            for j in range(gh.shape[1]):
                gs[0, i, j] += gh[i, j]


class CellLoops:
    """The compiled loops of a cell.

    Args:
        name: of the cell.
        step, gradient: formulas of arrays that compute what :class:`Cell` calls forward and
            backward.
    """

    def __init__(self, name: str, step: Formula, gradient: Formula) -> None:
        def loop(function: Any, cell: Formula, entry: Entry = "whole") -> Loop:
            called = f"over_time.{name}{function.__name__}"
            return Loop(function, called, {"_cell": cell}, entry=entry)

        self.step, self.gradient = loop(_step, step), loop(_gradient, gradient)
        self.all_steps = loop(_all_steps, step, "parts")
        self.all_gradients = loop(_all_gradients, gradient, "parts")


class Cell:
    """A recurrent cell: from x, computed of a step's inputs, y, computed of the state h before, and
    the states before, to the states after; h is the first of these and the output.
    """

    gates: ClassVar[int] = 1  # x and y have gates · H columns
    states: ClassVar[int] = 1
    extra: ClassVar[int] = 0  # columns, in units of H, of what backward needs beside the gates
    one_gradient: ClassVar[bool] = True  # that of y is that of x: only x + y is computed with
    loops: ClassVar[CellLoops | None] = None

    @classmethod
    def forward(cls, x: Array, y: Array, states: Array, gates: Array, extra: Array) -> None:
        """Turn the states before a step into those after it, in place, and write what backward
        needs.

        Args:
            x, y: (n, gates · H), of a step of the first n sequences; y may be overwritten.
            states: (states, N, H).
            gates: for the gates after their activations, (n, gates · H).
            extra: for what else backward needs, (n, extra · H).
        """
        raise NotImplementedError

    @classmethod
    def backward(
        cls,
        gates: Array,
        extra: Array,
        before: Array,
        start: int,
        gy: Array,
        gs: Array,
        gx: Array,
        gp: Array,
    ) -> None:
        """Write the gradients of x and y, and turn those of the states after the step into those of
        the states before, in place, but for what comes through y.

        Args:
            gates, extra: of the step, as forward wrote them.
            before: the states before all steps, (states, total, H): those of this one are the rows
                from ``start`` on.
            gy: the gradient of the output, to be added to that of h.
            gs: those of the states, (states, N, H).
            gx, gp: for the gradients of x and y; one array if ``one_gradient``.
        """
        raise NotImplementedError


class Plain(Cell):
    """h = f(x + y), of tanh or of relu; h is its gate."""

    relu: ClassVar[bool] = False

    @classmethod
    def forward(cls, x: Array, y: Array, states: Array, gates: Array, extra: Array) -> None:
        xp = backend.get_array_module(x)
        xp.add(x, y, out=gates)
        if cls.relu:
            xp.maximum(gates, 0, out=gates)
        else:
            xp.tanh(gates, out=gates)
        states[0, : len(x)] = gates

    @classmethod
    def backward(
        cls,
        gates: Array,
        extra: Array,
        before: Array,
        start: int,
        gy: Array,
        gs: Array,
        gx: Array,
        gp: Array,
    ) -> None:
        slope = activation.relu_gradient if cls.relu else activation.tanh_gradient
        gh = gs[0, : len(gy)]
        gx[...] = slope(gh + gy, gates)
        gh[...] = 0


class PlainRelu(Plain):
    """h = max(x + y, 0)."""

    relu = True


class OverTime:
    """A run of a cell over the steps.

    Args:
        cell: its class.
        counts: how many sequences have each step; they become fewer.
        backwards: the last step comes first.
    """

    def __init__(self, cell: type[Cell], counts: Sequence[int], backwards: bool) -> None:
        self.cell = cell
        starts = [0, *accumulate(counts)]
        self.total = starts.pop()
        # of each step its first row, and its rows, in the order of computation
        order = slice(None, None, -1 if backwards else 1)
        self.starts, self.counts = starts[order], list(counts)[order]

    def forward(
        self, x: Array, U: Array, b: Array, first: Sequence[Array], keeps: bool
    ) -> tuple[Array, list[Array]]:
        """Compute h of all steps, (total, H), and the states of all sequences after their last
        steps, (N, H) each.

        Args:
            x: (total, G), what is computed of the inputs, for G = gates · H.
            U, b: (G, H) and (G,): y = h Uᵀ + b.
            first: the states before, (N, H) each. Those of sequences that have no step stay.
            keeps: whether backward follows.
        """
        xp = backend.get_array_module(x)
        cell, H, rows = self.cell, U.shape[1], max(self.counts)
        states = xp.ascontiguousarray(xp.stack(first))
        self.compiled = suits(x, U)
        bias: Array | None = b
        if cell.one_gradient and not self.compiled:
            x, bias = x + b, None  # once, not at each step: such a cell sees x + y alone
        packed = PackedMatrix(U.T, bias, rows, self.compiled)
        kept_rows = self.total if keeps else rows
        before = xp.empty((cell.states, kept_rows, H), x.dtype)
        gates = xp.empty((kept_rows, cell.gates * H), x.dtype)
        extra = xp.empty((kept_rows, cell.extra * H), x.dtype)
        y = xp.empty((rows, len(U)), x.dtype)
        hs = xp.empty((self.total, H), x.dtype)
        loops = cell.loops if self.compiled else None
        if loops is not None and packed.panels is not None:
            room = before, gates, extra, y, hs
            factor = packed.panels, packed.bias
            arrays = x, *factor, *self._places(), states, *room, int(keeps)
            run_loop(loops.all_steps, rows, self._threads_for(U), *arrays, each=1)
        else:
            step = cell.forward if loops is None else loops.step
            for start, n in zip(self.starts, self.counts, strict=True):
                here = slice(start, start + n)
                place = here if keeps else slice(n)
                before[:, place] = states[:, :n]
                packed.multiply(states[0, :n], y[:n])
                step(x[here], y[:n], states, gates[place], extra[place])
                hs[here] = states[0, :n]
        if keeps:
            self.kept = gates, extra, before
        return hs, list(states)

    def backward(
        self,
        U: Array,
        first: Sequence[Array],
        gys: Array | None,
        finals: Sequence[Array | None],
    ) -> tuple[Array, Array, Array, list[Array]]:
        """Return the gradients of x, U, b and the first states.

        Args:
            gys, finals: the gradients of what forward returned, None where there are none.
        """
        xp = backend.get_array_module(U)
        cell, dtype, rows = self.cell, U.dtype, max(self.counts)
        G, H = U.shape
        gates, extra, before = self.kept
        gys = xp.zeros((self.total, H), dtype) if gys is None else xp.ascontiguousarray(gys)
        gs = xp.zeros((len(first), *first[0].shape), dtype)
        for s, g in enumerate(finals):
            if g is not None:
                gs[s] = g
        gx = xp.empty((self.total, G), dtype)
        gp = gx if cell.one_gradient else xp.empty_like(gx)
        gh = xp.empty((rows, H), dtype)
        packed = PackedMatrix(U, None, rows, self.compiled)
        loops = cell.loops if self.compiled and suits(gys, U) else None
        if loops is not None and packed.panels is not None:
            factor = packed.panels, packed.bias
            arrays = *self.kept, *factor, *self._places(), gys, gs, gx, gp, gh
            run_loop(loops.all_gradients, rows, self._threads_for(U), *arrays, each=1)
        else:
            gradient = cell.backward if loops is None else loops.gradient
            steps = list(zip(self.starts, self.counts, strict=True))
            for start, n in reversed(steps):
                here = slice(start, start + n)
                of_step = gates[here], extra[here]
                gradient(*of_step, before, start, gys[here], gs, gx[here], gp[here])
                gs[0, :n] += packed.multiply(gp[here], gh[:n])
        return gx, product(gp.T, before[0]), sum_over(gp, 0), list(gs)

    def _threads_for(self, U: Array) -> int:
        """Return how many threads have a share of the sequences each."""
        return threads_for(max(self.counts), self.total * U.size // 8)

    def _places(self) -> tuple[Array, Array]:
        """The first rows of the steps, and how many each has, for loops."""
        return np.array(self.starts, "i8"), np.array(self.counts, "i8")
