"""Chainer's ``cuda`` module: arrays to and from GPUs, whether or not there is CuPy.

CuPy is imported only when ``available``, ``cupy``, ``ndarray``, ``Device``, ``Stream`` or ``Event``
is used: it takes time.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array, GpuDevice, get_array_module, import_cupy

cudnn_enabled = False  # mnpar's kernels are CuPy's own

__all__ = [
    "DummyDevice",
    "DummyDeviceType",
    "GpuDevice",
    "check_cuda_available",
    "copy",
    "cudnn_enabled",
    "elementwise",
    "get_array_module",
    "get_device",
    "get_device_from_array",
    "get_device_from_id",
    "reduce",
    "should_use_cudnn",
    "to_cpu",
    "to_gpu",
]


class DummyDeviceType:
    """The host in place of CuPy's ``Device``: its methods do nothing. There is one instance,
    ``DummyDevice``.

    Example:
        >>> from mnpar.backends import cuda
        >>> with cuda.DummyDevice as device:
        ...     device.id
        -1
    """

    id = -1

    def use(self) -> None:
        """Nothing."""

    def synchronize(self) -> None:
        """Nothing."""

    def __int__(self) -> int:
        return -1

    def __enter__(self) -> DummyDeviceType:
        return self

    def __exit__(self, *error: object) -> None:
        pass


DummyDevice = DummyDeviceType()


class _NoArray:
    """In place of ``cupy.ndarray`` where there is no CuPy, for ``isinstance``: nothing is an
    instance.
    """


@cache
def _look() -> tuple[Any, bool]:
    """CuPy or None, and whether it finds a GPU."""
    try:
        cupy = import_cupy()
    except RuntimeError:
        return None, False
    return cupy, backend.gpu_summary()[0] == "ok"


def __getattr__(name: str) -> Any:
    cupy, available = (
        _look()
        if name in ("available", "cupy", "ndarray", "Device", "Stream", "Event")
        else (None, False)
    )
    if name == "available":
        return available
    if name == "cupy":
        return cupy
    if name == "ndarray":
        return _NoArray if cupy is None else cupy.ndarray
    if name in ("Device", "Stream", "Event"):
        return DummyDeviceType if cupy is None else getattr(cupy.cuda, name)
    raise AttributeError(f"mnpar.backends.cuda has no {name!r}")


def check_cuda_available() -> None:
    """Raises RuntimeError, with the reason, if no GPU can be used."""
    import_cupy()
    finding, text = backend.gpu_summary()
    if finding != "ok":
        raise RuntimeError(text)


def get_device_from_id(device_id: int | None) -> Any:
    """CuPy's ``Device`` of a number; ``DummyDevice`` for None and -1.

    Raises:
        RuntimeError: there is no CuPy.

    Example:
        >>> from mnpar.backends import cuda
        >>> cuda.get_device_from_id(-1) is cuda.DummyDevice
        True
    """
    if device_id is None or device_id < 0:
        return DummyDevice
    return GpuDevice(int(device_id)).device


def get_device_from_array(*arrays: Any) -> Any:
    """CuPy's ``Device`` of the first array (or Variable) that is on a GPU; ``DummyDevice`` if none
    is.

    Example:
        >>> import numpy as np
        >>> from mnpar.backends import cuda
        >>> with cuda.get_device_from_array(np.ones(3)) as device:
        ...     device is cuda.DummyDevice
        True
    """
    return get_device_from_id(backend.get_device_from_array(*arrays).id)


def get_device(*args: Any) -> Any:
    """CuPy's ``Device`` by what is given: a number, an array, or a ``Device``; ``DummyDevice`` for
    the rest.

    Example:
        >>> from mnpar.backends import cuda
        >>> cuda.get_device(None) is cuda.DummyDevice
        True
    """
    for x in args:
        if isinstance(x, int | np.integer) and not isinstance(x, bool):
            return get_device_from_id(int(x))
        if isinstance(x, DummyDeviceType) or hasattr(x, "compute_capability"):
            return x
        if backend.get_device_from_array(x).id >= 0:
            return get_device_from_array(x)
    return DummyDevice


def to_gpu(array: Any, device: Any = None, stream: Any = None) -> Any:
    """Return an array, or a tuple or list of them, on a GPU; None stays None.

    Args:
        array: on any device.
        device: the GPU's number or CuPy's ``Device``; None: the current one.
        stream: CuPy's, to copy in.

    Raises:
        RuntimeError: there is no CuPy.
    """
    with _in(stream):
        return backend.get_device("@cupy" if device is None else device).send(array)


def to_cpu(array: Any, stream: Any = None) -> Any:
    """Return an array, or a tuple or list of them, on the host; None stays None.

    Args:
        array: on any device.
        stream: CuPy's, to copy in.

    Example:
        >>> import numpy as np
        >>> from mnpar.backends import cuda
        >>> cuda.to_cpu(np.ones(2))
        array([1., 1.])
    """
    with _in(stream):
        return backend.get_device("@numpy").send(array)


def copy(
    array: Array, out: Array | None = None, out_device: Any = None, stream: Any = None
) -> Array:
    """Return a copy of an array on a GPU.

    Args:
        array: on any device.
        out: the array to copy into, and to return.
        out_device: the GPU of the copy; None: the array's own.
        stream: CuPy's, to copy in.

    Raises:
        RuntimeError: there is no CuPy.
    """
    with _in(stream):
        if out is not None:
            backend.copyto(out, array)
            return out
        there = to_gpu(array, backend.device_of(array).id if out_device is None else out_device)
        return there.copy() if there is array else there


def _in(stream: Any) -> Any:
    return DummyDevice if stream is None else stream


def should_use_cudnn(level: str, lowest_version: int = 0) -> bool:
    """Return whether cuDNN is used: never.

    Args:
        level, lowest_version: Chainer's; accepted and not needed.
    """
    return cudnn_enabled


@cache
def elementwise(in_params: str, out_params: str, operation: str, name: str, **kwargs: Any) -> Any:
    """CuPy's ``ElementwiseKernel``, made once.

    Args:
        in_params, out_params, operation, name, kwargs: CuPy's.

    Raises:
        RuntimeError: there is no CuPy.
    """
    return import_cupy().ElementwiseKernel(in_params, out_params, operation, name, **kwargs)


@cache
def reduce(
    in_params: str,
    out_params: str,
    map_expr: str,
    reduce_expr: str,
    post_map_expr: str,
    identity: str,
    name: str,
    **kwargs: Any,
) -> Any:
    """CuPy's ``ReductionKernel``, made once.

    Args:
        in_params, out_params, map_expr, reduce_expr, post_map_expr, identity, name, kwargs: CuPy's.

    Raises:
        RuntimeError: there is no CuPy.
    """
    return import_cupy().ReductionKernel(
        in_params, out_params, map_expr, reduce_expr, post_map_expr, identity, name, **kwargs
    )
