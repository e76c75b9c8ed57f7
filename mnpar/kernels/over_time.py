"""Recurrent layers over whole sequences, arrays in and arrays out: what a cell computes of its
inputs comes for all steps at once, and the gradient of the state's weights is one product over all
steps. Between the steps there are only the products with the state and the cell itself.

Sequences lie step by step, one row for each sequence that has this step; the longest are first.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import ClassVar

from mnpar import backend
from mnpar.backend import Array
from mnpar.kernels import activation
from mnpar.kernels.blas import product
from mnpar.kernels.compiler import suits
from mnpar.kernels.packed import PackedMatrix
from mnpar.kernels.sums import sum_over


class Cell:
    """A recurrent cell: from x, computed of a step's inputs, y, computed of the state h before, and
    the states before, to the states after; h is the first of these and the output.

    Args:
        compiled: whether its arrays suit compiled loops.
    """

    gates: ClassVar[int] = 1  # x and y have gates · H columns
    states: ClassVar[int] = 1
    kept: ClassVar[tuple[int, ...]] = ()  # columns, in units of H, of what backward needs
    passes_state: ClassVar[bool] = False  # h also depends on h before, not only on y
    one_gradient: ClassVar[bool] = True  # that of y is that of x: only x + y is computed with

    def __init__(self, compiled: bool) -> None:
        self.compiled = compiled

    def forward(
        self, x: Array, y: Array, before: list[Array], after: list[Array], kept: list[Array]
    ) -> None:
        """Write the states after the step, and what backward needs."""
        raise NotImplementedError

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
        """Write the gradients of x and, unless ``one_gradient``, of y into ``gx`` and ``gp``, and
        turn ``gs``, those of the states after, into those of the states before, in place. That of
        h, if it is not ``passes_state``, comes from y alone, and is not written.

        Args:
            gy: the gradient of the output, to be added to that of h.
        """
        raise NotImplementedError


class Plain(Cell):
    """h = f(x + y), of tanh or of relu."""

    relu: ClassVar[bool] = False

    def forward(
        self, x: Array, y: Array, before: list[Array], after: list[Array], kept: list[Array]
    ) -> None:
        xp = backend.get_array_module(x)
        (h,) = after
        xp.add(x, y, out=h)
        if self.relu:
            xp.maximum(h, 0, out=h)
        else:
            xp.tanh(h, out=h)

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
        slope = activation.relu_gradient if self.relu else activation.tanh_gradient
        gx[...] = slope(gs[0] + gy, after[0])


class PlainRelu(Plain):
    """h = max(x + y, 0)."""

    relu = True


class OverTime:
    """A run of a cell over the steps.

    Args:
        kind: the cell's class.
        counts: how many sequences have each step; they become fewer.
        backwards: the last step comes first.
    """

    def __init__(self, kind: type[Cell], counts: Sequence[int], backwards: bool) -> None:
        self.kind = kind
        ends = list(accumulate(counts))
        rows = [slice(end - n, end) for n, end in zip(counts, ends, strict=True)]
        # in the order of computation
        self.rows = rows[::-1] if backwards else rows
        self.counts = [r.stop - r.start for r in self.rows]
        self.total = ends[-1]

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
        H = U.shape[1]
        self.cell = cell = self.kind(suits(x, U, *first))
        bias: Array | None = b
        if self.kind.one_gradient and not cell.compiled:
            x, bias = x + b, None  # once, not at each step: such a cell sees x + y alone
        packed = PackedMatrix(U.T, bias, max(self.counts), cell.compiled)
        self.after = [xp.empty((self.total, H), x.dtype) for _ in first]
        self.kept = [xp.empty((self.total, width * H), x.dtype) for width in self.kind.kept]
        room = xp.empty((max(self.counts), len(U)), x.dtype)
        for k, rows in enumerate(self.rows):
            before = self._before(k, first)
            y = packed.multiply(before[0], room[: self.counts[k]])
            after = [s[rows] for s in self.after]
            cell.forward(x[rows], y, before, after, [s[rows] for s in self.kept])
        ys = self.after[0]
        finals = [self._finals(s, values) for s, values in zip(first, self.after, strict=True)]
        if not keeps:
            self.after = self.kept = []
        return ys, finals

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
        cell, kind, dtype = self.cell, self.kind, U.dtype
        G, H = U.shape
        gys = xp.zeros((self.total, H), dtype) if gys is None else xp.ascontiguousarray(gys)
        gs = [
            xp.zeros(s.shape, dtype) if g is None else xp.array(g, order="C")
            for s, g in zip(first, finals, strict=True)
        ]
        gx = xp.empty((self.total, G), dtype)
        gp = gx if kind.one_gradient else xp.empty_like(gx)
        room = xp.empty((max(self.counts), H), dtype)
        packed = PackedMatrix(U, None, max(self.counts), cell.compiled)
        for k in range(len(self.rows) - 1, -1, -1):
            rows, n = self.rows[k], self.counts[k]
            now = [g[:n] for g in gs]
            cell.backward(
                self._before(k, first),
                [s[rows] for s in self.after],
                [s[rows] for s in self.kept],
                gys[rows],
                now,
                gx[rows],
                gp[rows],
            )
            if kind.passes_state:
                now[0] += packed.multiply(gp[rows], room[:n])
            else:
                packed.multiply(gp[rows], now[0])
        order = sorted(range(len(self.rows)), key=lambda k: self.rows[k].start)
        states = xp.concatenate([self._before(k, first[:1])[0] for k in order])
        gU = product(gp.T, states)
        return gx, gU, sum_over(gp, 0), gs

    def _before(self, k: int, first: Sequence[Array]) -> list[Array]:
        """The states before the k-th step: those after the last one, and the first ones of
        sequences that begin now.
        """
        n = self.counts[k]
        if k == 0:
            return [s[:n] for s in first]
        m = self.counts[k - 1]
        rows = self.rows[k - 1]
        pairs = zip(self.after, first, strict=False)
        if n <= m:
            return [values[rows][:n] for values, _ in pairs]
        return [
            backend.get_array_module(s).concatenate((values[rows], s[m:n])) for values, s in pairs
        ]

    def _finals(self, first: Array, values: Array) -> Array:
        """The states of all sequences, (N, H), after their last steps."""
        final = first.copy()
        later = [*self.counts[1:], 0]
        for rows, n, after in zip(self.rows, self.counts, later, strict=True):
            if after < n:  # some end here
                final[:n] = values[rows]
        return final
