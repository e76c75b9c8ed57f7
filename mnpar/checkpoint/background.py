"""Background saving: threads that call no MPI write copies of the values while training goes on.

The ranks agree on who writes what before training goes on. The rest needs no message: each rank's
thread writes its shard, and then a done marker with its size and digest; rank 0's thread waits for
the markers of all ranks, and completes the checkpoint as :func:`save` does. So the checkpoint is
complete when the slowest disk is, whatever the ranks do meanwhile; if the job is killed before,
there is no checkpoint. One is under way at a time, which takes the memory of one copy.
"""

from __future__ import annotations

import contextvars
import threading
import time
from typing import TYPE_CHECKING

from mnpar.checkpoint import done_markers, store
from mnpar.checkpoint.saving import Draft, complete, write_shard
from mnpar.communicators.consensus import run_on_all
from mnpar.errors import CheckpointError

if TYPE_CHECKING:
    from mnpar.communicators import Communicator

_LOOK = 0.01  # s
PATIENCE = 600.0  # s that rank 0 waits for the shards of others, after it has written its own


class BackgroundSave:
    """A checkpoint that a thread writes.

    Args:
        draft: the checkpoint, with copies of the values.
        comm: its ranks make this together.
    """

    def __init__(self, draft: Draft, comm: Communicator) -> None:
        self._draft, self._comm, self._patience = draft, comm, PATIENCE
        self._written = threading.Event()
        self._cancelled = threading.Event()
        self._error: Exception | None = None  # of this rank's shard
        self._failure: Exception | None = None  # of the rest, on rank 0
        self._path: str | None = None
        context = contextvars.copy_context()
        self._thread = threading.Thread(
            target=context.run, args=(self._work,), name="mnpar-checkpoint"
        )
        self._thread.start()

    def _work(self) -> None:
        draft = self._draft
        try:
            done_markers.write_marker(draft.hidden, draft.rank, write_shard(draft))
        except Exception as error:
            self._error = error
            done_markers.write_failure(draft.hidden, draft.rank, error)
        draft.arrays.clear()
        self._written.set()
        if draft.rank == 0:
            self._complete()

    def _complete(self) -> None:
        """Wait for the other ranks' shards, and complete the checkpoint; after an error remove what
        was written. On rank 0.
        """
        draft = self._draft
        try:
            shards = self._await_markers()
            failed = [
                f"rank {rank} could not write its shard: {error}"
                for rank, error in shards.items()
                if isinstance(error, str)
            ]
            if failed:
                raise CheckpointError(f"{draft.hidden}: {'; '.join(failed)}")
            done_markers.remove_markers(draft.hidden)
            written = [shards[rank] for rank in range(draft.size)]
            self._path = complete(draft, written)  # type: ignore[arg-type]
        except Exception as error:
            self._failure = error
            store.discard(draft.hidden)

    def _await_markers(self) -> dict[int, store.Shard | str | None]:
        """Return each rank's shard, None if it had nothing to write, or its error."""
        draft = self._draft
        nap = 0.002
        deadline = time.monotonic() + self._patience
        found: dict[int, store.Shard | str | None] = (
            {} if self._error is None else {0: str(self._error)}
        )
        while missing := [rank for rank in range(draft.size) if rank not in found]:
            found |= {
                rank: done_markers.read_marker(draft.hidden, rank)
                for rank in missing
                if done_markers.has_marker(draft.hidden, rank)
            }
            if len(found) < draft.size:
                if time.monotonic() > deadline:
                    raise CheckpointError(
                        f"{draft.hidden}: ranks {missing} have written nothing for "
                        f"{self._patience:g} s"
                    )
                if self._cancelled.wait(nap):
                    raise CheckpointError(f"{draft.hidden} was given up")
                nap = min(2 * nap, 0.25)
        return found

    def finish(self) -> str:
        """Wait until the checkpoint is on the disk, and return its path. Collective.

        Raises:
            OSError, CheckpointError: on all ranks, if one of them could not write: no trace of the
                attempt is left.
        """
        try:
            run_on_all(self._comm, self._own_part)
        except BaseException:
            self._cancelled.set()  # nobody writes any more
            self._thread.join()
            raise
        path = run_on_all(self._comm, self._whole)[0]
        assert path is not None
        return path

    def _own_part(self) -> None:
        self._written.wait()
        if self._error is not None:
            raise self._error

    def _whole(self) -> str | None:
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        return self._path

    def join(self) -> None:
        """Wait for this rank's part, on rank 0 for the whole, without the other ranks.

        Raises:
            OSError, CheckpointError: it could not be written.
        """
        try:
            while self._draft.rank == 0 and self._thread.is_alive():
                # thread ranks run one at a time: let the others write their parts
                self._comm.transport.pause()
                self._thread.join(_LOOK)
        except BaseException:
            self._cancelled.set()  # a rank has failed
            raise
        finally:
            self._thread.join()
        if self._error is not None or self._failure is not None:
            raise self._error or self._failure  # type: ignore[misc]
