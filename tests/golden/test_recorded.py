"""Recordings belong to the tables: a row that was changed or removed asks to record again."""

import json

import numpy as np
import pytest

from tests.golden import differences, functions, links, optimizers, pytorch, training
from tests.golden.recording import RECORDED, load

CASES = {
    **{f"chainer_{family}": rows for family, rows in functions.FAMILIES.items()},
    "chainer_differences": differences.DIFFERENCES,
    "chainer_links": links.LINKS,
    "chainer_optimizers": {"inputs", "NesterovAG", *optimizers.OPTIMIZERS},
    "chainer_training": {
        *training.SHIFTS,
        *training.TRIGGERS,
        *training.ITERATORS,
        *training.SPLITS,
    },
    "pytorch_functions": {"multi_head_attention_forward", *pytorch.FUNCTIONS},
    "pytorch_optimizers": {"inputs", *pytorch.OPTIMIZERS},
}


@pytest.mark.parametrize("file", CASES)
def test_what_was_recorded_are_the_rows_of_the_tables(file):
    assert load(file).keys() == set(CASES[file])


def test_recordings_say_what_computed_them():
    for path in RECORDED.iterdir():
        with np.load(path, allow_pickle=False) as archive:
            versions = json.loads(str(archive["versions"]))
        library = {"chainer": "chainer", "pytorch": "torch"}[path.name.partition("_")[0]]
        assert versions.keys() == {library, "numpy", "python"}
        assert versions.get("chainer", "7.8.1") == "7.8.1"
    assert {path.stem for path in RECORDED.iterdir()} == set(CASES)
