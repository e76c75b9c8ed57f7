"""Rows of poolings by length, of local contrast normalization, and of what cuts blocks into pieces
and joins them.
"""

from __future__ import annotations

import itertools

import numpy as np

import mnpar.functions as F
from mnpar.functions.connection import shift
from mnpar.functions.divided import blocks
from mnpar.functions.divided.rules.reductions import ExtremumPart
from mnpar.functions.node import array_of
from mnpar.functions.normalization import local_contrast_normalization
from mnpar.functions.pooling import lp_pooling
from tests.functions.cases.case import Case, N
from tests.functions.cases.spatial import pool


def gaussian(ksize):
    """exp(-distance²/2σ²), σ a third of the way to a corner, with the sum 1."""
    centre = [k // 2 for k in ksize]
    variance = sum([c * c for c in centre]) / 9
    g = np.zeros(ksize)
    for place in itertools.product(*map(range, ksize)):
        g[place] = np.exp(
            -sum([(p - c) ** 2 for p, c in zip(place, centre, strict=True)]) / (2 * variance)
        )
    return g / g.sum()


def mean_around(x, ksize):
    """Over the window and all channels (N, 1, …), with zeros beyond the edges."""
    padded = np.pad(x, [(0, 0), (0, 0), *[(k // 2, k // 2) for k in ksize]])
    y = np.zeros((len(x), 1, *x.shape[2:]))
    g = gaussian(ksize) / x.shape[1]
    for place in np.ndindex(*x.shape[2:]):
        seen = padded[
            (
                slice(None),
                slice(None),
                *[slice(p, p + k) for p, k in zip(place, ksize, strict=True)],
            )
        ]
        y[(slice(None), 0, *place)] = (seen * g).sum(axis=tuple(range(1, x.ndim)))
    return y


def contrast(x, ksize):
    v = x - mean_around(x, ksize)
    s = np.sqrt(mean_around((v * v).sum(axis=1, keepdims=True), ksize) * (1 / x.shape[1]))
    return v / np.where(s == 0, 1, s)


def shifted(x, ksize, dilate):
    """Each channel of an image moved to its group's place in the window, the middle of which is
    that of the last group.
    """
    kh, kw = ksize
    places = [
        ((i - kh // 2) * dilate[0], (j - kw // 2) * dilate[1]) for i in range(kh) for j in range(kw)
    ]
    middle = len(places) // 2
    places[middle], places[-1] = places[-1], places[middle]
    y, (_, C, H, W) = np.zeros_like(x), x.shape
    for c, h, w in np.ndindex(C, H, W):
        down, right = places[min(c // (C // len(places)), len(places) - 1)]
        if 0 <= h - down < H and 0 <= w - right < W:
            y[:, c, h, w] = x[:, c, h - down, w - right]
    return y


def length(p):
    return lambda window, axis: (abs(window) ** p).sum(axis=axis) ** (1 / p)


def joined(x, y):
    z = np.zeros((*x.shape[:-1], 4))
    z[..., :2] += x
    z[..., 1:3] += y
    return z


IMAGE = (N, 2, 5, 4)
HALVES = 2e-2

CASES = [
    Case(
        "shift_channels",
        (shift.ShiftChannels,),
        F.shift_channels,
        lambda x: shifted(x, (3, 3), (1, 1)),
        ((N, 11, 3, 2),),
    ),
    Case(
        "shift_channels: far",
        (),
        lambda x: F.shift_channels(x, (1, 3), (2, 3)),
        lambda x: shifted(x, (1, 3), (2, 3)),
        ((N, 6, 2, 5),),
    ),
    Case(
        "shift_channels: back",
        (),
        lambda x: F.shift_channels(x, (3, 1), -1),
        lambda x: shifted(x, (3, 1), (-1, -1)),
        ((N, 3, 4, 2),),
    ),
    Case(
        "lp_pooling_nd",
        (lp_pooling.LpPooling,),
        lambda x: F.lp_pooling_nd(x, 2, 1),
        lambda x: pool(x, length(2), 2, 1),
        (IMAGE,),
        halves=HALVES,
    ),
    Case(
        "lp_pooling_nd: the third norm, padded",
        (),
        lambda x: F.lp_pooling_nd(x, 3, 2, 1, p=3),
        lambda x: pool(x, length(3), 3, 2, 1),
        ((N, 2, 7),),
        halves=HALVES,
    ),
    Case(
        "lp_pooling_nd: the first norm, covering all",
        (),
        lambda x: F.lp_pooling_nd(x, (2, 3), cover_all=True, p=1),
        lambda x: pool(x, length(1), (2, 3), cover_all=True),
        (IMAGE,),
        halves=HALVES,
    ),
    Case(
        "local_contrast_normalization",
        (local_contrast_normalization.Blur, local_contrast_normalization.BlurWithin),
        lambda x: F.local_contrast_normalization(x, 3),
        lambda x: contrast(x, (3, 3)),
        (IMAGE,),
        halves=HALVES,
    ),
    Case(
        "max: what one rank gives",
        (ExtremumPart,),
        lambda x: ExtremumPart(
            array_of(x).max(1, keepdims=True), array_of(x) == array_of(x).max(1, keepdims=True)
        ).apply((x,))[0],
        lambda x: x.max(1, keepdims=True),
    ),
    Case(
        "local_contrast_normalization: a long window",
        (),
        lambda x: F.local_contrast_normalization(x, (5, 1)),
        lambda x: contrast(x, (5, 1)),
        (IMAGE,),
        halves=HALVES,
    ),
    Case(
        "local_contrast_normalization: of sequences",
        (),
        lambda x: F.local_contrast_normalization(x, 3),
        lambda x: contrast(x, (3,)),
        ((N, 2, 7),),
        halves=HALVES,
    ),
    Case(
        "pieces",
        (blocks.SplitPieces,),
        lambda x: blocks.SplitPieces([(slice(0, 2),), (slice(1, 3),)]).apply((x,)),
        lambda x: (x[..., :2], x[..., 1:3]),
        ((N, 2, 4),),
    ),
    Case(
        "together",
        (blocks.JoinPieces,),
        lambda x, y: blocks.JoinPieces([(slice(0, 2),), (slice(1, 3),)], (4,)).apply((x, y))[0],
        joined,
        ((N, 2), (N, 2)),
    ),
    Case(
        "together: side by side",
        (),
        lambda x, y: blocks.JoinPieces([(slice(0, 2),), (slice(2, 5),)], (5,), True).apply((x, y))[
            0
        ],
        lambda x, y: np.concatenate([x, y], axis=-1),
        ((N, 2), (N, 3)),
    ),
]
