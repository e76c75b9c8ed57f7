"""The parameters of a link are walked through again whenever they may have become others, and only
then.
"""

import copy

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar.optimizers.parameter_cache import ParameterCache


def model():
    return mnpar.Chain(a=L.Linear(2, 3), b=mnpar.Sequential(L.Linear(3, 3), F.tanh, L.Linear(3, 1)))


def swap(net):
    net.b[0] = L.Linear(3, 3)


def cut(net):
    del net.b[1:]


CHANGES = {
    "a parameter is replaced": lambda net: setattr(net.a, "W", mnpar.Parameter(0, (3, 2))),
    "a parameter is deleted": lambda net: delattr(net.a, "b"),
    "a parameter becomes something else": lambda net: setattr(net.a, "b", None),
    "a link is added": lambda net: setattr(net, "c", L.Linear(1, 1)),
    "a link is replaced": lambda net: setattr(net, "a", L.Linear(2, 3)),
    "a link becomes something else": lambda net: setattr(net, "a", None),
    "a link is deleted": lambda net: delattr(net, "a"),
    "a list grows": lambda net: net.b.append(L.Linear(1, 1)),
    "a list grows inside": lambda net: net.b.insert(0, L.Linear(3, 3)),
    "a link of a list is replaced": swap,
    "a list is cut": cut,
    "a list loses its last": lambda net: net.b.pop(),
    "a list loses one": lambda net: net.b.remove(net.b[0]),
    "a list is cleared": lambda net: net.b.clear(),
    "a list is turned round": lambda net: net.b.reverse(),
    "a list loses a kind": lambda net: net.b.remove_by_layer_type("Linear"),
    "an array is assigned": lambda net: setattr(net.a.W, "array", np.zeros((3, 2), "f4")),
    "an array of another shape": lambda net: setattr(net.a.W, "array", np.zeros((5, 2), "f4")),
    "a parameter is initialized anew": lambda net: net.a.W.initialize((3, 2)),
    "a rule is taken away": lambda net: setattr(net.a.W, "update_rule", None),
    "a parameter is moved": lambda net: net.to_cpu(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_after_a_change_the_list_is_another_one_and_right(change):
    net = model()
    members = ParameterCache()
    before = members.of(net)
    assert members.of(net) is before
    change(net)
    after = members.of(net)
    assert after is not before
    assert list(map(id, after)) == list(map(id, net.params()))
    assert members.of(net) is after


def test_gradients_persistents_and_names_change_nothing():
    net = model()
    members = ParameterCache()
    before = members.of(net)
    F.sum(net.b(net.a(np.ones((2, 2), "f4")))).backward()
    net.cleargrads()
    net.a.W.grad = np.ones((3, 2), "f4")
    net.a.add_persistent("mean", np.zeros(3))
    net.a.mean = np.ones(3)
    net.a.W.name = "weights"
    assert members.of(net) is before


def test_another_link_has_others():
    one = model()
    members = ParameterCache()
    other = copy.deepcopy(one)
    assert list(map(id, members.of(one))) != list(map(id, members.of(other)))
    assert list(map(id, copy.deepcopy(members).of(other))) == list(map(id, other.params()))


def test_a_link_that_says_itself_what_it_has_is_asked_each_time():
    class Some(mnpar.Chain):
        every = True

        def params(self, include_uninit=True):
            return iter([p for p in super().params(include_uninit) if self.every or p.name == "W"])

    net = mnpar.Chain(inner=Some(a=L.Linear(2, 3)))
    members = ParameterCache()
    assert len(members.of(net.inner)) == 2
    net.inner.every = False
    assert len(members.of(net.inner)) == 1


def test_an_optimizer_steps_with_what_its_model_has_now():
    net = model()
    optimizer = mnpar.optimizers.SGD(0.1).setup(net)
    x = np.ones((2, 2), "f4")
    for change in (
        lambda n: None,
        lambda n: n.b.append(L.Linear(1, 1, initialW=2)),
        lambda n: n.b.pop(),
        lambda n: None,
    ):
        change(net)
        twin = copy.deepcopy(net)
        twin.cleargrads()
        optimizer.update(lambda: F.sum(net.b(net.a(x))))
        F.sum(twin.b(twin.a(x))).backward()
        for p, q in zip(net.params(), twin.params(), strict=True):
            np.testing.assert_allclose(p.array, q.array - 0.1 * q.grad, rtol=1e-6)
