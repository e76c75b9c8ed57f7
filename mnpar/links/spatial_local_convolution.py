"""Local convolution of images in blocks on a grid of ranks: each rank owns the filters of the
positions that it computes.

Forward, a rank receives the halo that its windows need; the decoder is the transpose: it sends what
its windows contribute outside its block to the ranks that own it. As no filter is on two ranks, no
gradient is summed over ranks, and a layer may be as large as the memory of all ranks together. In
checkpoints the filters are whole, as those of the undivided layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from mnpar.functions import exchange, halo_exchange, local_convolution_2d, local_deconvolution_2d
from mnpar.functions.divided.halo import grid_needed
from mnpar.links.divided import Divided, initialize_part
from mnpar.links.local_convolution import LocalConvolution2D, LocalDeconvolution2D
from mnpar.parameter import Parameter
from mnpar.plans import Box, Window
from mnpar.variable import Variable

if TYPE_CHECKING:
    from mnpar.functions.divided.halo import SpatialGrid


class _InBlocks(Divided):
    """The mixin by which the serial layers own, on each rank, what belongs to the rank's block."""

    def __init__(self, grid: SpatialGrid, *args: Any, **kwargs: Any) -> None:
        grid_needed(grid, f"{type(self).__name__}(grid, …)")
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

    @property
    def printable_specs(self) -> Iterator[tuple[str, Any]]:
        """Names and values to show in ``repr``."""
        yield from (*super().printable_specs, ("grid", self.grid.dims))


class SpatialLocalConvolution2D(_InBlocks, LocalConvolution2D):
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

    def __init__(
        self,
        grid: SpatialGrid,
        in_channels: int | None,
        out_channels: int,
        in_size: Any = None,
        ksize: Any = None,
        stride: Any = 1,
        nobias: bool = False,
        initialW: Any = None,
        initial_bias: Any = None,
    ) -> None:
        super().__init__(
            grid, in_channels, out_channels, in_size, ksize, stride, nobias, initialW, initial_bias
        )

    def _decoder(self, nobias: bool) -> SpatialLocalDeconvolution2D:
        sizes = self.filters, self.channels, self.in_size, self.ksize, self.stride
        return SpatialLocalDeconvolution2D(self.grid, *sizes, nobias, initialW=0)

    def forward(self, x: Any, shape: Sequence[int] | None = None) -> Variable:
        """This rank's block (N, C, …) of an image → its block (N, K, …) of the outputs.

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
        chunk = halo_exchange(x, self.grid, self.in_size, self.ksize, self.stride)
        return local_convolution_2d(chunk, self.W, self.b, self.stride)


class SpatialLocalDeconvolution2D(_InBlocks, LocalDeconvolution2D):
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
        ksize: Any,
        stride: Any = 1,
        nobias: bool = False,
        initialW: Any = None,
        initial_bias: Any = None,
    ) -> None:
        if out_size is None:
            raise ValueError(
                "SpatialLocalDeconvolution2D: out_size, of the whole images that it makes, "
                "must be given"
            )
        super().__init__(
            grid, in_channels, out_channels, out_size, ksize, stride, nobias, initialW, initial_bias
        )

    def forward(self, x: Any, shape: Sequence[int] | None = None) -> Variable:
        """This rank's block (N, K, …) of values → its block (N, C, …) of the image; ``shape``, of
        all values, is not needed.
        """
        assert self.in_size is not None
        window = Window.of(2, self.ksize, self.stride)
        seen = window.reads(self.grid.block(window.outputs(self.in_size))).shape
        chunk = local_deconvolution_2d(x, self.W, None, self.stride, seen)
        y: Variable = exchange(self.grid.comm, chunk, self.grid.halo(self.in_size, window).adjoint)
        return y if self.b is None else y + self.b
