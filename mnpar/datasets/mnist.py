"""MNIST: 70,000 handwritten digits of 28 × 28 pixels, from files on the disk or, where there is a network, downloaded.

Digests and sizes are those that the mirrors and many projects agree on; they are checked on what is downloaded. Files that
the user names are checked for their form only: Fashion-MNIST and others come under the same names.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mnpar.backend import Array
from mnpar.datasets.download import KnownFile, cache_folder, fetch
from mnpar.datasets.idx import read_idx
from mnpar.datasets.images import check_ndim, labelled_images
from mnpar.errors import DatasetError

MIRRORS = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")
FILES = {
    file.name.removesuffix(".gz"): file
    for file in (
        KnownFile("train-images-idx3-ubyte.gz", 9912422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
        KnownFile("train-labels-idx1-ubyte.gz", 28881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
        KnownFile("t10k-images-idx3-ubyte.gz", 1648877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
        KnownFile("t10k-labels-idx1-ubyte.gz", 4542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
    )
}
FOLDERS = ("", "mnist", "MNIST/raw")
CLASSES = 10
LABELS_BEGIN = 8  # bytes of header before the labels
REMEDY = "give the folder with the four IDX files (gzipped or not) by data=, by the variable MNPAR_DATA or by --data"


def get_mnist(
    withlabel: bool = True,
    ndim: int = 1,
    scale: float = 1.0,
    dtype: Any = None,
    label_dtype: Any = np.int32,
    rgb_format: bool = False,
    *,
    data: str | Path | None = None,
) -> tuple[Any, Any]:
    """MNIST's training set and test set, from files that are checked to the last byte.

    Args:
        withlabel: examples are pairs (image, label); False: the data sets are plain arrays of images.
        ndim: the shape of an image: 1 (784,), 2 (28, 28), 3 (1, 28, 28).
        scale: pixels lie in 0 … scale.
        dtype: of the images; None is ``mnpar.config.dtype``.
        label_dtype: of the labels.
        rgb_format: with ``ndim=3``, three equal channels (3, 28, 28).
        data: the folder with the four IDX files, or one that has them in ``mnist/`` or ``MNIST/raw/``. None: the folder in
            the variable MNPAR_DATA; without that variable, what was downloaded before, or a download.

    Returns:
        ``(train, test)``. Local: every rank that calls it reads the files.

    Raises:
        FileNotFoundError: a file is not in the folder.
        DatasetError: a file is damaged or not what its name says.
        ConnectionError: a download did not succeed.
        ValueError: no such ``ndim``.

    Example:
        >>> from mnpar.datasets import get_mnist
        >>> get_mnist(data="/no/such/folder")
        Traceback (most recent call last):
        FileNotFoundError: ...
    """
    check_ndim(ndim)
    found = Place(data or os.environ.get("MNPAR_DATA"), FOLDERS, FILES, MIRRORS, "mnist", REMEDY)
    return read_both(
        found, withlabel=withlabel, ndim=ndim, scale=scale, dtype=dtype, label_dtype=label_dtype, rgb_format=rgb_format
    )  # fmt: skip


class Place(NamedTuple):
    """Where four files of MNIST's form are."""

    folder: str | Path | None  # None: in the cache, or to be downloaded
    inside: tuple[str, ...]  # folders in it
    files: dict[str, KnownFile]
    mirrors: tuple[str, ...]
    cache: str
    remedy: str


def read_both(place: Place, *, withlabel: bool, **options: Any) -> tuple[Any, Any]:
    """The training set and the test set in the form that a ``get_…`` was asked for."""

    def part(name: str) -> Any:
        images, labels = _read_pair(_find(f"{name}-images-idx3-ubyte", place), _find(f"{name}-labels-idx1-ubyte", place))
        return labelled_images(images, labels, 255, withlabel=withlabel, **options)

    return part("train"), part("t10k")


def _find(name: str, place: Place) -> Path:
    if not place.folder:
        try:
            return fetch(place.files[name], cache_folder(place.cache), place.mirrors)
        except ConnectionError as error:
            raise ConnectionError(f"{error}; {place.remedy}") from None
    folders = [Path(place.folder, inside) for inside in place.inside]
    names = [f"{stem}{suffix}" for stem in (name, name.replace("-idx", ".idx")) for suffix in ("", ".gz")]
    for path in (one / file for one in folders for file in names):
        if path.is_file():
            return path
    where = " or ".join(map(str, folders))
    raise FileNotFoundError(f"{name} (or {', '.join(names[1:])}) is not in {where}; {place.remedy}")


def _read_pair(images_path: Path, labels_path: Path) -> tuple[Array, Array]:
    images = read_idx(images_path, dtype=np.uint8, shape=(None, 28, 28))
    labels = read_idx(labels_path, dtype=np.uint8, shape=(None,))
    if len(images) != len(labels):
        raise DatasetError(
            f"{labels_path}: at byte 4: expected {len(images)} labels, for the images of {images_path}, found {len(labels)}"
        )
    if len(images) == 0:
        raise DatasetError(f"{images_path}: at byte 4: expected at least one image, found 0")
    wrong = np.flatnonzero(labels >= CLASSES)
    if wrong.size:
        raise DatasetError(
            f"{labels_path}: at byte {LABELS_BEGIN + wrong[0]}: expected a label in 0 … {CLASSES - 1}, "
            f"found {labels[wrong[0]]} ({wrong.size} of {len(labels)} labels are out of range)"
        )
    return images, labels
