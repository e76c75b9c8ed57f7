"""Max pooling and average pooling: one number from each window, and the transposes of both, one
number to each window.

Maxima and sums are taken over slices of the whole image (kernels/windows.py). Where a maximum was
is found by slices too, one for each offset, and only if somebody asks for the gradient; to be
differentiated again it is an array of offsets, by which values are picked or spread, the two being
each other's transposes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array, Index
from mnpar.configuration import no_backprop_mode
from mnpar.function_node import InputGradients
from mnpar.functions.node import GenericFunction, any_axes, array_of, for_axes, is_divided
from mnpar.kernels import pooling as kernel
from mnpar.kernels.channels_last import is_channels_last
from mnpar.kernels.dtypes import upcast_halves
from mnpar.kernels.sums import even_slices
from mnpar.kernels.windows import PerAxis, Windows, check_spatial_axes
from mnpar.variable import Variable, as_variable


def pooling_windows(
    who: str,
    ndim: int | None,
    x: Variable,
    ksize: PerAxis,
    stride: PerAxis | None,
    pad: PerAxis,
    cover_all: bool,
) -> Windows:
    """The windows of a pooling: ``stride=None`` is ksize."""
    check_spatial_axes(who, x.shape, ndim)
    return Windows.over(
        who, x.shape[2:], ksize, ksize if stride is None else stride, pad, 1, cover_all
    )


def check_maxima(
    who: str,
    size: Sequence[int],
    ksize: Sequence[int],
    stride: Sequence[int],
    pad: Sequence[int],
    out: Sequence[int],
) -> None:
    """Check that each window sees some cell of the image.

    Args:
        size: of the image; ``pad`` (before it) and ``out``, how many windows there are.

    Raises:
        ValueError: one sees padding only, which has no maximum.
    """
    for n, K, s, p, o in zip(size, ksize, stride, pad, out, strict=True):
        if p >= K or (o - 1) * s - p >= n:
            raise ValueError(
                f"{who}: with ksize {tuple(ksize)}, stride {tuple(stride)}, pad {tuple(pad)} a "
                f"window over {tuple(size)} sees "
                "padding only, which has no maximum: pad less than the window, or leave "
                "cover_all out"
            )


class MaxPooling(GenericFunction):
    """``y`` is the maximum of each window; ``gx`` adds ``gy`` where the maximum was, at the first
    of equal ones.

    Args:
        windows: over the image.
        inside: where ``x`` brings its own padding of -∞, the cells along its spatial axes that are
            none; None: all.
    """

    def __init__(self, windows: Windows, inside: Index | None = None) -> None:
        self.windows, self.inside = windows, inside

    def forward(self, x: Array) -> Array:
        self.retain_inputs((0,))
        self.retain_outputs((0,))
        if (found := kernel.maximum(x, self.windows)) is not None:
            return found
        padded = self.windows.pad_image(
            x, -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
        )
        return self.windows.reduce(padded, backend.get_array_module(x).maximum)

    def backward(self, gy: Variable | Array) -> InputGradients:
        (x,), (y,) = self.get_retained_inputs(), self.get_retained_outputs()
        if not isinstance(gy, Variable):
            return lambda: self._spread(self._without_padding(x), y, gy)
        places = places_of(self.windows, array_of(x), array_of(y), self.inside)
        return lambda: Spread(self.windows, places)(gy)

    def _without_padding(self, x: Array) -> Array:
        """Return ``x`` with NaN, which equals no maximum, for padding that it brings."""
        if self.inside is None:
            return x
        cells: Index = (..., *self.inside)
        if x[cells].shape == x.shape:
            return x
        bare = backend.get_array_module(x).full_like(x, np.nan)
        bare[cells] = x[cells]
        return bare

    def _spread(self, x: Array, y: Array, gy: Array) -> Array:
        """The gradient at once, without the picture of places, in blocks of samples that stay in
        the cache.
        """
        if (found := kernel.spread_maximum(x, y, gy, self.windows)) is not None:
            return found
        gx = backend.get_array_module(x).empty(x.shape, gy.dtype)
        for n in even_slices(len(x), backend.block_bytes(x) // 8 // max(1, x[:1].nbytes)):
            self._spread_part(x[n], y[n], upcast_halves(gy[n]), gx[n])
        return gx

    def _spread_part(self, x: Array, y: Array, gy: Array, gx: Array) -> None:
        """Each cell that is the maximum takes what is left of the gradient, so of equal ones only
        the first; the last is not asked. (Cells are copied: numpy compares what lies apart several
        times slower.)
        """
        xp, windows = backend.get_array_module(x), self.windows
        fits = windows.is_disjoint and windows.is_unpadded and gx.dtype == gy.dtype
        image = gx if fits else windows.zeros(gy, gy.dtype)
        if (fits and windows.stride != windows.K) or math.prod(windows.out) * math.prod(
            windows.K
        ) != math.prod(windows.size):
            image[...] = 0  # there are cells that no window sees
        cells = windows.cells(windows.pad_image(x, np.nan))  # padding equals no maximum
        left = gy
        taken = xp.empty_like(gy)
        copy = xp.empty_like(y)
        for i, cell in enumerate(windows.cells(image), 1):
            if i < len(cells):
                copy[...] = cells[i - 1]
                xp.multiply(left, copy == y, out=taken)
                left = xp.subtract(left, taken, out=None if i == 1 else left)
            part = taken if i < len(cells) else left
            if windows.is_disjoint:
                cell[...] = part
            else:
                cell += part
        if not fits:
            gx[...] = image[(..., *windows.inside)]


def places_of(windows: Windows, x: Array, y: Array, image: Index | None = None) -> Array:
    """Return the offset within its window that each maximum has: of equal ones the first; the
    padding that ``x`` brings has none (see :class:`MaxPooling`).
    """
    xp = backend.get_array_module(x)
    found = xp.zeros(y.shape, np.int32)
    free = xp.ones(y.shape, bool)
    cells = windows.cells(windows.pad_image(x))
    own = xp.zeros((1, 1, *windows.size), bool)
    cells_inside: Index = (..., *(image or ()))
    own[cells_inside] = True
    inside = windows.pad_image(own, False)
    for i, (cell, counts) in enumerate(zip(cells, windows.cells(inside), strict=True)):
        here = cell == y
        here &= free
        here &= counts
        free ^= here
        found += here * np.int32(i)
    return found


class MaxPlaces(GenericFunction):
    """The place of each maximum in its window; nothing flows back.

    Args:
        windows, inside: as of :class:`MaxPooling`.
    """

    def __init__(self, windows: Windows, inside: Index | None = None) -> None:
        self.windows, self.inside = windows, inside

    def forward(self, x: Array) -> Array:
        return places_of(self.windows, x, MaxPooling(self.windows).forward(x), self.inside)


class Spread(GenericFunction):
    """One value for each window, added at a given place in it: the transpose of Pick."""

    def __init__(self, windows: Windows, places: Array) -> None:
        self.windows, self.places = windows, places

    def forward(self, y: Array) -> Array:
        x = self.windows.zeros(y, upcast_halves(y).dtype)
        for i, cell in enumerate(self.windows.cells(x)):
            cell += y * (self.places == i)
        return x[(..., *self.windows.inside)].astype(y.dtype, copy=False)

    def backward(self, gx: Variable | Array) -> InputGradients:
        return lambda: Pick(self.windows, self.places)(gx)


class Pick(GenericFunction):
    """From each window the value at a given place in it."""

    def __init__(self, windows: Windows, places: Array) -> None:
        self.windows, self.places = windows, places

    def forward(self, x: Array) -> Array:
        xp = backend.get_array_module(x)
        y = xp.zeros((*x.shape[:2], *self.windows.out), x.dtype)
        for i, cell in enumerate(self.windows.cells(self.windows.pad_image(x))):
            y += cell * (self.places == i)
        return y

    def backward(self, gy: Variable | Array) -> InputGradients:
        return lambda: Spread(self.windows, self.places)(gy)


@any_axes
def max_pooling_nd(
    who: str,
    ndim: int | None,
    x: Variable | Array,
    ksize: PerAxis,
    stride: PerAxis | None = None,
    pad: PerAxis = 0,
    cover_all: bool = True,
    return_indices: bool = False,
) -> Any:
    """The maximum of each window; its gradient goes to the cell that has it, the first of several.

    Args:
        x: ``(N, C, …)`` with one or more spatial axes.
        ksize, stride, pad: of the windows, a number for each axis or one for all; ``stride=None``
            is ksize. Padding is −∞.
        cover_all: windows reach every cell.
        return_indices: also return where the maxima were, as offsets within their windows (row by
            row), int32.

    Returns:
        ``(N, C, …)``, or a pair of it and the offsets.

    Raises:
        ValueError: sizes do not belong together, or a window sees padding only.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.max_pooling_nd(np.array([[[1.0, 5.0, 3.0]]]), 2).array
        array([[[5., 3.]]])
    """
    x = as_variable(x)
    windows = pooling_windows(who, ndim, x, ksize, stride, pad, cover_all)
    check_maxima(who, windows.size, windows.K, windows.stride, windows.pad, windows.out)
    (y,) = MaxPooling(windows).apply((x,))
    if not return_indices:
        return y
    with no_backprop_mode():
        (places,) = MaxPlaces(windows).apply((x,))
    return y, places if is_divided(places) else places.array


max_pooling_1d = for_axes(
    max_pooling_nd,
    1,
    """:func:`max_pooling_nd` of sequences ``(N, C, T)``.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.max_pooling_1d(np.array([[[1.0, 5.0, 3.0, 4.0]]]), 2).array
        array([[[5., 4.]]])
    """,
)


max_pooling_2d = for_axes(
    max_pooling_nd,
    2,
    """:func:`max_pooling_nd` of images ``(N, C, H, W)``.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.max_pooling_2d(np.arange(16.0).reshape(1, 1, 4, 4), 2).array[0, 0]
        array([[ 5.,  7.],
               [13., 15.]])
    """,
)


max_pooling_3d = for_axes(
    max_pooling_nd,
    3,
    """:func:`max_pooling_nd` of volumes ``(N, C, D, H, W)``.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.max_pooling_3d(np.arange(8.0).reshape(1, 1, 2, 2, 2), 2).item()
        7.0
    """,
)


class SumPooling(GenericFunction):
    """The sum of each window, times a number (or one for each window)."""

    def __init__(self, windows: Windows, scale: Array | float) -> None:
        self.windows, self.scale = windows, scale

    def forward(self, x: Array) -> Array:
        self.channels_last = self.differentiable and is_channels_last(x)
        if (found := kernel.sum_windows(x, self.windows, self.scale)) is not None:
            return found
        y = self.windows.reduce(
            upcast_halves(self.windows.pad_image(x)), backend.get_array_module(x).add
        )
        y *= self.scale
        return y.astype(x.dtype, copy=False)

    def backward(self, gy: Variable | Array) -> InputGradients:
        return lambda: Unpooling(self.windows, self.scale, self.channels_last)(gy)


class Unpooling(GenericFunction):
    """One value for each window, times a number, added to all its cells: the transpose of
    SumPooling.

    ``channels_last``: where they come in memory, if loops compute it; by default as those of y.
    """

    def __init__(self, windows: Windows, scale: Array | float, channels_last: bool = False) -> None:
        self.windows, self.scale, self.channels_last = windows, scale, channels_last

    def forward(self, y: Array) -> Array:
        found = kernel.spread_sums(y, self.windows, self.scale, self.channels_last)
        if found is not None:
            return found
        x = self.windows.expand(upcast_halves(y) * self.scale)
        return (
            x
            if self.windows.is_unpadded and x.dtype == y.dtype
            else x[(..., *self.windows.inside)].astype(y.dtype)
        )

    def backward(self, gx: Variable | Array) -> InputGradients:
        return lambda: SumPooling(self.windows, self.scale)(gx)


@any_axes
def average_pooling_nd(
    who: str,
    ndim: int | None,
    x: Variable | Array,
    ksize: PerAxis,
    stride: PerAxis | None = None,
    pad: PerAxis = 0,
    pad_value: int | None = 0,
) -> Variable:
    """The mean of each window.

    Args:
        x: ``(N, C, …)`` with one or more spatial axes.
        ksize, stride, pad: of the windows, a number for each axis or one for all; ``stride=None``
            is ksize.
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
    x = as_variable(x)
    backend.require_float_dtype(who, x.node)
    windows = pooling_windows(who, ndim, x, ksize, stride, pad, False)
    if pad_value not in (0, None):
        raise ValueError(
            f"{who}: pad_value is 0, or None to leave padding out of the means, not {pad_value!r}"
        )
    scale: Array | float = 1 / math.prod(windows.K)
    if pad_value is None and any(windows.pad):
        ones = x.xp.ones((1, 1, *windows.size), x.dtype if x.dtype.char != "e" else "f4")
        scale = 1 / SumPooling(windows, 1).forward(ones)
    return SumPooling(windows, scale).apply((x,))[0]


average_pooling_1d = for_axes(
    average_pooling_nd,
    1,
    """:func:`average_pooling_nd` of sequences ``(N, C, T)``.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.average_pooling_1d(np.array([[[1.0, 3.0, 5.0]]]), 2).array
        array([[[2.]]])
    """,
)


average_pooling_2d = for_axes(
    average_pooling_nd,
    2,
    """:func:`average_pooling_nd` of images ``(N, C, H, W)``; padding counts as zeros.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.average_pooling_2d(np.arange(16.0).reshape(1, 1, 4, 4), 2).array[0, 0]
        array([[ 2.5,  4.5],
               [10.5, 12.5]])
    """,
)


average_pooling_3d = for_axes(
    average_pooling_nd,
    3,
    """:func:`average_pooling_nd` of volumes ``(N, C, D, H, W)``.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.average_pooling_3d(np.arange(8.0).reshape(1, 1, 2, 2, 2), 2).item()
        3.5
    """,
)
