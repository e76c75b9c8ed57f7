"""Softmax, its logarithm and cross entropy of the rows of a matrix, and their gradients.

The loops read each row two or three times while it is in the nearest cache. The twins work on
blocks of rows that stay in the cache. No exponential of a large positive number is taken.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.kernels.compiler import Integers, Matrix, Vector, divided, formula, reduction, suits
from mnpar.kernels.dtypes import as_floating, upcast_halves
from mnpar.kernels.scalar import exp, number_of, rank_of
from mnpar.kernels.side_by_side import run_loop, threads_for
from mnpar.kernels.sums import MODEST, is_rowwise, row_blocks, row_sums, sum_array, sum_over


def last_in_memory(x: Array, axis: int) -> bool:
    """Return whether an axis is the last one in memory, as channels are, and not by its number."""
    return (
        type(x) is np.ndarray
        and type(axis) is int
        and not x.flags.c_contiguous
        and x.ndim > 2
        and bool(np.moveaxis(x, axis, -1).flags.c_contiguous)
    )


def _moved(x: Array, axis: int) -> Array:
    """An array with an axis at the end, in memory too."""
    return np.ascontiguousarray(np.moveaxis(x, axis, -1))


def as_rows(x: Array, axis: int) -> Array | None:
    """Return x as the matrix of its rows along the axis, if that is the last one."""
    last = type(axis) is int and axis in (-1, x.ndim - 1)
    return x.reshape(-1, x.shape[-1]) if last and x.size else None


def _threads_for(rows: Array) -> int:
    """Return how many threads exponentials of rows have: each takes as long as some ten numbers
    that are read.
    """
    return threads_for(len(rows), 10 * rows.size)


@divided
def _softmax(x: Matrix, y: Matrix, thread: int, begin: int, end: int) -> None:
    C = x.shape[1]
    for n in range(begin, end):
        most = _largest(x, n)
        total = 0.0
        for c in range(C):
            e = exp(x[n, c] - most)
            y[n, c] = e
            total += e
        share = 1.0 / total
        for c in range(C):
            y[n, c] *= share


# numbers of a row: of fewer, the exponentials of several rows are taken as those of one vector,
# which fills registers; of so many rows that they stay in the nearest cache
_SHORT = 256
_SOME = 512


@divided
def _softmax_of_short(
    x: Matrix, y: Matrix, flat: Vector, thread: int, begin: int, end: int
) -> None:
    """The same; ``flat`` is y, as a vector."""
    C = x.shape[1]
    some = _SOME // C
    for start in range(begin, end, some):
        stop = min(start + some, end)
        _subtract_largest(x, start, stop, y)
        _exponentiate(flat[start * C : stop * C])
        for n in range(start, stop):
            share = 1.0 / _sum(y[n])
            for c in range(C):
                y[n, c] *= share


@formula
def _subtract_largest(x: Any, start: Any, end: Any, y: Any) -> Any:
    """y ← x less the largest number of its row, of some rows."""
    for n in range(start, end):
        most = _largest(x, n)
        for c in range(x.shape[1]):
            y[n, c] = x[n, c] - most


@formula
def _exponentiate(x: Any) -> Any:
    for i in range(x.size):
        x[i] = exp(x[i])


@formula
def _take_exponentials(x: Any, e: Any) -> Any:
    """The same into other memory: were it x's own, numbers would be computed one by one."""
    for i in range(x.size):
        e[i] = exp(x[i])


@reduction
def _sum(x: Any) -> Any:
    total = 0.0
    for i in range(x.size):
        total += x[i]
    return total


@formula
def _largest(x: Any, n: Any) -> Any:
    """The largest number of a row; a NaN may be passed over: what is made of it is NaN anyway."""
    found = rank_of(x[n, 0])
    for c in range(x.shape[1]):
        rank = rank_of(x[n, c])
        found = rank if rank > found else found
    return number_of(found)


def softmax(x: Array, axis: int) -> Array:
    """Return eˣ / Σ eˣ along an axis."""
    if last_in_memory(x, axis):
        return np.moveaxis(softmax(np.moveaxis(x, axis, -1), -1), -1, axis)
    if suits(x) and (rows := as_rows(x, axis)) is not None:
        y = np.empty_like(x)
        N, threads = len(rows), _threads_for(rows)
        if rows.shape[1] < _SHORT:
            run_loop(_softmax_of_short, N, threads, rows, y.reshape(rows.shape), y)
        else:
            run_loop(_softmax, N, threads, rows, y.reshape(rows.shape))
        return y
    xp = backend.get_array_module(x)
    if not x.size:
        return as_floating(x).copy()  # of no elements there is no maximum
    if not is_rowwise(x, axis):
        x = as_floating(x)
        y = xp.asarray(x - x.max(axis=axis, keepdims=True))
        xp.exp(y, out=y)
        y /= sum_array(upcast_halves(y), axis, keepdims=True)
        return y
    y = xp.empty(x.shape, x.dtype)
    for from_, to, e in row_blocks(x, y):
        if from_.max() <= MODEST and from_.min() >= -MODEST:
            xp.exp(from_, out=e)
        else:
            xp.exp(xp.subtract(from_, from_.max(axis=1, keepdims=True), out=e), out=e)
        xp.multiply(e, 1 / sum_array(e, 1, keepdims=True), out=to)
    return y


@divided
def _softmax_gradient(y: Matrix, gy: Matrix, gx: Matrix, thread: int, begin: int, end: int) -> None:
    C = y.shape[1]
    for n in range(begin, end):
        total = 0.0
        for c in range(C):
            total += gy[n, c] * y[n, c]
        for c in range(C):
            gx[n, c] = y[n, c] * (gy[n, c] - total)


def softmax_gradient(y: Array, gy: Array, axis: int) -> Array:
    """Return y (gy - Σ gy y)."""
    if last_in_memory(y, axis):
        return np.moveaxis(softmax_gradient(_moved(y, axis), _moved(gy, axis), -1), -1, axis)
    if suits(y, gy) and (rows := as_rows(y, axis)) is not None:
        gx = np.empty_like(y)
        arrays = rows, gy.reshape(rows.shape), gx.reshape(rows.shape)
        run_loop(_softmax_gradient, len(rows), threads_for(len(rows), 3 * rows.size), *arrays)
        return gx
    if not is_rowwise(y, axis):
        result: Array = y * (gy - sum_over(gy * y, axis, keepdims=True))
        return result
    xp = backend.get_array_module(y)
    gx = xp.empty(y.shape, y.dtype)
    for part, g, to, room in row_blocks(y, gy, gx):
        xp.subtract(g, xp.einsum("nc,nc->n", g, part)[:, None], out=room)
        xp.multiply(part, room, out=to)
    return gx


@divided
def _log_softmax(x: Matrix, y: Matrix, thread: int, begin: int, end: int) -> None:
    C = x.shape[1]
    for n in range(begin, end):
        most = _largest(x, n)
        total = 0.0
        for c in range(C):
            v = x[n, c] - most
            y[n, c] = v
            total += exp(v)
        log = math.log(total)
        for c in range(C):
            y[n, c] -= log


@divided
def _log_softmax_of_short(
    x: Matrix, y: Matrix, flat: Vector, rooms: Matrix, thread: int, begin: int, end: int
) -> None:
    """The same; ``flat`` is y, as a vector."""
    C = x.shape[1]
    room = rooms[thread]
    some = _SOME // C
    for start in range(begin, end, some):
        stop = min(start + some, end)
        _subtract_largest(x, start, stop, y)
        _take_exponentials(flat[start * C : stop * C], room)
        for n in range(start, stop):
            log = math.log(_sum(room[(n - start) * C : (n + 1 - start) * C]))
            for c in range(C):
                y[n, c] -= log


def log_softmax(x: Array, axis: int) -> Array:
    """Return x - log Σ eˣ along an axis."""
    if last_in_memory(x, axis):
        return np.moveaxis(log_softmax(np.moveaxis(x, axis, -1), -1), -1, axis)
    if suits(x) and (rows := as_rows(x, axis)) is not None:
        y = np.empty_like(x)
        N, threads = len(rows), _threads_for(rows)
        if rows.shape[1] < _SHORT:
            arrays = rows, y.reshape(rows.shape), y, np.empty((threads, _SOME), x.dtype)
            run_loop(_log_softmax_of_short, N, threads, *arrays)
        else:
            run_loop(_log_softmax, N, threads, rows, y.reshape(rows.shape))
        return y
    if not x.size:
        return as_floating(x).copy()
    xp = backend.get_array_module(x)
    x = as_floating(x)
    y = xp.asarray(x - x.max(axis=axis, keepdims=True))
    y -= xp.log(sum_array(upcast_halves(xp.exp(y)), axis, keepdims=True))
    return y


@divided
def _log_softmax_gradient(
    y: Matrix, gy: Matrix, gx: Matrix, thread: int, begin: int, end: int
) -> None:
    C = y.shape[1]
    for n in range(begin, end):
        total = 0.0
        for c in range(C):
            total += gy[n, c]
        for c in range(C):
            gx[n, c] = gy[n, c] - exp(y[n, c]) * total


def log_softmax_gradient(y: Array, gy: Array, axis: int) -> Array:
    """Return gy - eʸ Σ gy."""
    if last_in_memory(y, axis):
        return np.moveaxis(log_softmax_gradient(_moved(y, axis), _moved(gy, axis), -1), -1, axis)
    if suits(y, gy) and (rows := as_rows(y, axis)) is not None:
        gx = np.empty_like(y)
        arrays = rows, gy.reshape(rows.shape), gx.reshape(rows.shape)
        run_loop(_log_softmax_gradient, len(rows), _threads_for(rows), *arrays)
        return gx
    xp = backend.get_array_module(y)
    result: Array = gy - xp.exp(y) * sum_over(gy, axis, keepdims=True)
    return result


@divided
def _exponentials(
    x: Matrix,
    labels: Integers,
    e: Matrix,
    total: Vector,
    score: Vector,
    thread: int,
    begin: int,
    end: int,
) -> None:
    C = x.shape[1]
    for m in range(begin, end):
        most = _largest(x, m)
        s = 0.0
        for c in range(C):
            v = exp(x[m, c] - most)
            e[m, c] = v
            s += v
        total[m] = s
        score[m] = x[m, labels[m]] - most


@divided
def _exponentials_of_short(
    x: Matrix,
    labels: Integers,
    e: Matrix,
    flat: Vector,
    total: Vector,
    score: Vector,
    thread: int,
    begin: int,
    end: int,
) -> None:
    """The same; ``flat`` is e, as a vector."""
    C = x.shape[1]
    some = _SOME // C
    for start in range(begin, end, some):
        stop = min(start + some, end)
        _subtract_largest(x, start, stop, e)
        for m in range(start, stop):
            score[m] = e[m, labels[m]]
        _exponentiate(flat[start * C : stop * C])
        for m in range(start, stop):
            total[m] = _sum(e[m])


def exponentials(rows: Array, labels: Array) -> tuple[Array, Array, Array | None]:
    """Return exp(x - s) (M, C) of scores x, its sums (M,), and x - s at the labels (M,).

    s is the score of the label, and the last then None, where no other is much higher, and else
    the maximum of the row.
    """
    if suits(rows):
        e = np.empty_like(rows)
        total = np.empty(len(rows), rows.dtype)
        score: Any = np.empty_like(total)
        wanted = labels.astype(np.int64, copy=False)
        M, threads = len(rows), _threads_for(rows)
        if rows.shape[1] < _SHORT:
            run_loop(_exponentials_of_short, M, threads, rows, wanted, e, e, total, score)
        else:
            run_loop(_exponentials, M, threads, rows, wanted, e, total, score)
        return e, total, score
    xp = backend.get_array_module(rows)
    places = xp.arange(labels.size), labels
    score = rows[places]
    # to find the two takes a third of the time of each row's own
    if rows.size and rows.max() <= score.min() + MODEST:
        e = rows - score[:, None]
        score = None
    else:
        e = rows - rows.max(axis=1, keepdims=True)
        score = e[places]
    xp.exp(e, out=e)
    return e, row_sums(e), score


@divided
def _cross_entropy_gradient(
    e: Matrix,
    part: Vector,
    labels: Integers,
    g: Vector,
    gx: Matrix,
    thread: int,
    begin: int,
    end: int,
) -> None:
    C = e.shape[1]
    for m in range(begin, end):
        p = part[m]
        for c in range(C):
            gx[m, c] = e[m, c] * p
        gx[m, labels[m]] -= g[m]


def cross_entropy_gradient(
    e: Array, total: Array, score: Array | None, labels: Array, g: Array
) -> Array:
    """Return g (softmax - onehot) (M, C), of what :func:`exponentials` found; g is (M,) or a
    number.
    """
    xp = backend.get_array_module(e)
    part = g / total
    if suits(e) and part.dtype == e.dtype:
        gx = np.empty_like(e)
        each = np.full(len(e), g, e.dtype)
        arrays = e, part, labels.astype(np.int64, copy=False), each, gx
        run_loop(_cross_entropy_gradient, len(e), threads_for(len(e), 2 * e.size), *arrays)
        return gx
    places = xp.arange(labels.size), labels
    gx = e * part[:, None]
    gx[places] = (part if score is None else part * e[places]) - g
    return gx
