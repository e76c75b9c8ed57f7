"""Images in blocks on a grid of ranks: each rank has its block of every image, and all labels.

Either every rank reads for itself (:func:`shard_image`; from a ``.npy`` file only its own block),
or one rank reads and sends each of the others its block (:func:`scatter_image`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from mnpar.backend import Array
from mnpar.communicators.communicator import described
from mnpar.communicators.consensus import check_root, run_on_root
from mnpar.dataset.convert import concat_examples
from mnpar.dataset.mixin import Dataset
from mnpar.datasets.combined import TupleDataset

if TYPE_CHECKING:
    from mnpar.communicators import Communicator
    from mnpar.plans import Box


class Grid(Protocol):
    """The part of a :class:`mnpar.SpatialGrid` that is used here."""

    comm: Communicator
    dims: tuple[int, ...]

    def blocks(self, shape: tuple[int, ...]) -> tuple[Box, ...]:
        """Every rank's block of an array of this spatial shape."""


def shard_image(
    images: Any, grid: Grid, labels: Array | Sequence[int] | None = None, *, in_memory: bool = True
) -> Any:
    """Return this rank's block of every image, with the whole labels.

    Args:
        images: an array (N, C, H, W), or with any other axes before the grid's; the path of a
            ``.npy`` file of one, of which only this rank's block is read; or a data set of images
            or of (image, label, …).
        grid: on whose ranks the images are cut: blocks as :meth:`SpatialGrid.block` gives them,
            which may be empty.
        labels: beside an array or a path: an array, or the path of a ``.npy`` file.
        in_memory: False leaves what is in a file there; each example is read when it is asked for.

    Returns:
        A data set of (block, label, …), or the array of blocks if there are no labels. Local: each
        rank reads on its own.

    Raises:
        ValueError: the images have fewer axes than the grid, labels are given twice, or a file
            holds Python objects.

    Example:
        >>> import numpy as np, mnpar
        >>> from mnpar.datasets import shard_image
        >>> images = np.arange(24.0).reshape(2, 1, 3, 4)
        >>> def program(comm):
        ...     block, label = shard_image(images, mnpar.SpatialGrid(comm, (1, 2)), labels=[5, 6])[
        ...         1
        ...     ]
        ...     return block[0, 0].tolist(), label
        >>> mnpar.run(program, ranks=2)
        [([12.0, 13.0], 6), ([14.0, 15.0], 6)]
    """
    _grid_needed(grid, "shard_image(images, grid)")
    arrays = _parts(_opened(images), _opened(labels))
    block = arrays[0][_index(grid.blocks(_size("shard_image", arrays[0], grid))[grid.comm.rank])]
    if in_memory or not isinstance(block, np.memmap):
        block = np.array(block)  # the whole images can be forgotten
    rest = [
        np.array(part) if in_memory and isinstance(part, np.memmap) else part for part in arrays[1:]
    ]
    return TupleDataset(block, *rest) if rest else block


def scatter_image(dataset: Dataset, grid: Grid, root: int = 0) -> Any:
    """Send each rank its block of every image of the root's data set, and all labels. Collective.

    Args:
        dataset: on the root: an array of images, or a data set of images or of (image, label, …).
            On the others None.
        grid: all ranks of its communicator call this.
        root: the rank that has the data set.

    Returns:
        A data set of (block, label, …), or the array of blocks if there are no labels.

    Raises:
        ValueError: there is no such root; or as :func:`shard_image`, on every rank.

    Example:
        >>> import numpy as np, mnpar
        >>> from mnpar.datasets import TupleDataset, scatter_image
        >>> def program(comm):
        ...     whole = (
        ...         TupleDataset(np.arange(24.0).reshape(2, 1, 3, 4), [5, 6])
        ...         if comm.rank == 0
        ...         else None
        ...     )
        ...     part = scatter_image(whole, mnpar.SpatialGrid(comm, (2, 1)))
        ...     return part[1][0].shape, int(part[1][1])
        >>> mnpar.run(program, ranks=2)
        [((1, 2, 4), 6), ((1, 1, 4), 6)]
    """
    _grid_needed(grid, "scatter_image(dataset, grid)")
    comm = grid.comm
    check_root(comm, root)
    arrays: list[Array] = []
    blocks: list[Array] = []

    def prepare() -> int:
        arrays[:] = [np.asarray(part) for part in _parts(dataset, None)]
        boxes = grid.blocks(_size("scatter_image", arrays[0], grid))
        blocks[:] = [np.ascontiguousarray(arrays[0][_index(box)]) for box in boxes]
        return len(arrays)

    parts = run_on_root(comm, root, prepare)
    block = comm.scatter(blocks if comm.rank == root else None, root)
    rest = [comm.bcast(arrays[i] if comm.rank == root else None, root) for i in range(1, parts)]
    return TupleDataset(block, *rest) if rest else block


def _grid_needed(grid: Any, call: str) -> None:
    if not hasattr(grid, "blocks"):
        raise TypeError(f"{call}: a SpatialGrid is needed where {described(grid)} was given")


def _opened(array: Any) -> Any:
    """Return a file as an array that is read where it is looked at."""
    if not isinstance(array, str | Path):
        return array
    try:
        return np.load(array, mmap_mode="r", allow_pickle=False)
    except ValueError as error:
        raise ValueError(f"{array} is no .npy file of numbers: {error}") from None


def _parts(dataset: Any, labels: Array | Sequence[int] | None) -> list[Any]:
    """Return the images as one array, then what else the examples have."""
    if dataset is None:
        raise ValueError("the images are None: the rank that has them passes them")
    if isinstance(dataset, np.ndarray):
        parts: list[Any] = [dataset]
    elif isinstance(dataset, TupleDataset) and all(
        hasattr(part, "__array__") or i for i, part in enumerate(dataset.datasets)
    ):
        parts = list(dataset.datasets)
    else:
        joined = concat_examples(dataset[:] if hasattr(dataset, "get_example") else list(dataset))
        parts = list(joined) if isinstance(joined, tuple) else [joined]
    if labels is None:
        return parts
    if len(parts) > 1 or len(labels) != len(parts[0]):
        own = "labels of their own" if len(parts) > 1 else "none"
        raise ValueError(
            f"{len(labels)} labels were given for {len(parts[0])} images that have {own}"
        )
    return [*parts, labels]


def _size(who: str, images: Array, grid: Grid) -> tuple[int, ...]:
    """Return the spatial axes of the whole images."""
    if images.ndim <= len(grid.dims):
        raise ValueError(
            f"{who}: images of shape {images.shape} need an axis of examples before the grid's "
            f"{len(grid.dims)}"
        )
    return tuple(images.shape[-len(grid.dims) :])


def _index(box: Box) -> tuple[Any, ...]:
    return (..., *[slice(a, b) for a, b in zip(box.start, box.stop, strict=True)])
