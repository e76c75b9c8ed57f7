"""How ranks' arrays make one rank's."""

import numpy as np
import pytest

from mnpar.testing.relations import joined, relation, weights_of

Y = np.arange(1.0, 13.0).reshape(4, 3)
Z = np.ones((2, 2))

CASES = {
    "copies": (Y, [Y, Y + 1e-12], "same"),
    "on one rank": (Y, [None, Y], "same"),
    "blocks of rows": (Y, [Y[:1], Y[1:]], "blocks"),
    "blocks of columns": (Y, [Y[:, :2], Y[:, 2:]], "blocks"),
    "rows in turn": (Y, [Y[::2], Y[1::2]], "rows"),
    "a row twice": (Y, [Y[:2], Y[1:3]], "other"),
    "parts": (Y, [Y - 1, np.ones_like(Y)], "parts"),
    "twice": (Y, [2 * Y, 2 * Y], "multiple"),
    "a third in blocks": (Y, [Y[:2] / 3, Y[2:] / 3], "multiple"),
    "nothing": (None, [None, None], "none"),
    "zeros for nothing": (None, [np.zeros(2), None], "none"),
    "something for nothing": (None, [Y, None], "other"),
    "nothing for something": (Y, [None, None], "other"),
    "another shape": (Y, [Z, Z], "other"),
    "others": (Y, [Y, Y + 1], "other"),
    "empty": (Y, [Y, Y[:0]], "blocks"),
}


@pytest.mark.parametrize(("whole", "parts", "kind"), CASES.values(), ids=CASES)
def test_the_relation_of_arrays(whole, parts, kind):
    found = relation(whole, parts, 1e-9)
    assert found.kind == kind
    assert found.agrees == (kind in ("same", "blocks", "rows", "none"))


def test_the_factor_of_a_multiple():
    assert relation(Y, [3 * Y, 3 * Y], 1e-9).factor == pytest.approx(3)


@pytest.mark.parametrize("weights", [(1, 1), (0.5, 0.5), (0.25, 0.75)], ids=str)
def test_weights_are_found_where_they_can_be(weights):
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 5)), rng.normal(size=(2, 5))
    whole = weights[0] * a + weights[1] * b
    assert weights_of([*whole], [[*a], [*b]], 1e-9) == pytest.approx(list(weights))
    assert weights_of([*whole + rng.normal(size=(2, 5))], [[*a], [*b]], 1e-9) == []


def test_pieces_are_joined_and_holes_are_seen():
    whole = joined((4, 3), [((0, 0), (2, 3), Y[:2]), ((2, 0), (4, 2), Y[2:, :2])])
    np.testing.assert_array_equal(whole[:, :2], Y[:, :2])
    assert np.isnan(whole[2:, 2]).all()


def test_arrays_of_no_parameter_have_no_weights():
    assert weights_of([], [[], []], 1e-9) == []
