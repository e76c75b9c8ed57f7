"""Helpers of generic functions, whose one ``backward`` serves all orders of differentiation; checks
of their arguments.

mnpar's functions are *generic*: their backward is written once, in terms that arrays and Variables
share, and runs on plain arrays unless it is to be differentiated itself. Operators, ``sum``,
``reshape``, ``transpose`` and indexing are such terms by nature; :func:`either` makes one of any
other function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import HALVES, Array
from mnpar.function_node import FunctionNode
from mnpar.variable import Variable, as_variable


def either(function: FunctionNode, *xs: Any) -> Any:
    """Run a function as its arguments need it: recorded if one of them is a Variable, else plainly
    on the arrays.

    Args:
        function: a new FunctionNode with one output.
        xs: its inputs, all arrays or some of them Variables.

    Returns:
        A Variable or an array.
    """
    for x in xs:
        if isinstance(x, Variable):
            return function.apply(xs)[0]
    return function.forward(*xs)


def plain(x: Any) -> Array:
    """The array of a Variable, or the array itself: for masks and labels, through which nothing is
    differentiated.
    """
    return x.array if isinstance(x, Variable) else x


def constant(name: str, compute: Callable[[Array], Array], x: Any) -> Variable:
    """What a function computes that has no derivative, or the derivative 0: nothing flows back."""
    array = as_variable(x).array
    try:
        return Variable(backend.wrap_scalar(compute(array)), requires_grad=False)
    except (TypeError, AttributeError, np.exceptions.AxisError) as error:
        backend.translate_error(name, error, [array])
        raise


def operand(x: Any, other: Any) -> Any:
    """A number beside an array takes the array's dtype (and device), as numpy's own rule for Python
    numbers has it: a fraction beside integers, or a complex number beside real ones, the dtype of
    its kind.
    """
    if isinstance(x, Variable) or (backend.is_array(x) and x.ndim):
        return x
    if not isinstance(x, (int, float, complex, np.generic)) and not backend.is_array(x):
        # which refuses them, with advice
        return backend.require_array(x) if isinstance(x, list | tuple) else NotImplemented
    like = plain(other)
    if not backend.is_array(like):
        return np.asarray(x)
    dtype = like.dtype
    if dtype.kind in "biu":
        dtype = np.result_type(dtype, x.dtype if backend.is_array(x) else x)
    elif dtype.kind != "c" and not isinstance(x, (int, float)) and np.iscomplexobj(x):
        dtype = np.result_type(dtype, np.complex64)
    return backend.get_array_module(like).asarray(x, dtype)


def fractional(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of what is computed from elements of a dtype and is no integer: that of floats is
    their own, as in numpy.

    Example:
        >>> fractional(np.dtype("f4")), fractional(np.dtype("i4"))
        (dtype('float32'), dtype('float64'))
    """
    return np.dtype("f8") if dtype.kind in "biu" else dtype


def floating(x: Array) -> Array:
    """Integers as float64, others as they are: differences of unsigned ones, and those of booleans,
    are others.

    Example:
        >>> x = np.array([1, 3], np.uint8)
        >>> x - 3, floating(x) - 3
        (array([254,   0], dtype=uint8), array([-2.,  0.]))
    """
    return x.astype("f8") if x.dtype.kind in "biu" else x


def wide(x: Array) -> Array:
    """float16 as float32, others as they are: sums of many halves need more than 11 bits, and soon
    exceed 65504.
    """
    return x.astype("f4") if x.dtype.char in HALVES else x


def axis_of(name: str, x: Any, axis: int) -> int:
    """An axis of an array or Variable, counted from 0.

    Args:
        name: of the function that asks.

    Raises:
        ValueError: x has no such axis; TypeError: it is no integer.

    Example:
        >>> axis_of("flip", np.ones((2, 3)), -1)
        1
    """
    if not hasattr(axis, "__index__"):
        raise TypeError(f"{name}: an axis is an integer, not {axis!r}")
    if not -x.ndim <= axis < x.ndim:
        raise ValueError(f"{name}: x of shape {x.shape} has no axis {axis}")
    return axis % x.ndim  # type: ignore[no-any-return]


def axes_of(name: str, x: Any, axes: int | Iterable[int]) -> list[int]:
    """Axes of an array or Variable, counted from 0.

    Args:
        name: of the function that asks.
        axes: one or several.

    Raises:
        ValueError: there is no such axis, or one is named twice.

    Example:
        >>> axes_of("sum", np.ones((2, 3)), (-1, 0))
        [1, 0]
    """
    found: list[int] = []
    for axis in axes if isinstance(axes, Iterable) else (axes,):
        place = axis_of(name, x, axis)
        if place in found:
            raise ValueError(f"{name}: axis {axis} of shape {x.shape} is named twice")
        found.append(place)
    return found


def check_labels(who: str, labels: Array, classes: int, lowest: int = 0) -> None:
    """Raises ValueError if an integer is not in lowest … classes - 1: as an index a negative one
    would count from the end.

    Example:
        >>> check_labels("hinge", np.array([0, 3]), 3)
        Traceback (most recent call last):
        ...
        ValueError: hinge: labels 0 … 3 are not all in 0 … 2
    """
    if labels.size and (labels.min() < lowest or labels.max() >= classes):
        raise ValueError(
            f"{who}: labels {labels.min()} … {labels.max()} are not all in {lowest} … {classes - 1}"
        )


def check_option(who: str, option: str, value: Any, *known: Any) -> None:
    """Raises ValueError if the value of an option is none of those that are known.

    Example:
        >>> check_option("hinge", "norm", "L3", "L1", "L2")
        Traceback (most recent call last):
        ...
        ValueError: hinge: norm is 'L1' or 'L2', not 'L3'
    """
    if value not in known:
        *others, last = map(repr, known)
        raise ValueError(f"{who}: {option} is {', '.join(others)} or {last}, not {value!r}")


def check_shapes(who: str, *xs: Any) -> None:
    """Raises ValueError if not all have one shape: where this is called, nothing is broadcast.

    Example:
        >>> check_shapes("squared_error", np.ones((2, 3)), np.ones(3))
        Traceback (most recent call last):
        ...
        ValueError: squared_error: shapes (2, 3) and (3,) must be the same
    """
    shapes = [x.shape for x in xs]
    if shapes.count(shapes[0]) != len(shapes):
        raise ValueError(f"{who}: shapes {listed(shapes)} must be the same")


def matrix_transpose(x: Any) -> Any:
    """An array or Variable with its last two axes exchanged.

    Example:
        >>> matrix_transpose(np.ones((2, 3, 4))).shape
        (2, 4, 3)
    """
    n = x.ndim
    return x.transpose((*range(n - 2), n - 1, n - 2)) if n > 2 else x.transpose()


def listed(shapes: Any) -> str:
    """Shapes as an error shows them.

    Example:
        >>> listed([(2, 3), (4,)])
        '(2, 3) and (4,)'
    """
    return " and ".join(str(tuple(shape)) for shape in shapes)
