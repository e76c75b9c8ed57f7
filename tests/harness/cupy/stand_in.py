"""A stand-in for CuPy: arrays of a class of its own, held by numpy on the host, with CuPy's names,
parameters and refusals.

It has what ``names.py`` lists and nothing else. What a GPU does to values (rounding, order of sums)
it cannot show; what it shows is a call that CuPy would refuse: an array of numpy's among CuPy's, a
keyword that is numpy's alone, a 0-d result taken for a number, an array that is silently copied to
the host. Where CuPy is silent and numpy is not, it is silent too: an index out of bounds wraps, a
matrix that is not positive definite gives NaN, a new array holds anything (here: NaN), layouts are
C's.

Each thread has its current device, as there; arrays of another device are refused (CuPy asks the
GPUs for peer access).
"""

from __future__ import annotations

import functools
import threading
import types
from typing import Any

import numpy as np
import scipy.special

from tests.harness.cupy import names

DEVICES = 4
_NUMBERS = (bool, int, float, complex, np.number, np.bool_)
_IMPLICIT = (
    "Implicit conversion to a NumPy array is not allowed. Please use `.get()` to construct a "
    "NumPy array explicitly."
)
_HERE = threading.local()


def _listed(block):
    return [line for line in block.strip().split("\n") if line]


def _signatures(block):
    """The parameters of each name, and what is no function without."""
    return {
        line.partition("(")[0]: line[line.find("(") + 1 : -1] if "(" in line else None
        for line in _listed(block)
    }


@functools.cache
def _checker(parameters):
    """A function that takes these parameters and no others."""
    return eval(f"lambda {parameters}: None")


# ---- arrays ----


class Flags:
    def __init__(self, flags):
        self.c_contiguous = flags.c_contiguous
        self.f_contiguous = flags.f_contiguous
        self.owndata = flags.owndata
        self.forc, self.fnc = flags.forc, flags.fnc

    def __getitem__(self, name):
        return getattr(
            self,
            {"C_CONTIGUOUS": "c_contiguous", "F_CONTIGUOUS": "f_contiguous", "OWNDATA": "owndata"}[
                name
            ],
        )


class MemoryPointer:
    def __init__(self, array):
        self.ptr = array._a.ctypes.data
        self.device_id = array._device
        self.device = array.device
        self.mem = array


def _operator(name):
    def forward(self, other):
        kind = getattr(type(other), "__array_ufunc__", self)
        before = self.__array_priority__ < getattr(other, "__array_priority__", 0)
        if kind is None or (kind is self and before):
            return NotImplemented
        return getattr(np, name)(self, other)

    def reflected(self, other):
        return getattr(np, name)(other, self)

    def in_place(self, other):
        return cupy.__getattr__(name)(self, other, self)

    return forward, reflected, in_place


class ndarray:  # noqa: N801 (CuPy's name)
    __module__ = "cupy"
    __slots__ = ("__weakref__", "_a", "_device", "base")
    __array_priority__ = 100
    __hash__ = None

    def __init__(self, shape, dtype=float, memptr=None, strides=None, order="C"):
        self._a = _garbage(np.empty(shape, _dtype(dtype), order))
        self._device = _current()
        self.base = None

    # what CuPy answers from the description of the array, without a kernel

    ndim = property(lambda self: self._a.ndim)
    size = property(lambda self: self._a.size)
    dtype = property(lambda self: self._a.dtype)
    strides = property(lambda self: self._a.strides if self.size else _strides(self))
    nbytes = property(lambda self: self._a.nbytes)
    itemsize = property(lambda self: self._a.itemsize)
    flags = property(lambda self: Flags(self._a.flags))
    data = property(MemoryPointer)
    device = property(lambda self: Device(self._device))
    T = property(lambda self: self._view(self._a.T))
    mT = property(lambda self: self._view(self._a.mT))  # noqa: N815
    real = property(
        lambda self: self._view(self._a.real), lambda self, x: self.real.__setitem__(..., x)
    )
    flat = property(lambda self: self.ravel().__iter__())

    @property
    def shape(self):
        return self._a.shape

    @shape.setter
    def shape(self, shape):
        self._a = self._a.reshape(shape, copy=False)

    @property
    def imag(self):
        return (
            self._view(self._a.imag)
            if self.dtype.kind == "c"
            else _new(np.zeros(self.shape, self.dtype))
        )

    @property
    def __cuda_array_interface__(self):
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.data.ptr, False),
            "version": 3,
            "strides": None,
        }

    def _view(self, a):
        return _new(a, self._device, self if self.base is None else self.base)

    def __array__(self, dtype=None):
        raise TypeError(_IMPLICIT)

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        if len(kwargs.get("out", (None,))) != 1:
            raise ValueError("The 'out' parameter must have exactly one array value")
        out = kwargs.pop("out", ())
        function = getattr(cupy, ufunc.__name__, None) if method == "__call__" else None
        known = [
            hasattr(x, "__cuda_array_interface__") or isinstance(x, (*_NUMBERS, np.ndarray))
            for x in (*inputs, *out)
        ]
        if function is None or not all(known):
            return NotImplemented
        if ufunc.__name__ in (
            "greater",
            "greater_equal",
            "less",
            "less_equal",
            "equal",
            "not_equal",
        ):
            inputs = [x.item() if isinstance(x, np.ndarray) and x.ndim == 0 else x for x in inputs]
        return function(*inputs, *out, **kwargs)

    def __array_function__(self, function, kinds, args, kwargs):
        module = functools.reduce(
            lambda at, name: getattr(at, name, None), function.__module__.split(".")[1:], cupy
        )
        here = getattr(module, function.__name__, None)
        if (
            here is None
            or here is function
            or any(kind not in (ndarray, np.ndarray) for kind in kinds)
        ):
            return NotImplemented
        return here(*args, **kwargs)

    def __reduce__(self):
        return _asarray, (self.get(),)

    def __copy__(self):
        return self.copy()

    def __deepcopy__(self, memo):
        with self.device:
            return self.copy()

    def __len__(self):
        return len(self._a)

    def __iter__(self):
        if self.ndim == 0:
            raise TypeError("iteration over a 0-d array")
        return (self[i] for i in range(len(self)))

    def __bool__(self):
        if self.size == 0:
            return False
        return bool(self._a)

    def __int__(self):
        return int(self.get())

    def __float__(self):
        return float(self.get())

    def __complex__(self):
        return complex(self.get())

    def __repr__(self):
        return repr(self._a)

    def __str__(self):
        return str(self._a)

    def __format__(self, spec):
        return format(self._a, spec)

    # indexing

    def __getitem__(self, key):
        _check_device(self)
        key, copies = _key(key, self.shape)
        found = self._a[key]
        if copies:
            return _new(np.array(found, order="C"))
        return self._view(
            found
            if isinstance(found, np.ndarray)
            else self._a[(*key, ...) if isinstance(key, tuple) else (key, ...)]
        )

    def __setitem__(self, key, value):
        _check_device(self)
        key, copies = _key(key, self.shape)
        if isinstance(value, ndarray):
            _check_device(value)
        elif (
            not copies
            and not _is_number(value)
            and (not isinstance(value, np.ndarray) or value.ndim)
        ):
            raise ValueError("non-scalar numpy.ndarray cannot be used for fill")
        with np.errstate(all="ignore"):
            self._a[key] = value._a if isinstance(value, ndarray) else value

    # methods that numpy's of the same name do not stand for

    def get(self, stream=None, order="C", out=None, blocking=True):
        if out is None:
            return np.array(self._a, order=order)
        if out.dtype != self.dtype or out.shape != self.shape or not isinstance(out, np.ndarray):
            raise TypeError(f"{out.dtype} array cannot be obtained from {self.dtype} array")
        np.copyto(out, self._a)
        return out

    def set(self, arr, stream=None):
        if not isinstance(arr, np.ndarray) or arr.dtype != self.dtype:
            raise TypeError("Only numpy.ndarray of the same dtype can be set to cupy.ndarray")
        if arr.shape != self.shape or not self._a.flags.forc:
            raise ValueError(f"Shape mismatch. Old shape: {self.shape}, new shape: {arr.shape}")
        self._a[...] = arr

    def fill(self, value):
        self[...] = value

    def item(self):
        return self._a.item()

    def tolist(self):
        return self._a.tolist()

    def tobytes(self, order="C"):
        return self._a.tobytes(order)

    def dumps(self):
        return self._a.dumps()

    def view(self, dtype=None, type=None):
        return self._view(
            self._a.view() if dtype is None or dtype is ndarray else self._a.view(dtype)
        )

    def astype(self, dtype, order="K", casting=None, subok=None, copy=True):
        if casting is not None or subok is not None:
            raise TypeError(f"{'casting' if casting is not None else 'subok'} is not supported yet")
        _check_device(self)
        dtype = _dtype(dtype)
        if not copy and dtype == self.dtype:
            return self
        with np.errstate(all="ignore"):
            return _new(self._a.astype(dtype, order))

    def copy(self, order="C"):  # also from another device
        return _new(self._a.copy(order))

    def dot(self, b, out=None):
        return cupy.dot(self, b, out)

    def take(self, indices, axis=None, out=None):
        return cupy.take(self, indices, axis, out)

    def searchsorted(self, v, side="left", sorter=None):
        return cupy.searchsorted(self, v, side, sorter)

    def scatter_add(self, slices, value):
        cupy.add.at(self, slices, value)

    def scatter_max(self, slices, value):
        cupy.maximum.at(self, slices, value)

    def scatter_min(self, slices, value):
        cupy.minimum.at(self, slices, value)


def _new(a, device=None, base=None):
    x = object.__new__(ndarray)
    x._a = a
    x._device = _current() if device is None else device
    x.base = base
    return x


def _strides(x):
    return (
        tuple(np.multiply.accumulate([x.itemsize, *x.shape[:0:-1]])[::-1].tolist())
        if x.ndim
        else ()
    )


def _method(name, parameters):
    check = _checker(parameters)

    def method(self, *args, **kwargs):
        check(*args, **kwargs)
        if name == "reshape" and len(args) == 1 and not isinstance(args[0], tuple | list):
            args = (_whole(args[0]),)
        if name == "prod" and kwargs.get("keepdims", 0) is None:
            kwargs["keepdims"] = False
        return _run(getattr(np.ndarray, name), (self, *args), kwargs, name)

    method.__name__ = name
    return method


def _whole(n):
    if isinstance(n, ndarray):
        raise TypeError("'ndarray' object cannot be interpreted as an integer")
    return n


def _finish_class():
    methods = _signatures(names.METHODS)
    for name, parameters in methods.items():
        if parameters is not None and name not in ndarray.__dict__ and hasattr(np.ndarray, name):
            setattr(ndarray, name, _method(name, parameters))
    spoken = {
        "truediv": "true_divide",
        "floordiv": "floor_divide",
        "mod": "remainder",
        "pow": "power",
        "sub": "subtract",
    }
    spoken |= {
        "mul": "multiply",
        "and": "bitwise_and",
        "or": "bitwise_or",
        "xor": "bitwise_xor",
        "lshift": "left_shift",
    }
    spoken |= {
        "rshift": "right_shift",
        "lt": "less",
        "le": "less_equal",
        "gt": "greater",
        "ge": "greater_equal",
        "eq": "equal",
    }
    spoken |= {"ne": "not_equal", "add": "add", "matmul": "matmul", "divmod": "divmod"}
    special = set(names.SPECIAL.split())
    for word, name in spoken.items():
        for prefix, function in zip(("", "r", "i"), _operator(name), strict=True):
            if f"__{prefix}{word}__" in special:
                setattr(ndarray, f"__{prefix}{word}__", function)
    for word, name in {
        "neg": "negative",
        "pos": "positive",
        "abs": "absolute",
        "invert": "invert",
    }.items():
        setattr(ndarray, f"__{word}__", lambda self, name=name: getattr(cupy, name)(self))
    surplus = {n for n in vars(ndarray) if not n.startswith("_")} - set(methods)
    assert not surplus, f"CuPy's arrays do not have {surplus}"


# ---- what every function does with its arguments ----


def _dtype(dtype):
    dtype = np.dtype(dtype)
    if dtype.char not in "?bBhHiIlLqQefdFD":
        raise ValueError(f"Unsupported dtype {dtype}")
    return dtype


def _garbage(a):
    """What may lie in new memory: anything, so here what cannot be overlooked."""
    a.fill(np.nan if a.dtype.kind in "fc" else 99)
    return a


def _is_number(x):
    return isinstance(x, _NUMBERS)


def _check_device(x):
    if x._device != _current():
        where = (
            f"The device where the array resides ({x._device}) is different from the current "
            f"device ({_current()})."
        )
        raise ValueError(f"{where} Peer access is unavailable between these devices.")


def _bare(x, given):
    """``x`` with the numpy arrays inside those of CuPy; an array of numpy's own is refused."""
    if isinstance(x, ndarray):
        _check_device(x)
        given[id(x._a)] = x
        return x._a
    if isinstance(x, np.ndarray):
        raise TypeError(
            "Argument has incorrect type (expected cupy._core.core._ndarray_base, got "
            "numpy.ndarray)"
        )
    if isinstance(x, list | tuple) and any(
        isinstance(part, ndarray | np.ndarray | list | tuple) for part in x
    ):
        return type(x)([_bare(part, given) for part in x])
    return x


def _dressed(y, given):
    if isinstance(y, np.ndarray):
        if id(y) in given:
            return given[id(y)]
        shown = (
            None
            if y.base is None
            else next((x for x in given.values() if np.may_share_memory(x._a, y)), None)
        )
        return _new(y) if shown is None else shown._view(y)
    if isinstance(y, list):
        return [_dressed(part, given) for part in y]
    if isinstance(y, tuple):
        return tuple([_dressed(part, given) for part in y])
    return _new(np.asarray(y)) if _is_number(y) else y


def _run(function, args, kwargs, name):
    given: dict[int, Any] = {}
    args = [_bare(x, given) for x in args]
    kwargs = {key: _bare(x, given) for key, x in kwargs.items()}
    if kwargs.get("dtype") is not None:
        _dtype(kwargs["dtype"])
    with np.errstate(all="ignore"):
        y = function(*args, **kwargs)
    return y if name in _ON_HOST else _dressed(y, given)


def _key(key, shape):
    """The index in numpy's words, where what is out of bounds wraps; and whether it makes a
    copy.
    """
    parts = list(key) if isinstance(key, tuple) else [key]
    for i, part in enumerate(parts):
        if isinstance(part, ndarray):
            _check_device(part)
            parts[i] = part._a
        elif isinstance(part, list | tuple | bool | np.bool_):
            parts[i] = np.array(part) if np.size(part) else np.array(part, np.int32)
        elif isinstance(part, slice) and any(
            isinstance(end, ndarray) for end in (part.start, part.stop, part.step)
        ):
            raise TypeError("slice indices must be integers or None or have an __index__ method")
        if isinstance(parts[i], np.ndarray) and parts[i].dtype.kind not in "biu":
            raise IndexError(
                "arrays used as indices must be of integer or boolean type. (actual: "
                f"{parts[i].dtype})"
            )
    taken = [
        0
        if p is None or p is ...
        else p.ndim
        if isinstance(p, np.ndarray) and p.dtype.kind == "b"
        else 1
        for p in parts
    ]
    axis = 0
    for i, part in enumerate(parts):
        if part is ...:
            axis = len(shape) - sum(taken[i:])
        elif isinstance(part, np.ndarray) and part.dtype.kind != "b" and 0 <= axis < len(shape):
            parts[i] = part % shape[axis] if shape[axis] else part
        axis += taken[i]
    return tuple(parts), any(isinstance(part, np.ndarray) for part in parts)


# ---- ufuncs ----


class ufunc:  # noqa: N801 (CuPy's name)
    def __init__(self, name, kinds):
        self.name = f"cupy_{name}"
        self.types = kinds.split()
        self._numpy = getattr(np, name)
        self.__name__ = name
        before, _, after = self.types[0].partition("->")
        self.nin = len(before)
        self.nout = len(after)
        self.nargs = len(before) + len(after)

    def _loop(self, args, dtype):
        """The first loop that all arguments can be cast to: its types of inputs and of outputs."""
        strong = [x.dtype for x in args if hasattr(x, "dtype")]
        plain = [type(x) for x in args if not hasattr(x, "dtype")]
        weakly = strong and max(map(_score, strong)) >= max(
            [_score(np.dtype(kind)) for kind in plain], default=0
        )
        for kinds in self.types:
            before, _, after = kinds.partition("->")
            if dtype is not None:
                fits = after[0] == dtype.char
            else:
                fits = all(
                    np.can_cast(x.dtype, to)
                    if hasattr(x, "dtype")
                    else np.dtype(to).kind in _WEAK[type(x)]
                    if weakly
                    else np.can_cast(np.dtype(type(x)), to)
                    for x, to in zip(args, before, strict=True)
                )
            if fits:
                return before, after
        raise TypeError(
            f"Wrong type ({[getattr(x, 'dtype', type(x)) for x in args]}) of arguments for "
            f"{self.name}"
        )

    def __call__(self, *args, out=None, dtype=None, casting="same_kind", **wrong):
        if wrong:
            raise TypeError(f"Wrong arguments {wrong}")
        if not self.nin <= len(args) <= self.nargs:
            raise TypeError(f"Wrong number of arguments for {self.name!r}: {len(args)}")
        args, outs = args[: self.nin], args[self.nin :]
        if out is not None:
            if outs:
                raise ValueError("Cannot specify 'out' as both a positional and keyword argument")
            outs = out if isinstance(out, tuple) else (out,)
        outs = [*outs, *[None] * (self.nout - len(outs))]
        for x in (*args, *[o for o in outs if o is not None]):
            if isinstance(x, ndarray):
                _check_device(x)
            elif not _is_number(x):
                raise TypeError(f"Unsupported type {type(x)}")
        bare = [x._a if isinstance(x, ndarray) else x for x in args]
        before, after = self._loop(bare, None if dtype is None else _dtype(dtype))
        with np.errstate(all="ignore"):
            cast = [
                np.asarray(x).astype(letter, copy=False)
                for x, letter in zip(bare, before, strict=True)
            ]
            results = self._numpy(*cast)
        results = results if isinstance(results, tuple) else (results,)
        ys = [
            self._put(y, o, letter, casting)
            for y, o, letter in zip(results, outs, after, strict=True)
        ]
        return ys[0] if self.nout == 1 else tuple(ys)

    def _put(self, y, out, letter, casting):
        y = np.array(y, letter, order="C")
        if out is None:
            return _new(y)
        if not isinstance(out, ndarray):
            raise TypeError(f"return arrays must be of cupy.ndarray, not {type(out)}")
        if not np.can_cast(y.dtype, out.dtype, casting):
            raise TypeError(
                f"output (typecode '{letter}') could not be coerced to provided output "
                f"parameter ({out.dtype})"
            )
        if np.broadcast_shapes(y.shape, out.shape) != out.shape:
            raise ValueError(
                f"non-broadcastable output operand with shape {out.shape} for {y.shape}"
            )
        with np.errstate(all="ignore"):
            np.copyto(out._a, y, casting="unsafe")
        return out

    def at(self, a, indices, b=None):
        allowed = {"add": "iIQLefd", "maximum": "iIQLfd", "minimum": "iIQLfd"}
        if self.__name__ not in allowed:
            raise NotImplementedError(f"`{self.name}.at` is not supported yet")
        key, copies = _key(indices, a.shape)
        if (
            copies
            and a.dtype.char not in allowed[self.__name__]
            and not any(k.dtype.kind == "b" for k in key if hasattr(k, "dtype"))
        ):
            raise TypeError(
                f"scatter_{self.__name__} only supports int32, float32, float64, uint32, "
                f"uint64, not {a.dtype}"
            )
        with np.errstate(all="ignore"):
            self._numpy.at(a._a, key, _bare(b, {}) if isinstance(b, ndarray) else b)

    def _method(self, word, array, *args):
        if self.__name__ not in ("add", "multiply"):
            raise NotImplementedError(f"`{self.name}.{word}` is not supported yet")
        return _run(getattr(self._numpy, word), (array, *args), {}, word)

    def reduce(self, array, axis=0, dtype=None, out=None, keepdims=False):
        return self._method("reduce", array, axis, dtype, out, keepdims)

    def accumulate(self, array, axis=0, dtype=None, out=None):
        return self._method("accumulate", array, axis, dtype, out)

    def reduceat(self, array, indices, axis=0, dtype=None, out=None):
        if self.__name__ != "add":
            raise NotImplementedError(f"`{self.name}.reduceat` is not supported yet")
        return self._method("reduceat", array, indices, axis, dtype, out)

    def outer(self, a, b, **kwargs):
        a = _array(a)
        b = _array(b)
        return self(a.reshape(a.shape + (1,) * b.ndim), b, **kwargs)


# what a number of Python's may become
_WEAK = {
    bool: "biufc",
    int: "iufc",
    float: "fc",
    complex: "c",
}


def _score(dtype):
    """Booleans, whole numbers, the rest: a number of Python does not change the type of arrays of
    its sort or a higher.
    """
    return {"b": 0, "i": 1, "u": 1}.get(dtype.kind, 2)


# ---- functions that numpy's of the same name do not stand for ----


def _leaves(x):
    return [leaf for part in x for leaf in _leaves(part)] if isinstance(x, list | tuple) else [x]


def _array(obj, dtype=None, copy=True, order="K", subok=False, ndmin=0, *, blocking=False):
    if isinstance(obj, ndarray):
        made = np.array(obj._a, dtype, copy=True if copy else None, order=order or "K", ndmin=ndmin)
        same = made is obj._a and obj._device == _current()
        return obj if same else _new(made.copy() if made is obj._a else made)
    on_device = [isinstance(leaf, ndarray) for leaf in _leaves(obj)]
    if any(on_device) and not all(on_device):
        raise TypeError(_IMPLICIT)
    made = np.array(
        _bare(obj, {}) if any(on_device) else obj, dtype, order=order or "K", ndmin=ndmin
    )
    _dtype(made.dtype)
    return _new(made)


def _asarray(a, dtype=None, order=None, *, copy=None, blocking=False):
    return _array(a, dtype, bool(copy), order or "K")


def _asnumpy(a, stream=None, order="C", out=None, *, blocking=True):
    return a.get(order=order, out=out) if isinstance(a, ndarray) else np.asarray(a, order=order)


def _copyto(dst, src, casting="same_kind", where=None):
    if isinstance(src, np.ndarray) and src.size != 1:
        raise ValueError("non-scalar numpy.ndarray cannot be used for copyto")
    np.copyto(
        dst._a,
        src._a if isinstance(src, ndarray) else src,
        casting,
        True if where is None else where._a,
    )


def _where(condition, x=None, y=None):
    if not hasattr(condition, "astype"):
        raise AttributeError(f"{type(condition).__name__!r} object has no attribute 'astype'")
    if x is None and y is None:
        return _run(np.nonzero, (condition,), {}, "where")
    for part in (condition, x, y):
        if not isinstance(part, ndarray) and not _is_number(part):
            raise TypeError(f"Unsupported type {type(part)}")
    return _run(lambda *args: np.array(np.where(*args), order="C"), (condition, x, y), {}, "where")


def _take(a, indices, axis=None, out=None):
    if not isinstance(a, ndarray):
        raise TypeError(_IMPLICIT)
    if isinstance(indices, np.ndarray | list):
        indices = _array(indices, int)
    y = _run(functools.partial(np.take, mode="wrap"), (a, indices, axis), {}, "take")
    return y if out is None else cupy.copyto(out, y) or out


def _take_along_axis(a, indices, axis):
    if indices.dtype.kind not in "iu":
        raise IndexError("`indices` must be an integer array")
    return _run(
        lambda x, i: np.take_along_axis(x, i % max(x.shape[axis], 1), axis),
        (a, indices),
        {},
        "take_along_axis",
    )


def _bincount(x, weights=None, minlength=None):
    if x.dtype.kind == "f":
        raise TypeError("x must be int array")
    return _run(np.bincount, (x, weights, minlength or 0), {}, "bincount")


def _searchsorted(a, v, side="left", sorter=None):
    if not isinstance(a, ndarray) or not isinstance(v, ndarray | bool | int | float | complex):
        raise NotImplementedError("Only python scalars or ndarrays are supported for v")
    return _run(np.searchsorted, (a, v, side, sorter), {}, "searchsorted")


def _split(function):
    def split(ary, indices_or_sections, axis=0):
        if isinstance(indices_or_sections, ndarray):
            raise TypeError("'ndarray' object cannot be interpreted as an integer")
        return _run(lambda x: function(x, indices_or_sections, axis), (ary,), {}, "split")

    return split


def _empty(shape, dtype=float, order="C"):
    return ndarray(
        [_whole(n) for n in shape] if isinstance(shape, tuple | list) else _whole(shape),
        dtype,
        order=order,
    )


def _full(shape, fill_value, dtype=None, order="C"):
    if dtype is None:
        dtype = (
            fill_value.dtype
            if isinstance(fill_value, np.ndarray | ndarray)
            else np.array(fill_value).dtype
        )
    made = _empty(shape, dtype, order)
    _copyto(made, fill_value, "unsafe")
    return made


def _like(fill):
    def like(a, dtype=None, order="K", subok=None, shape=None):
        if not isinstance(a, ndarray | np.ndarray):
            raise AttributeError(f"{type(a).__name__!r} object has no attribute 'dtype'")
        made = _new(
            _garbage(
                np.empty_like(a._a if isinstance(a, ndarray) else a, dtype, order, shape=shape)
            )
        )
        if fill is not None:
            made.fill(fill)
        return made

    return like


def _full_like(a, fill_value, dtype=None, order="K", subok=None, shape=None):
    made = _like(None)(a, dtype=dtype, order=order, shape=shape)
    made.fill(fill_value)
    return made


def _nonzero(a):
    if not isinstance(a, ndarray):
        raise TypeError(f"'a' must be a cupy.ndarray object, not {type(a)}.")
    return _run(np.nonzero, (a,), {}, "nonzero")


def _repeat(a, repeats, axis=None):
    return _run(np.repeat, (a, repeats, axis), {}, "repeat")


def _einsum(subscripts, *operands, dtype=None, optimize=False):
    return _run(
        np.einsum, (subscripts, *operands), {"dtype": dtype, "optimize": optimize}, "einsum"
    )


def _matmul(*args, out=None, **kwargs):
    _checker(_FUNCTIONS["matmul"])(*args, **kwargs)
    if not all(isinstance(x, ndarray) for x in args):
        raise TypeError("Argument 'a' has incorrect type (expected cupy._core.core._ndarray_base)")
    y = _new(np.array(_run(np.matmul, args[:2], kwargs, "matmul")._a, order="C"))
    out = args[2] if len(args) > 2 else out[0] if isinstance(out, tuple) else out
    if out is None:
        return y
    if out.shape != y.shape or not np.can_cast(y.dtype, out.dtype, "same_kind"):
        raise ValueError(f"Output array {out.shape} does not fit {y.shape}")
    out._a[...] = y._a
    return out


def _silent(function):
    """Of linear algebra: what cannot be computed is NaN, and float16 is refused."""

    def call(a, *args, **kwargs):
        if isinstance(a, ndarray) and a.dtype.char == "e":
            raise TypeError("array type float16 is unsupported in linalg")
        try:
            return function(a, *args, **kwargs)
        except np.linalg.LinAlgError as error:
            if "dimension" in str(error) or "square" in str(error):
                raise
            return np.full(np.shape(args[0] if args else a), np.nan)

    return call


_SPECIAL = {
    "array": _array,
    "asarray": _asarray,
    "asanyarray": _asarray,
    "asnumpy": _asnumpy,
    "copyto": _copyto,
    "where": _where,
    "take": _take,
    "take_along_axis": _take_along_axis,
    "bincount": _bincount,
    "searchsorted": _searchsorted,
    "empty": _empty,
    "ascontiguousarray": lambda a, dtype=None: _array(a, dtype, False, "C"),
    "full": _full,
    "nonzero": _nonzero,
    "split": _split(np.split),
    "array_split": _split(np.array_split),
    "repeat": _repeat,
    "einsum": _einsum,
    "matmul": _matmul,
    "empty_like": _like(None),
    "zeros_like": _like(0),
    "ones_like": _like(1),
    "full_like": _full_like,
    "get_array_module": lambda *args: cupy if any(isinstance(x, ndarray) for x in args) else np,
}
_ON_HOST = {
    "shape",
    "ndim",
    "size",
    "isscalar",
    "can_cast",
    "result_type",
    "promote_types",
    "common_type",
    "min_scalar_type",
}
_ON_HOST |= {
    "broadcast_shapes",
    "may_share_memory",
    "shares_memory",
    "iscomplexobj",
    "isrealobj",
    "iterable",
}
_OF_NUMBERS = {
    "arange",
    "zeros",
    "ones",
    "eye",
    "identity",
    "tri",
    "linspace",
    "logspace",
    "triu_indices",
    "tril_indices",
}
_OF_NUMBERS |= {
    "hamming",
    "hanning",
    "bartlett",
    "blackman",
    "kaiser",
    "indices",
    "diag_indices",
    "meshgrid",
    "fromfunction",
}
_OF_NUMBERS |= {"atleast_1d", "atleast_2d", "atleast_3d", "fftfreq", "rfftfreq", *_ON_HOST}
_FUNCTIONS = _signatures(names.FUNCTIONS)


def _function(name, parameters, module):
    check = _checker(parameters)
    function = _SPECIAL.get(name) if module is np else None
    on_numpy = getattr(module, name, None)
    if module is np.linalg:
        on_numpy = _silent(on_numpy)

    def call(*args, **kwargs):
        check(*args, **kwargs)
        if function is not None:
            return function(*args, **kwargs)
        first = args[0] if args else next(iter(kwargs.values()), None)
        if name in ("zeros", "ones", "eye", "identity", "tri"):
            [_whole(n) for n in _leaves(first)]
        if name not in _OF_NUMBERS and not any(
            isinstance(leaf, ndarray) for leaf in _leaves(first)
        ):
            raise TypeError(
                f"Argument 'a' has incorrect type (expected cupy.ndarray, got {type(first)})"
            )
        return _run(on_numpy, args, kwargs, name)

    call.__name__ = call.__qualname__ = name
    return call


class Module(types.ModuleType):
    """``cupy``, ``cupy.linalg``, …: a name is made when it is first asked for."""

    def __init__(self, name, block, module, **members):
        super().__init__(name)
        self.__dict__.update(members, _functions=_signatures(block), _numpy=module)

    def __getattr__(self, name):
        if self._numpy is np and name in _UFUNCS:
            made: Any = ufunc(name, _UFUNCS[name])
        elif self._numpy is np and name in names.SAME_AS_NUMPY.split():
            made = getattr(np, name)
        elif self._functions.get(name) is not None and (
            hasattr(self._numpy, name) or name in _SPECIAL
        ):
            made = _function(name, self._functions[name], self._numpy)
        else:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        setattr(self, name, made)
        return made


_UFUNCS = {
    name: line.partition(": ")[2]
    for line in _listed(names.UFUNCS)
    for name in line.partition(": ")[0].split()
}


# ---- devices ----


def _current():
    return getattr(_HERE, "device", 0)


class Device:
    def __init__(self, device=None):
        self.id = _current() if device is None else int(device)
        self._before: list[int] = []

    def __int__(self):
        return self.id

    def __eq__(self, other):
        return isinstance(other, Device) and self.id == other.id

    def __hash__(self):
        return hash(self.id)

    def __repr__(self):
        return f"<CUDA Device {self.id}>"

    def use(self):
        if not 0 <= self.id < DEVICES:
            raise RuntimeError("cudaErrorInvalidDevice: invalid device ordinal")
        _HERE.device = self.id

    def synchronize(self):
        pass

    def __enter__(self):
        self._before.append(_current())
        self.use()
        return self

    def __exit__(self, *exception):
        _HERE.device = self._before.pop()


class Stream:
    ptr = 0

    def __init__(self, null=False, non_blocking=False, ptds=False, priority=None):
        pass

    def synchronize(self):
        pass


def _properties(device):
    return {"name": f"stand-in {device}".encode(), "warpSize": 32}


def _cuda():
    runtime = types.SimpleNamespace(
        getDeviceCount=lambda: DEVICES, getDeviceProperties=_properties, getDevice=_current
    )
    members = {
        "Device": Device,
        "Stream": Stream,
        "runtime": runtime,
        "get_current_stream": Stream,
        "is_available": lambda: True,
    }
    cuda = types.ModuleType("cupy.cuda")
    cuda.__dict__.update(members)
    return cuda


cupy = Module(
    "cupy",
    names.FUNCTIONS,
    np,
    ndarray=ndarray,
    ufunc=ufunc,
    cuda=_cuda(),
    __version__=names.VERSION,
    __path__=[],
)
cupy.linalg = Module("cupy.linalg", names.LINALG, np.linalg, LinAlgError=np.linalg.LinAlgError)
cupy.fft = Module("cupy.fft", names.FFT, np.fft)
cupy.lib = types.SimpleNamespace(
    stride_tricks=Module(
        "cupy.lib.stride_tricks", names.STRIDE_TRICKS, np.lib.stride_tricks, as_strided=None
    )
)
cupy.newaxis, cupy.AxisError = None, np.exceptions.AxisError


def _as_strided(x, shape=None, strides=None):
    return x._view(np.lib.stride_tricks.as_strided(x._a, shape, strides))


cupy.lib.stride_tricks.as_strided = _as_strided


def _special(name):
    """A function of cupyx.scipy.special, which computes with scipy's."""

    def function(*xs):
        for x in xs:
            if not isinstance(x, ndarray):
                raise TypeError(f"{name}: Unsupported type {type(x)}")
            _check_device(x)
        return _new(np.asarray(getattr(scipy.special, name)(*[x._a for x in xs])))

    return function


_SPECIAL_FUNCTIONS = """
    digamma erfc erfcinv erfcx erfinv gammaln log_ndtr ndtr ndtri polygamma zeta
"""
cupyx = types.ModuleType("cupyx")
cupyx.scipy = types.ModuleType("cupyx.scipy")
cupyx.scipy.special = types.SimpleNamespace(
    **{name: _special(name) for name in _SPECIAL_FUNCTIONS.split()}
)
_finish_class()
