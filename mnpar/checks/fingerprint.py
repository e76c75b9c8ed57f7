"""Fingerprints of arrays: a few sums, by which ranks find out whether they hold the same values.

Two arrays that differ only by rounding have close fingerprints. Two that are equal to the last
digit have equal ones, and :attr:`Fingerprint.plain` says whether that may be chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import frexp
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mnpar import backend

if TYPE_CHECKING:
    from mnpar.backend import Array

_BFLOAT16_EPS = 2.0**-7


class Fingerprint(NamedTuple):
    """A few numbers that describe an array.

    Args:
        total: Σ x.
        weighted: Σ w x, with weights of a period of 13, so that an exchange of elements shows.
        magnitude: Σ |x|.
        size: the number of elements; -1 where there is no array.
        plain: other ranks may have the same array without having computed the same: an array of
            zeros, of ones, of few digits.
        eps: of the dtype.
    """

    total: float
    weighted: float
    magnitude: float
    size: float
    plain: float
    eps: float

    def differs_from(self, other: Fingerprint, slack: float = 0.0) -> bool:
        """Return whether the arrays differ by more than rounding, and more than ``slack``."""
        if self.size != other.size:
            return True
        tolerance = 7 * min(max(self.eps, other.eps) ** 0.5, 0.05)
        with np.errstate(invalid="ignore", over="ignore"):
            allowed = tolerance * max(self.magnitude, other.magnitude) + slack
            return bool((np.abs(np.subtract(self[:3], other[:3])) > allowed).any())

    def __str__(self) -> str:
        if self.size < 0:
            return "missing"
        return f"{self.size:.0f} numbers, {self.total:.9g} in all,"


MISSING = Fingerprint(0.0, 0.0, 0.0, -1.0, 1.0, 0.0)


def fingerprint(x: Array | None) -> Fingerprint:
    """Return the fingerprint of an array of any shape and dtype of numbers, or of a missing one."""
    if x is None:
        return MISSING
    xp = backend.get_array_module(x)
    flat = x.reshape(-1)
    flat = (flat.view(flat.real.dtype) if flat.dtype.kind == "c" else flat).astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        magnitude = float(abs(flat).sum())
        return Fingerprint(
            float(flat.sum()),
            float(flat.dot(xp.arange(flat.size) % 13 - 6.0)),
            magnitude,
            float(x.size),
            float(_is_plain(x, magnitude)),
            _eps(x.dtype),
        )


def equal_on_all(prints: Sequence[Fingerprint]) -> bool:
    """Return whether all ranks have the same array, to the last digit, and not by chance."""
    first = prints[0]
    return all([each.size > 0 and not each.plain and each == first for each in prints])


def _eps(dtype: Any) -> float:
    if dtype.kind in "fc":
        return float(np.finfo(dtype).eps)
    return 0.0 if dtype.kind in "biu" else _BFLOAT16_EPS


def _is_plain(x: Array, magnitude: float) -> bool:
    if (frexp(magnitude)[0] * 2**12).is_integer():  # the sum has few digits
        return True
    rows = [(x == x.take([0], axis)).all() for axis, length in enumerate(x.shape) if length > 1]
    return any(map(bool, rows))
