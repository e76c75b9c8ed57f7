"""Snapshots over ranks: those that hold the same write one file together, and read it again on any number of ranks."""

from __future__ import annotations

import io
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from mnpar.serializers import save_npz
from mnpar.training.extension import Extension

if TYPE_CHECKING:
    from mnpar.communicators import Communicator


def multi_node_snapshot(comm: Communicator, snapshot: Any, replica_sets: Iterable[Any]) -> _MultiNodeSnapshot:
    """Let one rank of each set of replicas write snapshots, ``….rank``; loading gives each rank its set's. Collective.

    Args:
        comm: of the ranks.
        snapshot: of :func:`mnpar.training.extensions.snapshot`; with ``autoload`` the lowest rank of each set loads the
            last one, and hands it to the others: the number of ranks may have changed.
        replica_sets: sets of ranks whose trainers hold the same, each a rank or several of them; all that are not named are one
            more. Rank 0 often has extensions that the others do not have: ``[0]``.

    Raises:
        ValueError: a rank is not there, or in two sets.

    Example:
        >>> import mnpar
        >>> from mnpar.training import extensions
        >>> def program(comm):
        ...     each = mnpar.extensions.multi_node_snapshot(comm, extensions.snapshot(), [0])
        ...     return each.is_master, each.snapshot.filename
        >>> mnpar.run(program, ranks=3)[1:]
        [(True, 'snapshot_iter_{.updater.iteration}.1'), (False, 'snapshot_iter_{.updater.iteration}.2')]
    """
    return _MultiNodeSnapshot(comm, snapshot, replica_sets)


def _parse_replica_sets(replica_sets: Iterable[Any], size: int) -> list[list[int]]:
    """The sets, each in ascending order."""
    listed = [[each] if isinstance(each, int | np.integer) else each for each in replica_sets]
    sets = [sorted({int(rank) for rank in each}) for each in listed]
    named = [rank for each in sets for rank in each]
    strange = [rank for rank in named if not 0 <= rank < size]
    if strange or len(set(named)) != len(named):
        raise ValueError(f"replica sets name each of the ranks 0 … {size - 1} once at most; these are {sets}")
    rest = [rank for rank in range(size) if rank not in named]
    return [each for each in [*sets, rest] if each]


class _MultiNodeSnapshot(Extension):
    """See :func:`multi_node_snapshot`. (Chainer's name: it stands in the files.)"""

    trigger = (1, "epoch")
    priority = -100

    def __init__(self, comm: Communicator, snapshot: Any, replica_sets: Iterable[Any]) -> None:
        self.comm, self.snapshot = comm, snapshot
        sets = _parse_replica_sets(replica_sets, comm.size)
        self.replica_set = next(each for each in sets if comm.rank in each)
        self.master = self.replica_set[0]
        named = snapshot.filename
        suffix = f".{comm.rank}"
        snapshot.filename = (lambda trainer: named(trainer) + suffix) if callable(named) else named + suffix

    @property
    def is_master(self) -> bool:
        """Whether this rank writes for its set."""
        return self.master == self.comm.rank

    @property
    def is_last(self) -> bool:
        """As of the snapshot."""
        return bool(self.snapshot.is_last)

    @property
    def autoload(self) -> bool:
        """Whether the last snapshot is loaded before training."""
        return bool(self.snapshot.autoload)

    def initialize(self, trainer: Any) -> None:
        """Load the last snapshot, where that is wanted."""
        if self.is_master:
            self.snapshot.initialize(trainer)
        if self.autoload:
            self._hand_on(trainer)

    def _hand_on(self, trainer: Any) -> None:
        """The bytes of a file from the master to the others; none if there is no snapshot."""
        if self.is_master:
            content, buffer = self.snapshot.loaded, io.BytesIO()
            if content is not None:
                save_npz(buffer, content)
            data = np.frombuffer(buffer.getvalue(), np.uint8)
            for rank in self.replica_set[1:]:
                self.comm.send(data, rank)
            return
        data = self.comm.recv(self.master)
        if data.size:
            with np.load(io.BytesIO(data.tobytes()), allow_pickle=False) as file:
                self.snapshot.take(trainer, dict(file))

    def __call__(self, trainer: Any) -> None:
        if self.is_master:
            self.snapshot(trainer)

    def on_error(self, trainer: Any, exc: Exception, tb: TracebackType | None) -> None:
        """Write one, where that is wanted."""
        if self.is_master:
            self.snapshot.on_error(trainer, exc, tb)

    def finalize(self) -> None:
        """Wait until all is written."""
        if self.is_master:
            self.snapshot.finalize()
