"""Data sets made of data sets: in batches, one after the other, side by side with gaps, in another
order, read ahead.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import accumulate
from typing import Any

import numpy as np

from mnpar.backend import Array
from mnpar.dataset.convert import concat_examples
from mnpar.dataset.mixin import DatasetMixin, check_dataset
from mnpar.datasets.sub_dataset import permutation

POLICIES = ("include_last", "skip_last", "divisible_only")


class BatchDataset(DatasetMixin):
    """Example ``i`` is the batch number ``i`` of another data set.

    Args:
        dataset: of n examples.
        batch_size: examples of a batch; or a list with the size of each batch, which add up to n at
            most.
        policy: of the last batch, where n is not divisible: ``'include_last'``: it is shorter;
            ``'skip_last'``: it is left out; ``'divisible_only'``: that is an error.
        converter: makes a batch of a list of examples; None leaves the list.

    Raises:
        ValueError: ``'divisible_only'`` and n is not; sizes below 1, or of more than n examples.

    Example:
        >>> import numpy as np
        >>> from mnpar.datasets import BatchDataset
        >>> [len(batch) for batch in BatchDataset(np.zeros((42, 3)), 10)]
        [10, 10, 10, 10, 2]

    Source:
        flashlight's BatchDataset and BatchDatasetPolicy.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | Sequence[int],
        policy: str = "include_last",
        converter: Callable[[list[Any]], Any] | None = concat_examples,
    ) -> None:
        if policy not in POLICIES:
            raise ValueError(f"policy is one of {', '.join(POLICIES)}, not {policy!r}")
        check_dataset(dataset)
        n = len(dataset)
        if not isinstance(batch_size, Iterable):
            full, rest = divmod(n, _positive(batch_size))
            if rest and policy == "divisible_only":
                raise ValueError(f"{n} examples are not divisible into batches of {batch_size}")
            sizes = [int(batch_size)] * full + [rest] * (rest > 0 and policy == "include_last")
        else:
            sizes = [_positive(size) for size in batch_size]
            if sum(sizes) > n:
                raise ValueError(
                    f"batches of {sum(sizes)} examples in all are asked of a data set of {n}"
                )
        self.dataset, self.converter = dataset, converter
        self._edges = [0, *accumulate(sizes)]

    def __len__(self) -> int:
        return len(self._edges) - 1

    def get_example(self, i: int) -> Any:
        examples = [self.dataset[j] for j in range(self._edges[i], self._edges[i + 1])]
        return examples if self.converter is None else self.converter(examples)


class MergeDataset(DatasetMixin):
    """Data sets side by side, as long as the longest: example ``i`` is the tuple of the examples
    ``i`` of those that have one.

    Args:
        *datasets: one or more. Of equal length, they are a :class:`TupleDataset`.

    Raises:
        ValueError: there is none.

    Example:
        >>> from mnpar.datasets import MergeDataset
        >>> list(MergeDataset("abc", [1, 2]))
        [('a', 1), ('b', 2), ('c',)]

    Source:
        flashlight's MergeDataset.
    """

    def __init__(self, *datasets: Any) -> None:
        if not datasets:
            raise ValueError("MergeDataset needs at least one data set")
        for dataset in datasets:
            check_dataset(dataset)
        self.datasets = datasets

    def __len__(self) -> int:
        return max(len(dataset) for dataset in self.datasets)

    def get_example(self, i: int) -> tuple[Any, ...]:
        return tuple([dataset[i] for dataset in self.datasets if i < len(dataset)])


class ResampleDataset(DatasetMixin):
    """Example ``i`` is another data set's example ``order(i)``: any choice of examples, in any
    order, with repetitions.

    Args:
        dataset: of n examples.
        order: indices, or a function of i that gives one.
        n: how many examples, if ``order`` is a function; None: as many as the data set has.

    Raises:
        IndexError: an index that is not in 0 … n - 1.

    Example:
        >>> from mnpar.datasets import ResampleDataset
        >>> list(ResampleDataset("abc", [2, 0, 0])), list(ResampleDataset("abc", lambda i: 2 - i))
        (['c', 'a', 'a'], ['c', 'b', 'a'])

    Source:
        flashlight's ResampleDataset.
    """

    def __init__(
        self,
        dataset: Any,
        order: Sequence[int] | Array | Callable[[int], int],
        n: int | None = None,
    ) -> None:
        check_dataset(dataset)
        self.dataset = dataset
        self.resample(order, n)

    def resample(
        self, order: Sequence[int] | Array | Callable[[int], int], n: int | None = None
    ) -> None:
        """Take another choice."""
        length = len(self.dataset)
        if callable(order):
            self._order: Any = order
            self._n = length if n is None else n
            if not isinstance(self._n, int | np.integer) or self._n < 0:
                raise ValueError(f"n is a number of examples, not {n}")
            return
        indices = np.asarray(order, dtype=None if len(order) else np.intp)
        if indices.ndim != 1 or indices.dtype.kind not in "iu":
            raise IndexError(
                f"order is a list of integers; this one has shape {indices.shape}, dtype "
                f"{indices.dtype}"
            )
        if indices.size and (indices.min() < 0 or indices.max() >= length):
            raise IndexError(
                f"indices from {indices.min()} to {indices.max()} are asked of a data set of "
                f"{length} examples"
            )
        self._order = indices.tolist().__getitem__
        self._n = len(indices)

    def __len__(self) -> int:
        return self._n

    def get_example(self, i: int) -> Any:
        index = self._order(i)
        n = len(self.dataset)
        if not 0 <= index < n:
            raise IndexError(
                f"order({i}) is {index}, and the data set has the examples 0 … {n - 1}"
            )
        return self.dataset[index]


class ShuffleDataset(ResampleDataset):
    """The examples of a data set in a drawn order; :meth:`resample` draws the next one.

    Args:
        dataset: the whole.
        seed: of the first order; the next ones have the next seeds. The same on every rank; None
            draws from the rank's own generator (:func:`mnpar.random.seed`).

    Example:
        >>> from mnpar.datasets import ShuffleDataset
        >>> sorted(ShuffleDataset("cab", seed=0))
        ['a', 'b', 'c']

    Source:
        flashlight's ShuffleDataset.
    """

    def __init__(self, dataset: Any, seed: int | None = None) -> None:
        check_dataset(dataset)
        self._seed = seed
        super().__init__(dataset, permutation(len(dataset), seed))

    def resample(self, order: Any = None, n: int | None = None) -> None:
        """Draw another order, or take one."""
        if order is None:
            self._seed = None if self._seed is None else self._seed + 1
            order = permutation(len(self.dataset), self._seed)
        super().resample(order, n)


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

    def __init__(self, dataset: Any, n_threads: int = 1, n_prefetch: int = 2) -> None:
        if n_threads < 0 or n_prefetch < 0:
            raise ValueError(
                f"{n_threads} threads cannot read {n_prefetch} examples ahead: both are 0 or more"
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


def _positive(size: Any) -> int:
    if not isinstance(size, int | np.integer) or size < 1:
        raise ValueError(f"a batch has 1 or more examples, not {size}")
    return int(size)
