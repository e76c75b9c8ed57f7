"""Depthwise convolution, and the layers of networks in networks (1 × 1 convolutions after a larger one)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mnpar import initializers
from mnpar.chain import ChainList
from mnpar.functions import depthwise_convolution_2d, relu
from mnpar.functions.windows import per_axis
from mnpar.link import Link
from mnpar.links.convolution import Convolution2D
from mnpar.parameter import Parameter
from mnpar.variable import Variable


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
        self, in_channels: int | None, channel_multiplier: int, ksize: Any, stride: Any = 1, pad: Any = 0,
        nobias: bool = False, initialW: Any = None, initial_bias: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.channel_multiplier, self.stride, self.pad = channel_multiplier, stride, pad
        self.ksize = per_axis("DepthwiseConvolution2D: ksize", ksize, 2, 1)
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

    def _take_size(self, x: Any) -> None:
        if not self.W.is_initialized:
            self._initialize_params(x.shape[1])

    def forward(self, x: Any) -> Variable:
        """(N, C, H, W) → (N, C M, …), as :func:`mnpar.functions.depthwise_convolution_2d`."""
        self._take_size(x)
        return depthwise_convolution_2d(x, self.W, self.b, self.stride, self.pad)


class MLPConvolution2D(ChainList):
    """A convolution followed by 1 × 1 convolutions, with an activation in between (Lin, Chen and Yan 2014, arXiv 1312.4400).

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
        self, in_channels: int | None, out_channels: Any, ksize: Any = None, stride: Any = 1, pad: Any = 0,
        activation: Callable[[Any], Variable] = relu, conv_init: Any = None, bias_init: Any = None,
    ) -> None:  # fmt: skip
        if ksize is None:
            in_channels, out_channels, ksize = None, in_channels, out_channels
        first, *rest = out_channels
        layers = [Convolution2D(in_channels, first, ksize, stride, pad, initialW=conv_init, initial_bias=bias_init)]
        for channels in rest:
            layers.append(Convolution2D(layers[-1].out_channels, channels, 1, initialW=conv_init, initial_bias=bias_init))
        super().__init__(*layers)
        self.activation = activation

    def forward(self, x: Any) -> Variable:
        """(N, C, H, W) → (N, out_channels[-1], …)."""
        *hidden, last = list(self.children())
        for layer in hidden:
            x = self.activation(layer(x))
        return last(x)  # type: ignore[no-any-return]
