"""Rows of normalization, each against its formula."""

from __future__ import annotations

import numpy as np
from case import Case, N

import mnpar.functions as F
from mnpar.functions import normalization

MEAN, VAR = np.array([0.2, -0.1, 0.4]), np.array([0.5, 1.0, 2.0])


def normal(x, gamma, beta, axes, eps):
    m = max(1, np.prod([x.shape[a] for a in axes]))
    mean = x.sum(axis=axes, keepdims=True) / m
    var = ((x - mean) ** 2).sum(axis=axes, keepdims=True) / m
    return gamma * (x - mean) / np.sqrt(var + eps) + beta


def column(v, ndim):
    return v.reshape(1, -1, *[1] * (ndim - 2))


def batch(x, gamma, beta):
    return normal(x, column(gamma, x.ndim), column(beta, x.ndim), (0, *range(2, x.ndim)), 0.1)


def group(x, gamma, beta):
    parts = x.reshape(len(x), 2, x.shape[1] // 2 * x.shape[2])
    return normal(parts, 1, 0, (2,), 0.1).reshape(x.shape) * column(gamma, x.ndim) + column(beta, x.ndim)


def neighbours(x, n, k, alpha, beta):
    y = np.empty_like(x)
    for c in range(x.shape[1]):
        low, high = max(0, c - n // 2), c + n // 2 + 1
        y[:, c] = x[:, c] / (k + alpha * (x[:, low:high] ** 2).sum(1)) ** beta
    return y


# fmt: off
CASES = [
    Case("batch_normalization", (normalization.Normalization,), lambda x, g, b: F.batch_normalization(x, g, b, 0.1), batch,
         ((N, 3), (3,), (3,)), halves=2e-2),
    Case("batch_normalization: images", (), lambda x, g, b: F.batch_normalization(x, g, b, 0.1), batch,
         ((N, 3, 2, 2), (3,), (3,)), halves=2e-2),
    Case("batch_normalization: other axes", (), lambda x, g, b: F.batch_normalization(x, g, b, 0.1, axis=(0, 1)),
         lambda x, g, b: normal(x, g, b, (0, 1), 0.1), ((N, 3, 2), (2,), (2,)), halves=2e-2),
    Case("fixed_batch_normalization", (), lambda x, g, b, m: F.fixed_batch_normalization(x, g, b, m, (m * m + 1), 0.1),
         lambda x, g, b, m: column(g, 3) * (x - column(m, 3)) / np.sqrt(column(m, 3) ** 2 + 1.1) + column(b, 3),
         ((N, 3, 2), (3,), (3,), (3,)), halves=2e-2),
    Case("layer_normalization", (), lambda x, g, b: F.layer_normalization(x, g, b, 0.1),
         lambda x, g, b: normal(x, g, b, (1,), 0.1), ((N, 3), (3,), (3,)), halves=2e-2),
    Case("layer_normalization: sequences", (), lambda x, g, b: F.layer_normalization(x, g, b, 0.1),
         lambda x, g, b: normal(x, g, b, (2,), 0.1), ((N, 2, 3), (3,), (3,)), halves=2e-2),
    Case("group_normalization", (), lambda x, g, b: F.group_normalization(x, 2, g, b, 0.1), group,
         ((N, 4, 3), (4,), (4,)), halves=2e-2),
    Case("local_response_normalization", (), lambda x: F.local_response_normalization(x, 3, 1, 0.5, 0.75),
         lambda x: neighbours(x, 3, 1, 0.5, 0.75), ((N, 4, 2),), halves=1e-2),
    Case("normalize", (), lambda x: F.normalize(x, 0.1), lambda x: x / (np.sqrt((x * x).sum(1, keepdims=True)) + 0.1),
         ((N, 3, 2),), halves=1e-2),
    Case("prelu", (), F.prelu, lambda x, w: np.where(x > 0, x, x * column(w, 3)), ((N, 3, 2), (3,))),
    Case("prelu: one slope", (), F.prelu, lambda x, w: np.where(x > 0, x, x * w), ((N, 3), ())),
    Case("maxout", (), lambda x: F.maxout(x, 2), lambda x: np.maximum(x[:, ::2], x[:, 1::2]), ((N, 4, 2),)),
]
# fmt: on
