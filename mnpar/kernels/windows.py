"""Windows that move over an image: the geometry that convolutions and poolings share, in any number
of dimensions.

    output size  O = ⌊(size + 2 pad − extent) / stride⌋ + 1,   extent = (K − 1) dilate + 1;
    rounded up with cover_all

Everything is made of one loop over the K offsets within a window: at each offset, the cells of all
windows are one strided slice of the padded image. So a pooling is a few operations on large slices,
and the same code runs for every dimension, stride and dilation.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from mnpar import backend
from mnpar.backend import Array, Index
from mnpar.plans import Window

Numbers = tuple[int, ...]


PerAxis: TypeAlias = int | Sequence[int]  # a number for each spatial axis, or one for all


def numbers_per_axis(name: str, value: PerAxis, ndim: int, least: int) -> Numbers:
    """A number for each spatial axis; one number stands for all.

    Raises:
        ValueError: not as many as axes, or one below ``least``.
    """
    numbers: tuple[Any, ...] = tuple(value) if isinstance(value, tuple | list) else (value,) * ndim
    if len(numbers) != ndim or any(int(n) != n or n < least for n in numbers):
        raise ValueError(
            f"{name} = {value!r}: {ndim} numbers from {least} on are needed, or one for all axes"
        )
    return tuple([int(n) for n in numbers])


def _numbers(
    who: str, n: int, K: PerAxis, stride: PerAxis, pad: PerAxis, dilate: PerAxis
) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    return (
        numbers_per_axis(f"{who}: ksize", K, n, 1),
        numbers_per_axis(f"{who}: stride", stride, n, 1),
        numbers_per_axis(f"{who}: pad", pad, n, 0),
        numbers_per_axis(f"{who}: dilate", dilate, n, 1),
    )


def axes_hint(shape: Numbers, ndim: int | None) -> str:
    """The end of the error of an x whose axes are not (N, C, …): what makes them so, where that can
    be told.
    """
    if ndim is not None and len(shape) == ndim + 1:
        return "; x[:, None] adds the axis of one channel, x[None] that of one example"
    return (
        "; x.reshape((N, C, …)) takes rows apart"
        if len(shape) == 2 and ndim is not None and ndim > 1
        else ""
    )


def check_spatial_axes(who: str, shape: Numbers, ndim: int | None) -> int:
    """The number of spatial axes of an array (N, C, …); raises ValueError if there are none, or not
    ``ndim``.
    """
    n = len(shape) - 2
    if n < 1 or (ndim is not None and n != ndim):
        axes = "some" if ndim is None else ndim
        raise ValueError(
            f"{who}: x of shape {shape} must be (N, C, …) with {axes} spatial "
            f"axes{axes_hint(shape, ndim)}"
        )
    return n


def get_conv_outsize(size: int, k: int, s: int, p: int, cover_all: bool = False, d: int = 1) -> int:
    """Count the windows that fit along an axis; with ``cover_all`` as many as touch every cell.

    Example:
        >>> from mnpar.kernels.windows import get_conv_outsize
        >>> get_conv_outsize(10, 3, 2, 0), get_conv_outsize(10, 3, 2, 0, cover_all=True)
        (4, 5)
    """
    left = size + 2 * p - ((k - 1) * d + 1)
    return (left + (s - 1 if cover_all else 0)) // s + 1


def get_deconv_outsize(
    size: int, k: int, s: int, p: int, cover_all: bool = False, d: int = 1
) -> int:
    """The size of the smallest image in which so many windows fit.

    Example:
        >>> from mnpar.kernels.windows import get_deconv_outsize
        >>> get_deconv_outsize(4, 3, 2, 0)
        9
    """
    extent = (k - 1) * d + 1
    return s * (size - 1) + extent - (s - 1 if cover_all else 0) - 2 * p


def image_shape(who: str, window: Window, shape: Sequence[int], outsize: PerAxis | None) -> Numbers:
    """The shape of an image in which ``shape`` windows fit: ``outsize`` (else ValueError) or, for
    None, the smallest.
    """
    image = (
        window.image(shape)
        if outsize is None
        else numbers_per_axis(f"{who}: outsize", outsize, len(shape), 1)
    )
    if window.outputs(image) != shape:
        raise ValueError(
            f"{who}: an image of {image} (outsize) has {window.outputs(image)} windows, not "
            f"x's {shape}"
        )
    return image


@dataclass(frozen=True)
class Windows:
    """Windows over the spatial axes of an array (N, C, …).

    Args:
        size: of the image, for each spatial axis.
        K: of the window.
        stride, pad, dilate: of each axis.
        out: how many windows there are along each axis.
    """

    size: Numbers
    K: Numbers
    stride: Numbers
    pad: Numbers
    dilate: Numbers
    out: Numbers

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        """Computed once: what is kept for windows is looked up at each call."""
        return hash((self.size, self.K, self.stride, self.pad, self.dilate, self.out))

    @functools.cached_property
    def numbers(self) -> Numbers:
        """K, stride and pad of all axes, as loops without dilation read them."""
        return (*self.K, *self.stride, *self.pad)

    @classmethod
    def over(
        cls,
        who: str,
        size: Numbers,
        K: PerAxis,
        stride: PerAxis,
        pad: PerAxis,
        dilate: PerAxis = 1,
        cover_all: bool = False,
    ) -> Windows:
        """Return the windows of an image: the same object for the same numbers, as each step of a
        training asks for them.

        Raises:
            ValueError: they are larger than the padded image.
        """
        try:
            return _windows_over(who, size, K, stride, pad, dilate, cover_all)
        except TypeError:  # a list, which cannot be looked up
            return _windows_over.__wrapped__(who, size, K, stride, pad, dilate, cover_all)

    @classmethod
    def transposed(
        cls,
        who: str,
        out: Numbers,
        K: PerAxis,
        stride: PerAxis,
        pad: PerAxis,
        dilate: PerAxis,
        outsize: PerAxis | None,
        cover_all: bool = False,
    ) -> Windows:
        """The windows of an image of ``outsize`` (None: the smallest) that has ``out`` of them.

        Raises:
            ValueError: it has more, or fewer.
        """
        K, stride, pad, dilate = _numbers(who, len(out), K, stride, pad, dilate)
        axes = zip(out, K, stride, pad, dilate, strict=True)
        size = tuple([get_deconv_outsize(o, k, s, p, cover_all, d) for o, k, s, p, d in axes])
        if outsize is not None:
            size = numbers_per_axis(f"{who}: outsize", outsize, len(out), 1)
        windows = cls.over(who, size, K, stride, pad, dilate, cover_all)
        if windows.out != out:
            raise ValueError(
                f"{who}: an image of {size} (outsize) has {windows.out} windows, not x's {out}"
            )
        return windows

    @functools.cached_property
    def padded(self) -> Numbers:
        """The size of the image with its padding, as far as windows reach."""
        axes = zip(self.size, self.K, self.stride, self.pad, self.dilate, self.out, strict=True)
        return tuple([max(a + 2 * p, (o - 1) * s + (k - 1) * d + 1) for a, k, s, p, d, o in axes])

    @functools.cached_property
    def inside(self) -> Index:
        """Return where the image lies in its padding."""
        return tuple([slice(p, p + a) for p, a in zip(self.pad, self.size, strict=True)])

    @functools.cached_property
    def is_disjoint(self) -> bool:
        """No two windows see the same cell."""
        return all(
            [s >= (k - 1) * d + 1 for k, s, d in zip(self.K, self.stride, self.dilate, strict=True)]
        )

    @functools.cached_property
    def is_unpadded(self) -> bool:
        """No padding is needed."""
        return self.padded == self.size

    @functools.cached_property
    def is_reversible(self) -> bool:
        """Return whether what the windows give back can be gathered by windows again: at stride 1,
        with less padding than kernel.
        """
        axes = zip(self.K, self.stride, self.pad, self.dilate, strict=True)
        return self.ends_with_padding and all([s == 1 and p <= (k - 1) * d for k, s, p, d in axes])

    @functools.cached_property
    def ends_with_padding(self) -> bool:
        """Return whether the windows end where the padded image ends."""
        return all(
            [a + 2 * p == n for a, p, n in zip(self.size, self.pad, self.padded, strict=True)]
        )

    @functools.cached_property
    def reversed(self) -> Windows:
        """The windows by which the windows' values are gathered into an image, if it is
        ``is_reversible``.
        """
        pad = tuple(
            [(k - 1) * d - p for k, p, d in zip(self.K, self.pad, self.dilate, strict=True)]
        )
        return Windows(self.out, self.K, self.stride, pad, self.dilate, self.size)

    def offsets(self) -> Iterator[tuple[Index, Index]]:
        """Each offset within a window, and the slices of the padded image where all windows have
        that cell.
        """
        for offset in itertools.product(*[range(k) for k in self.K]):
            axes = zip(offset, self.stride, self.dilate, self.out, strict=True)
            yield offset, tuple([slice(i * d, i * d + (o - 1) * s + 1, s) for i, s, d, o in axes])

    def cells(self, padded: Array) -> list[Array]:
        """The K slices of a padded image, one for each offset within a window."""
        return [padded[(..., *where)] for _, where in self.offsets()]

    def zeros(self, like: Array, dtype: Any) -> Array:
        """A padded image of zeros to which windows add, with the samples and channels of
        ``like``.
        """
        xp = backend.get_array_module(like)
        return xp.zeros((*like.shape[:2], *self.padded), dtype)

    def _slices(self, axis: int) -> list[tuple[Any, ...]]:
        """Return where the cells of all windows are along one axis: a slice for each offset."""
        after = [slice(None)] * (len(self.K) - 1 - axis)
        K, s, d, o = self.K[axis], self.stride[axis], self.dilate[axis], self.out[axis]
        return [(..., slice(i * d, i * d + (o - 1) * s + 1, s), *after) for i in range(K)]

    def reduce(self, padded: Array, unite: Callable[..., Array]) -> Array:
        """Unite the cells of each window, (…, *padded) → (…, *out): along one axis after the other,
        the first of them in long runs of memory, which is several times as fast as over windows.
        """
        y = padded
        for axis in range(len(self.K)):
            first, *rest = [y[where] for where in self._slices(axis)]
            y = unite(first, rest[0]) if rest else first
            for cell in rest[1:]:
                unite(y, cell, out=y)
        return y.copy() if set(self.K) == {1} else y

    def expand(self, y: Array) -> Array:
        """The transpose of ``reduce`` by sums, (…, *out) → (…, *padded): give to each cell of each
        window its number.
        """
        xp = backend.get_array_module(y)
        n = len(self.K)
        for axis in reversed(range(n)):
            K, s, d, o = self.K[axis], self.stride[axis], self.dilate[axis], self.out[axis]
            shape = list(y.shape)
            shape[axis - n] = self.padded[axis]
            tiled = d == 1 and s == K and o * s == shape[axis - n]  # each cell has one window
            x = (xp.empty if tiled else xp.zeros)(shape, y.dtype)
            for where in self._slices(axis):
                if s >= (K - 1) * d + 1:  # no two windows meet
                    x[where] = y
                else:
                    x[where] += y
            y = x
        return y

    def pad_image(self, x: Array, value: Any = 0) -> Array:
        """The image (…, *size) in its padding (…, *padded); itself where there is none."""
        if self.is_unpadded:
            return x
        padded = backend.get_array_module(x).full(
            (*x.shape[: -len(self.size)], *self.padded), value, x.dtype
        )
        padded[(..., *self.inside)] = x
        return padded

    def columns(self, padded: Array) -> Array:
        """A view (C, *K, N, *out) of a padded image (N, C, *padded): what each window sees."""
        xp = backend.get_array_module(padded)
        steps = padded.strides[2:]
        strides = (
            padded.strides[1],
            *[step * d for step, d in zip(steps, self.dilate, strict=True)],
            padded.strides[0],
            *[step * s for step, s in zip(steps, self.stride, strict=True)],
        )
        shape = (padded.shape[1], *self.K, padded.shape[0], *self.out)
        result: Array = xp.lib.stride_tricks.as_strided(padded, shape, strides)
        return result

    def add_columns(self, columns: Array, last: bool = False) -> Array:
        """The transpose of it: an image (N, C, *size) in which each cell is the sum over the
        windows that see it.

        ``last``: in the memory of ``columns`` and of the image, samples come last.
        """
        xp = backend.get_array_module(columns)
        N = columns.shape[1 + len(self.K)]
        C = columns.shape[0]
        padded = xp.moveaxis(xp.zeros((C, *self.padded, N), columns.dtype), -1, 1) if last else None
        padded = xp.zeros((C, N, *self.padded), columns.dtype) if padded is None else padded
        for offset, where in self.offsets():
            padded[(slice(None), slice(None), *where)] += columns[(slice(None), *offset)]
        return padded[(slice(None), slice(None), *self.inside)].swapaxes(0, 1)


@functools.lru_cache(4096)
def _windows_over(
    who: str,
    size: Numbers,
    K: PerAxis,
    stride: PerAxis,
    pad: PerAxis,
    dilate: PerAxis,
    cover_all: bool,
) -> Windows:
    K, stride, pad, dilate = _numbers(who, len(size), K, stride, pad, dilate)
    axes = zip(size, K, stride, pad, dilate, strict=True)
    out = tuple([get_conv_outsize(a, k, s, p, cover_all, d) for a, k, s, p, d in axes])
    if any([o < 1 for o in out]):
        raise ValueError(
            f"{who}: windows of {K} (dilated by {dilate}) do not fit in an image of {size} "
            f"padded by {pad}: "
            "make the kernel smaller, or pad more"
        )
    return Windows(size, K, stride, pad, dilate, out)
