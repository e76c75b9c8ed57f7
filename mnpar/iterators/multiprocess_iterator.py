"""Batches read ahead by processes: for data sets that compute in Python.

The processes are forked from one that was started by exec, with an environment from which the MPI
launcher's marks are removed, never from the program: they work beside every MPI library, and beside
threads. What travels is a pickle of the data set once and lists of indices; arrays go through
shared memory that has no name in the file system, so nothing is left whoever is killed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mnpar.communicators.create import own_cores
from mnpar.iterators.order_samplers import OrderSampler
from mnpar.iterators.processes import Processes
from mnpar.iterators.read_ahead import ReadAheadIterator, Readers
from mnpar.iterators.worker_group import TimeoutWarning as _TimeoutWarning


class MultiprocessIterator(ReadAheadIterator):
    """A :class:`SerialIterator` that reads the next batches in other processes while the program
    works with this one.

    The examples and their order are those of a SerialIterator. The processes start when the first
    batch is asked for; they have the data set as it was then. What it draws there from
    :func:`mnpar.random.generator`, ``numpy.random`` or ``random`` is seeded for every batch and
    process: with ``mnpar.random.seed`` and the same ``n_processes`` runs repeat, resumed ones, too.
    A data set that the script itself defines makes the processes import the script: what it does
    belongs under ``if __name__ == "__main__":``.

    Args:
        dataset: anything with ``len`` and ``[i]`` that can be pickled (no lambda in it).
        batch_size, repeat, shuffle, order_sampler: as in :class:`SerialIterator`.
        n_processes: how many processes share the examples of a batch; None: as many as this process
            may use cores.
        n_prefetch: how many batches are read ahead.
        shared_mem: Chainer's size of an example in bytes. Not needed: shared memory grows as it
            must.
        dataset_timeout: after so many seconds of waiting there is a
            ``MultiprocessIterator.TimeoutWarning``; None: never.
        maxtasksperchild: a process is replaced by a new one after its share of so many batches;
            None: never.

    Raises:
        ValueError: as :class:`SerialIterator`, or a number is not positive.
        TypeError: the data set cannot be pickled (when the first batch is asked for).
        RuntimeError: a process ended, or could not take over the data set.
        Exception: what the data set raises, ``next`` raises, with the number of the example and the
            traceback from there; the iterator stays where it was.

    Example:
        >>> from mnpar.iterators import MultiprocessIterator
        >>> with MultiprocessIterator(
        ...     "abcde", 2, repeat=False, shuffle=False, n_processes=1
        ... ) as iterator:
        ...     list(iterator)
        [['a', 'b'], ['c', 'd'], ['e']]
    """

    TimeoutWarning = _TimeoutWarning

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        repeat: bool = True,
        shuffle: bool | None = None,
        n_processes: int | None = None,
        n_prefetch: int = 1,
        shared_mem: int | None = None,
        order_sampler: OrderSampler | None = None,
        dataset_timeout: float | None = 30.0,
        maxtasksperchild: int | None = None,
    ) -> None:
        numbers = {
            "n_processes": n_processes,
            "dataset_timeout": dataset_timeout,
            "maxtasksperchild": maxtasksperchild,
        }
        for name, number in numbers.items():
            if number is not None and number <= 0:
                raise ValueError(f"{name} = {number}: it must be positive, or None")
        for name, number in {"n_processes": n_processes or 1, "n_prefetch": n_prefetch}.items():
            if not isinstance(number, int | np.integer):
                raise ValueError(f"{name} = {number}: it is a whole number")
        self.n_processes = n_processes or len(own_cores())
        self.shared_mem = shared_mem
        self.dataset_timeout = dataset_timeout
        self.maxtasksperchild = maxtasksperchild
        super().__init__(dataset, batch_size, repeat, shuffle, order_sampler, max(n_prefetch, 1))

    def _make_readers(self) -> Readers:
        n = min(self.n_processes, self.batch_size)  # a batch has no work for more
        return Processes(
            self.dataset, n, self.n_prefetch + 1, self.dataset_timeout, self.maxtasksperchild
        )
