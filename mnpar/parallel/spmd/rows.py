"""Rows of arrays: select them by a number, a slice or indices, divide them among ranks, and combine
the results of several pieces of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from mnpar import backend
from mnpar.backend import Array
from mnpar.communicators.reduction import UFUNCS
from mnpar.parallel.spmd.shared_data import SharedData
from mnpar.plans import block

MODES = ("avg", "sum", "prod", "min", "max", "gather", None)
FRACTIONS = "fcV"  # kinds of dtypes with fractions: bfloat16 is a V


def select(batch: Any, length: int, name: str) -> slice | Array:
    """Return the index that selects a batch of an array's rows.

    Args:
        batch: None for all rows, an int n for the first n, a slice, or a list or array of indices,
            which may repeat.
        length: the number of rows.
        name: for the error.

    Raises:
        IndexError: the batch goes beyond the rows.
        TypeError: the batch is something else.

    Example:
        >>> from mnpar.parallel.spmd.rows import select
        >>> select(3, 10, "x"), select(slice(2, None, 2), 10, "x")
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


def split(whole: Array, rows: slice | Array, P: int) -> list[Array]:
    """Return each of P ranks' block of the selected rows."""
    return [whole[rows_between(rows, *block(row_count(rows), P, rank))] for rank in range(P)]


def row_count(rows: slice | Array) -> int:
    """Return how many rows are selected."""
    return len(range(rows.start, rows.stop, rows.step)) if isinstance(rows, slice) else len(rows)


def rows_between(rows: slice | Array, start: int, stop: int) -> slice | Array:
    """Return the index of the selected rows number ``start`` … ``stop - 1``."""
    if not isinstance(rows, slice):
        return rows[start:stop]
    return slice(
        rows.start + start * rows.step, min(rows.start + stop * rows.step, rows.stop), rows.step
    )


def combine(values: list[Array], counts: list[int], mode: str | None) -> Array:
    """Return the reduction of the results of several pieces, of ``counts`` rows; the mode None
    means ``'avg'`` here.

    Example:
        >>> import numpy as np
        >>> from mnpar.parallel.spmd.rows import combine
        >>> float(combine([np.array(1.0), np.array(5.0)], [3, 1], "avg"))
        2.0
    """
    if len(values) == 1:
        return values[0]
    xp = backend.get_array_module(*values)
    if mode == "gather":
        return xp.concatenate([xp.atleast_1d(value) for value in values])
    if mode in ("avg", None):
        total = weigh(values[0], counts[0])
        for value, n in zip(values[1:], counts[1:], strict=True):
            total = total + weigh(value, n)
        return mean(total, sum(counts), values[0].dtype)
    result = values[0]
    for value in values[1:]:
        result = UFUNCS[mode](result, value)
    return backend.wrap_scalar(result)


def weigh(value: Array, n: int) -> Array:
    """Return n times the value, in at least 32 bits; integers as float64."""
    wide = np.result_type(value.dtype, np.float32 if value.dtype.kind in FRACTIONS else np.float64)
    return backend.wrap_scalar(value.astype(wide) * n)


def mean(total: Array, n: int, dtype: DTypeLike) -> Array:
    """Return a total over n rows divided by n, in the values' ``dtype`` if that has fractions."""
    result = backend.wrap_scalar(total / n)
    return result.astype(dtype, copy=False) if np.dtype(dtype).kind in FRACTIONS else result


def select_scattered(arguments: dict[str, Any], batch: Any) -> slice | Array:
    """Return the index that selects a batch of the rows of all scattered arguments.

    Raises:
        TypeError: an argument has no rows; ValueError: arguments differ in length; IndexError: the
            batch goes beyond the rows.
    """
    lengths = {name: len(require_rows(x, name)) for name, x in arguments.items()}
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
    rows = select(batch, length, "/".join(lengths or exact))
    for name, n in exact.items():
        if n != row_count(rows):
            raise ValueError(
                f"{name} is a minibatch of {n} rows, and the batch has {row_count(rows)}"
            )
    return rows


def require_rows(x: Any, name: str) -> Any:
    """Return ``x``, which must have a first axis.

    Raises:
        TypeError: ``x`` has none, as a number or a generator.
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


def to_array(x: Any) -> Array:
    """Return the array of a Variable, a SharedVariable, SharedData, a list or a number."""
    x = getattr(x, "array", x)
    return x if backend.is_array(x) else np.asarray(x)
