"""From an argument such as a link's ``initialW`` to an initializer, and from that to an array."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from mnpar import backend
from mnpar.backend import NUMPY, Array, ArrayModule
from mnpar.configuration import get_dtype
from mnpar.initializers.constant import Constant
from mnpar.initializers.initializer import InitialValue
from mnpar.initializers.normal import LeCunNormal


def generate_array(
    initializer: Any,
    shape: tuple[int, ...],
    xp: ArrayModule = NUMPY,
    dtype: DTypeLike | None = None,
    device: Any = None,
) -> Array:
    """Return a new array, filled.

    Args:
        initializer: a function ``(array) -> None``, as the initializers here are.
        shape: of the array.
        xp: numpy or cupy.
        dtype: of the array; None takes the initializer's, or else ``mnpar.config.dtype``.
        device: where to put it, as in ``backend.to_device``; None: the current one of ``xp``.

    Raises:
        ValueError: ``dtype`` contradicts the initializer's.

    Example:
        >>> from mnpar.initializers import One, generate_array
        >>> generate_array(One(), (2,))
        array([1., 1.], dtype=float32)
    """
    own = getattr(initializer, "dtype", None)
    if dtype is not None and own is not None and np.dtype(dtype) != np.dtype(own):
        raise ValueError(
            f"a {np.dtype(dtype)} array was asked of {initializer!r}, which makes {np.dtype(own)}"
        )
    chosen = dtype if dtype is not None else own if own is not None else get_dtype()
    array = xp.empty(shape, np.dtype(chosen))
    initializer(array)
    return array if device is None else backend.to_device(device, array)


def _get_initializer(
    initializer: InitialValue, default: InitialValue = None
) -> Callable[[Array], None]:
    """Return the initializer that an argument such as a link's ``initialW`` means.

    Args:
        initializer: a number or an array becomes a Constant; a function ``(array) -> None`` is
            returned as it is.
        default: stands for an ``initializer`` that is None; LeCunNormal if it is None, too.

    Raises:
        TypeError: it is neither a number nor an array nor a function.
    """
    initializer = default if initializer is None else initializer
    if initializer is None:
        return LeCunNormal()
    if (np.isscalar(initializer) and not isinstance(initializer, str)) or backend.is_array(
        initializer
    ):
        return Constant(initializer)
    if not callable(initializer) or isinstance(initializer, str):
        raise TypeError(
            "an initializer is a number, an array or a function (array) -> None, like "
            "mnpar.initializers.HeNormal(), "
            f"not {type(initializer).__name__}: wrap lists in numpy.asarray"
        )
    return initializer
