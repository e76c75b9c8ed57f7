"""Turning, repeating, padding and permuting: views and copies of other functions' making. Long, because there are many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.function_node import FunctionNode
from mnpar.functions.broadcasting import broadcast_to
from mnpar.functions.generic import either
from mnpar.functions.indexing import ScatterAdd, get_item
from mnpar.functions.joining import concat, split_axis, stack
from mnpar.functions.shape import moveaxis, reshape, transpose
from mnpar.variable import Variable, as_variable


class Flip(FunctionNode):
    generic = True

    def __init__(self, axis: int) -> None:
        self.axis = axis

    def forward(self, x: Array) -> Array:
        return backend.get_array_module(x).flip(x, self.axis)

    def backward(self, gy: Any) -> Any:
        return lambda: either(Flip(self.axis), gy)


class Permutate(FunctionNode):
    """Places along an axis in an order that names each once, so that backward need not add: it is the opposite order."""

    generic = True

    def __init__(self, places: Array, opposite: Array, axis: int) -> None:
        self.places, self.opposite, self.axis = places, opposite, axis

    def forward(self, x: Array) -> Array:
        return x.take(self.places, axis=self.axis)

    def backward(self, gy: Any) -> Any:
        return lambda: either(Permutate(self.opposite, self.places, self.axis), gy)


def flip(x: Any, axis: int) -> Variable:
    """The elements in reverse order along an axis.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.flip(np.array([1, 2, 3]), 0).array
        array([3, 2, 1])
    """
    x = as_variable(x)
    if not -x.ndim <= axis < x.ndim:
        raise ValueError(f"flip: x of shape {x.shape} has no axis {axis}")
    return Flip(axis).apply((x,))[0]


def flipud(a: Any) -> Variable:
    """The rows in reverse order.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.flipud(np.array([[1, 2], [3, 4]])).array
        array([[3, 4],
               [1, 2]])
    """
    return flip(a, 0)


def fliplr(a: Any) -> Variable:
    """The columns in reverse order.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.fliplr(np.array([[1, 2], [3, 4]])).array
        array([[2, 1],
               [4, 3]])
    """
    return flip(a, 1)


def rollaxis(x: Any, axis: int, start: int = 0) -> Variable:
    """Move an axis to before another.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.rollaxis(np.ones((2, 3, 4)), 2).shape
        (4, 2, 3)
    """
    x = as_variable(x)
    places = list(range(x.ndim))
    axis, start = axis % x.ndim, start + x.ndim if start < 0 else start
    places.remove(axis)
    places.insert(start - 1 if axis < start else start, axis)
    return transpose(x, tuple(places))


def tile(x: Any, reps: Any) -> Variable:
    """Copies of an array side by side.

    Args:
        x: an array or Variable.
        reps: how many along each axis; a number is for the last one.

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
    counts, shape = (1,) * (n - len(counts)) + counts, (1,) * (n - x.ndim) + x.shape
    apart = [m for length in shape for m in (1, length)]
    spread = [m for pair in zip(counts, shape, strict=True) for m in pair]
    return reshape(
        broadcast_to(reshape(x, tuple(apart)), tuple(spread)), tuple([a * b for a, b in zip(counts, shape, strict=True)])
    )


def repeat(x: Any, repeats: Any, axis: int | None = None) -> Variable:
    """Each element several times, one after the other.

    Args:
        x: an array or Variable.
        repeats: how many times, a number, or one for each place along the axis.
        axis: along which; None: of the flattened array.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.repeat(np.array([1, 2]), 2).array
        array([1, 1, 2, 2])
    """
    x = as_variable(x)
    if axis is None:
        x, axis = reshape(x, (x.size,)), 0
    axis %= max(x.ndim, 1)
    counts = tuple(repeats) if isinstance(repeats, tuple | list) else (repeats,)
    if len(counts) == 1:
        shape = x.shape
        wide = (*shape[: axis + 1], counts[0], *shape[axis + 1 :])
        apart = reshape(x, (*shape[: axis + 1], 1, *shape[axis + 1 :]))
        return reshape(broadcast_to(apart, wide), (*shape[:axis], shape[axis] * counts[0], *shape[axis + 1 :]))
    if len(counts) != x.shape[axis]:
        raise ValueError(f"repeat: {len(counts)} repeats for {x.shape[axis]} places along axis {axis}")
    return get_item(x, (*[slice(None)] * axis, x.xp.asarray(np.repeat(np.arange(len(counts)), counts))))


def pad(x: Any, pad_width: Any, mode: str = "constant", constant_values: Any = 0) -> Variable:
    """An array with more around it.

    Args:
        x: an array or Variable.
        pad_width: how many at each end: a number, a pair ``(before, after)``, or a pair for each axis.
        mode: ``'constant'``, or ``'edge'``, ``'reflect'``, ``'symmetric'``, ``'wrap'``, as in numpy.
        constant_values: what constants are.

    Returns:
        The larger array.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.pad(np.array([1.0, 2.0]), 1, "constant").array
        array([0., 1., 2., 0.])
        >>> F.pad(np.array([1.0, 2.0, 3.0]), (0, 2), "reflect").array
        array([1., 2., 3., 2., 1.])
    """
    y: Variable = as_variable(x)
    widths = [tuple(map(int, pair)) for pair in np.broadcast_to(np.asarray(pad_width), (y.ndim, 2))]
    if mode == "constant":
        inside = tuple([slice(low, low + n) for (low, _), n in zip(widths, y.shape, strict=True)])
        shape = tuple([low + n + high for (low, high), n in zip(widths, y.shape, strict=True)])
        padded: Variable = ScatterAdd(inside, shape).apply((y,))[0]
        if np.any(constant_values):
            padded += y.xp.asarray(np.pad(np.zeros(y.shape, y.dtype), widths, constant_values=constant_values))
        return padded
    for axis, (low, high) in enumerate(widths):
        if low or high:
            places = np.pad(np.arange(y.shape[axis]), (low, high), mode)  # type: ignore[call-overload]
            y = get_item(y, (*[slice(None)] * axis, y.xp.asarray(places)))
    return y


def pad_sequence(xs: Sequence[Any], length: int | None = None, padding: Any = 0) -> Variable:
    """Arrays of different lengths as one.

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
        raise ValueError("pad_sequence: there is no sequence")
    longest = max(x.shape[0] for x in xs)
    length = longest if length is None else length
    if longest > length:
        raise ValueError(f"pad_sequence: a sequence of {longest} is longer than length = {length}")
    return stack([pad(x, [(0, length - x.shape[0]), *[(0, 0)] * (x.ndim - 1)], "constant", padding) for x in xs])


def permutate(x: Any, indices: Array, axis: int = 0, inv: bool = False) -> Variable:
    """The places along an axis in another order.

    Args:
        x: an array or Variable.
        indices: which old place comes to each new one.
        axis: along which.
        inv: to which new place each old one goes, instead.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.permutate(np.array([10, 20, 30]), np.array([2, 0, 1])).array
        array([30, 10, 20])
    """
    x = as_variable(x)
    places = backend.to_host(indices)
    if sorted(places.tolist()) != list(range(x.shape[axis])):
        raise ValueError(f"permutate: indices are the numbers from 0 to {x.shape[axis] - 1}, each once")
    order, opposite = x.xp.asarray(places), x.xp.asarray(np.argsort(places))
    order, opposite = (opposite, order) if inv else (order, opposite)
    return Permutate(order, opposite, axis % x.ndim).apply((x,))[0]


def transpose_sequence(xs: Sequence[Any]) -> list[Variable]:
    """From one array for each sequence to one for each step: step t has the t-th elements of the sequences that reach it.

    Args:
        xs: arrays or Variables ``(T_i, …)``, the longer first.

    Returns:
        A list of ``(n_t, …)``.

    Raises:
        ValueError: a longer one comes after a shorter one.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> [y.array for y in F.transpose_sequence([np.array([1, 2]), np.array([3])])]
        [array([1, 3]), array([2])]
    """
    xs = [as_variable(x) for x in xs]
    lengths = [x.shape[0] for x in xs]
    if lengths != sorted(lengths, reverse=True):
        raise ValueError(f"transpose_sequence: sequences come in the order of their lengths, the longest first, not {lengths}")
    if not xs or not lengths[0]:
        return []
    starts = np.cumsum([0, *lengths[:-1]])
    counts = [sum(n > t for n in lengths) for t in range(lengths[0])]
    places = np.concatenate([starts[:n] + t for t, n in enumerate(counts)])
    rows = get_item(concat(xs, axis=0), xs[0].xp.asarray(places))  # all elements, step by step
    steps = split_axis(rows, [int(n) for n in np.cumsum(counts)[:-1]], 0, force_tuple=True)
    return list(steps)  # type: ignore[arg-type]


def scatter_add(a: Any, slices: Any, b: Any) -> Variable:
    """``a`` with ``b`` added at an index; where the index names an element twice, both are added.

    Args:
        a: an array or Variable.
        slices: the index.
        b: of the shape of ``a[slices]``.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.scatter_add(np.zeros(3), np.array([0, 0, 2]), np.ones(3)).array
        array([2., 0., 1.])
    """
    a = as_variable(a)
    y: Variable = a + ScatterAdd(slices, a.shape).apply((b,))[0]
    return y


def diagonal(x: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Variable:
    """The elements along the diagonal of two axes, which become one, the last.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.diagonal(np.array([[1, 2], [3, 4]])).array
        array([1, 4])
    """
    x = moveaxis(as_variable(x), (axis1, axis2), (-2, -1))
    n = max(0, min(x.shape[-2] + min(offset, 0), x.shape[-1] - max(offset, 0)))
    rows = x.xp.arange(n)
    return get_item(x, (..., rows - min(offset, 0), rows + max(offset, 0)))


def dstack(xs: Sequence[Any]) -> Variable:
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
        deep.append(reshape(x, shape))
    return concat(deep, axis=2)


def space2depth(X: Any, r: int) -> Variable:
    """Blocks of r × r pixels become channels; :func:`depth2space` undoes it.

    Args:
        X: ``(N, C, H, W)``, H and W multiples of r.
        r: the length of a block.

    Returns:
        ``(N, r² C, H / r, W / r)``: channel (i r + j) C + c is that of row i and column j of the blocks.

    Raises:
        ValueError: no images, or blocks do not fit.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.space2depth(np.arange(4).reshape(1, 1, 2, 2), 2).array.ravel()
        array([0, 1, 2, 3])
    """
    X = as_variable(X)
    if X.ndim != 4 or r < 1 or X.shape[2] % r or X.shape[3] % r:
        raise ValueError(f"space2depth: X of shape {X.shape} is not (N, C, H, W) with H and W multiples of r = {r}")
    N, C, H, W = X.shape
    y = transpose(reshape(X, (N, C, H // r, r, W // r, r)), (0, 3, 5, 1, 2, 4))  # (N, r, r, C, H / r, W / r)
    return reshape(y, (N, r * r * C, H // r, W // r))


def depth2space(X: Any, r: int) -> Variable:
    """Channels become blocks of r × r pixels: sub-pixel convolution (Shi et al. 2016, arXiv 1609.05158) ends with it.

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
    y = transpose(reshape(X, (N, r, r, C // (r * r), H, W)), (0, 3, 4, 1, 5, 2))  # (N, C, H, r, W, r)
    return reshape(y, (N, C // (r * r), r * H, r * W))
