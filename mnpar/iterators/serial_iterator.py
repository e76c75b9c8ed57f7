"""Batches read one after the other, in the calling thread; the other iterators give the same
batches.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from mnpar.backend import Array
from mnpar.dataset import Iterator
from mnpar.dataset.mixin import Dataset, check_dataset
from mnpar.iterators.order_samplers import OrderSampler, SamplerState, ShuffleOrderSampler
from mnpar.serializer import AbstractSerializer, optional_part


class State(NamedTuple):
    """The position of an iterator."""

    position: int  # examples read in this epoch
    epoch: int
    is_new_epoch: bool
    order: Array | None  # the indices of this epoch's examples; None: 0, 1, 2 …


class SerialIterator(Iterator):
    """Gives lists of examples; repeating, a batch that reaches the end of an epoch is filled up
    from the next one.

    Args:
        dataset: anything with ``len`` and ``[i]``.
        batch_size: how many examples a batch has; without ``repeat`` the last one may be shorter.
        repeat: whether it goes on for ever; False: it stops after one epoch, and starts again after
            :meth:`reset`.
        shuffle: whether every epoch has a new random order; None is True unless an
            ``order_sampler`` is given.
        order_sampler: draws the orders, see :class:`OrderSampler`; only with ``shuffle=None``.

    Attributes:
        epoch: complete sweeps so far.
        is_new_epoch: whether the last batch completed one.
        epoch_detail: sweeps, as a fraction.
        previous_epoch_detail: the same one batch ago; None before the first.
        current_position: examples read in this sweep.

    Raises:
        TypeError: ``dataset`` has no length, or no ``[i]``.
        ValueError: ``batch_size`` is no positive integer, or both ``shuffle`` and ``order_sampler``
            are given; when a batch is drawn: the data set is empty and ``repeat`` is True, or the
            sampler's orders are not equally long.

    Example:
        >>> from mnpar.iterators import SerialIterator
        >>> iterator = SerialIterator("abcde", 2, shuffle=False)
        >>> [iterator.next() for _ in range(3)], iterator.epoch, iterator.epoch_detail
        ([['a', 'b'], ['c', 'd'], ['e', 'a']], 1, 1.2)
        >>> list(SerialIterator("abcde", 2, repeat=False, shuffle=False))
        [['a', 'b'], ['c', 'd'], ['e']]
    """

    # the order sampler's before it drew an order for the batch at hand
    _before_draw: SamplerState | None = None

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int,
        repeat: bool = True,
        shuffle: bool | None = None,
        order_sampler: OrderSampler | None = None,
    ) -> None:
        if (
            isinstance(batch_size, bool)
            or not isinstance(batch_size, int | np.integer)
            or batch_size < 1
        ):
            raise ValueError(
                f"batch_size = {batch_size!r}: a batch has a positive number of examples"
            )
        if shuffle is not None and order_sampler is not None:
            raise ValueError(
                "the order comes from shuffle or from order_sampler: with an order_sampler "
                "leave shuffle out"
            )
        check_dataset(dataset)
        self.dataset = dataset
        self.batch_size = int(batch_size)
        self.repeat = repeat
        shuffles = order_sampler is None and shuffle is not False
        self.order_sampler: OrderSampler | None = (
            ShuffleOrderSampler() if shuffles else order_sampler
        )
        self.reset()

    def __repr__(self) -> str:
        what = (
            f"{type(self).__name__} of {len(self.dataset)} examples, batch_size={self.batch_size}"
        )
        return f"<{what}, at {self.current_position} in epoch {self.epoch}>"

    def reset(self) -> None:
        """Go back to the beginning of epoch 0, with a newly drawn order."""
        order = None if self.order_sampler is None else self._draw(np.arange(len(self.dataset)), 0)
        self._state = State(0, 0, False, order)
        self._previous: float | None = None

    def __next__(self) -> list[Any]:
        previous = self.epoch_detail
        self._before_draw = None
        try:
            state, rows = self._advance(self._state)
            batch = self._read(rows)  # before the state changes: an error here loses nothing
        except BaseException:
            if self._before_draw is not None:
                self._before_draw.restore()  # the next order is drawn again
            raise
        self._state, self._previous = state, previous
        return batch

    def _read(self, rows: list[int]) -> list[Any]:
        try:
            return [self.dataset[i] for i in rows]
        except StopIteration as error:
            raise RuntimeError(
                f"the data set raised StopIteration {error} for one of the examples {rows}"
            ) from error

    def _advance(self, state: State) -> tuple[State, list[int]]:
        """Return the state after the batch that comes next in a state, and the batch's indices."""
        position, epoch, _, order = state
        n = self._length
        if not self.repeat and (epoch > 0 or n == 0):
            raise StopIteration
        if n == 0:
            raise ValueError(
                "an empty data set has no batch to repeat: scatter_dataset gives all ranks "
                "equally many examples to train with "
                "(force_equal_length, its default), and an evaluation reads them once "
                "(repeat=False)"
            )
        position = min(position, n)  # of a data set that has become shorter
        rows: list[int] = []
        new_epochs = 0
        end = position + self.batch_size if self.repeat else min(position + self.batch_size, n)
        while end >= n:  # the batch reaches the end of the epoch, perhaps of several
            rows += range(position, n) if order is None else order[position:n].tolist()
            order = None if order is None else self._next(order, position)
            position, end = 0, end - n if self.repeat else 0
            new_epochs += 1
        rows += range(position, end) if order is None else order[position:end].tolist()
        return State(end, epoch + new_epochs, new_epochs > 0, order), rows

    def _draw(self, order: Array, position: int) -> Array:
        assert self.order_sampler is not None
        if self._before_draw is None:
            self._before_draw = SamplerState.of(self.order_sampler)
        drawn = np.asarray(self.order_sampler(order, position))
        if drawn.ndim != 1:
            raise ValueError(
                f"the order_sampler returned an order of shape {drawn.shape}, not a number for "
                "each example"
            )
        n = len(self.dataset)
        if drawn.size and (drawn.dtype.kind not in "iu" or drawn.min() < 0 or drawn.max() >= n):
            least = drawn.min()
            most = drawn.max()
            raise ValueError(
                f"the order_sampler returned {drawn.dtype} from {least} to {most} for a data "
                f"set of {n} examples "
                "(which keeps its length while an iterator reads it)"
            )
        return drawn

    def _next(self, order: Array, position: int) -> Array:
        drawn = self._draw(order, position)
        if len(drawn) != len(order):
            raise ValueError(
                f"the order_sampler returned {len(drawn)} examples after an epoch of {len(order)}"
            )
        return drawn

    @property
    def _length(self) -> int:
        """The examples of an epoch."""
        order = self._state.order
        return len(self.dataset) if order is None else len(order)

    @property
    def epoch(self) -> int:
        """Complete sweeps so far."""
        return self._state.epoch

    @property
    def is_new_epoch(self) -> bool:
        """Return whether the last batch completed a sweep."""
        return self._state.is_new_epoch

    @property
    def current_position(self) -> int:
        """Examples read in this sweep."""
        return self._state.position

    @property
    def epoch_detail(self) -> float:
        """Sweeps so far, as a fraction."""
        n = self._length
        return self._state.epoch + (self._state.position / n if n else 0.0)

    @property
    def previous_epoch_detail(self) -> float | None:
        """``epoch_detail`` one batch ago; None before the first batch."""
        return self._previous

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Write or read position, epoch and order (Chainer's keys), and the generator that draws
        the next orders.

        Raises:
            ValueError: what is read was written for a data set of another length.
        """
        position, epoch, is_new_epoch, order = self._state
        length = n = len(self.dataset)
        size = self._length
        # loading a checkpoint of another number of ranks
        moved = getattr(serializer, "ranks_changed", False)
        with suppress(KeyError):  # Chainer does not save it
            length = int(serializer("dataset_length", n))
        position = int(serializer("current_position", position))
        epoch = int(serializer("epoch", epoch))
        is_new_epoch = bool(serializer("is_new_epoch", is_new_epoch))
        if (
            moved and length != n
            # saved for another part of the data: take the same fraction of the epoch, keep the
            # order
        ):
            # a sampler's epochs need not be as long as the data set
            position = min(position * n // max(length, 1), size)
        elif order is not None:
            order = np.asarray(serializer("order", np.array(order, np.int64)), np.int64)
        if not 0 <= position <= size or (order is not None and order.shape != (size,)):
            was = "of another length" if order is None else f"of {order.size} examples"
            raise ValueError(
                f"this state, at position {position}, was saved with a data set {was}; this "
                f"one has {size}"
            )
        previous = float(
            serializer("previous_epoch_detail", -1.0 if self._previous is None else self._previous)
        )
        sampler: Any = self.order_sampler
        part = optional_part(serializer, "order_sampler")
        if hasattr(sampler, "serialize") and part is not None:
            with suppress(KeyError):  # Chainer does not save it
                sampler.serialize(part)
        self._state = State(position, epoch, is_new_epoch, order)
        self._previous = None if previous < 0 else previous
