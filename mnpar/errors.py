"""The errors of mnpar: each says what was wrong, with the numbers, the rank and the remedy."""

from __future__ import annotations


class MnparError(RuntimeError):
    """The base of all errors between ranks."""


class MismatchError(MnparError):
    """Ranks that meet in one communication disagree on what it is; raised on all of them before any
    value is delivered.
    """


class DeadlockError(MnparError):
    """No rank can go on: the message shows what each of them waits for and where."""

    exit_code = 1  # the job's, if nobody catches it


class RankFailedError(MnparError):
    """Another rank failed while this one was waiting; the cause is that rank's error."""


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
