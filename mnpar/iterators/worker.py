"""A worker process of :class:`MultiprocessIterator`: it reads the examples that it is asked for.

A process started by exec with a cleaned environment, which knows nothing of MPI and has one thread,
imports mnpar once and forks the workers; each then makes the data set for itself, with its own open
files. A worker ends when the pipe from the program is closed, even in the middle of an example: so
it never outlives the program, however that ended.
"""

from __future__ import annotations

import os
import pickle
import random
import runpy
import select
import signal
import sys
import threading
import traceback
import types
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

import mnpar.random
from mnpar.communicators.consensus import dump_error
from mnpar.dataset.mixin import Dataset
from mnpar.iterators import shared_file

WORKER = "MNPAR_WORKER"  # is in a worker's environment
MAIN = "__mp_main__"  # what the parent's __main__ is called here, as in multiprocessing


class Request(NamedTuple):
    """Examples to read."""

    ticket: int
    slot: int  # of the shared memory, where they are written
    rows: list[int]
    seed: list[int]


class Reply(NamedTuple):
    """The outcome of a request, smaller than PIPE_BUF, so that it is written as a whole."""

    ticket: int  # -1: the data set could not be taken over
    head: int  # bytes of the head of what lies in the slot
    failed: int | None  # the row at which there was an error


class Status(NamedTuple):
    """The start of a worker, or its end."""

    number: int
    pid: int
    exit_code: int | None


def fork(files: dict[int, tuple[int, int, int]], status: int, dataset: int) -> None:
    """Become workers, and stay to say how they ended.

    Args:
        files: the arguments of :func:`serve`, as file descriptors, by the workers' numbers.
        status: file descriptor of a pipe that the program reads.
        dataset: of the shared file with the arrays of the data set, which each worker closes.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the program's business
    reports = Connection(status, readable=False)
    numbers: dict[int, int] = {}
    for number, own in list(files.items()):
        pid = os.fork()
        if pid == 0:
            for fd in [status, *[fd for three in files.values() for fd in three]]:
                if fd not in own:
                    os.close(fd)
            _work(*own)
        _report(reports, Status(number, pid, None))
        numbers[pid] = number
        for fd in own:
            os.close(fd)
        del files[number]
    os.close(dataset)
    while numbers:
        pid, status = os.wait()
        _report(reports, Status(numbers.pop(pid), pid, os.waitstatus_to_exitcode(status)))


def _report(reports: Connection, status: Status) -> None:
    with suppress(BrokenPipeError):  # the program is gone
        reports.send(status)


def _work(requests: int, replies: int, memory: int) -> None:
    """Serve in a fork; this does not return."""
    code = 1
    try:
        serve(Connection(requests, writable=False), Connection(replies, readable=False), memory)
        sys.stdout.flush()
        code = 0
    except (EOFError, BrokenPipeError):  # the program is gone
        code = 0
    except BaseException:
        traceback.print_exc()
    os._exit(code)


def serve(requests: Connection, replies: Connection, memory: int) -> None:
    """Answer requests until there are no more.

    Args:
        requests, replies: pipes.
        memory: file descriptor of the shared file that the results are written to.
    """
    threading.Thread(target=_end_with_parent, args=(requests.fileno(),), daemon=True).start()
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(line_buffering=True)  # nothing is lost when it is ended
    setup = requests.recv_bytes()
    try:
        pickled, places, fd, main, sys.argv = pickle.loads(setup)
        if main is not None:
            _import_main(*main)
        dataset = shared_file.read_object(fd, pickled, places)
        os.close(fd)
    except BaseException as error:
        replies.send(Reply(-1, _write_error(memory, error, 0), None))
        return
    while (request := requests.recv()) is not None:
        replies.send(_read(dataset, request, memory))


def _read(dataset: Dataset, request: Request, memory: int) -> Reply:
    """Put examples into their slot, or the error."""
    ticket, slot, rows, seed = request
    rng = np.random.default_rng(seed)
    np.random.seed(rng.integers(2**32))  # for data sets that draw from the global generators
    random.seed(int(rng.integers(2**63)))
    mnpar.random.use(rng)
    examples: list[Any] = []
    try:
        for i in rows:
            examples.append(dataset[i])
        return Reply(ticket, shared_file.write_examples(memory, examples, slot), None)
    except BaseException as error:
        row = rows[min(len(examples), len(rows) - 1)]
        return Reply(ticket, _write_error(memory, error, slot), row)


def _write_error(memory: int, error: BaseException, slot: int) -> int:
    ordinary = isinstance(error, Exception) and not isinstance(error, StopIteration)
    told = error if ordinary else RuntimeError(f"{type(error).__name__}: {error}")
    dumped = dump_error(told)  # type: ignore[arg-type]
    message = pickle.dumps(
        (dumped, f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error)))
    )
    shared_file.write(memory, message, slot * shared_file.SLOT)
    return len(message)


def _end_with_parent(fd: int) -> None:
    """In a thread: end when the other end of the pipe is closed."""
    poll = select.poll()
    poll.register(fd, 0)  # reports nothing but the end
    poll.poll()
    os._exit(0)


def _import_main(name: str | None, path: str) -> None:
    """Run the parent's script for what it defines, not as a program: its ``if __name__ ==
    "__main__":`` is not entered.
    """
    module = types.ModuleType(MAIN)
    sys.modules["__main__"] = sys.modules[MAIN] = module
    run = (
        runpy.run_path(path, run_name=MAIN)
        if name is None
        else runpy.run_module(name, run_name=MAIN, alter_sys=True)
    )
    module.__dict__.update(run)
    sys.modules["__main__"] = sys.modules[MAIN] = module
