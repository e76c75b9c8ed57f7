"""Image files, each read when it is asked for, by Pillow.

Pillow is optional; if it is missing, an error says so as soon as a data set is made.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from typing import IO, Any

import numpy as np

from mnpar.backend import Array
from mnpar.configuration import get_dtype
from mnpar.dataset.mixin import DatasetMixin
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

    def __init__(self, paths: Path | Sequence[Path], root: Path = ".", dtype: Any = None) -> None:
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
        dtype: Any = None,
        label_dtype: Any = np.int32,
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


def read_image(path: Path, dtype: Any, file: IO[bytes] | None = None) -> Array:
    """A file's pixels (C, H, W); ``file``: it is open already, ``path`` is what it is called."""
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
    """The lines that are not empty, with their numbers."""
    with open(path, encoding="utf-8") as file:
        return [(number, line.strip()) for number, line in enumerate(file, 1) if line.strip()]


def read_pairs(path: Path) -> list[tuple[Path, int]]:
    """The paths and numbers in a text file."""
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
