"""The end of a job: hooks for uncaught errors, which are installed once, and ways to end all ranks.

MPI lets the other ranks hang for ever when one of them fails. So an uncaught error, in any thread,
shows its traceback and ends the job. The way to end it depends on how far the job has come, and is
a strategy (``Ending``): before all ranks have met, startup.py makes the launcher notice; afterwards
process.py lets MPI abort, or the session of a job without a launcher. Errors of forked children are
their own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn, Protocol

from mnpar.runtime import cleanup, processes
from mnpar.runtime.pmi import Notices

# s to write what went wrong, which nobody may read, and to end the job
LAST_WORDS = 5.0
ENDING = 1.0  # s in which a launcher that has lost a rank kills the others

Hook = Callable[[type[BaseException], BaseException, TracebackType | None], Any]


class Ending(Protocol):
    """A way to end the job."""

    def is_rank(self) -> bool:
        """Return whether errors of this process end the job now."""

    def end_job(
        self,
        kind: type[BaseException],
        error: BaseException,
        trace: TracebackType | None,
        show: Hook,
    ) -> None:
        """Show an error, and end the job; ``show`` is the hook that was there before."""

    def note_error(self) -> None:
        """Note an error that has ended the program, but does not end the job."""


_ending: Ending


def use(ending: Ending) -> None:
    """Let uncaught errors end the job in this way from now on."""
    global _ending
    _ending = ending
    if sys.excepthook.__module__ != __name__:
        _hook_errors(sys.excepthook)
    if threading.excepthook.__module__ != __name__:
        _hook_errors_of_threads(threading.excepthook)


def _hook_errors(show: Hook) -> None:
    def on_error(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        if _ending.is_rank():
            _ending.end_job(kind, error, trace, show)
        else:
            show(kind, error, trace)
            _ending.note_error()

    sys.excepthook = on_error


def _hook_errors_of_threads(show: Callable[[threading.ExceptHookArgs], Any]) -> None:
    def on_error(args: threading.ExceptHookArgs) -> None:
        error = args.exc_value
        if error is None or isinstance(error, SystemExit) or not _ending.is_rank():
            show(args)
        else:
            _ending.end_job(args.exc_type, error, args.exc_traceback, sys.__excepthook__)

    threading.excepthook = on_error


# ---- ends that the launcher is to notice ----


def kill(launcher: int | None, notices: Notices | None = None) -> None:
    """End this process so that its launcher ends the others, and first remove the files that these
    would leave behind. A process that leaves by itself may be no failure to the launcher.
    """
    tidy(launcher)
    if notices is not None:
        notices.end_job()
        time.sleep(ENDING)
    os.kill(os.getpid(), signal.SIGKILL)


def leave_alone(code: int) -> NoReturn:
    """End this process, and no other."""
    cleanup.remove(cleanup.segments())
    os._exit(code)


def tidy(launcher: int | None) -> None:
    """Remove the files of MPI's shared memory that the ranks here have mapped, which are about to
    end, and their launcher's.
    """
    if launcher is not None:
        cleanup.remove(cleanup.launchers_file(launcher))
    for pid in (*(processes.children(launcher) if launcher is not None else ()), os.getpid()):
        cleanup.remove(cleanup.segments(pid) + cleanup.unfinished(pid))


def part_from_launcher() -> None:
    """Tell MPICH's launcher that this process is over: MPI is, and the process ends in a way that
    passes C's ``exit``, in which MPICH would tell. Else the launcher would kill the others, who may
    still write their results, and report no failure.
    """
    if processes.is_mpichs(processes.launcher()[0]):
        with contextlib.suppress(OSError, KeyError, ValueError):
            Notices(int(os.environ["PMI_FD"])).finalize()


def hang_up() -> None:
    """Close MPICH's launcher's line to this process, which is about to end as a failure: the
    launcher then ends the others, who may be stopped, but not if it sees first that this one has
    ended.
    """
    if processes.is_mpichs(processes.launcher()[0]):
        with contextlib.suppress(OSError, KeyError, ValueError):
            os.close(int(os.environ["PMI_FD"]))
