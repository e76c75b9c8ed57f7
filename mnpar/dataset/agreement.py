"""Run a function on one rank and broadcast its result or its error, so that no rank is left waiting."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

if TYPE_CHECKING:
    from mnpar.communicators import Communicator

T = TypeVar("T")


def agree(comm: Communicator, root: int, work: Callable[[], T]) -> T:
    """Call ``work()`` on the root; every rank returns its result, or raises its error. Collective.

    Args:
        comm: all its ranks call this.
        root: the rank that works; the others' ``work`` is not called.
        work: a function of no arguments, whose result can be pickled.

    Example:
        >>> import mnpar
        >>> from mnpar.dataset.agreement import agree
        >>> mnpar.run(lambda comm: agree(comm, 1, lambda: comm.rank * 10), ranks=2)
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


def dump_error(error: Exception) -> bytes:
    """A pickled exception; one that cannot be pickled becomes a RuntimeError with its text."""
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
    """The root as an int.

    Raises:
        ValueError: on this rank alone, as there is no root that could broadcast it: ``root`` is no rank of ``comm``.
    """
    if isinstance(root, bool) or not isinstance(root, int | np.integer) or not 0 <= root < comm.size:
        raise ValueError(f"rank {comm.rank}: {name} = {root!r} is no rank of a communicator of {comm.size}")
    return int(root)
