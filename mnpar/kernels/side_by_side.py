"""The parts of a large loop side by side, on the threads that the rank has.

Only loops are divided whose parts compute the same numbers wherever they are cut, so that a result
does not depend on the number of threads. The threads beside those that ask are Python's, which wait
in a pool (pool.py) for parts of loops; for parts that are written in Python they come back from
there. Where no loops are compiled they wait in Python.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any

from mnpar.kernels import pool, tuning
from mnpar.kernels.compiler import Loop
from mnpar.kernels.sums import even_slices
from mnpar.runtime.blas_threads import cores_are_free, one_thread_each, threads_of_loops


def threads_for(N: int, size: int, least: str = "LOOP_THREAD_LEAST") -> int:
    """Return how many threads a loop over N things has: one, where a part asks, which must not wait
    for a thread while none may be free.

    Args:
        N: how many things there are.
        size: how many numbers all parts read or write (eight products count as one): few are not
            worth a thread.
        least: the constant of tuning.py that says how many a thread has at least.
    """
    few: int = getattr(tuning, least)
    if size < 2 * few or (many := min(threads_of_loops(), N, size // few)) < 2 or _HERE.is_beside:
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


def run_parts(work: Callable[[slice], None], N: int, size: int, multiplies: bool = False) -> None:
    """Call ``work``, which is written in Python, for parts of N things, which are all of them; at
    least one.

    Args:
        work: writes what no other part reads or writes, and calls loops and numpy alone: it may
            run on another thread, which is no rank's, and whose own parts then run on it alone.
            The first part runs on this one.
        N, size: as in :func:`threads_for`.
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
    if (many := threads_for(N, size, "PART_THREAD_LEAST")) < 2:
        work(slice(0, N))
    elif multiplies:
        with one_thread_each:
            _divide(work, N, many)
    else:
        _divide(work, N, many)


def _divide(work: Callable[[slice], None], N: int, many: int) -> None:
    """Call ``work`` for parts of N things, all but the first on other threads, if some are free."""
    first, *others = even_slices(N, -(-N // many))
    job = _Job(work, others)
    _THREADS.call(job, len(others))
    try:
        work(first)
    finally:
        job.compute()
        errors = [job.ended.get() for _ in others]
    for error in errors:
        if error is not None:
            raise error


class _Job:
    """Parts in Python that some threads compute."""

    def __init__(self, work: Callable[[slice], None], parts: list[slice]) -> None:
        self.work = work
        self.left = deque(parts)
        self.ended: SimpleQueue[BaseException | None] = SimpleQueue()

    def compute(self) -> None:
        """Compute parts until none is left."""
        while True:
            try:
                part = self.left.popleft()
            except IndexError:
                return
            error = None
            try:
                self.work(part)
            except BaseException as raised:  # the one that waits raises it
                error = raised
            self.ended.put(error)


class _Here(threading.local):
    """The kind of thread that asks: a rank's, or one of those beside."""

    is_beside = False


_HERE = _Here()


class _Threads:
    """The threads beside those that ask; made when they are first wanted, and in each process that
    was forked anew.
    """

    def __init__(self) -> None:
        self._forget()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._many = 0
        self._spin = False
        self._changing = threading.Lock()
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._pool: pool.Pool | None = None

    def pool_of(self, threads: int) -> int:
        """Return the address of the pool, which has so many threads, this one among them; 0 where
        there are no pools.
        """
        if self._many < threads - 1 or self._spin != cores_are_free():
            self._change(threads - 1)
        return 0 if self._pool is None else self._pool.address

    def call(self, job: _Job, most: int) -> None:
        """Let up to ``most`` threads compute parts of a job."""
        self.pool_of(most + 1)
        for _ in range(most):
            self._jobs.put(job)
        if self._pool is not None:
            self._pool.call(most)

    def _change(self, wanted: int) -> None:
        with self._changing:
            if self._pool is None and pool.is_usable():
                self._pool = pool.Pool()
            self._spin = cores_are_free()
            if self._pool is not None:
                self._pool.let_spin(self._spin)
            for slot in range(self._many, wanted):
                name, given = f"mnpar-loops {slot + 1}", (self._jobs, self._pool, slot)
                if self._pool is not None:
                    self._pool.add(slot)
                threading.Thread(None, _serve, name, given, daemon=True).start()
                self._many += 1
            if self._pool is not None:
                self._pool.await_threads()


def _serve(jobs: SimpleQueue[_Job], of_loops: pool.Pool | None, slot: int) -> None:
    """Compute parts, one after another, for ever."""
    _HERE.is_beside = True
    while True:
        if of_loops is None:
            jobs.get().compute()
            continue
        of_loops.admit(slot)  # before the look at jobs: who has one from here on calls
        with contextlib.suppress(Empty):
            while True:
                jobs.get_nowait().compute()
        of_loops.serve(slot)


_THREADS = _Threads()
