"""Data sets in MNIST's form: four IDX files of images of 28 × 28 pixels and of labels, on the disk
or downloaded.

Digests and sizes are those that the mirrors and many projects agree on; they are checked on what is
downloaded. Files that the user names are checked for their form only: the files of all of these
data sets have the same names.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mnpar.backend import Array
from mnpar.datasets.download import KnownFile, cache_folder, fetch
from mnpar.datasets.idx import read_idx
from mnpar.datasets.images import check_labels, check_ndim, labelled_images
from mnpar.errors import DatasetError

CLASSES = 10
LABELS_BEGIN = 8  # bytes of header before the labels


def four_files(*known: tuple[str, int, str]) -> dict[str, KnownFile]:
    """The files of a data set by their names without ``.gz``: name, size and SHA-256 of each."""
    return {name.removesuffix(".gz"): KnownFile(name, size, digest) for name, size, digest in known}


class Place(NamedTuple):
    """Where four files of MNIST's form are."""

    # the folder that the user names; None: the one of MNPAR_DATA, or the cache, or a mirror
    data: str | Path | None
    name: str  # of the data set, and of its folder in the cache
    inside: Sequence[str]  # folders in that of MNPAR_DATA
    files: Mapping[str, KnownFile]
    mirrors: Sequence[str]

    @property
    def folders(self) -> list[Path]:
        """Where the files may lie; none if they are to be downloaded."""
        folder = self.data or os.environ.get("MNPAR_DATA")
        return (
            [
                Path(folder, inside)
                for inside in dict.fromkeys([*([""] if self.data else []), *self.inside])
            ]
            if folder
            else []
        )

    @property
    def remedy(self) -> str:
        """What to do if they are not there."""
        other = (
            "by the variable MNPAR_DATA or by --data"
            if "" in self.inside
            else f"or put it as {self.name}/ into MNPAR_DATA"
        )
        return f"give the folder with the four IDX files (gzipped or not) by data=, {other}"


def read_both(place: Place, *, withlabel: bool, ndim: int, **options: Any) -> tuple[Any, Any]:
    """The training set and the test set in the form that a ``get_…`` was asked for."""
    check_ndim(ndim)

    def part(name: str) -> Any:
        images, labels = _read_pair(
            _find(f"{name}-images-idx3-ubyte", place), _find(f"{name}-labels-idx1-ubyte", place)
        )
        return labelled_images(images, labels, 255, withlabel=withlabel, ndim=ndim, **options)

    return part("train"), part("t10k")


def _find(name: str, place: Place) -> Path:
    folders = place.folders
    if not folders:
        try:
            return fetch(place.files[name], cache_folder(place.name), place.mirrors)
        except ConnectionError as error:
            raise ConnectionError(f"{error}; {place.remedy}") from None
    names = [
        f"{stem}{suffix}" for stem in (name, name.replace("-idx", ".idx")) for suffix in ("", ".gz")
    ]
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
            f"{labels_path}: at byte 4: expected {len(images)} labels, for the images of "
            f"{images_path}, found {len(labels)}"
        )
    if len(images) == 0:
        raise DatasetError(f"{images_path}: at byte 4: expected at least one image, found 0")
    check_labels(labels_path, labels, CLASSES, LABELS_BEGIN)
    return images, labels
