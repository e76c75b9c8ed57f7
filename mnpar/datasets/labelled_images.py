"""The form in which data sets of images are asked for: pixels scaled, images shaped, labels checked
and put beside them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from mnpar.backend import Array
from mnpar.configuration import get_dtype
from mnpar.dataset.mixin import Dataset
from mnpar.datasets.combined import TupleDataset
from mnpar.errors import DatasetError


class ImageForm(NamedTuple):
    """The form of a data set of images, in the words of :func:`mnpar.datasets.get_mnist`."""

    withlabel: bool
    ndim: int
    scale: float
    dtype: DTypeLike | None
    label_dtype: DTypeLike
    rgb_format: bool = False

    def dataset(self, pixels: Array, labels: Array, top: float) -> Dataset:
        """Return the data set of N images, (N, H, W) or (N, C, H, W), whose brightest pixel is
        ``top``.
        """
        images = pixels.astype(get_dtype(self.dtype))
        np.multiply(images, self.scale / top, out=images, casting="unsafe")
        if self.ndim == 1:
            images = images.reshape(len(images), -1)
        elif self.ndim == 3 and pixels.ndim == 3:
            images = images[:, None]
            # (N, 3, H, W)
            images = np.repeat(images, 3, axis=1) if self.rgb_format else images
        return TupleDataset(images, labels.astype(self.label_dtype)) if self.withlabel else images


def check_ndim(ndim: int) -> None:
    """Raise if ``ndim`` is not 1, 2 or 3; called before anything is read."""
    if ndim not in (1, 2, 3):
        raise ValueError(
            f"ndim = {ndim}: 1 gives flat images, 2 gives height × width, 3 gives channel × "
            "height × width"
        )


def check_labels(file: Any, labels: Array, classes: int, first: int, step: int = 1) -> None:
    """Raise if a label of a file is not below ``classes``.

    Args:
        file: its name, for the message.
        labels: are at byte ``first`` of the file, and every ``step`` bytes from there.
        classes: how many there are.
        first, step: see ``labels``.

    Raises:
        DatasetError: a label is too large; the message has its place.
    """
    wrong = np.flatnonzero(labels >= classes)
    if wrong.size:
        raise DatasetError(
            f"{file}: at byte {first + wrong[0] * step}: expected a label in 0 … "
            f"{classes - 1}, found {labels[wrong[0]]} "
            f"({wrong.size} of {len(labels)} labels are out of range)"
        )
