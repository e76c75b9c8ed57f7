"""Tables of rows that are checked in less time than pytest takes for a test."""

import functools
import inspect
from itertools import product

import pytest


def together(**tables):
    """Make one test of all combinations of the tables' rows, where ``pytest.mark.parametrize``
    makes a test of each; it names the combinations that fail: ``@together(n=[0, 1], dtype=["f4",
    "f8"])``. The test's fixtures are made once.
    """
    rows = [dict(zip(tables, values, strict=True)) for values in product(*tables.values())]

    def decorate(check):
        def test(**fixtures):
            try_all(
                check.__name__,
                [(f"where {row}", functools.partial(check, **row, **fixtures)) for row in rows],
            )

        signature = inspect.signature(check)
        fixtures = [
            parameter for name, parameter in signature.parameters.items() if name not in tables
        ]
        test.__signature__ = signature.replace(parameters=fixtures)
        return functools.update_wrapper(test, check)

    return decorate


def try_all(what, calls):
    """Call each of ``(words, call)``, and raise all errors together, with the words that say which
    call failed. A call may skip itself; where all do, the test is skipped.
    """
    assert calls, f"{what}: the table is empty"
    failed, skipped = [], []
    for words, call in calls:
        try:
            call()
        except pytest.skip.Exception as reason:
            skipped.append(reason)
        except (
            Exception,
            pytest.fail.Exception,
        ) as error:  # the second of pytest.raises, where nothing was raised
            error.add_note(words)
            failed.append(error)
    if failed:
        raise BaseExceptionGroup(f"{what}: not so in {len(failed)} of {len(calls)}", failed)
    if len(skipped) == len(calls):
        raise skipped[0]
