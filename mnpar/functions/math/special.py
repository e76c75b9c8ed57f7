"""The special functions of scipy (of CuPy on GPUs): complements and inverses of the error function,
the normal distribution, and the gamma function's logarithm with its derivatives.

They are computed in float64, also of smaller floats. The error function itself, which gelu needs in
each step, is a kernel of its own (kernels/erf.py).
"""

from __future__ import annotations

import math

import numpy as np

from mnpar import backend
from mnpar.backend import Array, ArrayModule
from mnpar.function_node import InputGradients
from mnpar.functions.array.broadcast import unbroadcast
from mnpar.functions.math.exponential import exp
from mnpar.functions.node import GenericFunction, array_of, elementwise
from mnpar.kernels.dtypes import floating_dtype
from mnpar.variable import Variable

_ROOT_PI = math.sqrt(math.pi)


def _compute(name: str, x: Array, *before: Array) -> Array:
    """Return scipy's function of that name, of ``before`` and x, in x's floating dtype; infinite
    values are results as others, without a warning.
    """
    if x.dtype.kind == "c":
        raise TypeError(
            f"functions of the normal distribution and of gamma take real numbers, not {x.dtype}"
        )
    function = getattr(backend.special_functions(x), name)
    with np.errstate(all="ignore"):
        y = function(*before, x.astype("d"))
    result: Array = y.astype(floating_dtype(x.dtype))
    return result


# ---- the error function's complement, and inverses ----


@elementwise(gradient=lambda gy, x: gy * exp.generic(-(x * x)) * (-2 / _ROOT_PI))
def erfc(xp: ArrayModule, x: Array) -> Array:
    """Return 1 − erf(x), with all its digits where that is nearly 0.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.erfc(np.array([0.0, 10.0])).array
        array([1.00000000e+00, 2.08848758e-45])
    """
    return _compute("erfc", x)


@elementwise(gradient=lambda gy, x, y: gy * (x * y * 2 - 2 / _ROOT_PI))
def erfcx(xp: ArrayModule, x: Array) -> Array:
    """Return e^(x²) erfc(x): about 1 / (x √π) for large x, where both factors leave the floats.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.erfcx(np.array([0.0, 100.0])).array.round(6)
        array([1.      , 0.005642])
    """
    return _compute("erfcx", x)


@elementwise(gradient=lambda gy, y: gy * exp.generic(y * y) * (_ROOT_PI / 2))
def erfinv(xp: ArrayModule, x: Array) -> Array:
    """Return the number whose erf is x: NaN where x is not from −1 to 1.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.erfinv(np.array([0.0, 0.5, 1.0])).array.round(4)
        array([0.    , 0.4769,    inf])
    """
    return _compute("erfinv", x)


@elementwise(gradient=lambda gy, y: gy * exp.generic(y * y) * (_ROOT_PI / -2))
def erfcinv(xp: ArrayModule, x: Array) -> Array:
    """Return the number whose erfc is x: NaN where x is not from 0 to 2.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.erfcinv(np.array([1.0, 1e-40])).array.round(4) + 0.0
        array([0.    , 9.4488])
    """
    return _compute("erfcinv", x)


# ---- the normal distribution ----


@elementwise(gradient=lambda gy, x: gy * exp.generic(x * x * -0.5) / math.sqrt(2 * math.pi))
def ndtr(xp: ArrayModule, x: Array) -> Array:
    """Return Φ(x), the probability that a normal number is below x.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.ndtr(np.array([0.0, 2.0])).array.round(4)
        array([0.5   , 0.9772])
    """
    return _compute("ndtr", x)


@elementwise(gradient=lambda gy, x, y: gy * (y * (x + y)) * -1)
def _inverse_mills_ratio(xp: ArrayModule, x: Array) -> Array:
    """Return Φ′(x) / Φ(x), the derivative of log Φ, without the underflow of both."""
    erfcx = _compute("erfcx", x.astype("d") * -math.sqrt(0.5))
    with np.errstate(all="ignore"):
        return (math.sqrt(2 / math.pi) / erfcx).astype(floating_dtype(x.dtype))


@elementwise(gradient=lambda gy, x: gy * _inverse_mills_ratio.generic(x))
def log_ndtr(xp: ArrayModule, x: Array) -> Array:
    """Return log Φ(x), exact also where Φ(x) is too small for a float.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.log_ndtr(np.array([-100.0, 0.0])).array.round(4)
        array([-5.0055242e+03, -6.9310000e-01])
    """
    return _compute("log_ndtr", x)


@elementwise(gradient=lambda gy, y: gy * exp.generic(y * y * 0.5) * math.sqrt(2 * math.pi))
def ndtri(xp: ArrayModule, x: Array) -> Array:
    """Return the number below which a normal number is with probability x: NaN where x is not from
    0 to 1.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.ndtri(np.array([0.5, 0.975])).array.round(4)
        array([0.  , 1.96])
    """
    return _compute("ndtri", x)


# ---- the gamma function's logarithm, its derivatives, and the sums that these are ----


@elementwise(gradient=lambda gy, x: gy * PolyGamma(_beside(1, x))(x), name="DiGamma")
def digamma(xp: ArrayModule, x: Array) -> Array:
    """Return the derivative of log Γ(x); NaN at −1, −2, ….

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.digamma(np.array([1.0, 10.0])).array.round(4)
        array([-0.5772,  2.2518])
    """
    return _compute("digamma", x)


@elementwise(gradient=lambda gy, x: gy * digamma.generic(x), name="LGamma")
def lgamma(xp: ArrayModule, x: Array) -> Array:
    """Return log ``|Γ(x)|``; ∞ at 0, −1, −2, ….

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.lgamma(np.array([0.5, 1.0, 5.0])).array.round(4) + 0.0
        array([0.5724, 0.    , 3.1781])
    """
    return _compute("gammaln", x)


class PolyGamma(GenericFunction):
    """``y = (−1)ⁿ⁺¹ n! ζ(n + 1, x)``, for n = 0 the digamma function; ``gx = gy`` times the same of
    order n + 1.
    """

    def __init__(self, n: Array) -> None:
        self.n = n

    def forward(self, x: Array) -> Array:
        self.retain_inputs((0,))
        return _compute("polygamma", x, self.n.astype("d"))

    def backward(self, gy: Variable | Array) -> InputGradients:
        (x,) = self.get_retained_inputs()
        return lambda: unbroadcast(gy * PolyGamma(self.n + 1)(x), x.shape)


def polygamma(n: Variable | Array | float, x: Variable | Array) -> Variable:
    """Return the n-th derivative of :func:`digamma`.

    Args:
        n: whole numbers from 0 on, an array or Variable; nothing flows back to them. Broadcast with
            ``x``.
        x: floats, an array or Variable.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.polygamma(np.array([0, 1, 2]), np.array(1.0)).array.round(4)
        array([-0.5772,  1.6449, -2.4041])
    """
    return PolyGamma(_beside(n, x)).apply((x,))[0]


class Zeta(GenericFunction):
    """``y = ζ(x, q) = Σₖ (q + k)⁻ˣ`` as a function of ``q``; ``gq = -x ζ(x + 1, q) gy``."""

    def __init__(self, x: Array) -> None:
        self.x = x

    def forward(self, q: Array) -> Array:
        self.retain_inputs((0,))
        return _compute("zeta", q, self.x.astype("d"))

    def backward(self, gy: Variable | Array) -> InputGradients:
        (q,) = self.get_retained_inputs()
        return lambda: unbroadcast(gy * Zeta(self.x + 1)(q) * (-self.x).astype(q.dtype), q.shape)


def zeta(x: Variable | Array | float, q: Variable | Array) -> Variable:
    """Return Hurwitz' zeta function, the sum of (q + k)^(−x) over k = 0, 1, 2, …

    Args:
        x: floats above 1 (∞ at 1, NaN below), an array or Variable; nothing flows back to them.
            Broadcast with ``q``.
        q: floats from 0 on, or below 0 for whole x.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.zeta(np.array(2.0), np.array([1.0, 2.0])).array.round(4)
        array([1.6449, 0.6449])
    """
    return Zeta(_beside(x, q)).apply((q,))[0]


def _beside(n: Variable | Array | float, x: Variable | Array) -> Array:
    """A first argument as an array, on the device of x."""
    n = array_of(n)
    return n if backend.is_array(n) else backend.to_device_of(np.asarray(n, "d"), array_of(x))
