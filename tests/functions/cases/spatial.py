"""Rows of convolution, pooling and resizing, each against loops over windows."""

from __future__ import annotations

import itertools
import math

import numpy as np

import mnpar.functions as F
from mnpar.functions.array import im2col as columns_of, resize_images
from mnpar.functions.connection import convolution
from mnpar.functions.pooling import pooling
from tests.functions.cases.case import Case, N


def tuples(value, n):
    return tuple(value) if isinstance(value, tuple) else (value,) * n


def windows(x, ksize, stride, pad, dilate=1, cover_all=False, fill=0.0):
    """(index, window) for each window: x (N, C, …) in its padding, cut with numpy's slices."""
    n = x.ndim - 2
    K, S, P, D = (tuples(v, n) for v in (ksize, stride, pad, dilate))
    extent = [(k - 1) * d + 1 for k, d in zip(K, D, strict=True)]
    total = [a + 2 * p for a, p in zip(x.shape[2:], P, strict=True)]
    out = [
        -(-(t - e) // s) + 1 if cover_all else (t - e) // s + 1
        for t, e, s in zip(total, extent, S, strict=True)
    ]
    padded = np.pad(
        x, [(0, 0), (0, 0), *[(p, p + s) for p, s in zip(P, S, strict=True)]], constant_values=fill
    )
    for index in itertools.product(*map(range, out)):
        yield (
            index,
            padded[
                (
                    slice(None),
                    slice(None),
                    *[
                        slice(i * s, i * s + e, d)
                        for i, s, e, d in zip(index, S, extent, D, strict=True)
                    ],
                )
            ],
        )


def shape_of(found):
    return tuple(i + 1 for i in max(index for index, _ in found))


def convolve(x, W, b=None, stride=1, pad=0, cover_all=False, dilate=1, groups=1):
    found = list(windows(x, W.shape[2:], stride, pad, dilate, cover_all))
    y = np.zeros((len(x), len(W), *shape_of(found)))
    c = W.shape[1]
    k = len(W) // groups
    for index, window in found:
        for g in range(groups):
            part = window[:, g * c : g * c + c]
            y[(slice(None), slice(g * k, g * k + k), *index)] = np.tensordot(
                part,
                W[g * k : g * k + k],
                x.ndim - 1 and (tuple(range(1, x.ndim)), tuple(range(1, x.ndim))),
            )
    return y if b is None else y + b.reshape(-1, *[1] * (x.ndim - 2))


def deconvolve(y, W, size, **how):
    """By the definition of a transpose: the gradient of the convolution of unit images."""
    groups = how.get("groups", 1)
    C = W.shape[1] * groups
    units = np.eye(C * int(np.prod(size))).reshape(-1, C, *size)
    return np.tensordot(
        y, convolve(units, W, **how), (tuple(range(1, y.ndim)), tuple(range(1, y.ndim)))
    ).reshape(len(y), C, *size)


def pool(x, how, ksize, stride=None, pad=0, cover_all=False, fill=0.0):
    found = list(windows(x, ksize, ksize if stride is None else stride, pad, 1, cover_all, fill))
    y = np.zeros((*x.shape[:2], *shape_of(found)))
    for index, window in found:
        y[(slice(None), slice(None), *index)] = how(window, axis=tuple(range(2, x.ndim)))
    return y


def count_mean(window, axis):
    return np.nanmean(window, axis=axis)


def deformed(x, offset, W, b=None, stride=1):
    """For each window and cell, what lies there between four others, those beyond the image being
    0.
    """
    (n, _, H, Wd), (K, _, kH, kW), (oH, oW) = x.shape, W.shape, offset.shape[2:]
    y = np.zeros((n, K, oH, oW))
    wide = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    for m, i, j, p, q in itertools.product(range(n), range(oH), range(oW), range(kH), range(kW)):
        v = np.clip(i * stride + p + offset[m, kH * kW + p * kW + q, i, j], -1, H) + 1
        u = np.clip(j * stride + q + offset[m, p * kW + q, i, j], -1, Wd) + 1
        top = min(int(v), H)
        left = min(int(u), Wd)
        v = v - top
        u = u - left
        cut = wide[m, :, top : top + 2, left : left + 2]  # (C, 2, 2)
        seen = (
            cut[:, 0, 0] * (1 - v) * (1 - u)
            + cut[:, 0, 1] * (1 - v) * u
            + cut[:, 1, 0] * v * (1 - u)
            + cut[:, 1, 1] * v * u
        )
        y[m, :, i, j] += W[:, :, p, q] @ seen
    return y if b is None else y + b[:, None, None]


def columns(x, k, **how):
    found = list(windows(x, k, how.get("stride", 1), how.get("pad", 0), how.get("dilate", 1)))
    y = np.zeros((len(x), x.shape[1] * k * k, *shape_of(found)))
    for index, window in found:
        y[(slice(None), slice(None), *index)] = window.reshape(len(x), x.shape[1] * k * k)
    return y


def unpool(x, k, size, stride=None, pad=0, cover_all=False):
    units = np.eye(int(np.prod(size))).reshape(-1, 1, *size)
    sums = pool(units, np.sum, k, stride, pad, cover_all)[:, 0]
    return np.tensordot(x, sums, (tuple(range(2, x.ndim)), tuple(range(1, sums.ndim)))).reshape(
        *x.shape[:2], *size
    )


def best(window, axis):
    return window.max(axis=axis)


def places(shape):
    return (np.arange(math.prod(shape)).reshape(shape) % 4).astype("i4")


def put(x, size):
    """Each value at its place in windows of 2 × 2, side by side."""
    y = np.zeros((*x.shape[:2], *size))
    p = places(x.shape)
    for index in np.ndindex(*x.shape):
        n, c, i, j = index
        y[n, c, 2 * i + p[index] // 2, 2 * j + p[index] % 2] += x[index]
    return y


def bilinear(x, size, corners=True):
    for axis, out in ((2, size[0]), (3, size[1])):
        n = x.shape[axis]
        at = (
            np.linspace(0, n - 1, out)
            if corners and out > 1
            else np.clip((np.arange(out) + 0.5) * n / out - 0.5, 0, n - 1)
        )
        if corners and out == 1:
            at = np.zeros(1)
        low = np.minimum(np.floor(at).astype(int), n - 1)
        high = np.minimum(low + 1, n - 1)
        u = at - low
        u = u.reshape(-1, *[1] * (3 - axis))
        x = np.take(x, low, axis) * (1 - u) + np.take(x, high, axis) * u
    return x


IMAGE = (N, 2, 5, 4)
SEQUENCE = (N, 2, 7)
HALVES = 2e-2

CASES = [
    Case(
        "convolution_2d",
        (convolution.Convolution, convolution.WeightGradient, convolution.Deconvolution),
        F.convolution_2d,
        convolve,
        (IMAGE, (3, 2, 3, 2), (3,)),
        halves=HALVES,
    ),
    Case(
        "convolution_2d: stride and pad, no bias",
        (),
        lambda x, W: F.convolution_2d(x, W, stride=(2, 1), pad=(1, 2)),
        lambda x, W: convolve(x, W, stride=(2, 1), pad=(1, 2)),
        (IMAGE, (3, 2, 2, 3)),
        halves=HALVES,
    ),
    Case(
        "convolution_2d: dilated",
        (),
        lambda x, W: F.convolution_2d(x, W, pad=1, dilate=2),
        lambda x, W: convolve(x, W, pad=1, dilate=2),
        (IMAGE, (1, 2, 3, 2)),
        halves=HALVES,
    ),
    Case(
        "convolution_2d: more zeros before than after",
        (convolution.PaddedConvolution,),
        lambda x, W, b: F.convolution_2d(x, W, b, 2, pad=[(2, 0), (1, 2)], dilate=(1, 2)),
        lambda x, W, b: convolve(
            np.pad(x, [(0, 0), (0, 0), (2, 0), (1, 2)]), W, b, stride=2, dilate=(1, 2)
        ),
        (IMAGE, (3, 2, 3, 2), (3,)),
        halves=HALVES,
    ),
    Case(
        "convolution_2d: around the edges",
        (),
        lambda x, W: F.convolution_2d(x, W, pad=[(1, 2), (2, 1)], mode=("wrap", "reflect")),
        lambda x, W: convolve(
            np.pad(
                np.pad(x, [(0, 0), (0, 0), (1, 2), (0, 0)], "wrap"),
                [(0, 0), (0, 0), (0, 0), (2, 1)],
                "reflect",
            ),
            W,
        ),
        (IMAGE, (3, 2, 3, 2)),
        halves=HALVES,
    ),
    Case(
        "convolution_nd: edges repeated, in groups",
        (),
        lambda x, W: F.convolution_nd(x, W, pad=2, groups=2, mode="symmetric"),
        lambda x, W: convolve(np.pad(x, [(0, 0), (0, 0), (2, 2)], "symmetric"), W, groups=2),
        (SEQUENCE, (4, 1, 3)),
        halves=HALVES,
    ),
    Case(
        "convolution_2d: covering all",
        (),
        lambda x, W: F.convolution_2d(x, W, stride=3, cover_all=True),
        lambda x, W: convolve(x, W, stride=3, cover_all=True),
        (IMAGE, (1, 2, 2, 2)),
        halves=HALVES,
    ),
    Case(
        "convolution_2d: groups",
        (),
        lambda x, W, b: F.convolution_2d(x, W, b, groups=2),
        lambda x, W, b: convolve(x, W, b, groups=2),
        ((N, 4, 3, 3), (2, 2, 2, 2), (2,)),
        halves=HALVES,
    ),
    Case(
        "convolution_2d: one by one",
        (),
        lambda x, W: F.convolution_2d(x, W),
        convolve,
        (IMAGE, (3, 2, 1, 1)),
        halves=HALVES,
    ),
    Case(
        "convolution_1d",
        (),
        lambda x, W: F.convolution_1d(x, W, stride=2, pad=1),
        lambda x, W: convolve(x, W, stride=2, pad=1),
        (SEQUENCE, (3, 2, 3)),
        halves=HALVES,
    ),
    Case(
        "convolution_3d",
        (),
        F.convolution_3d,
        convolve,
        ((N, 1, 3, 2, 3), (2, 1, 2, 1, 2)),
        halves=HALVES,
    ),
    Case(
        "convolution_nd",
        (),
        F.convolution_nd,
        convolve,
        ((N, 1, 2, 2, 2, 2), (2, 1, 2, 1, 2, 1)),
        halves=HALVES,
    ),
    Case(
        "deconvolution_2d",
        (),
        lambda y, W, b: F.deconvolution_2d(y, W, b, stride=2, pad=1),
        lambda y, W, b: deconvolve(y, W, (5, 4), stride=2, pad=1) + b.reshape(-1, 1, 1),
        ((N, 2, 3, 3), (2, 3, 3, 2), (3,)),
        halves=HALVES,
    ),
    Case(
        "deconvolution_2d: with outsize",
        (),
        lambda y, W: F.deconvolution_2d(y, W, stride=2, outsize=(6, 5)),
        lambda y, W: deconvolve(y, W, (6, 5), stride=2),
        ((N, 2, 2, 2), (2, 1, 3, 2)),
        halves=HALVES,
    ),
    Case(
        "deconvolution_2d: groups, dilated",
        (),
        lambda y, W: F.deconvolution_2d(y, W, dilate=2, groups=2),
        lambda y, W: deconvolve(y, W, (4, 5), dilate=2, groups=2),
        ((N, 4, 2, 3), (4, 1, 2, 2)),
        halves=HALVES,
    ),
    Case(
        "deconvolution_1d",
        (),
        F.deconvolution_1d,
        lambda y, W: deconvolve(y, W, (6,)),
        ((N, 2, 4), (2, 1, 3)),
        halves=HALVES,
    ),
    Case(
        "deconvolution_3d",
        (),
        F.deconvolution_3d,
        lambda y, W: deconvolve(y, W, (2, 3, 2)),
        ((N, 1, 1, 2, 2), (1, 2, 2, 2, 1)),
        halves=HALVES,
    ),
    Case(
        "deconvolution_nd",
        (),
        lambda y, W: F.deconvolution_nd(y, W, stride=3),
        lambda y, W: deconvolve(y, W, (8,), stride=3),
        ((N, 2, 3), (2, 1, 2)),
        halves=HALVES,
    ),
    Case(
        "depthwise_convolution_2d",
        (),
        lambda x, W: F.depthwise_convolution_2d(x, W, pad=1),
        lambda x, W: convolve(
            x, W.transpose(1, 0, 2, 3).reshape(-1, 1, *W.shape[2:]), pad=1, groups=2
        ),
        ((N, 2, 3, 3), (2, 2, 2, 2)),
        halves=HALVES,
    ),
    Case(
        "dilated_convolution_2d",
        (),
        lambda x, W: F.dilated_convolution_2d(x, W, dilate=2, pad=1),
        lambda x, W: convolve(x, W, dilate=2, pad=1),
        (IMAGE, (1, 2, 2, 2)),
        halves=HALVES,
    ),
    Case(
        "max_pooling_2d",
        (pooling.MaxPooling, pooling.MaxPlaces, pooling.Spread, pooling.Pick),
        lambda x: F.max_pooling_2d(x, 2),
        lambda x: pool(x, best, 2, cover_all=True, fill=-np.inf),
        (IMAGE,),
    ),
    Case(
        "max_pooling_2d: overlapping, padded",
        (),
        lambda x: F.max_pooling_2d(x, (3, 2), stride=(2, 1), pad=1, cover_all=False),
        lambda x: pool(x, best, (3, 2), (2, 1), 1, fill=-np.inf),
        (IMAGE,),
    ),
    Case(
        "max_pooling_2d: windows apart",
        (),
        lambda x: F.max_pooling_2d(x, (2, 1), stride=3, cover_all=False),
        lambda x: pool(x, best, (2, 1), 3),
        (IMAGE,),
    ),
    Case(
        "max_pooling_2d: one cell",
        (),
        lambda x: F.max_pooling_2d(x, 1, 2, cover_all=False),
        lambda x: x[:, :, ::2, ::2],
        (IMAGE,),
    ),
    Case(
        "average_pooling_2d: windows apart",
        (),
        lambda x: F.average_pooling_2d(x, (2, 1), stride=(3, 2)),
        lambda x: pool(x, np.mean, (2, 1), (3, 2)),
        (IMAGE,),
    ),
    Case(
        "max_pooling_1d",
        (),
        lambda x: F.max_pooling_1d(x, 3),
        lambda x: pool(x, best, 3, cover_all=True, fill=-np.inf),
        (SEQUENCE,),
    ),
    Case(
        "max_pooling_3d",
        (),
        lambda x: F.max_pooling_3d(x, (2, 1, 2)),
        lambda x: pool(x, best, (2, 1, 2)),
        ((N, 1, 2, 2, 2),),
    ),
    Case(
        "max_pooling_nd",
        (),
        lambda x: F.max_pooling_nd(x, 2, 1),
        lambda x: pool(x, best, 2, 1),
        (SEQUENCE,),
    ),
    Case(
        "average_pooling_2d",
        (pooling.SumPooling, pooling.Unpooling),
        lambda x: F.average_pooling_2d(x, 2, stride=1, pad=1),
        lambda x: pool(x, np.mean, 2, 1, 1),
        (IMAGE,),
    ),
    Case(
        "average_pooling_1d",
        (),
        lambda x: F.average_pooling_1d(x, 3),
        lambda x: pool(x, np.mean, 3),
        (SEQUENCE,),
    ),
    Case(
        "average_pooling_3d",
        (),
        lambda x: F.average_pooling_3d(x, 2),
        lambda x: pool(x, np.mean, 2),
        ((N, 1, 2, 2, 2),),
    ),
    Case(
        "average_pooling_nd",
        (),
        lambda x: F.average_pooling_nd(x, 3, 2, 1, pad_value=None),
        lambda x: pool(x, count_mean, 3, 2, 1, fill=np.nan),
        (SEQUENCE,),
    ),
    Case(
        "unpooling_2d",
        (),
        lambda x: F.unpooling_2d(x, 3, stride=2, outsize=(5, 6)),
        lambda x: unpool(x, 3, (5, 6), 2, cover_all=True),
        ((N, 2, 2, 3),),
    ),
    Case(
        "unpooling_nd",
        (),
        lambda x: F.unpooling_nd(x, 2, cover_all=False),
        lambda x: np.repeat(x, 2, -1),
        (SEQUENCE,),
    ),
    Case(
        "upsampling_2d",
        (),
        lambda x: F.upsampling_2d(x, places(x.shape), 2, outsize=(4, 6)),
        lambda x: put(x, (4, 6)),
        ((N, 2, 2, 3),),
    ),
    Case(
        "im2col",
        (columns_of.Im2Col, columns_of.Col2Im),
        lambda x: F.im2col(x, 2, stride=2, pad=1),
        lambda x: columns(x, 2, stride=2, pad=1),
        (IMAGE,),
    ),
    Case(
        "deformable_convolution_2d_sampler",
        (),
        F.deformable_convolution_2d_sampler,
        deformed,
        ((N, 2, 3, 3), (N, 8, 2, 2), (2, 2, 2, 2)),
        low=0.05,
        high=0.9,
        halves=2e-2,
    ),
    Case(
        "deformable_convolution_2d_sampler: stride and padding",
        (),
        lambda *x: F.deformable_convolution_2d_sampler(*x, stride=2, pad=1),
        lambda x, *rest: deformed(np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), *rest, stride=2),
        ((N, 1, 3, 3), (N, 8, 2, 2), (2, 1, 2, 2), (2,)),
        low=0.05,
        high=0.9,
        halves=2e-2,
    ),
    Case(
        "resize_images",
        (resize_images.Resize, resize_images.Gathered),
        lambda x: F.resize_images(x, (3, 7)),
        lambda x: bilinear(x, (3, 7)),
        (IMAGE,),
    ),
    Case(
        "resize_images: in blocks",
        (),
        lambda x: F.resize_images(x, (70, 1)),
        lambda x: bilinear(x, (70, 1)),
        ((N, 1, 3, 2),),
    ),
    Case(
        "resize_images: edges",
        (),
        lambda x: F.resize_images(x, (7, 1), align_corners=False),
        lambda x: bilinear(x, (7, 1), False),
        (IMAGE,),
    ),
    Case(
        "resize_images: nearest",
        (),
        lambda x: F.resize_images(x, (10, 2), mode="nearest", align_corners=False),
        lambda x: np.repeat(x, 2, 2)[:, :, :, ::2],
        (IMAGE,),
    ),
]
