"""Depthwise convolutions, of each channel by itself, on images whose channels come last.

There is no product of matrices in them: a number is used as often as the kernel has cells. Loops
hold a register of channels while they go over these, so that each array passes through memory once.
"""

from __future__ import annotations

import numpy as np

from mnpar.backend import Array
from mnpar.kernels.compiler import Array4, Cube, Vector, compiled
from mnpar.kernels.lanes import LANES, fill, load, store
from mnpar.kernels.windows import Windows


@compiled
def _convolve(
    x: Array4,
    W: Cube,
    bias: Vector,
    sh: int,
    sw: int,
    ph: int,
    pw: int,
    dh: int,
    dw: int,
    y: Array4,
) -> None:
    N, H, WX, C = x.shape
    kh, kw = W.shape[:2]
    OH, OW = y.shape[1:3]
    for p in range(N * OH * OW):
        left = p % OW * sw - pw
        top = p // OW % OH * sh - ph
        n = p // (OW * OH)
        for k in range((C + LANES - 1) // LANES):
            c = min(k * LANES, C - LANES)
            total = load(bias, c)
            for i in range(kh):
                h = top + i * dh
                if h < 0 or h >= H:
                    continue
                for j in range(kw):
                    w = left + j * dw
                    if 0 <= w < WX:
                        cell = load(x, ((n * H + h) * WX + w) * C + c)
                        total = total + cell * load(W, (i * kw + j) * C + c)
            store(y, p * C + c, total)


@compiled
def _transpose(
    y: Array4,
    W: Cube,
    sh: int,
    sw: int,
    ph: int,
    pw: int,
    dh: int,
    dw: int,
    x: Array4,
) -> None:
    N, H, WX, C = x.shape
    kh, kw = W.shape[:2]
    OH, OW = y.shape[1:3]
    for p in range(N * H * WX):
        left = p % WX + pw
        top = p // WX % H + ph
        n = p // (WX * H)
        for k in range((C + LANES - 1) // LANES):
            c = min(k * LANES, C - LANES)
            total = fill(x.dtype.type(0))
            for i in range(kh):
                h = top - i * dh
                if h < 0 or h % sh or h // sh >= OH:
                    continue
                for j in range(kw):
                    w = left - j * dw
                    if w >= 0 and w % sw == 0 and w // sw < OW:
                        cell = load(y, ((n * OH + h // sh) * OW + w // sw) * C + c)
                        total = total + cell * load(W, (i * kw + j) * C + c)
            store(x, p * C + c, total)


@compiled
def _gradient(
    x: Array4,
    y: Array4,
    sh: int,
    sw: int,
    ph: int,
    pw: int,
    dh: int,
    dw: int,
    gW: Cube,
) -> None:
    """Sums of rows, then of samples, then of all: so few digits are lost."""
    N, H, WX, C = x.shape
    kh, kw = gW.shape[:2]
    OH, OW = y.shape[1:3]
    size = kh * kw * C
    of_sample = np.empty(size, x.dtype)
    flat = gW.reshape(size)
    flat[:] = 0.0
    for n in range(N):
        of_sample[:] = 0.0
        for oh in range(OH):
            for i in range(kh):
                h = oh * sh - ph + i * dh
                if h < 0 or h >= H:
                    continue
                for j in range(kw):
                    for k in range((C + LANES - 1) // LANES):
                        c = min(k * LANES, C - LANES)
                        total = fill(x.dtype.type(0))
                        for ow in range(OW):
                            w = ow * sw - pw + j * dw
                            if 0 <= w < WX:
                                cell = load(x, ((n * H + h) * WX + w) * C + c)
                                total = total + cell * load(y, ((n * OH + oh) * OW + ow) * C + c)
                        o = (i * kw + j) * C
                        # the last register may overlap the one before: what it adds is new
                        new = k * LANES - c
                        if new == 0:
                            store(of_sample, o + c, load(of_sample, o + c) + total)
                        else:
                            kept = np.empty(LANES, x.dtype)
                            store(kept, 0, total)
                            for lane in range(new, LANES):
                                of_sample[o + c + lane] += kept[lane]
        for i in range(size):
            flat[i] += of_sample[i]


def _numbers(windows: Windows) -> tuple[int, ...]:
    return (*windows.stride, *windows.pad, *windows.dilate)


def _cells(W: Array) -> Array:
    """Filters (C, 1, kh, kw) as (kh, kw, C)."""
    return np.ascontiguousarray(W[:, 0].transpose(1, 2, 0))


def convolve(x: Array, W: Array, bias: Array, windows: Windows, y: Array) -> None:
    """y = x ∗ W + b of (N, H, W, C) and (C, 1, kh, kw), into y (N, OH, OW, C)."""
    _convolve(x, _cells(W), bias, *_numbers(windows), y)


def transpose(y: Array, W: Array, windows: Windows, x: Array) -> None:
    """x = y ∗ᵀ W, into x (N, H, W, C)."""
    _transpose(y, _cells(W), *_numbers(windows), x)


def gradient(x: Array, y: Array, windows: Windows) -> Array:
    """The gradient of filters (C, 1, kh, kw)."""
    gW = np.empty((*windows.K, x.shape[3]), x.dtype)
    _gradient(x, y, *_numbers(windows), gW)
    return gW.transpose(2, 0, 1)[:, None]
