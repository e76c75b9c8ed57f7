"""One data set made of several: side by side as tuples or dicts, or one after the other."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import Any

from mnpar.dataset.mixin import Dataset, DatasetMixin, check_dataset


class TupleDataset(DatasetMixin):
    """One data set whose example ``i`` is the tuple of the examples ``i`` of others.

    Args:
        *datasets: arrays, lists, data sets, all of one length.

    Raises:
        ValueError: none given, or the lengths differ.

    Example:
        >>> import numpy as np
        >>> from mnpar.datasets import TupleDataset
        >>> pairs = TupleDataset(np.arange(6).reshape(3, 2), ["a", "b", "c"])
        >>> len(pairs), pairs[-1], pairs[:2]
        (3, (array([4, 5]), 'c'), [(array([0, 1]), 'a'), (array([2, 3]), 'b')])
    """

    def __init__(self, *datasets: Dataset) -> None:
        if not datasets:
            raise ValueError("TupleDataset needs at least one data set")
        for dataset in datasets:
            check_dataset(dataset)
        lengths = [len(dataset) for dataset in datasets]
        if len(set(lengths)) > 1:
            raise ValueError(
                f"the data sets of a TupleDataset must have one length; these have {lengths}"
            )
        self.datasets = datasets
        self._length = lengths[0]

    def __len__(self) -> int:
        return self._length

    def get_example(self, i: int) -> tuple[Any, ...]:
        return tuple([dataset[i] for dataset in self.datasets])


class DictDataset(DatasetMixin):
    """One data set whose example ``i`` is a dict of the examples ``i`` of others; a model gets them
    as keyword arguments.

    Args:
        **datasets: arrays, lists, data sets, all of one length.

    Raises:
        ValueError: none given, or the lengths differ.

    Example:
        >>> from mnpar.datasets import DictDataset
        >>> DictDataset(x=[1.5, 2.5], t="ab")[1]
        {'x': 2.5, 't': 'b'}
    """

    def __init__(self, **datasets: Dataset) -> None:
        if not datasets:
            raise ValueError("DictDataset needs at least one data set")
        for dataset in datasets.values():
            check_dataset(dataset)
        lengths = {name: len(dataset) for name, dataset in datasets.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(
                f"the data sets of a DictDataset must have one length; these have {lengths}"
            )
        self.datasets = datasets
        self._length = next(iter(lengths.values()))

    def __len__(self) -> int:
        return self._length

    def get_example(self, i: int) -> Any:
        return {name: dataset[i] for name, dataset in self.datasets.items()}


class ConcatenatedDataset(DatasetMixin):
    """The examples of the first data set, then those of the second, and so on.

    Args:
        *datasets: data sets, empty ones too; their lengths are taken now.

    Example:
        >>> from mnpar.datasets import ConcatenatedDataset
        >>> both = ConcatenatedDataset("ab", "cde")
        >>> len(both), both[1:4]
        (5, ['b', 'c', 'd'])
    """

    def __init__(self, *datasets: Dataset) -> None:
        for dataset in datasets:
            check_dataset(dataset)
        self.datasets = datasets
        self._ends = list(accumulate(len(dataset) for dataset in datasets))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def get_example(self, i: int) -> Any:
        which = bisect_right(self._ends, i)  # the first that ends behind i
        return self.datasets[which][i - (self._ends[which - 1] if which else 0)]


class MergeDataset(DatasetMixin):
    """Data sets side by side, as long as the longest: example ``i`` is the tuple of the examples
    ``i`` of those that have one.

    Args:
        *datasets: one or more. With equal lengths they are a :class:`TupleDataset`.

    Raises:
        ValueError: there is none.

    Example:
        >>> from mnpar.datasets import MergeDataset
        >>> list(MergeDataset("abc", [1, 2]))
        [('a', 1), ('b', 2), ('c',)]

    Source:
        flashlight's MergeDataset.
    """

    def __init__(self, *datasets: Dataset) -> None:
        if not datasets:
            raise ValueError("MergeDataset needs at least one data set")
        for dataset in datasets:
            check_dataset(dataset)
        self.datasets = datasets

    def __len__(self) -> int:
        return max(len(dataset) for dataset in self.datasets)

    def get_example(self, i: int) -> tuple[Any, ...]:
        return tuple([dataset[i] for dataset in self.datasets if i < len(dataset)])
