"""Softmax and its logarithm; no exponential of a large positive number is taken."""

from __future__ import annotations

from mnpar.backend import Array
from mnpar.function_node import InputGradients
from mnpar.functions.math.exponential import exp
from mnpar.functions.node import GenericFunction, array_of
from mnpar.kernels import softmax as kernel
from mnpar.kernels.sums import sum_over
from mnpar.variable import Variable


class Softmax(GenericFunction):
    """``y = eˣ / Σ eˣ`` along an axis; ``gx = y (gy - Σ gy y)``."""

    def __init__(self, axis: int) -> None:
        self.axis = axis

    def forward(self, x: Array) -> Array:
        self.retain_outputs((0,))
        return kernel.softmax(x, self.axis)

    def backward(self, gy: Variable | Array) -> InputGradients:
        (y,) = self.get_retained_outputs()
        if isinstance(y, Variable):
            return lambda: y * (gy - sum_over(gy * y, self.axis, keepdims=True))
        return lambda: kernel.softmax_gradient(y, array_of(gy), self.axis)


def softmax(x: Variable | Array, axis: int = 1) -> Variable:
    """``exp(x) / Σ exp(x)``, with the sum along an axis.

    Args:
        x: an array or Variable, ``(N, C, …)``.
        axis: of the sum; by default 1, the classes.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.softmax(np.array([[1000.0, 1000.0]])).array
        array([[0.5, 0.5]])
    """
    return Softmax(axis).apply((x,))[0]


class LogSoftmax(GenericFunction):
    """``y = x - log Σ eˣ`` along an axis; ``gx = gy - eʸ Σ gy``."""

    def __init__(self, axis: int) -> None:
        self.axis = axis

    def forward(self, x: Array) -> Array:
        self.retain_outputs((0,))
        return kernel.log_softmax(x, self.axis)

    def backward(self, gy: Variable | Array) -> InputGradients:
        (y,) = self.get_retained_outputs()
        if isinstance(y, Variable):
            return lambda: gy - exp.generic(y) * sum_over(gy, self.axis, keepdims=True)
        return lambda: kernel.log_softmax_gradient(y, array_of(gy), self.axis)


def log_softmax(x: Variable | Array, axis: int = 1) -> Variable:
    """The logarithm of ``softmax(x)``, finite where the softmax itself would round to 0.

    Args:
        x: an array or Variable, ``(N, C, …)``.
        axis: of the softmax; by default 1, the classes.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.log_softmax(np.array([[0.0, 1000.0]])).array
        array([[-1000.,     0.]])
    """
    return LogSoftmax(axis).apply((x,))[0]
