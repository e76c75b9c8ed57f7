"""Checkpoints on the nodes' own disks: for one checkpointer, ranks name different folders.

The ranks that name one folder are a group, whose checkpoints lie there, each whole. A step counts
when all groups have it, so that it is one moment of the training; the same ranks, in the same
groups, continue from it.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from mnpar.checkpoint import store
from mnpar.checkpoint.loading import NODE_LOCAL, load
from mnpar.checkpoint.saving import Objects, by_name
from mnpar.communicators.consensus import run_on_all
from mnpar.errors import CheckpointError
from mnpar.serializer import AbstractSerializer, Deserializer

if TYPE_CHECKING:
    from mnpar.communicators import Communicator

T = TypeVar("T")


class FolderGroup:
    """The ranks that name one folder. All ranks make it together.

    Machines may see one folder under different working directories, so the relative or the absolute
    paths of a group agree.

    Args:
        comm: of all ranks.
        folder: this rank's.

    Attributes:
        comm: of the group; that of all ranks, if all name one folder.
    """

    def __init__(self, comm: Communicator, folder: str) -> None:
        self.folder, self._everyone = folder, comm
        paths = comm.allgather_obj((os.path.abspath(folder), os.path.relpath(folder)))
        first = [
            next(i for i, other in enumerate(paths) if path in other[:1] or relative in other[1:])
            for path, relative in paths
        ]
        self.is_shared = not any(first)
        self._ranks = [rank for rank, i in enumerate(first) if i == first[comm.rank]]
        split = None if self.is_shared else comm.split(first[comm.rank], comm.rank)
        self.comm = comm if split is None else split

    def together(self, work: Callable[[], T]) -> T:
        """Return what ``work()`` returns, which all ranks of each group call together; if it raises
        in one group, raise the error on all ranks.
        """
        if self.is_shared:
            return work()
        results: list[T] = []
        run_on_all(self._everyone, lambda: results.append(work()))
        return results[0]

    def marked(self, objects: Objects) -> Objects:
        """Return the objects to be saved or loaded, with the ranks of the group."""
        if self.is_shared:
            return objects
        return {NODE_LOCAL: _Origin(self._everyone.size, self._ranks), **by_name(objects)}

    def load(self, objects: Objects) -> int | None:
        """Read objects from the newest step that all groups have, undamaged; return it, or None if
        there is nothing to load. Collective.

        Raises:
            CheckpointError: each such step is damaged in some group, or others wrote it.
        """
        if self.is_shared:
            return load(self.folder, objects, self.comm)
        listed = run_on_all(
            self._everyone, lambda: [name.step for name in store.names(self.folder)]
        )
        steps = [step for step in dict.fromkeys(listed[0]) if all([step in one for one in listed])]
        if not steps and any(listed):
            self._warn(
                "the folders of the ranks have no step in common, and none is loaded: they have "
                f"{', '.join([str(one[-1:]) for one in listed])}"
            )
        for step in reversed(steps):
            try:
                return self.together(
                    partial(load, self.folder, self.marked(objects), self.comm, step)
                )
            except CheckpointError as error:
                if step == steps[0]:
                    raise
                self._warn(f"an older checkpoint is tried, because {error}")
        return None

    def _warn(self, text: str) -> None:
        if self._everyone.rank == 0:
            warnings.warn(text, stacklevel=4)


class _Origin:
    """Notes in a checkpoint which ranks, of how many, it belongs to, and checks it."""

    def __init__(self, size: int, ranks: list[int]) -> None:
        self.size, self.ranks = size, ranks

    def serialize(self, serializer: AbstractSerializer) -> None:
        own = [self.size, *self.ranks]
        if not isinstance(serializer, Deserializer):
            serializer("ranks", np.array(own))
            return
        size, *ranks = np.asarray(serializer("ranks", None)).tolist()
        if [size, *ranks] != own:
            raise CheckpointError(
                f"this folder has the checkpoints of ranks {ranks} of {size}, and now belongs to "
                f"ranks {self.ranks} of {self.size}: checkpoints in folders of the ranks' own are "
                "continued by the same ranks. In one folder for all, any number continues"
            )
