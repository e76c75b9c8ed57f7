"""Pieces of the photographs that scikit-learn and scikit-image carry: real images with no download.

scikit-learn has two (a temple, a flower), scikit-image several. They are read by their paths with
Pillow, which takes milliseconds; neither library is imported.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike

from mnpar.backend import Array
from mnpar.configuration import get_dtype
from mnpar.dataset.mixin import Dataset
from mnpar.datasets.combined import TupleDataset
from mnpar.datasets.image_dataset import check_pillow, read_image

PHOTOGRAPHS = {
    "sklearn": ("datasets/images/china.jpg", "datasets/images/flower.jpg"),
    "skimage": ("data/astronaut.png", "data/chelsea.png", "data/coffee.png", "data/rocket.jpg"),
}
TRAINING = 0.8  # of each photograph, from its left side


def get_photograph_patches(
    withlabel: bool = True,
    size: int = 32,
    stride: int | None = None,
    scale: float = 1.0,
    dtype: DTypeLike | None = None,
    label_dtype: DTypeLike = np.int32,
    *,
    source: str = "sklearn",
) -> tuple[Dataset, Dataset]:
    """Square colour patches of photographs, those to train on from the left four fifths, those to
    test with from the rest.

    No pixel is on both sides, also where patches overlap.

    Args:
        withlabel: examples are pairs (patch, number of the photograph); False: the data sets are
            plain arrays of patches.
        size: height and width.
        stride: between patches; None is ``size``: they do not overlap.
        scale: pixels lie in 0 … scale.
        dtype: of the patches (3, size, size); None is ``mnpar.config.dtype``.
        label_dtype: of the labels.
        source: "sklearn" (two photographs of 427 × 640) or "skimage" (those of astronaut, cat,
            coffee and rocket).

    Returns:
        ``(train, test)``. Local: each rank reads the files.

    Raises:
        ModuleNotFoundError: the library with the photographs, or Pillow, is not installed.
        FileNotFoundError: this release of the library has none of the photographs.
        ValueError: no such source, or the size fits no photograph.

    Example:
        >>> from mnpar.datasets import get_photograph_patches
        >>> train, test = get_photograph_patches()
        >>> len(train), len(test), train[0][0].shape
        (416, 104, (3, 32, 32))
    """
    stride = size if stride is None else stride
    if size < 1 or stride < 1:
        raise ValueError(f"size = {size}, stride = {stride}: both must be at least 1")
    train = []
    test = []
    photographs = [read_image(path, np.uint8) for path in _find(source)]
    sides = " and ".join(f"{one.shape[1]} x {one.shape[2]}" for one in photographs)
    for photograph in photographs:
        cut = int(photograph.shape[2] * TRAINING)
        train.append(_patches(photograph[:, :, :cut], size, stride))
        test.append(_patches(photograph[:, :, cut:], size, stride))

    def part(patches: list[Array]) -> Dataset:
        images = np.concatenate(patches).astype(get_dtype(dtype))
        if not len(images):
            raise ValueError(
                f"size = {size}: the photographs, of {sides}, have no patches as large in both "
                "parts"
            )
        np.multiply(images, scale / 255, out=images, casting="unsafe")
        labels = np.repeat(np.arange(len(patches)), [len(one) for one in patches])
        return TupleDataset(images, labels.astype(label_dtype)) if withlabel else images

    return part(train), part(test)


def _patches(image: Array, size: int, stride: int) -> Array:
    """(N, 3, size, size) from (3, H, W), row by row."""
    if min(image.shape[1:]) < size:
        return np.empty((0, 3, size, size), image.dtype)
    # (3, y, x, size, size)
    windows = np.lib.stride_tricks.sliding_window_view(image, (size, size), (1, 2))[
        :, ::stride, ::stride
    ]
    return windows.transpose(1, 2, 0, 3, 4).reshape(-1, 3, size, size)


def _find(source: str) -> list[Path]:
    if source not in PHOTOGRAPHS:
        raise ValueError(
            f"source = {source!r}: photographs come from {' or '.join(map(repr, PHOTOGRAPHS))}"
        )
    check_pillow()
    spec = find_spec(source)  # finds, does not import
    package = {"sklearn": "scikit-learn", "skimage": "scikit-image"}[source]
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(
            f"the photographs are {package}'s, which is not installed: pip install {package}"
        )
    paths = [
        Path(folder, name)
        for folder in spec.submodule_search_locations
        for name in PHOTOGRAPHS[source]
    ]
    found = [path for path in paths if path.is_file()]
    if not found:
        raise FileNotFoundError(
            f"this release of {package} has none of the photographs {', '.join(map(str, paths))}"
        )
    return found
