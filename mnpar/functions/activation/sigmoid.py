"""Sigmoid-shaped activations: the logistic function, tanh, and the softplus, whose slope is the
logistic function.

They are numerically stable: no exponential of a large positive number is taken. Each backward of
large arrays works in blocks, which stay in the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.functions.math.maximum import Clip
from mnpar.functions.node import GenericFunction, as_floating, elementwise, upcast_halves
from mnpar.kernels.sums import cut
from mnpar.variable import Variable, as_variable


def _sigmoid_gradient(gy: Any, y: Any) -> Any:
    """``gx = y (1 - y) gy``."""
    if isinstance(gy, Variable):
        return (1 - y) * y * gy

    def compute(xp: ModuleType, y: Array, gy: Array, gx: Array) -> None:
        xp.multiply(xp.subtract(1, y, out=gx), y, out=gx)
        gx *= gy

    return in_blocks(compute, y, gy)


@elementwise(_sigmoid_gradient)
def sigmoid(xp: ModuleType, x: Array) -> Array:
    """Return ``1 / (1 + exp(-x))``, with all its digits for very negative ``x`` too.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.sigmoid(np.array([-1000.0, 0.0])).array.round(3)
        array([0. , 0.5])
    """
    return logistic(x)


def _tanh_gradient(gy: Any, y: Any) -> Any:
    """``gx = (1 - y²) gy``."""
    if isinstance(gy, Variable):
        return (1 - y * y) * gy

    def compute(xp: ModuleType, y: Array, gy: Array, gx: Array) -> None:
        xp.subtract(1, xp.multiply(y, y, out=gx), out=gx)
        gx *= gy

    return in_blocks(compute, y, gy)


@elementwise(_tanh_gradient)
def tanh(xp: ModuleType, x: Array) -> Array:
    """Return the hyperbolic tangent of each element.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.tanh(np.array([0.0, 100.0])).array
        array([0., 1.])
    """
    result: Array = xp.tanh(x)
    return result


class Softplus(GenericFunction):
    """``y = log(1 + e^(βx)) / β``; ``gx = gy / (1 + e^(-βx))``: its slope is the sigmoid of
    ``βx``.
    """

    def __init__(self, beta: float) -> None:
        self.beta = beta

    def forward(self, x: Array) -> Array:
        self.retain_inputs((0,))
        y = soft_positive(x * self.beta)
        return y * (1 / self.beta)

    def backward(self, gy: Any) -> Any:
        (x,) = self.get_retained_inputs()
        return lambda: gy * sigmoid.generic(x * self.beta)


def softplus(x: Variable | Array, beta: float = 1.0) -> Variable:
    """``log(1 + exp(beta * x)) / beta``, a smooth relu.

    Args:
        x: an array or Variable.
        beta: β; the larger, the nearer to relu.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.softplus(np.array([-1000.0, 1000.0])).array
        array([   0., 1000.])
    """
    return Softplus(beta).apply((x,))[0]


def hard_sigmoid(x: Variable | Array) -> Variable:
    """A sigmoid of three straight pieces: ``0.2 x + 0.5`` between 0 and 1; the gradient at its
    bends is 0.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.hard_sigmoid(np.array([-3.0, 0.0, 1.0])).array
        array([0. , 0.5, 0.7])
    """
    return Clip(0.0, 1.0, ends=False).apply((as_variable(x) * 0.2 + 0.5,))[0]


def in_blocks(vjp: Callable[[Any, Array, Array, Array], None], y: Array, gy: Array) -> Array:
    """The gx into which ``pull(xp, y, gy, gx)`` writes, place by place; of large arrays in blocks,
    which stay in the cache.
    """
    xp = backend.get_array_module(y)
    gx = xp.empty_like(y)
    if y.nbytes <= (most := backend.block_bytes(y) // 8) or not (
        y.flags.c_contiguous and gy.flags.c_contiguous
    ):
        vjp(xp, y, gy, gx)
    else:
        for block in cut(most // y.itemsize, y.reshape(-1), gy.reshape(-1), gx.reshape(-1)):
            vjp(xp, *block)
    return gx


def logistic(x: Array) -> Array:
    """1 / (1 + e⁻ˣ) of an array; where e⁻ˣ is ∞ it is 0. In blocks that stay in the cache."""
    xp = backend.get_array_module(x)
    x = as_floating(x)
    y = xp.empty(x.shape, x.dtype if x.dtype.kind == "f" else "d")
    with np.errstate(over="ignore"):
        for from_, to in cut(backend.block_bytes(x) // 32, x.reshape(-1), y.reshape(-1)):
            z = to if to.dtype.char != "e" else upcast_halves(to)
            xp.exp(xp.negative(from_, out=z), out=z)
            z += 1
            xp.divide(1, z, out=z)
            if z is not to:
                to[...] = z
    return y


def soft_positive(x: Array) -> Array:
    """log(1 + eˣ) of an array, as max(x, 0) + log(1 + e⁻ˡˣˡ). In blocks that stay in the cache."""
    xp = backend.get_array_module(x)
    y = xp.empty(x.shape, x.dtype if x.dtype.kind == "f" else "d")
    n = backend.block_bytes(x) // 32
    room = backend.empty_aligned((min(n, y.size),), y.dtype, xp)
    for from_, to in cut(n, x.reshape(-1), y.reshape(-1)):
        e = room[: to.size]
        xp.negative(xp.absolute(from_, out=e), out=e)
        xp.log1p(xp.exp(e, out=e), out=e)
        xp.add(xp.maximum(from_, 0), e, out=to)
    return y
