"""Rows of matrices by loops where numpy goes through them number by number, or several times:
extrema, products, sums of products, lengths, running sums; and rows that are added at places that
may repeat.

numpy is as fast along the other axes, which are left to it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array, Axis
from mnpar.kernels.compiler import (
    Doubles,
    Integers,
    Matrix,
    Real,
    Vector,
    compiled,
    formula,
    has_dtype_of_loops,
    reduction,
    suits,
)
from mnpar.kernels.moments import RUN
from mnpar.kernels.scalar import number_of, rank_of
from mnpar.kernels.sums import sum_over

SHORT = 16  # numbers of a row: fewer are compared one by one


@compiled
def _largest(x: Matrix, y: Vector, sign: Real) -> None:
    N, C = x.shape
    for n in range(N):
        if C < SHORT:
            most = x[n, 0] * sign
            for c in range(1, C):
                v = x[n, c] * sign
                most = v if (v > most) | (v != v) else most  # NaN stays
            y[n] = most * sign
        else:
            found = rank_of(x[n, 0] * sign)
            for c in range(C):
                rank = rank_of(x[n, c] * sign)
                found = rank if rank > found else found
            nan = 0.0
            for c in range(C):
                nan += 0.0 if x[n, c] == x[n, c] else 1.0
            y[n] = number_of(found) * sign if nan == 0.0 else np.nan


@compiled
def _product(x: Matrix, y: Vector) -> None:
    N, C = x.shape
    for n in range(N):
        found = 1.0
        for c in range(C):
            found *= x[n, c]
        y[n] = found


def reduce_rows(name: str, x: Array, axis: Axis) -> Array:
    """``x.max(axis, keepdims=True)``, or ``min`` or ``prod``.

    Example:
        >>> reduce_rows("max", np.array([[1.0, 4.0], [3.0, 2.0]]), 1)
        array([[4.],
               [3.]])
    """
    if type(axis) is tuple and len(axis) == 1:
        axis = axis[0]
    if type(axis) is int and axis in (-1, x.ndim - 1) and x.size and suits(x):
        y = np.empty((*x.shape[:-1], 1), x.dtype)
        rows = x.reshape(-1, x.shape[-1])
        if name == "prod":
            _product(rows, y)
        else:
            _largest(rows, y, 1.0 if name == "max" else -1.0)
        return y
    found: Array = getattr(x, name)(axis=axis, keepdims=True)
    return found


@compiled
def _sum_products(x: Matrix, y: Matrix, sums: Vector) -> None:
    for n in range(x.shape[0]):
        sums[n] = _sum_in_runs(x[n], y[n])


@formula
def _sum_in_runs(x: Any, y: Any) -> Any:
    total = 0.0
    for start in range(0, x.size, RUN):
        total += _products(x[start : start + RUN], y[start : start + RUN])
    return total


@reduction
def _products(x: Any, y: Any) -> Any:
    total = 0.0
    for i in range(x.size):
        total += x[i] * y[i]
    return total


def sum_products(x: Any, y: Any, axis: int | tuple[int, ...]) -> Any:
    """``(x * y).sum(axis, keepdims=True)`` of two arrays of one shape, or of Variables.

    Example:
        >>> sum_products(np.array([[1.0, 2.0]]), np.array([[3.0, 4.0]]), 1)
        array([[11.]])
    """
    if type(x) is np.ndarray and _is_last(axis, x) and x.size and suits(x, y):
        sums = np.empty((*x.shape[:-1], 1), x.dtype)
        rows = (-1, x.shape[-1])
        _sum_products(x.reshape(rows), y.reshape(rows), sums)
        return sums
    return sum_over(x * y, axis, keepdims=True)


def _is_last(axis: int | tuple[int, ...], x: Array) -> bool:
    one = axis if type(axis) is not tuple else axis[0] if len(axis) == 1 else None
    return one in (-1, x.ndim - 1)


@compiled
def _divide_by_lengths(x: Matrix, eps: Real, y: Matrix) -> None:
    for n in range(x.shape[0]):
        row = x[n]
        squares = _sum_in_runs(row, row)
        length = math.sqrt(squares)
        if eps != 0.0:
            length += eps
        elif squares == 0.0:
            length = 1.0
        out = y[n]
        for c in range(row.size):
            out[c] = row[c] / length


def divide_by_lengths(x: Array, eps: float, axis: int | tuple[int, ...]) -> Array | None:
    """Return x / (√Σ x² + eps), where an x of 0 stays 0; None where loops do not take the array.

    Example:
        >>> divide_by_lengths(np.ones(3, np.float16), 0.0, 0) is None
        True
    """
    if not (_is_last(axis, x) and x.size and suits(x)):
        return None
    y = np.empty_like(x)
    rows = (-1, x.shape[-1])
    _divide_by_lengths(x.reshape(rows), eps, y.reshape(rows))
    return y


@compiled
def _product_gradient(x: Matrix, g: Vector, before: Doubles, least: float, gx: Matrix) -> None:
    """In float64, which has room for products that float32 has none for, and does not compute them
    many times slower. What is less than ``least`` is 0 in gx.
    """
    N, C = x.shape
    for n in range(0, N, 4):  # four at a time: each product waits for the one before
        rows = n, min(n + 1, N - 1), min(n + 2, N - 1), min(n + 3, N - 1)
        p = q = r = s = np.float64(1.0)
        for c in range(C):
            before[4 * c] = p
            before[4 * c + 1] = q
            before[4 * c + 2] = r
            before[4 * c + 3] = s
            p *= x[rows[0], c]
            q *= x[rows[1], c]
            r *= x[rows[2], c]
            s *= x[rows[3], c]
        p, q = np.float64(g[rows[0]]), np.float64(g[rows[1]])
        r, s = np.float64(g[rows[2]]), np.float64(g[rows[3]])
        for c in range(C - 1, -1, -1):
            gx[rows[0], c] = _unless_less(p * before[4 * c], least)
            gx[rows[1], c] = _unless_less(q * before[4 * c + 1], least)
            gx[rows[2], c] = _unless_less(r * before[4 * c + 2], least)
            gx[rows[3], c] = _unless_less(s * before[4 * c + 3], least)
            p *= x[rows[0], c]
            q *= x[rows[1], c]
            r *= x[rows[2], c]
            s *= x[rows[3], c]


@formula
def _unless_less(x: Any, least: Any) -> Any:
    return 0.0 if -least < x < least else x


def product_gradient(x: Array, axes: tuple[int, ...], g: Array) -> Array:
    """g times the product of all others over some axes, in the place of each: of those before it
    and those after it. The axes have length 1 in g.

    Example:
        >>> product_gradient(np.array([2.0, 0.0, 3.0]), (0,), np.array([10.0]))
        array([ 0., 60.,  0.])
    """
    last = tuple(range(x.ndim - len(axes), x.ndim))
    if axes == last and x.size and suits(x) and has_dtype_of_loops(x, g):
        gx = np.empty_like(x)
        rows = x.reshape(g.size, -1)
        least = float(np.finfo(x.dtype).smallest_subnormal) / 2
        before = np.empty(4 * rows.shape[1])
        _product_gradient(rows, np.array(g), before, least, gx.reshape(rows.shape))
        return gx
    xp = backend.get_array_module(x)
    moved = xp.moveaxis(x, axes, last)
    flat = moved.reshape(*moved.shape[: x.ndim - len(axes)], -1)
    before, after = xp.ones_like(flat), xp.ones_like(flat)
    xp.cumprod(flat[..., :-1], axis=-1, out=before[..., 1:])
    after[..., :-1] = xp.flip(xp.cumprod(xp.flip(flat[..., 1:], -1), axis=-1), -1)
    before *= after
    found: Array = xp.moveaxis(before.reshape(moved.shape), last, axes) * g
    return found


@compiled
def _running_sums(x: Matrix, y: Matrix, backwards: int) -> None:
    N, C = x.shape
    first = C - 1 if backwards else 0
    step = -1 if backwards else 1
    rows = N - N % 4
    for n in range(0, rows, 4):  # four at a time: each sum waits for the one before
        a = 0.0
        b = 0.0
        c = 0.0
        d = 0.0
        for k in range(C):
            i = first + step * k
            a += x[n, i]
            b += x[n + 1, i]
            c += x[n + 2, i]
            d += x[n + 3, i]
            y[n, i] = a
            y[n + 1, i] = b
            y[n + 2, i] = c
            y[n + 3, i] = d
    for n in range(rows, N):
        a = 0.0
        for k in range(C):
            i = first + step * k
            a += x[n, i]
            y[n, i] = a


def running_sums(x: Array, axis: int, backwards: bool) -> Array:
    """The sums from the beginning of an axis to each place, or from there to the end.

    Example:
        >>> running_sums(np.array([1.0, 2.0, 3.0]), 0, True)
        array([6., 5., 3.])
    """
    if axis == x.ndim - 1 and x.size and suits(x):
        y = np.empty_like(x)
        rows = (-1, x.shape[-1])
        _running_sums(x.reshape(rows), y.reshape(rows), int(backwards))
        return y
    flip = backend.get_array_module(x).flip
    sums: Array = (flip(x, axis) if backwards else x).cumsum(axis=axis)
    return flip(sums, axis) if backwards else sums


@compiled
def _add_rows(x: Matrix, places: Integers, y: Matrix) -> None:
    for n in range(places.size):
        row = x[n]
        to = y[places[n]]
        for c in range(row.size):
            to[c] += row[c]


def add_rows(y: Array, places: Array, x: Array) -> None:
    """Add the rows of x (N, C) to those of y at N places (int64, from 0 on), in their order.

    Example:
        >>> y = np.zeros((2, 1))
        >>> add_rows(y, np.array([1, 1]), np.array([[2.0], [3.0]]))
        >>> y
        array([[0.],
               [5.]])
    """
    if suits(x, y) and places.flags.carray:
        _add_rows(x, places, y)
        return
    # first occurrences as rows, and repeated ones by elements: far faster than by rows
    xp = backend.get_array_module(y)
    named, first = xp.unique(places, return_index=True)
    y[named] += x[first]
    if len(named) < len(places):
        again = xp.ones(len(places), "?")
        again[first] = False
        elements = places[again, None] * y.shape[1] + xp.arange(y.shape[1])
        xp.add.at(y.reshape(-1), elements.reshape(-1), x[again].reshape(-1))
