"""The parts of a large loop side by side, on the threads that the rank has.

Only loops are divided whose parts compute the same numbers wherever they are cut, so that a result
does not depend on the number of threads. A compiled loop runs without Python's lock; so a thread of
Python is enough, which, unlike those of BLAS, sleeps while it has no work.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait

from mnpar.kernels import tuning
from mnpar.kernels.sums import even_slices
from mnpar.runtime.blas_threads import threads_of_loops


def run_parts(work: Callable[[slice], None], N: int, size: int) -> None:
    """Call ``work`` for parts of N things, which are all of them; at least one.

    Args:
        work: writes what no other part reads or writes, and calls loops alone: it may run on
            another thread, which is no rank's. The first part runs on this one.
        N: how many things there are.
        size: how many numbers all parts read or write (eight products count as one): few are not
            worth a thread.

    Raises:
        Exception: what a part raises, after all have ended.

    Example:
        >>> import numpy as np
        >>> x = np.arange(6.0)
        >>> run_parts(lambda part: np.negative(x[part], out=x[part]), 6, size=6)
        >>> x.tolist()
        [-0.0, -1.0, -2.0, -3.0, -4.0, -5.0]
    """
    many = min(threads_of_loops(), N, size // tuning.LOOP_THREAD_LEAST)
    if many < 2:
        work(slice(0, N))
        return
    first, *others = even_slices(N, -(-N // many))
    started = [_THREADS.get(threads_of_loops()).submit(work, part) for part in others]
    try:
        work(first)
    finally:
        wait(started)
    for each in started:
        each.result()


class _Threads:
    """The threads beside the one that asks; made when they are first wanted, and in each process
    that was forked anew.
    """

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def get(self, threads: int) -> ThreadPoolExecutor:
        """Return an executor with ``threads`` less one; the first call says how many."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(threads - 1, "mnpar-loops")
        return self._pool

    def _forget(self) -> None:
        self._pool = None


_THREADS = _Threads()
