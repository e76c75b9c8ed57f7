"""A checkpoint that is open for reading: choosing one, checking it, and reading its pieces.

Loading: each rank reads the values that it needs, whichever ranks have written the pieces of
them.
"""

from __future__ import annotations

import copy
import json
import math
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

from mnpar import random
from mnpar.backend import Array, is_array
from mnpar.checkpoint import store
from mnpar.checkpoint.manifest import Piece, Place, Record, divided, from_json
from mnpar.checkpoint.saving import RANDOM, by_name, part
from mnpar.checkpoint.store import in_folder
from mnpar.communicators import create_communicator
from mnpar.communicators.communicator import require_communicator
from mnpar.communicators.consensus import run_on_all
from mnpar.errors import CheckpointError
from mnpar.link import Link
from mnpar.parameter import Parameter
from mnpar.plans import Box
from mnpar.serializer import Deserializer
from mnpar.serializers.reading import restored
from mnpar.serializers.safetensors import NAMES, Entry, read_entry, read_header

if TYPE_CHECKING:
    from mnpar.communicators import Communicator


_MOST_RANKS = 10_000_000


class Checkpoint:
    """An opened checkpoint, as one of ``size`` ranks reads it."""

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
        self._shards: dict[int, tuple[Any, dict[str, Entry]]] = {}

    def _understand(self) -> None:
        """Parse the manifest's content, and check it: whatever is wrong with it is an error here,
        and none later.
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
        """Raise CheckpointError if a file is missing, damaged or does not belong here; the ranks
        share the work.
        """
        store.check_files(self.path, self.files)
        for name in list(self.files)[rank::size]:
            store.check_file(os.path.join(self.path, name), *self.files[name])

    def close(self) -> None:
        """Close the files."""
        self._open.close()

    def pick(self, record: Record, box: Box | None) -> Piece | None:
        """The piece of a box for this rank: the only one there is or, if the number of ranks is the
        same, the one of this rank. None if there are several, and no such one.
        """
        versions = [piece for piece in record.pieces if piece.box == box]
        if self.same_ranks:
            versions = [piece for piece in versions if self.rank in piece.ranks] or versions
        return versions[0] if len(versions) == 1 else None

    def of_rank(self, record: Record, arrays: bool) -> Piece | None:
        """Of values of single ranks, the piece of rank % P of the P that wrote; for new ranks
        arrays only if ``arrays``.
        """
        mine = [piece for piece in record.pieces if self.rank % self.written_by in piece.ranks]
        return (
            mine[0]
            if mine and (arrays or self.rank < self.written_by or mine[0].dtype is None)
            else None
        )

    def can_average(self, record: Record) -> bool:
        """Whether the pieces are numbers of one shape."""
        first = record.pieces[0]
        return all(
            [
                piece.dtype in ("<f2", "<f4", "<f8") and piece.shape == first.shape
                for piece in record.pieces
            ]
        )

    def mean(self, record: Record) -> Array:
        """The mean over the ranks that wrote it."""
        sums = [
            self.read(record, piece).astype(np.float64) * len(piece.ranks)
            for piece in record.pieces
        ]
        return np.asarray(sum(sums)) / sum([len(piece.ranks) for piece in record.pieces])

    def read(self, record: Record, piece: Piece) -> Any:
        """The value of a piece."""
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

    def _shard(self, number: int) -> tuple[Any, dict[str, Entry]]:
        if number not in self._shards:
            path = os.path.join(self.path, store.shard_name(number, self.written_by))
            file = self._open.enter_context(store.open_plain(path))
            self._shards[number] = file, read_header(file, path)[0]
        return self._shards[number]

    def assemble(self, record: Record, box: Box) -> Array:
        """A box of a divided array, put together from the pieces that have cells of it."""
        whole: Array | None = None
        for versions in record.versions().values():
            common = box & versions[0].region
            if common.empty:
                continue
            piece = self.pick(record, versions[0].box)
            if piece is None:
                raise CheckpointError(
                    f"{self.path}, {record.key}: ranks {[p.ranks[0] for p in versions]} had "
                    "different values of one part, "
                    f"so {self.written_by} ranks can go on with it, but no other number"
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


def choose(directory: str, comm: Communicator, step: int | None) -> Checkpoint | None:
    """The newest undamaged checkpoint (of a step), opened on each rank."""
    directory, (listed, *_) = in_folder(
        comm, directory, lambda: store.names(directory) if comm.rank == 0 else []
    )
    candidates = [name for name in reversed(listed) if step is None or name.step == step]
    if step is not None and not candidates:
        there = ", ".join(str(name.step) for name in listed) or "none"
        raise CheckpointError(f"{directory} has no checkpoint of step {step}; there are: {there}")
    return first_good(directory, candidates, comm)


def first_good(
    directory: str, candidates: Sequence[store.Name | str], comm: Communicator
) -> Checkpoint | None:
    """The first undamaged one of these names, opened on each rank; a warning for each before it;
    None if there are no names.
    """
    reasons = []
    for name in candidates:
        try:
            return _opened(os.path.join(directory, str(name)), comm)
        except CheckpointError as error:
            reasons.append(str(error))
            if comm.rank == 0 and name != candidates[-1]:
                warnings.warn(f"an older checkpoint is tried, because {error}", stacklevel=4)
    if reasons:
        raise CheckpointError(
            f"{directory} has no checkpoint that could be loaded: " + "; ".join(reasons)
        )
    return None


def _opened(path: str, comm: Communicator) -> Checkpoint:
    opened: list[Checkpoint] = []

    def work() -> None:
        opened.append(Checkpoint(path, comm.rank, comm.size))
        opened[0].verify(comm.rank, comm.size)

    run_on_all(comm, work)
    return opened[0]


class CheckpointDeserializer(Deserializer):
    """Reads objects from a checkpoint.

    On as many ranks as have written it, each rank gets its own values. On another number of ranks:
    arrays of parameters and optimizers have to be the same on all ranks that had them, or parts of
    a whole; of persistent values of links that differed the ranks get the mean. Other values of
    single ranks go back to the rank of the same number. A rank r that is new gets the numbers and
    strings of rank r % P of the P that wrote, so that it is at the same place of its epoch, but
    keeps its own arrays, so that it does not read the same examples.

    Attributes:
        own: the keys of values that differed between ranks, where the number of ranks has changed.
        read: the keys that were asked for.
        stages: the paths of pipelines, with their ranks and what the stages there alone have: see
            :meth:`staged`.
        ranks_changed: whether another number of ranks has written the checkpoint.
    """

    knows_places = True

    def __init__(self, checkpoint: Checkpoint, strict: bool) -> None:
        self.checkpoint, self.strict = checkpoint, strict
        self.path = ""
        self.where: Place | None = None
        self.own: dict[str, None] = {}
        self.read: dict[str, None] = {}
        self.stages: list[tuple[str, int, list[str]]] = []
        self.ranks_changed = not checkpoint.same_ranks

    def __getitem__(self, key: str) -> CheckpointDeserializer:
        part = copy.copy(self)
        part.path += key.strip("/") + "/"
        return part

    def place(
        self, whole: tuple[int, ...] | None, box: Any, statistic: bool = False
    ) -> CheckpointDeserializer:
        """The part of one parameter."""
        part = copy.copy(self)
        part.where = Place(whole, box, statistic)
        return part

    def staged(self, link: Link, rank: int, shared: Sequence[Parameter]) -> None:
        """Note that the parameters of a link, which all have been read, belong to the stages of a
        rank, but for shared ones.
        """
        others = set(map(id, shared))
        own = [
            part.path.rstrip("/")
            for param, part in link.filed_params(self)
            if id(param) not in others
        ]
        self.stages.append((self.path, rank, own))

    def __call__(self, key: str, value: Any) -> Any:
        key = self.path + key.lstrip("/")
        record = self.checkpoint.records.get(key)
        self.read[key] = None
        if record is None:
            if not self.strict:
                return value
            there = list(self.checkpoint.records)
            some = ", ".join(there[:3]) + " …" * (len(there) > 3)
            raise KeyError(
                f"{self.checkpoint.path} has no {key!r}, but {some}: other names than what is "
                "loaded has"
            )
        own = divided(self.where, value.shape) if is_array(value) else Place(None, None)
        if record.whole is not None or own.box is not None:
            return restored(key, value, self._divided(record, own, value))
        piece = self.checkpoint.pick(record, None)
        found = (
            self._of_ranks(record, value) if piece is None else self.checkpoint.read(record, piece)
        )
        if found is None or value is None or type(found) is type(value):
            return found if not is_array(value) else restored(key, value, found)
        return restored(key, value, np.asarray(found))

    def _divided(self, record: Record, own: Place, value: Any) -> Array:
        """This rank's box of an array that was divided, is divided now, or both."""
        whole = self._whole(record)
        wanted = own.whole if own.box is not None else value.shape if is_array(value) else None
        # whoever asks for it outside of a parameter's place cuts it himself
        if wanted is None and self.where is None:
            return self.checkpoint.assemble(record, Box.whole(whole))
        if wanted is None:
            raise CheckpointError(
                f"{record.key} is a part of {whole}, and nothing says which part this rank "
                "has: the parameter has no array "
                "yet. Call the link once before loading, or give it its sizes"
            )
        if wanted == whole:
            return self.checkpoint.assemble(record, own.box or Box.whole(whole))
        if not _one_matrix(whole, wanted):
            raise ValueError(
                f"{record.key}: saved with shape {whole} in all, but the object's is {wanted}"
            )
        array = self.checkpoint.assemble(record, Box.whole(whole)).reshape(wanted)
        return array if own.box is None else array[own.box.index]

    def _whole(self, record: Record) -> tuple[int, ...]:
        if record.whole is not None:
            return record.whole
        piece = self.checkpoint.pick(record, None)
        if piece is None or piece.dtype is None:
            raise CheckpointError(
                f"{record.key} was not divided, and ranks had different values of it"
            )
        return piece.shape

    def _of_ranks(self, record: Record, value: Any) -> Any:
        """A value that differed between ranks, for one of another number of ranks."""
        opened = self.checkpoint
        if self.where is not None and not self.where.statistic:
            raise CheckpointError(
                f"{record.key} differed between the {opened.written_by} ranks that wrote "
                f"{opened.path}, so another number of "
                "ranks cannot have it. If they are different parameters, give them different "
                "paths; if they are parts of one, "
                "set param.whole and param.box; if they were to be copies, nothing has kept "
                "them equal"
            )
        self.own[record.key] = None
        if self.where is not None and opened.can_average(record):
            return opened.mean(record)
        piece = opened.of_rank(record, arrays=self.where is not None)
        return value if piece is None else opened.read(record, piece)


def _one_matrix(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether both shapes are of one matrix, with its columns on several axes in one of them
    (Linear and SpatialLinear).
    """
    matrix = 2 in (len(one), len(other)) and len(one) != len(other)
    return matrix and one[:1] == other[:1] and math.prod(one) == math.prod(other)


def load(
    directory: str | os.PathLike[str],
    objects: Any,
    comm: Communicator,
    step: int | None = None,
    strict: bool = True,
) -> int | None:
    """Read objects from the newest checkpoint that is whole and undamaged, or from the one of a
    step. Collective.

    The ranks may be as many as wrote it, or more, or fewer. With as many of them, everything goes
    on exactly as it would have. With another number, parameters, optimizers and all that ranks had
    alike are the same. What belonged to single ranks goes back to those of the same number; a
    warning says what it is. Iterators over data that were scattered go on at the same share of the
    epoch, in a new order, ranks that are new draw random numbers of their own, and running
    statistics (persistent values of links) that differed become their mean.

    Args:
        directory: as it was given to :func:`save`.
        objects: as they were given to it, or a dict of some of them; their arrays are filled.
        comm: the ranks that have them.
        step: of the checkpoint; None: the newest. Older ones are tried, with a warning, if it is
            damaged.
        strict: whether a value that the checkpoint does not have is an error; otherwise the object
            keeps its own. What only the checkpoint has is left there. But if stages of a pipeline
            would take the same values of it, and leave others to none of them, that is an error
            too: they count their own layers, and not those of the whole model.

    Returns:
        The step; None if there is no checkpoint (with ``step=None``).

    Raises:
        CheckpointError: on all ranks: the one of ``step``, or each there is, is damaged: with file
            and reason. Or what was saved cannot be divided among this number of ranks, or this
            pipeline.
        KeyError, ValueError, TypeError: it was saved by another program: a value is not there, or
            of another shape or kind. The objects are then partly read.
        ValueError: on all ranks: they name different directories.

    See :func:`save` for an example.
    """
    require_communicator(comm, "load(directory, objects, comm)")
    directory = os.path.abspath(directory)
    checkpoint = choose(directory, comm, step)
    return None if checkpoint is None else _fill(checkpoint, objects, comm, strict)


def load_folder(
    path: str | os.PathLike[str],
    objects: Any,
    comm: Communicator | None = None,
    strict: bool = True,
) -> int:
    """Read objects from one checkpoint, on any number of ranks. Collective.

    Args:
        path: as it was given to :func:`save_folder`, or of a checkpoint in a directory that
            :func:`save` has filled.
        objects: as they were given to it, or a dict of some of them; their arrays are filled.
        comm: the ranks that have them; None: this process alone.
        strict: as :func:`load` has it.

    Returns:
        The step that was given to :func:`save_folder`.

    Raises:
        CheckpointError: on all ranks: it is not there, or damaged: with file and reason.
        KeyError, ValueError, TypeError: as :func:`load`.

    See :func:`save_folder` for an example.
    """
    comm = comm or create_communicator("self")
    directory, name = os.path.split(in_folder(comm, path, lambda: None)[0])
    found = load_newest(directory, lambda: store.versions(directory, name), objects, comm, strict)
    if found is None:
        raise CheckpointError(f"{path} is not there, or is no checkpoint")
    return found


def load_newest(
    directory: str,
    names: Callable[[], Sequence[str]],
    objects: Any,
    comm: Communicator,
    strict: bool = True,
) -> int | None:
    """Read objects from the newest undamaged one of those checkpoints that rank 0 lists, oldest
    first; its step. Collective.
    """
    directory, (listed, *_) = in_folder(
        comm, directory, lambda: list(names()) if comm.rank == 0 else []
    )
    checkpoint = first_good(directory, listed[::-1], comm)
    return None if checkpoint is None else _fill(checkpoint, objects, comm, strict)


def _fill(checkpoint: Checkpoint, objects: Any, comm: Communicator, strict: bool) -> int:
    """Read objects from a checkpoint, close it, and say what could not go on as it was; its step.
    Collective.
    """
    deserializer = CheckpointDeserializer(checkpoint, strict)
    try:
        run_on_all(comm, lambda: _read(deserializer, objects))
        told = comm.allgather_obj((list(deserializer.own), deserializer.stages))
        if strict and any([stages for _, stages in told]):
            _check_stages(deserializer, [stages for _, stages in told], comm)
    finally:
        checkpoint.close()
    for copies in copies_of(list(by_name(objects).values())):
        copies.take_as_given()
    keys = list(dict.fromkeys([key for keys, _ in told for key in keys]))
    if keys and comm.rank == 0:
        warnings.warn(
            f"{checkpoint.path} was written by {checkpoint.written_by} ranks, and read by "
            f"{comm.size}: what belonged to single "
            f"ranks does not go on as it would have: {', '.join(keys[:8])}{' …' * (len(keys) > 8)}",
            stacklevel=3,
        )
    return checkpoint.step


def _check_stages(
    deserializer: CheckpointDeserializer,
    told: Sequence[Sequence[tuple[str, int, list[str]]]],
    comm: Communicator,
) -> None:
    """Whether stages have taken the same layers of a model, each as its own, and left others: those
    that count from 0 on.
    """
    records = deserializer.checkpoint.records
    takers: dict[str, dict[int, None]] = {}
    for stages in told:
        for _, rank, keys in stages:
            for key in keys:
                takers.setdefault(key, {})[rank] = None
    twice = [key for key, ranks in takers.items() if len(ranks) > 1 and key in records]
    # such ones have written it
    by_stages = any([len(each) > 1 for key in twice for each in records[key].versions().values()])
    if not twice or by_stages:
        return
    paths = tuple(dict.fromkeys([path for stages in told for path, _, _ in stages]))
    keys = [key for key in records if key.startswith(paths) and not key.startswith(RANDOM)]
    read = comm.allreduce(np.array([key in deserializer.read for key in keys], np.int8), "max")
    left = [key for key, taken in zip(keys, read, strict=True) if not taken]
    if left:
        more = f" and {len(left) - 1} more" * (len(left) > 1)
        raise CheckpointError(
            f"{deserializer.checkpoint.path} has {left[0]!r}{more}, which no rank takes, while "
            "the stages on ranks "
            f"{list(takers[twice[0]])} of a pipeline take the same {twice[0]!r}: give "
            "parameters the paths of the whole model, "
            "as Pipeline.of does. If each stage is to have these values: strict=False"
        )


def _read(deserializer: CheckpointDeserializer, objects: Any) -> None:
    for name, thing in by_name(objects).items():
        thing.serialize(part(deserializer, name))
    checkpoint = deserializer.checkpoint
    state = {
        key: deserializer[RANDOM](key, None)
        for key in random.get_state()
        if f"{RANDOM}/{key}" in checkpoint.records
    }
    shared = checkpoint.written_by > 1 and not any(
        [key.startswith(RANDOM) for key in deserializer.own]
    )
    if state and None not in state.values() and (shared or checkpoint.rank < checkpoint.written_by):
        try:
            random.set_state({key: json.loads(text) for key, text in state.items()})
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"{checkpoint.path} has a wrong content: {error}") from None


def copies_of(things: list[Any]) -> Iterator[Any]:
    """Whatever would broadcast rank 0's values at first: links, and multi-node optimizers whose
    models were loaded too.
    """
    for thing in things:
        updater: Any = getattr(thing, "updater", None)
        if hasattr(updater, "get_all_optimizers"):
            yield from copies_of(
                [
                    x
                    for optimizer in updater.get_all_optimizers().values()
                    for x in (optimizer, optimizer.target)
                ]
            )
        elif isinstance(thing, Link):
            yield from (link for link in thing.links() if hasattr(link, "take_as_given"))
        elif (
            any([getattr(thing, "target", None) is other for other in things])
            and getattr(thing, "sync", None) is not None
        ):
            yield thing.sync
