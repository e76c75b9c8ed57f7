"""The opening of a collective: what each rank says of itself, and small values, in one exchange of fixed size."""

from __future__ import annotations

import pickle
import zlib
from typing import Any

import numpy as np

from mnpar.backend import Array
from mnpar.communicators import message
from mnpar.communicators.message import ARRAY, FAULT, NOTHING, OBJECT, TUPLE, Call, Header, read_header
from mnpar.communicators.reduction import REDUCING, check_reducible
from mnpar.communicators.transport import BLOCK
from mnpar.errors import MismatchError


class Opening:
    """What the opening of a collective told: every rank's header, and the values that came with it."""

    __slots__ = ("_flags", "_raw", "alike", "body", "call", "seq", "size", "wants")

    def __init__(self, raw: bytes, size: int, call: Call, seq: int, body: Array) -> None:
        self._raw = raw
        self.call, self.seq, self.body = call, seq, body  # this rank's own part in it
        self.size = size
        self._flags = raw[message.FLAGS :: BLOCK]  # one byte of each rank
        self.wants = any([flags & message.WANTS for flags in self._flags])
        head = raw[: message.FORM.stop]  # all ranks say the same, and give values of one form:
        self.alike = all([raw.startswith(head, start) for start in range(BLOCK, len(raw), BLOCK)])

    @property
    def all_record(self) -> bool:
        """Whether every rank records for backward."""
        return all([flags & message.RECORDING for flags in self._flags])

    def arrays(self, like: Array) -> list[Array]:
        """The values that travelled inside the opening, where all have the form of ``like``."""
        starts = range(message.SIZE, len(self._raw), BLOCK)
        return [np.ndarray(like.shape, like.dtype, self._raw, start) for start in starts]

    def header(self, rank: int) -> Header:
        """What this rank said of itself."""
        return read_header(memoryview(self._raw)[rank * BLOCK :])

    def headers(self) -> list[Header]:
        """All of them, in rank order."""
        return [self.header(rank) for rank in range(self.size)]

    def value(self, rank: int, header: Header) -> Any:
        """The value that travelled inside the opening."""
        start = rank * BLOCK + message.SIZE
        body = np.frombuffer(self._raw, np.uint8, header.nbytes, start)
        if header.kind == ARRAY:
            return message.as_array(body, header).copy()
        return None if header.kind == NOTHING else pickle.loads(body.tobytes())

    def same_form(self) -> bool:
        """Whether all values have one dtype and shape."""
        forms = [self._raw[r * BLOCK :][message.FORM] for r in range(self.size)]
        forms = [form for form in forms if form[0] != NOTHING]
        return all([form == forms[0] for form in forms])

    def agreed(self) -> Opening:
        """Itself.

        Raises:
            MismatchError: what the ranks said does not go together.
        """
        raw, call = self._raw, self.call
        identity = raw[: message.IDENTITY]
        for start in () if self.alike else range(0, len(raw), BLOCK):
            if raw[start : start + message.IDENTITY] != identity:
                raise self.mismatch("ranks are in different collectives")
            if raw[start + message.FORM.start] == FAULT:
                header = self.header(start // BLOCK)
                text = raw[start + message.SIZE : start + message.SIZE + header.nbytes].decode(errors="replace")
                raise MismatchError(f"rank {start // BLOCK} could not take part in {header.name} at {header.site}: {text}")
        if call.op in REDUCING and not (self.alike or self.same_form()):
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


ROOTED = ("bcast", "reduce", "gather", "scatter", "bcast_obj", "gather_obj", "scatter_obj")


def form_of(x: Any, call: Call, parts: int | None) -> tuple[int, int, tuple[int, ...], str, Array, bool]:
    """Kind, size, shape, dtype and bytes of a value, for the opening."""
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
        for part in x:
            check_reducible(part, call)
        forms = [(message.check(part), part.shape) for part in x if part is not None]
        # gradients have the forms that were compared forward, and some of them may be missing
        return TUPLE, 0, (0 if call.order else zlib.crc32(repr(forms).encode()),), "", EMPTY, False
    check_reducible(x, call)
    x, dtype, on_device = message.describe(x)
    return ARRAY, x.nbytes, x.shape, dtype, as_bytes(x), on_device


def as_bytes(x: Array) -> Array:
    """The bytes of an array on the host, in order; a copy only if they are not in order already."""
    return np.ascontiguousarray(x).reshape(-1).view(np.uint8)


def value_of(body: Array, header: Header) -> Any:
    """The value that followed an opening."""
    if header.kind == NOTHING:
        return None
    return pickle.loads(body) if header.kind == OBJECT else message.as_array(body, header)


EMPTY = np.empty(0, np.uint8)
