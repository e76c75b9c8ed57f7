"""An iterator whose batches are being read before they are asked for; who reads them is the subclasses' business.

The order of examples is decided here, by the same code as in :class:`SerialIterator`; the readers get lists of indices. What
the iterator says of itself (``epoch``, what it writes into a snapshot, the order sampler's generator in it) is always where
the user is, not where the readers are, so a resumed run gets exactly the batches that this one would have got.
"""

from __future__ import annotations

import weakref
from collections import deque
from contextlib import suppress
from typing import Any, NamedTuple, Protocol, Self

import mnpar.random
from mnpar.iterators.order_samplers import Notes, OrderSampler
from mnpar.iterators.serial_iterator import SerialIterator, State


class Readers(Protocol):
    """Threads or processes that read examples."""

    broken: bool  # one has died, or Ctrl-C came in the middle of a message: others have to begin anew

    def submit(self, rows: list[int], seed: list[int]) -> Any:
        """Begin to read a batch; returns a ticket. What its data set draws comes from the seed."""

    def collect(self, ticket: Any) -> list[Any]:
        """Wait for the batch."""

    def cancel(self, ticket: Any) -> None:
        """Nobody will ask for it."""

    def stop(self) -> None:
        """End; may be called twice."""


class Pending(NamedTuple):
    """A batch that is being read."""

    state: State  # after it
    ticket: Any
    notes: Notes | None  # the order sampler's, from before an order was drawn for this batch


class ReadAheadIterator(SerialIterator):
    """What :class:`MultithreadIterator` and :class:`MultiprocessIterator` have in common."""

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        repeat: bool,
        shuffle: bool | None,
        order_sampler: OrderSampler | None,
        n_prefetch: int,
    ) -> None:
        self.n_prefetch = n_prefetch
        self._pending: deque[Pending] = deque()
        self._readers: Readers | None = None
        self._stop: Any = None  # calls stop of the readers, at the latest when the iterator or the program ends
        super().__init__(dataset, batch_size, repeat, shuffle, order_sampler)
        # spawning leaves the rank's generator where it is: what is drawn after this does not depend on the kind of iterator
        self._seed = int(mnpar.random.spawn(1)[0].integers(2**63))

    def _hire(self) -> Readers:
        raise NotImplementedError

    def __next__(self) -> list[Any]:
        try:
            self._read_ahead()
            batch = self._hired().collect(self._pending[0].ticket)
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
        """Let ``n_prefetch`` batches be read besides the one that is wanted now."""
        while len(self._pending) <= self.n_prefetch:
            front = self._pending[-1].state if self._pending else self._state
            self._notes = None
            try:
                state, rows = self._advance(front)
            except Exception:  # the end, or an order sampler's error
                if not self._pending:
                    raise
                if self._notes is not None:
                    self._notes.restore()  # it is asked again when its batch is wanted
                return
            seed = [self._seed, front.epoch, front.position]
            self._pending.append(Pending(state, self._hired().submit(rows, seed), self._notes))
            self._notes = None

    def _hired(self) -> Readers:
        if self._readers is None:
            self._readers = self._hire()
            self._stop = weakref.finalize(self, self._readers.stop)
        return self._readers

    def _forget(self) -> None:
        """As if nothing had been read ahead."""
        notes = [self._notes_ahead(), self._notes]
        for pending in self._pending:
            self._hired().cancel(pending.ticket)
        self._pending.clear()
        self._notes = None
        for noted in notes:
            if noted is not None:
                noted.restore()
                return

    def _notes_ahead(self) -> Notes | None:
        """The order sampler's before the first order that the user has not come to; None: it is where the user is."""
        return next((pending.notes for pending in self._pending if pending.notes is not None), None)

    def reset(self) -> None:
        """Go back to the beginning of epoch 0, with a newly drawn order."""
        self._forget()
        super().reset()
        self._notes = None

    def finalize(self) -> None:
        """End the readers. The iterator can be used again: it then starts new ones."""
        self._forget()
        if self._stop is not None:
            self._stop()
        self._readers = self._stop = None

    def __copy__(self) -> Self:
        """Another iterator at the same place, with readers of its own; the data set and the order sampler are shared."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._pending = deque()
        other._notes = other._readers = other._stop = None
        return other

    def serialize(self, serializer: Any) -> None:
        """Write or read what :class:`SerialIterator` does, and the seed of what data sets draw (:mod:`mnpar.random`)."""
        ahead, here = Notes.of(self.order_sampler), self._notes_ahead()
        if here is not None:
            here.restore()
        before = self._where()
        super().serialize(serializer)
        with suppress(KeyError):  # of an iterator without readers
            self._seed = int(serializer("reader_seed", self._seed))
        if self._where() != before:  # it was read
            self._pending, pending = deque(), self._pending
            for one in pending:
                self._hired().cancel(one.ticket)
        elif here is not None and ahead is not None:  # it was written: what is being read stays good
            ahead.restore()

    def _where(self) -> tuple[Any, ...]:
        position, epoch, is_new_epoch, order = self._state
        notes = Notes.of(self.order_sampler)
        known = None if notes is None else notes.values
        return position, epoch, is_new_epoch, order if order is None else order.tobytes(), self._previous, self._seed, known


def pieces(rows: list[int], n: int) -> list[list[int]]:
    """A batch for n readers: at most n lists of nearly equal lengths, none empty."""
    n = min(n, len(rows))
    return [rows[len(rows) * i // n : len(rows) * (i + 1) // n] for i in range(n)]
