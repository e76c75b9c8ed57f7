"""Batches read ahead by threads: for data sets that wait (files, network) or compute in numpy,
which releases the GIL.

Threads are safe under every MPI, start at once and share the data set; Python code itself does not
get faster by them.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from contextvars import Context, copy_context
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np

import mnpar.random
from mnpar.dataset.mixin import Dataset
from mnpar.iterators.order_samplers import OrderSampler
from mnpar.iterators.read_ahead import ReadAheadIterator, Readers, ordinary, split_rows


class MultithreadIterator(ReadAheadIterator):
    """A :class:`SerialIterator` that reads the next batch in threads while the program works with
    this one.

    The examples and their order are those of a SerialIterator. Random numbers that the data set
    draws from :func:`mnpar.random.generator` are seeded for every batch and thread: with
    ``mnpar.random.seed`` and the same ``n_threads`` runs repeat, resumed ones too.

    Args:
        dataset: anything with ``len`` and ``[i]``; several threads read it at the same time.
        batch_size, repeat, shuffle, order_sampler: as in :class:`SerialIterator`.
        n_threads: how many threads share the examples of a batch.

    Raises:
        ValueError: as :class:`SerialIterator`, or ``n_threads`` is not positive.
        Exception: what the data set raises, ``next`` raises, with the number of the example; the
            iterator stays where it was.

    Example:
        >>> from mnpar.iterators import MultithreadIterator
        >>> with MultithreadIterator(
        ...     "abcde", 2, repeat=False, shuffle=False, n_threads=2
        ... ) as iterator:
        ...     list(iterator)
        [['a', 'b'], ['c', 'd'], ['e']]
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int,
        repeat: bool = True,
        shuffle: bool | None = None,
        n_threads: int = 1,
        order_sampler: OrderSampler | None = None,
    ) -> None:
        if not isinstance(n_threads, int | np.integer) or n_threads < 1:
            raise ValueError(f"n_threads = {n_threads}: a batch is read by one thread or more")
        self.n_threads = n_threads
        super().__init__(dataset, batch_size, repeat, shuffle, order_sampler, n_prefetch=1)

    def _make_readers(self) -> Readers:
        return ReaderThreads(self.dataset, self.n_threads)


class ThreadTask(NamedTuple):
    """The part of a batch that one thread reads."""

    rows: list[int]
    seed: list[int]
    context: Context  # the rank's configuration
    examples: Future[list[Any]]

    def read(self, dataset: Dataset) -> list[Any]:
        """Return the examples; called in a thread, inside ``context``."""
        examples = []
        with mnpar.random.using(np.random.default_rng(self.seed)):
            for i in self.rows:
                try:
                    examples.append(dataset[i])
                except BaseException as error:
                    error.add_note(f"(raised while a thread read example {i})")
                    raise
        return examples


class ReaderThreads:
    """Threads that read, the :class:`Readers` of a MultithreadIterator.

    They are daemons, which those of a ThreadPoolExecutor are not: a data set that hangs does not
    keep the program from ending.
    """

    broken = False

    def __init__(self, dataset: Dataset, n: int) -> None:
        self.n = n
        self.queue: SimpleQueue[ThreadTask | None] = SimpleQueue()
        for _ in range(n):
            threading.Thread(
                target=work, args=(dataset, self.queue), name="MultithreadIterator", daemon=True
            ).start()

    def submit(self, rows: list[int], seed: list[int]) -> list[ThreadTask]:
        """Begin to read a batch."""
        batch = [
            ThreadTask(part, [*seed, number], copy_context(), Future())
            for number, part in enumerate(split_rows(rows, self.n))
        ]
        for piece in batch:
            self.queue.put(piece)
        return batch

    def collect(self, ticket: list[ThreadTask]) -> list[Any]:
        """Wait for the batch."""
        examples: list[Any] = []
        for piece in ticket:
            error = piece.examples.exception()
            if error is not None:
                raise ordinary(error)
            examples += piece.examples.result()
        return examples

    def cancel(self, ticket: list[ThreadTask]) -> None:
        """Give up a batch: it will not be collected."""
        for piece in ticket:
            piece.examples.cancel()

    def stop(self) -> None:
        """Let the threads end, each after the piece that it is reading."""
        for _ in range(self.n):
            self.queue.put(None)


def work(dataset: Dataset, queue: SimpleQueue[ThreadTask | None]) -> None:
    """Read pieces until there comes None: the loop of a thread."""
    while (piece := queue.get()) is not None:
        if piece.examples.set_running_or_notify_cancel():
            try:
                piece.examples.set_result(piece.context.run(piece.read, dataset))
            except BaseException as error:
                piece.examples.set_exception(error)
