"""Joining and splitting arrays along an axis, in adjoint pairs: concat ⇄ split_axis, stack ⇄
separate.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from operator import index
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from mnpar import backend
from mnpar.backend import Array
from mnpar.function_node import InputGradients
from mnpar.functions.node import GenericFunction, normalize_axis
from mnpar.kernels.channels_last import join_channels, take_channels
from mnpar.variable import Variable, as_variable


def at(axis: int, place: Any) -> tuple[Any, ...]:
    """The index that takes ``place`` on one axis and everything on those before it."""
    return (slice(None),) * axis + (place,)


class Concat(GenericFunction):
    """One array after the other along an axis; each gets back its piece of ``gy``: the transpose of
    SplitAxis.
    """

    def __init__(self, axis: int) -> None:
        self.axis = axis

    def forward(self, *xs: Array) -> Array:
        if self.axis == 1 and (y := join_channels(xs)) is not None:
            return y
        return backend.get_array_module(*xs).concatenate(xs, self.axis)

    def backward(self, gy: Variable | Array) -> InputGradients:
        axis = self.axis % len(self.inputs[0].shape)
        ends = accumulate([x.shape[axis] for x in self.inputs], initial=0)
        return tuple([lambda i=i, j=j: _piece(gy, axis, i, j) for i, j in pairwise(ends)])


def _piece(x: Variable | Array, axis: int, begin: int, end: int) -> Variable | Array:
    """The part between two places of an axis."""
    if axis == 1 and not isinstance(x, Variable):
        y = take_channels(x, begin, end)
        if y is not None:
            return y
    return x[at(axis, slice(begin, end))]


class SplitAxis(GenericFunction):
    """Pieces between cuts along an axis; ``gx`` is the ``gys`` joined, with zeros for those that
    are missing.
    """

    def __init__(self, cuts: Sequence[int], axis: int) -> None:
        self.cuts, self.axis = cuts, axis

    def forward(self, x: Array) -> tuple[Array, ...]:
        ys = [x[at(self.axis, slice(i, j))] for i, j in pairwise(self.cuts)]
        self.shapes = [y.shape for y in ys]
        return tuple(ys)

    def backward(self, *gys: Variable | Array | None) -> InputGradients:
        return lambda: Concat(self.axis)(*_filled(gys, self.shapes, self.inputs[0].dtype))


def concat(xs: Sequence[Variable | Array], axis: int = 1) -> Variable:
    """Join arrays along an existing axis.

    Args:
        xs: arrays or Variables whose shapes differ at most along that axis.
        axis: by default 1, the features of a batch.

    Raises:
        ValueError: there is nothing to join, or the other axes differ.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.concat([np.zeros((2, 1)), np.ones((2, 2))]).array
        array([[0., 1., 1.],
               [0., 1., 1.]])
    """
    try:
        return Concat(axis).apply(tuple(xs))[0]
    except (ValueError, TypeError) as error:
        raise _explain("concat", xs, axis, error) from None


def split_axis(
    x: Variable | Array,
    indices_or_sections: int | Sequence[int],
    axis: int,
    force_tuple: bool = True,
) -> tuple[Variable, ...] | Variable:
    """Cut along an axis; parts from which no gradient comes back count as zeros.

    Args:
        x: an array or Variable.
        indices_or_sections: the number of equal parts, or the places of the cuts in rising order.
        axis: the axis that is cut.
        force_tuple: whether a single part comes in a tuple too.

    Returns:
        The parts, which share ``x``'s memory.

    Raises:
        ValueError: the axis is not divisible, or the cuts do not rise.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> [y.shape for y in F.split_axis(np.ones((2, 5)), [2], axis=1)]
        [(2, 2), (2, 3)]
    """
    x = as_variable(x)
    axis = normalize_axis("split_axis", x, axis)
    cuts = _cuts(x.shape[axis], indices_or_sections)
    ys = SplitAxis(cuts, axis).apply((x,))
    return ys if len(ys) > 1 or force_tuple else ys[0]


def _cuts(length: int, parts: Any) -> list[int]:
    if isinstance(parts, (int, np.integer)):
        if parts < 1 or length % parts:
            raise ValueError(
                f"split_axis: length {length} is not {parts} equal parts; name the places of "
                "the cuts instead"
            )
        return list(range(0, length + 1, length // parts)) if length else [0] * (parts + 1)
    cuts = [0, *map(index, parts), length]
    if any(i > j for i, j in pairwise(cuts)):
        raise ValueError(
            f"split_axis: the cuts {list(parts)} do not rise from 0 to the length {length}"
        )
    return cuts


class Stack(GenericFunction):
    """Along a new axis; ``order``: of the result's axes in memory."""

    def __init__(self, axis: int, order: tuple[int, ...] | None = None) -> None:
        self.axis, self.order = axis, order

    def forward(self, *xs: Array) -> Array:
        xp = backend.get_array_module(*xs)
        if self.order is None:
            if self.axis == 0 and _are_rows(xs):  # in a third of the time, if they are short
                return xp.concatenate(xs).reshape(len(xs), *xs[0].shape)
            return xp.stack(xs, self.axis)
        shape = list(xs[0].shape)
        shape.insert(self.axis, len(xs))
        y = backend.empty_in_order(tuple(shape), xp.result_type(*xs), self.order, xp)
        for i, x in enumerate(xs):
            y[at(self.axis, i)] = x
        return y

    def backward(self, gy: Variable | Array) -> InputGradients:
        axis = self.axis % gy.ndim
        return tuple([lambda i=i: gy[at(axis, i)] for i in range(len(self.inputs))])


def _are_rows(xs: Sequence[Array]) -> bool:
    """Return whether arrays of one shape have, one after the other, the memory of their stack."""
    if not xs or not xs[0].ndim or not xs[0].flags.c_contiguous:
        return False
    shape = xs[0].shape
    return all([x.shape == shape for x in xs])


class Separate(GenericFunction):
    """The slices along an axis, without it; ``gx`` is the ``gys`` stacked: the transpose of
    Stack.
    """

    def __init__(self, axis: int) -> None:
        self.axis = axis

    def forward(self, x: Array) -> tuple[Array, ...]:
        xp = backend.get_array_module(x)
        self.order = None if x.flags.c_contiguous else backend.memory_order(x)
        if x.ndim > 1:
            return tuple(xp.moveaxis(x, self.axis, 0) if self.axis else x)
        return tuple([x[i, ...] for i in range(len(x))])  # arrays, too

    def backward(self, *gys: Variable | Array | None) -> InputGradients:
        x = self.inputs[0]
        shape = x.shape[: self.axis] + x.shape[self.axis + 1 :]
        return lambda: Stack(self.axis, self.order)(*_filled(gys, [shape] * len(gys), x.dtype))


def stack(xs: Sequence[Variable | Array], axis: int = 0) -> Variable:
    """Join arrays of one shape along a new axis.

    Args:
        xs: arrays or Variables of one shape.
        axis: where the new axis stands in the result.

    Raises:
        ValueError: there is nothing to join, or the shapes differ.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.stack([np.zeros(2), np.ones(2)], axis=1).array
        array([[0., 1.],
               [0., 1.]])
    """
    try:
        return Stack(axis).apply(tuple(xs))[0]
    except (ValueError, TypeError) as error:
        raise _explain("stack", xs, axis, error) from None


def separate(x: Variable | Array, axis: int = 0) -> tuple[Variable, ...]:
    """Take an axis apart: the inverse of ``stack``.

    Args:
        x: an array or Variable.
        axis: the axis, which the parts no longer have.

    Returns:
        A tuple of as many Variables as the axis is long.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> [y.shape for y in F.separate(np.ones((2, 3)), axis=1)]
        [(2,), (2,), (2,)]
    """
    x = as_variable(x)
    return Separate(normalize_axis("separate", x, axis)).apply((x,))


def _filled(
    gys: Sequence[Variable | Array | None], shapes: Sequence[tuple[int, ...]], dtype: DTypeLike
) -> list[Variable | Array]:
    """Zeros for the parts from which no gradient came."""
    xp = backend.get_array_module(*gys)
    return [
        xp.zeros(shape, dtype) if gy is None else gy for gy, shape in zip(gys, shapes, strict=True)
    ]


def _explain(name: str, xs: Sequence[Variable | Array], axis: int, error: Exception) -> Exception:
    if getattr(axis, "shape", ()):  # concat(a, b)
        return TypeError(
            f"{name}: the axis is an integer, not an array: the arrays come in one tuple, as "
            f"in F.{name}((a, b))"
        )
    if isinstance(error, TypeError):
        return error
    rule = (
        "all lengths but that axis's must agree"
        if name == "concat"
        else "all shapes must be the same"
    )
    return ValueError(
        f"{name}: shapes {[x.shape for x in xs]} do not join along axis {axis}, {rule} ({error})"
    )


def hstack(xs: Sequence[Variable | Array]) -> Variable:
    """Side by side: along axis 1, or along the only axis of vectors.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.hstack([np.zeros(1), np.ones(2)]).array
        array([0., 1., 1.])
    """
    rows = _at_least_1d(xs)
    return concat(rows, axis=0 if rows[0].ndim == 1 else 1)


def vstack(xs: Sequence[Variable | Array]) -> Variable:
    """On top of each other: along axis 0; vectors are rows.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.vstack([np.zeros(2), np.ones(2)]).array
        array([[0., 0.],
               [1., 1.]])
    """
    rows = _at_least_1d(xs)
    return stack(rows) if rows[0].ndim == 1 else concat(rows, axis=0)


def dstack(xs: Sequence[Variable | Array]) -> Variable:
    """Join arrays along the third axis.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.dstack([np.array([1, 2]), np.array([3, 4])]).array
        array([[[1, 3],
                [2, 4]]])
    """
    deep = []
    for x in xs:
        x = as_variable(x)
        shape = ((1, 1, 1), (1, *x.shape, 1), (*x.shape, 1))[x.ndim] if x.ndim < 3 else x.shape
        deep.append(x.reshape(shape))
    return concat(deep, axis=2)


def _at_least_1d(xs: Sequence[Variable | Array]) -> Sequence[Variable | Array]:
    return [as_variable(x).reshape(1) for x in xs] if xs[0].ndim == 0 else xs
