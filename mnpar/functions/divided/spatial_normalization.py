"""Layer and group normalization of samples in blocks, and dropout with the mask of one process.

Mean and variance are those of all blocks (functions/normalization/multi_node_moments.py), one for
each sample and group; gamma and beta are those of the serial layers, of which a block takes its
part.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mnpar.backend import Array
from mnpar.functions.array.get_item import get_item
from mnpar.functions.divided.blocks import check_block, copy_all_to, slices_within
from mnpar.functions.divided.halo import SpatialGrid
from mnpar.functions.noise import dropout
from mnpar.functions.normalization.batch_normalization import FixedBatchNormalization
from mnpar.functions.normalization.moments import cast
from mnpar.functions.normalization.multi_node_moments import multi_node_moments
from mnpar.kernels.dtypes import compute_dtype
from mnpar.plans import Box
from mnpar.variable import Variable


def _normalized(x: Variable, grid: SpatialGrid, groups: int, eps: float) -> Variable:
    """x read as (groups, …), each group with mean 0 and deviation 1 over all blocks."""
    view = 1, groups, x.size // max(groups, 1)
    mean, var, _ = multi_node_moments(grid.comm, x, view)
    ones = x.xp.ones(groups, compute_dtype(x))
    return FixedBatchNormalization(view, eps).apply((x, ones, 0 * ones, mean, var))[0]


def spatial_layer_normalization(
    x: Variable | Array,
    grid: SpatialGrid,
    shape: Sequence[int],
    gamma: Variable | Array,
    beta: Variable | Array,
    eps: float = 1e-5,
) -> Variable:
    """:func:`layer_normalization` of samples that are cut into blocks.

    Args:
        x: this rank's block (N, C, …).
        grid: all ranks of its communicator call this.
        shape: of the whole image, its spatial axes.
        gamma, beta: as in :func:`layer_normalization`, whole and the same on every rank: (C, …), or
            the spatial axes alone.
        eps: added to the variance.

    Returns:
        ``x``'s shape and dtype.

    Raises:
        ValueError: ``x`` is not this rank's block, or gamma and beta do not have the last axes of
            the whole.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> def program(comm):
        ...     x, one = np.full((1, 1, 1), 2.0 * comm.rank), np.ones((1, 2))
        ...     return F.spatial_layer_normalization(
        ...         x, mnpar.SpatialGrid(comm, (2,)), (2,), one, 0 * one
        ...     ).array.round(3)
        >>> mnpar.run(program, ranks=2)
        [array([[[-1.]]]), array([[[1.]]])]
    """
    who, n = "spatial_layer_normalization", len(shape)
    x, shape = check_block(who, x, grid, shape)
    D = gamma.shape
    if not n <= len(D) < x.ndim or (*x.shape[x.ndim - len(D) : 2], *shape) != D or beta.shape != D:
        raise ValueError(
            f"{who}: gamma of shape {D} and beta of shape {beta.shape} must have the last axes "
            "of the whole, "
            f"{(*x.shape[:2], *shape)}, all spatial ones among them"
        )
    gamma, beta = copy_all_to(grid.comm, gamma, beta)
    mine = (..., *slices_within(grid.block(shape), Box.whole(shape)))
    y = _normalized(x, grid, math.prod(x.shape[: x.ndim - len(D)]), eps)
    y = y * get_item(gamma, mine) + get_item(beta, mine)
    return cast(y, x.dtype)


def spatial_group_normalization(
    x: Variable | Array,
    grid: SpatialGrid,
    shape: Sequence[int],
    groups: int,
    gamma: Variable | Array,
    beta: Variable | Array,
    eps: float = 1e-5,
) -> Variable:
    """:func:`group_normalization` of samples that are cut into blocks.

    Args:
        x, grid, shape: as in :func:`spatial_layer_normalization`.
        groups, gamma, beta, eps: as in :func:`group_normalization`; gamma and beta (C,) are the
            same on every rank.

    Returns:
        ``x``'s shape and dtype.

    Raises:
        ValueError: ``x`` is not this rank's block, the groups do not divide the channels, or gamma
            or beta is not (C,).

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> def program(comm):
        ...     x, one = np.array([[[1.0], [5.0]]]) + 2 * comm.rank, np.ones(2)
        ...     return F.spatial_group_normalization(
        ...         x, mnpar.SpatialGrid(comm, (2,)), (2,), 2, one, 0 * one
        ...     ).array.round(3)
        >>> mnpar.run(program, ranks=2)
        [array([[[-1.],
                [-1.]]]), array([[[1.],
                [1.]]])]
    """
    who = "spatial_group_normalization"
    x, shape = check_block(who, x, grid, shape)
    C = x.shape[1]
    if groups < 1 or C % groups or gamma.shape != (C,) or beta.shape != (C,):
        raise ValueError(
            f"{who}: {groups} groups must divide the {C} channels, and gamma {gamma.shape} and "
            f"beta {beta.shape} be {(C,)}"
        )
    gamma, beta = [p.reshape((C, *[1] * len(shape))) for p in copy_all_to(grid.comm, gamma, beta)]
    y = _normalized(x, grid, x.shape[0] * groups, eps) * gamma + beta
    return cast(y, x.dtype)


def spatial_dropout(
    x: Any,
    grid: SpatialGrid,
    shape: Sequence[int],
    ratio: float = 0.5,
    *,
    rng: np.random.Generator | None = None,
) -> Variable:
    """:func:`dropout` of an image that is cut into blocks, with the mask that the whole image gets
    in one process.

    Every rank draws the numbers of the whole and keeps its own, so the ranks' generators stay alike
    if they were seeded alike; with different seeds each block has a mask of its own.

    Args:
        x: this rank's block (N, C, …).
        grid, shape: the grid, and the shape of the whole image, its spatial axes.
        ratio, rng: as in :func:`dropout`.

    Returns:
        ``x``'s shape and dtype; ``x`` itself while ``config.train`` is off.

    Raises:
        ValueError: ``x`` is not this rank's block, or the ratio is outside [0, 1).

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> def program(comm):
        ...     grid, rng = mnpar.SpatialGrid(comm, (2,)), np.random.default_rng(0)
        ...     return F.spatial_dropout(np.ones((1, 1, 2)), grid, (4,), rng=rng).array
        >>> (
        ...     np.concatenate(mnpar.run(program, ranks=2), axis=2),
        ...     F.dropout(np.ones(4), rng=np.random.default_rng(0)).array,
        ... )
        (array([[[2., 2., 2., 0.]]]), array([2., 2., 2., 0.]))
    """
    x, shape = check_block("spatial_dropout", x, grid, shape)
    whole, box = (*x.shape[:2], *shape), grid.block(shape)
    part = (slice(None), slice(None), *box.index)
    return dropout(x, ratio, rng=rng, whole=whole, part=part)  # type: ignore[no-any-return]
