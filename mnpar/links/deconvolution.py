"""Transposed convolutional layers in any number of dimensions; the number of input channels may
come from the first batch.
"""

from __future__ import annotations

from typing import Any

from mnpar.functions import deconvolution_nd
from mnpar.links.convolution import _Filters
from mnpar.variable import Variable


class DeconvolutionND(_Filters):
    """Transposed convolution: the adjoint of a convolution, from outputs of that size to images.

    Args:
        ndim, ksize, stride, pad, dilate, groups, nobias: of the convolution, as
            :class:`ConvolutionND` takes them.
        in_channels: of the inputs; None (or left out) takes it from the first batch.
        out_channels: of the images.
        outsize: the size of the images, where a stride leaves several possible; None: the smallest.
        initialW: initializer of W ``(in_channels, out_channels / groups, *ksize)``; None is
            LeCunNormal.
        initial_bias: initializer of b (out_channels,); None is 0.

    Raises:
        ValueError: sizes below 1, or groups that do not divide the channels.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> L.DeconvolutionND(1, 3, 2, 4, stride=2)(np.ones((1, 3, 5), "f4")).shape
        (1, 2, 12)
    """

    def __init__(
        self,
        ndim: int,
        in_channels: int | None,
        out_channels: int | None,
        ksize: Any = None,
        stride: Any = 1,
        pad: Any = 0,
        nobias: bool = False,
        outsize: Any = None,
        initialW: Any = None,
        initial_bias: Any = None,
        dilate: Any = 1,
        groups: int = 1,
    ) -> None:
        super().__init__(
            ndim,
            in_channels,
            out_channels,
            ksize,
            stride,
            pad,
            nobias,
            initialW,
            initial_bias,
            dilate,
            groups,
        )
        self.outsize = outsize

    def _shape(self, in_channels: int) -> tuple[int, ...]:
        return in_channels, self.out_channels // self.groups, *self.ksize

    def forward(self, x: Any) -> Variable:
        """(N, in_channels, …) → (N, out_channels, …), as
        :func:`mnpar.functions.deconvolution_nd`.
        """
        self._take_size(x)
        return deconvolution_nd(
            x, self.W, self.b, self.stride, self.pad, self.outsize, self.dilate, self.groups
        )


class Deconvolution1D(DeconvolutionND):
    """Transposed convolution to sequences (N, C, T); arguments as :class:`DeconvolutionND`.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> L.Deconvolution1D(2, 3)(np.ones((1, 3, 5), "f4")).shape
        (1, 2, 7)
    """

    def __init__(
        self,
        in_channels: int | None,
        out_channels: int | None,
        ksize: Any = None,
        stride: Any = 1,
        pad: Any = 0,
        nobias: bool = False,
        outsize: Any = None,
        initialW: Any = None,
        initial_bias: Any = None,
        dilate: Any = 1,
        groups: int = 1,
    ) -> None:
        super().__init__(
            1,
            in_channels,
            out_channels,
            ksize,
            stride,
            pad,
            nobias,
            outsize,
            initialW,
            initial_bias,
            dilate,
            groups,
        )


class Deconvolution2D(DeconvolutionND):
    """Transposed convolution to images (N, C, H, W); arguments as :class:`DeconvolutionND`.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> L.Deconvolution2D(16, 3, ksize=4, stride=2, pad=1)(np.ones((1, 16, 7, 7), "f4")).shape
        (1, 3, 14, 14)
    """

    def __init__(
        self,
        in_channels: int | None,
        out_channels: int | None,
        ksize: Any = None,
        stride: Any = 1,
        pad: Any = 0,
        nobias: bool = False,
        outsize: Any = None,
        initialW: Any = None,
        initial_bias: Any = None,
        *,
        dilate: Any = 1,
        groups: int = 1,
    ) -> None:
        super().__init__(
            2,
            in_channels,
            out_channels,
            ksize,
            stride,
            pad,
            nobias,
            outsize,
            initialW,
            initial_bias,
            dilate,
            groups,
        )


class Deconvolution3D(DeconvolutionND):
    """Transposed convolution to volumes (N, C, D, H, W); arguments as :class:`DeconvolutionND`.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> L.Deconvolution3D(1, 2)(np.ones((1, 3, 2, 2, 2), "f4")).shape
        (1, 1, 3, 3, 3)
    """

    def __init__(
        self,
        in_channels: int | None,
        out_channels: int | None,
        ksize: Any = None,
        stride: Any = 1,
        pad: Any = 0,
        nobias: bool = False,
        outsize: Any = None,
        initialW: Any = None,
        initial_bias: Any = None,
        dilate: Any = 1,
        groups: int = 1,
    ) -> None:
        super().__init__(
            3,
            in_channels,
            out_channels,
            ksize,
            stride,
            pad,
            nobias,
            outsize,
            initialW,
            initial_bias,
            dilate,
            groups,
        )
