"""Who asks for a word of another library is told mnpar's, which exists."""

import importlib
import re

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar import elsewhere

OBJECTS = [
    (mnpar.Variable(np.ones((2, 2))), elsewhere.VARIABLE),
    (L.Linear(2, 2), elsewhere.LINK),
    (mnpar.optimizers.SGD(), elsewhere.OPTIMIZER),
]
OBJECTS += [(importlib.import_module(name), words) for name, words in elsewhere.PACKAGES.items()]


@pytest.mark.parametrize(("thing", "words"), OBJECTS, ids=lambda one: type(one).__name__)
def test_a_word_that_is_not_here_names_the_one_that_is(thing, words):
    for word, here in words.items():
        assert not hasattr(thing, word)
        assert word not in dir(thing)
        with pytest.raises(AttributeError, match=f"has no attribute '{word}': mnpar has {re.escape(here)}"):
            getattr(thing, word)


def test_what_is_named_exists():
    roots = {"F": F, "L": L, "mnpar": mnpar, "numpy": np}
    for thing, words in OBJECTS:
        for word, here in words.items():
            for path in re.findall(r"\b(?:F|L|mnpar|numpy)(?:\.\w+)+", here):
                first, *names = path.split(".")
                found = roots[first]
                for name in names:
                    found = getattr(found, name)
            for name in re.findall(r"(?:^|and |or )\.?([a-z_]+)\(", here):
                assert hasattr(thing, name) or name in ("abs", "backward"), (word, name)
            if "of this name" in here:
                assert hasattr(F, word)


def test_a_class_of_ones_own_may_have_such_a_word():
    class Model(mnpar.Chain):
        def train(self):
            return "mine"

    model = Model()
    model.eval = 3
    assert (model.train(), model.eval) == ("mine", 3)
    assert {"train", "eval"} <= set(dir(model))


def test_so_may_a_base_class_that_comes_later():
    class Mixin:
        eval = 3

        def train(self):
            return "mixed in"

        @property
        def parameters(self):
            return self.train()

        @classmethod
        def modules(cls):
            return cls.__name__

    class Model(mnpar.Chain, Mixin):
        pass

    class Loud(Model):
        def train(self):
            return super().train().upper()

    model = Model()
    assert Loud().train() == "MIXED IN"
    assert (model.train(), model.eval, Model.eval, model.parameters, Model.modules()) == ("mixed in", 3, 3, "mixed in", "Model")
    assert {"train", "eval", "parameters", "modules"} <= set(dir(model))
    with pytest.raises(AttributeError, match="'Model' object has no attribute 'zero_grad': mnpar has cleargrads"):
        model.zero_grad()
