"""Matching: all ranks state their calls as a collective begins, and compare them.

A match is an allgather of blocks of one size. In its block each rank has a ``CallRecord``: the
header of its call, and its value, if that fits (*inline*). A ``Match`` is made of the blocks of all
ranks: it raises the error if their calls do not match, and has the values that came with them.

Programs repeat their calls, as loops do. The record of a value is the same bytes for each value of
one form in a call from one source line, but for the number of the collective and the values
themselves, which are written to their places in the block. If all other ranks, too, state what they
stated last time, the last ``Match`` holds again. So nothing is packed or parsed: bytes are
compared, and the views of all ranks' values exist already. ``MatchBuffer`` keeps the blocks and the
records; ``MatchBuffers`` chooses the size of blocks by the latest values.

An alltoall, reduce_scatter or scatter has a value for each rank: the block then holds a table of
their dtypes and shapes, and their bytes, one after the other.
"""

from __future__ import annotations

import copy
import functools
import json
import pickle
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mnpar.backend import Array, as_bytes
from mnpar.communicators import wire
from mnpar.communicators.reduction import REDUCING, check_reducible, reduce_arrays
from mnpar.communicators.wire import (
    ARRAY,
    CUT_ALIKE,
    FAULT,
    FLAGS,
    IDENTITY,
    NOTHING,
    NUMBER,
    OBJECT,
    SIZE,
    TUPLE,
    Call,
    Header,
    read_header,
)
from mnpar.errors import MismatchError

if TYPE_CHECKING:
    from mnpar.communicators.waiting import Waiting

# bytes of a rank's block: a header, and the value itself where it fits
BLOCK = 512
# larger blocks have room for 1,856, 4,416 and 8,512 bytes of values: a page, and two of them with a
# table
_SIZES = (BLOCK, 2048, 4608, 8704)
# ranks: with more, they compare what they state before they gather blocks (comparison.py), and
# blocks stay small: each rank receives as many as there are ranks
MOST_GATHERED = 16
# after so many matches with space to spare the next blocks are smaller
CALM_MATCHES = 32
_REMEMBERED = 1000  # records that a buffer keeps
# bytes, stated of parts that never travel inline (objects, arrays on a GPU): more than any block
# has
NEVER_INLINE = 2**40
EMPTY = np.empty(0, np.uint8)
_HEAD = wire.FLAGS + 1  # bytes of a header that are the same on all ranks if their calls match
_ORDER = "all ranks of a communicator make the same calls in the same order"
REDUCED = ("allreduce", "reduce", "reduce_from")
TO_ROOT = ("reduce", "gather", "gather_obj", "reduce_obj")


# ---- what a rank states ----


class CallRecord:
    """The bytes in a rank's block that describe its call and value; and, if values of this form
    come again, the last match of such a value.

    Args:
        head: the header, and whatever else in the block is the same for all values of this form.
        sent: bytes of the value that are sent to other ranks in the block.
        body: the value as bytes, if this is used once only (``repeats`` is False).
        fault: why this rank cannot take part, if it cannot; the other ranks get its message.
    """

    __slots__ = (
        "_form",
        "_front",
        "_others",
        "body",
        "fault",
        "head",
        "match",
        "parts",
        "place",
        "repeats",
        "sent",
        "words",
    )

    def __init__(self, head: bytes, sent: int, body: Array, fault: Exception | None = None) -> None:
        self.head = head
        self.sent = sent
        self.body = body
        self.fault = fault
        self.repeats = False
        self.place: Any = None  # the view of the block for an array's elements
        self.parts: Sequence[tuple[int, Any]] = ()  # index and view of each of several arrays
        self.match: Match | None = None
        self.words: Array | None = None  # what is compared of it (comparison.py)
        self._front = head[: NUMBER.start]
        self._others: list[tuple[int, bytes, int, bytes]] = []

    def remember(self, match: Match) -> None:
        """Keep the match, and what the other ranks stated in it."""
        raw, self.match = match.raw, match
        for rank, table in enumerate(match.tables):
            if rank != match.me:
                at = rank * match.block
                self._others.append(
                    (at, bytes(raw[at + IDENTITY : at + FLAGS + 1]), at + SIZE, table)
                )

    def repeated(self, whole: bytearray, number: bytes) -> Match | None:
        """Return the match of last time, if all ranks state the same for the collective of this
        number; else None.
        """
        identity, begins = self._front + number, whole.startswith
        for at, form, behind, table in self._others:
            if not begins(identity + form, at) or (table and not begins(table, behind)):
                self._others, self.match = [], None
                return None
        return self.match


def describe_value(
    x: Any, call: Call, parts: int | None, room: int
) -> tuple[int, int, tuple[int, ...], Any, Array, int]:
    """Return kind, size in bytes, shape, dtype, bytes and flags of a value, for a match with so
    much room; the first four are those of its header.
    """
    if parts is not None and (not isinstance(x, tuple) or len(x) != parts):
        thing = "object" if call.op.endswith("_obj") else "array"
        given = len(x) if isinstance(x, tuple) else type(x).__name__
        raise ValueError(
            f"{call.name} takes one {thing} for each of the {parts} ranks, not {given}"
        )
    if call.op.endswith("_obj"):
        if x is None and parts is None and call.op in ("bcast_obj", "scatter_obj"):
            return NOTHING, 0, (), None, EMPTY, 0
        if parts is not None:
            return OBJECT, NEVER_INLINE, (), None, EMPTY, 0
        body = np.frombuffer(pickle.dumps(x, protocol=pickle.HIGHEST_PROTOCOL), np.uint8)
        return OBJECT, len(body), (), None, body, 0
    if x is None:
        return NOTHING, 0, (), None, EMPTY, 0
    if parts is not None:
        return _describe_parts(x, call, room)
    check_reducible(x, call)
    x, flags = wire.describe(x)
    return ARRAY, x.nbytes, x.shape, x.dtype, as_bytes(x), flags


def _describe_parts(
    xs: tuple[Any, ...], call: Call, room: int
) -> tuple[int, int, tuple[int, ...], Any, Array, int]:
    for x in xs:
        check_reducible(x, call)
    forms = part_forms(xs)
    text = table(forms)
    nbytes = (
        len(text) + sum([x.nbytes for x in xs if x is not None]) if on_host(xs) else NEVER_INLINE
    )
    body = np.frombuffer(join_parts(text, xs), np.uint8) if nbytes <= room else EMPTY
    # gradients have the forms that were compared forward, and some of them may be missing
    return (
        TUPLE,
        nbytes,
        (0 if call.order else zlib.crc32(repr(forms).encode()), len(text)),
        None,
        body,
        0,
    )


def decode_value(body: Array, header: Header) -> Any:
    """Return the value that followed a match."""
    if header.kind == NOTHING:
        return None
    return pickle.loads(body.data) if header.kind == OBJECT else wire.as_array(body, header)


# ---- what all ranks stated ----


class SharedBlocks(bytes):
    """The blocks of all ranks, joined once where ranks share one memory, and what the first rank
    that reads them finds for all: so a collective costs each rank the same, however many there are.

    Attributes:
        match: the first rank's.
        total: the reduction of the values in the blocks.
    """

    match: Match | None = None
    total: Any = None


class Match:
    """The headers of all ranks, and the values that came inline.

    Args:
        raw: the blocks of all ranks, in rank order. The next match may use this memory again:
            results are copies.
        size: how many ranks.
        me: this rank.
        call: of this rank; the attribute ``seq``, the number of the collective, is set by the
            caller.
        record: this rank's.
        less: bytes at the end of each block that are the piggyback, and no value.
    """

    agreed = False  # True: an AgreedMatch

    __slots__ = (
        "arrays",
        "block",
        "call",
        "forms",
        "found",
        "given",
        "has_result",
        "inline",
        "is_shared",
        "largest",
        "me",
        "raw",
        "record",
        "required",
        "resizes",
        "reusable",
        "room",
        "seq",
        "size",
        "tables",
        "uniform",
        "wants",
    )

    def __init__(
        self, raw: Any, size: int, me: int, call: Call, record: CallRecord, less: int = 0
    ) -> None:
        self.raw, self.size, self.me = raw, size, me
        self.call, self.record, self.seq = call, record, 0
        self.is_shared = type(raw) is SharedBlocks  # other ranks read the same blocks
        self.found = False  # the values were found, and are the same for all ranks
        self.block = block = len(raw) // size
        head = raw[:_HEAD]
        # and of one form
        self.uniform = all([raw.startswith(head, start) for start in range(block, len(raw), block)])
        self.wants = any([flags & wire.WANTS for flags in self._flags])
        starts = range(wire.NBYTES.start, len(raw), block)
        # bytes of the largest value
        self.largest = max([int.from_bytes(raw[start : start + 8], "little") for start in starts])
        self.room = block - SIZE - less  # bytes that there are for a rank's value
        self.inline = self.largest <= self.room
        self.required = self.largest + less  # payload size with which all values would be inline
        # True: the size of the next match may change by this one
        self.resizes = block > BLOCK or self.required > BLOCK - SIZE
        # True: this rank gets a result
        self.has_result = me == call.root or call.op not in TO_ROOT
        # True: all values are arrays on the host, or nothing, so this match can be used again
        self.reusable = False
        # each rank's array (of parts: the one for this rank), a view of the match; else None
        self.given: list[Any] = []
        self.arrays: list[Array] = []  # the same without the Nones
        self.tables = [b""] * size
        # the headers of all ranks; in a match that is used again their numbers are the first ones
        self.forms: list[Header] = []

    @classmethod
    def of(
        cls, raw: Any, size: int, me: int, call: Call, record: CallRecord, less: int = 0
    ) -> Match:
        """Return the match of these blocks: the arguments are the class's. Ranks that share the
        blocks share what is found in them.
        """
        if type(raw) is not SharedBlocks:
            return cls(raw, size, me, call, record, less)
        if raw.match is None:
            raw.match = cls(raw, size, me, call, record, less)
            return raw.match
        match = copy.copy(raw.match)
        match.me, match.call, match.record = me, call, record
        match.has_result = me == call.root or call.op not in TO_ROOT
        return match

    def total(self) -> Array:
        """Return the reduction of the values that ranks share: the first rank makes it for all."""
        if self.raw.total is None:
            self.raw.total = reduce_arrays(self.arrays, self.call.reduction)
        total: Array = self.raw.total.copy()
        return total

    @property
    def all_recording(self) -> bool:
        """Return whether every rank records for backward."""
        return all([flags & wire.RECORDING for flags in self._flags])

    @property
    def _flags(self) -> bytes:
        """The flags of each rank, a byte each."""
        return self.raw[wire.FLAGS :: self.block]  # type: ignore[no-any-return]

    @property
    def kinds(self) -> bytes:
        """The kind of value (``message.KINDS``) of each rank, a byte each."""
        return self.raw[wire.FORM.start :: self.block]  # type: ignore[no-any-return]

    def header(self, rank: int) -> Header:
        """Return a rank's header."""
        start = rank * self.block
        return read_header(bytes(self.raw[start : start + SIZE]))

    def headers(self) -> list[Header]:
        """Return the headers of all ranks, in rank order."""
        return [self.header(rank) for rank in range(self.size)]

    def copy_of(self, rank: int) -> Any:
        """Return a copy of what a rank gave."""
        given = self.given[rank]
        if given is None and self.kinds[rank] == OBJECT:
            start = rank * self.block + SIZE
            return pickle.loads(self.raw[start : start + self.header(rank).nbytes])
        return None if given is None else given.copy()

    def _find_values(self) -> None:
        """Find the values, after the calls were found to match."""
        self.forms = headers = self.headers()
        self.reusable = all([kind in (NOTHING, ARRAY, TUPLE) for kind in self.kinds])
        self.reusable = self.reusable and not any(
            [header.flags & wire.ON_DEVICE for header in headers]
        )
        if self.inline:
            self.given = [self._given(rank, header) for rank, header in enumerate(headers)]
            self.arrays = [array for array in self.given if array is not None]

    def _given(self, rank: int, header: Header) -> Array | None:
        start = rank * self.block + SIZE
        if header.kind == TUPLE:
            self.tables[rank] = text = bytes(self.raw[start : start + header.shape[1]])
            return part(self.raw, start, text, self.me)
        if header.kind != ARRAY:
            return None
        return wire.as_array(np.frombuffer(self.raw, np.uint8, header.nbytes, start), header)

    def same_form(self) -> bool:
        """Return whether all values have one dtype and shape. (Some parts of a gradient may be
        missing: their number is compared.)
        """
        blocks = [bytes(self.raw[rank * self.block :][: wire.FLAGS]) for rank in range(self.size)]
        forms = [block[wire.FORM] for block in blocks if block[wire.FORM.start] != NOTHING]
        if self.call.order and forms and forms[0][0] == TUPLE:
            return True
        return all([form == forms[0] for form in forms])

    def checked(self) -> Match:
        """Return this match, if the ranks' calls match.

        Raises:
            MismatchError: they do not.
            Exception: this rank could not take part.
        """
        if self.record.match is self:  # checked last time
            return self
        if self.record.fault is not None:
            raise self.record.fault
        if self.found:  # by the first of the ranks that share the blocks
            return self
        if not self.uniform:
            self._check()
        self._find_values()
        if self.is_shared:
            self.found = TUPLE not in self.kinds  # a tuple has another part for each rank
        elif self.reusable and self.record.repeats:
            self.record.remember(self)
        return self

    @property
    def same_call(self) -> bool:
        """Return whether the ranks are in the same collective."""
        starts = () if self.uniform else range(0, len(self.raw), self.block)
        calls = {bytes(self.raw[start : start + wire.IDENTITY]) for start in starts}
        return len(calls) <= 1 or self._same_mean()

    def _same_mean(self) -> bool:
        """Return whether the ranks are together in a mean, but for some who have nothing to give,
        and do not say of which dtype.
        """
        ops = {(h.op, h.order, h.later, h.root, h.seq) for h in self.headers()}
        told = {h.reduction for h in self.headers() if h.kind != NOTHING}
        blank = {h.reduction for h in self.headers() if h.kind == NOTHING}
        return len(ops) == len(told) == 1 and told <= set(wire.MEANS) and blank == {"mean"}

    def check_identity(self) -> None:
        """Raise MismatchError if the ranks are in different collectives."""
        if not self.same_call:
            headers = self.headers()
            if len({h.scale for h in headers}) > 1 and self._differ_in_root_alone(headers):
                raise self.mismatch(*wire.different_passes(*self._flags))
            if any([h.whole for h in headers]) and self._differ_in_root_alone(headers):
                raise self.mismatch(
                    "ranks work on arrays that are cut in different ways", CUT_ALIKE
                )
            raise self.mismatch("ranks are in different collectives")

    @staticmethod
    def _differ_in_root_alone(headers: Sequence[Header]) -> bool:
        return len({(h.op, h.reduction, h.order, h.later, h.seq) for h in headers}) == 1

    def _check(self) -> None:
        self.check_identity()
        raw, call = self.raw, self.call
        for start in range(0, len(raw), self.block):
            if raw[start + wire.FORM.start] == FAULT:
                header = self.header(start // self.block)
                text = raw[start + SIZE : start + SIZE + header.nbytes].decode(errors="replace")
                raise MismatchError(
                    f"rank {start // self.block} could not take part in {header.name} at "
                    f"{header.site}: {text}"
                )
        if call.op in REDUCING and not self.same_form():
            raise self.mismatch(
                "ranks reduce values of different dtype or shape",
                f"all ranks give arrays of one dtype and shape; {_ORDER}",
            )
        if call.reduction in ("max", "min") and call.op in REDUCED and NOTHING in self.kinds:
            what = f"some ranks have nothing to give to {call.name} ({call.reduction})"
            raise self.mismatch(
                what, "a sum leaves out who has nothing; for this each rank gives an array"
            )
        if call.order and len({flags & wire.PASS for flags in self._flags}) > 1:
            raise self.mismatch(*wire.different_passes(*self._flags))
        if self.wants and not self.all_recording:
            what = "some ranks record for backward and others do not (no_backprop_mode)"
            raise self.mismatch(
                what, "all ranks of a communicator record what they call together, or none does"
            )

    def mismatch(self, what: str, remedy: str = _ORDER) -> MismatchError:
        """Return an error with a table of who does what."""
        rows = []
        for rank, h in enumerate(self.headers()):
            mode = ", not recording" if self.wants and not h.flags & wire.RECORDING else ""
            nothing = " of nothing" * (h.kind == NOTHING)
            number = (h.seq & wire.OWN_NUMBER) // 2
            row = f"  rank {rank}: collective {number}, {h.said}{nothing}{mode}, at {h.site}"
            if h.order and h.tag:
                row += f", in {wire.describe_pass(h.flags, h.tag, h.scale)}"
            rows.append(row)
        return MismatchError("\n".join([f"{what}:", *rows, remedy]))


# ---- the blocks ----


def block_sizes(ranks: int) -> tuple[int, ...]:
    """Return the sizes of matches among so many ranks."""
    return _SIZES if ranks <= MOST_GATHERED else _SIZES[:1]


class MatchBuffer:
    """The buffers of the matches of one size on one lane of a transport, and what this rank has
    stated in them.

    Args:
        size: of a rank's block, bytes.
        ranks: how many.
    """

    def __init__(self, size: int, ranks: int) -> None:
        self.size = size
        self.mine = bytearray(size)
        self.whole: Any = b""  # the blocks of all ranks
        self.sent = (ranks - 1) * size  # bytes in each exchange
        self.known: dict[Any, CallRecord] = {}
        self._last: CallRecord | None = None

    def keep(self, key: Any, record: CallRecord) -> None:
        """Keep the record of values of one form."""
        if len(self.known) >= _REMEMBERED:
            self.known.clear()
        self.known[key] = record

    def fill(self, record: CallRecord, number: bytes, x: Any) -> None:
        """Fill this rank's block for the collective of this number."""
        mine = self.mine
        if record is not self._last:
            mine[: len(record.head)] = record.head
            self._last = record
        mine[NUMBER] = number
        if record.place is not None:
            record.place[...] = x
        for index, place in record.parts:
            place[...] = x[index]

    def exchange(self) -> bool:
        """Start the exchange of the blocks; return whether it is complete after a short time of
        polling.
        """
        raise NotImplementedError

    def wait(self, waiting: Waiting) -> None:
        """Return when the exchange is complete."""
        raise NotImplementedError

    def maximum(self, words: Array, waiting: Waiting) -> Array:
        """Return the elementwise maximum over ranks of a few integers; wait for it."""
        raise NotImplementedError


class MatchBuffers:
    """The buffers of one lane, and the choice among them: the next match has room for the largest
    of the latest values, up to a limit.

    So values that are small, but do not fit beside a header in 512 bytes, travel in the match too.
    All ranks of a group see the same matches, so all of them choose the same size.
    """

    __slots__ = ("_buffers", "_left", "_most", "now")

    def __init__(self, buffers: Sequence[MatchBuffer]) -> None:
        self._buffers = buffers  # the smallest first
        self.now = buffers[0]
        self._left = CALM_MATCHES
        self._most = 0

    def resize(self, most: int) -> None:
        """Note a match in which the largest value had so many bytes."""
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
        self._left, self._most = CALM_MATCHES, 0


# ---- a value for each rank: a table, and the parts behind it ----


class Place(NamedTuple):
    """The dtype and shape of a part, and where it is in the block."""

    dtype: Any
    shape: tuple[int, ...]
    start: int  # behind the table


@functools.lru_cache(1000)
def table(forms: tuple[Any, ...]) -> bytes:
    """Return the forms, (name of dtype, shape) or None each, as text of a multiple of 64 bytes."""
    text = json.dumps(forms, separators=(",", ":")).encode()
    return text.ljust(-(-len(text) // 64) * 64)


@functools.lru_cache(1000)
def places(text: bytes) -> tuple[Place | None, ...]:
    """Return where each part is, by the table; None for a part that does not exist."""
    found: list[Place | None] = []
    start = 0
    for form in json.loads(text):
        if form is None:
            found.append(None)
            continue
        dtype = np.dtype(form[0])
        shape = tuple(form[1])
        found.append(Place(dtype, shape, start))
        start += dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    return tuple(found)


def part_forms(xs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the form of each part, (name of dtype, shape); None for a part that does not exist.

    Raises:
        TypeError: a part cannot be sent.
    """
    return tuple([None if x is None else (wire.check(x), x.shape) for x in xs])


def join_parts(text: bytes, xs: tuple[Any, ...]) -> bytes:
    """Return the table, and then the parts themselves."""
    return b"".join([text, *[x.tobytes() for x in xs if x is not None]])


def on_host(xs: tuple[Any, ...]) -> bool:
    """Return whether all parts are numpy arrays."""
    return all([x is None or type(x) is np.ndarray for x in xs])


def part(raw: Any, start: int, text: bytes, index: int) -> Array | None:
    """Return a view of one of the parts behind a table that begins at ``start``."""
    place = places(text)[index]
    return (
        None
        if place is None
        else np.ndarray(place.shape, place.dtype, raw, start + len(text) + place.start)
    )
