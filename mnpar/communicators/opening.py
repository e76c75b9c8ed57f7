"""What all ranks have stated in the opening of a collective: whether their calls match, and the
values that came with them.
"""

from __future__ import annotations

import pickle
import zlib
from typing import Any

import numpy as np

from mnpar.backend import Array, as_bytes
from mnpar.communicators import message
from mnpar.communicators.message import (
    ARRAY,
    FAULT,
    NOTHING,
    OBJECT,
    SIZE,
    TUPLE,
    Call,
    Header,
    read_header,
)
from mnpar.communicators.opening_buffers import BLOCK, Statement
from mnpar.communicators.opening_parts import APART, forms_of, on_host, part, table, together
from mnpar.communicators.reduction import REDUCING, check_reducible
from mnpar.errors import MismatchError

_HEAD = message.FLAGS + 1  # bytes
_ORDER = "all ranks of a communicator make the same calls in the same order"


class Opening:
    """The header of each rank, and the values that came in the opening.

    Args:
        raw: the blocks of all ranks, in rank order. The next opening may use this memory again:
            results are copies.
        size: how many ranks.
        me: this rank.
        call: of this rank; the attribute ``seq``, the number of the collective, is set by the
            caller.
        statement: what this rank stated.
        less: bytes at the end of each block that are a note, and no value.
    """

    __slots__ = (
        "alike",
        "arrays",
        "asks",
        "block",
        "call",
        "forms",
        "given",
        "here",
        "inside",
        "lasting",
        "me",
        "most",
        "raw",
        "room",
        "seq",
        "size",
        "statement",
        "tables",
        "tells",
        "wants",
    )

    def __init__(
        self, raw: Any, size: int, me: int, call: Call, statement: Statement, less: int = 0
    ) -> None:
        self.raw, self.size, self.me = raw, size, me
        self.call, self.statement, self.seq = call, statement, 0
        self.block = block = len(raw) // size
        head = raw[:_HEAD]
        # and of one form
        self.alike = all([raw.startswith(head, start) for start in range(block, len(raw), block)])
        self.wants = any([flags & message.WANTS for flags in self._flags])
        starts = range(message.NBYTES.start, len(raw), block)
        # bytes of the largest value
        self.most = max([int.from_bytes(raw[start : start + 8], "little") for start in starts])
        self.room = block - SIZE - less  # bytes that there are for a rank's value
        self.inside = self.most <= self.room
        self.asks = self.most + less  # bytes that there should have been
        # whether the size of the next opening may change by this one
        self.tells = block > BLOCK or self.asks > BLOCK - SIZE
        # whether there is a result on this rank
        self.here = me == call.root or call.op not in TO_ROOT
        # whether all values are arrays on the host, or nothing: then this can be used again
        self.lasting = False
        self.given: list[
            Any
            # each rank's array (of parts: the one for this rank), a view of the opening; else None
        ] = []
        self.arrays: list[Array] = []  # the same without the Nones
        self.tables = [b""] * size
        self.forms: list[
            Header
            # of each rank; where the opening is used again their numbers are those of the first
            # time
        ] = []

    @property
    def all_record(self) -> bool:
        """Whether every rank records for backward."""
        return all([flags & message.RECORDING for flags in self._flags])

    @property
    def _flags(self) -> bytes:
        """The flags of each rank, a byte each."""
        return self.raw[message.FLAGS :: self.block]  # type: ignore[no-any-return]

    @property
    def kinds(self) -> bytes:
        """The kind of value (``message.KINDS``) of each rank, a byte each."""
        return self.raw[message.FORM.start :: self.block]  # type: ignore[no-any-return]

    def header(self, rank: int) -> Header:
        """A rank's header."""
        start = rank * self.block
        return read_header(bytes(self.raw[start : start + SIZE]))

    def headers(self) -> list[Header]:
        """The headers of all ranks, in rank order."""
        return [self.header(rank) for rank in range(self.size)]

    def own(self, rank: int) -> Any:
        """A copy of what a rank gave."""
        given = self.given[rank]
        if given is None and self.kinds[rank] == OBJECT:
            start = rank * self.block + SIZE
            return pickle.loads(self.raw[start : start + self.header(rank).nbytes])
        return None if given is None else given.copy()

    def _look(self) -> None:
        """Find the values, after the calls were found to match."""
        self.forms = headers = self.headers()
        self.lasting = all([kind in (NOTHING, ARRAY, TUPLE) for kind in self.kinds])
        self.lasting = self.lasting and not any(
            [header.flags & message.ON_DEVICE for header in headers]
        )
        if self.inside:
            self.given = [self._given(rank, header) for rank, header in enumerate(headers)]
            self.arrays = [array for array in self.given if array is not None]

    def _given(self, rank: int, header: Header) -> Array | None:
        start = rank * self.block + SIZE
        if header.kind == TUPLE:
            self.tables[rank] = text = bytes(self.raw[start : start + header.shape[1]])
            return part(self.raw, start, text, self.me)
        if header.kind != ARRAY:
            return None
        return message.as_array(np.frombuffer(self.raw, np.uint8, header.nbytes, start), header)

    def same_form(self) -> bool:
        """Whether all values have one dtype and shape. (Of a gradient some parts may be missing:
        their number is compared.)
        """
        blocks = [
            bytes(self.raw[rank * self.block :][: message.FLAGS]) for rank in range(self.size)
        ]
        forms = [block[message.FORM] for block in blocks if block[message.FORM.start] != NOTHING]
        if self.call.order and forms and forms[0][0] == TUPLE:
            return True
        return all([form == forms[0] for form in forms])

    def agreed(self) -> Opening:
        """This opening, if the ranks' calls match.

        Raises:
            MismatchError: they do not.
            Exception: this rank could not take part.
        """
        if self.statement.opening is self:  # checked last time
            return self
        if self.statement.fault is not None:
            raise self.statement.fault
        if not self.alike:
            self._check()
        self._look()
        if self.lasting and self.statement.again:
            self.statement.remember(self)
        return self

    @property
    def together(self) -> bool:
        """Whether the ranks are in the same collective."""
        starts = () if self.alike else range(0, len(self.raw), self.block)
        calls = {bytes(self.raw[start : start + message.IDENTITY]) for start in starts}
        return len(calls) <= 1 or self._but_for_nothing()

    def _but_for_nothing(self) -> bool:
        """Whether the ranks are together in a mean, but for some who have nothing to give, and do
        not say of which dtype.
        """
        ops = {(h.op, h.order, h.later, h.root, h.seq) for h in self.headers()}
        told = {h.reduction for h in self.headers() if h.kind != NOTHING}
        blank = {h.reduction for h in self.headers() if h.kind == NOTHING}
        return len(ops) == len(told) == 1 and told <= set(message.MEANS) and blank == {"mean"}

    def check_identity(self) -> None:
        """Raises MismatchError if the ranks are in different collectives."""
        if not self.together:
            raise self.mismatch("ranks are in different collectives")

    def _check(self) -> None:
        self.check_identity()
        raw, call = self.raw, self.call
        for start in range(0, len(raw), self.block):
            if raw[start + message.FORM.start] == FAULT:
                header = self.header(start // self.block)
                text = raw[start + SIZE : start + SIZE + header.nbytes].decode(errors="replace")
                raise MismatchError(
                    f"rank {start // self.block} could not take part in {header.name} at "
                    f"{header.site}: {text}"
                )
        if call.op in REDUCING and not self.same_form():
            raise self.mismatch(
                "ranks reduce values of different dtype or shape",
                f"these are the same on all ranks; {_ORDER}",
            )
        if call.reduction in ("max", "min") and call.op in REDUCED and NOTHING in self.kinds:
            what = f"some ranks have nothing to give to {call.name} ({call.reduction})"
            raise self.mismatch(
                what, "a sum leaves out who has nothing; for this each rank gives an array"
            )
        if self.wants and not self.all_record:
            if call.order == 0:
                what = "some ranks record for backward and others do not (no_backprop_mode)"
                raise self.mismatch(
                    what, "all ranks of a communicator record what they call together, or none does"
                )
            what = "some ranks record this backward and others do not (enable_double_backprop)"
            remedy = (
                "all ranks ask alike; a derivative that is one rank's own needs a tape of its "
                "own: with mnpar.Tape():"
            )
            raise self.mismatch(what, remedy)

    def mismatch(self, what: str, remedy: str = _ORDER) -> MismatchError:
        """An error with a table of who does what."""
        rows = []
        for rank, h in enumerate(self.headers()):
            mode = ", not recording" if self.wants and not h.flags & message.RECORDING else ""
            nothing = " of nothing" * (h.kind == NOTHING)
            rows.append(
                f"  rank {rank}: collective {h.seq // 2}, {h.said}{nothing}{mode}, at {h.site}"
            )
        return MismatchError("\n".join([f"{what}:", *rows, remedy]))


REDUCED = ("allreduce", "reduce", "reduce_from")
TO_ROOT = ("reduce", "gather", "gather_obj", "reduce_obj")


def form_of(
    x: Any, call: Call, parts: int | None, room: int
) -> tuple[int, int, tuple[int, ...], str, Array, bool]:
    """Kind, size in bytes, shape, dtype and bytes of a value, and whether it is on a GPU, for an
    opening with so much room.
    """
    if parts is not None and (not isinstance(x, tuple) or len(x) != parts):
        thing = "object" if call.op.endswith("_obj") else "array"
        given = len(x) if isinstance(x, tuple) else type(x).__name__
        raise ValueError(
            f"{call.name} takes one {thing} for each of the {parts} ranks, not {given}"
        )
    if call.op.endswith("_obj"):
        if x is None and parts is None and call.op in ("bcast_obj", "scatter_obj"):
            return NOTHING, 0, (), "", EMPTY, False
        if parts is not None:
            return OBJECT, APART, (), "", EMPTY, False
        body = np.frombuffer(pickle.dumps(x, protocol=pickle.HIGHEST_PROTOCOL), np.uint8)
        return OBJECT, len(body), (), "", body, False
    if x is None:
        return NOTHING, 0, (), "", EMPTY, False
    if parts is not None:
        return _form_of_parts(x, call, room)
    check_reducible(x, call)
    x, dtype, on_device = message.describe(x)
    return ARRAY, x.nbytes, x.shape, dtype, as_bytes(x), on_device


def _form_of_parts(
    xs: tuple[Any, ...], call: Call, room: int
) -> tuple[int, int, tuple[int, ...], str, Array, bool]:
    for x in xs:
        check_reducible(x, call)
    forms = forms_of(xs)
    text = table(forms)
    nbytes = len(text) + sum([x.nbytes for x in xs if x is not None]) if on_host(xs) else APART
    body = np.frombuffer(together(text, xs), np.uint8) if nbytes <= room else EMPTY
    # gradients have the forms that were compared forward, and some of them may be missing
    return (
        TUPLE,
        nbytes,
        (0 if call.order else zlib.crc32(repr(forms).encode()), len(text)),
        "",
        body,
        False,
    )


def value_of(body: Array, header: Header) -> Any:
    """The value that followed an opening."""
    if header.kind == NOTHING:
        return None
    return pickle.loads(body) if header.kind == OBJECT else message.as_array(body, header)


EMPTY = np.empty(0, np.uint8)
