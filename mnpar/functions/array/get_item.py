"""Indexing, ``x[...]``, whose backward adds gradients at the indices, and ``where``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array, AxisIndex, Index
from mnpar.function_node import InputGradients
from mnpar.functions.array.broadcast import Shape, unbroadcast
from mnpar.functions.node import (
    GenericFunction,
    array_of,
    as_operand,
    check_labels,
    is_divided,
    own_array,
    show_shapes,
)
from mnpar.kernels.dtypes import upcast_halves
from mnpar.kernels.rows import add_rows
from mnpar.variable import Variable, as_variable


class GetItem(GenericFunction):
    """``y = x[index]``; ``gx`` is 0 except at ``index``, where ``gy`` is added: the transpose of
    ScatterAdd.
    """

    def __init__(self, index: AxisIndex | Index) -> None:
        self.index = index

    def forward(self, x: Array) -> Array:
        index: Any = self.index
        if _rows(index) and index.dtype.kind == "i" and x.ndim and x.flags.c_contiguous:
            rows: Array = x.take(index, axis=0)  # short rows several times as fast as x[index]
            return rows
        result: Array = x[index]
        return result

    def backward(self, gy: Variable | Array) -> InputGradients:
        x = self.inputs[0]
        return lambda: ScatterAdd(self.index, x.shape)(gy)


class ScatterAdd(GenericFunction):
    """Zeros of a shape, with the input added at an index: the transpose of GetItem."""

    def __init__(self, index: AxisIndex | Index, shape: Shape) -> None:
        self.index, self.shape = index, shape

    def forward(self, x: Array) -> Array:
        xp = backend.get_array_module(x)
        x, dtype = upcast_halves(x), x.dtype  # many halves are added up in float32
        y = xp.zeros(self.shape, x.dtype)
        if _rows(self.index) and y.ndim > 1:
            rows = xp.asarray(self.index).astype("i8").reshape(-1) % max(len(y), 1)
            matrix = y.reshape(len(y), math.prod(self.shape[1:]))
            add_rows(matrix, rows, x.reshape(len(rows), matrix.shape[1]))
        elif _may_repeat(self.index):
            xp.add.at(y, self.index, x)
        else:
            y[self.index] = x
        return y.astype(dtype, copy=False)

    def backward(self, gy: Variable | Array) -> InputGradients:
        return lambda: gy[self.index]


def _rows(index: AxisIndex | Index) -> bool:
    """The index is an array of numbers of rows."""
    return backend.is_array(index) and index.dtype.kind in "iu" and index.ndim > 0


def _may_repeat(index: AxisIndex | Index) -> bool:
    """Integer arrays can name an element twice; slices, numbers and masks cannot."""
    parts = index if isinstance(index, tuple) else (index,)
    return any(
        [
            isinstance(i, list) or (backend.is_array(i) and i.dtype.kind != "b" and i.ndim > 0)
            for i in parts
        ]
    )


def get_item(x: Variable | Array, slices: AxisIndex | Index) -> Variable:
    """Return ``x[slices]``; an element that is picked twice gets both gradients.

    Args:
        x: an array or Variable.
        slices: any index that numpy takes: numbers, slices, None, Ellipsis, integer arrays, masks,
            tuples of them.

    Returns:
        A Variable; it shares ``x``'s memory where no array is among the slices.

    Raises:
        IndexError: the index is outside ``x``.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.get_item(np.array([1.0, 2.0, 3.0]), [0, 2, 2]).array
        array([1., 3., 3.])
    """
    index = tuple([array_of(i) for i in slices]) if isinstance(slices, tuple) else array_of(slices)
    return GetItem(index).apply((x,))[0]


def as_strided(
    x: Variable | Array,
    shape: Sequence[int],
    strides: Sequence[int],
    storage_offset: int | None = None,
) -> Variable:
    """The elements that so many steps lead to: y[i, j, …] is element offset + i strides[0] + j
    strides[1] + … of x.

    Args:
        x: an array or Variable, of which the elements are counted row by row. (Chainer counts them
            as they lie in the memory that x is a view of.)
        shape: of the result.
        strides: steps for each axis of it, in elements; 0 repeats one, negative ones go back.
        storage_offset: where to start; None is 0.

    Returns:
        A copy; the gradient of an element that is there several times is the sum.

    Raises:
        ValueError: not as many strides as axes, or a step leads out of x.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.as_strided(np.arange(4.0), (3, 2), (1, 1)).array
        array([[0., 1.],
               [1., 2.],
               [2., 3.]])
    """
    x = as_variable(x)
    start = storage_offset or 0
    shape = tuple(shape)
    strides = tuple(strides)
    if len(shape) != len(strides) or min(shape, default=0) < 0:
        raise ValueError(
            f"as_strided: shape {shape} and strides {strides} are not lengths and as many steps"
        )
    ends = [(n - 1) * step for n, step in zip(shape, strides, strict=True)]
    low = start + sum(min(end, 0) for end in ends)
    high = start + sum(max(end, 0) for end in ends)
    if 0 not in shape and not 0 <= low <= high < x.size:
        raise ValueError(
            f"as_strided: elements {low} to {high} are asked for of the {x.size} of x {x.shape}"
        )
    places = x.xp.full(shape, start)
    for axis, (n, step) in enumerate(zip(shape, strides, strict=True)):
        places += (x.xp.arange(n) * step).reshape(-1, *[1] * (len(shape) - 1 - axis))
    return get_item(x.reshape((x.size,)), places)


def select_item(x: Variable | Array, t: Variable | Array) -> Variable:
    """One element of each row.

    Args:
        x: ``(N, C)``.
        t: ``(N,)`` integers, the column of each row.

    Returns:
        ``(N,)``.

    Raises:
        ValueError: shapes that do not belong together, or a column that is not there.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.select_item(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([1, 0])).array
        array([2., 3.])
    """
    x = as_variable(x)
    labels = as_variable(t).array
    if x.ndim != 2 or labels.shape != x.shape[:1]:
        raise ValueError(
            f"select_item: shapes {show_shapes([x.shape, labels.shape])} are not (N, C) and (N,)"
        )
    check_labels("select_item", labels, x.shape[1])
    return get_item(x, (x.xp.arange(len(labels)), labels))


class Where(GenericFunction):
    """``z = x`` where the condition holds, else ``y``; ``gx = gz`` where it holds, ``gy = gz``
    where not, else 0.
    """

    def __init__(self, condition: Array) -> None:
        self.condition = condition

    def forward(self, x: Array, y: Array) -> Array:
        return backend.get_array_module(self.condition).where(self.condition, x, y)

    def backward(self, gz: Variable | Array) -> InputGradients:
        x, y = self.inputs
        zero = backend.get_array_module(gz).zeros((), gz.dtype)  # not a product: ∞ · 0 is NaN
        return (
            lambda: unbroadcast(Where(self.condition)(gz, zero), x.shape),
            lambda: unbroadcast(Where(self.condition)(zero, gz), y.shape),
        )


def where(
    condition: Variable | Array | bool,
    x: Variable | Array | float,
    y: Variable | Array | float,
) -> Variable:
    """``x`` where the condition holds, ``y`` elsewhere; each gets the gradient of its places only.

    Args:
        condition: a boolean array, or one boolean; no gradient goes to it.
        x, y: arrays, Variables or numbers; all three are broadcast.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.where(np.array([True, False]), np.array([1.0, 2.0]), 0).array
        array([1., 0.])
    """
    a, b = as_operand(x, y), as_operand(y, x)
    if is_divided(condition):
        cut: Any = condition
        own = cut.layout.divided(Variable(cut.part.array != 0, requires_grad=False))
        return cut.layout.apply(Where(own), (a, b))[0]  # type: ignore[no-any-return]
    mask = array_of(condition)
    if type(mask) is not np.ndarray:
        mask = backend.require_array(backend.wrap_scalar(mask))
    if not mask.ndim:
        mask = backend.to_device_of(mask, own_array(a))
    return Where(mask if mask.dtype.kind == "b" else mask != 0).apply((a, b))[0]
