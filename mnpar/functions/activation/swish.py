"""Swish, the self-gated activation (Ramachandran, Zoph and Le 2017, arXiv 1710.05941)."""

from __future__ import annotations

from typing import Any

import numpy as np

from mnpar.backend import HALVES, Array
from mnpar.function_node import InputGradients
from mnpar.functions.activation.sigmoid import sigmoid
from mnpar.functions.array.broadcast import Shape, unbroadcast
from mnpar.functions.node import GenericFunction
from mnpar.kernels import activation as kernel
from mnpar.kernels.dtypes import floating_dtype, upcast_halves
from mnpar.variable import Variable, as_variable


class Swish(GenericFunction):
    """``y = x s`` with ``s = 1 / (1 + e^(-βx))``; ``gx = gy s + β h`` and ``gβ = Σ x h``, where ``h
    = gy x s (1 - s)``.

    Args:
        shape: that β takes to be multiplied with x; of one β ``()``.
    """

    joint_vjp = True

    def __init__(self, shape: Shape) -> None:
        self.shape = shape

    def forward(self, x: Array, beta: Array) -> Array:
        self.retain_inputs((0, 1))
        dtype = floating_dtype(np.result_type(x.dtype, beta.dtype))
        if dtype.char in HALVES:
            return self.forward(upcast_halves(x), upcast_halves(beta)).astype(dtype)
        y: Array = kernel.swish(x.astype(dtype, copy=False), self._shaped(beta, dtype))
        return y

    def backward(self, gy: Variable | Array) -> InputGradients:
        x, beta = self.get_retained_inputs()
        if not isinstance(gy, Variable) and x.dtype == beta.dtype and x.dtype.char in "fd":
            b = self._shaped(beta, x.dtype)
            if not self.inputs[1].requires_grad:  # β is often a constant
                return kernel.swish_gradient(gy, x, b), None
            gx, gb = kernel.swish_gradients(gy, x, b)
            return gx, gb.astype(beta.dtype).reshape(beta.shape)
        b = beta.reshape(self.shape)
        s = sigmoid.generic(x * b)
        h = (1 - s) * s * x * gy
        return lambda: gy * s + h * b, lambda: unbroadcast(h * x, b.shape).reshape(beta.shape)

    def _shaped(self, beta: Array, dtype: Any) -> Array:
        return beta.reshape(self.shape).astype(dtype, copy=False)


def swish(x: Variable | Array, beta: Variable | Array) -> Variable:
    """``x · sigmoid(beta · x)`` (Ramachandran, Zoph and Le 2017, arXiv 1710.05941).

    Args:
        x: ``(N, …)``.
        beta: of the shape of the first axes after the batch's, or one number.

    Returns:
        The shape of ``x``.

    Raises:
        ValueError: beta has another shape.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.swish(np.array([[1.0, -1.0]]), np.ones(1)).array.round(4)
        array([[ 0.7311, -0.2689]])
    """
    x = as_variable(x)
    beta = as_variable(beta)
    if beta.size != 1 and beta.shape != x.shape[1 : 1 + beta.ndim]:
        raise ValueError(
            f"swish: beta of shape {beta.shape} must have the shape of x's axes after the "
            f"batch's: {x.shape}"
        )
    shape = () if beta.size == 1 else (1, *beta.shape, *[1] * (x.ndim - 1 - beta.ndim))
    return Swish(shape).apply((x, beta))[0]
