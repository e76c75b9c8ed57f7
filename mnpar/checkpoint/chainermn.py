"""Saving before a scheduler ends the job: a signal sets a flag, and all ranks act on it after the
same iteration.

Schedulers send SIGTERM, or another signal, some time before they kill; perhaps to some ranks only,
and each is at another point of its work. A checkpoint needs all ranks at one iteration. So the
signal's handler only sets a flag, and after each iteration the ranks share their flags, by a
non-blocking allreduce whose result is looked at after the next iteration: no rank waits for it.

ChainerMN's checkpointer: a Trainer's extension that saves the Trainer of all ranks, and goes on
from what it saved.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

import numpy as np

from mnpar.checkpoint import store
from mnpar.checkpoint.background import Background
from mnpar.checkpoint.loading import load
from mnpar.checkpoint.retention import collect_garbage
from mnpar.checkpoint.saving import begin as begin_saving, save
from mnpar.checkpoint.store import take_lock
from mnpar.communicators.communicator import require_communicator
from mnpar.communicators.consensus import run_on_all

if TYPE_CHECKING:
    from mnpar.communicators import Communicator
    from mnpar.communicators.operation import Operation

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class Notice:
    """Whether the job is to end. Called by all ranks after an iteration, it says the same on all of
    them.

    From the moment it is made, the signals no longer end this process, until :meth:`close` or the
    end of a ``with`` block.

    Args:
        comm: all its ranks make it and call it, in the same iterations.
        signals: that are taken as a notice. MPICH's mpiexec and srun pass SIGTERM on to the ranks;
            Open MPI's mpiexec kills them at once, but passes SIGUSR1 on. Signals come to main
            threads only; elsewhere :meth:`note` does the same.

    Raises:
        ValueError: a signal cannot be caught.

    Example:
        >>> import os, signal, mnpar
        >>> def program(comm):
        ...     with mnpar.checkpoint.Notice(comm) as notice:
        ...         for iteration in range(1, 100):
        ...             if iteration == 5 and comm.rank == 1:
        ...                 notice.note()  # or somebody: kill -TERM
        ...             if notice():
        ...                 return iteration  # here all of them save
        >>> mnpar.run(program, ranks=3)
        [6, 6, 6]
    """

    def __init__(self, comm: Communicator, signals: Sequence[int] = SIGNALS) -> None:
        require_communicator(comm, "Notice(comm)")
        self.comm = comm
        self.told = False
        self._asked: Operation | None = None
        self._before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            try:
                for number in signals:
                    self._before[number] = signal.signal(number, self._heard)
            except (OSError, ValueError) as error:
                self.close()
                raise ValueError(
                    f"{signal.Signals(number).name} cannot be caught: {error}"
                ) from None

    def __enter__(self) -> Notice:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _heard(self, number: int, frame: FrameType | None) -> None:
        self.told = True

    def note(self) -> None:
        """Do what a signal does, on this rank."""
        self.told = True

    def __call__(self) -> bool:
        """Whether a rank had heard a signal when it last called this, or, on one rank, now.
        Collective.
        """
        if self.comm.size == 1:
            return self.told
        found = self._asked is not None and bool(self._asked.wait()[0])
        self._asked = (
            None if found else self.comm.iallreduce(np.array([self.told], np.int32), "max")
        )
        return found

    def close(self) -> None:
        """Let signals do what they did before."""
        for number, before in self._before.items():
            if signal.getsignal(number) == self._heard:
                signal.signal(number, signal.SIG_DFL if before is None else before)
        self._before = {}


def create_multi_node_checkpointer(
    name: str,
    comm: Communicator,
    cp_interval: int = 5,
    gc_interval: int = 5,
    path: str | None = None,
    *,
    asynchronous: bool = False,
) -> MultiNodeCheckpointer:
    """An extension that saves the training of all ranks, and lets it go on after the job was
    killed, on any number of ranks.

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
        cp_interval: how many checkpoints are kept.
        gc_interval: after how many more the oldest are removed, all at once.
        path: the folder of that folder; None: the Trainer's ``out``. The same on all ranks, which
            all see it.
        asynchronous: True: saving takes a copy, and threads write it while training goes on. The
            next save waits for it, and raises, on all ranks, what went wrong; so do ``flush`` and,
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
    """What :func:`create_multi_node_checkpointer` returns, with the same arguments: an extension of
    a Trainer.

    All ranks of ``comm`` make one, call its methods together, and keep the objects that it saves
    and loads.

    Raises:
        ValueError: the name is not that of a folder, or an interval is less than 1.
    """

    trigger = (1, "iteration")
    priority = -100  # the last of an iteration: what the other extensions change is saved too
    default_name = "multi_node_checkpointer"
    _lock: int | None = None  # of the folder, on rank 0

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
        self.name = self._run = name  # a Trainer changes ``name`` where it is taken
        self.comm = comm
        self.cp_interval = cp_interval
        self.gc_interval = gc_interval
        self.path = path
        self.asynchronous = asynchronous
        self.last: int | None = None  # the iteration that was saved last
        self._seconds: list[float] = []
        self._count = 0  # of checkpoints that are there
        # what is being written, and into which folder
        self._background: tuple[str, Background] | None = None

    def __call__(self, trainer: Any) -> None:
        """Save a Trainer at its iteration. Collective."""
        self.save(trainer, trainer.updater.iteration)

    def finalize(self) -> None:
        """Wait for what this rank is writing, and let other jobs use the folder; it does not wait
        for other ranks.

        Nothing is removed: a run can go on from its checkpoints, after an error above all.

        Raises:
            OSError, CheckpointError: what was being written could not be.
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

    def _hold(self, folder: str) -> None:
        """Keep other jobs out of the folder."""
        held = run_on_all(self.comm, lambda: self._lock is not None or self.comm.rank != 0)
        if not all(held):
            self._lock = run_on_all(
                self.comm, lambda: take_lock(folder) if self.comm.rank == 0 else None
            )[self.comm.rank]

    def flush(self) -> None:
        """Return when all that was saved is on the disk. Collective.

        Raises:
            OSError, CheckpointError: on all ranks, if one of them could not write.
        """
        if self._background is not None:
            (folder, background), self._background = self._background, None
            background.finish()
            self._saved(folder)

    def save(self, target: Any, iteration: int) -> str | None:
        """Save something that has ``serialize``, or a dict of such, and remove old ones if it is
        time. Collective.

        Returns:
            The path of the checkpoint; None while it is written in the background.

        Raises:
            OSError, TypeError, ValueError: as :func:`mnpar.checkpoint.save`.
            CheckpointError: on all ranks, if another job uses the folder.
        """
        folder, path = self._folder(target), None
        begin = time.perf_counter()
        self._hold(folder)
        self.flush()
        if self.asynchronous:
            draft = begin_saving(folder, target, self.comm, iteration, copies=True)
            self._background = folder, Background(draft, self.comm)
        else:
            path = save(folder, target, self.comm, iteration)
        self.last = iteration
        self._seconds.append(time.perf_counter() - begin)
        if path is not None:
            self._saved(folder)
        return path

    def _saved(self, folder: str) -> None:
        """A checkpoint has come to be there."""
        self._count += 1
        if self._count % self.gc_interval == 0:
            self.collect_garbage(folder)

    def at_notice(self, signals: Sequence[int] = SIGNALS) -> SaveAtNotice:
        """An extension that saves after the iteration in which a signal came to any rank, and ends
        training.

        It raises ``SystemExit(143)``, so what stands behind ``trainer.run()`` is not reached, and
        the exit code is that of a program that was terminated. See
        :class:`mnpar.checkpoint.Notice`::

            trainer.extend(checkpointer, trigger=(500, "iteration"))
            trainer.extend(checkpointer.at_notice())

        Args:
            signals: SIGTERM and SIGUSR1, unless it is told otherwise.
        """
        return SaveAtNotice(self, signals)

    def collect_garbage(self, folder: str) -> None:
        """Remove the checkpoints that are older than the ``cp_interval`` newest good ones.
        Collective.
        """
        try:
            collect_garbage(folder, self.comm, self.cp_interval)
        except OSError as error:  # training need not end because of it
            if self.comm.rank == 0:
                warnings.warn(f"an old checkpoint could not be removed: {error}", stacklevel=2)

    def maybe_load(
        self, trainer: Any, optimizer: Any = None, path: str | None = None
    ) -> int | None:
        """Go on from the newest good checkpoint, if there is one. Collective.

        Args:
            trainer: or whatever was given to ``save``, with all its parts in place.
            optimizer: ChainerMN's argument; nothing has to be told to it.
            path: instead of the one given at first.

        Returns:
            The iteration; None if there was nothing to load.

        Raises:
            CheckpointError, KeyError, ValueError, TypeError: as :func:`mnpar.checkpoint.load`.
        """
        if self.path is None:
            self.path = path
        folder = self._folder(trainer)
        self.flush()
        with suppress(OSError):  # to read, it need not be writable
            self._hold(folder)
        return load(folder, trainer, self.comm)

    def get_stats(self) -> str:
        """How long training waited for saving, in seconds."""
        if not self._seconds:
            return "No stats available"
        mean = sum(self._seconds) / len(self._seconds)
        return (
            f"Snapshot duration stats (sec): avg={mean:f}, min={min(self._seconds):f}, "
            f"max={max(self._seconds):f}"
        )

    def _folder(self, target: Any) -> str:
        path = self.path if self.path is not None else getattr(target, "out", None)
        if path is None:
            raise ValueError(
                "a checkpointer without a Trainer needs a path: "
                "create_multi_node_checkpointer(…, path='result')"
            )
        return os.path.join(path, self._run)

    def steps(self, trainer: Any = None) -> list[int]:
        """The iterations of the checkpoints that there are."""
        return [name.step for name in store.names(self._folder(trainer))]


class SaveAtNotice:
    """What :meth:`MultiNodeCheckpointer.at_notice` returns."""

    trigger = (1, "iteration")
    priority = -200  # after the checkpointer
    default_name = "at_notice"

    def __init__(self, checkpointer: MultiNodeCheckpointer, signals: Sequence[int]) -> None:
        self.checkpointer, self.signals = checkpointer, signals
        self.notice: Notice | None = None

    def initialize(self, trainer: Any) -> None:
        """Listen from now on."""
        self.notice = Notice(self.checkpointer.comm, self.signals)

    def __call__(self, trainer: Any) -> None:
        """Save, and end training, if the job is to end. Collective."""
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
        """Let signals do what they did before."""
        if self.notice is not None:
            self.notice.close()
