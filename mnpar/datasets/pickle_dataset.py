"""Chainer's pickle data sets: examples one after the other in a file, each pickled, read in any
order.

A pickle is a program, and Python's ``pickle`` runs whatever one says. Here it may only build data:
numbers, text, containers, numpy's arrays, dates, and the classes that the caller names. A file that
asks for anything else is refused before that is called.
(:class:`~mnpar.datasets.FileBlobDataset` stores arrays without pickles.)
"""

from __future__ import annotations

import io
import os
import pickle
import threading
from collections.abc import Sequence
from typing import IO, Any

from mnpar.dataset.mixin import DatasetMixin
from mnpar.errors import DatasetError
from mnpar.serializers.atomic import naming_path

_BUILTINS = (
    "bool bytearray bytes complex dict float frozenset int list object range set slice str tuple"
)
# what a pickle of data may name, by module
_DATA = {
    "__builtin__": _BUILTINS,  # in older protocols
    "builtins": _BUILTINS,
    "collections": "OrderedDict deque",
    "copy_reg": "_reconstructor",
    "copyreg": "_reconstructor",
    "datetime": "date datetime time timedelta timezone",
    "decimal": "Decimal",
    "fractions": "Fraction",
    "numpy": "dtype ndarray",
    "numpy._core.multiarray": "_reconstruct scalar",
    "numpy._core.numeric": "_frombuffer",
    "numpy.core.multiarray": "_reconstruct scalar",
    "numpy.core.numeric": "_frombuffer",
    "_codecs": "encode",
}


class _DataUnpickler(pickle.Unpickler):
    """Builds data, and calls nothing else."""

    def __init__(self, file: Any, classes: Sequence[type]) -> None:
        super().__init__(file)
        self._classes = {(one.__module__, one.__qualname__): one for one in classes}

    def find_class(self, module: str, name: str) -> Any:
        """Return what a pickle names.

        Raises:
            UnpicklingError: it is not data.
        """
        if (module, name) in self._classes:
            return self._classes[module, name]
        if name in _DATA.get(module, "").split():
            return super().find_class(module, name)
        raise pickle.UnpicklingError(
            f"it asks for {module}.{name}, which is no array, number, text or container of these; "
            f"if the file is yours, and this is a class: classes=[{name.rpartition('.')[2]}]"
        )


class PickleDataset(DatasetMixin):
    """Examples in a file that a :class:`PickleDatasetWriter` wrote, here or in Chainer.

    All of it is read once, to find where examples begin. Threads may read; a process that gets a
    pickled copy of a data set of :func:`open_pickle_dataset` opens the file itself.

    Args:
        reader: a binary file, open for reading at any place.
        classes: of the user's own, whose objects the examples have in them.

    Raises:
        ValueError: the reader cannot go to any place.
        DatasetError: the file is damaged, or has in it what is no data.

    Example:
        >>> import io
        >>> from mnpar.datasets import PickleDataset, PickleDatasetWriter
        >>> file = io.BytesIO()
        >>> writer = PickleDatasetWriter(file)
        >>> writer.write((1, 2.0, "hello"))
        >>> writer.write((2, 3.0, "good-bye"))
        >>> PickleDataset(file)[1]
        (2, 3.0, 'good-bye')
    """

    def __init__(self, reader: IO[bytes], classes: Sequence[type] = ()) -> None:
        if not reader.seekable():
            raise ValueError("a PickleDataset reads examples in any order: its file must seek")
        self._reader, self._classes = reader, tuple(classes)
        self._lock = threading.Lock()  # of the file's position
        self._positions: list[int] = []
        end = reader.seek(0, os.SEEK_END)
        position = reader.seek(0)
        while position < end:
            self._load(len(self._positions), position)
            self._positions.append(position)
            position = reader.tell()

    def _load(self, i: int, position: int) -> Any:
        self._reader.seek(position)
        try:
            return _DataUnpickler(self._reader, self._classes).load()
        except Exception as error:  # damaged pickles raise errors of all kinds
            raise DatasetError(
                f"{getattr(self._reader, 'name', 'the file')}: example {i}, at byte {position}, "
                f"cannot be read: {error}"
            ) from None

    def __len__(self) -> int:
        return len(self._positions)

    def get_example(self, index: int) -> Any:
        """Return an example as it was written."""
        with self._lock:
            return self._load(index, self._positions[index])

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._reader.close()

    def __enter__(self) -> PickleDataset:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()


class PickleDatasetWriter:
    """Appends examples to a file for a :class:`PickleDataset`.

    Args:
        writer: a binary file, open for writing.
        protocol: of ``pickle``.
    """

    def __init__(self, writer: IO[bytes], protocol: int = pickle.HIGHEST_PROTOCOL) -> None:
        self._writer, self._protocol = writer, protocol
        self._name = str(getattr(writer, "name", writer))  # for errors

    def write(self, x: Any) -> None:
        """Append an example, which can be anything that can be pickled; what is neither an array, a
        number, text nor a container of these is read only by a data set that is told its class.
        """
        with naming_path(self._name):
            pickle.dump(x, self._writer, self._protocol)

    def flush(self) -> None:
        """Hand what was written to the system."""
        if hasattr(self._writer, "flush"):
            with naming_path(self._name):
                self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        with naming_path(self._name):
            self._writer.close()

    def __enter__(self) -> PickleDatasetWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _File(io.BufferedReader):
    """A file open for reading, which processes that get a copy open themselves, forks included."""

    def __init__(self, path: str) -> None:
        super().__init__(io.FileIO(path))
        self._pid = os.getpid()

    def seek(self, position: int, whence: int = os.SEEK_SET) -> int:
        """Go to a place, in a file of this process."""
        if self._pid != os.getpid():
            _File.__init__(self, str(self.name))
        return super().seek(position, whence)

    def __reduce__(self) -> Any:
        return _File, (os.path.abspath(str(self.name)),)


def open_pickle_dataset(
    path: str | os.PathLike[str], classes: Sequence[type] = ()
) -> PickleDataset:
    """Open a file of pickled examples; ``close`` it, or use ``with``.

    Args:
        path: of the file.
        classes: as for :class:`PickleDataset`.

    Raises:
        DatasetError: as :class:`PickleDataset`. OSError: there is no such file.

    Example:
        >>> import os, tempfile, numpy as np
        >>> from mnpar.datasets import open_pickle_dataset, open_pickle_dataset_writer
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = os.path.join(folder, "examples")
        ...     with open_pickle_dataset_writer(path) as writer:
        ...         writer.write((np.arange(3), "three"))
        ...     with open_pickle_dataset(path) as dataset:
        ...         dataset[0]
        (array([0, 1, 2]), 'three')
    """
    return PickleDataset(_File(os.fspath(path)), classes)


def open_pickle_dataset_writer(
    path: str | os.PathLike[str], protocol: int = pickle.HIGHEST_PROTOCOL
) -> PickleDatasetWriter:
    """Open a file for writing pickled examples; ``close`` it, or use ``with``.

    Args:
        path: of the file, which is replaced.
        protocol: of ``pickle``.

    See :func:`open_pickle_dataset` for an example.
    """
    return PickleDatasetWriter(open(path, "wb"), protocol)
