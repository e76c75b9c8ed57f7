"""Examples of any shapes in one file, or in memory, with an index at the end: read one by one, in
any order.

The layout is numpy's own: each field of an example is a ``.npy``, and the index says in JSON where
they begin. Nothing in it can run code. After flashlight's FileBlobDataset and MemoryBlobDataset.
"""

from __future__ import annotations

import io
import json
import os
import threading
from typing import IO, Any

import numpy as np

from mnpar import backend
from mnpar.dataset.mixin import DatasetMixin
from mnpar.errors import DatasetError

_MAGIC = b"MNPARBLB"


class _BlobDataset(DatasetMixin):
    """The base of the two: examples in a seekable binary file, which can be read and appended
    to.
    """

    _name = "the blob"

    def __init__(self, file: IO[bytes], offsets: list[list[int]], end: int) -> None:
        self._file, self._offsets, self._end = file, offsets, end
        self._lock = threading.Lock()  # of the file's position: threads may read ahead

    def __len__(self) -> int:
        return len(self._offsets)

    def get_example(self, i: int) -> tuple[Any, ...]:
        """Return the fields of an example, as they were added."""
        fields = []
        with self._lock:
            for offset in self._offsets[i]:
                self._file.seek(offset)
                try:
                    fields.append(np.lib.format.read_array(self._file, allow_pickle=False))
                except (ValueError, EOFError) as error:
                    raise DatasetError(
                        f"{self._name}: example {i}, at byte {offset}, is damaged: {error}"
                    ) from error
        return tuple(fields)

    def add(self, *fields: Any) -> None:
        """Append an example: one or more arrays (numbers and strings of numpy; no objects).

        Raises:
            ValueError: an array of objects.
        """
        arrays = [np.asarray(backend.to_host(field)) for field in fields]
        if any(array.dtype.hasobject for array in arrays):
            raise ValueError(
                f"{self._name} holds arrays of numbers or strings, not of Python's objects"
            )
        offsets = []
        with self._lock:
            self._file.seek(self._end)
            for array in arrays:
                offsets.append(self._file.tell())
                np.lib.format.write_array(self._file, array, allow_pickle=False)
            self._end = self._file.tell()
        self._offsets.append(offsets)

    def write_index(self) -> None:
        """Write the index; before that, the file cannot be opened as a blob."""
        index = json.dumps(self._offsets).encode()
        with self._lock:
            self._file.seek(self._end)
            self._file.write(index + len(index).to_bytes(8, "little") + _MAGIC)
            self._file.truncate()
            self._file.flush()


class MemoryBlobDataset(_BlobDataset):
    """Examples in memory, as they would stand in a file.

    Example:
        >>> import numpy as np
        >>> from mnpar.datasets import MemoryBlobDataset
        >>> blob = MemoryBlobDataset()
        >>> blob.add(np.arange(3), np.array(1))
        >>> blob.add(np.zeros((2, 2)), np.array(0))
        >>> len(blob), blob[0]
        (2, (array([0, 1, 2]), array(1)))
    """

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), [], 0)


class FileBlobDataset(_BlobDataset):
    """Examples in a file; every rank may open it.

    Args:
        path: the file.
        create: make it anew, for :meth:`add` and, at last, :meth:`write_index`. Else it must be
            there; more can be added.

    Raises:
        DatasetError: it is no such file, or it is cut off.

    Example:
        >>> import os, tempfile, numpy as np
        >>> from mnpar.datasets import FileBlobDataset
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = os.path.join(folder, "train.blob")
        ...     with FileBlobDataset(path, create=True) as blob:
        ...         blob.add(np.arange(3))
        ...         blob.write_index()
        ...     with FileBlobDataset(path) as blob:
        ...         blob[0]
        (array([0, 1, 2]),)
    """

    def __init__(self, path: str | os.PathLike[str], create: bool = False) -> None:
        self._name = os.fspath(path)
        writable = create or os.access(path, os.W_OK)
        mode = "w+b" if create else "r+b" if writable else "rb"
        file = open(path, mode)  # noqa: SIM115 - the user closes it
        try:
            super().__init__(file, *(([], 0) if create else self._read_index(file)))
        except BaseException:
            file.close()
            raise

    def _read_index(self, file: IO[bytes]) -> tuple[list[list[int]], int]:
        size = file.seek(0, os.SEEK_END)
        tail = len(_MAGIC) + 8
        file.seek(max(size - tail, 0))
        last = file.read()
        end = size - tail - int.from_bytes(last[:8], "little")
        if size < tail or not last.endswith(_MAGIC) or end < 0:
            raise DatasetError(
                f"{self._name}, of {size} bytes, does not end with the index of a blob: was "
                "write_index called?"
            )
        file.seek(end)
        try:
            offsets = json.loads(file.read(size - tail - end))
            if not all(0 <= offset < end for example in offsets for offset in example):
                raise ValueError("it points beyond the examples")
        except (ValueError, TypeError) as error:
            raise DatasetError(f"{self._name}: the index, at byte {end}, is damaged") from error
        return offsets, end

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> FileBlobDataset:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
