"""Small helpers of Chainer's ``utils`` for writing functions and layers of your own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from mnpar.backend import Array
from mnpar.compat.utils import argument
from mnpar.functions.loss.sampled import WalkerAlias
from mnpar.functions.math.sparse_matmul import CooMatrix, get_order, to_coo
from mnpar.kernels.windows import get_conv_outsize, get_deconv_outsize

__all__ = [
    "CooMatrix",
    "WalkerAlias",
    "argument",
    "force_array",
    "get_conv_outsize",
    "get_deconv_outsize",
    "get_order",
    "size_of_shape",
    "to_coo",
]


def force_array(x: Any, dtype: DTypeLike | None = None) -> Array:
    """Return the array; a 0-d one of a number. (An operation on 0-d numpy arrays returns a number.)

    Args:
        x: an array or a number.
        dtype: of the result; None: as it is.

    Example:
        >>> import numpy as np, mnpar
        >>> mnpar.utils.force_array(np.ones(()) + 1)
        array(2.)
    """
    if np.isscalar(x):
        return np.array(x, dtype)
    y: Array = x if dtype is None else x.astype(dtype, copy=False)
    return y


def size_of_shape(shape: Sequence[int]) -> int:
    """Return the number of elements of an array of that shape.

    Example:
        >>> import mnpar
        >>> mnpar.utils.size_of_shape((2, 3))
        6
    """
    return math.prod(shape)
