"""Parts and reorderings of a data set: splits, cross-validation, any choice of examples. Nothing is
copied: a part looks up its examples in the whole.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from mnpar.backend import Array
from mnpar.dataset.mixin import Dataset, DatasetMixin, check_dataset
from mnpar.random import spawn


class SubDataset(DatasetMixin):
    """The examples ``start`` … ``finish - 1`` of a data set, or of a reordering of it.

    Args:
        dataset: the whole, of n examples.
        start, finish: the part, ``0 <= start <= finish <= n``.
        order: n indices: example i is then example ``order[start + i]`` of the whole.

    Raises:
        ValueError: the part does not lie in the whole, or ``order`` has another length.

    Example:
        >>> from mnpar.datasets import SubDataset
        >>> list(SubDataset("abcde", 1, 4)), list(SubDataset("abcde", 0, 2, order=[4, 3, 2, 1, 0]))
        (['b', 'c', 'd'], ['e', 'd'])
    """

    def __init__(
        self, dataset: Dataset, start: int, finish: int, order: Sequence[int] | Array | None = None
    ) -> None:
        check_dataset(dataset)
        n = len(dataset)
        if (
            not all(isinstance(edge, int | np.integer) for edge in (start, finish))
            or not 0 <= start <= finish <= n
        ):
            raise ValueError(
                f"examples {start} … {finish} (the last not counted) are no part of a data set "
                f"of {n}"
            )
        if order is not None and len(order) != n:
            raise ValueError(f"order has {len(order)} indices, the data set has {n} examples")
        self.dataset = dataset
        self.start = start
        self.finish = finish
        self.order = order

    def __len__(self) -> int:
        return self.finish - self.start

    def get_example(self, i: int) -> Any:
        i += self.start
        return self.dataset[i if self.order is None else operator.index(self.order[i])]


def split_dataset(
    dataset: Dataset, split_at: int, order: Sequence[int] | Array | None = None
) -> tuple[SubDataset, SubDataset]:
    """Return the first ``split_at`` examples, and the others.

    Args:
        dataset: the whole, of n examples.
        split_at: ``0 <= split_at < n``.
        order: as in :class:`SubDataset`.

    Raises:
        ValueError: ``split_at`` is out of range.

    Example:
        >>> from mnpar.datasets import split_dataset
        >>> [list(part) for part in split_dataset("abcde", 3)]
        [['a', 'b', 'c'], ['d', 'e']]
    """
    n = len(dataset)
    if not 0 <= split_at < n:
        raise ValueError(
            f"a data set of {n} examples cannot be split at {split_at}: 0 … {n - 1} is possible"
        )
    return SubDataset(dataset, 0, split_at, order), SubDataset(dataset, split_at, n, order)


def split_dataset_random(
    dataset: Dataset, first_size: int, seed: int | None = None
) -> tuple[SubDataset, SubDataset]:
    """Return a random choice of ``first_size`` examples, and the others.

    Args:
        dataset: the whole.
        first_size: how many examples the first part gets.
        seed: the same seed gives the same split on every rank (and in Chainer); None draws from the
            rank's own generator (:func:`mnpar.random.seed`), without moving it: ranks then may
            split differently.

    Raises:
        ValueError: ``first_size`` is out of range.

    Example:
        >>> from mnpar.datasets import split_dataset_random
        >>> few, many = split_dataset_random("abcde", 2, seed=0)
        >>> sorted([*few, *many])
        ['a', 'b', 'c', 'd', 'e']
    """
    return split_dataset(dataset, first_size, permutation(len(dataset), seed))


def split_dataset_n(
    dataset: Dataset, n: int, order: Sequence[int] | Array | None = None
) -> list[SubDataset]:
    """n parts of the same length, one after the other; the remainder of the division is in none of
    them.

    Args:
        dataset: the whole.
        n: 1 or more.
        order: as in :class:`SubDataset`.

    Raises:
        ValueError: ``n`` is not positive.

    Example:
        >>> from mnpar.datasets import split_dataset_n
        >>> [list(part) for part in split_dataset_n("abcde", 2)]
        [['a', 'b'], ['c', 'd']]
    """
    if n < 1:
        raise ValueError(f"a data set cannot be split into {n} parts: 1 or more")
    size = len(dataset) // n
    return [SubDataset(dataset, size * i, size * (i + 1), order) for i in range(n)]


def split_dataset_n_random(dataset: Dataset, n: int, seed: int | None = None) -> list[SubDataset]:
    """n random parts of the same length; the remainder of the division is in none of them.

    Args:
        dataset: the whole.
        n: 1 or more.
        seed: as in :func:`split_dataset_random`.

    Raises:
        ValueError: ``n`` is not positive.

    Example:
        >>> from mnpar.datasets import split_dataset_n_random
        >>> a, b = split_dataset_n_random("abcd", 2, seed=0)
        >>> len(a), len(b), sorted([*a, *b])
        (2, 2, ['a', 'b', 'c', 'd'])
    """
    return split_dataset_n(dataset, n, permutation(len(dataset), seed))


def get_cross_validation_datasets(
    dataset: Dataset,
    n_folds: int | None = None,
    order: Sequence[int] | Array | None = None,
    *,
    n_fold: int | None = None,
) -> list[tuple[SubDataset, SubDataset]]:
    """``n_folds`` ways to train on most of a data set and test with the rest; each example is in
    one of the test sets.

    Args:
        dataset: the whole, of n examples.
        n_folds: ``1 <= n_folds <= n``; the test sets' lengths differ by one at most. The first has
            the last examples.
        order: as in :class:`SubDataset`.
        n_fold: Chainer's older name of ``n_folds``.

    Returns:
        Pairs (training set, test set).

    Raises:
        ValueError: ``n_folds`` is out of range.

    Example:
        >>> from mnpar.datasets import get_cross_validation_datasets
        >>> [(list(train), list(test)) for train, test in get_cross_validation_datasets("abc", 2)]
        [(['a'], ['b', 'c']), (['b', 'c'], ['a'])]
    """
    n = len(dataset)
    n_folds = n_fold if n_folds is None else n_folds
    if n_folds is None or not 1 <= n_folds <= n:
        raise ValueError(f"n_folds = {n_folds}: a data set of {n} examples has 1 … {n} folds")
    order = np.arange(n) if order is None else np.array(order)
    borders = [n * i // n_folds for i in range(n_folds + 1)]
    splits = []
    for begin, end in reversed(list(pairwise(borders))):
        splits.append(split_dataset(dataset, n - (end - begin), order))
        order = np.roll(order, end - begin)  # the next test set comes to the end
    return splits


def get_cross_validation_datasets_random(
    dataset: Dataset, n_folds: int, seed: int | None = None
) -> list[tuple[SubDataset, SubDataset]]:
    """:func:`get_cross_validation_datasets` in a random order.

    Args:
        dataset, n_folds: as there.
        seed: as in :func:`split_dataset_random`.

    Example:
        >>> from mnpar.datasets import get_cross_validation_datasets_random
        >>> splits = get_cross_validation_datasets_random("abc", 3, seed=0)
        >>> sorted(test[0] for _, test in splits)
        ['a', 'b', 'c']
    """
    return get_cross_validation_datasets(dataset, n_folds, permutation(len(dataset), seed))


def permutation(n: int, seed: int | None) -> Array:
    """0 … n - 1 in an order drawn from Chainer's ``RandomState(seed)`` or, without a seed, from a
    generator spawned from the rank's.
    """
    return (spawn(1)[0] if seed is None else np.random.RandomState(seed)).permutation(n)


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
        dataset: Dataset,
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
            self._order: Callable[[int], int] = order
            self._n = length if n is None else n
            if not isinstance(self._n, int | np.integer) or self._n < 0:
                raise ValueError(f"n must be a number of examples, not {n}")
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

    def __init__(self, dataset: Dataset, seed: int | None = None) -> None:
        check_dataset(dataset)
        self._seed = seed
        super().__init__(dataset, permutation(len(dataset), seed))

    def resample(self, order: Any = None, n: int | None = None) -> None:
        """Draw another order, or take one."""
        if order is None:
            self._seed = None if self._seed is None else self._seed + 1
            order = permutation(len(self.dataset), self._seed)
        super().resample(order, n)
