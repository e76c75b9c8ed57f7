"""What data sets and iterators are made of: indexing, the iterator's contract, and how a list of examples becomes arrays."""

from mnpar.dataset.convert import concat_examples, to_device
from mnpar.dataset.iterator import Iterator
from mnpar.dataset.mixin import DatasetMixin

__all__ = ["DatasetMixin", "Iterator", "concat_examples", "to_device"]
