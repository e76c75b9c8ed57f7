"""Check whether ranks that hold copies of one model still have the same values, and on a mesh the
same gradients.

A gradient that is only a rank's share, where it should be whole, is no error by itself: the copies
drift apart, and the loss falls a little less. So ranks compare sums, some tens of bytes for each
parameter. Copies nearly always have the same bits, and then one digest of all values is enough;
sums are for copies that may differ by rounding.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.checks.fingerprint import Fingerprint, fingerprint
from mnpar.communicators.communicator import require_communicator
from mnpar.communicators.replication import check_paths
from mnpar.errors import MismatchError
from mnpar.link import Link
from mnpar.optimizers import GradientMethod
from mnpar.parameter import Parameter

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator
    from mnpar.parallel.data.placement import Placement

NO_DIGEST = bytes(16)


def check_parameter_closeness(
    model: Link, comm: Communicator, tolerance: float = 0.0, persistents: bool = False
) -> bool:
    """Return whether all ranks hold the same parameters; where not, rank 0 warns and names ranks
    and parameters.

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
    require_communicator(comm, "check_parameter_closeness(model, comm)")
    found = _differences(model, comm, tolerance, persistents)
    if comm.rank == 0 and found:
        warnings.warn(found, stacklevel=2)
    return not found


def are_equal(model: Link, comm: Communicator, persistents: bool = False) -> bool:
    """Return whether all ranks have the same bits, by a digest of them; all ranks call it."""
    digest = np.frombuffer(digest_of(_values(model, persistents)), np.uint8)
    return len({bytes(one) for one in comm.allgather(digest)}) == 1


def digest_of(values: Iterable[tuple[str, Any]]) -> bytes:
    """Return a digest of named arrays, some of which may be None."""
    digest = hashlib.sha256()
    for path, value in values:
        digest.update(f"{path} {_form(value)} ".encode())
        if value is not None:
            digest.update(backend.as_bytes(backend.to_host(value)).data)
    return digest.digest()[: len(NO_DIGEST)]


def digest_of_copy(model: Link, rank: int) -> bytes:
    """Return a digest of the values that all ranks have copies of. Values on a GPU are not copied
    for it: each rank returns another one then.
    """
    values = [
        (path, param.array)
        for path, param in model.namedparams(include_uninit=False)
        if param.summed is None
    ]
    if any([type(array) is not np.ndarray for _, array in values]):
        return rank.to_bytes(len(NO_DIGEST), "big")
    return digest_of(values)


def _differences(model: Link, comm: Communicator, tolerance: float, persistents: bool) -> str:
    """Return what differs, on every rank; empty if nothing does."""
    if are_equal(model, comm, persistents):
        return ""
    values = list(_values(model, persistents))
    check_paths(comm.allgather_obj([path for path, _ in values]), "parameters")
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
        require_communicator(comm, "ParameterCheck(comm, every)")
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


def compare_parts(placement: Placement, model: Link, update: int) -> None:
    """Compare values and gradients of the parameters that several ranks of a mesh have in common;
    all ranks that have the model together call it.

    Args:
        placement: where the parameters lie.
        model: this rank's part, with its gradients.
        update: how many updates came before.

    Raises:
        MismatchError: they differ by more than rounding; on all of these ranks.
    """
    mesh, tables = placement.mesh, placement.tables
    mine = [
        [*fingerprint(param.array), *fingerprint(param.grad), _is_updated(param)]
        for path, param in model.namedparams(include_uninit=False)
        if path in placement.kinds
    ]
    ranks = mesh.line(placement.others, mesh.comm.rank)
    given = placement.copy.allgather(np.array(mine).reshape(len(mine), 2 * _FIELDS + 1))
    rows = dict(zip(ranks, given, strict=True))
    places = {rank: {path: i for i, path in enumerate(tables[rank].params)} for rank in ranks}
    for path in placement.kinds:
        holders = {rank: tables[rank].params[path] for rank in ranks if path in places[rank]}
        updated = {bool(rows[rank][places[rank][path], -1]): rank for rank in holders}
        if len(updated) > 1:
            raise MismatchError(
                _DISABLED.format(update + 1, path, mesh, updated[True], updated[False])
            )
        for first, *others in placement.copies(holders).values():
            for rank in others:
                for what, place in (("gradient", slice(_FIELDS, -1)), ("value", slice(_FIELDS))):
                    one, other = [rows[r][places[r][path], place] for r in (first, rank)]
                    if found := _difference(one, other, rows[rank][:, place]):
                        axes = " and ".join(map(repr, mesh.differ([first, rank])))
                        raise MismatchError(
                            f"update {update + 1}: the {what}s of {path} are not the same on ranks "
                            f"{[first, rank]} of {mesh!s}, which have the same of it and differ "
                            f"along {axes}: {found}. {_REMEDY[what]}"
                        )


def compare_copies(comm: Communicator, model: Link, update: int, cause: str = "") -> None:
    """Compare values that differ among ranks, as digests of them have shown; all ranks call it.

    Args:
        comm: the ranks that hold the copies.
        model: this rank's.
        update: how many updates came before.
        cause: a sentence for the message, if the cause is known; the same on all ranks.

    Raises:
        MismatchError: they differ by more than rounding; on all ranks.
    """
    named = [
        (path, param)
        for path, param in model.namedparams(include_uninit=False)
        if param.summed is None
    ]
    mine = np.array([fingerprint(param.array) for _, param in named]).reshape(len(named), _FIELDS)
    first, *others = comm.allgather(mine)
    for rank, rows in enumerate(others, start=1):
        for (path, _), one, other in zip(named, first, rows, strict=True):
            if found := _difference(one, other, rows):
                rules = comm.allgather_obj(_describe_rule(dict(named)[path]))
                differ = f"Rank 0 changes it by {rules[0]}, and rank {rank} by {rules[rank]}. "
                raise MismatchError(
                    f"update {update + 1}: the values of {path} are not the same on ranks "
                    f"{[0, rank]}, copies of each other: {found}. "
                    f"{differ * (rules[0] != rules[rank])}{cause or _REMEDY['value']}"
                )


def _difference(one: Array, other: Array, rows: Array) -> str:
    """Return in which way the fingerprints of a parameter on two ranks differ by more than rounding
    can; ``rows``: of all parameters.
    """
    a, b = Fingerprint(*one), Fingerprint(*other)
    # sums may cancel: they are as exact as the largest elements allow
    sizes = rows[:, Fingerprint._fields.index("magnitude")] / np.maximum(
        rows[:, Fingerprint._fields.index("size")], 1
    )
    slack = 100 * b.eps * float(np.fmax.reduce(sizes)) * b.size
    return f"they add up to {a.total:.6g} and {b.total:.6g}" if a.differs_from(b, slack) else ""


def _describe_rule(param: Parameter) -> str:
    """Return how a parameter is updated, for messages."""
    rule = param.update_rule
    if rule is None:
        return "no optimizer"
    given = ", ".join([f"{name} {x}" for name, x in rule.hyperparam.get_dict().items()])
    return f"{type(rule).__name__} ({given})" + ", disabled" * (not rule.enabled)


def _is_updated(param: Parameter) -> bool:
    return param.update_rule is None or bool(param.update_rule.enabled)


_FIELDS = len(Fingerprint._fields)

_DISABLED = (
    "update {}: {} is one parameter of {!s}, and rank {} updates it, but on rank {} its update "
    "is disabled: call disable_update and enable_update alike on all ranks that have it or a part "
    "of it"
)

_REMEDY = {
    "gradient": "So each has the gradient of its own use of it only: use a layer that takes the "
    "communicator of this axis, or let the parameter pass F.copy_to(comm, parameter) before it is "
    "used",
    "value": "They have drifted apart: something is different on these ranks that should not be, "
    "such as random numbers, hyperparameters, hooks, or a parameter that was changed by hand",
}
