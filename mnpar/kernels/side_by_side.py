"""The parts of a large loop side by side, on the threads that the rank has.

Only loops are divided whose parts compute the same numbers wherever they are cut, so that a result
does not depend on the number of threads. The threads beside those that ask wait for parts in a pool
(pool.py).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

from mnpar.kernels import pool, tuning
from mnpar.kernels.compiler import Loop
from mnpar.runtime.blas_threads import cores_are_free, threads_of_loops


def threads_for(N: int, size: int) -> int:
    """Return how many threads a loop over N things has, of which all together read or write
    ``size`` numbers (eight products count as one): few are not worth a thread.
    """
    least = tuning.LOOP_THREAD_LEAST
    if size < 2 * least or (many := min(threads_of_loops(), N, size // least)) < 2:
        return 1
    return min(many, pool.MOST)


def run_loop(loop: Loop, N: int, threads: int, *args: Any, each: int = 0) -> None:
    """Call a divided loop for N things, on so many threads (:func:`threads_for`).

    Args:
        loop: what :func:`compiler.divided` made: a part writes what no other reads or writes.
        args: the loop's, without the last three.
        each: how many parts there are for each thread, by default ``tuning.PARTS_OF_THREAD``; 1 for
            a loop that does something for each part, however small.
    """
    if threads < 2 or not (address := _THREADS.pool_of(threads)):
        loop(*args, N, 1, 1, 0)
    else:
        parts = min(N, threads * (each or tuning.PARTS_OF_THREAD))
        loop(*args, N, parts, threads, address)


def run_stages(loop: Loop, stages: Sequence[tuple[int, int]], size: int, *args: Any) -> None:
    """Call a divided loop with ``stage, stage + 1`` behind its arguments for each stage, one after
    another; or once, with ``0, len(stages)`` and the things of the first, where none is divided.

    Args:
        loop: does these stages of a part; it leaves out what a stage does not have.
        stages: of how many things each is, the largest first, and how many numbers it reads or
            writes.
        size: the most numbers of a stage.
        args: the loop's, without the last five.
    """
    if threads_for(stages[0][0], size) < 2:
        run_loop(loop, stages[0][0], 1, *args, 0, len(stages))
        return
    for i, (N, of_stage) in enumerate(stages):
        run_loop(loop, N, threads_for(N, of_stage), *args, i, i + 1)


class _Threads:
    """The threads beside those that ask; made when they are first wanted, and in each process that
    was forked anew. They are Python's, which run one compiled function as long as the process.
    """

    def __init__(self) -> None:
        self._forget()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._many = 0
        self._spin = False
        self._changing = threading.Lock()
        self._pool: pool.ThreadPool | None = None

    def pool_of(self, threads: int) -> int:
        """Return the address of the pool, which has so many threads, this one among them; 0 where
        there are no pools.
        """
        if self._many < threads - 1 or self._spin != cores_are_free():
            self._change(threads - 1)
        return 0 if self._pool is None else self._pool.address

    def _change(self, wanted: int) -> None:
        with self._changing:
            self._spin = cores_are_free()
            if self._pool is None and pool.is_usable():
                self._pool = pool.ThreadPool()
            if self._pool is not None:
                self._pool.let_spin(self._spin)
                for slot in range(self._many, wanted):
                    self._pool.add(slot)
                    given = self._pool.serve, f"mnpar-loops {slot + 1}", (slot,)
                    threading.Thread(None, *given, daemon=True).start()
            self._many = max(self._many, wanted)


_THREADS = _Threads()
