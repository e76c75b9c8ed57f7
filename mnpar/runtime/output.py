"""Output to the user, above all before a process ends the job, and the wait until it has been read.

A launcher passes on what its ranks write to pipes. MPICH's closes them when a rank aborts the job:
if it is late, on a busy machine, it learns of both at once, and drops what it has not read. So a
rank that ends the job waits for its reader first.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time

from mnpar.runtime import system

ALIKE = 0.8  # s: if all ranks fail alike, rank 0 speaks for them, and ends the job
# s for another rank that has failed alike to speak, to be read, and to end the job
SPOKEN = 3.0
_PASS_ON = 0.2  # s for a launcher to pass on what it has read
_READ = 2.0  # s for a reader who is there
_NAP = 0.005  # s

# a file that gets all that is said here, too
_record: int | None = None


def record(file: int) -> None:
    """Let all that :func:`speak` says reach a file, too: what a test says is captured, and lost if
    it ends the job.

    Args:
        file: its number.
    """
    global _record
    _record = file


def write_lines_at_once() -> None:
    """Let each line that the program prints leave it at once, as on a terminal.

    A launcher reads standard output by pipes, which Python fills in blocks: lines would come late,
    in pieces between those of other ranks, and not at all if another rank ends the job. With
    PYTHONUNBUFFERED each piece of a line would leave by itself.
    """
    reconfigure = getattr(sys.stdout, "reconfigure", None)  # not there if it was replaced
    if reconfigure is not None:
        reconfigure(line_buffering=True, write_through=False)


def speak(text: str = "") -> None:
    """Write to the user, after all that the program has written; it may have closed its streams, or
    replaced them.
    """
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    if _record is not None and text:
        with contextlib.suppress(OSError):
            os.write(_record, text.encode())
    for stream in (sys.stderr, sys.__stderr__):
        with contextlib.suppress(Exception):
            stream.write(text)  # type: ignore[union-attr]
            stream.flush()  # type: ignore[union-attr]
            return


def speak_at_once(text: str) -> None:
    """Write to the system's stderr if it takes that without waiting: where another thread may hold
    Python's streams.
    """
    with contextlib.suppress(OSError, ValueError):
        if select.select([], [2], [], 0)[1]:
            os.write(2, text.encode())


def await_reader() -> None:
    """Wait until the output has been read and passed on, or nobody seems to read it."""
    deadline = time.monotonic() + _READ
    while any(map(system.unread, (1, 2))) and time.monotonic() < deadline:
        time.sleep(_NAP)
    time.sleep(_PASS_ON)
