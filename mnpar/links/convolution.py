"""Convolutional layers: plain and transposed ones for any number of spatial axes, depthwise and
deformable ones, and small networks that slide over an image.

``ConvolutionND`` and ``DeconvolutionND`` get the number of spatial axes as an argument; the layers
whose names end in 1D, 2D and 3D are the same layers without that argument. The number of input
channels may come from the first batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

from mnpar import initializers
from mnpar.backend import Array
from mnpar.chain import Chain, ChainList
from mnpar.functions import convolution_nd, deconvolution_nd, depthwise_convolution_2d, relu
from mnpar.functions.connection.convolution import has_pairs
from mnpar.functions.connection.deformable_convolution import deformable_convolution_2d_sampler
from mnpar.initializers.initializer import InitialValue
from mnpar.kernels.windows import PerAxis, axes_hint, numbers_per_axis
from mnpar.link import Link
from mnpar.parameter import Parameter
from mnpar.plans import Window
from mnpar.variable import Variable


class _ConvolutionLayer(Link):
    """The base of convolutional and transposed layers: W, b and their sizes, which may come from
    the first batch.
    """

    def __init__(
        self,
        ndim: int,
        in_channels: int | None,
        out_channels: int | None,
        ksize: PerAxis | None,
        stride: PerAxis,
        pad: PerAxis,
        nobias: bool,
        initialW: InitialValue,
        initial_bias: InitialValue,
        dilate: PerAxis,
        groups: int,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        if ksize is None:  # Convolution2D(64, 3): out_channels and ksize
            in_channels, out_channels, ksize = None, in_channels, out_channels
        if (
            out_channels is None
            or out_channels < 1
            or ksize is None
            or (in_channels is not None and in_channels < 1)
        ):
            raise ValueError(
                f"{name}: channels and ksize must be 1 or more, not {in_channels}, {out_channels} "
                f"and {ksize}"
            )
        if groups < 1 or out_channels % groups or (in_channels or 0) % groups:
            raise ValueError(
                f"{name}: {in_channels} and {out_channels} channels cannot be divided into "
                f"{groups} groups"
            )
        self.ndim = ndim
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.groups = groups
        self.ksize = numbers_per_axis(f"{name}: ksize", ksize, ndim, 1)
        self.stride, self.pad = (
            numbers_per_axis(f"{name}: stride", stride, ndim, 1),
            self._pads(pad),
        )
        self.dilate = numbers_per_axis(f"{name}: dilate", dilate, ndim, 1)
        self.W = Parameter(initializers._get_initializer(initialW))
        self.b: Parameter | None = None
        if not nobias:
            self.b = Parameter(initializers._get_initializer(initial_bias, 0), out_channels)
        if in_channels is not None:
            self._initialize_params(in_channels)

    def _pads(self, pad: PerAxis) -> Any:
        return numbers_per_axis(f"{type(self).__name__}: pad", pad, self.ndim, 0)

    def _shape(self, in_channels: int) -> tuple[int, ...]:
        return self.out_channels, in_channels // self.groups, *self.ksize

    def _initialize_params(self, in_channels: int) -> None:
        if in_channels < 1 or in_channels % self.groups:
            raise ValueError(
                f"{type(self).__name__}: {in_channels} channels cannot be divided into "
                f"{self.groups} groups"
            )
        self.in_channels = in_channels
        self._initialize_W(self._shape(in_channels))

    def _initialize_W(self, whole: tuple[int, ...]) -> None:
        """Initialize W, or this rank's part of it, where the layer's W is of shape ``whole``."""
        self.W.initialize(whole)

    def _infer_sizes(self, x: Variable | Array) -> None:
        if not self.W.is_initialized:
            if x.ndim != self.ndim + 2:
                raise ValueError(
                    f"{type(self).__name__}: x of shape {x.shape} must have {self.ndim + 2} "
                    "axes, (N, C, …)"
                    f"{axes_hint(x.shape, self.ndim)}"
                )
            self._initialize_params(x.shape[1])

    @property
    def printable_specs(self) -> Iterator[tuple[str, object]]:
        """Names and values to show in ``repr``."""
        for name in ("in_channels", "out_channels", "ksize", "stride", "pad", "dilate", "groups"):
            yield name, getattr(self, name)
        yield "nobias", self.b is None


class ConvolutionND(_ConvolutionLayer):
    """Convolution of images with any number of spatial axes.

    Args:
        ndim: the number of spatial axes.
        in_channels: C; None (or left out, with ksize in its place) takes it from the first batch.
        out_channels: K.
        ksize, stride, pad, dilate: a number for each axis, or one for all; a pad may also be a pair
            (before, after) for each axis.
        nobias: no b.
        initialW: initializer of W ``(K, C / groups, *ksize)``; None is LeCunNormal.
        initial_bias: initializer of b (K,); None is 0.
        cover_all: windows reach every cell.
        groups: into how many groups, each convolved by itself, the channels are divided.
        mode: how the image is padded, as in :func:`mnpar.functions.convolution_nd`; ``'constant'``
            is zeros.

    Raises:
        ValueError: sizes below 1, or groups that do not divide the channels.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> layer = L.ConvolutionND(1, None, 4, 3)
        >>> layer(np.ones((2, 3, 8), "f4")).shape, layer.W.shape
        ((2, 4, 6), (4, 3, 3))
    """

    def __init__(
        self,
        ndim: int,
        in_channels: int | None,
        out_channels: int | None,
        ksize: PerAxis | None = None,
        stride: PerAxis = 1,
        pad: PerAxis = 0,
        nobias: bool = False,
        initialW: InitialValue = None,
        initial_bias: InitialValue = None,
        cover_all: bool = False,
        dilate: PerAxis = 1,
        groups: int = 1,
        *,
        mode: str | Sequence[str] = "constant",
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
        self.cover_all, self.mode = cover_all, mode

    def forward(self, x: Variable | Array) -> Variable:
        """(N, C, …) → (N, K, …), as :func:`mnpar.functions.convolution_nd`."""
        self._infer_sizes(x)
        return convolution_nd(
            x,
            self.W,
            self.b,
            self.stride,
            self.pad,
            self.cover_all,
            self.dilate,
            self.groups,
            mode=self.mode,
        )

    def _pads(self, pad: Any) -> Any:
        return Window.of(self.ndim, 1, 1, pad).pad if has_pairs(pad) else super()._pads(pad)

    @property
    def printable_specs(self) -> Iterator[tuple[str, object]]:
        """Names and values to show in ``repr``."""
        yield from super().printable_specs
        if self.mode != "constant":
            yield "mode", self.mode


class _ConvolutionForAxes(ConvolutionND):
    """A :class:`ConvolutionND` whose number of spatial axes belongs to the class."""

    n_axes: ClassVar[int]

    def __init__(
        self,
        in_channels: int | None,
        out_channels: int | None,
        ksize: PerAxis | None = None,
        stride: PerAxis = 1,
        pad: PerAxis = 0,
        nobias: bool = False,
        initialW: InitialValue = None,
        initial_bias: InitialValue = None,
        cover_all: bool = False,
        dilate: PerAxis = 1,
        groups: int = 1,
        *,
        mode: str | Sequence[str] = "constant",
    ) -> None:
        super().__init__(
            self.n_axes,
            in_channels,
            out_channels,
            ksize,
            stride,
            pad,
            nobias,
            initialW,
            initial_bias,
            cover_all,
            dilate,
            groups,
            mode=mode,
        )


class Convolution1D(_ConvolutionForAxes):
    """Convolution of sequences (N, C, T); arguments as :class:`ConvolutionND`.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> L.Convolution1D(4, 3, pad=1)(np.ones((2, 3, 8), "f4")).shape
        (2, 4, 8)
    """

    n_axes = 1


class Convolution2D(_ConvolutionForAxes):
    """Convolution of images (N, C, H, W); arguments as :class:`ConvolutionND`.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> L.Convolution2D(3, 16, ksize=5, stride=2)(np.ones((1, 3, 28, 28), "f4")).shape
        (1, 16, 12, 12)
    """

    n_axes = 2


class Convolution3D(_ConvolutionForAxes):
    """Convolution of volumes (N, C, D, H, W); arguments as :class:`ConvolutionND`.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> L.Convolution3D(2, 3)(np.ones((1, 1, 4, 4, 4), "f4")).shape
        (1, 2, 2, 2, 2)
    """

    n_axes = 3


class DilatedConvolution2D(ConvolutionND):
    """:class:`Convolution2D` by its older name and order of arguments.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> L.DilatedConvolution2D(1, 2, 3, dilate=2)(np.ones((1, 1, 5, 5), "f4")).shape
        (1, 2, 1, 1)
    """

    def __init__(
        self,
        in_channels: int | None,
        out_channels: int | None,
        ksize: PerAxis | None = None,
        stride: PerAxis = 1,
        pad: PerAxis = 0,
        dilate: PerAxis = 1,
        nobias: bool = False,
        initialW: InitialValue = None,
        initial_bias: InitialValue = None,
    ) -> None:
        super().__init__(
            2,
            in_channels,
            out_channels,
            ksize,
            stride,
            pad,
            nobias,
            initialW,
            initial_bias,
            False,
            dilate,
        )


class DepthwiseConvolution2D(Link):
    """A convolution that applies M filters to each channel by itself.

    Args:
        in_channels: C; None takes it from the first batch.
        channel_multiplier: M, the filters of each channel.
        ksize, stride, pad: a number for each axis, or one for both.
        nobias: no b.
        initialW: initializer of W (M, C, kH, kW); None is LeCunNormal.
        initial_bias: initializer of b (C M,); None is 0.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> L.DepthwiseConvolution2D(None, 2, 3)(np.ones((1, 4, 5, 5), "f4")).shape
        (1, 8, 3, 3)
    """

    def __init__(
        self,
        in_channels: int | None,
        channel_multiplier: int,
        ksize: PerAxis,
        stride: PerAxis = 1,
        pad: PerAxis = 0,
        nobias: bool = False,
        initialW: InitialValue = None,
        initial_bias: InitialValue = None,
    ) -> None:
        super().__init__()
        self.channel_multiplier, self.stride, self.pad = channel_multiplier, stride, pad
        self.ksize = numbers_per_axis("DepthwiseConvolution2D: ksize", ksize, 2, 1)
        self.W = Parameter(initializers._get_initializer(initialW))
        self.b: Parameter | None = None
        if not nobias:
            self.b = Parameter(initializers._get_initializer(initial_bias, 0))
        if in_channels is not None:
            self._initialize_params(in_channels)

    def _initialize_params(self, in_channels: int) -> None:
        self.W.initialize((self.channel_multiplier, in_channels, *self.ksize))
        if self.b is not None:
            self.b.initialize((self.channel_multiplier * in_channels,))

    def _infer_sizes(self, x: Variable | Array) -> None:
        if not self.W.is_initialized:
            self._initialize_params(x.shape[1])

    def forward(self, x: Variable | Array) -> Variable:
        """(N, C, H, W) → (N, C M, …), as :func:`mnpar.functions.depthwise_convolution_2d`."""
        self._infer_sizes(x)
        return depthwise_convolution_2d(x, self.W, self.b, self.stride, self.pad)


class MLPConvolution2D(ChainList):
    """A convolution followed by 1 × 1 convolutions, with an activation in between (Lin, Chen and
    Yan 2014, arXiv 1312.4400).

    Args:
        in_channels: C; None takes it from the first batch.
        out_channels: of each layer, a tuple.
        ksize, stride, pad: of the first convolution.
        activation: between the layers.
        conv_init, bias_init: initializers of all W and b.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> L.MLPConvolution2D(3, (8, 4), 3)(np.ones((1, 3, 5, 5), "f4")).shape
        (1, 4, 3, 3)
    """

    def __init__(
        self,
        in_channels: int | None,
        out_channels: Any,
        ksize: PerAxis | None = None,
        stride: PerAxis = 1,
        pad: PerAxis = 0,
        activation: Callable[[Variable | Array], Variable] = relu,
        conv_init: InitialValue = None,
        bias_init: InitialValue = None,
    ) -> None:
        if ksize is None:
            in_channels, out_channels, ksize = None, in_channels, out_channels
        first, *rest = out_channels
        layers = [
            Convolution2D(
                in_channels, first, ksize, stride, pad, initialW=conv_init, initial_bias=bias_init
            )
        ]
        for channels in rest:
            layers.append(
                Convolution2D(
                    layers[-1].out_channels, channels, 1, initialW=conv_init, initial_bias=bias_init
                )
            )
        super().__init__(*layers)
        self.activation = activation

    def forward(self, x: Variable | Array) -> Variable:
        """(N, C, H, W) → (N, out_channels[-1], …)."""
        *hidden, last = list(self.children())
        for layer in hidden:
            x = self.activation(layer(x))
        return last(x)  # type: ignore[no-any-return]


class DeconvolutionND(_ConvolutionLayer):
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
        ksize: PerAxis | None = None,
        stride: PerAxis = 1,
        pad: PerAxis = 0,
        nobias: bool = False,
        outsize: PerAxis | None = None,
        initialW: InitialValue = None,
        initial_bias: InitialValue = None,
        dilate: PerAxis = 1,
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

    def forward(self, x: Variable | Array) -> Variable:
        """(N, in_channels, …) → (N, out_channels, …), as
        :func:`mnpar.functions.deconvolution_nd`.
        """
        self._infer_sizes(x)
        return deconvolution_nd(
            x, self.W, self.b, self.stride, self.pad, self.outsize, self.dilate, self.groups
        )


class _DeconvolutionForAxes(DeconvolutionND):
    """A :class:`DeconvolutionND` whose number of spatial axes belongs to the class."""

    n_axes: ClassVar[int]

    def __init__(
        self,
        in_channels: int | None,
        out_channels: int | None,
        ksize: PerAxis | None = None,
        stride: PerAxis = 1,
        pad: PerAxis = 0,
        nobias: bool = False,
        outsize: PerAxis | None = None,
        initialW: InitialValue = None,
        initial_bias: InitialValue = None,
        dilate: PerAxis = 1,
        groups: int = 1,
    ) -> None:
        super().__init__(
            self.n_axes,
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


class Deconvolution1D(_DeconvolutionForAxes):
    """Transposed convolution to sequences (N, C, T); arguments as :class:`DeconvolutionND`.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> L.Deconvolution1D(2, 3)(np.ones((1, 3, 5), "f4")).shape
        (1, 2, 7)
    """

    n_axes = 1


class Deconvolution2D(_DeconvolutionForAxes):
    """Transposed convolution to images (N, C, H, W); arguments as :class:`DeconvolutionND`.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> L.Deconvolution2D(16, 3, ksize=4, stride=2, pad=1)(np.ones((1, 16, 7, 7), "f4")).shape
        (1, 3, 14, 14)
    """

    n_axes = 2


class Deconvolution3D(_DeconvolutionForAxes):
    """Transposed convolution to volumes (N, C, D, H, W); arguments as :class:`DeconvolutionND`.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> L.Deconvolution3D(1, 2)(np.ones((1, 3, 2, 2, 2), "f4")).shape
        (1, 1, 3, 3, 3)
    """

    n_axes = 3


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
        ksize: PerAxis,
        stride: PerAxis = 1,
        pad: PerAxis = 0,
        nobias: bool = False,
        initialW: InitialValue = None,
        initial_bias: InitialValue = None,
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

    def forward(  # type: ignore[override]
        self, x: Variable | Array, offset: Variable | Array
    ) -> Variable:
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
        ksize: PerAxis,
        stride: PerAxis = 1,
        pad: PerAxis = 0,
        offset_nobias: bool = False,
        offset_initialW: InitialValue = None,
        offset_initial_bias: InitialValue = None,
        deform_nobias: bool = False,
        deform_initialW: InitialValue = None,
        deform_initial_bias: InitialValue = None,
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

    def forward(self, x: Variable | Array) -> Variable:
        """(N, C, H, W) → (N, out_channels, oH, oW)."""
        y: Variable = self.deform_conv(x, self.offset_conv(x))
        return y
