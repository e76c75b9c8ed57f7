"""Embedding: rows of a matrix, chosen by integers."""

from __future__ import annotations

from mnpar.backend import Array
from mnpar.functions.array.get_item import get_item, where
from mnpar.variable import Variable, as_variable


def embed_id(x: Variable | Array, W: Variable | Array, ignore_label: int | None = None) -> Variable:
    """Rows of a table, looked up by their numbers: an embedding.

    Args:
        x: integers 0 … V - 1 of any shape ``(…)``.
        W: the table, ``(V, D)``.
        ignore_label: an integer for which the result is zeros.

    Returns:
        ``(…, D)``.

    Raises:
        ValueError: an integer is not in 0 … V - 1, or ``x`` has another dtype.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.embed_id(np.array([1, -1]), np.array([[1.0, 2.0], [3.0, 4.0]]), ignore_label=-1).array
        array([[3., 4.],
               [0., 0.]])
    """
    x, W = as_variable(x), as_variable(W)
    if x.layout is not None:  # each place by itself
        layout = x.layout
        part = embed_id(x.part, layout.shared(W), ignore_label)  # type: ignore[attr-defined]
        found: Variable = layout.like((*x.shape, part.shape[-1])).divided(part)
        return found
    numbers = x.array
    if numbers.dtype.kind not in "iu":
        raise ValueError(f"embed_id: x names rows by integers, not by {numbers.dtype}")
    counted = numbers != ignore_label if ignore_label is not None else None
    known = (numbers >= 0) & (numbers < len(W))
    if not (known if counted is None else known | ~counted).all():
        raise ValueError(
            f"embed_id: numbers from {numbers.min()} to {numbers.max()} do not all name one of "
            f"{len(W)} rows"
        )
    if counted is None:
        return get_item(W, numbers)
    # not times 0: row 0 may have a NaN
    return where(counted[..., None], get_item(W, W.xp.where(counted, numbers, 0)), 0)
