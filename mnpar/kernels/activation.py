"""Activation functions and their gradients, each a formula for one number beside its twin in
numpy's operations.

A gradient is that of x, from the gradient ``g`` of y and from x or y.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array, ArrayModule
from mnpar.kernels.compiler import Real
from mnpar.kernels.dtypes import upcast_halves
from mnpar.kernels.fused import PerChannel, fused
from mnpar.kernels.logistic import compute_in_blocks
from mnpar.kernels.scalar import exp, expm1, logistic
from mnpar.kernels.sums import split_arrays, sum_to


@fused(twin=lambda xp, x: xp.maximum(x, 0), least="CHEAP_LEAST")
def relu(x: Any) -> Any:
    """max(x, 0)"""
    return 0.0 if x < 0.0 else x  # NaN stays NaN


def _where_positive(xp: ArrayModule, g: Array, y: Array) -> Array:
    # numpy multiplies faster by numbers than by booleans
    positive: Array = (y > 0).astype(g.dtype)
    positive *= g
    return positive


@fused(twin=_where_positive, least="CHEAP_LEAST")
def relu_gradient(g: Any, y: Any) -> Any:
    """g where y > 0, else 0"""
    return g if y > 0.0 else g * 0.0


def _sigmoid_gradient_in_blocks(xp: ArrayModule, g: Array, y: Array) -> Array:
    def compute(xp: ArrayModule, y: Array, g: Array, gx: Array) -> None:
        xp.multiply(xp.subtract(1, y, out=gx), y, out=gx)
        gx *= g

    return compute_in_blocks(compute, y, g)


@fused(twin=_sigmoid_gradient_in_blocks)
def sigmoid_gradient(g: Any, y: Any) -> Any:
    """y (1 - y) g"""
    return (1.0 - y) * y * g


def _tanh_gradient_in_blocks(xp: ArrayModule, g: Array, y: Array) -> Array:
    def compute(xp: ArrayModule, y: Array, g: Array, gx: Array) -> None:
        xp.subtract(1, xp.multiply(y, y, out=gx), out=gx)
        gx *= g

    return compute_in_blocks(compute, y, g)


@fused(twin=_tanh_gradient_in_blocks)
def tanh_gradient(g: Any, y: Any) -> Any:
    """(1 - y²) g"""
    return (1.0 - y * y) * g


@fused(twin=lambda xp, x, a: x * leaky_slopes(x, a), least="CHEAP_LEAST")
def leaky_relu(x: Any, a: Real) -> Any:
    """x where x > 0, else a x"""
    return x if x > 0.0 else a * x


@fused(twin=lambda xp, g, x, a: g * leaky_slopes(x, a), least="CHEAP_LEAST")
def leaky_relu_gradient(g: Any, x: Any, a: Real) -> Any:
    """g where x > 0, else a g"""
    return g if x > 0.0 else a * g


def leaky_slopes(x: Array, a: float) -> Array:
    """1 where x > 0, else a."""
    # numpy takes eight times as long for ``where``
    slopes: Array = (x > 0).astype(x.dtype)
    slopes *= 1 - a
    slopes += a
    return slopes


def _elu_in_passes(xp: ArrayModule, x: Array, a: float, b: float) -> Array:
    y = xp.minimum(x, 0)
    y = xp.asarray(xp.expm1(y))
    y *= a
    y += xp.maximum(x, 0)
    if b != 1:
        y *= b
    return y


@fused(twin=_elu_in_passes)
def elu(x: Any, a: Real, b: Real) -> Any:
    """b x where x > 0, else a b (eˣ - 1)"""
    return b * (x if x > 0.0 else a * expm1(x))


def _elu_gradient_in_passes(xp: ArrayModule, g: Array, x: Array, a: float, b: float) -> Array:
    slope = xp.asarray(xp.exp(xp.minimum(x, 0)))
    slope *= a
    negative = x <= 0
    slope *= negative
    slope += ~negative
    if b != 1:
        slope *= b
    slope *= g
    return slope


@fused(twin=_elu_gradient_in_passes)
def elu_gradient(g: Any, x: Any, a: Real, b: Real) -> Any:
    """b g where x > 0, else a b eˣ g"""
    return g * (b * (1.0 if x > 0.0 else a * exp(x)))


def _prelu_in_passes(xp: ArrayModule, x: Array, W: Array) -> Array:
    y = xp.asarray(xp.minimum(x, 0))
    y *= W
    y += xp.maximum(x, 0)
    return y


@fused(twin=_prelu_in_passes, least="CHEAP_LEAST")
def prelu(x: Any, w: PerChannel) -> Any:
    """x where x > 0, else w x"""
    return x if x > 0.0 else w * x


def _prelu_gradients_in_passes(
    xp: ArrayModule, g: Array, x: Array, W: Array
) -> tuple[Array, Array]:
    negative = (x < 0).astype(x.dtype)
    gW = upcast_halves(g * x * negative)
    return g * (negative * W + (1 - negative)), sum_to(gW, W.shape)


@fused(twin=_prelu_gradients_in_passes, sums=1)
def prelu_gradients(g: Any, x: Any, w: PerChannel) -> Any:
    """The gradient of x, g where x ≥ 0, else w g; and of w, Σ x g where x < 0."""
    return g * w if x < 0.0 else g, g * x * (1.0 if x < 0.0 else 0.0)


def _swish_in_blocks(xp: ArrayModule, x: Array, beta: Array) -> Array:
    y = xp.empty(x.shape, x.dtype)
    slope = -beta
    for part, z in _sample_blocks(beta, x, y):
        xp.divide(part, _one_and_exp(xp, part, slope, z), out=z)
    return y


@fused(twin=_swish_in_blocks, least="COSTLY_LEAST")
def swish(x: Any, b: PerChannel) -> Any:
    """x / (1 + e⁻ᵇˣ)"""
    return x / (1.0 + exp(-(b * x)))


def _sample_blocks(beta: Array, *xs: Array) -> Iterator[tuple[Array, ...]]:
    """Some samples of each array, or, if there is one β, some elements: they stay in the cache."""
    if not beta.ndim:
        xs = tuple([x.reshape(-1) for x in xs])
    n = max(1, backend.block_bytes(xs[0]) // 32 // max(1, xs[0][:1].size))
    return split_arrays(n, *xs)


def _one_and_exp(xp: ArrayModule, x: Array, slope: Array, z: Array) -> Array:
    """z ← 1 + e^(slope · x), which may be ∞."""
    with np.errstate(over="ignore"):
        xp.exp(xp.multiply(x, slope, out=z), out=z)
    z += 1
    return z


def _swish_gradients_in_blocks(
    xp: ArrayModule, g: Array, x: Array, beta: Array, learns: bool = True
) -> tuple[Array, Array]:
    gx = xp.empty(x.shape, x.dtype)
    slope = -beta
    gb = xp.zeros_like(beta)
    room = xp.empty(0, x.dtype)
    for part, gy, to in _sample_blocks(beta, x, g, gx):
        if not room.size:
            room = backend.empty_aligned((2, *part.shape), x.dtype, xp)
        s, h = room[:, : len(part)]
        xp.divide(1, _one_and_exp(xp, part, slope, s), out=s)
        xp.multiply(gy, s, out=to)
        xp.multiply(to, part, out=h)
        h *= xp.subtract(1, s, out=s)
        to += xp.multiply(h, beta, out=s)
        if learns:
            h *= part
            gb += sum_to(h, beta.shape)
    return gx, gb


@fused(
    twin=lambda xp, g, x, beta: _swish_gradients_in_blocks(xp, g, x, beta, False)[0],
    least="COSTLY_LEAST",
)
def swish_gradient(g: Any, x: Any, b: PerChannel) -> Any:
    """g s + b h with s = 1 / (1 + e⁻ᵇˣ) and h = g x s (1 - s)."""
    s = logistic(b * x)
    h = g * s * x * (1.0 - s)
    return g * s + b * h


@fused(twin=_swish_gradients_in_blocks, sums=1, least="COSTLY_LEAST")
def swish_gradients(g: Any, x: Any, b: PerChannel) -> Any:
    """The gradients of x, g s + b h, and of b, Σ x h."""
    s = logistic(b * x)
    h = g * s * x * (1.0 - s)
    return g * s + b * h, x * h
