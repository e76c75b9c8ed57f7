"""Chainer's HDF5 files: links are groups, arrays are datasets, None is an empty dataset. h5py
writes and reads them.

HDF5's own checksums leave out the names, shapes and places of datasets. So each dataset has an
attribute with the checksum of its path, dtype, shape and values, compared when it is read; Chainer
does not look at it, and files of others have none.
"""

from __future__ import annotations

import io
import json
import os
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.errors import CheckpointError
from mnpar.serializer import Serializable, Serializer
from mnpar.serializers.atomic import replacing
from mnpar.serializers.checksum import checksum
from mnpar.serializers.npz import NpzDeserializer, serialize


def _h5py() -> Any:
    try:
        import h5py
    except ImportError as error:
        raise ImportError("HDF5 files need h5py: pip install 'mnpar[hdf5]'") from error
    return h5py


CHECKSUM = "mnpar checksum"  # the attribute


def _checksum(path: str, value: Any) -> np.uint32:
    """Return the checksum of a dataset: its path in the file, and an array, of text too, or
    None.
    """
    if value is None:
        return np.uint32(zlib.crc32(path.encode()))
    array = np.ascontiguousarray(value)
    if array.dtype.kind in "US":
        form, raw = "text", np.frombuffer(json.dumps(array.tolist()).encode(), np.uint8)
    else:
        form = array.dtype.newbyteorder("<").str
        raw = array.astype(array.dtype.newbyteorder("<"), copy=False).reshape(-1).view(np.uint8)
    described = f"{path} {form} {value.shape}".encode()
    return np.uint32(zlib.crc32(described, checksum(raw)))


def _write(group: Any, key: str, value: Any, compression: int | None) -> None:
    h5py = _h5py()
    if value is None or (
        isinstance(value, np.ndarray)
        and value.dtype == object
        and value.shape == ()
        and value[()] is None
    ):
        made = group.create_dataset(key, data=h5py.Empty("f"))
        made.attrs.create(CHECKSUM, _checksum(made.name, None))
        return
    array = np.asarray(backend.to_host(value))
    text = array.dtype.kind == "U"
    try:
        made = group.create_dataset(
            key,
            data=array.astype(object) if text else array,
            dtype=h5py.string_dtype() if text else None,
            compression=None if array.size <= 1 else compression,
        )
    except TypeError as error:
        raise TypeError(
            f"{key}: HDF5 has no {array.dtype}: cast it, or save it by save_npz"
        ) from error
    made.attrs.create(CHECKSUM, _checksum(made.name, array))


class GroupArrays(Mapping[str, Any]):
    """The arrays of an HDF5 group by their paths, None where a dataset is empty."""

    def __init__(self, group: Any) -> None:
        self.group = group

    def __getitem__(self, key: str) -> Array | None:
        try:
            if key not in self.group:
                raise KeyError(f"{self.group.file.filename} has no {key!r}")
            array, path, expected = self._read(key)
        except (OSError, RuntimeError, ValueError, TypeError, OverflowError, MemoryError) as error:
            # what h5py raises where it cannot make sense of a file
            raise CheckpointError(
                f"{self.group.file.filename}: {key} is damaged: {error}"
            ) from None
        if expected is not None and int(_checksum(path, array)) != expected:
            raise CheckpointError(
                f"{self.group.file.filename}: {key} is damaged: it is not as it was written, says "
                "its checksum"
            )
        return array

    def _read(self, key: str) -> tuple[Array | None, str, int | None]:
        """Return an array, its path in the file, and the checksum that it should have."""
        h5py = _h5py()
        found = self.group[key]
        if not isinstance(found, h5py.Dataset):
            raise KeyError(f"{key} is a group of the HDF5 file, not an array")
        expected = int(found.attrs[CHECKSUM]) if CHECKSUM in found.attrs else None
        if found.shape is None:
            return None, found.name, expected
        if h5py.check_string_dtype(found.dtype):
            return np.array(found.asstr()[()], "U"), found.name, expected
        if found.dtype.hasobject:
            raise CheckpointError(
                f"{key}: the file has objects in it, {found.dtype}, which are not read"
            )
        return np.asarray(found[()]), found.name, expected

    def __iter__(self) -> Iterator[str]:
        names: list[str] = []
        self.group.visititems(
            lambda name, found: names.append(name) if isinstance(found, _h5py().Dataset) else None
        )
        return iter(names)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class HDF5Serializer(Serializer):
    """Writes an object's arrays into a group of an HDF5 file, and those of its parts into groups of
    that.

    Args:
        group: an ``h5py.Group`` or ``h5py.File``, open for writing.
        compression: gzip's level, or None.

    Raises:
        TypeError: HDF5 has no such dtype.

    Example:
        >>> import io, h5py, mnpar
        >>> with h5py.File(io.BytesIO(), "w") as file:
        ...     mnpar.serializers.HDF5Serializer(file["/"]).save(
        ...         mnpar.Chain(l1=mnpar.links.Linear(3, 2))
        ...     )
        ...     file["l1/W"].shape
        (2, 3)
    """

    of_chainer = True

    def __init__(self, group: Any, compression: int | None = 4) -> None:
        self.group, self.compression = group, compression

    def __getitem__(self, key: str) -> HDF5Serializer:
        return HDF5Serializer(self.group.require_group(key.strip("/")), self.compression)

    def __call__(self, key: str, value: Any) -> Any:
        _write(self.group, key.lstrip("/"), value, self.compression)
        return value


class HDF5Deserializer(NpzDeserializer):
    """Reads objects from a group of an HDF5 file.

    Args:
        group: an ``h5py.Group`` or ``h5py.File``.
        strict: whether a key that is missing is an error; otherwise the object keeps what it has.

    Raises:
        KeyError: a key is missing; ValueError: shapes differ; TypeError: dtypes do not fit.

    Example:
        >>> import io, h5py, numpy as np, mnpar
        >>> layer = mnpar.links.Linear(2, 1)
        >>> with h5py.File(io.BytesIO(), "w") as file:
        ...     file["net/W"], file["net/b"] = np.array([[1.0, 2.0]]), np.zeros(1)
        ...     mnpar.serializers.HDF5Deserializer(file["net"]).load(layer)
        >>> layer.W.array
        array([[1., 2.]], dtype=float32)
    """

    def __init__(self, group: Any, strict: bool = True) -> None:
        super().__init__(GroupArrays(group), "", strict)


def save_hdf5(
    filename: str | os.PathLike[str], obj: Serializable, compression: int | None = 4
) -> None:
    """Write an object to an HDF5 file that Chainer reads too; it is there whole or not at all.
    Needs h5py.

    Args:
        filename: a path, taken as it is.
        obj: has ``serialize``: a Link, an Optimizer, a Trainer; or a dict that :func:`serialize`
            returned.
        compression: gzip's level from 0 to 9, or None.

    Raises:
        TypeError: HDF5 has no such dtype; ImportError: h5py is not installed.

    Example:
        >>> import os, tempfile, mnpar
        >>> a, b = mnpar.links.Linear(3, 2), mnpar.links.Linear(3, 2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     mnpar.serializers.save_hdf5(os.path.join(folder, "model.h5"), a)
        ...     mnpar.serializers.load_hdf5(os.path.join(folder, "model.h5"), b)
        >>> bool((a.W.array == b.W.array).all())
        True
    """
    memory = io.BytesIO()
    with _h5py().File(memory, "w") as file:
        for key, value in (obj if isinstance(obj, Mapping) else serialize(obj)).items():
            _write(file, key.lstrip("/"), value, compression)
    with replacing(filename) as stream:
        stream.write(memory.getbuffer())


def load_hdf5(
    filename: str | os.PathLike[str], obj: Serializable, path: str = "", strict: bool = True
) -> None:
    """Read an object from a file that :func:`save_hdf5` or Chainer wrote. Needs h5py.

    Args:
        filename: a path.
        obj: has ``serialize``; its arrays are filled.
        path: of the object in the file.
        strict: whether a key that is missing is an error; otherwise the object keeps what it has.

    Raises:
        KeyError: a key is missing; ValueError: shapes differ; TypeError: dtypes do not fit;
            OSError: it is no HDF5 file; CheckpointError: it is damaged.

    Example:
        >>> import os, tempfile, h5py, numpy as np, mnpar
        >>> layer = mnpar.links.Linear(2, 1)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with h5py.File(os.path.join(folder, "model.h5"), "w") as file:
        ...         file["net/W"], file["net/b"] = np.array([[1.0, 2.0]]), np.zeros(1)
        ...     mnpar.serializers.load_hdf5(os.path.join(folder, "model.h5"), layer, path="net")
        >>> layer.W.array
        array([[1., 2.]], dtype=float32)
    """
    with _h5py().File(filename, "r") as file:
        deserializer = HDF5Deserializer(file, strict)
        (deserializer[path] if path else deserializer).load(obj)
