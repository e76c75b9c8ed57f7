"""SharedData: an array in the shared memory of each machine, a data set that all ranks read.

It follows Synkhronos' Data: dtype and number of axes are fixed, the array grows by moving, and
shrinks only when it is freed. Here it may be on several machines (each has a copy, and the root's
values travel to each once), and its values survive growing.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike

from mnpar import backend
from mnpar.backend import Array
from mnpar.communicators import create_communicator
from mnpar.communicators.consensus import run_on_root
from mnpar.errors import MismatchError

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator
    from mnpar.communicators.shared_memory import SharedMemory


class SharedData:
    """One array on each machine, in memory that all its ranks read and write, with numpy's
    indexing.

    A rank reads without the others. The ranks of its machine see what it writes, ``data[3:5] = x``,
    after :meth:`sync`. All ranks together call the methods that say so, which set the copies of all
    machines.

    Args:
        value: the first values, on rank 0; those of other ranks are not read. None: zeros.
        shape: instead of a value, with ``dtype``.
        dtype: by default the value's; it does not change.
        comm: the ranks that share the array, and make it together; None: all of the job.
        minibatch: the array is exactly one batch: a ``batch`` of :func:`mnpar.parallel_function`
            does not select from it.
        force_cast: a value of another dtype is converted even where precision or range is lost.
        oversize: 1 … 2: room for so many times the elements, to grow without moving.
        name: for error messages.

    Raises:
        TypeError: values of a dtype that does not fit, without ``force_cast``. On all ranks, as
            every error of the root.
        ValueError: neither value nor shape and dtype, another number of axes, or ``oversize`` is
            not in 1 … 2.
        MismatchError: ranks ask for different lengths, shapes or room; on all ranks.

    Example:
        >>> import numpy as np, mnpar
        >>> def program(comm):
        ...     data = mnpar.SharedData(
        ...         np.arange(6.0).reshape(3, 2) if comm.rank == 0 else None, comm=comm
        ...     )
        ...     return data.shape, data[[2, 0], 1].tolist()
        >>> mnpar.run(program, ranks=2)[1]
        ((3, 2), [5.0, 1.0])

    Source:
        Stooke and Abbeel 2017, "Synkhronos", arXiv 1710.04162.
    """

    def __init__(
        self,
        value: Any = None,
        shape: tuple[int, ...] | None = None,
        dtype: DTypeLike | None = None,
        comm: Communicator | None = None,
        *,
        minibatch: bool = False,
        force_cast: bool = False,
        oversize: float = 1.0,
        name: str | None = None,
    ) -> None:
        self.comm = create_communicator() if comm is None else comm
        self.name = name or "SharedData"
        self.minibatch = minibatch
        self.force_cast = force_cast
        self._memory: SharedMemory | None = None
        self._array: Any = None
        self._first = self.comm.intra_rank == 0
        self._machines = self.comm.allgather_obj(self.comm.inter_rank)

        def shape_and_dtype() -> tuple[tuple[int, ...], np.dtype]:
            if value is None and (shape is None or dtype is None):
                raise ValueError(f"{self.name} is made of a value on rank 0, or of shape and dtype")
            given: Array = (
                np.empty(shape, dtype) if value is None else np.asarray(backend.to_host(value))
            )
            if given.ndim == 0:
                raise ValueError(
                    f"{self.name} has at least one axis, and was given a single number"
                )
            kind = np.dtype(given.dtype if dtype is None else dtype)
            if kind.hasobject:
                raise TypeError(
                    f"{self.name} cannot hold Python's objects: ranks share numbers, strings "
                    "of one length, structures"
                )
            return given.shape, kind

        self._shape, self.dtype = run_on_root(self.comm, 0, shape_and_dtype)
        self.ndim = len(self._shape)
        if run_on_root(self.comm, 0, lambda: value is not None):
            self.set_value(value, oversize=oversize)
        else:
            self.set_shape(self._shape, oversize)

    @property
    def array(self) -> Array:
        """The array itself, (N, …). The memory can neither move nor be freed while somebody keeps
        the array or a view of it.
        """
        self._require_memory()
        array: Array = self._array
        return array

    @property
    def shape(self) -> tuple[int, ...]:
        """The present shape."""
        return self._shape

    @property
    def alloc_size(self) -> int:
        """The number of elements that there is room for; 0 when the memory is freed."""
        return 0 if self._memory is None else self._memory.array.nbytes // self.dtype.itemsize

    def __len__(self) -> int:
        return self._shape[0]

    def __getitem__(self, index: Any) -> Any:
        return self.array[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self.array[index] = value

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Array:
        return np.array(self.array, dtype=dtype, copy=copy)

    def __repr__(self) -> str:
        return f"<{self.name} {self._shape} {self.dtype}, room for {self.alloc_size}>"

    def set_value(
        self,
        value: Any = None,
        *,
        force_cast: bool | None = None,
        oversize: float = 1.0,
        root: int = 0,
    ) -> None:
        """Set the values on all machines, of the same dtype and number of axes and of any shape;
        all ranks call it.

        Args:
            value: the values, on the root; those of other ranks are not read.
            force_cast: as for the class, for this time.
            oversize: as for the class, if the array must grow.
            root: the rank that gives the values.

        Raises:
            BufferError: the array must grow, and some rank keeps a view of it.
        """
        new: Any = None  # on the root

        def condition() -> tuple[int, ...]:
            nonlocal new
            new = self.condition_data(value, force_cast)
            return tuple(new.shape)

        shape = run_on_root(self.comm, root, condition)
        self._reshape(shape, oversize, math.prod(shape))
        self._fill(new, root)

    def set_length(self, length: int, oversize: float = 1.0) -> None:
        """Set the number of rows: old rows keep their values, new rows are zeros. All ranks call
        it.
        """
        self.set_shape((length, *self._shape[1:]), oversize)

    def set_shape(self, shape: tuple[int, ...], oversize: float = 1.0) -> None:
        """Set the shape: values stay if only the number of rows changes, else all are zeros. All
        ranks call it.
        """
        if (
            not isinstance(shape, tuple | list)
            or len(shape) != self.ndim
            or not all(map(_is_length, shape))
        ):
            raise ValueError(
                f"rank {self.comm.rank}: {self.name} has {self.ndim} axes of 0 or more: "
                f"{shape} is no shape for it"
            )
        same_rows = self._memory is not None and tuple(shape[1:]) == self._shape[1:]
        self._reshape(tuple(shape), oversize, math.prod(self._shape) if same_rows else 0)
        self.sync()

    def sync(self) -> None:
        """Let all ranks of a machine see what any of them wrote before; all ranks call it."""
        memory = self._require_memory()
        memory.sync()
        self.comm.barrier()
        memory.sync()

    def free(self) -> None:
        """Free the memory: the only way to make it smaller. All ranks call it.

        Raises:
            BufferError: some rank keeps a view of it; on all ranks.
        """
        if self._memory is not None:
            self._release_views(self._memory)
            self._memory.free()
            self._memory = None
            self._shape = (0, *self._shape[1:])

    free_memory = free  # Synkhronos' name

    def _require_memory(self) -> SharedMemory:
        if self._memory is None:
            raise ValueError(f"{self.name} is freed: set_value or set_shape gives it memory again")
        return self._memory

    def condition_data(self, value: Any, force_cast: bool | None = None) -> Array:
        """Return a value as it would be stored: a contiguous array of the dtype; this rank alone.

        Raises:
            TypeError, ValueError: as the class does.
        """
        given = np.asarray(backend.to_host(value))
        if given.ndim != self.ndim:
            raise ValueError(
                f"{self.name} has {self.ndim} axes, and was given an array of shape {given.shape}"
            )
        forced = self.force_cast if force_cast is None else force_cast
        if not forced and not np.can_cast(given.dtype, self.dtype, "safe"):
            raise TypeError(
                f"{self.name} holds {self.dtype}, and {given.dtype} does not fit: convert it, "
                "or use force_cast=True"
            )
        return np.ascontiguousarray(given, self.dtype).reshape(given.shape)

    def _reshape(self, shape: tuple[int, ...], oversize: float, kept: int) -> None:
        """Change the shape, and the memory if that is too small; the first ``kept`` elements stay,
        the others are zeros.
        """
        if not 1 <= oversize <= 2:
            raise ValueError(f"{self.name}: oversize is a factor from 1 to 2, not {oversize}")
        size = math.prod(shape)
        asked = self.comm.allgather_obj((shape, oversize))  # after it no rank reads any more
        for rank, other in enumerate(asked):
            if other != asked[0]:
                (first, factor), (another, its) = asked[0], other
                raise MismatchError(
                    f"{self.name} is to have the shape {first} with oversize {factor} on rank "
                    f"0, and {another} with {its} on rank {rank}: all ranks ask for the same"
                )
        if self._memory is None or size > self.alloc_size:
            self._move(max(int(size * oversize), size, 1), min(kept, math.prod(self._shape)))
        assert self._memory is not None
        self._array = (
            self._memory.array[: size * self.dtype.itemsize].view(self.dtype).reshape(shape)
        )
        if self._first:
            self._memory.array[kept * self.dtype.itemsize : size * self.dtype.itemsize] = 0
        self._shape = shape

    def _move(self, room: int, kept: int) -> None:
        """Move to new memory with room for ``room`` elements; the first ``kept`` are copied."""
        old = self._memory
        if old is not None:
            self._release_views(old)
        memory = self.comm.share(room * self.dtype.itemsize)
        if old is not None:
            nbytes = kept * self.dtype.itemsize
            if self._first:
                memory.array[:nbytes] = old.array[:nbytes]
            self.comm.barrier()
            old.free()
        self._memory = memory

    def _release_views(self, memory: SharedMemory) -> None:
        """Drop this rank's array on the memory, and check that no rank has another one there."""
        held, self._array = self._array, None
        shape = held.shape
        del held
        keeping = [
            rank for rank, used in enumerate(self.comm.allgather_obj(memory.in_use())) if used
        ]
        if keeping:
            self._array = (
                memory.array[: math.prod(shape) * self.dtype.itemsize]
                .view(self.dtype)
                .reshape(shape)
            )
            raise BufferError(
                f"{self.name} cannot move or be freed while ranks {keeping} keep arrays that "
                "are views of it: take copies"
            )

    def _fill(self, value: Array, root: int) -> None:
        """Write the root's values on its machine, and send them to the first rank of each other
        machine.
        """
        here = self._machines[self.comm.rank]
        there = self._machines[root]
        tag = self.comm.transport.tag_limit
        if self.comm.rank == root:
            self._array[...] = value
            for machine in dict.fromkeys(self._machines):
                if machine != there:
                    # of any dtype
                    self.comm.send(
                        value.reshape(-1).view(np.uint8), self._machines.index(machine), tag
                    )
        elif self._first and here != there:
            self._array.reshape(-1).view(np.uint8)[...] = self.comm.recv(root, tag)
        self.sync()


def _is_length(n: Any) -> bool:
    return isinstance(n, int | np.integer) and not isinstance(n, bool) and int(n) >= 0
