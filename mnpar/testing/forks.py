"""Processes without the start of Python: one that has imported what they need forks for each of them.

Importing Python, numpy and mnpar takes a rank a third of a second, and pytest's collection takes it seconds. A process that
has that behind it listens on a local socket. Who connects (``stand_in.py`` under mpiexec, or a test) hands over arguments,
environment, folder and open files; the fork is what a process started in his place would have been.
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

from mnpar.communicators.watch import polling
from mnpar.testing import stand_in

_PR_SET_PDEATHSIG = 1
_GPU = {"cupy", "jax", "tensorflow", "torch"}  # what they have begun on a GPU does not survive a fork


def die_with_parent() -> None:
    """This process is killed when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def fork() -> int:
    """``os.fork()``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads: those of BLAS bear it
        return os.fork()


def possible() -> bool:
    """Whether forks of this process can do what it can."""
    return hasattr(os, "pidfd_open") and threading.active_count() == 1 and not _GPU & sys.modules.keys()


class Forks:
    """A process, forked from this one as it is now, which forks ranks that run ``program(arguments)``.

    Args:
        prepare: is done in it first.
        program: of the forks.
    """

    def __init__(self, prepare: Callable[[], None], program: Callable[[list[str]], None]) -> None:
        self._folder = tempfile.mkdtemp(prefix="mnpar-forks-")
        self._path = os.path.join(self._folder, "socket")
        with listening(self._path) as listener:
            self._pid = fork()
            if self._pid == 0:
                _run(prepare, program, listener)

    def command(self, *arguments: str) -> list[str]:
        """What a launcher starts instead of a rank."""
        return [sys.executable, "-IS", stand_in.__file__, self._path, *arguments]

    def close(self) -> None:
        """No more forks; those that there are still are killed."""
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        shutil.rmtree(self._folder)


def _run(prepare: Callable[[], None], program: Callable[[list[str]], None], listener: socket.socket) -> NoReturn:
    status = 1
    try:
        die_with_parent()
        atexit._clear()  # what is to be done at the end of the process that was forked is not for the forks
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for the session, which ends this one
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
    """What Python does when a program has ended (MPI's end is part of it), but for the modules."""
    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        ctypes.CDLL(None).exit(status)  # and not os._exit: MPI takes its leave of the launcher
    os._exit(status)


def listening(path: str) -> socket.socket:
    """A socket for :func:`serve`."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    return listener


class _Fork(NamedTuple):
    pid: int
    handle: int  # readable once it has ended
    line: socket.socket  # readable once he who asked for it is gone


def serve(listener: socket.socket) -> list[str]:
    """Fork for everyone who connects. Returns in the forks only, which have become what was asked for: their arguments."""
    gc.collect()
    gc.freeze()  # the forks need not look at, and so copy, what was there before them
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
    """Say how."""
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
    """(arguments, environment, folder, variables that name files, parent), and the files: the standard ones, then those."""
    _, files, _, _ = socket.recv_fds(line, 1, 16)
    with line.makefile("rb") as text:
        return ast.literal_eval(text.readline().decode()), files


def _become(
    files: list[int], arguments: list[str], environment: dict[str, str], folder: str, lines: list[str], parent: int
) -> list[str]:
    """Make this fork the process that was asked for."""
    for number, file in enumerate(files[:3]):
        os.dup2(file, number)
        os.close(file)
    polling.nap_at_once()  # forks share the cores with all that is tested
    os.environ.clear()
    os.environ.update(environment | dict(zip(lines, map(str, files[3:]), strict=True)))
    os.chdir(folder)
    os.getppid = lambda: parent  # mnpar's ranks look at what their launcher has opened
    return arguments
