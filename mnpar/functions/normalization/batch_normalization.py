"""Batch normalization: each channel less its mean, over its deviation, times gamma, plus beta.

Forward and backward are one sweep each over blocks of channels that fit the cache
(kernels/moments.py says how the variance keeps its digits). What is recorded, to be differentiated
again, is written out in ordinary functions instead.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array, Axis
from mnpar.function_node import InputGradients
from mnpar.functions.array.broadcast import unbroadcast
from mnpar.functions.array.shape import transpose
from mnpar.functions.node import GenericFunction, Operand, array_of
from mnpar.functions.normalization.moments import across, cast, centred
from mnpar.kernels.channels_last import is_channels_last
from mnpar.kernels.dtypes import compute_dtype
from mnpar.kernels.moments import (
    ChannelView,
    centre,
    channel_blocks,
    channel_sums,
    channel_view,
    split_mean,
    subtract_shift,
)
from mnpar.kernels.normalization import (
    normalize_batch,
    normalize_batch_gradient,
    scale_and_move,
    scale_and_move_gradients,
)
from mnpar.variable import Variable, as_variable


class BatchNormalization(GenericFunction):
    """y = γ·(x - μ)·s + β with s = (σ² + ε)^-½; x is (A, C, B), γ and β are (C,).

    With g = ∂L/∂y, p = Σ g, q = Σ g·(x - μ) and m numbers for each of the C: ∂L/∂β = p, ∂L/∂γ = s·q
    and ∂L/∂x = γ·s·(g - p/m - (x - μ)·s²·q/m).
    """

    joint_vjp = True

    def __init__(self, shape: ChannelView, eps: float) -> None:
        self.shape, self.eps = shape, eps
        self.count = max(shape[0] * shape[2], 1)

    def forward(self, x: Array, gamma: Array, beta: Array) -> Array:
        self.retain_inputs((0, 1))
        xp = backend.get_array_module(x)
        C = self.shape[1]
        self.dtype = np.result_type(compute_dtype(x), gamma.dtype, beta.dtype)
        x3 = x.reshape(self.shape)
        y = xp.empty_like(x3)  # in memory, too
        gamma = gamma.reshape(-1)
        beta = beta.reshape(-1)
        self.shift = xp.empty(C, self.dtype)
        self.rest = xp.empty(C)
        self.var = xp.empty(C)
        if normalize_batch(x3, gamma, beta, self.eps, y, (self.shift, self.rest, self.var)):
            return y.reshape(x.shape)
        for c in channel_blocks(x3):
            d = y[:, c] if y.dtype == self.dtype else xp.empty(y[:, c].shape, self.dtype)
            less_shift, shift, rest, var = centre(cast(x3[:, c], self.dtype), d)
            self.shift[c], self.rest[c], self.var[c] = shift, rest, var
            a = gamma[c] * (var + self.eps) ** -0.5
            xp.multiply(less_shift, across(a, self.dtype), out=d)
            d += across(beta[c] - rest * a, self.dtype)
            if d.dtype != y.dtype:
                y[:, c] = d
        return y.reshape(x.shape)

    @property
    def mean(self) -> Array:
        """The mean of each of the C, float64."""
        return self.shift + self.rest

    def backward(self, gy: Variable | Array) -> InputGradients:
        x, gamma = self.get_retained_inputs()
        if isinstance(gy, Variable):
            return recorded_gradients(
                x, gamma, gy, self.shape, (self.shape[1], 1), self.shift[:, None], (0, 2), self.eps
            )
        return sweep_once(self._sweep, x, gamma, gy, self.shape)

    def _sweep(self, x: Array, gamma: Array, gy: Array, gx: Array | None) -> tuple[Array, Array]:
        """The gradients of γ and β, float64; that of x is written into ``gx`` if there is one."""
        xp = backend.get_array_module(x)
        C = self.shape[1]
        x = x.reshape(self.shape)
        gy = gy.reshape(self.shape)
        gamma = gamma.reshape(-1)
        statistics = self.shift, self.rest, self.var
        if found := normalize_batch_gradient(x, gamma, gy, self.eps, statistics, gx):
            return found
        ggamma = xp.empty(C)
        gbeta = xp.empty(C)
        s = (self.var + self.eps) ** -0.5
        for c in channel_blocks(x):
            own = gx is not None and gx.dtype == self.dtype
            d = gx[:, c] if gx is not None and own else xp.empty(x[:, c].shape, self.dtype)
            less_shift = subtract_shift(x[:, c], self.shift[c], d)
            g = cast(gy[:, c], self.dtype)
            rest = self.rest[c]
            p = channel_sums(g)
            q = channel_sums(g, less_shift) - rest * p
            gbeta[c], ggamma[c] = p, q * s[c]
            if gx is None:
                continue
            k = q * s[c] ** 2 / -self.count
            xp.multiply(less_shift, across(k, self.dtype), out=d)
            d += g
            d -= across(p / self.count + rest * k, self.dtype)
            d *= across(gamma[c] * s[c], self.dtype)
            if not own:
                gx[:, c] = d
        return ggamma, gbeta


def sweep_once(
    sweep: Callable[..., tuple[Array, Array]],
    x: Array,
    gamma: Array,
    gy: Array,
    shape: tuple[int, ...],
) -> tuple[Callable[[], Array], ...]:
    """The gradients of x, γ and β, on arrays: one ``sweep`` over x, read as ``shape``, finds as
    many of them as are wanted.
    """
    found: list[Array] = []

    def gx() -> Array:
        xp = backend.get_array_module(x)
        if is_channels_last(x):  # to read a gx that lies so as another shape may be to copy it
            gx = xp.empty_like(x.reshape(shape))
            found[:] = sweep(x, gamma, gy, gx)
            return gx.reshape(x.shape)
        gx = xp.empty(x.shape, x.dtype)  # it is given away, so it is not a view
        found[:] = sweep(x, gamma, gy, gx.reshape(shape))
        return gx

    def of_parameter(i: int) -> Array:
        if not found:
            found[:] = sweep(x, gamma, gy, None)
        return found[i].astype(gamma.dtype).reshape(gamma.shape)

    return gx, lambda: of_parameter(0), lambda: of_parameter(1)


def recorded_gradients(
    x: Variable | Array,
    gamma: Variable | Array,
    gy: Variable | Array,
    shape: tuple[int, ...],
    gamma_shape: tuple[int, ...],
    shift: Array,
    axes: tuple[int, ...],
    eps: float,
) -> tuple[Callable[[], Variable | Array], ...]:
    """The gradients of γ·(x - μ)·s + β in ordinary functions of Variables, differentiable any
    number of times.

    x is read as ``shape``, with statistics over ``axes``; γ and β as ``gamma_shape``, which
    broadcasts to it. Any constant may be taken from x first: so float32 keeps its digits here too.
    """
    dtype, m = shift.dtype, max(math.prod([shape[axis] for axis in axes]), 1)

    def mean(z: Operand) -> Operand:
        total: Operand = z.sum(axis=axes, keepdims=True)
        return total * (1 / m)

    g = cast(gy, dtype).reshape(shape)
    d = cast(x, dtype).reshape(shape) - shift
    d = d - mean(d)
    s = (mean(d * d) + eps) ** -0.5
    normal = d * s

    def gx() -> Variable | Array:
        h = g * cast(gamma, dtype).reshape(gamma_shape)
        return ((h - mean(h) - normal * mean(h * normal)) * s).reshape(x.shape)

    def ggamma() -> Variable | Array:
        return unbroadcast(g * normal, gamma_shape).reshape(gamma.shape)

    return gx, ggamma, lambda: unbroadcast(g, gamma_shape).reshape(gamma.shape)


class FixedBatchNormalization(GenericFunction):
    """y = γ·(x - μ)·s + β with s = (v + ε)^-½, where μ and v are inputs like γ and β; x is (A, C,
    B), the others (C,).
    """

    def __init__(self, shape: ChannelView, eps: float) -> None:
        self.shape, self.eps = shape, eps

    def forward(self, x: Array, gamma: Array, beta: Array, mean: Array, var: Array) -> Array:
        self.retain_inputs((0, 1, 3, 4))
        xp = backend.get_array_module(x)
        dtype = np.result_type(compute_dtype(x), gamma.dtype, beta.dtype)
        x3 = x.reshape(self.shape)
        y = xp.empty(self.shape, x.dtype)
        gamma = gamma.reshape(-1)
        beta = beta.reshape(-1)
        shift, rest = split_mean(mean.reshape(-1), dtype)
        a = gamma * (var.reshape(-1).astype("d") + self.eps) ** -0.5
        b = beta - rest * a
        if y.dtype == dtype and scale_and_move.takes(x3):
            channels = [across(z, dtype) for z in (shift, a, b)]
            result: Array = scale_and_move(x3, *channels)
            return result.reshape(x.shape)
        for c in channel_blocks(x3):
            d = y[:, c] if y.dtype == dtype else xp.empty(y[:, c].shape, dtype)
            xp.subtract(x3[:, c], shift[c, None], out=d)
            d *= across(a[c], dtype)
            d += across(b[c], dtype)
            if d.dtype != y.dtype:
                y[:, c] = d
        return y.reshape(x.shape)

    def backward(self, gy: Variable | Array) -> InputGradients:
        x, gamma, mean, var = self.get_retained_inputs()
        dtype = np.result_type(compute_dtype(x), gamma.dtype)
        C = self.shape[1]
        g: Any = cast(gy, dtype).reshape(self.shape)
        flat = cast(gamma, dtype).reshape((C,))
        x3 = x.reshape(self.shape)
        s = cast((cast(var, np.dtype("d")) + self.eps) ** -0.5, dtype).reshape((C,))

        shift, rest = split_mean(array_of(mean).reshape(-1), dtype)

        @functools.cache
        def sweep() -> Any:  # γ·s·g, Σ g and Σ g·(x - shift)
            gx, *sums = scale_and_move_gradients(
                g, x3, across(shift, dtype), across(flat * s, dtype)
            )
            return gx, *[z.reshape(-1) for z in sums]

        by_loops = not isinstance(gy, Variable) and scale_and_move_gradients.takes(x3)

        @functools.cache
        def p() -> Any:  # Σ g
            if isinstance(gy, Variable):
                return g.sum(axis=(0, 2))
            return cast(sweep()[1] if by_loops else channel_sums(g), dtype)

        @functools.cache
        def q() -> Any:  # Σ g·(x - μ)
            if isinstance(gy, Variable):
                return (g * centred(cast(x3, dtype), mean.reshape((C,)))).sum(axis=(0, 2))
            if by_loops:
                return cast(sweep()[2] - rest * sweep()[1], dtype)
            return cast(channel_sums(g, x3 - shift[:, None]) - rest * channel_sums(g), dtype)

        return (
            lambda: (sweep()[0] if by_loops else g * across(flat * s, dtype)).reshape(x.shape),
            lambda: (q() * s).reshape(gamma.shape),
            lambda: p().reshape(gamma.shape),
            lambda: (p() * flat * s * -1).reshape(mean.shape),
            lambda: (q() * flat * s * s * s * -0.5).reshape(var.shape),
        )


def batch_normalization(
    x: Variable | Array,
    gamma: Variable | Array,
    beta: Variable | Array,
    eps: float = 2e-5,
    running_mean: Array | None = None,
    running_var: Array | None = None,
    decay: float = 0.9,
    axis: Axis = None,
) -> Variable:
    """Normalize each channel to mean ``beta`` and standard deviation ``gamma`` over this batch.

    Args:
        x: ``(N, C, …)``; of 16 bits, it is computed in float32.
        gamma, beta: ``(C,)``; or, in their order, all axes of ``x`` that are not in ``axis``.
        eps: added to the variance.
        running_mean, running_var: arrays like ``gamma``, or None. They are changed in place, to
            ``decay`` of what they were and ``1 - decay`` of the mean and the variance of this
            batch; the latter is multiplied by m / (m - 1), where m is how many numbers share a
            mean: the unbiased estimate. (Of one number, the variance is 0.)
        decay: see there.
        axis: what the mean is over; None takes the first axis and those after as many as ``gamma``
            has.

    Returns:
        ``x``'s shape and dtype. An empty batch gives an empty result, gradients of 0 and leaves the
        running values alone.

    Raises:
        ValueError: ``gamma`` or ``beta`` have another shape; TypeError: ``x`` has no floats.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> x = np.array([[1e6 + 1, 5.0], [1e6 + 3, 5.0]])
        >>> F.batch_normalization(x, np.array([1.0, 1.0]), np.array([0.0, 7.0])).array.round(3)
        array([[-1.,  7.],
               [ 1.,  7.]])

    Source:
        Ioffe and Szegedy, "Batch normalization: accelerating deep network training …", ICML 2015.
    """
    x, order, shape = to_channel_view("batch_normalization", x, axis, gamma=gamma, beta=beta)
    node = BatchNormalization(shape, eps)
    y = from_channel_view(node.apply((x, gamma, beta))[0], order)
    update_running(running_mean, node.mean, shape[0] * shape[2], decay)
    update_running(running_var, node.var, shape[0] * shape[2], decay, unbiased=True)
    return y


def fixed_batch_normalization(
    x: Variable | Array,
    gamma: Variable | Array,
    beta: Variable | Array,
    mean: Variable | Array,
    var: Variable | Array,
    eps: float = 2e-5,
    axis: Axis = None,
) -> Variable:
    """Batch normalization by given means and variances, element by element.

    Args:
        x: ``(N, C, …)``; of 16 bits, it is computed in float32.
        gamma, beta, mean, var: ``(C,)``; or, in their order, all axes of ``x`` that are not in
            ``axis``. All get gradients.
        eps: added to the variance.
        axis: which axes share a mean; None takes the first axis and those after as many as
            ``gamma`` has.

    Returns:
        ``x``'s shape and dtype.

    Raises:
        ValueError: one of the four has another shape; TypeError: ``x`` has no floats.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> one = np.ones(2)
        >>> F.fixed_batch_normalization(np.array([[1.0, 5.0]]), one, one, one, 4 * one).array.round(
        ...     3
        ... )
        array([[1., 3.]])
    """
    x, order, shape = to_channel_view(
        "fixed_batch_normalization", x, axis, gamma=gamma, beta=beta, mean=mean, var=var
    )
    return from_channel_view(
        FixedBatchNormalization(shape, eps).apply((x, gamma, beta, mean, var))[0], order
    )


def update_running(
    running: Array | None, new: Array, m: int, decay: float, unbiased: bool = False
) -> None:
    """Let an array follow the statistic of a batch, in place; ``m`` numbers share each: of none
    there is nothing to follow.
    """
    if running is not None and m:
        running *= decay
        running += (
            ((1 - decay) * (m / max(m - 1, 1) if unbiased else 1) * new)
            .reshape(running.shape)
            .astype(running.dtype)
        )


def reduced_axes(ndim: int, kept: int, axis: Axis) -> tuple[int, ...]:
    """The axes that share a mean, as numbers from 0 on."""
    if axis is None:
        return (0, *range(kept + 1, ndim))
    named = (axis,) if isinstance(axis, int) else tuple(axis)
    axes = tuple(sorted({a % ndim for a in named if -ndim <= a < ndim}))
    if len(axes) != len(named) or not axes:
        raise ValueError(f"axis = {axis} names no axes, or one twice, of an x of {ndim} axes")
    return axes


def to_channel_view(
    name: str, x: Variable | Array, axis: Axis, **params: Any
) -> tuple[Variable, tuple[int, ...] | None, ChannelView]:
    """x in the order of axes (None: its own) in which it can be read as (A, C, B), and this
    shape.
    """
    x = as_variable(x)
    if compute_dtype(x).kind != "f":
        raise TypeError(f"{name}: x has dtype {x.dtype}, but statistics are floats: cast it first")
    named = axis if axis is None or isinstance(axis, int) else tuple(axis)  # to be looked up
    shape, order, view = _view_of_shape(x.shape, next(iter(params.values())).ndim, named)
    for param, value in params.items():
        if value.shape != shape:
            reduced = reduced_axes(x.ndim, next(iter(params.values())).ndim, axis)
            raise ValueError(
                f"{name}: {param} of shape {value.shape} must have shape {shape}: x {x.shape} "
                f"without its axes {reduced}"
            )
    return x if order is None else transpose(x, order), order, view


@functools.lru_cache(maxsize=256)
def _view_of_shape(
    shape: tuple[int, ...], n_kept: int, axis: Axis
) -> tuple[tuple[int, ...], tuple[int, ...] | None, ChannelView]:
    """The lengths of the axes that do not share a mean, the order of axes, and the shape in which x
    is read then.
    """
    reduced = reduced_axes(len(shape), n_kept, axis)
    kept = tuple([n for n in range(len(shape)) if n not in reduced])
    lengths = tuple([shape[n] for n in kept])
    first, end = (kept[0], kept[-1] + 1) if kept else (0, 0)
    if end - first == len(kept):
        return lengths, None, channel_view(shape, first, end)
    order = reduced + kept
    in_order = tuple([shape[n] for n in order])
    return lengths, order, channel_view(in_order, len(reduced), len(shape))


def from_channel_view(y: Variable, order: tuple[int, ...] | None) -> Variable:
    """An output in the order of axes that the input had."""
    return y if order is None else transpose(y, sorted(range(len(order)), key=order.__getitem__))
