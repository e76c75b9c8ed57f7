"""Flips, permutations, diagonals, and cells traded for channels: elements in other places."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from operator import index
from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.function_node import InputGradients
from mnpar.functions.array.get_item import ScatterAdd, get_item
from mnpar.functions.array.joining import concat, split_axis, stack
from mnpar.functions.array.shape import moveaxis, reshape, transpose
from mnpar.functions.node import GenericFunction, normalize_axes, normalize_axis
from mnpar.variable import Variable, as_variable


class Flip(GenericFunction):
    """The elements along an axis in reverse order; so is ``gx``: its own transpose."""

    def __init__(self, axis: int) -> None:
        self.axis = axis

    def forward(self, x: Array) -> Array:
        return backend.get_array_module(x).flip(x, self.axis)

    def backward(self, gy: Variable | Array) -> InputGradients:
        return lambda: Flip(self.axis)(gy)


def flip(x: Variable | Array, axis: int) -> Variable:
    """The elements in reverse order along an axis.

    Raises:
        ValueError: x has no such axis.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.flip(np.array([1, 2, 3]), 0).array
        array([3, 2, 1])
    """
    x = as_variable(x)
    return Flip(normalize_axis("flip", x, axis)).apply((x,))[0]


def flipud(a: Variable | Array) -> Variable:
    """The rows in reverse order.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.flipud(np.array([[1, 2], [3, 4]])).array
        array([[3, 4],
               [1, 2]])
    """
    return flip(a, 0)


def fliplr(a: Variable | Array) -> Variable:
    """The columns in reverse order.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.fliplr(np.array([[1, 2], [3, 4]])).array
        array([[2, 1],
               [4, 3]])
    """
    return flip(a, 1)


class Roll(GenericFunction):
    """The elements along an axis so many places further, the last ones first; ``gx`` goes back."""

    def __init__(self, shift: int, axis: int) -> None:
        self.shift, self.axis = shift, axis

    def forward(self, x: Array) -> Array:
        return backend.get_array_module(x).roll(x, self.shift, self.axis)

    def backward(self, gy: Variable | Array) -> InputGradients:
        return lambda: Roll(-self.shift, self.axis)(gy)


def roll(
    x: Variable | Array, shift: int | Sequence[int], axis: int | Sequence[int] | None = None
) -> Variable:
    """The elements so many places further along some axes; those at an end come in at the other,
    as neighbours do where a grid is periodic.

    Args:
        x: an array or Variable.
        shift: how many places, one number for each axis or one for all; back where it is negative.
        axis: along which; None is along all elements, in their order.

    Returns:
        An array of ``x``'s shape and dtype.

    Raises:
        ValueError: x has no such axis, or there are not as many numbers as axes; TypeError: a shift
            is no integer.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> u = np.array([1.0, 4.0, 9.0, 16.0])
        >>> (F.roll(u, -1) - F.roll(u, 1)).array  # differences in a ring
        array([-12.,   8.,  12.,  -8.])
    """
    x = as_variable(x)
    if axis is None:
        return reshape(roll(x.reshape((x.size,)), shift, 0), x.shape)
    axes = list(axis) if isinstance(axis, Iterable) else [axis]
    shifts = list(shift) if isinstance(shift, Iterable) else [shift] * len(axes)
    if len(shifts) != len(axes):
        raise ValueError(f"roll: shift = {shift} is not one number for each of the axes {axis}")
    for each, places in zip(axes, map(index, shifts), strict=True):
        x = Roll(places, normalize_axis("roll", x, each)).apply((x,))[0]
    return x


def rollaxis(x: Variable | Array, axis: int, start: int = 0) -> Variable:
    """Move an axis to before another.

    Args:
        x: an array or Variable.
        axis: which one.
        start: it comes before this one; the number of axes: behind all of them.

    Raises:
        ValueError: x has no such axis.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.rollaxis(np.ones((2, 3, 4)), 2).shape
        (4, 2, 3)
    """
    x = as_variable(x)
    axis = normalize_axis("rollaxis", x, axis)
    axes = list(range(x.ndim))
    if not -x.ndim <= start <= x.ndim:
        raise ValueError(
            f"rollaxis: start = {start} is no place among the {x.ndim} axes of shape {x.shape}"
        )
    start += x.ndim * (start < 0)
    axes.remove(axis)
    axes.insert(start - 1 if axis < start else start, axis)
    return transpose(x, tuple(axes))


class Permutate(GenericFunction):
    """Places along an axis in an order that names each once, so that backward need not add: it is
    the opposite order.
    """

    def __init__(self, places: Array, opposite: Array, axis: int) -> None:
        self.places, self.opposite, self.axis = places, opposite, axis

    def forward(self, x: Array) -> Array:
        return x.take(self.places, axis=self.axis)

    def backward(self, gy: Variable | Array) -> InputGradients:
        return lambda: Permutate(self.opposite, self.places, self.axis)(gy)


def permutate(x: Variable | Array, indices: Array, axis: int = 0, inv: bool = False) -> Variable:
    """The places along an axis in another order.

    Args:
        x: an array or Variable.
        indices: which old place comes to each new one.
        axis: along which.
        inv: to which new place each old one goes, instead.

    Raises:
        ValueError: x has no such axis, or the indices are not its places, each once.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.permutate(np.array([10, 20, 30]), np.array([2, 0, 1])).array
        array([30, 10, 20])
    """
    x = as_variable(x)
    axis = normalize_axis("permutate", x, axis)
    numbers = backend.to_host(indices)
    if sorted(numbers.tolist()) != list(range(x.shape[axis])):
        raise ValueError(
            f"permutate: indices are the numbers from 0 to {x.shape[axis] - 1}, each once"
        )
    order = x.xp.asarray(numbers)
    opposite = x.xp.asarray(np.argsort(numbers))
    order, opposite = (opposite, order) if inv else (order, opposite)
    return Permutate(order, opposite, axis).apply((x,))[0]


def transpose_sequence(xs: Sequence[Variable | Array]) -> tuple[Variable, ...]:
    """From one array for each sequence to one for each step: step t has the t-th elements of the
    sequences that reach it.

    Args:
        xs: arrays or Variables ``(T_i, …)``, the longer first.

    Returns:
        A tuple of ``(n_t, …)``.

    Raises:
        ValueError: a longer one comes after a shorter one.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> [y.array for y in F.transpose_sequence([np.array([1, 2]), np.array([3])])]
        [array([1, 3]), array([2])]
    """
    sequences = [as_variable(x) for x in xs]
    if not sequences or not any([len(x) for x in sequences]):
        return ()
    rows, counts = join_by_step(sequences)
    ends = list(accumulate(counts))[:-1]
    return split_axis(rows, ends, 0, force_tuple=True)  # type: ignore[return-value]


def join_by_step(sequences: Sequence[Variable]) -> tuple[Variable, list[int]]:
    """Join sequences ``(T_i, …)``, of which one at least has a step, to ``(total, …)``: one step
    after the other, of each the elements of the sequences that reach it; and how many these are.

    Raises:
        ValueError: a longer sequence comes after a shorter one.
    """
    lengths = [x.shape[0] for x in sequences]
    if lengths != sorted(lengths, reverse=True):
        raise ValueError(
            "transpose_sequence: sequences come in the order of their lengths, the longest "
            f"first, not {lengths}"
        )
    T, N = lengths[0], len(lengths)
    if lengths[-1] == T:
        steps = stack(sequences, axis=1)  # (T, N, …)
        return reshape(steps, (T * N, *steps.shape[2:])), [N] * T
    starts = np.cumsum([0, *lengths[:-1]])
    counts = [sum([n > t for n in lengths]) for t in range(T)]
    places = np.concatenate([starts[:n] + t for t, n in enumerate(counts)])
    joined = concat(sequences, axis=0)
    return get_item(joined, joined.xp.asarray(places)), counts


def scatter_add(a: Variable | Array, slices: Any, b: Variable | Array) -> Variable:
    """``a`` with ``b`` added at an index; where the index names an element twice, both are added.

    Args:
        a: an array or Variable.
        slices: the index.
        b: of the shape of ``a[slices]``, or it is a ValueError.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.scatter_add(np.zeros(3), np.array([0, 0, 2]), np.ones(3)).array
        array([2., 0., 1.])
    """
    a = as_variable(a)
    b = as_variable(b)
    added = a.xp.broadcast_to(a.xp.empty((), "?"), a.shape)[slices].shape
    if b.shape != added:
        raise ValueError(
            f"scatter_add: b of shape {b.shape} must have the shape {added} of what it is added to"
        )
    y: Variable = a + ScatterAdd(slices, a.shape).apply((b,))[0]
    return y


class Diagonal(GenericFunction):
    """The places i, i + offset of the last two axes."""

    def __init__(self, offset: int) -> None:
        self.offset = offset

    def forward(self, x: Array) -> Array:
        return x.diagonal(self.offset, -2, -1)  # a view that must not be written to

    def backward(self, gy: Variable | Array) -> InputGradients:
        return lambda: OnDiagonal(self.offset, self.inputs[0].shape)(gy)


class OnDiagonal(GenericFunction):
    """Zeros of a shape with the input on the diagonal of the last two axes: the transpose of
    Diagonal.
    """

    def __init__(self, offset: int, shape: tuple[int, ...]) -> None:
        self.offset, self.shape = offset, shape

    def forward(self, y: Array) -> Array:
        *lead, H, W = self.shape
        x = backend.get_array_module(y).zeros((*lead, H * W), y.dtype)
        first = max(self.offset, -self.offset * W)
        x[..., first : first + y.shape[-1] * (W + 1) : W + 1] = y
        return x.reshape(self.shape)

    def backward(self, gx: Variable | Array) -> InputGradients:
        return lambda: Diagonal(self.offset)(gx)


def diagonal(x: Variable | Array, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Variable:
    """The elements along the diagonal of two axes, which become one, the last.

    Args:
        x: an array or Variable.
        offset: how far beside the diagonal, towards larger places along ``axis2``.
        axis1, axis2: the axes.

    Raises:
        ValueError: x has no such axes, or one was named twice.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.diagonal(np.array([[1, 2], [3, 4]])).array
        array([1, 4])
    """
    x = as_variable(x)
    x = moveaxis(x, normalize_axes("diagonal", x, (axis1, axis2)), (-2, -1))
    return Diagonal(offset).apply((x,))[0]


def space2depth(X: Variable | Array, r: int) -> Variable:
    """Blocks of r × r pixels become channels; :func:`depth2space` undoes it.

    Args:
        X: ``(N, C, H, W)``, H and W multiples of r.
        r: the length of a block.

    Returns:
        ``(N, r² C, H / r, W / r)``: channel (i r + j) C + c is that of row i and column j of the
        blocks.

    Raises:
        ValueError: no images, or blocks do not fit.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.space2depth(np.arange(4).reshape(1, 1, 2, 2), 2).array.ravel()
        array([0, 1, 2, 3])
    """
    X = as_variable(X)
    if X.ndim != 4 or r < 1 or X.shape[2] % r or X.shape[3] % r:
        raise ValueError(
            f"space2depth: X of shape {X.shape} is not (N, C, H, W) with H and W multiples of "
            f"r = {r}"
        )
    N, C, H, W = X.shape
    # (N, r, r, C, H / r, W / r)
    y = transpose(reshape(X, (N, C, H // r, r, W // r, r)), (0, 3, 5, 1, 2, 4))
    return reshape(y, (N, r * r * C, H // r, W // r))


def depth2space(X: Variable | Array, r: int) -> Variable:
    """Channels become blocks of r × r pixels: sub-pixel convolution (Shi et al. 2016, arXiv
    1609.05158) ends with it.

    Args:
        X: ``(N, r² C, H, W)``.
        r: the length of a block.

    Returns:
        ``(N, C, r H, r W)``.

    Raises:
        ValueError: no images, or channels that are no multiple of r².

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.depth2space(np.arange(4).reshape(1, 4, 1, 1), 2).array
        array([[[[0, 1],
                 [2, 3]]]])
    """
    X = as_variable(X)
    if X.ndim != 4 or r < 1 or X.shape[1] % (r * r):
        raise ValueError(f"depth2space: X of shape {X.shape} is not (N, r² C, H, W) with r = {r}")
    N, C, H, W = X.shape
    # (N, C, H, r, W, r)
    y = transpose(reshape(X, (N, r, r, C // (r * r), H, W)), (0, 3, 4, 1, 5, 2))
    return reshape(y, (N, C // (r * r), r * H, r * W))
