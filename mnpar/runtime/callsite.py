"""The source line of the user's program that a rank is at: errors name it, and message headers
carry it.
"""

from __future__ import annotations

import functools
import os
import sys
import warnings
import zlib
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType

SITE_BYTES = 47  # of a source line in a header
_PACKAGE = str(Path(__file__).resolve().parents[1]) + os.sep
# contextlib's frames are between mnpar's context managers and a ``with``, os's between execvp and
# execve
_BETWEEN = (contextmanager.__code__.co_filename, os.execvp.__code__.co_filename)
_INSIDE: dict[str, bool] = {}  # by file names
_SITES: dict[tuple[str, int], str] = {}


def is_internal(filename: str) -> bool:
    """Return whether a source file is mnpar's own."""
    return filename.startswith(_PACKAGE)


def own_lines(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without mnpar's own frames behind the user's last line, which would hide
    that.
    """
    frames = []
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    users = [
        i for i, entry in enumerate(frames) if not is_internal(entry.tb_frame.f_code.co_filename)
    ]
    tail: TracebackType | None = None
    for entry in reversed(
        frames[: users[-1] + 1] if users and os.environ.get("MNPAR_DEBUG") != "1" else frames
    ):
        tail = TracebackType(tail, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return tail


def call_site(skip: int = 0) -> str:
    """The source line of the innermost caller outside mnpar, ``"train/model.py:42"``, where
    ``skip`` of them are mnpar's.
    """
    return site_of(sys._getframe(skip + 1))


def site_of(frame: FrameType) -> str:
    """The innermost source line outside mnpar at which a frame is, ``"train/model.py:42"``."""
    known = _INSIDE.get
    while True:
        filename = frame.f_code.co_filename
        inside = known(filename)
        if not inside:
            if inside is None:
                inside = _INSIDE[filename] = is_internal(filename) or filename in _BETWEEN
            if not inside:
                break
        caller = frame.f_back
        if caller is None:
            if is_internal(filename):
                return "the end of its program"  # called by the interpreter
            break
        frame = caller
    key = (filename, frame.f_lineno)
    site = _SITES.get(key)
    if site is None:
        site = f"{'/'.join(Path(key[0]).parts[-2:])}:{key[1]}"
        # whole letters, in any script
        site = _SITES[key] = site.encode(errors="replace")[-SITE_BYTES:].decode(errors="ignore")
    return site


@functools.lru_cache(1000)
def encode_site(site: str) -> int:
    """A source line as a number of 31 bits, for headers that have no room for its text."""
    name, _, line = site.rpartition(":")
    return _file_code(name) | min(int(line), 0xFFFF) if name else 0


def decode_site(code: int) -> str:
    """The source line that another rank has encoded. Its file is looked for among those that have
    called mnpar here, then among the loaded modules.
    """
    line = code & 0xFFFF
    if not line:
        return "the end of its program"
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
    """The source line outside mnpar at which a thread is; empty if it has ended."""
    frame = sys._current_frames().get(ident)
    return "" if frame is None else site_of(frame)


def warn_user(what: str, rank: int = 0) -> None:
    """Warn, and name the user's source line; only on rank 0, where all ranks know of it."""
    if rank:
        return
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and is_internal(frame.f_code.co_filename):
        level, frame = level + 1, frame.f_back
    warnings.warn(what, stacklevel=level)
