"""Retention: the list of checkpoints in a directory, and the removal of old ones once newer ones
are known to be undamaged.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeVar

from mnpar.checkpoint import store
from mnpar.checkpoint.reader import CheckpointReader
from mnpar.checkpoint.store import agree_on_folder
from mnpar.communicators.communicator import require_communicator
from mnpar.communicators.consensus import run_on_all
from mnpar.errors import CheckpointError

if TYPE_CHECKING:
    from mnpar.communicators import Communicator


N = TypeVar("N", store.Name, str)


def steps(directory: str | os.PathLike[str]) -> list[int]:
    """Return the steps of the checkpoints in a directory, oldest first, damaged or not. Any rank
    may call it, alone.

    Args:
        directory: as for :func:`save`; a missing directory has no checkpoints.

    Example:
        >>> from mnpar import checkpoint
        >>> checkpoint.steps("/nonexistent")
        []
    """
    return list(dict.fromkeys([name.step for name in store.names(os.path.abspath(directory))]))


def collect_garbage(directory: str | os.PathLike[str], comm: Communicator, keep: int) -> list[int]:
    """Remove the older checkpoints of a directory, so that the ``keep`` newest undamaged ones stay.
    Collective.

    Damaged ones do not count; they are removed, too, once ``keep`` good ones are newer. Other files
    and folders stay.

    Args:
        directory: as for :func:`save`.
        comm: all its ranks call this; they share the work of checking.
        keep: how many checkpoints stay, 1 or more.

    Returns:
        The steps that were removed.

    Raises:
        ValueError: ``keep`` is less than 1. OSError: on all ranks, if a checkpoint cannot be
            removed. CheckpointError: on all ranks, if another job removed it meanwhile: each job
            needs a folder of its own.

    Example:
        >>> import tempfile, mnpar
        >>> from mnpar import checkpoint
        >>> def program(comm, folder):
        ...     for step in (10, 20, 30):
        ...         checkpoint.save(folder, mnpar.links.Linear(1, 1), comm, step)
        ...     return checkpoint.collect_garbage(folder, comm, keep=2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     mnpar.run(program, ranks=2, args=(folder,))
        [[10], [10]]
    """
    require_communicator(comm, "collect_garbage(directory, comm, keep)")
    if keep < 1:
        raise ValueError(f"keep = {keep}: 1 checkpoint or more is kept")
    mine = os.path.abspath(directory)
    folder, (listed, *_) = agree_on_folder(
        comm, mine, lambda: store.names(mine) if comm.rank == 0 else []
    )
    return [name.step for name in keep_newest(folder, listed, comm, keep)]


def keep_newest(directory: str, listed: list[N], comm: Communicator, keep: int) -> list[N]:
    """Remove, of checkpoints listed oldest first, those before the ``keep`` newest undamaged ones,
    and return their names. Collective.
    """
    good = 0
    removed = []
    for place, name in enumerate(reversed(listed)):
        if good == keep:
            removed = listed[: len(listed) - place]
            break
        good += _is_good(os.path.join(directory, str(name)), comm)
    run_on_all(comm, lambda: _remove(directory, removed if comm.rank == 0 else []))
    return removed


def _remove(directory: str, removed: list[N]) -> None:
    for name in removed:
        try:
            store.remove(directory, name)
        except FileNotFoundError:
            raise CheckpointError(_TWO_JOBS.format(os.path.join(directory, str(name)))) from None


_TWO_JOBS = (
    "{} was there, and another job, it seems, has removed it meanwhile: end that job, or give "
    "this run another folder"
)


def _is_good(path: str, comm: Communicator) -> bool:
    def work() -> None:
        CheckpointReader(path, comm.rank, comm.size).verify(comm.rank, comm.size)

    try:
        run_on_all(comm, work)
    except CheckpointError:
        return False
    return True
