"""Hands out batches to worker processes, and collects them.

It needs no threads and no locks: requests wait in one pipe to each worker, replies in another (they
have a fixed size below PIPE_BUF, so each is read whole). Examples lie in shared memory, in one slot
for each batch under way. Tickets increase, so that replies to cancelled requests are recognized and
skipped.
"""

from __future__ import annotations

import os
import pickle
import sys
from typing import Any, NamedTuple

import numpy as np

from mnpar.iterators import shared_file
from mnpar.iterators.multithread_iterator import raise_for
from mnpar.iterators.read_ahead import pieces
from mnpar.iterators.worker import DONE, MAIN, REQUEST, UNREADY, WORKER
from mnpar.iterators.worker_group import Setup, Worker, WorkerGroup
from mnpar.runtime.mpiexec import clean_environment

GUARD = (
    "a worker process imported the script and came to a MultiprocessIterator again: what the "
    "script does, other than to "
    'define, belongs under `if __name__ == "__main__":`'
)


class Piece(NamedTuple):
    """A part of a batch."""

    worker: Worker
    ticket: int
    slot: int
    rows: list[int]


class Processes:
    """n worker processes, the :class:`Readers` of a MultiprocessIterator.

    Args:
        dataset: is pickled, its arrays into memory that all workers share.
        n: how many workers.
        n_slots: how many batches are under way at most.
        timeout: of a piece, in seconds, after which there is a warning; None: never.
        tasks: how many pieces a worker reads before another takes its place; None: any number.
    """

    def __init__(
        self, dataset: Any, n: int, n_slots: int, timeout: float | None, tasks: int | None
    ) -> None:
        if WORKER in os.environ:
            raise RuntimeError(GUARD)
        self.n_slots = n_slots
        self.timeout = timeout
        self.tasks = tasks
        self.broken = False
        self.setup = describe(dataset)
        self.ticket = 0
        self.owner = os.getpid()
        self.groups: list[WorkerGroup] = []
        self.workers: list[Worker] = []
        try:
            self.workers = self._start(list(range(n)))
        except BaseException:
            self.stop()
            raise

    def _start(self, numbers: list[int]) -> list[Worker]:
        group = WorkerGroup(numbers, self.setup)
        self.groups.append(group)
        return list(group.workers)

    def submit(self, rows: list[int], seed: list[int]) -> list[Piece]:
        """Begin to read a batch."""
        self.broken = True  # until all requests are written
        self.ticket += 1
        slot = self.ticket % self.n_slots
        batch = []
        for number, part in enumerate(pieces(rows, len(self.workers))):
            worker = self._worker(number)
            worker.n_tasks += 1
            worker.send(
                REQUEST.pack(self.ticket, slot, len(part), *seed, number)
                + np.array(part, np.int64).tobytes()
            )
            batch.append(Piece(worker, self.ticket, slot, part))
        self.broken = False
        return batch

    def _worker(self, number: int) -> Worker:
        worker = self.workers[number]
        if worker.n_tasks == self.tasks:
            worker.send(REQUEST.pack(0, 0, 0, 0, 0, 0, 0))  # a request for no rows ends it
            self.groups = [group for group in self.groups if not group.is_over()]
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
                continue  # the reply to a cancelled request
            if status == DONE:
                return shared_file.read_examples(worker.memory, head, piece.slot)
            error, text, trace = pickle.loads(
                shared_file.read_bytes(worker.memory, head, piece.slot * shared_file.SLOT)
            )
            self.broken = False  # the data set's error, and the workers go on
            raise_for(_load(error, text), f"(raised while {worker} read example {row})\n{trace}")

    def cancel(self, ticket: list[Piece]) -> None:
        """Nothing to do: ``_take`` skips the replies."""

    def stop(self) -> None:
        """End all workers, now."""
        if self.setup.fd < 0:
            return
        mine = os.getpid() == self.owner  # not in a fork
        for group in self.groups:
            group.stop(mine)
        os.close(self.setup.fd)
        self.setup = self.setup._replace(fd=-1)


def describe(dataset: Any) -> Setup:
    """The setup of workers for a data set.

    Raises:
        TypeError: the data set cannot be pickled.
    """
    fd = shared_file.make()
    try:
        pickled, places = shared_file.write_object(fd, dataset)
        main = _main() if b"__main__" in pickled else None
    except Exception as error:
        os.close(fd)
        raise TypeError(
            f"a MultiprocessIterator sends its data set, a {type(dataset).__name__}, to other "
            "processes, and it cannot be "
            f"pickled: {error}; use functions and classes that a module defines (no lambda), "
            "or a MultithreadIterator"
        ) from error
    message = pickle.dumps((pickled, places, fd, main, sys.argv))
    environment = clean_environment(os.environ) | {
        WORKER: "1",
        "MPI4PY_RC_INITIALIZE": "0",  # a script that imports MPI starts none here
        "MNPAR_RELAUNCHED": "1",  # nor does one that starts its ranks itself
    }
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        environment[name] = "1"  # the workers are the threads
    # memory of one batch is kept for the next: handing it back and forth took more than half of a
    # worker's time
    environment = {
        "MALLOC_MMAP_THRESHOLD_": str(1 << 25),
        "MALLOC_TRIM_THRESHOLD_": str(1 << 28),
    } | environment
    return Setup(len(message).to_bytes(8, "little") + message, fd, environment)


def _main() -> tuple[str | None, str]:
    """The name of the script's module and its path."""
    module: Any = sys.modules["__main__"]
    path = getattr(module, "__file__", None)
    spec = getattr(module, "__spec__", None)
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
