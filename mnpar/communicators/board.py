"""Sums in memory that the ranks of a machine have in common: no message, and no more copies than there are ranks.

Each rank has a word, to which it writes how far it has come, and two slots, by turns: in them stands what it says of its values
and, if they are few, the values. Who sees that all have come adds up the slots, in rank order. A slot is written again two sums
later, when nobody reads it any more: all have been in the sum between. Beside how far a rank has come, its word says how often
it has said something else in this slot, so that what is said again and again is read once.

Many values are not copied at all: they live in common memory (``Vectors``), each rank adds up its part of all vectors and
writes the sum into all of them, and says when it is done. So every rank reads as many bytes as it has, and writes as many.

A sum begins, where values are said, and ends, where those of all are added up: what a rank does in between keeps nobody
waiting, and ranks that come at slightly different times do not wait for each other.

Ranks may also be in different collectives by mistake. A rank that waits for another one's opening, in MPI, writes the number
to a second word; who waits here goes there then, and all hear of it as ever. Waits are watched like all others.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np

from mnpar.backend import Array
from mnpar.communicators.operation import wait
from mnpar.communicators.reduction import bytes_of_reduction, reduce_arrays
from mnpar.communicators.shared_memory import SharedMemory
from mnpar.communicators.sites import call_site
from mnpar.communicators.transport import Pending, Waiting
from mnpar.communicators.vectors import Vectors
from mnpar.communicators.watch import polling
from mnpar.errors import DeadlockError

if TYPE_CHECKING:
    from mnpar.communicators.meeting import Meeting
    from mnpar.communicators.mpi import MpiTransport

HEAD, NOTE = 64, 256  # bytes: the form of the values; what is said beside them
_TEXT = HEAD - 2  # before it stands how long the note is
FEW = 2**15  # bytes of values that are copied to a slot: one wait less, and they stay in the cache
_LINE = 64  # bytes of a cache line
_SLOT = HEAD + NOTE + FEW
_ELSEWHERE = 1  # the word after the first
_TIMES = 2**16  # that a rank has said something else: counted up to so many in the last bits of its word
_UNKNOWN = -(2**62)  # times that no word shows
_SHORT = 24  # polls that take as long as one of MPI
_GIVEN_UP = (
    "rank {}: a sum of gradients, or allreduce_noted, ended in an error, and the other ranks may come to it yet, so no other "
    "one can take place on this communicator: let the error end the job, or create another communicator on all ranks"
)
_ORDERED = platform.machine() in ("x86_64", "AMD64")  # processors that read in order, and let others see ordinary writes so


class Form:
    """Values of one form.

    Args:
        head: what says it.
        sent: bytes that a rank sends.
        mine, add: for each turn, the slot of this rank, and what writes the sum of all slots to an array. None: ``Vectors``.
    """

    __slots__ = ("add", "fenced", "head", "mine", "sent")

    def __init__(self, head: bytes, sent: int, slots: Sequence[list[Array]], rank: int) -> None:
        self.head, self.sent = head, sent
        self.mine: Sequence[Array] = [one[rank] for one in slots]
        self.add: Sequence[Callable[[Array], Any]] = [_adder(one) for one in slots]
        self.fenced = not (slots and _ORDERED)  # much is written past the cache, and that in no order


def _adder(arrays: list[Array]) -> Callable[[Array], Any]:
    """What writes the sum of arrays to another one."""
    two = len(arrays) == 2 and arrays[0].dtype.itemsize > 2
    return partial(np.add, *arrays) if two else partial(reduce_arrays, arrays, "sum")


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
        self._slots = [[start + _LINE + turn * _SLOT for start in starts] for turn in (0, 1)]
        self._turn = 0  # the same on all ranks
        self._seq = 0  # of the sum that this rank is in
        self._form: Any = None  # of its values
        self._said: list[tuple[Form | None, bytes]] = [(None, b"")] * 2  # by this rank, in its slots
        self._times = [0, 0]  # that it has said something else there
        self._nothing_known = [(at, _UNKNOWN) for at in self._others]
        self._known = [self._nothing_known] * 2  # how often the others had said something else, and
        self._heard: list[tuple[bool, list[bytes]]] = [(False, [])] * 2  # whether all said the same form then; the notes
        self._forms: dict[Any, Form] = {}
        self._vectors: WeakValueDictionary[int, Vectors] = WeakValueDictionary()  # by the id of this rank's

    @classmethod
    def size(cls, ranks: int) -> int:
        """Bytes that it takes."""
        return ranks * (_LINE + 2 * _SLOT)

    def know(self, vectors: Vectors) -> None:
        """Sum these in place from now on; all ranks do so, in the same order."""
        vectors.form = self._form_of(vectors.mine, vectors.number)
        self._vectors[id(vectors.mine)] = vectors

    def form(self, x: Any) -> Form | None:
        """How an array is summed here; None: it is not."""
        if type(x) is not np.ndarray:
            return None
        if x.nbytes <= FEW:
            return self._forms.get((x.shape, x.dtype)) or self._form_of(x)
        vectors = self._vectors.get(id(x))
        return vectors.form if vectors is not None and vectors.mine is x else None

    def _form_of(self, x: Array, number: int = 0) -> Form:
        head = f"{number} {x.dtype.str} {x.shape} {x.dtype.name}".encode()[:_TEXT].ljust(_TEXT, b" ")
        sent = bytes_of_reduction(x, self._rank, self._transport.size, None)
        if number:
            return Form(head, sent, (), self._rank)
        starts = [[start + HEAD + NOTE for start in both] for both in self._slots]
        slots = [[np.ndarray(x.shape, x.dtype, self._bytes, start) for start in one] for one in starts]
        form = self._forms[x.shape, x.dtype] = Form(head, sent, slots, self._rank)
        return form

    def begin(self, form: Form, x: Array, note: bytes, channel: Meeting) -> None:
        """Say this rank's values, of a form that is summed here.

        Args:
            channel: gives the collective its number, which is even, and larger than any before.

        Raises:
            DeadlockError: an error has come between the last sum and its end: its slot may not be written again.
        """
        if self._seq:
            raise DeadlockError(_GIVEN_UP.format(self._rank))
        turn = self._turn = 1 - self._turn
        self._seq, self._form = channel.next_exchange(), form
        if form.mine:
            form.mine[turn][...] = x
        said = self._said[turn]
        if said[1] is not note or said[0] is not form:
            self._say(form, note, turn)
        if form.fenced:
            self.memory.sync()
        self._words[self._mine] = self._seq * _TIMES + self._times[turn]

    def end(self, usual: Callable[[list[bytes]], bool], x: Array, channel: Meeting, later: bool = False) -> bool | None:
        """The sum, into the array, if the notes are as usual: whether they are; None: not all ranks are here, or alike.

        Args:
            later: of ``Vectors`` only this rank's part is there then, and the others' after :meth:`rest`.
        """
        words, turn, form, seq = self._words, self._turn, self._form, self._seq
        begin = seq * _TIMES
        for at, times in self._known[turn]:
            if words[at] == begin + times:  # it has come, and says what it said the last time
                continue
            if not self._wait(begin):
                self._leave(channel, seq)
                return None
            if words[at] != begin + times:
                self._hear(begin, turn)
                break
        if not _ORDERED:
            self.memory.sync()
        alike, notes = self._heard[turn]
        if form.mine:  # all have come: this slot is not written again before all have read it, whatever happens here
            self._seq = 0
        if not usual(notes):
            self._seq = 0
            return False
        if not alike:
            self._leave(channel, seq)
            return None
        traffic = self._transport.traffic
        traffic.collectives += 1
        traffic.collective_bytes += form.sent
        if form.mine:
            form.add[turn](x)
            return True
        self._vectors[id(x)].add_up()
        self.memory.sync()
        self._words[self._mine] = begin + _TIMES + self._times[turn]
        if not later:
            self.rest()
        return True

    def rest(self) -> None:
        """Wait for what others add up in a sum of ``Vectors``."""
        if self._seq:
            self._wait((self._seq + 1) * _TIMES)
            self._seq = 0

    def _leave(self, channel: Meeting, seq: int) -> None:
        """There is no sum here: go to where the others are, or hear what is not alike."""
        self._seq, self._turn = 0, 1 - self._turn  # the slot of this turn is nobody's
        channel.give_back(seq)
        self.elsewhere(seq)

    def _say(self, form: Form, note: bytes, turn: int) -> None:
        start, text = self._slots[turn][self._rank], len(note).to_bytes(2, "little") + form.head + note
        self._bytes[start : start + len(text)] = text
        self._times[turn] = (self._times[turn] + 1) % _TIMES
        self._said[turn], self._known[turn] = (form, note), self._nothing_known

    def _hear(self, begin: int, turn: int) -> None:
        """All have come; some may have said something else than the last time."""
        ahead = [self._words[at] - begin for at in self._others]  # in the next sum the times are those of the other slot
        known = [(at, n % _TIMES if n < 2 * _TIMES else _UNKNOWN) for at, n in zip(self._others, ahead, strict=True)]
        if known != self._known[turn] or max(ahead) >= 2 * _TIMES:
            texts = [bytes(self._bytes[start : start + HEAD + NOTE]) for start in self._slots[turn]]
            heads = {text[2:HEAD] for text in texts}
            notes = [text[HEAD : HEAD + int.from_bytes(text[:2], "little")] for text in texts]
            self._known[turn], self._heard[turn] = known, (len(heads) == 1, notes)

    def _wait(self, least: int) -> bool:
        """Until the words of all others are as large, or these are elsewhere; whether they are."""
        words, transport = self._words, self._transport
        for at in self._others:
            for _ in range(1 if transport.active else _SHORT * polling.spins):
                if words[at] >= least:
                    break
            else:
                return self._wait_long(least)
        if not _ORDERED:
            self.memory.sync()
        return True

    def _wait_long(self, least: int) -> bool:
        words, others, transport = self._words, self._others, self._transport

        def ready() -> bool:
            return all([words[at] >= least or words[at + _ELSEWHERE] * _TIMES >= least for at in others])

        what = Waiting("allreduce_noted", call_site(), None, 0, self._seq)
        wait(transport, Pending(lambda: ready() or transport.go_on() or ready(), _nothing, what, transport.meeting(what)))
        if not _ORDERED:
            self.memory.sync()
        return all([words[at] >= least for at in others])

    def elsewhere(self, seq: int) -> None:
        """This rank waits in a collective of this number, and not here."""
        if seq != self._seq:
            self._words[self._mine + _ELSEWHERE] = seq

    def free(self) -> None:
        """Give the memory back."""
        for form in self._forms.values():
            form.mine = form.add = ()  # arrays that stand here
        self._forms.clear()
        self._words.release()
        self._bytes.release()
        self.memory.free()


def _nothing() -> None:
    """The value of a wait that has none."""
