"""numpy or CuPy: which library an array belongs to, and on which device it is. No other file knows
CuPy; ``mnpar.backends.cuda`` has the same under Chainer's names.

CuPy is not imported to find out what an array is: if CuPy is not in ``sys.modules``, no array can
be CuPy's.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import EllipsisType, ModuleType
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeAlias, TypeGuard, cast

import numpy as np
from numpy.typing import DTypeLike

# numpy's or CuPy's; type checkers take CuPy's arrays for numpy's, whose interface they have
Array: TypeAlias = np.ndarray[Any, Any]
# axes to reduce; None: all
Axis: TypeAlias = int | tuple[int, ...] | None
# int and float are complex to type checkers
Number: TypeAlias = complex | np.number
# what an array is indexed by along one axis; an ellipsis stands for several
AxisIndex: TypeAlias = SupportsIndex | slice | EllipsisType | Array | Sequence[int] | None
Index: TypeAlias = tuple[AxisIndex, ...]


class ArrayModule(ModuleType):
    """numpy or cupy, as type checkers see them: nearly all of their functions return arrays."""

    add: Any
    inf: float
    lib: ModuleType
    linalg: Any
    nan: float
    ndarray: Any
    newaxis: None

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Callable[..., Array]: ...
        def shares_memory(self, a: Array, b: Array) -> bool: ...


NUMPY = cast("ArrayModule", np)
HALVES = "eE"  # dtypes of 2 bytes: float16 and, where ml_dtypes is installed, bfloat16


def _cupy() -> Any:
    return sys.modules.get("cupy")


def is_array(x: object) -> TypeGuard[Array]:
    """Return whether ``x`` is an array that a Variable can hold.

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


def as_plain_ndarray(x: Array) -> Array:
    """``x`` as a plain array: subclasses of numpy's may give operators another meaning, as
    np.matrix does to the product.

    Raises:
        TypeError: it is a masked array, whose mask would be lost.

    Example:
        >>> import numpy as np
        >>> as_plain_ndarray(np.ones(2).view(np.recarray))
        array([1., 1.])
    """
    if type(x) is np.ndarray or not isinstance(x, np.ndarray) or get_array_module(x) is not np:
        return x
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError(
            "the mask of a masked array would be lost: fill it first, x.filled(0), or use F.where"
        )
    return x.view(np.ndarray)


def wrap_scalar(x: Array | np.generic | float) -> Array:
    """Return a numpy scalar, which operations on 0-d arrays return, as an array again; arrays as
    they are.

    Example:
        >>> import numpy as np
        >>> from mnpar.backend import wrap_scalar
        >>> wrap_scalar(np.ones(()) + np.ones(()))
        array(2.)
    """
    return np.asarray(x) if isinstance(x, np.generic | float | int) else x


def add_gradients(a: Any, b: Any) -> Any:
    """``a + b`` of two gradients of one variable, in their dtype: numpy's would be in the machine's
    byte order.

    Example:
        >>> import numpy as np
        >>> add_gradients(np.ones((), ">f4"), np.ones((), ">f4"))
        array(2., dtype='>f4')
    """
    total = wrap_scalar(a + b)
    return total if b.dtype.isnative else total.astype(b.dtype)


def check_output(label: str, y: Any) -> Any:
    """Return what the forward of a function returned: a numpy scalar as an array, None as None;
    raise TypeError for all else.

    Example:
        >>> check_output("Cube", [1.0])
        Traceback (most recent call last):
        TypeError: Cube: forward returns an array, or a tuple of them, not list
    """
    y = wrap_scalar(y)
    if y is None or is_array(y):
        return y
    also = (
        ": xs are arrays, and numpy's functions do for them what mnpar.functions do for Variables"
    )
    raise TypeError(
        f"{label}: forward returns an array, or a tuple of them, not "
        f"{type(y).__name__}{also if hasattr(y, 'array') else ''}"
    )


def get_array_module(*args: object) -> ArrayModule:
    """Return the module, numpy or cupy, whose functions work on these arrays (Variables are looked
    into).

    Example:
        >>> import numpy as np
        >>> from mnpar.backend import get_array_module
        >>> get_array_module(np.ones(3)).__name__
        'numpy'
    """
    for x in args:
        if type(x) is not np.ndarray:
            break
    else:
        return NUMPY  # nearly always, and nearly every function asks
    cupy = _cupy()
    if cupy is not None and any([isinstance(getattr(x, "array", x), cupy.ndarray) for x in args]):
        return cast("ArrayModule", cupy)
    return NUMPY


def special_functions(x: Array) -> Any:
    """``scipy.special``, or ``cupyx.scipy.special`` if the array is CuPy's."""
    if get_array_module(x) is np:
        from scipy import special
    else:
        from cupyx.scipy import special
    return special


def to_host(x: Array) -> Array:
    """Return the array in the memory of the host; a numpy array is returned as it is.

    Example:
        >>> import numpy as np
        >>> from mnpar.backend import to_host
        >>> to_host(np.arange(2))
        array([0, 1])
    """
    cupy = _cupy()
    return x if cupy is None or not isinstance(x, cupy.ndarray) else cupy.asnumpy(x)


def as_bytes(x: Array) -> Array:
    """Return the bytes of an array on the host, in the order of its elements; a copy only if it is
    not contiguous.

    Example:
        >>> import numpy as np
        >>> from mnpar.backend import as_bytes
        >>> as_bytes(np.array([[1, 2], [3, 4]], "u1").T)
        array([1, 3, 2, 4], dtype=uint8)
    """
    return np.ascontiguousarray(x).reshape(-1).view(np.uint8)


def import_cupy() -> Any:
    """CuPy, for what needs a GPU.

    Raises:
        RuntimeError: it is not installed.
    """
    try:
        import cupy
    except ImportError as error:
        raise RuntimeError(
            f"a GPU was asked for, but there is no CuPy ({error}): pip install 'mnpar[gpu]'"
        ) from None
    return cupy


class Device(str):
    """A device by its name, ``'@numpy'`` or ``'@cupy:0'``; :func:`get_device` makes one. It is a
    string with Chainer's methods.

    Example:
        >>> import numpy as np, mnpar
        >>> device = mnpar.get_device("@numpy")
        >>> device.use()
        >>> device.xp.__name__, device.send(np.ones(2)), device == "@numpy"
        ('numpy', array([1., 1.]), True)
    """

    __slots__ = ()
    name = property(lambda self: str(self), doc="``'@numpy'`` or ``'@cupy:0'``.")
    id = property(
        lambda self: int(self.partition(":")[2] or -1), doc="The GPU's number, -1 for the host."
    )
    device = property(
        lambda self: import_cupy().cuda.Device(self.id), doc="CuPy's own object, of a GPU."
    )
    supported_array_types = property(
        lambda self: (self.xp.ndarray,), doc="The types of arrays on such devices."
    )

    @property
    def xp(self) -> ArrayModule:
        """numpy or cupy."""
        return NUMPY if self.id < 0 else cast("ArrayModule", import_cupy())

    def use(self) -> None:
        """Make it this rank's current GPU, on which new arrays are made; of the host, do
        nothing.
        """
        if self.id >= 0:
            self.device.use()

    def create_context(self) -> AbstractContextManager[Device]:
        """Return a context manager in which the device is current."""
        return using_device(self)

    def send(self, arrays: Any) -> Any:
        """Return an array, or a tuple, list or dict of them, on this device; None stays None."""
        if isinstance(arrays, tuple | list):
            return type(arrays)([self.send(x) for x in arrays])
        if isinstance(arrays, dict):
            return {key: self.send(x) for key, x in arrays.items()}
        return None if arrays is None else to_device(self, arrays)

    def is_array_supported(self, array: object) -> bool:
        """Return whether the array is on this device."""
        return is_array(array) and device_of(array) == self


class CpuDevice(Device):
    """The host, Chainer's ``CpuDevice()``."""

    __slots__ = ()

    def __new__(cls) -> CpuDevice:
        return super().__new__(cls, "@numpy")

    def __reduce__(self) -> tuple[type[CpuDevice], tuple[()]]:
        return CpuDevice, ()


class GpuDevice(Device):
    """A GPU, Chainer's ``GpuDevice.from_device_id(0)``.

    Args:
        device: CuPy's object.
    """

    __slots__ = ()

    def __new__(cls, device: Any) -> GpuDevice:
        return super().__new__(cls, f"@cupy:{device if isinstance(device, int) else device.id}")

    def __reduce__(self) -> tuple[type[GpuDevice], tuple[int]]:
        return GpuDevice, (self.id,)

    @classmethod
    def from_device_id(cls, device_id: int) -> GpuDevice:
        """Return the GPU of a number."""
        return cls(device_id)


_HOST = CpuDevice()


def get_device(device_spec: Any) -> Device:
    """Return the device of a name or a number.

    Args:
        device_spec: ``'@numpy'``, ``'@cupy:0'``, ``'@cupy'`` (the current GPU), a GPU's number or
            -1 for the host (as a string, too), a Device, or CuPy's object of a GPU.

    Raises:
        ValueError: it is none of these.

    Example:
        >>> import mnpar
        >>> str(mnpar.get_device("@cupy:1")), str(mnpar.get_device(-1))
        ('@cupy:1', '@numpy')
    """
    if isinstance(device_spec, Device):
        return device_spec
    name, _, number = str(device_spec).partition(":")
    if name == "@numpy" and not number:
        return _HOST
    if name == "@cupy" and (not number or number.isdecimal()):
        return GpuDevice(int(number) if number else import_cupy().cuda.Device())
    number = str(getattr(device_spec, "id", device_spec))
    if number.removeprefix("-").isdecimal():
        return GpuDevice(int(number)) if int(number) >= 0 else _HOST
    raise ValueError(
        f"unknown device {device_spec!r}: '@numpy', '@cupy:0' and plain GPU numbers (-1: the "
        "host) are known"
    )


@contextmanager
def using_device(device_spec: Any) -> Iterator[Device]:
    """Let a device be current inside a ``with`` block.

    Args:
        device_spec: as in :func:`get_device`.

    Example:
        >>> import mnpar
        >>> with mnpar.using_device("@numpy") as device:
        ...     device.xp.ones(2)
        array([1., 1.])
    """
    device = get_device(device_spec)
    if device.id < 0:
        yield device
    else:
        with device.device:
            yield device


def to_device(device: int | str | None, x: Array) -> Array:
    """Return the array on a device.

    Args:
        device: as in :func:`get_device`; None is the host.
        x: an array.

    Example:
        >>> import numpy as np
        >>> from mnpar.backend import to_device
        >>> to_device("@numpy", np.arange(2))
        array([0, 1])
    """
    number = -1 if device is None else get_device(device).id
    if number < 0:
        return to_host(x)
    cupy = import_cupy()
    with cupy.cuda.Device(number):
        y: Array = cupy.asarray(x)
        return y


def to_current_gpu(x: Array) -> Array:
    """Return the array on this rank's current GPU."""
    y: Array = import_cupy().asarray(x)
    return y


def gpu_summary() -> tuple[str, str]:
    """Return what CuPy, if it is installed, sees: ``('ok' or 'note', text)``."""
    cupy = import_cupy()
    try:
        count = cupy.cuda.runtime.getDeviceCount()
        names = [cupy.cuda.runtime.getDeviceProperties(i)["name"].decode() for i in range(count)]
    except RuntimeError as error:  # CuPy without a driver
        return "note", f"CuPy {cupy.__version__} finds no GPU: {error}"
    return "ok", f"CuPy {cupy.__version__}: {count} GPU(s), {', '.join(names)}"


def to_device_of(x: Array, other: Array) -> Array:
    """Return the array ``x``, on whatever device, on the device of ``other`` (an array or a
    Variable).
    """
    if type(x) is type(other) is np.ndarray:
        return x
    xp = get_array_module(other)
    if xp is np:
        return to_host(x)
    there: Array = getattr(other, "array", other)
    if xp is get_array_module(x) and device_of(x) == device_of(there):
        return x
    with device_of(there).device:
        return xp.asarray(to_host(x))


def synchronize(*arrays: Array | None) -> None:
    """Wait until the GPU's current stream is done, if one of the arrays is on a GPU: for measuring
    times.
    """
    if get_array_module(*arrays) is not np:
        _cupy().cuda.get_current_stream().synchronize()


def device_of(x: Array) -> Device:
    """Return the device that an array is on.

    Example:
        >>> import numpy as np
        >>> from mnpar.backend import device_of
        >>> device_of(np.ones(3))
        '@numpy'
    """
    return _HOST if get_array_module(x) is np else GpuDevice(cast("Any", x).device)


def get_device_from_array(*arrays: object) -> Device:
    """Return the GPU of the first array (or Variable) that is on one; the host if none is.

    Example:
        >>> import numpy as np
        >>> from mnpar.backend import get_device_from_array
        >>> get_device_from_array(np.ones(3))
        '@numpy'
    """
    found = [device_of(x) for x in [getattr(x, "array", x) for x in arrays] if is_array(x)]
    return next((device for device in found if device.id >= 0), _HOST)


def cast_gradient(x: Any, dtype: np.dtype[Any]) -> Any:
    """``x.astype(dtype)`` of an array or Variable; of a complex one in a real dtype the real part,
    without numpy's warning.

    Example:
        >>> import numpy as np
        >>> cast_gradient(np.array([1 + 2j]), np.dtype("f8"))
        array([1.])
    """
    return (x.real if x.dtype.kind == "c" and dtype.kind != "c" else x).astype(dtype)


def require_array(x: object) -> Array:
    """``x``, if it is an array; of a subclass (np.matrix, np.memmap) the plain array in it.

    Raises:
        TypeError: no Variable can hold it; the message says what may have been meant.

    Example:
        >>> require_array(None)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        TypeError: a Variable holds a numpy or cupy array, not None: did a model or a function ...
    """
    if is_array(x):
        return as_plain_ndarray(x)
    given, advice = type(x).__name__, "wrap it in numpy.asarray"
    if x is None:
        given, advice = "None", "did a model or a function forget to return something?"
    elif isinstance(x, list | tuple) and any(hasattr(part, "node") for part in x):
        advice = "F.stack and F.concat make one of several Variables"
    elif isinstance(x, list | tuple):
        try:
            numbers = np.asarray(x).dtype.kind in "biufc"
        except ValueError:
            numbers = False
        advice = (
            advice
            if numbers
            else "its parts are no numbers, or differ in length (F.pad_sequence fills up)"
        )
    elif hasattr(x, "node"):
        advice = "give its .array"
    elif type(x).__module__.startswith("torch"):
        advice = "mnpar.torch has the communications of tensors, mnpar.from_dlpack(x) is a Variable"
    elif "Tracer" in given:
        advice = "JAX traces what F.from_jax calls: call mnpar's functions before and after that"
    elif not isinstance(x, int | float | complex) and not hasattr(x, "__array__"):
        advice = "it has no numbers"
    raise TypeError(f"a Variable holds a numpy or cupy array, not {given}: {advice}")


def from_dlpack(x: Any) -> Array:
    """Return an array of numpy's or CuPy's that shares the memory of another library's array.

    Raises:
        TypeError: x is not such an array, or is on a device of another kind; BufferError: it is not
            handed over.

    Example:
        >>> import numpy as np
        >>> x = np.zeros(2)
        >>> np.shares_memory(from_dlpack(x), x)
        True
    """
    if not (hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__")):
        raise TypeError(f"from_dlpack takes an array with __dlpack__, not a {type(x).__name__}")
    kind = int(x.__dlpack_device__()[0])
    module = {1: np, 2: _cupy()}.get(kind)  # DLPack's kDLCPU and kDLCUDA
    if module is None:
        raise TypeError(
            f"from_dlpack: a {type(x).__name__} is on a device of DLPack's kind {kind}: the "
            "processor (1) is numpy's, and GPUs (2) are CuPy's, if it is installed"
        )
    try:
        array: Array = module.from_dlpack(x)
    except (RuntimeError, BufferError, ValueError) as error:
        raise BufferError(
            f"from_dlpack: a {type(x).__name__} of {getattr(x, 'dtype', 'unknown dtype')} is not "
            f"handed over: {error}"
        ) from error
    return array


def translate_error(label: str, error: Exception, xs: Sequence[Array]) -> None:
    """Raise an error that names the function in place of numpy's, if the cause is an axis, or the
    inputs' dtypes or devices.

    Example:
        >>> translate_error("Sum", np.exceptions.AxisError(5, 2), [])
        Traceback (most recent call last):
        ValueError: Sum: axis 5 is out of bounds for array of dimension 2
    """
    if isinstance(error, np.exceptions.AxisError):
        raise ValueError(f"{label}: {error}") from None
    if reason := _unfit(xs, str(error).startswith("Cannot cast ufunc")):
        raise TypeError(f"{label}: {reason}") from error


def require_float_dtype(label: str, x: Any) -> None:
    """Raise TypeError if a function's output is to have its input's dtype, and that holds no
    fractions; ``x`` is an array, or a Variable's node.

    Example:
        >>> require_float_dtype("dropout", np.array([1, 2]))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        TypeError: dropout: input 0 is of dtype int64, and what comes of it has fractions: ...
    """
    if (x is None or x.dtype.kind not in "fcV") and (reason := _unfit([x], True)):
        raise TypeError(f"{label}: {reason}")


def _unfit(xs: Sequence[Array], fractions: bool) -> str:
    """Return why a function cannot compute with its inputs, arrays or Nones; empty if their dtypes
    and devices are in order.

    ``fractions``: whether numpy refused to write fractions to an array of integers.

    Example:
        >>> import numpy as np
        >>> _unfit([np.ones(2), np.array([{}])], False).partition(":")[0]
        'input 1 is of dtype object, and functions compute with numbers'
    """
    for i, x in enumerate(xs):
        if x is None:
            return (
                f"input {i} has no array yet: initialize(shape) makes a parameter's "
                "(Parameter(0) waits for its shape, "
                "Parameter(numpy.zeros(())) has one)"
            )
        if x.dtype.kind in "OSUmM":
            return (
                f"input {i} is of dtype {x.dtype}, and functions compute with numbers: give "
                "astype a dtype of numbers"
            )
        if fractions and x.dtype.kind in "biu":
            return (
                f"input {i} is of dtype {x.dtype}, and what comes of it has fractions: give "
                "astype a floating-point dtype"
            )
    devices = [device_of(x) for x in xs]
    if len(set(devices)) > 1:
        return (
            f"the inputs are on different devices, {', '.join(devices)}: to_device moves a "
            "Variable, or a link's parameters"
        )
    return ""


def copyto(dst: Array, src: Array) -> None:
    """Write the values of one array into another, across devices too.

    Args:
        dst: the array to write into.
        src: an array of a shape that broadcasts to it.
    """
    if get_array_module(dst) is np:
        dst[...] = to_host(src)
    else:
        with device_of(dst).device:
            dst[...] = to_device_of(src, dst)


def empty_vector_like(size: int, other: Array) -> Array:
    """Return an uninitialized vector of this size, of the dtype and on the device of ``other``."""
    xp = get_array_module(other)
    if xp is np:
        return np.empty(size, other.dtype)
    with device_of(other).device:
        return xp.empty(size, other.dtype)


def empty_aligned(shape: tuple[int, ...], dtype: DTypeLike, xp: ArrayModule = NUMPY) -> Array:
    """Return an uninitialized array that begins at a cache line: numpy's own arrays seldom do, and
    are slower by up to a half.

    Example:
        >>> from mnpar.backend import empty_aligned
        >>> x = empty_aligned((2, 3), "f4")
        >>> x.shape, x.ctypes.data % 64
        ((2, 3), 0)
    """
    if xp is not NUMPY:
        return xp.empty(shape, dtype)
    size = math.prod(shape) * np.dtype(dtype).itemsize
    room = np.empty(size + 64, np.uint8)
    start = -room.__array_interface__["data"][0] % 64
    return np.ndarray(shape, dtype, room, start)


def memory_order(x: Array) -> tuple[int, ...]:
    """Return the axes in the order in which they lie in memory, the one with the largest stride
    first.

    Example:
        >>> import numpy as np
        >>> from mnpar.backend import memory_order
        >>> memory_order(np.ones((2, 3, 4)).transpose(0, 2, 1))
        (0, 2, 1)
    """
    return tuple(sorted(range(x.ndim), key=x.strides.__getitem__, reverse=True))


def empty_in_order(
    shape: tuple[int, ...], dtype: DTypeLike, order: tuple[int, ...], xp: ArrayModule = NUMPY
) -> Array:
    """Return an uninitialized array whose axes lie in memory in this order, without gaps.

    Example:
        >>> from mnpar.backend import empty_in_order
        >>> empty_in_order((2, 3, 4), "u1", (0, 2, 1)).strides
        (12, 1, 3)
    """
    places = sorted(range(len(order)), key=order.__getitem__)
    return xp.empty([shape[axis] for axis in order], dtype).transpose(places)


def check_finite(
    owner: str,
    what: str,
    arrays: tuple[Array, ...],
    infinite: bool = False,
    site: Callable[[], str] | None = None,
) -> None:
    """Raise FloatingPointError if any of the arrays (or None) has NaN or, unless ``infinite``
    allows it, infinity; name the function ``owner``, and the line that ``site`` returns.
    """
    for i, y in enumerate(arrays):
        if y is None or y.dtype.kind not in "fc":
            continue
        xp = get_array_module(y)
        if xp.isnan(y).any() if infinite else not xp.isfinite(y).all():
            found = "NaN" if infinite else "NaN or infinity"
            where = "" if site is None else f", at {site()}"
            raise FloatingPointError(
                f"{what} {i} of {owner} has {found}{where} (mnpar.config.debug looks for them)"
            )


def block_bytes(x: Array) -> int:
    """Return how many bytes are best worked on at a time on the device of ``x``: they stay in a
    core's cache, or keep a GPU busy.
    """
    return 2**21 if get_array_module(x) is np else 2**28
