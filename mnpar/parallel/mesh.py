"""Mesh: ranks on a grid whose axes have names; each axis is a way to divide the work.

A mesh of data=2, pipe=2, model=2 has its 8 ranks on the corners of a cube. A rank's communicator of
an axis has the ranks on the line through that rank along the axis. Layers and optimizers take
communicators, so they need not know meshes. The mesh ensures that the axes fit together, and lets
parallel/data/placement.py check them.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mnpar.communicators.communicator import require_communicator
from mnpar.errors import MismatchError, closest, suggestion
from mnpar.functions.divided.halo import SpatialGrid
from mnpar.plans import block

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator

# the axes of every mesh, of one rank by default
AXES = ("data", "pipe", "model", "space", "sequence", "expert")
Size = int | tuple[int, ...]

# a note to errors whose cause may be an ensemble
NOTE = (
    ". (Members of an ensemble are an axis of their own, before that of their ranks, and differ by "
    "their paths: Mesh(comm, member=2, model=-1), Ensemble(mesh['member', 'model'], …, groups=2), "
    "optimizer.setup(ensemble).)"
)


class Mesh:
    """The ranks of a communicator on a grid whose axes have names. All ranks make it.

    ``mesh.model`` is the communicator of the axis ``model``, made by ``split``; ``mesh["data",
    "space"]`` is that of several axes. The last axis is the fastest: neighbours on it have
    neighbouring ranks, so the axis that communicates most belongs there.

    Args:
        comm: the communicator whose ranks form the grid.
        axes: names and sizes, whose product is the number of ranks; one size may be -1, for the
            ranks that are left. A tuple, such as ``space=(1, 2)``, is an axis of so many ranks that
            form a grid among themselves. The axes data, pipe, model, space, sequence and expert
            always exist, with one rank where they are left out.

    Attributes:
        comm: of all ranks.
        axes: the names and sizes, in their order, without those that were left out.
        coordinates: the place of this rank on each axis; a tuple on axes that are grids.

    Raises:
        ValueError: the sizes do not make the number of ranks, or a name cannot be used.
        MismatchError: ranks have different axes.

    Example:
        >>> import mnpar
        >>> def program(comm):
        ...     mesh = mnpar.Mesh(comm, data=2, model=2)
        ...     return mesh.coordinates, mesh.model.size, mesh.pipe.size, mesh["data", "model"].size
        >>> mnpar.run(program, ranks=4)[2]
        ({'data': 1, 'model': 0}, 2, 1, 4)
    """

    if TYPE_CHECKING:
        data: Communicator
        pipe: Communicator
        model: Communicator
        space: Communicator
        sequence: Communicator
        expert: Communicator

    def __init__(self, comm: Communicator, /, **axes: int | Sequence[int]) -> None:
        require_communicator(comm, "Mesh(comm, data=2, model=-1)")
        self.comm = comm
        for name in axes:
            if (
                hasattr(type(self), name)
                or name in ("comm", "axes", "coordinates", "sequence_axes", "hide")
                or name.startswith("_")
            ):
                raise ValueError(
                    f"an axis of a mesh cannot be called {name!r}, which is a name that meshes use"
                )
            _check_spelling(name)
        self.axes = _sizes(axes, comm.size)
        meshes = comm.allgather_obj(str(self)) if comm.size > 1 else []
        if len(set(meshes)) > 1:
            raise MismatchError(
                f"all ranks make the same mesh, but rank 0 made {meshes[0]} and others "
                f"{sorted(set(meshes[1:]))}"
            )
        self._shape = tuple([math.prod(_tuple(size)) for size in self.axes.values()])
        self._places: list[tuple[int, ...]] = [
            tuple(map(int, place)) for place in np.ndindex(*self._shape)
        ]
        here = dict(zip(self.axes, self._places[comm.rank], strict=True))
        self.coordinates: dict[str, Size] = {
            name: _within(here[name], size) for name, size in self.axes.items()
        }
        self._made: dict[tuple[str, ...], Communicator] = {}
        self._lines: dict[tuple[tuple[str, ...], int], list[int]] = {}
        self._grids: dict[tuple[str, tuple[int, ...], bool | None], SpatialGrid] = {}
        # the axes along which ranks have parts of the same samples, as cut and parallelize see them
        self.sequence_axes: dict[str, None] = {"sequence": None}
        # ranks at the same place of the pipe make the same layers, and so ask for the same axes
        self._stage = comm
        for name in dict.fromkeys((*self.axes, *AXES)):
            setattr(self, name, self[name])
        self._stage = self[[name for name in self.axes if name != "pipe"]]

    def __getitem__(self, names: str | Sequence[str]) -> Communicator:
        """Return the communicator of the ranks that differ from this one on these axes only, in the
        order of the mesh.

        Communicators of single axes exist already. All ranks of the mesh ask for another one
        together; or, if ``pipe`` is not among the axes, all ranks at this place of ``pipe``, as
        where a layer is made.

        Raises:
            KeyError: there is no such axis.
        """
        wanted = self.span(names)
        if wanted not in self._made:
            whole = len(wanted) == len(self.span(tuple(self.axes))) and self.comm.size > 1
            self._made[wanted] = self.comm if whole else self._split(wanted)
        return self._made[wanted]

    def span(self, names: str | Sequence[str]) -> tuple[str, ...]:
        """Return those axes that have more than one rank, in the order of the mesh.

        Raises:
            KeyError: there is no such axis.
        """
        names = (names,) if isinstance(names, str) else tuple(names)
        known = dict.fromkeys((*self.axes, *AXES))
        for name in names:
            if name not in self.axes and name not in AXES:
                raise KeyError(f"{self!r} has no axis {name!r}{suggestion(name, known)}")
        return tuple(
            [
                name
                for name, n in zip(self.axes, self._shape, strict=True)
                if name in names and n > 1
            ]
        )

    def _split(self, names: tuple[str, ...]) -> Communicator:
        place = self._places[self.comm.rank]
        others = [-1 if name in names else i for name, i in zip(self.axes, place, strict=True)]
        colors = [
            [-1 if name in names else i for name, i in zip(self.axes, p, strict=True)]
            for p in self._places
        ]
        made = (self.comm if "pipe" in names else self._stage).split(
            colors.index(others), self.comm.rank
        )
        assert made is not None
        return made

    def grid(
        self, name: str = "space", ndim: int | None = None, *, hide: bool | None = None
    ) -> SpatialGrid:
        """Return the ranks of an axis as a grid of blocks, made once.

        Args:
            name: of the axis.
            ndim: how many spatial axes images have, if the axis was not given as a tuple; the ranks
                then divide the first one. None: the length of the tuple, and else 2.
            hide: as :class:`mnpar.SpatialGrid` takes it.

        Raises:
            ValueError: the axis has another number of dimensions; KeyError: there is no such axis.

        Example:
            >>> import mnpar
            >>> mnpar.run(
            ...     lambda comm: mnpar.Mesh(comm, space=(1, 2)).grid().block((4, 4)).shape, ranks=2
            ... )
            [(4, 2), (4, 2)]
        """
        comm = self[name]
        size = self.axes.get(name, 1)
        if isinstance(size, int):
            dims = (size, *(1,) * ((2 if ndim is None else ndim) - 1))
        else:
            dims = size if comm.size > 1 or ndim is None else (1,) * ndim
        if ndim is not None and len(dims) != ndim:
            raise ValueError(
                f"the axis {name}={size} is a grid of {len(dims)} dimensions, not of {ndim}"
            )
        key = name, tuple(dims), hide
        if key not in self._grids:
            self._grids[key] = SpatialGrid(comm, dims, hide=hide)
        return self._grids[key]

    def cut(self, x: Any, *, hide: bool | None = None, **axes: int | Sequence[int]) -> Any:
        """Return this rank's part of an array that all ranks have, such as a batch.

        Args:
            x: the whole array, the same on every rank, of which nothing is sent.
            hide: of blocks, as :class:`mnpar.SpatialGrid` takes it.
            axes: which axes of x an axis of the mesh cuts: a number, for a part that is an array of
                this rank, as samples and sequences are; or a tuple, for blocks of a divided
                Variable (:func:`mnpar.divided`), as images are. An axis of one rank cuts nothing.

        Returns:
            An array, or a divided Variable.

        Raises:
            KeyError: the mesh has no such axis. ValueError: x has no such axis, or two axes of the
                mesh are to cut blocks.

        Example:
            >>> import numpy as np, mnpar
            >>> def program(comm):
            ...     mesh = mnpar.Mesh(comm, data=2, space=(1, 2))
            ...     x = mesh.cut(np.zeros((5, 3, 8, 8)), data=0, space=(2, 3))
            ...     return x.shape, x.part.shape
            >>> mnpar.run(program, ranks=4)[3]
            ((2, 3, 8, 8), (2, 3, 8, 4))
        """
        blocks = [(name, axis) for name, axis in axes.items() if not isinstance(axis, int)]
        for name, axis in axes.items():
            comm = self[name]
            if not isinstance(axis, int):
                continue
            if not -x.ndim <= axis < x.ndim:
                raise ValueError(f"mesh.cut: {name}={axis} is no axis of an array {x.shape}")
            if axis % x.ndim:
                self.sequence_axes[name] = None
            mine = slice(*block(x.shape[axis], comm.size, comm.rank))
            x = x[(slice(None),) * (axis % x.ndim) + (mine,)] if comm.size > 1 else x
        blocks = [(name, axis) for name, axis in blocks if self[name].size > 1]
        if len(blocks) > 1:
            raise ValueError(
                f"mesh.cut: {' and '.join([name for name, _ in blocks])} would both cut blocks: "
                "one axis of the mesh that is a grid does, such as space=(2, 2)"
            )
        for name, axis in blocks:
            x = self.grid(name, len(axis), hide=hide).cut(x, axis)
        return x

    def rank_at(self, **coordinates: int | tuple[int, ...]) -> int:
        """Return the rank at a place; on axes that are left out, the place is this rank's.

        Example:
            >>> import mnpar
            >>> mnpar.run(lambda comm: mnpar.Mesh(comm, data=2, model=2).rank_at(model=1), ranks=4)
            [1, 1, 3, 3]
        """
        self.span(tuple(coordinates))  # an unknown one is told
        place = []
        for name, size in self.axes.items():
            i = coordinates.get(name, self.coordinates[name])
            place.append(i if isinstance(i, int) else int(np.ravel_multi_index(i, _tuple(size))))
        return self._places.index(tuple(place))

    def axes_of(self, comm: Communicator) -> tuple[str, ...]:
        """Return the axes along which the ranks of a communicator differ. Nothing is sent.

        Raises:
            ValueError: some of them are not in the mesh.
        """
        numbers = {rank: i for i, rank in enumerate(self.comm.transport.world_ranks)}
        ranks = comm.transport.world_ranks
        if not all([rank in numbers for rank in ranks]):
            raise ValueError(
                f"ranks {[rank for rank in ranks if rank not in numbers]} of {comm!r} are not "
                f"in {self!r}"
            )
        return self.differ([numbers[rank] for rank in ranks])

    def differ(self, ranks: Sequence[int]) -> tuple[str, ...]:
        """Return the axes along which some ranks of the mesh differ."""
        columns = zip(*[self._places[rank] for rank in ranks], strict=True)
        return tuple(
            [name for name, column in zip(self.axes, columns, strict=True) if len(set(column)) > 1]
        )

    def line(self, names: tuple[str, ...], rank: int) -> list[int]:
        """Return the ranks that differ from one rank on these axes only."""
        if (names, rank) not in self._lines:
            mine = self._places[rank]
            kept = [i for i, name in enumerate(self.axes) if name not in names]
            self._lines[names, rank] = [
                other
                for other, place in enumerate(self._places)
                if all([place[i] == mine[i] for i in kept])
            ]
        return self._lines[names, rank]

    def __deepcopy__(self, memo: dict[int, Any]) -> Mesh:
        return self  # ranks are not copied

    def __iter__(self) -> Iterator[str]:
        return iter(self.axes)

    def __str__(self) -> str:
        """Return the text that :meth:`parse` takes."""
        return ",".join(
            [f"{name}={'x'.join(map(str, _tuple(size)))}" for name, size in self.axes.items()]
        )

    def __repr__(self) -> str:
        sizes = ", ".join([f"{name}={size}" for name, size in self.axes.items()])
        here = ", ".join([f"{name} {place}" for name, place in self.coordinates.items()])
        return (
            f"Mesh({sizes}; rank {self.comm.rank} at {here})"
            if here
            else f"Mesh(rank {self.comm.rank})"
        )

    def _repr_html_(self) -> str:
        """Return a table for a notebook: the ranks at their places, this one in bold. The last axis
        runs across.
        """
        *down, across = list(self.axes) or ["rank"]
        width = self._shape[-1] if self._shape else 1
        cells = [
            f"<td>{f'<b>rank {rank}</b>' if rank == self.comm.rank else f'rank {rank}'}</td>"
            for rank in range(self.comm.size)
        ]
        heads = [f"<th>{across} {i}</th>" for i in range(width)]
        rows = ["<tr><th></th>" + "".join(heads) + "</tr>"]
        for start in range(0, len(cells), width):
            pairs = zip(down, self._places[start], strict=False)
            where = ", ".join([f"{name} {place}" for name, place in pairs])
            rows.append(f"<tr><th>{where}</th>{''.join(cells[start : start + width])}</tr>")
        return f"<table>{''.join(rows)}</table>"

    @staticmethod
    def parse(text: str) -> dict[str, Size]:
        """Return the axes of a flag like ``--mesh data=2,pipe=2,model=2,space=1x2``, for
        ``Mesh(comm, **axes)``.

        Args:
            text: names and sizes; a size may be a grid such as 1x2, and one may be -1. Nothing: no
                axes, for one rank.

        Raises:
            argparse.ArgumentTypeError: the text is something else; ``parser.add_argument("--mesh",
                type=mnpar.Mesh.parse)`` makes a usage error of it.

        Example:
            >>> import mnpar
            >>> mnpar.Mesh.parse("data=2,space=1x2")
            {'data': 2, 'space': (1, 2)}
        """
        axes: dict[str, Size] = {}
        for part in text.replace(" ", "").split(",") if text.strip() else ():
            name, _, size = part.partition("=")
            numbers = [int(n) if n.isdecimal() or n == "-1" else 0 for n in size.lower().split("x")]
            if (
                not name.isidentifier()
                or name in axes
                or 0 in numbers
                or (len(numbers) > 1 and -1 in numbers)
            ):
                raise argparse.ArgumentTypeError(
                    f"a mesh is names and sizes, like data=2,model=4,space=1x2, not {text!r}"
                )
            axes[name] = numbers[0] if len(numbers) == 1 else tuple(numbers)
        if list(axes.values()).count(-1) > 1:
            raise argparse.ArgumentTypeError(
                f"one axis of a mesh may be -1, what the others leave, not several as in {text!r}"
            )
        return axes


def _check_spelling(name: str) -> None:
    """Raise ValueError if an axis has nearly the name of one that every mesh has, which would have
    one rank.
    """
    # "modle" is no more like "model" than "modes", a good name, is: but it has the same letters
    reordered = [axis for axis in AXES if sorted(axis) == sorted(name)]
    meant = reordered[0] if reordered else closest(name, AXES, 0.81)
    if meant is not None and name not in AXES and name.rstrip("_0123456789") not in AXES:
        raise ValueError(
            f"a mesh's axis {name!r}: did you mean {meant!r}, which every mesh has? An axis of "
            "your own needs a name less like it"
        )


def _sizes(axes: dict[str, Any], ranks: int) -> dict[str, Size]:
    """Return the sizes, with a number in place of -1; their product is the number of ranks."""
    sizes: dict[str, Size] = {}
    for name, size in axes.items():
        numbers = _tuple(size)
        if not numbers or any(
            [not isinstance(n, int | np.integer) or n < 1 for n in numbers if n != -1]
        ):
            raise ValueError(
                "a mesh's axis has 1 rank or more, or -1 for all that are left: not "
                f"{name}={size!r}"
            )
        sizes[name] = tuple(map(int, numbers)) if isinstance(size, Sequence) else int(size)
    known = math.prod([n for size in sizes.values() for n in _tuple(size) if n != -1])
    free = [name for name, size in sizes.items() if -1 in _tuple(size)]
    text = ", ".join([f"{name}={size}" for name, size in sizes.items()]) or "no axes"
    if len(free) == 1 and ranks % known == 0:
        size = sizes[free[0]]
        rest = ranks // known
        sizes[free[0]] = (
            rest if isinstance(size, int) else tuple([rest if n == -1 else n for n in size])
        )
    elif free or known != ranks:
        more = f" times {len(free)} that are left open" if free else ""
        raise ValueError(
            f"a mesh of {text} has {known}{more} ranks, but the communicator has {ranks}"
        )
    return sizes


def _tuple(size: Any) -> tuple[int, ...]:
    return tuple(size) if isinstance(size, Sequence) else (size,)


def _within(place: int, size: Size) -> Size:
    """Return a place on an axis, as a tuple if the axis is a grid."""
    return (
        place if isinstance(size, int) else tuple([int(i) for i in np.unravel_index(place, size)])
    )
