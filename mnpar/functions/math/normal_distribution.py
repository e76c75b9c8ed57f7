"""The normal distribution function, its logarithm and its inverse, and erfc, erfcx and their
inverses.

All are made of two: e^(x²) erfc(x), which neither vanishes nor overflows where x is positive (by W.
J. Cody, "Rational Chebyshev approximations for the error function", Math. Comp. 23 (1969)), and the
quantile, by M. J. Wichura's "Algorithm AS 241: the percentage points of the normal distribution",
Applied Statistics 37 (1988). Both are good to some units of the last digit of float64, in which all
is computed, also of smaller floats. The file is long because of the coefficients.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.function_node import FunctionNode
from mnpar.functions.math.exponential import Exp
from mnpar.functions.node import either, fractional
from mnpar.variable import Variable, as_variable

# erf(x) / x, of x², to 0.46875
_SMALL = (
    (
        1.85777706184603153e-1,
        3.16112374387056560e0,
        1.13864154151050156e2,
        3.77485237685302021e2,
        3.20937758913846947e3,
    ),
    (
        1.0,
        2.36012909523441209e1,
        2.44024637934444173e2,
        1.28261652607737228e3,
        2.84423683343917062e3,
    ),
)

_MIDDLE = (
    (
        2.15311535474403846e-8,
        5.64188496988670089e-1,
        8.88314979438837594e0,
        6.61191906371416295e1,
        2.98635138197400131e2,
        8.81952221241769090e2,
        1.71204761263407058e3,
        2.05107837782607147e3,
        1.23033935479799725e3,
    ),
    (
        1.0,
        1.57449261107098347e1,
        1.17693950891312499e2,
        5.37181101862009858e2,
        1.62138957456669019e3,
        3.29079923573345963e3,
        4.36261909014324716e3,
        3.43936767414372164e3,
        1.23033935480374942e3,
    ),
)


"""e^(x²) (1 − erf(x)), of x, to 4."""


_LARGE = (
    (
        1.63153871373020978e-2,
        3.05326634961232344e-1,
        3.60344899949804439e-1,
        1.25781726111229246e-1,
        1.60837851487422766e-2,
        6.58749161529837803e-4,
    ),
    (
        1.0,
        2.56852019228982242e0,
        1.87295284992346725e0,
        5.27905102951428412e-1,
        6.05183413124413191e-2,
        2.33520497626869185e-3,
    ),
)


"""1 / √π − x e^(x²) (1 − erf(x)), divided by 1 / x², of 1 / x²."""


_ROOT = math.sqrt(math.pi)

_CENTRE = (
    (
        2.5090809287301226727e3,
        3.3430575583588128105e4,
        6.7265770927008700853e4,
        4.5921953931549871457e4,
        1.3731693765509461125e4,
        1.9715909503065514427e3,
        1.3314166789178437745e2,
        3.3871328727963666080e0,
    ),
    (
        5.2264952788528545610e3,
        2.8729085735721942674e4,
        3.9307895800092710610e4,
        2.1213794301586595867e4,
        5.3941960214247511077e3,
        6.8718700749205790830e2,
        4.2313330701600911252e1,
        1.0,
    ),
)


"""The quantile divided by q, of 0.180625 − q², where q is the probability less ½, to ±0.425."""


_SIDES = (
    (
        7.74545014278341407640e-4,
        2.27238449892691845833e-2,
        2.41780725177450611770e-1,
        1.27045825245236838258e0,
        3.64784832476320460504e0,
        5.76949722146069140550e0,
        4.63033784615654529590e0,
        1.42343711074968357734e0,
    ),
    (
        1.05075007164441684324e-9,
        5.47593808499534494600e-4,
        1.51986665636164571966e-2,
        1.48103976427480074590e-1,
        6.89767334985100004550e-1,
        1.67638483018380384940e0,
        2.05319162663775882187e0,
        1.0,
    ),
)


"""The quantile, of √(−log r) − 1.6, where r is the smaller probability, to 5 of that root."""


_TAILS = (
    (
        2.01033439929228813265e-7,
        2.71155556874348757815e-5,
        1.24266094738807843860e-3,
        2.65321895265761230930e-2,
        2.96560571828504891230e-1,
        1.78482653991729133580e0,
        5.46378491116411436990e0,
        6.65790464350110377720e0,
    ),
    (
        2.04426310338993978564e-15,
        1.42151175831644588870e-7,
        1.84631831751005468180e-5,
        7.86869131145613259100e-4,
        1.48753612908506148525e-2,
        1.36929880922735805310e-1,
        5.99832206555887937690e-1,
        1.0,
    ),
)


"""The quantile, of √(−log r) − 5, beyond."""


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


def in_double(function: Callable[[Any, Array], Array], x: Array) -> Array:
    """A function of (xp, float64) of real numbers, in the dtype of floats; infinite values are
    meant, without a warning.
    """
    if x.dtype.kind == "c":
        raise TypeError(
            f"functions of the normal distribution and of gamma take real numbers, not {x.dtype}"
        )
    with np.errstate(all="ignore"):
        return function(backend.get_array_module(x), x.astype("d")).astype(fractional(x.dtype))


def _positive(xp: Any, a: Array) -> Array:
    """e^(a²) erfc(a) of a ≥ 0.47."""
    middle = xp.minimum(a, 4)
    high = xp.maximum(a, 4)
    z = 1 / (high * high)
    return xp.where(a <= 4, _ratio(_MIDDLE, middle), (1 / _ROOT - z * _ratio(_LARGE, z)) / high)


def _near(xp: Any, x: Array) -> Array:
    """erf(x), where x is within 0.46875 of 0."""
    x = xp.clip(x, -0.46875, 0.46875)
    return x * _ratio(_SMALL, x * x)


def _bell(xp: Any, x: Array) -> Array:
    """e^(−x²): x is split, because the rounding of x² would cost as many digits as x² has before
    the point.
    """
    first = xp.trunc(x * 16) / 16
    return xp.where(abs(x) < 30, xp.exp(-first * first) * xp.exp((first - x) * (first + x)), 0)


def _scaled(xp: Any, x: Array) -> Array:
    a = xp.maximum(abs(x), 0.46875)
    far = xp.where(x < 0, 2 / _bell(xp, a) - _positive(xp, a), _positive(xp, a))
    return xp.where(
        abs(x) <= 0.46875, xp.exp(x * x) * (1 - _near(xp, x)), xp.where(xp.isnan(x), x, far)
    )


def _complement(xp: Any, x: Array) -> Array:
    a = xp.maximum(abs(x), 0.46875)
    far = _bell(xp, a) * _positive(xp, a)
    return xp.where(
        abs(x) <= 0.46875, 1 - _near(xp, x), xp.where(xp.isnan(x), x, xp.where(x < 0, 2 - far, far))
    )


def _quantile(xp: Any, q: Array, r: Array) -> Array:
    """Of the probability ½ + q, where ``r`` is the smaller of it and its complement; ±∞ of 0 and 1,
    NaN beyond.
    """
    root = xp.sqrt(-xp.log(r))
    inner = xp.minimum(root, 5) - 1.6
    outer = xp.clip(root, 5, 30) - 5
    tail = xp.where(root <= 5, _ratio(_SIDES, inner), _ratio(_TAILS, outer))
    tail = xp.copysign(xp.where(r == 0, np.inf, xp.where(r > 0, tail, np.nan)), q)
    centre = xp.clip(q, -0.425, 0.425)
    return xp.where(abs(q) <= 0.425, centre * _ratio(_CENTRE, 0.180625 - centre * centre), tail)


class Erfc(FunctionNode):
    """``y = 1 - erf x``; ``gx = -2/√π e^(-x²) gy``."""

    generic = True

    def forward(self, x: Array) -> Array:
        self.retain_inputs((0,))
        return in_double(_complement, x)

    def backward(self, gy: Any) -> Any:
        (x,) = self.get_retained_inputs()
        return lambda: gy * either(Exp(), -(x * x)) * (-2 / _ROOT)


class Erfcx(FunctionNode):
    """``y = e^(x²) erfc x``; ``gx = (2 x y - 2/√π) gy``."""

    generic = True

    def forward(self, x: Array) -> Array:
        self.retain_inputs((0,))
        self.retain_outputs((0,))
        return in_double(_scaled, x)

    def backward(self, gy: Any) -> Any:
        (x,), (y,) = self.get_retained_inputs(), self.get_retained_outputs()
        return lambda: gy * (x * y * 2 - 2 / _ROOT)


class LogNdtr(FunctionNode):
    """``y = log Φ(x)``, where Φ is the share of normal numbers below x; ``gx = gy Φ′(x) / Φ(x)``
    (Slope).
    """

    generic = True

    def forward(self, x: Array) -> Array:
        self.retain_inputs((0,))

        def log_below(xp: Any, x: Array) -> Array:
            z = x * math.sqrt(0.5)
            left = xp.minimum(z, 0)
            right = xp.maximum(z, 0)
            return xp.where(
                x < 0,
                xp.log(_scaled(xp, -left) / 2) - left * left,
                xp.log1p(_complement(xp, right) / -2),
            )

        return in_double(log_below, x)

    def backward(self, gy: Any) -> Any:
        (x,) = self.get_retained_inputs()
        return lambda: gy * either(Slope(), x)


class Slope(FunctionNode):
    """d log Φ / dx = Φ′(x) / Φ(x), without the underflow of both."""

    generic = True

    def forward(self, x: Array) -> Array:
        self.retain_inputs((0,))
        self.retain_outputs((0,))
        return in_double(lambda xp, x: math.sqrt(2 / math.pi) / _scaled(xp, x * -math.sqrt(0.5)), x)

    def backward(self, gy: Any) -> Any:
        (x,), (y,) = self.get_retained_inputs(), self.get_retained_outputs()
        return lambda: gy * (y * (x + y)) * -1


class Erfinv(FunctionNode):
    """``y`` with ``erf y = x``; ``gx = √π/2 e^(y²) gy``, one over the slope of erf at ``y``."""

    generic = True

    def forward(self, x: Array) -> Array:
        self.retain_outputs((0,))
        return in_double(lambda xp, x: _quantile(xp, x / 2, (1 - abs(x)) / 2) * math.sqrt(0.5), x)

    def backward(self, gy: Any) -> Any:
        (y,) = self.get_retained_outputs()
        return lambda: gy * either(Exp(), y * y) * (_ROOT / 2)


class Erfcinv(FunctionNode):
    """``y`` with ``erfc y = x``; ``gx = -√π/2 e^(y²) gy``, one over the slope of erfc at ``y``."""

    generic = True

    def forward(self, x: Array) -> Array:
        self.retain_outputs((0,))
        return in_double(
            lambda xp, x: _quantile(xp, (1 - x) / 2, xp.minimum(x, 2 - x) / 2) * math.sqrt(0.5), x
        )

    def backward(self, gy: Any) -> Any:
        (y,) = self.get_retained_outputs()
        return lambda: gy * either(Exp(), y * y) * (_ROOT / -2)


class Ndtri(FunctionNode):
    """``y`` with ``Φ(y) = x``; ``gx = √(2π) e^(y²/2) gy``, one over the slope of Φ at ``y``."""

    generic = True

    def forward(self, x: Array) -> Array:
        self.retain_outputs((0,))
        return in_double(lambda xp, x: _quantile(xp, x - 0.5, xp.minimum(x, 1 - x)), x)

    def backward(self, gy: Any) -> Any:
        (y,) = self.get_retained_outputs()
        return lambda: gy * either(Exp(), y * y * 0.5) * math.sqrt(2 * math.pi)


def erfc(x: Any) -> Variable:
    """1 − erf(x), with all its digits where that is nearly 0.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.erfc(np.array([0.0, 10.0])).array
        array([1.00000000e+00, 2.08848758e-45])
    """
    return Erfc().apply((x,))[0]


def erfcx(x: Any) -> Variable:
    """e^(x²) erfc(x): about 1 / (x √π) for large x, where both factors leave the floats.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.erfcx(np.array([0.0, 100.0])).array.round(6)
        array([1.      , 0.005642])
    """
    return Erfcx().apply((x,))[0]


def ndtr(x: Any) -> Variable:
    """Φ(x), the probability that a normal number is below x: erfc(−x / √2) / 2.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.ndtr(np.array([0.0, 2.0])).array.round(4)
        array([0.5   , 0.9772])
    """
    y: Variable = erfc(as_variable(x) * -math.sqrt(0.5)) * 0.5
    return y


def log_ndtr(x: Any) -> Variable:
    """log Φ(x), exact also where Φ(x) is too small for a float.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.log_ndtr(np.array([-100.0, 0.0])).array.round(4)
        array([-5.0055242e+03, -6.9310000e-01])
    """
    return LogNdtr().apply((x,))[0]


def erfinv(x: Any) -> Variable:
    """The number whose erf is x: NaN where x is not from −1 to 1.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.erfinv(np.array([0.0, 0.5, 1.0])).array.round(4)
        array([0.    , 0.4769,    inf])
    """
    return Erfinv().apply((x,))[0]


def erfcinv(x: Any) -> Variable:
    """The number whose erfc is x: NaN where x is not from 0 to 2.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.erfcinv(np.array([1.0, 1e-40])).array.round(4)
        array([0.    , 9.4488])
    """
    return Erfcinv().apply((x,))[0]


def ndtri(x: Any) -> Variable:
    """The number below which a normal number is with probability x: NaN where x is not from 0 to 1.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.ndtri(np.array([0.5, 0.975])).array.round(4)
        array([0.  , 1.96])
    """
    return Ndtri().apply((x,))[0]
