"""What a worker process of :class:`MultiprocessIterator` does: it reads the examples that it is
told to.

A process started by exec with a cleaned environment, which knows nothing of MPI and has one thread,
imports mnpar once and forks the workers; each then makes the data set for itself, with its own open
files. A worker ends when the pipe from the program is closed, in the middle of an example, too: so
it never outlives the program, however that ended.
"""

from __future__ import annotations

import os
import pickle
import random
import runpy
import select
import signal
import struct
import sys
import threading
import traceback
import types
from contextlib import suppress
from typing import Any

import numpy as np

import mnpar.random
from mnpar.communicators.consensus import dump_error
from mnpar.iterators import shared_file

REQUEST = struct.Struct("<qqqqqqq")  # ticket, slot, how many rows; four numbers of the seed
# ticket, one of the following, size of the head, the row that failed
REPLY = struct.Struct("<qqqq")
STATUS = struct.Struct("<qqq")  # which worker, its pid, how it ended as the system says it
BORN = -1  # instead: it did not
DONE, FAILED, UNREADY = range(3)
WORKER = "MNPAR_WORKER"  # is in a worker's environment
MAIN = "__mp_main__"  # what the parent's __main__ is called here, as in multiprocessing


def fork(files: list[tuple[int, int, int]], status: int, dataset: int) -> None:
    """Become workers, and stay to say how they ended.

    Args:
        files: the arguments of :func:`serve` for each worker.
        status: file descriptor of a pipe that the program reads.
        dataset: of the shared file with the arrays of the data set, which each worker closes.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the program's business
    pids: dict[int, int] = {}
    for number, own in enumerate(files):
        pid = os.fork()
        if pid == 0:
            for fd in {status, *[fd for others in files for fd in others]} - set(own):
                os.close(fd)
            _work(*own)
        _tell(status, number, pid, BORN)
        pids[pid] = number
        for fd in own:
            os.close(fd)
        files = [others for others in files if others is not own]
    os.close(dataset)
    while pids:
        pid, how = os.wait()
        _tell(status, pids.pop(pid), pid, how)


def _tell(status: int, number: int, pid: int, how: int) -> None:
    with suppress(BrokenPipeError):  # the program is gone
        os.write(status, STATUS.pack(number, pid, how))


def _work(requests: int, replies: int, memory: int) -> None:
    """What a fork does; it does not return."""
    code = 1
    try:
        serve(requests, replies, memory)
        sys.stdout.flush()
        code = 0
    except BrokenPipeError:  # the program is gone
        pass
    except BaseException:
        traceback.print_exc()
    os._exit(code)


def serve(requests: int, replies: int, memory: int) -> None:
    """Answer requests until there are no more.

    Args:
        requests, replies: file descriptors of pipes.
        memory: of the shared file that the results are written to.
    """
    threading.Thread(target=_end_with_parent, args=(requests,), daemon=True).start()
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(line_buffering=True)  # nothing is lost when it is ended
    try:
        size = int.from_bytes(_receive(requests, 8), "little")
        pickled, places, fd, main, sys.argv = pickle.loads(_receive(requests, size))
        if main is not None:
            _import_main(*main)
        dataset = shared_file.read_object(fd, pickled, places)
        os.close(fd)
    except BaseException as error:
        head = _write_error(memory, error, 0)
        os.write(replies, REPLY.pack(-1, UNREADY, head, 0))
        return
    while True:
        ticket, slot, n, *seed = REQUEST.unpack(_receive(requests, REQUEST.size))
        if n == 0:
            return
        rows = np.frombuffer(_receive(requests, 8 * n), np.int64).tolist()
        os.write(replies, REPLY.pack(ticket, *_read(dataset, rows, seed, memory, slot)))


def _read(
    dataset: Any, rows: list[int], seed: list[int], memory: int, slot: int
) -> tuple[int, int, int]:
    """Examples into a slot: what became of it, the size of the head, the row that failed."""
    rng = np.random.default_rng(seed)
    np.random.seed(rng.integers(2**32))  # for data sets that draw from the global generators
    random.seed(int(rng.integers(2**63)))
    mnpar.random.use(rng)
    examples: list[Any] = []
    try:
        for i in rows:
            examples.append(dataset[i])
        return DONE, shared_file.write_examples(memory, examples, slot), 0
    except BaseException as error:
        return FAILED, _write_error(memory, error, slot), rows[min(len(examples), len(rows) - 1)]


def _write_error(memory: int, error: BaseException, slot: int) -> int:
    ordinary = isinstance(error, Exception) and not isinstance(error, StopIteration)
    dumped = dump_error(error if ordinary else RuntimeError(f"{type(error).__name__}: {error}"))  # type: ignore[arg-type]
    message = pickle.dumps(
        (dumped, f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error)))
    )
    shared_file.write(memory, message, slot * shared_file.SLOT)
    return len(message)


def _receive(fd: int, n: int) -> bytes:
    data = b""
    while len(data) < n:
        more = os.read(fd, n - len(data))
        if not more:
            os._exit(0)  # the parent is gone
        data += more
    return data


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
