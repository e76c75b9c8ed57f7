"""The safetensors format, for exchange with other libraries: a header of names, dtypes, shapes and
offsets, then plain bytes.

A file is eight bytes with the length of the header, the header as JSON, the arrays. All that the
header says is checked against the size of the file before memory is allocated.
(https://github.com/huggingface/safetensors) Among the strings for the reader that a header may
have, mnpar writes a checksum of the header and of each array, and compares them when it reads.

The ``safetensors`` package (0.8.0) is not used: it writes arrays in Fortran order, and views,
with wrong contents, has no bfloat16 for numpy, and copies everything twice to write to an open
file, of which checkpoints write parts (200 MB: 0.50 s and 381 MB more, against 0.14 s and nothing);
it reads files in 0.15 s, against 0.05 s.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.errors import CheckpointError, listed
from mnpar.serializer import Serializable
from mnpar.serializers.atomic import replacing
from mnpar.serializers.checksum import checksum
from mnpar.serializers.npz import DictionarySerializer, NpzDeserializer
from mnpar.serializers.restore import IgnoreNames

NAMES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "complex64": "C64",
    "bool": "BOOL",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
}


DTYPES = {name: dtype for dtype, name in NAMES.items()}


_LONGEST_HEADER = 100_000_000  # the format's own limit
# the name, among the metadata, of the checksums: of the header, then of the arrays as they lie
CHECKSUMS = "mnpar checksums"


@dataclass(frozen=True)
class TensorEntry:
    """An array in a file."""

    dtype: str
    shape: tuple[int, ...]
    start: int  # from the beginning of the file
    stop: int
    name: str = ""
    checksum: int | None = None  # None: whoever wrote the file gave none


def write_safetensors(
    file: str | os.PathLike[str] | Any,
    arrays: Mapping[str, Array],
    metadata: Mapping[str, str] | None = None,
    checksums: bool = True,
) -> None:
    """Write arrays to a safetensors file; under a name, it is there whole or not at all.

    For models there is :func:`save_safetensors`: the arrays of :func:`serialize` have the names of
    Chainer's files.

    Args:
        file: a path, or a file open for writing.
        arrays: by name.
        metadata: strings, for the reader.
        checksums: whether the metadata get one of each array and of the header, which find a
            damaged file when it is read.

    Raises:
        TypeError: the format has no name for a dtype.

    Example:
        >>> import io, numpy as np, mnpar
        >>> file = io.BytesIO()
        >>> mnpar.serializers.write_safetensors(file, {"W": np.array([[1.0, 2.0]])})
        >>> mnpar.serializers.read_safetensors(file)
        {'W': array([[1., 2.]])}
    """
    if isinstance(file, str | os.PathLike):
        with replacing(file) as stream:
            write_safetensors(stream, arrays, metadata, checksums)
        return
    texts = {key: text for key, text in (metadata or {}).items() if key != CHECKSUMS}
    header: dict[str, Any] = {"__metadata__": texts} if texts else {}
    at = 0
    # each where its dtype is aligned
    names = sorted(arrays, key=lambda name: -arrays[name].dtype.itemsize)
    for name in names:
        array = arrays[name]
        if array.dtype.name not in NAMES or name == "__metadata__":
            raise TypeError(
                f"{name}: safetensors has no arrays of {array.dtype}; it has {', '.join(NAMES)}"
            )
        header[name] = {
            "dtype": NAMES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [at, at + array.nbytes],
        }
        at += array.nbytes
    contents = [_content(backend.to_host(arrays[name])) for name in names]
    if checksums:
        sums = [_header_checksum(header), *map(checksum, contents)]
        texts[CHECKSUMS] = " ".join([f"{one:08x}" for one in sums])
        header["__metadata__"] = texts
    text = json.dumps(header, separators=(",", ":")).encode()
    text = text.ljust(-(-len(text) // 8) * 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for content in contents:
        file.write(content.data)


def _content(array: Array) -> Array:
    """Return the array's bytes, rows first, least byte first, without a copy where it is so
    already.
    """
    array = np.ascontiguousarray(array)
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    return array.reshape(-1).view(np.uint8)


def _header_checksum(header: Mapping[str, Any]) -> int:
    """Return the checksum of all that a header says, apart from checksums."""
    text = json.dumps(header, sort_keys=True, separators=(",", ":"))
    return checksum(np.frombuffer(text.encode(), np.uint8))


def read_header(file: Any, name: str = "the file") -> tuple[dict[str, TensorEntry], dict[str, str]]:
    """Return the entries of a file open for reading, and its metadata.

    Raises:
        CheckpointError: the file is none, its header is damaged, or its entries do not cover it
            exactly.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > min(size - 8, _LONGEST_HEADER):
        raise CheckpointError(
            f"{name} is no safetensors file: {size} bytes cannot hold a header of {length}"
        )
    try:
        header = json.loads(file.read(length).decode(), object_pairs_hook=_once)
        sums = _take_checksums(header)
        metadata = header.pop("__metadata__", {})
        entries = {key: _entry(key, value, 8 + length) for key, value in header.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            f"{name} is no safetensors file: its header is wrong: {error}"
        ) from None
    at = 8 + length
    ordered = sorted(entries.items(), key=lambda item: (item[1].start, item[1].stop))
    for key, entry in ordered:
        if entry.start != at:
            raise CheckpointError(
                f"{name}: {key} begins at byte {entry.start}, where {at} was expected"
            )
        at = entry.stop
    if at != size:
        raise CheckpointError(f"{name} has {size} bytes, but its arrays end at {at}")
    if sums:
        if len(sums) != len(entries):
            raise CheckpointError(
                f"{name} is damaged: {len(sums)} checksums of {len(entries)} arrays"
            )
        for (key, entry), one in zip(ordered, sums, strict=True):
            entries[key] = replace(entry, checksum=one)
    return entries, metadata


def _take_checksums(header: dict[str, Any]) -> list[int]:
    """Take the checksums out of a header, check that of the header, and return those of arrays;
    none if there are none.

    Raises:
        ValueError: the header is not as it was written.
    """
    text = header.get("__metadata__", {}).pop(CHECKSUMS, None)
    if text is None:
        return []
    if not header["__metadata__"]:
        del header["__metadata__"]
    own, *sums = [int(one, 16) for one in text.split(" ")]
    if _header_checksum(header) != own:
        raise ValueError("it is not as it was written, says its checksum")
    return sums


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a name comes twice")
    return result


def _entry(key: str, value: dict[str, Any], begin: int) -> TensorEntry:
    name = value["dtype"]
    shape = tuple(value["shape"])
    start, stop = value["data_offsets"]
    if name not in DTYPES:
        raise ValueError(f"dtype {name} is not known")
    if not all(type(n) is int and n >= 0 for n in (*shape, start, stop)):
        raise ValueError(f"shape {shape} at {start}:{stop}")
    if stop - start != math.prod(shape) * _stored(name).itemsize:
        raise ValueError(f"shape {shape} of {name} does not take {stop - start} bytes")
    return TensorEntry(name, shape, begin + start, begin + stop, key)


def _stored(name: str) -> np.dtype[Any]:
    return np.dtype("<u2") if name == "BF16" else np.dtype(DTYPES[name]).newbyteorder("<")


def read_entry(file: Any, entry: TensorEntry) -> Array:
    """Return one array of a file open for reading; bfloat16, where no library has registered it
    with numpy, becomes float32.

    Raises:
        CheckpointError: the array is damaged.
    """
    raw = np.empty(entry.shape, _stored(entry.dtype))
    file.seek(entry.start)
    if raw.nbytes and file.readinto(raw.reshape(-1).view(np.uint8).data) != raw.nbytes:
        raise CheckpointError(f"the file ends before byte {entry.stop}")
    if entry.checksum is not None and checksum(raw) != entry.checksum:
        raise CheckpointError(
            f"{getattr(file, 'name', 'the file')} is damaged: the {raw.nbytes} bytes of "
            f"{entry.name}, from byte {entry.start} on, are not those that were written, says "
            "their checksum"
        )
    if entry.dtype == "BF16":
        try:
            return raw.view(np.dtype("bfloat16"))
        except TypeError:
            return (raw.astype(np.uint32) << 16).view(np.float32)
    return raw.astype(raw.dtype.newbyteorder("="), copy=False)


def read_safetensors(file: str | os.PathLike[str] | BinaryIO) -> dict[str, Array]:
    """Return the arrays of a safetensors file.

    Args:
        file: a path, or a file open for reading.

    Raises:
        CheckpointError: the file is damaged, or not of this format.

    Example:
        >>> import io, numpy as np, mnpar
        >>> file = io.BytesIO()
        >>> mnpar.serializers.write_safetensors(file, {"n": np.array(3)})
        >>> mnpar.serializers.read_safetensors(file)
        {'n': array(3)}
    """
    if isinstance(file, str | os.PathLike):
        with open(file, "rb") as stream:
            return read_safetensors(stream)
    entries, _ = read_header(file, str(getattr(file, "name", "the file")))
    return {name: read_entry(file, entry) for name, entry in entries.items()}


def save_safetensors(
    file: str | os.PathLike[str] | BinaryIO,
    obj: Serializable,
    metadata: Mapping[str, str] | None = None,
    rename: Callable[[str], str] | None = None,
) -> None:
    """Export an object's parameters and persistent values to a safetensors file.

    Args:
        file: a path, or a file open for writing.
        obj: a link, or anything else that has ``serialize`` and consists of arrays and numbers.
        metadata: strings, for the reader.
        rename: the name in the file, of the key ``l1/W``; None: the key itself.

    Raises:
        TypeError: a parameter has no array yet, or there is a value that the format does not have.

    Example:
        >>> import io, mnpar
        >>> file = io.BytesIO()
        >>> model = mnpar.Chain(l1=mnpar.links.Linear(3, 2))
        >>> mnpar.serializers.save_safetensors(
        ...     file, model, rename=lambda key: key.replace("/", ".")
        ... )
        >>> list(mnpar.serializers.read_safetensors(file))
        ['l1.W', 'l1.b']
    """
    serializer = _Written()
    serializer.save(obj)
    rename = rename or (lambda key: key)
    arrays = {rename(key): array for key, array in serializer.target.items()}
    if len(arrays) != len(serializer.target):
        raise ValueError(
            f"rename gives {len(serializer.target)} keys {len(arrays)} names: each needs its own"
        )
    write_safetensors(file, arrays, metadata)


def load_safetensors(
    file: str | os.PathLike[str] | BinaryIO,
    obj: Serializable,
    path: str = "",
    strict: bool = True,
    ignore_names: IgnoreNames = None,
    rename: Callable[[str], str] | None = None,
) -> None:
    """Import an object's arrays from a safetensors file, which another library may have written.

    Args:
        file: a path, or a file open for reading.
        obj: has ``serialize``; its arrays are filled.
        path: put before all keys.
        strict: whether a key that is missing is an error; otherwise the object keeps what it has.
        ignore_names: keys that are not read: a string, a function of the key that says so, or a
            list of such.
        rename: the name in the file, of the key ``l1/W``; None: the key itself.

    Raises:
        KeyError: a key is missing; ValueError: shapes differ; TypeError: dtypes do not fit.
        CheckpointError: the file is damaged, or not of this format.

    Example:
        >>> import io, numpy as np, mnpar
        >>> file = io.BytesIO()  # as PyTorch names them
        >>> mnpar.serializers.write_safetensors(
        ...     file, {"weight": np.ones((1, 2)), "bias": np.zeros(1)}
        ... )
        >>> layer = mnpar.links.Linear(2, 1)
        >>> mnpar.serializers.load_safetensors(file, layer, rename={"W": "weight", "b": "bias"}.get)
        >>> layer.W.array
        array([[1., 1.]], dtype=float32)
    """
    arrays = _Renamed(read_safetensors(file), rename or (lambda key: key))
    path = path if not path or path.endswith("/") else path + "/"
    _Read(arrays, path, strict, ignore_names).load(obj)


class _Written(DictionarySerializer):
    of_chainer = False


class _Read(NpzDeserializer):
    of_chainer = False


class _Renamed(dict[str, Array]):
    """Arrays under other names than those that are asked for."""

    def __init__(self, arrays: dict[str, Array], rename: Callable[[str], str]) -> None:
        super().__init__(arrays)
        self._rename = rename

    def __contains__(self, key: object) -> bool:
        return super().__contains__(self._rename(str(key)))

    def __getitem__(self, key: str) -> Array:
        name = self._rename(key)
        if not super().__contains__(name):
            raise KeyError(
                f"the file has no {name!r}; it has {listed(self, none='nothing')}: with "
                "strict=False an object keeps what is not in the file"
            )
        return super().__getitem__(name)
