"""Rows of an array, chosen by a number, a slice or indices; and the reduction of results over
pieces of the rows.

Checks of a parallel function's arguments: rows, their number, and names that are the same on all
ranks.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.communicators.reduction import UFUNCS
from mnpar.errors import MismatchError
from mnpar.parallel.spmd.shared_data import SharedData
from mnpar.plans import block

MODES = ("avg", "sum", "prod", "min", "max", "gather", None)
FRACTIONS = "fcV"  # kinds of dtypes with fractions: bfloat16 is a V


def chosen(batch: Any, length: int, name: str) -> slice | Array:
    """What an array of so many rows is indexed with, checked.

    Args:
        batch: None for all rows, an int n for the first n, a slice, or a list or array of indices,
            which may repeat.
        length: the rows that there are.
        name: for the error.

    Raises:
        IndexError: it goes beyond the rows.
        TypeError: it is something else.

    Example:
        >>> from mnpar.parallel.spmd.rows import chosen
        >>> chosen(3, 10, "x"), chosen(slice(2, None, 2), 10, "x")
        (slice(0, 3, 1), slice(2, 10, 2))
    """
    if batch is None:
        return slice(0, length, 1)
    if isinstance(batch, bool):
        raise TypeError(f"{name}: a batch is an int, a slice or a list of indices, not {batch!r}")
    if isinstance(batch, int | np.integer):
        return _within(slice(0, int(batch), 1), length, name)
    if isinstance(batch, slice):
        step = 1 if batch.step is None else batch.step
        if step < 1:
            raise IndexError(f"{name}: the step of a batch is 1 or more, not {step}")
        return _within(
            slice(batch.start or 0, length if batch.stop is None else batch.stop, step),
            length,
            name,
        )
    indices = np.asarray(backend.to_host(batch))
    if indices.size == 0:
        return np.empty(0, np.intp)
    if indices.ndim != 1 or indices.dtype.kind not in "iu":
        raise TypeError(
            f"{name}: a batch is an int, a slice or a list of indices, not of {indices.dtype} "
            f"and {indices.ndim} axes"
        )
    if indices.min() < 0 or indices.max() >= length:
        raise IndexError(
            f"{name} has rows 0 … {length - 1}: a batch from {indices.min()} to "
            f"{indices.max()} goes beyond them"
        )
    return indices.astype(np.intp)


def _within(rows: slice, length: int, name: str) -> slice:
    if not 0 <= rows.start <= rows.stop <= length:
        raise IndexError(
            f"{name} has {length} rows: a batch of rows {rows.start} … {rows.stop - 1} goes "
            "beyond them"
        )
    return rows


def cut(whole: Array, rows: slice | Array, P: int) -> list[Array]:
    """Each of P ranks' part of some rows."""
    return [whole[part(rows, *block(count(rows), P, rank))] for rank in range(P)]


def count(rows: slice | Array) -> int:
    """How many rows that are."""
    return len(range(rows.start, rows.stop, rows.step)) if isinstance(rows, slice) else len(rows)


def part(rows: slice | Array, start: int, stop: int) -> slice | Array:
    """The rows number ``start`` … ``stop - 1`` of these."""
    if not isinstance(rows, slice):
        return rows[start:stop]
    return slice(
        rows.start + start * rows.step, min(rows.start + stop * rows.step, rows.stop), rows.step
    )


def merged(values: list[Array], counts: list[int], mode: str | None) -> Array:
    """The reduction of the results of several pieces, whose numbers of rows are ``counts``; the
    mode None means ``'avg'`` here.

    Example:
        >>> import numpy as np
        >>> from mnpar.parallel.spmd.rows import merged
        >>> float(merged([np.array(1.0), np.array(5.0)], [3, 1], "avg"))
        2.0
    """
    if len(values) == 1:
        return values[0]
    xp = backend.get_array_module(*values)
    if mode == "gather":
        return xp.concatenate([xp.atleast_1d(value) for value in values])
    if mode in ("avg", None):
        total = weighted(values[0], counts[0])
        for value, n in zip(values[1:], counts[1:], strict=True):
            total = total + weighted(value, n)
        return mean(total, sum(counts), values[0].dtype)
    result = values[0]
    for value in values[1:]:
        result = UFUNCS[mode](result, value)
    return backend.wrap_scalar(result)


def weighted(value: Array, n: int) -> Array:
    """n times the value, in at least 32 bits; integers as float64."""
    wide = np.result_type(value.dtype, np.float32 if value.dtype.kind in FRACTIONS else np.float64)
    return backend.wrap_scalar(value.astype(wide) * n)


def mean(total: Array, n: int, dtype: Any) -> Array:
    """A total over n rows, divided by n; in ``dtype``, that of the values, if that has
    fractions.
    """
    result = backend.wrap_scalar(total / n)
    return result.astype(dtype, copy=False) if np.dtype(dtype).kind in FRACTIONS else result


def rows_of(arguments: dict[str, Any], batch: Any) -> slice | Array:
    """The rows that a batch chooses of the scattered arguments, all of which must have them.

    Raises:
        TypeError: an argument has no rows. ValueError: they differ in length. IndexError: the batch
            goes beyond them.
    """
    lengths = {name: len(with_rows(x, name)) for name, x in arguments.items()}
    exact = {
        name: lengths.pop(name)
        for name, x in arguments.items()
        if isinstance(x, SharedData) and x.minibatch
    }
    if len(set(lengths.values())) > 1:
        raise ValueError(
            f"scattered arguments have as many rows as each other; these have {lengths}"
        )
    length = next(iter(lengths.values()), None)
    if length is None:  # batches only
        length, batch = next(iter(exact.values())), None
    rows = chosen(batch, length, "/".join(lengths or exact))
    for name, n in exact.items():
        if n != count(rows):
            raise ValueError(f"{name} is a minibatch of {n} rows, and the batch has {count(rows)}")
    return rows


def with_rows(x: Any, name: str) -> Any:
    """``x``, if it has a first axis.

    Raises:
        TypeError: it has none, as a number or a generator.
    """
    try:
        len(x)
    except TypeError:
        given = type(x).__name__
        if getattr(getattr(x, "array", None), "ndim", 0):
            raise TypeError(
                f"{name} is a {given}, of which each rank has its own: give its .array, whose "
                "rows are cut"
            ) from None
        raise TypeError(f"{name} is {given}, which has no rows: give an array or a list") from None
    return x


def as_array(x: Any) -> Array:
    """The array that something is, or has: a Variable, a SharedVariable, SharedData, a list, a
    number.
    """
    x = getattr(x, "array", x)
    return x if backend.is_array(x) else np.asarray(x)


def check_said(mine: dict[str, Any], roots: dict[str, Any], rank: int) -> None:
    """Compare this rank's description of a call (``ParallelFunction._said``) with the root's.

    Raises:
        MismatchError: they differ.
    """
    for what, said in roots.items():
        if mine[what] != said:
            raise MismatchError(
                f"a parallel_function has {what} {said} on rank 0, and {mine[what]} on rank "
                f"{rank}: "
                "all ranks make and call it alike"
            )
