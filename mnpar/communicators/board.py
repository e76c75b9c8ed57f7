"""Sums in memory that the ranks of a machine have in common: no message, and no more copies than there are ranks.

Each rank has two slots that all can read. It writes what it gives to one of them, by turns, then the number of the collective
to the slot's word; who has seen the number at all ranks adds up the slots, in rank order. A slot is written again two sums
later, when nobody reads it any more: all have been in the sum between.

Ranks may also be in different collectives by mistake. A rank that waits for another one's opening, in MPI, writes the number
to a third word; who waits here goes there then, and all hear of it as ever. Waits are watched like all others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mnpar.backend import Array
from mnpar.communicators.operation import wait
from mnpar.communicators.reduction import reduce_arrays
from mnpar.communicators.shared_memory import SharedMemory
from mnpar.communicators.transport import Pending, Waiting

if TYPE_CHECKING:
    from mnpar.communicators.mpi import MpiTransport

HEAD, NOTE = 64, 256  # bytes: the form of the values; what is said beside them
_LINE = 64  # bytes of a cache line
_ELSEWHERE = 2  # the word after those of the two slots


class Form(NamedTuple):
    """Values of one form."""

    head: bytes
    fits: bool
    slots: list[list[Array]]  # by rank, both


class Board:
    """The slots and words of all ranks.

    Args:
        transport: its ranks are on one machine.
        memory: of :meth:`size` bytes.
        room: bytes of the largest values that can be summed.
    """

    def __init__(self, transport: MpiTransport, memory: SharedMemory, room: int) -> None:
        self._transport, self.memory, self.room = transport, memory, room
        slot = self._slot_size(room)
        starts = range(0, transport.size * (_LINE + 2 * slot), _LINE + 2 * slot)
        self._bytes = memoryview(memory.array)
        self._words = self._bytes[: self.size(transport.size, room)].cast("q")
        self._at = [start // 8 for start in starts]
        self._mine = self._at[transport.rank]
        self._others = [at for at in self._at if at != self._mine]
        self._seq = 0  # of the sum that this rank is in
        self._slots = [(start + _LINE, start + _LINE + slot) for start in starts]
        self._turn = 0
        self._forms: dict[Any, Form] = {}

    @staticmethod
    def _slot_size(room: int) -> int:
        return -(-(HEAD + NOTE + room) // _LINE) * _LINE

    @classmethod
    def size(cls, ranks: int, room: int) -> int:
        """Bytes that it takes."""
        return ranks * (_LINE + 2 * cls._slot_size(room))

    def sum(
        self, x: Array, note: bytes, usual: Callable[[list[bytes]], bool], out: Array, seq: int, waiting: Callable[[], Waiting]
    ) -> bool | None:
        """The sum into ``out`` if the notes are as usual: whether they are; None: not all ranks are here, or alike.

        Args:
            x, out: contiguous, on the host.
            note, usual: as :meth:`Communicator.allreduce_noted` has them.
            seq: the number of this collective, more than that of any before.
            waiting: what is waited for.
        """
        form = self._forms.get((x.shape, x.dtype)) or self._form(x)
        me, turn = self._transport.rank, 1 - self._turn
        start, length = self._slots[me][turn], HEAD + len(note)
        self._bytes[start : start + length] = form.head + note
        if form.fits:
            form.slots[me][turn][...] = x
        self._turn, self._seq = turn, seq
        self.memory.sync()
        self._words[self._mine + turn] = seq
        self._wait(seq, turn, waiting)
        self.memory.sync()
        self._seq, words = 0, self._words
        turns = [0 if words[at] == seq else 1 if words[at + 1] == seq else _ELSEWHERE for at in self._at]
        if _ELSEWHERE in turns:
            self.elsewhere(seq)
            return None
        starts = [both[turn] for both, turn in zip(self._slots, turns, strict=True)]
        if not usual([bytes(self._bytes[start + HEAD : start + length]) for start in starts]):
            return False
        if not form.fits or any([self._bytes[start : start + HEAD] != form.head for start in starts]):
            self.elsewhere(seq)
            return None
        reduce_arrays([both[turn] for both, turn in zip(form.slots, turns, strict=True)], "sum", out)
        return True

    def _form(self, x: Array) -> Form:
        head = f"{x.dtype.str} {x.shape} {x.dtype.name}".encode()[:HEAD].ljust(HEAD, b" ")
        fits = x.nbytes <= self.room
        slots = [[np.ndarray(x.shape, x.dtype, self._bytes, start + HEAD + NOTE) for start in both] for both in self._slots]
        form = self._forms[x.shape, x.dtype] = Form(head, fits, slots if fits else [])
        return form

    def _wait(self, seq: int, turn: int, waiting: Callable[[], Waiting]) -> None:
        """Until all ranks are in this collective, here or elsewhere."""
        words, others, transport = self._words, self._others, self._transport

        def ready() -> bool:
            for at in others:
                if words[at + turn] != seq and words[at + 1 - turn] != seq and words[at + _ELSEWHERE] < seq:
                    return False
            return True

        for _ in range(1 if transport.active else 4 * transport.spins):  # each is short
            if ready():
                return
        what = waiting()
        wait(transport, Pending(lambda: ready() or transport.go_on() or ready(), _nothing, what, transport.meeting(what)))

    def elsewhere(self, seq: int) -> None:
        """This rank waits in a collective of this number, and not here."""
        if seq != self._seq:
            self._words[self._mine + _ELSEWHERE] = seq

    def free(self) -> None:
        """Give the memory back."""
        self._forms.clear()
        self._words.release()
        self._bytes.release()
        self.memory.free()


def _nothing() -> None:
    """The value of a wait that has none."""
