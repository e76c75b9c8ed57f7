"""A data set whose examples are computed from those of another: by a function, or batches of
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from mnpar.dataset.convert import concat_examples
from mnpar.dataset.mixin import Dataset, DatasetMixin, check_dataset


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

    def __init__(self, dataset: Dataset, transform: Callable[[Any], Any]) -> None:
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
        dataset: Dataset,
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


def _positive(size: Any) -> int:
    if not isinstance(size, int | np.integer) or size < 1:
        raise ValueError(f"a batch has 1 or more examples, not {size}")
    return int(size)
