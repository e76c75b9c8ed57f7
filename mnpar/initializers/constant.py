"""Initializers that fill arrays with fixed values."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from mnpar import backend
from mnpar.backend import Array
from mnpar.initializers.initializer import Initializer


class Constant(Initializer):
    """One value, or an array of them that is broadcast to the parameter's shape.

    Args:
        fill_value: a number, or an array on any device.
        dtype: of the parameter; None means ``mnpar.config.dtype``, whatever the dtype of
            ``fill_value``.

    Raises:
        ValueError: ``fill_value`` is neither a number nor an array.

    Example:
        >>> import numpy as np, mnpar
        >>> mnpar.Parameter(mnpar.initializers.Constant(np.array([1, 2])), (2, 2)).array
        array([[1., 2.],
               [1., 2.]], dtype=float32)
    """

    def __init__(self, fill_value: Any, dtype: DTypeLike | None = None) -> None:
        if not (np.isscalar(fill_value) or backend.is_array(fill_value)) or isinstance(
            fill_value, str | bytes
        ):
            raise ValueError(
                f"Constant takes a number or an array, not {type(fill_value).__name__}"
            )
        super().__init__(dtype)
        self.fill_value = fill_value

    def __call__(self, array: Array) -> None:
        value = self.fill_value
        if backend.is_array(value):
            value = backend.to_device_of(backend.to_host(value), array)
        try:
            array[...] = value
        except ValueError as error:
            shapes = f"of shape {np.shape(value)} does not become one of shape {array.shape}"
            raise ValueError(f"the array that a parameter starts with {shapes}") from error


class Zero(Constant):
    """Zeros.

    Args:
        dtype: of the parameter; None means ``mnpar.config.dtype``.

    Example:
        >>> import mnpar
        >>> mnpar.Parameter(mnpar.initializers.Zero(), 2).array
        array([0., 0.], dtype=float32)
    """

    def __init__(self, dtype: DTypeLike | None = None) -> None:
        super().__init__(0.0, dtype)


class One(Constant):
    """Ones.

    Args:
        dtype: of the parameter; None means ``mnpar.config.dtype``.

    Example:
        >>> import mnpar
        >>> mnpar.Parameter(mnpar.initializers.One(), 2).array
        array([1., 1.], dtype=float32)
    """

    def __init__(self, dtype: DTypeLike | None = None) -> None:
        super().__init__(1.0, dtype)


class NaN(Constant):
    """NaN: for parameters that the program has to overwrite; one that it forgets shows in every
    result.

    Args:
        dtype: of the parameter; None means ``mnpar.config.dtype``.

    Example:
        >>> import mnpar
        >>> mnpar.Parameter(mnpar.initializers.NaN(), 2).array
        array([nan, nan], dtype=float32)
    """

    def __init__(self, dtype: DTypeLike | None = None) -> None:
        super().__init__(np.nan, dtype)


class Identity(Initializer):
    """A multiple of the identity matrix.

    Args:
        scale: the values on the diagonal.
        dtype: of the parameter.

    Raises:
        ValueError: the array is not a square matrix.

    Example:
        >>> import mnpar
        >>> mnpar.Parameter(mnpar.initializers.Identity(2), (2, 2)).array
        array([[2., 0.],
               [0., 2.]], dtype=float32)
    """

    def __init__(self, scale: float = 1.0, dtype: DTypeLike | None = None) -> None:
        super().__init__(dtype)
        self.scale = scale

    def __call__(self, array: Array) -> None:
        if array.ndim != 2 or array.shape[0] != array.shape[1]:
            raise ValueError(f"Identity fills square matrices, not an array of shape {array.shape}")
        array[...] = 0
        array[range(len(array)), range(len(array))] = self.scale
