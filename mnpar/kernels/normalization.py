"""Normalizations as loops: of rows, of groups of channels, and of channels over a batch.

A row or a channel is read twice or thrice while it is in a near cache: for its mean, for the sum of
squares around that, for the result. Its mean is kept as ``shift``, in the dtype of x, and ``rest``,
what remains, in float64 (moments.py says why). The twins are the sweeps of
``functions/normalization/``; each function here returns False, or None, where loops do not take the
arrays.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mnpar.backend import Array, ArrayModule
from mnpar.kernels import normalized_pixels, tuning
from mnpar.kernels.compiler import Cube, Doubles, Matrix, Vector, compiled, reduction, suits
from mnpar.kernels.fused import PerChannel, fused
from mnpar.kernels.moments import RUN, channel_sums


@reduction
def _run_sum(x: Any, total: Any) -> Any:
    """The sum of a vector, added to a float64."""
    for start in range(0, x.size, RUN):
        run = x[start : start + RUN]
        one = 0.0
        for i in range(run.size):
            one += run[i]
        total += one
    return total


@reduction
def _run_squares(x: Any, shift: Any, total: Any) -> Any:
    """The sums of d = x - shift and of d², added to a float64 that is 0."""
    squares = total
    for start in range(0, x.size, RUN):
        run = x[start : start + RUN]
        one = 0.0
        two = 0.0
        for i in range(run.size):
            d = run[i] - shift
            one += d
            two += d * d
        total += one
        squares += two
    return total, squares


@compiled
def _normalize_rows(
    x: Matrix,
    gamma: Vector,
    beta: Vector,
    eps: float,
    y: Matrix,
    shift: Vector,
    rest: Vector,
    s: Vector,
) -> None:
    N, D = x.shape
    for n in range(N):
        row = x[n]
        shift[n] = _run_sum(row, np.float64(0)) / D
        one, two = _run_squares(row, shift[n], np.float64(0))
        mean = one / D
        var = two / D - mean * mean
        scale = 1 / math.sqrt((var if not var < 0 else np.float64(0)) + eps)  # NaN stays
        rest[n] = mean
        s[n] = scale
        less = shift[n]
        factor = s[n]
        move = x.dtype.type(-mean * scale)
        for i in range(D):
            y[n, i] = ((row[i] - less) * factor + move) * gamma[i] + beta[i]


@compiled
def _normalize_rows_gradient(
    x: Matrix,
    gamma: Vector,
    gy: Matrix,
    shift: Vector,
    rest: Vector,
    s: Vector,
    gx: Matrix,
    ggamma: Doubles,
    gbeta: Doubles,
) -> None:
    N, D = x.shape
    for n in range(N):
        less = shift[n]
        p = np.float64(0)
        q = np.float64(0)
        for start in range(0, D, RUN):
            row = x[n, start : start + RUN]
            g = gy[n, start : start + RUN]
            slope = gamma[start : start + RUN]
            one = 0.0
            two = 0.0
            for i in range(row.size):
                h = g[i] * slope[i]
                one += h
                two += h * (row[i] - less)
            p += one
            q += two
        q -= rest[n] * p
        scale = s[n]
        k = x.dtype.type(-q * scale * scale * scale / D)
        move = x.dtype.type(-p * scale / D - rest[n] * k)
        gap = rest[n] * scale
        for i in range(D):
            g = gy[n, i]
            d = x[n, i] - less
            gx[n, i] = g * (gamma[i] * scale) + (d * k + move)
        for i in range(D):
            g = gy[n, i]
            gbeta[i] += g
            ggamma[i] += g * ((x[n, i] - less) * scale - gap)


def normalize_rows(
    x: Array, gamma: Array, beta: Array, eps: float
) -> tuple[Array, tuple[Array, Array, Array]] | None:
    """Return y = γ·(x - μ)·s + β of rows, over as many of the last axes as γ has, and the shift,
    rest and s = (σ² + ε)^-½ of each, (N, 1); None where loops do not take the arrays.
    """
    if not suits(x, gamma, beta):
        return None
    y = np.empty(x.shape, x.dtype)
    rows = math.prod(x.shape[: x.ndim - gamma.ndim]), gamma.size
    each = rows[0], 1
    statistics = np.empty(each, x.dtype), np.empty(each, x.dtype), np.empty(each, x.dtype)
    _normalize_rows(x.reshape(rows), gamma, beta, eps, y.reshape(rows), *statistics)
    return y, statistics


def normalize_rows_gradient(
    x: Array, gamma: Array, gy: Array, statistics: tuple[Array, Array, Array], gx: Array
) -> Array | None:
    """Compute the gradient of x (N, D) into ``gx``, and return those of γ and β, (2, D), float64;
    None where loops do not take the arrays.
    """
    if not suits(x, gamma, gy, gx, *statistics):
        return None
    sums = np.zeros((2, gamma.size))
    _normalize_rows_gradient(x, gamma, gy, *statistics, gx, *sums)
    return sums


@compiled
def _normalize_groups(
    x: Cube,
    groups: Matrix,
    gamma: Matrix,
    beta: Matrix,
    eps: float,
    y: Cube,
    shift: Vector,
    rest: Vector,
    s: Vector,
) -> None:
    R, K, B = x.shape
    G = gamma.shape[0]
    for r in range(R):
        group = groups[r]  # x[r] as a vector
        shift[r] = _run_sum(group, np.float64(0)) / (K * B)
        one, two = _run_squares(group, shift[r], np.float64(0))
        mean = one / (K * B)
        var = two / (K * B) - mean * mean
        scale = 1 / math.sqrt((var if not var < 0 else np.float64(0)) + eps)
        rest[r] = mean
        s[r] = scale
        less = shift[r]
        for k in range(K):
            slope = gamma[r % G, k] * scale
            factor = x.dtype.type(slope)
            move = x.dtype.type(beta[r % G, k] - mean * slope)
            for b in range(B):
                y[r, k, b] = (x[r, k, b] - less) * factor + move


@compiled
def _normalize_groups_gradient(
    x: Cube,
    gamma: Matrix,
    gy: Cube,
    shift: Vector,
    rest: Vector,
    s: Vector,
    gx: Cube,
    ggamma: Doubles,
    gbeta: Doubles,
) -> None:
    R, K, B = x.shape
    G = gamma.shape[0]
    for r in range(R):
        less = shift[r]
        p = np.float64(0)
        q = np.float64(0)
        for k in range(K):
            one, two = _run_products(gy[r, k], x[r, k], less, np.float64(0))
            place = (r % G) * K + k
            gbeta[place] += one
            ggamma[place] += (two - rest[r] * one) * s[r]
            p += gamma[r % G, k] * one
            q += gamma[r % G, k] * two
        q -= rest[r] * p
        slope = -q * s[r] * s[r] * s[r] / (K * B)
        factor = x.dtype.type(slope)
        move = x.dtype.type(-p * s[r] / (K * B) - rest[r] * slope)
        for k in range(K):
            scale = gamma[r % G, k] * s[r]
            for b in range(B):
                gx[r, k, b] = gy[r, k, b] * scale + ((x[r, k, b] - less) * factor + move)


@reduction
def _run_products(g: Any, x: Any, shift: Any, total: Any) -> Any:
    """Σ g and Σ g (x - shift), added to a float64 that is 0."""
    products = total
    for start in range(0, x.size, RUN):
        run = x[start : start + RUN]
        gs = g[start : start + RUN]
        one = 0.0
        two = 0.0
        for i in range(run.size):
            one += gs[i]
            two += gs[i] * (run[i] - shift)
        total += one
        products += two
    return total, products


def normalize_groups(
    x: Array,
    gamma: Array,
    beta: Array,
    eps: float,
    y: Array,
    statistics: tuple[Array, Array, Array],
) -> bool:
    """Compute y = γ·(x - μ)·s + β of (N, G, K, B), with means over K and B and γ and β (G, K), and
    the shift, rest and s of each group.
    """
    N, G, K, B = x.shape
    if normalized_pixels.normalize_groups(x, gamma, beta, eps, y, statistics):
        return True
    if B < tuning.CHANNEL_RUN or not suits(x, y, gamma, beta, *statistics):
        return False
    rows = (N * G, K, B)
    groups = x.reshape(N * G, K * B)
    _normalize_groups(x.reshape(rows), groups, gamma, beta, eps, y.reshape(rows), *statistics)
    return True


def normalize_groups_gradient(
    x: Array,
    gamma: Array,
    gy: Array,
    statistics: tuple[Array, Array, Array],
    gx: Array | None,
) -> tuple[Array, Array] | None:
    """Compute the gradient of x into ``gx``, and return those of γ and β, float64."""
    N, G, K, B = x.shape
    if gx is None:
        return None
    found = normalized_pixels.groups_gradient(x, gamma, gy, statistics, gx)
    if found is not None:
        return found
    if B < tuning.CHANNEL_RUN or not suits(x, gamma, gy, gx, *statistics):
        return None
    rows = (N * G, K, B)
    ggamma = np.zeros(G * K)
    gbeta = np.zeros(G * K)
    _normalize_groups_gradient(
        x.reshape(rows), gamma, gy.reshape(rows), *statistics, gx.reshape(rows), ggamma, gbeta
    )
    return ggamma, gbeta


@compiled
def _normalize_batch(
    x: Cube,
    gamma: Vector,
    beta: Vector,
    eps: float,
    y: Cube,
    shift: Vector,
    rest: Doubles,
    var: Doubles,
) -> None:
    A, C, B = x.shape
    some = (A + 7) // 8
    for c in range(C):
        total = np.float64(0)
        for a in range(some):
            total = _run_sum(x[a, c], total)
        shift[c] = total / (some * B)
        total = np.float64(0)
        squares = np.float64(0)
        for a in range(A):
            one, two = _run_squares(x[a, c], shift[c], np.float64(0))
            total += one
            squares += two
        mean = total / (A * B)
        v = squares / (A * B) - mean * mean
        v = v if not v < 0 else np.float64(0)  # NaN stays
        rest[c] = mean
        var[c] = v
        slope = gamma[c] / math.sqrt(v + eps)
        scale = x.dtype.type(slope)
        move = x.dtype.type(beta[c] - mean * slope)
        for a in range(A):
            for b in range(B):
                y[a, c, b] = (x[a, c, b] - shift[c]) * scale + move


@compiled
def _normalize_batch_gradient(
    x: Cube,
    gamma: Vector,
    gy: Cube,
    eps: float,
    shift: Vector,
    rest: Doubles,
    var: Doubles,
    gx: Cube,
    ggamma: Doubles,
    gbeta: Doubles,
) -> None:
    A, C, B = x.shape
    for c in range(C):
        p = np.float64(0)
        q = np.float64(0)
        for a in range(A):
            one, two = _run_products(gy[a, c], x[a, c], shift[c], np.float64(0))
            p += one
            q += two
        s = 1 / math.sqrt(var[c] + eps)
        q -= rest[c] * p
        gbeta[c] = p
        ggamma[c] = q * s
        slope = -q * s * s / (A * B)
        k = x.dtype.type(slope)
        move = x.dtype.type(p / (A * B) + rest[c] * slope)
        scale = x.dtype.type(gamma[c] * s)
        for a in range(A):
            for b in range(B):
                d = (x[a, c, b] - shift[c]) * k
                gx[a, c, b] = (d + gy[a, c, b] - move) * scale


def normalize_batch(
    x: Array,
    gamma: Array,
    beta: Array,
    eps: float,
    y: Array,
    statistics: tuple[Array, Array, Array],
) -> bool:
    """Compute y = γ·(x - μ)·(σ² + ε)^-½ of (A, C, B), and shift, rest and variance, in one sweep
    over the channels; False where loops do not take the arrays.
    """
    if not x.size:
        return False
    if normalized_pixels.normalize(x, gamma, beta, eps, y, statistics):
        return True
    if x.shape[2] < tuning.CHANNEL_RUN or not suits(x, y, gamma, beta, statistics[0]):
        return False
    _normalize_batch(x, gamma, beta, eps, y, *statistics)
    return True


def normalize_batch_gradient(
    x: Array,
    gamma: Array,
    gy: Array,
    eps: float,
    statistics: tuple[Array, Array, Array],
    gx: Array | None,
) -> tuple[Array, Array] | None:
    """Compute the gradient of x into ``gx``, and return those of γ and β, float64; None where loops
    do not take the arrays.
    """
    if gx is None or not x.size:
        return None
    found = normalized_pixels.gradient(x, gamma, gy, eps, statistics, gx)
    if found is not None or x.shape[2] < tuning.CHANNEL_RUN:
        return found
    if not suits(x, gamma, gy, statistics[0], gx):
        return None
    ggamma = np.empty(len(gamma))
    gbeta = np.empty(len(gamma))
    _normalize_batch_gradient(x, gamma, gy, eps, *statistics, gx, ggamma, gbeta)
    return ggamma, gbeta


def _fixed_gradients_in_passes(
    xp: ArrayModule, g: Array, x: Array, shift: Array, scale: Array
) -> tuple[Array, Array, Array]:
    return g * scale, channel_sums(g), channel_sums(g, x - shift)


@fused(twin=lambda xp, x, shift, scale, move: (x - shift) * scale + move)
def scale_and_move(x: Any, shift: PerChannel, scale: PerChannel, move: PerChannel) -> Any:
    """(x - shift) scale + move"""
    return (x - shift) * scale + move


@fused(twin=_fixed_gradients_in_passes, sums=2)
def scale_and_move_gradients(g: Any, x: Any, shift: PerChannel, scale: PerChannel) -> Any:
    """The gradient of x, g scale; Σ g and Σ g (x - shift), of which those of the others are
    made.
    """
    return g * scale, g, g * (x - shift)
