"""Repeating an array along axes, and summing over the repetitions: each is the other's backward.

Every function that broadcasts its operands relies on the pair through :func:`unbroadcast`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.function_node import InputGradients
from mnpar.functions.node import GenericFunction, Operand, show_shapes
from mnpar.kernels import sums
from mnpar.variable import Variable, as_variable

Shape = tuple[int, ...]


class SumTo(GenericFunction):
    """Sums over the axes that broadcasting to the input's shape would have repeated."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape

    def forward(self, x: Array) -> Array:
        return sums.sum_to(x, self.shape)

    def backward(self, gy: Variable | Array) -> InputGradients:
        return lambda: BroadcastTo(self.inputs[0].shape)(gy)


class BroadcastTo(GenericFunction):
    """``x`` repeated along new axes and those of length 1; ``gx`` sums ``gy`` over the repetitions:
    the transpose of SumTo.
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape

    def forward(self, x: Array) -> Array:
        # a view that must not be written to
        return backend.get_array_module(x).broadcast_to(x, self.shape)

    def backward(self, gy: Variable | Array) -> InputGradients:
        return lambda: unbroadcast(gy, self.inputs[0].shape)


def unbroadcast(g: Operand, shape: Shape) -> Operand:
    """The gradient of an operand that was broadcast: ``g`` summed to the operand's shape. Arrays
    stay arrays.
    """
    return g if g.shape == shape else SumTo(shape)(g)


def broadcast_to(x: Variable | Array, shape: Sequence[int]) -> Variable:
    """Repeat along new axes and along those of length 1; backward sums over the repetitions.

    Args:
        x: an array or Variable.
        shape: of the result.

    Returns:
        A Variable whose array is a read-only view.

    Raises:
        ValueError: numpy's broadcasting rules lead from ``x.shape`` to another shape.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.broadcast_to(np.array([1.0, 2.0]), (2, 2)).array
        array([[1., 2.],
               [1., 2.]])
    """
    v = as_variable(x)
    new = tuple(shape)
    if v.shape == new:
        return v
    _check_broadcast("broadcast_to", v.shape, new)
    return BroadcastTo(new).apply((v,))[0]


def sum_to(x: Variable | Array, shape: Sequence[int]) -> Variable:
    """Sum over repetitions until the shape is reached: the transpose of ``broadcast_to``.

    Args:
        x: an array or Variable.
        shape: one that can be broadcast to ``x.shape``.

    Raises:
        ValueError: it cannot.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.sum_to(np.array([[1.0, 2.0], [3.0, 4.0]]), (1, 2)).array
        array([[4., 6.]])
    """
    v = as_variable(x)
    new = tuple(shape)
    if v.shape == new:
        return v
    _check_broadcast("sum_to", new, v.shape)
    return SumTo(new).apply((v,))[0]


def broadcast(*args: Variable | Array) -> Variable | tuple[Variable, ...]:
    """Give all arguments the one shape that numpy's broadcasting finds for them.

    Args:
        args: arrays or Variables.

    Returns:
        A Variable for each argument (the Variable itself for one).

    Raises:
        ValueError: the shapes have no common one.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> x, y = F.broadcast(np.ones((2, 1)), np.ones(3))
        >>> x.shape, y.shape
        ((2, 3), (2, 3))
    """
    shapes = [x.shape for x in args]
    try:
        shape = np.broadcast_shapes(*shapes)
    except ValueError:
        raise ValueError(
            f"broadcast: the shapes {show_shapes(shapes)} have no common shape"
        ) from None
    results = tuple([broadcast_to(x, shape) for x in args])
    return results[0] if len(results) == 1 else results


def _check_broadcast(name: str, small: Shape, large: Shape) -> None:
    ends = zip(reversed(small), reversed(large), strict=False)
    if len(small) > len(large) or any(a not in (1, b) for a, b in ends):
        raise ValueError(
            f"{name}: shape {small} does not broadcast to {large}: from the right, lengths "
            "must be equal or 1"
        )
