"""How good predictions are: numbers to look at, through which nothing flows back.

They are this rank's numbers. The mean over ranks whose batches differ in size is weighted by those sizes.
"""

from __future__ import annotations

import math
from typing import Any

from mnpar import backend
from mnpar.functions.generic import listed, plain
from mnpar.variable import Variable, as_variable


def accuracy(y: Any, t: Any, ignore_label: int | None = None) -> Variable:
    """The share of samples whose largest score is that of the right class.

    Args:
        y: ``(N, C, …)``, scores.
        t: ``(N, …)``, integers, the right classes.
        ignore_label: samples with this label are left out.

    Returns:
        0-d, of ``y``'s dtype; 0 where nothing is left to count.

    Raises:
        ValueError: the shapes do not belong together, or the labels are no integers.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> y = np.array([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]])
        >>> float(F.accuracy(y, np.array([0, 1, 1])).array.round(3))
        0.667
    """
    y, t = plain(as_variable(y)), plain(as_variable(t))
    if t.dtype.kind not in "iu":
        raise ValueError(f"accuracy: the labels have dtype {t.dtype}; they are integers")
    places = y.shape[:1] + y.shape[2:]
    if y.ndim < 2 or t.shape != places[: t.ndim] or math.prod(places[t.ndim :]) != 1:
        raise ValueError(f"accuracy: shapes {listed([y.shape, t.shape])} are not (N, C, …) and (N, …)")
    right = y.argmax(axis=1).reshape(t.shape) == t
    if ignore_label is None:
        return _share(right.sum(), t.size, y)
    counted = t != ignore_label
    return _share((right & counted).sum(), counted.sum(), y)


def binary_accuracy(y: Any, t: Any) -> Variable:
    """The share of scores with the right sign: not negative for 1, negative for 0; where ``t`` is -1 nothing is counted.

    Args:
        y: scores, of any shape.
        t: integers of the same shape.

    Returns:
        0-d, of ``y``'s dtype; 0 where nothing is left to count.

    Raises:
        ValueError: the shapes differ.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> float(F.binary_accuracy(np.array([-1.0, 2.0]), np.array([0, 0])).array)
        0.5
    """
    y, t = plain(as_variable(y)), plain(as_variable(t))
    if y.shape != t.shape:
        raise ValueError(f"binary_accuracy: shapes {listed([y.shape, t.shape])} must be the same")
    counted = t != -1
    return _share((((y >= 0) == t) & counted).sum(), counted.sum(), y)


def _share(right: Any, count: Any, y: Any) -> Variable:
    xp = backend.get_array_module(y)
    return Variable(xp.asarray(right / xp.maximum(xp.asarray(count), 1), y.dtype), requires_grad=False)
