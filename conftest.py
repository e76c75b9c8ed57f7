"""Examples of docstrings that import a library which is not installed are left out."""

import importlib.util
import re

import pytest

_MAY_BE_MISSING = ("torch", "jax", "numba")


def pytest_collection_modifyitems(config, items):
    """Leave them out before anything runs."""
    missing = [name for name in _MAY_BE_MISSING if importlib.util.find_spec(name) is None]
    if not missing:
        return
    imported = re.compile(rf"import .*\b({'|'.join(missing)})\b")
    left_out = [
        item
        for item in items
        if isinstance(item, pytest.DoctestItem)
        and imported.search("".join(example.source for example in item.dtest.examples))
    ]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
