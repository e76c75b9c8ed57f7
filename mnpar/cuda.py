"""Chainer's older place of :mod:`mnpar.backends.cuda`."""

from mnpar.backends.cuda import (
    DummyDevice,
    DummyDeviceType,
    GpuDevice,
    __getattr__,  # noqa: F401 - what is looked up when it is asked for
    check_cuda_available,
    copy,
    cudnn_enabled,
    elementwise,
    get_array_module,
    get_device,
    get_device_from_array,
    get_device_from_id,
    reduce,
    should_use_cudnn,
    to_cpu,
    to_gpu,
)

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
