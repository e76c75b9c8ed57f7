"""One row for each way to call a function of the MLP's vocabulary; further families have files of
their own beside this one.

A new function is a class, a function and a row. Each row is then tested for its values, its
gradients of first, second and third order, its dtypes, and batches of four, one and none. ``N`` in
a shape is the batch.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import mnpar.functions as F
from mnpar.functions import noise
from mnpar.functions.activation.relu import ELU, LeakyReLU, ReLU
from mnpar.functions.activation.softmax import LogSoftmax, Softmax
from mnpar.functions.activation.softplus import Softplus
from mnpar.functions.array import broadcast, get_item, joining, shape
from mnpar.functions.connection.linear import Linear
from mnpar.functions.loss.regression import MeanAbsoluteError, MeanSquaredError
from mnpar.functions.loss.sigmoid_cross_entropy import SigmoidCrossEntropy
from mnpar.functions.loss.softmax_cross_entropy import SoftmaxCrossEntropy
from mnpar.functions.math import arithmetic, average, maximum, reduction
from mnpar.functions.math.matmul import MatMul
from tests.functions.cases import (
    array,
    local,
    more,
    normalization,
    recurrent,
    sparse,
    spatial,
    special,
    untied,
    vocabulary,
)
from tests.functions.cases.case import Case, N


def labels(n: int, classes: int = 3, dtype: Any = np.int32) -> Any:
    return (np.arange(n) * 2 % classes).astype(dtype)


def stable_softmax(x: Any, axis: int = 1) -> Any:
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def cross_entropies(x: Any, t: Any) -> Any:
    """Of each row, 0 where the label is negative."""
    picked = np.log(stable_softmax(x))[np.arange(len(x)), np.maximum(t, 0)]
    return np.where(t < 0, 0, -picked)


def pixels(x: Any) -> Any:
    """(N, 3, 2, 2) → (4N, 3)."""
    return x.transpose(0, 2, 3, 1).reshape(4 * len(x), 3)


def over(total: Any, count: int) -> Any:
    return total / max(count, 1)


def odd_ignored(n: int) -> Any:
    return np.where(np.arange(n) % 2 == 1, -1, labels(n))


def sign_labels(shape: tuple[int, ...]) -> Any:
    return (np.arange(math.prod(shape)).reshape(shape) % 3 - 1).astype("i4")


def binary_truth(x: Any) -> Any:
    t = sign_labels(x.shape)
    return np.where(
        t < 0, 0, -(t * np.log(1 / (1 + np.exp(-x))) + (1 - t) * np.log(1 - 1 / (1 + np.exp(-x))))
    )


PLACES = np.array([[0, 2], [2, 1]])
MASK = np.array([True, False, True])
C = np.array([[0.5, -2.0, 1.5]])
CLASS_WEIGHT = np.array([0.5, 1.0, 3.0])

PAIR = ((N, 3), (N, 3))
WIDE = ((N, 3), (3,))
CROSS = ((N, 1, 3), (2, 1))

_arithmetic = [
    Case("add: two", (arithmetic.Add,), lambda x, y: x + y, lambda x, y: x + y, PAIR),
    Case(
        "add: function of three",
        (arithmetic.AddSeveral,),
        lambda x, y: F.add(x, y, x),
        lambda x, y: x + y + x,
        WIDE,
    ),
    Case(
        "add: function of three that broadcast",
        (),
        lambda x, y: F.add(x, y, 1.0, x),
        lambda x, y: 2 * x + y + 1,
        CROSS,
    ),
    Case("add: broadcast both ways", (), lambda x, y: x + y, lambda x, y: x + y, CROSS),
    Case("add: number", (arithmetic.AddConstant,), lambda x: x + 2, lambda x: x + 2),
    Case("add: number first", (), lambda x: 2.5 + x, lambda x: x + 2.5),
    Case("add: array", (), lambda x: x + C.astype(x.dtype), lambda x: x + C),
    Case("add: array first", (), lambda x: C.astype(x.dtype) + x, lambda x: x + C),
    Case("add: numpy's number", (), lambda x: np.float64(2) + x, lambda x: x + 2),
    Case("add: with itself", (), lambda x: x + x, lambda x: 2 * x),
    Case("sub: two", (arithmetic.Sub,), lambda x, y: x - y, lambda x, y: x - y, WIDE),
    Case("sub: number", (), lambda x: x - 2, lambda x: x - 2),
    Case("sub: number first", (), lambda x: 2 - x, lambda x: 2 - x),
    Case("sub: array first", (), lambda x: C.astype(x.dtype) - x, lambda x: C - x),
    Case("mul: two", (arithmetic.Mul,), lambda x, y: x * y, lambda x, y: x * y, WIDE),
    Case("mul: broadcast both ways", (), lambda x, y: x * y, lambda x, y: x * y, CROSS),
    Case("mul: 0-d", (), lambda x, y: x * y, lambda x, y: x * y, ((), ())),
    Case("mul: number", (arithmetic.MulConstant,), lambda x: x * 2, lambda x: 2 * x),
    Case("mul: number first", (), lambda x: -0.5 * x, lambda x: -0.5 * x),
    Case("mul: array first", (), lambda x: C.astype(x.dtype) * x, lambda x: C * x),
    Case("div: two", (arithmetic.Div,), lambda x, y: x / y, lambda x, y: x / y, WIDE, 0.4, 2),
    Case("div: number", (), lambda x: x / 3, lambda x: x / 3),
    Case("div: number first", (), lambda x: 3 / x, lambda x: 3 / x, low=0.5, halves=2e-2),
    Case("neg", (arithmetic.Neg,), lambda x: -x, lambda x: -x),
    Case("pos", (), lambda x: +x, lambda x: x),
    Case(
        "pow: two",
        (arithmetic.Pow,),
        lambda x, y: x**y,
        lambda x, y: x**y,
        WIDE,
        0.4,
        2,
        halves=2e-2,
    ),
    Case("pow: number", (arithmetic.PowConstant,), lambda x: x**3, lambda x: x**3, halves=2e-2),
    Case("pow: square", (), lambda x: x**2, lambda x: x**2),
    Case("pow: power 0", (), lambda x: x**0, lambda x: np.ones_like(x)),
    Case("pow: fraction", (), lambda x: x**-1.5, lambda x: x**-1.5, low=0.5, halves=4e-2),
    Case("pow: number first", (), lambda x: 2**x, lambda x: 2**x, halves=1e-2),
    Case(
        "floor_divide",
        (),
        lambda x: F.floor_divide(x, 0.5),
        lambda x: np.floor(x / 0.5),
        differentiable=False,
    ),
    Case(
        "floor_divide: operator",
        (),
        lambda x: x // 0.5,
        lambda x: np.floor(x / 0.5),
        differentiable=False,
    ),
    Case(
        "floor_divide: number first",
        (),
        lambda x: 2 // x,
        lambda x: np.floor(2 / x),
        low=0.43,
        differentiable=False,
    ),
]

_elementwise = [
    Case("exp", (), F.exp, np.exp, halves=1e-2),
    Case("expm1", (), F.expm1, np.expm1, halves=1e-2),
    Case("log", (), F.log, np.log, low=0.3),
    Case("log1p", (), F.log1p, np.log1p, low=-0.5),
    Case("sqrt", (), F.sqrt, np.sqrt, low=0.3),
    Case("square", (), F.square, lambda x: x * x),
    Case("sin", (), F.sin, np.sin),
    Case("cos", (), F.cos, np.cos),
    Case("absolute", (), F.absolute, np.abs),
    Case("absolute: operator", (), abs, np.abs),
    Case(
        "maximum: three",
        (maximum.Maximum,),
        lambda x, y: F.maximum(x, y, 0.21),
        lambda x, y: np.maximum(np.maximum(x, y), 0.21),
        WIDE,
    ),
    Case("minimum: two", (maximum.Minimum,), F.minimum, np.minimum, CROSS),
    Case(
        "clip", (maximum.Clip,), lambda x: F.clip(x, -0.71, 0.52), lambda x: np.clip(x, -0.71, 0.52)
    ),
    Case("clip: open", (), lambda x: F.clip(x, None, 0.52), lambda x: np.minimum(x, 0.52)),
    Case(
        "where",
        (get_item.Where,),
        lambda x, y: F.where(MASK, x, y),
        lambda x, y: np.where(MASK, x, y),
        WIDE,
    ),
    Case("where: one boolean", (), lambda x, y: F.where(True, x, y), lambda x, y: x, WIDE),
    Case("where: number", (), lambda x: F.where(MASK, 0, x), lambda x: np.where(MASK, 0, x)),
]

_shape = [
    Case(
        "reshape",
        (shape.Reshape,),
        lambda x: F.reshape(x, (-1, 3, 2)),
        lambda x: x.reshape(len(x), 3, 2),
        ((N, 6),),
        empty=False,
    ),
    Case("reshape: method", (), lambda x: x.reshape(3, 2), lambda x: x.reshape(3, 2), ((6,),)),
    Case(
        "reshape: method with a tuple",
        (),
        lambda x: x.reshape((3, -1)),
        lambda x: x.reshape(3, 2),
        ((6,),),
    ),
    Case(
        "transpose",
        (shape.Transpose,),
        lambda x: F.transpose(x, (2, 0, -2)),
        lambda x: x.transpose(2, 0, 1),
        ((N, 2, 3),),
    ),
    Case(
        "transpose: method",
        (),
        lambda x: x.transpose(2, 0, 1),
        lambda x: x.transpose(2, 0, 1),
        ((N, 2, 3),),
    ),
    Case("transpose: method of a vector", (), lambda x: x.transpose(0), lambda x: x, ((3,),)),
    Case(
        "transpose: method with an array",
        (),
        lambda x: x.transpose(np.array([1, 0])),
        lambda x: x.T,
    ),
    Case("transpose: method with a list", (), lambda x: x.transpose([1, 0]), lambda x: x.T),
    Case("transpose: T", (), lambda x: x.T, lambda x: x.T),
    Case("swapaxes", (), lambda x: F.swapaxes(x, 0, -1), lambda x: x.swapaxes(0, -1), ((N, 2, 3),)),
    Case(
        "moveaxis",
        (),
        lambda x: F.moveaxis(x, (0, 1), (-1, 0)),
        lambda x: np.moveaxis(x, (0, 1), (-1, 0)),
        ((N, 2, 3),),
    ),
    Case("expand_dims", (), lambda x: F.expand_dims(x, -1), lambda x: x[:, :, None]),
    Case("squeeze", (), lambda x: F.squeeze(x, (1, -1)), lambda x: x[:, 0, :, 0], ((N, 1, 3, 1),)),
    Case("squeeze: all", (), F.squeeze, lambda x: x[0, :, 0], ((1, 3, 1),)),
    Case("flatten", (), F.flatten, lambda x: x.ravel()),
    Case(
        "broadcast_to",
        (broadcast.BroadcastTo,),
        lambda x: F.broadcast_to(x, (5, *x.shape[:1], 3)),
        lambda x: np.stack([np.concatenate([x] * 3, axis=1)] * 5),
        ((N, 1),),
    ),
    Case("broadcast", (), lambda x, y: F.add(*F.broadcast(x, y)), lambda x, y: x + y, CROSS),
    Case(
        "sum_to",
        (broadcast.SumTo,),
        lambda x: F.sum_to(x, (1, 3)),
        lambda x: x.sum((0, 1))[None],
        ((2, N, 3),),
    ),
    Case("cast", (shape.Cast,), lambda x: F.cast(F.cast(x, np.float64), x.dtype), lambda x: x),
    Case("cast: method", (), lambda x: x.astype("f8").astype(x.dtype), lambda x: x),
    Case(
        "concat",
        (joining.Concat,),
        lambda x, y: F.concat([x, y]),
        lambda x, y: np.concatenate([x, y], 1),
        ((N, 3), (N, 2)),
    ),
    Case(
        "concat: twice the same",
        (),
        lambda x: F.concat([x, x], axis=0),
        lambda x: np.concatenate([x, x]),
    ),
    Case(
        "concat: last axis",
        (),
        lambda x, y: F.concat([x, y], axis=-1),
        lambda x, y: np.concatenate([x, y], 2),
        ((N, 2, 3), (N, 2, 1)),
    ),
    Case("add: function of one", (), lambda x: F.add(x), lambda x: x),
    Case(
        "hstack: numbers",
        (),
        lambda x: F.hstack([F.sum(x), F.max(x)]),
        lambda x: np.array([x.sum(), x.max()]),
        empty=False,
    ),
    Case(
        "vstack: numbers",
        (),
        lambda x: F.vstack([F.sum(x), F.max(x)]),
        lambda x: np.array([[x.sum()], [x.max()]]),
        empty=False,
    ),
    Case(
        "hstack",
        (),
        lambda x, y: F.hstack([x, y]),
        lambda x, y: np.hstack([x, y]),
        ((N, 3), (N, 2)),
    ),
    Case("vstack", (), lambda x, y: F.vstack([x, y]), lambda x, y: np.vstack([x, y]), PAIR),
    Case(
        "stack",
        (joining.Stack,),
        lambda x, y: F.stack([x, y], axis=-1),
        lambda x, y: np.stack([x, y], -1),
        PAIR,
    ),
    Case(
        "split_axis",
        (joining.SplitAxis,),
        lambda x: F.split_axis(x, [1, 3], axis=1),
        lambda x: tuple(np.split(x, [1, 3], axis=1)),
        ((N, 4),),
    ),
    Case(
        "split_axis: one part unused",
        (),
        lambda x: F.split_axis(x, 2, axis=-1)[1],
        lambda x: x[:, 2:],
        ((N, 4),),
    ),
    Case(
        "separate",
        (joining.Separate,),
        lambda x: F.separate(x, axis=-1),
        lambda x: (x[:, 0], x[:, 1], x[:, 2]),
    ),
    Case("separate: one part unused", (), lambda x: F.separate(x, axis=1)[1], lambda x: x[:, 1]),
    Case(
        "get_item: slices",
        (get_item.GetItem, get_item.ScatterAdd),
        lambda x: x[:, None, ::-2],
        lambda x: x[:, None, ::-2],
    ),
    Case("get_item: number", (), lambda x: x[..., 1], lambda x: x[..., 1]),
    Case("get_item: one element", (), lambda x: x[1, 2], lambda x: x[1, 2], ((2, 3),)),
    Case(
        "get_item: repeated places",
        (),
        lambda x: F.get_item(x, (slice(None), PLACES)),
        lambda x: x[:, PLACES],
    ),
    Case("get_item: list", (), lambda x: x[[0, 1, 1]], lambda x: x[[0, 1, 1]], ((2, 3),)),
    Case(
        "get_item: rows",
        (),
        lambda x: x[np.array([[1, -1], [0, 1]], "i1")],
        lambda x: x[[[1, 1], [0, 1]]],
        ((2, 200),),
    ),
    Case(
        "get_item: unsigned rows",
        (),
        lambda x: x[np.array([1, 1], "u8")],
        lambda x: x[[1, 1]],
        ((2, 3),),
    ),
    Case("get_item: mask", (), lambda x: x[:, MASK], lambda x: x[:, MASK]),
    Case(
        "select_item",
        (),
        lambda x: F.select_item(x, labels(len(x))),
        lambda x: x[np.arange(len(x)), labels(len(x))],
    ),
]

_reduction = [
    Case("sum", (reduction.Sum,), F.sum, lambda x: x.sum()),
    Case("sum: axis", (), lambda x: F.sum(x, axis=-1), lambda x: x.sum(1)),
    Case(
        "sum: method",
        (),
        lambda x: x.sum(axis=(0, 2), keepdims=True),
        lambda x: x.sum(axis=(0, 2), keepdims=True),
        ((N, 2, 3),),
    ),
    Case("mean", (average.Mean,), F.mean, lambda x: over(x.sum(), x.size)),
    Case(
        "mean: method",
        (),
        lambda x: x.mean(axis=1, keepdims=True),
        lambda x: x.mean(1, keepdims=True),
    ),
    Case("mean: of the batch", (), lambda x: x.mean(axis=0), lambda x: over(x.sum(0), len(x))),
    Case(
        "average: weights",
        (),
        lambda x, w: F.average(x, 1, w),
        lambda x, w: np.einsum("nij,i->nj", x, w) / w.sum(),
        ((N, 3, 2), (3,)),
        0.3,
        2,
    ),
    Case(
        "average: weights of all",
        (),
        lambda x, w: F.average(x, weights=w),
        lambda x, w: (x * w).sum() / w.sum(),
        PAIR,
        0.3,
        2,
        empty=False,
    ),
    Case(
        "average: weights of two axes",
        (),
        lambda x, w: F.average(x, (2, 0), w, True),
        lambda x, w: (x * w[:, None]).sum((0, 2), keepdims=True) / w.sum(),
        ((2, N, 3), (2, 3)),
        0.3,
        2,
    ),
    Case("max", (reduction.Max,), F.max, lambda x: x.max(), empty=False),
    Case("max: axis", (), lambda x: F.max(x, axis=1), lambda x: x.max(1)),
    Case(
        "max: method",
        (),
        lambda x: x.max(axis=(1, 2), keepdims=True),
        lambda x: x.max((1, 2), keepdims=True),
        ((N, 2, 3),),
    ),
    Case("min", (reduction.Min,), lambda x: x.min(), lambda x: x.min(), empty=False),
    Case(
        "min: axis",
        (),
        lambda x: F.min(x, axis=-1, keepdims=True),
        lambda x: x.min(1, keepdims=True),
    ),
    Case(
        "argmax",
        (reduction.ArgMax,),
        lambda x: F.argmax(x, axis=1),
        lambda x: x.argmax(1),
        differentiable=False,
    ),
    Case(
        "argmin",
        (reduction.ArgMin,),
        lambda x: F.argmin(x, axis=1),
        lambda x: x.argmin(1),
        differentiable=False,
    ),
    Case(
        "logsumexp",
        (reduction.LogSumExp,),
        F.logsumexp,
        lambda x: np.log(np.exp(x).sum()),
        empty=False,
        halves=1e-2,
    ),
    Case(
        "logsumexp: axes",
        (),
        lambda x: F.logsumexp(x, (1, 2)),
        lambda x: np.log(np.exp(x).sum((1, 2))),
        ((N, 2, 3),),
        halves=1e-2,
    ),
]

_activation = [
    Case("relu", (ReLU,), F.relu, lambda x: x * (x > 0)),
    Case(
        "leaky_relu",
        (LeakyReLU,),
        lambda x: F.leaky_relu(x, 0.1),
        lambda x: np.where(x > 0, x, 0.1 * x),
    ),
    Case(
        "elu",
        (ELU,),
        lambda x: F.elu(x, 0.7),
        lambda x: np.where(x > 0, x, 0.7 * (np.exp(x) - 1)),
    ),
    Case("sigmoid", (), F.sigmoid, lambda x: 1 / (1 + np.exp(-x))),
    Case("tanh", (), F.tanh, np.tanh),
    Case(
        "softplus",
        (Softplus,),
        lambda x: F.softplus(x, 2),
        lambda x: np.log(1 + np.exp(2 * x)) / 2,
    ),
    Case("softmax", (Softmax,), F.softmax, stable_softmax),
    Case(
        "softmax: axis",
        (),
        lambda x: F.softmax(x, axis=-1),
        lambda x: stable_softmax(x, -1),
        ((N, 2, 3),),
    ),
    Case(
        "log_softmax",
        (LogSoftmax,),
        F.log_softmax,
        lambda x: np.log(stable_softmax(x)),
        halves=1e-2,
    ),
    Case(
        "log_softmax: axis",
        (),
        lambda x: F.log_softmax(x, axis=0),
        lambda x: np.log(stable_softmax(x, 0)),
        ((2, N),),
        halves=1e-2,
    ),
    Case(
        "dropout",
        (noise.Dropout,),
        lambda x: F.dropout(x, mask=C.astype(x.dtype)[[0] * len(x)]),
        lambda x: x * C,
    ),
    Case("dropout: not while testing", (), lambda x: F.dropout(x, 0), lambda x: x),
]

_product = [
    Case(
        "matmul",
        (MatMul,),
        lambda x, y: x @ y,
        lambda x, y: x @ y,
        ((N, 3), (3, 2)),
        halves=1e-2,
    ),
    Case(
        "matmul: transposed",
        (),
        lambda x, y: F.matmul(x, y, transa=True, transb=True),
        lambda x, y: x.T @ y.T,
        ((3, N), (2, 3)),
        halves=1e-2,
    ),
    Case("matmul: stacks", (), F.matmul, np.matmul, ((N, 1, 2, 3), (5, 3, 2)), halves=1e-2),
    Case("matmul: stack with one", (), F.matmul, np.matmul, ((N, 2, 3), (3, 4)), halves=1e-2),
    Case("matmul: one with stack", (), F.matmul, np.matmul, ((2, 3), (N, 3, 4)), halves=1e-2),
    Case("matmul: vectors", (), F.matmul, np.matmul, ((3,), (3,)), halves=1e-2),
    Case("matmul: vector first", (), F.matmul, np.matmul, ((3,), (3, 2)), halves=1e-2),
    Case("matmul: vector last", (), F.matmul, np.matmul, ((N, 2, 3), (3,)), halves=1e-2),
    Case(
        "matmul: array first",
        (),
        lambda x: C.astype(x.dtype) @ x,
        lambda x: C @ x,
        ((3, 2),),
        halves=1e-2,
    ),
    Case(
        "linear",
        (Linear,),
        F.linear,
        lambda x, W, b: x @ W.T + b,
        ((N, 3), (2, 3), (2,)),
        halves=1e-2,
    ),
    Case("linear: no bias", (), F.linear, lambda x, W: x @ W.T, ((N, 3), (2, 3)), halves=1e-2),
    Case(
        "linear: image",
        (),
        F.linear,
        lambda x, W, b: x.reshape(len(x), 6) @ W.T + b,
        ((N, 2, 3), (2, 6), (2,)),
        halves=1e-2,
    ),
    Case(
        "linear: two batch axes",
        (),
        lambda x, W, b: F.linear(x, W, b, n_batch_axes=2),
        lambda x, W, b: x @ W.T + b,
        ((N, 2, 3), (2, 3), (2,)),
        halves=1e-2,
    ),
]

_loss = [
    Case(
        "softmax_cross_entropy",
        (SoftmaxCrossEntropy,),
        lambda x: F.softmax_cross_entropy(x, labels(len(x))),
        lambda x: over(cross_entropies(x, labels(len(x))).sum(), len(x)),
    ),
    Case(
        "softmax_cross_entropy: each",
        (),
        lambda x: F.softmax_cross_entropy(x, labels(len(x)), reduce="no"),
        lambda x: cross_entropies(x, labels(len(x))),
    ),
    Case(
        "softmax_cross_entropy: recomputed",
        (),
        lambda x: F.softmax_cross_entropy(x, labels(len(x)), cache_score=False),
        lambda x: over(cross_entropies(x, labels(len(x))).sum(), len(x)),
    ),
    Case(
        "softmax_cross_entropy: ignoring",
        (),
        lambda x: F.softmax_cross_entropy(x, odd_ignored(len(x))),
        lambda x: over(cross_entropies(x, odd_ignored(len(x))).sum(), (len(x) + 1) // 2),
    ),
    Case(
        "softmax_cross_entropy: ignoring, over N",
        (),
        lambda x: F.softmax_cross_entropy(x, odd_ignored(len(x)), normalize=False),
        lambda x: over(cross_entropies(x, odd_ignored(len(x))).sum(), len(x)),
    ),
    Case(
        "softmax_cross_entropy: all ignored",
        (),
        lambda x: F.softmax_cross_entropy(x, np.full(len(x), 7), ignore_label=7),
        lambda x: 0.0,
    ),
    Case(
        "softmax_cross_entropy: ignoring class 2",
        (),
        lambda x: F.softmax_cross_entropy(x, labels(len(x)), ignore_label=2, reduce="no"),
        lambda x: cross_entropies(x, labels(len(x))) * (labels(len(x)) != 2),
    ),
    Case(
        "softmax_cross_entropy: class weights",
        (),
        lambda x: F.softmax_cross_entropy(
            x, odd_ignored(len(x)), class_weight=CLASS_WEIGHT.astype(x.dtype), reduce="no"
        ),
        lambda x: cross_entropies(x, odd_ignored(len(x))) * CLASS_WEIGHT[labels(len(x))],
    ),
    Case(
        "softmax_cross_entropy: image",
        (),
        lambda x: F.softmax_cross_entropy(x, odd_ignored(len(x) * 4).reshape(len(x), 2, 2)),
        lambda x: over(cross_entropies(pixels(x), odd_ignored(len(x) * 4)).sum(), len(x) * 2),
        ((N, 3, 2, 2),),
    ),
    Case(
        "softmax_cross_entropy: image, each",
        (),
        lambda x: F.softmax_cross_entropy(x, labels(len(x) * 4).reshape(len(x), 2, 2), reduce="no"),
        lambda x: cross_entropies(pixels(x), labels(len(x) * 4)).reshape(len(x), 2, 2),
        ((N, 3, 2, 2),),
    ),
    Case(
        "softmax_cross_entropy: soft",
        (),
        lambda x: F.softmax_cross_entropy(x, np.full(x.shape, 0.25, x.dtype)),
        lambda x: over(-0.25 * np.log(stable_softmax(x)).sum(), len(x)),
        halves=1e-2,
    ),
    Case(
        "softmax_cross_entropy: soft, divergence",
        (),
        lambda x: F.softmax_cross_entropy(
            x, np.full(x.shape, 0.25, x.dtype), reduce="no", soft_target_loss="kl-divergence"
        ),
        lambda x: 0.25 * (np.log(0.25) - np.log(stable_softmax(x))).sum(1),
        halves=1e-2,
    ),
    Case(
        "softmax_cross_entropy: soft, class weights",
        (),
        lambda x: F.softmax_cross_entropy(
            x, np.full(x.shape, 0.25, x.dtype), class_weight=CLASS_WEIGHT
        ),
        lambda x: over(-0.25 * (CLASS_WEIGHT * np.log(stable_softmax(x))).sum(), len(x)),
        halves=1e-2,
    ),
    Case(
        "sigmoid_cross_entropy",
        (SigmoidCrossEntropy,),
        lambda x: F.sigmoid_cross_entropy(x, sign_labels(x.shape)),
        lambda x: over(binary_truth(x).sum(), (sign_labels(x.shape) >= 0).sum()),
    ),
    Case(
        "sigmoid_cross_entropy: over N",
        (),
        lambda x: F.sigmoid_cross_entropy(x, sign_labels(x.shape), normalize=False),
        lambda x: over(binary_truth(x).sum(), len(x)),
        halves=1e-2,
    ),
    Case(
        "sigmoid_cross_entropy: each",
        (),
        lambda x: F.sigmoid_cross_entropy(x, sign_labels(x.shape), reduce="no"),
        binary_truth,
    ),
    Case(
        "mean_squared_error",
        (MeanSquaredError,),
        F.mean_squared_error,
        lambda x, y: over(((x - y) ** 2).sum(), x.size),
        PAIR,
        halves=1e-2,
    ),
    Case("mean_squared_error: 0-d", (), F.mean_squared_error, lambda x, y: (x - y) ** 2, ((), ())),
    Case(
        "mean_absolute_error",
        (MeanAbsoluteError,),
        F.mean_absolute_error,
        lambda x, y: over(abs(x - y).sum(), x.size),
        PAIR,
    ),
    Case(
        "accuracy",
        (),
        lambda x: F.accuracy(x, labels(len(x))),
        lambda x: over((x.argmax(1) == labels(len(x))).sum(), len(x)),
        differentiable=False,
    ),
    Case(
        "accuracy: ignoring",
        (),
        lambda x: F.accuracy(x, odd_ignored(len(x)), ignore_label=-1),
        lambda x: over((x.argmax(1) == odd_ignored(len(x))).sum(), (len(x) + 1) // 2),
        differentiable=False,
    ),
    Case(
        "binary_accuracy",
        (),
        lambda x: F.binary_accuracy(x, sign_labels(x.shape)),
        lambda x: over(((x >= 0) == sign_labels(x.shape)).sum(), (sign_labels(x.shape) >= 0).sum()),
        differentiable=False,
    ),
]

CASES = [
    *_arithmetic,
    *_elementwise,
    *_shape,
    *_reduction,
    *_activation,
    *_product,
    *_loss,
    *array.CASES,
    *normalization.CASES,
    *local.CASES,
    *recurrent.CASES,
    *spatial.CASES,
    *vocabulary.CASES,
    *untied.CASES,
    *more.CASES,
    *special.CASES,
    *sparse.CASES,
]
