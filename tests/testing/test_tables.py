"""Tables whose rows are one test: all of them are looked at, and those that fail are named."""

import pytest

from tests.tables import together


@pytest.fixture
def seen():
    return []


@together(a=[1, 2], b="xy")
def test_each_combination_is_looked_at_with_the_same_fixtures(seen, a, b):
    assert (a, b) not in seen
    seen.append((a, b))
    assert len(seen) == 2 * (a - 1) + "xy".index(b) + 1


def test_each_row_that_fails_is_named_and_the_others_are_looked_at():
    seen = []

    @together(a=[1, 2, 3])
    def odd(a):
        seen.append(a)
        assert a % 2 == 0, f"{a} is odd"

    with pytest.raises(ExceptionGroup, match="odd: not so in 2 rows") as told:
        odd()
    assert [(str(error).partition("\n")[0], error.__notes__) for error in told.value.exceptions] == [
        ("1 is odd", ["where {'a': 1}"]),
        ("3 is odd", ["where {'a': 3}"]),
    ]
    assert seen == [1, 2, 3]
