"""Ranks that hold copies of one model: their values are made equal, and stay so."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from mnpar import backend
from mnpar.communicators.communicator import require_communicator
from mnpar.communicators.replication import broadcast_persistents, initialize_alike
from mnpar.link import Link
from mnpar.optimizers.flat_buffers import FlatBuffers
from mnpar.optimizers.model_holders import is_due
from mnpar.optimizers.parameter_cache import ParameterCache
from mnpar.parallel.data.consistency import (
    NO_DIGEST,
    compare_copies,
    compare_parts,
    digest_of_copy,
)
from mnpar.parallel.data.reducer import Among
from mnpar.parallel.data.update_record import (
    UpdateRecord,
    exchange_records,
    gather_records,
    share_flags,
)
from mnpar.parameter import Parameter, structure

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator
    from mnpar.parallel.data.placement import Placement


def broadcast_model(
    model: Link, comm: Communicator, buffers: FlatBuffers | None = None, among: Among | None = None
) -> None:
    """Give all ranks rank 0's parameters and persistent values.

    A parameter that has no array yet on rank 0 takes those of the first rank where it has; what has
    none anywhere keeps none.

    Args:
        model: of the same structure on all ranks.
        comm: the ranks that hold copies of the model; all of them call this.
        buffers: where the parameters live, if they do.
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
    initialize_alike(comm, model)
    initialized = list(model.params(include_uninit=False))
    buffers = FlatBuffers() if buffers is None else buffers
    places = [(buffer.data, buffer.summed) for buffer in buffers.gather(initialized)]
    for values, summed in [*places, *[(param.array, param.summed) for param in buffers.aliased]]:
        copies = comm if summed is None or among is None else among(summed)
        backend.copyto(values, copies.bcast(values, root=0))
    broadcast_persistents(comm, model)


Persistent = tuple[Link, str, Any]


def have_common_parameters(one: Link, other: Link) -> bool:
    """Return whether two models have a parameter in common."""
    mine = {id(param) for param in one.params()}
    return any([id(param) in mine for param in other.params()])


def copy_persistents(model: Link) -> list[Persistent]:
    """Return copies of the persistent values of a model."""
    return [
        (link, name, copy.deepcopy(getattr(link, name)))
        for link in model.links()
        for name in link._persistent
    ]


def restore_persistents(before: list[Persistent] | None) -> None:
    """Set persistent values to what they were."""
    for link, name, value in before or []:
        setattr(link, name, value)


class ReplicaSet:
    """The copies of a model on several ranks: whether they are equal, as far as this rank alone can
    tell, and what the ranks tell each other of them.

    Args:
        comm: the ranks that hold the copies.
        placement: on a mesh, where the parameters lie.
        check: after how many updates the ranks compare their values.

    Attributes:
        ever_equal: whether the copies were made equal at any time.
        every: after how many updates the ranks compare their values.
    """

    def __init__(
        self, comm: Communicator, placement: Placement | None = None, check: int = 100
    ) -> None:
        self.comm = comm
        self.placement = placement
        self.ever_equal = False
        self.every = check
        self._complete = False  # whether each parameter had an array when they were made equal
        # ``structure.now`` while they are complete and not stale
        self._settled: object = None
        self._cache = ParameterCache()
        self._stale = True
        self._seen: list[Parameter] | None = None  # the parameters when ``_stale`` was found
        self._equal: list[tuple[Parameter, tuple[int, ...]]] = []  # when they were made equal
        self._altered = 0  # how often any rank's values were altered between steps
        self._suspicious = False  # they were, and are to be compared in this update

    def make_equal(self, model: Link, buffers: FlatBuffers, equal: bool = False) -> None:
        """Give all ranks rank 0's values; all ranks call it. ``equal``: the parameters are the same
        already.
        """
        if equal:
            broadcast_persistents(self.comm, model)
        else:
            among = None if self.placement is None else self.placement.among
            broadcast_model(model, self.comm, buffers, among)
        self.take_as_equal(model)

    def take_as_equal(self, model: Link) -> None:
        """Count the copies as equal: each rank has loaded its values."""
        self._equal = [(param, param.node.shape) for param in model.params()]
        self.ever_equal = True
        self._seen = self._settled = None
        self._complete = all([param.array is not None for param, _ in self._equal])

    def is_stale(self, model: Link) -> bool:
        """Return whether parameters have appeared, or changed their shapes, since the copies were
        made equal.
        """
        params = self._cache.of(model)
        if params is not self._seen:  # the same list: nothing has changed
            same = self.ever_equal and len(params) == len(self._equal)
            self._stale = not same or any(
                [
                    p is not q or p.node.shape != shape
                    for p, (q, shape) in zip(params, self._equal, strict=True)
                ]
            )
            self._seen = params
        self._settled = None if self._stale or not self._complete else self._cache.seen
        return self._stale

    def is_settled(self, model: Link) -> bool:
        """Return whether a forward will make no parameter, and none was made since the copies were
        made equal.
        """
        return self._settled is structure.now or (self._complete and not self.is_stale(model))

    def gather(self, record: UpdateRecord) -> list[UpdateRecord]:
        """Return the records of all ranks, where none of them sums gradients meanwhile."""
        return gather_records(record, self.comm)

    def exchange(self, record: UpdateRecord) -> list[UpdateRecord]:
        """Tell the other ranks this rank's record, and return theirs, without a sum of gradients.

        On a mesh whose ranks have a model together, all of them do so, and heed each other's flags.
        """
        placement = self.placement
        if placement is None or placement.copy.size == 1:
            return exchange_records(record, self.comm)
        everyone = placement.mesh.comm
        records = share_flags(exchange_records(record, everyone))
        return [records[rank] for rank in placement.mesh.line(placement.summed, everyone.rank)]

    # ---- whether they are still equal ----

    def is_due(self, t: int) -> bool:
        """Return whether values are compared after so many updates."""
        return is_due(t, self.every)

    def compares(self, t: int) -> bool:
        """Return whether they are compared in the update after so many."""
        if not (self.is_due(t) or self._suspicious):
            return False
        placement = self.placement
        return self.comm.size > 1 or (placement is not None and bool(placement.others))

    def digest(self, model: Link, t: int) -> bytes:
        """Return what this rank's record says of its values in the update after so many."""
        if self.comm.size > 1 and self.is_due(t):
            return digest_of_copy(model, self.comm.rank)
        return NO_DIGEST

    def compare(self, records: list[UpdateRecord], model: Link, t: int, cause: str = "") -> None:
        """Compare values if digests differ, or some were altered by hand; all ranks call it with
        the same records, and the same sentence for the message if the cause is known.

        Raises:
            MismatchError: they differ by more than rounding; on all ranks.
        """
        altered = any([record.altered for record in records])
        self._altered += altered
        self._suspicious = altered and self.is_due(self._altered)
        if self.comm.size > 1 and (
            self._suspicious or len({record.digest for record in records}) > 1
        ):
            compare_copies(self.comm, model, t, cause)

    def compare_parts(self, model: Link, t: int) -> None:
        """Compare what ranks of a mesh that have a model together have in common of it, gradients
        included, if that is due.

        Raises:
            MismatchError: it differs by more than rounding; on all of these ranks.
        """
        if self.placement is not None and self.placement.others and self.compares(t):
            compare_parts(self.placement, model, t)
