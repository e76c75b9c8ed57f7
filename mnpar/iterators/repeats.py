"""Leave out of an evaluation what another rank counts: examples that ``scatter_dataset`` gave to
two ranks, found behind any iterator that reads them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from mnpar.backend import Array
from mnpar.dataset import Iterator as BatchIterator
from mnpar.dataset.mixin import Dataset
from mnpar.datasets.repeats import repeated_rows, scattered_span
from mnpar.datasets.sub_dataset import SubDataset
from mnpar.iterators.multi_node_iterator import MultiNodeIterator
from mnpar.iterators.serial_iterator import SerialIterator


def exclude_repeats(iterator: Any, in_order: bool = True) -> list[int]:
    """Return the places, among all the examples that an iterator gives, of those that another rank
    counts.

    Where its order is random, or must not matter, the iterator gets a data set without these, and
    there are none.

    Args:
        iterator: of examples; one of mnpar's, or of a class that has one of these as an attribute.
        in_order: whether batches go through :func:`without_repeats`.

    Raises:
        ValueError: the data set repeats examples, and the iterator is of a class that mnpar does
            not know.
    """
    if isinstance(iterator, MultiNodeIterator):
        if in_order and iterator.in_order:
            return iterator.repeated
        return exclude_repeats(iterator.actual_iterator, in_order)
    if not isinstance(iterator, SerialIterator):
        inner = [
            value
            for value in getattr(iterator, "__dict__", {}).values()
            if isinstance(value, BatchIterator)
        ]
        for one in inner:
            exclude_repeats(one, False)
        if not inner and (n := len(repeated_rows(getattr(iterator, "dataset", None)))):
            raise ValueError(
                f"{n} of the {len(iterator.dataset)} examples of this {type(iterator).__name__} "
                "another rank has too, and counts, but its order is not known: scatter without "
                "repeats (scatter_dataset(…, force_equal_length=False)), or give it "
                "part.without_duplicates()"
            )
        return []
    rows = repeated_rows(iterator.dataset)
    if not len(rows):
        return []
    if in_order and iterator.order_sampler is None:
        places: list[int] = rows.tolist()
        return places
    iterator.finalize()  # readers that have begun have the old data set
    iterator.dataset = _without(iterator.dataset, rows)
    iterator.reset()
    return []


def read_span(iterator: Any) -> tuple[int, int, int] | None:
    """Return (begin, end, total) of the scattered part that an iterator reads; None if that is not
    known.
    """
    if isinstance(iterator, MultiNodeIterator):
        return iterator.span
    return scattered_span(getattr(iterator, "dataset", None))


def _without(dataset: Dataset, rows: Array) -> SubDataset:
    kept = np.setdiff1d(np.arange(len(dataset)), rows)
    return SubDataset(dataset, 0, len(kept), np.concatenate([kept, rows]))


def without_repeats(batches: Iterable[Any], places: list[int]) -> Iterator[tuple[Any, bool]]:
    """Batches without the examples at these places, and True; a batch that has no others as it is,
    and False.

    Such a batch is evaluated too, as the model may communicate, and not counted: so ranks make
    equally many batches.

    Example:
        >>> from mnpar.iterators.repeats import without_repeats
        >>> list(without_repeats(["ab", "cd", "ef"], [0, 1, 3]))
        [('ab', False), (['c'], True), ('ef', True)]
    """
    left = frozenset(places)
    begin = 0
    for batch in batches:
        rest = batch
        if left:
            rest = [one for place, one in enumerate(batch, begin) if place not in left]
            begin += len(batch)
            rest = batch if len(rest) == len(batch) else rest
        yield (batch, False) if rest is not batch and not rest else (rest, True)
