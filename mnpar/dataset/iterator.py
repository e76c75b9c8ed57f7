"""The contract of iterators, in Chainer's words: batches, and where in which epoch we are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from mnpar.hints import KeywordHints
from mnpar.serializer import AbstractSerializer


class Iterator(KeywordHints):
    """Gives batches of examples and keeps count of the epochs; the base of mnpar's iterators and of
    your own.

    A subclass defines ``__next__``, and these attributes: ``epoch`` (complete sweeps so far, an
    int), ``is_new_epoch`` (did the last batch complete one?), ``epoch_detail`` (sweeps as a
    fraction), ``previous_epoch_detail`` (the same, one batch ago; None before the first),
    ``current_position`` (examples read in this sweep).

    Example:
        >>> from mnpar.dataset import Iterator
        >>> class Twice(Iterator):
        ...     left = 2
        ...
        ...     def __next__(self):
        ...         if not self.left:
        ...             raise StopIteration
        ...         self.left -= 1
        ...         return ["example"]
        >>> with Twice() as iterator:
        ...     list(iterator)
        [['example'], ['example']]
    """

    if TYPE_CHECKING:

        @property
        def epoch(self) -> int: ...
        @property
        def is_new_epoch(self) -> bool: ...
        @property
        def epoch_detail(self) -> float: ...
        @property
        def previous_epoch_detail(self) -> float | None: ...
        @property
        def current_position(self) -> int: ...

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        raise NotImplementedError(f"{type(self).__name__} does not define __next__")

    def next(self) -> Any:
        """``next(iterator)``, as a method."""
        return self.__next__()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.finalize()

    def finalize(self) -> None:
        """Give back threads and files. Never waits for another rank, so it is safe after an
        error.
        """

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Write the state to the serializer or read it from there, so that the next batch is the
        one that would have come.
        """
