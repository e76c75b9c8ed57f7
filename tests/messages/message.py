"""A row of the table: a mistake, and the message of it, as users see it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

LINES = 25
CHARACTERS = 2000


class Message(NamedTuple):
    """A mistake and its message.

    Args:
        program: makes the mistake; of several ranks, it is called with the communicator.
        kind: of the error, or of the warning.
        cause: what the message says first: the text, in which … stands for any text, LINE for a
            place in the file of the program.
        remedy: what it says that is to be done, in the same way; empty where nothing can be said.
        ranks: how many; 0 for a program without a communicator.
        on: ``"threads"``, ``"processes"`` (a job of mpiexec, whose stderr has the message),
            ``"both"``, or ``"run"`` (a job of ``python -m mnpar run``).
    """

    program: Callable[..., Any]
    kind: type[BaseException]
    cause: str
    remedy: str
    ranks: int = 0
    on: str = "threads"


def pattern(text: str, file: str = r"[\w/.-]+\.py") -> str:
    """Return the regular expression of a text with … and LINE in it."""
    found = re.escape(text).replace("…", r"[\s\S]*?").replace("LINE", rf"{file}:\d+")
    return found.replace(r"\n", "\n")


def require_readable(text: str) -> None:
    """Fail if a message is too long to be read."""
    assert len(text.splitlines()) <= LINES, text
    assert len(text) < CHARACTERS, len(text)
