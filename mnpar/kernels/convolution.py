"""Convolutions of images by compiled loops, with channels last: which way is taken for which.

* One group: Winograd's method where that needs less time (winograd_loops.py), else direct.py; the
  transpose as products that are added up (column_loops.py) where that needs fewer products.
* As many groups as channels: depthwise.py.

Other groups, other dimensions and other arrays are left to the twin, numpy's way in
functions/connection. x may lie in memory in any order, but is copied where channels are not last.
"""

from __future__ import annotations

import math

import numpy as np

from mnpar.backend import Array
from mnpar.kernels import column_loops, depthwise, direct, tuning, winograd_loops
from mnpar.kernels.channels_last import as_pixels, empty_images
from mnpar.kernels.compiler import has_loops
from mnpar.kernels.lanes import LANES
from mnpar.kernels.windows import Numbers, Windows


def _takes(windows: Windows, groups: int, W_shape: Numbers, *arrays: Array) -> bool:
    if len(windows.size) != 2 or not all([x.size for x in arrays]):
        return False
    K, C = W_shape[:2]
    by_channel = C == 1 and K == groups >= LANES
    return (groups == 1 or by_channel) and has_loops(*arrays)


def convolve(x: Array, W: Array, b: Array | None, windows: Windows, groups: int) -> Array | None:
    """y = x ∗ W + b; None where loops do not take the arrays."""
    if not _takes(windows, groups, W.shape, x, W, *(() if b is None else (b,))):
        return None
    pixels = as_pixels(x)
    K, C = W.shape[:2]
    images = empty_images((len(x), K, *windows.out), x.dtype)
    y = as_pixels(images)
    bias = np.zeros(K, x.dtype) if b is None else np.require(b, None, ["C", "A", "W"])
    if groups > 1:
        depthwise.convolve(pixels, W, bias, windows, y)
    elif winograd_loops.is_faster(windows, len(x), C, K):
        filters = winograd_loops.transform_filters(W)
        winograd_loops.convolve(pixels, filters, bias, windows, y)
    else:
        direct.convolve(pixels, W, bias, windows, y)
    return images


def transpose(y: Array, W: Array, b: Array | None, windows: Windows, groups: int) -> Array | None:
    """x = y ∗ᵀ W + b; None where loops do not take the arrays."""
    if not _takes(windows, groups, W.shape, y, W, *(() if b is None else (b,))):
        return None
    pixels = as_pixels(y)
    K, C = W.shape[:2]
    C *= groups
    images = empty_images((len(y), C, *windows.size), y.dtype)
    x = as_pixels(images)
    bias = np.zeros(C, y.dtype) if b is None else np.require(b, None, ["C", "A", "W"])
    if groups > 1:
        depthwise.transpose(pixels, W, bias, windows, x)
    elif windows.is_reversible and winograd_loops.is_faster(windows.reversed(), len(y), K, C):
        filters = winograd_loops.transform_filters(W, turned=True)
        winograd_loops.convolve(pixels, filters, bias, windows.reversed(), x)
    elif C >= LANES and _sees_little_padding(windows):
        direct.transpose(pixels, W, bias, windows, x)
    else:
        column_loops.transpose(pixels, W, windows, x)
        if b is not None:
            column_loops.add_to_rows(x.reshape(-1, C), bias)
    return images


def _sees_little_padding(windows: Windows) -> bool:
    """Return whether the image, in steps of the stride, has not many more pixels than windows."""
    pixels = math.prod(windows.size)
    return pixels <= tuning.DIRECT_PIXELS_OF_WINDOW * math.prod(windows.out + windows.stride)


def gradient(x: Array, y: Array, windows: Windows, groups: int, gW: Array) -> bool:
    """gW = x ⋆ y, written into ``gW``; False where loops do not take the arrays."""
    if not _takes(windows, groups, gW.shape, x, y) or gW.dtype != x.dtype:
        return False
    pixels, given = as_pixels(x), as_pixels(y)
    K, C = gW.shape[:2]
    if groups > 1:
        gW[...] = depthwise.gradient(pixels, given, windows)
    elif winograd_loops.is_faster(windows, len(x), C, K):
        gW[...] = winograd_loops.gradient(pixels, given, windows)
    else:
        gW[...] = direct.gradient(pixels, given, windows, gW.shape)
    return True
