"""The error function of arrays, and gelu and its slope, which are made of it.

numpy has none, and scipy's takes twice as long in float64, eight times in float32. Here it is
tanh(x P(x²)): artanh(erf(x)) / x is so smooth that a polynomial of degree 7 is enough for float32,
and one of degree 8 over another for float64, fitted here for the smallest largest error of the
result: 3 units of the last digit, half a unit on average. The two for float64 have positive
coefficients, so that nothing cancels, and are one product of a matrix with the powers of x². MKL,
where it is installed, has its own (blas.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array, ArrayModule
from mnpar.kernels.blas import can_compute_by_mkl, compute_by_mkl
from mnpar.kernels.compiler import Formula, formula
from mnpar.kernels.dtypes import upcast_halves
from mnpar.kernels.fused import fused
from mnpar.kernels.scalar import exp, logistic, one_plus_exp, tanh

_START = 1.1283791670955124
# artanh(erf(x)) / x, of x² up to 36, beyond which erf(x) is 1: what is added to its value at 0, one
# row over the other
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
_FAR = 36.0
# artanh(erf(x)) / x, of x²
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
_EXACT = tuple(c * 0.5 ** (k + 0.5) for k, c in enumerate(_ARGUMENT))  # of x / √2
_ODDS = tuple(-2.0 * c for c in _EXACT)
_ABOVE, _BELOW = [tuple(map(float, row[1:])) for row in _FRACTION]
_SQRT_HALF = math.sqrt(0.5)
HEIGHT = 1 / math.sqrt(2 * math.pi)  # of the normal density at 0
# √(2/π) and 0.044715 √(2/π), of the approximation
TANH = math.sqrt(2 / math.pi), math.sqrt(2 / math.pi) * 0.044715
_TANH_1, _TANH_3 = TANH


def _erf_in_blocks(xp: ArrayModule, x: Array) -> Array:
    flat = _flat(x, x)
    y = xp.empty_like(flat)
    for place, room in _blocks(xp, flat):
        if compute_by_mkl("Erf", flat[place], y[place]):
            continue
        if flat.dtype.itemsize > 4:
            y[place] = _erf_of_double(xp, flat[place])
        else:
            _tanh_of(xp, flat[place], _ARGUMENT, y[place], room)
    return _shaped(y, x)


def _erf_of_double(xp: ArrayModule, x: Array) -> Array:
    """Return erf(x) to the last digits of float64."""
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


@formula
def _polynomial(c: Any, s: Any) -> Any:
    """c₀ + c₁ s + … + c₇ s⁷"""
    p = c[7] * s + c[6]
    p = p * s + c[5]
    p = p * s + c[4]
    p = p * s + c[3]
    p = p * s + c[2]
    p = p * s + c[1]
    return p * s + c[0]


@formula
def _argument_f(x: Any) -> Any:
    """artanh(erf(x)), in float32."""
    return _polynomial(_ARGUMENT, x * x) * x


@formula
def _argument_d(x: Any) -> Any:
    """artanh(erf(x)), in float64."""
    s = x * x
    s = _FAR if s > _FAR else s
    below = _polynomial(_BELOW, s) * s + 1.0
    return (_polynomial(_ABOVE, s) * s / below + _START) * x


_artanh_erf = Formula({"f": _argument_f, "d": _argument_d})


@formula
def _odds_f(x: Any) -> Any:
    """-2 artanh(erf(x / √2)), in float32."""
    return _polynomial(_ODDS, x * x) * x


@formula
def _odds_d(x: Any) -> Any:
    return -2.0 * _argument_d(x * _SQRT_HALF)


_log_odds = Formula({"f": _odds_f, "d": _odds_d})  # of a normal number to be above x


@fused(twin=_erf_in_blocks, least="COSTLY_LEAST")
def erf(x: Any) -> Any:
    """Return 2 / √π ∫₀ˣ e^(−t²) dt."""
    return tanh(_artanh_erf(x))


@formula
def _normal_share(x: Any) -> Any:
    """Φ(x), the share of normal numbers below x."""
    return 1.0 / one_plus_exp(_log_odds(x))


@fused(
    twin=lambda xp, x: BlockedGelu(False)._forward_in_blocks(x, False),
    least="COSTLY_LEAST",
)
def _gelu(x: Any) -> Any:
    """x Φ(x)"""
    return x / one_plus_exp(_log_odds(x))


@fused(
    twin=lambda xp, g, x: BlockedGelu(False)._gradient_in_blocks(x, g),
    least="COSTLY_LEAST",
)
def _gelu_gradient(g: Any, x: Any) -> Any:
    """(Φ + x Φ′) g"""
    return (_normal_share(x) + x * (exp(-0.5 * x * x) * HEIGHT)) * g


@formula
def _share_by_tanh(x: Any) -> Any:
    """(1 + tanh u) / 2 with u = √(2 / π) (x + 0.044715 x³)."""
    return logistic(2.0 * (x * (x * x * _TANH_3 + _TANH_1)))


@fused(
    twin=lambda xp, x: BlockedGelu(True)._forward_in_blocks(x, False),
    least="COSTLY_LEAST",
)
def _gelu_by_tanh(x: Any) -> Any:
    return x * _share_by_tanh(x)


@fused(
    twin=lambda xp, g, x: BlockedGelu(True)._gradient_in_blocks(x, g),
    least="COSTLY_LEAST",
)
def _gelu_by_tanh_gradient(g: Any, x: Any) -> Any:
    p = _share_by_tanh(x)
    s = x * x
    s = 1e3 if s > 1e3 else s  # where the rest is 0
    return (p + x * (2.0 * p * (1.0 - p) * (s * (3.0 * _TANH_3) + _TANH_1))) * g


class BlockedGelu:
    """x Φ(x), where Φ is the share of normal numbers below x, or an approximation by tanh.

    It is computed in passes over blocks that stay in the cache; so the slope Φ + x Φ′ is found
    there, too, and backward reads that, not x. Where a library finds Φ in one pass, backward does
    so once more: that takes no longer, and an array less is kept.
    """

    def __init__(self, by_tanh: bool) -> None:
        self.by_tanh = by_tanh
        self.slope: Array | None = None

    def forward(self, x: Array, differentiable: bool) -> Array:
        """Return x Φ(x); ``differentiable``: :meth:`gradient` will be asked for."""
        if (loop := _gelu_by_tanh if self.by_tanh else _gelu).takes(x):
            return loop(x)
        return self._forward_in_blocks(x, differentiable)

    def _forward_in_blocks(self, x: Array, differentiable: bool) -> Array:
        xp = backend.get_array_module(x)
        flat = _flat(x, x)
        y = xp.empty_like(flat)
        keeps = differentiable and (self.by_tanh or not can_compute_by_mkl("CdfNorm", flat))
        self.slope = xp.empty_like(flat) if keeps else None
        for place, room in _blocks(xp, flat):
            part = flat[place]
            phi = (y if self.slope is None else self.slope)[place]
            squared = self._below(xp, part, phi, room)
            xp.multiply(part, phi, out=y[place])
            if self.slope is not None:
                self._add_rest(xp, part, phi, room, squared)
        return _shaped(y, x)

    def gradient(self, x: Array, gy: Array) -> Array:
        """Return (Φ + x Φ′) gy."""
        loop = _gelu_by_tanh_gradient if self.by_tanh else _gelu_gradient
        if self.slope is None and loop.takes(x):
            return loop(gy, x)
        return self._gradient_in_blocks(x, gy)

    def _gradient_in_blocks(self, x: Array, gy: Array) -> Array:
        return _shaped(self._times_slope(_flat(gy, x), x), x)

    def _below(self, xp: ArrayModule, x: Array, phi: Array, square: Array) -> bool:
        """phi ← Φ(x); whether x² is left in ``square``."""
        if not self.by_tanh and compute_by_mkl("CdfNorm", x, phi):
            return False
        squared = self.by_tanh or x.dtype.itemsize <= 4
        if squared:
            _tanh_of(xp, x, TANH if self.by_tanh else _EXACT, phi, square)
        else:
            phi[...] = _erf_of_double(xp, x * math.sqrt(0.5))
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
            y *= 6 * TANH[1]
            y += 2 * TANH[0]
            rest = 1 - phi
            rest *= phi
            y *= rest
        else:
            y *= -0.5
            if not compute_by_mkl("Exp", y, y):
                xp.exp(y, out=y)
            y *= HEIGHT


def _flat(y: Array, x: Array) -> Array:
    """Return y as a vector in the order in which x lies in memory, halves in float32: without a
    copy if y lies in the same order.
    """
    return upcast_halves(y).transpose(backend.memory_order(x)).reshape(-1)


def _shaped(flat: Array, x: Array) -> Array:
    """Return the result in the shape and the memory order of x."""
    order = backend.memory_order(x)
    shape = [x.shape[axis] for axis in order]
    places = sorted(range(x.ndim), key=order.__getitem__)
    return flat.reshape(shape).transpose(places).astype(x.dtype, copy=False)


def _blocks(xp: ArrayModule, x: Array) -> Iterator[tuple[slice, Array]]:
    """Yield places in a vector, each with room for as many elements; overflow there gives no
    warning.
    """
    n = _block(x)
    room = xp.empty(min(n, x.size), x.dtype)
    with np.errstate(over="ignore"):
        for start in range(0, x.size, n):
            yield slice(start, start + n), room[: x.size - start]


def _block(x: Array) -> int:
    """Return how many elements of a few arrays stay in the cache together."""
    return backend.block_bytes(x) // (64 if x.itemsize <= 4 else 256)  # of float64 with its powers
