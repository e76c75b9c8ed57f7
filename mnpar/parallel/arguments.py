"""Checks of a parallel function's arguments: rows, their number, and names that are the same on all
ranks.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.errors import MismatchError
from mnpar.parallel.selecting import chosen, count
from mnpar.parallel.shared_data import SharedData


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
