"""Functions that change shape, order of axes, dtype or device, not values; they return views
wherever numpy does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from numpy.typing import DTypeLike

from mnpar import backend
from mnpar.backend import Array
from mnpar.configuration import as_dtype
from mnpar.function_node import InputGradients
from mnpar.functions.array.broadcast import Shape
from mnpar.functions.node import GenericFunction, normalize_axes, normalize_axis
from mnpar.variable import Variable, as_variable


class Reshape(GenericFunction):
    """The same elements in another shape; ``gx`` is ``gy`` in the shape of ``x``."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape

    def forward(self, x: Array) -> Array:
        return x.reshape(self.shape)

    def backward(self, gy: Variable | Array) -> InputGradients:
        return lambda: gy.reshape(self.inputs[0].shape)


def reshape(x: Variable | Array, shape: int | Sequence[int]) -> Variable:
    """Read the elements, in their order, in another shape.

    Args:
        x: an array or Variable.
        shape: one of its entries may be -1, which stands for what is left.

    Returns:
        A Variable that shares ``x``'s memory where it can.

    Raises:
        ValueError: the shape has another number of elements.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.reshape(np.arange(6.0), (2, -1)).shape
        (2, 3)
    """
    v = as_variable(x)
    new = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    if v.shape == new:
        return v
    try:
        return Reshape(new).apply((v,))[0]
    except ValueError:
        raise ValueError(
            f"reshape: the {v.size} elements of shape {v.shape} do not fill the shape {new}"
        ) from None


class Transpose(GenericFunction):
    """The axes in another order, reversed if it is None; ``gx`` is ``gy`` with the axes in the
    opposite order.
    """

    def __init__(self, axes: Shape | None) -> None:
        self.axes = axes

    def forward(self, x: Array) -> Array:
        return x.transpose(self.axes)

    def backward(self, gy: Variable | Array) -> InputGradients:
        if self.axes is None:
            return lambda: gy.transpose()
        inverse = sorted(
            range(len(self.axes)), key=[axis % len(self.axes) for axis in self.axes].__getitem__
        )
        return lambda: gy.transpose(inverse)


def transpose(x: Variable | Array, axes: Sequence[int] | None = None) -> Variable:
    """Put the axes in another order.

    Args:
        x: an array or Variable.
        axes: which axis comes first, second, …; None turns the order round.

    Returns:
        A Variable that shares ``x``'s memory.

    Raises:
        ValueError: ``axes`` is not a permutation of all axes.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.transpose(np.ones((2, 3, 4)), (1, 0, 2)).shape
        (3, 2, 4)
    """
    x = as_variable(x)
    if axes is None:
        return Transpose(None).apply((x,))[0]
    order = tuple(axes)
    if sorted([axis % max(x.ndim, 1) for axis in order]) != list(range(x.ndim)):
        two = "; swapaxes exchanges two of them" if len(order) == 2 else ""
        raise ValueError(
            f"transpose: {order} is not an order of the {x.ndim} axes of shape {x.shape}{two}"
        )
    return Transpose(order).apply((x,))[0]


def swapaxes(x: Variable | Array, axis1: int, axis2: int) -> Variable:
    """Exchange two axes.

    Args:
        x: an array or Variable.
        axis1, axis2: the axes.

    Raises:
        ValueError: x has no such axes.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.swapaxes(np.ones((2, 3, 4)), 0, -1).shape
        (4, 3, 2)
    """
    x = as_variable(x)
    axes = list(range(x.ndim))
    first = normalize_axis("swapaxes", x, axis1)
    second = normalize_axis("swapaxes", x, axis2)
    axes[first], axes[second] = second, first
    return transpose(x, axes)


def moveaxis(
    x: Variable | Array, source: int | Sequence[int], destination: int | Sequence[int]
) -> Variable:
    """Move axes to new places; the others keep their order.

    Args:
        x: an array or Variable.
        source, destination: an axis each, or as many in two tuples.

    Raises:
        ValueError: x has no such axis, one was named twice, or there are not as many in both.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.moveaxis(np.ones((2, 3, 4)), 0, -1).shape
        (3, 4, 2)
    """
    x = as_variable(x)
    sources, goals = (normalize_axes("moveaxis", x, axes) for axes in (source, destination))
    if len(sources) != len(goals):
        raise ValueError(f"moveaxis: {len(sources)} axes cannot go to {len(goals)} places")
    axes = [axis for axis in range(x.ndim) if axis not in sources]
    for goal, axis in sorted(zip(goals, sources, strict=True)):
        axes.insert(goal, axis)
    return transpose(x, axes)


def expand_dims(x: Variable | Array, axis: int) -> Variable:
    """Put in a new axis of length 1.

    Args:
        x: an array or Variable.
        axis: its place in the result; negative ones count from the end.

    Raises:
        ValueError: the result has no such place.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.expand_dims(np.ones((2, 3)), -1).shape
        (2, 3, 1)
    """
    x = as_variable(x)
    if not -x.ndim - 1 <= axis <= x.ndim:
        raise ValueError(
            f"expand_dims: axis {axis} is outside the {x.ndim + 1} axes that shape {x.shape} "
            "would get"
        )
    place = axis % (x.ndim + 1)
    return reshape(x, (*x.shape[:place], 1, *x.shape[place:]))


def squeeze(x: Variable | Array, axis: int | Sequence[int] | None = None) -> Variable:
    """Leave out axes of length 1.

    Args:
        x: an array or Variable.
        axis: which ones; None means all of length 1.

    Raises:
        ValueError: an axis that was named has another length, or is not there.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.squeeze(np.ones((1, 3, 1)), axis=0).shape
        (3, 1)
    """
    x = as_variable(x)
    shape = x.shape
    if axis is None:
        return reshape(x, tuple([n for n in shape if n != 1]))
    axes = normalize_axes("squeeze", x, axis)
    for a in axes:
        if shape[a] != 1:
            raise ValueError(
                f"squeeze: axis {a} of shape {shape} has length {shape[a]}; only length 1 "
                "can be left out"
            )
    return reshape(x, tuple([n for a, n in enumerate(shape) if a not in axes]))


def flatten(x: Variable | Array) -> Variable:
    """All elements in one axis.

    Args:
        x: an array or Variable.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.flatten(np.ones((2, 3))).shape
        (6,)
    """
    x = as_variable(x)
    return reshape(x, (math.prod(x.shape),))


class Cast(GenericFunction):
    """The elements in another dtype; ``gx`` is ``gy`` in the dtype of ``x``."""

    def __init__(self, dtype: DTypeLike) -> None:
        self.dtype = dtype

    def forward(self, x: Array) -> Array:
        return x.astype(self.dtype)

    def backward(self, gy: Variable | Array) -> InputGradients:
        return lambda: backend.cast_gradient(gy, self.inputs[0].dtype)


def cast(x: Variable | Array, typ: DTypeLike) -> Variable:
    """Convert to another dtype; the gradient comes back in the old one.

    Args:
        x: an array or Variable.
        typ: a dtype. Nothing flows back through integers and booleans.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.cast(np.array([1.5, 2.5]), np.float16).dtype
        dtype('float16')
    """
    x = as_variable(x)
    dtype = as_dtype(typ)
    return x if x.dtype == dtype else Cast(dtype).apply((x,))[0]


class Copy(GenericFunction):
    """The same elements on a device; ``gx`` is ``gy`` on the device of ``x``."""

    def __init__(self, device: int | str | None) -> None:
        self.device = device

    def forward(self, x: Array) -> Array:
        self.origin = backend.device_of(x)
        return backend.to_device(self.device, x)

    def backward(self, gy: Variable | Array) -> InputGradients:
        return lambda: Copy(self.origin)(gy)


def copy(x: Variable | Array, dst: int | str | None) -> Variable:
    """The same values on another device; the gradient goes back to where ``x`` is.

    Args:
        x: an array or Variable.
        dst: ``'@numpy'`` or -1: the host, ``'@cupy:0'`` or 0: the first GPU; as in
            :func:`mnpar.get_device`.

    Returns:
        A Variable; it shares ``x``'s memory if that is there already.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.copy(np.array([1.0, 2.0]), "@numpy").array
        array([1., 2.])
    """
    return Copy(backend.get_device(dst)).apply((x,))[0]
