"""The current source line of the user's program: errors name it, and message headers carry it."""

from __future__ import annotations

import copy
import faulthandler
import functools
import os
import re
import sys
import threading
import warnings
import zlib
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO

_END = "the end of its program"
SITE_BYTES = 47  # length of a source line in a header
_PACKAGE = str(Path(__file__).resolve().parents[1]) + os.sep
# contextlib's frames are between mnpar's context managers and a ``with``, os's between execvp and
# execve, copy's between deepcopy and what it copies
_BETWEEN = tuple([f.__code__.co_filename for f in (contextmanager, os.execvp, copy.deepcopy)])
_CALLERS = {threading.Thread.run.__code__.co_filename}
_INSIDE: dict[str, bool] = {}  # by file names
_SITES: dict[tuple[str, int], str] = {}
DUMPED = re.compile(r' *File "(.*)", line (\d+) in ')  # a line of faulthandler's
_ESCAPED = re.compile(r"\\(?:x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})")


def is_internal(filename: str) -> bool:
    """Return whether a source file is mnpar's own."""
    return filename.startswith(_PACKAGE)


def is_between(filename: str) -> bool:
    """Return whether a source file is mnpar's own, or stands between mnpar and a user's line."""
    return filename.startswith(_PACKAGE) or filename in _BETWEEN


def add_caller(filename: str) -> None:
    """Note a source file that calls whole programs, such as tests: what has no other caller is at
    the end of a program.
    """
    _CALLERS.add(filename)


def call_site(skip: int = 0) -> str:
    """Return the source line of the innermost caller outside mnpar, ``"train/model.py:42"``; the
    first ``skip`` callers are known to be mnpar's.
    """
    return site_of(sys._getframe(skip + 1))


def site_of(frame: FrameType) -> str:
    """Return the innermost source line outside mnpar of a frame and its callers,
    ``"train/model.py:42"``.
    """
    known = _INSIDE.get
    while True:
        filename = frame.f_code.co_filename
        inside = known(filename)
        if not inside:
            if inside is None:
                inside = _INSIDE[filename] = is_between(filename)
            if not inside:
                break
        caller = frame.f_back
        if caller is None:
            if is_internal(filename):
                return _END  # called by the interpreter
            break
        frame = caller
    return _site(filename, frame.f_lineno)


def _site(filename: str, line: int) -> str:
    key = (filename, line)
    site = _SITES.get(key)
    if site is None:
        site = _END if filename in _CALLERS else f"{_shown_name(filename)}:{key[1]}"
        # whole letters, in any script
        site = _SITES[key] = site.encode(errors="replace")[-SITE_BYTES:].decode(errors="ignore")
    return site


def _shown_name(filename: str) -> str:
    """Return the end of a path; or a notebook's name of a cell, ``In[3]``."""
    shell = ipython_shell()
    cell = None if shell is None else shell.compile.format_code_name(filename)
    return "/".join(Path(filename).parts[-2:]) if cell is None else str(cell[1])


def ipython_shell() -> Any:
    """Return the shell of a notebook or of IPython in which the program runs; None elsewhere."""
    ipython = sys.modules.get("IPython")
    return None if ipython is None else ipython.get_ipython()


@functools.lru_cache(1000)
def encode_site(site: str) -> int:
    """Return a source line as a number of 31 bits, for headers that have no room for its text."""
    name, _, line = site.rpartition(":")
    return _file_code(name) | min(int(line), 0xFFFF) if name else 0


def decode_site(code: int) -> str:
    """Return the source line that another rank has encoded. Its file is searched among those that
    have called mnpar here, then among the loaded modules.
    """
    line = code & 0xFFFF
    if not line:
        return _END
    callers = {site.rpartition(":")[0] for site in tuple(_SITES.values())}
    files = [getattr(module, "__file__", None) for module in tuple(sys.modules.values())]
    loaded = {"/".join(Path(file).parts[-2:]) for file in files if file}
    for names in (callers, loaded):
        found = [name for name in names if _file_code(name) == code - line]
        if len(found) == 1:
            return f"{found[0]}:{line}"
    return f"line {line} of its program"


def _file_code(name: str) -> int:
    return (zlib.crc32(name.encode()) & 0x7FFF) << 16


def site_of_thread(ident: int) -> str:
    """Return the source line outside mnpar at which a thread is; empty if the thread has ended.

    The interpreter itself writes the lines, and makes no frame objects: to read those of a thread
    that runs (``sys._current_frames``) can crash Python 3.11, where a collection of garbage may let
    that thread go on in between.
    """
    with _file_in_memory() as file:
        faulthandler.dump_traceback(file)
        file.seek(0)
        threads = file.read().decode(errors="replace").split("\n\n")
    name = f" 0x{ident:016x} "  # after "Thread" or "Current thread"
    lines = next((one.splitlines() for one in threads if name in one.partition("\n")[0]), [])
    site = ""
    for line in lines:
        if found := DUMPED.match(line):
            filename = _ESCAPED.sub(lambda one: chr(int(one[0][2:], 16)), found[1])
            if not is_between(filename):
                return _site(filename, int(found[2]))
            site = _END if is_internal(filename) else _site(filename, int(found[2]))
    return site


def _file_in_memory() -> BinaryIO:
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("mnpar"), "w+b")
    import tempfile  # on other systems than Linux

    return tempfile.TemporaryFile()


def warn_user(what: str, rank: int = 0, category: type[Warning] = UserWarning) -> None:
    """Warn, and name the user's source line; only on rank 0, where all ranks know of it."""
    if rank:
        return
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and is_internal(frame.f_code.co_filename):
        level, frame = level + 1, frame.f_back
    warnings.warn(what, category, stacklevel=level)
