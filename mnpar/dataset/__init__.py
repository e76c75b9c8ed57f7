"""The parts of data sets and iterators: indexing, the iterator's contract, and how a list of
examples becomes a batch.
"""

from typing import TYPE_CHECKING

from mnpar import lazy

if TYPE_CHECKING:
    from mnpar.dataset.convert import (
        ConcatWithAsyncTransfer as ConcatWithAsyncTransfer,
        Converter as Converter,
        concat_examples as concat_examples,
        converter as converter,
        to_device as to_device,
    )
    from mnpar.dataset.iterator import Iterator as Iterator
    from mnpar.dataset.mixin import DatasetMixin as DatasetMixin
else:
    __getattr__, __dir__, __all__ = lazy.names(__name__)
