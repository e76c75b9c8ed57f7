"""Notices at Open MPI's launcher (PMIx): by them a rank learns that one on another machine has
ended before MPI began.

A rank that ends without MPI publishes that it has left; one that has waited for a second in
``MPI_Init`` looks for that, once a second, over the connection that MPI has by then. In a job whose
ranks all come nobody publishes anything.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from pathlib import Path

from mnpar.runtime import processes

_LIMIT = 2.0  # s for the launcher to answer a rank that is about to end
_STRING = 3  # <pmix_common.h>, of its versions 4 and 5


class _Value(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_uint16),
        ("string", ctypes.c_char_p),
        ("rest_of_the_union", ctypes.c_uint64 * 2),
    ]


class _Info(ctypes.Structure):
    _fields_ = [("key", ctypes.c_char * 512), ("flags", ctypes.c_uint32), ("value", _Value)]


class _PmixProcess(ctypes.Structure):
    _fields_ = [("namespace", ctypes.c_char * 256), ("rank", ctypes.c_uint32)]


class _Found(ctypes.Structure):
    _fields_ = [("process", _PmixProcess), ("key", ctypes.c_char * 512), ("value", _Value)]


_NONE = (None, ctypes.c_size_t(0))  # PMIx's type of an array


def publish_that_this_one_has_left(launcher: int) -> None:
    """Publish that this rank has left, for ranks that look for such notices; called by a rank that
    has not started MPI.

    Args:
        launcher: its process, whose library this process loads.
    """
    with contextlib.suppress(RuntimeError):  # no thread any more
        thread = threading.Thread(target=_publish, args=(launcher,), daemon=True)
        thread.start()
        thread.join(_LIMIT)


def _publish(launcher: int) -> None:
    library = _library(launcher)
    if library is None or library.PMIx_Init(ctypes.byref(_PmixProcess()), *_NONE):
        return
    left = _Info(key=_key(), value=_Value(type=_STRING, string=b""))
    library.PMIx_Publish(ctypes.byref(left), ctypes.c_size_t(1))
    library.PMIx_Finalize(*_NONE)


def one_has_left() -> int | None:
    """Return a rank that has published that it has left; None if there is none, or MPI is not
    connected. Called while MPI starts.
    """
    library = _library("self")
    found = _Found(key=_key())
    if library is None or library.PMIx_Lookup(ctypes.byref(found), ctypes.c_size_t(1), *_NONE):
        return None
    return int(found.process.rank)


def killed_launcher() -> int | None:
    """Return the process that the launcher was, if it is gone: nobody takes connections at its
    address. Return None if it may be there.
    """
    pid = os.environ.get("PMIX_SERVER_TMPDIR", "").rpartition("ompi.")[2]
    where = next(
        (os.environ[name] for name in os.environ if name.startswith("PMIX_SERVER_URI")), ""
    )
    host, _, port = where.rpartition("//")[2].rpartition(":")
    if not (pid.isdigit() and port.isdigit()) or processes.begun(int(pid)) != 0:
        return None
    import socket

    try:
        socket.create_connection((host, int(port)), _LIMIT).close()
    except ConnectionRefusedError:
        return int(pid)
    except OSError:
        return None
    return None


def _key() -> bytes:
    """Return the key of a notice: jobs that this one has spawned have the same launcher."""
    return b"mnpar left " + os.fsencode(os.environ.get("PMIX_NAMESPACE", ""))


def _library(process: int | str) -> ctypes.CDLL | None:
    """Load the PMIx library that a process has loaded; None if it has none, or one whose functions
    have other names.
    """
    with contextlib.suppress(OSError):
        for line in (
            Path(f"/proc/{process}/maps").read_text(encoding="utf-8", errors="replace").splitlines()
        ):
            if "/libpmix.so" in line:
                library = ctypes.CDLL(line.split(None, 5)[-1])
                return library if hasattr(library, "PMIx_Init") else None
    return None
