"""Rows of local convolution and its transpose, each against loops over places."""

from __future__ import annotations

import numpy as np

import mnpar.functions as F
from mnpar.functions.connection import local_convolution
from tests.functions.cases.case import Case, N

HALVES = 2e-2


def places(W, stride):
    """For each place of the output: its index, the slices of its window, and its filters (K, C, kH,
    kW).
    """
    sh, sw = stride
    for i, j in np.ndindex(*W.shape[1:3]):
        yield (
            (i, j),
            (slice(i * sh, i * sh + W.shape[4]), slice(j * sw, j * sw + W.shape[5])),
            W[:, i, j],
        )


def convolve(x, W, b=None, stride=(1, 1)):
    y = np.zeros((len(x), *W.shape[:3]))
    for (i, j), window, filters in places(W, stride):
        y[:, :, i, j] = np.einsum("nchw,kchw->nk", x[(..., *window)], filters)
    return y if b is None else y + b


def deconvolve(y, W, size, b=None, stride=(1, 1)):
    x = np.zeros((len(y), W.shape[3], *size))
    for (i, j), window, filters in places(W, stride):
        x[(..., *window)] += np.einsum("nk,kchw->nchw", y[:, :, i, j], filters)
    return x if b is None else x + b


CASES = [
    Case(
        "local_convolution_2d",
        (
            local_convolution.LocalConvolution,
            local_convolution.LocalDeconvolution,
            local_convolution.LocalWeightGradient,
        ),
        F.local_convolution_2d,
        convolve,
        ((N, 2, 4, 3), (3, 2, 2, 2, 3, 2), (3, 2, 2)),
        halves=HALVES,
    ),
    Case(
        "local_convolution_2d: stride, no bias, cells that no window sees",
        (),
        lambda x, W: F.local_convolution_2d(x, W, stride=(2, 3)),
        lambda x, W: convolve(x, W, stride=(2, 3)),
        ((N, 1, 6, 6), (2, 3, 2, 1, 2, 2)),
        halves=HALVES,
    ),
    Case(
        "local_deconvolution_2d",
        (),
        F.local_deconvolution_2d,
        lambda y, W, b: deconvolve(y, W, (4, 3), b),
        ((N, 3, 2, 2), (3, 2, 2, 2, 3, 2), (2, 4, 3)),
        halves=HALVES,
    ),
    Case(
        "local_deconvolution_2d: stride, outsize",
        (),
        lambda y, W: F.local_deconvolution_2d(y, W, stride=2, outsize=(6, 5)),
        lambda y, W: deconvolve(y, W, (6, 5), stride=(2, 2)),
        ((N, 2, 2, 2), (2, 2, 2, 1, 3, 2)),
        halves=HALVES,
    ),
    Case(
        "local_convolution_2d: no places at all",
        (),
        F.local_convolution_2d,
        lambda x, W: np.zeros((len(x), 2, 0, 3)),
        ((N, 1, 0, 5), (2, 0, 3, 1, 2, 3)),
    ),
    Case(
        "local_deconvolution_2d: no places at all",
        (),
        lambda y, W: F.local_deconvolution_2d(y, W, outsize=(1, 5)),
        lambda y, W: np.zeros((len(y), 1, 1, 5)),
        ((N, 2, 0, 3), (2, 0, 3, 1, 2, 3)),
    ),
]
