"""Arrays in blocks on a grid of ranks, and what windows at the edge of a block read of the others'
blocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np

from mnpar import lazy
from mnpar.backend import Array
from mnpar.communicators.communicator import described, require_communicator
from mnpar.functions.communication.exchange import exchange, iexchange
from mnpar.kernels.windows import PerAxis
from mnpar.plans import Box, Plan, Window
from mnpar.plans.halo import grid_blocks, grid_halo
from mnpar.runtime.callsite import call_site
from mnpar.variable import Variable, as_variable

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator

_above = lazy.names_above(
    __name__,
    divided="mnpar.functions.divided.layout",
    exchanged="mnpar.functions.divided.halos",
)


class SpatialGrid:
    """Ranks on a grid, of which each has one block of an image, a sequence or a volume: the last
    axes of its arrays.

    Blocks are as even as they can be, the longer ones first; with more ranks on an axis than cells,
    some are empty.

    Args:
        comm: rank r is at row r // C and column r % C of a grid of (R, C).
        dims: the number of ranks on each spatial axis. Ranks that the grid does not need have empty
            blocks.
        hide: compute the outputs that read only a rank's own block while the halo is on its way.
            None: where the ranks are on several hosts, and the blocks large; within one, the halo
            comes faster than outputs are cut and joined. The same on all ranks.

    Raises:
        ValueError: the grid needs more ranks than there are; TypeError: numbers that are not whole.

    Example:
        >>> import mnpar
        >>> mnpar.run(lambda comm: mnpar.SpatialGrid(comm, (2, 1)).block((5, 3)).shape, ranks=2)
        [(3, 3), (2, 3)]
    """

    def __init__(
        self, comm: Communicator, dims: Sequence[int], *, hide: bool | None = None
    ) -> None:
        require_communicator(comm, "SpatialGrid(comm, dims)")
        if isinstance(dims, str) or not isinstance(dims, Sequence | np.ndarray):
            raise TypeError(
                f"SpatialGrid(comm, dims): dims is a tuple, such as (2, 1), not {dims!r}"
            )
        self.comm = comm
        self.dims = tuple(map(index, dims))
        self.hide = hide
        # the Parameters that were found to be the same on all ranks, by id (layout.py)
        self.seen: dict[int, Any] = {}
        # the cuts that all ranks were found to agree on, by shape and axes (layout.py)
        self.agreed: dict[Any, None] = {}
        # what was made of this grid before: layouts by shape and axes (layout.py), and other grids
        # of its ranks, or of groups of them
        self.layouts: dict[Any, Any] = {}
        self._grids: dict[Any, SpatialGrid] = {self.dims: self}
        if min(self.dims, default=1) < 1 or math.prod(self.dims) > comm.size:
            raise ValueError(
                f"rank {comm.rank}, {call_site()}: a SpatialGrid of {self.dims} parts has 1 part "
                f"or more on an axis, and one rank for each of its {math.prod(self.dims)} parts: "
                f"the communicator has {comm.size}. Let the product of dims be at most "
                f"{comm.size}, or start as many ranks as there are parts"
            )

    def with_dims(self, dims: Sequence[int]) -> SpatialGrid:
        """Return another grid of the same ranks."""
        dims = tuple(dims)
        grid = self._grids.get(dims)
        if grid is None:
            grid = self._grids[dims] = self._of_same_ranks(dims)
            grid.hide, grid.seen, grid._grids = self.hide, self.seen, self._grids
        return grid

    def _of_same_ranks(self, dims: tuple[int, ...]) -> SpatialGrid:
        """Make another grid of the same ranks; a subclass keeps its class so."""
        return SpatialGrid(self.comm, dims)

    def group(self, along: Sequence[bool]) -> Communicator:
        """Return the communicator of this rank and those that are beside it along some axes of the
        grid, and at the same place along all others. Ranks that the grid does not need are the last
        of the first group. All ranks of the grid call this.
        """
        along = tuple([inside or n == 1 for inside, n in zip(along, self.dims, strict=True)])
        if all(along):
            return self.comm
        key, groups = (self.dims, along), self.comm.groups
        if key not in groups:
            color, rank = 0, self.comm.rank
            if rank < math.prod(self.dims):
                at = np.unravel_index(rank, self.dims)
                for place, parts, inside in zip(at, self.dims, along, strict=True):
                    color = color if inside else color * parts + int(place)
            group = self.comm.split(color, rank)
            assert group is not None
            groups[key] = group
        return groups[key]

    def within(self, along: Sequence[bool], dims: Sequence[int]) -> SpatialGrid:
        """Return a grid of the ranks of :meth:`group`; all ranks call this."""
        key = self.dims, tuple(along), tuple(dims)
        if key not in self._grids:
            self._grids[key] = SpatialGrid(self.group(along), dims, hide=self.hide)
        return self._grids[key]

    def __deepcopy__(self, memo: dict[int, Any]) -> SpatialGrid:
        return self  # ranks are not copied

    def __repr__(self) -> str:
        return f"SpatialGrid({self.dims}, rank {self.comm.rank} of {self.comm.size})"

    def cut(self, x: Variable | Array, axes: Sequence[int] | None = None) -> Any:
        """Cut an array that every rank has: :func:`mnpar.divided`."""
        return _above("divided")(x, self, axes)

    def blocks(self, shape: Sequence[int]) -> tuple[Box, ...]:
        """Every rank's block of an array of this spatial shape: what :func:`repartition` takes."""
        return grid_blocks(tuple(map(index, shape)), self.dims, self.comm.size)

    def block(self, shape: Sequence[int]) -> Box:
        """This rank's block."""
        return self.blocks(shape)[self.comm.rank]

    def share(self, shape: Sequence[int]) -> float:
        """Which part of all cells this rank has: what a mean over its block counts in the mean over
        the whole array.
        """
        return self.block(shape).volume / max(1, Box.whole(shape).volume)

    def halo(
        self, shape: Sequence[int], window: Window, mode: Any = "constant", gaps: bool = False
    ) -> Plan:
        """The plan of :func:`halo_exchange`: made once for each shape. ``gaps``: cells of others
        between those that are read stay where they are.
        """
        return grid_halo(
            self.dims,
            self.comm.size,
            tuple(shape),
            window,
            mode if isinstance(mode, str) else tuple(mode),
            gaps,
        )


def require_grid(grid: Any, call: str) -> None:
    """Raises TypeError if ``grid`` is no grid, with how ``call`` is written."""
    if not isinstance(grid, SpatialGrid):
        raise TypeError(f"{call}: a SpatialGrid is needed where {described(grid)} was given")


def halo_exchange(
    x: Variable | Array,
    grid: SpatialGrid | None = None,
    shape: Sequence[int] | None = None,
    ksize: PerAxis | None = None,
    stride: PerAxis = 1,
    pad: PerAxis = 0,
    dilate: PerAxis = 1,
    cover_all: bool = False,
    mode: Any = "constant",
    fill: float = 0,
    later: bool = False,
) -> Variable:
    """Return what this rank's block of the outputs of a window reads: its own cells, those of
    others, and the padding.

    A convolution or pooling of the result with the same kernel, stride and dilation, and *no*
    padding, gives exactly this rank's block of the outputs of the whole array. In backward the
    gradients of others' cells are added to their owners'.

    Of a divided Variable it is the padded array, divided, of which each rank has what it reads:
    elementwise functions, windows without padding and slices of it, as far as the halos reach,
    send nothing more. So several layers share an exchange, and the halos of a window of 5 are those
    of two windows of 3, one after the other.

    Args:
        x: this rank's block, (N, C, H, W) or with any other axes before the spatial ones; or a
            divided Variable.
        grid: all ranks of its communicator call this. None for a divided Variable, which knows it.
        shape: of the whole array, its spatial axes: (H, W) of the whole image. Of a divided
            Variable, None: all axes after the first two.
        ksize, stride, pad, dilate: of the window: a number, or one for each spatial axis; a pad may
            also be a pair (before, after) for each axis.
        cover_all: one output more where the last cells are in no window.
        mode: how the array goes on beyond its edges, for all spatial axes or one for each:
            ``'constant'`` (``fill``), ``'edge'``, ``'reflect'``, ``'symmetric'``, ``'wrap'``, as in
            ``numpy.pad``.
        fill: the padding of mode ``'constant'``: ``-numpy.inf`` for a maximum.
        later: do not wait for the cells of others before the result is used; :meth:`Window.inside`
            says which outputs do not need them. Not of a divided Variable.

    Returns:
        An array with the leading axes of ``x``; empty where this rank computes no outputs. Of a
        divided Variable one whose shape is that of the padded array, as far as windows read it.

    Raises:
        ValueError: ``x`` is not this rank's block. TypeError: an ordinary array without grid,
            shape or ksize.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> def program(comm):
        ...     grid = mnpar.SpatialGrid(comm, (2,))
        ...     x = np.arange(5.0)[:3] if comm.rank == 0 else np.arange(5.0)[3:]
        ...     return F.halo_exchange(x, grid, (5,), ksize=3, pad=1).array.tolist()
        >>> mnpar.run(program, ranks=2)
        [[0.0, 0.0, 1.0, 2.0, 3.0], [2.0, 3.0, 4.0, 0.0]]
        >>> def slopes(comm):  # of a divided array: the same on any number of ranks
        ...     x = mnpar.SpatialGrid(comm, (2,)).cut(np.arange(5.0)[None, None] ** 2)
        ...     h = F.halo_exchange(x, ksize=3, pad=1, mode="edge")
        ...     return h.shape, (h[..., 2:] - h[..., :-2]).gather().array.tolist()
        >>> mnpar.run(slopes, ranks=2)[0]
        ((1, 1, 7), [[[1.0, 4.0, 8.0, 12.0, 7.0]]])
    """
    call = "halo_exchange(x, grid, shape, ksize)"
    if ksize is None:
        raise TypeError(f"{call}: say the ksize of the window that reads what is exchanged")
    layout: Any = getattr(x, "layout", None)
    if layout is not None:
        if later:
            layout.refuse("halo_exchange(…, later=True)", "it takes blocks", "Leave later out")
        reads = ksize, stride, pad, dilate, cover_all
        return _above("exchanged")(x, grid, shape, reads, mode, fill)  # type: ignore[no-any-return]
    if shape is None:
        raise TypeError(
            f"{call}: say the grid and shape of the whole array of which x is a block; a divided "
            "array, as grid.cut(x), knows both"
        )
    require_grid(grid, call)
    assert grid is not None
    window = Window.of(len(grid.dims), ksize, stride, pad, dilate, cover_all)
    return halo_of(x, grid, tuple(map(index, shape)), window, mode, fill, later, gaps=False)


def halo_of(
    x: Variable | Array,
    grid: SpatialGrid,
    shape: Sequence[int],
    window: Window,
    mode: Any = "constant",
    fill: float = 0,
    later: bool = False,
    gaps: bool = True,
) -> Variable:
    """:func:`halo_exchange` for a window that is made already; with ``gaps``, cells of others that
    no output reads are not sent, and filled.
    """
    return brought(x, grid.comm, grid.halo(shape, window, mode, gaps), fill, later)


def brought(
    x: Variable | Array, comm: Communicator, plan: Plan, fill: float = 0, later: bool = False
) -> Variable:
    """Return what this rank's outputs read, by a plan; ``x`` itself, if that is what it reads."""
    if plan.idle(comm.rank) and getattr(x, "shape", ())[-plan.ndim :] == plan.want[comm.rank].shape:
        comm.channel(
            0
        ).take_number()  # as the others do, who may have something to say to each other
        return as_variable(x)
    return (iexchange if later else exchange)(comm, x, plan, fill)  # type: ignore[no-any-return]
