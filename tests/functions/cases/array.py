"""Rows of array functions, further activations and losses."""

from __future__ import annotations

import math

import numpy as np

import mnpar.functions as F
from mnpar.functions.activation import gelu, swish
from mnpar.functions.array import pad, rearranging, repeat
from mnpar.functions.divided import routing
from mnpar.functions.loss.hinge import Hinge
from mnpar.functions.loss.regression import HuberLoss
from mnpar.functions.math import cumulative, einsum
from tests.functions.cases.case import Case, N

ERF = np.vectorize(math.erf, otypes=[float])
PAIR = ((N, 3), (N, 3))
ORDER = np.array([2, 0, 1])
LABELS = [2, 0, 1, 1]
# three rows, of which one has a slot only
ROUTES = (
    np.array([2, 0, 1, 0, 2]),
    np.array([[1, 3], [2, 5], [0, 4]]),
)


def hinges(x, power):
    sign = np.ones_like(x)
    for i in range(len(x)):
        sign[i, LABELS[i % 4]] = -1
    return np.maximum(0, 1 + sign * x) ** power


def labels(n):
    return np.array([LABELS[i % 4] for i in range(n)], "i4")


def tanh_gelu(x):
    return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


def huber(x, t):
    d = abs(x - t)
    return np.where(d < 0.7, d * d / 2, 0.7 * (d - 0.35))


def kl(mean, ln_var):
    return (mean**2 + np.exp(ln_var) - ln_var - 1) / 2


def nll(x, mean, ln_var):
    return (ln_var + np.log(2 * np.pi) + (x - mean) ** 2 / np.exp(ln_var)) / 2


def mean_of(x):
    return x.sum() / max(x.size, 1)


CASES = [
    Case("erf", (), F.erf, ERF),
    Case("erf: far out", (), F.erf, ERF, low=-5, high=5),
    Case("gelu", (gelu.Gelu,), F.gelu, lambda x: x * (1 + ERF(x / math.sqrt(2))) / 2),
    Case("gelu: by tanh", (), lambda x: F.gelu(x, approximate="tanh"), tanh_gelu, halves=8e-3),
    Case("clipped_relu", (), lambda x: F.clipped_relu(x, 1.0), lambda x: np.clip(x, 0, 1)),
    Case("relu6", (), F.relu6, lambda x: np.clip(x, 0, 6), low=-3.7, high=8.8),
    Case(
        "hard_sigmoid", (), F.hard_sigmoid, lambda x: np.clip(0.2 * x + 0.5, 0, 1), low=-4, high=4
    ),
    Case(
        "selu",
        (),
        F.selu,
        lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x)),
        halves=8e-3,
    ),
    Case("crelu", (), F.crelu, lambda x: np.concatenate([np.maximum(x, 0), np.maximum(-x, 0)], 1)),
    Case(
        "swish",
        (swish.Swish,),
        F.swish,
        lambda x, b: x / (1 + np.exp(-b * x)),
        ((N, 3), (3,)),
        halves=8e-3,
    ),
    Case(
        "swish: one",
        (),
        F.swish,
        lambda x, b: x / (1 + np.exp(-b * x)),
        ((N, 3, 2), (1,)),
        halves=8e-3,
    ),
    Case(
        "swish: of a number",
        (),
        F.swish,
        lambda x, b: x / (1 + np.exp(-b * x)),
        ((), ()),
        halves=8e-3,
    ),
    Case("arctan", (), F.arctan, np.arctan),
    Case("sinh", (), F.sinh, np.sinh, halves=8e-3),
    Case("cosh", (), F.cosh, np.cosh, halves=8e-3),
    Case("tan", (), F.tan, np.tan, low=-1.2, high=1.2, halves=2e-2),
    Case("log2", (), F.log2, np.log2, low=0.5),
    Case("log10", (), F.log10, np.log10, low=0.5),
    Case(
        "einsum",
        (einsum.Einsum,),
        lambda x, y: F.einsum("ij,kj->ik", x, y),
        lambda x, y: x @ y.T,
        ((N, 3), (2, 3)),
        halves=1e-2,
    ),
    Case(
        "einsum: a length of 1 stands for 3",
        (),
        lambda x, y: F.einsum("ij,jk->ik", x, y),
        lambda x, y: x.sum(1, keepdims=True) * y,
        ((N, 3), (1, 2)),
        halves=1e-2,
    ),
    Case(
        "einsum: three",
        (),
        lambda x, y, z: F.einsum("ij,jk,kl->il", x, y, z),
        lambda x, y, z: x @ y @ z,
        ((N, 3), (3, 2), (2, 2)),
        halves=2e-2,
    ),
    Case(
        "einsum: alone",
        (),
        lambda x, y: F.einsum("ij,kl->k", x, y),
        lambda x, y: x.sum() * y.sum(1),
        ((N, 2), (3, 2)),
        halves=2e-2,
    ),
    Case(
        "einsum: implicit",
        (),
        lambda x, y: F.einsum("ba, ac", x, y),
        lambda x, y: x @ y,
        ((N, 3), (3, 2)),
        halves=1e-2,
    ),
    Case(
        "einsum: diagonal",
        (),
        lambda x: F.einsum("nii->ni", x),
        lambda x: np.einsum("nii->ni", x),
        ((N, 3, 3),),
    ),
    Case(
        "einsum: trace",
        (),
        lambda x: F.einsum("nii", x),
        lambda x: np.einsum("nii->n", x),
        ((N, 3, 3),),
        halves=1e-2,
    ),
    Case(
        "einsum: dots",
        (),
        lambda x, y: F.einsum("...i,...i->...", x, y),
        lambda x, y: (x * y).sum(-1),
        ((N, 2, 3), (2, 3)),
        halves=1e-2,
    ),
    Case(
        "einsum: ones",
        (),
        lambda x, y: F.einsum("ij,ij->ij", x, y),
        lambda x, y: x * y,
        ((N, 3), (1, 3)),
    ),
    Case("einsum: turned", (), lambda x: F.einsum("ij->ji", x), lambda x: x.T),
    Case(
        "tensordot",
        (),
        F.tensordot,
        lambda x, y: np.tensordot(x, y),
        ((N, 2, 3), (2, 3, 2)),
        halves=2e-2,
    ),
    Case(
        "tensordot: named",
        (),
        lambda x, y: F.tensordot(x, y, (1, 0)),
        lambda x, y: np.tensordot(x, y, (1, 0)),
        ((N, 3), (3, 2)),
        halves=1e-2,
    ),
    Case("flip", (rearranging.Flip,), lambda x: F.flip(x, -1), lambda x: x[:, ::-1]),
    Case("flipud", (), F.flipud, np.flipud),
    Case("fliplr", (), F.fliplr, np.fliplr),
    Case("roll", (rearranging.Roll,), lambda x: F.roll(x, 1, -1), lambda x: np.roll(x, 1, -1)),
    Case(
        "roll: two axes",
        (),
        lambda x: F.roll(x, (-1, 4), (2, 1)),
        lambda x: np.roll(x, (-1, 4), (2, 1)),
        ((N, 2, 3),),
    ),
    Case("roll: one axis twice", (), lambda x: F.roll(x, 1, (1, 1)), lambda x: np.roll(x, 2, 1)),
    Case("roll: all elements", (), lambda x: F.roll(x, -2), lambda x: np.roll(x, -2)),
    Case(
        "rollaxis", (), lambda x: F.rollaxis(x, 2, 1), lambda x: np.rollaxis(x, 2, 1), ((N, 2, 3),)
    ),
    Case(
        "rollaxis: forward",
        (),
        lambda x: F.rollaxis(x, 0, 2),
        lambda x: np.rollaxis(x, 0, 2),
        ((N, 2, 3),),
    ),
    Case("tile", (), lambda x: F.tile(x, (2, 1, 3)), lambda x: np.tile(x, (2, 1, 3))),
    Case("tile: last", (), lambda x: F.tile(x, 2), lambda x: np.tile(x, 2)),
    Case(
        "repeat",
        (repeat.Repeat, repeat.AddRepeats),
        lambda x: F.repeat(x, 2, 1),
        lambda x: np.repeat(x, 2, 1),
    ),
    Case(
        "repeat: each its own",
        (),
        lambda x: F.repeat(x, (1, 0, 2), 1),
        lambda x: np.repeat(x, (1, 0, 2), 1),
    ),
    Case("repeat: many", (), lambda x: F.repeat(x, 9, 0), lambda x: np.repeat(x, 9, 0)),
    Case("repeat: not at all", (), lambda x: F.repeat(x, 0, 1), lambda x: np.repeat(x, 0, 1)),
    Case("repeat: flat", (), lambda x: F.repeat(x, 3), lambda x: np.repeat(x, 3)),
    Case(
        "pad",
        (pad.Pad,),
        lambda x: F.pad(x, ((0, 0), (1, 2)), "constant"),
        lambda x: np.pad(x, ((0, 0), (1, 2))),
    ),
    Case(
        "pad: each its own",
        (),
        lambda x: F.pad(x, ((1, 0), (2, 1)), constant_values=((1, 2), (3, 4))),
        lambda x: np.pad(x, ((1, 0), (2, 1)), constant_values=((1, 2), (3, 4))),
    ),
    Case(
        "pad: with twos",
        (),
        lambda x: F.pad(x, 1, constant_values=2),
        lambda x: np.pad(x, 1, constant_values=2),
    ),
    *[
        Case(
            f"pad: {mode}",
            (),
            lambda x, mode=mode: F.pad(x, ((0, 0), (2, 1)), mode),
            lambda x, mode=mode: np.pad(x, ((0, 0), (2, 1)), mode),
        )
        for mode in pad.REPEATING
    ],
    Case(
        "pad_sequence",
        (),
        lambda x, y: F.pad_sequence([x, y], 4),
        lambda x, y: np.stack([np.pad(x, ((0, 2), (0, 0))), np.pad(y, ((0, 3), (0, 0)))]),
        ((2, 3), (1, 3)),
    ),
    Case(
        "permutate",
        (rearranging.Permutate,),
        lambda x: F.permutate(x, ORDER, 1),
        lambda x: x[:, ORDER],
    ),
    Case(
        "permutate: back",
        (),
        lambda x: F.permutate(x, ORDER, 1, inv=True),
        lambda x: x[:, [1, 2, 0]],
    ),
    Case(
        "pick_rows",
        (routing.PickRows,),
        lambda x: routing.pick_rows(x, *ROUTES),
        lambda x: x[ROUTES[0]],
        ((3, 2),),
    ),
    Case(
        "sum_rows",
        (routing.SumRows,),
        lambda x: routing.sum_rows(x, *ROUTES),
        lambda x: np.stack([x[1] + x[3], x[2], x[0] + x[4]]),
        ((5, 2),),
    ),
    Case(
        "permute_rows", (), lambda x: routing.permute_rows(x, ORDER), lambda x: x[ORDER], ((3, 2),)
    ),
    Case(
        "transpose_sequence",
        (),
        lambda x, y: tuple(F.transpose_sequence([x, y])),
        lambda x, y: (np.stack([x[0], y[0]]), x[1:2], x[2:3]),
        ((3, 2), (1, 2)),
    ),
    Case(
        "transpose_sequence: one sequence",
        (),
        lambda x: tuple(F.transpose_sequence([x])),
        lambda x: tuple(x[:, None]),
        ((3, 2),),
    ),
    Case(
        "transpose_sequence: of one length",
        (),
        lambda x, y: tuple(F.transpose_sequence([x, y])),
        lambda x, y: tuple(np.stack([x, y], 1)),
        ((3, 2), (3, 2)),
    ),
    Case(
        "scatter_add",
        (),
        lambda x, y: F.scatter_add(x, (slice(None), np.array([0, 2, 0])), y),
        lambda x, y: np.stack([x[:, 0] + y[:, 0] + y[:, 2], x[:, 1], x[:, 2] + y[:, 1]], 1),
        PAIR,
    ),
    Case(
        "diagonal",
        (rearranging.Diagonal, rearranging.OnDiagonal),
        lambda x: F.diagonal(x, 1, 1, 2),
        lambda x: np.diagonal(x, 1, 1, 2),
        ((N, 2, 3),),
    ),
    Case(
        "diagonal: below",
        (),
        lambda x: F.diagonal(x, -1, 1, 2),
        lambda x: np.diagonal(x, -1, 1, 2),
        ((N, 3, 2),),
    ),
    Case("dstack", (), lambda x, y: F.dstack([x, y]), lambda x, y: np.dstack([x, y]), PAIR),
    Case("cumsum", (cumulative.CumSum,), lambda x: F.cumsum(x, 1), lambda x: np.cumsum(x, 1)),
    Case("cumsum: flat", (), F.cumsum, np.cumsum, halves=2e-2),
    Case("prod", (cumulative.Prod,), lambda x: F.prod(x, 1), lambda x: np.prod(x, 1)),
    Case("prod: everything", (), F.prod, np.prod, ((2, 3),)),
    Case(
        "prod: two axes",
        (),
        lambda x: F.prod(x, (0, 2), keepdims=True),
        lambda x: np.prod(x, (0, 2), keepdims=True),
        ((2, 3, 2),),
    ),
    Case("squared_error", (), F.squared_error, lambda x, y: (x - y) ** 2, PAIR, halves=1e-2),
    Case("absolute_error", (), F.absolute_error, lambda x, y: abs(x - y), PAIR),
    Case(
        "huber_loss",
        (HuberLoss,),
        lambda x, t: F.huber_loss(x, t, 0.7),
        lambda x, t: huber(x, t).sum(1),
        PAIR,
        halves=1e-2,
    ),
    Case(
        "huber_loss: each",
        (HuberLoss,),
        lambda x, t: F.huber_loss(x, t, 0.7, "no"),
        huber,
        PAIR,
        halves=1e-2,
    ),
    Case(
        "hinge",
        (Hinge,),
        lambda x: F.hinge(x, labels(len(x))),
        lambda x: hinges(x, 1).sum() / max(len(x), 1),
        halves=1e-2,
    ),
    Case(
        "hinge: squares",
        (),
        lambda x: F.hinge(x, labels(len(x)), "L2", "no"),
        lambda x: hinges(x, 2),
        halves=1e-2,
    ),
    Case(
        "gaussian_kl_divergence",
        (),
        F.gaussian_kl_divergence,
        lambda m, v: kl(m, v).sum(),
        PAIR,
        halves=2e-2,
    ),
    Case(
        "gaussian_nll",
        (),
        lambda x, m, v: F.gaussian_nll(x, m, v, "mean"),
        lambda x, m, v: mean_of(nll(x, m, v)),
        (*PAIR, (N, 3)),
        halves=2e-2,
    ),
    Case(
        "bernoulli_nll",
        (),
        lambda x, y: F.bernoulli_nll(x, y, "no"),
        lambda x, y: np.log1p(np.exp(y)) - x * y,
        PAIR,
        halves=1e-2,
    ),
    Case(
        "gaussian",
        (),
        lambda m, v: F.gaussian(m, v, eps=np.full(m.shape, 0.5, m.dtype)),
        lambda m, v: m + np.exp(v / 2) / 2,
        PAIR,
        halves=1e-2,
    ),
]
