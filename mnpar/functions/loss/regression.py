"""Losses of regression: mean squared and mean absolute error, their elements, and the Huber loss.

A mean is over this rank's elements; over none it is 0. Where ranks have different numbers of
elements, their gradients must be weighted by these numbers.
"""

from __future__ import annotations

import functools

from mnpar import backend
from mnpar.backend import Array
from mnpar.function_node import InputGradients
from mnpar.functions.loss.likelihood import require_same_shapes
from mnpar.functions.math.arithmetic import absolute
from mnpar.functions.math.maximum import Clip
from mnpar.functions.math.reduction import sum as sum_of
from mnpar.functions.node import GenericFunction, check_option, check_shapes
from mnpar.kernels import arithmetic as kernel
from mnpar.kernels.dtypes import floating_dtype, upcast_halves
from mnpar.variable import Variable, as_variable


class MeanSquaredError(GenericFunction):
    """``z = Σ (x - y)² / n``; ``gx = 2 (x - y) gz / n`` and ``gy = -gx``."""

    def forward(self, x: Array, y: Array) -> Array:
        self.retain_inputs((0, 1))
        xp = backend.get_array_module(x)
        d = x - y
        self.scale = 1 / max(d.size, 1)
        flat = upcast_halves(d).ravel()
        return xp.asarray(flat.dot(flat) * self.scale, floating_dtype(d.dtype))

    def backward(self, gz: Variable | Array) -> InputGradients:
        x, y = self.get_retained_inputs()
        g = gz * (2 * self.scale)
        return lambda: (x - y) * g, lambda: (y - x) * g


def mean_squared_error(x0: Variable | Array, x1: Variable | Array) -> Variable:
    """The mean of ``(x0 - x1)²`` over all elements.

    Args:
        x0, x1: arrays or Variables of one shape.

    Returns:
        0-d; 0 where there are no elements.

    Raises:
        ValueError: the shapes differ.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> float(F.mean_squared_error(np.array([1.0, 2.0]), np.array([1.0, 4.0])).array)
        2.0
    """
    x0 = as_variable(x0)
    x1 = as_variable(x1)
    check_shapes("mean_squared_error", x0, x1)
    return MeanSquaredError().apply((x0, x1))[0]


class MeanAbsoluteError(GenericFunction):
    """``z = Σ |x - y| / n``; ``gx = sign(x - y) gz / n`` and ``gy = -gx``."""

    def forward(self, x: Array, y: Array) -> Array:
        xp = backend.get_array_module(x)
        d, total = kernel.absolute_differences(x, y)
        self.difference, self.scale = d, 1 / max(d.size, 1)
        return xp.asarray(total * self.scale, floating_dtype(d.dtype))

    def backward(self, gz: Variable | Array) -> InputGradients:
        sign = backend.get_array_module(self.difference).sign(self.difference)
        g = gz * self.scale
        return lambda: g * sign, lambda: -g * sign


def mean_absolute_error(x0: Variable | Array, x1: Variable | Array) -> Variable:
    """The mean of ``|x0 - x1|`` over all elements; the gradient where they are equal is 0.

    Args:
        x0, x1: arrays or Variables of one shape.

    Returns:
        0-d; 0 where there are no elements.

    Raises:
        ValueError: the shapes differ.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> float(F.mean_absolute_error(np.array([1.0, 2.0]), np.array([1.0, 4.0])).array)
        1.0
    """
    x0 = as_variable(x0)
    x1 = as_variable(x1)
    check_shapes("mean_absolute_error", x0, x1)
    return MeanAbsoluteError().apply((x0, x1))[0]


def squared_error(x0: Variable | Array, x1: Variable | Array) -> Variable:
    """The squared difference of each element.

    Args:
        x0, x1: arrays or Variables of one shape; nothing is broadcast.

    Returns:
        Their shape.

    Raises:
        ValueError: the shapes differ.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.squared_error(np.array([1.0, 2.0]), np.array([3.0, 3.0])).array
        array([4., 1.])
    """
    x0, x1 = require_same_shapes("squared_error", x0, x1)
    y: Variable = (x0 - x1) ** 2
    return y


def absolute_error(x0: Variable | Array, x1: Variable | Array) -> Variable:
    """The absolute difference of each element; arguments, shape and errors as in
    :func:`squared_error`.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.absolute_error(np.array([1.0, 2.0]), np.array([3.0, 3.0])).array
        array([2., 1.])
    """
    x0, x1 = require_same_shapes("absolute_error", x0, x1)
    return absolute(x0 - x1)


class HuberLoss(GenericFunction):
    """c·(d - c/2) of d = x - t and c, which is d between -δ and δ; its derivative is c."""

    def __init__(self, delta: float) -> None:
        self.delta = delta

    def forward(self, x: Array, t: Array) -> Array:
        self.retain_inputs((0, 1))
        y: Array = kernel.huber(x, t, self.delta)
        return y

    def backward(self, gy: Variable | Array) -> InputGradients:
        x, t = self.get_retained_inputs()
        if not isinstance(gy, Variable) and kernel.huber_gradient.takes(x):
            gx = functools.cache(lambda: kernel.huber_gradient(gy, x, t, self.delta))
            return gx, lambda: -gx()
        c = functools.cache(lambda: Clip(-self.delta, self.delta)(x - t))
        return lambda: gy * c(), lambda: gy * -c()


def huber_loss(
    x: Variable | Array, t: Variable | Array, delta: float, reduce: str = "sum_along_second_axis"
) -> Variable:
    """The Huber loss: squared for errors up to ``delta``, linear for larger ones (Huber 1964).

    Args:
        x: predictions, ``(N, …)``.
        t: targets, of the same shape.
        delta: the error at which the loss becomes linear.
        reduce: ``'sum_along_second_axis'``, or ``'no'``.

    Returns:
        ``(N, …)`` without the second axis, or the shape of ``x``.

    Raises:
        ValueError: the shapes differ, an unknown option.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.huber_loss(np.array([[0.5, 3.0]]), np.zeros((1, 2)), 1.0).array
        array([2.625])
    """
    check_option("huber_loss", "reduce", reduce, "sum_along_second_axis", "no")
    x, t = require_same_shapes("huber_loss", x, t)
    loss = HuberLoss(delta).apply((x, t))[0]
    return loss if reduce == "no" else sum_of(loss, axis=1)
