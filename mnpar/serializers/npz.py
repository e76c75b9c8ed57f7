"""Chainer's npz files: an archive of arrays, each under the path of its part, joined by slashes
(``l1/W``).

Files may be damaged or malicious: nothing in them is executed or unpickled, and sizes are checked
before they are used. The one object that Chainer puts into such a file is None, for a parameter
without an array, which numpy pickles. It is written here by constant bytes that every numpy takes
for None, and recognized by the end of its pickle; other objects are refused.
"""

from __future__ import annotations

import copy
import math
import os
import re
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.errors import CheckpointError, listed
from mnpar.serializer import Deserializer, Serializable, Serializer
from mnpar.serializers.atomic import replacing
from mnpar.serializers.restore import IgnoreNames, is_ignored, restore_value

# The pickle of numpy.asarray(None), under the older name of numpy's module, which every version
# understands.
_NONE = (
    b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85"
    b"c_codecs\nencode\nX\x01\x00\x00\x00bX\x06\x00\x00\x00latin1\x86R\x87R"
    b"(K\x01)cnumpy\ndtype\nX\x02\x00\x00\x00O8\x89\x88\x87R(K\x03X\x01\x00\x00\x00|"
    b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK?tb\x89]Natb."
)


class DictionarySerializer(Serializer):
    """Writes an object's arrays into a dict, under slash-joined keys.

    Args:
        target: the dict; None makes a new one.
        path: put before all keys.

    Example:
        >>> import mnpar
        >>> serializer = mnpar.serializers.DictionarySerializer()
        >>> serializer.save(mnpar.Chain(l1=mnpar.links.Linear(3, 2)))
        >>> {key: array.shape for key, array in serializer.target.items()}
        {'l1/W': (2, 3), 'l1/b': (2,)}
    """

    of_chainer = True

    def __init__(self, target: dict[str, Array] | None = None, path: str = "") -> None:
        self.target = {} if target is None else target
        self.path = path

    def __getitem__(self, key: str) -> DictionarySerializer:
        part = copy.copy(self)
        part.path += key.strip("/") + "/"
        return part

    def __call__(self, key: str, value: Any) -> Any:
        self.target[self.path + key.lstrip("/")] = np.asarray(backend.to_host(value))
        return value


def _collect(obj: Serializable) -> dict[str, Array]:
    serializer = DictionarySerializer()
    serializer.save(obj)
    return serializer.target


def serialize(obj: Serializable) -> dict[str, Array]:
    """Return copies, on the host, of what an object saves, by slash-joined keys: to be written
    later, while training changes the object.

    The keys are those of npz and HDF5 files. In safetensors files the links of a Sequential have
    other numbers (see chain.py): :func:`save_safetensors` and :func:`load_safetensors` go together.

    Args:
        obj: has ``serialize``.

    Example:
        >>> import mnpar
        >>> list(mnpar.serializers.serialize(mnpar.links.Linear(3, 2)))
        ['W', 'b']
    """
    return {key: np.array(array) for key, array in _collect(obj).items()}


def save_npz(
    file: str | os.PathLike[str] | BinaryIO,
    obj: Serializable | Mapping[str, Array],
    compression: bool = True,
) -> None:
    """Write an object to a file that Chainer reads too; under a name, it is there whole or not at
    all.

    Args:
        file: a path, taken as it is, or a file open for writing.
        obj: has ``serialize``: a Link, an Optimizer, an iterator, a Trainer; or a dict that
            :func:`serialize` returned.
        compression: whether to make the file smaller, which takes time: weights hardly shrink.

    Raises:
        TypeError: there is something in it that is not an array, a number, a string or None.

    Example:
        >>> import os, tempfile, mnpar
        >>> a, b = mnpar.links.Linear(3, 2), mnpar.links.Linear(3, 2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     mnpar.serializers.save_npz(os.path.join(folder, "model.npz"), a)
        ...     mnpar.serializers.load_npz(os.path.join(folder, "model.npz"), b)
        >>> bool((a.W.array == b.W.array).all())
        True
    """
    arrays: Mapping[str, Array] = obj if isinstance(obj, Mapping) else _collect(obj)
    if isinstance(file, str | os.PathLike):
        with replacing(file) as stream:
            save_npz(stream, arrays, compression)
        return
    method = zipfile.ZIP_DEFLATED if compression else zipfile.ZIP_STORED
    with zipfile.ZipFile(file, "w", method, allowZip64=True) as archive:
        for key, array in arrays.items():
            with archive.open(key + ".npy", "w", force_zip64=True) as member:
                _write_array(key, member, array)


def _write_array(key: str, member: Any, array: Array) -> None:
    if not array.dtype.hasobject:
        np.lib.format.write_array(member, array, allow_pickle=False)
        return
    if array.shape != () or array[()] is not None:
        raise TypeError(
            f"{key}: a file has arrays, numbers, strings and None, not a "
            f"{type(array.flat[0]).__name__}"
        )
    np.lib.format.write_array_header_1_0(
        member, {"descr": "|O", "fortran_order": False, "shape": ()}
    )
    member.write(_NONE)


class NpzDeserializer(Deserializer):
    """Reads objects from the arrays of an npz file, as Chainer does.

    Args:
        npz: an :class:`NpzFile`, a dict from a :class:`DictionarySerializer`, or what
            ``numpy.load`` returned.
        path: put before all keys.
        strict: whether a key that is missing is an error; otherwise the object keeps what it has.
        ignore_names: keys that are not read: a string, a function of the key that says so, or a
            list of such.

    Raises:
        KeyError: a key is missing; ValueError: shapes differ; TypeError: dtypes do not fit;
            CheckpointError: as NpzFile.

    Example:
        >>> import numpy as np, mnpar
        >>> layer = mnpar.links.Linear(2, 1)
        >>> mnpar.serializers.NpzDeserializer({"W": np.array([[1.0, 2.0]]), "b": np.zeros(1)}).load(
        ...     layer
        ... )
        >>> layer.W.array
        array([[1., 2.]], dtype=float32)
    """

    of_chainer = True

    def __init__(
        self,
        npz: Mapping[str, Any],
        path: str = "",
        strict: bool = True,
        ignore_names: IgnoreNames = None,
    ) -> None:
        self.npz = npz
        self.path = path
        self.strict = strict
        self.ignore_names = ignore_names

    def __getitem__(self, key: str) -> NpzDeserializer:
        part = copy.copy(self)
        part.path += key.strip("/") + "/"
        return part

    def __call__(self, key: str, value: Any) -> Any:
        key = self.path + key.lstrip("/")
        if is_ignored(self.ignore_names, key) or (not self.strict and key not in self.npz):
            return value
        found = self.npz[key]
        if found is not None and found.dtype == object and found.shape == () and found[()] is None:
            found = None
        return restore_value(key, value, found)


def load_npz(
    file: str | os.PathLike[str] | BinaryIO,
    obj: Serializable,
    path: str = "",
    strict: bool = True,
    ignore_names: IgnoreNames = None,
) -> None:
    """Read an object from a file that :func:`save_npz` or Chainer wrote. Entries that the
    object does not have are ignored.

    Args:
        file: a path, or a file open for reading.
        obj: has ``serialize``; its arrays are filled.
        path: of the object in the file: ``'updater/model:main'`` is the model in a Trainer's
            snapshot.
        strict: whether a key that is missing is an error; otherwise the object keeps what it has.
        ignore_names: keys that are not read: a string, a function of the key that says so, or a
            list of such.

    Raises:
        KeyError: a key is missing; ValueError: shapes differ; TypeError: dtypes do not fit.
        CheckpointError: the file is damaged, or contains an object, which is never unpickled.

    Example:
        >>> import io, numpy as np, mnpar
        >>> file = io.BytesIO()
        >>> np.savez(file, **{"net/W": np.ones((1, 2)), "net/b": np.zeros(1)})
        >>> layer = mnpar.links.Linear(2, 1)
        >>> mnpar.serializers.load_npz(file, layer, path="net")
        >>> layer.W.array
        array([[1., 1.]], dtype=float32)
    """
    path = path if not path or path.endswith("/") else path + "/"
    with NpzFile(file) as npz:
        NpzDeserializer(npz, path, strict, ignore_names).load(obj)


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
            raise KeyError(
                f"{self.name} has no {key!r}; it has {listed(self._members, none='nothing')}: with "
                "strict=False an object keeps what is not in the file"
            )
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
            tokenize.TokenError,
            SyntaxError,
            ValueError,
            EOFError,
            OSError,
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
        raw = array.reshape(-1, order="A").view(np.uint8)
        _fill(member, memoryview(raw))  # type: ignore[arg-type]
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
