"""ChainerMN's checkpointer: a Trainer's extension that saves the Trainer of all ranks, and
continues from what it saved.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from mnpar.checkpoint import store
from mnpar.checkpoint.background import BackgroundSave
from mnpar.checkpoint.node_local import FolderGroup
from mnpar.checkpoint.preemption import SIGNALS, Notice
from mnpar.checkpoint.retention import collect_garbage
from mnpar.checkpoint.saving import Objects, begin as begin_saving, save
from mnpar.checkpoint.store import lock_folder
from mnpar.communicators.communicator import require_communicator
from mnpar.communicators.consensus import run_on_all

if TYPE_CHECKING:
    from mnpar.communicators import Communicator


def create_multi_node_checkpointer(
    name: str,
    comm: Communicator,
    cp_interval: int = 5,
    gc_interval: int = 5,
    path: str | None = None,
    *,
    asynchronous: bool = False,
) -> MultiNodeCheckpointer:
    """Return an extension that saves the training of all ranks, so that it continues after the job
    was killed, on any number of ranks.

    Call ``maybe_load`` when the Trainer has all its extensions, before ``run``::

        checkpointer = mnpar.create_multi_node_checkpointer("run1", comm)
        trainer.extend(checkpointer, trigger=(100, "iteration"))
        checkpointer.maybe_load(trainer, optimizer)
        trainer.run()

    Without a Trainer, ``save(target, iteration)`` and ``maybe_load(target)`` take what
    :func:`mnpar.checkpoint.save` takes.

    Args:
        name: of the run; its checkpoints are in the folder of this name.
        comm: all its ranks make the extension, and call it at the same iterations.
        cp_interval: how many checkpoints stay.
        gc_interval: after how many more the oldest are removed, all at once.
        path: the directory of that folder; None: the Trainer's ``out``. The same on all ranks, on a
            file system that they share; or, on disks of the nodes' own, another one for each rank
            or node, whose paths differ: the same ranks then continue from the newest step that all
            have.
        asynchronous: saving takes a copy, and threads write it while training goes on. The next
            save waits for the threads, and raises their errors on all ranks; so do ``flush`` and,
            on the ranks concerned, the end of training.

    Raises:
        ValueError: the name cannot be a folder's, or an interval is less than 1.

    Example:
        >>> import tempfile, mnpar, mnpar.links as L
        >>> def program(comm, folder):
        ...     model = L.Linear(3, 2)
        ...     checkpointer = mnpar.create_multi_node_checkpointer("run1", comm, path=folder)
        ...     checkpointer.save(model, 10)
        ...     return checkpointer.maybe_load(model)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     mnpar.run(program, ranks=2, args=(folder,))
        [10, 10]
    """
    require_communicator(comm, "create_multi_node_checkpointer(name, comm)")
    return MultiNodeCheckpointer(name, comm, cp_interval, gc_interval, path, asynchronous)


class MultiNodeCheckpointer:
    """The extension that :func:`create_multi_node_checkpointer` returns, with the same arguments.

    All ranks of ``comm`` make one, and call its methods together.

    Raises:
        ValueError: the name cannot be a folder's, or an interval is less than 1.
    """

    trigger = (1, "iteration")
    priority = -100  # the last of an iteration: what the other extensions change is saved too
    default_name = "multi_node_checkpointer"
    _lock: int | None = None  # the descriptor of the folder's lock, on rank 0

    def __init__(
        self,
        name: str,
        comm: Communicator,
        cp_interval: int = 5,
        gc_interval: int = 5,
        path: str | None = None,
        asynchronous: bool = False,
    ) -> None:
        if (
            not isinstance(name, str)
            or not name
            or name != os.path.basename(name)
            or name.startswith(".")
        ):
            raise ValueError(f"the name of a run is the name of a folder, not {name!r}")
        for what, interval in (("cp_interval", cp_interval), ("gc_interval", gc_interval)):
            if interval < 1:
                raise ValueError(f"{what} = {interval}: it is 1 or more")
        self.name = self._run = name  # a Trainer changes a ``name`` that is in use
        self.comm = comm
        self.cp_interval = cp_interval
        self.gc_interval = gc_interval
        self.path = path
        self.asynchronous = asynchronous
        self.last: int | None = None  # the iteration that was saved last
        self._seconds: list[float] = []
        self._count = 0  # of checkpoints written
        # the folder, and the checkpoint that is being written there
        self._background: tuple[str, BackgroundSave] | None = None
        self._groups: FolderGroup | None = None  # who else names this rank's folder

    def __call__(self, trainer: Any) -> None:
        """Save a Trainer at its iteration. Collective."""
        self.save(trainer, trainer.updater.iteration)

    def finalize(self) -> None:
        """Wait for this rank's writing, not for other ranks, and let other jobs use the folder.

        Nothing is removed: a run can continue from its checkpoints, after an error above all.

        Raises:
            OSError, CheckpointError: the checkpoint could not be written.
        """
        (_, background), self._background = self._background or (None, None), None
        try:
            if background is not None:
                background.join()
        finally:
            self._release()

    def _release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __del__(self) -> None:
        self._release()

    def _group(self, folder: str) -> FolderGroup:
        """Return the ranks that name this rank's folder. Collective."""
        if self._groups is None or self._groups.folder != folder:
            self._groups = FolderGroup(self.comm, folder)
        return self._groups

    def _lock_folder(self, folder: str) -> None:
        """Lock the folder, unless it is locked already. Collective."""
        first = self._group(folder).comm.rank == 0
        if not all(run_on_all(self.comm, lambda: self._lock is not None or not first)):
            self._lock = run_on_all(self.comm, lambda: lock_folder(folder) if first else None)[
                self.comm.rank
            ]

    def flush(self) -> None:
        """Wait until all saved checkpoints are on the disk. Collective.

        Raises:
            OSError, CheckpointError: on all ranks, if one of them could not write.
        """
        if self._background is not None:
            (folder, background), self._background = self._background, None
            self._group(folder).together(background.finish)
            self._saved(folder)

    def save(self, target: Objects, iteration: int) -> str | None:
        """Save an object that has ``serialize``, or a dict of such objects; remove old checkpoints
        every ``gc_interval`` times. Collective.

        Returns:
            The path of the checkpoint; None while it is written in the background.

        Raises:
            OSError, TypeError, ValueError: as :func:`mnpar.checkpoint.save`.
            CheckpointError: on all ranks, if another job uses the folder.
        """
        folder, path = self._folder(target), None
        begin = time.perf_counter()
        group = self._group(folder)
        self._lock_folder(folder)
        self.flush()
        objects, comm = group.marked(target), group.comm
        if self.asynchronous:
            draft = group.together(
                lambda: begin_saving(folder, objects, comm, iteration, copies=True)
            )
            self._background = folder, BackgroundSave(draft, comm)
        else:
            path = group.together(lambda: save(folder, objects, comm, iteration))
        self.last = iteration
        self._seconds.append(time.perf_counter() - begin)
        if path is not None:
            self._saved(folder)
        return path

    def _saved(self, folder: str) -> None:
        """Count a checkpoint that is on the disk, and remove old ones if it is time."""
        self._count += 1
        if self._count % self.gc_interval == 0:
            self.collect_garbage(folder)

    def at_notice(self, signals: Sequence[int] = SIGNALS) -> SaveAtNotice:
        """Return an extension that saves after the iteration in which any rank received a signal,
        and ends training.

        It raises ``SystemExit(143)``, so the program does not return from ``trainer.run()``, and
        the exit code is that of a program that was terminated. See
        :class:`mnpar.checkpoint.Notice`::

            trainer.extend(checkpointer, trigger=(500, "iteration"))
            trainer.extend(checkpointer.at_notice())

        Args:
            signals: by default SIGTERM and SIGUSR1.
        """
        return SaveAtNotice(self, signals)

    def collect_garbage(self, folder: str) -> None:
        """Remove the checkpoints that are older than the ``cp_interval`` newest good ones.
        Collective.
        """
        try:
            group = self._group(folder)
            group.together(lambda: collect_garbage(folder, group.comm, self.cp_interval))
        except OSError as error:  # training need not end because of it
            if self.comm.rank == 0:
                warnings.warn(f"an old checkpoint could not be removed: {error}", stacklevel=2)

    def maybe_load(
        self, trainer: Objects, optimizer: Any = None, path: str | None = None
    ) -> int | None:
        """Continue from the newest good checkpoint, if there is one. Collective.

        Args:
            trainer: the argument of ``save``, with all its parts in place.
            optimizer: ChainerMN's argument; it is not used.
            path: the directory, if none was given before.

        Returns:
            The iteration; None if there was nothing to load.

        Raises:
            CheckpointError, KeyError, ValueError, TypeError: as :func:`mnpar.checkpoint.load`.
        """
        if self.path is None:
            self.path = path
        folder = self._folder(trainer)
        self.flush()
        with suppress(OSError):  # a folder that is only read need not be writable
            self._lock_folder(folder)
        return self._group(folder).load(trainer)

    def get_stats(self) -> str:
        """Return how long training waited for saving, in seconds, as a text."""
        if not self._seconds:
            return "No stats available"
        mean = sum(self._seconds) / len(self._seconds)
        return (
            f"Snapshot duration stats (sec): avg={mean:f}, min={min(self._seconds):f}, "
            f"max={max(self._seconds):f}"
        )

    def _folder(self, target: Objects) -> str:
        path = self.path if self.path is not None else getattr(target, "out", None)
        if path is None:
            raise ValueError(
                "a checkpointer without a Trainer needs a path: "
                "create_multi_node_checkpointer(…, path='result')"
            )
        return os.path.join(path, self._run)

    def steps(self, trainer: Any = None) -> list[int]:
        """Return the iterations of the checkpoints in the folder."""
        return [name.step for name in store.names(self._folder(trainer))]


class SaveAtNotice:
    """The extension that :meth:`MultiNodeCheckpointer.at_notice` returns."""

    trigger = (1, "iteration")
    priority = -200  # after the checkpointer
    default_name = "at_notice"

    def __init__(self, checkpointer: MultiNodeCheckpointer, signals: Sequence[int]) -> None:
        self.checkpointer, self.signals = checkpointer, signals
        self.notice: Notice | None = None

    def initialize(self, trainer: Any) -> None:
        """Catch signals from now on."""
        self.notice = Notice(self.checkpointer.comm, self.signals)

    def __call__(self, trainer: Any) -> None:
        """Save, and end training, if the job must end. Collective."""
        if self.notice is None or not self.notice():
            return
        iteration = trainer.updater.iteration
        if self.checkpointer.last != iteration:
            self.checkpointer.save(trainer, iteration)
        self.checkpointer.flush()
        if self.checkpointer.comm.rank == 0:
            sys.stderr.write(f"mnpar: the job is to end: saved at iteration {iteration}\n")
        raise SystemExit(128 + signal.SIGTERM)

    def finalize(self) -> None:
        """Restore the handlers of the signals."""
        if self.notice is not None:
            self.notice.close()
