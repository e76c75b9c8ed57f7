"""Several data sets side by side, with names."""

from __future__ import annotations

from typing import Any

from mnpar.dataset.mixin import DatasetMixin, check_dataset


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

    def __init__(self, **datasets: Any) -> None:
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
