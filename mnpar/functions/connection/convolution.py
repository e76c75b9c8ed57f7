"""Convolution, its transpose, and the gradient of its weights: three functions, each the derivative
of the two others; and the convolutions under Chainer's names that are made of them.

    y = x ∗ W        x = y ∗ᵀ W        gW = x ⋆ y
    ∂y/∂x: ∗ᵀ        ∂x/∂y: ∗          ∂gW/∂x: ∗ᵀ
    ∂y/∂W: ⋆         ∂x/∂W: ⋆          ∂gW/∂y: ∗

Each is one matrix product for each block of samples, whose windows are laid out as columns (C·K,
n·O) in a buffer that stays in the cache (kernels/columns.py; Chellapilla, Puri and Simard 2006,
"High performance convolutional neural networks for document processing"). Groups are a batch of
such products. 3 x 3 filters of many channels at stride 1 need fewer products (kernels/winograd.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from mnpar import backend
from mnpar.backend import Array
from mnpar.function_node import FunctionNode, InputGradients
from mnpar.functions.array.get_item import ScatterAdd
from mnpar.functions.array.pad import REPEATING, Pad
from mnpar.functions.node import GenericFunction, any_axes, for_axes, show_shapes
from mnpar.kernels import convolution as loops, winograd
from mnpar.kernels.columns import Blocks, advance_between
from mnpar.kernels.sums import sum_over
from mnpar.kernels.windows import Numbers, PerAxis, Windows, axes_hint
from mnpar.plans import Window
from mnpar.variable import Variable, as_variable


class Convolving(GenericFunction):
    """The base of the three: x (N, C, *size), W (K, C / groups, *kernel), y (N, K, *out)."""

    multilinear = True

    def __init__(self, windows: Windows, groups: int) -> None:
        self.windows, self.groups = windows, groups

    def by_tiles(self, x: Array, W: Numbers) -> bool:
        """Return whether Winograd's method is the faster one, for filters of shape ``W``."""
        filters = (W[0] // self.groups, *W[1:])
        gradient = isinstance(self, WeightGradient)
        return x.dtype.kind in "fc" and winograd.is_faster(
            self.windows, x.shape[0], filters, gradient
        )

    def weights(self, W: Array, dtype: DTypeLike) -> Array:
        """W as matrices (groups, K / groups, C / groups · kernel)."""
        return W.reshape(self.groups, W.shape[0] // self.groups, -1).astype(dtype, copy=False)


def _computed(*arrays: Array) -> np.dtype[Any]:
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

    summands = slice(2, None)

    def forward(self, x: Array, W: Array, b: Array | None = None) -> Array:
        self.retain_inputs((0, 1))
        xp = backend.get_array_module(x)
        dtype = _computed(x, W)
        if 0 in W.shape:  # a rank's part of a divided layer may have no channels, or no filters
            return _plus(
                b, xp.zeros((x.shape[0], W.shape[0], *self.windows.out), np.result_type(x, W))
            )
        if (found := loops.convolve(x, W, b, self.windows, self.groups)) is not None:
            return found
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

    def backward(self, gy: Variable | Array) -> InputGradients:
        x, W = self.get_retained_inputs()
        gx = lambda: Deconvolution(self.windows, self.groups)(gy, W)
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
        if (found := loops.transpose(y, W, b, self.windows, self.groups)) is not None:
            return found
        if self.windows.is_reversible and self._turns(y, W):
            return self._by_convolution(y, W, b)
        N = y.shape[0]
        C = W.shape[1] * self.groups
        x = xp.empty((N, C, *self.windows.size), np.result_type(y, W))
        matrix = self.weights(W, dtype).swapaxes(1, 2)
        blocks = Blocks(self.windows, self.groups, C, dtype, y, matrix.nbytes)
        for block in advance_between(blocks.pieces):
            rows = blocks.rows(y[block])
            columns = blocks.buffers.get("products", (self.groups, matrix.shape[1], rows.shape[2]))
            x[block] = blocks.add(xp.matmul(matrix, rows, out=columns))
        return _plus(b, x)

    def _turns(self, y: Array, W: Array) -> bool:
        """Return whether turning the filters is less work than adding up windows: few of them, and
        not too many channels of y.
        """
        windows = y.shape[0] * math.prod(self.windows.out)
        return bool(W.shape[0] <= min(2 * W.shape[1] * self.groups, windows))

    def _by_convolution(self, y: Array, W: Array, b: Array | None) -> Array:
        """At stride 1 it is a convolution too, by turned filters: that needs no adding up of
        windows.
        """
        g = self.groups
        n = len(self.windows.K)
        windows = self.windows.reversed
        if y.dtype.kind in "fc" and winograd.is_faster(
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

    def backward(self, gx: Variable | Array) -> InputGradients:
        y, W = self.get_retained_inputs()
        gy = lambda: Convolution(self.windows, self.groups)(gx, W)
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
        if loops.gradient(x, y, self.windows, self.groups, gW):
            return gW
        if gW.size and self.by_tiles(x, self.shape):
            winograd.gradient(x, y, self.windows, self.groups, gW, dtype)
        elif gW.size:
            self._by_columns(x, y, gW.reshape(self.groups, self.shape[0] // self.groups, -1), dtype)
        return gW

    def _by_columns(self, x: Array, y: Array, matrix: Array, dtype: DTypeLike) -> None:
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

    def backward(self, gW: Variable | Array) -> InputGradients:
        x, y = self.get_retained_inputs()
        return (
            lambda: Deconvolution(self.windows, self.groups)(y, gW),
            lambda: Convolution(self.windows, self.groups)(x, gW),
        )


def weight_gradient(
    function: FunctionNode,
    windows: Windows,
    groups: int,
    W: Variable | Array,
    x: Variable | Array,
    y: Variable | Array,
) -> Any:
    """x ⋆ y as the gradient of W, the second input of ``function``: right where that is kept, if it
    can be.
    """
    out = function.gradient_out(1, W) if x.dtype == y.dtype == W.dtype else None
    return WeightGradient(windows, groups, W.shape, out)(x, y)


class PaddedConvolution(Convolving):
    """y = p(x) ∗ W + b, where p pads images by their own cells, or by more zeros at one end of an
    axis than at the other.

    Args:
        windows: over the padded image.
        groups: of channels.
        window: over the image, with the widths of the padding.
        modes: of the padding, for each spatial axis.
    """

    summands = slice(2, None)

    def __init__(
        self, windows: Windows, groups: int, window: Window, modes: tuple[str, ...]
    ) -> None:
        super().__init__(windows, groups)
        self.window, self.modes = window, modes

    def forward(self, x: Array, W: Array, b: Array | None = None) -> Array:
        self.retain_inputs((0, 1))
        return Convolution(self.windows, self.groups).forward(self._padded(x), W, b)

    @cached_property
    def _zeros(self) -> list[tuple[int, int]]:
        """How many zeros are added at both ends of each axis."""
        pairs = zip(self.modes, self.window.pad, strict=True)
        return [(0, 0), (0, 0), *[pad if mode == "constant" else (0, 0) for mode, pad in pairs]]

    @cached_property
    def _own(self) -> list[tuple[int, tuple[int, int], str]]:
        """The axes that are padded by their own cells: widths and modes."""
        trio = enumerate(zip(self.window.pad, self.modes, strict=True), 2)
        return [(axis, pad, mode) for axis, (pad, mode) in trio if mode != "constant" and any(pad)]

    def _padded(self, x: Any) -> Any:
        """p(x)."""
        if any(map(any, self._zeros)):
            x = Pad(self._zeros, [(0, 0)] * x.ndim)(x)
        for axis, pad, mode in self._own:
            x = x[_along(axis, pad, x.shape[axis], mode, x)]
        return x

    def _unpadded(self, g: Any, shape: Numbers) -> Any:
        """Its adjoint: what p(x) gets is added up where it came from."""
        for axis, pad, mode in reversed(self._own):
            to = (*g.shape[:axis], shape[axis], *g.shape[axis + 1 :])
            g = ScatterAdd(_along(axis, pad, shape[axis], mode, g), to)(g)
        inside = [slice(low, low + n) for (low, _), n in zip(self._zeros, shape, strict=True)]
        return g[tuple(inside)] if g.shape != shape else g

    def backward(self, gy: Variable | Array) -> InputGradients:
        x, W = self.get_retained_inputs()
        windows, groups = self.windows, self.groups
        gx = lambda: self._unpadded(Deconvolution(windows, groups)(gy, W), x.shape)
        gW = lambda: weight_gradient(self, windows, groups, W, self._padded(x), gy)
        gb = lambda: sum_over(gy, (0, *range(2, gy.ndim)))
        return (gx, gW, gb)[: len(self.inputs)]


def _along(axis: int, pads: tuple[int, int], size: int, mode: Any, like: Any) -> tuple[Any, ...]:
    """Return the index that pads an axis of ``size`` by its own cells, where ``like`` is."""
    places = np.pad(np.arange(size), pads, mode)
    return (*[slice(None)] * axis, backend.get_array_module(like).asarray(places))


def _modes(who: str, ndim: int, mode: Any, cover_all: bool) -> tuple[str, ...]:
    """Return how each axis is padded.

    Raises:
        ValueError: there are not so many modes, no such one, or one beside cover_all.
    """
    modes = (mode,) * ndim if isinstance(mode, str) else tuple(mode)
    if len(modes) != ndim or [m for m in modes if m not in ("constant", *REPEATING)]:
        raise ValueError(
            f"{who}: mode = {mode!r}: 'constant', {', '.join(map(repr, REPEATING))}, for all "
            f"{ndim} axes or one for each"
        )
    if cover_all and modes != ("constant",) * ndim:
        raise ValueError(
            f"{who}: beyond the padding by mode {mode!r} there is nothing that cover_all could "
            "cover: pad more at the end, with pairs (before, after)"
        )
    return modes


def check_filters(
    who: str,
    x: Variable,
    W: Variable,
    b: Variable | Array | None,
    groups: int,
    ndim: int | None,
    *,
    transposed: bool = False,
) -> int:
    """The number of spatial axes; raises ValueError if x, W and b do not belong together, or the
    axes are not ``ndim``.
    """
    n: int = x.ndim - 2
    if ndim is not None and n != ndim:
        raise ValueError(
            f"{who}: x of shape {x.shape} must have {ndim + 2} axes: (N, C, "
            f"…){axes_hint(x.shape, ndim)}"
        )
    if n < 1 or W.ndim != x.ndim:
        raise ValueError(
            f"{who}: x (N, C, …) and W (K, C, …) have the same number of axes, 3 or more, not "
            f"{show_shapes((x.shape, W.shape))}"
            f"{axes_hint(x.shape, W.ndim - 2)}"
        )
    if groups < 1 or W.shape[0] % groups:
        raise ValueError(f"{who}: W of shape {W.shape} cannot be divided into {groups} groups")
    inputs = W.shape[1] * groups
    outputs = W.shape[0]
    if transposed:
        inputs, outputs = outputs, inputs
    if x.shape[1] != inputs:
        last = (
            "; where channels come last, F.moveaxis(x, -1, 1) makes them second"
            if x.shape[-1] == inputs
            else ""
        )
        raise ValueError(
            f"{who}: x of shape {x.shape} has {x.shape[1]} channels, but W {W.shape} in "
            f"{groups} groups is for {inputs}{last}"
        )
    if b is not None and b.shape != (outputs,):
        raise ValueError(
            f"{who}: b of shape {b.shape} must have shape {(outputs,)}, one for each output channel"
        )
    return n


def has_pairs(pad: Any) -> bool:
    """Return whether a pad is a pair (before, after) for some axis."""
    return isinstance(pad, tuple | list) and any([isinstance(p, tuple | list) for p in pad])


@any_axes
def convolution_nd(
    who: str,
    ndim: int | None,
    x: Variable | Array,
    W: Variable | Array,
    b: Variable | Array | None = None,
    stride: PerAxis = 1,
    pad: PerAxis = 0,
    cover_all: bool = False,
    dilate: PerAxis = 1,
    groups: int = 1,
    *,
    mode: str | Sequence[str] = "constant",
) -> Variable:
    """The convolution (cross-correlation) of images with any number of spatial axes and filters.

    Args:
        x: ``(N, C, …)`` with one or more spatial axes.
        W: ``(K, C / groups, …)``, K filters.
        b: ``(K,)``, or None.
        stride, pad, dilate: a number for each spatial axis, or one for all: the distance of the
            windows, cells added at each side, and the distance of the cells within a window. A pad
            may also be a pair (before, after) for each axis: ``pad=[(2, 0)]`` with 3 cells is a
            causal convolution.
        cover_all: windows reach every cell, beyond the padding if need be.
        groups: into how many groups, each convolved by itself, the channels are divided (grouped
            and depthwise convolution).
        mode: what the cells of the padding are, for all spatial axes or one for each: zeros
            (``'constant'``), or the image's own cells by ``'edge'``, ``'reflect'``,
            ``'symmetric'`` or ``'wrap'`` (a circular convolution), as in ``numpy.pad``.

    Returns:
        ``(N, K, …)`` with ⌊(size + 2 pad − (k − 1) dilate − 1) / stride⌋ + 1 along each axis.

    Raises:
        ValueError: channels, groups or sizes do not belong together, or no such mode.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.convolution_nd(np.ones((1, 2, 5)), np.ones((3, 2, 3)), stride=2).array[0]
        array([[6., 6.],
               [6., 6.],
               [6., 6.]])
        >>> x, W = np.arange(4.0).reshape(1, 1, 4), np.ones((1, 1, 3))
        >>> F.convolution_nd(x, W, pad=1, mode="wrap").array
        array([[[4., 3., 6., 5.]]])
    """
    x = as_variable(x)
    W = as_variable(W)
    n = check_filters(who, x, W, b, groups, ndim)
    if mode != "constant" or has_pairs(pad):
        modes = _modes(who, n, mode, cover_all)
        window = Window.of(n, W.shape[2:], stride, pad, dilate, cover_all)
        pairs = zip(x.shape[2:], window.pad, strict=True)
        size = tuple([low + a + high for a, (low, high) in pairs])
        windows = Windows.over(who, size, W.shape[2:], stride, 0, dilate, cover_all)
        node: Convolving = PaddedConvolution(windows, groups, window, modes)
        return node.apply((x, W) if b is None else (x, W, b))[0]
    windows = Windows.over(who, x.shape[2:], W.shape[2:], stride, pad, dilate, cover_all)
    return Convolution(windows, groups).apply((x, W) if b is None else (x, W, b))[0]


convolution_1d = for_axes(
    convolution_nd,
    1,
    """:func:`convolution_nd` of sequences ``(N, C, T)`` with filters ``(K, C / groups, k)``.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.convolution_1d(np.arange(4.0).reshape(1, 1, 4), np.array([[[-1.0, 1.0]]])).array
        array([[[1., 1., 1.]]])
    """,
)

convolution_2d = for_axes(
    convolution_nd,
    2,
    """:func:`convolution_nd` of images ``(N, C, H, W)`` with filters ``(K, C / groups, kH, kW)``.

    Where there are many channels, 3 x 3 filters at stride 1 are applied by Winograd's method, to
    tiles of 4 x 4 outputs: in float32 the results are off by 10⁻⁶ of their size, and an infinite
    number spoils all of its tiles.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.convolution_2d(np.ones((1, 1, 3, 3)), np.ones((1, 1, 3, 3)), pad=1).array[0, 0]
        array([[4., 6., 4.],
               [6., 9., 6.],
               [4., 6., 4.]])
    """,
)

convolution_3d = for_axes(
    convolution_nd,
    3,
    """:func:`convolution_nd` of volumes ``(N, C, D, H, W)`` with filters ``(K, C / groups, kD, kH,
    kW)``.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.convolution_3d(np.ones((1, 1, 2, 2, 2)), np.ones((1, 1, 2, 2, 2))).item()
        8.0
    """,
)


@any_axes
def deconvolution_nd(
    who: str,
    ndim: int | None,
    x: Variable | Array,
    W: Variable | Array,
    b: Variable | Array | None = None,
    stride: PerAxis = 1,
    pad: PerAxis = 0,
    outsize: PerAxis | None = None,
    dilate: PerAxis = 1,
    groups: int = 1,
) -> Variable:
    """The transpose (adjoint) of :func:`convolution_nd`, from arrays of the shape of its outputs to
    images.

    Args:
        x: ``(N, K, …)``.
        W: ``(K, C / groups, …)``.
        b: ``(C,)``, or None.
        stride, pad, dilate, groups: of the convolution.
        outsize: the size of the image, where a stride leaves several possible; None: the smallest.

    Returns:
        ``(N, C, …)`` with stride (size − 1) + (k − 1) dilate + 1 − 2 pad along each axis.

    Raises:
        ValueError: channels, groups or sizes do not belong together.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.deconvolution_nd(np.array([[[1.0, 10.0]]]), np.ones((1, 1, 3)), stride=2).array
        array([[[ 1.,  1., 11., 10., 10.]]])
    """
    x = as_variable(x)
    W = as_variable(W)
    check_filters(who, x, W, b, groups, ndim, transposed=True)
    windows = Windows.transposed(who, x.shape[2:], W.shape[2:], stride, pad, dilate, outsize)
    return Deconvolution(windows, groups).apply((x, W) if b is None else (x, W, b))[0]


deconvolution_1d = for_axes(
    deconvolution_nd,
    1,
    """:func:`deconvolution_nd` of sequences ``(N, K, T)``.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.deconvolution_1d(np.ones((1, 1, 2)), np.ones((1, 1, 2))).array
        array([[[1., 2., 1.]]])
    """,
)

deconvolution_2d = for_axes(
    deconvolution_nd,
    2,
    """:func:`deconvolution_nd` of images ``(N, K, H, W)``.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.deconvolution_2d(np.ones((1, 1, 2, 2)), np.ones((1, 1, 2, 2)), stride=2).shape
        (1, 1, 4, 4)
    """,
)

deconvolution_3d = for_axes(
    deconvolution_nd,
    3,
    """:func:`deconvolution_nd` of volumes ``(N, K, D, H, W)``.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.deconvolution_3d(np.ones((1, 1, 1, 1, 1)), np.ones((1, 1, 2, 2, 2))).shape
        (1, 1, 2, 2, 2)
    """,
)


def depthwise_convolution_2d(
    x: Variable | Array,
    W: Variable | Array,
    b: Variable | Array | None = None,
    stride: PerAxis = 1,
    pad: PerAxis = 0,
) -> Variable:
    """The convolution of each channel by itself with M filters.

    Args:
        x: ``(N, C, H, W)``.
        W: ``(M, C, kH, kW)``: M filters for each channel.
        b: ``(C M,)``, or None.
        stride, pad: as in :func:`convolution_nd`.

    Returns:
        ``(N, C M, …)``: the M results of the first channel, then those of the second …

    Raises:
        ValueError: the shapes do not belong together.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.depthwise_convolution_2d(np.ones((1, 2, 2, 2)), np.ones((3, 2, 2, 2))).shape
        (1, 6, 1, 1)
    """
    filters, C = depthwise_filters("depthwise_convolution_2d", W)
    return convolution_2d(x, filters, b, stride, pad, groups=C)


def depthwise_filters(who: str, W: Variable | Array) -> tuple[Variable, int]:
    """The filters (C M, 1, kH, kW) of C groups that M filters for each channel, (M, C, kH, kW),
    are; and C.
    """
    W = as_variable(W)
    if W.ndim != 4:
        raise ValueError(f"{who}: W must be (M, C, kH, kW), not {W.shape}")
    M, C = W.shape[:2]
    return W.transpose((1, 0, 2, 3)).reshape((C * M, 1, *W.shape[2:])), C


def dilated_convolution_2d(
    x: Variable | Array,
    W: Variable | Array,
    b: Variable | Array | None = None,
    stride: PerAxis = 1,
    pad: PerAxis = 0,
    dilate: PerAxis = 1,
    cover_all: bool = False,
) -> Variable:
    """:func:`convolution_2d` by its older name and order of arguments.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.dilated_convolution_2d(np.ones((1, 1, 5, 5)), np.ones((1, 1, 3, 3)), dilate=2).shape
        (1, 1, 1, 1)
    """
    return convolution_2d(x, W, b, stride, pad, cover_all, dilate)
