"""Normalizing layers of images in blocks: the serial layers, with the statistics of all blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mnpar.functions.divided.blocks import shared
from mnpar.functions.divided.halo import SpatialGrid, grid_needed
from mnpar.functions.divided.spatial_normalization import (
    spatial_group_normalization,
    spatial_layer_normalization,
)
from mnpar.links.multi_node_batch_normalization import MultiNodeBatchNormalization
from mnpar.links.sample_normalization import GroupNormalization, LayerNormalization
from mnpar.links.spatial_convolution import OnGrid, make_alike
from mnpar.variable import Variable

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator


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
        grid_needed(grid, "SpatialBatchNormalization(grid, size)")
        self.grid = grid
        super().__init__(size, comm or grid.comm, *args, **kwargs)

    def _initialize_params(self, size: tuple[int, ...], like: Any = None) -> None:
        super()._initialize_params(size, like)
        make_alike(self.grid, self)

    def forward(  # type: ignore[override]
        self, x: Any, shape: Sequence[int] | None = None, finetune: bool = False
    ) -> Variable:
        """The normalized block; ``shape``, of the whole image, is not needed, and accepted as by
        the other layers.
        """
        return super().forward(x, finetune)

    def _scale_and_shift(self) -> tuple[Any, Any]:
        gamma, beta = shared(self.grid.comm, self.gamma, self.beta)
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

    def forward(self, x: Any, shape: Sequence[int] = ()) -> Variable:
        """This rank's block (N, C, …) of an image of ``shape``, normalized."""
        return spatial_layer_normalization(x, self.grid, shape, self.gamma, self.beta, self.eps)


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

    def forward(self, x: Any, shape: Sequence[int] = ()) -> Variable:
        """This rank's block (N, C, …) of an image of ``shape``, normalized."""
        self._take_size(x, 1)
        return spatial_group_normalization(
            x, self.grid, shape, self.groups, self.gamma, self.beta, self.eps
        )
