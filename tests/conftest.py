"""Options of these tests, and what they print at the end."""

from collections import Counter

import numpy as np
import pytest

import mnpar

OUTCOMES = pytest.StashKey[Counter]()  # what became of the spoilt programs: tests/test_random_programs.py


@pytest.fixture
def float64():
    """Links and functions make float64: a file asks by ``pytestmark = pytest.mark.usefixtures("float64")``."""
    with mnpar.using_config("dtype", np.dtype("f8")):
        yield


def pytest_addoption(parser):
    parser.addoption("--detection", action="store_true", help="print how many of the spoilt random programs were reported")


def pytest_configure(config):
    config.stash[OUTCOMES] = Counter()


def pytest_terminal_summary(terminalreporter, config):
    outcomes = config.stash[OUTCOMES]
    if not config.getoption("--detection") or not outcomes:
        return
    silent = sum(n for what, n in outcomes.items() if what.startswith("silently"))
    reported, harmless = outcomes["reported"], outcomes["harmless"]
    terminalreporter.write_line(
        f"spoilt programs: {reported} reported, {harmless} harmless (the gradients are right all the same), "
        f"{silent} silently wrong: {reported / max(reported + silent, 1):.2%} of those that matter were reported"
    )
