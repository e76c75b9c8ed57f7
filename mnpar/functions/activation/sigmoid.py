"""Sigmoid-shaped activations: the logistic function, tanh, and a sigmoid of straight pieces."""

from __future__ import annotations

from mnpar.backend import Array, ArrayModule
from mnpar.functions.math.maximum import Clip
from mnpar.functions.node import array_of, elementwise
from mnpar.kernels import activation as kernel
from mnpar.kernels.logistic import logistic
from mnpar.variable import Variable, as_variable


def _sigmoid_gradient(gy: Variable | Array, y: Variable | Array) -> Variable | Array:
    """``gx = y (1 - y) gy``."""
    if isinstance(gy, Variable):
        return (1 - y) * y * gy
    return kernel.sigmoid_gradient(gy, array_of(y))


@elementwise(_sigmoid_gradient)
def sigmoid(xp: ArrayModule, x: Array) -> Array:
    """Return ``1 / (1 + exp(-x))``, with all its digits for very negative ``x`` too.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.sigmoid(np.array([-1000.0, 0.0])).array.round(3)
        array([0. , 0.5])
    """
    return logistic(x)


def _tanh_gradient(gy: Variable | Array, y: Variable | Array) -> Variable | Array:
    """``gx = (1 - y²) gy``."""
    if isinstance(gy, Variable):
        return (1 - y * y) * gy
    return kernel.tanh_gradient(gy, array_of(y))


@elementwise(_tanh_gradient)
def tanh(xp: ArrayModule, x: Array) -> Array:
    """Return the hyperbolic tangent of each element.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.tanh(np.array([0.0, 100.0])).array
        array([0., 1.])
    """
    result: Array = xp.tanh(x)
    return result


def hard_sigmoid(x: Variable | Array) -> Variable:
    """A sigmoid of three straight pieces: ``0.2 x + 0.5`` between 0 and 1; the gradient at its
    bends is 0.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.hard_sigmoid(np.array([-3.0, 0.0, 1.0])).array
        array([0. , 0.5, 0.7])
    """
    return Clip(0.0, 1.0, ends=False).apply((as_variable(x) * 0.2 + 0.5,))[0]
