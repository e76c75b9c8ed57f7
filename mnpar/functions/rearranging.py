"""Turning, repeating, padding and permuting: views and copies of other functions' making. Long, because there are many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.function_node import FunctionNode
from mnpar.functions.broadcasting import broadcast_to
from mnpar.functions.generic import either, wide
from mnpar.functions.indexing import ScatterAdd, get_item
from mnpar.functions.joining import concat, split_axis, stack
from mnpar.functions.shape import moveaxis, reshape, transpose
from mnpar.variable import Variable, as_variable

FEW = 8  # slices that are added one by one


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


class Repeat(FunctionNode):
    """Each place along an axis n times."""

    generic = True

    def __init__(self, n: int, axis: int) -> None:
        self.n, self.axis = n, axis

    def forward(self, x: Array) -> Array:
        return x.repeat(self.n, axis=self.axis)

    def backward(self, gy: Any) -> Any:
        return lambda: either(AddRepeats(self.n, self.axis), gy)


class AddRepeats(FunctionNode):
    """The transpose of it: n places after each other, added up. To add n slices is faster than to sum over a short axis."""

    generic = True

    def __init__(self, n: int, axis: int) -> None:
        self.n, self.axis = n, axis

    def forward(self, y: Array) -> Array:
        shape, n, axis = y.shape, self.n, self.axis
        if not 2 <= n <= FEW:
            runs = y.reshape(*shape[:axis], shape[axis] // n, n, *shape[axis + 1 :])
            return runs.sum(axis=axis + 1)
        first, second, *rest = [y[(*[slice(None)] * axis, slice(i, None, n))] for i in range(n)]
        x = wide(first) + second
        for part in rest:
            x += part
        return x.astype(y.dtype, copy=False)

    def backward(self, gx: Any) -> Any:
        return lambda: either(Repeat(self.n, self.axis), gx)


class Pad(FunctionNode):
    """An array within strips of constants: ``widths`` and ``values`` have a pair for each axis."""

    generic = True

    def __init__(self, widths: Sequence[tuple[int, int]], values: Array) -> None:
        self.widths, self.values = widths, values

    def forward(self, x: Array) -> Array:
        pairs = zip(self.widths, x.shape, strict=True)
        y = backend.get_array_module(x).empty([low + n + high for (low, high), n in pairs], x.dtype)
        inside = self._inside(x.shape)
        y[inside] = x
        for axis, ((low, high), (before, after)) in enumerate(zip(self.widths, self.values, strict=True)):
            earlier, later = (slice(None),) * axis, inside[axis + 1 :]
            if low:
                y[(*earlier, slice(0, low), *later)] = before
            if high:
                y[(*earlier, slice(low + x.shape[axis], None), *later)] = after
        return y

    def _inside(self, shape: Sequence[int]) -> tuple[slice, ...]:
        return tuple([slice(low, low + n) for (low, _), n in zip(self.widths, shape, strict=True)])

    def backward(self, gy: Any) -> Any:
        return lambda: gy[self._inside(self.inputs[0].shape)]


class Diagonal(FunctionNode):
    """The places i, i + offset of the last two axes."""

    generic = True

    def __init__(self, offset: int) -> None:
        self.offset = offset

    def forward(self, x: Array) -> Array:
        return x.diagonal(self.offset, -2, -1)  # a view that must not be written to

    def backward(self, gy: Any) -> Any:
        return lambda: either(OnDiagonal(self.offset, self.inputs[0].shape), gy)


class OnDiagonal(FunctionNode):
    """Zeros of a shape with the input on the diagonal of the last two axes: the transpose of Diagonal."""

    generic = True

    def __init__(self, offset: int, shape: tuple[int, ...]) -> None:
        self.offset, self.shape = offset, shape

    def forward(self, y: Array) -> Array:
        xp, rows = backend.get_array_module(y), np.arange(y.shape[-1])
        x = xp.zeros(self.shape, y.dtype)
        x[..., xp.asarray(rows - min(self.offset, 0)), xp.asarray(rows + max(self.offset, 0))] = y
        return x

    def backward(self, gx: Any) -> Any:
        return lambda: either(Diagonal(self.offset), gx)


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
    if min(counts, default=0) < 0:
        raise ValueError(f"repeat: repeats {repeats} are 0 or more")
    if len(counts) == 1 and counts[0] and x.ndim:
        return Repeat(counts[0], axis).apply((x,))[0]
    counts = counts * x.shape[axis] if len(counts) == 1 else counts
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
    widths = [(int(low), int(high)) for low, high in np.broadcast_to(np.asarray(pad_width), (y.ndim, 2))]
    if min([n for pair in widths for n in pair], default=0) < 0:
        raise ValueError(f"pad: widths {widths} are 0 or more")
    if mode == "constant":
        return Pad(widths, np.broadcast_to(constant_values, (y.ndim, 2))).apply((y,))[0]
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
    return Diagonal(offset).apply((x,))[0]


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
