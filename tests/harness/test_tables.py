"""Tables whose rows are one test: all of them are looked at, and those that fail are named."""

import pytest

from tests.harness.tables import together, try_all


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

    with pytest.raises(ExceptionGroup, match="odd: not so in 2 of 3") as told:
        odd()
    assert [
        (str(error).partition("\n")[0], error.__notes__) for error in told.value.exceptions
    ] == [
        ("1 is odd", ["where {'a': 1}"]),
        ("3 is odd", ["where {'a': 3}"]),
    ]
    assert seen == [1, 2, 3]


def test_a_row_that_does_not_raise_what_it_should_is_named_like_others():
    @together(text=["1", "x", "2", "y"])
    def wrong(text):
        with pytest.raises(ValueError, match="invalid literal"):
            int(text)

    with pytest.raises(BaseExceptionGroup, match="wrong: not so in 2 of 4") as told:
        wrong()
    assert [error.__notes__ for error in told.value.exceptions] == [
        ["where {'text': '1'}"],
        ["where {'text': '2'}"],
    ]


def test_a_table_without_rows_fails():
    with pytest.raises(AssertionError, match="all: the table is empty"):
        try_all("all", [])


def test_rows_may_skip_themselves_and_the_test_is_skipped_where_all_do():
    @together(a=[1, 2, 3])
    def odd(a):
        if a > least:
            pytest.skip("too large")
        assert a == 1

    least = 1
    odd()
    least = 0
    with pytest.raises(pytest.skip.Exception, match="too large"):
        odd()
