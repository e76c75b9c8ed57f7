"""Global poolings, and the linear layer, of images that are divided into blocks.

The outputs are the same on every rank, which own them together (:func:`reduce_from`): all ranks
continue alike and compute one loss, which counts once. So parameters used afterwards get their
whole gradient on each rank without a message, and those used before, as in
:func:`spatial_convolution_nd`, get the sum over ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mnpar.backend import Array
from mnpar.functions.array.get_item import get_item, where
from mnpar.functions.communication.shared import reduce_from
from mnpar.functions.connection.linear import linear
from mnpar.functions.divided.blocks import check_block
from mnpar.functions.divided.halo import SpatialGrid
from mnpar.plans import Box
from mnpar.variable import Variable, as_variable


def spatial_global_average_pooling(
    x: Variable | Array, grid: SpatialGrid, shape: Sequence[int]
) -> Variable:
    """The mean of each channel over the whole image.

    Args:
        x: this rank's block (N, C, …).
        grid: all ranks of its communicator call this, and then do the same with the result.
        shape: of the whole image, its spatial axes.

    Returns:
        (N, C), the same on every rank; a loss computed from it on every rank counts once.

    Raises:
        ValueError: ``x`` is not this rank's block, or the image has no cells.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> def program(comm):
        ...     x = mnpar.Variable(np.full((1, 1, 2), float(comm.rank)))
        ...     y = F.spatial_global_average_pooling(x, mnpar.SpatialGrid(comm, (2,)), (4,))
        ...     F.sum(y).backward()
        ...     return y.array.tolist(), x.grad.tolist()
        >>> mnpar.run(program, ranks=2)
        [([[0.5]], [[[0.25, 0.25]]]), ([[0.5]], [[[0.25, 0.25]]])]
    """
    x, shape = _checked("spatial_global_average_pooling", x, grid, shape)
    return reduce_from(
        grid.comm, x.sum(axis=tuple(range(2, x.ndim))) * (1 / Box.whole(shape).volume)
    )


def spatial_global_max_pooling(
    x: Variable | Array, grid: SpatialGrid, shape: Sequence[int]
) -> Variable:
    """The largest number of each channel in the whole image; its gradient goes to where it is, the
    first place of several.

    Args:
        x, grid, shape: as in :func:`spatial_global_average_pooling`.

    Returns:
        (N, C), the same on every rank; a loss computed from it on every rank counts once.

    Raises:
        ValueError: ``x`` is not this rank's block, or the image has no cells.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> def program(comm):
        ...     x = mnpar.Variable(np.array([[[3.0, 5.0]]]) - comm.rank)
        ...     y = F.spatial_global_max_pooling(x, mnpar.SpatialGrid(comm, (2,)), (4,))
        ...     F.sum(y).backward()
        ...     return y.item(), x.grad.tolist()
        >>> mnpar.run(program, ranks=2)
        [(5.0, [[[0.0, 1.0]]]), (5.0, [[[0.0, 0.0]]])]
    """
    x, shape = _checked("spatial_global_max_pooling", x, grid, shape)
    xp, (N, C), box = x.xp, x.shape[:2], grid.block(shape)
    offers = xp.zeros((2, N, C))  # the largest here, and which cell of the image that is
    offers[0] = -np.inf
    flat = x.reshape((N, C, box.volume))
    if box.volume:
        at = flat.array.argmax(axis=2)
        mine = get_item(flat, (xp.arange(N)[:, None], xp.arange(C), at))
        offers[0] = mine.array
        inside = xp.unravel_index(at, box.shape)
        offers[1] = 0
        for n, start, index in zip(shape, box.start, inside, strict=True):
            offers[1] = offers[1] * n + (start + index)
    else:
        mine, offers[1] = flat.sum(axis=2), np.inf
    every = xp.stack(grid.comm.allgather(offers))
    best = every[:, 0].max(axis=0)
    here = (every[:, 0] == best) | xp.isnan(every[:, 0])  # a nan is the largest
    first = xp.where(here, every[:, 1], np.inf).min(axis=0)
    chosen = here[grid.comm.rank] & (offers[1] == first)
    # (infinity times 0 would be nan)
    return reduce_from(grid.comm, where(chosen, mine, xp.zeros_like(mine.array)))


def spatial_linear(
    x: Variable | Array,
    grid: SpatialGrid,
    shape: Sequence[int],
    W: Variable | Array,
    b: Variable | Array | None = None,
) -> Variable:
    """:func:`linear` of whole images that are cut into blocks: each rank multiplies its block with
    its columns of the matrix.

    Only the outputs travel: a sum over ranks of (N, out) numbers. Nothing is gathered, and W needs
    no message in backward.

    Args:
        x: this rank's block (N, C, …).
        grid: all ranks of its communicator call this, and then do the same with the result.
        shape: of the whole image, its spatial axes.
        W: of the whole (out, C, …) the cells of this rank's block; or these as columns of a matrix,
            (out, C · cells).
        b: (out,), the same on every rank, or None.

    Returns:
        (N, out), the same on every rank; a loss computed from it on every rank counts once.

    Raises:
        ValueError: ``x`` is not this rank's block, or W has other columns.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> def program(comm):
        ...     x, W = (
        ...         np.ones((1, 1, 2)) if comm.rank == 0 else np.ones((1, 1, 1)),
        ...         np.full((4, 2 - comm.rank), 3.0),
        ...     )
        ...     return F.spatial_linear(x, mnpar.SpatialGrid(comm, (2,)), (3,), W).array.tolist()
        >>> mnpar.run(program, ranks=2)
        [[[9.0, 9.0, 9.0, 9.0]], [[9.0, 9.0, 9.0, 9.0]]]
    """
    (x, shape), W = check_block("spatial_linear", x, grid, shape), as_variable(W)
    columns = x.shape[1] * grid.block(shape).volume
    if W.shape[1:] not in ((columns,), x.shape[1:]):
        raise ValueError(
            f"spatial_linear: rank {grid.comm.rank} has W {W.shape}, but {columns} columns "
            f"belong to x {x.shape}"
        )
    y = reduce_from(
        grid.comm, linear(x.reshape((x.shape[0], columns)), W.reshape((W.shape[0], columns)))
    )
    return y if b is None else y + b


def _checked(
    who: str, x: Any, grid: SpatialGrid, shape: Sequence[int]
) -> tuple[Variable, tuple[int, ...]]:
    x, shape = check_block(who, x, grid, shape)
    if 0 in shape:
        raise ValueError(f"{who}: an image of {shape} has no cells")
    return x, shape
