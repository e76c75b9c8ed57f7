"""Tables of rows that are checked in less time than pytest takes for a test."""

import functools
import inspect
from itertools import product


def together(**tables):
    """Like ``pytest.mark.parametrize`` for each of the tables, but one test of all their combinations, which names those that
    fail: ``@together(n=[0, 1], dtype=["f4", "f8"])``. The test's fixtures are made once.
    """

    def decorate(check):
        def test(**fixtures):
            failed = []
            for values in product(*tables.values()):
                row = dict(zip(tables, values, strict=True))
                try:
                    check(**row, **fixtures)
                except Exception as error:
                    error.add_note(f"where {row}")
                    failed.append(error)
            if failed:
                raise ExceptionGroup(f"{check.__name__}: not so in {len(failed)} rows", failed)

        signature = inspect.signature(check)
        fixtures = [parameter for name, parameter in signature.parameters.items() if name not in tables]
        test.__signature__ = signature.replace(parameters=fixtures)
        return functools.update_wrapper(test, check)

    return decorate
