"""Saving: every rank writes its share of what all ranks have, and rank 0 names the result when all of them have."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from mnpar import random
from mnpar.backend import Array
from mnpar.checkpoint import store
from mnpar.checkpoint.contents import Record, combine, to_json
from mnpar.checkpoint.entries import Entry, Recorder
from mnpar.checkpoint.together import together
from mnpar.serializers.safetensors import NAMES, write_safetensors

if TYPE_CHECKING:
    from mnpar.communicators import Communicator

RANDOM = "mnpar.random"  # under which the state of the ranks' generators is kept


def save(directory: str | os.PathLike[str], objects: Any, comm: Communicator, step: int) -> str:
    """Write a checkpoint of what all ranks have; it is there whole or, whatever happens meanwhile, not at all. Collective.

    What ranks have alike is written once; parameters that are parts of a whole (``param.whole``, ``param.box``) are put
    together when they are loaded, by any number of ranks. The ranks' random generators (:func:`mnpar.random.generator`) are
    in it too.

    Args:
        directory: one on a file system that all ranks share, the same on all of them; is made if necessary.
        objects: what has ``serialize`` (a link, an optimizer, an iterator, a Trainer), or a dict of such by name.
        comm: the ranks that have them.
        step: the number of the iteration, 0 or more; a step that is there already stays until it is collected.

    Returns:
        The path of the checkpoint.

    Raises:
        OSError: on all ranks, if one of them could not write; no trace of the attempt is left.
        TypeError: something in it is no array, number, string or None. ValueError: parts do not make a whole.

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
    recorder = Recorder()
    gathered = together(comm, lambda: _record(recorder, objects, step))
    records = combine(gathered)  # the same error on all ranks, if any
    directory = os.path.abspath(directory)
    hidden = together(comm, lambda: store.begin(directory, step) if comm.rank == 0 else None)[0]
    assert hidden is not None
    try:
        shards = together(comm, lambda: _write_shard(hidden, comm, records, recorder.arrays))
        content = {
            "step": step,
            "ranks": comm.size,
            "files": {name: [size, digest] for shard in shards if shard for name, size, digest in [shard]},
            "records": to_json(records, comm.size),
        }
        name = store.Name(step, 1)
        paths = together(comm, lambda: store.finish(directory, hidden, name, content) if comm.rank == 0 else "")
    except BaseException:
        if comm.rank == 0:
            store.discard(hidden)
        raise
    return paths[0]


def by_name(objects: Any) -> Mapping[str, Any]:
    """The objects of a checkpoint by name: one alone has none."""
    return objects if isinstance(objects, Mapping) else {"": objects}


def part(serializer: Any, name: str) -> Any:
    """The serializer of one of the objects."""
    return serializer[name] if name else serializer


def _record(recorder: Recorder, objects: Any, step: int) -> list[Entry]:
    if isinstance(step, bool) or not isinstance(step, int | np.integer) or step < 0:
        raise ValueError(f"step = {step!r}: a checkpoint has the number of an iteration, 0 or more")
    for name, thing in by_name(objects).items():
        thing.serialize(part(recorder, name))
    for key, value in random.get_state().items():
        recorder[RANDOM](key, json.dumps(value))
    store.reach("recorded")
    return list(recorder.entries.values())


def _write_shard(
    hidden: str, comm: Communicator, records: dict[str, Record], own: dict[str, Array]
) -> tuple[str, int, str] | None:
    """Name, size and digest of this rank's shard; None if it has nothing to write."""
    arrays = {
        piece.name: _storable(own[record.key])
        for record in records.values()
        for piece in record.pieces
        if piece.dtype is not None and piece.file == comm.rank
    }
    if not arrays:
        return None
    if not os.path.isdir(hidden):
        raise FileNotFoundError(
            errno.ENOENT, "what rank 0 has made is not there: checkpoints need a file system that all ranks share", hidden
        )
    name = store.shard_name(comm.rank, comm.size)
    with store.ShardFile(os.path.join(hidden, name)) as file:
        write_safetensors(file, arrays)
    return (name, *file.seal())


def _storable(array: Array) -> Array:
    """The array as the format has it; what it has no dtype for, as bytes."""
    if array.dtype.name in NAMES:
        return array
    return np.frombuffer(array.tobytes(), np.uint8)
