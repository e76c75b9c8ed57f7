"""Links made of links: Chain by name, ChainList and Sequential by number, repeat by copying."""

import copy
import functools
import pickle

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from tests.harness.parts import paths


def linear(n):
    return L.Linear(1, n)


def sizes(links):
    return [link.out_size for link in links]


# Chain


def test_children_come_in_the_order_of_definition_after_own_parameters():
    chain = mnpar.Chain(z=linear(1), a=linear(2))
    chain.own = mnpar.Parameter(0.0, (1,))
    assert paths(chain) == ["/own", "/z/W", "/z/b", "/a/W", "/a/b"]


def test_a_replaced_child_keeps_its_place():
    chain = mnpar.Chain(z=linear(1), a=linear(2))
    chain.z = linear(3)
    assert sizes(chain.children()) == [3, 2]


@pytest.mark.parametrize(
    "value", [None, 3, mnpar.Variable(np.ones(1))], ids=["None", "number", "Variable"]
)
def test_a_child_replaced_by_anything_else_is_gone(value):
    chain = mnpar.Chain(z=linear(1), a=linear(2))
    chain.z = value
    assert sizes(chain.children()) == [2]


def test_a_name_can_change_between_link_and_parameter():
    chain = mnpar.Chain(z=linear(1), a=linear(2))
    chain.z = mnpar.Parameter(0.0, (1,))
    assert paths(chain) == ["/z", "/a/W", "/a/b"]
    chain.z = linear(4)
    assert paths(chain) == ["/a/W", "/a/b", "/z/W", "/z/b"]


def test_a_deleted_child_loses_its_place():
    chain = mnpar.Chain(z=linear(1), a=linear(2))
    del chain.z
    chain.z = linear(3)
    assert sizes(chain.children()) == [2, 3]


def test_children_are_found_by_name_and_know_it():
    chain = mnpar.Chain(z=linear(1))
    assert chain["z"] is chain.z
    for wrong in (lambda: chain[0], lambda: list(chain)):
        with pytest.raises(TypeError, match=r"names, not numbers.*children\(\)"):
            wrong()
    assert chain.z.name == "z"


def test_links_before_the_constructor_are_a_clear_error():
    class Forgetful(mnpar.Chain):
        def __init__(self):
            self.l1 = linear(1)

    with pytest.raises(
        AttributeError, match=r"call super\(\).__init__\(\) first, before Forgetful"
    ):
        Forgetful()


def test_add_link_takes_new_names_and_links_only():
    chain = mnpar.Chain()
    chain.add_link("one", linear(1))
    assert sizes(chain.children()) == [1]
    with pytest.raises(AttributeError, match="Chain has an attribute 'one' already"):
        chain.add_link("one", linear(1))
    with pytest.raises(TypeError, match="only links can be added as children, not ndarray"):
        chain.add_link("two", np.ones(1))


# ChainList


@pytest.fixture
def layers():
    return mnpar.ChainList(linear(1), linear(2))


CHANGES = {
    "append": (lambda links: links.append(linear(3)), [1, 2, 3]),
    "add_link": (lambda links: links.add_link(linear(3)), [1, 2, 3]),
    "insert": (lambda links: links.insert(1, linear(3)), [1, 3, 2]),
    "extend": (lambda links: links.extend([linear(3), linear(4)]), [1, 2, 3, 4]),
    "extend by itself": (lambda links: links.extend(links), [1, 2, 1, 2]),
    "+=": (lambda links: links.__iadd__([linear(3)]), [1, 2, 3]),
    "pop": (lambda links: links.pop(), [1]),
    "pop from the front": (lambda links: links.pop(0), [2]),
    "remove": (lambda links: links.remove(links[0]), [2]),
    "clear": (lambda links: links.clear(), []),
    "reverse": (lambda links: links.reverse(), [2, 1]),
    "assign": (lambda links: links.__setitem__(0, linear(3)), [3, 2]),
    "delete": (lambda links: links.__delitem__(0), [2]),
    "delete a slice": (lambda links: links.__delitem__(slice(None)), []),
}


@pytest.mark.parametrize(("change", "expected"), CHANGES.values(), ids=CHANGES)
def test_a_list_of_links_changes_like_a_list(layers, change, expected):
    change(layers)
    assert sizes(layers) == expected
    assert sizes(layers.children()) == expected
    assert len(layers) == len(expected)


def test_a_list_of_links_is_looked_through_like_a_list(layers):
    first, second = layers
    assert layers.index(second) == 1
    assert layers.count(first) == 1
    assert second in layers
    assert linear(1) not in layers
    assert list(reversed(layers)) == [second, first]
    assert layers[-1] is second
    assert layers[:1] == [first]
    assert layers.pop() is second
    with pytest.raises(ValueError, match="not in list"):
        layers.index(second)


def test_augmented_assignment_keeps_the_list(layers):
    before = layers
    layers += [linear(3)]
    assert layers is before


@pytest.mark.parametrize(
    "put", [lambda x, y: x.append(y), lambda x, y: x.insert(0, y), lambda x, y: x.__setitem__(0, y)]
)
@pytest.mark.parametrize("value", [F.relu, None, [linear(1)]], ids=["function", "None", "list"])
def test_only_links_are_put_into_a_list(layers, put, value):
    with pytest.raises(TypeError, match="only links can be added as children"):
        put(layers, value)
    assert sizes(layers) == [1, 2]


def test_several_links_are_put_into_a_list_at_once_or_not_at_all(layers, monkeypatch):
    with pytest.raises(TypeError, match="only links can be added as children"):
        layers.extend([linear(3), F.relu])
    assert sizes(layers) == [1, 2]
    numbered = []
    # looks through the whole list
    monkeypatch.setattr(mnpar.ChainList, "_changed", lambda self: numbered.append(self))
    mnpar.ChainList(linear(1), linear(2), linear(3))
    assert len(numbered) == 1


def test_links_of_a_list_have_their_numbers_for_names(layers):
    kept = layers[1]
    for change in (
        lambda: layers.insert(0, linear(3)),
        lambda: layers.append(linear(4)),
        layers.pop,
        layers.reverse,
    ):
        change()
        assert [link.name for link in layers] == [str(i) for i in range(len(layers))]
    layers[0] = kept
    assert kept.name == "0"
    own = mnpar.Sequential(F.relu, mnpar.Chain(a=linear(1)).a)
    assert own[1].name == "a"


def test_links_of_a_list_have_numbers_and_no_attributes(layers):
    assert paths(layers) == ["/0/W", "/0/b", "/1/W", "/1/b"]
    with pytest.raises(TypeError, match="holds its links by number: append 'extra'"):
        layers.extra = linear(1)


def test_a_link_twice_in_a_list_has_its_parameters_once(layers):
    layers.append(layers[0])
    assert paths(layers) == ["/0/W", "/0/b", "/1/W", "/1/b"]
    assert [path for path, _ in layers.namedlinks(skipself=True)] == ["/0", "/1", "/2"]


# Sequential


def test_layers_run_one_after_another():
    model = mnpar.Sequential(lambda x: x + 1, lambda x: x * 2)
    assert model(3) == 8


def test_tuples_are_handed_on_as_several_arguments():
    model = mnpar.Sequential(lambda x, y: (x + y, x - y), lambda s, d: (d, s))
    assert model(5, 2) == (3, 7)


def test_an_empty_sequential_gives_back_what_it_gets():
    assert mnpar.Sequential()(3) == 3
    assert mnpar.Sequential()(3, 4) == (3, 4)


def test_functions_have_a_place_but_no_parameters():
    model = mnpar.Sequential(L.Linear(3, 2), F.relu, L.Linear(2, 1))
    assert paths(model) == ["/0/W", "/0/b", "/1/W", "/1/b"]
    assert [type(link) for link in model.children()] == [L.Linear, L.Linear]


@pytest.mark.parametrize(
    "put", [lambda x, y: x.append(y), lambda x, y: x.insert(0, y), lambda x, y: x.__setitem__(0, y)]
)
def test_what_cannot_be_called_is_no_layer(put):
    model = mnpar.Sequential(F.relu)
    with pytest.raises(TypeError, match="the layers of a Sequential are called: int cannot be"):
        put(model, 3)
    assert list(model) == [F.relu]
    with pytest.raises(TypeError, match="int cannot be"):
        mnpar.Sequential(3)
    with pytest.raises(
        TypeError, match=r"Linear is a class, and a Sequential is made of links: Linear\(…\)"
    ):
        put(model, L.Linear)


def test_sequentials_are_joined():
    one = mnpar.Sequential(F.relu)
    two = mnpar.Sequential(F.tanh)
    assert list(one + two) == [F.relu, F.tanh]
    assert list(one) == [F.relu]
    one += two
    assert list(one) == [F.relu, F.tanh]
    with pytest.raises(TypeError, match="unsupported operand"):
        one + 3


def test_flatten_opens_all_levels_and_keeps_the_layers():
    inner = linear(1)
    model = mnpar.Sequential(mnpar.Sequential(mnpar.Sequential(inner), F.relu), F.tanh)
    assert list(model.flatten()) == [inner, F.relu, F.tanh]
    assert len(model) == 2


def test_layers_are_counted_and_removed_by_type():
    model = mnpar.Sequential(
        linear(1), F.relu, linear(1), functools.partial(F.dropout, ratio=0.1), F.relu
    )
    assert [model.count_by_layer_type(name) for name in ("Linear", "relu", "partial", "tanh")] == [
        2,
        2,
        1,
        0,
    ]
    model.remove_by_layer_type("relu")
    assert model.count_by_layer_type("relu") == 0
    assert len(model) == 3


@pytest.mark.parametrize(
    "how", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x)), lambda x: x.copy("copy")]
)
def test_a_sequential_with_functions_survives_copies(how):
    model = mnpar.Sequential(L.Linear(3, 2), F.relu)
    x = np.ones((1, 3), "f4")
    other = how(model)
    np.testing.assert_array_equal(other(x).array, model(x).array)
    other[0].W.array += 1
    other.append(F.tanh)
    assert len(model) == 2
    assert (other[0].W.array != model[0].W.array).all()


def test_a_shared_copy_has_the_same_arrays_and_its_own_list():
    model = mnpar.Sequential(L.Linear(3, 2), F.relu)
    other = model.copy()
    assert other[0] is not model[0]
    assert other[0].W.array is model[0].W.array
    other.append(F.tanh)
    assert len(model) == 2


# repeat


@pytest.mark.parametrize(
    ("mode", "same_array", "same_values"),
    [("share", True, True), ("copy", False, True), ("init", False, False)],
)
def test_repeat_makes_copies_of_a_mode(mode, same_array, same_values):
    layer = L.Linear(3, 3)
    model = layer.repeat(3, mode)
    assert type(model) is mnpar.Sequential
    assert len(model) == 3
    for copied in model:
        assert copied is not layer
        assert (copied.W.array is layer.W.array) == same_array
        assert (copied.W.array == layer.W.array).all() == same_values


def test_repeat_draws_new_values_unless_told_otherwise():
    one, two = L.Linear(3, 3).repeat(2)
    assert (one.W.array != two.W.array).any()


def test_sequentials_are_repeated_whole():
    model = mnpar.Sequential(L.Linear(None, 3), F.relu).repeat(2)
    assert model(np.ones((1, 5), "f4")).shape == (1, 3)
    assert [link.W.shape for link in (model[0][0], model[1][0])] == [(3, 5), (3, 3)]


def test_a_link_is_repeated_zero_times_or_more():
    assert len(linear(1).repeat(0)) == 0
    with pytest.raises(ValueError, match="cannot be repeated -1 times"):
        linear(1).repeat(-1)
    with pytest.raises(ValueError, match="copied by share, copy, init"):
        linear(1).repeat(1, "clone")


def in_a_chain(child, name="inner"):
    return mnpar.Chain(**{name: child})


def test_a_link_is_not_in_itself():
    outer = in_a_chain(in_a_chain(mnpar.Chain()))
    with pytest.raises(ValueError, match=r"^Chain cannot have the Chain 'me', itself, as a child"):
        outer.me = outer
    with pytest.raises(
        ValueError,
        match=r"^Chain cannot have the Chain 'parent', in which the Chain is, as a child: a link "
        r"that only refers to another one keeps it in a tuple, self.other = \(link,\)$",
    ):
        outer.inner.inner.parent = outer
    outer.inner.inner.parent = (outer,)
    assert len(list(outer.links())) == 3
    for kind in (mnpar.ChainList, mnpar.Sequential):
        layers = kind()
        with pytest.raises(ValueError, match=f"{kind.__name__} cannot have the .* '0', itself"):
            layers.append(layers)
        with pytest.raises(ValueError, match=f"{kind.__name__} cannot have the Chain '0', in wh"):
            layers.append(in_a_chain(layers))


@pytest.mark.parametrize(
    "give",
    [
        lambda kind: mnpar.Chain(a=kind),
        lambda kind: mnpar.Chain().add_link("a", kind),
        lambda kind: mnpar.ChainList(kind),
        lambda kind: mnpar.Sequential(kind),
        lambda kind: mnpar.optimizers.SGD().setup(kind),
    ],
    ids=["Chain", "add_link", "ChainList", "Sequential", "setup"],
)
def test_a_class_in_place_of_a_link_is_to_be_made_one(give):
    with pytest.raises(TypeError, match=r"^Linear is a class, and .*: Linear\(…\)$"):
        give(L.Linear)
