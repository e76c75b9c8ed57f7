"""Examples of docstrings that import a library which is not installed are skipped."""

import importlib.util
import re

import pytest

_MAY_BE_MISSING = ("torch", "jax", "numba")


def pytest_collection_modifyitems(items):
    """Mark them before anything runs."""
    missing = [name for name in _MAY_BE_MISSING if importlib.util.find_spec(name) is None]
    if not missing:
        return
    imported = re.compile(rf"import .*\b({'|'.join(missing)})\b")
    for item in items:
        if isinstance(item, pytest.DoctestItem):
            found = imported.search("".join(example.source for example in item.dtest.examples))
            if found:
                item.add_marker(pytest.mark.skip(reason=f"{found[1]} is not installed"))
