"""What the image data sets share: pixels scaled, images shaped, labels beside them."""

from __future__ import annotations

from typing import Any

import numpy as np

from mnpar.backend import Array
from mnpar.config import get_dtype
from mnpar.datasets.tuple_dataset import TupleDataset


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
    """The data set of N images (N, H, W) whose brightest pixel is ``top``, in the form that a ``get_…`` was asked for."""
    n, height, width = pixels.shape
    images = pixels.astype(get_dtype(dtype))
    np.multiply(images, scale / top, out=images, casting="unsafe")
    if ndim == 1:
        images = images.reshape(n, height * width)
    elif ndim == 3:
        images = images.reshape(n, 1, height, width)
        images = np.repeat(images, 3, axis=1) if rgb_format else images  # (N, 3, H, W)
    return TupleDataset(images, labels.astype(label_dtype)) if withlabel else images


def check_ndim(ndim: int) -> None:
    """Raise before anything is read."""
    if ndim not in (1, 2, 3):
        raise ValueError(f"ndim = {ndim}: 1 gives flat images, 2 gives height × width, 3 gives channel × height × width")
