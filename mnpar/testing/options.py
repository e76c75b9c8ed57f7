"""The options of mnpar's own tests, and of projects that ask for them: ``pytest -p
mnpar.testing.options``, or that in ``addopts``.

They choose the ranks on which tests that take ``comm`` run (``plugin.py``), divide the tests among
processes (``processes.py``), and take all combinations of large grids (``grids.py``).
"""

from __future__ import annotations

from typing import Any

import pytest

import pytest_mnpar
from mnpar.testing import grids, plugin
from mnpar.testing.pool import WORKER
from mnpar.testing.processes import ProcessRunner

_LEFT = pytest.StashKey[int]()  # combinations that do not run


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of ranks, processes and grids."""
    group = parser.getgroup("mnpar")
    group.addoption(
        "--ranks-on",
        choices=("threads", "mpi", "both"),
        default="both",
        help="run the tests on these ranks only",
    )
    group.addoption(
        "--processes",
        type=int,
        default=1,
        metavar="N",
        help="run the tests in N processes, a file at a time (1)",
    )
    group.addoption(
        "--sweep",
        action="store_true",
        help="run tests marked grid in all combinations, not only in every pair",
    )
    group.addoption(
        "--rank-timeout",
        type=float,
        default=60.0,
        help="seconds for one test on mpiexec ranks (60)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Describe the mark of grids, and register what runs tests in processes."""
    config.addinivalue_line(
        "markers",
        "grid: of this test's combinations of parameters, enough for every pair (see --sweep)",
    )
    if not config.pluginmanager.is_registered(pytest_mnpar):
        # from a checkout that is not installed, or where pytest loads no plugins by itself
        config.pluginmanager.register(pytest_mnpar)
    config.pluginmanager.register(
        ProcessRunner(config.getoption("--processes"), lambda kill: plugin.close_pool(config, kill))
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out combinations of grids, unless tests are named or all are wanted."""
    named = config.option.keyword or any("::" in argument for argument in config.args)
    if not (named or config.getoption("--sweep") or config.stash.get(WORKER, None)):
        items[:], left = grids.covering(items)
        config.stash[_LEFT] = len(left)
        if left:
            config.hook.pytest_deselected(items=left)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say why tests were deselected."""
    if left := config.stash.get(_LEFT, 0):
        terminalreporter.write_line(
            f"{left} combinations of grids were left out: those that ran hold every pair of values "
            "(--sweep runs all)"
        )
