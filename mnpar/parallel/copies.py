"""Ranks that hold copies of one model: values brought into agreement, and whether they still
agree.
"""

from __future__ import annotations

import copy
import hashlib
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from mnpar import backend
from mnpar.arena import Arenas
from mnpar.communicators.communicator import needed
from mnpar.errors import MismatchError
from mnpar.link import Link
from mnpar.optimizers import GradientMethod
from mnpar.optimizers.members import Members
from mnpar.parallel.reducer import Among
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
    needed(comm, "broadcast_model(model, comm)")
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
        backend.copy_to(values, copies.bcast(values, root=0))
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
        backend.copy_to(param.array, value)


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
            backend.copy_to(value, comm.bcast(value, root=0))
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


def check_parameter_closeness(
    model: Link, comm: Communicator, tolerance: float = 0.0, persistents: bool = False
) -> bool:
    """Whether all ranks hold the same parameters; where not, rank 0 warns and names ranks and
    parameters.

    Args:
        model: of the same structure on all ranks.
        comm: the ranks that hold copies of it; all of them call this.
        tolerance: the largest difference from rank 0's values that passes; 0: the same bits.
        persistents: compare persistent arrays too.

    Returns:
        The same on every rank.

    Raises:
        MismatchError: the models have different parameters.

    Example:
        >>> import mnpar, mnpar.links as L
        >>> def program(comm):
        ...     model = L.Linear(2, 2, initialW=1)
        ...     return mnpar.check_parameter_closeness(model, comm)
        >>> mnpar.run(program, ranks=2)
        [True, True]
    """
    needed(comm, "check_parameter_closeness(model, comm)")
    found = _differences(model, comm, tolerance, persistents)
    if comm.rank == 0 and found:
        warnings.warn(found, stacklevel=2)
    return not found


def alike(model: Link, comm: Communicator, persistents: bool = False) -> bool:
    """Whether all ranks have the same bits, by a digest of them."""
    digest = hashlib.sha256()
    for path, value in _values(model, persistents):
        digest.update(f"{path} {_form(value)} ".encode())
        digest.update(b"" if value is None else backend.as_bytes(backend.to_host(value)))
    return same_digest(comm, digest.digest())


def same_digest(comm: Communicator, digest: bytes) -> bool:
    """Whether the digest is the same on all ranks."""
    return len({bytes(d) for d in comm.allgather(np.frombuffer(digest, np.uint8))}) == 1


def _differences(model: Link, comm: Communicator, tolerance: float, persistents: bool) -> str:
    """What differs, on every rank; empty if nothing does."""
    if alike(model, comm, persistents):
        return ""
    values = list(_values(model, persistents))
    _check_paths(comm.allgather_obj([path for path, _ in values]), "parameters")
    differences = []
    for path, value in values:
        reference = comm.bcast_obj(None if value is None else (value.shape, value.dtype))
        if (None if value is None else (value.shape, value.dtype)) != reference:
            differences.append((path, f"is {_form(value)}, on rank 0 {reference}"))
        if reference is not None:
            given = comm.bcast(value if comm.rank == 0 else None, root=0)
            if value is not None and value.shape == given.shape:
                distance = _distance(backend.to_host(value), backend.to_host(given))
                if not distance <= tolerance:
                    differences.append((path, f"differs by up to {distance:.3g}"))
    found = comm.allgather_obj(differences)
    lines = [
        f"  rank {rank}: {path} {what}" for rank, rows in enumerate(found) for path, what in rows
    ]
    return "parameters are not the same on all ranks:\n" + "\n".join(lines) if lines else ""


class ParameterCheck:
    """An optimizer's hook: every so many updates, an error if the ranks' parameters are no longer
    the same.

    Args:
        comm: the ranks that hold copies of the model; all update equally often.
        every: updates in between; a check costs a pass over the parameters, and 16 bytes from each
            rank.
        tolerance: as :func:`check_parameter_closeness` has it.

    Example:
        >>> import mnpar, mnpar.functions as F, mnpar.links as L
        >>> from mnpar.parallel import ParameterCheck
        >>> def program(comm):
        ...     model = L.Linear(1, 1, initialW=comm.rank)  # not the same
        ...     optimizer = mnpar.optimizers.SGD().setup(model)
        ...     optimizer.add_hook(ParameterCheck(comm, every=1))
        ...     try:
        ...         optimizer.update(lambda: F.sum(model.W))
        ...     except mnpar.errors.MismatchError as error:
        ...         return "not the same" in str(error)
        >>> mnpar.run(program, ranks=2)
        [True, True]
    """

    name = "ParameterCheck"
    timing = "post"

    def __init__(self, comm: Communicator, every: int = 100, tolerance: float = 0.0) -> None:
        needed(comm, "ParameterCheck(comm, every)")
        if every < 1:
            raise ValueError(f"parameters are checked every 1 or more updates, not every {every}")
        self.comm, self.every, self.tolerance = comm, every, tolerance

    def __call__(self, optimizer: GradientMethod) -> None:
        if optimizer.t % self.every == 0:
            found = _differences(optimizer.target, self.comm, self.tolerance, False)
            if found:
                raise MismatchError(f"after {optimizer.t} updates {found}")


def _values(model: Link, persistents: bool) -> Iterator[tuple[str, Any]]:
    for path, param in model.namedparams():
        yield path, param.array
    for path, value in model.namedpersistents() if persistents else ():
        if backend.is_array(value):
            yield path, value


def _form(value: Any) -> str:
    return "not initialized" if value is None else f"{value.shape} {value.dtype}"


def _distance(a: Any, b: Any) -> float:
    if not a.size or (a == b).all():
        return 0.0
    a, b = (x.astype(np.promote_types(x.dtype, np.float64)) for x in (a, b))
    different = ~((a == b) | ((a != a) & (b != b)))  # NaN is like NaN
    distance = abs(a[different] - b[different])
    return float(np.where(np.isnan(distance), np.inf, distance).max(initial=0.0))
