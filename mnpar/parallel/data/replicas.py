"""Ranks that hold copies of one model: values brought into agreement, and whether they still
agree.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np

from mnpar import backend
from mnpar.communicators.communicator import require_communicator
from mnpar.errors import MismatchError
from mnpar.link import Link
from mnpar.optimizers.flat_buffers import Arenas
from mnpar.optimizers.parameter_cache import Members
from mnpar.parallel.data.reducer import Among
from mnpar.parameter import Parameter

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator


def broadcast_model(
    model: Link, comm: Communicator, arenas: Arenas | None = None, among: Among | None = None
) -> None:
    """Give all ranks rank 0's parameters and persistent values.

    A parameter that has no array yet on rank 0 takes those of the first rank where it has; what has
    none anywhere keeps none.

    Args:
        model: of the same structure on all ranks.
        comm: the ranks that hold copies of the model; all of them call this.
        arenas: where the parameters live, if they do.
        among: for parameters of which only some of the ranks have copies (``param.summed``): which
            ranks those are.

    Raises:
        MismatchError: the models differ, with the first difference.

    Example:
        >>> import mnpar, mnpar.links as L
        >>> from mnpar.parallel import broadcast_model
        >>> def program(comm):
        ...     model = L.Linear(1, 1, initialW=comm.rank + 5)
        ...     broadcast_model(model, comm)
        ...     return float(model.W.array[0, 0])
        >>> mnpar.run(program, ranks=3)
        [5.0, 5.0, 5.0]
    """
    require_communicator(comm, "broadcast_model(model, comm)")
    params = list(model.namedparams())
    forms = comm.allgather_obj(
        [(path, None if p.array is None else (p.shape, p.dtype.str)) for path, p in params]
    )
    _check_paths([[path for path, _ in form] for form in forms], "parameters")
    for i, (path, param) in enumerate(params):
        known = [(rank, form[i][1]) for rank, form in enumerate(forms) if form[i][1] is not None]
        if not known or param.summed is not None:
            continue
        for rank, form in known:
            if form != known[0][1]:
                raise MismatchError(
                    f"{path} is {known[0][1]} on rank {known[0][0]} and {form} on rank {rank}: "
                    "copies of one model have the "
                    "same shapes and dtypes on all ranks"
                )
        if len(known) < comm.size:
            _give(comm, param, known[0][0], *known[0][1])
    initialized = [param for _, param in params if param.array is not None]
    arenas = Arenas() if arenas is None else arenas
    places = [(arena.data, arena.summed) for arena in arenas.gather(initialized)]
    for values, summed in [*places, *[(param.array, param.summed) for param in arenas.strays]]:
        copies = comm if summed is None or among is None else among(summed)
        backend.copyto(values, copies.bcast(values, root=0))
    _broadcast_persistents(comm, model)


Persistent = tuple[Link, str, Any]


def shared(one: Link, other: Link) -> bool:
    """Whether two models have a parameter in common."""
    mine = {id(param) for param in one.params()}
    return any([id(param) in mine for param in other.params()])


def persistents(model: Link) -> list[Persistent]:
    """The persistent values of a model, as they are now."""
    return [
        (link, name, copy.deepcopy(getattr(link, name)))
        for link in model.links()
        for name in link._persistent
    ]


def restore(before: list[Persistent] | None) -> None:
    """Set persistent values to what they were."""
    for link, name, value in before or []:
        setattr(link, name, value)


class Copies:
    """Keeps track of whether the copies of a model on several ranks are equal, as far as this rank
    alone can tell.

    Args:
        comm: the ranks that hold them.
        among: as :func:`broadcast_model` has it.
    """

    def __init__(self, comm: Communicator, among: Among | None = None) -> None:
        self.comm, self._among = comm, among
        self.ever = False  # whether they were made equal at any time
        self.complete = False  # whether each parameter had an array then
        # the state of all links (``structure.now``) in which they are complete and not stale
        self.settled: object = None
        self._members, self._stale = Members(), True
        self._seen: list[Parameter] | None = None  # the parameters when ``_stale`` was found
        self._params: list[tuple[Parameter, tuple[int, ...]]] = []

    def make_equal(self, model: Link, arenas: Arenas, equal: bool = False) -> None:
        """Give all ranks rank 0's values; all ranks call it. ``equal``: the parameters are the same
        already.
        """
        if equal:
            _broadcast_persistents(self.comm, model)
        else:
            broadcast_model(model, self.comm, arenas, self._among)
        self.take_as_equal(model)

    def take_as_equal(self, model: Link) -> None:
        """Count the copies as equal, as each rank has loaded its values (``checkpoint.load`` calls
        this).
        """
        self._params = [(param, param.node.shape) for param in model.params()]
        self.ever = True
        self._seen = self.settled = None
        self.complete = all([param.array is not None for param, _ in self._params])

    def stale(self, model: Link) -> bool:
        """Whether parameters have appeared, or changed their shapes, since the copies were made
        equal.
        """
        params = self._members.of(model)
        if params is not self._seen:  # the same list: nothing has changed
            same = self.ever and len(params) == len(self._params)
            self._stale = not same or any(
                [
                    p is not q or p.node.shape != shape
                    for p, (q, shape) in zip(params, self._params, strict=True)
                ]
            )
            self._seen = params
        self.settled = None if self._stale or not self.complete else self._members.seen
        return self._stale


def _give(
    comm: Communicator, param: Parameter, root: int, shape: tuple[int, ...], dtype: str
) -> None:
    """Broadcast a parameter to the ranks where it has no array yet."""
    value = comm.bcast(param.array, root=root)
    if param.array is None:
        param.initialize(shape)
        if param.dtype.str != dtype:
            raise MismatchError(
                f"rank {comm.rank}: parameter {param.name} is initialized as {param.dtype}, "
                f"and on rank {root} as "
                f"{np.dtype(dtype)}: set mnpar.config.dtype alike on all ranks"
            )
        backend.copyto(param.array, value)


def _broadcast_persistents(comm: Communicator, model: Link) -> None:
    owners = [
        (f"{path.rstrip('/')}/{name}", link, name)
        for path, link in model.namedlinks()
        for name in link._persistent
    ]
    _check_paths(comm.allgather_obj([path for path, _, _ in owners]), "persistent values")
    values = [getattr(link, name) for _, link, name in owners]
    others = comm.bcast_obj([None if backend.is_array(value) else value for value in values])
    for (_, link, name), value, other in zip(owners, values, others, strict=True):
        if backend.is_array(value):
            backend.copyto(value, comm.bcast(value, root=0))
        else:
            setattr(link, name, other)


def _check_paths(lists: list[list[str]], what: str) -> None:
    for rank, paths in enumerate(lists):
        if paths != lists[0]:
            here = [p for p in paths if p not in lists[0]]
            there = [p for p in lists[0] if p not in paths]
            difference = (
                f"only rank {rank} has {here}, only rank 0 has {there}"
                if here or there
                else "in another order"
            )
            raise MismatchError(f"the {what} of ranks 0 and {rank} differ: {difference}")
