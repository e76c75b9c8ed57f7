"""Normalizations: less their mean, over their deviation; then scaled and shifted.

    x̂ = (x − μ) / √(σ² + ε),   y = γ x̂ + β,   μ and σ² over some of the axes

The variance is the mean of the squared differences from the mean, never a difference of two large numbers; halves are summed in
32 bits. One function does batch, layer and group normalization, which differ in their axes only. Its derivative

    g = γ ∂y,   ∂x = (g − mean(g) − x̂ mean(g x̂)) / √(σ² + ε)

is computed from what forward kept; where it is to be differentiated itself, from x again.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.function_node import FunctionNode
from mnpar.functions.broadcasting import fit
from mnpar.functions.elementwise import sqrt
from mnpar.functions.extrema import maximum
from mnpar.functions.generic import wide
from mnpar.functions.pooling import SumPooling
from mnpar.functions.reduction import sum as sum_of
from mnpar.functions.shape import reshape
from mnpar.functions.windows import Windows
from mnpar.variable import Variable, as_variable


def exact_sum(x: Array, axes: tuple[int, ...]) -> Array:
    """The sum over axes, which stay as ones; in 64 bits but for the innermost, along which numpy sums pairwise."""
    inner = x.ndim
    while inner - 1 in axes:
        inner -= 1
    part = x.sum(axis=tuple(range(inner, x.ndim)), keepdims=True)
    outer = tuple([axis for axis in axes if axis < inner])
    return part.sum(axis=outer, keepdims=True, dtype="d").astype(x.dtype, copy=False) if outer else part


class Normalization(FunctionNode):
    """x, and γ and β in shapes that broadcast to it; μ and σ² over ``axes``."""

    generic = True

    def __init__(self, axes: tuple[int, ...], eps: float) -> None:
        self.axes, self.eps = axes, eps

    def forward(self, x: Array, gamma: Array, beta: Array) -> Array:
        self.retain_inputs((0, 1))
        x_, self.count = wide(x), max(1, math.prod([x.shape[axis] for axis in self.axes]))
        self.mean = exact_sum(x_, self.axes) / self.count
        self.centred = d = x_ - self.mean
        self.var = self._dot(d, d) / self.count
        self.scale = (self.var + self.eps) ** -0.5
        y = d * (self.scale * gamma)
        y += beta
        return y.astype(x.dtype, copy=False)

    def backward(self, gy: Any) -> Any:
        x, gamma = self.get_retained_inputs()
        return lambda: self._gx(x, gamma, gy), lambda: self._ggamma(x, gamma, gy), lambda: fit(gy, self.inputs[2].shape)

    def _gx(self, x: Any, gamma: Any, gy: Any) -> Any:
        d, scale = self._normal(x)
        m = self.count
        if isinstance(gy, Variable):
            g = gy * gamma
            along = sum_of(g * d, self.axes, keepdims=True) * (scale * scale / m)
            return scale * (g - sum_of(g, self.axes, keepdims=True) / m - d * along)
        g = wide(gy) * gamma
        along = self._dot(g, d) * (scale * scale / m)
        g -= g.sum(axis=self.axes, keepdims=True) / m
        g -= d * along
        g *= scale
        return g

    def _ggamma(self, x: Any, gamma: Any, gy: Any) -> Any:
        d, scale = self._normal(x)
        if isinstance(gy, Variable):
            return fit(gy * (d * scale), gamma.shape)
        over = tuple([i for i, n in enumerate(gamma.shape) if n == 1])
        if over == self.axes:
            return self._dot(wide(gy), d) * scale
        return fit(wide(gy) * (d * scale), gamma.shape)

    def _normal(self, x: Any) -> tuple[Any, Any]:
        """x − μ and 1 / √(σ² + ε): as forward left them, or as functions of a Variable."""
        if not isinstance(x, Variable):
            return self.centred, self.scale
        d = x - sum_of(x, self.axes, keepdims=True) / self.count
        return d, (sum_of(d * d, self.axes, keepdims=True) / self.count + self.eps) ** -0.5

    def _dot(self, a: Array, b: Array) -> Array:
        """Σ a b over the axes, which stay as ones; no array of products is made."""
        letters = "abcdefghijkl"[: a.ndim]
        left = "".join([letter for i, letter in enumerate(letters) if i not in self.axes])
        total = backend.get_array_module(a).einsum(f"{letters},{letters}->{left}", a, b)
        return total.reshape([1 if i in self.axes else n for i, n in enumerate(a.shape)])


def _axes(who: str, x: Variable, axis: Any) -> tuple[int, ...]:
    """The axes over which means are taken: those named, or all but the channels'."""
    if axis is None:
        axis = (0, *range(2, x.ndim))
    axes = tuple(
        sorted(a % x.ndim if -x.ndim <= a < x.ndim else a for a in (axis if isinstance(axis, tuple | list) else (axis,)))
    )
    if any(a not in range(x.ndim) for a in axes) or len(set(axes)) < len(axes) or not axes:
        raise ValueError(f"{who}: axis = {axis!r} names no axes of x, which has shape {x.shape}")
    return axes


def _spread(who: str, x: Variable, axes: tuple[int, ...], *arrays: Any) -> list[Variable]:
    """Arrays without the axes, with ones in their places."""
    shape = tuple([n for i, n in enumerate(x.shape) if i not in axes])
    found = []
    for array in arrays:
        array = as_variable(array)
        if array.shape != shape:
            raise ValueError(f"{who}: gamma, beta and statistics of {x.shape} over axes {axes} are {shape}, not {array.shape}")
        found.append(reshape(array, tuple([1 if i in axes else n for i, n in enumerate(x.shape)])))
    return found


def batch_normalization(
    x: Any, gamma: Any, beta: Any, eps: float = 2e-5, running_mean: Array = None, running_var: Array = None, decay: float = 0.9,
    axis: Any = None,
) -> Variable:  # fmt: skip
    """Normalize each channel over the batch (Ioffe and Szegedy 2015, arXiv 1502.03167).

    Args:
        x: ``(N, C, …)``.
        gamma, beta: ``(C,)``, or the shape that is left without ``axis``.
        eps: ε.
        running_mean, running_var: arrays of the same shape that are changed in place: so much of them is kept as ``decay``
            says, the rest is the batch's mean and (unbiased) variance. An empty batch leaves them.
        axis: over which means are taken; None: all but the second.

    Returns:
        The shape of ``x``.

    Raises:
        ValueError: shapes do not belong together.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.batch_normalization(np.array([[1.0], [3.0]]), np.ones(1), np.zeros(1), eps=0).array
        array([[-1.],
               [ 1.]])
    """
    x = as_variable(x)
    axes = _axes("batch_normalization", x, axis)
    function = Normalization(axes, eps)
    y = function.apply((x, *_spread("batch_normalization", x, axes, gamma, beta)))[0]
    if x.size:
        unbiased = function.count / max(function.count - 1, 1)
        for running, now in ((running_mean, function.mean), (running_var, function.var * unbiased)):
            if running is not None:
                running *= decay
                running += (1 - decay) * now.reshape(running.shape)
    return y


def fixed_batch_normalization(
    x: Any, gamma: Any, beta: Any, mean: Any, var: Any, eps: float = 2e-5, axis: Any = None
) -> Variable:  # fmt: skip
    """Normalize by statistics that are given, as at test time.

    Args:
        x, gamma, beta, eps, axis: as in :func:`batch_normalization`.
        mean, var: the statistics, of the shape of ``gamma``; they have gradients too.

    Returns:
        The shape of ``x``.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> one = np.ones(1)
        >>> F.fixed_batch_normalization(np.array([[3.0]]), one, one, mean=one, var=4 * one, eps=0).array
        array([[2.]])
    """
    x = as_variable(x)
    axes = _axes("fixed_batch_normalization", x, axis)
    gamma, beta, mean, var = _spread("fixed_batch_normalization", x, axes, gamma, beta, mean, var)
    y: Variable = (x - mean) * (gamma * (var + eps) ** -0.5) + beta
    return y if y.dtype == x.dtype else y.astype(x.dtype)


def layer_normalization(x: Any, gamma: Any, beta: Any, eps: float = 1e-5) -> Variable:
    """Normalize each sample over its features (Ba, Kiros and Hinton 2016, arXiv 1607.06450).

    Args:
        x: ``(N, D)``, or with more axes before the features.
        gamma, beta: ``(D,)``.
        eps: ε.

    Returns:
        The shape of ``x``.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.layer_normalization(np.array([[1.0, 3.0]]), np.ones(2), np.zeros(2), eps=0).array
        array([[-1.,  1.]])
    """
    x = as_variable(x)
    if x.ndim < 2:
        raise ValueError(f"layer_normalization: x of shape {x.shape} must be (N, D)")
    others = tuple(range(x.ndim - 1))
    return Normalization((x.ndim - 1,), eps).apply((x, *_spread("layer_normalization", x, others, gamma, beta)))[0]


def group_normalization(x: Any, groups: int, gamma: Any, beta: Any, eps: float = 1e-5) -> Variable:
    """Normalize each sample over groups of its channels (Wu and He 2018, arXiv 1803.08494).

    Args:
        x: ``(N, C, …)``.
        groups: into how many the channels are divided.
        gamma, beta: ``(C,)``.
        eps: ε.

    Returns:
        The shape of ``x``.

    Raises:
        ValueError: the groups do not divide the channels.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.group_normalization(np.array([[1.0, 3.0, 5.0, 9.0]]), 2, np.ones(4), np.zeros(4), eps=0).array
        array([[-1.,  1., -1.,  1.]])
    """
    x = as_variable(x)
    if x.ndim < 2 or groups < 1 or x.shape[1] % groups:
        raise ValueError(f"group_normalization: {groups} groups do not divide the channels of x, {x.shape}")
    N, C = x.shape[:2]
    if gamma.shape != (C,) or beta.shape != (C,):
        raise ValueError(f"group_normalization: gamma {gamma.shape} and beta {beta.shape} must be {(C,)}, one for each channel")
    rest = math.prod(x.shape[2:])
    per_channel = (1, groups, C // groups, 1)
    inputs = reshape(x, (N, groups, C // groups, rest)), reshape(gamma, per_channel), reshape(beta, per_channel)
    return reshape(Normalization((2, 3), eps).apply(inputs)[0], x.shape)


def local_response_normalization(x: Any, n: int = 5, k: float = 2, alpha: float = 1e-4, beta: float = 0.75) -> Variable:
    """Divide by the squares of neighbouring channels (Krizhevsky, Sutskever and Hinton 2012): x / (k + α Σ x²)^β.

    Args:
        x: ``(N, C, …)``.
        n: over how many channels the sum goes, around each one.
        k, alpha, beta: of the formula.

    Returns:
        The shape of ``x``.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.local_response_normalization(np.ones((1, 1)), k=0, alpha=1, beta=0.5).array
        array([[1.]])
    """
    x = as_variable(x)
    if x.ndim < 2 or n < 1:
        raise ValueError(f"local_response_normalization: x of shape {x.shape} must be (N, C, …), and n = {n} at least 1")
    N, C = x.shape[:2]
    rest = max(1, math.prod(x.shape[2:]))
    half = n // 2
    windows = Windows((C, rest), (2 * half + 1, 1), (1, 1), (half, 0), (1, 1), (C, rest))
    squares = SumPooling(windows, alpha).apply((reshape(x * x, (N, 1, C, rest)),))[0]
    y: Variable = x * (reshape(squares, x.shape) + k) ** -beta
    return y


def normalize(x: Any, eps: float = 1e-5, axis: Any = 1) -> Variable:
    """Divide by the Euclidean norm: x / (‖x‖ + ε). The gradient where all is 0 is that of x / ε.

    Args:
        x: an array or Variable.
        eps: ε.
        axis: over which the norm is taken.

    Returns:
        The shape of ``x``.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.normalize(np.array([[3.0, 4.0]]), eps=0).array
        array([[0.6, 0.8]])
    """
    x = as_variable(x)
    squares = sum_of(x * x, axis=axis, keepdims=True)
    norm = sqrt(maximum(squares, x.xp.asarray(np.finfo(x.dtype).tiny, x.dtype)))
    y: Variable = x / (norm + eps)
    return y
