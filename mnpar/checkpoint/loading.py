"""Loading a checkpoint: each rank reads the values that it needs, whichever ranks wrote the
pieces.
"""

from __future__ import annotations

import copy
import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mnpar import random
from mnpar.backend import Array, is_array
from mnpar.checkpoint import store
from mnpar.checkpoint.manifest import ArrayPart, Record, divided
from mnpar.checkpoint.reader import CheckpointReader, open_first_good, open_newest
from mnpar.checkpoint.saving import RANDOM, Objects, by_name, part
from mnpar.checkpoint.store import agree_on_folder
from mnpar.communicators import create_communicator
from mnpar.communicators.communicator import require_communicator
from mnpar.communicators.consensus import run_on_all
from mnpar.errors import CheckpointError
from mnpar.link import Link
from mnpar.parameter import Parameter
from mnpar.plans import Box
from mnpar.runtime.callsite import warn_user
from mnpar.serializer import Deserializer
from mnpar.serializers.restore import restore_value

if TYPE_CHECKING:
    from mnpar.communicators import Communicator


NODE_LOCAL = "_node_local"  # the name, among objects, of the ranks that a folder belongs to


class CheckpointDeserializer(Deserializer):
    """Reads objects from a checkpoint.

    On as many ranks as wrote it, each rank gets its own values. On another number of ranks, arrays
    of parameters and optimizers must be the same on all ranks that had them, or parts of a whole;
    ranks get the mean of links' persistent values that differed. Other values of single ranks go
    back to the rank of the same number. A new rank r gets the numbers and strings of rank r % P of
    the P that wrote, so that it is at the same place of its epoch, but keeps its own arrays, so
    that it does not read the same examples.

    Attributes:
        own: the keys of values that differed between ranks, where the number of ranks has changed.
        read: the keys that were asked for.
        stages: the paths of pipelines, their ranks, and the parameters of these ranks' stages
            alone: see :meth:`staged`.
        ranks_changed: whether another number of ranks wrote the checkpoint.
    """

    knows_places = True

    def __init__(self, checkpoint: CheckpointReader, strict: bool) -> None:
        self.checkpoint, self.strict = checkpoint, strict
        self.path = ""
        self.where: ArrayPart | None = None
        self.own: dict[str, None] = {}
        self.read: dict[str, None] = {}
        self.stages: list[tuple[str, int, list[str]]] = []
        self.ranks_changed = not checkpoint.same_ranks

    def __getitem__(self, key: str) -> CheckpointDeserializer:
        part = copy.copy(self)
        part.path += key.strip("/") + "/"
        return part

    def place(
        self, whole: tuple[int, ...] | None, box: Box | None, statistic: bool = False
    ) -> CheckpointDeserializer:
        """Return the deserializer of a parameter that is a part of an array."""
        part = copy.copy(self)
        part.where = ArrayPart(whole, box, statistic)
        return part

    def staged(self, link: Link, rank: int, shared: Sequence[Parameter]) -> None:
        """Note that the parameters of a link, apart from shared ones, belong to the stages of a
        rank; called when all have been read.
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
        own = divided(self.where, value.shape) if is_array(value) else ArrayPart(None, None)
        if record.whole is not None or own.box is not None:
            return restore_value(key, value, self._divided(record, own, value))
        piece = self.checkpoint.pick(record, None)
        found = (
            self._of_ranks(record, value) if piece is None else self.checkpoint.read(record, piece)
        )
        if found is None or value is None or type(found) is type(value):
            return found if not is_array(value) else restore_value(key, value, found)
        return restore_value(key, value, np.asarray(found))

    def _divided(self, record: Record, own: ArrayPart, value: Any) -> Array:
        """Return this rank's box of an array that was divided, is divided now, or both."""
        whole = self._whole(record)
        wanted = own.whole if own.box is not None else value.shape if is_array(value) else None
        # outside of a parameter, the caller cuts the array
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
        """Return a value that differed between ranks, for one of another number of ranks."""
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
    """Return whether both shapes are of one matrix, with its columns on several axes in one of them
    (Linear and SpatialLinear).
    """
    matrix = 2 in (len(one), len(other)) and len(one) != len(other)
    return matrix and one[:1] == other[:1] and math.prod(one) == math.prod(other)


def load(
    directory: str | os.PathLike[str],
    objects: Objects,
    comm: Communicator,
    step: int | None = None,
    strict: bool = True,
) -> int | None:
    """Read objects from the newest checkpoint that is whole and undamaged, or from the one of a
    step. Collective.

    The ranks may be as many as wrote it, or more, or fewer. With as many, everything continues
    exactly as it would have. With another number, parameters, optimizers and all values that ranks
    had alike are the same. Values of single ranks go back to the ranks of the same numbers; a
    warning names them. Iterators over scattered data continue at the same share of the epoch, in a
    new order, new ranks draw random numbers of their own, and running statistics (persistent values
    of links) that differed become their mean.

    Args:
        directory: as for :func:`save`.
        objects: as for :func:`save`, or a dict of some of them; their arrays are filled.
        comm: the ranks that have the objects.
        step: of the checkpoint; None: the newest. Older ones are tried, with a warning, if it is
            damaged.
        strict: a value that the checkpoint does not have is an error; otherwise the object keeps
            its own. Values that only the checkpoint has are ignored. But if stages of a pipeline
            would get the same values, and other values would go to none of them, that is an error
            too: the stages count their own layers, and not those of the whole model.

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
    checkpoint = open_newest(directory, comm, step)
    if checkpoint is None:
        return None
    if f"{NODE_LOCAL}/ranks" in checkpoint.records and not checkpoint.same_ranks:
        checkpoint.close()
        raise CheckpointError(
            f"{checkpoint.path} has what {checkpoint.written_by} of the ranks of a job wrote into "
            f"a folder of their own, and {comm.size} ranks read it: each rank names its own folder "
            "again, or as many ranks as wrote this one read it"
        )
    return _fill(checkpoint, objects, comm, strict)


def load_folder(
    path: str | os.PathLike[str],
    objects: Objects,
    comm: Communicator | None = None,
    strict: bool = True,
) -> int:
    """Read objects from one checkpoint, on any number of ranks. Collective.

    Args:
        path: as for :func:`save_folder`, or of a checkpoint in a directory that :func:`save`
            filled.
        objects: as for :func:`save`, or a dict of some of them; their arrays are filled.
        comm: the ranks that have the objects; None: this process alone.
        strict: as :func:`load` has it.

    Returns:
        The step that was given to :func:`save_folder`.

    Raises:
        CheckpointError: on all ranks: it is not there, or damaged: with file and reason.
        KeyError, ValueError, TypeError: as :func:`load`.

    See :func:`save_folder` for an example.
    """
    comm = comm or create_communicator("self")
    directory, name = os.path.split(agree_on_folder(comm, path, lambda: None)[0])
    found = load_newest(directory, lambda: store.versions(directory, name), objects, comm, strict)
    if found is None:
        raise CheckpointError(f"{path} is not there, or is no checkpoint")
    return found


def load_newest(
    directory: str,
    names: Callable[[], Sequence[str]],
    objects: Objects,
    comm: Communicator,
    strict: bool = True,
) -> int | None:
    """Read objects from the newest undamaged one of the checkpoints that rank 0 lists, oldest
    first; return its step. Collective.
    """
    directory, (listed, *_) = agree_on_folder(
        comm, directory, lambda: list(names()) if comm.rank == 0 else []
    )
    checkpoint = open_first_good(directory, listed[::-1], comm)
    return None if checkpoint is None else _fill(checkpoint, objects, comm, strict)


def _fill(checkpoint: CheckpointReader, objects: Objects, comm: Communicator, strict: bool) -> int:
    """Read objects from a checkpoint, close it, warn of values of single ranks, and return its
    step. Collective.
    """
    deserializer = CheckpointDeserializer(checkpoint, strict)
    try:
        run_on_all(comm, lambda: _read(deserializer, objects))
        found = comm.allgather_obj((list(deserializer.own), deserializer.stages))
        if strict and any([stages for _, stages in found]):
            _check_stages(deserializer, [stages for _, stages in found], comm)
    finally:
        checkpoint.close()
    for copies in copies_of(list(by_name(objects).values())):
        copies.take_as_given()
    keys = list(dict.fromkeys([key for keys, _ in found for key in keys]))
    if keys and comm.rank == 0:
        warn_user(
            f"{checkpoint.path} was written by {checkpoint.written_by} ranks and is read by "
            f"{comm.size}: weights, optimizers and all that ranks had alike go on exactly, but not "
            f"what belonged to single ranks: {', '.join(keys[:8])}{' …' * (len(keys) > 8)}"
        )
    return checkpoint.step


def _check_stages(
    deserializer: CheckpointDeserializer,
    found: Sequence[Sequence[tuple[str, int, list[str]]]],
    comm: Communicator,
) -> None:
    """Check that stages that each count their layers from 0 did not read the same layers of a
    model, and no rank the others.

    Raises:
        CheckpointError: they did; on all ranks.
    """
    records = deserializer.checkpoint.records
    readers: dict[str, dict[int, None]] = {}
    for stages in found:
        for _, rank, keys in stages:
            for key in keys:
                readers.setdefault(key, {})[rank] = None
    twice = [key for key, ranks in readers.items() if len(ranks) > 1 and key in records]
    # such stages wrote it
    by_stages = any([len(each) > 1 for key in twice for each in records[key].versions().values()])
    if not twice or by_stages:
        return
    paths = tuple(dict.fromkeys([path for stages in found for path, _, _ in stages]))
    keys = [key for key in records if key.startswith(paths) and not key.startswith(RANDOM)]
    read = comm.allreduce(np.array([key in deserializer.read for key in keys], np.int8), "max")
    left = [key for key, was_read in zip(keys, read, strict=True) if not was_read]
    if left:
        more = f" and {len(left) - 1} more" * (len(left) > 1)
        raise CheckpointError(
            f"{deserializer.checkpoint.path} has {left[0]!r}{more}, which no rank takes, while "
            "the stages on ranks "
            f"{list(readers[twice[0]])} of a pipeline take the same {twice[0]!r}: give "
            "parameters the paths of the whole model, "
            "as Pipeline.of does. If each stage is to have these values: strict=False"
        )


def _read(deserializer: CheckpointDeserializer, objects: Objects) -> None:
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
    """Yield what would broadcast rank 0's values at first: links, and multi-node optimizers whose
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
