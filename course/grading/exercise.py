"""An exercise, its grader's verdict, and what graders share.

A grader tries an answer on thread ranks, where a deadlock is an error at once, and raises
:class:`WrongAnswerError` where the answer is wrong.
"""

import linecache
import traceback
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import mnpar
from mnpar.errors import DeadlockError, MismatchError

RANKS = (2, 3, 4, 1)  # one rank last: it has little to say of what is wrong
_MOST_LINES = 8  # of an error that an answer raises


class WrongAnswerError(Exception):
    """An answer is wrong; the message says in which way."""


class Exercise(NamedTuple):
    """An exercise, and the function that judges an answer to it."""

    number: str  # of the lesson and in it: "1.2"
    name: str
    check: Callable[[Any], None]

    @property
    def lesson(self) -> int:
        return int(self.number.split(".")[0])


EXERCISES: dict[str, Exercise] = {}


def exercise(number):
    """Register a grader: the answer to the exercise of this number has the grader's name."""

    def register(check):
        EXERCISES[check.__name__] = Exercise(number, check.__name__, check)
        return check

    return register


def fault(name: str, answer: Any) -> str:
    """Return what is wrong with an answer; an empty string where it is right."""
    try:
        with warnings.catch_warnings():
            # of messages that a wrong answer leaves, and of losses that it counts twice
            warnings.simplefilter("ignore")
            EXERCISES[name].check(answer)
    except WrongAnswerError as wrong:
        return f"not right yet\n{_indented(str(wrong))}"
    except NotImplementedError:
        return "still to do: write it in place of `raise NotImplementedError`"
    except Exception as error:
        return _stopped(error, answer)
    return ""


def by_number() -> list[Exercise]:
    """Return all exercises, in the order of lessons."""
    return sorted(EXERCISES.values(), key=lambda one: one.number)


def verdict(name: str, answer: Any) -> str:
    """Return the sentence that a learner reads."""
    where = f"exercise {EXERCISES[name].number}, {name}"
    wrong = fault(name, answer)
    return f"{where}: {wrong}" if wrong else f"{where}: right, well done"


def _stopped(error: Exception, answer: Any) -> str:
    """Return what an answer was stopped by, and on which of its lines."""
    lines = str(error).splitlines() or [""]
    if len(lines) > _MOST_LINES:
        lines = [*lines[:_MOST_LINES], "…"]
    notes = [note for note in getattr(error, "__notes__", []) if note.startswith("on rank")]
    kind = type(error).__name__
    if isinstance(error, DeadlockError):
        first = "it never ends: ranks wait for each other"
    elif isinstance(error, MismatchError):
        first = "ranks disagree about what they do together"
    else:
        first = f"it stops {notes[0] if notes else 'early'}"
    line = _line_of(error, answer)
    told = "\n".join([f"{kind}: {lines[0]}", *lines[1:], *([line] if line else [])])
    return f"{first}\n{_indented(told)}"


def _line_of(error: Exception, answer: Any) -> str:
    """Return the line of the answer that was running, in words; empty where it is in none."""
    code = getattr(answer, "__code__", None) or next(
        (f.__code__ for f in vars(answer).values() if hasattr(f, "__code__")), None
    )
    if code is None:
        return ""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == code.co_filename
    ]
    if not frames or frames[-1].lineno is None:
        return ""
    text = linecache.getline(frames[-1].filename, frames[-1].lineno).strip()
    return f"in {frames[-1].name}, at the line `{text}`"


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


# ---- what graders share ----


def on_ranks(ranks):
    """Return the words for a number of ranks."""
    return "on 1 rank" if ranks == 1 else f"on {ranks} ranks"


def require(condition, message):
    """Raise WrongAnswerError unless a condition holds."""
    if not condition:
        raise WrongAnswerError(message)


def require_close(got, expected, what, *, rtol=1e-9):
    """Raise WrongAnswerError unless an array, or number, is what is expected.

    Args:
        got: the answer's.
        expected: the right one.
        what: opens the message: "on 3 ranks, rank 1".
    """
    if got is None:
        raise WrongAnswerError(f"{what} got None: does every rank come to a `return` with a value?")
    if isinstance(got, mnpar.Variable):
        got = got.array
    try:
        got = np.asarray(got, float)
    except (TypeError, ValueError):
        raise WrongAnswerError(f"{what} got {got!r}, which is no array of numbers") from None
    expected = np.asarray(expected, float)
    if got.shape != expected.shape:
        raise WrongAnswerError(f"{what} got the shape {got.shape}, where {expected.shape} is right")
    if not np.allclose(got, expected, rtol=rtol, atol=rtol):
        raise WrongAnswerError(f"{what} got {shown(got)}, where {shown(expected)} is right")


def shown(array):
    """Return an array as short text."""
    array = np.asarray(array, float)
    if array.ndim == 0:
        return f"{array:.6g}"
    text = np.array2string(array, precision=4, threshold=8, separator=", ")
    return " ".join(text.split())


def is_close(got, expected):
    """Return whether an answer is this wrong value, which a hint can explain."""
    try:
        got = np.asarray(got.array if isinstance(got, mnpar.Variable) else got, float)
    except (TypeError, ValueError):
        return False
    expected = np.asarray(expected, float)
    return got.shape == expected.shape and np.allclose(got, expected)
