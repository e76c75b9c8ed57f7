"""The parts of a large loop side by side, on the threads that the rank has.

Only loops are divided whose parts compute the same numbers wherever they are cut, so that a result
does not depend on the number of threads. A compiled loop runs without Python's lock; so a thread of
Python is enough, which, unlike those of BLAS, sleeps while it has no work.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import TypeAlias

from mnpar.kernels import tuning
from mnpar.kernels.sums import even_slices
from mnpar.runtime.blas_threads import one_thread_each, threads_of_loops

_Ended: TypeAlias = "SimpleQueue[BaseException | None]"
_Parts: TypeAlias = "SimpleQueue[tuple[Callable[[slice], None], slice, _Ended]]"


def run_parts(work: Callable[[slice], None], N: int, size: int, multiplies: bool = False) -> None:
    """Call ``work`` for parts of N things, which are all of them; at least one.

    Args:
        work: writes what no other part reads or writes, and calls loops and numpy alone: it may
            run on another thread, which is no rank's, and whose own parts then run on it alone.
            The first part runs on this one.
        N: how many things there are.
        size: how many numbers all parts read or write (eight products count as one): few are not
            worth a thread.
        multiplies: the parts multiply matrices, too: each then has one thread of BLAS.

    Raises:
        Exception: what a part raises, after all have ended.

    Example:
        >>> import numpy as np
        >>> x = np.arange(6.0)
        >>> run_parts(lambda part: np.negative(x[part], out=x[part]), 6, size=6)
        >>> x.tolist()
        [-0.0, -1.0, -2.0, -3.0, -4.0, -5.0]
    """
    if size < 2 * tuning.LOOP_THREAD_LEAST or N < 2 or (many := _threads_for(N, size)) < 2:
        work(slice(0, N))
        return
    if multiplies:
        with one_thread_each:
            _divide(work, N, many)
    else:
        _divide(work, N, many)


def _divide(work: Callable[[slice], None], N: int, many: int) -> None:
    """Call ``work`` for parts of N things, all but the first on other threads."""
    first, *others = even_slices(N, -(-N // many))
    ended: _Ended = SimpleQueue()
    for part in others:
        _THREADS.start(work, part, ended)
    try:
        work(first)
    finally:
        errors = [ended.get() for _ in others]
    for error in errors:
        if error is not None:
            raise error


def run_stages(
    work: Callable[[int, int, int, int], None], stages: Sequence[tuple[int, int]], size: int
) -> None:
    """Call ``work(stage, stage + 1, begin, end)`` for parts of each stage, as :func:`run_parts`
    does, one stage after another; or once, ``work(0, len(stages), 0, N)``, where none is divided.

    Args:
        work: does these stages of a part; it leaves out what a stage does not have.
        stages: of how many things each is, the largest first, and how many numbers it reads or
            writes.
        size: the most numbers of a stage.

    Example:
        >>> run_stages(lambda *asked: print(*asked), [(7, 100), (1, 0)], 100)
        0 2 0 7
    """
    if size < 2 * tuning.LOOP_THREAD_LEAST or _threads_for(stages[0][0], size) < 2:
        work(0, len(stages), 0, stages[0][0])
        return
    for i, (N, of_stage) in enumerate(stages):
        run_parts(functools.partial(_run_stage, work, i), N, of_stage)


def _run_stage(work: Callable[[int, int, int, int], None], stage: int, part: slice) -> None:
    work(stage, stage + 1, part.start, part.stop)


def _threads_for(N: int, size: int) -> int:
    """Return how many threads such a computation has: one, where a part asks, which must not wait
    for a thread while none may be free.
    """
    many = min(threads_of_loops(), N, size // tuning.LOOP_THREAD_LEAST)
    return 1 if many > 1 and _HERE.is_beside else many


class _Here(threading.local):
    """The kind of thread that asks: a rank's, or one of those beside."""

    is_beside = False


_HERE = _Here()


class _Threads:
    """The threads beside those that ask; made when they are first wanted, and in each process that
    was forked anew.

    Queues are used in place of an executor, which takes twice as long to start a part and to wait
    for it.
    """

    def __init__(self) -> None:
        self._forget()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def start(self, work: Callable[[slice], None], part: slice, ended: _Ended) -> None:
        """Let a thread compute a part; ``ended`` then gets the error, or None."""
        if self._many < threads_of_loops() - 1:
            self._add()
        self._parts.put((work, part, ended))

    def _add(self) -> None:
        with self._adding:
            while self._many < threads_of_loops() - 1:
                self._many += 1
                name = f"mnpar-loops {self._many}"
                threading.Thread(None, _serve, name, (self._parts,), daemon=True).start()

    def _forget(self) -> None:
        self._many = 0
        self._adding = threading.Lock()
        self._parts: _Parts = SimpleQueue()


def _serve(parts: _Parts) -> None:
    """Compute parts, one after another, for ever."""
    _HERE.is_beside = True
    while True:
        _compute(*parts.get())


def _compute(work: Callable[[slice], None], part: slice, ended: _Ended) -> None:
    error = None
    try:
        work(part)
    except BaseException as raised:  # the one that waits raises it
        error = raised
    ended.put(error)


_THREADS = _Threads()
