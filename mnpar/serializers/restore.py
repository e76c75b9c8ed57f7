"""Restore saved values: fill the object's array, or convert to the object's type of number. All
deserializers do it here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mnpar import backend

IgnoreNames = str | Callable[[str], bool] | Sequence[str | Callable[[str], bool]] | None


def restore_value(key: str, value: Any, found: Any) -> Any:
    """Return the new value of an object that has ``value``, where ``found`` was saved under
    ``key``.

    Args:
        key: for messages.
        value: an array is filled and returned; None gets ``found`` as it is; a number or string
            becomes one of its type.
        found: an array on the host, or None.

    Raises:
        ValueError: the shapes differ.
        TypeError: values would lose what cannot be rounded: floats into integers, complex numbers
            into reals.
    """
    if found is None or value is None:
        return found
    if backend.is_array(value):
        return _fill(key, value, found)
    kind = type(value)
    whole = found.dtype.kind in "iu" and issubclass(kind, int)  # a Python int takes any
    if found.dtype.kind in "biufc" and not whole and not np.can_cast(found.dtype, kind, "safe"):
        raise TypeError(f"{key}: saved as {found.dtype}, it cannot become a {kind.__name__}")
    if found.size != 1:
        raise ValueError(
            f"{key}: saved as an array of shape {found.shape}, it cannot become a {kind.__name__}"
        )
    return kind(found.reshape(()) if isinstance(value, np.generic) else found.reshape(()).item())


def _fill(key: str, value: Any, found: Any) -> Any:
    if value.shape != found.shape:
        raise ValueError(
            f"{key}: saved with shape {found.shape}, but the object's is {value.shape}"
        )
    if (
        found.dtype.kind == "V"
        and found.dtype.names is None
        and found.dtype.itemsize == value.dtype.itemsize
    ):
        found = found.view(value.dtype)  # bfloat16, which the npy format does not know by name
    if not np.can_cast(found.dtype, value.dtype, "same_kind"):
        raise TypeError(f"{key}: saved as {found.dtype}, it does not fit into {value.dtype}")
    value[...] = backend.to_device_of(found.astype(value.dtype, copy=False), value)
    return value


def is_ignored(names: IgnoreNames, key: str) -> bool:
    """Return whether ``key`` is one of the names, or one of the functions among them says so.

    Raises:
        ValueError: a name is neither.
    """
    if names is None:
        return False
    for name in [names] if isinstance(names, str) or callable(names) else names:
        if not (isinstance(name, str) or callable(name)):
            raise ValueError(f"ignore_names has strings and functions of a key, not {name!r}")
        if name == key if isinstance(name, str) else name(key):
            return True
    return False
