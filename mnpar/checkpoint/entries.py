"""The list of what a rank has to save, made by a serializer that writes nothing: each value, and
its place in a whole array.
"""

from __future__ import annotations

import copy
import hashlib
import json
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.plans import Box
from mnpar.serializer import Serializer

PLAIN = (bool, int, float, str, type(None))


class Place(NamedTuple):
    """The part of a whole array that a parameter of this rank is; ``(None, None)`` if this rank has
    all of it.
    """

    whole: tuple[int, ...] | None
    box: Box | None
    statistic: bool = False  # an estimate that each rank makes for itself, as a running mean


@dataclass(frozen=True)
class Entry:
    """The description of a value of one rank, which is sent to all ranks."""

    key: str
    dtype: str | None  # None: ``plain`` is the value
    shape: tuple[int, ...]
    plain: Any
    whole: tuple[int, ...] | None  # of which this is a part
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


class Recorder(Serializer):
    """Lists the values of objects.

    Args:
        copies: keep copies of arrays instead of the arrays.

    Example:
        >>> import mnpar
        >>> from mnpar.checkpoint.entries import Recorder
        >>> recorder = Recorder()
        >>> recorder["model"].save(mnpar.links.Linear(3, 2))
        >>> [(entry.key, entry.shape) for entry in recorder.entries.values()]
        [('model/W', (2, 3)), ('model/b', (2,))]
    """

    knows_places = True

    def __init__(self, copies: bool = False) -> None:
        self.path, self.copies = "", copies
        self.where: Place | None = None
        self.entries: dict[str, Entry] = {}
        self.arrays: dict[str, Array] = {}

    def __getitem__(self, key: str) -> Recorder:
        part = copy.copy(self)
        part.path += key.strip("/") + "/"
        return part

    def place(self, whole: tuple[int, ...] | None, box: Any, statistic: bool = False) -> Recorder:
        """The part of one parameter."""
        if (whole is None) != (box is None) or (box is not None and len(whole or ()) != box.ndim):
            raise ValueError(
                f"{self.path}: a part has a box and a whole of as many axes, not {box} and {whole}"
            )
        part = copy.copy(self)
        part.where = Place(whole, box)
        return part

    def __call__(self, key: str, value: Any) -> Any:
        key = self.path + key.lstrip("/")
        if key in self.entries:
            raise ValueError(f"{key} is saved twice: the parts of an object have different names")
        if type(value) in PLAIN:
            text = json.dumps(value, allow_nan=True)
            self.entries[key] = Entry(
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
        self.entries[key] = Entry(key, name, array.shape, None, whole, box, _digest(array))
        return value


def divided(where: Place | None, shape: tuple[int, ...]) -> Place:
    """The place of an array that belongs to a parameter. One that has not the shape of the box, as
    a count, is not divided.
    """
    if where is None or where.box is None or where.box.shape != shape:
        return Place(None, None)
    return where


def _digest(array: Array) -> bytes:
    digest = hashlib.sha256(f"{array.dtype} {array.shape} ".encode())
    digest.update(backend.as_bytes(array))
    return digest.digest()
