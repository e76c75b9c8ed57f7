"""The errors of mnpar: each says what was wrong, with the numbers, the rank and the remedy; and the
words that messages have in common.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

LISTED = 8  # as many names does a message list


class MnparError(RuntimeError):
    """The base of all errors between ranks."""


class MismatchError(MnparError):
    """Ranks that meet in one communication disagree on what it is; raised on all of them before any
    value is delivered.
    """


class LayoutError(MnparError):
    """A function cannot work on the blocks of a divided array as they are; raised on all ranks of
    the grid.
    """


class DeadlockError(MnparError):
    """No rank can go on: the message shows what each of them waits for and where."""

    exit_code = 1  # the job's, if nobody catches it


class RankFailedError(MnparError):
    """Another rank failed while this one was waiting; the cause is that rank's error."""


class CommunicatorError(MnparError):
    """A communicator is used where it cannot be: in a forked child of its process, or by two
    threads at once.
    """


class LauncherError(MnparError):
    """The MPI launcher and the MPI library do not belong together, or one of them is missing."""


class UnreceivedWarning(RuntimeWarning):
    """Thread ranks have ended, and left a message that none of them took, or an operation that
    nobody waited for and that others never came to. (Processes say so on stderr, each at its end.)
    """


class DatasetError(MnparError, ValueError):
    """A data file is damaged or not what its name says: the message gives file, offset, expected
    and actual.
    """


class CheckpointError(MnparError, ValueError):
    """A saved file is damaged, incomplete or not what it is taken for: the message gives file and
    reason.
    """


def listed(names: Iterable[object], limit: int = LISTED, none: str = "none") -> str:
    """Return names for a message: those of many are cut to the first few and their number.

    Example:
        >>> from mnpar.errors import listed
        >>> listed(["a", "b", "c"]), listed(range(3000), 3), listed([])
        ('a, b, c', '0, 1, 2 … and 2997 more', 'none')
    """
    all_names = [str(name) for name in names]
    more = len(all_names) - limit
    return (", ".join(all_names[:limit]) or none) + (f" … and {more} more" if more > 0 else "")


def refuse_class(given: object, needed: str) -> None:
    """Raise TypeError if a class was given where an object of it is needed.

    Example:
        >>> from mnpar.errors import refuse_class
        >>> refuse_class(dict, "a hook is an object")
        Traceback (most recent call last):
        TypeError: dict is a class, and a hook is an object: dict(…)
    """
    if isinstance(given, type):
        raise TypeError(f"{given.__name__} is a class, and {needed}: {given.__name__}(…)")


def closest(name: str, known: Collection[str], alike: float = 0.6) -> str | None:
    """Return the known name that a misspelt one was probably meant to be; None: there is none.

    Args:
        name: the misspelt one.
        known: those that there are.
        alike: the least part of the letters that both have in common, from 0 to 1.

    Example:
        >>> from mnpar.errors import closest
        >>> closest("trian", ["train", "debug"]), closest("foo", ["train", "debug"])
        ('train', None)
    """
    near = difflib.get_close_matches(name, list(known), 1, alike)
    return near[0] if near else None


def suggestion(name: str, known: Collection[str]) -> str:
    """Return the end of a message about an unknown name: the one that was probably meant, and all
    that there are.

    Example:
        >>> from mnpar.errors import suggestion
        >>> suggestion("trian", ["debug", "train"])
        ": did you mean 'train'? There are debug, train"
        >>> suggestion("foo", ["debug", "train"])
        '; there are debug, train'
    """
    near = closest(name, known)
    if near is None:
        return f"; there are {listed(known)}"
    return f": did you mean {near!r}? There are {listed(known)}"
