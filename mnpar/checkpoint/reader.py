"""A checkpoint that is open for reading: choose one, check it, and read its pieces."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

from mnpar.backend import Array
from mnpar.checkpoint import store
from mnpar.checkpoint.manifest import Record, StoredPiece, from_json
from mnpar.checkpoint.store import agree_on_folder
from mnpar.communicators.consensus import run_on_all
from mnpar.errors import CheckpointError
from mnpar.plans import Box
from mnpar.serializers.safetensors import NAMES, TensorEntry, read_entry, read_header

if TYPE_CHECKING:
    from mnpar.communicators import Communicator


_MOST_RANKS = 10_000_000


class CheckpointReader:
    """A checkpoint that is open for reading, by one of ``size`` ranks.

    Raises:
        CheckpointError: the manifest is missing or damaged.
    """

    def __init__(self, path: str, rank: int, size: int) -> None:
        self.path, self.rank = path, rank
        self.content = store.read_manifest(path)
        try:
            self._understand()
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise CheckpointError(
                f"{os.path.join(path, store.MANIFEST)} has a wrong content: {error!r}"
            ) from None
        self.same_ranks = self.written_by == size
        self._open = ExitStack()
        self._shards: dict[int, tuple[Any, dict[str, TensorEntry]]] = {}

    def _understand(self) -> None:
        """Parse the manifest's content, and check it: a fault raises an error here, and not
        later.
        """
        step = self.content["step"]
        ranks = self.content["ranks"]
        if type(step) is not int or type(ranks) is not int or not 1 <= ranks <= _MOST_RANKS:
            raise ValueError(f"step {step!r} of {ranks!r} ranks")
        self.step: int = step
        self.written_by: int = ranks
        self.files: dict[str, tuple[int, str]] = {}
        for name, (size, digest) in self.content["files"].items():
            if type(size) is not int or type(digest) is not str:
                raise TypeError(f"size {size!r} and digest {digest!r} of {name}")
            self.files[name] = size, digest
        self.records = from_json(self.content["records"], self.written_by)
        shards = {
            piece.file
            for record in self.records.values()
            for piece in record.pieces
            if piece.dtype is not None
        }
        for number in sorted(shards):
            if store.shard_name(number, self.written_by) not in self.files:
                raise ValueError(f"shard {number} is not among its files")

    def verify(self, rank: int, size: int) -> None:
        """Check the files; the ranks share the work.

        Raises:
            CheckpointError: a file is missing, damaged or does not belong here.
        """
        store.check_files(self.path, self.files)
        for name in list(self.files)[rank::size]:
            store.check_file(os.path.join(self.path, name), *self.files[name])

    def close(self) -> None:
        """Close the files."""
        self._open.close()

    def pick(self, record: Record, box: Box | None) -> StoredPiece | None:
        """Return this rank's piece of a box: the only one or, if the number of ranks is the same,
        the one of this rank. None if there are several, and none of this rank.
        """
        versions = [piece for piece in record.pieces if piece.box == box]
        if self.same_ranks:
            versions = [piece for piece in versions if self.rank in piece.ranks] or versions
        return versions[0] if len(versions) == 1 else None

    def of_rank(self, record: Record, arrays: bool) -> StoredPiece | None:
        """Return the piece, of values of single ranks, of rank % P of the P ranks that wrote; None
        for arrays of new ranks, unless ``arrays``.
        """
        mine = [piece for piece in record.pieces if self.rank % self.written_by in piece.ranks]
        return (
            mine[0]
            if mine and (arrays or self.rank < self.written_by or mine[0].dtype is None)
            else None
        )

    def can_average(self, record: Record) -> bool:
        """Return whether the pieces are floating-point numbers of one shape."""
        first = record.pieces[0]
        return all(
            [
                piece.dtype in ("<f2", "<f4", "<f8") and piece.shape == first.shape
                for piece in record.pieces
            ]
        )

    def mean(self, record: Record) -> Array:
        """Return the mean over the ranks that wrote the record."""
        sums = [
            self.read(record, piece).astype(np.float64) * len(piece.ranks)
            for piece in record.pieces
        ]
        return np.asarray(sum(sums)) / sum([len(piece.ranks) for piece in record.pieces])

    def read(self, record: Record, piece: StoredPiece) -> Any:
        """Return the value of a piece."""
        if piece.dtype is None:
            return piece.plain
        file, entries = self._shard(piece.file)
        try:
            raw = read_entry(file, entries[piece.name])
            dtype = np.dtype(piece.dtype)
            array = (
                raw
                if raw.dtype.name in NAMES and dtype.name in NAMES
                else np.frombuffer(raw.tobytes(), dtype)
            )
            return array.reshape(piece.shape)
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{self.path}, {record.key}: shard {piece.file} does not have it: {error!r}"
            ) from None

    def _shard(self, number: int) -> tuple[Any, dict[str, TensorEntry]]:
        if number not in self._shards:
            path = os.path.join(self.path, store.shard_name(number, self.written_by))
            file = self._open.enter_context(store.open_plain(path))
            self._shards[number] = file, read_header(file, path)[0]
        return self._shards[number]

    def assemble(self, record: Record, box: Box) -> Array:
        """Return a box of a divided array, from the pieces that have cells of it."""
        whole: Array | None = None
        for versions in record.versions().values():
            common = box & versions[0].region
            if common.empty:
                continue
            piece = self.pick(record, versions[0].box)
            if piece is None:
                raise CheckpointError(
                    f"{self.path}, {record.key}: ranks {[p.ranks[0] for p in versions]} had "
                    "different values of one part, so {self.written_by} ranks can go on with it, "
                    "but no other number"
                )
            array = self.read(record, piece)
            if whole is None:
                whole = np.empty(box.shape, array.dtype)
            whole[_within(common, box)] = array[_within(common, piece.region)]
        if whole is None:  # an empty box
            dtype = record.pieces[0].dtype
            assert dtype is not None
            whole = np.empty(box.shape, dtype)
        return whole


def _within(common: Box, box: Box) -> tuple[slice, ...]:
    return common.shift([-a for a in box.start]).index


def open_newest(directory: str, comm: Communicator, step: int | None) -> CheckpointReader | None:
    """Open the newest undamaged checkpoint, or that of a step, on each rank. Collective.

    Returns:
        The reader; None if the directory has no checkpoint.

    Raises:
        CheckpointError: there is none of ``step``, or each is damaged; on all ranks.
    """
    directory, (listed, *_) = agree_on_folder(
        comm, directory, lambda: store.names(directory) if comm.rank == 0 else []
    )
    candidates = [name for name in reversed(listed) if step is None or name.step == step]
    if step is not None and not candidates:
        there = ", ".join(str(name.step) for name in listed) or "none"
        raise CheckpointError(f"{directory} has no checkpoint of step {step}; there are: {there}")
    return open_first_good(directory, candidates, comm)


def open_first_good(
    directory: str, candidates: Sequence[store.Name | str], comm: Communicator
) -> CheckpointReader | None:
    """Open the first undamaged checkpoint of these names on each rank, and warn of each before it;
    None if there are no names. Collective.
    """
    reasons = []
    for name in candidates:
        try:
            return _open(os.path.join(directory, str(name)), comm)
        except CheckpointError as error:
            reasons.append(str(error))
            if comm.rank == 0 and name != candidates[-1]:
                warnings.warn(f"an older checkpoint is tried, because {error}", stacklevel=4)
    if reasons:
        raise CheckpointError(
            f"{directory} has no checkpoint that could be loaded: " + "; ".join(reasons)
        )
    return None


def _open(path: str, comm: Communicator) -> CheckpointReader:
    readers: list[CheckpointReader] = []

    def work() -> None:
        readers.append(CheckpointReader(path, comm.rank, comm.size))
        readers[0].verify(comm.rank, comm.size)

    run_on_all(comm, work)
    return readers[0]
