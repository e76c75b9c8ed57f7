"""Link: what registers itself in which order, and what is done with all of it at once."""

import copy
import pickle

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from tests.harness.parts import paths


class Affine(mnpar.Link):
    def __init__(self, a=2.0, b=1.0):
        super().__init__()
        self.b = mnpar.Parameter(b, (3,))
        self.a = mnpar.Parameter(a, (3,))

    def forward(self, x):
        return x * self.a + self.b


class Net(mnpar.Chain):
    def __init__(self):
        super().__init__()
        self.second = Affine()
        self.first = L.Linear(None, 3)
        self.first.add_persistent("seen", np.array([0.0, 0.0]))

    def forward(self, x):
        return self.second(self.first(x))


X = np.arange(6.0).reshape(2, 3).astype("f4")


def test_a_call_is_a_forward():
    np.testing.assert_array_equal(Affine()(X).array, X * 2 + 1)


def test_a_link_without_forward_says_so_by_name():
    class Silent(mnpar.Link):
        pass

    with pytest.raises(TypeError, match="Silent defines neither forward nor __call__"):
        Silent()(X)


def test_parameters_come_in_the_order_of_definition_and_not_of_the_alphabet():
    assert paths(Affine()) == ["/b", "/a"]
    assert [p.name for p in Affine().params()] == ["b", "a"]


def test_a_replaced_parameter_keeps_its_place():
    link = Affine()
    link.b = new = mnpar.Parameter(0.0, (3,))
    assert paths(link) == ["/b", "/a"]
    assert next(link.params()) is new


@pytest.mark.parametrize(
    "value",
    [
        None,
        "text",
        mnpar.Variable(np.ones(3)) * 2,
        mnpar.Variable(np.ones(3), requires_grad=False),
    ],
    ids=["None", "text", "computed", "constant"],
)
def test_a_parameter_replaced_by_what_stands_for_it_is_gone(value):
    link = Affine()
    link.b = value
    assert paths(link) == ["/a"]
    assert link.b is value


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (3.0, r"a float \(\) in"),
        (np.ones(3), r"a ndarray \(3,\) in"),
        (mnpar.Variable(np.ones(3)), r"a Variable \(3,\) in"),
    ],
    ids=["number", "array", "Variable"],
)
def test_values_do_not_replace_a_parameter(value, told):
    link = Affine()
    with pytest.raises(
        TypeError,
        match=rf"^b of Affine is a Parameter, and would not be trained with {told} its place: "
        r"Affine\.b\.array\[\.\.\.\] = values changes its values, "
        r"Affine\.b = mnpar\.Parameter\(values\) replaces it; del Affine\.b removes it$",
    ):
        link.b = value
    assert paths(link) == ["/b", "/a"]
    del link.b
    link.b = value
    assert link.b is value


RESERVED = ["forward", "params", "copy", "links", "name", "xp", "__call__"]


@pytest.mark.parametrize("name", RESERVED)
def test_a_child_does_not_hide_what_every_link_has(name):
    told = f"cannot have a parameter or link called {name!r}, .* choose another name, {name}_ for"
    with pytest.raises(AttributeError, match=f"Affine {told}"):
        setattr(Affine(), name, mnpar.Parameter(0.0, (1,)))
    with pytest.raises(AttributeError, match=f"Chain {told}"):
        setattr(mnpar.Chain(), name, Affine())
    if name == "params":
        with pytest.raises(AttributeError, match=f"Chain {told}"):
            mnpar.Chain(params=Affine())


def test_a_deleted_parameter_loses_its_place():
    link = Affine()
    del link.b
    link.b = mnpar.Parameter(0.0, (3,))
    assert paths(link) == ["/a", "/b"]


def test_deleting_what_is_not_there_changes_nothing():
    link = Affine()
    with pytest.raises(AttributeError):
        del link.c
    assert paths(link) == ["/b", "/a"]


def test_a_parameter_of_two_names_counts_once_under_the_first():
    link = Affine()
    link.c = link.b
    assert paths(link) == ["/b", "/a"]
    assert link.c.name == "b"
    assert link.count_params() == 6


def test_a_variable_is_not_a_parameter():
    link = Affine()
    link.x = mnpar.Variable(np.ones(3))
    assert paths(link) == ["/b", "/a"]


def test_parameters_before_the_constructor_are_a_clear_error():
    class Forgetful(mnpar.Link):
        def __init__(self):
            self.w = mnpar.Parameter(0.0, (1,))

    with pytest.raises(
        AttributeError, match=r"call super\(\).__init__\(\) first, before Forgetful"
    ):
        Forgetful()


def test_init_scopes_nest_and_end_after_errors():
    link = Affine()
    with link.init_scope():
        with link.init_scope():
            pass
        assert link.within_init_scope
    with pytest.raises(KeyError), link.init_scope():
        raise KeyError
    assert not link.within_init_scope


FORMS = {
    "shape": ((2, 3), (2, 3), "f4"),
    "length": (4, (4,), "f4"),
    "shape and dtype": (((2, 3), np.float64), (2, 3), "f8"),
    "shape and dtype by name": (((2,), "f2"), (2,), "f2"),
}


@pytest.mark.parametrize(("form", "shape", "dtype"), FORMS.values(), ids=FORMS)
def test_keywords_make_parameters_of_nan(form, shape, dtype):
    w = mnpar.Link(w=form).w
    assert (w.shape, w.dtype) == (shape, dtype)
    assert np.isnan(w.array).all()


@pytest.mark.parametrize("shape", [(2,), None], ids=["sized", "lazy"])
@pytest.mark.parametrize(
    ("initializer", "value"),
    [(None, np.nan), (3, 3.0), (np.full(2, 5.0), 5.0), (mnpar.initializers.One("d"), 1)],
)
def test_add_param_makes_a_parameter(initializer, value, shape):
    link = mnpar.Link()
    link.add_param("w", shape, np.float64, initializer)
    if not link.w.is_initialized:
        link.w.initialize((2,))
    np.testing.assert_array_equal(link.w.array, [value, value])
    if not isinstance(initializer, np.ndarray):
        assert link.w.dtype == np.float64
    with pytest.raises(AttributeError, match="has an attribute 'w' already"):
        link.add_param("w", (1,))


def test_persistent_values_are_listed_with_their_paths_and_go_with_their_attribute():
    net = Net()
    assert [path for path, _ in net.namedpersistents()] == ["/first/seen"]
    net.count = 5
    net.register_persistent("count")
    assert dict(net.namedpersistents())["/count"] == 5
    del net.count
    assert [path for path, _ in net.namedpersistents()] == ["/first/seen"]


def test_only_what_exists_and_is_no_parameter_can_be_made_persistent():
    with pytest.raises(AttributeError, match="Affine has no attribute 'missing'"):
        Affine().register_persistent("missing")
    with pytest.raises(AttributeError, match="Affine has a parameter 'a'"):
        Affine().register_persistent("a")


def test_a_persistent_value_that_becomes_a_parameter_is_only_that():
    link = Affine()
    link.add_persistent("c", 1)
    link.c = mnpar.Parameter(0.0, (1,))
    assert paths(link) == ["/b", "/a", "/c"]
    assert not list(link.namedpersistents())


def test_links_and_children_come_with_paths():
    net = Net()
    assert [path for path, _ in net.namedlinks()] == ["/", "/second", "/first"]
    assert [path for path, _ in net.namedlinks(skipself=True)] == ["/second", "/first"]
    assert list(net.links()) == [net, net.second, net.first]
    assert list(net.children()) == [net.second, net.first]
    assert not list(Affine().children())


def test_uninitialized_parameters_are_listed_but_not_counted():
    net = Net()
    assert paths(net) == ["/second/b", "/second/a", "/first/W", "/first/b"]
    assert [path for path, _ in net.namedparams(include_uninit=False)] == [
        "/second/b",
        "/second/a",
        "/first/b",
    ]
    assert net.count_params() == 9
    net(X)
    assert net.count_params() == 18


def with_gradients(link, value):
    for p in link.params():
        p.grad = np.full(p.shape, value, p.dtype)
    return link


def test_gradients_are_cleared_or_zeroed_or_added():
    one = with_gradients(Affine(), 1)
    two = with_gradients(Affine(), 10)
    one.addgrads(two)
    assert [p.grad.tolist() for p in one.params()] == [[11.0] * 3] * 2
    assert [p.grad.tolist() for p in two.params()] == [[10.0] * 3] * 2
    one.zerograds()
    assert [p.grad.tolist() for p in one.params()] == [[0.0] * 3] * 2
    one.cleargrads()
    assert [p.grad for p in one.params()] == [None, None]
    one.addgrads(two)
    one.a.grad[...] = 0
    assert two.a.grad.any()  # it was copied, not taken


def test_the_gradient_of_a_shared_parameter_is_added_once():
    one = Affine()
    two = with_gradients(Affine(), 1)
    one.c, two.c = one.b, two.b
    one.addgrads(two)
    np.testing.assert_array_equal(one.b.grad, [1.0] * 3)


def test_values_are_copied_into_the_same_arrays_persistent_ones_too():
    one = Net()
    two = Net()
    two(X)
    one(X)
    two.first.seen[...] = 7
    arrays = [p.array for p in one.params()] + [one.first.seen]
    one.copyparams(two)
    for (_, p), (_, q) in zip(one.namedparams(), two.namedparams(), strict=True):
        np.testing.assert_array_equal(p.array, q.array)
        assert p.array is not q.array
    np.testing.assert_array_equal(one.first.seen, [7, 7])
    assert all(
        new is old
        for new, old in zip([*(p.array for p in one.params()), one.first.seen], arrays, strict=True)
    )


def test_persistent_values_can_be_left_out_of_a_copy():
    one = Net()
    two = Net()
    two.first.seen[...] = 7
    one.copyparams(two, copy_persistent=False)
    np.testing.assert_array_equal(one.first.seen, [0, 0])


def test_persistent_values_that_are_no_arrays_are_copied_deeply():
    one = Affine()
    two = Affine()
    one.add_persistent("history", [])
    two.add_persistent("history", [[1]])
    one.copyparams(two)
    two.history[0].append(2)
    assert one.history == [[1]]


@pytest.mark.parametrize(("sized", "filled"), [(True, False), (False, True), (False, False)])
def test_copying_between_lazy_links_initializes_what_the_other_has(sized, filled):
    one = Net()
    two = Net()
    if sized:
        one(X)
        before = one.first.W.array.copy()
    if filled:
        two(X)
    one.copyparams(two)
    assert one.first.W.is_initialized == (sized or filled)
    if filled:
        np.testing.assert_array_equal(one.first.W.array, two.first.W.array)
    if sized:
        np.testing.assert_array_equal(one.first.W.array, before)


def test_links_of_other_structure_or_shape_are_refused_by_path():
    with pytest.raises(KeyError, match="no parameter /b; it has /W"):
        Affine().copyparams(L.Linear(2, 2, nobias=True))
    with pytest.raises(KeyError, match="no parameter /b; it has none"):
        Affine().addgrads(mnpar.Link())
    with pytest.raises(
        ValueError,
        match=r"parameter W: values of shape \(1, 2\) cannot be copied into shape \(3, 2\)",
    ):
        L.Linear(2, 3).copyparams(L.Linear(2, 1))
    one = Affine()
    one.add_persistent("count", 0)
    with pytest.raises(KeyError, match="no persistent value /count; it has none"):
        one.copyparams(Affine())


def test_values_go_from_a_link_with_shared_parameters_to_one_without():
    tied = mnpar.ChainList(Affine())
    loose = mnpar.ChainList(Affine(), Affine())
    tied.append(tied[0])
    tied[0].a.array[...] = 9
    loose.copyparams(tied)
    assert [link.a.array.tolist() for link in loose] == [[9.0] * 3] * 2


@pytest.mark.parametrize("mode", ["share", "copy", "init"])
def test_a_copy_has_its_own_parameters_of_the_same_structure(mode):
    net = with_gradients(Affine(3.0), 1)
    net.a.array[...] = 5
    other = net.copy(mode)
    assert type(other) is Affine
    assert paths(other) == paths(net)
    for p, q in zip(net.params(), other.params(), strict=True):
        assert p is not q
        assert (p.array is q.array) == (mode == "share")
    np.testing.assert_array_equal(other.a.array, [3.0] * 3 if mode == "init" else [5.0] * 3)
    np.testing.assert_array_equal(net.a.array, [5.0] * 3)


@pytest.mark.parametrize(("mode", "kept"), [("share", False), ("copy", True), ("init", False)])
def test_gradients_go_only_with_copied_arrays(mode, kept):
    net = with_gradients(Affine(), 1)
    other = net.copy(mode)
    assert (other.a.grad is not None) == kept
    other.cleargrads()
    assert net.a.grad is not None


def test_sharing_links_learn_together():
    net = Affine(3.0)
    other = net.copy()
    optimizer = mnpar.optimizers.SGD(lr=1.0).setup(other)
    optimizer.update(lambda: F.sum(other(np.ones((1, 3), "f4"))))
    np.testing.assert_array_equal(net.a.array, [2.0] * 3)
    assert net.a.grad is None


@pytest.mark.parametrize("mode", ["share", "copy", "init"])
def test_what_is_shared_inside_a_link_is_shared_inside_its_copy(mode):
    net = mnpar.Chain(one=Affine(), two=Affine())
    net.two.a = net.one.a
    net.three = net.one
    other = net.copy(mode)
    assert other.two.a is other.one.a
    assert other.three is other.one
    assert paths(other) == paths(net) == ["/one/b", "/one/a", "/two/b"]


@pytest.mark.parametrize("mode", ["share", "copy", "init"])
def test_registering_in_a_copy_leaves_the_original_alone(mode):
    net = Net()
    other = net.copy(mode)
    other.first.extra = mnpar.Parameter(0.0, (1,))
    other.third = Affine()
    other.first.add_persistent("more", 1)
    del other.second.a
    assert paths(net) == ["/second/b", "/second/a", "/first/W", "/first/b"]
    assert [path for path, _ in net.namedpersistents()] == ["/first/seen"]


def test_a_lazy_copy_is_initialized_by_itself():
    net = Net()
    other = net.copy()
    other(X)
    assert not net.first.W.is_initialized


def test_a_copy_has_no_name_yet():
    net = Net()
    assert net.first.name == "first"
    assert net.first.copy().name is None


def test_initialized_again_every_copy_draws_differently():
    layer = L.Linear(3, 3)
    one = layer.copy("init")
    two = layer.copy("init")
    assert (one.W.array != two.W.array).any()
    assert (one.W.array != layer.W.array).any()


def test_an_unknown_mode_is_refused():
    with pytest.raises(ValueError, match="copied by share, copy, init, not 'deep'"):
        Affine().copy("deep")


@pytest.mark.parametrize(
    "how", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"]
)
def test_a_whole_link_survives_a_deep_copy_and_a_pickle(how):
    net = Net()
    net(X)
    other = how(net)
    assert paths(other) == paths(net)
    np.testing.assert_array_equal(other(X).array, net(X).array)
    other.second.a.array[...] = 0
    assert net.second.a.array.all()
    other.third = Affine()  # the copy registers by itself
    assert len(list(net.links())) == 3


def test_updates_are_switched_for_all_parameters():
    net = Net()
    assert not net.update_enabled  # nobody updates it
    mnpar.optimizers.SGD().setup(net)
    assert net.update_enabled
    net.disable_update()
    assert not net.update_enabled
    net.second.enable_update()
    assert net.update_enabled
    assert not net.first.update_enabled


def test_the_host_is_where_links_are_and_to_cpu_returns_the_link():
    net = Net()
    net(X)
    assert net.to_cpu() is net
    assert net.xp is np
    np.testing.assert_array_equal(net.first.seen, [0, 0])


class Pages:
    """A serializer that writes into a dict, or reads from it."""

    def __init__(self, pages, reading=False, path=""):
        self.pages, self.reading, self.path = pages, reading, path

    def __getitem__(self, key):
        return Pages(self.pages, self.reading, f"{self.path}/{key}")

    def __call__(self, key, value):
        if not self.reading:
            self.pages[f"{self.path}/{key}"] = copy.deepcopy(value)
            return value
        found = self.pages[f"{self.path}/{key}"]
        if isinstance(value, np.ndarray):
            value[...] = found
            return value
        return copy.deepcopy(found)


@pytest.mark.parametrize("sized", [True, False])
def test_what_was_saved_is_loaded_into_sized_and_lazy_links(sized):
    saved = Net()
    loaded = Net()
    pages = {}
    saved(X)
    saved.first.seen[...] = 4
    saved.serialize(Pages(pages))
    assert set(pages) == {"/second/a", "/second/b", "/first/W", "/first/b", "/first/seen"}
    if sized:
        loaded(X)
    loaded.serialize(Pages(pages, reading=True))
    np.testing.assert_array_equal(loaded(X).array, saved(X).array)
    np.testing.assert_array_equal(loaded.first.seen, [4, 4])


def test_repr_names_the_class_and_its_sizes():
    assert repr(L.Linear(3, 2)) == "Linear(in_size=3, out_size=2, nobias=False)"
    assert repr(Affine()) == "Affine()"


def test_a_chain_is_printed_and_shown_with_what_is_in_it():
    class Model(mnpar.Chain):
        def __init__(self):
            super().__init__()
            self.body = mnpar.Sequential(L.Linear(3, 2), np.tanh)
            self.rest = mnpar.ChainList()

    assert str(Model()).splitlines() == [
        "Model(",
        "  (body): Sequential(",
        "    (0): Linear(in_size=3, out_size=2, nobias=False),",
        "    (1): tanh,",
        "  ),",
        "  (rest): ChainList(),",
        ")",
    ]
    assert repr(Model()) == str(Model())
