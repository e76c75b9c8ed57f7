"""Weights that are never trained are told at the first update; what a program may mean goes on."""

import re
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
import mnpar.optimizers as opt

X = np.ones((1, 2), "f4")


@dataclass
class Holder:
    layer: Any


@pytest.mark.parametrize(
    "kind",
    [
        list,
        lambda links: dict(enumerate(links)),
        lambda links: links[0],
        lambda links: [[], [links]],
        lambda links: [{"a": (links[0], 3)}],
        set,
        lambda links: SimpleNamespace(deep=[links]),
        lambda links: Holder(links[0]),
        lambda links: partial(F.identity, links[0]),
        lambda links: links[0].forward,
    ],
    ids=[
        "list",
        "dict",
        "link",
        "lists",
        "dict in a list",
        "set",
        "namespace",
        "dataclass",
        "partial",
        "method",
    ],
)
@pytest.mark.parametrize("case", ["forgotten", "another's", "registered", "frozen", "ChainList"])
def test_links_in_a_list_are_told_if_they_learn_nothing(kind, case, recwarn):
    class Model(mnpar.Chain):
        def __init__(self):
            super().__init__()
            self.top = L.Linear(2, 1)
            layer = layers[0]
            if case == "registered":
                self.add_link("layer", layer)
            self.layer_of = mnpar.ChainList(layer) if case == "ChainList" else 0
            # a link that is an attribute registers itself in a Chain, not in a Link
            self.__dict__["layers"] = kind([layer])

    layers = [L.Linear(3, 2)]
    model = Model()
    x = np.ones((1, 3), "f4")
    layer = layers[0]
    if case == "another's":
        mnpar.optimizers.SGD().setup(layer)
    optimizer = mnpar.optimizers.SGD().setup(model)
    for _ in range(2):
        optimizer.update(lambda: F.sum(model.top(layer(x).array if case == "frozen" else layer(x))))
    told = [str(one.message) for one in recwarn]
    assert len(told) == (case == "forgotten")
    assert case != "forgotten" or re.match(
        r"the parameters in /layers, a \w+ of a Model, have .* mnpar\.ChainList", told[0]
    )
    assert case != "forgotten" or recwarn[0].filename == __file__


def in_a_closure(layer):
    return lambda x: layer(x)


def in_an_object(layer):
    holder = SimpleNamespace(layer=layer)
    return lambda x: holder.layer(x)


def of_a_parameter(layer):
    W = mnpar.Parameter(np.ones((3, 2), "f4"))
    return lambda x: F.linear(x, W)


ELSEWHERE = {"closure": in_a_closure, "object": in_an_object, "parameter": of_a_parameter}


@pytest.mark.parametrize("sized", [True, False], ids=["sized", "sized by the first input"])
@pytest.mark.parametrize("by_hand", [False, True], ids=["update(lossfun)", "backward"])
@pytest.mark.parametrize("where", ELSEWHERE)
@pytest.mark.parametrize("case", ["forgotten", "another's", "frozen", "registered", "constant"])
def test_a_layer_that_no_link_holds_is_told(where, case, by_hand, sized, recwarn):
    """The optimizer cannot find it, but backward does."""
    layer = L.Linear(2, 3)
    hidden = ELSEWHERE[where](layer)
    model = mnpar.Chain(top=L.Linear(3 if sized else None, 1))
    held = layer
    if where == "parameter":
        held = mnpar.Link()
        held.W = hidden.__closure__[0].cell_contents
    if case == "registered":
        model.held = held
    elif case in ("another's", "frozen"):
        opt.SGD().setup(held)
        if case == "frozen":
            held.disable_update()
    optimizer = opt.SGD().setup(model)

    def lossfun():
        h = hidden(X)
        return F.sum(model.top(h.array if case == "constant" else h))

    for _ in range(2):
        if by_hand:
            model.cleargrads()
            lossfun().backward()
            optimizer.update()
        else:
            optimizer.update(lossfun)
    told = [str(one.message) for one in recwarn]
    assert len(told) == (case == "forgotten"), told
    if told:
        assert re.match(r"the parameters W \(3, 2\).* have gradients, but no optim", told[0])
        assert "closure" in told[0]
        assert recwarn[0].filename == __file__


def test_what_another_backward_found_before_is_not_told(recwarn):
    F.sum(L.Linear(2, 3)(X)).backward()  # of a check, say
    model = L.Linear(2, 1)
    opt.SGD().setup(model).update(lambda: F.sum(model(X)))
    assert not recwarn


def without_recording(model):
    with mnpar.no_backprop_mode():
        return F.sum(model(X))


UNTRAINED = {
    "no return": (lambda model: None, TypeError, "must return the loss"),
    "no graph": (without_recording, RuntimeError, "has no graph, .*no_backprop_mode"),
    "of arrays": (
        lambda model: F.sum(mnpar.Variable(model(X).array, requires_grad=False)),
        RuntimeError,
        r"has no graph, .* not of their arrays \(\.array\)",
    ),
    "of another model": (
        lambda model: F.sum(model.copy()(X)),
        UserWarning,
        "no parameter of the Linear has a gradient, of /W, /b: .*on a copy of it",
    ),
}
untrained = pytest.mark.parametrize(
    ("lossfun", "error", "told"), UNTRAINED.values(), ids=UNTRAINED.keys()
)


@untrained
def test_a_loss_that_trains_nothing_is_told_at_the_first_update(lossfun, error, told):
    model = L.Linear(2, 1)
    optimizer = opt.SGD().setup(model)
    tell = pytest.warns if issubclass(error, Warning) else pytest.raises
    with tell(error, match=told):
        optimizer.update(lossfun, model)


@untrained
def test_frozen_parameters_need_no_gradient(lossfun, error, told):
    model = L.Linear(2, 1)
    optimizer = opt.SGD().setup(model)
    model.disable_update()
    optimizer.update(lossfun, model)


@untrained
def test_later_updates_may_train_nothing(lossfun, error, told):
    model = L.Linear(2, 1)
    optimizer = opt.SGD().setup(model)
    optimizer.update(lambda: F.sum(model(X)))
    optimizer.update(lossfun, model)


def test_a_parameter_that_a_branch_did_not_use_needs_no_gradient():
    model = mnpar.Chain(used=L.Linear(2, 1), other=L.Linear(2, 1))
    opt.SGD().setup(model).update(lambda: F.sum(model.used(X)))
    model = mnpar.Chain()
    opt.SGD().setup(model).update(lambda: F.sum(L.Linear(2, 1)(X)))


def test_a_rank_without_a_loss_trains_by_the_loss_of_another():
    def program(comm):
        model = L.Linear(2, 1, initialW=0)

        def lossfun():
            if comm.rank:
                return F.sum(F.recv(comm, 0))
            F.send(model(X), comm, 1)
            return None

        opt.SGD(1.0).setup(model).update(lossfun) if not comm.rank else mnpar.backward([lossfun()])
        return model.W.array.tolist()

    assert mnpar.run(program, ranks=2) == [[[-1.0, -1.0]], [[0.0, 0.0]]]


def test_a_rank_of_several_that_takes_no_part_is_warned():
    def program(comm):
        model = L.Linear(2, 1)
        optimizer = opt.SGD().setup(model)
        if comm.rank:
            with pytest.warns(UserWarning, match=r"^rank 1: the loss function returned None, so"):
                optimizer.update(lambda: None)
        return optimizer.t

    assert mnpar.run(program, ranks=2) == [0, 1]


def test_an_update_without_a_backward_is_told(recwarn):
    model = L.Linear(2, 1)
    optimizer = opt.SGD().setup(model)
    for update in range(4):
        assert len(recwarn) == (update > 1)
        model.cleargrads()
        F.sum(model(X))
        optimizer.update()
    (told,) = recwarn
    assert re.match(
        r"update\(\) without a loss .* no parameter of the Linear has had one, of /W, /b: call "
        r"model\.cleargrads\(\) and loss\.backward\(\) before it",
        str(told.message),
    )
    assert told.filename == __file__


def test_a_variable_as_a_weight_is_told(recwarn):
    class Model(mnpar.Chain):
        def __init__(self):
            super().__init__()
            self.top = L.Linear(2, 1)
            self.W = mnpar.Variable(np.ones((1, 2), "f4"))
            self.deep = {"V": [mnpar.Variable(np.ones((1, 2), "f4"))]}
            self.constant = mnpar.Variable(np.ones((1, 2), "f4"), requires_grad=False)
            self.unused = mnpar.Variable(np.ones((1, 2), "f4"))
            self.state = None

        def forward(self, x):
            self.state = x * self.W * self.deep["V"][0] * self.constant
            return self.top(self.state)

    model = Model()
    opt.SGD().setup(model).update(lambda: F.sum(model(X)))
    (told,) = [str(one.message) for one in recwarn]
    assert told == (
        "the Variables /W of a Model, /deep of a Model have gradients, but no optimizer updates "
        "them: a weight is a mnpar.Parameter(array), a constant a "
        "mnpar.Variable(array, requires_grad=False)"
    )


def test_a_message_about_many_places_is_short(recwarn):
    model = mnpar.Chain(top=L.Linear(2, 1))
    layers = [L.Linear(2, 2) for _ in range(100)]
    for i, layer in enumerate(layers):
        setattr(model, f"a{i}", [layer])

    def lossfun():
        return F.sum(model.top(sum(layer(X) for layer in layers)))

    opt.SGD().setup(model).update(lossfun)
    (told,) = [str(one.message) for one in recwarn]
    assert "/a7, a list of a Chain … and 92 more, have gradients" in told
    assert len(told) < 600
