"""Saving a checkpoint: every rank writes a shard into a hidden folder, and rank 0 gives the folder
its name when all shards are there.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from mnpar import random
from mnpar.backend import Array
from mnpar.checkpoint import store
from mnpar.checkpoint.manifest import EntryRecorder, ManifestEntry, Record, combine, to_json
from mnpar.checkpoint.store import agree_on_folder
from mnpar.communicators import create_communicator
from mnpar.communicators.communicator import require_communicator
from mnpar.communicators.consensus import run_on_all
from mnpar.serializer import AbstractSerializer, Serializable
from mnpar.serializers.safetensors import NAMES, write_safetensors

if TYPE_CHECKING:
    from mnpar.communicators import Communicator


Objects: TypeAlias = Serializable | Mapping[str, Serializable]  # one object, or several by name
RANDOM = "mnpar.random"  # the key of the state of the ranks' generators


def save(directory: str | os.PathLike[str], objects: Objects, comm: Communicator, step: int) -> str:
    """Write a checkpoint of the objects of all ranks; it is there whole or, whatever happens
    meanwhile, not at all. Collective.

    Values that ranks have alike are written once; parameters that are parts of a whole
    (``param.whole``, ``param.box``) are put together when any number of ranks loads them. The
    ranks' random generators (:func:`mnpar.random.generator`) are saved too.

    Args:
        directory: on a file system that all ranks share, the same on all ranks; is made if
            necessary.
        objects: an object that has ``serialize`` (a link, an optimizer, an iterator, a Trainer), or
            a dict of such objects by name.
        comm: the ranks that have the objects.
        step: the number of the iteration, 0 or more; an older checkpoint of this step stays until
            it is collected.

    Returns:
        The path of the checkpoint.

    Raises:
        OSError: on all ranks, if one of them could not write; no trace of the attempt is left.
        TypeError: a value is no array, number, string or None. ValueError: parts do not make a
            whole, or ranks name different directories.

    Example:
        >>> import tempfile, mnpar, mnpar.links as L
        >>> from mnpar import checkpoint
        >>> def program(comm, folder):
        ...     model = L.Linear(3, 2)
        ...     model.W.array[...] = 1
        ...     checkpoint.save(folder, {"model": model}, comm, step=10)
        ...     model.W.array[...] = 2
        ...     return checkpoint.load(folder, {"model": model}, comm), model.W.array[0, 0].item()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     mnpar.run(program, ranks=2, args=(folder,))
        [(10, 1.0), (10, 1.0)]
    """
    require_communicator(comm, "save(directory, objects, comm, step)")
    return _save(directory, objects, comm, step)


def save_folder(
    path: str | os.PathLike[str], objects: Objects, comm: Communicator | None = None, step: int = 0
) -> str:
    """Write one checkpoint under a name of your own, as :func:`save` writes those of a directory.
    Collective.

    It replaces a checkpoint of this name; whatever happens meanwhile, :func:`load_folder` finds the
    old one or the new one.

    Args:
        path: of the folder that will have the shards and the manifest.
        objects: as for :func:`save`.
        comm: the ranks that have the objects; None: this process alone.
        step: a number that is saved with them.

    Returns:
        The path.

    Raises:
        FileExistsError: on all ranks, if the path is something else than a checkpoint.
        OSError, TypeError, ValueError: as :func:`save`.

    Example:
        >>> import os, tempfile, mnpar.links as L
        >>> from mnpar import checkpoint
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = checkpoint.save_folder(
        ...         os.path.join(folder, "model"), L.Linear(3, 2), step=10
        ...     )
        ...     print(sorted(os.listdir(path)), checkpoint.load_folder(path, L.Linear(3, 2)))
        ['manifest.json', 'shard-00000-of-00001.safetensors'] 10
    """
    directory, name = os.path.split(os.path.abspath(path))
    return _save(directory, objects, comm or create_communicator("self"), step, name)


def _save(
    directory: str | os.PathLike[str],
    objects: Objects,
    comm: Communicator,
    step: int,
    name: str | None = None,
) -> str:
    draft = begin(directory, objects, comm, step, name)
    try:
        shards = run_on_all(comm, lambda: write_shard(draft), root=0)
        return run_on_all(comm, lambda: complete(draft, shards) if comm.rank == 0 else "")[0]
    except BaseException:
        if comm.rank == 0:
            store.discard(draft.hidden)
        raise


@dataclass
class Draft:
    """A checkpoint that is being written: what all ranks agreed on, and the values that this rank
    writes.
    """

    directory: str
    hidden: str  # the folder that is filled
    name: store.Name | str
    step: int
    rank: int
    size: int
    records: dict[str, Record]
    arrays: dict[str, Array]  # of this rank


def begin(
    directory: str | os.PathLike[str],
    objects: Objects,
    comm: Communicator,
    step: int,
    name: str | None = None,
    copies: bool = False,
) -> Draft:
    """Agree on a checkpoint, and make its hidden folder. Collective.

    Args:
        directory, objects, comm, step: as for :func:`save`.
        name: of the checkpoint in the directory; None: the step's.
        copies: take copies of the values, which may then change as soon as this returns.
    """
    recorder = EntryRecorder(copies)
    path, gathered = agree_on_folder(
        comm, os.path.join(directory, name or ""), lambda: _record(recorder, objects, step)
    )
    directory = path if name is None else os.path.dirname(path)
    records = combine(gathered)  # the same error on all ranks, if any
    named = store.Name(step, 1) if name is None else name
    hidden = run_on_all(comm, lambda: store.begin(directory, named) if comm.rank == 0 else None)[0]
    assert hidden is not None
    written = {
        r.key
        for r in records.values()
        if any([p.dtype is not None and p.file == comm.rank for p in r.pieces])
    }
    arrays = {key: array for key, array in recorder.arrays.items() if key in written}
    return Draft(directory, hidden, named, int(step), comm.rank, comm.size, records, arrays)


def complete(draft: Draft, shards: Sequence[store.Shard | None]) -> str:
    """Write the manifest, give the checkpoint its name, and return its path; on rank 0, when all
    shards are there.
    """
    content = {
        "step": draft.step,
        "ranks": draft.size,
        "files": {
            name: [size, digest] for shard in shards if shard for name, size, digest in [shard]
        },
        "records": to_json(draft.records, draft.size),
    }
    return store.finish(draft.directory, draft.hidden, draft.name, content)


def by_name(objects: Objects) -> Mapping[str, Serializable]:
    """Return the objects of a checkpoint by name; a single object has the name ``""``.

    Raises:
        TypeError: an object cannot be saved.
    """
    named = objects if isinstance(objects, Mapping) else {"": objects}
    for name, thing in named.items():
        if not hasattr(thing, "serialize"):
            raise TypeError(
                "a checkpoint has objects with serialize(serializer), as links and optimizers "
                f"are: {name or 'this one'} is of "
                f"{type(thing).__name__}. Arrays and numbers need a class, with self.x = "
                "serializer('x', self.x) in serialize"
            )
    return named


def part(serializer: AbstractSerializer, name: str) -> AbstractSerializer:
    """Return the serializer of one of the objects."""
    return serializer[name] if name else serializer


def _record(recorder: EntryRecorder, objects: Objects, step: int) -> list[ManifestEntry]:
    if isinstance(step, bool) or not isinstance(step, int | np.integer) or step < 0:
        raise ValueError(f"step = {step!r}: a checkpoint has the number of an iteration, 0 or more")
    for name, thing in by_name(objects).items():
        thing.serialize(part(recorder, name))
    for key, value in random.get_state().items():
        recorder[RANDOM](key, json.dumps(value))
    store.reach("recorded")
    return list(recorder.entries.values())


def write_shard(draft: Draft) -> store.Shard | None:
    """Write this rank's shard, and return its name, size and digest; None if the rank has nothing
    to write.
    """
    arrays = {
        piece.name: _storable(draft.arrays[record.key])
        for record in draft.records.values()
        for piece in record.pieces
        if piece.dtype is not None and piece.file == draft.rank
    }
    if not arrays:
        return None
    if not os.path.isdir(draft.hidden):
        raise FileNotFoundError(
            errno.ENOENT,
            "what rank 0 has made is not there: checkpoints need a file system that all ranks "
            "share",
            draft.hidden,
        )
    name = store.shard_name(draft.rank, draft.size)
    with store.ShardFile(os.path.join(draft.hidden, name)) as file:
        write_safetensors(file, arrays, checksums=False)  # the manifest has a digest of each file
    return store.Shard(name, *file.seal())


def _storable(array: Array) -> Array:
    """Return the array as the format has it: as bytes, if the format has no such dtype."""
    if array.dtype.name in NAMES:
        return array
    return np.frombuffer(array.tobytes(), np.uint8)
