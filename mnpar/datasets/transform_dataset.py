"""A data set seen through a function: augmentation, decoding, choosing parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mnpar.dataset.mixin import DatasetMixin, check_dataset


class TransformDataset(DatasetMixin):
    """Example ``i`` is ``transform`` of another data set's example ``i``, computed when it is asked
    for.

    Between ranks (:func:`mnpar.datasets.scatter_dataset`) the other data set's examples travel, and
    the function: lazily read data is a TransformDataset of file names. The function must then be
    one that ``pickle`` can name, no lambda.

    Args:
        dataset: the data set underneath.
        transform: a function of one example. (Chainer's form with keys first,
            ``TransformDataset(dataset, keys, transform)``, is for tabular data sets, which mnpar
            does not have.)

    Raises:
        TypeError: ``transform`` is no function.

    Example:
        >>> from mnpar.datasets import TransformDataset
        >>> TransformDataset([1, 2, 3], lambda x: x * x)[-1]
        9
    """

    def __init__(self, dataset: Any, transform: Callable[[Any], Any]) -> None:
        if not callable(transform):
            raise TypeError(
                "the transform of a TransformDataset is a function of one example, not "
                f"{transform!r}"
            )
        check_dataset(dataset)
        self.dataset = dataset
        self.transform = transform

    def __len__(self) -> int:
        return len(self.dataset)

    def get_example(self, i: int) -> Any:
        return self.transform(self.dataset[i])
