"""The base of iterators that read batches ahead; subclasses say by what: threads or processes.

The order of examples is decided here, by the same code as in :class:`SerialIterator`; the readers
get lists of indices. Its attributes (``epoch`` …) and what it writes into a snapshot, the order
sampler's generator included, are those of the batch that the user got last, not of the batches read
ahead, so a resumed run gets exactly the batches that this one would have got.
"""

from __future__ import annotations

import weakref
from collections import deque
from contextlib import suppress
from typing import Any, NamedTuple, Protocol, Self

import mnpar.random
from mnpar.dataset.mixin import Dataset
from mnpar.iterators.order_samplers import OrderSampler, SamplerState
from mnpar.iterators.serial_iterator import SerialIterator, State
from mnpar.serializer import AbstractSerializer


class Readers(Protocol):
    """Threads or processes that read examples."""

    # one has died, or Ctrl-C came in the middle of a message: new readers have to be started
    broken: bool

    def submit(self, rows: list[int], seed: list[int]) -> Any:
        """Begin to read a batch; returns a ticket. The seed is that of random numbers that the data
        set draws for it.
        """

    def collect(self, ticket: Any) -> list[Any]:
        """Wait for the batch."""

    def cancel(self, ticket: Any) -> None:
        """Give up a batch: it will not be collected."""

    def stop(self) -> None:
        """End the threads or processes; may be called twice."""


class PendingBatch(NamedTuple):
    """A batch that is being read ahead."""

    state: State  # the iterator's after this batch
    ticket: Any
    # as it was before it drew an order for this batch; None: it drew none
    sampler: SamplerState | None


class ReadAheadIterator(SerialIterator):
    """The base of :class:`MultithreadIterator` and :class:`MultiprocessIterator`."""

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int,
        repeat: bool,
        shuffle: bool | None,
        order_sampler: OrderSampler | None,
        n_prefetch: int,
    ) -> None:
        self.n_prefetch = n_prefetch
        self._pending: deque[PendingBatch] = deque()
        self._readers: Readers | None = None
        # calls stop of the readers, at the latest when the iterator or the program ends
        self._stop: Any = None
        super().__init__(dataset, batch_size, repeat, shuffle, order_sampler)
        self._seed = int(mnpar.random.spawn(1)[0].integers(2**63))

    def _make_readers(self) -> Readers:
        raise NotImplementedError

    def __next__(self) -> list[Any]:
        try:
            self._read_ahead()
            batch = self._running_readers().collect(self._pending[0].ticket)
        except StopIteration:
            raise
        except BaseException:
            if self._readers is not None and self._readers.broken:
                self.finalize()
            self._forget()
            raise
        previous = self.epoch_detail
        self._state, self._previous = self._pending.popleft().state, previous
        return batch

    def _read_ahead(self) -> None:
        """Submit batches until ``n_prefetch`` are being read besides the one that is wanted now."""
        while len(self._pending) <= self.n_prefetch:
            front = self._pending[-1].state if self._pending else self._state
            self._before_draw = None
            try:
                state, rows = self._advance(front)
            except Exception:  # the end, or an order sampler's error
                if not self._pending:
                    raise
                if self._before_draw is not None:
                    self._before_draw.restore()  # the order is drawn again when the batch is wanted
                return
            seed = [self._seed, front.epoch, front.position]
            self._pending.append(
                PendingBatch(state, self._running_readers().submit(rows, seed), self._before_draw)
            )
            self._before_draw = None

    def _running_readers(self) -> Readers:
        if self._readers is None:
            self._readers = self._make_readers()
            self._stop = weakref.finalize(self, self._readers.stop)
        return self._readers

    def _forget(self) -> None:
        """Cancel the batches that are being read ahead, and put the order sampler back to where the
        user is.
        """
        states = [self._sampler_state_here(), self._before_draw]
        for pending in self._pending:
            self._running_readers().cancel(pending.ticket)
        self._pending.clear()
        self._before_draw = None
        for state in states:
            if state is not None:
                state.restore()
                return

    def _sampler_state_here(self) -> SamplerState | None:
        """Return the order sampler's state at the user's batch; None: it is in that state, as no
        order was drawn ahead.
        """
        return next(
            (pending.sampler for pending in self._pending if pending.sampler is not None), None
        )

    def reset(self) -> None:
        """Go back to the beginning of epoch 0, with a newly drawn order."""
        self._forget()
        super().reset()
        self._before_draw = None

    def finalize(self) -> None:
        """End the readers. An iterator that is used again starts new ones."""
        self._forget()
        if self._stop is not None:
            self._stop()
        self._readers = self._stop = None

    def __copy__(self) -> Self:
        """Return another iterator at the same place, with readers of its own; the data set and the
        order sampler are shared.
        """
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._pending = deque()
        other._before_draw = other._readers = other._stop = None
        return other

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Write or read what :class:`SerialIterator` does, and the seed of random numbers that the
        data set draws.
        """
        ahead = SamplerState.of(self.order_sampler)
        here = self._sampler_state_here()
        if here is not None:
            here.restore()
        before = self._where()
        super().serialize(serializer)
        with suppress(KeyError):  # the state of a SerialIterator has none
            self._seed = int(serializer("reader_seed", self._seed))
        if self._where() != before:  # a state was loaded
            self._pending, pending = deque(), self._pending
            for one in pending:
                self._running_readers().cancel(one.ticket)
        elif here is not None and ahead is not None:
            # the state was saved: the batches read ahead stay valid
            ahead.restore()

    def _where(self) -> tuple[Any, ...]:
        position, epoch, is_new_epoch, order = self._state
        sampler = SamplerState.of(self.order_sampler)
        drawn = None if sampler is None else sampler.values
        return (
            position,
            epoch,
            is_new_epoch,
            order if order is None else order.tobytes(),
            self._previous,
            self._seed,
            drawn,
        )


def split_rows(rows: list[int], n: int) -> list[list[int]]:
    """Divide a batch among n readers: at most n lists of nearly equal lengths, none empty."""
    n = min(n, len(rows))
    return [rows[len(rows) * i // n : len(rows) * (i + 1) // n] for i in range(n)]


def ordinary(error: BaseException) -> Exception:
    """Return a reader's error as one that ``next`` may raise: a StopIteration would look like the
    end of the data, a SystemExit would end the program; each becomes a RuntimeError.
    """
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    notes = " ".join(getattr(error, "__notes__", []))
    replacement = RuntimeError(f"{type(error).__name__} {error} {notes}")
    replacement.__cause__ = error
    return replacement
