"""The error function, and the activation made of it.

numpy has none. In float64 it is computed here from the rational approximations of W. J. Cody, "Rational Chebyshev
approximations for the error function", Math. Comp. 23 (1969), in three ranges, good to 3 units of the last digit. In float32
it is tanh(x P(x²)): artanh(erf(x)) / x is so smooth that a polynomial of degree 7, fitted here for the smallest largest error
of the result, is good to 3 units of the last digit (half a unit on average), and it needs 17 operations instead of 50.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.function_node import FunctionNode
from mnpar.functions.activation import tanh
from mnpar.functions.elementwise import Exp, exp
from mnpar.functions.generic import either, wide
from mnpar.variable import Variable

_SMALL = (
    (1.85777706184603153e-1, 3.16112374387056560e0, 1.13864154151050156e2, 3.77485237685302021e2, 3.20937758913846947e3),
    (1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3, 2.84423683343917062e3),
)  # erf(x) / x, of x², to 0.46875
_MIDDLE = (
    (2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594e0, 6.61191906371416295e1, 2.98635138197400131e2,
     8.81952221241769090e2, 1.71204761263407058e3, 2.05107837782607147e3, 1.23033935479799725e3),
    (1.0, 1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2, 1.62138957456669019e3,
     3.29079923573345963e3, 4.36261909014324716e3, 3.43936767414372164e3, 1.23033935480374942e3),
)  # fmt: skip
"""e^(x²) (1 − erf(x)), of x, to 4."""
_LARGE = (
    (1.63153871373020978e-2, 3.05326634961232344e-1, 3.60344899949804439e-1, 1.25781726111229246e-1, 1.60837851487422766e-2,
     6.58749161529837803e-4),
    (1.0, 2.56852019228982242e0, 1.87295284992346725e0, 5.27905102951428412e-1, 6.05183413124413191e-2,
     2.33520497626869185e-3),
)  # fmt: skip
"""1 / √π − x e^(x²) (1 − erf(x)), divided by 1 / x², of 1 / x²."""


_ARGUMENT = (1.1283792442808438, 0.10276995254137805, -1.9567515046467845e-4, -6.14269943013183e-4, 8.423674499617407e-5,
             -4.687665568200701e-6, 1.3049033188622889e-8, 6.141266406949831e-9)  # fmt: skip
"""artanh(erf(x)) / x, of x²."""
_EXACT = tuple(c * 0.5 ** (k + 0.5) for k, c in enumerate(_ARGUMENT))  # of x / √2
_TANH = math.sqrt(2 / math.pi), math.sqrt(2 / math.pi) * 0.044715


def _tanh_of(xp: Any, x: Array, coefficients: tuple[float, ...], y: Array, square: Array) -> None:
    """y ← tanh(x P(x²)), with nothing in memory but y and x², which is left in ``square``."""
    xp.multiply(x, x, out=square)
    xp.multiply(square, coefficients[-1], out=y)
    for c in coefficients[-2:0:-1]:
        y += c
        y *= square
    y += coefficients[0]
    y *= x
    xp.tanh(y, out=y)


class Erf(FunctionNode):
    generic = True

    def forward(self, x: Array) -> Array:
        self.retain_inputs((0,))
        xp, flat = backend.get_array_module(x), wide(x).reshape(-1)
        y, n = xp.empty_like(flat), _block(x)
        square = xp.empty(min(n, flat.size), flat.dtype)
        with np.errstate(over="ignore"):  # of x²: the result is 1
            for i in range(0, flat.size, n):
                self.fill(xp, flat[i : i + n], y[i : i + n], square[: min(n, flat.size - i)])
        return y.reshape(x.shape).astype(x.dtype, copy=False)

    @staticmethod
    def fill(xp: Any, x: Array, y: Array, square: Array) -> None:
        """A block that stays in the cache."""
        if x.dtype.itemsize > 4:
            y[...] = Erf.cody(xp, x)
        else:
            _tanh_of(xp, x, _ARGUMENT, y, square)

    @staticmethod
    def cody(xp: Any, x: Array) -> Array:
        """To the last digit of float64, with some fifty operations on each element."""
        a = abs(x)
        low, middle = xp.minimum(a, 0.46875), xp.clip(a, 0.46875, 4)
        y = 1 - xp.exp(-(middle * middle)) * _ratio(_MIDDLE, middle)
        y = xp.where(a <= 0.46875, low * _ratio(_SMALL, low * low), y)
        if a.size and a.max() > 4:
            high = xp.clip(a, 4, 10)
            z = 1 / (high * high)
            tail = (1 / math.sqrt(math.pi) - z * _ratio(_LARGE, z)) / high
            y = xp.where(a <= 4, y, 1 - xp.exp(-(high * high)) * tail)
        return xp.copysign(y, x)

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
        y, n = xp.empty_like(flat), _block(x)
        scratch = xp.empty((2, min(n, flat.size)), flat.dtype)
        self.phi: Array = xp.empty_like(flat) if self.differentiable else None
        with np.errstate(over="ignore"):
            for i in range(0, flat.size, n):
                part = flat[i : i + n]
                phi = scratch[1, : part.size] if self.phi is None else self.phi[i : i + n]
                self._below(xp, part, phi, scratch[0, : part.size])
                xp.multiply(part, phi, out=y[i : i + n])
        return y.reshape(x.shape).astype(x.dtype, copy=False)

    def _below(self, xp: Any, x: Array, phi: Array, square: Array) -> None:
        """phi ← Φ(x)."""
        if self.by_tanh or x.dtype.itemsize <= 4:
            _tanh_of(xp, x, _TANH if self.by_tanh else _EXACT, phi, square)
        else:
            phi[...] = Erf.cody(xp, x * math.sqrt(0.5))
        phi += 1
        phi *= 0.5

    def backward(self, gy: Any) -> Any:
        (x,) = self.get_retained_inputs()
        return lambda: gy * self._slope(x) if isinstance(x, Variable) else self._pull(x, gy)

    def _pull(self, x: Array, gy: Array) -> Array:
        """gy (Φ + x Φ′), block by block."""
        xp, phi, n = backend.get_array_module(x), self.phi, _block(x)
        flat, g = wide(x).reshape(-1), wide(gy).reshape(-1)
        gx = xp.empty_like(flat)
        with np.errstate(over="ignore"):
            for i in range(0, flat.size, n):
                part, slope = flat[i : i + n], gx[i : i + n]
                self._density(xp, part, phi[i : i + n], slope)
                slope *= part
                slope += phi[i : i + n]
                slope *= g[i : i + n]
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


def _block(x: Array) -> int:
    """How many elements of a few arrays stay in the cache together."""
    return backend.block_bytes(x) // 64


def _ratio(coefficients: tuple[tuple[float, ...], tuple[float, ...]], x: Array) -> Array:
    """A polynomial over another, by Horner's scheme."""
    results = []
    for first, *rest in coefficients:
        y = first * x
        for c in rest[:-1]:
            y += c
            y *= x
        y += rest[-1]
        results.append(y)
    return results[0] / results[1]


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
