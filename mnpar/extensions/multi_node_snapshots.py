"""Snapshots over ranks: one file for each set of ranks with equal trainers, loaded again by any
number of ranks.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from mnpar.checkpoint.loading import copies_of
from mnpar.communicators.communicator import require_communicator
from mnpar.training.extension import Extension
from mnpar.training.extensions.snapshots import read, snapshots

if TYPE_CHECKING:
    from mnpar.communicators import Communicator
    from mnpar.training.trainer import Trainer


def multi_node_snapshot(
    comm: Communicator, snapshot: Any, replica_sets: Iterable[Any]
) -> _MultiNodeSnapshot:
    """Let one rank of each set of replicas write snapshots, ``….rank``; each rank loads the
    snapshot of its set. Collective.

    Args:
        comm: all its ranks have the extension.
        snapshot: of :func:`mnpar.training.extensions.snapshot`; with ``autoload`` the lowest rank
            of each set loads the last snapshot that all sets have, and sends it to the others: the
            number of ranks may have changed. At least two snapshots stay, because sets do not write
            at the same moment.
        replica_sets: sets of ranks with equal trainers, each a rank or several ranks; all other
            ranks are one more set. Rank 0 often has extensions that the others do not have:
            ``[0]``.

    Raises:
        ValueError: there is no such rank, or a rank is in two sets.
        TypeError: the snapshot has a ``comm``: all its ranks write it together, and equal values
            once, so a trainer is extended with it as it is.

    Example:
        >>> import mnpar
        >>> from mnpar.training import extensions
        >>> def program(comm):
        ...     each = mnpar.extensions.multi_node_snapshot(comm, extensions.snapshot(), [0])
        ...     return each.is_master, each.snapshot.filename
        >>> for result in mnpar.run(program, ranks=3)[1:]:
        ...     print(result)
        (True, 'snapshot_iter_{.updater.iteration}.1')
        (False, 'snapshot_iter_{.updater.iteration}.2')
    """
    require_communicator(comm, "multi_node_snapshot(comm, snapshot, replica_sets)")
    if getattr(snapshot, "comm", None) is not None:
        raise TypeError(
            "snapshot(comm=…) is of all ranks already: trainer.extend(snapshot(comm=comm))"
        )
    return _MultiNodeSnapshot(comm, snapshot, replica_sets)


def _parse_replica_sets(replica_sets: Iterable[Any], size: int) -> list[list[int]]:
    """Return the sets, each in ascending order."""
    listed = [[each] if isinstance(each, int | np.integer) else each for each in replica_sets]
    sets = [sorted({int(rank) for rank in each}) for each in listed]
    named = [rank for each in sets for rank in each]
    strange = [rank for rank in named if not 0 <= rank < size]
    if strange or len(set(named)) != len(named):
        raise ValueError(
            f"replica sets name each of the ranks 0 … {size - 1} once at most; these are {sets}"
        )
    rest = [rank for rank in range(size) if rank not in named]
    return [each for each in [*sets, rest] if each]


class _MultiNodeSnapshot(Extension):
    """The extension of :func:`multi_node_snapshot`. (Its name, Chainer's, is in files.)"""

    trigger = (1, "epoch")
    priority = -100

    def __init__(self, comm: Communicator, snapshot: Any, replica_sets: Iterable[Any]) -> None:
        self.comm, self.snapshot = comm, snapshot
        snapshot.n_retains = (
            max(snapshot.n_retains, 2) if snapshot.n_retains > 0 else snapshot.n_retains
        )
        sets = _parse_replica_sets(replica_sets, comm.size)
        self.replica_set = next(each for each in sets if comm.rank in each)
        self.master = self.replica_set[0]
        filename = snapshot.filename
        suffix = f".{comm.rank}"
        snapshot.filename = (
            (lambda trainer: filename(trainer) + suffix)
            if callable(filename)
            else filename + suffix
        )

    @property
    def is_master(self) -> bool:
        """Return whether this rank writes for its set."""
        return self.master == self.comm.rank

    @property
    def is_last(self) -> bool:
        """``is_last`` of the snapshot."""
        return bool(self.snapshot.is_last)

    @property
    def autoload(self) -> bool:
        """Return whether the last snapshot is loaded before training."""
        return bool(self.snapshot.autoload)

    def initialize(self, trainer: Trainer) -> None:
        """Load the last snapshot that all sets have, if ``autoload``."""
        if self.autoload:
            self._load(trainer)
        if self.is_master:
            self.snapshot.retain(trainer.out)

    def _load(self, trainer: Trainer) -> None:
        found = dict(snapshots(self.snapshot.filename, trainer.out)) if self.is_master else {}
        everyone = self.comm.allgather_obj(list(found) if self.is_master else None)
        sets = [fields for fields in everyone if fields is not None]
        # a set may have written once more than another when training ended
        for fields in reversed(sets[0]):
            if all(fields in one for one in sets) and self._load_on_all(trainer, found.get(fields)):
                return

    def _load_on_all(self, trainer: Trainer, path: str | None) -> bool:
        """Load a snapshot on all ranks, from the masters' files; return False if one is damaged."""
        content = None if path is None else read(path)
        if not all(self.comm.allgather_obj(content is not None or not self.is_master)):
            return False
        if self.is_master:
            for rank in self.replica_set[1:]:
                self.comm.send(np.fromfile(path or "", np.uint8), rank)
        else:
            content = read(io.BytesIO(self.comm.recv(self.master).tobytes()))
        self.snapshot.take(trainer, content or {})
        for copies in copies_of([trainer]):  # each rank loaded its own values
            copies.take_as_given()
        return True

    def __call__(self, trainer: Trainer) -> None:
        if self.is_master:
            self.snapshot(trainer)

    def on_error(self, trainer: Trainer, exc: Exception, tb: TracebackType | None) -> None:
        """Write a snapshot, if the snapshot extension does so after errors."""
        if self.is_master:
            self.snapshot.on_error(trainer, exc, tb)

    def finalize(self) -> None:
        """Wait until the snapshots are written."""
        if self.is_master:
            self.snapshot.finalize()
