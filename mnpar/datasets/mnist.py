"""MNIST: 70,000 handwritten digits of 28 × 28 pixels (LeCun, Cortes and Burges), on the disk or
downloaded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from mnpar.datasets.idx_images import Place, four_files, read_both

MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
FILES = four_files(
    (
        "train-images-idx3-ubyte.gz",
        9912422,
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    ),
    (
        "train-labels-idx1-ubyte.gz",
        28881,
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    ),
    (
        "t10k-images-idx3-ubyte.gz",
        1648877,
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    ),
    (
        "t10k-labels-idx1-ubyte.gz",
        4542,
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
)
FOLDERS = ("", "mnist", "MNIST/raw")


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
    return read_both(
        Place(data, "mnist", FOLDERS, FILES, MIRRORS),
        withlabel=withlabel,
        ndim=ndim,
        scale=scale,
        dtype=dtype,
        label_dtype=label_dtype,
        rgb_format=rgb_format,
    )
