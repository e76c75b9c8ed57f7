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
from mnpar.communicators.reduction import bytes_of_reduction, reduce_arrays
from mnpar.communicators.shared_memory import SharedMemory
from mnpar.communicators.transport import Pending, Waiting
from mnpar.communicators.watch import SPINS

if TYPE_CHECKING:
    from mnpar.communicators.mpi import MpiTransport

HEAD, NOTE = 64, 256  # bytes: the form of the values; what is said beside them
PIECE = 2**18  # bytes of values in a slot: as many as stay in the cache
_LINE = 64  # bytes of a cache line
_SLOT = HEAD + NOTE + PIECE
_ELSEWHERE = 2  # the word after those of the two slots
_PIECES = 2**20  # of one sum: more than there ever are


class Form(NamedTuple):
    """Values of one form."""

    head: bytes
    places: list[Any]  # of the pieces in the flat array; of one, that of all
    slots: list[list[list[Array]]]  # for each piece the slots that it lies in, by rank, both


class Board:
    """The slots and words of all ranks.

    Args:
        transport: its ranks are on one machine.
        memory: of ``size(ranks)`` bytes.
        most: bytes of the largest values that are to be summed so.
    """

    def __init__(self, transport: MpiTransport, memory: SharedMemory, most: int) -> None:
        self._transport, self.memory, self.most = transport, memory, most
        starts = range(0, self.size(transport.size), self.size(1))
        self._bytes = memoryview(memory.array)[: self.size(transport.size)]
        self._words = self._bytes.cast("q")
        self._at = [start // 8 for start in starts]
        self._mine = self._at[transport.rank]
        self._others = [at for at in self._at if at != self._mine]
        self._seq = 0  # of the sum that this rank is in
        self._slots = [(start + _LINE, start + _LINE + _SLOT) for start in starts]
        self._turn = 0
        self._forms: dict[Any, Form] = {}

    @classmethod
    def size(cls, ranks: int) -> int:
        """Bytes that it takes."""
        return ranks * (_LINE + 2 * _SLOT)

    def takes(self, x: Array, out: Array) -> bool:
        """Whether such values can be summed here."""
        here = type(x) is np.ndarray and x.nbytes <= self.most and x.flags.c_contiguous
        return here and (out is x or (type(out) is np.ndarray and out.flags.c_contiguous))

    def sum(
        self, x: Array, note: bytes, usual: Callable[[list[bytes]], bool], out: Array, seq: int, waiting: Callable[[], Waiting]
    ) -> bool | None:
        """The sum into ``out`` if the notes are as usual: whether they are; None: not all ranks are here, or alike.

        Args:
            x, out: arrays that it :meth:`takes`.
            note, usual: as :meth:`Communicator.allreduce_noted` has them.
            seq: the number of this collective, larger than any before.
            waiting: what is waited for.
        """
        head, places, slots = self._forms.get((x.shape, x.dtype)) or self._form(x)
        given, total = (x, out) if len(places) == 1 else (x.reshape(-1), out.reshape(-1))
        self._seq, text, length = seq, head + note, HEAD + len(note)
        for piece, (place, arrays) in enumerate(zip(places, slots, strict=True)):
            turns = self._give(given[place], arrays, text, _PIECES * seq + piece, waiting)
            if turns is None:
                break
            if piece == 0:
                starts = [both[turn] for both, turn in zip(self._slots, turns, strict=True)]
                texts = [bytes(self._bytes[start : start + length]) for start in starts]
                if not usual([text[HEAD:] for text in texts]):
                    self._seq = 0
                    return False
                if any([other[:HEAD] != head for other in texts]):
                    break
                text = b""
            reduce_arrays([both[turn] for both, turn in zip(arrays, turns, strict=True)], "sum", total[place])
        else:
            self._seq, traffic = 0, self._transport.traffic
            traffic.collectives += 1
            traffic.collective_bytes += bytes_of_reduction(x, self._transport.rank, self._transport.size, None)
            return True
        self._seq = 0
        self.elsewhere(seq)
        return None

    def _give(
        self, x: Array, arrays: list[list[Array]], text: bytes, number: int, waiting: Callable[[], Waiting]
    ) -> list[int] | None:
        """Write a piece; when all have done it, in which of their slots; None: they have not."""
        me, turn, words = self._transport.rank, 1 - self._turn, self._words
        start = self._slots[me][turn]
        self._bytes[start : start + len(text)] = text
        arrays[me][turn][...] = x
        self._turn = turn
        self.memory.sync()
        words[self._mine + turn] = number
        if any([words[at + turn] != number for at in self._others]):
            self._wait(number, turn, waiting)
        self.memory.sync()
        turns = [turn if words[at + turn] == number else self._other(at, turn, number) for at in self._at]
        return None if _ELSEWHERE in turns else turns

    def _other(self, at: int, turn: int, number: int) -> int:
        return 1 - turn if self._words[at + 1 - turn] == number else _ELSEWHERE

    def _form(self, x: Array) -> Form:
        head = f"{x.dtype.str} {x.shape} {x.dtype.name}".encode()[:HEAD].ljust(HEAD, b" ")
        step = PIECE // x.itemsize
        places: list[Any] = [slice(start, min(start + step, x.size)) for start in range(0, max(x.size, 1), step)]
        slots = [
            [
                [np.ndarray(p.stop - p.start, x.dtype, self._bytes, start + HEAD + NOTE) for start in both]
                for both in self._slots
            ]
            for p in places
        ]
        form = self._forms[x.shape, x.dtype] = Form(head, places, slots)
        return form

    def _wait(self, number: int, turn: int, waiting: Callable[[], Waiting]) -> None:
        """Until all ranks are in this collective, here or elsewhere."""
        words, others, transport, seq = self._words, self._others, self._transport, self._seq

        def ready() -> bool:
            for at in others:
                if words[at + turn] != number and words[at + 1 - turn] != number and words[at + _ELSEWHERE] < seq:
                    return False
            return True

        for _ in range(1 if transport.active else 4 * SPINS):  # each is short
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
