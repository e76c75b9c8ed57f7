"""The transposes of poolings, under Chainer's names: one value for each window, put into the image
that it sees.
"""

from __future__ import annotations

from mnpar.backend import Array
from mnpar.functions.node import any_axes, for_axes
from mnpar.functions.pooling.pooling import Spread, Unpooling
from mnpar.kernels.windows import PerAxis, Windows, check_spatial_axes
from mnpar.variable import Variable, as_variable


def _unpooled(
    who: str,
    ndim: int | None,
    x: Variable,
    ksize: PerAxis,
    stride: PerAxis | None,
    pad: PerAxis,
    outsize: PerAxis | None,
    cover_all: bool,
) -> Windows:
    """The windows of the image that ``x`` has one value for each of."""
    check_spatial_axes(who, x.shape, ndim)
    return Windows.transposed(
        who, x.shape[2:], ksize, ksize if stride is None else stride, pad, 1, outsize, cover_all
    )


@any_axes
def unpooling_nd(
    who: str,
    ndim: int | None,
    x: Variable | Array,
    ksize: PerAxis,
    stride: PerAxis | None = None,
    pad: PerAxis = 0,
    outsize: PerAxis | None = None,
    cover_all: bool = True,
) -> Variable:
    """The transpose of sum pooling: each cell of the image is the sum of the values of the windows
    that contain it.

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
    windows = _unpooled(who, ndim, x, ksize, stride, pad, outsize, cover_all)
    return Unpooling(windows, 1).apply((x,))[0]


unpooling_1d = for_axes(
    unpooling_nd,
    1,
    """:func:`unpooling_nd` of sequences ``(N, C, W)``.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.unpooling_1d(np.ones((1, 1, 2)), 2, cover_all=False).shape
        (1, 1, 4)
    """,
)

unpooling_2d = for_axes(
    unpooling_nd,
    2,
    """:func:`unpooling_nd` of images ``(N, C, H, W)``.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> (
        ...     F.unpooling_2d(np.ones((1, 1, 2, 2)), 2).shape,
        ...     F.unpooling_2d(np.ones((1, 1, 2, 2)), 2, outsize=(4, 4)).shape,
        ... )
        ((1, 1, 3, 3), (1, 1, 4, 4))
    """,
)

unpooling_3d = for_axes(
    unpooling_nd,
    3,
    """:func:`unpooling_nd` of volumes ``(N, C, D, H, W)``.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.unpooling_3d(np.ones((1, 1, 1, 1, 2)), 2, cover_all=False).shape
        (1, 1, 2, 2, 4)
    """,
)


def upsampling_2d(
    x: Variable | Array,
    indexes: Array,
    ksize: PerAxis,
    stride: PerAxis | None = None,
    pad: PerAxis = 0,
    outsize: PerAxis | None = None,
    cover_all: bool = True,
) -> Variable:
    """Put each value where :func:`max_pooling_2d` (with ``return_indices``) found its maximum.

    Args:
        x: ``(N, C, H, W)``, one value for each window.
        indexes: as max_pooling_2d returned them, of the shape of ``x``.
        ksize, stride, pad, outsize, cover_all: as in :func:`unpooling_nd`.

    Raises:
        ValueError: the indexes have another shape than x, or the windows do not fit outsize.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> y, places = F.max_pooling_2d(np.arange(4.0).reshape(1, 1, 2, 2), 2, return_indices=True)
        >>> F.upsampling_2d(y, places, 2, outsize=(2, 2)).array[0, 0]
        array([[0., 0.],
               [0., 3.]])
    """
    x = as_variable(x)
    if indexes.shape != x.shape:
        raise ValueError(
            f"upsampling_2d: indexes of shape {indexes.shape} must have the shape of x, {x.shape}"
        )
    return Spread(
        _unpooled("upsampling_2d", 2, x, ksize, stride, pad, outsize, cover_all), indexes
    ).apply((x,))[0]
