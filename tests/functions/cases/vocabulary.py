"""Rows of what else Chainer's programs use: angles, rounding, matrices, pairs and triplets, noise,
scores.
"""

from __future__ import annotations

import itertools

import numpy as np

import mnpar.functions as F
from mnpar.functions.communication.shared import AddOnce, SumOnce
from mnpar.functions.divided.vocabulary import ShiftedScores
from mnpar.functions.loss.ctc import CTC
from mnpar.functions.math import arithmetic, cumulative, linear_algebra, rounding, trigonometric
from mnpar.functions.util import forget
from mnpar.kernels.dtypes import upcast_halves
from tests.functions.cases.case import Case, N
from tests.functions.cases.recurrent import pixelwise

PAIR = ((N, 3), (N, 3))
TRIPLE = ((N, 3), (N, 3), (N, 3))
SQUARES = ((N, 3, 3),)
WELL = np.array([[2.0, 0.3, -0.4], [0.1, -2.5, 0.2], [-0.3, 0.5, 3.0]])  # far from singular


def well(f):
    """Of matrices near one that is far from singular."""
    return lambda x: f(x * 0.2 + WELL.astype(x.dtype))


def together(n):
    return np.arange(n, dtype="i4") % 2


def mean_of(x):
    return x.sum() / max(x.size, 1)


def pairs(x, y):
    t = together(len(x))
    d = np.sqrt(((x - y) ** 2).sum(1))
    return (t * d**2 + (1 - t) * np.maximum(2 - d, 0) ** 2) / 2


def triples(a, p, n):
    return np.maximum(((a - p) ** 2).sum(1) - ((a - n) ** 2).sum(1) + 0.3, 0)


def drawn(shape):
    return np.random.default_rng(3).random(shape, np.float32)


def zoned(h, x):
    return np.where(drawn(x.shape) < 0.4, h, x)


def near_one_hot(x):
    z = (x + np.random.default_rng(3).gumbel(size=x.shape)) / 0.7
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def covariance(x, y):
    return (x - x.mean(0)).T @ (y - y.mean(0)) / len(x)


def hollow(c):
    return c - np.diag(np.diag(c))


def blocks(x):
    n, c, h, w = x.shape
    return np.stack([x[:, :, i::2, j::2] for i in range(2) for j in range(2)], 1).reshape(
        n, 4 * c, h // 2, w // 2
    )


def pixels(x):
    n, c, h, w = x.shape
    y = np.zeros((n, c // 4, 2 * h, 2 * w))
    for k in range(4):
        y[:, :, k // 2 :: 2, k % 2 :: 2] = x[:, k * (c // 4) : (k + 1) * (c // 4)]
    return y


def classes(n):
    return np.arange(n, dtype="i4") * 2 % 3


def summary(x):
    """Precision, recall and F2 of each of three classes, 0 where there are none; and how many there
    are.
    """
    t = classes(len(x))
    p = x.argmax(1)
    rows = []
    for c in range(3):
        right = ((t == c) & (p == c)).sum()
        found = (p == c).sum()
        there = (t == c).sum()
        precision = right / max(found, 1)
        recall = right / max(there, 1)
        rows.append(
            (precision, recall, 5 * precision * recall / max(4 * precision + recall, 1e-300), there)
        )
    return np.array(rows).T


def explained(p, t):
    total = ((t - t.mean(0)) ** 2).sum(0) if len(t) else np.zeros(t.shape[1])
    return np.where(total > 0, 1 - ((p - t) ** 2).sum(0) / np.where(total > 0, total, 1), 0)


def bilinear(x, y, W, V1=0.0, V2=0.0, b=0.0):
    return (
        np.einsum("nj,nk,jkl->nl", x, y, W) + np.dot(x, V1) + np.dot(y, V2) + b
        if np.ndim(V1)
        else np.einsum("nj,nk,jkl->nl", x, y, W)
    )


def score(name, select):
    """A row of one of the scores with its support."""
    f = getattr(F, name)
    return Case(
        name,
        (),
        lambda x: F.stack([s.astype("f8") for s in f(x, classes(len(x)), 3)]),
        lambda x: np.stack([select(*summary(x)), summary(x)[3]]),
        differentiable=False,
    )


def likelihood(x, labels, blank, steps):
    """-log of the summed probabilities of all paths that stand for the labels, one path after the
    other.
    """
    p = np.exp(x[:steps] - x[:steps].max(1, keepdims=True))
    p, total = p / p.sum(1, keepdims=True), 0
    for path in itertools.product(range(x.shape[1]), repeat=steps):
        if [k for k, _ in itertools.groupby(path) if k != blank] == list(labels):
            total += np.prod([p[t, k] for t, k in enumerate(path)])
    return -np.log(total)


CTC_LABELS = np.array([[1, 1], [2, 1], [2, -1], [-1, -1]])
CTC_STEPS = [4, 3, 4, 2]
CTC_LENGTHS = [2, 2, 1, 0]


def ctc(x):
    """Of (4, N, 3), with blank 0."""
    return np.array(
        [
            likelihood(x[:, n], CTC_LABELS[n, : CTC_LENGTHS[n]], 0, CTC_STEPS[n])
            for n in range(x.shape[1])
        ]
    ).reshape(x.shape[1])


def ctc_call(x, reduce):
    n = x.shape[1]
    args = CTC_LABELS[:n], 0, np.array(CTC_STEPS[:n], "i4"), np.array(CTC_LENGTHS[:n], "i4")
    return F.connectionist_temporal_classification(x, *args, reduce)


def sig(x):
    return 1 / (1 + np.exp(-x))


def joined(c1, c2, x1, x2):
    (a1, i1, f1, o1), (a2, i2, f2, o2) = [
        np.moveaxis(x.reshape(len(x), 2, 4), 2, 0) for x in (x1, x2)
    ]
    c = np.tanh(a1) * sig(i1) + np.tanh(a2) * sig(i2) + sig(f1) * c1 + sig(f2) * c2
    return c, sig(o1 + o2) * np.tanh(c)


def node(*inputs):
    *cs, x = inputs
    a, i, o, *fs = np.split(x, 3 + len(cs), 1)
    c = np.tanh(a) * sig(i) + sum(sig(f) * before for f, before in zip(fs, cs, strict=True))
    return c, sig(o) * np.tanh(c)


def some(*shape):
    return (drawn(shape) < 0.6).astype("f8")


def connected(x, W, b):
    return np.einsum("nd,nod->no", x, W * some(len(x), 2, 3) * 2) + b


def harmonic(precision, recall, *_):
    return 2 * precision * recall / np.maximum(precision + recall, 1e-300)


def of_a_block(x, cache):
    """Classes 1, 2, 3 of 0 … 4; the labels are 0, 2, 4, 1, …"""
    labels = np.arange(len(x)) * 2 % 5 - 1
    return (
        ShiftedScores(np.full(len(x), 0.5, upcast_halves(x.array).dtype), labels, cache)
        .apply((x,))[0]
        .astype(x.dtype)
    )


def of_a_block_truth(x):
    labels = np.arange(len(x)) * 2 % 5 - 1
    scores = [row[t] - 0.5 if 0 <= t < 3 else 0.0 for row, t in zip(x, labels, strict=True)]
    return np.stack([np.exp(x - 0.5).sum(1), np.array(scores).reshape(-1)])


CASES = [
    Case(
        "bias added on one rank",
        (AddOnce, SumOnce),
        lambda y, b: AddOnce(True).apply((y * 1.0, b))[0],
        lambda y, b: y + b,
        ((N, 3), (3,)),
    ),
    Case(
        "shifted scores of a block of classes",
        (ShiftedScores,),
        lambda x: of_a_block(x, True),
        of_a_block_truth,
    ),
    Case(
        "shifted scores of a block of classes: recomputed",
        (),
        lambda x: of_a_block(x, False),
        of_a_block_truth,
    ),
    Case("arcsin", (), F.arcsin, np.arcsin, low=-0.8, high=0.8, halves=8e-3),
    Case("arccos", (), F.arccos, np.arccos, low=-0.8, high=0.8, halves=8e-3),
    Case("arctan2", (trigonometric.Arctan2,), F.arctan2, np.arctan2, PAIR, halves=8e-3),
    Case("rsqrt", (), F.rsqrt, lambda x: x**-0.5, low=0.4, halves=8e-3),
    Case("floor", (), F.floor, np.floor, differentiable=False),
    Case("ceil", (), F.ceil, np.ceil, differentiable=False),
    Case("fix", (), F.fix, np.trunc, differentiable=False),
    Case("sign", (), F.sign, np.sign, differentiable=False),
    Case(
        "fmod",
        (rounding.Fmod,),
        F.fmod,
        lambda x, d: x - np.trunc(x / d) * d,
        ((N, 3), (3,)),
        low=0.35,
        high=2,
        halves=1e-2,
    ),
    Case("fmod: number", (), lambda x: F.fmod(x, 0.7), lambda x: np.fmod(x, 0.7), halves=1e-2),
    Case(
        "squared_difference", (), F.squared_difference, lambda x, y: (x - y) ** 2, PAIR, halves=1e-2
    ),
    Case(
        "linear_interpolate",
        (),
        F.linear_interpolate,
        lambda p, x, y: p * x + (1 - p) * y,
        TRIPLE,
        halves=1e-2,
    ),
    Case("identity", (arithmetic.PassThrough,), F.identity, lambda x: x),
    Case("identity: two", (), F.identity, lambda x, y: (x, y), PAIR),
    Case(
        "cumprod",
        (cumulative.CumProd,),
        lambda x: F.cumprod(x, 1),
        lambda x: np.cumprod(x, 1),
        ((N, 5),),
        halves=1e-2,
    ),
    Case("cumprod: flat", (), F.cumprod, np.cumprod, ((2, 3),), halves=1e-2),
    Case(
        "cumprod: negative axis",
        (),
        lambda x: F.cumprod(x, -2),
        lambda x: np.cumprod(x, 1),
        ((N, 3, 2),),
        halves=1e-2,
    ),
    Case("space2depth", (), lambda x: F.space2depth(x, 2), blocks, ((N, 3, 4, 2),), empty=False),
    Case("depth2space", (), lambda x: F.depth2space(x, 2), pixels, ((N, 8, 3, 2),), empty=False),
    Case(
        "batch_inv",
        (linear_algebra.Inv,),
        well(F.batch_inv),
        well(np.linalg.inv),
        SQUARES,
        halves=1e-2,
    ),
    Case("inv", (), well(F.inv), well(np.linalg.inv), ((3, 3),), halves=1e-2),
    Case(
        "batch_det",
        (linear_algebra.Det,),
        well(F.batch_det),
        well(np.linalg.det),
        SQUARES,
        halves=2e-2,
    ),
    Case("det", (), well(F.det), well(np.linalg.det), ((3, 3),), halves=2e-2),
    Case(
        "batch_matmul", (), F.batch_matmul, lambda x, y: x @ y, ((N, 2, 3), (N, 3, 2)), halves=1e-2
    ),
    Case(
        "batch_matmul: columns",
        (),
        lambda x, y: F.batch_matmul(x, y, transa=True),
        lambda x, y: np.einsum("nk,nkl->nl", x, y)[:, None],
        ((N, 3), (N, 3, 2)),
        halves=1e-2,
    ),
    Case(
        "batch_l2_norm_squared",
        (),
        F.batch_l2_norm_squared,
        lambda x: (x**2).sum((1, 2)),
        ((N, 2, 2),),
        halves=1e-2,
    ),
    Case(
        "contrastive",
        (),
        lambda x, y: F.contrastive(x, y, together(len(x)), 2),
        lambda x, y: mean_of(pairs(x, y)),
        PAIR,
        halves=2e-2,
    ),
    Case(
        "contrastive: each",
        (),
        lambda x, y: F.contrastive(x, y, together(len(x)), 2, "no"),
        pairs,
        PAIR,
        halves=2e-2,
    ),
    Case(
        "triplet",
        (),
        lambda *xs: F.triplet(*xs, 0.3),
        lambda *xs: mean_of(triples(*xs)),
        TRIPLE,
        halves=2e-2,
    ),
    Case("triplet: each", (), lambda *xs: F.triplet(*xs, 0.3, "no"), triples, TRIPLE, halves=2e-2),
    Case(
        "cross_covariance",
        (),
        F.cross_covariance,
        lambda x, y: (covariance(x, y) ** 2).sum() / 2,
        ((N, 3), (N, 2)),
        empty=False,
        halves=2e-2,
    ),
    Case(
        "cross_covariance: matrix",
        (),
        lambda x, y: F.cross_covariance(x, y, "no"),
        covariance,
        ((N, 3), (N, 2)),
        empty=False,
        halves=2e-2,
    ),
    Case(
        "decov",
        (),
        F.decov,
        lambda x: (hollow(covariance(x, x)) ** 2).sum() / 2,
        empty=False,
        halves=2e-2,
    ),
    Case(
        "decov: matrix",
        (),
        lambda x: F.decov(x, "no"),
        lambda x: hollow(covariance(x, x)),
        empty=False,
        halves=2e-2,
    ),
    Case(
        "zoneout", (), lambda h, x: F.zoneout(h, x, 0.4, rng=np.random.default_rng(3)), zoned, PAIR
    ),
    Case(
        "gumbel_softmax",
        (),
        lambda x: F.gumbel_softmax(x, 0.7, rng=np.random.default_rng(3)),
        near_one_hot,
        halves=1e-2,
    ),
    Case(
        "rrelu",
        (),
        lambda x: F.rrelu(x, r=drawn(x.shape).astype(x.dtype)),
        lambda x: np.where(x > 0, x, x * drawn(x.shape)),
    ),
    Case(
        "bilinear",
        (),
        F.bilinear,
        bilinear,
        ((N, 3), (N, 2), (3, 2, 4), (3, 4), (2, 4), (4,)),
        halves=2e-2,
    ),
    Case(
        "bilinear: nothing else", (), F.bilinear, bilinear, ((N, 3), (N, 2), (3, 2, 4)), halves=2e-2
    ),
    Case(
        "unpooling_1d",
        (),
        lambda x: F.unpooling_1d(x, 2, cover_all=False),
        lambda x: np.repeat(x, 2, 2),
        ((N, 2, 3),),
    ),
    Case(
        "unpooling_3d",
        (),
        lambda x: F.unpooling_3d(x, (1, 2, 1), cover_all=False),
        lambda x: np.repeat(x, 2, 3),
        ((N, 2, 1, 2, 3),),
    ),
    Case(
        "classification_summary",
        (),
        lambda x: F.stack(
            [s.astype("f8") for s in F.classification_summary(x, classes(len(x)), 3, 2.0)]
        ),
        summary,
        differentiable=False,
    ),
    score("precision", lambda precision, *_: precision),
    score("recall", lambda _, recall, *__: recall),
    score("f1_score", harmonic),
    Case(
        "r2_score", (), F.r2_score, lambda p, t: explained(p, t).mean(), PAIR, differentiable=False
    ),
    Case(
        "r2_score: raw",
        (),
        lambda p, t: F.r2_score(p, t, multioutput="raw_values"),
        explained,
        PAIR,
        differentiable=False,
    ),
    Case(
        "connectionist_temporal_classification",
        (CTC,),
        lambda x: ctc_call(x, "no"),
        ctc,
        ((4, N, 3),),
        halves=1e-2,
    ),
    Case(
        "connectionist_temporal_classification: mean",
        (),
        lambda x: ctc_call(x, "mean"),
        lambda x: mean_of(ctc(x)),
        ((4, N, 3),),
        halves=1e-2,
    ),
    Case(
        "connectionist_temporal_classification: list",
        (),
        lambda x, y: F.connectionist_temporal_classification(
            [x, y], np.full((len(x), 1), 2), 1, reduce="no"
        ),
        lambda x, y: np.array(
            [likelihood(np.stack(xs), [2], 1, 2) for xs in zip(x, y, strict=True)]
        ).reshape(len(x)),
        PAIR,
        halves=1e-2,
    ),
    Case(
        "forget",
        (forget.Forget, forget.Entrance),
        lambda x, y: F.forget(lambda a, b: (F.tanh(a * b), a + b), x, y),
        lambda x, y: (np.tanh(x * y), x + y),
        PAIR,
        halves=1e-2,
    ),
    Case(
        "forget: inside itself",
        (),
        lambda x: F.forget(lambda a: F.forget(F.exp, a * a) * a, x),
        lambda x: np.exp(x * x) * x,
        halves=4e-2,
    ),
    Case("slstm", (), F.slstm, joined, ((N, 2), (N, 2), (N, 8), (N, 8)), halves=1e-2),
    Case("tree_lstm", (), F.tree_lstm, node, ((N, 2), (N, 2), (N, 10)), halves=1e-2),
    Case(
        "slstm: images",
        (),
        F.slstm,
        pixelwise(joined),
        ((N, 2, 2, 1), (N, 2, 2, 1), (N, 8, 2, 1), (N, 8, 2, 1)),
        halves=1e-2,
    ),
    Case(
        "tree_lstm: images",
        (),
        F.tree_lstm,
        pixelwise(node),
        ((N, 2, 3, 1), (N, 2, 3, 1), (N, 10, 3, 1)),
        halves=1e-2,
    ),
    Case(
        "tree_lstm: three children",
        (),
        F.tree_lstm,
        node,
        ((N, 2), (N, 2), (N, 2), (N, 12)),
        halves=1e-2,
    ),
    Case(
        "simplified_dropconnect",
        (),
        lambda x, W, b: F.simplified_dropconnect(x, W, b, mask=some(len(x), 2, 3)),
        connected,
        ((N, 3), (2, 3), (2,)),
        halves=2e-2,
    ),
    Case(
        "simplified_dropconnect: one mask",
        (),
        lambda x, W: F.simplified_dropconnect(x, W, ratio=0.2, mask=some(2, 3)),
        lambda x, W: x @ (W * some(2, 3) / 0.8).T,
        ((N, 3), (2, 3)),
        halves=2e-2,
    ),
    Case(
        "simplified_dropconnect: all",
        (),
        lambda x, W: F.simplified_dropconnect(x, W, train=False),
        lambda x, W: x @ W.T,
        ((N, 3), (2, 3)),
        halves=2e-2,
    ),
]
