"""Averages of observed values: as a list of dicts in memory and in a JSON file, and as a table on
the terminal. Other extensions that show the entries of a log derive from :class:`LogReader`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, TextIO

from mnpar.reporter import DictSummary
from mnpar.serializer import AbstractSerializer, Deserializer
from mnpar.serializers.atomic import replacing_path
from mnpar.training.extension import Extension, TriggerLike, keep, keep_part
from mnpar.training.extensions.progress_bar import flush, is_terminal
from mnpar.training.extensions.reported_keys import ReportedKeys
from mnpar.training.trainer import Trainer
from mnpar.training.triggers.interval import get_trigger


class LogReport(Extension):
    """Averages what is observed over an interval, and writes the averages of all intervals to a
    JSON file.

    Each entry also has ``epoch``, ``iteration`` and ``elapsed_time`` in seconds.

    Args:
        keys: of what to average; None: all scalars.
        trigger: when an interval ends; the extension itself is called at each iteration.
        postprocess: called with each new entry, which it may change.
        filename: in the trainer's folder, with fields of the entry (``'log_{iteration}'``). If
            ranks train together, the default ``'log'`` is written by rank 0, any other by each rank
            that is given one. (``log_name`` is the same; ``log_name=None``: no file.)

    Attributes:
        log: the entries so far.

    Example:
        >>> from mnpar.training import extensions
        >>> extensions.LogReport(trigger=(100, "iteration")).log
        []
    """

    def __init__(
        self,
        keys: Iterable[str] | None = None,
        trigger: TriggerLike = (1, "epoch"),
        postprocess: Callable[[Any], None] | None = None,
        filename: str | None = None,
        *,
        log_name: str | None = "log",
    ) -> None:
        self._keys = None if keys is None else list(keys)
        self._trigger, self._postprocess = get_trigger(trigger), postprocess
        self._log_name = log_name if filename is None else filename
        self._asked = filename is not None or log_name != "log"
        self._log: list[dict[str, Any]] = []
        self._summary = DictSummary()
        self._reported = ReportedKeys(type(self).__name__, self._keys or ())
        # the observation of the last call: each iteration has one of its own
        self._seen: Any = None

    @property
    def log(self) -> list[dict[str, Any]]:
        """The entries so far."""
        return self._log

    def __call__(self, trainer: Trainer) -> None:
        observation = trainer.observation
        if self._seen is observation:  # an extension, and called by PrintReport, too
            return
        self._seen = observation
        keys = (
            observation if self._keys is None else [key for key in self._keys if key in observation]
        )
        self._summary.add({key: observation[key] for key in keys})
        if self._keys is not None:
            self._reported.add(observation)
        if not (self._trigger(trainer) or trainer.is_before_training):
            return
        entry: dict[str, Any] = self._summary.compute_mean()
        updater = trainer.updater
        entry.update(
            epoch=updater.epoch, iteration=updater.iteration, elapsed_time=trainer.elapsed_time
        )
        if self._postprocess is not None:
            self._postprocess(entry)
        self._log.append(entry)
        self._summary = DictSummary()
        if getattr(trainer, "speaks", True):
            self._reported.compare()
        if self._log_name is not None and (self._asked or getattr(trainer, "speaks", True)):
            path = os.path.join(trainer.out, self._log_name.format(**entry))
            with replacing_path(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
                json.dump(self._log, file, indent=4)

    def on_error(self, trainer: Trainer, exc: Exception, tb: TracebackType | None) -> None:
        """Tell nothing: what is missing might have come."""
        self._reported.forget()

    def finalize(self) -> None:
        """Tell which of its keys were never reported."""
        self._reported.end()

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Save or load the entries, and the sums of the current interval."""
        keep_part(serializer, "_trigger", self._trigger)
        self._summary.serialize(serializer["_summary"])
        log = keep(serializer, "_log", json.dumps(self._log), str)
        if isinstance(serializer, Deserializer):
            self._log = json.loads(log)


class LogReader(Extension):
    """The base of extensions that show the entries of a :class:`LogReport`.

    Args:
        log_report: the name of a LogReport of the trainer, or one that is called from here.

    Raises:
        TypeError: ``log_report`` is neither.
    """

    def __init__(self, log_report: str | LogReport = "LogReport") -> None:
        if not isinstance(log_report, str | LogReport):
            raise TypeError(
                f"log_report is a LogReport or the name of one, not a {type(log_report).__name__}"
            )
        self._log_report = log_report

    def read(self, trainer: Trainer) -> list[dict[str, Any]]:
        """Return the entries so far; a LogReport that is not the trainer's is called first."""
        report = self._log_report
        if isinstance(report, str):
            report = trainer.get_extension(report)
        else:
            report(trainer)
        log: list[dict[str, Any]] = report.log
        return log

    def initialize(self, trainer: Trainer) -> None:
        """Prepare the LogReport that is called from here."""
        if isinstance(self._log_report, LogReport):
            self._log_report.initialize(trainer)

    def on_error(self, trainer: Trainer, exc: Exception, tb: TracebackType | None) -> None:
        """Let the LogReport that is called from here tell nothing."""
        if isinstance(self._log_report, LogReport):
            self._log_report.on_error(trainer, exc, tb)

    def finalize(self) -> None:
        """Finish the LogReport that is called from here."""
        if isinstance(self._log_report, LogReport):
            self._log_report.finalize()

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Save or load the LogReport that is called from here."""
        if isinstance(self._log_report, LogReport):
            self._log_report.serialize(serializer["_log_report"])


class PrintReport(LogReader):
    """Prints entries of a :class:`LogReport` as a table, a line for each as soon as it is there.

    Args:
        entries: the keys of its columns; ``elapsed_time`` is in seconds.
        log_report: the name of a LogReport of the trainer, or one that is called from here.
        out: a stream; None: the standard output, of rank 0 only where ranks train together.

    Raises:
        TypeError: ``log_report`` is neither.

    Example:
        >>> from mnpar.training import extensions
        >>> table = extensions.PrintReport(
        ...     ["epoch", "main/loss", "validation/main/accuracy", "elapsed_time"]
        ... )
    """

    def __init__(
        self,
        entries: Iterable[str],
        log_report: str | LogReport = "LogReport",
        out: TextIO | None = None,
    ) -> None:
        super().__init__(log_report)
        self._entries = list(entries)
        self._out = out
        self._printed: int | None = None  # entries; None: not even the header
        self._keys = ReportedKeys(type(self).__name__, self._entries)

    def __call__(self, trainer: Trainer) -> None:
        log = self.read(trainer)
        if self._out is None and not getattr(trainer, "speaks", True):
            return
        if self._printed is None:
            self._write("  ".join(f"{entry:10}" for entry in self._entries))
            self._printed = 0
        for observation in log[self._printed :]:
            self._write(
                "".join(
                    f"{_cell(observation.get(entry)):{max(10, len(entry))}}  "
                    for entry in self._entries
                )
            )
            self._keys.add(observation)
        if len(log) > self._printed:
            self._keys.compare()
        self._printed = len(log)

    def on_error(self, trainer: Trainer, exc: Exception, tb: TracebackType | None) -> None:
        """Tell nothing: what is missing might have come."""
        super().on_error(trainer, exc, tb)
        self._keys.forget()

    def finalize(self) -> None:
        """Tell which of its keys were never reported."""
        super().finalize()
        self._keys.end()

    def _write(self, line: str) -> None:
        """One write for a line, so that lines of several ranks do not mix; over the progress bar,
        where one is drawn.
        """
        out = self._out or sys.stdout
        out.write(("\r\033[J" if is_terminal(out) else "") + line + "\n")
        flush(out)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else f"{value:g}"
