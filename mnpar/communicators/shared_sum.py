"""Sums in shared memory, over ranks that are processes of one machine: no messages, and each rank
copies its values once.

Each rank has, in the shared memory, a *word* of 64 bits and two *slots*, which it uses by turns. It
writes the form (dtype and shape) of its values, its piggyback and, if they are few, the values to a
slot, and then the number of the sum to its word. A rank that sees this number in all words adds up
all slots, in rank order. A slot is written again two sums later; by then nobody reads it any more,
because all ranks have been in the sum between. The last 16 bits of a word count how often its rank
has written another form or piggyback to this slot: as long as they stay the same, the others need
not read these again.

Larger arrays are not copied at all: they live in the shared memory (``SharedVectors``). Each rank
adds up its part of all vectors, writes the sum to all of them, and tells by its word when it is
done. So each rank reads as many bytes as its vector has, and writes as many.

A sum has two halves: ``begin`` publishes this rank's values, ``end`` adds up those of all ranks. No
other rank waits while a rank works between them, and ranks that arrive at slightly different times
do not wait for each other.

Ranks may be in different collectives by mistake. A rank that waits in the match of a collective
writes the number of that collective to a second word; a rank that waits here sees it, leaves, and
joins the match, where all ranks raise the error. Deadlocks are looked for here as in all waits.
"""

from __future__ import annotations

import mmap
import os
import platform
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol
from weakref import WeakValueDictionary

import numpy as np

from mnpar.backend import Array
from mnpar.communicators.channel import Channel
from mnpar.communicators.operation import wait
from mnpar.communicators.reduction import bytes_of_reduction, reduce_arrays
from mnpar.communicators.shared_memory import SHM, SharedMemory, free_memory
from mnpar.communicators.transport import Transport
from mnpar.communicators.waiting import Pending, Waiting, nothing
from mnpar.communicators.wire import UPDATE
from mnpar.errors import DeadlockError
from mnpar.runtime.callsite import call_site
from mnpar.runtime.deadlock import polling

HEAD, PIGGYBACK = 64, 256  # bytes of a slot for the form of the values, and for the piggyback
_TEXT = HEAD - 2  # bytes of the form; the first two of the head are the length of the piggyback
# bytes of values that are copied to a slot: one wait less than with SharedVectors, and they stay in
# the cache
SLOT_VALUES = 2**15
_LINE = 64  # bytes of a cache line
_SLOT = HEAD + PIGGYBACK + SLOT_VALUES
_ELSEWHERE = 1  # place of the second word after the first
# a word is the number of the sum times this, plus how often the slot got another form or piggyback
# (modulo this)
_COUNTS = 2**16
_NO_COUNT = -(2**62)  # a count that no word has
_POLLS = 24  # polls of the words that take as long as one poll of MPI
_GIVEN_UP = (
    "rank {}: a sum of gradients, or allreduce_if, ended in an error, and the other ranks may come "
    "to it yet, so no other one can take place on this communicator: let the error end the job, or "
    "create another communicator on all ranks"
)
# x86: loads are done in program order, and so are stores
_ORDERED = platform.machine() in ("x86_64", "AMD64")
# bytes that are added up at a time: with the same block of each rank's vector they stay in the
# cache
_BLOCK = 2**17


class SumForm:
    """The way in which arrays of one form (dtype and shape) are summed here.

    Args:
        head: the form, as bytes.
        sent: bytes that this rank is counted to send in each sum (``Traffic``).
        slots: for each of the two turns, the arrays in the slots of all ranks; empty: the arrays
            are ``SharedVectors``.
        rank: this one.

    Attributes:
        mine, add: for each turn, the array in this rank's slot, and what writes the sum of all
            slots to an array.
        fenced: whether a memory barrier has to stand between the values and the word.
    """

    __slots__ = ("add", "fenced", "head", "mine", "sent")

    def __init__(self, head: bytes, sent: int, slots: Sequence[list[Array]], rank: int) -> None:
        self.head, self.sent = head, sent
        self.mine: Sequence[Array] = [one[rank] for one in slots]
        self.add: Sequence[Callable[[Array], Any]] = [_adder(one) for one in slots]
        # numpy writes large arrays past the cache, in no order
        self.fenced = not (slots and _ORDERED)


def _adder(arrays: list[Array]) -> Callable[[Array], Any]:
    """Return a function that writes the sum of these arrays to another one."""
    two = len(arrays) == 2 and arrays[0].dtype.itemsize > 2
    return partial(np.add, *arrays) if two else partial(reduce_arrays, arrays, "sum")


class ProcessTransport(Transport, Protocol):
    """A transport of processes."""

    def meeting(self, waiting: Waiting, what: str = "") -> tuple[str, int, int, str]:
        """Name a collective's step: the same on all ranks that are in it."""

    def go_on(self) -> bool:
        """Let what is under way make progress; return False."""


class SharedSum:
    """The slots and words of all ranks.

    Args:
        transport: its ranks are on one machine.
        memory: of ``size(ranks)`` bytes.
    """

    def __init__(self, transport: ProcessTransport, memory: SharedMemory) -> None:
        self._transport, self._rank, self.memory = transport, transport.rank, memory
        starts = range(0, self.size(transport.size), self.size(1))
        self._bytes = memory.array.data[: self.size(transport.size)]
        self._words = self._bytes.cast("q")
        self._at = [start // 8 for start in starts]
        self._mine = self._at[transport.rank]
        self._others = [at for at in self._at if at != self._mine]
        self._slots = [[start + _LINE + turn * _SLOT for start in starts] for turn in (0, 1)]
        self._turn = 0  # the same on all ranks
        self._seq = 0  # number of the sum that this rank is in
        self._form: Any = None  # form of its values
        # the form and piggyback in each slot of this rank, and how often each got another one
        self._published: list[tuple[SumForm | None, bytes]] = [(None, b"")] * 2
        self._counts = [0, 0]
        # the counts of the other ranks when their slots were last read, and what was read: whether
        # all forms are equal, and the piggybacks
        self._nothing_read = [(at, _NO_COUNT) for at in self._others]
        self._counts_read = [self._nothing_read] * 2
        self._last_read: list[tuple[bool, list[bytes]]] = [(False, [])] * 2
        self._forms: dict[Any, SumForm] = {}
        # by the id of this rank's
        self._vectors: WeakValueDictionary[int, SharedVectors] = WeakValueDictionary()

    @classmethod
    def size(cls, ranks: int) -> int:
        """Return the bytes of memory that a sum over so many ranks takes."""
        return ranks * (_LINE + 2 * _SLOT)

    def add_vectors(self, vectors: SharedVectors) -> None:
        """Sum these vectors in place from now on; all ranks call it, in the same order."""
        vectors.form = self._form_of(vectors.mine, vectors.number)
        self._vectors[id(vectors.mine)] = vectors

    def form(self, x: Any) -> SumForm | None:
        """Return the form by which an array is summed here; None if it cannot be."""
        if type(x) is not np.ndarray:
            return None
        if x.nbytes <= SLOT_VALUES:
            return self._forms.get((x.shape, x.dtype)) or self._form_of(x)
        vectors = self._vectors.get(id(x))
        return vectors.form if vectors is not None and vectors.mine is x else None

    def _form_of(self, x: Array, number: int = 0) -> SumForm:
        head = f"{number} {x.dtype.str} {x.shape} {x.dtype.name}".encode()[:_TEXT].ljust(
            _TEXT, b" "
        )
        sent = bytes_of_reduction(x, self._rank, self._transport.size, None)
        if number:
            return SumForm(head, sent, (), self._rank)
        starts = [[start + HEAD + PIGGYBACK for start in both] for both in self._slots]
        slots = [
            [np.ndarray(x.shape, x.dtype, self._bytes, start) for start in one] for one in starts
        ]
        form = self._forms[x.shape, x.dtype] = SumForm(head, sent, slots, self._rank)
        return form

    def begin(self, form: SumForm, x: Array, piggyback: bytes, channel: Channel) -> None:
        """Publish this rank's values and piggyback.

        Args:
            channel: gives the collective its number, which is even, and larger than any before.

        Raises:
            DeadlockError: an error has come between the last ``begin`` and its ``end``: the slot
                may not be written again.
        """
        if self._seq:
            raise DeadlockError(_GIVEN_UP.format(self._rank))
        turn = self._turn = 1 - self._turn
        self._seq, self._form = channel.take_number(), form
        if form.mine:
            form.mine[turn][...] = x
        said = self._published[turn]
        if said[1] is not piggyback or said[0] is not form:
            self._publish_form(form, piggyback, turn)
        if form.fenced:
            self.memory.sync()
        self._words[self._mine] = self._seq * _COUNTS + self._counts[turn]

    def end(
        self,
        accept: Callable[[list[bytes]], bool],
        x: Array,
        channel: Channel,
        later: bool = False,
    ) -> bool | None:
        """Write the sum to the array, if the piggybacks are accepted.

        Args:
            accept: as in :meth:`Communicator.allreduce_if`.
            x: the array that ``begin`` got.
            channel: takes the number back if there is no sum here.
            later: of ``SharedVectors``, only this rank's part need be summed on return, the others'
                after :meth:`wait_for_rest`.

        Returns:
            True if the piggybacks are accepted; None if there is no sum here, because some rank is
            in another collective, or has values of another form.
        """
        words = self._words
        turn = self._turn
        form = self._form
        seq = self._seq
        begin = seq * _COUNTS
        for at, times in self._counts_read[turn]:
            if words[at] == begin + times:  # it has come, and says what it said the last time
                continue
            if not self._wait(begin):
                self._leave(channel, seq)
                return None
            if words[at] != begin + times:
                self._read_forms(begin, turn)
                break
        if not _ORDERED:
            self.memory.sync()
        alike, piggybacks = self._last_read[turn]
        # all have come: this slot is not written again before all have read it, whatever happens
        # here
        if form.mine:
            self._seq = 0
        if not accept(piggybacks):
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
        self._words[self._mine] = begin + _COUNTS + self._counts[turn]
        if not later:
            self.wait_for_rest()
        return True

    def wait_for_rest(self) -> None:
        """Wait until the other ranks have added up their parts of ``SharedVectors``."""
        if self._seq:
            self._wait((self._seq + 1) * _COUNTS)
            self._seq = 0

    def _leave(self, channel: Channel, seq: int) -> None:
        """Leave without a sum: the caller goes on in a match of the same number, where all ranks
        learn why.
        """
        self._seq, self._turn = 0, 1 - self._turn  # nobody has used the slot of this turn
        channel.return_number(seq)
        self.elsewhere(seq)

    def _publish_form(self, form: SumForm, piggyback: bytes, turn: int) -> None:
        start = self._slots[turn][self._rank]
        text = len(piggyback).to_bytes(2, "little") + form.head + piggyback
        self._bytes[start : start + len(text)] = text
        self._counts[turn] = (self._counts[turn] + 1) % _COUNTS
        self._published[turn], self._counts_read[turn] = (form, piggyback), self._nothing_read

    def _read_forms(self, begin: int, turn: int) -> None:
        """Read the slots whose form or piggyback may have changed since last time; all ranks have
        written them.
        """
        # a rank in the next sum shows the count of its other slot
        ahead = [self._words[at] - begin for at in self._others]
        known = [
            (at, n % _COUNTS if n < 2 * _COUNTS else _NO_COUNT)
            for at, n in zip(self._others, ahead, strict=True)
        ]
        if known != self._counts_read[turn] or max(ahead) >= 2 * _COUNTS:
            texts = [
                bytes(self._bytes[start : start + HEAD + PIGGYBACK]) for start in self._slots[turn]
            ]
            heads = {text[2:HEAD] for text in texts}
            piggybacks = [text[HEAD : HEAD + int.from_bytes(text[:2], "little")] for text in texts]
            self._counts_read[turn], self._last_read[turn] = known, (len(heads) == 1, piggybacks)

    def _wait(self, least: int) -> bool:
        """Wait until the words of all other ranks are at least ``least``, or one is in another
        collective; return whether they are.
        """
        words, transport = self._words, self._transport
        for at in self._others:
            for _ in range(1 if transport.active else _POLLS * polling.spins):
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
            return all(
                [words[at] >= least or words[at + _ELSEWHERE] * _COUNTS >= least for at in others]
            )

        what = Waiting(UPDATE, call_site(), None, 0, self._seq)
        wait(
            transport,
            Pending(
                lambda: ready() or transport.go_on() or ready(),
                nothing,
                what,
                transport.meeting(what),
            ),
        )
        if not _ORDERED:
            self.memory.sync()
        return all([words[at] >= least for at in others])

    def elsewhere(self, seq: int) -> None:
        """Tell the other ranks that this one waits in the match of the collective of this number,
        and not here.
        """
        if seq != self._seq:
            self._words[self._mine + _ELSEWHERE] = seq

    def free(self) -> None:
        """Free the memory."""
        for form in self._forms.values():
            form.mine = form.add = ()  # arrays that stand here
        self._forms.clear()
        self._words.release()
        self._bytes.release()
        self.memory.free()


class SharedVectors:
    """The vectors of all ranks, of one dtype and length.

    Args:
        arrays: one for each rank.
        rank: this one.
        number: above 0; tells these vectors from others of the same ranks, and is the same on all
            of them.
    """

    def __init__(self, arrays: list[Array], rank: int, number: int) -> None:
        self.arrays = arrays
        self.mine = arrays[rank]
        self.number = number
        size = self.mine.size
        ranks = len(arrays)
        line = _LINE // self.mine.itemsize
        start, stop = [
            size * r // ranks // line * line if r < ranks else size for r in (rank, rank + 1)
        ]
        # the stretch that this rank adds up, and those before and after it
        self.parts = [slice(start, stop), slice(0, start), slice(stop, size)]
        step = _BLOCK // self.mine.itemsize
        places = [slice(at, min(at + step, stop)) for at in range(start, stop, step)]
        self._blocks = [[array[place] for array in arrays] for place in places]
        self._rank, self._total = rank, None if rank < 2 else np.empty(step, self.mine.dtype)
        self.form: Any = None  # how a SharedSum sums them, set by it

    def __deepcopy__(self, memo: dict[int, Any]) -> SharedVectors:
        """Return the vectors themselves: a copied model's gradients live elsewhere."""
        return self

    def add_up(self) -> None:
        """Write the sum of this rank's part, in rank order, to all vectors."""
        for block in self._blocks:
            # the first two ranks can sum in place: their blocks are read before they are written
            mine = block[self._rank]
            total = reduce_arrays(
                block, "sum", mine if self._total is None else self._total[: mine.size]
            )
            for array in block:
                if array is not total:
                    array[...] = total


class ObjectCommunicator(Protocol):
    """The calls of a communicator that ``share_vectors`` needs."""

    rank: int
    size: int

    def bcast_obj(self, obj: Any) -> Any:
        """Return rank 0's object."""

    def allreduce_obj(self, obj: Any, op: str) -> Any:
        """Return the reduction of the ranks' objects."""


def share_vectors(comm: ObjectCommunicator, like: Array, number: int) -> SharedVectors | None:
    """Return SharedVectors like ``like``, which is one-dimensional; all ranks call it. Return None
    if the memory cannot be had.

    Each rank allocates the pages of its own vector: with several memory nodes (NUMA) they are on
    the one near that rank.
    """
    length = -(-like.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    file = _unnamed_file(comm.size * length) if comm.rank == 0 else -1
    path, which = comm.bcast_obj(
        (f"/proc/{os.getpid()}/fd/{file}", _file_identity(file)) if file >= 0 else ("", None)
    )
    mapped: Any = None
    try:
        if (
            path
            and (file := file if comm.rank == 0 else os.open(path, os.O_RDWR)) >= 0
            and _file_identity(file) == which
        ):
            # an error now, and not when it is written
            os.posix_fallocate(file, comm.rank * length, length)
            mapped = mmap.mmap(file, comm.size * length)
    except OSError:
        pass  # processes that may not see each other, or no memory left
    there = comm.allreduce_obj(mapped is not None, "min")
    if file >= 0:
        os.close(file)
    if not there:
        return None
    arrays = [
        np.ndarray(like.shape, like.dtype, mapped, rank * length) for rank in range(comm.size)
    ]
    return SharedVectors(arrays, comm.rank, number)


def _unnamed_file(nbytes: int) -> int:
    """Return a file that never has a name, so that nothing is left of it however the job ends; -1:
    there is no room for it.
    """
    try:
        file = os.open(SHM, os.O_RDWR | os.O_TMPFILE, 0o600)
    except (OSError, AttributeError):  # another system
        return -1
    if (free_memory() or 0) < 2 * nbytes:  # others want some too, MPI among them
        os.close(file)
        return -1
    os.ftruncate(file, nbytes)
    return file


def _file_identity(file: int) -> tuple[int, int]:
    """Return the identity of an open file: in another container the path of a process's descriptor
    may lead to another file.
    """
    found = os.fstat(file)
    return found.st_dev, found.st_ino
