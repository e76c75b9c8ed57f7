"""Poolings and their transposes: each window gives one number, or one number goes to each window.

Maxima and sums are taken over slices of the whole image, one for each offset within a window along one axis and then the
next, and never over windows: several times faster. Where a maximum was is found by slices too, one for each offset, and only if
somebody asks for the gradient; to be differentiated again it is a picture of offsets, by which values are picked or spread, the
two being each other's transposes. The file is long because of its docstrings.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.function_node import FunctionNode
from mnpar.functions.blocks import parts
from mnpar.functions.generic import either, plain, wide
from mnpar.functions.windows import Numbers, Windows, get_deconv_outsize, per_axis
from mnpar.variable import Variable, as_variable


def _cells(windows: Windows, padded: Array) -> list[Array]:
    """The K slices of a padded image."""
    return [padded[(..., *where)] for _, where in windows.offsets()]


def _image(windows: Windows, like: Array, dtype: Any) -> Array:
    """A padded image of zeros to which windows add."""
    return backend.get_array_module(like).zeros((*like.shape[:2], *windows.padded), dtype)


def _along(windows: Windows, axis: int) -> list[tuple[Any, ...]]:
    """Where the cells of all windows are along one axis: a slice for each offset."""
    after, axes = [slice(None)] * (len(windows.K) - 1 - axis), (windows.K, windows.stride, windows.dilate, windows.out)
    K, s, d, o = [numbers[axis] for numbers in axes]
    return [(..., slice(i * d, i * d + (o - 1) * s + 1, s), *after) for i in range(K)]


def _reduce(windows: Windows, padded: Array, unite: Callable[..., Array]) -> Array:
    """Unite the cells of each window: along one axis after the other, the first of them in long runs of memory."""
    y = padded
    for axis in range(len(windows.K)):
        first, *rest = [y[where] for where in _along(windows, axis)]
        y = unite(first, rest[0]) if rest else first
        for cell in rest[1:]:
            unite(y, cell, out=y)
    return y.copy() if set(windows.K) == {1} else y


def _expand(windows: Windows, y: Array) -> Array:
    """The transpose of ``_reduce`` by sums: give to each cell of each window its number; (…, *out) → (…, *padded)."""
    xp, n = backend.get_array_module(y), len(windows.K)
    for axis in reversed(range(n)):
        K, s, d, o = [numbers[axis] for numbers in (windows.K, windows.stride, windows.dilate, windows.out)]
        shape = list(y.shape)
        shape[axis - n] = windows.padded[axis]
        x = (xp.empty if d == 1 and s == K and o * s == shape[axis - n] else xp.zeros)(shape, y.dtype)
        for where in _along(windows, axis):
            if s >= (K - 1) * d + 1:  # no two windows meet
                x[where] = y
            else:
                x[where] += y
        y = x
    return y


class MaxPooling(FunctionNode):
    generic = True

    def __init__(self, windows: Windows) -> None:
        self.windows = windows

    def forward(self, x: Array) -> Array:
        self.retain_inputs((0,))
        self.retain_outputs((0,))
        padded = self.windows.pad_image(x, -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min)
        return _reduce(self.windows, padded, backend.get_array_module(x).maximum)

    def backward(self, gy: Any) -> Any:
        (x,), (y,) = self.get_retained_inputs(), self.get_retained_outputs()
        if not isinstance(gy, Variable):
            return lambda: self._spread(x, y, gy)
        return lambda: either(Spread(self.windows, self.places(plain(x), plain(y))), gy)

    def _spread(self, x: Array, y: Array, gy: Array) -> Array:
        """The gradient at once, without the picture of places, in blocks of samples that stay in the cache."""
        gx = backend.get_array_module(x).empty(x.shape, gy.dtype)
        for n in parts(len(x), backend.block_bytes(x) // 4 // max(1, x[:1].nbytes)):
            self._spread_part(x[n], y[n], wide(gy[n]), gx[n])
        return gx

    def _spread_part(self, x: Array, y: Array, gy: Array, gx: Array) -> None:
        """Each cell that is the maximum takes what is left of the gradient; so of equal ones only the first."""
        xp, windows = backend.get_array_module(x), self.windows
        fits = windows.apart and windows.bare and gx.dtype == gy.dtype
        image = gx if fits else _image(windows, gy, gy.dtype)
        if (fits and windows.stride != windows.K) or math.prod(windows.out) * math.prod(windows.K) != math.prod(windows.size):
            image[...] = 0  # there are cells that no window sees
        left, taken = gy.copy(), xp.empty_like(gy)
        for seen, cell in zip(_cells(windows, windows.pad_image(x, -np.inf)), _cells(windows, image), strict=True):
            xp.multiply(left, seen == y, out=taken)
            left -= taken
            if windows.apart:
                cell[...] = taken
            else:
                cell += taken
        if not fits:
            gx[...] = image[(..., *windows.inside)]

    def places(self, x: Array, y: Array) -> Array:
        """Which offset within its window each maximum has: of equal ones the first."""
        xp = backend.get_array_module(x)
        found, free = xp.zeros(y.shape, np.int32), xp.ones(y.shape, bool)
        for i, cell in enumerate(_cells(self.windows, self.windows.pad_image(x, -np.inf))):
            here = cell == y
            here &= free
            free ^= here
            found += here * np.int32(i)
        return found


class Pick(FunctionNode):
    """From each window the value at a given place in it."""

    generic = True

    def __init__(self, windows: Windows, places: Array) -> None:
        self.windows, self.places = windows, places

    def forward(self, x: Array) -> Array:
        xp = backend.get_array_module(x)
        y = xp.zeros((*x.shape[:2], *self.windows.out), x.dtype)
        for i, cell in enumerate(_cells(self.windows, self.windows.pad_image(x))):
            y += cell * (self.places == i)
        return y

    def backward(self, gy: Any) -> Any:
        return lambda: either(Spread(self.windows, self.places), gy)


class Spread(FunctionNode):
    """One value for each window, added at a given place in it: the transpose of Pick."""

    generic = True

    def __init__(self, windows: Windows, places: Array) -> None:
        self.windows, self.places = windows, places

    def forward(self, y: Array) -> Array:
        x = _image(self.windows, y, wide(y).dtype)
        for i, cell in enumerate(_cells(self.windows, x)):
            cell += y * (self.places == i)
        return x[(..., *self.windows.inside)].astype(y.dtype, copy=False)

    def backward(self, gx: Any) -> Any:
        return lambda: either(Pick(self.windows, self.places), gx)


class SumPooling(FunctionNode):
    """The sum of each window, times a number (or one for each window)."""

    generic = True

    def __init__(self, windows: Windows, scale: Any) -> None:
        self.windows, self.scale = windows, scale

    def forward(self, x: Array) -> Array:
        y = _reduce(self.windows, wide(self.windows.pad_image(x)), backend.get_array_module(x).add)
        y *= self.scale
        return y.astype(x.dtype, copy=False)

    def backward(self, gy: Any) -> Any:
        return lambda: either(Unpooling(self.windows, self.scale), gy)


class Unpooling(FunctionNode):
    """One value for each window, times a number, added to all its cells: the transpose of SumPooling."""

    generic = True

    def __init__(self, windows: Windows, scale: Any) -> None:
        self.windows, self.scale = windows, scale

    def forward(self, y: Array) -> Array:
        x = _expand(self.windows, wide(y) * self.scale)
        return x if self.windows.bare and x.dtype == y.dtype else x[(..., *self.windows.inside)].astype(y.dtype)

    def backward(self, gx: Any) -> Any:
        return lambda: either(SumPooling(self.windows, self.scale), gx)


class Im2Col(FunctionNode):
    """What each window sees, as channels."""

    generic = True

    def __init__(self, windows: Windows) -> None:
        self.windows = windows

    def forward(self, x: Array) -> Array:
        n = len(self.windows.K)
        columns = self.windows.columns(self.windows.pad_image(x))  # (C, *K, N, *out)
        rows = x.shape[1] * math.prod(self.windows.K)
        return columns.transpose((n + 1, *range(n + 1), *range(n + 2, 2 * n + 2))).reshape(x.shape[0], rows, *self.windows.out)

    def backward(self, gy: Any) -> Any:
        return lambda: either(Col2Im(self.windows), gy)


class Col2Im(FunctionNode):
    """Channels added back to where the windows saw them: the transpose of Im2Col."""

    generic = True

    def __init__(self, windows: Windows) -> None:
        self.windows = windows

    def forward(self, y: Array) -> Array:
        K, x = self.windows.K, _image(self.windows, y[:, : y.shape[1] // math.prod(self.windows.K)], wide(y[:0]).dtype)
        columns = y.reshape(*x.shape[:2], *K, *self.windows.out)  # (N, C, *K, *out)
        for offset, where in self.windows.offsets():
            x[(..., *where)] += columns[(slice(None), slice(None), *offset)]
        return x[(..., *self.windows.inside)].astype(y.dtype, copy=False)

    def backward(self, gx: Any) -> Any:
        return lambda: either(Im2Col(self.windows), gx)


def _windows(who: str, ndim: int | None, x: Variable, ksize: Any, stride: Any, pad: Any, cover_all: bool) -> Windows:
    n = x.ndim - 2
    if n < 1 or (ndim is not None and n != ndim):
        raise ValueError(f"{who}: x of shape {x.shape} must be (N, C, …) with {'some' if ndim is None else ndim} spatial axes")
    K = per_axis(f"{who}: ksize", ksize, n, 1)
    return Windows.over(who, x.shape[2:], K, K if stride is None else stride, pad, 1, cover_all)


def _max(
    who: str, ndim: int | None, x: Any, ksize: Any, stride: Any, pad: Any, cover_all: bool, return_indices: bool
) -> Any:  # fmt: skip
    x = as_variable(x)
    windows = _windows(who, ndim, x, ksize, stride, pad, cover_all)
    for size, K, s, p, o in zip(windows.size, windows.K, windows.stride, windows.pad, windows.out, strict=True):
        if p >= K or (o - 1) * s - p >= size:
            raise ValueError(
                f"{who}: with ksize {windows.K}, stride {windows.stride}, pad {windows.pad} a window over {windows.size} sees "
                "padding only, which has no maximum: pad less than the window, or leave cover_all out"
            )
    function = MaxPooling(windows)
    (y,) = function.apply((x,))
    return (y, function.places(x.array, y.array).astype(np.int32)) if return_indices else y


def max_pooling_nd(
    x: Any, ksize: Any, stride: Any = None, pad: Any = 0, cover_all: bool = True, return_indices: bool = False
) -> Any:  # fmt: skip
    """The largest number in each window; its gradient goes to where it was, the first place if it is there several times.

    Args:
        x: ``(N, C, …)`` with one or more spatial axes.
        ksize, stride, pad: of the windows, a number for each axis or one for all; ``stride=None`` is ksize. Padding is −∞.
        cover_all: windows reach every cell.
        return_indices: also return where the maxima were, as offsets within their windows (row by row), int32.

    Returns:
        ``(N, C, …)``, or a pair of it and the offsets.

    Raises:
        ValueError: sizes do not belong together, or a window sees padding only.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.max_pooling_nd(np.array([[[1.0, 5.0, 3.0]]]), 2).array
        array([[[5., 3.]]])
    """
    return _max("max_pooling_nd", None, x, ksize, stride, pad, cover_all, return_indices)


def max_pooling_1d(
    x: Any, ksize: Any, stride: Any = None, pad: Any = 0, cover_all: bool = True, return_indices: bool = False
) -> Any:  # fmt: skip
    """:func:`max_pooling_nd` of sequences ``(N, C, T)``.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.max_pooling_1d(np.array([[[1.0, 5.0, 3.0, 4.0]]]), 2).array
        array([[[5., 4.]]])
    """
    return _max("max_pooling_1d", 1, x, ksize, stride, pad, cover_all, return_indices)


def max_pooling_2d(
    x: Any, ksize: Any, stride: Any = None, pad: Any = 0, cover_all: bool = True, return_indices: bool = False
) -> Any:  # fmt: skip
    """:func:`max_pooling_nd` of images ``(N, C, H, W)``.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.max_pooling_2d(np.arange(16.0).reshape(1, 1, 4, 4), 2).array[0, 0]
        array([[ 5.,  7.],
               [13., 15.]])
    """
    return _max("max_pooling_2d", 2, x, ksize, stride, pad, cover_all, return_indices)


def max_pooling_3d(
    x: Any, ksize: Any, stride: Any = None, pad: Any = 0, cover_all: bool = True, return_indices: bool = False
) -> Any:  # fmt: skip
    """:func:`max_pooling_nd` of volumes ``(N, C, D, H, W)``.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.max_pooling_3d(np.arange(8.0).reshape(1, 1, 2, 2, 2), 2).item()
        7.0
    """
    return _max("max_pooling_3d", 3, x, ksize, stride, pad, cover_all, return_indices)


def _average(who: str, ndim: int | None, x: Any, ksize: Any, stride: Any, pad: Any, pad_value: Any) -> Variable:
    x = as_variable(x)
    windows = _windows(who, ndim, x, ksize, stride, pad, False)
    if pad_value not in (0, None):
        raise ValueError(f"{who}: pad_value is 0, or None to leave padding out of the means, not {pad_value!r}")
    scale: Any = 1 / math.prod(windows.K)
    if pad_value is None and any(windows.pad):
        ones = x.xp.ones((1, 1, *windows.size), x.dtype if x.dtype.char != "e" else "f4")
        scale = 1 / SumPooling(windows, 1).forward(ones)
    return SumPooling(windows, scale).apply((x,))[0]


def average_pooling_nd(x: Any, ksize: Any, stride: Any = None, pad: Any = 0, pad_value: Any = 0) -> Variable:
    """The mean of each window.

    Args:
        x: ``(N, C, …)`` with one or more spatial axes.
        ksize, stride, pad: of the windows, a number for each axis or one for all; ``stride=None`` is ksize.
        pad_value: 0: padding counts as zeros; None: padding does not count.

    Returns:
        ``(N, C, …)``.

    Raises:
        ValueError: sizes do not belong together.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.average_pooling_nd(np.ones((1, 1, 3)), 3, stride=1, pad=1).array.round(2)
        array([[[0.67, 1.  , 0.67]]])
        >>> F.average_pooling_nd(np.ones((1, 1, 3)), 3, stride=1, pad=1, pad_value=None).array
        array([[[1., 1., 1.]]])
    """
    return _average("average_pooling_nd", None, x, ksize, stride, pad, pad_value)


def average_pooling_1d(x: Any, ksize: Any, stride: Any = None, pad: Any = 0, pad_value: Any = 0) -> Variable:
    """:func:`average_pooling_nd` of sequences ``(N, C, T)``.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.average_pooling_1d(np.array([[[1.0, 3.0, 5.0]]]), 2).array
        array([[[2.]]])
    """
    return _average("average_pooling_1d", 1, x, ksize, stride, pad, pad_value)


def average_pooling_2d(x: Any, ksize: Any, stride: Any = None, pad: Any = 0) -> Variable:
    """:func:`average_pooling_nd` of images ``(N, C, H, W)``; padding counts as zeros.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.average_pooling_2d(np.arange(16.0).reshape(1, 1, 4, 4), 2).array[0, 0]
        array([[ 2.5,  4.5],
               [10.5, 12.5]])
    """
    return _average("average_pooling_2d", 2, x, ksize, stride, pad, 0)


def average_pooling_3d(x: Any, ksize: Any, stride: Any = None, pad: Any = 0, pad_value: Any = 0) -> Variable:
    """:func:`average_pooling_nd` of volumes ``(N, C, D, H, W)``.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.average_pooling_3d(np.arange(8.0).reshape(1, 1, 2, 2, 2), 2).item()
        3.5
    """
    return _average("average_pooling_3d", 3, x, ksize, stride, pad, pad_value)


def _unpooled(who: str, x: Variable, ksize: Any, stride: Any, pad: Any, outsize: Any, cover_all: bool) -> Windows:
    """The windows of the image that ``x`` has one value for each of."""
    n, shape = x.ndim - 2, x.shape
    if n < 1:
        raise ValueError(f"{who}: x of shape {shape} must be (N, C, …)")
    K = per_axis(f"{who}: ksize", ksize, n, 1)
    stride, pad = per_axis(f"{who}: stride", K if stride is None else stride, n, 1), per_axis(f"{who}: pad", pad, n, 0)
    axes = zip(shape[2:], K, stride, pad, strict=True)
    size: Numbers = tuple([get_deconv_outsize(a, k, s, p, cover_all) for a, k, s, p in axes])
    if outsize is not None:
        size = per_axis(f"{who}: outsize", outsize, n, 1)
    windows = Windows.over(who, size, K, stride, pad, 1, cover_all)
    if windows.out != shape[2:]:
        raise ValueError(f"{who}: an image of {size} (outsize) has {windows.out} windows, not x's {shape[2:]}")
    return windows


def unpooling_nd(
    x: Any, ksize: Any, stride: Any = None, pad: Any = 0, outsize: Any = None, cover_all: bool = True
) -> Variable:  # fmt: skip
    """An image whose cells are the sums of the values of the windows that see them: the transpose of sum pooling.

    Args:
        x: ``(N, C, …)``, one value for each window.
        ksize, stride, pad, cover_all: of the windows over the image; ``stride=None`` is ksize.
        outsize: the size of the image, where several have so many windows.

    Returns:
        ``(N, C, …)``.

    Raises:
        ValueError: sizes do not belong together.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.unpooling_nd(np.array([[[1.0, 2.0]]]), 2, cover_all=False).array
        array([[[1., 1., 2., 2.]]])
    """
    x = as_variable(x)
    return Unpooling(_unpooled("unpooling_nd", x, ksize, stride, pad, outsize, cover_all), 1).apply((x,))[0]


def unpooling_2d(
    x: Any, ksize: Any, stride: Any = None, pad: Any = 0, outsize: Any = None, cover_all: bool = True
) -> Variable:  # fmt: skip
    """:func:`unpooling_nd` of images ``(N, C, H, W)``.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.unpooling_2d(np.ones((1, 1, 2, 2)), 2).shape, F.unpooling_2d(np.ones((1, 1, 2, 2)), 2, outsize=(4, 4)).shape
        ((1, 1, 3, 3), (1, 1, 4, 4))
    """
    x = as_variable(x)
    return Unpooling(_unpooled("unpooling_2d", x, ksize, stride, pad, outsize, cover_all), 1).apply((x,))[0]


def unpooling_1d(
    x: Any, ksize: Any, stride: Any = None, pad: Any = 0, outsize: Any = None, cover_all: bool = True
) -> Variable:  # fmt: skip
    """:func:`unpooling_nd` of sequences ``(N, C, W)``.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.unpooling_1d(np.ones((1, 1, 2)), 2, cover_all=False).shape
        (1, 1, 4)
    """
    x = as_variable(x)
    return Unpooling(_unpooled("unpooling_1d", x, ksize, stride, pad, outsize, cover_all), 1).apply((x,))[0]


def unpooling_3d(
    x: Any, ksize: Any, stride: Any = None, pad: Any = 0, outsize: Any = None, cover_all: bool = True
) -> Variable:  # fmt: skip
    """:func:`unpooling_nd` of volumes ``(N, C, D, H, W)``.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.unpooling_3d(np.ones((1, 1, 1, 1, 2)), 2, cover_all=False).shape
        (1, 1, 2, 2, 4)
    """
    x = as_variable(x)
    return Unpooling(_unpooled("unpooling_3d", x, ksize, stride, pad, outsize, cover_all), 1).apply((x,))[0]


def upsampling_2d(
    x: Any, indexes: Array, ksize: Any, stride: Any = None, pad: Any = 0, outsize: Any = None, cover_all: bool = True
) -> Variable:  # fmt: skip
    """Put each value where :func:`max_pooling_2d` (with ``return_indices``) found its maximum.

    Args:
        x: ``(N, C, H, W)``, one value for each window.
        indexes: as max_pooling_2d returned them, of the shape of ``x``.
        ksize, stride, pad, outsize, cover_all: as in :func:`unpooling_nd`.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> y, places = F.max_pooling_2d(np.arange(4.0).reshape(1, 1, 2, 2), 2, return_indices=True)
        >>> F.upsampling_2d(y, places, 2, outsize=(2, 2)).array[0, 0]
        array([[0., 0.],
               [0., 3.]])
    """
    x = as_variable(x)
    if indexes.shape != x.shape:
        raise ValueError(f"upsampling_2d: indexes of shape {indexes.shape} must have the shape of x, {x.shape}")
    return Spread(_unpooled("upsampling_2d", x, ksize, stride, pad, outsize, cover_all), indexes).apply((x,))[0]


def im2col(x: Any, ksize: Any, stride: Any = 1, pad: Any = 0, cover_all: bool = False, dilate: Any = 1) -> Variable:
    """What each window of an image sees, as channels.

    Args:
        x: ``(N, C, H, W)`` (or with any other spatial axes).
        ksize, stride, pad, cover_all, dilate: of the windows.

    Returns:
        ``(N, C kH kW, oH, oW)``.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.im2col(np.arange(9.0).reshape(1, 1, 3, 3), 2).array[0, :, 0, 0]
        array([0., 1., 3., 4.])
    """
    x = as_variable(x)
    K = per_axis("im2col: ksize", ksize, x.ndim - 2, 1)
    return Im2Col(Windows.over("im2col", x.shape[2:], K, stride, pad, dilate, cover_all)).apply((x,))[0]
