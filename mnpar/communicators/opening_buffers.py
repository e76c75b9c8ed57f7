"""The buffers of openings, and a cache of openings that repeat, as those of a program's loops do.

An opening is an allgather of blocks of one size; an ``OpeningBuffer`` holds this rank's block, and
the blocks of all ranks. What a rank states of a value (``Statement``) is the same bytes for each
value of one form in a call from one source line, but for the number of the collective and the
values themselves, which are written to their places in the block. And if all other ranks, too,
state what they stated last time, the ``Opening`` that was made of it holds again. So nothing is
packed or parsed: bytes are compared, and the views of all ranks' values exist already.
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
# 1,856, 4,416 and 8,512 bytes of values: a page; two of them with a table
_SIZES = (
    BLOCK,
    2048,
    4608,
    8704,
)
_RANKS = 16  # with more, openings stay small: each rank receives as many blocks as there are ranks
_MANY = 1000  # entries that a buffer remembers
CALM = 32  # after so many openings with space to spare the next one is smaller


def sizes_for(ranks: int) -> tuple[int, ...]:
    """The sizes of openings among so many ranks."""
    return _SIZES if ranks <= _RANKS else _SIZES[:1]


class Statement:
    """What this rank states of a value in its block, and, if values of this form come again, the
    opening that came of it.

    Args:
        words: the header, and whatever else in the block is the same for all values of this form.
        sent: bytes of the value that are sent to other ranks in the block.
        body: the value as bytes, if this is used once only (``again`` is False).
        fault: why this rank cannot take part, if it cannot; the other ranks get its message.
    """

    __slots__ = (
        "_form",
        "_front",
        "_others",
        "again",
        "body",
        "fault",
        "opening",
        "parts",
        "place",
        "sent",
        "words",
    )

    def __init__(
        self, words: bytes, sent: int, body: Array, fault: Exception | None = None
    ) -> None:
        self.words = words
        self.sent = sent
        self.body = body
        self.fault = fault
        self.again = False
        self.place: Any = None  # the view of the block to which an array is written
        self.parts: Sequence[tuple[int, Any]] = ()  # of several arrays: index and view of each
        self.opening: Opening | None = None
        self._front = words[: NUMBER.start]
        self._others: list[tuple[int, bytes, int, bytes]] = []

    def remember(self, opening: Opening) -> None:
        """Keep the opening, and what the other ranks stated in it."""
        raw, self.opening = opening.raw, opening
        for rank, table in enumerate(opening.tables):
            if rank != opening.me:
                at = rank * opening.block
                self._others.append(
                    (at, bytes(raw[at + IDENTITY : at + FLAGS + 1]), at + SIZE, table)
                )

    def heard(self, whole: bytearray, number: bytes) -> Opening | None:
        """The opening of last time, if all ranks state the same for the collective of this number;
        else None.
        """
        identity, begins = self._front + number, whole.startswith
        for at, form, behind, table in self._others:
            if not begins(identity + form, at) or (table and not begins(table, behind)):
                self._others, self.opening = [], None
                return None
        return self.opening


class OpeningBuffer:
    """The buffers of the openings of one size on one lane of a transport, and what this rank has
    stated in them.

    Args:
        size: of a rank's block, bytes.
        ranks: how many.
    """

    def __init__(self, size: int, ranks: int) -> None:
        self.size = size
        self.mine = bytearray(size)
        self.whole = bytearray(size * ranks)
        self.known: dict[Any, Statement] = {}
        self._last: Statement | None = None

    def keep(self, key: Any, statement: Statement) -> None:
        """Remember what is stated of values of one form."""
        if len(self.known) >= _MANY:
            self.known.clear()
        self.known[key] = statement

    def fill(self, statement: Statement, number: bytes, x: Any) -> None:
        """Fill this rank's block for the collective of this number."""
        mine = self.mine
        if statement is not self._last:
            mine[: len(statement.words)] = statement.words
            self._last = statement
        mine[NUMBER] = number
        if statement.place is not None:
            statement.place[...] = x
        for index, place in statement.parts:
            place[...] = x[index]

    def exchange(self) -> bool:
        """Start the exchange of the blocks; whether it is complete after a short time of
        polling.
        """
        raise NotImplementedError

    def wait(self, waiting: Waiting) -> None:
        """Return when the exchange is complete."""
        raise NotImplementedError


class OpeningBuffers:
    """Chooses the size of the next opening, so that the values of the latest ones would have fit
    in, up to a limit.

    So a program whose values are small, but do not fit beside a header in 512 bytes, has them in
    the opening too. All ranks of a group see the same openings, so all of them choose the same
    size.
    """

    __slots__ = ("_buffers", "_left", "_most", "now")

    def __init__(self, buffers: Sequence[OpeningBuffer]) -> None:
        self._buffers = buffers  # the smallest first
        self.now = buffers[0]
        self._left = CALM
        self._most = 0

    def adapt(self, most: int) -> None:
        """An opening in which the largest value had so many bytes."""
        need = most + SIZE
        size = self.now.size
        if need > self._buffers[-1].size:
            need = 0
        if need > size:
            self._go(need)
        elif size > BLOCK:
            self._most = max(self._most, need)
            self._left -= 1
            if not self._left:
                self._go(self._most)

    def _go(self, need: int) -> None:
        self.now = next(buffer for buffer in self._buffers if buffer.size >= need)
        self._left, self._most = CALM, 0
