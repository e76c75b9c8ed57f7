"""SharedVariable: a name for the array that each rank has, and the collectives on these arrays, as
Synkhronos' shared variables have them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.communicators import create_communicator
from mnpar.communicators.consensus import check_root, run_on_root
from mnpar.parallel.spmd.rows import require_rows, select
from mnpar.plans import block

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator


_OPS = {"avg": "mean", "mean": "mean", "sum": "sum", "prod": "prod", "min": "min", "max": "max"}


class SharedVariable:
    """A rank's own array under a name that all ranks know; :attr:`array` and collectives change it.

    Args:
        value: of this rank, an array or a number.
        comm: the ranks; None: all of the job.
        name: for error messages.

    Example:
        >>> import numpy as np, mnpar
        >>> from mnpar.parallel import SharedVariable
        >>> def program(comm):
        ...     s = SharedVariable(np.full(2, comm.rank + 1.0), comm)
        ...     s.all_reduce("sum")
        ...     return s.array.tolist()
        >>> mnpar.run(program, ranks=3)[0]
        [6.0, 6.0]

    Source:
        Stooke and Abbeel 2017, "Synkhronos", arXiv 1710.04162.
    """

    def __init__(
        self, value: Any, comm: Communicator | None = None, name: str | None = None
    ) -> None:
        self.comm = create_communicator() if comm is None else comm
        self.name = name or "shared variable"
        self.array: Array = self._array(value)

    def __repr__(self) -> str:
        return f"<{self.name} {self.array.shape} {self.array.dtype} of rank {self.comm.rank}>"

    def broadcast(self, value: Any = None, root: int = 0) -> None:
        """Set the array on every rank to the root's value; every rank calls it.

        Args:
            value: on the root; None: the root's array. Other ranks' values are not read.
            root: the rank that gives the value.
        """
        if self.comm.rank == root and value is not None:
            self.array = self._array(value)
        received = self.comm.bcast(self.array, root)
        self.array = self.array if self.comm.rank == root else received

    def scatter(self, value: Any = None, batch: Any = None, root: int = 0) -> None:
        """Set the array on every rank to its rows of the root's value: lengths differ by 1 at most.
        Every rank calls it.

        Args:
            value: (N, …), on the root; None: the root's array.
            batch: which rows: the first so many, a slice, or a list of indices.
            root: the rank that gives the value.

        Raises:
            IndexError: the batch goes beyond the value; on all ranks.
        """
        check_root(self.comm, root)
        whole: Array | None = None  # on the root

        def choose() -> None:
            nonlocal whole
            given = self.array if value is None else self._array(value)
            whole = given[select(batch, len(require_rows(given, self.name)), self.name)]

        run_on_root(self.comm, root, choose)
        P = self.comm.size
        self.array = self.comm.scatter(
            None if whole is None else [whole[slice(*block(len(whole), P, r))] for r in range(P)],
            root,
        )

    def gather(self, nd_up: int = 1, root: int = 0) -> Array | None:
        """Return all ranks' arrays on the root; None elsewhere. Every rank calls it.

        Args:
            nd_up: 1: under a new first axis, (P, …), which needs equal shapes; 0: joined along the
                first axis, of any lengths.
            root: the rank that gets them.

        Raises:
            ValueError: shapes that cannot be joined; on all ranks.
        """
        self._check_joined(nd_up)
        parts = self.comm.gather(self.array, root)
        return None if parts is None else _joined(parts, nd_up)

    def all_gather(self, nd_up: int = 0) -> Array:
        """Set the array on every rank to the result of :meth:`gather`, and return it."""
        self._check_joined(nd_up)
        self.array = _joined(self.comm.allgather(self.array), nd_up)
        return self.array

    def reduce(self, op: str = "avg", in_place: bool = True, root: int = 0) -> Array | None:
        """Return the elementwise reduction over ranks on the root; None elsewhere. Every rank calls
        it.

        Args:
            op: ``'avg'``, which counts each rank once, ``'sum'``, ``'prod'``, ``'min'`` or
                ``'max'``.
            in_place: set the root's array to the result.
            root: the rank that gets the result.
        """
        result = self.comm.reduce(self.array, root, _op(op))
        if in_place and result is not None:
            self.array = result
        return result

    def all_reduce(self, op: str = "avg") -> Array:
        """Set the array on every rank to the result of :meth:`reduce`, and return it."""
        self.array = self.comm.allreduce(self.array, _op(op))
        return self.array

    def set_value(self, value: Any, rank: int | None = None) -> None:
        """Set the array on one rank, or with None on every rank that calls it; nothing is sent."""
        if rank is None or self.comm.rank == check_root(self.comm, rank, "rank"):
            self.array = self._array(value)

    def get_value(self, rank: int = 0) -> Array:
        """Return the array of one rank, on every rank."""
        return self.comm.bcast(self.array, rank)

    def get_shapes(self) -> list[tuple[int, ...]]:
        """Return the shape of each rank's array."""
        return self.comm.allgather_obj(self.array.shape)

    def get_lengths(self) -> list[int]:
        """Return the number of rows of each rank; a single number counts as one."""
        return [shape[0] if shape else 1 for shape in self.get_shapes()]

    def _check_joined(self, nd_up: int) -> None:
        """Check on all ranks that the arrays can be joined, so that all of them raise the error."""
        if nd_up not in (0, 1):
            raise ValueError(f"gathered arrays get 0 or 1 axes more, not {nd_up}")
        shapes = self.get_shapes()
        if any(
            shape[1 - nd_up :] != shapes[0][1 - nd_up :] or len(shape) != len(shapes[0])
            for shape in shapes
        ):
            same = "shapes" if nd_up else "axes behind the first"
            raise ValueError(
                f"{self.name} has the shapes {shapes} on its ranks: with nd_up={nd_up} all "
                f"have the same {same}"
            )
        if not nd_up and not shapes[0]:
            raise ValueError(
                f"{self.name} is a single number, which has no first axis to join along: "
                "nd_up=1 makes one"
            )

    def _array(self, value: Any) -> Array:
        if value is None:
            raise TypeError(
                f"rank {self.comm.rank}: {self.name} holds an array or a number, not None"
            )
        return value if backend.is_array(value) else np.asarray(value)


def _op(name: str) -> str:
    if name not in _OPS:
        raise ValueError(f"variables are reduced by {', '.join(_OPS)}, not {name!r}")
    return _OPS[name]


def _joined(parts: tuple[Array, ...], nd_up: int) -> Array:
    xp = backend.get_array_module(*parts)
    return xp.stack(parts) if nd_up else xp.concatenate(parts)
