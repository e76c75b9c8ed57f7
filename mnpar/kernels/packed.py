"""Products of a few rows with one matrix, many times, as a recurrent layer has them: the state at
each step with the matrix of the state.

A BLAS library copies ("packs") a matrix into the order in which it reads it for each product; if
the other factor has few rows, that takes as long as the product itself. Here the matrix is packed
once, into panels of two registers of columns. A tile of the result, ten rows (or four) by two
registers, is held in registers while a loop goes over the terms of its sums.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array, empty_aligned
from mnpar.kernels import tuning
from mnpar.kernels.blas import product, takes_all_threads
from mnpar.kernels.compiler import Cube, Matrix, Vector, compiled, formula
from mnpar.kernels.lanes import LANES, fill, load, repeat, store
from mnpar.kernels.processor import has_wide_registers

_PANEL = 2 * LANES  # columns
_TALL, _LOW = 10, 4  # rows of a tile; the low ones are for what the tall ones leave
_TERMS = 256  # that are added up at a time: longer sums in registers err more than those of BLAS
_HAS_TALL = has_wide_registers()  # of which there are as many as the sums of a tall tile need


@formula
def _add_row(sums: Any, x: Any, i: Any, v: Any, w: Any) -> Any:
    """Add to both registers of a row the products of a number with those of a panel."""
    a = repeat(x, i)
    return sums[0] + a * v, sums[1] + a * w


@formula
def _add_four(t: Any, x: Any, i: Any, v: Any, w: Any) -> Any:
    """Add to the sums of four rows, of which the numbers are at the places i."""
    return (
        _add_row(t[0], x, i[0], v, w),
        _add_row(t[1], x, i[1], v, w),
        _add_row(t[2], x, i[2], v, w),
        _add_row(t[3], x, i[3], v, w),
    )


@formula
def _add_ten(t: Any, x: Any, i: Any, step: Any, v: Any, w: Any) -> Any:
    """Add to the sums of ten rows, of which the numbers are ``step`` apart, from the place i on."""
    return (
        _add_row(t[0], x, i, v, w),
        _add_row(t[1], x, i + step, v, w),
        _add_row(t[2], x, i + 2 * step, v, w),
        _add_row(t[3], x, i + 3 * step, v, w),
        _add_row(t[4], x, i + 4 * step, v, w),
        _add_row(t[5], x, i + 5 * step, v, w),
        _add_row(t[6], x, i + 6 * step, v, w),
        _add_row(t[7], x, i + 7 * step, v, w),
        _add_row(t[8], x, i + 8 * step, v, w),
        _add_row(t[9], x, i + 9 * step, v, w),
    )


@formula
def _store_row(y: Any, i: Any, sums: Any) -> Any:
    store(y, i, sums[0])
    store(y, i + LANES, sums[1])


@formula
def _plus_row(y: Any, i: Any, sums: Any) -> Any:
    """A row of y and its sums."""
    return load(y, i) + sums[0], load(y, i + LANES) + sums[1]


@formula
def _update_row(y: Any, i: Any, sums: Any) -> Any:
    _store_row(y, i, _plus_row(y, i, sums))


@formula
def multiply_rows(x: Any, panels: Any, bias: Any, y: Any) -> Any:
    """y ← x B + bias of (N, K) and the panels of B (K, M), for loops that multiply many times."""
    N, K = x.shape
    M = y.shape[1]
    tall = N - N % _TALL if _HAS_TALL else 0
    zero = fill(x.dtype.type(0))
    z = zero, zero
    for p in range(panels.shape[0]):
        c = min(p * _PANEL, M - _PANEL)
        for n in range(N):
            _store_row(y, n * M + c, (load(bias, c), load(bias, c + LANES)))
        for start in range(0, K, _TERMS):
            terms = min(_TERMS, K - start)
            first = (p * K + start) * _PANEL
            for n in range(0, tall, _TALL):
                ten = z, z, z, z, z, z, z, z, z, z
                for k in range(terms):
                    v = load(panels, first + k * _PANEL)
                    w = load(panels, first + k * _PANEL + LANES)
                    ten = _add_ten(ten, x, n * K + start + k, K, v, w)
                o = n * M + c
                _update_row(y, o, ten[0])
                _update_row(y, o + M, ten[1])
                _update_row(y, o + 2 * M, ten[2])
                _update_row(y, o + 3 * M, ten[3])
                _update_row(y, o + 4 * M, ten[4])
                _update_row(y, o + 5 * M, ten[5])
                _update_row(y, o + 6 * M, ten[6])
                _update_row(y, o + 7 * M, ten[7])
                _update_row(y, o + 8 * M, ten[8])
                _update_row(y, o + 9 * M, ten[9])
            for n in range(tall, N, _LOW):
                n1, n2, n3 = min(n + 1, N - 1), min(n + 2, N - 1), min(n + 3, N - 1)
                four = z, z, z, z
                for k in range(start, start + terms):
                    v = load(panels, (p * K + k) * _PANEL)
                    w = load(panels, (p * K + k) * _PANEL + LANES)
                    i = n * K + k, n1 * K + k, n2 * K + k, n3 * K + k
                    four = _add_four(four, x, i, v, w)
                # the last row may come several times: all are read before one is written
                r0 = _plus_row(y, n * M + c, four[0])
                r1 = _plus_row(y, n1 * M + c, four[1])
                r2 = _plus_row(y, n2 * M + c, four[2])
                r3 = _plus_row(y, n3 * M + c, four[3])
                _store_row(y, n * M + c, r0)
                _store_row(y, n1 * M + c, r1)
                _store_row(y, n2 * M + c, r2)
                _store_row(y, n3 * M + c, r3)


@compiled
def _multiply(x: Matrix, panels: Cube, bias: Vector, y: Matrix) -> None:
    multiply_rows(x, panels, bias, y)


# Panels are (panels, K, columns); the last one may overlap the one before.


@compiled
def _pack(B: Matrix, panels: Cube) -> None:
    """Copy the columns of B (K, M)."""
    K, M = B.shape
    for p in range(panels.shape[0]):
        c = min(p * _PANEL, M - _PANEL)
        for k in range(K):
            at = (p * K + k) * _PANEL
            store(panels, at, load(B, k * M + c))
            store(panels, at + LANES, load(B, k * M + c + LANES))


@compiled
def _pack_rows(B: Matrix, panels: Cube) -> None:
    """Copy the rows of B (M, K)."""
    M, K = B.shape
    for p in range(panels.shape[0]):
        c = min(p * _PANEL, M - _PANEL)
        for k in range(K):
            for j in range(_PANEL):
                panels[p, k, j] = B[c + j, k]


class PackedMatrix:
    """A matrix with which matrices of a few rows are multiplied many times.

    Args:
        B: (K, M), contiguous, or the transpose of a contiguous matrix.
        bias: (M,), added to each row of a product; None is 0.
        rows: how many the other matrices have, at most.
        compiled: whether those matrices, and these, suit compiled loops.

    ``panels`` and ``bias`` are what :func:`multiply_rows` takes; ``panels`` is None where a product
    is left to BLAS.

    Example:
        >>> import numpy as np
        >>> from mnpar.kernels.packed import PackedMatrix
        >>> packed = PackedMatrix(np.ones((3, 2)), np.ones(2), rows=4, compiled=False)
        >>> packed.multiply(np.ones((1, 3)), np.empty((1, 2)))
        array([[4., 4.]])
    """

    def __init__(self, B: Array, bias: Array | None, rows: int, compiled: bool) -> None:
        K, M = B.shape
        xp = backend.get_array_module(B)
        self.bias = bias
        self.panels: Array | None = None
        if not (
            compiled
            and B.dtype.char == "f"  # the sums of a tile of float64 do not fit the registers
            and M >= _PANEL
            and rows <= tuning.PACKED_ROWS
            and not takes_all_threads(rows * B.size)
        ):
            # BLAS takes half the time with the matrix in this order
            self.matrix = xp.ascontiguousarray(B)
            return
        self.panels = empty_aligned((-(-M // _PANEL), K, _PANEL), B.dtype)
        self.bias = np.zeros(M, B.dtype) if bias is None else np.array(bias)
        if B.flags.c_contiguous:
            _pack(B, self.panels)
        else:
            _pack_rows(B.T, self.panels)

    def multiply(self, x: Array, out: Array) -> Array:
        """Compute out ← x B + bias, of x (N, K) and out (N, M), contiguous both; return out."""
        if self.panels is not None:
            _multiply(x, self.panels, self.bias, out)
            return out
        product(x, self.matrix, out)
        if self.bias is not None:
            out += self.bias
        return out
