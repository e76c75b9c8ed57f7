"""Image files in zip archives, which network file systems serve better than many small files.

Nothing is unpacked: an image is read from the archive when it is asked for.
"""

from __future__ import annotations

import io
import os
import threading
import zipfile
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from mnpar.backend import Array
from mnpar.configuration import get_dtype
from mnpar.dataset.mixin import DatasetMixin
from mnpar.datasets.concatenated_dataset import ConcatenatedDataset
from mnpar.datasets.image_dataset import Path, check_pillow, read_image, read_pairs
from mnpar.errors import DatasetError


class ZippedImageDataset(DatasetMixin):
    """The images (C, H, W) of a zip archive that has nothing else, in its order.

    It can be pickled, and then opens the archive anew; several threads may read it.

    Args:
        zipfilename: the archive.
        dtype: as in :class:`ImageDataset`.

    Raises:
        ModuleNotFoundError: Pillow is not installed.
        FileNotFoundError: no such archive.
        DatasetError: the archive or an image in it is damaged.

    Example:
        >>> from mnpar.datasets import ZippedImageDataset
        >>> ZippedImageDataset("/no/such/archive.zip")
        Traceback (most recent call last):
        FileNotFoundError: ...
    """

    _zip: zipfile.ZipFile | None = None

    def __init__(self, zipfilename: Path, dtype: Any = None) -> None:
        check_pillow()
        self._path = os.fspath(zipfilename)
        self._dtype = get_dtype(dtype)
        self._lock = threading.Lock()
        self._names = [name for name in self._open().namelist() if not name.endswith("/")]

    def _open(self) -> zipfile.ZipFile:
        if self._zip is None:
            try:
                self._zip = zipfile.ZipFile(self._path)
            except zipfile.BadZipFile as error:
                raise DatasetError(f"{self._path}: expected a zip archive, found {error}") from None
        return self._zip

    def __len__(self) -> int:
        return len(self._names)

    def get_example(self, i_or_filename: int | str) -> Array:
        """The image of a number, or of a name (:meth:`read`)."""
        return self.read(
            i_or_filename if isinstance(i_or_filename, str) else self._names[i_or_filename]
        )

    def read(self, name: str) -> Array:
        """The image of that name.

        Raises:
            DatasetError: it is not in the archive, or damaged.
        """
        try:
            with self._lock:
                data = self._open().read(name)
        except (KeyError, zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise DatasetError(
                f"{self._path}: expected an image {name} in it, found {error!r}"
            ) from None
        return read_image(f"{self._path}: {name}", self._dtype, io.BytesIO(data))

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: value for name, value in self.__dict__.items() if name not in ("_zip", "_lock")
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()

    def __del__(self) -> None:
        if self._zip is not None:
            self._zip.close()


class MultiZippedImageDataset(ConcatenatedDataset):
    """The images of several zip archives, one archive after the other.

    Args:
        zipfilenames: the archives.
        dtype: as in :class:`ImageDataset`.

    Raises:
        ModuleNotFoundError, FileNotFoundError, DatasetError: as :class:`ZippedImageDataset`.

    Example:
        >>> from mnpar.datasets import MultiZippedImageDataset
        >>> len(MultiZippedImageDataset([]))
        0
    """

    def __init__(self, zipfilenames: Sequence[Path], dtype: Any = None) -> None:
        super().__init__(*[ZippedImageDataset(name, dtype) for name in zipfilenames])


class LabeledZippedImageDataset(DatasetMixin):
    """Pairs (image (C, H, W), label) from a zip archive and a text file.

    Args:
        zipfilename: the archive.
        labelfilename: the text file, which has the name of an image in the archive and a number on
            each line.
        dtype, label_dtype: as in :class:`LabeledImageDataset`.

    Raises:
        ValueError: a line of the text file is no name and number.
        ModuleNotFoundError, FileNotFoundError, DatasetError: as :class:`ZippedImageDataset`.

    Example:
        >>> from mnpar.datasets import LabeledZippedImageDataset
        >>> LabeledZippedImageDataset("/no/such/archive.zip", "/no/such/labels.txt")
        Traceback (most recent call last):
        FileNotFoundError: ...
    """

    def __init__(
        self, zipfilename: Path, labelfilename: Path, dtype: Any = None, label_dtype: Any = np.int32
    ) -> None:
        self._images = ZippedImageDataset(zipfilename, dtype)
        self._pairs = read_pairs(labelfilename)
        self._label_dtype = label_dtype

    def __len__(self) -> int:
        return len(self._pairs)

    def get_example(self, i: int) -> tuple[Array, Array]:
        name, label = self._pairs[i]
        return self._images.read(os.fspath(name)), np.array(label, self._label_dtype)
