"""Repeating arrays (tile) and their elements (repeat)."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

import numpy as np

from mnpar.backend import Array
from mnpar.function_node import InputGradients
from mnpar.functions.array.broadcast import broadcast_to
from mnpar.functions.array.get_item import get_item
from mnpar.functions.array.shape import reshape
from mnpar.functions.node import GenericFunction, normalize_axis
from mnpar.kernels.dtypes import upcast_halves
from mnpar.kernels.sums import sum_array
from mnpar.variable import Variable, as_variable

FEW = 8  # slices that are added one by one


def tile(x: Variable | Array, reps: int | Sequence[int]) -> Variable:
    """Copies of an array side by side.

    Args:
        x: an array or Variable.
        reps: how many along each axis; a number is for the last one.

    Raises:
        ValueError: a negative number.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.tile(np.array([1, 2]), (2, 2)).array
        array([[1, 2, 1, 2],
               [1, 2, 1, 2]])
    """
    x = as_variable(x)
    counts = tuple(reps) if isinstance(reps, tuple | list) else (reps,)
    if any(n < 0 for n in counts):
        raise ValueError(f"tile: reps {reps} are 0 or more")
    n = max(len(counts), x.ndim)
    counts = (1,) * (n - len(counts)) + counts
    shape = (1,) * (n - x.ndim) + x.shape
    apart = [m for length in shape for m in (1, length)]
    spread = [m for pair in zip(counts, shape, strict=True) for m in pair]
    return reshape(
        broadcast_to(reshape(x, tuple(apart)), tuple(spread)),
        tuple([a * b for a, b in zip(counts, shape, strict=True)]),
    )


class Repeat(GenericFunction):
    """Each place along an axis n times."""

    def __init__(self, n: int, axis: int) -> None:
        self.n, self.axis = n, axis

    def forward(self, x: Array) -> Array:
        return x.repeat(self.n, axis=self.axis)

    def backward(self, gy: Variable | Array) -> InputGradients:
        return lambda: AddRepeats(self.n, self.axis)(gy)


class AddRepeats(GenericFunction):
    """The transpose of it: n places after each other, added up. To add n slices is faster than to
    sum over a short axis.
    """

    def __init__(self, n: int, axis: int) -> None:
        self.n, self.axis = n, axis

    def forward(self, y: Array) -> Array:
        shape, n, axis = y.shape, self.n, self.axis
        if not 2 <= n <= FEW:
            runs = y.reshape(*shape[:axis], shape[axis] // n, n, *shape[axis + 1 :])
            return sum_array(runs, axis + 1)
        first, second, *rest = [y[(*[slice(None)] * axis, slice(i, None, n))] for i in range(n)]
        x = upcast_halves(first) + second
        for part in rest:
            x += part
        return x.astype(y.dtype, copy=False)

    def backward(self, gx: Variable | Array) -> InputGradients:
        return lambda: Repeat(self.n, self.axis)(gx)


def repeat(x: Variable | Array, repeats: Any, axis: int | None = None) -> Variable:
    """Each element several times, one after the other.

    Args:
        x: an array or Variable.
        repeats: how many times, a number, or one for each place along the axis.
        axis: along which; None: of the flattened array.

    Raises:
        ValueError: x has no such axis, or the repeats are negative, or not as many as its places.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.repeat(np.array([1, 2]), 2).array
        array([1, 1, 2, 2])
    """
    x = as_variable(x)
    if axis is None:
        x, axis = reshape(x, (x.size,)), 0
    axis = normalize_axis("repeat", x, axis)
    counts = tuple(map(index, repeats)) if isinstance(repeats, tuple | list) else (index(repeats),)
    if min(counts, default=0) < 0:
        raise ValueError(f"repeat: repeats {repeats} are 0 or more")
    if len(counts) == 1 and counts[0]:
        return Repeat(counts[0], axis).apply((x,))[0]
    counts = counts * x.shape[axis] if len(counts) == 1 else counts
    if len(counts) != x.shape[axis]:
        raise ValueError(
            f"repeat: {len(counts)} repeats for {x.shape[axis]} places along axis {axis}"
        )
    return get_item(
        x, (*[slice(None)] * axis, x.xp.asarray(np.repeat(np.arange(len(counts)), counts)))
    )
