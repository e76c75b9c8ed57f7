"""The manifest of a checkpoint: the values of all ranks, each stored once, and which rank writes
what.

Each rank lists its values by a serializer that writes nothing: an *entry* is a value's description
with its digest. All ranks get all lists, and compute the same *records* from them, so nothing else
is sent. Equal values under one key are one piece: the replicas of a data-parallel model are written
once, without having been declared replicas. Under one key there may be several pieces: the boxes of
a divided array, or values of single ranks (their position in the data, their random numbers, other
layers).
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.plans import Box
from mnpar.serializer import Serializer

PLAIN = (bool, int, float, str, type(None))  # types of values that the manifest itself has


class ArrayPart(NamedTuple):
    """The part of a whole array that this rank has; ``(None, None)`` if it has all of it."""

    whole: tuple[int, ...] | None
    box: Box | None
    statistic: bool = False  # an estimate that each rank makes for itself, as a running mean


@dataclass(frozen=True)
class ManifestEntry:
    """The description of a value of one rank, which all ranks get."""

    key: str
    dtype: str | None  # None: ``plain`` is the value
    shape: tuple[int, ...]
    plain: Any
    whole: tuple[int, ...] | None  # the shape of the array of which this is a part
    box: Box | None
    digest: bytes

    @property
    def nbytes(self) -> int:
        """The size of the array."""
        return (
            0
            if self.dtype is None
            else int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize
        )


class EntryRecorder(Serializer):
    """A serializer that lists the values of objects, and writes nothing.

    Args:
        copies: keep copies of arrays instead of the arrays.

    Example:
        >>> import mnpar
        >>> from mnpar.checkpoint.manifest import EntryRecorder
        >>> recorder = EntryRecorder()
        >>> recorder["model"].save(mnpar.links.Linear(3, 2))
        >>> [(entry.key, entry.shape) for entry in recorder.entries.values()]
        [('model/W', (2, 3)), ('model/b', (2,))]
    """

    knows_places = True

    def __init__(self, copies: bool = False) -> None:
        self.path, self.copies = "", copies
        self.where: ArrayPart | None = None
        self.entries: dict[str, ManifestEntry] = {}
        self.arrays: dict[str, Array] = {}

    def __getitem__(self, key: str) -> EntryRecorder:
        part = copy.copy(self)
        part.path += key.strip("/") + "/"
        return part

    def place(
        self, whole: tuple[int, ...] | None, box: Box | None, statistic: bool = False
    ) -> EntryRecorder:
        """Return the serializer of a parameter that is a part of an array."""
        if (whole is None) != (box is None) or (box is not None and len(whole or ()) != box.ndim):
            raise ValueError(
                f"{self.path}: a part has a box and a whole of as many axes, not {box} and {whole}"
            )
        part = copy.copy(self)
        part.where = ArrayPart(whole, box)
        return part

    def __call__(self, key: str, value: Any) -> Any:
        key = self.path + key.lstrip("/")
        if key in self.entries:
            raise ValueError(f"{key} is saved twice: the parts of an object have different names")
        if type(value) in PLAIN:
            text = json.dumps(value, allow_nan=True)
            self.entries[key] = ManifestEntry(
                key, None, (), value, None, None, hashlib.sha256(text.encode()).digest()
            )
            return value
        array = np.asarray(host := backend.to_host(value))
        if array.dtype.hasobject:
            raise TypeError(
                f"{key}: a checkpoint has arrays, numbers, strings and None, not a "
                f"{type(value).__name__}"
            )
        whole, box, _ = divided(self.where, array.shape)
        array = np.ascontiguousarray(array).reshape(array.shape)
        # what came from a GPU is a copy
        if self.copies and host is value and np.may_share_memory(array, host):
            array = array.copy()
        self.arrays[key] = array
        # bfloat16 has no other name
        name = array.dtype.name if array.dtype.kind == "V" else array.dtype.str
        self.entries[key] = ManifestEntry(key, name, array.shape, None, whole, box, _digest(array))
        return value


def divided(where: ArrayPart | None, shape: tuple[int, ...]) -> ArrayPart:
    """Return the part that a parameter's array is. An array of another shape than the box, a count
    for example, is not divided.
    """
    if where is None or where.box is None or where.box.shape != shape:
        return ArrayPart(None, None)
    return where


def _digest(array: Array) -> bytes:
    digest = hashlib.sha256(f"{array.dtype} {array.shape} ".encode())
    digest.update(backend.as_bytes(array).data)
    return digest.digest()


@dataclass
class StoredPiece:
    """A value, and the ranks that have it."""

    dtype: str | None  # None: ``plain`` is the value
    shape: tuple[int, ...]
    plain: Any
    box: Box | None
    ranks: list[int]
    file: int = -1  # the rank that writes it: the number of its shard
    name: str = ""  # of the array in that shard

    @property
    def region(self) -> Box:
        """The cells of the whole array that are in this piece."""
        return Box.whole(self.shape) if self.box is None else self.box


@dataclass
class Record:
    """All that is stored under one key."""

    key: str
    whole: tuple[int, ...] | None  # the shape of an array that is divided
    pieces: list[StoredPiece] = field(default_factory=list)

    def versions(self) -> dict[Box | None, list[StoredPiece]]:
        """Return the pieces of each box: one, unless ranks differ."""
        found: dict[Box | None, list[StoredPiece]] = {}
        for piece in self.pieces:
            found.setdefault(piece.box, []).append(piece)
        return found


def combine(ranks: Sequence[Sequence[ManifestEntry]]) -> dict[str, Record]:
    """Return the records of a checkpoint, from the entries of each rank. A piece is written by that
    rank, among those that have it, which has the least to write so far.

    Raises:
        ValueError: parts of an array do not cover it, overlap, or belong to wholes of different
            shapes.
    """
    records: dict[str, Record] = {}
    known: dict[tuple[str, Box | None, bytes], tuple[StoredPiece, int]] = {}
    for rank, entries in enumerate(ranks):
        for entry in entries:
            record = records.setdefault(entry.key, Record(entry.key, entry.whole))
            if record.whole != entry.whole:
                raise ValueError(
                    f"{entry.key}: rank {rank} has a part of {entry.whole}, another of "
                    f"{record.whole} (None: it is whole)"
                )
            identity = (entry.key, entry.box, entry.digest)
            if identity not in known:
                piece = StoredPiece(entry.dtype, entry.shape, entry.plain, entry.box, [])
                record.pieces.append(piece)
                known[identity] = piece, entry.nbytes
            known[identity][0].ranks.append(rank)
    for record in records.values():
        check_cover(record)
    _assign(len(ranks), records, {id(piece): nbytes for piece, nbytes in known.values()})
    return records


def check_cover(record: Record) -> None:
    """Check that each cell of a divided array is in exactly one box.

    Raises:
        ValueError: a cell is in no box, or in two.
    """
    if record.whole is None:
        return
    whole = Box.whole(record.whole)
    boxes = [box for box in record.versions() if box is not None and not box.empty]
    for box in boxes:
        if box & whole != box:
            raise ValueError(
                f"{record.key}: the part {_text(box)} is not inside the whole {record.whole}"
            )
    for a, b in itertools.combinations(boxes, 2):
        if not (a & b).empty:
            raise ValueError(
                f"{record.key}: the parts {_text(a)} and {_text(b)} overlap; they may be "
                "equal, or disjoint"
            )
    covered = sum(box.volume for box in boxes)
    if covered != math.prod(record.whole):
        raise ValueError(
            f"{record.key}: its parts have {covered} of the {math.prod(record.whole)} cells of "
            f"{record.whole}"
        )


def _text(box: Box) -> str:
    return "[" + ", ".join([f"{a}:{b}" for a, b in zip(box.start, box.stop, strict=True)]) + "]"


def _assign(size: int, records: dict[str, Record], nbytes: dict[int, int]) -> None:
    load = [0] * size
    names: dict[str, None] = {}
    for record in records.values():
        for piece in record.pieces:
            if piece.dtype is None:
                continue
            piece.file = min(piece.ranks, key=lambda rank: (load[rank], rank))
            load[piece.file] += nbytes[id(piece)]
            piece.name = next(name for name in _names(record.key) if name not in names)
            names[piece.name] = None


def _names(key: str) -> Iterator[str]:
    yield key
    yield from (f"{key}#{number}" for number in itertools.count(2))


def to_json(records: dict[str, Record], size: int) -> list[Any]:
    """Return the records of ``size`` ranks as JSON; a piece that all ranks have has null in place
    of the list of ranks.
    """
    return [
        [record.key, record.whole, [_row(piece, size) for piece in record.pieces]]
        for record in records.values()
    ]


def _row(piece: StoredPiece, size: int) -> list[Any]:
    box = None if piece.box is None else [piece.box.start, piece.box.stop]
    row = [
        piece.dtype,
        piece.shape,
        piece.plain,
        box,
        None if len(piece.ranks) == size else piece.ranks,
    ]
    return row if piece.dtype is None else [*row, piece.file, piece.name]


def from_json(rows: list[Any], size: int) -> dict[str, Record]:
    """Return the records that :func:`to_json` wrote.

    Raises:
        ValueError, TypeError: the rows are not such records.
    """
    records: dict[str, Record] = {}
    for key, whole, pieces in rows:
        record = Record(
            _a(str, key),
            None if whole is None else _numbers(whole),
            [_piece(row, size) for row in pieces],
        )
        if not record.pieces or any(
            [(piece.box is None) != (whole is None) for piece in record.pieces]
        ):
            raise ValueError(f"{key} has no pieces, or not the boxes of a whole")
        records[key] = record
        check_cover(record)
    return records


def _piece(row: list[Any], size: int) -> StoredPiece:
    dtype, shape, plain, box, ranks, *stored = row
    holders = list(range(size)) if ranks is None else _numbers(ranks)
    where = None if box is None else Box(*map(_numbers, box))
    shape = _numbers(shape)
    if dtype is None:
        if type(plain) not in PLAIN or stored or shape:
            raise ValueError(f"{row} is no value")
        return StoredPiece(None, (), plain, where, list(holders))
    file, name = stored
    if np.dtype(_a(str, dtype)).hasobject or (where is not None and where.shape != shape):
        raise ValueError(f"{row} is no piece of an array")
    if not all([0 <= rank < size for rank in (*holders, _a(int, file))]):
        raise ValueError(f"{row} is of no rank of {size}")
    return StoredPiece(dtype, shape, None, where, list(holders), file, _a(str, name))


def _a(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return value


def _numbers(values: Any) -> tuple[int, ...]:
    if not all([_a(int, value) >= 0 for value in _a(list, values)]):
        raise ValueError(f"{values} has negative numbers")
    return tuple(values)
