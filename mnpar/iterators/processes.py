"""The parent's side of worker processes: starting them clear of MPI, handing out work, noticing what became of it.

There is no thread here and no lock: requests wait in each worker's pipe, replies of fixed size (less than a pipe takes at
once, so they come whole) in another, and the workers go on by themselves. Results lie in shared memory, in as many slots as
batches are under way; a reply to a request that was cancelled meanwhile is passed over, because tickets only rise.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import subprocess
import sys
import warnings
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from mnpar.iterators import shared_file
from mnpar.iterators.multithread_iterator import raise_for
from mnpar.iterators.read_ahead import pieces
from mnpar.iterators.worker import BORN, DONE, MAIN, REPLY, REQUEST, STATUS, UNREADY, WORKER
from mnpar.launch import clean_environment

GUARD = (
    "a worker process imported the script and came to a MultiprocessIterator again: what the script does, other than to "
    'define, belongs under `if __name__ == "__main__":`'
)


class TimeoutWarning(RuntimeWarning):
    """A worker takes long to read an example."""


class Setup(NamedTuple):
    """What a worker is told first: the data set, and how to start."""

    message: bytes
    fd: int  # of the data set's arrays
    environment: dict[str, str]


class Piece(NamedTuple):
    """A part of a batch."""

    worker: Worker
    ticket: int
    slot: int
    rows: list[int]


class Processes:
    """n workers.

    Args:
        dataset: is pickled, its arrays into memory that all workers share.
        n: how many workers.
        n_slots: how many batches are under way at most.
        timeout: of a piece, in seconds, after which there is a warning; None: never.
        tasks: how many pieces a worker reads before another takes its place; None: any number.
    """

    def __init__(self, dataset: Any, n: int, n_slots: int, timeout: float | None, tasks: int | None) -> None:
        if WORKER in os.environ:
            raise RuntimeError(GUARD)
        self.n_slots = n_slots
        self.timeout = timeout
        self.tasks = tasks
        self.broken = False
        self.setup = describe(dataset)
        self.ticket = 0
        self.owner = os.getpid()
        self.broods: list[Brood] = []
        self.workers: list[Worker] = []
        try:
            self.workers = self._start(list(range(n)))
        except BaseException:
            self.stop()
            raise

    def _start(self, numbers: list[int]) -> list[Worker]:
        brood = Brood(numbers, self.setup)
        self.broods.append(brood)
        return list(brood.workers)

    def submit(self, rows: list[int], seed: list[int]) -> list[Piece]:
        """Begin to read a batch."""
        self.broken = True  # until all is said
        self.ticket += 1
        slot = self.ticket % self.n_slots
        batch = []
        for number, part in enumerate(pieces(rows, len(self.workers))):
            worker = self._worker(number)
            worker.n_tasks += 1
            worker.send(REQUEST.pack(self.ticket, slot, len(part), *seed, number) + np.array(part, np.int64).tobytes())
            batch.append(Piece(worker, self.ticket, slot, part))
        self.broken = False
        return batch

    def _worker(self, number: int) -> Worker:
        worker = self.workers[number]
        if worker.n_tasks == self.tasks:
            worker.send(REQUEST.pack(0, 0, 0, 0, 0, 0, 0))  # then it ends
            self.broods = [brood for brood in self.broods if not brood.is_over()]
            (worker,) = self._start([number])
            self.workers[number] = worker
        return worker

    def collect(self, ticket: list[Piece]) -> list[Any]:
        """Wait for the batch."""
        self.broken = True
        examples: list[Any] = []
        for piece in ticket:
            examples += self._take(piece)
        self.broken = False
        return examples

    def _take(self, piece: Piece) -> list[Any]:
        worker = piece.worker
        while True:
            ticket, status, head, row = worker.receive(piece.rows, self.timeout)
            if status == UNREADY:
                error, text, trace = pickle.loads(shared_file.read_bytes(worker.memory, head, 0))
                raise RuntimeError(f"{worker} could not take over the data set: {text}\n{trace}")
            if ticket < piece.ticket:
                continue  # it was cancelled
            if status == DONE:
                return shared_file.read_examples(worker.memory, head, piece.slot)
            error, text, trace = pickle.loads(shared_file.read_bytes(worker.memory, head, piece.slot * shared_file.SLOT))
            self.broken = False  # the data set's error, and the workers go on
            raise_for(_load(error, text), f"(raised while {worker} read example {row})\n{trace}")

    def cancel(self, ticket: list[Piece]) -> None:
        """Nobody will ask for it: its replies will be passed over."""

    def stop(self) -> None:
        """End all workers, now."""
        if self.setup.fd < 0:
            return
        mine = os.getpid() == self.owner  # not in a fork
        for brood in self.broods:
            brood.stop(mine)
        os.close(self.setup.fd)
        self.setup = self.setup._replace(fd=-1)


def describe(dataset: Any) -> Setup:
    """The data set made ready for workers."""
    fd = shared_file.make()
    try:
        pickled, places = shared_file.write_object(fd, dataset)
        main = _main() if b"__main__" in pickled else None
    except Exception as error:
        os.close(fd)
        raise TypeError(
            f"a MultiprocessIterator sends its data set, a {type(dataset).__name__}, to other processes, and it cannot be "
            f"pickled: {error}; use functions and classes that a module defines (no lambda), or a MultithreadIterator"
        ) from error
    message = pickle.dumps((pickled, places, fd, main, sys.argv))
    environment = clean_environment(os.environ) | {
        WORKER: "1",
        "MPI4PY_RC_INITIALIZE": "0",  # a script that imports MPI starts none here
        "MNPAR_RELAUNCHED": "1",  # nor does one that starts its ranks itself
    }
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        environment[name] = "1"  # the workers are the threads
    # memory of one batch is kept for the next: handing it back and forth took more than half of a worker's time
    environment = {"MALLOC_MMAP_THRESHOLD_": str(1 << 25), "MALLOC_TRIM_THRESHOLD_": str(1 << 28)} | environment
    return Setup(len(message).to_bytes(8, "little") + message, fd, environment)


def _main() -> tuple[str | None, str]:
    """The name of the script's module and its path."""
    module: Any = sys.modules["__main__"]
    path, spec = getattr(module, "__file__", None), getattr(module, "__spec__", None)
    if path is None:
        raise TypeError("it is of what was defined at a prompt or in a notebook")
    sys.modules.setdefault(MAIN, module)  # what comes back may be of the script's classes
    return (None if spec is None else spec.name), os.path.abspath(path)


def _load(dumped: bytes, text: str) -> BaseException:
    try:
        error: BaseException = pickle.loads(dumped)
    except Exception:
        return RuntimeError(text)
    return error


class Brood:
    """Workers that were started together: a group of processes, whose first one says how the others end."""

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
            for fd in (status, *[fd for requests, replies, _ in theirs for fd in (requests, replies)]):
                os.close(fd)
        for worker in self.workers:
            worker.send(setup.message)

    def look(self, seconds: float = 0.0) -> bool:
        """Take in what became of the workers; whether there was anything within so many seconds."""
        seen = False
        while _readable(self.status, 0.0 if seen else seconds) and (data := os.read(self.status, STATUS.size)):
            which, pid, how = STATUS.unpack(data)
            if how == BORN:
                self.pids[which] = pid
            else:
                self.ends[which] = os.waitstatus_to_exitcode(how)
            seen = True
        return seen

    def is_over(self) -> bool:
        """Whether no worker is left and nothing of them is wanted."""
        over = all(worker.requests < 0 or worker.has_ended() for worker in self.workers)
        if over:
            self.stop(True)
        return over

    def stop(self, end: bool) -> None:
        """Close all files, which ends the workers; ``end``: with a signal, too, as they may not have begun to watch them."""
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


def _execute(files: list[tuple[int, int, int]], status: int, setup: Setup) -> subprocess.Popen[bytes]:
    """Start the process that forks the workers."""
    code = f"import sys; sys.path[:] = {sys.path!r}; import mnpar.iterators.worker as w; w.fork({files}, {status}, {setup.fd})"
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env=setup.environment,
        stdin=subprocess.DEVNULL,
        pass_fds=(status, setup.fd, *[fd for three in files for fd in three]),
        process_group=0,  # Ctrl-C is not for it
    )


class Worker:
    """One worker process: the pipes to it and the memory for its results."""

    def __init__(self, number: int, brood: Brood, which: int) -> None:
        self.number = number
        self.brood = brood
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
        self.brood.look()
        return f"worker process {self.number} (pid {self.brood.pids.get(self.which, 'not yet known')})"

    def send(self, data: bytes) -> None:
        """Write to the worker; if it is gone, that is said when its results are asked for."""
        view = memoryview(data)
        with suppress(BrokenPipeError):
            while len(view):
                view = view[os.write(self.requests, view) :]

    def receive(self, rows: list[int], timeout: float | None) -> tuple[int, int, int, int]:
        """The next reply."""
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
            raise RuntimeError(f"{self} ended by {how} when it was to read the examples {_few(rows)}")
        ticket, status, head, row = REPLY.unpack(data)
        return ticket, status, head, row

    def _how(self) -> str:
        while self.which not in self.brood.ends:
            if not self.brood.look(5):
                return "an error when it was started (see above)"
        code = self.brood.ends[self.which]
        if code >= 0:
            return f"exit code {code}"
        hint = ": perhaps there was no memory left" if -code == signal.SIGKILL else ""
        return f"signal {signal.Signals(-code).name}{hint}"

    def has_ended(self) -> bool:
        """Whether a worker that was told to end has, and nothing of it is wanted."""
        poll = select.poll()
        poll.register(self.replies, select.POLLIN)
        events = [event for _, event in poll.poll(0)]
        return bool(events) and not events[0] & select.POLLIN

    def close(self) -> None:
        """Close its files, which ends it."""
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
