"""Tracebacks in the user's lines: mnpar's own frames, which would hide them, are left out.

It is the same in scripts, in notebooks and in tests, on thread ranks and on processes; with
``MNPAR_DEBUG=1`` all frames are shown.
"""

from __future__ import annotations

import dis
import os
import sys
from types import TracebackType
from typing import Any

from mnpar.runtime.callsite import DUMPED, ipython_shell, is_between, is_internal
from mnpar.runtime.numpy_warnings import show_own_warnings

_STANDARD_LIBRARY = os.path.dirname(os.__file__) + os.sep
_HIDDEN = "(mnpar's own lines are left out: MNPAR_DEBUG=1 shows them)"
_CRASH = "Fatal Python error: "  # of faulthandler
_RAISE = dis.opmap["RAISE_VARARGS"]


def to_own_lines(error: BaseException) -> None:
    """Let the tracebacks of an error, and of those that it came from, end at the user's last line,
    and have no frame of mnpar's before it.

    A note says so where mnpar has not raised the error itself: its text need not tell what was
    wrong.
    """
    seen = set[int]()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        _cut(one)
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)


def _cut(error: BaseException) -> None:
    frames = []
    trace = error.__traceback__
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    if not frames or os.environ.get("MNPAR_DEBUG") == "1":
        return
    names = [one.tb_frame.f_code.co_filename for one in frames]
    raised = is_internal(names[-1]) and _is_raised(error, frames[-1])
    users = [i for i, name in enumerate(names) if _is_users(name)]
    if not users and not (raised and all(map(is_internal, names))):
        return
    end = users[-1] + 1 if users else 0
    error.__traceback__ = None
    for i in reversed(range(end)):
        if not is_between(names[i]):
            one = frames[i]
            error.__traceback__ = TracebackType(
                error.__traceback__, one.tb_frame, one.tb_lasti, one.tb_lineno
            )
    if end < len(frames) and not raised:
        error.add_note(_HIDDEN)


def _is_users(filename: str) -> bool:
    library = filename.startswith((_STANDARD_LIBRARY, "<frozen ")) or "site-packages" in filename
    return not (library or is_between(filename))


def _is_raised(error: BaseException, innermost: TracebackType) -> bool:
    """Return whether a ``raise`` made an error, and not a call, an operation or an ``assert`` that
    failed.
    """
    at_raise = innermost.tb_frame.f_code.co_code[innermost.tb_lasti] == _RAISE
    return at_raise and not isinstance(error, AssertionError)


def own_lines_of_dump(text: str) -> str:
    """Return what :mod:`faulthandler` has written of threads, with the user's lines of those that
    have some; all of it where the process crashed, since any thread's line may be the cause.
    """
    threads = text.split("\n\n")
    if os.environ.get("MNPAR_DEBUG") == "1" or _CRASH in text:
        return text
    shown = []
    for thread in threads:
        lines = thread.splitlines()
        users = [line for line in lines if (file := DUMPED.match(line)) and _is_users(file[1])]
        others = [line for line in lines if not DUMPED.match(line) and line.strip()]
        if users:
            shown.append("\n".join([*others, *users]))
        elif len(others) == len(lines):  # no traceback: what the program has printed
            shown.append(thread)
    return "\n\n".join(shown) or text


def show_own_lines() -> None:
    """Let an uncaught error show the user's lines, unless the program or the notebook shows errors
    in a way of its own; and numpy's warnings, too.
    """
    show_own_warnings()
    shell = ipython_shell()
    if shell is not None:
        if not shell.custom_exceptions:
            shell.set_custom_exc((Exception,), _show_in_notebook)
    elif sys.excepthook is sys.__excepthook__:
        sys.excepthook = _show


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    to_own_lines(error)
    sys.__excepthook__(kind, error, error.__traceback__)


def _show_in_notebook(
    shell: Any,
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType,
    tb_offset: int | None = None,
) -> None:
    to_own_lines(error)
    shell.showtraceback((kind, error, error.__traceback__), tb_offset=tb_offset)
