"""Convolutions by compiled loops, with channels last: which way is taken for which.

* Images, one group: Winograd's method where that needs less time (winograd_loops.py), else
  direct.py; the transpose as products that are added up (column_loops.py) where that needs fewer
  products.
* Groups of some channels: direct.py. As many groups as channels: depthwise.py.
* Fewer filters, of a group or of all, than a register has numbers: grouped.py.
* Sequences are images of one row. Of volumes, the slices that a window sees are channels of one
  image: a convolution of images then adds up over all three axes.

Volumes in groups and other arrays are left to the twin, numpy's way in functions/connection. x may
lie in memory in any order, but is copied where channels are not last.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from mnpar.backend import Array
from mnpar.kernels import column_loops, depthwise, direct, grouped, tuning, winograd_loops
from mnpar.kernels.channels_last import as_pixels, empty_images
from mnpar.kernels.compiler import Array4, compiled, contiguous, formula, has_loops
from mnpar.kernels.lanes import LANES
from mnpar.kernels.sums import even_slices
from mnpar.kernels.windows import Numbers, Windows


def _takes(groups: int, *arrays: Array) -> bool:
    if not all([x.size for x in arrays]) or arrays[0].ndim > 7 or not has_loops(*arrays):
        return False
    return groups == 1 or arrays[0].ndim <= 4


def _is_depthwise(W_shape: Numbers, groups: int) -> bool:
    return W_shape[1] == 1 and W_shape[0] == groups >= LANES


def convolve(x: Array, W: Array, b: Array | None, windows: Windows, groups: int) -> Array | None:
    """y = x ∗ W + b; None where loops do not take the arrays."""
    if not all(windows.out) or not _takes(groups, x, W, *(() if b is None else (b,))):
        return None
    images = empty_images((len(x), len(W), *windows.out), x.dtype)
    bias = np.zeros(len(W), x.dtype) if b is None else contiguous(b)
    _convolve(as_pixels(x), W, bias, windows, groups, as_pixels(images))
    return images


def _convolve(x: Array, W: Array, bias: Array, windows: Windows, groups: int, y: Array) -> None:
    """y = x ∗ W + b of pixels (N, …, C), into y (N, …, K)."""
    K, C = W.shape[:2]
    if len(windows.size) == 1:
        _convolve(x[:, None], W[:, :, None], bias, _of_one_row(windows), groups, y[:, None])
    elif len(windows.size) > 2:
        filters, flat = _stacked(W), _of_slices(windows)
        for n in _blocks(windows, len(x), x.shape[-1] * x.itemsize):
            stacks = _stack(x[n], windows)
            _convolve(stacks, filters, bias, flat, groups, y[n].reshape(-1, *y.shape[2:]))
    elif _is_depthwise(W.shape, groups):
        depthwise.convolve(x, W, bias, windows, y)
    elif groups == 1 and winograd_loops.is_faster(windows, len(x), C, K):
        winograd_loops.convolve(x, winograd_loops.transform_filters(W), bias, windows, y)
    elif K // groups < LANES:
        grouped.convolve(x, W, bias, windows, groups, y)
    else:
        direct.convolve(x, W, bias, windows, groups, y)


def transpose(y: Array, W: Array, b: Array | None, windows: Windows, groups: int) -> Array | None:
    """x = y ∗ᵀ W + b; None where loops do not take the arrays."""
    if not _takes(groups, y, W, *(() if b is None else (b,))):
        return None
    C = W.shape[1] * groups
    images = empty_images((len(y), C, *windows.size), y.dtype)
    bias = np.zeros(C, y.dtype) if b is None else contiguous(b)
    _transpose(as_pixels(y), W, bias, windows, groups, as_pixels(images))
    return images


def _transpose(y: Array, W: Array, bias: Array, windows: Windows, groups: int, x: Array) -> None:
    """x = y ∗ᵀ W + b of pixels (N, …, K), into x (N, …, C)."""
    K, C = W.shape[:2]
    if len(windows.size) == 1:
        _transpose(y[:, None], W[:, :, None], bias, _of_one_row(windows), groups, x[:, None])
    elif len(windows.size) > 2:
        x[...] = 0
        filters, flat = _stacked(W), _of_slices(windows)
        none = np.zeros(filters.shape[1] * groups, y.dtype)
        for n in _blocks(windows, len(y), x.shape[-1] * x.itemsize):
            some = y[n].reshape(-1, *y.shape[2:])
            stacks = np.empty((len(some), *flat.size, len(none)), y.dtype)
            _transpose(some, filters, none, flat, groups, stacks)
            _add_stack(stacks, windows, x[n])
        _add_bias(x, bias)
    elif _is_depthwise(W.shape, groups):
        depthwise.transpose(y, W, bias, windows, x)
    elif (
        groups == 1
        and windows.is_reversible
        and winograd_loops.is_faster(windows.reversed, len(y), K, C)
    ):
        filters = winograd_loops.transform_filters(W, turned=True)
        winograd_loops.convolve(y, filters, bias, windows.reversed, x)
    elif C < LANES and (groups > 1 or K < LANES):
        grouped.transpose(y, W, bias, windows, groups, x)
    elif groups > 1 or (C >= LANES and _sees_little_padding(windows)):
        direct.transpose(y, W, bias, windows, groups, x)
    else:
        column_loops.transpose(y, W, windows, x)
        _add_bias(x, bias)


def _add_bias(x: Array, bias: Array) -> None:
    """Add the bias to each pixel (…, C)."""
    if bias.any():
        column_loops.add_to_rows(x.reshape(-1, x.shape[-1]), bias)


def _sees_little_padding(windows: Windows) -> bool:
    """Return whether the image, in steps of the stride, has not many more pixels than windows."""
    pixels = math.prod(windows.size)
    return pixels <= tuning.DIRECT_PIXELS_OF_WINDOW * math.prod(windows.out + windows.stride)


def gradient(x: Array, y: Array, windows: Windows, groups: int, gW: Array) -> bool:
    """gW = x ⋆ y, written into ``gW``; False where loops do not take the arrays."""
    if not gW.size or gW.dtype != x.dtype or not _takes(groups, x, y):
        return False
    found = _gradient(as_pixels(x), as_pixels(y), windows, groups, gW.shape)
    if found is None:
        return False
    gW[...] = found
    return True


def _gradient(x: Array, y: Array, windows: Windows, groups: int, shape: Numbers) -> Array | None:
    """x ⋆ y of pixels (N, …, C) and (N, …, K), for filters of a shape; None if loops cannot tell
    it.
    """
    K, C = shape[:2]
    if len(windows.size) == 1:
        filters = (K, C, 1, shape[2])
        found = _gradient(x[:, None], y[:, None], _of_one_row(windows), groups, filters)
        return None if found is None else found[:, :, 0]
    if len(windows.size) > 2:
        flat, depth = _of_slices(windows), windows.K[0]
        total = np.zeros((K, depth * C, *shape[3:]), x.dtype)
        for n in _blocks(windows, len(x), x.shape[-1] * x.itemsize):
            given = y[n].reshape(-1, *y.shape[2:])
            part = _gradient(_stack(x[n], windows), given, flat, groups, total.shape)
            if part is None:
                return None
            total += part
        return total.reshape(K, depth, C, *shape[3:]).swapaxes(1, 2)
    if _is_depthwise(shape, groups):
        return depthwise.gradient(x, y, windows)
    if groups == 1 and winograd_loops.is_faster(windows, len(x), C, K):
        return winograd_loops.gradient(x, y, windows)
    if K // groups < LANES:
        return grouped.gradient(x, y, windows, groups, shape)
    return direct.gradient(x, y, windows, groups, shape)


def _of_one_row(windows: Windows) -> Windows:
    """Return the windows over a sequence as those over an image of one row."""
    w = windows
    return Windows(
        (1, *w.size), (1, *w.K), (1, *w.stride), (0, *w.pad), (1, *w.dilate), (1, *w.out)
    )


def _of_slices(windows: Windows) -> Windows:
    """Return the windows over the slices of a volume."""
    return Windows(
        windows.size[1:],
        windows.K[1:],
        windows.stride[1:],
        windows.pad[1:],
        windows.dilate[1:],
        windows.out[1:],
    )


def _blocks(windows: Windows, N: int, pixel: int) -> Iterator[slice]:
    """Samples whose stacks stay in the cache, at least one; ``pixel``: its bytes."""
    sample = windows.out[0] * windows.K[0] * math.prod(windows.size[1:]) * pixel
    return even_slices(N, tuning.STACK_BYTES // max(sample, 1))


def _stacked(W: Array) -> Array:
    """Filters (K, C, kd, kh, kw) as those of stacks, (K, kd · C, kh, kw)."""
    return W.swapaxes(1, 2).reshape(len(W), -1, *W.shape[3:])


@compiled
def _copy_slices(
    x: Array4, stride: int, pad: int, dilate: int, D: int, OD: int, stacks: Array4
) -> None:
    """stacks[image, pixel, k] ← the pixel of the slice that window ``image`` has as its k-th one,
    zeros where that is padding.
    """
    P, K = stacks.shape[1:3]
    for image in range(stacks.shape[0]):
        n, first = image // OD, image % OD * stride - pad
        for k in range(K):
            d = first + k * dilate
            if 0 <= d < D:
                for p in range(P):
                    _copy(x[n, d, p], stacks[image, p, k])
            else:
                for p in range(P):
                    stacks[image, p, k, :] = 0.0


@compiled
def _add_slices(
    stacks: Array4, stride: int, pad: int, dilate: int, D: int, OD: int, x: Array4
) -> None:
    """The transpose of it: slices of x get what their copies got."""
    P, K = stacks.shape[1:3]
    for image in range(stacks.shape[0]):
        n, first = image // OD, image % OD * stride - pad
        for k in range(K):
            d = first + k * dilate
            if 0 <= d < D:
                for p in range(P):
                    _add(stacks[image, p, k], x[n, d, p])


@formula
def _copy(x: Any, y: Any) -> Any:
    for c in range(y.size):
        y[c] = x[c]


@formula
def _add(x: Any, y: Any) -> Any:
    for c in range(y.size):
        y[c] += x[c]


def _stack(x: Array, windows: Windows) -> Array:
    """Return what windows see along the first axis of volumes (N, D, H, W, C) as channels of
    images, (N · OD, H, W, kd · C).
    """
    C = x.shape[-1]
    stacks = np.empty((len(x) * windows.out[0], *x.shape[2:-1], windows.K[0] * C), x.dtype)
    slices = stacks.reshape(len(stacks), -1, windows.K[0], C)
    _copy_slices(x.reshape(*x.shape[:2], -1, C), *_depth(windows), slices)
    return stacks


def _add_stack(stacks: Array, windows: Windows, x: Array) -> None:
    """Add to volumes what their stacks have, the transpose of :func:`_stack`."""
    C = x.shape[-1]
    slices = stacks.reshape(len(stacks), -1, windows.K[0], C)
    _add_slices(slices, *_depth(windows), x.reshape(*x.shape[:2], -1, C))


def _depth(windows: Windows) -> Numbers:
    """Return of the first axis the stride, padding, dilation, size, and how many windows it has."""
    w = windows
    return w.stride[0], w.pad[0], w.dilate[0], w.size[0], w.out[0]
