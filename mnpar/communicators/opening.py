"""The opening of a collective: what each rank says of itself, and small values, in one exchange of fixed size."""

from __future__ import annotations

import pickle
import zlib
from typing import Any

import numpy as np

from mnpar.backend import Array
from mnpar.communicators import message
from mnpar.communicators.message import ARRAY, FAULT, NOTHING, OBJECT, SIZE, TUPLE, Call, Header, read_header
from mnpar.communicators.parts import APART, forms_of, on_host, part, table, together
from mnpar.communicators.reduction import REDUCING, check_reducible
from mnpar.errors import MismatchError

_HEAD = message.FLAGS + 1  # bytes


class Opening:
    """What the opening of a collective told: every rank's header, and the values that came with it."""

    __slots__ = ("_block", "_raw", "alike", "body", "call", "most", "room", "seq", "size", "wants")

    def __init__(self, raw: bytes, size: int, call: Call, seq: int, body: Array, less: int = 0) -> None:
        self._raw = raw
        self.call, self.seq, self.body = call, seq, body  # this rank's own part in it
        self.size = size
        self._block = block = len(raw) // size
        self.room = block - SIZE - less  # bytes of the values that came with it: larger ones did not
        head = raw[:_HEAD]  # all ranks say the same, and give values of one form:
        self.alike = alike = all([raw.startswith(head, start) for start in range(block, len(raw), block)])
        self.wants = call.wants if alike else any([flags & message.WANTS for flags in self._flags])
        if alike:
            self.most = int.from_bytes(head[message.NBYTES], "little")  # bytes of the largest value
        else:
            starts = range(message.NBYTES.start, len(raw), block)
            self.most = max([int.from_bytes(raw[start : start + 8], "little") for start in starts])

    @property
    def all_record(self) -> bool:
        """Whether every rank records for backward."""
        return all([flags & message.RECORDING for flags in self._flags])

    @property
    def _flags(self) -> bytes:
        """One byte of each rank."""
        return self._raw[message.FLAGS :: self._block]

    @property
    def inside(self) -> bool:
        """Whether all values came with it."""
        return self.most <= self.room

    def arrays(self, like: Array) -> list[Array]:
        """The values that came with it, where all have the form of ``like``; to be read only."""
        shape, dtype, raw = like.shape, like.dtype, self._raw
        return [np.ndarray(shape, dtype, raw, start) for start in range(SIZE, len(raw), self._block)]

    def header(self, rank: int) -> Header:
        """What this rank said of itself."""
        start = rank * self._block
        return read_header(self._raw[start : start + SIZE])

    def headers(self) -> list[Header]:
        """All of them, in rank order."""
        return [self.header(rank) for rank in range(self.size)]

    def value(self, rank: int, header: Header) -> Any:
        """The value that came with it."""
        start = rank * self._block + SIZE
        if header.kind == NOTHING:
            return None
        if header.kind == ARRAY and not header.flags & message.ON_DEVICE:
            return np.ndarray(header.shape, header.dtype, self._raw, start).copy()
        body = np.frombuffer(self._raw, np.uint8, header.nbytes, start)
        return message.as_array(body, header).copy() if header.kind == ARRAY else pickle.loads(body.tobytes())

    def values(self) -> list[Any]:
        """All of them, in rank order."""
        return [self.value(rank, header) for rank, header in enumerate(self.headers())]

    def part(self, rank: int, index: int) -> Array | None:
        """One of the parts that came with it."""
        start = rank * self._block
        length = int.from_bytes(self._raw[(at := start + message.SECOND_LENGTH) : at + 8], "little")  # of their table
        return part(self._raw, start + SIZE, length, index)

    def kind(self, rank: int) -> int:
        """What kind of value a rank has given."""
        return self._raw[rank * self._block + message.FORM.start]

    def same_form(self) -> bool:
        """Whether all values have one dtype and shape. (Of a gradient some parts may be missing: their number is compared.)"""
        blocks = [self._raw[rank * self._block :][: message.FLAGS] for rank in range(self.size)]
        forms = [block[message.FORM] for block in blocks if block[message.FORM.start] != NOTHING]
        if self.call.order and forms and forms[0][0] == TUPLE:
            return True
        return all([form == forms[0] for form in forms])

    def agreed(self) -> Opening:
        """Itself.

        Raises:
            MismatchError: what the ranks said does not go together.
        """
        raw, call = self._raw, self.call
        if self.alike:
            return self
        identity = raw[: message.IDENTITY]
        for start in range(0, len(raw), self._block):
            if raw[start : start + message.IDENTITY] != identity:
                raise self.mismatch("ranks are in different collectives")
            if raw[start + message.FORM.start] == FAULT:
                header = self.header(start // self._block)
                text = raw[start + SIZE : start + SIZE + header.nbytes].decode(errors="replace")
                raise MismatchError(
                    f"rank {start // self._block} could not take part in {header.name} at {header.site}: {text}"
                )
        if call.op in REDUCING and not self.same_form():
            raise self.mismatch("ranks reduce values of different dtype or shape")
        if self.wants and not self.all_record:
            raise self.mismatch("some ranks record for backward and others do not (no_backprop_mode)")
        return self

    def mismatch(self, what: str) -> MismatchError:
        """An error with a table of who does what."""
        rows = []
        for rank, h in enumerate(self.headers()):
            root = f", root {h.root}" if h.op in ROOTED else ""
            mode = ", not recording" if self.wants and not h.flags & message.RECORDING else ""
            rows.append(f"  rank {rank}: collective {h.seq // 2}, {h.name}{root} of {h.form}{mode}, at {h.site}")
        return MismatchError(
            f"{what}:\n" + "\n".join(rows) + "\nall ranks of a communicator make the same calls in the same order"
        )


ROOTED = ("bcast", "reduce", "gather", "scatter", "bcast_obj", "gather_obj", "scatter_obj", "reduce_obj")


def form_of(x: Any, call: Call, parts: int | None, room: int) -> tuple[int, int, tuple[int, ...], str, Array, bool]:
    """Kind, size, shape, dtype and bytes of a value, for an opening that holds so many."""
    if parts is not None and (not isinstance(x, tuple) or len(x) != parts):
        thing = "object" if call.op.endswith("_obj") else "array"
        given = len(x) if isinstance(x, tuple) else type(x).__name__
        raise ValueError(f"{call.name} takes one {thing} for each of the {parts} ranks, not {given}")
    if call.op.endswith("_obj"):
        if x is None and parts is None and call.op in ("bcast_obj", "scatter_obj"):
            return NOTHING, 0, (), "", EMPTY, False
        body = np.frombuffer(pickle.dumps(x, protocol=pickle.HIGHEST_PROTOCOL), np.uint8) if parts is None else EMPTY
        return OBJECT, len(body), (), "", body, False
    if x is None:
        return NOTHING, 0, (), "", EMPTY, False
    if parts is not None:
        return _form_of_parts(x, call, room)
    check_reducible(x, call)
    x, dtype, on_device = message.describe(x)
    return ARRAY, x.nbytes, x.shape, dtype, as_bytes(x), on_device


def _form_of_parts(xs: tuple[Any, ...], call: Call, room: int) -> tuple[int, int, tuple[int, ...], str, Array, bool]:
    for x in xs:
        check_reducible(x, call)
    forms = forms_of(xs)
    text = table(forms)
    nbytes = len(text) + sum([x.nbytes for x in xs if x is not None]) if on_host(xs) else APART
    body = np.frombuffer(together(text, xs), np.uint8) if nbytes <= room else EMPTY
    # gradients have the forms that were compared forward, and some of them may be missing
    return TUPLE, nbytes, (0 if call.order else zlib.crc32(repr(forms).encode()), len(text)), "", body, False


def as_bytes(x: Array) -> Array:
    """The bytes of an array on the host, in order; a copy only if they are not in order already."""
    return np.ascontiguousarray(x).reshape(-1).view(np.uint8)


def value_of(body: Array, header: Header) -> Any:
    """The value that followed an opening."""
    if header.kind == NOTHING:
        return None
    return pickle.loads(body) if header.kind == OBJECT else message.as_array(body, header)


EMPTY = np.empty(0, np.uint8)
