"""MNIST, and two data sets of its form: IDX files of 70,000 images of 28 × 28 pixels, and of
their labels, on the disk or downloaded.

MNIST has handwritten digits (LeCun, Cortes and Burges), Fashion-MNIST articles of clothing (Xiao,
Rasul and Vollgraf 2017, arXiv 1708.07747), Kuzushiji-MNIST old Japanese characters of ten kinds
(Clanuwat et al. 2018, arXiv 1812.01718). The digests and sizes below are those that the mirrors and
many projects agree on; downloads are checked against them. Files that the user names are checked
for their form only, as the files of all three data sets have the same names.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from mnpar.backend import Array
from mnpar.dataset.mixin import Dataset
from mnpar.datasets.download import KnownFile, cache_folder, fetch
from mnpar.datasets.idx import read_idx
from mnpar.datasets.labelled_images import ImageForm, check_labels, check_ndim
from mnpar.errors import DatasetError

CLASSES = 10
LABELS_BEGIN = 8  # bytes of header before the labels
FILES = (  # of each data set
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


class MnistSource(NamedTuple):
    """The places of the four files of a data set."""

    name: str  # of the data set, and of its folder in the cache
    folders: Sequence[str]  # in the one of MNPAR_DATA; "": that one itself
    files: Mapping[str, KnownFile]  # by their names without .gz
    mirrors: Sequence[str]

    def sets(self, data: str | Path | None, form: ImageForm) -> tuple[Dataset, Dataset]:
        """Return the training set and the test set; ``data`` is the folder that the user names, or
        None.
        """
        check_ndim(form.ndim)
        return self._set("train", data, form), self._set("t10k", data, form)

    def _set(self, part: str, data: str | Path | None, form: ImageForm) -> Dataset:
        images, labels = _read_pair(
            self._path(f"{part}-images-idx3-ubyte", data),
            self._path(f"{part}-labels-idx1-ubyte", data),
        )
        return form.dataset(images, labels, 255)

    def _path(self, name: str, data: str | Path | None) -> Path:
        """Return the path of a file; download it if there is no folder where it should be."""
        folder = data or os.environ.get("MNPAR_DATA")
        if not folder:
            try:
                return fetch(self.files[name], cache_folder(self.name), self.mirrors)
            except ConnectionError as error:
                raise ConnectionError(f"{error}; {self._remedy}") from None
        inside = dict.fromkeys([*([""] if data else []), *self.folders])
        places = [Path(folder, one) for one in inside]
        names = [
            f"{stem}{suffix}"
            for stem in (name, name.replace("-idx", ".idx"))
            for suffix in ("", ".gz")
        ]
        for path in (place / file for place in places for file in names):
            if path.is_file():
                return path
        where = " or ".join(map(str, places))
        raise FileNotFoundError(
            f"{name} (or {', '.join(names[1:])}) is not in {where}; {self._remedy}"
        )

    @property
    def _remedy(self) -> str:
        other = (
            "by the variable MNPAR_DATA or by --data"
            if "" in self.folders
            else f"or put it as {self.name}/ into MNPAR_DATA"
        )
        return f"give the folder with the four IDX files (gzipped or not) by data=, {other}"


def four_files(*known: tuple[int, str]) -> dict[str, KnownFile]:
    """Return the files of a data set by their names without ``.gz``, from size and SHA-256 of each,
    in the order of ``FILES``.
    """
    return {
        name: KnownFile(f"{name}.gz", size, digest)
        for name, (size, digest) in zip(FILES, known, strict=True)
    }


def _read_pair(images_path: Path, labels_path: Path) -> tuple[Array, Array]:
    images = read_idx(images_path, dtype=np.uint8, shape=(None, 28, 28))
    labels = read_idx(labels_path, dtype=np.uint8, shape=(None,))
    if len(images) != len(labels):
        raise DatasetError(
            f"{labels_path}: at byte 4: expected {len(images)} labels, for the images of "
            f"{images_path}, found {len(labels)}"
        )
    if len(images) == 0:
        raise DatasetError(f"{images_path}: at byte 4: expected at least one image, found 0")
    check_labels(labels_path, labels, CLASSES, LABELS_BEGIN)
    return images, labels


MNIST = MnistSource(
    "mnist",
    ("", "mnist", "MNIST/raw"),
    four_files(
        (9912422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
        (28881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
        (1648877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
        (4542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
    ),
    (
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
)
# in MNPAR_DATA in folders of their own, as MNIST's files have the same names
FASHION_MNIST = MnistSource(
    "fashion-mnist",
    ("fashion-mnist", "fashion", "FashionMNIST/raw"),
    four_files(
        (26421880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
        (29515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
        (4422102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
        (5148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
    ),
    (
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    ),
)
KUZUSHIJI_MNIST = MnistSource(
    "kmnist",
    ("kmnist", "KMNIST/raw"),
    four_files(
        (18165135, "51467d22d8cc72929e2a028a0428f2086b092bb31cfb79c69cc0a90ce135fde4"),
        (29497, "e38f9ebcd0f3ebcdec7fc8eabdcdaef93bb0df8ea12bee65224341c8183d8e17"),
        (3041136, "edd7a857845ad6bb1d0ba43fe7e794d164fe2dce499a1694695a792adfac43c5"),
        (5120, "20bb9a0ef54c7db3efc55a92eef5582c109615df22683c380526788f98e42a1c"),
    ),
    ("http://codh.rois.ac.jp/kmnist/dataset/kmnist/",),
)
FASHION_LABELS = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
KUZUSHIJI_LABELS = ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo")


def get_mnist(
    withlabel: bool = True,
    ndim: int = 1,
    scale: float = 1.0,
    dtype: DTypeLike | None = None,
    label_dtype: DTypeLike = np.int32,
    rgb_format: bool = False,
    *,
    data: str | Path | None = None,
) -> tuple[Dataset, Dataset]:
    """MNIST's training set and test set, from files that are checked to the last byte.

    Args:
        withlabel: examples are pairs (image, label); False: the data sets are plain arrays of
            images.
        ndim: the shape of an image: 1 (784,), 2 (28, 28), 3 (1, 28, 28).
        scale: pixels lie in 0 … scale.
        dtype: of the images; None is ``mnpar.config.dtype``.
        label_dtype: of the labels.
        rgb_format: with ``ndim=3``, three equal channels (3, 28, 28).
        data: the folder with the four IDX files, or one that has them in ``mnist/`` or
            ``MNIST/raw/``. None: the folder in the variable MNPAR_DATA; without that variable, what
            was downloaded before, or a download.

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
    form = ImageForm(withlabel, ndim, scale, dtype, label_dtype, rgb_format)
    return MNIST.sets(data, form)


def get_fashion_mnist(
    withlabel: bool = True,
    ndim: int = 1,
    scale: float = 1.0,
    dtype: DTypeLike | None = None,
    label_dtype: DTypeLike = np.int32,
    rgb_format: bool = False,
    *,
    data: str | Path | None = None,
) -> tuple[Dataset, Dataset]:
    """Fashion-MNIST's training set and test set, from files that are checked to the last byte.

    Args:
        withlabel, ndim, scale, dtype, label_dtype, rgb_format: as in :func:`get_mnist`.
        data: the folder with the four IDX files. None: ``fashion-mnist/``, ``fashion/`` or
            ``FashionMNIST/raw/`` in the folder that MNPAR_DATA names; without that variable, what
            was downloaded before, or a download.

    Returns:
        ``(train, test)``. Local: every rank that calls it reads the files.

    Raises:
        FileNotFoundError, DatasetError, ConnectionError, ValueError: as :func:`get_mnist`.

    Example:
        >>> from mnpar.datasets import get_fashion_mnist
        >>> get_fashion_mnist(data="/no/such/folder")
        Traceback (most recent call last):
        FileNotFoundError: ...
    """
    form = ImageForm(withlabel, ndim, scale, dtype, label_dtype, rgb_format)
    return FASHION_MNIST.sets(data, form)


def get_fashion_mnist_labels() -> list[str]:
    """Return the names of the ten labels.

    Example:
        >>> from mnpar.datasets import get_fashion_mnist_labels
        >>> get_fashion_mnist_labels()[9]
        'Ankle boot'
    """
    return list(FASHION_LABELS)


def get_kuzushiji_mnist(
    withlabel: bool = True,
    ndim: int = 1,
    scale: float = 1.0,
    dtype: DTypeLike | None = None,
    label_dtype: DTypeLike = np.int32,
    rgb_format: bool = False,
    *,
    data: str | Path | None = None,
) -> tuple[Dataset, Dataset]:
    """Kuzushiji-MNIST's training set and test set, from files that are checked to the last byte.

    Args:
        withlabel, ndim, scale, dtype, label_dtype, rgb_format: as in :func:`get_mnist`.
        data: the folder with the four IDX files. None: ``kmnist/`` or ``KMNIST/raw/`` in the folder
            that MNPAR_DATA names; without that variable, what was downloaded before, or a download.

    Returns:
        ``(train, test)``. Local: every rank that calls it reads the files.

    Raises:
        FileNotFoundError, DatasetError, ConnectionError, ValueError: as :func:`get_mnist`.

    Example:
        >>> from mnpar.datasets import get_kuzushiji_mnist
        >>> get_kuzushiji_mnist(data="/no/such/folder")
        Traceback (most recent call last):
        FileNotFoundError: ...
    """
    form = ImageForm(withlabel, ndim, scale, dtype, label_dtype, rgb_format)
    return KUZUSHIJI_MNIST.sets(data, form)


def get_kuzushiji_mnist_labels() -> list[str]:
    """Return the readings of the ten characters.

    Example:
        >>> from mnpar.datasets import get_kuzushiji_mnist_labels
        >>> get_kuzushiji_mnist_labels()[1]
        'ki'
    """
    return list(KUZUSHIJI_LABELS)
