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
import time
import warnings
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from mnpar.iterators import shared_file
from mnpar.iterators.multithread_iterator import raise_for
from mnpar.iterators.read_ahead import pieces
from mnpar.iterators.worker import DONE, MAIN, REPLY, REQUEST, UNREADY, WORKER
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
        self.setup = describe(dataset)
        self.ticket = 0
        self.workers: list[Worker] = []
        self.retired: list[Worker] = []
        self.owner = os.getpid()
        try:
            for number in range(n):
                self.workers.append(Worker(number, self.setup))
            for worker in self.workers:  # which by now start side by side
                worker.send(self.setup.message)
        except BaseException:
            self.stop()
            raise

    def submit(self, rows: list[int], seed: list[int]) -> list[Piece]:
        """Begin to read a batch."""
        self.ticket += 1
        slot = self.ticket % self.n_slots
        batch = []
        for number, part in enumerate(pieces(rows, len(self.workers))):
            worker = self._worker(number)
            worker.n_tasks += 1
            worker.send(REQUEST.pack(self.ticket, slot, len(part), *seed, number) + np.array(part, np.int64).tobytes())
            batch.append(Piece(worker, self.ticket, slot, part))
        return batch

    def _worker(self, number: int) -> Worker:
        worker = self.workers[number]
        if worker.n_tasks == self.tasks:
            worker.send(REQUEST.pack(0, 0, 0, 0, 0, 0, 0))  # then it ends
            self.retired = [old for old in self.retired if not old.has_ended()] + [worker]
            worker = self.workers[number] = Worker(number, self.setup)
            worker.send(self.setup.message)
        return worker

    def collect(self, ticket: list[Piece]) -> list[Any]:
        """Wait for the batch."""
        examples: list[Any] = []
        for piece in ticket:
            examples += self._take(piece)
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
            raise_for(_load(error, text), f"(raised while {worker} read example {row})\n{trace}")

    def cancel(self, ticket: list[Piece]) -> None:
        """Nobody will ask for it: its replies will be passed over."""

    def stop(self) -> None:
        """End all workers, now."""
        workers, self.workers, self.retired = [*self.workers, *self.retired], [], []
        if not workers and self.setup.fd < 0:
            return
        mine = os.getpid() == self.owner  # not in a fork
        for worker in workers:
            worker.close(end=mine)
        for worker in workers:
            if mine:
                worker.wait()
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


class Worker:
    """One worker process and the pipes to it."""

    def __init__(self, number: int, setup: Setup) -> None:
        self.number = number
        self.n_tasks = 0
        self.memory = shared_file.make()
        theirs, self.requests = os.pipe()
        self.replies, other = os.pipe()
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; import mnpar.iterators.worker as w; w.serve{theirs, other, self.memory}"
        )
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-c", code],
                env=setup.environment,
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs, other, self.memory, setup.fd),
                process_group=0,  # Ctrl-C is not for it
            )
        except BaseException:
            self._close_files()
            raise
        finally:
            os.close(theirs)
            os.close(other)

    def __str__(self) -> str:
        return f"worker process {self.number} (pid {self.process.pid})"

    def send(self, data: bytes) -> None:
        """Write to the worker; if it is gone, that is said when its results are asked for."""
        view = memoryview(data)
        with suppress(BrokenPipeError):
            while len(view):
                view = view[os.write(self.requests, view) :]

    def receive(self, rows: list[int], timeout: float | None) -> tuple[int, int, int, int]:
        """The next reply."""
        poll = select.poll()
        poll.register(self.replies, select.POLLIN)
        begin = time.monotonic()
        if timeout is not None and not poll.poll(timeout * 1000):
            warnings.warn(
                f"{self} has been at the examples {_few(rows)} for {time.monotonic() - begin:.1f} s and goes on "
                "(dataset_timeout says after how many seconds to warn)",
                TimeoutWarning,
                stacklevel=6,
            )
        data = os.read(self.replies, REPLY.size)
        if len(data) < REPLY.size:
            raise RuntimeError(f"{self} ended by {self._how()} when it was to read the examples {_few(rows)}")
        ticket, status, head, row = REPLY.unpack(data)
        return ticket, status, head, row

    def _how(self) -> str:
        try:
            code = self.process.wait(5)
        except subprocess.TimeoutExpired:
            return "closing its pipe"
        if code >= 0:
            return f"exit code {code}"
        hint = ": perhaps there was no memory left" if -code == signal.SIGKILL else ""
        return f"signal {signal.Signals(-code).name}{hint}"

    def has_ended(self) -> bool:
        """Whether a worker that was told to end has, and nothing of it is wanted."""
        poll = select.poll()
        poll.register(self.replies, select.POLLIN)
        if self.process.poll() is None or any(event & select.POLLIN for _, event in poll.poll(0)):
            return False
        self._close_files()
        return True

    def close(self, end: bool) -> None:
        """Close the pipes, which ends it; ``end``: with a signal, too, as it may not have begun to watch them."""
        self._close_files()
        if end and self.process.poll() is None:
            self.process.terminate()

    def _close_files(self) -> None:
        for fd in (self.requests, self.replies, self.memory):
            if fd >= 0:
                os.close(fd)
        self.requests = self.replies = self.memory = -1

    def wait(self) -> None:
        """Wait until it has ended."""
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _few(rows: list[int]) -> str:
    return str(rows) if len(rows) <= 8 else f"{rows[:8]} and {len(rows) - 8} more"
