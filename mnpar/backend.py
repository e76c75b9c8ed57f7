"""Which library holds an array: the only file that knows CuPy.

CuPy is never imported to see whether it is there: an array of its can only arrive from a program that has imported it.
"""

from __future__ import annotations

import sys
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = Any  # a numpy.ndarray or a cupy.ndarray: CuPy ships no types, and need not be installed


def _cupy() -> Any:
    return sys.modules.get("cupy")


def is_array(x: object) -> bool:
    """Is it an array that a Variable can hold?

    Example:
        >>> import numpy as np
        >>> from mnpar.backend import is_array
        >>> is_array(np.ones(3)), is_array([1.0, 1.0])
        (True, False)
    """
    if isinstance(x, np.ndarray):
        return True
    cupy = _cupy()
    return cupy is not None and isinstance(x, cupy.ndarray)


def unscalar(x: Array) -> Array:
    """An operation on 0-d numpy arrays returns a scalar; this makes an array of it again, and leaves the rest alone.

    Example:
        >>> import numpy as np
        >>> from mnpar.backend import unscalar
        >>> unscalar(np.ones(()) + np.ones(()))
        array(2.)
    """
    return np.asarray(x) if isinstance(x, np.generic | float | int) else x


def get_array_module(*args: Any) -> Any:
    """The module, numpy or cupy, whose functions work on these arrays (Variables are looked into).

    Example:
        >>> import numpy as np
        >>> from mnpar.backend import get_array_module
        >>> get_array_module(np.ones(3)).__name__
        'numpy'
    """
    cupy = _cupy()
    if cupy is None:
        return np
    for x in args:
        if isinstance(getattr(x, "array", x), cupy.ndarray):
            return cupy
    return np


def to_host(x: Array) -> Array:
    """The array in the memory of the host; a numpy array is returned as it is.

    Example:
        >>> import numpy as np
        >>> from mnpar.backend import to_host
        >>> to_host(np.arange(2))
        array([0, 1])
    """
    cupy = _cupy()
    return x if cupy is None or not isinstance(x, cupy.ndarray) else cupy.asnumpy(x)


def to_device(device: int | str | None, x: Array) -> Array:
    """The array on a device.

    Args:
        device: a GPU's number (``0``), ``'@cupy:0'``, or ``-1``, ``'@numpy'``, None for the host.
        x: an array.

    Example:
        >>> import numpy as np
        >>> from mnpar.backend import to_device
        >>> to_device("@numpy", np.arange(2))
        array([0, 1])
    """
    if isinstance(device, str):
        name, _, number = device.partition(":")
        if name not in ("@numpy", "@cupy"):
            raise ValueError(f"unknown device {device!r}: '@numpy', '@cupy:0' and plain GPU numbers are known")
        device = -1 if name == "@numpy" else int(number or 0)
    if device is None or device < 0:
        return to_host(x)
    import cupy

    with cupy.cuda.Device(device):
        return cupy.asarray(x)


def on_device(x: Array) -> Array:
    """The array on this rank's current GPU."""
    import cupy

    return cupy.asarray(x)


def gpu_summary() -> tuple[str, str]:
    """What CuPy (installed) sees: ``('ok' or 'note', text)``."""
    import cupy

    try:
        count = cupy.cuda.runtime.getDeviceCount()
        names = [cupy.cuda.runtime.getDeviceProperties(i)["name"].decode() for i in range(count)]
    except RuntimeError as error:  # CuPy without a driver
        return "note", f"CuPy {cupy.__version__} finds no GPU: {error}"
    return "ok", f"CuPy {cupy.__version__}: {count} GPU(s), {', '.join(names)}"


def like(x: Array, other: Array) -> Array:
    """``x`` (on the host) where ``other`` is: what a communication received goes back to the sender's kind of device."""
    xp = get_array_module(other)
    return x if xp is np else xp.asarray(x)


def beside(x: Array, other: Array) -> Array:
    """``x`` on the device of ``other``, whatever its own."""
    return x if get_array_module(x) is get_array_module(other) else like(to_host(x), other)


def synchronize(*arrays: Array) -> None:
    """Wait until the GPU has computed what it was asked for, if one of the arrays is on a GPU: for measuring times."""
    if get_array_module(*arrays) is not np:
        _cupy().cuda.get_current_stream().synchronize()


def device_of(x: Array) -> str:
    """The name of the device that an array is on.

    Example:
        >>> import numpy as np
        >>> from mnpar.backend import device_of
        >>> device_of(np.ones(3))
        '@numpy'
    """
    return "@numpy" if get_array_module(x) is np else f"@cupy:{x.device.id}"


def copy_to(target: Array, x: Array) -> None:
    """Write the values of ``x``, on any device, into ``target``."""
    target[...] = beside(x, target)


def vector(size: int, other: Array) -> Array:
    """Room for that many elements, of the dtype of ``other`` and where that is."""
    xp = get_array_module(other)
    if xp is np:
        return np.empty(size, other.dtype)
    with other.device:
        return xp.empty(size, other.dtype)


def check_finite(owner: str, what: str, arrays: tuple[Array, ...], infinite: bool = False) -> None:
    """Raises FloatingPointError if any of the arrays (or None) has NaN or, unless it may be ``infinite``, infinity."""
    for i, y in enumerate(arrays):
        if y is None or y.dtype.kind not in "fc":
            continue
        xp = get_array_module(y)
        if xp.isnan(y).any() if infinite else not xp.isfinite(y).all():
            found = "NaN" if infinite else "NaN or infinity"
            raise FloatingPointError(f"{what} {i} of {owner} has {found} (mnpar.config.debug looks for them)")


def block_bytes(x: Array) -> int:
    """How much is best worked on at once where ``x`` is: what stays in a core's cache, or what keeps a whole GPU busy."""
    return 2**21 if get_array_module(x) is np else 2**28
