"""Rows of complex numbers, Fourier transforms, random fields, sampled losses, spatial transformers
and regions of interest.
"""

from __future__ import annotations

import itertools

import numpy as np

import mnpar.functions as F
from mnpar.functions.math import complex_parts, fft
from mnpar.functions.pooling import roi_pooling
from tests.functions.cases.case import Case, N

PAIR = ((N, 3), (N, 3))
# of three steps, which 3, 2 and 1 sequences reach
LABELS = [np.array(y, "i4") for y in ([0, 2, 1], [1, 1], [2])]
STEPS = ((3, 3), (3, 3), (2, 3), (1, 3))  # cost, x, x, x
DRAWN = np.array([[1, 0, 2], [2, 2, 0], [0, 1, 1], [1, 3, 0]], "i4")
ROIS = np.array([[0.0, 0.4, 4.9, 3.0], [-2.0, 1.2, 2.1, 9.0], [2.2, 2.2, 2.4, 2.4]])
IMAGES = np.array([0, 1, 1], "i4")
IMAGE = ((2, 2, 5, 4),)


def of_complex(f):
    """A function of complex numbers as one of real and imaginary parts, in their dtype."""

    def call(x, y):
        z = F.cast(x, np.result_type(x.dtype, "c8"))
        return F.cast(f(z + y * 1j), x.dtype)

    return call


def transformed(real, imaginary, sign):
    n = real.shape[-1]
    y = (real + 1j * imaginary) @ np.exp(
        sign * 2j * np.pi * np.outer(np.arange(n), np.arange(n)) / n
    )
    y = y if sign < 0 else y / n
    return y.real, y.imag


def all_scores(cost, xs, n):
    """The scores of all label sequences of the n-th sequence, by sequence."""
    xs = [x[n] for x in xs if n < len(x)]
    return {
        path: sum(x[y] for x, y in zip(xs, path, strict=True))
        + sum(cost[a, b] for a, b in itertools.pairwise(path))
        for path in itertools.product(range(3), repeat=len(xs))
    }


def field(cost, *xs):
    losses = []
    for n in range(3):
        scores = all_scores(cost, xs, n)
        right = tuple(int(y[n]) for y in LABELS if n < len(y))
        losses.append(np.log(sum(np.exp(s) for s in scores.values())) - scores[right])
    return np.array(losses)


def best(cost, *xs):
    return np.array([max(all_scores(cost, xs, n).values()) for n in range(3)])


def softplus(x):
    return np.log(1 + np.exp(x))


def right(n):
    return np.array([1, -1, 0, 2], "i4")[:n]


def negative(x, W):
    t = right(len(x))
    score = np.einsum("nd,nsd->ns", x, W[DRAWN[: len(x)]])
    return np.where(
        t < 0, 0, softplus(-np.sum(x * W[np.maximum(t, 0)], 1)) + softplus(score[:, 1:]).sum(1)
    )


def blacked_out(x, W):
    t = np.abs(right(len(x)))
    e = np.exp(np.einsum("nd,nsd->ns", x, W[np.concatenate([t[:, None], DRAWN[: len(x)]], 1)]))
    p = e / e.sum(1, keepdims=True)
    return -np.log(p[:, 0]) - np.log(1 - p[:, 1:]).sum(1)


def even_grid(theta):
    x, y = np.meshgrid(np.linspace(-1, 1, 4), np.linspace(-1, 1, 3))
    return np.einsum("nij,jhw->nihw", theta, np.stack([x, y, np.ones_like(x)]))


def hat(at, size):
    """Weights of the cells 0 … size - 1 at places among them: linear, and beyond the ends too."""
    return np.maximum(0, 1 - abs(np.asarray(at)[..., None] - np.arange(size)))


def sampled(x, grid):
    by_width = hat((grid[:, 0] + 1) * (x.shape[3] - 1) / 2, x.shape[3])
    by_height = hat((grid[:, 1] + 1) * (x.shape[2] - 1) / 2, x.shape[2])
    return np.einsum("nchw,nijh,nijw->ncij", x, by_height, by_width)


def bins(low, high, out, size, inclusive):
    low = round(low)
    high = round(high)
    step = max(high - low + inclusive, 1) / out
    ends = [(int(np.floor(i * step)) + low, int(np.ceil((i + 1) * step)) + low) for i in range(out)]
    return [slice(max(0, min(a, size)), max(0, min(b, size))) for a, b in ends]


def pooled(x, unite, inclusive=0):
    y = np.zeros((len(ROIS), x.shape[1], 2, 3))
    for r, (n, roi) in enumerate(zip(IMAGES, ROIS, strict=True)):
        for i, rows in enumerate(bins(roi[0], roi[2], 2, x.shape[2], inclusive)):
            for j, columns in enumerate(bins(roi[1], roi[3], 3, x.shape[3], inclusive)):
                part = x[n, :, rows, columns]
                if part.size:
                    y[r, :, i, j] = (
                        unite(unite(part, -1), -1) if unite is np.max else part.mean((1, 2))
                    )
    return y


def aligned(x, unite, ratio):
    y = np.zeros((len(ROIS), x.shape[1], 2, 3))
    for r, (n, roi) in enumerate(zip(IMAGES, ROIS, strict=True)):
        points = []
        for low, high, out, size in (
            (roi[0], roi[2], 2, x.shape[2]),
            (roi[1], roi[3], 3, x.shape[3]),
        ):
            length = max(high - low, 1)
            k = ratio or int(np.ceil(length / out))
            points.append((low + (np.arange(out * k) + 0.5) * length / (out * k), out, k, size))
        (v, _, a, H), (u, _, b, W) = points
        seen = np.einsum("chw,ih,jw->cij", x[n], hat(v.clip(0, H - 1), H), hat(u.clip(0, W - 1), W))
        inside = ((v >= -1) & (v <= H))[:, None] & ((u >= -1) & (u <= W))
        for i, j in np.ndindex(2, 3):
            part, here = (z[..., i * a : (i + 1) * a, j * b : (j + 1) * b] for z in (seen, inside))
            if unite is np.mean:
                y[r, :, i, j] = (part * here).mean((1, 2))
            elif here.any():
                y[r, :, i, j] = np.where(here, part, -np.inf).max((1, 2))
    return y


def of_regions(name, *more):
    return lambda x: getattr(F, name)(x, ROIS * 2, IMAGES, (2, 3), 0.5, *more)


OLD_ROIS = np.column_stack([IMAGES, ROIS[:, [1, 0, 3, 2]] * 2])

CASES = [
    Case("arctanh", (), F.arctanh, np.arctanh, low=-0.8, high=0.8, halves=8e-3),
    Case(
        "real",
        (complex_parts.Real,),
        of_complex(lambda z: F.real(z * z)),
        lambda x, y: x * x - y * y,
        PAIR,
    ),
    Case(
        "real: as an attribute",
        (),
        of_complex(lambda z: (z * z * 1j).real),
        lambda x, y: -2 * x * y,
        PAIR,
    ),
    Case("real: of real numbers", (), F.real, lambda x: x),
    Case(
        "imag",
        (complex_parts.Imag,),
        of_complex(lambda z: F.imag(z * z)),
        lambda x, y: 2 * x * y,
        PAIR,
    ),
    Case(
        "imag: as an attribute",
        (),
        of_complex(lambda z: (z * z * 1j).imag),
        lambda x, y: x * x - y * y,
        PAIR,
    ),
    Case("imag: of real numbers", (), F.imag, lambda x: 0 * x, differentiable=False),
    Case(
        "conj",
        (complex_parts.Conj,),
        of_complex(lambda z: F.imag(F.conj(z) * z * z)),
        lambda x, y: x * x * y + y**3,
        PAIR,
    ),
    Case(
        "conj: method",
        (),
        of_complex(lambda z: (z.conj() * z * z).real),
        lambda x, y: x**3 + y * y * x,
        PAIR,
    ),
    Case("conj: of real numbers", (), F.conj, lambda x: x),
    Case(
        "fft",
        (fft.Fourier,),
        lambda x, y: F.fft((x, y)),
        lambda x, y: transformed(x, y, -1),
        PAIR,
        halves=2e-2,
    ),
    Case(
        "ifft",
        (),
        lambda x, y: F.ifft((x, y)),
        lambda x, y: transformed(x, y, 1),
        PAIR,
        halves=2e-2,
    ),
    Case(
        "fft: real part",
        (),
        lambda x, y: F.fft((x, y))[0],
        lambda x, y: transformed(x, y, -1)[0],
        PAIR,
        halves=2e-2,
    ),
    Case(
        "crf1d",
        (),
        lambda c, *xs: F.crf1d(c, xs, LABELS),
        lambda *a: field(*a).mean(),
        STEPS,
        halves=2e-2,
    ),
    Case("crf1d: each", (), lambda c, *xs: F.crf1d(c, xs, LABELS, "no"), field, STEPS, halves=2e-2),
    Case("argmax_crf1d", (), lambda c, *xs: F.argmax_crf1d(c, xs)[0], best, STEPS, halves=2e-2),
    Case(
        "negative_sampling",
        (),
        lambda x, W: F.negative_sampling(x, right(len(x)), W, lambda shape: DRAWN[: shape[0]], 2),
        lambda x, W: negative(x, W).sum(),
        ((N, 3), (4, 3)),
        halves=3e-2,
    ),
    Case(
        "negative_sampling: each",
        (),
        lambda x, W: F.negative_sampling(
            x, right(len(x)), W, lambda shape: DRAWN[: shape[0]], 2, "no"
        ),
        negative,
        ((N, 3), (4, 3)),
        halves=3e-2,
    ),
    Case(
        "black_out",
        (),
        lambda x, W: F.black_out(x, abs(right(len(x))), W, DRAWN[: len(x)], "no"),
        blacked_out,
        ((N, 3), (4, 3)),
        halves=5e-2,
    ),
    Case(
        "spatial_transformer_grid",
        (),
        lambda t: F.spatial_transformer_grid(t, (3, 4)),
        even_grid,
        ((N, 2, 3),),
        halves=1e-2,
    ),
    Case(
        "spatial_transformer_sampler",
        (),
        F.spatial_transformer_sampler,
        sampled,
        ((N, 2, 4, 3), (N, 2, 2, 3)),
        low=-1.3,
        halves=3e-2,
    ),
    Case(
        "roi_average_pooling_2d",
        (roi_pooling.RegionPooling, roi_pooling.RegionUnpooling),
        of_regions("roi_average_pooling_2d"),
        lambda x: pooled(x, np.mean),
        IMAGE,
    ),
    Case(
        "roi_max_pooling_2d",
        (),
        of_regions("roi_max_pooling_2d"),
        lambda x: pooled(x, np.max),
        IMAGE,
    ),
    Case(
        "roi_pooling_2d",
        (),
        lambda x: F.roi_pooling_2d(x, OLD_ROIS, 2, 3, 0.5),
        lambda x: pooled(x, np.max, 1),
        IMAGE,
    ),
    Case(
        "roi_average_align_2d",
        (),
        of_regions("roi_average_align_2d"),
        lambda x: aligned(x, np.mean, None),
        IMAGE,
    ),
    Case(
        "roi_average_align_2d: 2",
        (),
        of_regions("roi_average_align_2d", 2),
        lambda x: aligned(x, np.mean, 2),
        IMAGE,
    ),
    Case(
        "roi_max_align_2d",
        (),
        of_regions("roi_max_align_2d"),
        lambda x: aligned(x, np.max, None),
        IMAGE,
    ),
    Case(
        "roi_max_align_2d: 2",
        (),
        of_regions("roi_max_align_2d", (2, 2)),
        lambda x: aligned(x, np.max, 2),
        IMAGE,
    ),
    Case(
        "spatial_pyramid_pooling_2d",
        (),
        lambda x: F.spatial_pyramid_pooling_2d(x, 2),
        lambda x: np.concatenate(
            [x.max((2, 3)), x.reshape(len(x), 2, 2, 2, 2, 2).max((3, 5)).reshape(len(x), -1)], 1
        )[:, :, None, None],
        ((N, 2, 4, 4),),
        empty=False,
    ),
]
