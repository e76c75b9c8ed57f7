"""Reads npz files that may be damaged or malicious: nothing in them is executed, and sizes are
checked before they are used.

Pickled objects are refused, but for None, which Chainer writes: it is recognised by the end of its
pickle.
"""

from __future__ import annotations

import math
import os
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np

from mnpar.backend import Array
from mnpar.errors import CheckpointError

# How the pickle of numpy.asarray(None) ends, in every version: a new list, None appended, as the
# content of the array. (q, r, p and \x94 number the things made.)
_MEMO = rb"(?:q.|r.{4}|p\d+\n|\x94)?"
_ENDS_WITH_NONE = re.compile(rb"(?:\]|\(l)" + _MEMO + rb"Nat" + _MEMO + rb"b\.\Z", re.DOTALL)
_CHUNK = 1 << 22
_RATIO = 1100  # deflate reaches 1032


class NpzFile(Mapping[str, Any]):
    """An npz file as a mapping from keys to arrays, and to None where Chainer wrote None; each is
    read when it is asked for.

    Nothing is unpickled, nothing is unpacked to the disk, and no more memory is asked for than the
    file can fill.

    Args:
        file: a path, or a file open for reading.

    Raises:
        CheckpointError: it is no such file; an array, when it is read, is damaged, or an object.

    Example:
        >>> import io, numpy as np, mnpar
        >>> file = io.BytesIO()
        >>> np.savez(file, a=np.arange(3))
        >>> with mnpar.serializers.NpzFile(file) as npz:
        ...     dict(npz)
        {'a': array([0, 1, 2])}
    """

    def __init__(self, file: str | os.PathLike[str] | BinaryIO) -> None:
        self.name = (
            os.fspath(file)
            if isinstance(file, str | os.PathLike)
            else getattr(file, "name", "the file")
        )
        try:
            self._archive = zipfile.ZipFile(file)
        except (zipfile.BadZipFile, NotImplementedError) as error:
            raise CheckpointError(f"{self.name} is no npz file: {error}") from None
        self._members: dict[str, zipfile.ZipInfo] = {}
        for info in self._archive.infolist():
            if info.filename.removesuffix(".npy") in self._members:
                self.close()
                raise CheckpointError(f"{self.name} has two entries {info.filename!r}")
            self._members[info.filename.removesuffix(".npy")] = info

    def __enter__(self) -> NpzFile:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._archive.close()

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __contains__(self, key: object) -> bool:
        return key in self._members

    def __getitem__(self, key: str) -> Any:
        if key not in self._members:
            raise KeyError(f"{self.name} has no {key!r}; it has {_shorten(self._members)}")
        info = self._members[key]
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise CheckpointError(
                f"{self.name}, {key}: npz files are not compressed by method {info.compress_type}"
            )
        if info.file_size > _RATIO * info.compress_size + _CHUNK:
            raise CheckpointError(
                f"{self.name}, {key}: {info.compress_size} bytes cannot unpack to {info.file_size}"
            )
        try:
            with self._archive.open(info) as member:
                return _read_array(member, info.file_size)
        except (
            zipfile.BadZipFile,
            zlib.error,
            ValueError,
            EOFError,
            NotImplementedError,
            RuntimeError,
        ) as error:
            raise CheckpointError(f"{self.name}, {key}: {error}") from None


def _read_array(member: Any, size: int) -> Array | None:
    version = np.lib.format.read_magic(member)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"version {version} of the npy format is not known")
    read = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
    shape, fortran, dtype = read(member)
    left = size - member.tell()
    if dtype.hasobject:
        if (
            dtype.kind == "O"
            and shape == ()
            and left < 1000
            and _ENDS_WITH_NONE.search(member.read())
        ):
            return None
        raise ValueError("it is a pickled object, which is not read: it could run any program")
    count = math.prod(shape)
    if count * dtype.itemsize != left or min(shape, default=0) < 0:
        raise ValueError(
            f"shape {shape} of {dtype} takes {count * dtype.itemsize} bytes, but there are {left}"
        )
    array = np.empty(shape, dtype, "F" if fortran else "C")
    if left:
        _fill(member, memoryview(array.reshape(-1, order="A").view(np.uint8)))  # type: ignore[arg-type]
    else:
        _fill(member, memoryview(b""))
    return array


def _fill(member: Any, buffer: memoryview) -> None:
    """Read exactly the buffer, to the end of the member, so that its CRC is compared."""
    at = 0
    while at < len(buffer):
        data = member.read(min(_CHUNK, len(buffer) - at))
        if not data:
            raise EOFError(f"it ends after {at} of {len(buffer)} bytes")
        buffer[at : at + len(data)] = data
        at += len(data)
    if member.read(1):
        raise ValueError("there is more than its size says")


def _shorten(names: Any, limit: int = 12) -> str:
    names = list(names)
    return (", ".join(names[:limit]) or "nothing") + (
        f" and {len(names) - limit} more" if len(names) > limit else ""
    )
