"""A fork server: processes that need not start Python, as they are forks of one that has imported
all that they need.

To start Python and import numpy and mnpar takes a rank a third of a second, pytest's collection
takes seconds. A process that has done so listens on a local socket. A client (``fork_client.py``
under mpiexec, or a test) connects and sends its arguments, environment, working directory and open
files; a fork takes these over, and does what the client's process would have done.
"""

from __future__ import annotations

import ast
import atexit
import contextlib
import ctypes
import gc
import os
import selectors
import shutil
import signal
import socket
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, NoReturn

from mnpar.runtime import system
from mnpar.runtime.deadlock import polling
from mnpar.testing import fork_client

# work that these libraries have begun on a GPU does not survive a fork
_GPU = {
    "cupy",
    "jax",
    "tensorflow",
    "torch",
}


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent ends."""
    system.end_with_parent(signal.SIGKILL)


def fork() -> int:
    """Call ``os.fork()``, without Python's warning about threads."""
    with warnings.catch_warnings():
        # of forks beside threads: those of BLAS bear it
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def possible() -> bool:
    """Return whether a fork of this process can do what the process can: it has one thread, and no
    library that uses GPUs.
    """
    return (
        hasattr(os, "pidfd_open")
        and threading.active_count() == 1
        and not _GPU & sys.modules.keys()
    )


class Forks:
    """A fork server, itself a fork of this process as it is now; its forks run
    ``program(arguments)``.

    Args:
        prepare: called first in the server.
        program: called in each fork.
    """

    def __init__(self, prepare: Callable[[], None], program: Callable[[list[str]], None]) -> None:
        self._folder = tempfile.mkdtemp(prefix="mnpar-forks-")
        self._path = os.path.join(self._folder, "socket")
        with listening(self._path) as listener:
            self._pid = fork()
            if self._pid == 0:
                _run(prepare, program, listener)

    def command(self, *arguments: str) -> list[str]:
        """Return the command that a launcher starts for a rank: the client, which asks the server
        for a fork.
        """
        return [sys.executable, "-IS", fork_client.__file__, self._path, *arguments]

    def close(self) -> None:
        """End the server; forks that are still running are killed."""
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        shutil.rmtree(self._folder)


def _run(
    prepare: Callable[[], None], program: Callable[[list[str]], None], listener: socket.socket
) -> NoReturn:
    status = 1
    try:
        die_with_parent()
        atexit._clear()  # the exit handlers of the process that was forked are not for its forks
        # a terminal's Ctrl-C is for the session, which ends this one
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        prepare()
        arguments = serve(listener)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        program(arguments)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        end(status)


def end(status: int) -> NoReturn:
    """End as Python ends a program, exit handlers (MPI's end is one) included, but without taking
    the modules apart.
    """
    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        ctypes.CDLL(None).exit(status)  # and not os._exit: MPI takes its leave of the launcher
    os._exit(status)


def listening(path: str) -> socket.socket:
    """Return a listening socket, for :func:`serve`."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    return listener


class _Fork(NamedTuple):
    pid: int
    handle: int  # readable once it has ended
    line: socket.socket  # to the client; readable once the client is gone


def serve(listener: socket.socket) -> list[str]:
    """Fork for each client that connects; return the client's arguments, in the forks alone."""
    gc.collect()
    # else garbage collection in a fork would write to, and so copy, the pages of all objects
    gc.freeze()
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        while True:
            key = selector.select()[0][0]
            if key.fileobj is listener:
                line, _ = listener.accept()
                order, files = _read(line)
                pid = fork()
                if pid == 0:
                    others = {key.data for key in selector.get_map().values() if key.data}
                    _close([listener, line, *[end for other in others for end in other[1:]]])
                    die_with_parent()
                    return _become(files, *order)
                with contextlib.suppress(OSError):
                    line.sendall(b"%d\n" % pid)
                _close(files)
                new = _Fork(pid, os.pidfd_open(pid), line)
                for end in new[1:]:
                    selector.register(end, selectors.EVENT_READ, new)
            elif key.fd == key.data.handle:
                _ended(key.data, selector)
            else:
                os.kill(key.data.pid, signal.SIGKILL)
                selector.unregister(key.fileobj)


def _ended(fork: _Fork, selector: selectors.BaseSelector) -> None:
    """Tell the client how its fork has ended."""
    code = os.waitstatus_to_exitcode(os.waitpid(fork.pid, 0)[1])
    with contextlib.suppress(OSError):
        fork.line.sendall(b"%d\n" % code)
    for end in fork[1:]:
        with contextlib.suppress(KeyError):
            selector.unregister(end)
    _close(fork[1:])


def _close(files: Iterable[int | socket.socket]) -> None:
    for file in files:
        if isinstance(file, socket.socket):
            file.close()
        else:
            with contextlib.suppress(OSError):
                os.close(file)


def _read(line: socket.socket) -> tuple[Any, list[int]]:
    """Return what a client sends: (arguments, environment, folder, variables that hold file
    numbers, parent), and open files: the standard ones, then one for each of these variables.
    """
    _, files, _, _ = socket.recv_fds(line, 1, 16)
    with line.makefile("rb") as text:
        return ast.literal_eval(text.readline().decode()), files


def _become(
    files: list[int],
    arguments: list[str],
    environment: dict[str, str],
    folder: str,
    lines: list[str],
    parent: int,
) -> list[str]:
    """Take over what the client has sent; return the arguments."""
    for number, file in enumerate(files[:3]):
        os.dup2(file, number)
        os.close(file)
    polling.nap_at_once()  # forks share the cores with all that is tested
    os.environ.clear()
    os.environ.update(environment | dict(zip(lines, map(str, files[3:]), strict=True)))
    os.chdir(folder)
    # the launcher, whose open files ranks look at (runtime/cleanup.py)
    os.getppid = lambda: parent
    return arguments
