"""The pytest plugin that every session loads where mnpar is installed: the fixture ``comm`` and the
mark ``ranks``, and nothing else.

It has no option, and imports neither mnpar nor numpy, before a test asks for this ``comm``: then it
registers ``mnpar/testing/plugin.py``, which runs such tests. ``-p mnpar.testing.options`` brings
options, too (``--ranks-on``, ``--rank-timeout``, ``--processes``, ``--sweep``). This file lies
beside the package because Python runs ``mnpar/__init__.py`` before any file in the package.
"""

from __future__ import annotations

import importlib
from typing import Any

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Describe the mark."""
    config.addinivalue_line(
        "markers",
        "ranks(*sizes, on=('threads', 'mpi')): run this test, which takes `comm`, on so many ranks",
    )


@pytest.fixture
def comm(request: pytest.FixtureRequest) -> Any:
    """The communicator of the ranks on which the test runs: mnpar's."""
    return request.param


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a test that takes ``comm`` a case for each number of ranks, on threads and on MPI."""
    if "comm" not in metafunc.fixturenames or not _asks_for_ranks(metafunc):
        return
    plugin = importlib.import_module("mnpar.testing.plugin")
    if not metafunc.config.pluginmanager.is_registered(plugin):
        metafunc.config.pluginmanager.register(plugin, plugin.__name__)
    plugin.parametrize(metafunc)


def _asks_for_ranks(metafunc: pytest.Metafunc) -> bool:
    """Return whether ``comm`` is the fixture of this file, and no value that the project itself
    gives.
    """
    found = metafunc.definition._fixtureinfo.name2fixturedefs.get("comm", ())
    return (
        bool(found)
        and found[-1].func.__module__ == __name__
        and not any("comm" in call.params for call in metafunc._calls)
    )
