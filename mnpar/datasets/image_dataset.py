"""Image files, single or in zip archives, each read when it is asked for, by Pillow.

Pillow is optional; if it is missing, an error says so as soon as a data set is made. Network file
systems serve one archive better than many small files; nothing is unpacked.
"""

from __future__ import annotations

import io
import os
import threading
import zipfile
import zlib
from collections.abc import Sequence
from importlib.util import find_spec
from typing import IO, Any

import numpy as np
from numpy.typing import DTypeLike

from mnpar.backend import Array
from mnpar.configuration import get_dtype
from mnpar.dataset.mixin import DatasetMixin
from mnpar.datasets.combined import ConcatenatedDataset
from mnpar.errors import DatasetError

Path = str | os.PathLike[str]


class ImageDataset(DatasetMixin):
    """Images (C, H, W) from files; C is 1 for grey ones, else what the file has (3: RGB, 4: RGBA).

    Args:
        paths: of the images, or the name of a text file that has one path a line (empty lines are
            passed over).
        root: the folder that the paths start from.
        dtype: of the images, with pixels 0 … 255; None is ``mnpar.config.dtype`` as it is now.

    Raises:
        ModuleNotFoundError: Pillow is not installed.
        FileNotFoundError: no such list; when an image is asked for, no such image.
        DatasetError: a file is no image, or damaged.

    Example:
        >>> import os, tempfile, numpy as np
        >>> from PIL import Image
        >>> from mnpar.datasets import ImageDataset
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Image.fromarray(np.zeros((2, 4, 3), np.uint8)).save(os.path.join(folder, "a.png"))
        ...     ImageDataset(["a.png"], root=folder)[0].shape
        (3, 2, 4)
    """

    def __init__(
        self, paths: Path | Sequence[Path], root: Path = ".", dtype: DTypeLike | None = None
    ) -> None:
        check_pillow()
        self._paths = (
            [line for _, line in _lines(paths)] if isinstance(paths, str | os.PathLike) else paths
        )
        self._root = root
        self._dtype = get_dtype(dtype)

    def __len__(self) -> int:
        return len(self._paths)

    def get_example(self, i: int) -> Array:
        return read_image(os.path.join(self._root, self._paths[i]), self._dtype)


class LabeledImageDataset(DatasetMixin):
    """Pairs (image (C, H, W), label) from files.

    Args:
        pairs: pairs (path, label), or the name of a text file with a path and a number on each
            line.
        root, dtype: as in :class:`ImageDataset`.
        label_dtype: of the labels, which are arrays without axes.

    Raises:
        ValueError: a line of the text file is no path and number.
        ModuleNotFoundError, FileNotFoundError, DatasetError: as :class:`ImageDataset`.

    Example:
        >>> import os, tempfile, numpy as np
        >>> from PIL import Image
        >>> from mnpar.datasets import LabeledImageDataset
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Image.fromarray(np.zeros((2, 4), np.uint8)).save(os.path.join(folder, "a.png"))
        ...     image, label = LabeledImageDataset([("a.png", 7)], root=folder)[0]
        >>> image.shape, label
        ((1, 2, 4), array(7, dtype=int32))
    """

    def __init__(
        self,
        pairs: Path | Sequence[tuple[Path, int]],
        root: Path = ".",
        dtype: DTypeLike | None = None,
        label_dtype: DTypeLike = np.int32,
    ) -> None:
        check_pillow()
        self._pairs = read_pairs(pairs) if isinstance(pairs, str | os.PathLike) else pairs
        self._root = root
        self._dtype = get_dtype(dtype)
        self._label_dtype = label_dtype

    def __len__(self) -> int:
        return len(self._pairs)

    def get_example(self, i: int) -> tuple[Array, Array]:
        path, label = self._pairs[i]
        return read_image(os.path.join(self._root, path), self._dtype), np.array(
            label, self._label_dtype
        )


def check_pillow() -> None:
    """Raise if images cannot be read."""
    if find_spec("PIL") is None:
        raise ModuleNotFoundError(
            "images are read by Pillow, which is not installed: pip install pillow"
        )


def read_image(path: Path, dtype: DTypeLike, file: IO[bytes] | None = None) -> Array:
    """Return a file's pixels (C, H, W); ``file``: it is open already, ``path`` is what it is
    called.
    """
    from PIL import Image

    try:
        with Image.open(path if file is None else file) as image:
            pixels = np.array(image, dtype)  # (H, W) or (H, W, C)
    except (FileNotFoundError, PermissionError, IsADirectoryError):
        raise
    except (OSError, SyntaxError, ValueError) as error:  # what Pillow raises for damaged files
        raise DatasetError(f"{os.fspath(path)}: expected an image, found {error}") from None
    if pixels.ndim == 2:
        pixels = pixels[..., None]
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _lines(path: Path) -> list[tuple[int, str]]:
    """Return the lines that are not empty, with their numbers."""
    with open(path, encoding="utf-8") as file:
        return [(number, line.strip()) for number, line in enumerate(file, 1) if line.strip()]


def read_pairs(path: Path) -> list[tuple[Path, int]]:
    """Return the paths and numbers in a text file."""
    pairs: list[tuple[Path, int]] = []
    for number, line in _lines(path):
        try:
            name, label = line.split()
            pairs.append((name, int(label)))
        except ValueError:
            raise ValueError(
                f"{os.fspath(path)}: line {number} should be a path and a number, found {line!r}"
            ) from None
    return pairs


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

    def __init__(self, zipfilename: Path, dtype: DTypeLike | None = None) -> None:
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
        """Return the image of a number, or of a name (:meth:`read`)."""
        return self.read(
            i_or_filename if isinstance(i_or_filename, str) else self._names[i_or_filename]
        )

    def read(self, name: str) -> Array:
        """Return the image of that name.

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

    def __init__(self, zipfilenames: Sequence[Path], dtype: DTypeLike | None = None) -> None:
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
        self,
        zipfilename: Path,
        labelfilename: Path,
        dtype: DTypeLike | None = None,
        label_dtype: DTypeLike = np.int32,
    ) -> None:
        self._images = ZippedImageDataset(zipfilename, dtype)
        self._pairs = read_pairs(labelfilename)
        self._label_dtype = label_dtype

    def __len__(self) -> int:
        return len(self._pairs)

    def get_example(self, i: int) -> tuple[Array, Array]:
        name, label = self._pairs[i]
        return self._images.read(os.fspath(name)), np.array(label, self._label_dtype)
