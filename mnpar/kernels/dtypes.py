"""The dtypes that are computed with: integers become floats, and halves are widened."""

from __future__ import annotations

from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import HALVES, Array


def floating_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of what is computed from elements of a dtype and is no integer: that of floats is
    their own, as in numpy.

    Example:
        >>> floating_dtype(np.dtype("f4")), floating_dtype(np.dtype("i4"))
        (dtype('float32'), dtype('float64'))
    """
    return np.dtype("f8") if dtype.kind in "biu" else dtype


def as_floating(x: Array) -> Array:
    """Integers as float64, others as they are: differences of unsigned ones, and those of booleans,
    are others.

    Example:
        >>> x = np.array([1, 3], np.uint8)
        >>> x - 3, as_floating(x) - 3
        (array([254,   0], dtype=uint8), array([-2.,  0.]))
    """
    return x.astype("f8") if x.dtype.kind in "biu" else x


def upcast_halves(x: Array) -> Array:
    """float16 as float32, others as they are: sums of many halves need more than 11 bits, and soon
    exceed 65504.
    """
    return x.astype("f4") if x.dtype.char in HALVES else x


def compute_dtype(x: Any) -> Any:
    """The dtype that x is computed with: float32 for float16 and bfloat16."""
    return np.dtype("f") if x.dtype.char in backend.HALVES else x.dtype
