"""numpy's warnings of overflow and NaN in the user's lines: they name one of mnpar's own, where
mnpar has called numpy.

Only what is shown changes: filters see numpy's warnings as they are.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np

from mnpar.runtime.callsite import is_internal
from mnpar.runtime.launcher import launched_rank

_NUMPY = os.path.dirname(np.__file__) + os.sep
_Show = Callable[..., Any]
_before: _Show = warnings.showwarning


def show_own_warnings() -> None:
    """Let numpy's warnings name the user's line, the function and the rank from now on."""
    global _before
    if warnings.showwarning is not _show:
        _before = warnings.showwarning
        warnings.showwarning = _show


def _show(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: Any = None,
    line: str | None = None,
) -> None:
    if category is RuntimeWarning and " encountered in " in str(message):
        found = _call()
        if found is not None:
            frame, name = found
            filename, lineno = frame.f_code.co_filename, frame.f_lineno
            message = RuntimeWarning(_SAID.format(message, name, _rank()))
    _before(message, category, filename, lineno, file, line)


def _call() -> tuple[FrameType, str] | None:
    """Return the frame of the user's line, and who has called numpy; None: not mnpar."""
    name, inside = "", False
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        filename = frame.f_code.co_filename
        if is_internal(filename):
            inside = True
            label = getattr(frame.f_locals.get("self"), "label", None)
            if not name and isinstance(label, str):
                name = f", by {label}"
        elif filename != warnings.__file__ and not filename.startswith(_NUMPY):
            return (frame, name) if inside else None
        frame = frame.f_back
    return None


def _rank() -> str:
    thread, rank = threading.current_thread().name, launched_rank()
    if thread.startswith("rank "):
        return f" on {thread}"
    return "" if rank is None else f" on rank {rank}"


_SAID = (
    "{}{}{}. mnpar.set_debug(True) makes the first NaN or infinity an error of the function that "
    "gives it"
)
