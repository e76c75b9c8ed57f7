"""Padding of arrays, and of sequences of different lengths into one array."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.function_node import InputGradients
from mnpar.functions.array.get_item import get_item
from mnpar.functions.array.joining import stack
from mnpar.functions.node import GenericFunction
from mnpar.variable import Variable, as_variable

REPEATING = ("edge", "reflect", "symmetric", "wrap")


"""The modes in which each new element is one of the array's own."""


class Pad(GenericFunction):
    """An array within strips of constants: ``widths`` and ``values`` have a pair for each axis."""

    def __init__(self, widths: Sequence[tuple[int, int]], values: Sequence[Any] | Array) -> None:
        self.widths, self.values = widths, values

    def forward(self, x: Array) -> Array:
        pairs = zip(self.widths, x.shape, strict=True)
        y = backend.get_array_module(x).empty([low + n + high for (low, high), n in pairs], x.dtype)
        inside = self._inside(x.shape)
        y[inside] = x
        for axis, ((low, high), (before, after)) in enumerate(
            zip(self.widths, self.values, strict=True)
        ):
            earlier = (slice(None),) * axis
            later = inside[axis + 1 :]
            if low:
                y[(*earlier, slice(0, low), *later)] = before
            if high:
                y[(*earlier, slice(low + x.shape[axis], None), *later)] = after
        return y

    def _inside(self, shape: Sequence[int]) -> tuple[slice, ...]:
        return tuple([slice(low, low + n) for (low, _), n in zip(self.widths, shape, strict=True)])

    def backward(self, gy: Variable | Array) -> InputGradients:
        return lambda: gy[self._inside(self.inputs[0].shape)]


def pad(
    x: Variable | Array, pad_width: Any, mode: str = "constant", constant_values: Any = 0
) -> Variable:
    """Pad an array, as ``numpy.pad`` does.

    Args:
        x: an array or Variable.
        pad_width: how many elements at each end: a number, a pair ``(before, after)``, or a pair
            for each axis.
        mode: ``'constant'``, or ``'edge'``, ``'reflect'``, ``'symmetric'``, ``'wrap'``, as in
            numpy.
        constant_values: the values of mode ``'constant'``.

    Returns:
        The larger array.

    Raises:
        ValueError: widths that are negative or not for all axes, an unknown mode.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.pad(np.array([1.0, 2.0]), 1, "constant").array
        array([0., 1., 2., 0.])
        >>> F.pad(np.array([1.0, 2.0, 3.0]), (0, 2), "reflect").array
        array([1., 2., 3., 2., 1.])
    """
    y: Variable = as_variable(x)
    widths = [(index(low), index(high)) for low, high in _pairs(pad_width, y.ndim)]
    if min([n for pair in widths for n in pair], default=0) < 0:
        raise ValueError(f"pad: widths {widths} are 0 or more")
    if mode == "constant":
        return Pad(widths, _pairs(constant_values, y.ndim)).apply((y,))[0]
    if mode not in REPEATING:
        raise ValueError(
            f"pad: mode {mode!r} is none of 'constant', {', '.join(map(repr, REPEATING))}"
        )
    for axis, (low, high) in enumerate(widths):
        if low or high:
            here = np.arange(y.shape[axis])
            places = np.pad(here, (low, high), mode)  # type: ignore[call-overload]
            y = get_item(y, (*[slice(None)] * axis, y.xp.asarray(places)))
    return y


def _pairs(given: Any, n: int) -> Sequence[Any] | Array:
    """A pair for each axis, of what ``numpy.pad`` takes in its place; of a number without numpy,
    which takes longer than to pad a small array.
    """
    if type(given) in (int, float):
        return ((given, given),) * n
    pairs: Array = np.broadcast_to(given, (n, 2))
    return pairs


def pad_sequence(
    xs: Sequence[Variable | Array], length: int | None = None, padding: complex = 0
) -> Variable:
    """Join sequences of different lengths into one array, padded at their ends.

    Args:
        xs: arrays or Variables ``(T_i, …)``.
        length: of the result; None is the longest.
        padding: what is put after the shorter ones.

    Returns:
        ``(N, T, …)``.

    Raises:
        ValueError: one is longer than ``length``, or there is none.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.pad_sequence([np.array([1.0]), np.array([2.0, 3.0])]).array
        array([[1., 0.],
               [2., 3.]])
    """
    xs = [as_variable(x) for x in xs]
    if not xs:
        raise ValueError("pad_sequence: xs is empty: it pads one sequence or more")
    longest = max(x.shape[0] for x in xs)
    length = longest if length is None else length
    if longest > length:
        raise ValueError(f"pad_sequence: a sequence of {longest} is longer than length = {length}")
    return stack(
        [
            pad(x, [(0, length - x.shape[0]), *[(0, 0)] * (x.ndim - 1)], "constant", padding)
            for x in xs
        ]
    )
