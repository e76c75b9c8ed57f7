"""A data set whose next examples are read ahead by threads."""

from __future__ import annotations

import contextvars
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from mnpar.dataset.mixin import Dataset, DatasetMixin, check_dataset


class PrefetchDataset(DatasetMixin):
    """Another data set; threads read ahead the examples that follow the one asked for last.

    Examples may be asked for in any order, and by several threads: those that were not read ahead
    are read by the caller. An error in reading is raised where the example is asked for. A pickled
    copy has threads of its own.

    Args:
        dataset: its examples can be read by several threads at once, without communication.
        n_threads: how many; 0 reads nothing ahead.
        n_prefetch: how many examples ahead.

    Raises:
        ValueError: fewer than 0 threads, or examples ahead.

    Example:
        >>> from mnpar.datasets import PrefetchDataset, TransformDataset
        >>> with PrefetchDataset(
        ...     TransformDataset(range(5), lambda x: x * x), n_threads=2, n_prefetch=3
        ... ) as squares:
        ...     list(squares)
        [0, 1, 4, 9, 16]

    Source:
        flashlight's PrefetchDataset, which can be read in sequence only.
    """

    def __init__(self, dataset: Dataset, n_threads: int = 1, n_prefetch: int = 2) -> None:
        if n_threads < 0 or n_prefetch < 0:
            raise ValueError(
                f"{n_threads} threads cannot read {n_prefetch} examples ahead: both must be 0 or "
                "more"
            )
        check_dataset(dataset)
        self.dataset, self.n_prefetch, self._n_threads = dataset, n_prefetch, n_threads
        self._start()

    def _start(self) -> None:
        threads = self._n_threads if self.n_prefetch else 0
        self._pool = ThreadPoolExecutor(threads, "prefetch") if threads else None
        self._ahead: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()  # of these two

    def __len__(self) -> int:
        return len(self.dataset)

    def get_example(self, i: int) -> Any:
        foreseen = range(i + 1, min(i + 1 + self.n_prefetch, len(self)))
        with self._lock:
            mine = self._ahead.pop(i, None)
            for j in [j for j in self._ahead if j not in foreseen]:
                self._ahead.pop(j).cancel()
            for j in foreseen:
                # with the settings of the thread that asks
                if self._pool is not None and j not in self._ahead:
                    self._ahead[j] = self._pool.submit(
                        contextvars.copy_context().run, self.dataset.__getitem__, j
                    )
        return self.dataset[i] if mine is None else mine.result()

    def finalize(self) -> None:
        """Stop the threads; it can be read on without them."""
        with self._lock:
            pool, self._pool, self._n_threads = self._pool, None, 0
            self._ahead.clear()
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: value
            for name, value in self.__dict__.items()
            if name not in ("_pool", "_ahead", "_lock")
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    def __enter__(self) -> PrefetchDataset:
        return self

    def __exit__(self, *error: object) -> None:
        self.finalize()
