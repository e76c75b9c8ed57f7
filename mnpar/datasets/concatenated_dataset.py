"""Several data sets one after the other."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import Any

from mnpar.dataset.mixin import DatasetMixin, check_dataset


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

    def __init__(self, *datasets: Any) -> None:
        for dataset in datasets:
            check_dataset(dataset)
        self.datasets = datasets
        self._ends = list(accumulate(len(dataset) for dataset in datasets))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def get_example(self, i: int) -> Any:
        which = bisect_right(self._ends, i)  # the first that ends behind i
        return self.datasets[which][i - (self._ends[which - 1] if which else 0)]
