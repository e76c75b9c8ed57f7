"""The memory in which openings take place, and what is known of them: programs repeat themselves.

An opening is one exchange of blocks of one size: in a ``Room`` lie this rank's block and, after it, those of all. What a rank
says of values of one form from one source line is the same each time, except for a number and the values themselves, which it
writes to their places in the block. And if all other ranks, too, say what they said last time, then what followed from that
holds again. So nothing is packed or parsed: bytes are compared, and the views of all values are there already.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mnpar.backend import Array
from mnpar.communicators.message import FLAGS, IDENTITY, NUMBER, SIZE

if TYPE_CHECKING:
    from mnpar.communicators.opening import Opening
    from mnpar.communicators.transport import Waiting

BLOCK = 512  # bytes of the opening of a collective: a header, and the value itself where it fits
_SIZES = (BLOCK, 2048, 4608, 8704)  # 1,856, 4,416 and 8,512 bytes of values: a page; two of them with a table
_RANKS = 16  # with more, everybody's values for everybody are too much
_MANY = 1000  # things to say that are remembered
CALM = 32  # as many openings with room to spare make the next one smaller


def sizes_for(ranks: int) -> tuple[int, ...]:
    """The sizes of openings among so many ranks."""
    return _SIZES if ranks <= _RANKS else _SIZES[:1]


class Said:
    """What a rank says of a value, ready to be said again of the next one of its form; and what all ranks said last time.

    Args:
        words: the header, and what else of the block is always the same.
        sent: bytes of the value that go to the others with it.
        body: the value as bytes, if it is said only once (``again`` is False).
        fault: why this rank cannot take part; the others shall hear of that too.
    """

    __slots__ = ("_form", "_front", "_others", "again", "body", "fault", "opening", "parts", "place", "sent", "words")

    def __init__(self, words: bytes, sent: int, body: Array, fault: Exception | None = None) -> None:
        self.words, self.sent, self.body, self.fault = words, sent, body, fault
        self.again = False
        self.place: Any = None  # in the block, of an array
        self.parts: Sequence[tuple[int, Any]] = ()  # indexes and places of several
        self.opening: Opening | None = None
        self._front = words[: NUMBER.start]
        self._others: list[tuple[int, bytes, int, bytes]] = []

    def remember(self, opening: Opening) -> None:
        """What came of it, for the next time."""
        raw, self.opening = opening.raw, opening
        for rank, table in enumerate(opening.tables):
            if rank != opening.me:
                at = rank * opening.block
                self._others.append((at, bytes(raw[at + IDENTITY : at + FLAGS + 1]), at + SIZE, table))

    def heard(self, whole: bytearray, number: bytes) -> Opening | None:
        """What follows from it for the collective of this number, if all ranks say the same as last time."""
        identity, begins = self._front + number, whole.startswith
        for at, form, behind, table in self._others:
            if not begins(identity + form, at) or (table and not begins(table, behind)):
                self._others, self.opening = [], None
                return None
        return self.opening


class Room:
    """The memory of the openings of one size on one lane of a transport, and what was said there.

    Args:
        size: of a rank's block, bytes.
        ranks: how many.
    """

    def __init__(self, size: int, ranks: int) -> None:
        self.size = size
        self.mine, self.whole = bytearray(size), bytearray(size * ranks)
        self.known: dict[Any, Said] = {}
        self._last: Said | None = None

    def keep(self, key: Any, said: Said) -> None:
        """Remember what was said under a key."""
        if len(self.known) >= _MANY:
            self.known.clear()
        self.known[key] = said

    def say(self, said: Said, number: bytes, x: Any) -> None:
        """Make the block, of the collective of this number."""
        mine = self.mine
        if said is not self._last:
            mine[: len(said.words)] = said.words
            self._last = said
        mine[NUMBER] = number
        if said.place is not None:
            said.place[...] = x
        for index, place in said.parts:
            place[...] = x[index]

    def meet(self) -> bool:
        """Give the block to all ranks; whether theirs are there already."""
        raise NotImplementedError

    def wait(self, waiting: Waiting) -> None:
        """Return when all blocks are there."""
        raise NotImplementedError


class Rooms:
    """How large the next opening is: as large as the latest ones should have been, if that is not much.

    So a program whose values are small, but do not fit beside a header in 512 bytes, gives them in the opening too. All ranks
    of a group have heard the same openings, so all of them choose the same size.
    """

    __slots__ = ("_left", "_most", "_rooms", "now")

    def __init__(self, rooms: Sequence[Room]) -> None:
        self._rooms = rooms  # the smallest first
        self.now, self._left, self._most = rooms[0], CALM, 0

    def heard(self, most: int) -> None:
        """An opening in which the largest value had so many bytes."""
        need, size = most + SIZE, self.now.size
        if need > self._rooms[-1].size:
            need = 0
        if need > size:
            self._go(need)
        elif size > BLOCK:
            self._most = max(self._most, need)
            self._left -= 1
            if not self._left:
                self._go(self._most)

    def _go(self, need: int) -> None:
        self.now = next(room for room in self._rooms if room.size >= need)
        self._left, self._most = CALM, 0
