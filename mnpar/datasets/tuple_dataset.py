"""Several data sets side by side: images and labels."""

from __future__ import annotations

from typing import Any

from mnpar.dataset.mixin import DatasetMixin, check_dataset


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

    def __init__(self, *datasets: Any) -> None:
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
