"""Comparison: many ranks find out by one small reduction whether they all state the same.

To gather the blocks of all ranks (matching.py) costs each rank as many bytes as there are ranks. So
among many ranks a match begins with a maximum over some integers of each: its call, digests of the
form of its value and of the value itself, and the complements of these. All ranks have the same one
if the maximum of the complements is the complement of the maximum. Nearly always they do, and then
nobody needs the blocks. Where they do not, as in a mistake, the blocks are gathered as among few
ranks, with the same errors.
"""

from __future__ import annotations

import pickle
from hashlib import blake2b
from typing import Any

import numpy as np

from mnpar.backend import Array, as_bytes
from mnpar.communicators import wire
from mnpar.communicators.matching import TO_ROOT, CallRecord, Match
from mnpar.communicators.wire import ARRAY, FAULT, NOTHING, OBJECT, SIZE, Call, read_header

# What is alike on all ranks; each includes what stands before it. NEITHER: not even the call.
NEITHER, CALL, FORM, VALUE = range(4)

# words of a rank: call, number, pass of backward, form and the two of the value, and then the
# complements; and words of which only the maximum counts
_ALIKE = 6
_WANTS, _SILENT, _FAULT = 2 * _ALIKE, 2 * _ALIKE + 1, 2 * _ALIKE + 2
WORDS = 2 * _ALIKE + 3
WORDS_BYTES = 8 * WORDS
_NUMBER = 1
_CALL = slice(2, wire.NUMBER.start)
_MODES = wire.WANTS | wire.RECORDING


def words_of(record: CallRecord, number: int, value: bytes | None) -> Array:
    """Return the words of a rank, (WORDS,) int64.

    Args:
        record: of its call and value.
        number: of the collective.
        value: what is to be alike for ``VALUE``; None if that is not asked.
    """
    words = record.words
    if words is None:
        words = record.words = _words_of_form(record.head)
    words = words.copy()
    words[_NUMBER] = number
    words[_NUMBER + _ALIKE] = ~number
    if value is not None:
        digest = _digest(value) if value else _EMPTY
        words[4:6] = digest
        words[4 + _ALIKE : 6 + _ALIKE] = ~digest
    return words


def _digest(value: bytes) -> Array:
    return np.frombuffer(blake2b(value, digest_size=16).digest(), np.int64)


_EMPTY = _digest(b"")


def _words_of_form(head: bytes) -> Array:
    """Return the words without those of the number and the value."""
    flags = head[wire.FLAGS]
    modes = flags & wire.PASS if head[wire.ORDER] else 0  # forward, modes may differ: see _WANTS
    form = blake2b(head[wire.FORM] + bytes([flags & ~_MODES]), digest_size=8).digest()
    words = np.zeros(WORDS, np.int64)
    words[0] = int.from_bytes(head[_CALL], "little", signed=True)
    words[2] = modes
    words[3] = int.from_bytes(form, "little", signed=True)
    words[_ALIKE : 2 * _ALIKE] = ~words[:_ALIKE]
    words[_WANTS] = bool(flags & wire.WANTS)
    words[_SILENT] = not flags & wire.RECORDING
    words[_FAULT] = head[wire.FORM.start] == FAULT
    return words


class Comparison:
    """The findings of a comparison, the same on all ranks.

    Args:
        largest: the maximum of the words of all ranks.

    Attributes:
        level: what is alike on all ranks: ``NEITHER``, ``CALL``, ``FORM`` or ``VALUE``.
        same_call: whether the ranks are in the same collective.
        number: the largest number of a collective that one of them is in.
        wants: whether any of them wants a gradient.
    """

    __slots__ = ("level", "number", "same_call", "wants")

    def __init__(self, largest: Array) -> None:
        found = largest.tolist()
        alike = [found[i] == ~found[i + _ALIKE] for i in range(_ALIKE)]
        self.number = found[_NUMBER]
        self.wants = bool(found[_WANTS])
        self.same_call = alike[0] and alike[1]
        self.level = NEITHER
        unequal = found[_FAULT] or (self.wants and found[_SILENT])
        if self.same_call and alike[2] and not unequal:
            self.level = CALL
            if alike[3]:
                self.level = VALUE if alike[4] and alike[5] else FORM


class AgreedMatch(Match):
    """The match of ranks that state the same, as a comparison has shown: nobody has the others'
    blocks, and what is known of them is what this rank states itself.

    Args:
        found: by the comparison.
        size: how many ranks.
        me: this rank.
        call: of this rank.
        record: this rank's.
        value: that all ranks gave, as bytes; None: their values are not known.
    """

    agreed = True

    __slots__ = ("_own", "_value")

    def __init__(
        self,
        found: Comparison,
        size: int,
        me: int,
        call: Call,
        record: CallRecord,
        value: bytes | None,
    ) -> None:
        self.raw = record.head
        self.size, self.me, self.call, self.record = size, me, call, record
        self.seq = 0
        self.block = len(record.head)
        self.wants = found.wants
        self.uniform = found.level >= FORM
        self.inline = found.level == VALUE and value is not None
        self.has_result = me == call.root or call.op not in TO_ROOT
        self.resizes = False
        self._own = own = read_header(record.head[:SIZE])
        self.reusable = own.kind in (NOTHING, ARRAY) and not own.flags & wire.ON_DEVICE
        self._value = value or b""

    @property
    def forms(self) -> list[wire.Header]:  # type: ignore[override]
        """The headers of all ranks, if they are alike; else none."""
        return [self._own] * self.size if self.uniform else []

    @property
    def given(self) -> list[Any]:  # type: ignore[override]
        """Each rank's array; None: it gave none."""
        one = None
        if self._own.kind == ARRAY:
            one = wire.as_array(np.frombuffer(self._value, np.uint8), self._own)
        return [one] * self.size

    @property
    def arrays(self) -> list[Array]:  # type: ignore[override]
        """The same without the Nones."""
        return self.given if self._own.kind == ARRAY else []

    def checked(self) -> Match:
        """Return this match: what it needs was compared."""
        return self

    def copy_of(self, rank: int) -> Any:
        """Return a copy of what a rank gave, which is what this one gave."""
        if self._own.kind == OBJECT:
            return pickle.loads(self._value)
        given = self.given[rank]
        return None if given is None else given.copy()


def value_of(x: Any, record: CallRecord, room: int) -> bytes | None:
    """Return the bytes of a value of which it is worth knowing that all ranks have given the same:
    of an object, or of an array of up to ``room`` bytes; else None.
    """
    kind = record.head[wire.FORM.start]
    if kind == OBJECT:
        return record.body.tobytes()
    if kind == ARRAY and type(x) is np.ndarray and x.nbytes <= room:
        return as_bytes(x).tobytes()
    return None
