"""Parameter: what it starts from, when it gets its array, and how it is copied and moved."""

import copy
import pickle

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar.initializers import Constant, Normal, One


def fill_with_ramp(array):
    array[...] = np.arange(array.size).reshape(array.shape)


STARTS = {
    "a number": (0.5, [[0.5, 0.5], [0.5, 0.5]], "f4"),
    "a numpy number": (np.float64(0.5), [[0.5, 0.5], [0.5, 0.5]], "f4"),
    "None": (None, np.full((2, 2), np.nan), "f4"),
    "an array": (np.array([1, 2]), [[1, 2], [1, 2]], "f4"),
    "a function": (fill_with_ramp, [[0, 1], [2, 3]], "f4"),
    "an initializer": (One(), np.ones((2, 2)), "f4"),
    "an initializer with a dtype": (One("f8"), np.ones((2, 2)), "f8"),
    "an integer initializer": (Constant(3, "i4"), np.full((2, 2), 3), "i4"),
}


@pytest.mark.parametrize("lazy", [False, True], ids=["with its shape", "initialized later"])
@pytest.mark.parametrize(("start", "expected", "dtype"), STARTS.values(), ids=STARTS)
def test_a_shape_is_filled_with_what_it_starts_from(start, expected, dtype, lazy):
    p = (
        mnpar.Parameter(start)
        if lazy and not isinstance(start, np.ndarray)
        else mnpar.Parameter(start, (2, 2))
    )
    if lazy and not p.is_initialized:
        p.initialize((2, 2))
    np.testing.assert_array_equal(p.array, expected)
    assert p.dtype == dtype
    assert (p.node.shape, p.node.dtype) == ((2, 2), dtype)
    assert p.requires_grad == (p.dtype.kind == "f")


def test_an_array_without_a_shape_is_the_very_array():
    array = np.ones((2, 3))
    p = mnpar.Parameter(array, name="W")
    assert p.array is array
    assert p.name == "W"
    assert p.is_initialized


@pytest.mark.parametrize("shape", [3, np.int64(3), (3,), [3]], ids=repr)
def test_a_shape_may_be_a_number_or_a_sequence(shape):
    assert mnpar.Parameter(1, shape).shape == (3,)


def test_the_dtype_is_that_of_the_config_when_the_array_is_made():
    p = mnpar.Parameter(1.0)
    with mnpar.using_config("dtype", np.dtype("f8")):
        p.initialize((2,))
    assert p.dtype == np.float64


@pytest.mark.parametrize("start", [[1.0, 2.0], (1.0,), {}], ids=repr)
def test_what_cannot_fill_an_array_is_refused(start):
    with pytest.raises(
        TypeError, match=rf"not {type(start).__name__}: wrap lists in numpy.asarray"
    ):
        mnpar.Parameter(start)


def test_initializing_again_makes_a_new_array_and_forgets_the_gradient():
    p = mnpar.Parameter(1.0, (2,))
    p.grad, old = np.ones(2, "f4"), p.array
    p.initialize((3,))
    assert p.array is not old
    assert p.shape == (3,)
    assert p.grad is None


def test_a_parameter_made_from_an_array_keeps_its_values_and_its_shape():
    p = mnpar.Parameter(np.array([1.0, 2.0]))
    p.array += 1
    p.initialize((2,))
    np.testing.assert_array_equal(p.array, [2.0, 3.0])
    with pytest.raises(ValueError, match=r"array of shape \(2,\) cannot be given shape \(3,\)"):
        p.initialize((3,))


def test_a_copy_is_another_parameter_of_the_same_array_gradient_and_rule():
    p = mnpar.Parameter(2.0, (2,), name="W")
    p.grad = np.ones(2, "f4")
    p.update_rule = mnpar.UpdateRule()
    p.mark = "mine"
    q = copy.copy(p)
    assert q is not p
    assert (q.array is p.array, q.grad is p.grad, q.update_rule is p.update_rule) == (
        True,
        True,
        True,
    )
    assert (q.name, q.mark, q.shape) == ("W", "mine", (2,))
    q.cleargrad()
    q.name = "V"
    assert p.grad is not None
    assert p.name == "W"


def test_a_copy_of_a_constant_or_a_subclass_stays_one():
    class Mine(mnpar.Parameter):
        pass

    p = Mine(1, (2,))
    p.node.requires_grad = False
    q = copy.copy(p)
    assert type(q) is Mine
    assert not q.requires_grad


@pytest.mark.parametrize(
    "how",
    [copy.copy, copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))],
    ids=["copy", "deep", "pickle"],
)
def test_an_uninitialized_copy_is_initialized_by_itself(how):
    p = mnpar.Parameter(Normal(1.0), name="W")
    q = how(p)
    q.initialize((2,))
    assert q.is_initialized
    assert not p.is_initialized


@pytest.mark.parametrize(
    "how", [copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))], ids=["deep", "pickle"]
)
def test_a_deep_copy_shares_nothing(how):
    p = mnpar.Parameter(np.array([1.0, 2.0]))
    p.grad = np.array([3.0, 4.0])
    q = how(p)
    q.array += 1
    q.grad[...] = 0
    np.testing.assert_array_equal(p.array, [1.0, 2.0])
    np.testing.assert_array_equal(p.grad, [3.0, 4.0])
    np.testing.assert_array_equal(q.array, [2.0, 3.0])


def test_copied_values_go_into_the_array_that_is_there():
    p = mnpar.Parameter(0.0, (2,))
    q = mnpar.Parameter(np.array([1.0, 2.0]))
    array = p.array
    p.copydata(q)
    assert p.array is array
    np.testing.assert_array_equal(array, [1.0, 2.0])


@pytest.mark.parametrize(
    ("initializer", "dtype"),
    [(None, "f4"), (Constant(0, "f2"), "f2")],
    ids=["config", "initializer"],
)
def test_an_uninitialized_parameter_takes_the_shape_of_copied_values_but_not_their_dtype(
    initializer, dtype
):
    p = mnpar.Parameter(initializer)
    p.copydata(mnpar.Variable(np.array([[1.0, 2.0]])))
    np.testing.assert_array_equal(p.array, [[1.0, 2.0]])
    assert p.dtype == dtype
    assert p.node.shape == (1, 2)


def test_copying_values_draws_no_random_numbers():
    mnpar.random.seed(0)
    expected = mnpar.random.generator().random()
    mnpar.random.seed(0)
    mnpar.Parameter(Normal(1.0)).copydata(mnpar.Parameter(1, (3,)))
    assert mnpar.random.generator().random() == expected


def test_values_of_another_shape_are_not_broadcast():
    p = mnpar.Parameter(0.0, (2, 3), name="W")
    with pytest.raises(
        ValueError,
        match=r"parameter W: values of shape \(1, 3\) cannot be copied into shape \(2, 3\)",
    ):
        p.copydata(mnpar.Parameter(1.0, (1, 3)))
    assert not p.array.any()


def test_copying_from_an_uninitialized_one_changes_nothing():
    p = mnpar.Parameter(1.0, (2,))
    p.copydata(mnpar.Parameter())
    np.testing.assert_array_equal(p.array, [1.0, 1.0])


def test_an_uninitialized_parameter_remembers_where_it_is_to_be_made():
    p = mnpar.Parameter(1.0)
    p.to_device("@cupy:7")  # nothing to move yet, and no GPU needed
    p.to_cpu()
    p.initialize((2,))
    assert p.device == "@numpy"


USES = {
    "shape": lambda p: p.shape,
    "ndim": lambda p: p.ndim,
    "size": lambda p: p.size,
    "dtype": lambda p: p.dtype,
    "linear": lambda p: F.linear(np.ones((2, 3), "f4"), p),
    "linear: b": lambda p: F.linear(np.ones((2, 3), "f4"), np.ones((4, 3), "f4"), p),
    "addgrad": lambda p: p.addgrad(mnpar.Variable(np.ones(1), grad=np.ones(1))),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_using_a_parameter_without_an_array_says_what_is_missing(use):
    with pytest.raises(
        AttributeError, match=r"parameter W has no array yet: call its initialize\(shape\) first"
    ):
        use(mnpar.Parameter(1.0, name="W"))


def test_an_update_without_a_rule_changes_nothing():
    p = mnpar.Parameter(1.0, (2,))
    p.grad = np.ones(2, "f4")
    p.update()
    np.testing.assert_array_equal(p.array, [1.0, 1.0])


def test_a_parameter_learns_by_backward():
    p = mnpar.Parameter(np.array([1.0, 2.0]))
    (p * p).sum().backward()
    np.testing.assert_array_equal(p.grad, [2.0, 4.0])


def updated(model, optimizer, x):
    model.cleargrads()
    F.sum(model(x) ** 2).backward()
    optimizer.update()


@pytest.mark.parametrize("shape", [(2, 5), (4, 3)], ids=["other inputs", "other outputs"])
@pytest.mark.parametrize("how", ["assigned", "initialized"])
def test_with_an_array_of_another_shape_it_learns_as_a_new_parameter_does(how, shape):
    model = L.Linear(3, 2, nobias=True)
    fresh = L.Linear(shape[1], shape[0], nobias=True)
    optimizer = mnpar.optimizers.Adam().setup(model)
    for _ in range(3):
        updated(model, optimizer, np.ones((4, 3), "f4"))
    if how == "assigned":
        model.W.array = fresh.W.array.copy()
    else:
        model.W.initialize(shape)
        fresh.W.array[...] = model.W.array
    assert model.W.grad is None
    new = mnpar.optimizers.Adam().setup(fresh)
    x = np.random.default_rng(0).standard_normal((4, shape[1])).astype("f4")
    for _ in range(3):
        updated(model, optimizer, x)
        updated(fresh, new, x)
    np.testing.assert_array_equal(model.W.array, fresh.W.array)


def test_with_an_array_of_another_dtype_it_has_gradients_of_that_dtype():
    W = mnpar.Parameter(np.ones(2, "f4"))
    (W * W).sum().backward()
    W.array = np.ones(2)
    assert W.grad is None
    (W * W).sum().backward()
    assert W.grad.dtype == np.float64


def test_an_array_of_the_same_shape_leaves_the_gradient():
    W = mnpar.Parameter(np.ones(2))
    W.grad = np.zeros(2)
    W.array = np.full(2, 3.0)
    assert W.grad is not None


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_another_array_of_another_dtype_and_shape_has_gradients_of_its_own_form(dtype):
    p = mnpar.Parameter(1.0, (2,))
    p.array = np.array([[0.1], [0.7], [3.0]], dtype)
    (p * p).sum().backward()
    assert p.grad.dtype == dtype
    assert p.grad.tolist() == (2 * p.array).tolist()


def test_a_model_in_an_optimizer_takes_arrays_of_another_form():
    link = mnpar.links.Linear(2, 2)
    optimizer = mnpar.optimizers.SGD(1.0).setup(link)
    x = np.ones((1, 2), "f4")
    optimizer.update(lambda: link(x).sum())
    link.W.array = np.ones((3, 2))
    link.b.array = np.zeros(3)
    optimizer.update(lambda: link(x.astype("f8")).sum())
    assert (link.W.array.tolist(), link.b.array.tolist()) == ([[0.0, 0.0]] * 3, [-1.0] * 3)
    assert link.W.dtype == np.float64


@pytest.mark.parametrize("record", [False, True])
def test_backward_from_a_leaf_leaves_it_the_gradient_that_it_was_given(record):
    p = mnpar.Parameter(np.ones(2))
    p.grad = np.array([1.0, 2.0])
    p.backward(enable_double_backprop=record)
    assert p.grad.tolist() == [1.0, 2.0]
