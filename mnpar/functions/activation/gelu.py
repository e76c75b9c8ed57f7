"""The error function, and GELU, which is made of it.

numpy has none. Here it is tanh(x P(x²)): artanh(erf(x)) / x is so smooth that a polynomial of
degree 7 is enough for float32, and one of degree 8 over another for float64, fitted here for the
smallest largest error of the result: 3 units of the last digit, half a unit on average. The two for
float64 have positive coefficients, so that nothing cancels, and are one product of a matrix with
the powers of x². MKL, where it is installed, has its own (kernels/blas.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array, ArrayModule
from mnpar.functions.activation.sigmoid import tanh
from mnpar.functions.math.exponential import exp
from mnpar.functions.node import GenericFunction, check_option, upcast_halves
from mnpar.kernels.blas import fill, fills
from mnpar.variable import Variable

_START = 1.1283791670955124

_FRACTION = np.array(
    [
        (
            0.0,
            1.0277260330196228e-1,
            3.4828206806381230e-2,
            8.6677607109865715e-3,
            1.2388510393418996e-3,
            1.3114414135981204e-4,
            8.4537131442220452e-6,
            3.3448014215123569e-7,
            2.5366138148585849e-9,
        ),
        (
            1.0,
            3.4092161063768243e-1,
            9.0775191421821362e-2,
            1.3568870015242241e-2,
            1.5769449393288381e-3,
            1.1114019391175652e-4,
            5.4176684619501587e-6,
            8.8308389414872513e-8,
            1.4356687334254936e-10,
        ),
    ]
)


"""artanh(erf(x)) / x, of x² up to 36, beyond which erf(x) is 1: at 0, and what is added to that,
one row over the other.
"""


_FAR = 36.0

_ARGUMENT = (
    1.1283792442808438,
    0.10276995254137805,
    -1.9567515046467845e-4,
    -6.14269943013183e-4,
    8.423674499617407e-5,
    -4.687665568200701e-6,
    1.3049033188622889e-8,
    6.141266406949831e-9,
)


"""artanh(erf(x)) / x, of x²."""


_EXACT = tuple(c * 0.5 ** (k + 0.5) for k, c in enumerate(_ARGUMENT))  # of x / √2
_HEIGHT = 1 / math.sqrt(2 * math.pi)  # of the normal density at 0
_TANH = math.sqrt(2 / math.pi), math.sqrt(2 / math.pi) * 0.044715


def _tanh_of(
    xp: ArrayModule, x: Array, coefficients: tuple[float, ...], y: Array, square: Array
) -> None:
    """y ← tanh(x P(x²)), with nothing in memory but y and x², which is left in ``square``."""
    xp.multiply(x, x, out=square)
    xp.multiply(square, coefficients[-1], out=y)
    for c in coefficients[-2:0:-1]:
        y += c
        y *= square
    y += coefficients[0]
    y *= x
    xp.tanh(y, out=y)


class Erf(GenericFunction):
    """``y = erf x``; ``gx = 2/√π e^(-x²) gy``."""

    def forward(self, x: Array) -> Array:
        self.retain_inputs((0,))
        xp = backend.get_array_module(x)
        flat = _flat(x, x)
        y = xp.empty_like(flat)
        for place, room in _blocks(xp, flat):
            self.fill(xp, flat[place], y[place], room)
        return _shaped(y, x)

    @staticmethod
    def fill(xp: ArrayModule, x: Array, y: Array, square: Array) -> None:
        """A block that stays in the cache."""
        if fill("Erf", x, y):
            return
        if x.dtype.itemsize > 4:
            y[...] = Erf.fine(xp, x)
        else:
            _tanh_of(xp, x, _ARGUMENT, y, square)

    @staticmethod
    def fine(xp: ArrayModule, x: Array) -> Array:
        """To the last digits of float64."""
        n = _FRACTION.shape[1]
        room = backend.empty_aligned((n + 2, x.size), x.dtype, xp)
        powers = room[:n]
        two = room[n:]
        powers[0] = 1
        xp.minimum(xp.multiply(x, x, out=powers[1]), _FAR, out=powers[1])
        for k in range(2, n):
            xp.multiply(powers[k // 2], powers[k - k // 2], out=powers[k])
        y, below = xp.matmul(xp.asarray(_FRACTION, x.dtype), powers, out=two)
        y /= below
        y += _START
        y *= x
        return xp.tanh(y, out=y)

    def backward(self, gy: Any) -> Any:
        (x,) = self.get_retained_inputs()
        return lambda: gy * exp.generic(-(x * x)) * (2 / math.sqrt(math.pi))


class Gelu(GenericFunction):
    """x Φ(x), where Φ is the share of normal numbers below x, or an approximation by tanh; ``gx =
    (Φ + x Φ′) gy``.

    In passes over blocks that stay in the cache; so the slope Φ + x Φ′ is found there, too, and
    backward reads that, not x. Where a library finds Φ in one pass, backward does so once more:
    that takes no longer, and an array less is kept.
    """

    def __init__(self, by_tanh: bool) -> None:
        self.by_tanh = by_tanh

    def forward(self, x: Array) -> Array:
        self.retain_inputs((0,))
        xp = backend.get_array_module(x)
        flat = _flat(x, x)
        y = xp.empty_like(flat)
        keeps = self.differentiable and (self.by_tanh or not fills("CdfNorm", flat))
        self.slope: Array | None = xp.empty_like(flat) if keeps else None
        for place, room in _blocks(xp, flat):
            part = flat[place]
            phi = (y if self.slope is None else self.slope)[place]
            squared = self._below(xp, part, phi, room)
            xp.multiply(part, phi, out=y[place])
            if self.slope is not None:
                self._add_rest(xp, part, phi, room, squared)
        return _shaped(y, x)

    def _below(self, xp: ArrayModule, x: Array, phi: Array, square: Array) -> bool:
        """phi ← Φ(x); whether x² is left in ``square``."""
        if not self.by_tanh and fill("CdfNorm", x, phi):
            return False
        squared = self.by_tanh or x.dtype.itemsize <= 4
        if squared:
            _tanh_of(xp, x, _TANH if self.by_tanh else _EXACT, phi, square)
        else:
            phi[...] = Erf.fine(xp, x * math.sqrt(0.5))
        phi += 1
        phi *= 0.5
        return squared

    def _add_rest(self, xp: ArrayModule, x: Array, phi: Array, room: Array, squared: bool) -> None:
        """Φ → Φ + x Φ′, in place; ``squared``: x² is in ``room``."""
        if not squared:
            xp.multiply(x, x, out=room)
        self._density(xp, phi, room)
        room *= x
        phi += room

    def backward(self, gy: Any) -> Any:
        (x,) = self.get_retained_inputs()
        return lambda: (
            gy * self._slope(x)
            if isinstance(x, Variable)
            else _shaped(self._times_slope(_flat(gy, x), x), x)
        )

    def _times_slope(self, gy: Array, x: Array) -> Array:
        if self.slope is not None:
            return gy * self.slope
        xp = backend.get_array_module(x)
        flat = _flat(x, x)
        gx = xp.empty_like(flat)
        for place, room in _blocks(xp, flat):
            part = flat[place]
            slope = gx[place]
            self._add_rest(xp, part, slope, room, self._below(xp, part, slope, room))
            slope *= gy[place]
        return gx

    def _density(self, xp: ArrayModule, phi: Array, y: Array) -> None:
        """x² → Φ′(x), in place."""
        if self.by_tanh:  # Φ = (1 + tanh u) / 2, so Φ′ = 2 Φ (1 − Φ) u′
            xp.minimum(y, 1e3, out=y)  # where the rest is 0
            y *= 6 * _TANH[1]
            y += 2 * _TANH[0]
            rest = 1 - phi
            rest *= phi
            y *= rest
        else:
            y *= -0.5
            if not fill("Exp", y, y):
                xp.exp(y, out=y)
            y *= _HEIGHT

    def _slope(self, x: Variable) -> Variable:
        """Φ + x Φ′ as a function of the Variable x."""
        square = x * x
        if self.by_tanh:
            phi = (tanh(x * (square * _TANH[1] + _TANH[0])) + 1) * 0.5
            density = phi * (1 - phi) * (square * (6 * _TANH[1]) + 2 * _TANH[0])
        else:
            phi = (erf(x * math.sqrt(0.5)) + 1) * 0.5
            density = exp(square * -0.5) * _HEIGHT
        slope: Variable = phi + x * density
        return slope


def _flat(y: Array, x: Array) -> Array:
    """All of y, wide, in the order in which x lies in memory: without a copy, if y lies so too."""
    return upcast_halves(y).transpose(backend.memory_order(x)).reshape(-1)


def _shaped(flat: Array, x: Array) -> Array:
    """What was computed for x so, as x is."""
    order = backend.memory_order(x)
    shape = [x.shape[axis] for axis in order]
    places = sorted(range(x.ndim), key=order.__getitem__)
    return flat.reshape(shape).transpose(places).astype(x.dtype, copy=False)


def _blocks(xp: ArrayModule, x: Array) -> Iterator[tuple[slice, Array]]:
    """Places in a vector, each with room for as many elements; of what overflows there nothing is
    said.
    """
    n = _block(x)
    room = xp.empty(min(n, x.size), x.dtype)
    with np.errstate(over="ignore"):
        for start in range(0, x.size, n):
            yield slice(start, start + n), room[: x.size - start]


def _block(x: Array) -> int:
    """How many elements of a few arrays stay in the cache together."""
    return backend.block_bytes(x) // (64 if x.itemsize <= 4 else 256)  # of float64 with its powers


def erf(x: Any) -> Variable:
    """The error function, 2 / √π ∫₀ˣ e^(−t²) dt, to 3 units of the last digit.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.erf(np.array([0.5, 10.0])).array.round(6)
        array([0.5205, 1.    ])
    """
    return Erf().apply((x,))[0]


def gelu(x: Any, approximate: str = "none") -> Variable:
    """``x`` times the probability that a normal number is below it (Hendrycks and Gimpel 2016,
    arXiv 1606.08415).

    Args:
        x: an array or Variable.
        approximate: ``'none'`` for x (1 + erf(x / √2)) / 2, ``'tanh'`` for x (1 + tanh(√(2 / π) (x
            + 0.044715 x³))) / 2.

    Returns:
        The shape of ``x``.

    Raises:
        ValueError: there is no such approximation.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.gelu(np.array([-1.0, 1.0])).array.round(4)
        array([-0.1587,  0.8413])
    """
    check_option("gelu", "approximate", approximate, "none", "tanh")
    return Gelu(approximate == "tanh").apply((x,))[0]
