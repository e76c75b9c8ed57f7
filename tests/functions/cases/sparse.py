"""Rows of sparse products, strided picks, copies to devices and the loss of instances."""

from __future__ import annotations

import numpy as np
from mnpar.utils import CooMatrix

import mnpar.functions as F
from mnpar.functions.array import shape
from tests.functions.cases.case import Case, N

# two entries of one place, one without a place
ROW, COL = (
    np.array([2, 0, 2, -1, 0]),
    np.array([1, 0, 3, -1, 0]),
)
ROWS = np.array([[1, 0, -1], [2, 2, 0]])
COLS = np.array([[0, 3, -1], [3, 1, 0]])
LABELS = np.array(
    [[[0, 1, 1], [2, 2, 2]], [[3, 3, 0], [1, 7, 3]], [[0, 0, 0], [0, 0, 0]], [[2, 1, 2], [1, 2, 1]]]
)


def dense(data, row=ROW, col=COL, size=(3, 4)):
    y = np.zeros(size, data.dtype)
    for value, r, c in zip(data, row, col, strict=True):
        if r >= 0:
            y[r, c] += value
    return y


def dense_batch(data):
    return np.stack([dense(*entries) for entries in zip(data, ROWS, COLS, strict=True)])


def sparse(data, size=(3, 4)):
    return CooMatrix(data, ROW, COL, size)


def sparse_batch(data):
    return CooMatrix(data, ROWS, COLS, (3, 4))


def strided(x, size, strides, start=0):
    y = np.empty(size, x.dtype)
    for place in np.ndindex(*size):
        y[place] = x.ravel()[start + np.dot(place, strides)]
    return y


def bent(x):
    """No number is the mean of two others."""
    return x + 0.3 * x * x


def instances(norm):
    """The three losses, instance by instance."""

    def length(z, axis):
        return np.abs(z).sum(axis) if norm == 1 else np.sqrt((z * z).sum(axis))

    def losses(x):
        x, n, D = bent(x), *x.shape[:2]
        # (N, instance, D)
        t = LABELS[:n]
        means = np.zeros((n, D, D))
        variance = 0.0
        for c in range(D):
            pulls, pixels = 0.0, 0
            for image in range(n):
                inside = x[image][:, t[image] == c + 1]  # (D, pixels)
                if inside.size:
                    means[image, c] = inside.mean(1)
                    pulls += (
                        np.maximum(length(inside - means[image, c][:, None], 0) - 0.1, 0) ** 2
                    ).sum()
                    pixels += inside.shape[1]
            variance += pulls / max(pixels, 1) / D
        pairs = [(a, b) for a in range(D) for b in range(a)]
        pushes = [
            np.maximum(2 * 0.9 - length(means[:, a] - means[:, b], 1), 0) ** 2 for a, b in pairs
        ]
        far = np.sum(pushes) / max(len(pairs) * n, 1)
        return variance * 2, np.asarray(far * 3), length(means, (0, 2)).sum() / max(D * n, 1) * 0.5

    return losses


def of_instances(norm):
    return lambda x: F.discriminative_margin_based_clustering_loss(
        bent(x), LABELS[: len(x)], 0.1, 0.9, x.shape[1], norm, alpha=2, beta=3, gamma=0.5
    )


CASES = [
    Case(
        "sparse_matmul",
        (),
        lambda a, b: F.sparse_matmul(sparse(a), b),
        lambda a, b: dense(a) @ b,
        ((5,), (4, N)),
        halves=1e-2,
    ),
    Case(
        "sparse_matmul: transposed",
        (),
        lambda a, b: F.sparse_matmul(sparse(a), b, transa=True, transb=True),
        lambda a, b: dense(a).T @ b.T,
        ((5,), (N, 3)),
        halves=1e-2,
    ),
    Case(
        "sparse_matmul: dense times sparse",
        (),
        lambda a, b: F.sparse_matmul(b, sparse(a)),
        lambda a, b: b @ dense(a),
        ((5,), (N, 3)),
        halves=1e-2,
    ),
    Case(
        "sparse_matmul: dense times sparse, transposed",
        (),
        lambda a, b: F.sparse_matmul(b, sparse(a), transa=True, transb=True),
        lambda a, b: b.T @ dense(a).T,
        ((5,), (4, N)),
        halves=1e-2,
    ),
    Case(
        "sparse_matmul: batches",
        (),
        lambda a, b: F.sparse_matmul(sparse_batch(a), b),
        lambda a, b: dense_batch(a) @ b,
        ((2, 3), (2, 4, N)),
        halves=1e-2,
    ),
    Case(
        "sparse_matmul: batches, dense times sparse, transposed",
        (),
        lambda a, b: F.sparse_matmul(b, sparse_batch(a), transb=True),
        lambda a, b: b @ dense_batch(a).transpose(0, 2, 1),
        ((2, 3), (2, N, 4)),
        halves=1e-2,
    ),
    Case(
        "as_strided",
        (),
        lambda x: F.as_strided(x, (3, 2, 2), (1, 3, 0), 1),
        lambda x: strided(x, (3, 2, 2), (1, 3, 0), 1),
        ((2, 4),),
    ),
    Case(
        "as_strided: backwards",
        (),
        lambda x: F.as_strided(x, (2, 3), (-2, -1), 6),
        lambda x: strided(x, (2, 3), (-2, -1), 6),
        ((2, 4),),
    ),
    Case("as_strided: as it is", (), lambda x: F.as_strided(x, (len(x), 3), (3, 1)), lambda x: x),
    Case("copy", (shape.Copy,), lambda x: F.copy(x, "@numpy"), lambda x: x),
    Case(
        "discriminative_margin_based_clustering_loss",
        (),
        of_instances(1),
        instances(1),
        ((N, 3, 2, 3),),
        halves=2e-2,
    ),
    Case(
        "discriminative_margin_based_clustering_loss: 2-norm",
        (),
        of_instances(2),
        instances(2),
        ((N, 3, 2, 3),),
        halves=2e-2,
    ),
]
