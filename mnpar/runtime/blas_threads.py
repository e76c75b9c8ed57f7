"""The threads of a rank: those of numpy's BLAS in a process that computes alone (one, but all
cores for large products of matrices), and those of compiled loops (as many as somebody has said).

OpenBLAS divides products that take 20 µs among all cores, whose threads spin until all are done. A
network of small layers gains little by that; and where other programs want the cores, or ranks are
threads that take turns, it takes four to six times as long as with one thread. Ranks of an MPI job
share the cores of their machine instead (``communicators/create.py``).
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from mnpar.runtime.system import usable_cores

# OpenBLAS's threads keep their cores busy for tens of milliseconds after a product; compiled loops
# on several threads then share cores with threads that do nothing: on two cores a step of a ResNet
# takes 1.4 times as long. So ranks that mnpar starts let them sleep after 2¹⁶ ticks of the clock,
# some 20 µs (the products of linear layers follow each other faster). OpenBLAS reads it when numpy
# is loaded. Benchmark "steps" with ``--threads 2``.
IDLE = ("OPENBLAS_THREAD_TIMEOUT", "16")
# a user who sets one of these has chosen
VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)

T = TypeVar("T")


class LargeProducts:
    """The threads for large products.

    Attributes:
        threads: how many; 1 until :func:`use_one` has been called.
        share: how many cores are this rank's alone: one, if nobody has divided them.
    """

    def __init__(self) -> None:
        self.threads = 1
        self.share = 1
        self._libraries: list[Any] = []
        self._known = False

    def keep(self) -> None:
        """Let all other products have one thread from now on; called once."""
        if self._known:
            return
        self._known = True
        self._libraries = _openblas()
        self.threads = max([one.num_threads for one in self._libraries], default=1)
        self._set(1)

    def compute(self, multiply: Callable[..., T], *args: Any) -> T:
        """Return ``multiply(*args)``, computed by all the threads."""
        self._set(self.threads)
        try:
            return multiply(*args)
        finally:
            self._set(1)

    def _set(self, threads: int) -> None:
        for library in self._libraries:
            library.set_num_threads(threads)


large_products = LargeProducts()


class OneThreadEach:
    """While somebody is in this context, BLAS has one thread for each thread that multiplies:
    OpenBLAS's own threads do one product at a time, for which the others would wait.
    """

    def __init__(self) -> None:
        self._before: list[tuple[Any, int]] = []
        self._forget()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._before = [(one, one.num_threads) for one in _openblas()]
                self._set([1] * len(self._before))
            self._inside += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._set([threads for _, threads in self._before])

    def _set(self, threads: list[int]) -> None:
        for (library, before), many in zip(self._before, threads, strict=True):
            if before > 1:
                library.set_num_threads(many)

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0


one_thread_each = OneThreadEach()


@functools.cache
def _openblas() -> list[Any]:
    """Return the OpenBLAS libraries of this process, none without threadpoolctl."""
    try:
        import threadpoolctl
    except ImportError:
        return []
    found = threadpoolctl.ThreadpoolController().lib_controllers
    return [one for one in found if one.internal_api == "openblas"]


def use_one() -> None:
    """Let numpy's BLAS have one thread in this process, and all cores for large products, unless
    the environment says a number.
    """
    if not any(name in os.environ for name in VARIABLES):
        large_products.keep()


def threads_of_loops() -> int:
    """Return how many threads large compiled loops have: what the environment says of BLAS's, or
    this rank's share of the cores.
    """
    return _told() or large_products.share


class SharedCores:
    """The cores of this process, on which other ranks may run.

    Attributes:
        ranks: how many do, this one among them.
    """

    def __init__(self) -> None:
        self.ranks = 1


shared_cores = SharedCores()


def cores_are_free() -> bool:
    """Return whether each thread of each rank here can have a core: then one that waits may keep
    it busy.
    """
    return shared_cores.ranks * threads_of_loops() <= _cores()


@functools.cache
def _cores() -> int:
    return len(usable_cores())


@functools.cache
def _told() -> int:
    """Return what the environment says, 0 if nothing: OpenMP's lists begin with the outermost."""
    numbers = [os.environ[name].split(",")[0].strip() for name in VARIABLES if name in os.environ]
    return next((int(number) for number in numbers if number.isdecimal()), 0)
