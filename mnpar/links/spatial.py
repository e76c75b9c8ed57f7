"""Layers of images that are divided into blocks over a grid of ranks: the serial layers, called
with a rank's block of the image.

Each takes a grid before the arguments of its serial twin, and the shape of the whole image when it
is called. There are two kinds.

* Parameters that all ranks have whole (convolutions, normalizations): names and shapes are the
  twin's; rank 0's initial values are broadcast, and every rank gets the whole gradient. So a
  checkpoint of one is a checkpoint of the other, and any optimizer keeps the ranks' parameters
  equal.
* Parameters that are divided as the image is (SpatialLinear, local convolutions): each rank has the
  weights of its own cells. No weight is on two ranks, no gradient is summed over ranks, and a layer
  may be as large as the memory of all ranks together. In checkpoints the parameters are whole.

Forward, a rank receives the halo that its windows need; a transposed layer sends what its windows
contribute outside its block to the ranks that own it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike

from mnpar import backend, initializers
from mnpar.backend import Array, ArrayModule
from mnpar.functions import local_convolution_2d, local_deconvolution_2d
from mnpar.functions.divided.blocks import copy_all_to
from mnpar.functions.divided.halo import SpatialGrid, require_grid
from mnpar.functions.divided.layout import DividedVariable, divided
from mnpar.functions.divided.spatial import block_of, spatial_convolution_nd, spatial_linear
from mnpar.initializers.initializer import InitialValue
from mnpar.kernels.windows import PerAxis
from mnpar.link import GradientComms, Link
from mnpar.links.convolution import (
    Convolution1D,
    Convolution2D,
    Convolution3D,
    ConvolutionND,
    Deconvolution1D,
    Deconvolution2D,
    Deconvolution3D,
    DeconvolutionND,
    DepthwiseConvolution2D,
)
from mnpar.links.divided import Divided, gather_parameter, initialize_part
from mnpar.links.local_convolution import LocalConvolution2D, LocalDeconvolution2D
from mnpar.links.normalization import (
    GroupNormalization,
    LayerNormalization,
    MultiNodeBatchNormalization,
)
from mnpar.parameter import Parameter
from mnpar.plans import Box, Window, output_shape, transposed_shape
from mnpar.serializer import AbstractSerializer, Deserializer, placed
from mnpar.variable import Variable

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator
    from mnpar.functions.divided.halo import SpatialGrid


def broadcast_params(grid: SpatialGrid, link: Any) -> None:
    """Give a layer the parameters of rank 0, on every rank of a grid."""
    if grid.comm.size > 1:
        for param in link.params():
            if param.is_initialized:
                param.array[...] = grid.comm.bcast(param.array)


def _part(y: Any, grid: SpatialGrid) -> Variable:
    """Return this rank's part of outputs; of those with one cell all ranks have the whole."""
    return (y if isinstance(y, DividedVariable) else divided(y, grid)).part


class OnGrid:
    """The mixin by which a serial layer becomes one on a grid: it takes the grid, broadcasts
    initial parameters, and is called with this rank's block, of which it makes a divided Variable.
    """

    def __init__(self, grid: SpatialGrid, *args: Any, **kwargs: Any) -> None:
        require_grid(grid, f"{type(self).__name__}(grid, …)")
        super().__init__(*args, **kwargs)
        self.grid = grid
        broadcast_params(grid, self)

    def forward(self, x: Variable | Array, shape: Sequence[int] = ()) -> Variable:
        """Map this rank's block (N, C, …) of an image of ``shape`` to its block of the outputs."""
        x, _, shape = block_of(type(self).__name__, x, self.grid, shape)
        image = divided(x, self.grid, shape=(*x.shape[:2], *shape))
        return _part(super().forward(image), self.grid)  # type: ignore[misc]  # a Link's

    def gradient_comms(self) -> GradientComms:
        """Add the ranks of the grid."""
        comms: GradientComms = super().gradient_comms()  # type: ignore[misc]  # a Link's
        return comms.add(self.grid.comm)

    def _infer_sizes(self, x: Variable | Array, *axis: int) -> None:
        known = all([param.is_initialized for param in self.params()])  # type: ignore[attr-defined]
        super()._infer_sizes(x, *axis)  # type: ignore[misc]
        if not known:
            broadcast_params(self.grid, self)


class _SpatialConvolution(OnGrid):
    def __init__(
        self, grid: SpatialGrid, *args: Any, mode: Any = "constant", **kwargs: Any
    ) -> None:
        super().__init__(grid, *args, **kwargs)
        self.mode = mode

    def _pads(self, pad: PerAxis) -> Any:
        return Window.of(self.ndim, 1, 1, pad).pad  # type: ignore[attr-defined]

    def forward(self: Any, x: Variable | Array, shape: Sequence[int] = ()) -> Variable:
        """Map this rank's block (N, C, …) of an image of ``shape`` to its block (N, K, …) of the
        outputs.
        """
        self._infer_sizes(x)
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
        """Return the whole shape of the outputs of an image of ``shape``."""
        return output_shape(shape, self.ksize, self.stride, self.pad, self.dilate, self.cover_all)


class SpatialConvolutionND(_SpatialConvolution, ConvolutionND):
    """:class:`ConvolutionND` of an image that is cut into blocks.

    Args:
        grid: all ranks of its communicator make the layer, and call it.
        ndim, in_channels, out_channels, ksize, stride, pad, …: as :class:`ConvolutionND` has them;
            a pad may also be a pair (before, after) for each axis.
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


class SpatialConvolution1D(_SpatialConvolution, Convolution1D):
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


class SpatialConvolution2D(_SpatialConvolution, Convolution2D):
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


class SpatialConvolution3D(_SpatialConvolution, Convolution3D):
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


class _SpatialDeconvolution(OnGrid):
    def output_shape(self: Any, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the whole shape of the image that values of ``shape`` make."""
        if self.outsize is not None:
            return (
                tuple(self.outsize)
                if isinstance(self.outsize, Sequence)
                else (self.outsize,) * self.ndim
            )
        return transposed_shape(shape, self.ksize, self.stride, self.pad, self.dilate)


class SpatialDeconvolutionND(_SpatialDeconvolution, DeconvolutionND):
    """:class:`DeconvolutionND` to an image that is cut into blocks, from values that are.

    Args:
        grid: all ranks of its communicator make the layer, and call it.
        ndim, in_channels, out_channels, ksize, stride, pad, …: as :class:`DeconvolutionND` has
            them.

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


class SpatialDeconvolution1D(_SpatialDeconvolution, Deconvolution1D):
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


class SpatialDeconvolution2D(_SpatialDeconvolution, Deconvolution2D):
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


class SpatialDeconvolution3D(_SpatialDeconvolution, Deconvolution3D):
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

    def output_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the whole shape of the outputs of an image of ``shape``."""
        return output_shape(shape, self.ksize, self.stride, self.pad)


class _CellsOfMatrix:
    """The initializer of W: draws the whole matrix, as that of :class:`Linear`, and keeps this
    rank's cells of it.
    """

    def __init__(self, link: SpatialLinear) -> None:
        self.link = link
        self.dtype = getattr(link._initial, "dtype", None)

    def __call__(self, array: Array) -> None:
        link = self.link
        array[...] = backend.to_device_of(
            link._cut(link._first_whole(array.dtype, backend.get_array_module(array))), array
        )


class SpatialLinear(Link):
    """:class:`Linear` of images that are cut into blocks; each rank has the weights of its block's
    cells.

    The outputs are the same on every rank, which own them together: all ranks then compute the same
    loss, which counts once (law 1). Neither the image nor the matrix is ever gathered.

    In a file of one rank W is whole, as that of :class:`Linear`: all ranks of the grid save the
    layer together. A checkpoint of all ranks takes each rank's cells of W and of its optimizer's
    states. Loading needs no other rank, and any grid, or a Linear, loads the files of any other.

    Args:
        grid: all ranks of its communicator make the layer, and call it.
        in_size: the whole shape of an example, (C, …); None (or only one size given) takes it from
            the first batch.
        out_size: the features of an output.
        nobias, initialW, initial_bias: as :class:`Linear` has them. W is drawn whole and cut: ranks
            with the same seed have the weights that one process would have.

    Attributes:
        W: (out_size, C, …): of the whole (out_size, C, H, W) the cells of this rank's block, which
            ``W.box`` is.

    Raises:
        ValueError: a size below 1.

    Example:
        >>> import numpy as np, mnpar, mnpar.links as L
        >>> def program(comm):
        ...     layer = L.SpatialLinear(mnpar.SpatialGrid(comm, (2, 1)), None, 10)
        ...     return layer(np.ones((5, 3, 2, 4), "f4"), (4, 4)).shape, layer.W.shape
        >>> mnpar.run(program, ranks=2)
        [((5, 10), (10, 3, 2, 4)), ((5, 10), (10, 3, 2, 4))]
    """

    def __init__(
        self,
        grid: SpatialGrid,
        in_size: Sequence[int] | int | None,
        out_size: int | None = None,
        nobias: bool = False,
        initialW: InitialValue = None,
        initial_bias: InitialValue = None,
    ) -> None:
        super().__init__()
        require_grid(grid, "SpatialLinear(grid, in_size, out_size)")
        if out_size is None and isinstance(in_size, int):
            in_size, out_size = None, in_size
        if (
            out_size is None
            or out_size < 1
            or isinstance(in_size, int)
            or (in_size is not None and min(in_size) < 1)
        ):
            raise ValueError(
                f"SpatialLinear({in_size}, {out_size}): in_size is (C, …) or None, all sizes "
                "must be 1 or more"
            )
        self.grid, self.out_size = grid, out_size
        self.in_size: tuple[int, ...] | None = None
        self._loaded: Any = None  # a whole matrix that came before the size was known
        self._initial = initializers._get_initializer(initialW)
        self.W = Parameter(_CellsOfMatrix(self))
        self.b: Parameter | None = None
        if not nobias:
            self.b = Parameter(initializers._get_initializer(initial_bias, 0), out_size)
            self.b.array[...] = grid.comm.bcast(self.b.array)
        if in_size is not None:
            self._initialize_params(tuple(in_size))

    def _initialize_params(self, in_size: tuple[int, ...]) -> None:
        self.in_size = in_size
        cells = self.grid.block(in_size[1:])
        self.W.whole = (self.out_size, *in_size)
        self.W.box = Box((0, 0, *cells.start), (self.out_size, in_size[0], *cells.stop))
        self.W.initialize(self.W.box.shape)

    def _first_whole(self, dtype: DTypeLike, xp: ArrayModule) -> Array:
        """Return the whole matrix at first: what was loaded before the size was known, or a new
        one.
        """
        whole: Array | None = self._loaded
        self._loaded = None
        if whole is None:
            whole = initializers.generate_array(self._initial, self._matrix, xp, dtype)
        return whole

    @property
    def _matrix(self) -> tuple[int, int]:
        """The shape of the serial layer's W."""
        return self.out_size, int(np.prod(self.in_size or ()))

    def _cut(self, whole: Array) -> Array:
        """Return this rank's cells of a matrix (out_size, C·H·W)."""
        assert self.W.whole is not None
        assert self.W.box is not None
        return whole.reshape(self.W.whole)[self.W.box.index]

    def whole_W(self) -> Array:
        """Return the matrix (out_size, C·H·W) of the serial layer, on every rank; all ranks of the
        grid call this.
        """
        return gather_parameter(self.grid.comm, self.W).reshape(self._matrix)

    @property
    def printable_specs(self) -> Iterator[tuple[str, object]]:
        """Names and values to show in ``repr``."""
        yield from (
            ("in_size", self.in_size),
            ("out_size", self.out_size),
            ("nobias", self.b is None),
        )

    def gradient_comms(self) -> GradientComms:
        """Add the ranks of the grid."""
        return super().gradient_comms().add(self.grid.comm, holds="parts")

    def forward(self, x: Variable | Array, shape: Sequence[int]) -> Variable:
        """Return the layer's outputs.

        Args:
            x: this rank's block (N, C, …).
            shape: of the whole image, its spatial axes.

        Returns:
            (N, out_size), the same on every rank.

        Raises:
            ValueError: it is not an image of ``in_size``.
        """
        in_size = (x.shape[1], *shape)
        if not self.W.is_initialized:
            self._initialize_params(in_size)
        if in_size != self.in_size:
            raise ValueError(
                f"SpatialLinear: examples of {in_size} came to a layer for {self.in_size}"
            )
        return spatial_linear(x, self.grid, shape, self.W, self.b)

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Save the whole matrix, for which all ranks call this; or load this rank's cells of
        one.
        """
        known = self.W.is_initialized
        if known and getattr(serializer, "knows_places", False):
            placed(serializer, self.W)("W", self.W.array)
        elif not isinstance(serializer, Deserializer):
            serializer("W", self.whole_W() if known else None)
        elif known:
            whole = serializer("W", np.empty(self._matrix, self.W.dtype))
            self.W.array[...] = backend.to_device_of(self._cut(whole), self.W.array)
        else:
            self._loaded = serializer("W", None)
        if self.b is not None:
            serializer("b", self.b.array)


class _SpatialLocalLayer(Divided):
    """The mixin by which the serial layers own, on each rank, what belongs to the rank's block."""

    def __init__(self, grid: SpatialGrid, *args: Any, **kwargs: Any) -> None:
        require_grid(grid, f"{type(self).__name__}(grid, …)")
        if len(grid.dims) != 2:
            raise ValueError(
                f"{type(self).__name__}: images are cut by a grid of two axes, not {grid.dims}"
            )
        self.grid, self.comm = grid, grid.comm
        super().__init__(*args, **kwargs)

    def _make(self, parameter: Parameter, shape: tuple[int, ...]) -> None:
        # behind the first axis, filters or channels, are two of the grid
        box = self.grid.block(shape[1:3])
        start = (0, *box.start, *[0] * len(shape[3:]))
        stop = (shape[0], *box.stop, *shape[3:])
        initialize_part(parameter, shape, Box(start, stop))

    def _cut(self, p: Parameter | None) -> Any:
        """Return a parameter as a divided Variable: axes 1 and 2 are cut."""
        return None if p is None else divided(p, self.grid, (1, 2), p.whole)

    @property
    def printable_specs(self) -> Iterator[tuple[str, object]]:
        """Names and values to show in ``repr``."""
        yield from (*super().printable_specs, ("grid", self.grid.dims))


class SpatialLocalConvolution2D(_SpatialLocalLayer, LocalConvolution2D):
    """:class:`LocalConvolution2D` of images in blocks; the outputs are in blocks too.

    Args:
        grid: all its ranks make and call the layer.
        in_channels, out_channels, ksize, stride, nobias, initialW, initial_bias: of the whole
            layer. Weights begin as the whole layer's where all ranks' generators are in the same
            state (:func:`mnpar.random.seed`).
        in_size: (H, W) of the whole images, or one number for both; None takes it from the first
            call.

    On each rank W is (K, block of (OH, OW), C, kH, kW) and b (K, block of (OH, OW)).

    Raises:
        ValueError: as :class:`LocalConvolution2D`; or the grid has not two axes.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.links as L
        >>> def program(comm):
        ...     grid = mnpar.SpatialGrid(comm, (2, 1))
        ...     layer = L.SpatialLocalConvolution2D(grid, 1, 4, in_size=8, ksize=3)
        ...     return layer(np.ones((2, 1, 4, 8), "f4")).shape, layer.W.shape
        >>> mnpar.run(program, ranks=2)
        [((2, 4, 3, 6), (4, 3, 6, 1, 3, 3)), ((2, 4, 3, 6), (4, 3, 6, 1, 3, 3))]
    """

    def _decoder(self, nobias: bool) -> SpatialLocalDeconvolution2D:
        sizes = self.filters, self.channels, self.in_size, self.ksize, self.stride
        return SpatialLocalDeconvolution2D(self.grid, *sizes, nobias, initialW=0)

    def forward(self, x: Variable | Array, shape: Sequence[int] | None = None) -> Variable:
        """Map this rank's block (N, C, …) of an image to its block (N, K, …) of the outputs.

        Args:
            x: the block.
            shape: (H, W) of the whole image; may be left out where ``in_size`` was given.

        Raises:
            ValueError: it is not the block of an image of ``in_size``.
        """
        self.in_size = self.in_size or (None if shape is None else (shape[0], shape[1]))
        if self.in_size is None or (shape is not None and tuple(shape) != self.in_size):
            raise ValueError(
                f"{self}: an image of {shape} came to a layer for {self.in_size}: give "
                "in_size, or shape"
            )
        if not self.W.is_initialized:
            self.channels = x.shape[1]
            self._complete()
        block = block_of(type(self).__name__, x, self.grid, self.in_size)
        image = divided(x, self.grid, shape=(*block.x.shape[:2], *block.shape))
        y: Any = local_convolution_2d(image, self._cut(self.W), self._cut(self.b), self.stride)
        return _part(y, self.grid)


class SpatialLocalDeconvolution2D(_SpatialLocalLayer, LocalDeconvolution2D):
    """:class:`LocalDeconvolution2D` from and to blocks.

    Args:
        grid: all its ranks make and call the layer.
        in_channels, out_channels, ksize, stride, nobias, initialW, initial_bias: of the whole
            layer, as in :class:`SpatialLocalConvolution2D`, whose ``decoder`` makes one that
            belongs to it.
        out_size: (H, W) of the whole images that it makes, or one number for both.

    Raises:
        ValueError: as :class:`LocalDeconvolution2D`; or no ``out_size``.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.links as L
        >>> def program(comm):
        ...     grid = mnpar.SpatialGrid(comm, (2, 1))
        ...     encoder = L.SpatialLocalConvolution2D(grid, 1, 4, in_size=8, ksize=3)
        ...     return encoder.decoder()(encoder(np.ones((2, 1, 4, 8), "f4"))).shape
        >>> mnpar.run(program, ranks=2)
        [(2, 1, 4, 8), (2, 1, 4, 8)]
    """

    def __init__(
        self,
        grid: SpatialGrid,
        in_channels: int | None,
        out_channels: int | None,
        out_size: Any,
        ksize: PerAxis,
        stride: PerAxis = 1,
        nobias: bool = False,
        initialW: InitialValue = None,
        initial_bias: InitialValue = None,
    ) -> None:
        if out_size is None:
            raise ValueError(
                "SpatialLocalDeconvolution2D: out_size, of the whole images that it makes, "
                "must be given"
            )
        super().__init__(
            grid, in_channels, out_channels, out_size, ksize, stride, nobias, initialW, initial_bias
        )

    def forward(self, x: Variable | Array, shape: Sequence[int] | None = None) -> Variable:
        """Map this rank's block (N, K, …) of values to its block (N, C, …) of the image;
        ``shape``, of all values, is not needed.
        """
        assert self.in_size is not None
        shape = Window.of(2, self.ksize, self.stride).outputs(self.in_size)
        block = block_of(type(self).__name__, x, self.grid, shape)
        values = divided(x, self.grid, shape=(*block.x.shape[:2], *shape))
        y: Any = local_deconvolution_2d(
            values, self._cut(self.W), self._cut(self.b), self.stride, self.in_size
        )
        return _part(y, self.grid)


class SpatialBatchNormalization(MultiNodeBatchNormalization):
    """:class:`BatchNormalization` of images that are cut into blocks.

    It is :class:`MultiNodeBatchNormalization` over the grid, whose ranks get the whole gradient of
    gamma and beta.

    Args:
        grid: all ranks of its communicator call the layer while ``config.train`` is on.
        size, decay, eps, …: as :class:`BatchNormalization` has them.
        comm: (by name) the ranks that normalize together, if they are more than the grid's: several
            grids that divide a batch.

    Example:
        >>> import numpy as np, mnpar, mnpar.links as L
        >>> def program(comm):
        ...     layer = L.SpatialBatchNormalization(mnpar.SpatialGrid(comm, (2,)), 1)
        ...     return layer(np.full((1, 1, 2), 3.0 * comm.rank), (4,)).array.round(2).tolist()
        >>> mnpar.run(program, ranks=2)
        [[[[-1.0, -1.0]]], [[[1.0, 1.0]]]]
    """

    def __init__(
        self,
        grid: SpatialGrid,
        size: int | tuple[int, ...] | None = None,
        *args: Any,
        comm: Communicator | None = None,
        **kwargs: Any,
    ) -> None:
        require_grid(grid, "SpatialBatchNormalization(grid, size)")
        self.grid = grid
        super().__init__(size, comm or grid.comm, *args, **kwargs)

    def gradient_comms(self) -> GradientComms:
        """Add the ranks of the grid: they get whole gradients."""
        return super().gradient_comms().add(self.grid.comm)

    def _initialize_params(self, size: tuple[int, ...], like: Any = None) -> None:
        super()._initialize_params(size, like)
        broadcast_params(self.grid, self)

    def forward(  # type: ignore[override]
        self, x: Variable | Array, shape: Sequence[int] | None = None, finetune: bool = False
    ) -> Variable:
        """Return the normalized block; ``shape``, of the whole image, is not needed, and accepted
        as by the other layers.
        """
        return super().forward(x, finetune)

    def _scale_and_shift(self) -> tuple[Variable | Array, Variable | Array]:
        gamma, beta = copy_all_to(self.grid.comm, self.gamma, self.beta)
        return self._or_constant(gamma, 1), self._or_constant(beta, 0)


class SpatialLayerNormalization(OnGrid, LayerNormalization):
    """:class:`LayerNormalization` of samples that are cut into blocks.

    Args:
        grid: all ranks of its communicator make the layer, and call it.
        size: of gamma and beta: the last axes of the whole, all spatial axes among them, such as
            (C, H, W).
        eps, initial_gamma, initial_beta: as :class:`LayerNormalization` has them.

    Example:
        >>> import numpy as np, mnpar, mnpar.links as L
        >>> def program(comm):
        ...     layer = L.SpatialLayerNormalization(mnpar.SpatialGrid(comm, (2,)), (1, 2))
        ...     return layer(np.full((1, 1, 1), 2.0 * comm.rank), (2,)).array.round(3).tolist()
        >>> mnpar.run(program, ranks=2)
        [[[[-1.0]]], [[[1.0]]]]
    """

    def __init__(self, grid: SpatialGrid, size: tuple[int, ...], *args: Any, **kwargs: Any) -> None:
        super().__init__(grid, size, *args, **kwargs)


class SpatialGroupNormalization(OnGrid, GroupNormalization):
    """:class:`GroupNormalization` of samples that are cut into blocks.

    Args:
        grid: all ranks of its communicator make the layer, and call it.
        groups, size, eps, initial_gamma, initial_beta: as :class:`GroupNormalization` has them.

    Example:
        >>> import numpy as np, mnpar, mnpar.links as L
        >>> def program(comm):
        ...     layer = L.SpatialGroupNormalization(mnpar.SpatialGrid(comm, (2,)), 1)
        ...     return layer(np.full((1, 1, 1), 2.0 * comm.rank), (2,)).array.round(3).tolist()
        >>> mnpar.run(program, ranks=2)
        [[[[-1.0]]], [[[1.0]]]]
    """
