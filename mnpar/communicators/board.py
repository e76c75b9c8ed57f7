"""Sums in memory that the ranks of a machine have in common: no message, and no more copies than there are ranks.

Each rank has a word, to which it writes how far it has come, and two slots, by turns: in them stands what it says of its values
and, if they are few, the values. Who sees that all have come adds up the slots, in rank order. A slot is written again two sums
later, when nobody reads it any more: all have been in the sum between.

Many values are not copied at all: they live in common memory (``Vectors``), each rank adds up its part of all vectors and
writes the sum into all of them, and says when it is done. So every rank reads as many bytes as it has, and writes as many.

Ranks may also be in different collectives by mistake. A rank that waits for another one's opening, in MPI, writes the number
to a second word; who waits here goes there then, and all hear of it as ever. Waits are watched like all others.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np

from mnpar.backend import Array
from mnpar.communicators.message import call_site
from mnpar.communicators.operation import wait
from mnpar.communicators.reduction import bytes_of_reduction, reduce_arrays
from mnpar.communicators.shared_memory import SharedMemory
from mnpar.communicators.transport import Pending, Waiting
from mnpar.communicators.vectors import Vectors
from mnpar.communicators.watch import SPINS

if TYPE_CHECKING:
    from mnpar.communicators.meeting import Meeting
    from mnpar.communicators.mpi import MpiTransport

HEAD, NOTE = 64, 256  # bytes: the form of the values; what is said beside them
_TEXT = HEAD - 2  # before it stands how long the note is
FEW = 2**15  # bytes of values that are copied to a slot: one wait less, and they stay in the cache
_LINE = 64  # bytes of a cache line
_SLOT = HEAD + NOTE + FEW
_ELSEWHERE, _SAID = 1, 2  # the words after the first: what was said in the slots, as numbers that grow
_POLLS = 4 * SPINS  # each is short
_ORDERED = platform.machine() in ("x86_64", "AMD64")  # processors that let others see (ordinary) writes in their order


class Form:
    """Values of one form.

    Args:
        head: what says it.
        sent: bytes that a rank sends.
        slots: for each turn, where few values of all ranks stand.
    """

    __slots__ = ("head", "sent", "slots")

    def __init__(self, head: bytes, sent: int, slots: Sequence[list[Array]] = ()) -> None:
        self.head, self.sent, self.slots = head, sent, slots


class Board:
    """The slots and words of all ranks.

    Args:
        transport: its ranks are on one machine.
        memory: of ``size(ranks)`` bytes.
    """

    def __init__(self, transport: MpiTransport, memory: SharedMemory) -> None:
        self._transport, self._rank, self.memory = transport, transport.rank, memory
        starts = range(0, self.size(transport.size), self.size(1))
        self._bytes = memoryview(memory.array)[: self.size(transport.size)]
        self._words = self._bytes.cast("q")
        self._at = [start // 8 for start in starts]
        self._mine = self._at[transport.rank]
        self._others = [at for at in self._at if at != self._mine]
        self._said_at = [[at + _SAID + turn for at in self._at] for turn in (0, 1)]
        self._slots = [[start + _LINE + turn * _SLOT for start in starts] for turn in (0, 1)]
        self._turn = 0  # the same on all ranks
        self._seq = 0  # of the sum that this rank is in
        self._said: list[Any] = [None, None]  # by this rank, in its slots
        self._numbers: list[list[int]] = [[], []]  # of what was heard last, from all ranks
        self._heard: list[tuple[bool, list[bytes]]] = [(False, []), (False, [])]  # whether all said the same form; notes
        self._forms: dict[Any, Form] = {}
        self._vectors: WeakValueDictionary[int, Vectors] = WeakValueDictionary()  # by the id of this rank's

    @classmethod
    def size(cls, ranks: int) -> int:
        """Bytes that it takes."""
        return ranks * (_LINE + 2 * _SLOT)

    def know(self, vectors: Vectors) -> None:
        """Sum these in place from now on; all ranks do so, in the same order."""
        vectors.form = self._form(vectors.mine, vectors.number)
        self._vectors[id(vectors.mine)] = vectors

    def _form(self, x: Array, number: int = 0) -> Form:
        head = f"{number} {x.dtype.str} {x.shape} {x.dtype.name}".encode()[:_TEXT].ljust(_TEXT, b" ")
        form = Form(head, bytes_of_reduction(x, self._rank, self._transport.size, None))
        if not number:
            starts = [[start + HEAD + NOTE for start in both] for both in self._slots]
            form.slots = [[np.ndarray(x.shape, x.dtype, self._bytes, start) for start in one] for one in starts]
            self._forms[x.shape, x.dtype] = form
        return form

    def sum(self, x: Array, note: bytes, usual: Callable[[list[bytes]], bool], out: Array, channel: Meeting) -> bool | None:
        """The sum into ``out`` if the notes are as usual: whether they are; None: not all ranks are here, or alike.

        Args:
            x, note, usual, out: as :meth:`Communicator.allreduce_noted` has them.
            channel: gives the collective its number, which is even, and larger than any before.
        """
        if type(x) is not np.ndarray or (out is not x and type(out) is not np.ndarray):
            return None
        vectors = None
        if x.nbytes <= FEW:
            form = self._forms.get((x.shape, x.dtype)) or self._form(x)
        elif (vectors := self._vectors.get(id(x))) is not None and vectors.mine is x is out:
            form = vectors.form
        else:
            return None
        self._seq, self._turn = channel.next_exchange(), 1 - self._turn
        if vectors is None:
            form.slots[self._turn][self._rank][...] = x
        fence = vectors is not None or not _ORDERED  # much is written past the cache, and that in no order
        agreed = self._agree(form, note, usual, channel, fence)
        if agreed:
            if vectors is None:
                reduce_arrays(form.slots[self._turn], "sum", out)
            else:
                vectors.add_up()
                self._come(self._seq + 1, fence)
            traffic = self._transport.traffic
            traffic.collectives += 1
            traffic.collective_bytes += form.sent
        self._seq = 0
        return agreed

    def _agree(
        self, form: Form, note: bytes, usual: Callable[[list[bytes]], bool], channel: Meeting, fence: bool
    ) -> bool | None:
        """Whether all say what is usual; None: not all are here, or of one form."""
        words, turn = self._words, self._turn
        said = self._said[turn]
        if said is None or said[1] is not note or said[0] is not form:
            self._say(form, note, turn)
        alike = self._come(self._seq, fence)
        if alike:
            numbers = [words[at] for at in self._said_at[turn]]
            alike, notes = self._heard[turn] if numbers == self._numbers[turn] else self._hear(numbers, turn)
            if not usual(notes):
                return False
        if alike:
            return True
        seq, self._turn, self._seq = self._seq, 1 - turn, 0  # the slot of this turn is nobody's
        channel.give_back(seq)
        self.elsewhere(seq)
        return None

    def _say(self, form: Form, note: bytes, turn: int) -> None:
        start, text = self._slots[turn][self._rank], len(note).to_bytes(2, "little") + form.head + note
        self._bytes[start : start + len(text)] = text
        self._words[self._mine + _SAID + turn] += 1
        self._said[turn] = form, note

    def _hear(self, numbers: list[int], turn: int) -> tuple[bool, list[bytes]]:
        texts = [bytes(self._bytes[start : start + HEAD + NOTE]) for start in self._slots[turn]]
        heads = {text[2:HEAD] for text in texts}
        notes = [text[HEAD : HEAD + int.from_bytes(text[:2], "little")] for text in texts]
        self._numbers[turn], self._heard[turn] = numbers, (len(heads) == 1, notes)
        return self._heard[turn]

    def _come(self, number: int, fence: bool) -> bool:
        """Say that this rank has come so far, and wait for the others; False: some are in another collective."""
        words = self._words
        if fence:
            self.memory.sync()
        words[self._mine] = number
        here = True
        for at in self._others:
            if words[at] < number:
                here = self._wait(number)
                break
        if fence:
            self.memory.sync()
        return here

    def _wait(self, number: int) -> bool:
        """Until all ranks have come so far, or are elsewhere; whether they have come."""
        words, others, transport = self._words, self._others, self._transport

        for _ in range(1 if transport.active else _POLLS):
            if all([words[at] >= number for at in others]):
                return True

        def ready() -> bool:
            return all([words[at] >= number or words[at + _ELSEWHERE] >= number for at in others])

        what = Waiting("allreduce", call_site(), None, 0, self._seq)
        wait(transport, Pending(lambda: ready() or transport.go_on() or ready(), _nothing, what, transport.meeting(what)))
        return all([words[at] >= number for at in others])

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
