"""Layers whose weights are cut over a grid of ranks as the images are: each rank has the weights of
its own cells.

All other layers of divided images are the ordinary ones, of which each rank has all weights. Of
these three no weight is on two ranks, no gradient is summed over ranks, and a layer may be as large
as the memory of all ranks together. They are called with divided images; in checkpoints their
parameters are whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from mnpar import backend, initializers
from mnpar.backend import Array, ArrayModule
from mnpar.functions import tensordot
from mnpar.functions.divided.halo import SpatialGrid, require_grid
from mnpar.functions.divided.layout import DividedVariable, divided
from mnpar.initializers.initializer import InitialValue
from mnpar.kernels.windows import PerAxis
from mnpar.link import GradientComms, Link
from mnpar.links.divided import Divided, gather_parameter, initialize_part
from mnpar.links.local_convolution import LocalConvolution2D, LocalDeconvolution2D
from mnpar.parameter import Parameter
from mnpar.plans import Box
from mnpar.serializer import AbstractSerializer, Deserializer, placed
from mnpar.variable import Variable


def check_image(link: Any, x: Any) -> DividedVariable:
    """Return the image (N, C, …) that came to a layer.

    Raises:
        TypeError: it is not divided.
        LayoutError: it is cut in another way than the layer's weights.
    """
    name, grid = type(link).__name__, link.grid
    if not isinstance(x, DividedVariable):
        raise TypeError(
            f"{name}: x of shape {x.shape} must be divided as the weights are: grid.cut(x) of an "
            "image that all ranks have, or mnpar.divided(x, grid, shape=whole_shape) of this "
            "rank's block"
        )
    layout = x.layout
    alike = grid.dims == tuple([layout.parts_along(a) for a in range(2, x.ndim)])
    if not alike or layout.grid.comm is not grid.comm or min(layout.cut_axes, default=2) < 2:
        layout.refuse(
            name,
            f"its weights are cut along the axes after the channels, by {grid}",
            "x.repartition(grid) cuts x so; x.gather() gives every rank the whole array",
        )
    return x


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
    """:class:`Linear` of divided images; each rank has the weights of its block's cells, of which
    Linear has all on each rank.

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
        ...     grid = mnpar.SpatialGrid(comm, (2, 1))
        ...     layer = L.SpatialLinear(grid, None, 10)
        ...     return layer(grid.cut(np.ones((5, 3, 4, 4), "f4"))).shape, layer.W.shape
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

    def forward(self, x: Any) -> Variable:
        """Map a divided image (N, C, …) to outputs (N, out_size), the same on every rank.

        Raises:
            ValueError: it is not an image of ``in_size``.
            TypeError, LayoutError: it is not divided as the weights are.
        """
        x = check_image(self, x)
        if not self.W.is_initialized:
            self._initialize_params(x.shape[1:])
        if x.shape[1:] != self.in_size:
            raise ValueError(
                f"SpatialLinear: examples of {x.shape[1:]} came to a layer for {self.in_size}"
            )
        axes = tuple(range(1, x.ndim))
        y = tensordot(x, divided(self.W, self.grid, axes[1:], self.W.whole), (axes, axes))
        return y if self.b is None else y + self.b

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

    W: Parameter
    b: Parameter | None

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

    def _weights(self) -> tuple[Any, Any]:
        """Return W and b as divided Variables, whose axes 1 and 2 are cut."""
        W, b = self.W, self.b
        cut = divided(W, self.grid, (1, 2), W.whole)
        return cut, None if b is None else divided(b, self.grid, (1, 2), b.whole)

    @property
    def printable_specs(self) -> Iterator[tuple[str, object]]:
        """Names and values to show in ``repr``."""
        yield from (*super().printable_specs, ("grid", self.grid.dims))


class SpatialLocalConvolution2D(_SpatialLocalLayer, LocalConvolution2D):
    """:class:`LocalConvolution2D` of divided images; each rank has the filters of its places, of
    which LocalConvolution2D has all on each rank.

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
        ...     return layer(grid.cut(np.ones((2, 1, 8, 8), "f4"))).part.shape, layer.W.shape
        >>> mnpar.run(program, ranks=2)
        [((2, 4, 3, 6), (4, 3, 6, 1, 3, 3)), ((2, 4, 3, 6), (4, 3, 6, 1, 3, 3))]
    """

    def _decoder(self, nobias: bool) -> SpatialLocalDeconvolution2D:
        sizes = self.filters, self.channels, self.in_size, self.ksize, self.stride
        return SpatialLocalDeconvolution2D(self.grid, *sizes, nobias, initialW=0)

    def forward(self, x: Any) -> Variable:
        """Map a divided image (N, C, H, W) to divided outputs (N, K, OH, OW).

        Raises:
            ValueError: it is not an image of ``in_size``.
            TypeError, LayoutError: it is not divided as the filters are.
        """
        check_image(self, x)
        if self.in_size not in (None, x.shape[2:]):
            raise ValueError(
                f"{self}: an image of {x.shape[2:]} came to a layer for {self.in_size}"
            )
        return super().forward(x)


class SpatialLocalDeconvolution2D(_SpatialLocalLayer, LocalDeconvolution2D):
    """:class:`LocalDeconvolution2D` from and to divided images; each rank has the filters of its
    places, of which LocalDeconvolution2D has all on each rank.

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
        ...     y = encoder.decoder()(encoder(grid.cut(np.ones((2, 1, 8, 8), "f4"))))
        ...     return y.shape, y.part.shape
        >>> mnpar.run(program, ranks=2)
        [((2, 1, 8, 8), (2, 1, 4, 8)), ((2, 1, 8, 8), (2, 1, 4, 8))]
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

    def forward(self, x: Any) -> Variable:
        """Map divided values (N, K, OH, OW) to a divided image (N, C, H, W)."""
        return super().forward(check_image(self, x))
