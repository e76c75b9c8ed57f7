"""Indexing for data sets that know how to read one example.

A data set is anything with ``len`` and ``[i]``: a list, an array, a class of your own. A class that
reads example number ``i`` (from a file, say) gets slices, lists of indices and negative indices
from here.
"""

from __future__ import annotations

import operator
from typing import Any, Protocol, SupportsIndex

import numpy as np

from mnpar.backend import Array
from mnpar.hints import KeywordHints


class Dataset(Protocol):
    """A data set: anything with ``len`` and ``[i]``."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: Any, /) -> Any: ...


class DatasetMixin(KeywordHints):
    """A data set of your own: define ``__len__`` and ``get_example(i)``, and index it like a list.

    Example:
        >>> from mnpar.dataset import DatasetMixin
        >>> class Squares(DatasetMixin):
        ...     def __len__(self):
        ...         return 5
        ...
        ...     def get_example(self, i):
        ...         return i * i
        >>> Squares()[3], Squares()[-1], Squares()[1:3], Squares()[[4, 0]]
        (9, 16, [1, 4], [16, 0])
    """

    def __len__(self) -> int:
        raise NotImplementedError(f"{type(self).__name__} does not define __len__")

    def get_example(self, i: int) -> Any:
        """Read the example number ``i``, which lies in ``0 … len - 1``."""
        raise NotImplementedError(f"{type(self).__name__} does not define get_example(self, i)")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self)} examples>"

    def __getitem__(self, index: Any) -> Any:
        if type(index) is int and 0 <= index < len(self):  # mostly, and fast
            return self.get_example(index)
        if isinstance(index, slice):
            return [self.get_example(i) for i in range(*index.indices(len(self)))]
        if isinstance(index, (list, np.ndarray)):
            return [self.get_example(i) for i in positions(index, len(self)).tolist()]
        return self.get_example(position(index, len(self)))


def position(index: SupportsIndex, length: int) -> int:
    """Return the place ``0 … length - 1`` that an index, perhaps negative, means.

    Raises:
        IndexError: there is no such example. (``for example in dataset`` ends by it.)
        TypeError: it is no integer.
    """
    try:
        index = operator.index(index)
    except TypeError:
        raise TypeError(
            f"an example is chosen by an integer, a slice or a list of integers, not {index!r}"
        ) from None
    if not -length <= index < length:
        raise IndexError(f"example {index} of a data set of {length} was asked for")
    return int(index) % length


def check_dataset(dataset: object) -> None:
    """Raise TypeError if ``dataset`` has no ``len`` or no ``[i]``."""
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        given = "None" if dataset is None else type(dataset).__name__
        raise TypeError(
            f"a data set has len() and [i]; {given} has not (list makes one of what can be "
            "read only once)"
        )


def positions(index: Any, length: int) -> Array:
    """:func:`position` for a list or an array of indices; a boolean array says which examples are
    wanted.
    """
    index = np.asarray(index)
    if index.dtype == bool:
        if index.shape != (length,):
            raise IndexError(
                f"a mask of shape {index.shape} was used on a data set of {length} examples"
            )
        return np.flatnonzero(index)
    if index.size == 0:
        return np.empty(0, np.intp)
    if index.ndim != 1 or index.dtype.kind not in "iu":
        raise IndexError(
            f"examples are chosen by a list of integers; this one has shape {index.shape}, "
            f"dtype {index.dtype}"
        )
    if index.min() < -length or index.max() >= length:
        raise IndexError(
            f"examples {index.min()} … {index.max()} of a data set of {length} were asked for"
        )
    result: Array = (index % length).astype(np.intp)
    return result
