"""Swish, the self-gated activation (Ramachandran, Zoph and Le 2017, arXiv 1710.05941)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mnpar import backend
from mnpar.backend import HALVES, Array, ArrayModule
from mnpar.function_node import InputGradients
from mnpar.functions.activation.sigmoid import sigmoid
from mnpar.functions.array.broadcast import Shape, unbroadcast
from mnpar.functions.node import GenericFunction
from mnpar.kernels.dtypes import floating_dtype, upcast_halves
from mnpar.kernels.sums import split_arrays
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
        xp = backend.get_array_module(x)
        dtype = floating_dtype(np.result_type(x.dtype, beta.dtype))
        if dtype.char in HALVES:
            return self.forward(upcast_halves(x), upcast_halves(beta)).astype(dtype)
        y = xp.empty(x.shape, dtype)
        slope = xp.negative(beta.reshape(self.shape), dtype=dtype)
        for part, z in self._blocks(x, y):
            xp.divide(part, _one_and_exp(xp, part, slope, z), out=z)
        return y

    def backward(self, gy: Variable | Array) -> InputGradients:
        x, beta = self.get_retained_inputs()
        if not isinstance(gy, Variable) and x.dtype == beta.dtype and x.dtype.char in "fd":
            return self._vjp(x, beta, gy)
        b = beta.reshape(self.shape)
        s = sigmoid.generic(x * b)
        h = (1 - s) * s * x * gy
        return lambda: gy * s + h * b, lambda: unbroadcast(h * x, b.shape).reshape(beta.shape)

    def _vjp(self, x: Array, beta: Array, gy: Array) -> tuple[Array, Array | None]:
        # β is often a constant
        xp, learns = (
            backend.get_array_module(x),
            self.inputs[1].requires_grad,
        )
        gx = xp.empty(x.shape, x.dtype)
        b = beta.reshape(self.shape)
        slope = -b
        gb = xp.zeros_like(b)
        room = xp.empty(0, x.dtype)
        for part, g, to in self._blocks(x, gy, gx):
            if not room.size:
                room = backend.empty_aligned((2, *part.shape), x.dtype, xp)
            s, h = room[:, : len(part)]
            xp.divide(1, _one_and_exp(xp, part, slope, s), out=s)
            xp.multiply(g, s, out=to)
            xp.multiply(to, part, out=h)
            h *= xp.subtract(1, s, out=s)
            to += xp.multiply(h, b, out=s)
            if learns:
                h *= part
                gb += unbroadcast(h, b.shape)
        return gx, gb.reshape(beta.shape) if learns else None

    def _blocks(self, *xs: Array) -> Iterator[tuple[Array, ...]]:
        """Some samples of each array, or, if there is one β, some elements: they stay in the
        cache.
        """
        if not self.shape:
            xs = tuple([x.reshape(-1) for x in xs])
        n = max(1, backend.block_bytes(xs[0]) // 32 // max(1, xs[0][:1].size))
        return split_arrays(n, *xs)


def _one_and_exp(xp: ArrayModule, x: Array, slope: Array, z: Array) -> Array:
    """z ← 1 + e^(slope · x), which may be ∞."""
    with np.errstate(over="ignore"):
        xp.exp(xp.multiply(x, slope, out=z), out=z)
    z += 1
    return z


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
