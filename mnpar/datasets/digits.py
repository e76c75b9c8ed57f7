"""1,797 real handwritten digits, with no download.

scikit-learn carries them (the test part of UCI's "Optical Recognition of Handwritten Digits", E.
Alpaydin and C. Kaynak, 1998, doi:10.24432/C50P49, CC BY 4.0): 8 × 8 images with 17 grey levels. Its
file is read in 10 ms by its path; importing scikit-learn takes 1.2 s and happens only if the file
is not the one that is known here.
"""

from __future__ import annotations

import gzip
import hashlib
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike

from mnpar.backend import Array
from mnpar.dataset.mixin import Dataset
from mnpar.datasets.labelled_images import ImageForm, check_ndim
from mnpar.errors import DatasetError

FILE = "datasets/data/digits.csv.gz"  # inside scikit-learn
SHA256 = "09f66e6debdee2cd2b5ae59e0d6abbb73fc2b0e0185d2e1957e9ebb51e23aa22"
BRIGHTEST = 16


def get_digits(
    withlabel: bool = True,
    ndim: int = 1,
    scale: float = 1.0,
    dtype: DTypeLike | None = None,
    label_dtype: DTypeLike = np.int32,
) -> tuple[Dataset, Dataset]:
    """Real handwritten digits from scikit-learn's files, split into four fifths to train on and one
    to test with.

    The split is fixed and stratified: every fifth image of each digit, in the file's order, is held
    out. (A writer's digits stand together in the file, so the same hands are on both sides.)

    Args:
        withlabel: examples are pairs (image, label); False: the data sets are plain arrays of
            images.
        ndim: the shape of an image: 1 (64,), 2 (8, 8), 3 (1, 8, 8).
        scale: pixels lie in 0 … scale.
        dtype: of the images; None is ``mnpar.config.dtype``.
        label_dtype: of the labels.

    Returns:
        ``(train, test)``, 1,442 and 355 examples, the same on every rank. Local: each rank reads
        the file on its own.

    Raises:
        ModuleNotFoundError: scikit-learn is not installed.
        ValueError: no such ``ndim``.

    Example:
        >>> from mnpar.datasets import get_digits
        >>> train, test = get_digits()
        >>> image, label = test[0]
        >>> len(train), len(test), image.shape, image.dtype, label
        (1442, 355, (64,), dtype('float32'), np.int32(5))
    """
    check_ndim(ndim)
    form = ImageForm(withlabel, ndim, scale, dtype, label_dtype)
    table = _table()  # (1797, 65): 64 pixels and the label
    held_out = _every_fifth(table[:, -1])

    def part(rows: Array) -> Dataset:
        pixels = table[rows, :-1].reshape(-1, 8, 8)
        labels = table[rows, -1]
        return form.dataset(pixels, labels, BRIGHTEST)

    return part(~held_out), part(held_out)


def _every_fifth(labels: Array) -> Array:
    held_out = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        held_out[np.flatnonzero(labels == label)[4::5]] = True
    return held_out


def _table() -> Array:
    spec = find_spec("sklearn")  # finds, does not import
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(
            "get_digits reads the digits that scikit-learn carries, and scikit-learn is not "
            "installed: "
            "pip install 'mnpar[examples]' (or pip install scikit-learn)"
        )
    for folder in spec.submodule_search_locations:
        path = Path(folder, FILE)
        if path.is_file():
            data = path.read_bytes()
            if hashlib.sha256(data).hexdigest() == SHA256:
                return np.loadtxt(
                    gzip.decompress(data).decode().splitlines(), delimiter=",", dtype=np.uint8
                )
    return _table_by_import()


def _table_by_import() -> Array:
    """Return another release of scikit-learn may move or rewrite the file: then it has to say
    itself where the digits are.
    """
    from sklearn.datasets import load_digits

    digits = load_digits()
    table = np.column_stack([digits.data, digits.target])
    if (
        table.shape != (1797, 65)
        or table.min() < 0
        or table[:, :-1].max() != BRIGHTEST
        or table[:, -1].max() > 9
    ):
        raise DatasetError(
            f"scikit-learn's load_digits gave a table of shape {table.shape} with values "
            f"{table.min()} … {table.max()}; "
            "1797 rows of 64 pixels in 0 … 16 and a label in 0 … 9 were expected: report it to "
            "mnpar"
        )
    return table.astype(np.uint8)
