"""Softplus, a smooth relu, whose slope is the logistic function."""

from __future__ import annotations

from mnpar.backend import Array
from mnpar.function_node import InputGradients
from mnpar.functions.activation.sigmoid import sigmoid
from mnpar.functions.node import GenericFunction
from mnpar.kernels.logistic import log1p_exp
from mnpar.variable import Variable


class Softplus(GenericFunction):
    """``y = log(1 + e^(βx)) / β``; ``gx = gy / (1 + e^(-βx))``: its slope is the sigmoid of
    ``βx``.
    """

    def __init__(self, beta: float) -> None:
        self.beta = beta

    def forward(self, x: Array) -> Array:
        self.retain_inputs((0,))
        return log1p_exp(x * self.beta) * (1 / self.beta)

    def backward(self, gy: Variable | Array) -> InputGradients:
        (x,) = self.get_retained_inputs()
        return lambda: gy * sigmoid.generic(x * self.beta)


def softplus(x: Variable | Array, beta: float = 1.0) -> Variable:
    """Return ``log(1 + exp(beta * x)) / beta``, a smooth relu.

    Args:
        x: an array or Variable.
        beta: β; the larger, the nearer to relu.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.softplus(np.array([-1000.0, 1000.0])).array
        array([   0., 1000.])
    """
    return Softplus(beta).apply((x,))[0]
