"""Rows of normalization."""

from __future__ import annotations

from typing import Any

import numpy as np

import mnpar.functions as F
from mnpar.functions.activation.prelu import PReLU
from mnpar.functions.math.scale import Bias, Scale
from mnpar.functions.normalization import (
    batch_normalization,
    decorrelated_batch_normalization,
    layer_normalization,
    local_response_normalization,
)
from mnpar.functions.normalization.moments import Moments
from mnpar.kernels.moments import channel_view
from tests.functions.cases.case import Case, N


def normal(x: Any, axis: Any, eps: float) -> Any:
    """x less its mean, over its deviation; the mean of nothing is 0."""
    m = max(np.prod([x.shape[a] for a in axis]), 1)
    d = x - x.sum(axis=axis, keepdims=True) / m
    return d / np.sqrt((d * d).sum(axis=axis, keepdims=True) / m + eps)


def batch(axis: Any, shape: Any, eps: float = 2e-5) -> Any:
    return lambda x, g, b: normal(x, axis, eps) * g.reshape(shape) + b.reshape(shape)


def fixed(shape: Any, eps: float = 2e-5) -> Any:
    def truth(x: Any, *params: Any) -> Any:
        g, b, mean, var = [p.reshape(shape) for p in params]
        return g * (x - mean) / np.sqrt(var + eps) + b

    return truth


def groups(n: int, eps: float = 1e-5) -> Any:
    def truth(x: Any, g: Any, b: Any) -> Any:
        shape = (1, -1, *[1] * (x.ndim - 2))
        cut = x.reshape(len(x), n, x.shape[1] // n, *x.shape[2:])
        return normal(cut, tuple(range(2, cut.ndim)), eps).reshape(x.shape) * g.reshape(
            shape
        ) + b.reshape(shape)

    return truth


def moments_truth(x: Any) -> Any:
    m = max(len(x) * 2, 1)
    mean = x.sum(axis=(0, 2)) / m
    return mean, ((x - mean[:, None]) ** 2).sum(axis=(0, 2))


def response(n: int, k: float, alpha: float, beta: float) -> Any:
    def truth(x: Any) -> Any:
        C = x.shape[1]
        s = np.stack(
            [(x[:, max(c - n // 2, 0) : c + n // 2 + 1] ** 2).sum(axis=1) for c in range(C)], axis=1
        )
        return x / (k + alpha * s) ** beta

    return truth


def moments_of(x: Any) -> Any:
    """Of float32 and float16 they are float64; here they are cast back, as the table wants it."""
    return tuple(F.cast(y, x.dtype) for y in Moments(channel_view(x.shape, 1, 2)).apply((x,)))


def unit(x: Any, axis: Any, eps: float = 1e-5) -> Any:
    return x / (np.sqrt((x * x).sum(axis=axis, keepdims=True)) + eps)


def far(*x: Any) -> Any:
    """Running values so far away that both corrections are clipped, whatever the batch: then
    differences are gradients.
    """
    mean = np.full(3, -50, x[1].dtype)
    var = np.full(3, 1e-4, x[1].dtype)
    return F.batch_renormalization(*x, 1.05, 0.5, 0.1, mean, var)


def whitened(n: int, eps: float) -> Any:
    """Each group of channels times the inverse root of its covariance, by its eigenvectors."""

    def truth(x: Any) -> Any:
        y = np.zeros_like(x)
        size = x.shape[1] // n
        for i in range(n):
            cut = x[:, i * size : (i + 1) * size]
            flat = cut.swapaxes(0, 1).reshape(size, -1)
            m = max(flat.shape[1], 1)
            d = flat - flat.sum(axis=1, keepdims=True) / m
            values, vectors = np.linalg.eigh(d @ d.T / m + eps * np.eye(size))
            white = vectors @ np.diag(values**-0.5) @ vectors.T @ d
            y[:, i * size : (i + 1) * size] = white.reshape(cut.swapaxes(0, 1).shape).swapaxes(0, 1)
        return y

    return truth


def projected(x: Any, mean: Any, projection: Any) -> Any:
    return np.einsum(
        "gij,ngj...->ngi...", projection, x.reshape(len(x), 2, 2, 3) - mean[..., None]
    ).reshape(x.shape)


P = (3,)
P2 = (3, 2)
DENSE = (N, 3)
IMAGE = (N, 3, 2, 2)
BATCH = (batch_normalization.BatchNormalization,)
FIXED = (batch_normalization.FixedBatchNormalization,)
GROUP = (layer_normalization.GroupNormalization,)
LAYER = (layer_normalization.LayerNormalization,)
E1 = {"eps": 0.1}  # where the gradients are steep, float16 and differences need a larger one

CASES: list[Case] = [
    Case(
        "batch_normalization",
        BATCH,
        lambda *x: F.batch_normalization(*x, **E1),
        batch((0,), (1, 3), 0.1),
        (DENSE, P, P),
        halves=1e-2,
    ),
    Case(
        "batch_normalization: images",
        (),
        F.batch_normalization,
        batch((0, 2, 3), (3, 1, 1)),
        (IMAGE, P, P),
        halves=1e-2,
    ),
    Case(
        "batch_renormalization",
        (),
        far,
        lambda x, g, b: 1.05 * g * normal(x, (0,), 0.1) + 0.5 * g + b,
        (DENSE, P, P),
        halves=2e-2,
    ),
    Case(
        "batch_renormalization: not corrected",
        (),
        lambda *x: F.batch_renormalization(
            *x, 1, 0, running_mean=np.zeros(3), running_var=np.ones(3)
        ),
        batch((0, 2, 3), (3, 1, 1)),
        (IMAGE, P, P),
        halves=1e-2,
    ),
    Case(
        "fixed_batch_renormalization",
        (),
        lambda *x: F.fixed_batch_renormalization(*x, **E1),
        fixed((3,), 0.1),
        (DENSE, P, P, P, P),
        low=0.5,
        high=2,
        halves=2e-2,
    ),
    Case(
        "decorrelated_batch_normalization",
        (decorrelated_batch_normalization.InverseRoot, decorrelated_batch_normalization.Lyapunov),
        lambda x: F.decorrelated_batch_normalization(x, groups=1, eps=0.3),
        whitened(1, 0.3),
        (DENSE,),
        halves=2e-2,
    ),
    Case(
        "decorrelated_batch_normalization: groups",
        (),
        lambda x: F.decorrelated_batch_normalization(x, groups=2, eps=0.3),
        whitened(2, 0.3),
        ((N, 4, 3),),
        halves=2e-2,
    ),
    Case(
        "fixed_decorrelated_batch_normalization",
        (),
        lambda *x: F.fixed_decorrelated_batch_normalization(*x, groups=2),
        projected,
        ((N, 4, 3), (2, 2), (2, 2, 2)),
        halves=2e-2,
    ),
    Case(
        "batch_normalization: long rows",
        (),
        F.batch_normalization,
        batch((0, 2), (2, 1)),
        ((N, 2, 150), (2,), (2,)),
        halves=1e-2,
    ),
    Case(
        "batch_normalization: gamma of two axes",
        (),
        lambda *x: F.batch_normalization(*x, **E1),
        batch((0,), (3, 2), 0.1),
        ((N, 3, 2), P2, P2),
        halves=1e-2,
    ),
    Case(
        "batch_normalization: last axis",
        (),
        lambda *x: F.batch_normalization(*x, axis=(0, 1, -2)),
        batch((0, 1, 2), (3,)),
        ((N, 2, 2, 3), P, P),
        halves=1e-2,
    ),
    Case(
        "batch_normalization: axes apart",
        (),
        lambda *x: F.batch_normalization(*x, axis=(0, 2)),
        batch((0, 2), (3, 1, 2)),
        ((N, 3, 4, 2), P2, P2),
        halves=1e-2,
    ),
    Case(
        "batch_normalization: one mean",
        (),
        lambda *x: F.batch_normalization(*x, axis=(0, 1)),
        batch((0, 1), (1, 1)),
        (DENSE, (), ()),
        halves=1e-2,
    ),
    Case(
        "fixed_batch_normalization",
        FIXED,
        F.fixed_batch_normalization,
        fixed((1, 3)),
        (DENSE, P, P, P, P),
        0.4,
        2,
        halves=2e-2,
    ),
    Case(
        "fixed_batch_normalization: images",
        (),
        F.fixed_batch_normalization,
        fixed((3, 1, 1)),
        (IMAGE, P, P, P, P),
        0.4,
        2,
        halves=2e-2,
    ),
    Case(
        "fixed_batch_normalization: axes apart",
        (),
        lambda *x: F.fixed_batch_normalization(*x, axis=(0, 2)),
        fixed((3, 1, 2)),
        ((N, 3, 4, 2), P2, P2, P2, P2),
        0.4,
        2,
        halves=2e-2,
    ),
    Case("moments", (Moments,), moments_of, moments_truth, ((N, 3, 2),), halves=1e-2),
    Case(
        "moments: the mean alone",
        (),
        lambda x: moments_of(x)[0],
        lambda x: moments_truth(x)[0],
        ((N, 3, 2),),
    ),
    Case(
        "moments: the squares alone",
        (),
        lambda x: moments_of(x)[1],
        lambda x: moments_truth(x)[1],
        ((N, 3, 2),),
        halves=1e-2,
    ),
    Case(
        "layer_normalization",
        LAYER,
        F.layer_normalization,
        lambda x, g, b: normal(x, (1,), 1e-5) * g + b,
        ((N, 5), (5,), (5,)),
        halves=1e-2,
    ),
    Case(
        "layer_normalization: batch of two axes",
        (),
        F.layer_normalization,
        lambda x, g, b: normal(x, (2,), 1e-5) * g + b,
        ((N, 2, 3), P, P),
        halves=1e-2,
    ),
    Case(
        "layer_normalization: over two axes",
        (),
        F.layer_normalization,
        lambda x, g, b: normal(x, (1, 2), 1e-5) * g + b,
        ((N, 3, 2), P2, P2),
        halves=1e-2,
    ),
    Case(
        "group_normalization",
        GROUP,
        lambda x, *p: F.group_normalization(x, 2, *p),
        groups(2),
        ((N, 4, 2, 2), (4,), (4,)),
        halves=1e-2,
    ),
    Case(
        "group_normalization: dense",
        (),
        lambda x, *p: F.group_normalization(x, 2, *p),
        groups(2),
        ((N, 6), (6,), (6,)),
        halves=1e-2,
    ),
    Case(
        "group_normalization: one group",
        (),
        lambda x, *p: F.group_normalization(x, 1, *p),
        groups(1),
        ((N, 3, 2), P, P),
        halves=1e-2,
    ),
    Case(
        "local_response_normalization",
        (
            local_response_normalization.LocalResponseNormalization,
            local_response_normalization.WindowSum,
        ),
        F.local_response_normalization,
        response(5, 2, 1e-4, 0.75),
        ((N, 7, 2),),
    ),
    Case(
        "local_response_normalization: narrow",
        (),
        lambda x: F.local_response_normalization(x, 3, 1, 0.5, 0.6),
        response(3, 1, 0.5, 0.6),
        ((N, 4),),
    ),
    Case(
        "local_response_normalization: wider than x",
        (),
        lambda x: F.local_response_normalization(x, 9, 1, 0.5),
        response(9, 1, 0.5, 0.75),
        ((N, 3),),
    ),
    Case("normalize", (local_response_normalization.Normalize,), F.normalize, lambda x: unit(x, 1)),
    Case("normalize: images", (), F.normalize, lambda x: unit(x, 1), (IMAGE,)),
    Case(
        "normalize: two axes",
        (),
        lambda x: F.normalize(x, 0.5, (1, 2)),
        lambda x: unit(x, (1, 2), 0.5),
        ((N, 3, 2),),
    ),
    Case("bias", (Bias,), F.bias, lambda x, y: x + y[:, None], ((N, 3, 2), P)),
    Case(
        "bias: later axis", (), lambda x, y: F.bias(x, y, 2), lambda x, y: x + y, ((N, 3, 2), (2,))
    ),
    Case("scale", (Scale,), F.scale, lambda x, y: x * y[:, None], ((N, 3, 2), P)),
    Case("scale: two axes", (), F.scale, lambda x, y: x * y[..., None], ((N, 3, 2, 2), P2)),
    Case(
        "prelu",
        (PReLU,),
        F.prelu,
        lambda x, W: np.where(x < 0, W[:, None] * x, x),
        ((N, 3, 2), P),
    ),
    Case("prelu: one slope", (), F.prelu, lambda x, W: np.where(x < 0, W * x, x), (DENSE, ())),
    Case(
        "maxout",
        (),
        lambda x: F.maxout(x, 2),
        lambda x: x.reshape(len(x), 3, 2, 2).max(axis=2),
        ((N, 6, 2),),
    ),
    Case(
        "maxout: last axis",
        (),
        lambda x: F.maxout(x, 3, -1),
        lambda x: x.max(axis=2, keepdims=True),
        ((N, 2, 3),),
    ),
]
