"""How the arrays of P ranks make the array that one rank has: as copies, as blocks, as parts of a
sum, or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mnpar.backend import Array


class Relation(NamedTuple):
    """The relation of ranks' arrays to one rank's.

    Attributes:
        kind: ``'same'``, ``'blocks'``, ``'rows'``, ``'parts'`` (of a sum), ``'multiple'``,
            ``'none'`` (no rank has an array, or only zeros) or ``'other'``.
        factor: of a multiple.
    """

    kind: str
    factor: float = 1.0

    @property
    def agrees(self) -> bool:
        """True if the ranks have together what one rank has."""
        return self.kind in ("same", "blocks", "rows", "none")


def close(x: Array, y: Array, rtol: float, scale: float = 0.0) -> bool:
    """Return whether x is y up to rounding, relative to y's largest element or to ``scale``."""
    if x.shape != y.shape:
        return False
    if not x.size:
        return True
    size = float(np.abs(y).max())
    bound = rtol * max(size if np.isfinite(size) else 0.0, scale)
    same = np.isclose(x, y, rtol=0, atol=bound, equal_nan=True)
    return bool(same.all())


def relation(
    whole: Array | None, parts: Sequence[Array | None], rtol: float, scale: float = 0.0
) -> Relation:
    """Return how the ranks' arrays make one rank's.

    Args:
        whole: one rank's array, None where it has none.
        parts: of each rank; None where a rank has none.
        rtol: relative to the largest element.
        scale: differences below ``rtol`` times this are none.
    """
    there = [part for part in parts if part is not None]
    if whole is None or not there:
        zero = not any([part.any() for part in there]) and (whole is None or not whole.any())
        return Relation("none" if zero else "other")
    like = [part.shape == whole.shape for part in there]
    if all(like):
        if all([close(part, whole, rtol, scale) for part in there]):
            return Relation("same")
        return _of_one_shape(whole, there, rtol, scale)
    whole_again = _joined_blocks(whole, there)
    if whole_again is not None:
        found = _of_one_shape(whole, [whole_again], rtol, scale)
        if close(whole_again, whole, rtol, scale):
            return Relation("blocks")
        if found.kind == "multiple":
            return found
    return Relation("rows" if _are_rows(whole, there, rtol, scale) else "other")


def _of_one_shape(whole: Array, parts: Sequence[Array], rtol: float, scale: float) -> Relation:
    """Return the relation of arrays of the shape of the whole: multiples of it, or terms of a
    sum.
    """
    y = whole.astype("d").ravel()
    length = float(y @ y)
    if length and all([close(part, parts[0], rtol, scale) for part in parts]):
        factor = float(parts[0].astype("d").ravel() @ y) / length
        is_multiple = close(parts[0], factor * whole, rtol, scale)
        return Relation("multiple", factor) if is_multiple else Relation("other")
    return Relation("parts" if close(np.sum(parts, axis=0), whole, rtol, scale) else "other")


def weights_of(
    whole: Sequence[Array], parts: Sequence[Sequence[Array]], rtol: float
) -> list[float]:
    """Return by how much each rank's arrays must be multiplied so that their sums are one rank's;
    empty if no numbers do that, or many.

    Args:
        whole: arrays of one rank.
        parts: of each of P ranks, arrays of the same shapes.
        rtol: relative to the largest element of all.
    """
    if not parts or not sum([x.size for x in whole]):
        return []
    y = np.concatenate([x.astype("d").ravel() for x in whole])
    terms = [np.concatenate([x.astype("d").ravel() for x in mine]) for mine in parts]
    matrix = np.stack(terms, axis=1)
    for factor in (1.0, 1 / len(terms)):
        if close(factor * matrix.sum(axis=1), y, rtol):
            return [factor] * len(terms)
    if len(y) <= len(terms):  # so few numbers always fit
        return []
    factors, _, rank, _ = np.linalg.lstsq(matrix, y, rcond=1e-10)
    return factors.tolist() if rank == len(terms) and close(matrix @ factors, y, rtol) else []


def _joined_blocks(whole: Array, parts: Sequence[Array]) -> Array | None:
    """Return the arrays joined along the axis that gives the shape of the whole, in the order of
    ranks; None if there is no such axis.
    """
    if any([part.ndim != whole.ndim for part in parts]):
        return None
    for axis in range(whole.ndim):
        rest = whole.shape[:axis] + whole.shape[axis + 1 :]
        others = [part.shape[:axis] + part.shape[axis + 1 :] for part in parts]
        length = sum([part.shape[axis] for part in parts])
        if all([shape == rest for shape in others]) and length == whole.shape[axis]:
            return np.concatenate(parts, axis)
    return None


def _are_rows(whole: Array, parts: Sequence[Array], rtol: float, scale: float) -> bool:
    """Return whether the arrays have the rows of the whole, in any order, each once."""
    if not whole.ndim or any([part.shape[1:] != whole.shape[1:] for part in parts]):
        return False
    rows = np.concatenate(parts).reshape(-1, whole[:1].size)
    wanted = whole.reshape(-1, whole[:1].size)
    if len(rows) != len(wanted) or len(rows) > 4096:
        return False
    size = max(float(np.abs(wanted).max(initial=0)), scale)
    left = list(range(len(wanted)))
    for row in rows:
        found = [i for i in left if (np.abs(wanted[i] - row) <= rtol * size).all()]
        if not found:
            return False
        left.remove(found[0])
    return True


def joined(
    whole: tuple[int, ...], pieces: Sequence[tuple[tuple[int, ...], tuple[int, ...], Array]]
) -> Array:
    """Return an array put together from pieces, each with where it starts and stops; NaN where
    there is none.
    """
    result = np.full(whole, np.nan)
    for start, stop, array in pieces:
        result[tuple([slice(a, b) for a, b in zip(start, stop, strict=True)])] = array
    return result
