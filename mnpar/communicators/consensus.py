"""Errors that all ranks get: work of one rank for all, or of all ranks at the same time, fails on
all of them or on none.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

if TYPE_CHECKING:
    from mnpar.communicators import Communicator


T = TypeVar("T")


def run_on_root(comm: Communicator, root: int, work: Callable[[], T]) -> T:
    """Call ``work()`` on the root; every rank returns its result, or raises its error. Collective.

    Args:
        comm: all its ranks call this.
        root: the rank that works; the others' ``work`` is not called.
        work: a function of no arguments, whose result can be pickled.

    Example:
        >>> import mnpar
        >>> from mnpar.communicators.consensus import run_on_root
        >>> mnpar.run(lambda comm: run_on_root(comm, 1, lambda: comm.rank * 10), ranks=2)
        [10, 10]
    """
    outcome, error = None, None
    if comm.rank == root:
        try:
            outcome = pickle.dumps(work())
        except Exception as raised:
            error = raised
    outcome, failure = comm.bcast_obj((outcome, error and dump_error(error)), root=root)
    if error is not None:
        raise error
    if failure is not None:
        raise_error(failure, root)
    result: T = pickle.loads(outcome)
    return result


def run_on_all(comm: Communicator, work: Callable[[], T], root: int | None = None) -> list[T]:
    """Call ``work()`` on each rank, and return the results of all; if it raised on some, raise its
    error on the first of them, on all ranks.

    Args:
        comm: all its ranks call this.
        work: its results can be pickled. If it communicates, and fails on one rank before that, the
            others get a MismatchError.
        root: the only rank that needs the results, where they are long: the others get none.

    Example:
        >>> import mnpar
        >>> from mnpar.communicators.consensus import run_on_all
        >>> mnpar.run(lambda comm: run_on_all(comm, lambda: comm.rank * 10), ranks=2)
        [[0, 10], [0, 10]]
    """
    outcome: T | None = None
    mine: Exception | None = None
    try:
        outcome = work()
    except Exception as error:
        mine = error
    failure = None if mine is None else dump_error(mine)
    try:
        if root is None:
            outcomes = comm.allgather_obj((outcome, failure))
        else:  # failures are alike, as a rule: there are none
            outcomes = [(None, one) for one in comm.allgather_obj(failure)]
    except Exception as error:
        # while the others communicate in their work: this is why they do not meet
        if mine is not None:
            raise mine from error
        raise
    for rank, (_, failure) in enumerate(outcomes):
        if failure is not None:
            first: Exception = (
                mine if mine is not None and rank == comm.rank else pickle.loads(failure)
            )
            first.add_note(f"(on rank {rank} of {comm.size}; all ranks stop)")
            raise first
    if root is not None:
        return comm.gather_obj(outcome, root) or []
    return [result for result, _ in outcomes]


def dump_error(error: Exception) -> bytes:
    """Return a pickled exception; one that cannot be pickled as a RuntimeError with its text."""
    try:
        data = pickle.dumps(error)
        pickle.loads(data)  # some errors can be pickled and then not be made again
    except Exception:
        data = pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
    return data


def raise_error(data: bytes, rank: int) -> None:
    """Raise an exception of another rank, given as :func:`dump_error` returned it there."""
    error: Exception = pickle.loads(data)
    error.add_note(f"(raised on rank {rank}, which does this work for all ranks)")
    raise error


def check_root(comm: Communicator, root: Any, name: str = "root") -> int:
    """Return the root as an int.

    Raises:
        ValueError: on this rank alone, as there is no root that could broadcast it: ``root`` is no
            rank of ``comm``.
    """
    if (
        isinstance(root, bool)
        or not isinstance(root, int | np.integer)
        or not 0 <= root < comm.size
    ):
        raise ValueError(
            f"rank {comm.rank}: {name} = {root!r} is no rank of a communicator of {comm.size}"
        )
    return int(root)
