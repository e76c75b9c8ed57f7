"""parallelize: an ordinary model, divided by rules, is that of one process."""

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from tests.parallel.plan_models import ConvNet, Experts, Transformer, check_equal, learn

TIED = {"words": "vocabulary"}
LANGUAGE = {"attention": "heads", "up": "columns", "down": "rows", **TIED}
NORMS = {"bn*": "samples"}
WAYS = {
    "heads": (Transformer, {"model": 2}, {"attention": "heads"}),
    "a head for each of 3 ranks, and one without": (
        Transformer,
        {"model": 4},
        {"attention": "heads"},
    ),
    "columns and rows": (Transformer, {"model": 3}, {"up": "columns", "down": "rows"}),
    "columns before an undivided layer": (Transformer, {"model": 2}, {"up": "columns"}),
    "columns, gathered": (Transformer, {"model": 4}, {"up": "columns, gathered"}),
    "rows alone": (Transformer, {"model": 3}, {"down": "rows"}),
    "vocabulary, and scores by the same table": (Transformer, {"model": 4}, TIED),
    "scores that say so themselves": (
        Transformer,
        {"model": 2},
        {**TIED, "scores": "columns"},
    ),
    "all, over another axis": (
        Transformer,
        {"tensor": 2},
        {pattern: f"{word} over tensor" for pattern, word in LANGUAGE.items()},
    ),
    "all, and samples": (Transformer, {"data": 2, "model": 2}, LANGUAGE),
    "sequences": (Transformer, {"sequence": 3}, {"attention": "sequence"}),
    "heads and sequences": (
        Transformer,
        {"sequence": 2, "model": 2},
        {**LANGUAGE, "attention": "heads, sequence"},
    ),
    "samples": (Transformer, {"data": 4}, {}),
    "filters and channels": (ConvNet, {"model": 3}, {"conv1": "filters, gathered"}),
    "filters of groups": (
        ConvNet,
        {"model": 3},
        {"conv1": "filters", "each": "filters", "conv2": "channels"},
    ),
    "groups, gathered": (ConvNet, {"model": 2}, {"each": "filters, gathered"}),
    "channels alone": (ConvNet, {"model": 4}, {"conv2": "channels", "conv1": "channels"}),
    "neon's large layers": (ConvNet, {"model": 2}, {"fc*": "rows"}),
    "classes": (ConvNet, {"model": 3}, {"fc1": "columns, gathered", "fc2": "columns"}),
    "blocks": (ConvNet, {"space": (2, 2)}, {}),
    "blocks and batches": (ConvNet, {"data": 2, "space": (1, 2)}, NORMS),
    "batches, more than samples": (ConvNet, {"data": 4}, NORMS),
    "blocks and filters": (
        ConvNet,
        {"space": (2, 1), "model": 2},
        {"conv1": "filters, gathered", "each": "filters, gathered", "conv2": "channels"},
    ),
    "experts": (Experts, {"expert": 3}, {"mixture": "expert"}),
    "experts by their paths": (Experts, {"model": 2}, {"experts/*": "expert over model"}),
    "experts and samples": (Experts, {"data": 2, "expert": 2}, {"mixture": "expert"}),
}


@pytest.mark.parametrize(("kind", "axes", "rules"), WAYS.values(), ids=WAYS)
def test_a_divided_model_learns_as_on_one_process(kind, axes, rules):
    ranks = int(np.prod([np.prod(size) for size in axes.values()]))
    check_equal(mnpar.run(learn, ranks=ranks, args=(kind, axes, rules)), kind)


class Branches(mnpar.Chain):
    """Two layers, of which a program may use the first alone."""

    def __init__(self):
        super().__init__()
        self.up, self.unused = L.Linear(4, 5), L.Linear(4, 5)

    def forward(self, x):
        return self.up(x)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6])
def test_grad_of_divided_parameters_is_that_of_each_ranks_part(ranks):
    x = np.random.default_rng(0).standard_normal((3, 4)).astype("f4")

    def program(comm, rules):
        mnpar.random.seed(0)
        model = mnpar.parallelize(Branches(), mnpar.Mesh(comm, model=comm.size), rules)
        places = [p.W.box for p in (model.up, model.unused)]
        gs = mnpar.grad([F.sum(model(x) ** 2)], [model.up.W, model.unused.W])
        return places, [None if g is None else g.array for g in gs]

    columns = {"*": "columns, gathered"}
    ((_, (whole, unused)),) = mnpar.run(lambda comm: program(comm, {}), ranks=1)
    assert unused is None
    for (box, other), (used, nothing) in mnpar.run(lambda c: program(c, columns), ranks=ranks):
        if ranks == 1:
            np.testing.assert_array_equal(used, whole)
            continue
        np.testing.assert_allclose(used, whole[box.index], rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(nothing, np.zeros(other.shape))


def test_printing_a_divided_model_shows_its_plan_and_repr_its_layers():
    def program(comm):
        mnpar.random.seed(0)
        chain = mnpar.Chain(fc=L.Linear(4, 3))
        model = mnpar.parallelize(chain, mnpar.Mesh(comm, model=2), {"fc": "columns"})
        assert str(model) == str(mnpar.plan_of(model))
        assert str(mnpar.gathered(model)) == repr(mnpar.gathered(model))
        return str(model), repr(model)

    table, layers = mnpar.run(program, ranks=2)[1]
    assert table.startswith("model=2: rank 1\nparameter")
    assert "(fc): ColumnParallelLinear(in_size=4, out_size=3" in layers


@pytest.mark.parametrize(
    "rules", [{"*": "filters, gathered"}, {"first": "filters", "second": "channels"}], ids=str
)
def test_a_divided_convolution_pads_images_as_the_whole_one(rules):
    x = np.random.default_rng(0).standard_normal((2, 3, 6, 7)).astype("f4")

    class Net(mnpar.Chain):
        def __init__(self):
            super().__init__()
            self.first = L.Convolution2D(3, 4, 3, pad=[(2, 0), (1, 1)], mode=("edge", "wrap"))
            self.second = L.Convolution2D(4, 2, 3, pad=1, mode="reflect")

        def forward(self, x):
            return self.second(F.tanh(self.first(x)))

    def program(comm):
        mnpar.random.seed(0)
        return mnpar.parallelize(Net(), mnpar.Mesh(comm, model=comm.size), rules)(x).array

    mnpar.random.seed(0)
    whole = Net()(x).array
    for y in mnpar.run(program, ranks=3):
        np.testing.assert_allclose(y, whole, rtol=1e-5, atol=1e-6)
