"""CIFAR-10 and CIFAR-100: 60,000 colour images of 32 × 32 pixels, read from their binary form.

(Krizhevsky, "Learning multiple layers of features from tiny images", 2009.) The binary form is a
row of records: one byte of label (two for CIFAR-100: coarse and fine), then 3072 bytes of pixels,
red, green, blue, each row by row. The other form that is offered consists of pickles, and mnpar
unpickles no files. From the archive the named members are read; nothing is unpacked.
"""

from __future__ import annotations

import os
import tarfile
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from mnpar.backend import Array
from mnpar.dataset.mixin import Dataset
from mnpar.datasets.download import KnownFile, cache_folder, fetch
from mnpar.datasets.labelled_images import ImageForm, check_labels
from mnpar.errors import DatasetError

MIRRORS = ("https://www.cs.toronto.edu/~kriz/",)
PIXELS = 3 * 32 * 32


class CifarSource(NamedTuple):
    """The files of one of the two data sets."""

    archive: KnownFile
    folder: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    classes: tuple[int, ...]  # of each byte of label

    @property
    def record(self) -> int:
        """Bytes of a record."""
        return len(self.classes) + PIXELS


CIFAR10 = CifarSource(
    KnownFile(
        "cifar-10-binary.tar.gz",
        170052171,
        "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    ),
    "cifar-10-batches-bin",
    tuple([f"data_batch_{i}.bin" for i in range(1, 6)]),
    ("test_batch.bin",),
    (10,),
)
CIFAR100 = CifarSource(
    KnownFile(
        "cifar-100-binary.tar.gz",
        168513733,
        "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
    ),
    "cifar-100-binary",
    ("train.bin",),
    ("test.bin",),
    (20, 100),
)


def get_cifar10(
    withlabel: bool = True,
    ndim: int = 3,
    scale: float = 1.0,
    dtype: DTypeLike | None = None,
    *,
    label_dtype: DTypeLike = np.int32,
    data: str | Path | None = None,
) -> tuple[Dataset, Dataset]:
    """CIFAR-10's training set and test set.

    Args:
        withlabel: examples are pairs (image, label); False: the data sets are plain arrays of
            images.
        ndim: the shape of an image: 3 (3, 32, 32) or 1 (3072,).
        scale: pixels lie in 0 … scale.
        dtype: of the images; None is ``mnpar.config.dtype``.
        label_dtype: of the labels.
        data: the folder that has ``cifar-10-binary.tar.gz``, or the ``.bin`` files (or
            ``cifar-10-batches-bin/`` with them). None: the folder in the variable MNPAR_DATA;
            without that variable, what was downloaded before, or a download.

    Returns:
        ``(train, test)``. Local: every rank that calls it reads the files.

    Raises:
        FileNotFoundError: the files are not in the folder.
        DatasetError: a file is damaged.
        ConnectionError: the download did not succeed.
        ValueError: no such ``ndim``.

    Example:
        >>> from mnpar.datasets import get_cifar10
        >>> get_cifar10(data="/no/such/folder")
        Traceback (most recent call last):
        FileNotFoundError: ...
    """
    return _read_both(CIFAR10, 0, data, ImageForm(withlabel, ndim, scale, dtype, label_dtype))


def get_cifar100(
    withlabel: bool = True,
    ndim: int = 3,
    scale: float = 1.0,
    dtype: DTypeLike | None = None,
    *,
    label_dtype: DTypeLike = np.int32,
    coarse: bool = False,
    data: str | Path | None = None,
) -> tuple[Dataset, Dataset]:
    """CIFAR-100's training set and test set.

    Args:
        withlabel, ndim, scale, dtype, label_dtype: as in :func:`get_cifar10`.
        coarse: labels are the 20 groups instead of the 100 classes.
        data: as in :func:`get_cifar10`: ``cifar-100-binary.tar.gz``, or ``train.bin`` and
            ``test.bin``.

    Returns:
        ``(train, test)``. Local: every rank that calls it reads the files.

    Raises:
        FileNotFoundError, DatasetError, ConnectionError, ValueError: as :func:`get_cifar10`.

    Example:
        >>> from mnpar.datasets import get_cifar100
        >>> get_cifar100(data="/no/such/folder")
        Traceback (most recent call last):
        FileNotFoundError: ...
    """
    form = ImageForm(withlabel, ndim, scale, dtype, label_dtype)
    return _read_both(CIFAR100, 0 if coarse else 1, data, form)


def _read_both(
    source: CifarSource, which: int, data: str | Path | None, form: ImageForm
) -> tuple[Dataset, Dataset]:
    """Return both sets, with the labels of one of the bytes of label."""
    if form.ndim not in (1, 3):
        raise ValueError(
            f"ndim = {form.ndim}: 1 gives flat images, 3 gives channel × height × width"
        )
    files = _Files(source, data or os.environ.get("MNPAR_DATA"))

    def part(names: tuple[str, ...]) -> Dataset:
        records = np.concatenate([_records(source, *files.read(name)) for name in names])
        pixels = records[:, len(source.classes) :].reshape(-1, 3, 32, 32)
        return form.dataset(pixels, records[:, which], 255)

    return part(source.train), part(source.test)


class _Files:
    """The files, in a folder or in an archive."""

    def __init__(self, source: CifarSource, folder: str | Path | None) -> None:
        self.source = source
        if not folder:
            try:
                self.archive: Path | None = fetch(source.archive, cache_folder("cifar"), MIRRORS)
            except ConnectionError as error:
                raise ConnectionError(f"{error}; {self._remedy()}") from None
            return
        self.folders = [Path(folder), Path(folder, source.folder)]
        archive = Path(folder, source.archive.name)
        self.archive = archive if archive.is_file() and not self._path(source.train[0]) else None

    def read(self, name: str) -> tuple[str, bytes]:
        """Return the name of a file for errors, and its bytes."""
        if self.archive is not None:
            return f"{self.archive}: {name}", self._member(self.archive, name)
        path = self._path(name)
        if path is None:
            where = " or ".join(map(str, self.folders))
            raise FileNotFoundError(
                f"neither {name} nor {self.source.archive.name} is in {where}; {self._remedy()}"
            )
        return str(path), path.read_bytes()

    def _path(self, name: str) -> Path | None:
        return next(
            (path for path in [folder / name for folder in self.folders] if path.is_file()), None
        )

    def _remedy(self) -> str:
        return (
            f"give the folder with {self.source.archive.name} (the binary form) by data= or by "
            "the variable MNPAR_DATA"
        )

    def _member(self, archive: Path, name: str) -> bytes:
        try:
            with tarfile.open(archive) as tar:
                file = tar.extractfile(f"{self.source.folder}/{name}")
                if file is None:
                    raise KeyError(name)
                return file.read(10 * 10000 * self.source.record)  # never more than could be right
        except (tarfile.TarError, zlib.error, EOFError, KeyError, OSError) as error:
            raise DatasetError(
                f"{archive}: expected a file {self.source.folder}/{name} in it, found {error!r}"
            ) from None


def _records(source: CifarSource, name: str, data: bytes) -> Array:
    """Return the records of a file, one a row."""
    if not data or len(data) % source.record:
        raise DatasetError(
            f"{name}: expected one or more records of {source.record} bytes, found {len(data)} "
            "bytes: "
            f"{len(data) // source.record} records and {len(data) % source.record} bytes"
        )
    records = np.frombuffer(data, np.uint8).reshape(-1, source.record)
    for i, classes in enumerate(source.classes):
        check_labels(name, records[:, i], classes, i, source.record)
    return records
