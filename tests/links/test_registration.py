"""Links, chains and lists register what they are given, in the order of definition, and copy and
save it whole.
"""

import copy
import pickle

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from tests.harness.parts import paths


class Pair(mnpar.Chain):
    def __init__(self):
        super().__init__()
        self.z = L.Linear(3, 2)
        self.a = L.Linear(2, 1, nobias=True)
        self.scale = mnpar.Parameter(2.0, (1,))

    def forward(self, x):
        return self.a(self.z(x)) * self.scale


def test_parameters_come_in_the_order_of_definition_own_ones_first():
    assert paths(Pair()) == ["/scale", "/z/W", "/z/b", "/a/W"]


def test_a_replaced_attribute_keeps_its_place_and_a_deleted_one_goes():
    model = Pair()
    model.z = L.Linear(3, 2, nobias=True)
    assert paths(model) == ["/scale", "/z/W", "/a/W"]
    del model.z
    assert paths(model) == ["/scale", "/a/W"]
    model.scale = None
    assert paths(model) == ["/a/W"]


def test_a_shared_parameter_is_one_parameter():
    model = Pair()
    model.again = model.z
    assert paths(model) == ["/scale", "/z/W", "/z/b", "/a/W"]
    assert model.count_params() == 1 + 6 + 2 + 2


def test_a_constructor_that_is_not_called_is_named():
    class Forgetful(mnpar.Chain):
        def __init__(self):
            self.l = L.Linear(1, 1)

    with pytest.raises(
        AttributeError, match=r"call super\(\).__init__\(\) first, before Forgetful"
    ):
        Forgetful()


def test_init_scope_is_accepted_and_not_needed():
    model = mnpar.Chain()
    with model.init_scope():
        assert model.within_init_scope
        model.l1 = L.Linear(2, 2)
    assert not model.within_init_scope
    assert paths(model) == ["/l1/W", "/l1/b"]


@pytest.mark.parametrize(
    "make", [Pair, lambda: mnpar.ChainList(L.Linear(3, 2), L.Linear(2, 1)), lambda: L.Linear(3, 2)]
)
def test_copies_share_copy_or_draw_their_arrays(make):
    model = make()
    shared = model.copy()
    copied = model.copy("copy")
    drawn = model.copy("init")
    for p, s, c, d in zip(*(link.params() for link in (model, shared, copied, drawn)), strict=True):
        assert s is not p
        assert s.array is p.array
        assert c.array is not p.array
        np.testing.assert_array_equal(c.array, p.array)
        assert d.array.shape == p.shape
    assert any(
        (p.array != d.array).any() for p, d in zip(model.params(), drawn.params(), strict=True)
    )
    with pytest.raises(ValueError, match="share, copy, init"):
        model.copy("steal")


def test_what_is_added_to_a_copy_is_not_in_the_original():
    model = Pair()
    other = model.copy()
    other.more = L.Linear(1, 1)
    other.z.extra = mnpar.Parameter(1.0, (1,))
    assert paths(model) == ["/scale", "/z/W", "/z/b", "/a/W"]


def test_values_and_gradients_are_copied_and_added_by_path():
    one = Pair()
    two = Pair()
    F.sum(two(np.ones((4, 3), "f4"))).backward()
    one.copyparams(two)
    for p, q in zip(one.params(), two.params(), strict=True):
        np.testing.assert_array_equal(p.array, q.array)
    one.addgrads(two)
    one.addgrads(two)
    for p, q in zip(one.params(), two.params(), strict=True):
        np.testing.assert_allclose(p.grad, 2 * q.grad)
    one.cleargrads()
    assert all(p.grad is None for p in one.params())
    with pytest.raises(KeyError, match="no parameter /W; it has /l/W, /l/b"):
        L.Linear(1, 1).copyparams(mnpar.Chain(l=L.Linear(1, 1)))


def test_a_lazy_layer_takes_its_size_from_the_first_batch_or_from_a_copy():
    lazy = L.Linear(None, 2)
    sized = L.Linear(6, 2)
    assert not lazy.W.is_initialized
    assert paths(lazy) == ["/W", "/b"]
    assert [path for path, _ in lazy.namedparams(include_uninit=False)] == ["/b"]
    other = L.Linear(2)
    other.copyparams(sized)
    np.testing.assert_array_equal(other.W.array, sized.W.array)
    assert lazy(np.ones((4, 2, 3), "f4")).shape == (4, 2)
    assert lazy.W.shape == (2, 6)


def test_linear_is_the_product_with_the_transpose_plus_the_bias():
    layer = L.Linear(
        3, 2, initialW=np.arange(6.0).reshape(2, 3), initial_bias=np.array([1.0, -1.0])
    )
    x = np.array([[1.0, 0.0, 2.0]])
    np.testing.assert_array_equal(layer(x).array, x @ np.arange(6.0).reshape(2, 3).T + [1.0, -1.0])
    with pytest.raises(ValueError, match="1 or more"):
        L.Linear(0, 2)


def test_the_same_seed_gives_the_same_weights():
    mnpar.random.seed(3)
    first = L.Linear(4, 4).W.array
    mnpar.random.seed(3)
    np.testing.assert_array_equal(L.Linear(4, 4).W.array, first)


def test_a_list_of_links_is_a_list():
    model = mnpar.ChainList(L.Linear(1, 1), L.Linear(1, 2))
    model.insert(0, L.Linear(1, 3))
    assert [link.out_size for link in model] == [3, 1, 2]
    assert model.pop().out_size == 2
    del model[0]
    assert paths(model) == ["/0/W", "/0/b"]
    with pytest.raises(TypeError, match="only links"):
        model.append(F.relu)
    with pytest.raises(TypeError, match="by number"):
        model.l1 = L.Linear(1, 1)


def test_a_sequential_runs_links_and_functions_and_can_be_flattened():
    model = mnpar.Sequential(L.Linear(3, 3), F.relu, mnpar.Sequential(L.Linear(3, 2), F.tanh))
    x = np.ones((2, 3), "f4")
    expected = np.tanh(model[2][0](F.relu(model[0](x))).array)
    np.testing.assert_allclose(model(x).array, expected, rtol=1e-6)
    flat = model.flatten()
    assert len(flat) == 4
    assert (flat.count_by_layer_type("Linear"), flat.count_by_layer_type("relu")) == (2, 1)
    flat.remove_by_layer_type("Linear")
    assert len(flat) == 2
    assert len(L.Linear(3, 3).repeat(4)) == 4
    with pytest.raises(TypeError, match="are called"):
        model.append(3)


def test_persistent_values_are_copied_listed_and_saved():
    model = L.Linear(2, 2)
    model.add_persistent("count", np.array(3))
    other = L.Linear(2, 2)
    other.add_persistent("count", np.array(0))
    other.copyparams(model)
    assert other.count == 3
    assert dict(model.namedpersistents()) == {"/count": 3}


class Book(mnpar.serializer.Serializer):
    """Writes into a dict; with ``reading``, reads from it."""

    def __init__(self, pages, reading=False, path=""):
        self.pages, self.reading, self.path = pages, reading, path

    def __getitem__(self, key):
        return Book(self.pages, self.reading, f"{self.path}/{key}".replace("//", "/"))

    def __call__(self, key, value):
        key = f"{self.path}/{key}"
        if self.reading:
            if isinstance(value, np.ndarray):
                value[...] = self.pages[key]
                return value
            return self.pages[key]
        self.pages[key] = copy.deepcopy(value)
        return value


def test_a_model_and_its_optimizer_come_back_from_what_was_saved():
    model = Pair()
    other = Pair()
    optimizer = mnpar.optimizers.Adam().setup(model)
    optimizer.update(lambda: F.sum(model(np.ones((4, 3), "f4"))))
    pages = {}
    Book(pages).save(model)
    Book(pages, path="/optimizer").save(optimizer)
    assert "/z/W" in pages
    again = mnpar.optimizers.Adam().setup(other)
    Book(pages, reading=True).save(other)
    Book(pages, True, "/optimizer").save(again)
    for p, q in zip(model.params(), other.params(), strict=True):
        np.testing.assert_array_equal(p.array, q.array)
        np.testing.assert_array_equal(p.update_rule.state["m"], q.update_rule.state["m"])
        assert q.update_rule.t == 1


def test_a_link_can_be_pickled_between_the_ranks_of_a_job():
    model = Pair()
    other = pickle.loads(pickle.dumps(model))
    x = np.ones((2, 3), "f4")
    np.testing.assert_array_equal(other(x).array, model(x).array)


def test_a_classifier_reports_loss_and_accuracy_under_its_name():
    model = L.Classifier(L.Linear(2, 2, initialW=np.eye(2)))
    reporter = mnpar.Reporter()
    reporter.add_observer("main", model)
    x = np.array([[3.0, 0.0], [0.0, 3.0]])
    t = np.array([0, 0])
    with reporter:
        loss = model(x, t)
    expected = np.mean(-np.array([3.0, 0.0]) + np.log(np.exp(3) + 1))
    np.testing.assert_allclose(loss.array, expected)
    np.testing.assert_allclose(reporter.observation["main/loss"].array, expected)
    np.testing.assert_allclose(reporter.observation["main/accuracy"].array, 0.5)
    assert not reporter.observation["main/loss"].requires_grad
    assert L.Classifier(L.Linear(2, 2), label_key="t")(x, t=t).shape == ()
    with pytest.raises(ValueError, match="'t'"):
        L.Classifier(L.Linear(2, 2), label_key="t")(x)


def test_a_report_of_a_stranger_is_an_error_and_without_a_reporter_nothing_happens():
    mnpar.report({"x": 1}, object())
    with mnpar.Reporter(), pytest.raises(KeyError, match="was not added"):
        mnpar.report({"x": 1}, object())


X = np.random.default_rng(0).standard_normal((5, 4))


@pytest.mark.parametrize(
    "make",
    [
        L.LayerNormalization,
        lambda: L.GroupNormalization(2),
        lambda: L.Maxout(None, 2, 2),
        L.BatchNormalization,
    ],
    ids=["layer", "group", "maxout", "batch"],
)
def test_lazy_links_learn_from_their_first_batch(make):
    layer = make()
    optimizer = mnpar.optimizers.SGD(1.0).setup(layer)
    optimizer.update(lambda: F.sum(layer(X.astype("f4"))))
    assert all(p.is_initialized and p.update_rule.t == 1 for p in layer.params())
