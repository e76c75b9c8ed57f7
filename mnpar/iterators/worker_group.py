"""Worker processes that are started together, without MPI and out of reach of the terminal's
Ctrl-C.

One process is started by exec; it imports mnpar, forks the workers and reports how they end. The
program holds one end of two pipes to each worker; a worker ends when they are closed.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import warnings
from contextlib import suppress
from typing import NamedTuple

from mnpar.iterators import shared_file
from mnpar.iterators.worker import BORN, REPLY, STATUS


class TimeoutWarning(RuntimeWarning):
    """A worker takes longer than ``dataset_timeout`` to read its examples."""


class Setup(NamedTuple):
    """How workers start, and what each of them is told first."""

    message: bytes  # the pickled data set, without its arrays
    fd: int  # of the shared file with the data set's arrays
    environment: dict[str, str]


class WorkerGroup:
    """Workers that were started together: forks of one process, which reports how each of them
    ends.

    Args:
        numbers: of the workers, for messages.
        setup: how they start.
    """

    def __init__(self, numbers: list[int], setup: Setup) -> None:
        self.pids: dict[int, int] = {}
        self.ends: dict[int, int] = {}
        self.process: subprocess.Popen[bytes] | None = None
        self.status, status = os.pipe()
        self.workers = []
        theirs: list[tuple[int, int, int]] = []
        try:
            for which, number in enumerate(numbers):
                worker = Worker(number, self, which)
                self.workers.append(worker)
                theirs.append(worker.open())
            self.process = _execute(theirs, status, setup)
        except BaseException:
            self.stop(False)
            raise
        finally:
            for fd in (
                status,
                *[fd for requests, replies, _ in theirs for fd in (requests, replies)],
            ):
                os.close(fd)
        for worker in self.workers:
            worker.send(setup.message)

    def look(self, seconds: float = 0.0) -> bool:
        """Read reports of workers that started or ended; whether one came within so many
        seconds.
        """
        seen = False
        while _readable(self.status, 0.0 if seen else seconds) and (
            data := os.read(self.status, STATUS.size)
        ):
            which, pid, how = STATUS.unpack(data)
            if how == BORN:
                self.pids[which] = pid
            else:
                self.ends[which] = os.waitstatus_to_exitcode(how)
            seen = True
        return seen

    def is_over(self) -> bool:
        """Whether all workers have ended, or were closed, and all of their replies were read; it is
        then stopped.
        """
        over = all(worker.requests < 0 or worker.has_ended() for worker in self.workers)
        if over:
            self.stop(True)
        return over

    def stop(self, end: bool) -> None:
        """Close all pipes, which ends the workers; ``end``: send signals, too, for workers that do
        not watch their pipe yet.
        """
        for worker in self.workers:
            worker.close()
        if self.status >= 0:
            os.close(self.status)
        self.status = -1
        if self.process is None or not end:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self.process.returncode is None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.process.pid, number)
                with suppress(subprocess.TimeoutExpired):
                    self.process.wait(5)


def _execute(
    files: list[tuple[int, int, int]], status: int, setup: Setup
) -> subprocess.Popen[bytes]:
    """Start the process that forks the workers."""
    code = (
        f"import sys; sys.path[:] = {sys.path!r}; import mnpar.iterators.worker as w; "
        f"w.fork({files}, {status}, {setup.fd})"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env=setup.environment,
        stdin=subprocess.DEVNULL,
        pass_fds=(status, setup.fd, *[fd for three in files for fd in three]),
        process_group=0,  # Ctrl-C is not for it
    )


class Worker:
    """One worker process: the pipes to it and the memory for its results."""

    def __init__(self, number: int, group: WorkerGroup, which: int) -> None:
        self.number = number
        self.group = group
        self.which = which
        self.n_tasks = 0
        self.requests = self.replies = self.memory = -1

    def open(self) -> tuple[int, int, int]:
        """Make the files; returns the worker's ends of them."""
        theirs, self.requests = os.pipe()
        self.replies, other = os.pipe()
        self.memory = shared_file.make()
        return theirs, other, self.memory

    def __str__(self) -> str:
        self.group.look()
        return (
            f"worker process {self.number} (pid {self.group.pids.get(self.which, 'not yet known')})"
        )

    def send(self, data: bytes) -> None:
        """Write to the worker; if it has ended, :meth:`receive` raises the error."""
        view = memoryview(data)
        with suppress(BrokenPipeError):
            while len(view):
                view = view[os.write(self.requests, view) :]

    def receive(self, rows: list[int], timeout: float | None) -> tuple[int, int, int, int]:
        """The next reply: ticket, status, size of the head, the row that failed.

        Raises:
            RuntimeError: the worker ended before it replied.
        """
        if timeout is not None and not _readable(self.replies, timeout):
            warnings.warn(
                f"{self} has been at the examples {_few(rows)} for {timeout} s and goes on "
                "(dataset_timeout says after how many seconds to warn)",
                TimeoutWarning,
                stacklevel=6,
            )
        data = os.read(self.replies, REPLY.size)
        if len(data) < REPLY.size:
            how = self._how()
            raise RuntimeError(
                f"{self} ended by {how} when it was to read the examples {_few(rows)}"
            )
        ticket, status, head, row = REPLY.unpack(data)
        return ticket, status, head, row

    def _how(self) -> str:
        while self.which not in self.group.ends:
            if not self.group.look(5):
                return "an error when it was started (see above)"
        code = self.group.ends[self.which]
        if code >= 0:
            return f"exit code {code}"
        hint = ": perhaps there was no memory left" if -code == signal.SIGKILL else ""
        return f"signal {signal.Signals(-code).name}{hint}"

    def has_ended(self) -> bool:
        """Whether the worker has ended and all of its replies were read."""
        poll = select.poll()
        poll.register(self.replies, select.POLLIN)
        events = [event for _, event in poll.poll(0)]
        return bool(events) and not events[0] & select.POLLIN

    def close(self) -> None:
        """Close its pipes and its shared memory, which ends it."""
        for fd in (self.requests, self.replies, self.memory):
            if fd >= 0:
                os.close(fd)
        self.requests = self.replies = self.memory = -1


def _readable(fd: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def _few(rows: list[int]) -> str:
    return str(rows) if len(rows) <= 8 else f"{rows[:8]} and {len(rows) - 8} more"
