"""Fashion-MNIST: 70,000 articles of clothing in MNIST's form (Xiao, Rasul and Vollgraf 2017, arXiv
1708.07747).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from mnpar.datasets.idx_images import Place, four_files, read_both

MIRRORS = (
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
)
FILES = four_files(
    (
        "train-images-idx3-ubyte.gz",
        26421880,
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    ),
    (
        "train-labels-idx1-ubyte.gz",
        29515,
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    ),
    (
        "t10k-images-idx3-ubyte.gz",
        4422102,
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    ),
    (
        "t10k-labels-idx1-ubyte.gz",
        5148,
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    ),
)
# in MNPAR_DATA, where MNIST's files have the same names
FOLDERS = (
    "fashion-mnist",
    "fashion",
    "FashionMNIST/raw",
)
LABELS = (
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


def get_fashion_mnist(
    withlabel: bool = True,
    ndim: int = 1,
    scale: float = 1.0,
    dtype: Any = None,
    label_dtype: Any = np.int32,
    rgb_format: bool = False,
    *,
    data: str | Path | None = None,
) -> tuple[Any, Any]:
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
    return read_both(
        Place(data, "fashion-mnist", FOLDERS, FILES, MIRRORS),
        withlabel=withlabel,
        ndim=ndim,
        scale=scale,
        dtype=dtype,
        label_dtype=label_dtype,
        rgb_format=rgb_format,
    )


def get_fashion_mnist_labels() -> list[str]:
    """What the ten labels mean.

    Example:
        >>> from mnpar.datasets import get_fashion_mnist_labels
        >>> get_fashion_mnist_labels()[9]
        'Ankle boot'
    """
    return list(LABELS)
