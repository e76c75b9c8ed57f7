"""What the image data sets share: pixels scaled, images shaped, labels checked and put beside
them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mnpar.backend import Array
from mnpar.configuration import get_dtype
from mnpar.datasets.tuple_dataset import TupleDataset
from mnpar.errors import DatasetError


def labelled_images(
    pixels: Array,
    labels: Array,
    top: float,
    *,
    withlabel: bool,
    ndim: int,
    scale: float,
    dtype: Any,
    label_dtype: Any,
    rgb_format: bool = False,
) -> Any:
    """The data set of N images, (N, H, W) or (N, C, H, W), whose brightest pixel is ``top``, in the
    form that was asked for.
    """
    images = pixels.astype(get_dtype(dtype))
    np.multiply(images, scale / top, out=images, casting="unsafe")
    if ndim == 1:
        images = images.reshape(len(images), -1)
    elif ndim == 3 and pixels.ndim == 3:
        images = images[:, None]
        images = np.repeat(images, 3, axis=1) if rgb_format else images  # (N, 3, H, W)
    return TupleDataset(images, labels.astype(label_dtype)) if withlabel else images


def check_ndim(ndim: int) -> None:
    """Raise before anything is read."""
    if ndim not in (1, 2, 3):
        raise ValueError(
            f"ndim = {ndim}: 1 gives flat images, 2 gives height × width, 3 gives channel × "
            "height × width"
        )


def check_labels(file: Any, labels: Array, classes: int, first: int, step: int = 1) -> None:
    """Raise if a label of a file is not below ``classes``; they stand at byte ``first`` and every
    ``step`` bytes from there.
    """
    wrong = np.flatnonzero(labels >= classes)
    if wrong.size:
        raise DatasetError(
            f"{file}: at byte {first + wrong[0] * step}: expected a label in 0 … "
            f"{classes - 1}, found {labels[wrong[0]]} "
            f"({wrong.size} of {len(labels)} labels are out of range)"
        )
