"""A part of a data set, and splits into two parts. Nothing is copied: a part looks up its examples in the whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mnpar.backend import Array
from mnpar.dataset.mixin import DatasetMixin
from mnpar.random import generator


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

    def __init__(self, dataset: Any, start: int, finish: int, order: Sequence[int] | Array | None = None) -> None:
        n = len(dataset)
        if not 0 <= start <= finish <= n:
            raise ValueError(f"examples {start} … {finish} (the last not counted) are no part of a data set of {n}")
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
        return self.dataset[i if self.order is None else int(self.order[i])]


def split_dataset(dataset: Any, split_at: int, order: Sequence[int] | Array | None = None) -> tuple[SubDataset, SubDataset]:
    """The first ``split_at`` examples, and the others.

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
        raise ValueError(f"a data set of {n} examples cannot be split at {split_at}: 0 … {n - 1} is possible")
    return SubDataset(dataset, 0, split_at, order), SubDataset(dataset, split_at, n, order)


def split_dataset_random(dataset: Any, first_size: int, seed: int | None = None) -> tuple[SubDataset, SubDataset]:
    """A random choice of ``first_size`` examples, and the others.

    Args:
        dataset: the whole.
        first_size: how many examples the first part gets.
        seed: the same seed gives the same split on every rank (and in Chainer); None draws from the rank's own generator
            (:func:`mnpar.random.seed`): ranks then may split differently.

    Raises:
        ValueError: ``first_size`` is out of range.

    Example:
        >>> from mnpar.datasets import split_dataset_random
        >>> few, many = split_dataset_random("abcde", 2, seed=0)
        >>> sorted([*few, *many])
        ['a', 'b', 'c', 'd', 'e']
    """
    return split_dataset(dataset, first_size, permutation(len(dataset), seed))


def permutation(n: int, seed: int | None) -> Array:
    """0 … n - 1 in an order drawn from Chainer's ``RandomState(seed)`` or, without a seed, from the rank's generator."""
    return generator().permutation(n) if seed is None else np.random.RandomState(seed).permutation(n)
