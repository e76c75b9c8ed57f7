"""The table of a model has each link, its shapes on this rank, and each parameter once."""

import numpy as np

import mnpar
import mnpar.functions as F
import mnpar.links as L


def cells(table):
    return {row.path: row for row in table.rows}


def model_of(comm):
    return mnpar.Chain(
        up=L.ColumnParallelLinear(comm, 4, 7), norm=L.BatchNormalization(7), lazy=L.Linear(5)
    )


def test_parts_say_of_what_they_are_parts():
    for rank, found in enumerate(mnpar.run(lambda comm: mnpar.summary(model_of(comm)), 2)):
        here = (4, 3)[rank]
        assert f"W({here}, 4) of (7, 4)" in cells(found)["/up"].parameters
        assert cells(found)["/lazy"].parameters == "W? b(5)"
        assert found.unknown == 1
        assert "1 without a shape yet" in str(found)
        assert found.elements == here * 4 + here + 2 * 7 + 5


class Twice(mnpar.Chain):
    """One parameter in two links, and outputs in containers."""

    def __init__(self):
        super().__init__()
        self.a = L.Linear(3, 3)
        self.b = mnpar.Link()
        self.b.W = self.a.W

    def forward(self, x):
        y = self.a(x)
        return {"one": y, "two": [y, None, 3.5]}


def test_a_shared_parameter_counts_once_and_containers_have_shapes():
    found = mnpar.summary(Twice(), np.zeros((2, 3), "f8"))
    assert found.elements == 12
    assert found.nbytes == 48
    assert cells(found)["/"].output == "(2, 3), (2, 3), NoneType, float"
    assert cells(found)["/b"].parameters == "W(3, 3)"
    assert (cells(found)["/a"].elements, cells(found)["/b"].elements) == (12, 9)


def test_it_changes_neither_statistics_nor_the_graph_nor_hooks():
    model = mnpar.Sequential(L.BatchNormalization(3), F.relu)
    before = model[0].avg_mean.copy()
    x = mnpar.Variable(np.full((2, 3), 7, "f4"))
    mnpar.summary(model, x)
    mnpar.summary(model, x)
    np.testing.assert_array_equal(model[0].avg_mean, before)
    assert mnpar.config.train


def test_ranks_of_a_model_that_communicates_call_it_together():
    def program(comm):
        return mnpar.summary(L.ColumnParallelLinear(comm, 2, 6), np.zeros((5, 2), "f4"))

    for found in mnpar.run(program, 3):
        assert found.rows[0].output == "(5, 6)"
        assert found.rows[0].parameters == "W(2, 2) of (6, 2) b(2) of (6)"


def test_a_notebook_shows_a_table_without_markup_of_the_model():
    class Bold(mnpar.Chain):
        """Has a name that would be markup."""

    Bold.__name__ = "<b>"
    page = mnpar.summary(Bold())._repr_html_()
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
