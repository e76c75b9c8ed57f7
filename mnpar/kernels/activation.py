"""Activation functions and their gradients, each a formula for one number beside its twin in
numpy's operations.

A gradient is that of x, from the gradient ``g`` of y and from x or y.
"""

from __future__ import annotations

from typing import Any

from mnpar.backend import Array, ArrayModule
from mnpar.kernels.fused import fused
from mnpar.kernels.logistic import compute_in_blocks


@fused(twin=lambda xp, x: xp.maximum(x, 0))
def relu(x: Any) -> Any:
    """max(x, 0)"""
    return 0.0 if x < 0.0 else x  # NaN stays NaN


def _where_positive(xp: ArrayModule, g: Array, y: Array) -> Array:
    # numpy multiplies faster by numbers than by booleans
    positive: Array = (y > 0).astype(g.dtype)
    positive *= g
    return positive


@fused(twin=_where_positive)
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
