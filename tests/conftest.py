"""Options of these tests, and what they print at the end."""

from collections import Counter

import pytest

OUTCOMES = pytest.StashKey[Counter]()  # what became of the spoilt programs: tests/test_random_programs.py


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
