"""Products, sums and losses of arrays in one pass, each a formula for one number beside its twin in
numpy's operations.
"""

from __future__ import annotations

from typing import Any

from mnpar.backend import Array, ArrayModule
from mnpar.kernels.compiler import Real
from mnpar.kernels.dtypes import upcast_halves
from mnpar.kernels.fused import PerChannel, fused
from mnpar.kernels.sums import sum_to


def _cube_in_passes(xp: ArrayModule, x: Array) -> Array:
    y = x * x
    y *= x
    return y


@fused(twin=_cube_in_passes, least="CHEAP_LEAST")
def cube(x: Any) -> Any:
    """x³"""
    return x * x * x


@fused(twin=lambda xp, x, w: x + w, least="CHEAP_LEAST")
def add_channel(x: Any, w: PerChannel) -> Any:
    """x + w"""
    return x + w


@fused(twin=lambda xp, x, w: x * w, least="CHEAP_LEAST")
def scale_channel(x: Any, w: PerChannel) -> Any:
    """x w"""
    return x * w


@fused(twin=lambda xp, g, x, w: (g * w, sum_to(g * x, w.shape)), sums=1)
def scale_channel_gradients(g: Any, x: Any, w: PerChannel) -> Any:
    """The gradient of x, g w; and of w, Σ g x."""
    return g * w, g * x


def _absolute_differences(xp: ArrayModule, x: Array, y: Array) -> tuple[Array, Array]:
    d = x - y
    return d, upcast_halves(abs(d)).sum()


@fused(twin=_absolute_differences, sums=1)
def absolute_differences(x: Any, y: Any) -> Any:
    """d = x - y, and Σ |d|."""
    d = x - y
    return d, -d if d < 0.0 else d


def _huber_in_passes(xp: ArrayModule, x: Array, t: Array, a: float) -> Array:
    d = x - t
    c = d.clip(-a, a)
    d -= c * 0.5
    d *= c
    return d


@fused(twin=_huber_in_passes)
def huber(x: Any, t: Any, a: Real) -> Any:
    """c (d - c / 2) of d = x - t and c, which is d between -a and a."""
    d = x - t
    c = a if d > a else d
    c = -a if c < -a else c
    return (d - 0.5 * c) * c


@fused(twin=lambda xp, g, x, t, a: g * (x - t).clip(-a, a))
def huber_gradient(g: Any, x: Any, t: Any, a: Real) -> Any:
    """c g, the gradient of x."""
    d = x - t
    c = a if d > a else d
    return g * (-a if c < -a else c)
