"""Convolutional layers of images that are divided into blocks over a grid of ranks.

Each takes a grid before the arguments of its serial twin, and the shape of the whole image when it
is called. Parameters have the twin's names and shapes and are the same on every rank: rank 0's
initial values are broadcast, and every rank gets the whole gradient. So a checkpoint of one is a
checkpoint of the other, and any optimizer keeps the ranks' parameters equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mnpar.functions.divided.halo import SpatialGrid, grid_needed
from mnpar.functions.divided.spatial_convolution import (
    spatial_convolution_nd,
    spatial_deconvolution_nd,
    spatial_depthwise_convolution_2d,
)
from mnpar.links.convolution import (
    Convolution1D,
    Convolution2D,
    Convolution3D,
    ConvolutionND,
    DepthwiseConvolution2D,
)
from mnpar.links.deconvolution import (
    Deconvolution1D,
    Deconvolution2D,
    Deconvolution3D,
    DeconvolutionND,
)
from mnpar.plans import Window, output_shape, transposed_shape
from mnpar.variable import Variable


def make_alike(grid: SpatialGrid, link: Any) -> None:
    """Give a layer the parameters of rank 0, on every rank of a grid."""
    if grid.comm.size > 1:
        for param in link.params():
            if param.is_initialized:
                param.array[...] = grid.comm.bcast(param.array)


class OnGrid:
    """The mixin by which a serial layer becomes one on a grid: it takes the grid, and broadcasts
    initial parameters.
    """

    def __init__(self, grid: SpatialGrid, *args: Any, **kwargs: Any) -> None:
        grid_needed(grid, f"{type(self).__name__}(grid, …)")
        super().__init__(*args, **kwargs)
        self.grid = grid
        make_alike(grid, self)

    def _take_size(self, x: Any, *axis: int) -> None:
        known = all([param.is_initialized for param in self.params()])  # type: ignore[attr-defined]
        super()._take_size(x, *axis)  # type: ignore[misc]
        if not known:
            make_alike(self.grid, self)


class _Convolving(OnGrid):
    def __init__(
        self, grid: SpatialGrid, *args: Any, mode: Any = "constant", **kwargs: Any
    ) -> None:
        super().__init__(grid, *args, **kwargs)
        self.mode = mode

    def _pads(self, pad: Any) -> Any:
        return Window.of(self.ndim, 1, 1, pad).pad  # type: ignore[attr-defined]

    def forward(self: Any, x: Any, shape: Sequence[int] = ()) -> Variable:
        """This rank's block (N, C, …) of an image of ``shape`` → its block (N, K, …) of the
        outputs.
        """
        self._take_size(x)
        return spatial_convolution_nd(
            x,
            self.grid,
            shape,
            self.W,
            self.b,
            self.stride,
            self.pad,
            self.cover_all,
            self.dilate,
            self.groups,
            mode=self.mode,
        )

    def output_shape(self: Any, shape: Sequence[int]) -> tuple[int, ...]:
        """The whole shape of the outputs of an image of ``shape``."""
        return output_shape(shape, self.ksize, self.stride, self.pad, self.dilate, self.cover_all)


class SpatialConvolutionND(_Convolving, ConvolutionND):
    """:class:`ConvolutionND` of an image that is cut into blocks.

    Args:
        grid: all ranks of its communicator make the layer, and call it. ndim, in_channels,
        out_channels, ksize, stride, pad, …: as :class:`ConvolutionND` has them; a pad may also be a
        pair
            (before, after) for each axis.
        mode: (by name) how the image is padded, as in :func:`mnpar.functions.halo_exchange`; zeros
            by default.

    The layer is called with the block and the shape of the whole image; ``output_shape`` gives the
    shape of the whole output.

    Example:
        >>> import numpy as np, mnpar, mnpar.links as L
        >>> def program(comm):
        ...     layer = L.SpatialConvolutionND(mnpar.SpatialGrid(comm, (2,)), 1, 3, 4, ksize=5)
        ...     return layer(np.ones((2, 3, 4), "f4"), (8,)).shape, layer.output_shape((8,))
        >>> mnpar.run(program, ranks=2)
        [((2, 4, 2), (4,)), ((2, 4, 2), (4,))]
    """


class SpatialConvolution1D(_Convolving, Convolution1D):
    """:class:`Convolution1D` of sequences that are cut into blocks; a grid first, as
    :class:`SpatialConvolutionND`.

    Example:
        >>> import numpy as np, mnpar, mnpar.links as L
        >>> def program(comm):
        ...     layer = L.SpatialConvolution1D(mnpar.SpatialGrid(comm, (2,)), 3, 4, 3, pad=[(2, 0)])
        ...     return layer(np.ones((2, 3, 4), "f4"), (8,)).shape
        >>> mnpar.run(program, ranks=2)
        [(2, 4, 4), (2, 4, 4)]
    """


class SpatialConvolution2D(_Convolving, Convolution2D):
    """:class:`Convolution2D` of images that are cut into blocks; a grid first, as
    :class:`SpatialConvolutionND`.

    Example:
        >>> import numpy as np, mnpar, mnpar.links as L
        >>> def program(comm):
        ...     layer = L.SpatialConvolution2D(
        ...         mnpar.SpatialGrid(comm, (2, 1)), None, 4, 3, pad=1, mode="reflect"
        ...     )
        ...     return layer(np.ones((2, 3, 4, 8), "f4"), (8, 8)).shape
        >>> mnpar.run(program, ranks=2)
        [(2, 4, 4, 8), (2, 4, 4, 8)]
    """


class SpatialConvolution3D(_Convolving, Convolution3D):
    """:class:`Convolution3D` of volumes that are cut into blocks; a grid first, as
    :class:`SpatialConvolutionND`.

    Example:
        >>> import numpy as np, mnpar, mnpar.links as L
        >>> def program(comm):
        ...     layer = L.SpatialConvolution3D(mnpar.SpatialGrid(comm, (1, 1, 2)), 1, 2, 2)
        ...     return layer(np.ones((1, 1, 3, 3, 2), "f4"), (3, 3, 4)).shape
        >>> mnpar.run(program, ranks=2)
        [(1, 2, 2, 2, 2), (1, 2, 2, 2, 1)]
    """


class _Deconvolving(OnGrid):
    def forward(self: Any, x: Any, shape: Sequence[int] = ()) -> Variable:
        """This rank's block (N, in_channels, …) of values of ``shape`` → its block (N,
        out_channels, …) of the image.
        """
        self._take_size(x)
        return spatial_deconvolution_nd(
            x,
            self.grid,
            shape,
            self.W,
            self.b,
            self.stride,
            self.pad,
            self.outsize,
            self.dilate,
            self.groups,
        )

    def output_shape(self: Any, shape: Sequence[int]) -> tuple[int, ...]:
        """The whole shape of the image that values of ``shape`` make."""
        if self.outsize is not None:
            return (
                tuple(self.outsize)
                if isinstance(self.outsize, Sequence)
                else (self.outsize,) * self.ndim
            )
        return transposed_shape(shape, self.ksize, self.stride, self.pad, self.dilate)


class SpatialDeconvolutionND(_Deconvolving, DeconvolutionND):
    """:class:`DeconvolutionND` to an image that is cut into blocks, from values that are.

    Args:
        grid: all ranks of its communicator make the layer, and call it. ndim, in_channels,
        out_channels, ksize, stride, pad, …: as :class:`DeconvolutionND` has them.

    The layer is called with the block of the values and the shape of all of them.

    Example:
        >>> import numpy as np, mnpar, mnpar.links as L
        >>> def program(comm):
        ...     layer = L.SpatialDeconvolutionND(
        ...         mnpar.SpatialGrid(comm, (2,)), 1, 3, 2, 4, stride=2
        ...     )
        ...     return layer(np.ones((1, 3, 3 - comm.rank), "f4"), (5,)).shape, layer.output_shape(
        ...         (5,)
        ...     )
        >>> mnpar.run(program, ranks=2)
        [((1, 2, 6), (12,)), ((1, 2, 6), (12,))]
    """


class SpatialDeconvolution1D(_Deconvolving, Deconvolution1D):
    """:class:`Deconvolution1D` to sequences that are cut into blocks; a grid first, as
    :class:`SpatialDeconvolutionND`.

    Example:
        >>> import numpy as np, mnpar, mnpar.links as L
        >>> def program(comm):
        ...     return L.SpatialDeconvolution1D(mnpar.SpatialGrid(comm, (2,)), 3, 2, 2, 2)(
        ...         np.ones((1, 3, 2), "f4"), (4,)
        ...     ).shape
        >>> mnpar.run(program, ranks=2)
        [(1, 2, 4), (1, 2, 4)]
    """


class SpatialDeconvolution2D(_Deconvolving, Deconvolution2D):
    """:class:`Deconvolution2D` to images that are cut into blocks; a grid first, as
    :class:`SpatialDeconvolutionND`.

    Example:
        >>> import numpy as np, mnpar, mnpar.links as L
        >>> def program(comm):
        ...     layer = L.SpatialDeconvolution2D(
        ...         mnpar.SpatialGrid(comm, (1, 2)), 16, 3, ksize=4, stride=2, pad=1
        ...     )
        ...     return layer(np.ones((1, 16, 7, 4 - comm.rank), "f4"), (7, 7)).shape
        >>> mnpar.run(program, ranks=2)
        [(1, 3, 14, 7), (1, 3, 14, 7)]
    """


class SpatialDeconvolution3D(_Deconvolving, Deconvolution3D):
    """:class:`Deconvolution3D` to volumes that are cut into blocks; a grid first, as
    :class:`SpatialDeconvolutionND`.

    Example:
        >>> import numpy as np, mnpar, mnpar.links as L
        >>> def program(comm):
        ...     layer = L.SpatialDeconvolution3D(mnpar.SpatialGrid(comm, (2, 1, 1)), 1, 2, 2, 2)
        ...     return layer(np.ones((1, 1, 1, 2, 2), "f4"), (2, 2, 2)).shape
        >>> mnpar.run(program, ranks=2)
        [(1, 2, 2, 4, 4), (1, 2, 2, 4, 4)]
    """


class SpatialDepthwiseConvolution2D(OnGrid, DepthwiseConvolution2D):
    """:class:`DepthwiseConvolution2D` of images that are cut into blocks; a grid first, as
    :class:`SpatialConvolutionND`.

    Example:
        >>> import numpy as np, mnpar, mnpar.links as L
        >>> def program(comm):
        ...     layer = L.SpatialDepthwiseConvolution2D(
        ...         mnpar.SpatialGrid(comm, (2, 1)), None, 2, 3, pad=1
        ...     )
        ...     return layer(np.ones((1, 4, 3, 5), "f4"), (6, 5)).shape
        >>> mnpar.run(program, ranks=2)
        [(1, 8, 3, 5), (1, 8, 3, 5)]
    """

    def forward(self, x: Any, shape: Sequence[int] = ()) -> Variable:
        """This rank's block (N, C, H, W) of an image of ``shape`` → its block (N, C M, …) of the
        outputs.
        """
        self._take_size(x)
        return spatial_depthwise_convolution_2d(
            x, self.grid, shape, self.W, self.b, self.stride, self.pad
        )

    def output_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The whole shape of the outputs of an image of ``shape``."""
        return output_shape(shape, self.ksize, self.stride, self.pad)
