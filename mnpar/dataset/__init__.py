"""What data sets and iterators are made of: indexing, the iterator's contract, and how a list of
examples becomes arrays.
"""

from mnpar.dataset.convert import (
    ConcatWithAsyncTransfer,
    Converter,
    concat_examples,
    converter,
    to_device,
)
from mnpar.dataset.iterator import Iterator
from mnpar.dataset.mixin import DatasetMixin

__all__ = [
    "ConcatWithAsyncTransfer",
    "Converter",
    "DatasetMixin",
    "Iterator",
    "concat_examples",
    "converter",
    "to_device",
]
