"""A progress bar, redrawn in place on a terminal and in a notebook, by tqdm if it is installed; in
other outputs a new line each time.
"""

from __future__ import annotations

import contextlib
import datetime
import sys
import time
from collections import deque
from typing import Any, TextIO

from mnpar.runtime.callsite import ipython_shell
from mnpar.runtime.processes import reaches_terminal
from mnpar.training.extension import Extension
from mnpar.training.trainer import Trainer


class Bar:
    """One line that shows which part of some iterations or epochs is done.

    Args:
        length: of the bar, in characters.
        out: a stream; None: the standard output.
    """

    def __init__(self, length: int = 50, out: TextIO | None = None) -> None:
        self._length, self._out = length, out
        self._timings: deque[tuple[float, float]] = deque(maxlen=100)  # (done, seconds)
        self._tqdm: Any = None

    def show(self, what: str, done: float, total: float, unit: str) -> None:
        """Draw the bar.

        Args:
            what: the text in front of the bar.
            done: how many units are done.
            total: how many units there are.
            unit: ``'epoch'`` or ``'iteration'``.
        """
        out = self._out or sys.stdout
        if can_redraw(out) and self._by_tqdm(what, done, total, unit, out):
            return
        self._timings.append((done, time.perf_counter()))
        rate = min(done / total, 1.0)
        line = f"{what}  {done:.6g} / {total:g} {unit}s  {rate:.1%}{self._left(done, total)}"
        if can_redraw(out):
            marks = "#" * int(rate * self._length)
            line = (
                f"\r\033[K{what} [{marks.ljust(self._length, '.')}] "
                f"{line.removeprefix(what).lstrip()}"
            )
        else:
            line += "\n"
        out.write(line)
        flush(out)

    def _left(self, done: float, total: float) -> str:
        (then, began), (now, ended) = self._timings[0], self._timings[-1]
        if now <= then or ended <= began:
            return ""
        speed = (now - then) / (ended - began)
        return (
            f"  {speed:.4g}/s  "
            f"{datetime.timedelta(seconds=round(max(total - done, 0.0) / speed))} left"
        )

    def _by_tqdm(self, what: str, done: float, total: float, unit: str, out: TextIO) -> bool:
        """Draw the bar by tqdm; False if that is not installed."""
        if self._tqdm is None:
            try:
                from tqdm import tqdm
            except ImportError:
                return False
            bar = f"{{bar:{self._length}}}"
            layout = (
                "{desc} {percentage:3.0f}%|"
                + bar
                + "| {n:.6g}/{total:g} {unit}s [{elapsed}<{remaining}, {rate_fmt}]"
            )
            self._tqdm = tqdm(
                total=total,
                initial=done,
                desc=what,
                unit=unit,
                file=out,
                leave=False,
                bar_format=layout,
            )
        self._tqdm.n = min(done, total)
        self._tqdm.refresh()
        return True

    def close(self) -> None:
        """Erase the bar."""
        out = self._out or sys.stdout
        if self._tqdm is not None:
            self._tqdm.close()
            self._tqdm = None
        elif self._timings and can_redraw(out):
            out.write("\r\033[K")
            flush(out)
        self._timings.clear()


class ProgressBar(Extension):
    """Shows how much of training is done, and how long the rest will take.

    Args:
        training_length: like ``(20, 'epoch')``; None: what the trainer's stop trigger says.
        update_interval: iterations between two drawings.
        bar_length: in characters.
        out: a stream; None: the standard output, of rank 0 only where ranks train together.

    Example:
        >>> import mnpar
        >>> from mnpar.training import extensions
        >>> bar = extensions.ProgressBar(update_interval=10)
    """

    def __init__(
        self,
        training_length: tuple[float, str] | None = None,
        update_interval: int = 100,
        bar_length: int = 50,
        out: TextIO | None = None,
    ) -> None:
        self._training_length = training_length
        self._update_interval = update_interval
        self._out = out
        self._bar = Bar(bar_length, out)

    def __call__(self, trainer: Trainer) -> None:
        if trainer.updater.iteration % self._update_interval or (
            self._out is None and not getattr(trainer, "speaks", True)
        ):
            return
        if self._training_length is None:
            length = getattr(trainer.stop_trigger, "get_training_length", None)
            if length is None:
                raise TypeError(
                    "the stop trigger does not say how long training is: ProgressBar((20, 'epoch'))"
                )
            self._training_length = length()
        total, unit = self._training_length
        updater = trainer.updater
        self._bar.show(
            "training",
            updater.iteration if unit == "iteration" else updater.epoch_detail,
            total,
            unit,
        )

    def finalize(self) -> None:
        """Erase the bar."""
        self._bar.close()


def can_redraw(out: TextIO) -> bool:
    """Return whether a line that was written to the stream can be replaced by another one: on a
    terminal, and in a notebook.
    """
    in_notebook = out is sys.stdout and ipython_shell() is not None
    return in_notebook or is_terminal(out)


def is_terminal(out: TextIO) -> bool:
    """Return whether what is written to the stream is seen on a terminal."""
    if not getattr(out, "isatty", lambda: False)():
        return False
    with contextlib.suppress(AttributeError, OSError):  # it is no file
        return reaches_terminal(out.fileno())
    return True


def flush(out: TextIO) -> None:
    """Flush a stream that can be flushed."""
    if hasattr(out, "flush"):
        out.flush()
