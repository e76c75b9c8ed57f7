"""Deformable convolution: a layer that computes offsets, and one that convolves the image sampled
at them.
"""

from __future__ import annotations

from typing import Any

from mnpar.chain import Chain
from mnpar.functions.connection.deformable_convolution import deformable_convolution_2d_sampler
from mnpar.links.convolution import Convolution2D
from mnpar.variable import Variable


class DeformableConvolution2DSampler(Convolution2D):
    """:func:`mnpar.functions.deformable_convolution_2d_sampler` with filters of its own, zeros at
    first unless told.

    Args:
        in_channels, out_channels, ksize, stride, pad, nobias, initialW, initial_bias: as in
            :class:`Convolution2D`.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> layer = L.DeformableConvolution2DSampler(1, 2, 3, pad=1)
        >>> layer(np.ones((1, 1, 4, 4), "f4"), np.zeros((1, 18, 4, 4), "f4")).shape
        (1, 2, 4, 4)
    """

    def __init__(
        self,
        in_channels: int | None,
        out_channels: int,
        ksize: Any,
        stride: Any = 1,
        pad: Any = 0,
        nobias: bool = False,
        initialW: Any = None,
        initial_bias: Any = None,
    ) -> None:
        super().__init__(
            in_channels,
            out_channels,
            ksize,
            stride,
            pad,
            nobias,
            0 if initialW is None else initialW,
            initial_bias,
        )

    def forward(self, x: Any, offset: Any) -> Variable:  # type: ignore[override]
        """(N, C, H, W), (N, 2 kH kW, oH, oW) → (N, out_channels, oH, oW)."""
        if not self.W.is_initialized:
            self._initialize_params(x.shape[1])
        return deformable_convolution_2d_sampler(x, offset, self.W, self.b, self.stride, self.pad)


class DeformableConvolution2D(Chain):
    """A convolution that samples the images at offsets, which another convolution of the same
    images computes.

    Args:
        in_channels, ksize, stride, pad: of both convolutions; ``in_channels=None`` takes it from
            the first batch.
        out_channels: of the deformable convolution.
        offset_nobias, offset_initialW, offset_initial_bias: of the convolution that computes the
            offsets.
        deform_nobias, deform_initialW, deform_initial_bias: of the deformable one;
            ``deform_initialW=None`` is zeros.

    Attributes:
        offset_conv, deform_conv: the two convolutions.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> layer = L.DeformableConvolution2D(None, 2, 3, pad=1)
        >>> (
        ...     layer(np.ones((1, 1, 4, 4), "f4")).shape,
        ...     layer.offset_conv.W.shape,
        ...     layer.deform_conv.W.shape,
        ... )
        ((1, 2, 4, 4), (18, 1, 3, 3), (2, 1, 3, 3))
    """

    def __init__(
        self,
        in_channels: int | None,
        out_channels: int,
        ksize: Any,
        stride: Any = 1,
        pad: Any = 0,
        offset_nobias: bool = False,
        offset_initialW: Any = None,
        offset_initial_bias: Any = None,
        deform_nobias: bool = False,
        deform_initialW: Any = None,
        deform_initial_bias: Any = None,
    ) -> None:
        super().__init__()
        kH, kW = (ksize, ksize) if isinstance(ksize, int) else ksize
        self.offset_conv = Convolution2D(
            in_channels,
            2 * kH * kW,
            ksize,
            stride,
            pad,
            offset_nobias,
            offset_initialW,
            offset_initial_bias,
        )
        self.deform_conv = DeformableConvolution2DSampler(
            in_channels,
            out_channels,
            ksize,
            stride,
            pad,
            deform_nobias,
            deform_initialW,
            deform_initial_bias,
        )

    def forward(self, x: Any) -> Variable:
        """(N, C, H, W) → (N, out_channels, oH, oW)."""
        y: Variable = self.deform_conv(x, self.offset_conv(x))
        return y
