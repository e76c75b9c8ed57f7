"""Poolings under Chainer's names: the maximum and the mean of each window (window_reduction.py has
the functions).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mnpar import backend
from mnpar.functions.window_reduction import MaxPooling, SumPooling
from mnpar.functions.windows import Windows, spatial_axes
from mnpar.variable import Variable, as_variable


def pooling_windows(
    who: str, ndim: int | None, x: Variable, ksize: Any, stride: Any, pad: Any, cover_all: bool
) -> Windows:
    """The windows of a pooling: ``stride=None`` is ksize."""
    spatial_axes(who, x.shape, ndim)
    return Windows.over(
        who, x.shape[2:], ksize, ksize if stride is None else stride, pad, 1, cover_all
    )


def _max(
    who: str,
    ndim: int | None,
    x: Any,
    ksize: Any,
    stride: Any,
    pad: Any,
    cover_all: bool,
    return_indices: bool,
) -> Any:
    x = as_variable(x)
    windows = pooling_windows(who, ndim, x, ksize, stride, pad, cover_all)
    for size, K, s, p, o in zip(
        windows.size, windows.K, windows.stride, windows.pad, windows.out, strict=True
    ):
        if p >= K or (o - 1) * s - p >= size:
            raise ValueError(
                f"{who}: with ksize {windows.K}, stride {windows.stride}, pad {windows.pad} a "
                f"window over {windows.size} sees "
                "padding only, which has no maximum: pad less than the window, or leave "
                "cover_all out"
            )
    function = MaxPooling(windows)
    (y,) = function.apply((x,))
    return (y, function.places(x.array, y.array).astype(np.int32)) if return_indices else y


def max_pooling_nd(
    x: Any,
    ksize: Any,
    stride: Any = None,
    pad: Any = 0,
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
    return _max("max_pooling_nd", None, x, ksize, stride, pad, cover_all, return_indices)


def max_pooling_1d(
    x: Any,
    ksize: Any,
    stride: Any = None,
    pad: Any = 0,
    cover_all: bool = True,
    return_indices: bool = False,
) -> Any:
    """:func:`max_pooling_nd` of sequences ``(N, C, T)``.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.max_pooling_1d(np.array([[[1.0, 5.0, 3.0, 4.0]]]), 2).array
        array([[[5., 4.]]])
    """
    return _max("max_pooling_1d", 1, x, ksize, stride, pad, cover_all, return_indices)


def max_pooling_2d(
    x: Any,
    ksize: Any,
    stride: Any = None,
    pad: Any = 0,
    cover_all: bool = True,
    return_indices: bool = False,
) -> Any:
    """:func:`max_pooling_nd` of images ``(N, C, H, W)``.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.max_pooling_2d(np.arange(16.0).reshape(1, 1, 4, 4), 2).array[0, 0]
        array([[ 5.,  7.],
               [13., 15.]])
    """
    return _max("max_pooling_2d", 2, x, ksize, stride, pad, cover_all, return_indices)


def max_pooling_3d(
    x: Any,
    ksize: Any,
    stride: Any = None,
    pad: Any = 0,
    cover_all: bool = True,
    return_indices: bool = False,
) -> Any:
    """:func:`max_pooling_nd` of volumes ``(N, C, D, H, W)``.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.max_pooling_3d(np.arange(8.0).reshape(1, 1, 2, 2, 2), 2).item()
        7.0
    """
    return _max("max_pooling_3d", 3, x, ksize, stride, pad, cover_all, return_indices)


def _average(
    who: str, ndim: int | None, x: Any, ksize: Any, stride: Any, pad: Any, pad_value: Any
) -> Variable:
    x = as_variable(x)
    backend.check_fractions(who, x.array)
    windows = pooling_windows(who, ndim, x, ksize, stride, pad, False)
    if pad_value not in (0, None):
        raise ValueError(
            f"{who}: pad_value is 0, or None to leave padding out of the means, not {pad_value!r}"
        )
    scale: Any = 1 / math.prod(windows.K)
    if pad_value is None and any(windows.pad):
        ones = x.xp.ones((1, 1, *windows.size), x.dtype if x.dtype.char != "e" else "f4")
        scale = 1 / SumPooling(windows, 1).forward(ones)
    return SumPooling(windows, scale).apply((x,))[0]


def average_pooling_nd(
    x: Any, ksize: Any, stride: Any = None, pad: Any = 0, pad_value: Any = 0
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
    return _average("average_pooling_nd", None, x, ksize, stride, pad, pad_value)


def average_pooling_1d(
    x: Any, ksize: Any, stride: Any = None, pad: Any = 0, pad_value: Any = 0
) -> Variable:
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


def average_pooling_3d(
    x: Any, ksize: Any, stride: Any = None, pad: Any = 0, pad_value: Any = 0
) -> Variable:
    """:func:`average_pooling_nd` of volumes ``(N, C, D, H, W)``.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.average_pooling_3d(np.arange(8.0).reshape(1, 1, 2, 2, 2), 2).item()
        3.5
    """
    return _average("average_pooling_3d", 3, x, ksize, stride, pad, pad_value)
