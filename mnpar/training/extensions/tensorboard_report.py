"""Averages of observed values as event files, which TensorBoard shows while training goes on.

tensorboardX has the file format. Its ``SummaryWriter`` is not used: it writes from a thread, which
loses what is queued where a process ends early, and takes semaphores of the system; its
``EventsWriter`` writes at once.
"""

from __future__ import annotations

import itertools
import os
import time
from typing import Any

import numpy as np

from mnpar.training.extensions.log_report import LogReader, LogReport
from mnpar.training.trainer import Trainer

FOLDER = "tensorboard"
_serial = itertools.count()  # of the files of this process: two of one second have two names


def _tensorboardx() -> Any:
    try:
        import tensorboardX.event_file_writer
        import tensorboardX.proto.event_pb2
        import tensorboardX.summary
    except ImportError as error:
        raise ImportError(
            "TensorBoard's event files need tensorboardX: pip install 'mnpar[tensorboard]'"
        ) from error
    return tensorboardX


class TensorBoardReport(LogReader):
    """Writes the entries of a :class:`LogReport` to event files: a scalar for each number, at the
    step that is the entry's iteration.

    ``tensorboard --logdir result`` shows them, also during training. A resumed training adds a file
    to those that are there; TensorBoard then leaves out what the interrupted one had written of
    iterations after the snapshot, and what an earlier training from the start has left there.

    Args:
        log_report: the name of a LogReport of the trainer, or one that is called from here, such
            as ``LogReport(trigger=(10, "iteration"), log_name=None)``: its interval is that of the
            scalars.
        folder: in the trainer's folder. If ranks train together, the default ``'tensorboard'`` is
            written by rank 0, any other by each rank that is given one. A value is then rank 0's,
            unless an evaluator or an :class:`~mnpar.extensions.ObservationAggregator` has made it
            the mean of all ranks.

    Raises:
        ImportError: tensorboardX is not installed (the extra ``tensorboard``).
        TypeError: ``log_report`` is neither.

    Example:
        >>> from mnpar.training import extensions
        >>> report = extensions.TensorBoardReport(
        ...     extensions.LogReport(trigger=(10, "iteration"), log_name=None)
        ... )
    """

    def __init__(self, log_report: str | LogReport = "LogReport", folder: str = FOLDER) -> None:
        super().__init__(log_report)
        self._library = _tensorboardx()
        self._folder = folder
        self._path: str | None = None  # None: this rank does not write
        self._log: list[dict[str, Any]] = []
        self._written = 0  # entries of the log
        self._first_step = 0  # what other files have from here on is obsolete
        self._writer: Any = None

    def initialize(self, trainer: Trainer) -> None:
        """Begin after the entries that a snapshot has brought back."""
        super().initialize(trainer)
        if not trainer.is_before_training:
            self._first_step = trainer.updater.iteration + 1
        if self._folder != FOLDER or getattr(trainer, "speaks", True):
            self._path = os.path.join(trainer.out, self._folder)

    def __call__(self, trainer: Trainer) -> None:
        self._log = self.read(trainer)
        self._write()

    def finalize(self) -> None:
        """Write an entry that the log got after the last call, and close the file."""
        self._write()
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _write(self) -> None:
        entries = self._log[self._written :]
        self._written = len(self._log)
        entries = [entry for entry in entries if entry["iteration"] >= self._first_step]
        if self._path is None or not entries:
            return
        if self._writer is None:
            self._open(self._path)
        for entry in entries:
            for key, value in entry.items():
                if key != "iteration" and isinstance(value, int | float | np.number):
                    summary = self._library.summary.scalar(key, value)
                    self._add(step=entry["iteration"], summary=summary)
        self._writer.flush()

    def _open(self, path: str) -> None:
        """Make a file, which begins by saying from which step on others are obsolete."""
        os.makedirs(path, exist_ok=True)
        self._writer = self._library.event_file_writer.EventsWriter(
            os.path.join(path, "events"), f".{os.getpid()}.{next(_serial)}"
        )
        start = self._library.proto.event_pb2.SessionLog.START
        self._add(step=self._first_step, session_log={"status": start})

    def _add(self, **fields: Any) -> None:
        """Write one event."""
        event = self._library.proto.event_pb2.Event(wall_time=time.time(), **fields)
        self._writer.write_event(event)
