"""The operating system, where Linux, macOS and Windows differ.

Ranks that are threads run on all three, so ``import mnpar`` must ask for nothing that one of them
lacks. What is missing there is None or a plain substitute here, and no other file imports
``fcntl``, ``resource`` or ``termios``. Ranks that are processes need more: ``mnpar/runtime/``
watches and ends them by means of Linux.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable
from typing import Any

_PR_SET_PDEATHSIG = 1  # <sys/prctl.h>


def _module(name: str) -> Any:
    """Return a module of the standard library; None where the system has none."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


fcntl = _module("fcntl")
resource = _module("resource")
_termios = _module("termios")

# Give the core to another thread or process: the kernel's call, or a sleep of no time.
give_way: Callable[[], object] = getattr(os, "sched_yield", lambda: time.sleep(0))
# Signals by which schedulers announce the end of a job.
ANNOUNCEMENTS: tuple[int, ...] = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGUSR1") if hasattr(signal, name)
)
CAN_FORK = hasattr(os, "fork")


def usable_cores() -> set[int]:
    """Return the cores on which this process may run: a launcher may have given each rank some of
    its own.
    """
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def machine() -> str:
    """Return this machine's name."""
    return socket.gethostname()


def is_root() -> bool:
    """Return whether this process has the rights of Unix's root."""
    return hasattr(os, "getuid") and os.getuid() == 0


def exists(pid: int) -> bool:
    """Return whether a process of this machine has this id; also where that cannot be told, as on
    Windows, whose signal 0 is Ctrl-C.
    """
    if os.name != "posix" or sys.platform == "win32":
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # another user's
    return True


def c_library() -> Any:
    """Return the C library, whose functions :mod:`ctypes` calls; None where the program is not
    linked with one that has a name.
    """
    try:
        return ctypes.CDLL(None)
    except (OSError, TypeError):  # Windows
        return None


def end_with_parent(number: int) -> None:
    """Let the kernel send this process a signal when its parent ends; only Linux does."""
    prctl = getattr(c_library(), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, number)


def unread(file: int) -> int:
    """Return the bytes in a pipe; 0 for any other file, and where the system does not tell."""
    if fcntl is None or _termios is None:
        return 0
    with contextlib.suppress(OSError):
        if stat.S_ISFIFO(os.fstat(file).st_mode):
            told = fcntl.ioctl(file, _termios.FIONREAD, bytes(4))
            return int.from_bytes(told, sys.byteorder)
    return 0
