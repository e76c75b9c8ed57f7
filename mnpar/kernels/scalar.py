"""Functions of single numbers for compiled loops: eˣ, log x, tanh ….

They have no branches and no tables, so that the compiler computes as many numbers at once as a
register holds; the mathematics library of C, which numba calls otherwise, computes one. Errors are
one or two units of the last digit.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mnpar.kernels.compiler import Formula, formula

_LOG2_E = math.log2(math.e)
# log 2 in two parts, the first of few digits: n times it is exact
_LOG_2 = {"f": (0.693359375, -2.12194440e-4), "d": (0.693145751953125, 1.42860682030941723212e-6)}
# added to a number and subtracted, it rounds to an integer, which stands in the last bits between
_ROUND = {"f": 1.5 * 2.0**23, "d": 1.5 * 2.0**52}
_BITS = {k: int(np.array(v, k).view({"f": "i4", "d": "i8"}[k])) for k, v in _ROUND.items()}
_HIGH_F, _LOW_F = _LOG_2["f"]
_HIGH_D, _LOW_D = _LOG_2["d"]
_ROUND_F, _ROUND_D = _ROUND["f"], _ROUND["d"]
_BITS_F, _BITS_D = np.int32(_BITS["f"]), np.int64(_BITS["d"])
_23, _127 = np.int32(23), np.int32(127)
_52, _1023 = np.int64(52), np.int64(1023)
_31, _MOST_F = np.int32(31), np.int32(2**31 - 1)
_63, _MOST_D = np.int64(63), np.int64(2**63 - 1)
_1F, _1D = np.int32(1), np.int64(1)
_INFINITE, _NAN = math.inf, math.nan
# the smallest normal numbers, powers of 2 that make smaller ones normal, and the bits of √½
_NORMAL_F, _NORMAL_D = float(np.finfo("f").tiny), float(np.finfo("d").tiny)
_MANY_F, _MANY_D = 2.0**24, 2.0**54
_ROOT_F = np.array(math.sqrt(0.5), "f").view("i4")[()]
_ROOT_D = np.array(math.sqrt(0.5), "d").view("i8")[()]


@formula
def _curve_f(r: Any) -> Any:
    """(eʳ − 1 − r) / r² for |r| ≤ log 2 / 2 (Cephes)."""
    p = 1.9875691500e-4
    p = p * r + 1.3981999507e-3
    p = p * r + 8.3334519073e-3
    p = p * r + 4.1665795894e-2
    p = p * r + 1.6666665459e-1
    return p * r + 5.0000001201e-1


@formula
def _curve_d(r: Any) -> Any:
    """(eʳ − 1 − r) / r² for |r| ≤ log 2 / 2: the series."""
    p = 1.1470745597729725e-11  # 1 / 14!
    p = p * r + 1.6059043836821613e-10
    p = p * r + 2.08767569878681e-09
    p = p * r + 2.505210838544172e-08
    p = p * r + 2.755731922398589e-07
    p = p * r + 2.7557319223985893e-06
    p = p * r + 2.48015873015873e-05
    p = p * r + 0.0001984126984126984
    p = p * r + 0.001388888888888889
    p = p * r + 0.008333333333333333
    p = p * r + 0.041666666666666664
    p = p * r + 0.16666666666666666
    return p * r + 0.5


@formula
def _split_f(x: Any) -> Any:
    """r and an integer k with x = r + k log 2 and |r| ≤ log 2 / 2."""
    t = x * _LOG2_E + _ROUND_F
    n = t - _ROUND_F
    r = x - n * _HIGH_F - n * _LOW_F
    return r, np.int32(np.float32(t).view(np.int32) - _BITS_F)


@formula
def _split_d(x: Any) -> Any:
    """r and an integer k with x = r + k log 2 and |r| ≤ log 2 / 2."""
    t = x * _LOG2_E + _ROUND_D
    n = t - _ROUND_D
    r = x - n * _HIGH_D - n * _LOW_D
    return r, np.float64(t).view(np.int64) - _BITS_D


@formula
def _exp_f(x: Any) -> Any:
    x = 89.0 if x > 89.0 else x  # NaN is neither
    is_zero = x < -104.0
    x = -104.0 if is_zero else x
    r, k = _split_f(x)
    p = _curve_f(r) * r * r + r + 1.0
    # 2ᵏ in two factors, each of which is a normal number
    half = np.int32(k >> _1F)
    first = np.int32((half + _127) << _23).view(np.float32)
    second = np.int32((np.int32(k - half) + _127) << _23).view(np.float32)
    # a product that underflows takes ten times as long (hidden scores of attention would)
    return p * first * (0.0 if is_zero else second)


@formula
def _exp_d(x: Any) -> Any:
    x = 710.0 if x > 710.0 else x
    is_zero = x < -746.0
    x = -746.0 if is_zero else x
    r, k = _split_d(x)
    p = _curve_d(r) * r * r + r + 1.0
    half = k >> _1D
    first = np.int64((half + _1023) << _52).view(np.float64)
    second = np.int64((k - half + _1023) << _52).view(np.float64)
    return p * first * (0.0 if is_zero else second)


@formula
def _expm1_f(x: Any) -> Any:
    x = -80.0 if x < -80.0 else x
    r, k = _split_f(x)
    p = _curve_f(r) * r * r + r
    power = np.int32((k + _127) << _23).view(np.float32)
    return p * power + (power - 1.0)


@formula
def _expm1_d(x: Any) -> Any:
    x = -700.0 if x < -700.0 else x
    r, k = _split_d(x)
    p = _curve_d(r) * r * r + r
    power = np.int64((k + _1023) << _52).view(np.float64)
    return p * power + (power - 1.0)


expm1 = Formula({"f": _expm1_f, "d": _expm1_d})
"""eˣ - 1 for x up to 0."""


exp = Formula({"f": _exp_f, "d": _exp_d})
"""eˣ; ∞ where it is too large, 0 where it is too small."""


@formula
def _one_plus_exp_f(x: Any) -> Any:
    x = 89.0 if x > 89.0 else x
    x = -87.0 if x < -87.0 else x
    r, k = _split_f(x)
    p = _curve_f(r) * r * r + r + 1.0
    power = np.int32((k + _127) << _23).view(np.float32)  # of k = 128 it is ∞
    return p * power + 1.0


@formula
def _one_plus_exp_d(x: Any) -> Any:
    x = 710.0 if x > 710.0 else x
    x = -708.0 if x < -708.0 else x
    r, k = _split_d(x)
    p = _curve_d(r) * r * r + r + 1.0
    power = np.int64((k + _1023) << _52).view(np.float64)  # of k = 1024 it is ∞
    return p * power + 1.0


one_plus_exp = Formula({"f": _one_plus_exp_f, "d": _one_plus_exp_d})
"""1 + eˣ in three quarters of the time of eˣ, since small powers make no difference; ∞ from
eˣ = 2ᵏ √½ on, where 2ᵏ is not finite.
"""


@formula
def _small_tanh_f(x: Any) -> Any:
    """tanh(x) for |x| ≤ 0.625 (Cephes)."""
    z = x * x
    p = -5.70498872745e-3
    p = p * z + 2.06390887954e-2
    p = p * z - 5.37397155531e-2
    p = p * z + 1.33314422036e-1
    p = p * z - 3.33332819422e-1
    return x + p * z * x


@formula
def _small_tanh_d(x: Any) -> Any:
    """tanh(x) for |x| ≤ 0.625 (Cephes)."""
    z = x * x
    p = (-9.64399179425052238628e-1 * z - 9.92877231001918586564e1) * z - 1.61468768441708447952e3
    q = ((z + 1.12811678491632931402e2) * z + 2.23548839060100448583e3) * z
    return x + x * (z * (p / (q + 4.84406305325125486048e3)))


_small_tanh = Formula({"f": _small_tanh_f, "d": _small_tanh_d})


@formula
def tanh(x: Any) -> Any:
    """Hyperbolic tangent."""
    a = -x if x < 0.0 else x
    a = 30.0 if a > 30.0 else a
    y = 1.0 - 2.0 / one_plus_exp(2.0 * a)
    y = _small_tanh(a) if a < 0.625 else y
    return -y if x < 0.0 else y


@formula
def logistic(x: Any) -> Any:
    """1 / (1 + e⁻ˣ)."""
    return 1.0 / one_plus_exp(-x)


@formula
def _parts_f(x: Any) -> Any:
    """m - 1 and k, x = m 2ᵏ with √½ ≤ m < √2, of a number above 0 that is finite."""
    small = x < _NORMAL_F
    x = x * _MANY_F if small else x
    bits = np.float32(x).view(np.int32)
    k = np.int32(np.int32(bits - _ROOT_F) >> _23)
    m = np.int32(bits - np.int32(k << _23)).view(np.float32)
    return m - 1.0, np.float32(k) - (24.0 if small else 0.0)


@formula
def _parts_d(x: Any) -> Any:
    """m - 1 and k, x = m 2ᵏ with √½ ≤ m < √2, of a number above 0 that is finite."""
    small = x < _NORMAL_D
    x = x * _MANY_D if small else x
    bits = np.float64(x).view(np.int64)
    k = np.int64(np.int64(bits - _ROOT_D) >> _52)
    m = np.int64(bits - np.int64(k << _52)).view(np.float64)
    return m - 1.0, np.float64(k) - (54.0 if small else 0.0)


@formula
def _series_f(s: Any) -> Any:
    """(artanh √s / √s - 1) for s up to 0.0295."""
    p = 1.0 / 9.0
    p = p * s + 1.0 / 7.0
    p = p * s + 1.0 / 5.0
    p = p * s + 1.0 / 3.0
    return p * s


@formula
def _series_d(s: Any) -> Any:
    """(artanh √s / √s - 1) for s up to 0.0295."""
    p = 1.0 / 21.0
    p = p * s + 1.0 / 19.0
    p = p * s + 1.0 / 17.0
    p = p * s + 1.0 / 15.0
    p = p * s + 1.0 / 13.0
    p = p * s + 1.0 / 11.0
    p = p * s + 1.0 / 9.0
    p = p * s + 1.0 / 7.0
    p = p * s + 1.0 / 5.0
    p = p * s + 1.0 / 3.0
    return p * s


@formula
def _log_of_f(f: Any, k: Any) -> Any:
    """log(1 + f) + k log 2, where log(1 + f) is 2 artanh(z) with z = f / (2 + f)."""
    z = f / (2.0 + f)
    return k * _HIGH_F + (f - (z * (f - 2.0 * _series_f(z * z)) - k * _LOW_F))


@formula
def _log_of_d(f: Any, k: Any) -> Any:
    z = f / (2.0 + f)
    return k * _HIGH_D + (f - (z * (f - 2.0 * _series_d(z * z)) - k * _LOW_D))


_parts = Formula({"f": _parts_f, "d": _parts_d})
_log_of = Formula({"f": _log_of_f, "d": _log_of_d})


@formula
def log(x: Any) -> Any:
    """The natural logarithm: -∞ of 0, NaN below."""
    f, k = _parts(x)
    y = _log_of(f, k)
    y = y if x < _INFINITE else x  # ∞ and NaN stay
    y = -_INFINITE if x == 0.0 else y
    return _NAN if x < 0.0 else y


@formula
def log1p(x: Any) -> Any:
    """log(1 + x), with what rounding took from 1 + x."""
    u = 1.0 + x
    y = log(u)
    y = y + (x - (u - 1.0)) / u if 0.0 < u < _INFINITE else y
    return x if u == 1.0 else y


@formula
def _log1p_up_to_1_f(x: Any) -> Any:
    z = x / (2.0 + x)
    s = z * z
    p = 1.0 / 15.0
    p = p * s + 1.0 / 13.0
    p = p * s + 1.0 / 11.0
    p = p * s + 1.0 / 9.0
    p = p * s + 1.0 / 7.0
    p = p * s + 1.0 / 5.0
    p = p * s + 1.0 / 3.0
    return 2.0 * (z + z * s * p)


@formula
def _log1p_up_to_1_d(x: Any) -> Any:
    z = x / (2.0 + x)
    s = z * z
    p = 1.0 / 33.0
    p = p * s + 1.0 / 31.0
    p = p * s + 1.0 / 29.0
    p = p * s + 1.0 / 27.0
    p = p * s + 1.0 / 25.0
    p = p * s + 1.0 / 23.0
    p = p * s + 1.0 / 21.0
    p = p * s + 1.0 / 19.0
    p = p * s + 1.0 / 17.0
    p = p * s + 1.0 / 15.0
    p = p * s + 1.0 / 13.0
    p = p * s + 1.0 / 11.0
    p = p * s + 1.0 / 9.0
    p = p * s + 1.0 / 7.0
    p = p * s + 1.0 / 5.0
    p = p * s + 1.0 / 3.0
    return 2.0 * (z + z * s * p)


log1p_up_to_1 = Formula({"f": _log1p_up_to_1_f, "d": _log1p_up_to_1_d})
"""log(1 + x) for x from 0 to 1, in half of log1p's time: the series of 2 artanh(x / (2 + x))."""


@formula
def _rank_of_f(x: Any) -> Any:
    bits = np.float32(x).view(np.int32)
    return np.int32(bits ^ np.int32(np.int32(bits >> _31) & _MOST_F))


@formula
def _rank_of_d(x: Any) -> Any:
    bits = np.float64(x).view(np.int64)
    return bits ^ ((bits >> _63) & _MOST_D)


rank_of = Formula({"f": _rank_of_f, "d": _rank_of_d})
"""An integer that compares with others as numbers do; that of a NaN is beyond all others, at one
end or the other. The compiler finds the largest of many integers several at a time, but not that of
numbers, because NaN has no order.
"""


@formula
def _number_of_f(rank: Any) -> Any:
    return np.int32(rank ^ np.int32(np.int32(rank >> _31) & _MOST_F)).view(np.float32)


@formula
def _number_of_d(rank: Any) -> Any:
    return np.int64(rank ^ ((rank >> _63) & _MOST_D)).view(np.float64)


number_of = Formula({"f": _number_of_f, "d": _number_of_d})
"""The number that has a rank."""
