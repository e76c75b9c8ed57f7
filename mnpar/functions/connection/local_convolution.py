"""Local (untied) convolution: its own filters at each position; its transpose, and the gradient of
its weights.

    y = x ∗ W        x = y ∗ᵀ W        gW = x ⋆ y

Each is the derivative of the two others, as in convolution.py. With l a place of the output, and
x(l) the window of x that belongs to it, each is one matrix product for each l:

    y(l) = W(l) x(l)        x(l): (C·k·k, N)
    x(l) += W(l)ᵀ y(l)      W(l): (K, C·k·k)
    gW(l) = y(l) x(l)ᵀ      y(l): (K, N)

They are made for some rows of places at a time, so that what the windows see stays in the cache;
and with the samples side by side in memory, so that a window is copied in long runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.function_node import InputGradients
from mnpar.functions.node import GenericFunction
from mnpar.kernels.dtypes import upcast_halves
from mnpar.kernels.sums import sum_over
from mnpar.kernels.windows import (
    Numbers,
    PerAxis,
    Windows,
    get_conv_outsize,
    get_deconv_outsize,
    numbers_per_axis,
)
from mnpar.variable import Variable, as_variable


class LocallyConvolving(GenericFunction):
    """The base of the three: x (N, C, H, W), W (K, OH, OW, C, kH, kW), y (N, K, OH, OW)."""

    def __init__(self, windows: Windows) -> None:
        self.windows = windows

    def blocks(self, like: Array, N: int, columns: int) -> Iterator[slice]:
        """Rows of places, so many at a time as fit a block with their windows' columns."""
        rows, width = self.windows.out
        step = max(1, backend.block_bytes(like) // max(1, width * N * columns * 8))
        return (slice(i, min(i + step, rows)) for i in range(0, rows, step))

    def seen(self, x: Array) -> Array:
        """A view (OH, OW, C, kH, kW, N): what the window at each place sees, samples side by side
        in memory.
        """
        # (C, H, W, N)
        last = backend.get_array_module(x).ascontiguousarray(upcast_halves(x).transpose(1, 2, 3, 0))
        return self.windows.columns(last.transpose(3, 0, 1, 2)).transpose(4, 5, 0, 1, 2, 3)

    def values(self, y: Array) -> Array:
        """y as an array (OH, OW, K, N)."""
        return backend.get_array_module(y).ascontiguousarray(upcast_halves(y).transpose(2, 3, 1, 0))

    def matrices(self, W: Array) -> Array:
        """W as a view (OH, OW, K, C·kH·kW)."""
        return upcast_halves(W).reshape(*W.shape[:3], math.prod(W.shape[3:])).transpose(1, 2, 0, 3)


class LocalConvolution(LocallyConvolving):
    """y = x ∗ W + b."""

    def forward(self, x: Array, W: Array, b: Array | None = None) -> Array:
        self.retain_inputs((0, 1))
        xp = backend.get_array_module(x)
        N = len(x)
        K = len(W)
        D = math.prod(W.shape[3:])
        out = self.windows.out
        seen = self.seen(x)
        matrices = self.matrices(W)
        values = xp.empty((*out, K, N), np.result_type(seen, matrices))
        for rows in self.blocks(x, N, D):
            part = seen[rows]
            xp.matmul(matrices[rows], part.reshape(*part.shape[:2], D, N), out=values[rows])
        y = xp.empty((N, K, *out), np.result_type(x, W))
        y[...] = values.transpose(3, 2, 0, 1)
        if b is not None:
            y += b
        return y

    def backward(self, gy: Variable | Array) -> InputGradients:
        x, W = self.get_retained_inputs()
        gx = lambda: LocalDeconvolution(self.windows)(gy, W)
        gW = lambda: LocalWeightGradient(self.windows)(x, gy)
        return (gx, gW, lambda: sum_over(gy, 0)) if len(self.inputs) == 3 else (gx, gW)


class LocalDeconvolution(LocallyConvolving):
    """x = y ∗ᵀ W + b: each place adds what it has, by its own filters, to the window that it
    belongs to.
    """

    def forward(self, y: Array, W: Array, b: Array | None = None) -> Array:
        self.retain_inputs((0, 1))
        xp, N, (C, *kernel) = backend.get_array_module(y), len(y), W.shape[3:]
        # (OH, OW, D, K)
        values = self.values(y)
        matrices = self.matrices(W).swapaxes(2, 3)
        total = xp.zeros((C, *self.windows.size, N), np.result_type(values, matrices))
        for rows in self.blocks(y, N, C * math.prod(kernel)):
            columns = matrices[rows] @ values[rows]  # (r, OW, D, N)
            self._add(total, rows, columns.reshape(*columns.shape[:2], C, *kernel, N))
        x = xp.empty((N, C, *self.windows.size), np.result_type(y, W))
        x[...] = total.transpose(3, 0, 1, 2)
        if b is not None:
            x += b
        return x

    def _add(self, x: Array, rows: slice, columns: Array) -> None:
        """Add columns (r, OW, C, kH, kW, N) of some rows of places to the cells (C, H, W, N) that
        these see.
        """
        (sh, sw), width = self.windows.stride, self.windows.out[1]
        for i, j in np.ndindex(*self.windows.K) if width else ():
            high = slice(rows.start * sh + i, (rows.stop - 1) * sh + i + 1, sh)
            across = slice(j, (width - 1) * sw + j + 1, sw)
            x[:, high, across] += columns[:, :, :, i, j].transpose(2, 0, 1, 3)

    def backward(self, gx: Variable | Array) -> InputGradients:
        y, W = self.get_retained_inputs()
        gy = lambda: LocalConvolution(self.windows)(gx, W)
        gW = lambda: LocalWeightGradient(self.windows)(gx, y)
        return (gy, gW, lambda: sum_over(gx, 0)) if len(self.inputs) == 3 else (gy, gW)


class LocalWeightGradient(LocallyConvolving):
    """gW = x ⋆ y: for each weight, the sum over samples of what it met."""

    def forward(self, x: Array, y: Array) -> Array:
        self.retain_inputs((0, 1))
        xp, (N, C), (K, *out) = backend.get_array_module(x), x.shape[:2], y.shape[1:]
        D = C * math.prod(self.windows.K)
        gW = xp.empty((K, *out, D), np.result_type(x, y))
        seen = self.seen(x)
        values = self.values(y)
        for rows in self.blocks(x, N, D):
            part = seen[rows]
            # (r, OW, K, D)
            product = values[rows] @ part.reshape(*part.shape[:2], D, N).swapaxes(2, 3)
            gW[:, rows] = product.transpose(2, 0, 1, 3)
        return gW.reshape(K, *out, C, *self.windows.K)

    def backward(self, gW: Variable | Array) -> InputGradients:
        x, y = self.get_retained_inputs()
        return (
            lambda: LocalDeconvolution(self.windows)(y, gW),
            lambda: LocalConvolution(self.windows)(x, gW),
        )


def local_windows(who: str, size: Numbers, ksize: Numbers, stride: PerAxis) -> Windows:
    """The windows of an image, of which there may be none at all: a rank may have no place."""
    stride = numbers_per_axis(f"{who}: stride", stride, 2, 1)
    out = tuple(
        [max(0, get_conv_outsize(n, k, s, 0)) for n, k, s in zip(size, ksize, stride, strict=True)]
    )
    return Windows(size, ksize, stride, (0, 0), (1, 1), out)


def local_convolution_2d(
    x: Variable | Array, W: Variable | Array, b: Variable | Array | None = None, stride: PerAxis = 1
) -> Variable:
    """A convolution with its own filters and biases at each position of the output.

    Args:
        x: (N, C, H, W).
        W: (K, OH, OW, C, kH, kW): K filters for each place.
        b: (K, OH, OW), or None.
        stride: of the windows: a number, or one for each axis.

    Returns:
        (N, K, OH, OW), with OH = ⌊(H − kH) / stride⌋ + 1.

    Raises:
        ValueError: the shapes do not belong together.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> x, W = (
        ...     np.ones((1, 1, 2, 3)),
        ...     np.arange(2.0).reshape(1, 1, 2, 1, 1, 1) + np.ones((1, 1, 2, 1, 2, 2)),
        ... )
        >>> F.local_convolution_2d(x, W).array
        array([[[[4., 8.]]]])
    """
    x = as_variable(x)
    W = as_variable(W)
    if x.ndim != 4 or W.ndim != 6 or x.shape[1] != W.shape[3]:
        raise ValueError(
            f"local_convolution_2d: x {x.shape} must be (N, C, H, W) and W {W.shape} (K, OH, "
            "OW, C, kH, kW), with one C"
        )
    windows = local_windows("local_convolution_2d", x.shape[2:], W.shape[4:], stride)
    if windows.out != W.shape[1:3]:
        raise ValueError(
            f"local_convolution_2d: x {x.shape} has {windows.out} windows of {windows.K}, but "
            f"W {W.shape} is for {W.shape[1:3]}"
        )
    _check_bias("local_convolution_2d", b, W.shape[:3])
    return LocalConvolution(windows).apply((x, W) if b is None else (x, W, b))[0]


def local_deconvolution_2d(
    x: Variable | Array,
    W: Variable | Array,
    b: Variable | Array | None = None,
    stride: PerAxis = 1,
    outsize: PerAxis | None = None,
) -> Variable:
    """The transpose of :func:`local_convolution_2d`: each place adds its values, by its own
    filters, to its window.

    Args:
        x: (N, K, OH, OW).
        W: (K, OH, OW, C, kH, kW), as of the convolution.
        b: (C, H, W), or None.
        stride: of the convolution.
        outsize: (H, W), where several sizes have so many windows; None: the smallest.

    Returns:
        (N, C, H, W).

    Raises:
        ValueError: the shapes do not belong together.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.local_deconvolution_2d(np.array([[[[1.0, 10.0]]]]), np.ones((1, 1, 2, 1, 1, 2))).array
        array([[[[ 1., 11., 10.]]]])
    """
    x = as_variable(x)
    W = as_variable(W)
    if x.ndim != 4 or W.ndim != 6 or x.shape[1:] != W.shape[:3]:
        raise ValueError(
            f"local_deconvolution_2d: x {x.shape} must be (N, K, OH, OW), as W {W.shape} "
            "begins: (K, OH, OW, C, kH, kW)"
        )
    steps = numbers_per_axis("local_deconvolution_2d: stride", stride, 2, 1)
    size = tuple(
        [
            get_deconv_outsize(n, k, s, 0)
            for n, k, s in zip(x.shape[2:], W.shape[4:], steps, strict=True)
        ]
    )
    if outsize is not None:
        size = numbers_per_axis("local_deconvolution_2d: outsize", outsize, 2, 0)
    windows = local_windows("local_deconvolution_2d", size, W.shape[4:], steps)
    if windows.out != x.shape[2:]:
        raise ValueError(
            f"local_deconvolution_2d: an image of {size} (outsize) has {windows.out} windows, "
            f"not x's {x.shape[2:]}"
        )
    _check_bias("local_deconvolution_2d", b, (W.shape[3], *size))
    return LocalDeconvolution(windows).apply((x, W) if b is None else (x, W, b))[0]


def _check_bias(who: str, b: Variable | Array | None, shape: tuple[int, ...]) -> None:
    if b is not None and b.shape != shape:
        raise ValueError(
            f"{who}: b of shape {b.shape} must have shape {shape}, one number for each place "
            "and channel"
        )
