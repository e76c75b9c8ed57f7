"""A fully connected layer of images in blocks: a Linear whose weights are divided as the image
is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mnpar import backend, initializers
from mnpar.backend import Array
from mnpar.functions.divided.halo import SpatialGrid, grid_needed
from mnpar.functions.divided.spatial_reduction import spatial_linear
from mnpar.link import Link
from mnpar.links.divided import gather_parameter
from mnpar.parameter import Parameter
from mnpar.plans import Box
from mnpar.serializer import Deserializer, placed
from mnpar.variable import Variable


class _Columns:
    """The initializer of W: draws the whole matrix, as that of :class:`Linear`, and keeps this
    rank's cells of it.
    """

    def __init__(self, link: SpatialLinear) -> None:
        self.link = link
        self.dtype = getattr(link._initial, "dtype", None)

    def __call__(self, array: Array) -> None:
        link = self.link
        array[...] = backend.like(
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
        initialW: Any = None,
        initial_bias: Any = None,
    ) -> None:
        super().__init__()
        grid_needed(grid, "SpatialLinear(grid, in_size, out_size)")
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
                "are 1 or more"
            )
        self.grid, self.out_size = grid, out_size
        self.in_size: tuple[int, ...] | None = None
        self._loaded: Any = None  # a whole matrix that came before the size was known
        self._initial = initializers._get_initializer(initialW)
        self.W = Parameter(_Columns(self))
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

    def _first_whole(self, dtype: Any, xp: Any) -> Array:
        """The whole matrix at first: what was loaded before the size was known, or a new one."""
        whole, self._loaded = self._loaded, None
        if whole is None:
            whole = initializers.generate_array(self._initial, self._matrix, xp, dtype)
        return whole

    @property
    def _matrix(self) -> tuple[int, int]:
        """The shape of the serial layer's W."""
        return self.out_size, int(np.prod(self.in_size or ()))

    def _cut(self, whole: Array) -> Array:
        """This rank's cells of a matrix (out_size, C·H·W)."""
        assert self.W.whole is not None
        assert self.W.box is not None
        return whole.reshape(self.W.whole)[self.W.box.index]

    def whole_W(self) -> Array:
        """The matrix (out_size, C·H·W) of the serial layer, on every rank; all ranks of the grid
        call this.
        """
        return gather_parameter(self.grid.comm, self.W).reshape(self._matrix)

    @property
    def printable_specs(self) -> Iterator[tuple[str, Any]]:
        """Names and values to show in ``repr``."""
        yield from (
            ("in_size", self.in_size),
            ("out_size", self.out_size),
            ("nobias", self.b is None),
        )

    def forward(self, x: Any, shape: Sequence[int]) -> Variable:
        """The layer's outputs.

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

    def serialize(self, serializer: Any) -> None:
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
            self.W.array[...] = backend.like(self._cut(whole), self.W.array)
        else:
            self._loaded = serializer("W", None)
        if self.b is not None:
            serializer("b", self.b.array)
