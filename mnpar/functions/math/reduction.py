"""Many elements to one: sums, extrema and the logarithm of summed exponentials.

``axis`` is everywhere None (all axes), a number, or a tuple of numbers. Backward spreads the
gradient over what was reduced, by a view where it is the same for all elements.
"""

from __future__ import annotations

import numpy as np

from mnpar import backend
from mnpar.backend import Array, Axis
from mnpar.configuration import no_backprop_mode
from mnpar.function_node import InputGradients
from mnpar.functions.array.broadcast import BroadcastTo
from mnpar.functions.math.exponential import exp
from mnpar.functions.node import GenericFunction, Operand
from mnpar.kernels import exponential
from mnpar.kernels.dtypes import as_floating, upcast_halves
from mnpar.kernels.rows import reduce_rows
from mnpar.kernels.sums import sum_array
from mnpar.variable import Variable


def kept_shape(shape: tuple[int, ...], axis: Axis) -> tuple[int, ...]:
    """The shape with the reduced axes at length 1.

    Example:
        >>> kept_shape((2, 3, 4), -1)
        (2, 3, 1)
    """
    if axis is None:
        return (1,) * len(shape)
    reduced = [a % len(shape) for a in (axis if isinstance(axis, tuple) else (axis,))]
    return tuple([1 if a in reduced else n for a, n in enumerate(shape)])


class Reduction(GenericFunction):
    """The base of functions that reduce axes, and may keep them at length 1."""

    def __init__(self, axis: Axis = None, keepdims: bool = False) -> None:
        self.axis = tuple(axis) if isinstance(axis, list) else axis
        self.keepdims = keepdims

    def lift(self, y: Operand) -> Operand:
        """An output, or its gradient, with the reduced axes back at length 1."""
        return y if self.keepdims else y.reshape(kept_shape(self.inputs[0].shape, self.axis))

    def spread(self, g: Operand) -> Operand:
        """The same for every element that was reduced."""
        return BroadcastTo(self.inputs[0].shape)(self.lift(g))


class Sum(Reduction):
    """``y = Σ x``; ``gx = gy`` at every element that was summed."""

    def forward(self, x: Array) -> Array:
        return sum_array(x, self.axis, self.keepdims)

    def backward(self, gy: Variable | Array) -> InputGradients:
        return lambda: self.spread(gy)


def sum(x: Variable | Array, axis: Axis = None, keepdims: bool = False) -> Variable:
    """The sum over some axes.

    Args:
        x: an array or Variable.
        axis: what is summed over; None means everything.
        keepdims: whether the summed axes stay, with length 1.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.sum(np.array([[1.0, 2.0], [3.0, 4.0]]), axis=1).array
        array([3., 7.])
    """
    return Sum(axis, keepdims).apply((x,))[0]


class Max(Reduction):
    """``y = max x``; ``gx = gy`` at every element that equals the maximum, 0 elsewhere."""

    extremum = "max"

    def forward(self, x: Array) -> Array:
        y = reduce_rows(self.extremum, x, self.axis)
        if self.differentiable:
            self.chosen = x == y
        result: Array = y if self.keepdims else y.squeeze(self.axis)
        return result

    def backward(self, gy: Variable | Array) -> InputGradients:
        return lambda: self.lift(gy) * self.chosen


def max(x: Variable | Array, axis: Axis = None, keepdims: bool = False) -> Variable:
    """The largest element over some axes; each of several equally large ones gets the whole
    gradient, as in Chainer.

    Args:
        x: an array or Variable.
        axis: what is searched; None means everything.
        keepdims: whether the searched axes stay, with length 1.

    Raises:
        ValueError: there is no element to choose from.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.max(np.array([[1.0, 2.0], [4.0, 3.0]]), axis=1).array
        array([2., 4.])
    """
    return Max(axis, keepdims).apply((x,))[0]


class Min(Max):
    """``y = min x``; ``gx = gy`` at every element that equals the minimum, 0 elsewhere."""

    extremum = "min"


def min(x: Variable | Array, axis: Axis = None, keepdims: bool = False) -> Variable:
    """The smallest element over some axes; each of several equally small ones gets the whole
    gradient, as in Chainer.

    Args:
        x: an array or Variable.
        axis: what is searched; None means everything.
        keepdims: whether the searched axes stay, with length 1.

    Raises:
        ValueError: there is no element to choose from.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.min(np.array([[1.0, 2.0], [4.0, 3.0]]), axis=1).array
        array([1., 3.])
    """
    return Min(axis, keepdims).apply((x,))[0]


class ArgMax(Reduction):
    """The place of the largest element, the first one of several; nothing flows back."""

    extremum = "max"

    @property
    def label(self) -> str:
        """The function's name."""
        return f"arg{self.extremum}"

    def forward(self, x: Array) -> Array:
        found = getattr(x, f"arg{self.extremum}")(axis=self.axis)
        return backend.get_array_module(x).asarray(found, "i4")


class ArgMin(ArgMax):
    """The place of the smallest element, the first one of several; nothing flows back."""

    extremum = "min"


def argmax(x: Variable | Array, axis: int | None = None) -> Variable:
    """The place of the largest element, the first one if there are several; nothing flows back.

    Args:
        x: an array or Variable.
        axis: the axis that is searched; None searches all elements in their order.

    Returns:
        int32.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.argmax(np.array([[1.0, 2.0], [4.0, 3.0]]), axis=1).array
        array([1, 0], dtype=int32)
    """
    with no_backprop_mode():
        return ArgMax(axis).apply((x,))[0]


def argmin(x: Variable | Array, axis: int | None = None) -> Variable:
    """The place of the smallest element, the first one if there are several; nothing flows back.

    Args:
        x: an array or Variable.
        axis: the axis that is searched; None searches all elements in their order.

    Returns:
        int32.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.argmin(np.array([[1.0, 2.0], [4.0, 3.0]]), axis=1).array
        array([0, 1], dtype=int32)
    """
    with no_backprop_mode():
        return ArgMin(axis).apply((x,))[0]


class LogSumExp(Reduction):
    """``y = log Σ eˣ``, without overflow; ``gx = gy e^(x - y)``, the softmax times ``gy``."""

    def forward(self, x: Array) -> Array:
        self.retain_inputs((0,))
        self.retain_outputs((0,))
        xp = backend.get_array_module(x)
        x = as_floating(x)
        # of no elements there is no maximum
        peak = (x.max if x.size else x.sum)(axis=self.axis, keepdims=True)
        peak = xp.where(xp.isfinite(peak), peak, xp.zeros((), x.dtype))
        terms = upcast_halves(exponential.exp(xp, x - peak))
        with np.errstate(divide="ignore"):  # log 0 is -∞ where all elements are
            y = xp.log(sum_array(terms, self.axis, keepdims=True)) + peak
        y = y.astype(x.dtype, copy=False)
        return y if self.keepdims else y.squeeze(self.axis)

    def backward(self, gy: Variable | Array) -> InputGradients:
        (x,), (y,) = self.get_retained_inputs(), self.get_retained_outputs()
        return lambda: self.lift(gy) * exp.generic(x - self.lift(y))


def logsumexp(x: Variable | Array, axis: Axis = None) -> Variable:
    """``log(sum(exp(x)))`` without overflow: the largest element is taken out first; of no elements
    it is -∞.

    Args:
        x: an array or Variable.
        axis: what is summed over; None means everything.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> float(F.logsumexp(np.array([1000.0, 1000.0])).array.round(6))
        1000.693147
    """
    return LogSumExp(axis).apply((x,))[0]
