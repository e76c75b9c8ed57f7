"""Layer and group normalization: each sample by itself, over all its features or over groups of its
channels.

Groups read x as (N, G, K, B): a mean for each sample and group, over K channels of B places; gamma
and beta are (G, K). Layer normalization reads it as rows, so that all its sums are products of a
matrix with a vector.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array, ArrayModule
from mnpar.function_node import InputGradients
from mnpar.functions.node import GenericFunction
from mnpar.functions.normalization.batch_normalization import recorded_gradients, sweep_once
from mnpar.functions.normalization.moments import cast
from mnpar.kernels import tuning
from mnpar.kernels.channels_last import is_channels_last
from mnpar.kernels.dtypes import compute_dtype
from mnpar.kernels.moments import centre, channel_sums
from mnpar.kernels.normalization import (
    normalize_groups,
    normalize_groups_gradient,
    normalize_rows,
    normalize_rows_gradient,
)
from mnpar.variable import Variable, as_variable


class LayerNormalization(GenericFunction):
    """y = γ·(x - μ)·s + β for rows x (N, D) and γ, β (D,); with d = x - μ and a gradient g of y,

    ∂L/∂x = s·(γ·g - mean(γ·g) - d·s²·mean(γ·g·d)), ∂L/∂γ = Σ s·g·d, ∂L/∂β = Σ g.

    All sums are products with vectors. What differs by row and column is written out first, as a
    product of thin matrices, and then multiplied or added whole: numpy takes thrice as long where
    it has to begin anew for each row.
    """

    joint_vjp = True

    def __init__(self, shape: tuple[int, int], eps: float) -> None:
        self.shape, self.eps = shape, eps

    def forward(self, x: Array, gamma: Array, beta: Array) -> Array:
        self.retain_inputs((0, 1))
        (N, D), xp = self.shape, backend.get_array_module(x)
        if not x.flags.c_contiguous:
            x = xp.ascontiguousarray(x)
        if (found := normalize_rows(x, gamma, beta, self.eps)) is not None:
            y, (self.shift, self.rest, self.s) = found
            self.dtype, self.shifted = x.dtype, True
            return y
        self.dtype = dtype = np.result_type(compute_dtype(x), gamma.dtype, beta.dtype)
        rows = self._rows(x)
        y = xp.empty(x.shape, x.dtype)
        both = xp.empty((2, D), dtype)
        both[0], both[1] = gamma.reshape(D), beta.reshape(D)
        self._centre(rows)
        thin = xp.zeros((2, N, 2), dtype)
        thin[0, :, :1], thin[1, :, :1], thin[1, :, 1:] = self.s, -self.rest * self.s, 1
        for n, room in self._blocks(xp, 2 + self.shifted):
            z = self._less_shift(rows, n, room[-1])
            d, move = xp.matmul(thin[:, n], both, out=room[:2])
            d *= z
            xp.add(d, move, out=y.reshape(N, D)[n], casting="same_kind")
        return y

    def _rows(self, x: Array) -> Array:
        """(N, D), row by row: columns, which linear layers hand on, would be read anew for each sum
        and product.
        """
        return backend.get_array_module(x).ascontiguousarray(x.reshape(self.shape), self.dtype)

    def _blocks(self, xp: ArrayModule, rooms: int) -> Iterator[tuple[Any, ...]]:
        """Slices of N with room (rooms, n, D), as many as stay in the cache on the host."""
        N, D = self.shape
        step = min(N, max(1, (tuning.LAYER_BLOCK if xp is np else 2**26) // max(D, 1)))
        room = backend.empty_aligned((rooms, step, D), self.dtype, xp)
        for start in range(0, N, max(step, 1)):
            n = slice(start, min(start + step, N))
            yield n, room[:, : n.stop - start]

    def _centre(self, x: Array) -> None:
        """Find shift, rest (whose sum is the mean) and s of each row, (N, 1), as
        :func:`moments.centre` does.

        The shift is 0 where that is within a deviation of the mean: one bit is lost then.
        """
        xp = backend.get_array_module(x)
        self.shift, (self.rest, squares) = xp.zeros((len(x), 1), x.dtype), self._means(x)
        self.shifted = not ((2 * self.rest * self.rest <= squares) & (squares < np.inf)).all()
        if self.shifted:
            self.shift, self.rest = self.rest, self.shift
            for n, room in self._blocks(xp, 1):
                self.rest[n], squares[n] = self._means(self._less_shift(x, n, room[0]))
        self.s = (squares - self.rest * self.rest + self.eps) ** -0.5

    def _means(self, x: Array) -> tuple[Array, Array]:
        """The means of x and of x², of each row."""
        xp = backend.get_array_module(x)
        D = max(self.shape[1], 1)
        return x @ xp.full((x.shape[1], 1), 1 / D, x.dtype), (x[:, None] @ x[:, :, None])[:, 0] * (
            1 / D
        )

    def _less_shift(self, x: Array, n: slice, room: Array) -> Array:
        """x - shift of some rows, in ``room``; x itself where that is the same."""
        return (
            backend.get_array_module(x).subtract(x[n], self.shift[n], out=room)
            if self.shifted
            else x[n]
        )

    def backward(self, gy: Variable | Array) -> InputGradients:
        x, gamma = self.get_retained_inputs()
        if isinstance(gy, Variable):
            return recorded_gradients(
                x, gamma, gy, self.shape, (1, self.shape[1]), self.shift, (1,), self.eps
            )
        found: list[Array] = []

        def of(i: int) -> Array:
            if not found:
                found[:] = self._sweep(x, gamma, gy)
            return found[i]

        return lambda: of(0), lambda: of(1), lambda: of(2)

    def _sweep(self, x: Array, gamma: Array, gy: Array) -> tuple[Array, Array, Array]:
        """With z = x - shift, ∂L/∂x = g·(s⊗γ) + z·(k⊗1) + c⊗1."""
        (N, D), xp, s = self.shape, backend.get_array_module(x), self.s
        rows = self._rows(x)
        gs = self._rows(gy)
        gx = xp.empty(x.shape, x.dtype)
        statistics = self.shift, self.rest, s
        sums = normalize_rows_gradient(rows, gamma, gs, statistics, gx.reshape(N, D))
        if sums is not None:
            ggamma, gbeta = sums.astype(gamma.dtype).reshape(2, *gamma.shape)
            return gx, ggamma, gbeta
        both = xp.ones((2, D), self.dtype)
        both[0] = gamma.reshape(D)
        p = gs @ both[0, :, None]
        k = s**3 * (-1 / max(D, 1))
        less = self.rest * p * k
        c = p * s * (-1 / max(D, 1))
        channel_sums = xp.zeros((2, D))
        weights = xp.concatenate((-s * self.rest, xp.ones_like(s)), 1)
        thin = xp.zeros((3, N, 2), self.dtype)
        thin[0, :, :1] = s
        for n, room in self._blocks(xp, 3 + self.shifted):
            g = gs[n]
            z = self._less_shift(rows, n, room[-1])
            h = xp.multiply(g, z, out=room[0])
            channel_sums += weights[n].T @ g  # Σ -s·rest·g and Σ g
            channel_sums[0] += s[n, 0] @ h
            kn = (h @ both[0, :, None]) * k[n] - less[n]
            thin[1, n, 1:], thin[2, n, 1:] = kn, c[n] - kn * self.rest[n]
            slope, d, move = xp.matmul(thin[:, n], both, out=room[:3])
            slope *= g
            d *= z
            d += move
            xp.add(d, slope, out=gx.reshape(N, D)[n], casting="same_kind")
        return gx, *[z.astype(gamma.dtype).reshape(gamma.shape) for z in channel_sums]


def layer_normalization(
    x: Variable | Array, gamma: Variable | Array, beta: Variable | Array, eps: float = 1e-5
) -> Variable:
    """Normalize each sample to mean 0 and standard deviation 1 over its features, then γ·x + β.

    Args:
        x: ``(N, D)``, or more axes; of 16 bits, it is computed in float32.
        gamma, beta: ``(D,)``; of more axes, they are the last axes of ``x``, over which the mean is
            then taken.
        eps: added to the variance.

    Returns:
        ``x``'s shape and dtype.

    Raises:
        ValueError: ``gamma`` or ``beta`` are not of the shape of ``x``'s last axes; TypeError:
            ``x`` has no floats.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.layer_normalization(
        ...     np.array([[1.0, 3.0], [5.0, 5.0]]), np.ones(2), np.array([0.0, 7.0])
        ... ).array.round(3)
        array([[-1.,  8.],
               [ 0.,  7.]])

    Source:
        Ba, Kiros and Hinton, "Layer normalization" (2016), arXiv 1607.06450.
    """
    x, D = as_variable(x), gamma.shape
    if compute_dtype(x).kind != "f":
        raise TypeError(
            f"layer_normalization: x has dtype {x.dtype}, but statistics are floats: cast it first"
        )
    if not 0 < len(D) < x.ndim or x.shape[x.ndim - len(D) :] != D or beta.shape != D:
        raise ValueError(
            f"layer_normalization: gamma of shape {D} and beta of shape {beta.shape} must have "
            "the shape of the last axes of x "
            f"{x.shape}, which has batch axes before them"
        )
    shape = math.prod(x.shape[: x.ndim - len(D)]), math.prod(D)
    return LayerNormalization(shape, eps).apply((x, gamma, beta))[0]


class GroupNormalization(GenericFunction):
    """y = γ·(x - μ)·s + β with s = (σ² + ε)^-½ over K and B; in backward, x̂ = (x - μ)·s and h =
    γ·g for a gradient g of y.
    """

    joint_vjp = True

    def __init__(self, shape: tuple[int, int, int, int], eps: float) -> None:
        self.shape, self.eps = shape, eps
        self.count = max(shape[2] * shape[3], 1)

    def forward(self, x: Array, gamma: Array, beta: Array) -> Array:
        self.retain_inputs((0, 1))
        (N, G, K, B), xp = self.shape, backend.get_array_module(x)
        self.dtype = dtype = np.result_type(compute_dtype(x), gamma.dtype, beta.dtype)
        gamma = cast(gamma, dtype).reshape(G, K, 1)
        beta = cast(beta, dtype).reshape(G, K, 1)
        x4 = x.reshape(self.shape)
        out = xp.empty_like(x) if is_channels_last(x) else xp.empty(x.shape, x.dtype)
        y = out.reshape(self.shape)
        self.shift, self.rest, self.s = (xp.empty((N, G, 1, 1), dtype) for _ in range(3))
        if normalize_groups(
            x4, gamma[:, :, 0], beta[:, :, 0], self.eps, y, (self.shift, self.rest, self.s)
        ):
            return out
        for n in self._blocks(x):
            d = y[n] if y.dtype == dtype else xp.empty(y[n].shape, dtype)
            less_shift, shift, rest, var = centre(self._rows(cast(x4[n], dtype)), self._rows(d))
            for kept, new in (
                (self.shift, shift),
                (self.rest, rest),
                (self.s, (var + self.eps) ** -0.5),
            ):
                kept[n] = new.reshape(len(d), G, 1, 1)
            if B == 1:  # then a below would be as large as x
                xp.subtract(less_shift.reshape(d.shape), self.rest[n], out=d)
                d *= self.s[n]
                d *= gamma
                d += beta
            else:
                a = self.s[n] * gamma  # (n, G, K, 1)
                xp.multiply(less_shift.reshape(d.shape), a, out=d)
                d += beta - self.rest[n] * a
            if d.dtype != y.dtype:
                y[n] = d
        return out

    def _rows(self, z: Array) -> Array:
        """(n, G, K, B) → (1, n·G, K·B): the statistics are over the last axis."""
        return z.reshape(1, z.shape[0] * z.shape[1], z.shape[2] * z.shape[3])

    def _channels(self, z: Array) -> Array:
        """(n, G, K, B) → (n, G·K, B): the gradients of γ and β are sums over the first and the last
        axis.
        """
        return z.reshape(z.shape[0], z.shape[1] * z.shape[2], z.shape[3])

    def _blocks(self, x: Array) -> Iterator[slice]:
        """Pieces of N: as many as fit the cache on the host, all at once on a GPU."""
        N = self.shape[0]
        features = max(math.prod(self.shape[1:]), 1)
        step = max(1, tuning.MOMENTS_BLOCK // features) if type(x) is np.ndarray else max(N, 1)
        return (slice(start, start + step) for start in range(0, N, step))

    def backward(self, gy: Variable | Array) -> InputGradients:
        x, gamma = self.get_retained_inputs()
        if isinstance(gy, Variable):
            return recorded_gradients(
                x, gamma, gy, self.shape, (*self.shape[1:3], 1), self.shift, (2, 3), self.eps
            )
        return sweep_once(self._sweep, x, gamma, gy, self.shape)

    def _sweep(self, x: Array, gamma: Array, gy: Array, gx: Array | None) -> tuple[Array, Array]:
        """The gradients of γ and β, float64; that of x is written into ``gx`` if there is one."""
        (_, G, K, _), xp = self.shape, backend.get_array_module(x)
        x = x.reshape(self.shape)
        gy = gy.reshape(self.shape)
        gamma = cast(gamma, self.dtype).reshape(G, K, 1)
        statistics = self.shift, self.rest, self.s
        if found := normalize_groups_gradient(x, gamma[:, :, 0], gy, statistics, gx):
            return found
        ggamma = xp.zeros(G * K)
        gbeta = xp.zeros(G * K)
        for n in self._blocks(x):
            normal = (
                gx[n]
                if gx is not None and gx.dtype == self.dtype
                else xp.empty(x[n].shape, self.dtype)
            )
            xp.subtract(x[n], self.shift[n], out=normal)
            normal -= self.rest[n]
            normal *= self.s[n]
            g = cast(gy[n], self.dtype)
            gbeta += channel_sums(self._channels(g))
            ggamma += channel_sums(self._channels(g), self._channels(normal))
            if gx is not None:
                self._of_x(normal, g * gamma, self.s[n])
                if gx.dtype != self.dtype:
                    gx[n] = normal
        return ggamma, gbeta

    def _of_x(self, normal: Array, h: Array, s: Array) -> None:
        """x̂ → s·(h - mean h - x̂·mean(h·x̂)), in place."""
        p = channel_sums(self._rows(h))
        q = channel_sums(self._rows(h), self._rows(normal))
        normal *= (q / -self.count).astype(self.dtype).reshape(s.shape)
        normal += h
        normal -= (p / self.count).astype(self.dtype).reshape(s.shape)
        normal *= s


def group_normalization(
    x: Variable | Array,
    groups: int,
    gamma: Variable | Array,
    beta: Variable | Array,
    eps: float = 1e-5,
) -> Variable:
    """Normalize each group of channels of each sample to mean 0 and standard deviation 1, then γ·x
    + β for each channel.

    With one group it is layer normalization with a ``gamma`` for each channel, with C groups
    instance normalization.

    Args:
        x: ``(N, C, …)``; of 16 bits, it is computed in float32.
        groups: how many groups of C / groups neighbouring channels.
        gamma, beta: ``(C,)``.
        eps: added to the variance.

    Returns:
        ``x``'s shape and dtype.

    Raises:
        ValueError: the groups do not divide the channels, or shapes do not belong together;
            TypeError: ``groups`` is no int, or ``x`` has no floats.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> x = np.array([[1.0, 3.0, 5.0, 15.0]])
        >>> F.group_normalization(x, 2, np.ones(4), np.zeros(4)).array.round(3)
        array([[-1.,  1., -1.,  1.]])

    Source:
        Wu and He, "Group normalization", ECCV 2018.
    """
    x = as_variable(x)
    if not isinstance(groups, int | np.integer) or compute_dtype(x).kind != "f":
        raise TypeError(
            f"group_normalization: groups is an int and x has floats, not {groups!r} and {x.dtype}"
        )
    if x.ndim < 2 or groups < 1 or x.shape[1] % groups:
        raise ValueError(
            f"group_normalization: {groups} groups do not divide the channels (axis 1) of x "
            f"{x.shape}"
        )
    if gamma.shape != x.shape[1:2] or beta.shape != x.shape[1:2]:
        raise ValueError(
            f"group_normalization: gamma of shape {gamma.shape} and beta of shape {beta.shape} "
            f"must have shape {x.shape[1:2]}, "
            f"one for each channel of x {x.shape}"
        )
    shape = x.shape[0], int(groups), x.shape[1] // int(groups), math.prod(x.shape[2:])
    return GroupNormalization(shape, eps).apply((x, gamma, beta))[0]
