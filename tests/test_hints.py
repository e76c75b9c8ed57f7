"""Who asks for a word of another library is told mnpar's, which exists."""

import importlib
import re

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar import hints

OBJECTS = [
    (mnpar.Variable(np.ones((2, 2))), hints.VARIABLE),
    (mnpar.FunctionNode(), hints.FUNCTION),
    (L.Linear(2, 2), hints.LINK),
    (mnpar.optimizers.SGD(), hints.OPTIMIZER),
    (mnpar.create_communicator("self"), hints.COMMUNICATOR),
]
OBJECTS += [(importlib.import_module(name), words) for name, words in hints.PACKAGES.items()]


@pytest.mark.parametrize(("thing", "words"), OBJECTS, ids=lambda one: type(one).__name__)
def test_a_word_that_is_not_here_names_the_one_that_is(thing, words):
    for word, here in words.items():
        assert not hasattr(thing, word)
        assert word not in dir(thing)
        with pytest.raises(
            AttributeError, match=f"has no attribute '{word}': mnpar has {re.escape(here)}"
        ):
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
    assert (model.train(), model.eval, Model.eval, model.parameters, Model.modules()) == (
        "mixed in",
        3,
        3,
        "mixed in",
        "Model",
    )
    assert {"train", "eval", "parameters", "modules"} <= set(dir(model))
    with pytest.raises(
        AttributeError, match="'Model' object has no attribute 'zero_grad': mnpar has cleargrads"
    ):
        model.zero_grad()


def test_an_optimizer_is_not_made_of_parameters():
    params = list(L.Linear(2, 2).params())
    for given in (params, iter(params)):
        with pytest.raises(
            TypeError,
            match=r"alpha is a number, not list(_iterator)?: an optimizer gets .* by "
            r"setup\(model\)",
        ):
            mnpar.optimizers.Adam(given)


@pytest.mark.parametrize(
    ("name", "given", "told"),
    [
        ("Adam", "lr", r"Adam takes alpha, beta1, .*, and no 'lr': mnpar has alpha$"),
        ("SGD", "learning_rate", "SGD takes lr, and no 'learning_rate': mnpar has lr$"),
        ("SGD", "momentum", "MomentumSGD"),
        ("RMSprop", "rho", "RMSprop takes lr, alpha, .* and no 'rho'$"),
    ],
)
def test_an_optimizer_tells_its_arguments(name, given, told):
    with pytest.raises(TypeError, match=told):
        getattr(mnpar.optimizers, name)(**{given: 0.1})


def test_adams_lr_is_computed():
    optimizer = mnpar.optimizers.Adam(alpha=0.5)
    with pytest.raises(AttributeError, match="set alpha"):
        optimizer.lr = 0.1


@pytest.mark.parametrize("kind", [mnpar.ChainList, mnpar.Sequential])
def test_a_list_of_links_is_to_be_taken_apart(kind):
    with pytest.raises(
        TypeError, match=r"list.*: take it apart with a star, as in ChainList\(\*links\)"
    ):
        kind([L.Linear(2, 2)])


def test_parameters_are_left_as_they_are_by_disable_update():
    with pytest.raises(
        AttributeError, match=r"link\.disable_update\(\) leaves parameters as they are"
    ):
        L.Linear(2, 2).W.requires_grad = False


def test_what_mpi4py_has_made_is_no_communicator_yet():
    cart = type("Cartcomm", (), {"Get_rank": lambda self: 0})()
    with pytest.raises(
        TypeError, match=r"where a Cartcomm was given \(mnpar\.create_communicator\(mpi_comm=…\)"
    ):
        F.allreduce(cart, np.ones(2))


def test_a_received_array_is_returned_and_has_no_buffer():
    with pytest.raises(
        TypeError, match=r"where an array was given: .* array = comm\.recv\(source\)"
    ):
        mnpar.create_communicator("self").recv(np.empty(3), 0)


def test_labels_that_are_floats_are_told_from_soft_targets():
    with pytest.raises(
        ValueError,
        match=r"labels are integers of shape \(2,\), not float64 .* t\.astype\(numpy\.int32\)",
    ):
        F.softmax_cross_entropy(np.ones((2, 3)), np.array([0.0, 1.0]))
    with pytest.raises(
        ValueError, match=r"soft targets of shape \(2, 2\) must have .*; labels are integers"
    ):
        F.softmax_cross_entropy(np.ones((2, 3)), np.ones((2, 2)))
    with pytest.raises(ValueError, match=r"they are integers: t\.astype\(numpy\.int32\)"):
        F.sigmoid_cross_entropy(np.ones(2), np.ones(2))


def test_labels_of_another_shape_are_told_how_to_get_it():
    with pytest.raises(
        ValueError,
        match=r"here \(2,\): t\.argmax\(axis=1\) makes labels of one-hot vectors, .* soft targets",
    ):
        F.softmax_cross_entropy(np.ones((2, 3)), np.eye(2, 3, dtype=int))
    with pytest.raises(ValueError, match=r"here \(2,\); t\.reshape\(\(2,\)\)"):
        F.softmax_cross_entropy(np.ones((2, 3)), np.zeros((2, 1), int))


@pytest.mark.parametrize("join", [F.concat, F.stack])
def test_arrays_that_are_joined_come_in_a_tuple(join):
    with pytest.raises(
        TypeError, match=r"the arrays come in one tuple, as in F\.(concat|stack)\(\(a, b\)\)"
    ):
        join(np.ones((2, 2)), np.ones((2, 2)))


def test_two_axes_are_exchanged_by_swapaxes():
    with pytest.raises(ValueError, match="swapaxes"):
        mnpar.Variable(np.ones((2, 3, 4))).transpose(0, 1)
