"""Batches read ahead by processes: for data sets that compute in Python.

One process is started by exec, with an environment from which the MPI launcher's marks are removed;
it imports mnpar once and forks the workers (worker.py), so that they work beside every MPI library
and beside threads. To each worker lead two pipes, of requests and of replies; examples lie in
shared memory that has no name in the file system (shared_file.py), in one slot for each batch under
way. Tickets increase, so that replies to cancelled requests are recognized and skipped. No thread
and no lock is needed. A worker ends when its pipes are closed, however the program ended.

These processes are not those of concurrent.futures.ProcessPoolExecutor. Its workers outlive a
program that is killed or calls os._exit, get the environment of MPI, and do not say which of them
died, how, and with which examples; its results go through a pipe: batches of 64 images of
3 × 224 × 224 took 4.5 times as long (68 ms instead of 15).
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
from multiprocessing.connection import Connection, Pipe
from typing import Any, NamedTuple, NoReturn

import numpy as np

from mnpar.dataset.mixin import Dataset
from mnpar.iterators import shared_file
from mnpar.iterators.order_samplers import OrderSampler
from mnpar.iterators.read_ahead import ReadAheadIterator, Readers, ordinary, split_rows
from mnpar.iterators.worker import MAIN, WORKER, Reply, Request, Status
from mnpar.runtime import system
from mnpar.runtime.mpiexec import clean_environment
from mnpar.runtime.system import usable_cores

GUARD = (
    "a worker process imported the script and came to a MultiprocessIterator again: what the "
    "script does, other than to "
    'define, belongs under `if __name__ == "__main__":`'
)


class TimeoutWarning(RuntimeWarning):
    """A worker takes longer than ``dataset_timeout`` to read its examples."""


class MultiprocessIterator(ReadAheadIterator):
    """A :class:`SerialIterator` that reads the next batches in other processes while the program
    works with this one.

    The examples and their order are those of a SerialIterator. The processes start when the first
    batch is asked for; they have the data set as it was then. Random numbers that it draws there
    from :func:`mnpar.random.generator`, ``numpy.random`` or ``random`` are seeded for every batch
    and
    process: with ``mnpar.random.seed`` and the same ``n_processes`` runs repeat, resumed ones, too.
    A data set that the script itself defines makes the processes import the script: its work
    belongs under ``if __name__ == "__main__":``.

    Args:
        dataset: anything with ``len`` and ``[i]`` that can be pickled (no lambda in it).
        batch_size, repeat, shuffle, order_sampler: as in :class:`SerialIterator`.
        n_processes: how many processes share the examples of a batch; None: as many as this process
            may use cores.
        n_prefetch: how many batches are read ahead.
        shared_mem: Chainer's size of an example in bytes. Not needed: shared memory grows as it
            must.
        dataset_timeout: after so many seconds of waiting there is a
            ``MultiprocessIterator.TimeoutWarning``; None: never.
        maxtasksperchild: a process is replaced by a new one after its share of so many batches;
            None: never.

    Raises:
        ValueError: as :class:`SerialIterator`, or a number is not positive.
        TypeError: the data set cannot be pickled (when the first batch is asked for).
        RuntimeError: a process ended, or could not take over the data set.
        Exception: what the data set raises, ``next`` raises, with the number of the example and the
            traceback from there; the iterator stays where it was.

    Example:
        >>> from mnpar.iterators import MultiprocessIterator
        >>> with MultiprocessIterator(
        ...     "abcde", 2, repeat=False, shuffle=False, n_processes=1
        ... ) as iterator:
        ...     list(iterator)
        [['a', 'b'], ['c', 'd'], ['e']]
    """

    TimeoutWarning = TimeoutWarning

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int,
        repeat: bool = True,
        shuffle: bool | None = None,
        n_processes: int | None = None,
        n_prefetch: int = 1,
        shared_mem: int | None = None,
        order_sampler: OrderSampler | None = None,
        dataset_timeout: float | None = 30.0,
        maxtasksperchild: int | None = None,
    ) -> None:
        numbers = {
            "n_processes": n_processes,
            "dataset_timeout": dataset_timeout,
            "maxtasksperchild": maxtasksperchild,
        }
        for name, number in numbers.items():
            if number is not None and number <= 0:
                raise ValueError(f"{name} = {number}: it must be positive, or None")
        for name, number in {"n_processes": n_processes or 1, "n_prefetch": n_prefetch}.items():
            if not isinstance(number, int | np.integer):
                raise ValueError(f"{name} = {number}: it must be a whole number")
        self.n_processes = n_processes or len(usable_cores())
        self.shared_mem = shared_mem
        self.dataset_timeout = dataset_timeout
        self.maxtasksperchild = maxtasksperchild
        super().__init__(dataset, batch_size, repeat, shuffle, order_sampler, max(n_prefetch, 1))

    def _make_readers(self) -> Readers:
        n = min(self.n_processes, self.batch_size)  # a batch has no work for more
        return WorkerProcesses(
            self.dataset, n, self.n_prefetch + 1, self.dataset_timeout, self.maxtasksperchild
        )


class WorkerTask(NamedTuple):
    """The part of a batch that one worker reads."""

    worker: WorkerProcess
    ticket: int
    slot: int
    rows: list[int]


class WorkerProcesses:
    """n worker processes, the :class:`Readers` of a MultiprocessIterator.

    Args:
        dataset: is pickled, its arrays into memory that all workers share.
        n: how many workers.
        n_slots: how many batches are under way at most.
        timeout: of a piece, in seconds, after which there is a warning; None: never.
        tasks: how many pieces a worker reads before another takes its place; None: any number.
    """

    def __init__(
        self, dataset: Dataset, n: int, n_slots: int, timeout: float | None, tasks: int | None
    ) -> None:
        if WORKER in os.environ:
            raise RuntimeError(GUARD)
        if not system.CAN_FORK:
            raise NotImplementedError(
                "MultiprocessIterator forks its workers, which this system cannot do: "
                "MultithreadIterator(…, n_threads=N) reads by threads"
            )
        self.n_slots = n_slots
        self.timeout = timeout
        self.tasks = tasks
        self.broken = False
        self.setup = describe(dataset)
        self.ticket = 0
        self.owner = os.getpid()
        self.groups: list[WorkerGroup] = []
        self.workers: list[WorkerProcess] = []
        try:
            self.workers = self._start(list(range(n)))
        except BaseException:
            self.stop()
            raise

    def _start(self, numbers: list[int]) -> list[WorkerProcess]:
        group = WorkerGroup(numbers, self.setup)
        self.groups.append(group)
        return list(group.workers)

    def submit(self, rows: list[int], seed: list[int]) -> list[WorkerTask]:
        """Begin to read a batch."""
        self.broken = True  # until all requests are written
        self.ticket += 1
        slot = self.ticket % self.n_slots
        batch = []
        for number, part in enumerate(split_rows(rows, len(self.workers))):
            worker = self._worker(number)
            worker.n_tasks += 1
            worker.send(Request(self.ticket, slot, part, [*seed, number]))
            batch.append(WorkerTask(worker, self.ticket, slot, part))
        self.broken = False
        return batch

    def _worker(self, number: int) -> WorkerProcess:
        worker = self.workers[number]
        if worker.n_tasks == self.tasks:
            worker.send(None)  # ends it
            self.groups = [group for group in self.groups if not group.is_over()]
            (worker,) = self._start([number])
            self.workers[number] = worker
        return worker

    def collect(self, ticket: list[WorkerTask]) -> list[Any]:
        """Wait for the batch."""
        self.broken = True
        examples: list[Any] = []
        for piece in ticket:
            reply = self._receive(piece)
            if reply.failed is not None:
                self._fail(piece, reply, reply.failed)
            examples += shared_file.read_examples(piece.worker.memory, reply.head, piece.slot)
        self.broken = False
        return examples

    def _receive(self, piece: WorkerTask) -> Reply:
        while (reply := piece.worker.receive(piece.rows, self.timeout)).ticket < piece.ticket:
            if reply.ticket < 0:  # instead of the replies to all requests
                _, text, trace = read_error(piece.worker, reply, 0)
                raise RuntimeError(
                    f"{piece.worker} could not take over the data set: {text}\n{trace}"
                )
        return reply

    def _fail(self, piece: WorkerTask, reply: Reply, row: int) -> NoReturn:
        """Raise the data set's error, after which the workers go on."""
        error, _, trace = read_error(piece.worker, reply, piece.slot)
        self.broken = False
        error.add_note(f"(raised while {piece.worker} read example {row})\n{trace}")
        raise ordinary(error)

    def cancel(self, ticket: list[WorkerTask]) -> None:
        """Do nothing: ``_receive`` skips the replies."""

    def stop(self) -> None:
        """End all workers, now."""
        if self.setup.fd < 0:
            return
        mine = os.getpid() == self.owner  # not in a fork
        for group in self.groups:
            group.stop(mine)
        os.close(self.setup.fd)
        self.setup = self.setup._replace(fd=-1)


class Setup(NamedTuple):
    """The environment of workers, and the first message to each of them."""

    message: bytes  # the pickled data set, without its arrays
    fd: int  # of the shared file with the data set's arrays
    environment: dict[str, str]


def describe(dataset: Dataset) -> Setup:
    """Return the setup of workers for a data set.

    Raises:
        TypeError: the data set cannot be pickled.
    """
    fd = shared_file.make()
    try:
        pickled, places = shared_file.write_object(fd, dataset)
        main = main_module() if b"__main__" in pickled else None
    except Exception as error:
        os.close(fd)
        raise TypeError(
            f"a MultiprocessIterator sends its data set, a {type(dataset).__name__}, to other "
            f"processes, and it cannot be pickled: {error}; use functions and classes that a "
            "module defines (no lambda), or a MultithreadIterator"
        ) from error
    environment = {
        # memory of one batch is kept for the next: handing it back and forth took more than half
        # of a worker's time
        "MALLOC_MMAP_THRESHOLD_": str(1 << 25),
        "MALLOC_TRIM_THRESHOLD_": str(1 << 28),
        **clean_environment(os.environ),
        WORKER: "1",
        "MPI4PY_RC_INITIALIZE": "0",  # a script that imports MPI starts none here
        "MNPAR_RELAUNCHED": "1",  # nor does one that starts its ranks itself
        # the workers are the threads
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }
    return Setup(pickle.dumps((pickled, places, fd, main, sys.argv)), fd, environment)


def main_module() -> tuple[str | None, str]:
    """Return the name of the script's module and its path."""
    module: Any = sys.modules["__main__"]
    path = getattr(module, "__file__", None)
    spec = getattr(module, "__spec__", None)
    if path is None:
        raise TypeError("it is of what was defined at a prompt or in a notebook")
    sys.modules[MAIN] = module  # what comes back may be of the script's classes
    return (None if spec is None else spec.name), os.path.abspath(path)


def read_error(worker: WorkerProcess, reply: Reply, slot: int) -> tuple[BaseException, str, str]:
    """Return an error of a worker, its text, and its traceback there."""
    head = shared_file.read_bytes(worker.memory, reply.head, slot * shared_file.SLOT)
    dumped, text, trace = pickle.loads(head)
    try:
        return pickle.loads(dumped), text, trace
    except Exception:
        return RuntimeError(text), text, trace


class WorkerGroup:
    """Workers that were started together: forks of one process, which reports how each of them
    ends, out of reach of the terminal's Ctrl-C.

    Args:
        numbers: of the workers, for messages.
        setup: how they start.
    """

    def __init__(self, numbers: list[int], setup: Setup) -> None:
        self.pids: dict[int, int] = {}
        self.exit_codes: dict[int, int] = {}
        self.process: subprocess.Popen[bytes] | None = None
        self.status, status = Pipe(duplex=False)
        self.workers: list[WorkerProcess] = []
        theirs: dict[int, tuple[Connection, Connection, int]] = {}
        try:
            for number in numbers:
                worker, theirs[number] = WorkerProcess.open(number, self)
                self.workers.append(worker)
            self.process = execute(theirs, status, setup)
        except BaseException:
            self.stop(False)
            raise
        finally:
            for end in (status, *[end for ends in theirs.values() for end in ends[:2]]):
                end.close()
        for worker in self.workers:
            worker.send_bytes(setup.message)

    def look(self, seconds: float = 0.0) -> bool:
        """Read reports of workers that started or ended; return whether one came within so many
        seconds.
        """
        seen = False
        with suppress(EOFError):
            while self.status.poll(0.0 if seen else seconds):
                report: Status = self.status.recv()
                self.pids[report.number] = report.pid
                if report.exit_code is not None:
                    self.exit_codes[report.number] = report.exit_code
                seen = True
        return seen

    def is_over(self) -> bool:
        """Return whether all workers have ended, or were closed, and all of their replies were
        read; the group is then stopped.
        """
        over = all(worker.requests.closed or worker.has_ended() for worker in self.workers)
        if over:
            self.stop(True)
        return over

    def stop(self, end: bool) -> None:
        """Close all pipes, which ends the workers; ``end``: send signals, too, for workers that do
        not watch their pipe yet.
        """
        for worker in self.workers:
            worker.close()
        self.status.close()
        if self.process is None or not end:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self.process.returncode is None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.process.pid, number)
                with suppress(subprocess.TimeoutExpired):
                    self.process.wait(5)


def execute(
    ends: dict[int, tuple[Connection, Connection, int]], status: Connection, setup: Setup
) -> subprocess.Popen[bytes]:
    """Start the process that forks the workers."""
    files = {
        number: (requests.fileno(), replies.fileno(), memory)
        for number, (requests, replies, memory) in ends.items()
    }
    code = (
        f"import sys; sys.path[:] = {sys.path!r}; import mnpar.iterators.worker as w; "
        f"w.fork({files}, {status.fileno()}, {setup.fd})"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env=setup.environment,
        stdin=subprocess.DEVNULL,
        pass_fds=(status.fileno(), setup.fd, *[fd for three in files.values() for fd in three]),
        process_group=0,  # Ctrl-C is not for it
    )


class WorkerProcess:
    """One worker process: the pipes to and from it, and the memory for its results."""

    def __init__(
        self, number: int, group: WorkerGroup, requests: Connection, replies: Connection
    ) -> None:
        self.number = number
        self.group = group
        self.requests = requests
        self.replies = replies
        self.memory = shared_file.make()
        self.n_tasks = 0

    @classmethod
    def open(
        cls, number: int, group: WorkerGroup
    ) -> tuple[WorkerProcess, tuple[Connection, Connection, int]]:
        """Return a worker that is not started yet, and its own ends of the pipes and memory."""
        theirs, requests = Pipe(duplex=False)
        replies, other = Pipe(duplex=False)
        worker = cls(number, group, requests, replies)
        return worker, (theirs, other, worker.memory)

    def __str__(self) -> str:
        self.group.look()
        return (
            f"worker process {self.number} "
            f"(pid {self.group.pids.get(self.number, 'not yet known')})"
        )

    def send_bytes(self, data: bytes) -> None:
        """Write to the worker; if it has ended, :meth:`receive` raises the error."""
        with suppress(BrokenPipeError):
            self.requests.send_bytes(data)

    def send(self, request: Request | None) -> None:
        """Ask for examples; None: for none any more."""
        self.send_bytes(pickle.dumps(request))

    def receive(self, rows: list[int], timeout: float | None) -> Reply:
        """Return the next reply.

        Raises:
            RuntimeError: the worker ended before it replied.
        """
        if timeout is not None and not self.replies.poll(timeout):
            warnings.warn(
                f"{self} has been at the examples {first_few(rows)} for {timeout} s and goes on "
                "(dataset_timeout says after how many seconds to warn)",
                TimeoutWarning,
                stacklevel=6,
            )
        try:
            reply: Reply = self.replies.recv()
        except (EOFError, OSError):
            raise RuntimeError(
                f"{self} ended by {self._end()} when it was to read the examples {first_few(rows)}"
            ) from None
        return reply

    def _end(self) -> str:
        while self.number not in self.group.exit_codes:
            if not self.group.look(5):
                return "an error when it was started (see above)"
        code = self.group.exit_codes[self.number]
        if code >= 0:
            return f"exit code {code}"
        hint = ": perhaps there was no memory left" if -code == signal.SIGKILL else ""
        return f"signal {signal.Signals(-code).name}{hint}"

    def has_ended(self) -> bool:
        """Return whether the worker has ended and all of its replies were read."""
        poll = select.poll()
        poll.register(self.replies, select.POLLIN)
        events = [event for _, event in poll.poll(0)]
        return bool(events) and not events[0] & select.POLLIN

    def close(self) -> None:
        """Close its pipes and its shared memory, which ends it."""
        if not self.requests.closed:
            self.requests.close()
            self.replies.close()
            os.close(self.memory)


def first_few(rows: list[int]) -> str:
    """Return the numbers of examples, shortened for a message."""
    return str(rows) if len(rows) <= 8 else f"{rows[:8]} and {len(rows) - 8} more"
