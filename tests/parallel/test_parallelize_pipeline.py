"""parallelize over stages: the layers of an ordinary model, found by a record of its forward."""

import re

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from tests.parallel.plan_models import ConvNet, Transformer, check_equal, learn

LANGUAGE = {"attention": "heads", "up": "columns", "down": "rows", "words": "vocabulary"}
WAYS = {
    "two stages": ({"pipe": 2}, {}, {}),
    "four stages, micro-batches": ({"pipe": 4}, {}, {"micro_batches": 3}),
    "stages and heads": ({"pipe": 2, "model": 2}, LANGUAGE, {"micro_batches": 2}),
    "stages, samples and sequences": (
        {"data": 2, "pipe": 2, "sequence": 2},
        {"attention": "sequence"},
        {"micro_batches": 2, "schedule": "gpipe"},
    ),
    "in a V": ({"pipe": 2, "model": 2}, LANGUAGE, {"schedule": "zbv", "micro_batches": 2}),
    "named layers": ({"pipe": 3}, {}, {"layers": ["embed", "blocks/*", "head"]}),
    "recomputed": ({"pipe": 2}, {}, {"recompute": True}),
}


@pytest.mark.parametrize(("axes", "rules", "options"), WAYS.values(), ids=WAYS)
def test_stages_learn_as_one_process(axes, rules, options):
    ranks = int(np.prod(list(axes.values())))

    def program(comm):
        return learn(comm, Transformer, axes, rules, **options)

    check_equal(mnpar.run(program, ranks=ranks), Transformer)


def test_a_sequential_is_cut_with_a_loss():
    rng = np.random.default_rng(0)
    x, t = rng.standard_normal((6, 4)), rng.integers(0, 3, 6)

    def program(comm):
        mnpar.config.dtype = np.dtype("f8")
        mnpar.random.seed(0)
        mesh = mnpar.Mesh(comm, pipe=comm.size)
        plain = mnpar.Sequential(L.Linear(4, 5), F.relu, L.Linear(5, 5), F.tanh, L.Linear(5, 3))
        model = plain
        if comm.size > 1:
            loss = F.softmax_cross_entropy
            model = mnpar.parallelize(plain, mesh, loss=loss, micro_batches=2)
        sgd = mnpar.optimizers.SGD(0.1).setup(model)
        for _ in range(3):
            if comm.size > 1:
                sgd.update(model, x, t)
            else:
                sgd.update(lambda: F.softmax_cross_entropy(model(x), t))
        whole = mnpar.gathered(model)
        assert type(whole) is mnpar.Sequential
        with mnpar.no_backprop_mode():
            return whole(x).array, model(x)

    ((alone, _),) = mnpar.run(program, ranks=1)
    for whole, last in mnpar.run(program, ranks=3):
        np.testing.assert_allclose(whole, alone, rtol=1e-10)
        if last is not None:
            np.testing.assert_allclose(last.array, alone, rtol=1e-10)


class Twice(mnpar.Chain):
    def __init__(self):
        super().__init__()
        self.a, self.b = L.Linear(3, 3), L.Linear(3, 3)

    def forward(self, x):
        return self.b(self.a(self.a(x)))


class Skip(Twice):
    def forward(self, x):
        h = self.a(x)
        return self.b(h) + h


class Between(Twice):
    def forward(self, x):
        return self.b(F.relu(self.a(x)))


class Never(Twice):
    def forward(self, x):
        return self.a(x)


class Labels(Twice):
    def forward(self, x, t):
        return self.b(self.a(x, t))


class Returns(Twice):
    def forward(self, x):
        h = self.a(x)
        self.b(h)
        return h


class Modes(Twice):
    def forward(self, x):
        return self.b(self.a(x)) if mnpar.config.train else self.a(self.b(x))


REFUSED = {
    Twice: "calls a twice",
    Skip: "does more than that: TypeError",
    Between: "does more than that",
    Never: "calls b never",
    Labels: "calls a with",
    Returns: "returns the result of a, not the result of the last layer",
    Modes: "calls other layers in training than in evaluation",
}


@pytest.mark.parametrize(("kind", "text"), REFUSED.items(), ids=[k.__name__ for k in REFUSED])
def test_a_forward_that_does_more_than_call_its_layers_is_refused_and_left_as_it_is(kind, text):
    def program(comm):
        mnpar.random.seed(0)
        model = kind()
        with pytest.raises(ValueError, match=re.escape(text)):
            mnpar.parallelize(model, mnpar.Mesh(comm, pipe=2))
        return type(model.a), model.a.W.shape

    assert mnpar.run(program, ranks=2) == [(L.Linear, (3, 3))] * 2


def test_statistics_of_micro_batches_are_refused_unless_a_rule_says_that_they_are_meant():
    class Net(ConvNet):
        pass

    def program(comm):
        mesh = mnpar.Mesh(comm)
        with pytest.raises(ValueError, match=r"/bn1, a BatchNormalization, .* 2 micro-batches"):
            mnpar.parallelize(Net(), mesh, layers=["conv1"], micro_batches=2)

    mnpar.run(program, ranks=1)
