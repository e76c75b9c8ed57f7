"""Decorrelated batch normalization: channels are whitened by the inverse square root of their
covariance.

The derivative of the root solves a Lyapunov equation, and so does the derivative of that solution:
both functions are differentiable any number of times, also where eigenvalues coincide.
"""

from __future__ import annotations

import math
from typing import Any

from mnpar import backend
from mnpar.backend import Array
from mnpar.function_node import InputGradients
from mnpar.functions.array.shape import reshape, transpose
from mnpar.functions.math.average import mean as mean_of
from mnpar.functions.math.matmul import matmul
from mnpar.functions.node import GenericFunction
from mnpar.variable import Variable, as_variable


class InverseRoot(GenericFunction):
    """Z = S^(−½) of symmetric positive matrices (G, C, C): Z² = S⁻¹, so dZ Z + Z dZ = −S⁻¹ dS
    S⁻¹.
    """

    def forward(self, S: Array) -> Array:
        self.retain_outputs((0,))
        values, vectors = backend.get_array_module(S).linalg.eigh(S)
        result: Array = (vectors * values[:, None] ** -0.5) @ vectors.swapaxes(1, 2)
        return result

    def backward(self, gZ: Variable | Array) -> InputGradients:
        (Z,) = self.get_retained_outputs()
        inverse = Z @ Z
        return lambda: -(inverse @ Lyapunov()(Z, (gZ + gZ.transpose((0, 2, 1))) * 0.5) @ inverse)


class Lyapunov(GenericFunction):
    """X of A X + X A = G, where A is symmetric and positive."""

    def forward(self, A: Array, G: Array) -> Array:
        self.retain_inputs((0,))
        self.retain_outputs((0,))
        values, vectors = backend.get_array_module(A).linalg.eigh(A)
        turned = vectors.swapaxes(1, 2)
        result: Array = (
            vectors @ (turned @ G @ vectors / (values[:, :, None] + values[:, None, :])) @ turned
        )
        return result

    def backward(self, gX: Variable | Array) -> InputGradients:
        (A,), (X,) = self.get_retained_inputs(), self.get_retained_outputs()
        turned = X.transpose((0, 2, 1))

        def gA() -> Any:
            g = Lyapunov()(A, gX)
            return -(g @ turned + turned @ g)

        return gA, lambda: Lyapunov()(A, gX)


def decorrelated_batch_normalization(
    x: Variable | Array,
    *,
    groups: int = 16,
    eps: float = 2e-5,
    running_mean: Array | None = None,
    running_projection: Array | None = None,
    decay: float = 0.9,
) -> Variable:
    """Whiten channels over this batch: mean 0, deviation 1, and no correlation among the channels
    of a group (by ZCA).

    Args:
        x: ``(N, C, …)``; of float16, it is computed in float32.
        groups: the C channels are divided into so many groups of C / groups.
        eps: added to the variances.
        running_mean, running_projection: arrays ``(groups, C / groups)`` and ``(groups, C / groups,
            C / groups)``, or None. They are changed in place, to ``decay`` of what they were and
            ``1 - decay`` of this batch's mean and projection; the latter times m / (m − 1), where m
            is how many numbers share a mean.
        decay: which part of the running arrays stays at each call.

    Returns:
        ``x``'s shape and dtype.

    Raises:
        ValueError: no images, or channels that cannot be divided so; TypeError: integers.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> y = F.decorrelated_batch_normalization(
        ...     np.random.default_rng(0).standard_normal((500, 2)), groups=1
        ... ).array
        >>> np.cov(y.T, bias=True).round(3) + 0.0
        array([[1., 0.],
               [0., 1.]])

    Source:
        Huang, Yang, Lang and Deng, "Decorrelated batch normalization", CVPR 2018, arXiv 1804.08450.
    """
    x = as_variable(x)
    h = _grouped("decorrelated_batch_normalization", x, groups)  # (G, C, m)
    m, xp = max(h.shape[2], 1), x.xp
    mean = mean_of(h, axis=2, keepdims=True) if h.shape[2] else xp.zeros((*h.shape[:2], 1), h.dtype)
    d = h - mean
    S = matmul(d, transpose(d, (0, 2, 1))) * (1 / m) + xp.eye(h.shape[1], dtype=h.dtype) * eps
    (projection,) = InverseRoot().apply((S,))
    if running_mean is not None and h.shape[2]:
        _follow(running_mean, as_variable(mean).array[:, :, 0], 1 - decay, decay)
    if running_projection is not None and h.shape[2]:
        _follow(running_projection, projection.array, (1 - decay) * m / max(m - 1, 1), decay)
    return _ungrouped(matmul(projection, d), x)


def fixed_decorrelated_batch_normalization(
    x: Variable | Array, mean: Variable | Array, projection: Variable | Array, groups: int = 16
) -> Variable:
    """Whiten channels by a mean and a projection that are given.

    Args:
        x: ``(N, C, …)``.
        mean: ``(groups, C / groups)``.
        projection: ``(groups, C / groups, C / groups)``. All get gradients.
        groups: as in :func:`decorrelated_batch_normalization`.

    Returns:
        ``x``'s shape and dtype.

    Raises:
        ValueError: no images, or shapes that do not belong together; TypeError: integers.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> mean, turn = np.array([[1.0, 0.0]]), np.array([[[0.0, 1.0], [1.0, 0.0]]])
        >>> F.fixed_decorrelated_batch_normalization(
        ...     np.array([[5.0, 3.0]]), mean, turn, groups=1
        ... ).array
        array([[3., 4.]])
    """
    x = as_variable(x)
    mean = as_variable(mean)
    projection = as_variable(projection)
    h = _grouped("fixed_decorrelated_batch_normalization", x, groups)
    if mean.shape != h.shape[:2] or projection.shape != (*h.shape[:2], h.shape[1]):
        raise ValueError(
            f"fixed_decorrelated_batch_normalization: mean {mean.shape} and projection "
            f"{projection.shape} must be "
            f"{h.shape[:2]} and {(*h.shape[:2], h.shape[1])}, for x {x.shape} in {groups} groups"
        )
    mean = mean.astype(h.dtype)
    projection = projection.astype(h.dtype)
    return _ungrouped(matmul(projection, h - reshape(mean, (*mean.shape, 1))), x)


def _grouped(name: str, x: Variable, groups: int) -> Variable:
    """(N, C, …) as (groups, C / groups, N · …), in which it is computed."""
    backend.require_float_dtype(name, x.array)
    if x.ndim < 2 or groups < 1 or x.shape[1] % groups:
        raise ValueError(
            f"{name}: x of shape {x.shape} is not (N, C, …) with C a multiple of groups = {groups}"
        )
    h = transpose(x.astype("f4") if x.dtype.char == "e" else x, (1, 0, *range(2, x.ndim)))
    return reshape(h, (groups, x.shape[1] // groups, math.prod(x.shape) // max(x.shape[1], 1)))


def _ungrouped(y: Variable, x: Variable) -> Variable:
    """Back, to the shape and dtype of x."""
    N, C, *size = x.shape
    z: Variable = transpose(reshape(y, (C, N, *size)), (1, 0, *range(2, x.ndim))).astype(x.dtype)
    return z


def _follow(running: Array, new: Array, share: float, decay: float) -> None:
    running *= decay
    running += (share * new).astype(running.dtype)
