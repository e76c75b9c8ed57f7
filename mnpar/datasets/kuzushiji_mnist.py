"""Kuzushiji-MNIST: 70,000 old Japanese characters of ten kinds in MNIST's form (Clanuwat et al.
2018, arXiv 1812.01718).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from mnpar.datasets.idx_images import Place, four_files, read_both

MIRRORS = ("http://codh.rois.ac.jp/kmnist/dataset/kmnist/",)
FILES = four_files(
    (
        "train-images-idx3-ubyte.gz",
        18165135,
        "51467d22d8cc72929e2a028a0428f2086b092bb31cfb79c69cc0a90ce135fde4",
    ),
    (
        "train-labels-idx1-ubyte.gz",
        29497,
        "e38f9ebcd0f3ebcdec7fc8eabdcdaef93bb0df8ea12bee65224341c8183d8e17",
    ),
    (
        "t10k-images-idx3-ubyte.gz",
        3041136,
        "edd7a857845ad6bb1d0ba43fe7e794d164fe2dce499a1694695a792adfac43c5",
    ),
    (
        "t10k-labels-idx1-ubyte.gz",
        5120,
        "20bb9a0ef54c7db3efc55a92eef5582c109615df22683c380526788f98e42a1c",
    ),
)
FOLDERS = ("kmnist", "KMNIST/raw")  # in MNPAR_DATA, where MNIST's files have the same names
LABELS = ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo")


def get_kuzushiji_mnist(
    withlabel: bool = True,
    ndim: int = 1,
    scale: float = 1.0,
    dtype: Any = None,
    label_dtype: Any = np.int32,
    rgb_format: bool = False,
    *,
    data: str | Path | None = None,
) -> tuple[Any, Any]:
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
    return read_both(
        Place(data, "kmnist", FOLDERS, FILES, MIRRORS),
        withlabel=withlabel,
        ndim=ndim,
        scale=scale,
        dtype=dtype,
        label_dtype=label_dtype,
        rgb_format=rgb_format,
    )


def get_kuzushiji_mnist_labels() -> list[str]:
    """How the ten characters are read.

    Example:
        >>> from mnpar.datasets import get_kuzushiji_mnist_labels
        >>> get_kuzushiji_mnist_labels()[1]
        'ki'
    """
    return list(LABELS)
