"""parallel_function: a function of one process, which all ranks run, each on its rows of the data.

The root's arrays are cut along the first axis and scattered, or (:class:`mnpar.SharedData`) each
rank reads its rows itself. Each output says how the ranks' results are combined. Means count rows,
so they are those of one process however the rows are divided.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.communicators import create_communicator
from mnpar.communicators.consensus import run_on_root
from mnpar.communicators.reduction import reduce_arrays
from mnpar.errors import MismatchError
from mnpar.parallel.spmd.rows import (
    MODES,
    combine,
    mean,
    require_rows,
    row_count,
    rows_between,
    select,
    select_scattered,
    split,
    to_array,
    weigh,
)
from mnpar.parallel.spmd.shared_data import SharedData
from mnpar.parallel.spmd.shared_variable import SharedVariable
from mnpar.plans import block

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator


Output = str | tuple[str, str | None]


class ParallelFunction:
    """A function that all ranks run together; :func:`mnpar.parallel_function` makes it. All ranks
    call it, with the function's arguments by name.
    """

    def __init__(
        self,
        f: Callable[..., Any],
        scatter: Sequence[str],
        bcast: Sequence[str],
        outputs: Sequence[Output],
        resident: Sequence[str],
        updates: Sequence[Any],
        comm: Communicator,
    ) -> None:
        self.f, self.comm = f, comm
        self.scatter = _names(scatter)
        self.bcast = _names(bcast)
        self.resident = _names(resident)
        pairs: list[Any] = [
            (output, "avg") if isinstance(output, str) else tuple(output)
            for output in _names(outputs)
        ]
        if wrong := [pair for pair in pairs if len(pair) != 2]:
            raise ValueError(f"an output is a name, or (name, mode), not {wrong[0]}")
        self.outputs: dict[str, str | None] = dict(pairs)
        self.updates: list[tuple[SharedVariable, str]] = [
            (update, "avg") if isinstance(update, SharedVariable) else tuple(update)
            for update in updates
        ]
        self._check([*self.scatter, *self.bcast, *self.resident], pairs)

    def _check(self, names: list[str], pairs: list[Any]) -> None:
        for name in names:
            if names.count(name) > 1:
                raise ValueError(
                    f"argument {name!r} is named twice: it is scattered, broadcast or resident"
                )
        if len(self.outputs) < len(pairs):
            raise ValueError(f"two outputs have one name: {[name for name, _ in pairs]}")
        for name, mode in [*pairs, *[(variable.name, mode) for variable, mode in self.updates]]:
            if mode not in MODES:
                raise ValueError(
                    f"output {name!r} has the mode {mode!r}: {', '.join(map(str, MODES))} are known"
                )

    def __call__(
        self,
        *,
        batch: Any = None,
        batch_s: Any = None,
        num_slices: int = 1,
        output_subset: Sequence[str] | None = None,
        **arguments: Any,
    ) -> Any:
        """Run the function; every rank calls this.

        Args:
            batch: which rows of the whole are cut and handed out: the first so many (int), a slice,
                or a list of indices, in their order and with repetitions. The root's counts.
            batch_s: which rows of its resident arguments each rank takes: a slice or list of
                indices for all, or a tuple or list with one of them for each rank.
            num_slices: each rank runs the function on so many pieces of its rows, one after the
                other, and puts their results together, as those of ranks are: for data that do not
                fit at once.
            output_subset: names of the outputs that are put together and returned; None: all.
            arguments: scattered and broadcast ones count on the root (or are SharedData, on every
                rank); others are the rank's own.

        Returns:
            On every rank: the value of a single output, or a tuple in the order of the outputs;
            None if there is none.

        Raises:
            IndexError: a batch goes beyond the rows; ValueError: arguments differ in length. On
                every rank.
            MismatchError: names, modes or what is SharedData differ from the root's. On the rank
                where they do.
        """
        if not isinstance(num_slices, int | np.integer) or num_slices < 1:
            raise ValueError(f"num_slices is 1 or more, not {num_slices}")
        wanted = list(self.outputs) if output_subset is None else list(output_subset)
        if unknown := [name for name in wanted if name not in self.outputs]:
            raise ValueError(f"there are no outputs {unknown}: {list(self.outputs)} are there")
        description = self._description(arguments, wanted)
        shares = self._distribute(arguments, batch, description)
        n = None if shares is None else shares[self.comm.rank]
        own = self._own_rows(arguments, batch_s)
        if n is not None and own is not None and n != own:
            raise ValueError(
                f"rank {self.comm.rank} has {n} scattered rows and {own} resident ones"
            )
        rows = n if n is not None else own
        values, counts = self._run(arguments, rows, num_slices)
        for place, (variable, mode) in enumerate(self.updates, start=len(self.outputs)):
            if values:
                variable.array = combine([value[place] for value in values], counts, mode)
        results = self._collect(values, counts, wanted, shares, description)
        return None if not results else results[0] if len(results) == 1 else tuple(results)

    def _description(self, arguments: dict[str, Any], wanted: list[str]) -> dict[str, Any]:
        """Return what all ranks' calls must have in common, or they would combine unlike values."""
        shared = [
            name
            for name in [*self.scatter, *self.bcast]
            if isinstance(arguments.get(name), SharedData)
        ]
        outputs = [(name, self.outputs[name]) for name in wanted]
        return {
            "scatter": self.scatter,
            "bcast": self.bcast,
            "resident": self.resident,
            "outputs": outputs,
            "SharedData": shared,
        }

    def _distribute(
        self, arguments: dict[str, Any], batch: Any, description: dict[str, Any]
    ) -> list[int] | None:
        """Put this rank's rows of scattered arguments, and broadcast arguments, into ``arguments``;
        return each rank's number of rows.
        """
        comm, root = self.comm, self.comm.rank == 0
        if not (self.scatter or self.bcast):
            return None
        rows: Any = None  # on the root

        def plan() -> tuple[int, bool, tuple[int, int, int] | None, dict[str, Any]]:
            nonlocal rows
            if missing := [
                name for name in [*self.scatter, *self.bcast] if arguments.get(name) is None
            ]:
                raise TypeError(f"the root gives no values for {missing}")
            if not self.scatter:
                return 0, False, None, description
            rows = select_scattered({name: arguments[name] for name in self.scatter}, batch)
            return (
                row_count(rows),
                True,
                (rows.start, rows.stop, rows.step) if isinstance(rows, slice) else None,
                description,
            )

        total, divided, bounds, others = run_on_root(comm, 0, plan)
        _check_same_call(description, others, comm.rank)
        for name in self.bcast:
            given = arguments.get(name)
            arguments[name] = (
                given.array
                if isinstance(given, SharedData)
                else comm.bcast(to_array(given) if root else None)
            )
        if not divided:
            return None
        shares = [block(total, comm.size, rank) for rank in range(comm.size)]
        start, stop = shares[comm.rank]
        if bounds is not None:
            mine = rows_between(slice(*bounds), start, stop)
        else:
            mine = comm.scatter(split(rows, slice(0, total, 1), comm.size) if root else None)
        for name in self.scatter:
            given = arguments.get(name)
            if not isinstance(given, SharedData):
                arguments[name] = comm.scatter(
                    split(to_array(given), rows, comm.size) if root else None
                )
            else:
                arguments[name] = given[start:stop] if given.minibatch else given[mine]
        return [stop - start for start, stop in shares]

    def _own_rows(self, arguments: dict[str, Any], batch_s: Any) -> int | None:
        """Put the rows that ``batch_s`` chooses of the resident arguments into ``arguments``."""
        if not self.resident:
            if batch_s is not None:
                raise ValueError(
                    "batch_s chooses from resident arguments, and this function has none"
                )
            return None
        if isinstance(batch_s, tuple | list) and any(
            [isinstance(one, slice | list | np.ndarray) for one in batch_s]
        ):
            if len(batch_s) != self.comm.size:
                raise ValueError(
                    f"batch_s has {len(batch_s)} batches for {self.comm.size} ranks: one for "
                    "all, or one for each"
                )
            batch_s = batch_s[self.comm.rank]
        counts = {}
        for name in self.resident:
            if arguments.get(name) is None:
                raise TypeError(
                    f"rank {self.comm.rank} gives no values for {name!r}: resident arguments "
                    "are each rank's own"
                )
            given = require_rows(to_array(arguments[name]), name)
            arguments[name] = given[select(batch_s, len(given), name)]
            counts[name] = len(arguments[name])
        if len(set(counts.values())) > 1:
            raise ValueError(
                f"resident arguments have as many rows as each other; on rank {self.comm.rank} "
                f"they have {counts}"
            )
        return next(iter(counts.values()))

    def _run(
        self, arguments: dict[str, Any], rows: int | None, num_slices: int
    ) -> tuple[list[list[Array]], list[int]]:
        """Return the results of each piece that has rows, and how many rows these are."""
        if rows is None:
            return [self._results(self.f(**arguments))], [1]
        values, counts = [], []
        for i in range(num_slices):
            start, stop = block(rows, num_slices, i)
            if start == stop:
                continue
            cut = {name: arguments[name][start:stop] for name in [*self.scatter, *self.resident]}
            values.append(self._results(self.f(**{**arguments, **cut})))
            counts.append(stop - start)
        return values, counts

    def _results(self, returned: Any) -> list[Array]:
        many = len(self.outputs) + len(self.updates)
        if isinstance(returned, dict):
            names = [*self.outputs, *[variable.name for variable, _ in self.updates]]
            if missing := [name for name in names if name not in returned]:
                raise ValueError(f"the function returned {list(returned)}: {missing} are missing")
            returned = [returned[name] for name in names]
        results = (
            []
            if returned is None
            else list(returned)
            if isinstance(returned, tuple | list)
            else [returned]
        )
        if len(results) != many:
            raise ValueError(
                f"the function returned {len(results)} values; its outputs and updates are {many}"
            )
        return [to_array(result) for result in results]

    def _collect(
        self,
        values: list[list[Array]],
        counts: list[int],
        wanted: list[str],
        shares: list[int] | None,
        description: dict[str, Any],
    ) -> list[Any]:
        """Return the wanted outputs, combined over ranks."""
        places = {name: place for place, name in enumerate(self.outputs)}
        modes = [self.outputs[name] for name in wanted]
        mine = [
            combine([value[places[name]] for value in values], counts, self.outputs[name])
            if values
            else None
            for name in wanted
        ]
        if all(mode is None for mode in modes):
            return mine
        if shares is None:
            found = self.comm.allgather_obj((sum(counts), description))
            _check_same_call(description, found[0][1], self.comm.rank)
        everywhere = [n for n, _ in found] if shares is None else shares
        if not any(everywhere):
            raise ValueError("no rank has any rows: there is nothing to run the function on")
        return [
            self._over_ranks(value, mode, everywhere)
            for value, mode in zip(mine, modes, strict=True)
        ]

    def _over_ranks(self, value: Any, mode: str | None, counts: list[int]) -> Any:
        comm, n = self.comm, counts[self.comm.rank]
        if mode is None or comm.size == 1:
            # the result's own, as on more ranks
            return value.copy() if mode == "gather" and value.base is not None else value
        if mode == "avg" and value is not None:
            dtype, value = value.dtype, weigh(value, n)
        if mode == "gather" or not all(counts):  # a rank without rows does not know the shape
            value = comm.allgather(np.zeros(0, np.bool_) if value is None else value)
            parts = [x for x, there in zip(value, counts, strict=True) if there]
            if mode == "gather":
                return combine(parts, counts, mode)
            total = reduce_arrays(
                [backend.wrap_scalar(x) for x in parts], "sum" if mode == "avg" else mode
            )
            if mode == "avg":
                dtype = comm.bcast_obj(
                    dtype if n else None, root=next(r for r, there in enumerate(counts) if there)
                )
        else:
            total = comm.allreduce(value, "sum" if mode == "avg" else mode)
        return mean(total, sum(counts), dtype) if mode == "avg" else total


def parallel_function(
    f: Callable[..., Any],
    scatter: Sequence[str] = (),
    bcast: Sequence[str] = (),
    outputs: Sequence[Output] = ("value",),
    *,
    resident: Sequence[str] = (),
    updates: Sequence[Any] = (),
    comm: Communicator | None = None,
) -> ParallelFunction:
    """Let all ranks run a function, each on its rows; the results are those of one process that has
    all rows.

    Args:
        f: takes its arguments by name, arrays; returns one result, or a tuple or dict of them: the
            outputs, then the updates. Variables among them are taken as arrays: gradients are
            computed inside. It is not run on pieces without rows.
        scatter: names of the arguments whose rows are divided among the ranks.
        bcast: names of the arguments that every rank gets whole.
        outputs: name, or (name, mode), of each result. ``'avg'`` (by rows), ``'sum'``, ``'prod'``,
            ``'min'``, ``'max'``, ``'gather'`` (joined along the first axis); None: each rank keeps
            its own.
        resident: names of arguments that are each rank's own, of which ``batch_s`` chooses rows and
            ``num_slices`` pieces.
        updates: :class:`~mnpar.parallel.SharedVariable`, or (it, mode), for each result after the
            outputs: that becomes what the rank's variable holds. Nothing is communicated; the mode
            is for the pieces of ``num_slices``.
        comm: the ranks; None: all of the job.

    Returns:
        What all ranks call: see :class:`~mnpar.parallel.ParallelFunction` for ``batch``,
        ``batch_s``, ….

    Raises:
        ValueError: an unknown mode, or a name that is used twice.

    Example:
        >>> import numpy as np, mnpar
        >>> def program(comm):
        ...     f = mnpar.parallel_function(lambda x, w: (x * w).mean(), ["x"], ["w"], comm=comm)
        ...     root = comm.rank == 0
        ...     x, w = (np.arange(10.0), np.array(2.0)) if root else (None, None)
        ...     return float(f(x=x, w=w)), float(f(x=x, w=w, batch=[9, 9, 0]))
        >>> mnpar.run(program, ranks=3)[2]
        (9.0, 12.0)

    Source:
        Stooke and Abbeel 2017, "Synkhronos", arXiv 1710.04162.
    """
    comm = create_communicator() if comm is None else comm
    return ParallelFunction(f, scatter, bcast, outputs, resident, updates, comm)


def _names(names: Any) -> list[Any]:
    return [names] if isinstance(names, str) else list(names)


def _check_same_call(mine: dict[str, Any], roots: dict[str, Any], rank: int) -> None:
    """Compare this rank's description of a call with the root's.

    Raises:
        MismatchError: the descriptions differ.
    """
    for what, theirs in roots.items():
        if mine[what] != theirs:
            raise MismatchError(
                f"a parallel_function has {what} {theirs} on rank 0, and {mine[what]} on rank "
                f"{rank}: all ranks make and call it alike"
            )
