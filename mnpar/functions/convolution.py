"""Convolutions and their transposes under Chainer's names, and what they check (convolving.py has
the functions).
"""

from __future__ import annotations

from typing import Any

from mnpar.functions.convolving import Convolution, Deconvolution
from mnpar.functions.generic import listed
from mnpar.functions.windows import Windows, missing
from mnpar.variable import Variable, as_variable


def check_filters(
    who: str,
    x: Variable,
    W: Variable,
    b: Any,
    groups: int,
    ndim: int | None,
    *,
    transposed: bool = False,
) -> int:
    """The number of spatial axes; raises ValueError if x, W and b do not belong together, or the
    axes are not ``ndim``.
    """
    n: int = x.ndim - 2
    if ndim is not None and n != ndim:
        raise ValueError(
            f"{who}: x of shape {x.shape} must have {ndim + 2} axes: (N, C, "
            f"…){missing(x.shape, ndim)}"
        )
    if n < 1 or W.ndim != x.ndim:
        raise ValueError(
            f"{who}: x (N, C, …) and W (K, C, …) have the same number of axes, 3 or more, not "
            f"{listed((x.shape, W.shape))}"
            f"{missing(x.shape, W.ndim - 2)}"
        )
    if groups < 1 or W.shape[0] % groups:
        raise ValueError(f"{who}: W of shape {W.shape} cannot be divided into {groups} groups")
    inputs = W.shape[1] * groups
    outputs = W.shape[0]
    if transposed:
        inputs, outputs = outputs, inputs
    if x.shape[1] != inputs:
        last = (
            "; where channels come last, F.moveaxis(x, -1, 1) makes them second"
            if x.shape[-1] == inputs
            else ""
        )
        raise ValueError(
            f"{who}: x of shape {x.shape} has {x.shape[1]} channels, but W {W.shape} in "
            f"{groups} groups is for {inputs}{last}"
        )
    if b is not None and b.shape != (outputs,):
        raise ValueError(
            f"{who}: b of shape {b.shape} must have shape {(outputs,)}, one for each output channel"
        )
    return n


def _convolve(
    who: str,
    ndim: int | None,
    x: Any,
    W: Any,
    b: Any,
    stride: Any,
    pad: Any,
    cover_all: bool,
    dilate: Any,
    groups: int,
) -> Variable:
    x = as_variable(x)
    W = as_variable(W)
    check_filters(who, x, W, b, groups, ndim)
    windows = Windows.over(who, x.shape[2:], W.shape[2:], stride, pad, dilate, cover_all)
    return Convolution(windows, groups).apply((x, W) if b is None else (x, W, b))[0]


def _deconvolve(
    who: str,
    ndim: int | None,
    x: Any,
    W: Any,
    b: Any,
    stride: Any,
    pad: Any,
    outsize: Any,
    dilate: Any,
    groups: int,
) -> Variable:
    x = as_variable(x)
    W = as_variable(W)
    check_filters(who, x, W, b, groups, ndim, transposed=True)
    windows = Windows.transposed(who, x.shape[2:], W.shape[2:], stride, pad, dilate, outsize)
    return Deconvolution(windows, groups).apply((x, W) if b is None else (x, W, b))[0]


def convolution_nd(
    x: Any,
    W: Any,
    b: Any = None,
    stride: Any = 1,
    pad: Any = 0,
    cover_all: bool = False,
    dilate: Any = 1,
    groups: int = 1,
) -> Variable:
    """The convolution (cross-correlation) of images with any number of spatial axes and filters.

    Args:
        x: ``(N, C, …)`` with one or more spatial axes.
        W: ``(K, C / groups, …)``, K filters.
        b: ``(K,)``, or None.
        stride, pad, dilate: a number for each spatial axis, or one for all: the distance of the
            windows, zeros at each side, and the distance of the cells within a window.
        cover_all: windows reach every cell, beyond the padding if need be.
        groups: into how many groups, each convolved by itself, the channels are divided (grouped
            and depthwise convolution).

    Returns:
        ``(N, K, …)`` with ⌊(size + 2 pad − (k − 1) dilate − 1) / stride⌋ + 1 along each axis.

    Raises:
        ValueError: channels, groups or sizes do not belong together.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.convolution_nd(np.ones((1, 2, 5)), np.ones((3, 2, 3)), stride=2).array[0]
        array([[6., 6.],
               [6., 6.],
               [6., 6.]])
    """
    return _convolve("convolution_nd", None, x, W, b, stride, pad, cover_all, dilate, groups)


def convolution_1d(
    x: Any,
    W: Any,
    b: Any = None,
    stride: Any = 1,
    pad: Any = 0,
    cover_all: bool = False,
    dilate: Any = 1,
    groups: int = 1,
) -> Variable:
    """:func:`convolution_nd` of sequences ``(N, C, T)`` with filters ``(K, C / groups, k)``.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.convolution_1d(np.arange(4.0).reshape(1, 1, 4), np.array([[[-1.0, 1.0]]])).array
        array([[[1., 1., 1.]]])
    """
    return _convolve("convolution_1d", 1, x, W, b, stride, pad, cover_all, dilate, groups)


def convolution_2d(
    x: Any,
    W: Any,
    b: Any = None,
    stride: Any = 1,
    pad: Any = 0,
    cover_all: bool = False,
    *,
    dilate: Any = 1,
    groups: int = 1,
) -> Variable:
    """:func:`convolution_nd` of images ``(N, C, H, W)`` with filters ``(K, C / groups, kH, kW)``.

    Where there are many channels, 3 x 3 filters at stride 1 are applied by Winograd's method, to
    tiles of 4 x 4 outputs: in float32 the results are off by 10⁻⁶ of their size, and an infinite
    number spoils all of its tiles.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.convolution_2d(np.ones((1, 1, 3, 3)), np.ones((1, 1, 3, 3)), pad=1).array[0, 0]
        array([[4., 6., 4.],
               [6., 9., 6.],
               [4., 6., 4.]])
    """
    return _convolve("convolution_2d", 2, x, W, b, stride, pad, cover_all, dilate, groups)


def convolution_3d(
    x: Any,
    W: Any,
    b: Any = None,
    stride: Any = 1,
    pad: Any = 0,
    cover_all: bool = False,
    dilate: Any = 1,
    groups: int = 1,
) -> Variable:
    """:func:`convolution_nd` of volumes ``(N, C, D, H, W)`` with filters ``(K, C / groups, kD, kH,
    kW)``.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.convolution_3d(np.ones((1, 1, 2, 2, 2)), np.ones((1, 1, 2, 2, 2))).item()
        8.0
    """
    return _convolve("convolution_3d", 3, x, W, b, stride, pad, cover_all, dilate, groups)


def deconvolution_nd(
    x: Any,
    W: Any,
    b: Any = None,
    stride: Any = 1,
    pad: Any = 0,
    outsize: Any = None,
    dilate: Any = 1,
    groups: int = 1,
) -> Variable:
    """The transpose (adjoint) of :func:`convolution_nd`, from arrays of the shape of its outputs to
    images.

    Args:
        x: ``(N, K, …)``.
        W: ``(K, C / groups, …)``.
        b: ``(C,)``, or None.
        stride, pad, dilate, groups: of the convolution.
        outsize: the size of the image, where a stride leaves several possible; None: the smallest.

    Returns:
        ``(N, C, …)`` with stride (size − 1) + (k − 1) dilate + 1 − 2 pad along each axis.

    Raises:
        ValueError: channels, groups or sizes do not belong together.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.deconvolution_nd(np.array([[[1.0, 10.0]]]), np.ones((1, 1, 3)), stride=2).array
        array([[[ 1.,  1., 11., 10., 10.]]])
    """
    return _deconvolve("deconvolution_nd", None, x, W, b, stride, pad, outsize, dilate, groups)


def deconvolution_1d(
    x: Any,
    W: Any,
    b: Any = None,
    stride: Any = 1,
    pad: Any = 0,
    outsize: Any = None,
    dilate: Any = 1,
    groups: int = 1,
) -> Variable:
    """:func:`deconvolution_nd` of sequences ``(N, K, T)``.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.deconvolution_1d(np.ones((1, 1, 2)), np.ones((1, 1, 2))).array
        array([[[1., 2., 1.]]])
    """
    return _deconvolve("deconvolution_1d", 1, x, W, b, stride, pad, outsize, dilate, groups)


def deconvolution_2d(
    x: Any,
    W: Any,
    b: Any = None,
    stride: Any = 1,
    pad: Any = 0,
    outsize: Any = None,
    *,
    dilate: Any = 1,
    groups: int = 1,
) -> Variable:
    """:func:`deconvolution_nd` of images ``(N, K, H, W)``.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.deconvolution_2d(np.ones((1, 1, 2, 2)), np.ones((1, 1, 2, 2)), stride=2).shape
        (1, 1, 4, 4)
    """
    return _deconvolve("deconvolution_2d", 2, x, W, b, stride, pad, outsize, dilate, groups)


def deconvolution_3d(
    x: Any,
    W: Any,
    b: Any = None,
    stride: Any = 1,
    pad: Any = 0,
    outsize: Any = None,
    dilate: Any = 1,
    groups: int = 1,
) -> Variable:
    """:func:`deconvolution_nd` of volumes ``(N, K, D, H, W)``.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.deconvolution_3d(np.ones((1, 1, 1, 1, 1)), np.ones((1, 1, 2, 2, 2))).shape
        (1, 1, 2, 2, 2)
    """
    return _deconvolve("deconvolution_3d", 3, x, W, b, stride, pad, outsize, dilate, groups)


def depthwise_convolution_2d(
    x: Any, W: Any, b: Any = None, stride: Any = 1, pad: Any = 0
) -> Variable:
    """The convolution of each channel by itself with M filters.

    Args:
        x: ``(N, C, H, W)``.
        W: ``(M, C, kH, kW)``: M filters for each channel.
        b: ``(C M,)``, or None.
        stride, pad: as in :func:`convolution_nd`.

    Returns:
        ``(N, C M, …)``: the M results of the first channel, then those of the second …

    Raises:
        ValueError: the shapes do not belong together.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.depthwise_convolution_2d(np.ones((1, 2, 2, 2)), np.ones((3, 2, 2, 2))).shape
        (1, 6, 1, 1)
    """
    filters, C = depthwise_filters("depthwise_convolution_2d", W)
    return _convolve("depthwise_convolution_2d", 2, x, filters, b, stride, pad, False, 1, C)


def depthwise_filters(who: str, W: Any) -> tuple[Variable, int]:
    """The filters (C M, 1, kH, kW) of C groups that M filters for each channel, (M, C, kH, kW),
    are; and C.
    """
    W = as_variable(W)
    if W.ndim != 4:
        raise ValueError(f"{who}: W must be (M, C, kH, kW), not {W.shape}")
    M, C = W.shape[:2]
    return W.transpose((1, 0, 2, 3)).reshape((C * M, 1, *W.shape[2:])), C


def dilated_convolution_2d(
    x: Any,
    W: Any,
    b: Any = None,
    stride: Any = 1,
    pad: Any = 0,
    dilate: Any = 1,
    cover_all: bool = False,
) -> Variable:
    """:func:`convolution_2d` by its older name and order of arguments.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.dilated_convolution_2d(np.ones((1, 1, 5, 5)), np.ones((1, 1, 3, 3)), dilate=2).shape
        (1, 1, 1, 1)
    """
    return _convolve("dilated_convolution_2d", 2, x, W, b, stride, pad, cover_all, dilate, 1)
