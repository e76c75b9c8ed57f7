"""The error function, and the activation made of it.

numpy has none. Here it is tanh(x P(x²)): artanh(erf(x)) / x is so smooth that, less its value at 0, a polynomial over another,
of degree 3 in float32 and 8 in float64, fitted for the smallest largest error of the result relative to it, is good to 3 units
of the last digit (half a unit on average). All coefficients are positive, so that nothing cancels, and both polynomials are one
product of a matrix with the powers of x².
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.function_node import FunctionNode
from mnpar.functions.activation import tanh
from mnpar.functions.elementwise import Exp, exp
from mnpar.functions.generic import either, wide
from mnpar.variable import Variable

_SINGLE = (
    1.1283791708075513,
    (
        (0.0, 1.0277251236701691e-1, 1.5915416201140015e-2, 1.8116962572906095e-3),
        (1.0, 1.568933600757047e-1, 2.3690419746977244e-2, 3.2493897714446799e-4),
    ),
)
_DOUBLE = 1.1283791670955124, (
    (0.0, 1.0277260330196228e-1, 3.4828206806381230e-2, 8.6677607109865715e-3, 1.2388510393418996e-3,
     1.3114414135981204e-4, 8.4537131442220452e-6, 3.3448014215123569e-7, 2.5366138148585849e-9),
    (1.0, 3.4092161063768243e-1, 9.0775191421821362e-2, 1.3568870015242241e-2, 1.5769449393288381e-3,
     1.1114019391175652e-4, 5.4176684619501587e-6, 8.8308389414872513e-8, 1.4356687334254936e-10),
)  # fmt: skip
"""artanh(erf(x)) / x, of x² up to 36, beyond which erf(x) is 1: at 0, and what that needs, a numerator and a denominator."""
_FAR = 36.0
_TANH = math.sqrt(2 / math.pi), math.sqrt(2 / math.pi) * 0.044715  # gelu's approximation, the polynomial


def _pieces(x: Array, rows: int) -> Iterator[tuple[slice, Array, Array]]:
    """Places of a vector that stay in the cache, what is there, and so many rows of room beside it."""
    n = backend.block_bytes(x) // 32 // x.itemsize
    room = backend.scratch((rows, min(n, x.size)), x.dtype, backend.get_array_module(x))
    for start in range(0, x.size, n):
        part = x[start : start + n]
        yield slice(start, start + part.size), part, room[:, : part.size]


@functools.cache
def _fraction(dtype: Any, scale: float) -> tuple[float, Any]:
    """P, for x times ``scale``."""
    start, rows = _SINGLE if dtype.itemsize <= 4 else _DOUBLE
    bends = [[c * scale ** (2 * k + (i == 0)) for k, c in enumerate(row)] for i, row in enumerate(rows)]
    return start * scale, np.asarray(bends, dtype)


def _bend(x: Array, start: float, fraction: Array, far: float, room: Array) -> Array:
    """tanh(x P(x²)), in the room: as many rows as there are powers, and two."""
    xp, n = backend.get_array_module(x), fraction.shape[1]
    powers, two = room[:n], room[n:]
    powers[0] = 1
    xp.minimum(xp.multiply(x, x, out=powers[1]), far, out=powers[1])
    for k in range(2, n):
        xp.multiply(powers[k // 2], powers[k - k // 2], out=powers[k])
    y, below = xp.matmul(fraction, powers, out=two)
    y /= below
    y += start
    y *= x
    return xp.tanh(y, out=y)


class Erf(FunctionNode):
    generic = True

    def forward(self, x: Array) -> Array:
        self.retain_inputs((0,))
        xp, flat = backend.get_array_module(x), wide(x).reshape(-1)
        y, (start, fraction) = xp.empty_like(flat), _fraction(flat.dtype, 1.0)
        fraction = xp.asarray(fraction)
        with np.errstate(over="ignore"):  # of x²: the result is 1
            for place, part, room in _pieces(flat, fraction.shape[1] + 2):
                y[place] = _bend(part, start, fraction, _FAR, room)
        return y.reshape(x.shape).astype(x.dtype, copy=False)

    def backward(self, gy: Any) -> Any:
        (x,) = self.get_retained_inputs()
        return lambda: gy * either(Exp(), -(x * x)) * (2 / math.sqrt(math.pi))


class Gelu(FunctionNode):
    """x Φ(x), where Φ is the share of normal numbers below x, or an approximation by tanh; in few passes over blocks."""

    generic = True

    def __init__(self, by_tanh: bool) -> None:
        self.by_tanh = by_tanh

    def forward(self, x: Array) -> Array:
        self.retain_inputs((0,))
        xp, flat = backend.get_array_module(x), wide(x).reshape(-1)
        y, (start, fraction) = xp.empty_like(flat), _fraction(flat.dtype, math.sqrt(0.5))
        fraction = xp.asarray(fraction)
        self.phi: Array = xp.empty_like(flat) if self.differentiable else None
        with np.errstate(over="ignore"):
            for place, part, room in _pieces(flat, 1 if self.by_tanh else fraction.shape[1] + 2):
                t = self._bend(part, room[0]) if self.by_tanh else _bend(part, start, fraction, 2 * _FAR, room)
                t += 1
                phi = xp.multiply(t, 0.5, out=t if self.phi is None else self.phi[place])
                xp.multiply(part, phi, out=y[place])
        return y.reshape(x.shape).astype(x.dtype, copy=False)

    def _bend(self, x: Array, y: Array) -> Array:
        xp = backend.get_array_module(x)
        xp.multiply(x, x, out=y)
        y *= _TANH[1]
        y += _TANH[0]
        y *= x
        return xp.tanh(y, out=y)

    def backward(self, gy: Any) -> Any:
        (x,) = self.get_retained_inputs()
        return lambda: gy * self._slope(x) if isinstance(x, Variable) else self._pull(x, gy)

    def _pull(self, x: Array, gy: Array) -> Array:
        """gy (Φ + x Φ′), block by block."""
        xp, g, flat = backend.get_array_module(x), wide(gy).reshape(-1), wide(x).reshape(-1)
        gx = xp.empty_like(flat)
        with np.errstate(over="ignore"):
            for place, part, (slope,) in _pieces(flat, 1):
                self._density(xp, part, self.phi[place], slope)
                slope *= part
                slope += self.phi[place]
                xp.multiply(slope, g[place], out=gx[place])
        return gx.reshape(x.shape).astype(x.dtype, copy=False)

    def _density(self, xp: Any, x: Array, phi: Array, y: Array) -> None:
        """y ← Φ′(x)."""
        xp.multiply(x, x, out=y)
        if self.by_tanh:  # Φ = (1 + tanh u) / 2, so Φ′ = 2 Φ (1 − Φ) u′
            xp.minimum(y, 1e3, out=y)  # where the rest is 0
            y *= 6 * _TANH[1]
            y += 2 * _TANH[0]
            rest = 1 - phi
            rest *= phi
            y *= rest
        else:
            y *= -0.5
            xp.exp(y, out=y)
            y *= 1 / math.sqrt(2 * math.pi)

    def _slope(self, x: Variable) -> Variable:
        """Φ + x Φ′ as a function of the Variable x."""
        square = x * x
        if self.by_tanh:
            phi = (tanh(x * (square * _TANH[1] + _TANH[0])) + 1) * 0.5
            density = phi * (1 - phi) * (square * (6 * _TANH[1]) + 2 * _TANH[0])
        else:
            phi = (erf(x * math.sqrt(0.5)) + 1) * 0.5
            density = exp(square * -0.5) * (1 / math.sqrt(2 * math.pi))
        slope: Variable = phi + x * density
        return slope


def erf(x: Any) -> Variable:
    """The error function, 2 / √π ∫₀ˣ e^(−t²) dt, to 3 units of the last digit.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.erf(np.array([0.5, 10.0])).array.round(6)
        array([0.5205, 1.    ])
    """
    return Erf().apply((x,))[0]


def gelu(x: Any, approximate: str = "none") -> Variable:
    """``x`` times the probability that a normal number is below it (Hendrycks and Gimpel 2016, arXiv 1606.08415).

    Args:
        x: an array or Variable.
        approximate: ``'none'`` for x (1 + erf(x / √2)) / 2, ``'tanh'`` for x (1 + tanh(√(2 / π) (x + 0.044715 x³))) / 2.

    Returns:
        The shape of ``x``.

    Raises:
        ValueError: there is no such approximation.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.gelu(np.array([-1.0, 1.0])).array.round(4)
        array([-0.1587,  0.8413])
    """
    if approximate not in ("none", "tanh"):
        raise ValueError(f"gelu: approximate is 'none' or 'tanh', not {approximate!r}")
    return Gelu(approximate == "tanh").apply((x,))[0]
