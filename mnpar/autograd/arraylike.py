"""The interface that a Variable shares with an array: shape, dtype, device and operators, but no
graph and no gradient.
"""

from __future__ import annotations

import sys
from operator import attrgetter
from typing import Any

import numpy as np

from mnpar import backend, hints
from mnpar.backend import Array

# these read an attribute of a Variable, or call its method
_AS_WE_DO = (
    np.shape,
    np.ndim,
    np.size,
    np.transpose,
)

_OTHER_NAMES = {
    "add.reduce": "sum",
    "amax": "max",
    "amin": "min",
    "concatenate": "concat",
    "dot": "matmul",
}

_REFLECTED = {  # what array ∘ Variable asks for
    np.add: "__radd__",
    np.subtract: "__rsub__",
    np.multiply: "__rmul__",
    np.true_divide: "__rtruediv__",
    np.power: "__rpow__",
    np.floor_divide: "__rfloordiv__",
    np.matmul: "__rmatmul__",
    np.equal: "__eq__",
    np.not_equal: "__ne__",
    np.less: "__gt__",
    np.less_equal: "__ge__",
    np.greater: "__lt__",
    np.greater_equal: "__le__",
}

_FUNCTIONS = "mnpar.functions or operators, through which gradients flow"
_JOINED = "F.stack or F.concat for several"
_ARRAY = "its .array, where no gradient is wanted"

_NO_NUMBER = "a Variable of shape {} is no number: one of 1 element is, F.mean(x) for example"

_NO_WRITING = (
    "the elements of a Variable are not written: mnpar.functions.where and scatter_add make a "
    "new one; x.array[…] = … is for a "
    "leaf, such as a parameter, before it is used"
)

_NO_TRUTH = (
    "a Variable has no truth value: ask its number, as in 'if x.item() > 0', or its array, as "
    "in 'if (x.array > 0).all()'; "
    "'if x is not None' asks whether there is one"
)

_NO_ORDER = (
    "Variables are not compared: compare their arrays, as in x.array > 0, through which no "
    "gradient flows. "
    "The largest element is x.max(); mnpar.functions has where, maximum and minimum; 'x is "
    "None' asks whether there is one"
)

_NO_SEARCH = "a Variable is not searched by 'in': write (x.array == value).any()"

_NO_ADDING = (
    "an array takes in no Variable by an operator such as +=: write a = a + x, a Variable, or "
    "a += x.array, without a graph"
)


def _attribute(path: str, doc: str) -> Any:
    """Return a property that reads an attribute, in C."""
    return property(attrgetter(path), doc=doc)


@hints.with_hints(hints.VARIABLE)
class ArrayLike:
    """The interface of an array, for a class that holds one in its attribute ``array``."""

    __slots__ = ("array",)
    array: Array

    data = property(
        lambda self: self.array,
        lambda self, value: setattr(self, "array", value),
        doc="Chainer's old name of array.",
    )
    shape: tuple[int, ...] = _attribute("array.shape", "The shape of the array.")
    ndim: int = _attribute("array.ndim", "The number of axes.")
    size: int = _attribute("array.size", "The number of elements.")
    dtype: np.dtype[Any] = _attribute("array.dtype", "The dtype of the array.")
    xp = property(lambda self: backend.get_array_module(self.array), doc="numpy or cupy.")
    device = property(
        lambda self: backend.device_of(self.array), doc="``'@numpy'`` or ``'@cupy:0'``."
    )
    T = property(lambda self: self.transpose(), doc="The axes in reverse order.")
    label = property(
        lambda self: _label(self.array),
        doc="Its shape and dtype in a few letters, ``'(2, 3), float32'``.",
    )

    def item(self) -> float:
        """Return the only element, as a Python number; an int or complex of such an array."""
        value: float = self.array.item()
        return value

    def copydata(self, var: ArrayLike) -> None:
        """Copy the values of another Variable of the same shape into this one's array, across
        devices too.
        """
        backend.copyto(self.array, var.array)

    def summary(self) -> str:
        """Return its name, or its place in memory, in a few letters: ``'<variable x>'``."""
        return f"<variable {getattr(self, 'name', None) or f'at {id(self):#x}'}>"

    def debug_print(self) -> str:
        """Lines to print when something is wrong: device, shape, dtype, and mean and spread of the
        values and of the gradient.

        Example:
            >>> import numpy as np, mnpar
            >>> print(mnpar.Variable(np.array([1.0, 3.0]), name="x").debug_print())
            <variable x>
            - device: @numpy
            - array: (2), float64: mean=2.00000000, std=1.00000000
            - grad: None
        """
        place = "None" if self.array is None else self.device
        rows = [
            f"- {what}: {_described(x)}"
            for what, x in (("array", self.array), ("grad", getattr(self, "grad", None)))
        ]
        return "\n".join([self.summary(), f"- device: {place}", *rows])

    def to_cpu(self) -> None:
        """Move to the host."""
        self.to_device(-1)

    def to_gpu(self, device: int | None = None) -> None:
        """Move to a GPU; by default to the current one."""
        self.to_device(backend.get_device("@cupy" if device is None else device))

    def to_device(self, device: int | str | None) -> None:
        """Move to a device: ``-1`` or ``'@numpy'`` the host, ``0`` or ``'@cupy:0'`` the first
        GPU.
        """
        self.array = backend.to_device(device, self.array)

    def __len__(self) -> int:
        return len(self.array)

    def __hash__(self) -> int:
        return id(self)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func in _AS_WE_DO:
            return func._implementation(*args, **kwargs)
        raise _unknown(func.__name__)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        """``array + x`` is ``x.__radd__(array)``, not a loop over the elements; numpy's other
        functions know no Variables.
        """
        operator = _REFLECTED.get(ufunc)
        if operator is None or kwargs or method != "__call__" or inputs[1] is not self:
            name = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
            raise TypeError(_NO_ADDING) if "out" in kwargs else _unknown(name)
        return getattr(self, operator)(inputs[0])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Raise TypeError: numpy would build the array element by element, and cut the graph."""
        raise TypeError(
            "numpy makes no array of a Variable that needs a gradient, or of a list of them: use "
            f"{_JOINED}, or {_ARRAY}"
        )

    def __bool__(self) -> bool:
        raise NotImplementedError(_NO_TRUTH)

    def __contains__(self, value: object) -> bool:
        raise NotImplementedError(_NO_SEARCH)

    def _no_order(self, other: object) -> bool:
        raise NotImplementedError(_NO_ORDER)

    def _number(self) -> Any:
        """Return the only element, through which no gradient flows."""
        if self.array.size != 1:
            raise TypeError(_NO_NUMBER.format(self.array.shape))
        return self.item()

    def __float__(self) -> float:
        return float(self._number())

    def __int__(self) -> int:
        return int(self._number())

    def __complex__(self) -> complex:
        return complex(self._number())

    def __round__(self, ndigits: int | None = None) -> Any:
        return round(self._number(), ndigits)

    def __format__(self, form: str) -> str:
        return format(self._number(), form) if form else str(self)

    def __setitem__(self, slices: Any, value: Any) -> None:
        """Raise TypeError: assignment to elements of a Variable is not differentiable."""
        raise TypeError(_NO_WRITING)

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _no_order


def _unknown(name: str) -> TypeError:
    """Return the error for a function of numpy that was given a Variable."""
    ours = _OTHER_NAMES.get(name, name)
    known = hasattr(sys.modules.get("mnpar.functions"), ours)
    use = f"mnpar.functions.{ours}" if known else _FUNCTIONS
    return TypeError(f"numpy.{name} knows no Variables: use {use}, or {_ARRAY}")


def _label(x: Array | None) -> str:
    if x is None:
        return "None"
    return f"({', '.join(map(str, x.shape))}), {x.dtype}" if x.shape else str(x.dtype)


def _described(x: Array | None) -> str:
    if x is None or not x.size:
        return _label(x)
    # in float64: the sum of halves soon exceeds 65504
    return f"{_label(x)}: mean={x.mean(dtype='d'):.8f}, std={x.std(dtype='d'):.8f}"


def as_array(obj: Any) -> Array:
    """Return the array of a Variable; an array itself.

    Example:
        >>> import numpy as np, mnpar
        >>> mnpar.as_array(mnpar.Variable(np.ones(2)))
        array([1., 1.])
    """
    return obj.array if isinstance(obj, ArrayLike) else obj
