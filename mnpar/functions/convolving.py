"""Convolution, its transpose, and the gradient of its weights: three functions, each the derivative
of the two others.

    y = x ∗ W        x = y ∗ᵀ W        gW = x ⋆ y
    ∂y/∂x: ∗ᵀ        ∂x/∂y: ∗          ∂gW/∂x: ∗ᵀ
    ∂y/∂W: ⋆         ∂x/∂W: ⋆          ∂gW/∂y: ∗

Each is one matrix product for each block of samples, whose windows are laid out as columns (C·K,
n·O) in a buffer that stays in the cache (blocks.py; Chellapilla, Puri and Simard 2006, "High
performance convolutional neural networks for document processing"). Groups are a batch of such
products. 3 x 3 filters of many channels at stride 1 need fewer products: winograd.py.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.function_node import FunctionNode
from mnpar.functions import winograd
from mnpar.functions.blocks import Blocks, in_turn
from mnpar.functions.generic import either
from mnpar.functions.rows import sum_over
from mnpar.functions.windows import Numbers, Windows


class Convolving(FunctionNode):
    """What the three share: x (N, C, *size), W (K, C / groups, *kernel), y (N, K, *out)."""

    generic = True

    def __init__(self, windows: Windows, groups: int) -> None:
        self.windows, self.groups = windows, groups

    def by_tiles(self, x: Array, W: Numbers) -> bool:
        """Whether Winograd's method is the faster one, for filters of shape ``W``."""
        filters = (W[0] // self.groups, *W[1:])
        gradient = isinstance(self, WeightGradient)
        return x.dtype.kind in "fc" and winograd.pays(self.windows, x.shape[0], filters, gradient)

    def weights(self, W: Array, dtype: Any) -> Array:
        """W as matrices (groups, K / groups, C / groups · kernel)."""
        return W.reshape(self.groups, W.shape[0] // self.groups, -1).astype(dtype, copy=False)


def _computed(*arrays: Array) -> Any:
    """The dtype in which products are made: halves in 32 bits."""
    dtype = np.result_type(*[x.dtype for x in arrays])
    return np.dtype("f4") if dtype.char == "e" else dtype


def _plus(b: Array | None, y: Array) -> Array:
    """y, with b (C,) added in place."""
    if b is not None:
        y += b.reshape(-1, *[1] * (y.ndim - 2))
    return y


class Convolution(Convolving):
    """y = x ∗ W + b."""

    def forward(self, x: Array, W: Array, b: Array | None = None) -> Array:
        self.retain_inputs((0, 1))
        xp = backend.get_array_module(x)
        dtype = _computed(x, W)
        if 0 in W.shape:  # a rank's part of a divided layer may have no channels, or no filters
            return _plus(
                b, xp.zeros((x.shape[0], W.shape[0], *self.windows.out), np.result_type(x, W))
            )
        if self.by_tiles(x, W.shape):
            return _plus(b, winograd.convolve(x, W, self.windows, self.groups, dtype)).astype(
                np.result_type(x, W), copy=False
            )
        y = xp.empty((x.shape[0], W.shape[0], *self.windows.out), np.result_type(x, W))
        matrix = self.weights(W, dtype)
        blocks = Blocks(self.windows, self.groups, x.shape[1], dtype, x, matrix.nbytes)
        for block, columns in blocks.columns(x):
            part = y[block]
            shape = (self.groups, W.shape[0] // self.groups, columns.shape[2])
            if len(part) == 1 and part.dtype == dtype:
                xp.matmul(matrix, columns, out=part.reshape(shape))
            else:
                blocks.put(
                    part, xp.matmul(matrix, columns, out=blocks.buffers.get("products", shape))
                )
            _plus(b, part)
        return y

    def backward(self, gy: Any) -> Any:
        x, W = self.get_retained_inputs()
        gx = lambda: either(Deconvolution(self.windows, self.groups), gy, W)
        gW = lambda: weight_gradient(self, self.windows, self.groups, W, x, gy)
        return (
            (gx, gW, lambda: sum_over(gy, (0, *range(2, gy.ndim))))
            if len(self.inputs) == 3
            else (gx, gW)
        )


class Deconvolution(Convolving):
    """x = y ∗ᵀ W + b: what each window saw gets back what it gave."""

    def forward(self, y: Array, W: Array, b: Array | None = None) -> Array:
        self.retain_inputs((0, 1))
        xp = backend.get_array_module(y)
        dtype = _computed(y, W)
        if 0 in W.shape:
            return _plus(
                b,
                xp.zeros(
                    (y.shape[0], W.shape[1] * self.groups, *self.windows.size), np.result_type(y, W)
                ),
            )
        if self.windows.reversible and self._turns(y, W):
            return self._by_convolution(y, W, b)
        N = y.shape[0]
        C = W.shape[1] * self.groups
        x = xp.empty((N, C, *self.windows.size), np.result_type(y, W))
        matrix = self.weights(W, dtype).swapaxes(1, 2)
        blocks = Blocks(self.windows, self.groups, C, dtype, y, matrix.nbytes)
        for block in in_turn(blocks.pieces):
            rows = blocks.rows(y[block])
            columns = blocks.buffers.get("products", (self.groups, matrix.shape[1], rows.shape[2]))
            x[block] = blocks.add(xp.matmul(matrix, rows, out=columns))
        return _plus(b, x)

    def _turns(self, y: Array, W: Array) -> bool:
        """Whether turning the filters is less work than adding up windows: few of them, and not too
        many channels of y.
        """
        windows = y.shape[0] * math.prod(self.windows.out)
        return bool(W.shape[0] <= min(2 * W.shape[1] * self.groups, windows))

    def _by_convolution(self, y: Array, W: Array, b: Array | None) -> Array:
        """At stride 1 it is a convolution too, by turned filters: that needs no adding up of
        windows.
        """
        g = self.groups
        n = len(self.windows.K)
        windows = self.windows.reversed()
        if y.dtype.kind in "fc" and winograd.pays(
            windows, len(y), (W.shape[1], W.shape[0] // g, *W.shape[2:])
        ):
            dtype = np.result_type(y, W)
            return _plus(
                b, winograd.convolve(y, W, windows, g, _computed(y, W), turned=True)
            ).astype(dtype, copy=False)
        # (groups, C / groups, K / groups, *kernel)
        parts = W.reshape(g, W.shape[0] // g, *W.shape[1:]).swapaxes(1, 2)
        turned = (
            backend.get_array_module(W)
            .flip(parts, tuple(range(3, 3 + n)))
            .reshape(-1, W.shape[0] // g, *W.shape[2:])
        )
        return Convolution(windows, g).forward(y, turned, b)

    def backward(self, gx: Any) -> Any:
        y, W = self.get_retained_inputs()
        gy = lambda: either(Convolution(self.windows, self.groups), gx, W)
        gW = lambda: weight_gradient(self, self.windows, self.groups, W, gx, y)
        return (
            (gy, gW, lambda: sum_over(gx, (0, *range(2, gx.ndim))))
            if len(self.inputs) == 3
            else (gy, gW)
        )


class WeightGradient(Convolving):
    """gW = x ⋆ y: for each weight, the sum over samples and windows of what it met; in the array
    ``into`` if there is one.
    """

    def __init__(
        self, windows: Windows, groups: int, shape: Numbers, into: Array | None = None
    ) -> None:
        super().__init__(windows, groups)
        self.shape, self.into = shape, into

    def forward(self, x: Array, y: Array) -> Array:
        self.retain_inputs((0, 1))
        xp = backend.get_array_module(x)
        dtype = _computed(x, y)
        gW = xp.empty(self.shape, np.result_type(x, y)) if self.into is None else self.into
        self.into = None
        if gW.size and self.by_tiles(x, self.shape):
            winograd.gradient(x, y, self.windows, self.groups, gW, dtype)
        elif gW.size:
            self._by_columns(x, y, gW.reshape(self.groups, self.shape[0] // self.groups, -1), dtype)
        return gW

    def _by_columns(self, x: Array, y: Array, matrix: Array, dtype: Any) -> None:
        """The products of all blocks, added up in ``matrix``: in place, but where it is small. The
        turned product is faster then, and to turn its sum back takes no time.
        """
        xp = backend.get_array_module(x)
        turned = matrix.nbytes < backend.block_bytes(x) // 4
        blocks = Blocks(self.windows, self.groups, x.shape[1], dtype, x, matrix.nbytes)
        total = None
        own = matrix if not turned and matrix.dtype == dtype else None
        for block, columns in blocks.columns(x):
            left, right = (
                (columns, blocks.rows(y[block])) if turned else (blocks.rows(y[block]), columns)
            )
            if total is None:
                total = xp.matmul(left, right.swapaxes(1, 2), out=own)
            else:
                total += xp.matmul(
                    left, right.swapaxes(1, 2), out=blocks.buffers.get("sum", total.shape)
                )
        if total is None:
            matrix[...] = 0
        elif own is None:
            matrix[...] = total.swapaxes(1, 2) if turned else total

    def backward(self, gW: Any) -> Any:
        x, y = self.get_retained_inputs()
        return (
            lambda: either(Deconvolution(self.windows, self.groups), y, gW),
            lambda: either(Convolution(self.windows, self.groups), x, gW),
        )


def weight_gradient(
    function: FunctionNode, windows: Windows, groups: int, W: Any, x: Any, y: Any
) -> Any:
    """x ⋆ y as the gradient of W, the second input of ``function``: right where that is kept, if it
    can be.
    """
    out = function.gradient_out(1, W) if x.dtype == y.dtype == W.dtype else None
    return either(WeightGradient(windows, groups, W.shape, out), x, y)
