"""Examples of a rank's data set that another rank has too, and counts.

``scatter_dataset`` gives some examples to two ranks, so that all make equally many batches
(:class:`mnpar.datasets.scatter.ScatteredDataset`). An evaluation over the ranks counts each once,
whatever data sets of mnpar lie between the scattered part and the iterator, and tells when no rank
reads some of them.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from mnpar.backend import Array
from mnpar.dataset.mixin import Dataset, DatasetMixin
from mnpar.datasets.combined import ConcatenatedDataset, DictDataset, MergeDataset, TupleDataset
from mnpar.datasets.prefetch_dataset import PrefetchDataset
from mnpar.datasets.scatter import ScatteredDataset
from mnpar.datasets.sub_dataset import SubDataset
from mnpar.datasets.transform_dataset import TransformDataset

_NONE = np.empty(0, np.intp)


def repeated_rows(dataset: object) -> Array:
    """Return the indices of the examples that another rank counts, in rising order.

    Raises:
        ValueError: a data set of a class that mnpar does not know has a scattered part in it.

    Example:
        >>> import mnpar
        >>> from mnpar.datasets import TransformDataset, scatter_dataset
        >>> from mnpar.datasets.repeats import repeated_rows
        >>> def program(comm):
        ...     part = scatter_dataset(range(5) if comm.rank == 0 else None, comm)
        ...     return repeated_rows(TransformDataset(part, str)).tolist()
        >>> mnpar.run(program, ranks=2)
        [[], [0]]
    """
    if isinstance(dataset, ScatteredDataset):
        return np.arange(dataset.n_duplicates)
    if isinstance(dataset, SubDataset):
        inner = repeated_rows(dataset.dataset)
        if not len(inner):
            return _NONE
        rows = np.arange(dataset.start, dataset.finish)
        if dataset.order is not None:
            rows = np.asarray(dataset.order, np.intp)[rows]
        return np.flatnonzero(np.isin(rows, inner))
    if isinstance(dataset, TransformDataset | PrefetchDataset):
        return repeated_rows(dataset.dataset)
    if isinstance(dataset, DictDataset):
        return _union(dataset.datasets.values())
    if isinstance(dataset, TupleDataset | MergeDataset):
        return _union(dataset.datasets)
    if isinstance(dataset, ConcatenatedDataset):
        begins = np.cumsum([0, *map(len, dataset.datasets)])
        places = [
            begin + repeated_rows(one) for begin, one in zip(begins, dataset.datasets, strict=False)
        ]
        return np.concatenate([_NONE, *places])
    for name, value in getattr(dataset, "__dict__", {}).items():
        if isinstance(value, DatasetMixin) and (n := len(repeated_rows(value))):
            raise ValueError(
                f"the data set {type(dataset).__name__} has in its {name} a part of scattered "
                f"data, {n} of whose {len(value)} examples another rank has too, and counts; "
                "nobody knows which of its own examples these are. Scatter without repeats "
                "(scatter_dataset(…, force_equal_length=False)), or put "
                "part.without_duplicates() into it"
            )
    return _NONE


def scattered_span(dataset: object) -> tuple[int, int, int] | None:
    """Return (begin, end, total) of the scattered part that a data set reads, whole; None if it
    reads none, or is made of it in another way.
    """
    while isinstance(dataset, TransformDataset | PrefetchDataset):
        dataset = dataset.dataset
    if not isinstance(dataset, ScatteredDataset):
        return None
    return dataset.begin, dataset.end, dataset.total


def _union(datasets: Iterable[Dataset]) -> Array:
    return np.unique(np.concatenate([_NONE, *map(repeated_rows, datasets)]))
