"""The folder of a checkpoint, which all ranks name: perhaps by different paths."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from mnpar.communicators.consensus import together

if TYPE_CHECKING:
    from mnpar.communicators import Communicator

T = TypeVar("T")


def in_folder(
    comm: Communicator, folder: str | os.PathLike[str], work: Callable[[], T]
) -> tuple[str, list[T]]:
    """:func:`together` in one folder: rank 0's path of it, which is everyone's, and what ``work()``
    returned on each rank.

    Machines may see one folder under different working directories, so that relative paths or
    absolute ones are compared.

    Raises:
        ValueError: on all ranks: they name different folders.

    Example:
        >>> import mnpar
        >>> mnpar.run(
        ...     lambda comm: in_folder(comm, f"/tmp/of-rank-{comm.rank}", lambda: None), ranks=2
        ... )
        Traceback (most recent call last):
        ValueError: ranks name different folders for one checkpoint, /tmp/of-rank-0 on rank 0 and /tmp/of-rank-1 on rank 1: ...
    """
    outcomes = together(comm, lambda: (os.path.abspath(folder), os.path.relpath(folder), work()))
    path, relative, _ = outcomes[0]
    for rank, (other, seen, _) in enumerate(outcomes):
        if other != path and seen != relative:
            raise ValueError(
                f"ranks name different folders for one checkpoint, {path} on rank 0 and "
                f"{other} on rank {rank}: "
                "all ranks name the same one, on a file system that they share"
            )
    return path, [result for _, _, result in outcomes]
