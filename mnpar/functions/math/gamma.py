"""The gamma function's logarithm, its derivatives, and the sums that these are: lgamma, digamma,
polygamma, zeta.

Where x is large, each is an asymptotic series in 1 / x; a small x is first moved up by 10 with the
recurrence, a negative one reflected. Computed in float64, also of smaller floats, and good to 10⁻¹⁴
(of 1, where the result is smaller than that). Source: Abramowitz and Stegun, "Handbook of
mathematical functions", 6.1, 6.3, 6.4 and 23.1.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.function_node import FunctionNode
from mnpar.functions.array.broadcast import fit
from mnpar.functions.math.normal_distribution import in_double
from mnpar.functions.node import either, plain
from mnpar.variable import Variable

BERNOULLI = (
    1 / 6,
    -1 / 30,
    1 / 42,
    -1 / 30,
    5 / 66,
    -691 / 2730,
    7 / 6,
    -3617 / 510,
    43867 / 798,
    -174611 / 330,
)


"""B₂, B₄, B₆, …"""


STEPS, FAR = 10, 1000


def _series(z: Array, factors: list[float]) -> Any:
    """Σ_k factors[k] z^(−2k)."""
    square, total = 1 / (z * z), 0.0
    for factor in reversed(factors):
        total = total * square + factor
    return total


def _log_gamma(xp: Any, x: Array) -> Array:
    a = xp.where(x < 0, 1 - x, x)
    low, product = a < STEPS, 1.0
    for k in range(STEPS):
        product = product * xp.where(low, a + k, 1)
    z = xp.where(low, a + STEPS, a)
    series = _series(z, [b / (2 * k * (2 * k - 1)) for k, b in enumerate(BERNOULLI, 1)]) / z
    y = (z - 0.5) * xp.log(z) - z + (math.log(2 * math.pi) / 2 + series) - xp.log(product)
    y = xp.where(xp.isinf(a), a, y)
    return xp.where(
        x < 0, math.log(math.pi) - xp.log(abs(xp.sin(math.pi * (x - xp.round(x))))) - y, y
    )


def _digamma(xp: Any, x: Array) -> Array:
    a = xp.where(x < 0, 1 - x, x)
    low, moved = a < STEPS, 0.0
    for k in range(STEPS):
        moved = moved + xp.where(low, 1 / (a + k), 0)
    z = xp.where(low, a + STEPS, a)
    series = _series(z, [b / (2 * k) for k, b in enumerate(BERNOULLI, 1)]) / (z * z)
    y = xp.log(z) - 0.5 / z - series - moved
    turn = x - xp.round(x)
    return xp.where(x < 0, y - math.pi / xp.tan(xp.where(turn == 0, np.nan, math.pi * turn)), y)


def _zeta(xp: Any, x: Array, q: Array) -> Array:
    """Σ_k (q + k)^(−x): some terms, and the rest as an integral with Euler's and Maclaurin's
    corrections.
    """
    q = xp.where(q < -FAR, np.nan, q)
    steps = STEPS + (
        math.ceil(max(0.0, -float(xp.nanmin(q)))) if q.size and not xp.isnan(q).all() else 0
    )
    total = 0.0
    for k in range(steps):
        total = total + (q + k) ** -x
    z, factor = q + steps, x
    total = total + z ** (1 - x) / (x - 1) + z**-x / 2
    power = z ** (-x - 1)
    for k, b in enumerate(BERNOULLI, 1):
        total = total + b / math.factorial(2 * k) * factor * power
        factor = factor * (x + 2 * k - 1) * (x + 2 * k)
        power = power / (z * z)
    return xp.where(x > 1, total, xp.where(x == 1, np.inf, np.nan))


class LGamma(FunctionNode):
    """``y = log |Γ(x)|``; ``gx = gy ψ(x)``, where ψ is the digamma function."""

    generic = True

    def forward(self, x: Array) -> Array:
        self.retain_inputs((0,))
        return in_double(_log_gamma, x)

    def backward(self, gy: Any) -> Any:
        (x,) = self.get_retained_inputs()
        return lambda: gy * either(DiGamma(), x)


class DiGamma(FunctionNode):
    """``y = ψ(x) = Γ′(x) / Γ(x)``; ``gx = gy ψ′(x)``, the polygamma function of order 1."""

    generic = True

    def forward(self, x: Array) -> Array:
        self.retain_inputs((0,))
        return in_double(_digamma, x)

    def backward(self, gy: Any) -> Any:
        (x,) = self.get_retained_inputs()
        return lambda: gy * either(PolyGamma(backend.to_device_of(np.array(1.0), plain(x))), x)


class PolyGamma(FunctionNode):
    """(−1)^(n + 1) n! ζ(n + 1, x); n = 0 is the digamma function."""

    generic = True

    def __init__(self, n: Array) -> None:
        self.n = n

    def forward(self, x: Array) -> Array:
        self.retain_inputs((0,))

        def derivative(xp: Any, x: Array) -> Array:
            n = self.n.astype("d")
            zeta = xp.exp(_log_gamma(xp, n + 1)) * _zeta(xp, n + 1, x)
            return xp.where(n == 0, _digamma(xp, x), xp.where(n % 2 == 1, zeta, -zeta))

        return in_double(derivative, x)

    def backward(self, gy: Any) -> Any:
        (x,) = self.get_retained_inputs()
        return lambda: fit(gy * either(PolyGamma(self.n + 1), x), x.shape)


class Zeta(FunctionNode):
    """``y = ζ(x, q) = Σₖ (q + k)⁻ˣ`` as a function of ``q``; ``gq = -x ζ(x + 1, q) gy``."""

    generic = True

    def __init__(self, x: Array) -> None:
        self.x = x

    def forward(self, q: Array) -> Array:
        self.retain_inputs((0,))
        return in_double(lambda xp, q: _zeta(xp, self.x.astype("d"), q), q)

    def backward(self, gy: Any) -> Any:
        (q,) = self.get_retained_inputs()
        return lambda: fit(gy * either(Zeta(self.x + 1), q) * (-self.x).astype(q.dtype), q.shape)


def lgamma(x: Any) -> Variable:
    """log ``|Γ(x)|``; ∞ at 0, −1, −2, ….

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.lgamma(np.array([0.5, 1.0, 5.0])).array.round(4) + 0.0
        array([0.5724, 0.    , 3.1781])
    """
    return LGamma().apply((x,))[0]


def digamma(x: Any) -> Variable:
    """The derivative of log Γ(x); NaN at −1, −2, ….

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.digamma(np.array([1.0, 10.0])).array.round(4)
        array([-0.5772,  2.2518])
    """
    return DiGamma().apply((x,))[0]


def polygamma(n: Any, x: Any) -> Variable:
    """The n-th derivative of :func:`digamma`.

    Args:
        n: whole numbers from 0 on, an array or Variable; nothing flows back to them. Broadcast with
            ``x``.
        x: floats, from −1000 on if n is not 0: the result is NaN below.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.polygamma(np.array([0, 1, 2]), np.array(1.0)).array.round(4)
        array([-0.5772,  1.6449, -2.4041])
    """
    return PolyGamma(_constant(n, x)).apply((x,))[0]


def zeta(x: Any, q: Any) -> Variable:
    """Hurwitz' function, the sum of (q + k)^(−x) over k = 0, 1, 2, …

    Args:
        x: floats above 1 (∞ at 1, NaN below), an array or Variable; nothing flows back to them.
            Broadcast with ``q``.
        q: floats from 0 on, for whole x from −1000 on: the result is NaN below.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.zeta(np.array(2.0), np.array([1.0, 2.0])).array.round(4)
        array([1.6449, 0.6449])
    """
    return Zeta(_constant(x, q)).apply((q,))[0]


def _constant(n: Any, x: Any) -> Array:
    """A first argument as an array, where x is."""
    return (
        backend.to_device_of(np.asarray(plain(n), "d"), plain(x))
        if not backend.is_array(plain(n))
        else plain(n)
    )
