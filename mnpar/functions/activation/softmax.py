"""Softmax and its logarithm; no exponential of a large positive number is taken.

Along the last axis they work on blocks of rows, which stay in the cache.
"""

from __future__ import annotations

from mnpar import backend
from mnpar.backend import Array
from mnpar.function_node import InputGradients
from mnpar.functions.math.exponential import exp
from mnpar.functions.node import GenericFunction, array_of
from mnpar.kernels.dtypes import as_floating, upcast_halves
from mnpar.kernels.sums import MODEST, is_rowwise, row_blocks, sum_array, sum_over
from mnpar.variable import Variable


class Softmax(GenericFunction):
    """y = eˣ / Σ eˣ along an axis; along the last one in blocks of rows that stay in the cache."""

    def __init__(self, axis: int) -> None:
        self.axis = axis

    def forward(self, x: Array) -> Array:
        self.retain_outputs((0,))
        xp = backend.get_array_module(x)
        if not x.size:
            return as_floating(x).copy()  # of no elements there is no maximum
        if not is_rowwise(x, self.axis):
            x = as_floating(x)
            y = xp.asarray(x - x.max(axis=self.axis, keepdims=True))
            xp.exp(y, out=y)
            y /= sum_array(upcast_halves(y), self.axis, keepdims=True)
            return y
        y = xp.empty(x.shape, x.dtype)
        for from_, to, e in row_blocks(x, y):
            if from_.max() <= MODEST and from_.min() >= -MODEST:
                xp.exp(from_, out=e)
            else:
                xp.exp(xp.subtract(from_, from_.max(axis=1, keepdims=True), out=e), out=e)
            xp.multiply(e, 1 / sum_array(e, 1, keepdims=True), out=to)
        return y

    def backward(self, gy: Variable | Array) -> InputGradients:
        (y,) = self.get_retained_outputs()
        if isinstance(y, Variable) or not is_rowwise(y, self.axis):
            return lambda: y * (gy - sum_over(gy * y, self.axis, keepdims=True))
        return lambda: self._vjp(y, array_of(gy))

    def _vjp(self, y: Array, gy: Array) -> Array:
        xp = backend.get_array_module(y)
        gx = xp.empty(y.shape, y.dtype)
        for part, g, to, room in row_blocks(y, gy, gx):
            xp.subtract(g, xp.einsum("nc,nc->n", g, part)[:, None], out=room)
            xp.multiply(part, room, out=to)
        return gx


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
        if not x.size:
            return as_floating(x).copy()
        xp = backend.get_array_module(x)
        x = as_floating(x)
        y = xp.asarray(x - x.max(axis=self.axis, keepdims=True))
        y -= xp.log(sum_array(upcast_halves(xp.exp(y)), self.axis, keepdims=True))
        return y

    def backward(self, gy: Variable | Array) -> InputGradients:
        (y,) = self.get_retained_outputs()
        return lambda: gy - exp.generic(y) * sum_over(gy, self.axis, keepdims=True)


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
