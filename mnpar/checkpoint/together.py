"""Work that all ranks do at the same time and that must succeed on all of them: an error on one rank is raised on all."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from mnpar.dataset.agreement import dump_error

if TYPE_CHECKING:
    from mnpar.communicators import Communicator

T = TypeVar("T")


def together(comm: Communicator, work: Callable[[], T]) -> list[T]:
    """What ``work()`` returned on each rank; if it raised on some, its error on the first of them, on all ranks.

    Args:
        comm: all its ranks call this.
        work: its results can be pickled. If it communicates, and fails on one rank before that, the others get a MismatchError.

    Example:
        >>> import mnpar
        >>> from mnpar.checkpoint.together import together
        >>> mnpar.run(lambda comm: together(comm, lambda: comm.rank * 10), ranks=2)
        [[0, 10], [0, 10]]
    """
    outcome: T | None = None
    mine: Exception | None = None
    try:
        outcome = work()
    except Exception as error:
        mine = error
    try:
        outcomes = comm.allgather_obj((outcome, None if mine is None else dump_error(mine)))
    except Exception as error:
        if mine is not None:  # while the others communicate in their work: this is why they do not meet
            raise mine from error
        raise
    for rank, (_, failure) in enumerate(outcomes):
        if failure is not None:
            first: Exception = mine if mine is not None and rank == comm.rank else pickle.loads(failure)
            first.add_note(f"(on rank {rank} of {comm.size}; all ranks stop)")
            raise first
    return [result for result, _ in outcomes]


def in_folder(comm: Communicator, folder: str | os.PathLike[str], work: Callable[[], T]) -> tuple[str, list[T]]:
    """:func:`together` in one folder: rank 0's path of it, which is everyone's, and what ``work()`` returned on each rank.

    Machines may see one folder under different working directories, so that relative paths or absolute ones are compared.

    Raises:
        ValueError: on all ranks: they name different folders.

    Example:
        >>> import mnpar
        >>> mnpar.run(lambda comm: in_folder(comm, f"/tmp/of-rank-{comm.rank}", lambda: None), ranks=2)
        Traceback (most recent call last):
        ValueError: ranks name different folders for one checkpoint, /tmp/of-rank-0 on rank 0 and /tmp/of-rank-1 on rank 1: ...
    """
    outcomes = together(comm, lambda: (os.path.abspath(folder), os.path.relpath(folder), work()))
    path, relative, _ = outcomes[0]
    for rank, (other, seen, _) in enumerate(outcomes):
        if other != path and seen != relative:
            raise ValueError(
                f"ranks name different folders for one checkpoint, {path} on rank 0 and {other} on rank {rank}: "
                "all ranks name the same one, on a file system that they share"
            )
    return path, [result for _, _, result in outcomes]
