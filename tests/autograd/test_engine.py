"""backward and grad: which functions are visited, in which order, for whose gradient, and what is
left behind.
"""

import gc
import os
import subprocess
import sys
import tracemalloc
import weakref

import ml_dtypes
import numpy as np
import pytest

import mnpar
import mnpar.functions as F
from mnpar.autograd.engine import BackwardWalk
from mnpar.autograd.graph import VariableNode
from mnpar.autograd.tape import current_tape


def variable(value, **kwargs):
    return mnpar.Variable(np.array(value, np.float64), **kwargs)


class Log(mnpar.FunctionNode):
    """Passes on the sum of its inputs and writes into a list when it is visited."""

    def __init__(self, visits, name):
        self.visits, self.name = visits, name

    def forward(self, *xs):
        return sum(xs[1:], xs[0] + 0.0)

    def backward(self, gy):
        self.visits.append(self.name)
        return (gy,) * len(self.inputs)


def log(visits, name, *xs):
    return Log(visits, name).apply(xs)[0]


@pytest.fixture
def recorded(monkeypatch):
    """The functions that got a number from the clock, that is, that were recorded."""
    functions = []

    def tick():
        functions.append(None)
        return original()

    original = mnpar.function_node.tick
    monkeypatch.setattr(mnpar.function_node, "tick", tick)
    return functions


# ---- what the gradient is ----


def test_a_leaf_adds_up_its_gradients_over_calls():
    x = variable([1.0, 2.0])
    for times in (1, 2, 3):
        (x * x).sum().backward()
        np.testing.assert_array_equal(x.grad, [2.0 * times, 4.0 * times])


def test_a_second_call_does_not_change_the_array_of_the_first():
    x = variable([1.0, 2.0])
    (x * 3.0).sum().backward()
    first = x.grad
    (x * 3.0).sum().backward()
    np.testing.assert_array_equal(first, [3.0, 3.0])
    np.testing.assert_array_equal(x.grad, [6.0, 6.0])


def test_a_variable_that_is_used_many_times_gets_the_sum_of_all_uses():
    x = variable([1.0, 2.0])
    y = x
    for i in range(1, 6):
        y = y + x * float(i) + x
    y.sum().backward()
    np.testing.assert_array_equal(x.grad, [1 + 15 + 5.0] * 2)


def test_one_function_that_takes_a_variable_three_times_gives_three_gradients():
    x = variable(2.0)
    log([], "f", x, x, x).backward()
    assert x.grad == 3.0


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)], ids=str)
def test_an_output_of_size_one_starts_from_one(shape):
    x = mnpar.Variable(np.full(shape, 3.0))
    (x * x).backward()
    np.testing.assert_array_equal(x.grad, np.full(shape, 6.0))


def test_an_output_that_is_no_scalar_needs_a_gradient():
    x = variable([1.0, 2.0])
    y = x * x
    with pytest.raises(ValueError, match=r"shape \(2,\) needs its gradient"):
        y.backward()
    y.grad = np.array([10.0, 100.0])
    y.backward()
    np.testing.assert_array_equal(x.grad, [20.0, 400.0])


@pytest.mark.parametrize("record", [False, True])
@pytest.mark.parametrize("given", [None, [None]], ids=["none given", "None given"])
def test_grad_starts_from_ones_whatever_gradient_the_output_has(given, record):
    x = variable([1.0, 2.0])
    y = x * x
    y.grad = np.array([10.0, 100.0])
    (g,) = mnpar.grad([y], [x], given, enable_double_backprop=record)
    np.testing.assert_array_equal(g.array, [2.0, 4.0])
    (g,) = mnpar.grad([y], [x], given, loss_scale=8.0, retain_tape=True)
    np.testing.assert_array_equal(g.array, [16.0, 32.0])


@pytest.mark.parametrize(
    "ask", [lambda y, gs: mnpar.grad([y], [y], gs), lambda y, gs: mnpar.backward([y], gs)]
)
@pytest.mark.parametrize("n", [0, 2])
def test_there_is_a_gradient_to_start_from_for_each_output(ask, n):
    with pytest.raises(ValueError, match=f"grad_outputs has {n} gradients .* for 1 Variables"):
        ask(variable(1.0) * 2, [variable(1.0)] * n)


def test_several_outputs_add_up():
    x = variable(3.0)
    h = x * x
    mnpar.backward([h, x * 2.0, h * h])
    assert x.grad == 6.0 + 2.0 + 4 * 27.0


def test_the_same_output_twice_counts_twice():
    x = variable(3.0)
    y = x * x
    mnpar.backward([y, y])
    assert x.grad == 12.0


def test_gradients_to_start_from_can_be_given_in_the_call():
    x = variable([1.0, 2.0])
    y = x * x
    z = x * 3.0
    mnpar.backward([y, z], [variable([1.0, 0.0]), variable([0.0, 10.0])])
    np.testing.assert_array_equal(x.grad, [2.0, 30.0])
    assert y.grad is None


@pytest.mark.parametrize(
    "outputs", [(), [], ((),)], ids=["no argument", "empty list", "empty tuple"]
)
def test_no_outputs_are_no_work(outputs):
    x = variable(3.0)
    y = x * x
    mnpar.backward(*outputs) if outputs == ((),) else mnpar.backward(outputs)
    mnpar.backward()
    assert x.grad is None
    assert y.grad is None


@pytest.mark.parametrize("name", ["grad_outputs", "grad_inputs"])
def test_there_is_a_gradient_for_each_variable_or_none_are_given(name):
    y = variable(1.0)
    with pytest.raises(ValueError, match=rf"{name} has 2 gradients \(or Nones\) for 1 Variables"):
        mnpar.grad([y], [y], **{name: [y, y]})


def test_what_is_no_variable_in_a_list_of_them_is_told_by_its_number():
    """A model that forgot to return its loss gives None."""
    y = mnpar.Variable(np.ones(()))
    with pytest.raises(
        TypeError, match="the outputs are a list of Variables, but number 1 is a NoneType"
    ):
        mnpar.backward([y, None])
    with pytest.raises(
        TypeError, match="the inputs are a list of Variables, but number 0 is a ndarray"
    ):
        mnpar.grad([y], [np.ones(2)])


def test_a_single_variable_where_a_list_belongs_is_refused():
    with pytest.raises(TypeError, match=r"mnpar.backward\(\[y\]\)"):
        mnpar.backward(variable(1.0))


def test_loss_scale_multiplies_the_gradient_that_starts_from_one():
    x = variable(3.0)
    (x * x).backward(loss_scale=8.0)
    assert x.grad == 48.0
    assert x.node.loss_scale == 8.0


def test_loss_scale_leaves_a_given_gradient_alone():
    x = variable([3.0, 1.0])
    y = x * x
    y.grad = np.array([1.0, 1.0])
    y.backward(loss_scale=8.0)
    np.testing.assert_array_equal(x.grad, [6.0, 2.0])


def test_backward_of_a_leaf_gives_it_one():
    x = variable(3.0)
    x.backward()
    assert x.grad == 1.0


@pytest.mark.parametrize(
    "constant",
    [
        variable(3.0, requires_grad=False),
        mnpar.Variable(np.array(3)),
        mnpar.Variable(np.array(True)),
    ],
    ids=["told so", "integer", "bool"],
)
def test_backward_of_a_constant_leaves_no_gradient(constant):
    constant.backward()
    assert constant.grad is None


def test_constants_among_the_inputs_get_no_gradient():
    x = variable(2.0)
    c = variable(5.0, requires_grad=False)
    (x * c).backward()
    assert x.grad == 5.0
    assert c.grad is None


# ---- which arrays they are ----

PASSING = {
    "+": lambda x, y: x + y,
    "-": lambda x, y: x - y,
    "reshape": lambda x, y: x.reshape(4) + y.reshape(4),
    "transpose": lambda x, y: x.T + y,
    "stack": lambda x, y: F.stack([x, y]),
    "concat": lambda x, y: F.concat([x, y]),
    "broadcast": lambda x, y: F.broadcast_to(x, (3, 2, 2)) + y,
    "astype": lambda x, y: x.astype(np.float64) + y,
    "getitem": lambda x, y: x[:] + y[...],
    "own function": lambda x, y: log([], "f", x, y),
}


@pytest.mark.parametrize("function", PASSING.values(), ids=PASSING)
@pytest.mark.parametrize("retain_grad", [False, True])
def test_gradients_of_different_leaves_share_no_memory(function, retain_grad):
    x = variable(np.ones((2, 2)))
    y = variable(np.ones((2, 2)))
    z = function(x, y)
    z.grad = np.ones(z.shape)
    z.backward(retain_grad=retain_grad)
    expected = x.grad.copy(), y.grad.copy()
    for changed, others in ((x, (y, z)), (y, (x, z)), (z, (x, y))):
        assert not any(np.shares_memory(changed.grad, other.grad) for other in others)
    x.grad += 5.0
    np.testing.assert_array_equal(x.grad, expected[0] + 5)
    np.testing.assert_array_equal(y.grad, expected[1])
    np.testing.assert_array_equal(z.grad, np.ones(z.shape))


def test_views_of_one_gradient_without_its_rim_become_gradients_of_their_own():
    x = variable(np.ones((30, 30)))
    y = variable(np.ones((30, 30)))
    ((F.pad(x, 1) + F.pad(y, 1)) * 2).sum().backward()
    assert not np.shares_memory(x.grad, y.grad)
    x.grad += 5.0
    np.testing.assert_array_equal(x.grad, np.full((30, 30), 7.0))
    np.testing.assert_array_equal(y.grad, np.full((30, 30), 2.0))


def test_the_gradient_of_a_sum_can_be_changed_in_place():
    x = variable([1.0, 2.0])
    y = variable([1.0, 2.0])
    (x + y).sum().backward()
    x.grad += 5.0
    np.testing.assert_array_equal(x.grad, [6.0, 6.0])
    np.testing.assert_array_equal(y.grad, [1.0, 1.0])


def test_retained_gradients_of_intermediate_variables_share_no_memory():
    x = variable([1.0, 2.0])
    a = x + 1.0
    b = a + 1.0
    b.sum().backward(retain_grad=True)
    a.grad += 5.0
    np.testing.assert_array_equal(b.grad, [1.0, 1.0])
    np.testing.assert_array_equal(x.grad, [1.0, 1.0])


def test_results_of_grad_share_no_memory():
    x = variable([1.0, 2.0])
    y = variable([1.0, 2.0])
    z = x + y
    gx, gy, gz = mnpar.grad([z.sum()], [x, y, z], set_grad=True)
    gx.array += 5.0
    x.grad += 1.0
    np.testing.assert_array_equal(gy.array, [1.0, 1.0])
    np.testing.assert_array_equal(y.grad, [1.0, 1.0])
    np.testing.assert_array_equal(gz.array, [1.0, 1.0])


def test_the_gradient_that_backward_starts_from_is_not_changed():
    x = variable([1.0, 2.0])
    y = x + 0.0
    y.grad = g = np.array([1.0, 1.0])
    mnpar.backward([y, (x + y).sum()])
    np.testing.assert_array_equal(g, [1.0, 1.0])
    np.testing.assert_array_equal(x.grad, [3.0, 3.0])
    assert not np.shares_memory(x.grad, g)


@pytest.mark.parametrize("dtype", [*map(np.dtype, "efdFD"), np.dtype("f4").newbyteorder()], ids=str)
@pytest.mark.parametrize("shape", [(), (2,)], ids=str)
def test_gradients_are_arrays_of_the_dtype_and_shape_of_their_variable(dtype, shape):
    x = mnpar.Variable(np.ones(shape, dtype))
    y = x * x + x
    y.grad = np.ones(shape, y.dtype)
    y.backward()
    y.grad = np.ones(shape, y.dtype)
    y.backward()
    assert type(x.grad) is np.ndarray
    assert x.grad.dtype == dtype
    assert x.grad.shape == shape


def test_gradients_of_a_half_are_added_up_once_though_its_variable_has_two_nodes():
    """A retained output whose Variable is gone gets a second node (``get_retained_outputs``)."""
    y = F.exp(mnpar.Variable(np.zeros(1, np.float16)))
    nodes = [y.node, VariableNode(y.array, True, y.creator, 0)]
    walk = BackwardWalk([])
    for i in (0, 0, 0, 1, 1, 0):
        walk.add(nodes[i], np.ones(1, np.float16))
    ((_, gys),) = walk
    np.testing.assert_array_equal(gys[0], [6])


@pytest.mark.parametrize(
    ("dtype", "uses", "shape"),
    [(np.float16, 2101, (2,)), (ml_dtypes.bfloat16, 401, ())],
    ids=["float16", "bfloat16"],
)
def test_gradients_of_a_half_that_is_used_often_are_added_up_in_32_bits(dtype, uses, shape):
    """One by one they would stay at 2048, and at 256: of a leaf, of what a function made, and of a
    parameter in a flat buffer.
    """
    x = mnpar.Variable(np.ones(shape, dtype))
    model = mnpar.Link()
    model.p = mnpar.Parameter(np.ones(shape, dtype))
    y = x * 1
    ones = np.ones((2, *shape), dtype)
    optimizer = mnpar.optimizers.SGD(0.0).setup(model)
    for _ in range(2):  # in the second update gradients are computed in their places
        x.cleargrad()
        optimizer.update(
            lambda: sum([F.sum(used * ones[0]) for used in [x, y, model.p] * uses], F.sum(x * 0))
        )
    np.testing.assert_array_equal(x.grad, dtype(2 * uses))
    np.testing.assert_array_equal(model.p.grad, dtype(uses))
    assert x.grad.dtype == model.p.grad.dtype == dtype


@pytest.mark.parametrize("record", [False, True])
def test_a_gradient_to_start_from_takes_the_dtype_of_its_variable(record):
    x = mnpar.Variable(np.ones(2, np.dtype("f4").newbyteorder()))
    starts = [mnpar.Variable(np.ones(2, dtype)) for dtype in (np.float64, np.float32)]
    gs = mnpar.grad([x, x], [x], starts, enable_double_backprop=record)
    gs += mnpar.grad([x * 1, x * 1], [x], starts, [gs[0]], enable_double_backprop=record)
    assert [g.dtype for g in gs] == [x.dtype] * 2
    np.testing.assert_array_equal([g.array for g in gs], [[2, 2], [4, 4]])


def test_sums_in_32_bits_live_no_longer_than_the_gradients_of_their_halves():
    """Backward takes as many arrays, counted in those of the variables, as in float32: not some for
    each layer.
    """

    def arrays_at_once(dtype):
        x = y = mnpar.Variable(np.zeros(10_000, dtype))
        for _ in range(12):
            z = y * 0.5
            y = z + z * 0.5 + z * 0.25
        y.grad = np.ones_like(y.array)
        tracemalloc.start()
        y.backward()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak / x.array.nbytes

    assert arrays_at_once(np.float16) < arrays_at_once(np.float32) + 6


# ---- intermediate variables ----


def test_gradients_of_intermediate_variables_are_dropped():
    x = variable(3.0)
    h = x * x
    (h * 2.0).backward()
    assert h.grad is None


def test_gradients_of_intermediate_variables_stay_where_asked():
    x = variable(3.0)
    h = x * x
    y = h * 2.0
    y.backward(retain_grad=True)
    assert (x.grad, h.grad, y.grad) == (12.0, 2.0, 1.0)


# ---- the order of visits (law 3) ----


def test_functions_are_visited_in_exactly_the_reverse_of_the_order_in_which_they_ran():
    """By depth, 'short' would come after 'deep 0': it is the newest, so it comes first."""
    visits, x = [], variable(1.0)
    a = x
    for i in range(4):
        a = log(visits, f"deep {i}", a)
    b = log(visits, "short", x)
    c = log(visits, "join", b, a)
    d = log(visits, "late", x)
    mnpar.backward([c, d])
    assert visits == ["late", "join", "short", "deep 3", "deep 2", "deep 1", "deep 0"]


def test_the_order_of_the_roots_does_not_matter():
    orders = []
    for turn in (1, -1):
        visits, x = [], variable(1.0)
        ys = [log(visits, i, x) for i in range(5)]
        mnpar.backward(ys[::turn])
        orders.append(visits)
    assert orders == [[4, 3, 2, 1, 0]] * 2


def test_random_graphs_are_visited_in_reverse_order_and_each_function_once():
    rng = np.random.default_rng(0)
    for _ in range(20):
        visits, values = [], [variable(1.0)]
        for i in range(30):
            picks = rng.integers(0, len(values), 2)
            values.append(log(visits, i, *[values[p] for p in picks]))
        mnpar.backward(values[1:])
        assert visits == list(range(29, -1, -1))


def test_a_function_that_leads_to_no_root_is_not_visited():
    visits, x = [], variable(1.0)
    log(visits, "aside", x)
    y = log(visits, "on the way", x)
    log(visits, "after", y)
    y.backward()
    assert visits == ["on the way"]


# ---- nothing is recorded that is not needed ----


def test_first_order_backward_records_nothing(recorded):
    x = variable(np.ones((2, 2)))
    loss = (F.tanh(x @ x + x) * F.log(x + 2.0) / (x * x + 1.0)).sum()
    assert len(recorded) == 10
    loss.backward()
    mnpar.grad([(x * x).sum()], [x])
    assert len(recorded) == 12


def test_backward_with_double_backprop_records(recorded):
    x = variable(2.0)
    y = x * x * x
    del recorded[:]
    y.backward(enable_double_backprop=True)
    assert recorded
    assert x.grad_var.creator is not None


def test_no_backprop_mode_records_nothing(recorded):
    x = variable(np.ones((2, 2)))
    with mnpar.no_backprop_mode():
        y = F.tanh(x @ x + x)
    assert not recorded
    assert y.creator is None
    assert not y.requires_grad


def test_constants_record_nothing(recorded):
    c = variable(2.0, requires_grad=False)
    y = c * c + 1.0
    assert not recorded
    assert y.creator is None


def test_a_function_that_is_not_recorded_keeps_neither_inputs_nor_outputs():
    class Keep(mnpar.FunctionNode):
        def forward(self, x):
            self.retain_inputs((0,))
            self.retain_outputs((0,))
            return x * 1.0

    function = Keep()
    with mnpar.no_backprop_mode():
        function.apply((variable(1.0),))
    assert function.inputs == ()
    assert function.outputs == ()
    assert function._kept_inputs == ()
    assert function._kept_outputs == ()


def test_backward_leaves_the_mode_as_it_was_even_after_an_error():
    class Bad(mnpar.FunctionNode):
        def forward(self, x):
            return x * 1.0

        def backward(self, gy):
            assert not mnpar.config.enable_backprop
            raise KeyError

    with pytest.raises(KeyError):
        Bad().apply((variable(1.0),))[0].backward()
    assert mnpar.config.enable_backprop


# ---- gradients that nobody wants ----


class Two(mnpar.FunctionNode):
    """x·y that notes which gradients were computed."""

    def __init__(self, computed):
        self.computed = computed

    def forward(self, x, y):
        self.retain_inputs((0, 1))
        return x * y

    def backward(self, gy):
        x, y = self.get_retained_inputs()
        return lambda: self.note("x", gy * y), lambda: self.note("y", gy * x)

    def note(self, name, g):
        self.computed.append(name)
        return g


@pytest.mark.parametrize(
    ("wants", "computed"),
    [((True, True), ["x", "y"]), ((True, False), ["x"]), ((False, True), ["y"])],
    ids=["both", "x", "y"],
)
def test_a_gradient_that_no_variable_requires_is_not_computed(wants, computed):
    done = []
    x, y = (variable(v, requires_grad=w) for v, w in zip((2.0, 3.0), wants, strict=True))
    Two(done).apply((x, y))[0].backward()
    assert done == computed


def test_grad_computes_only_what_leads_to_the_inputs_asked_for():
    done, visits = [], []
    x = variable(2.0)
    y = variable(3.0)
    z = variable(5.0)
    aside = log(visits, "aside", z)
    (gx,) = mnpar.grad([Two(done).apply((x, y))[0] + aside], [x])
    assert gx.array == 3.0
    assert done == ["x"]
    assert visits == []


# ---- grad ----


def test_grad_changes_no_leaf():
    x = variable(2.0)
    y = variable(3.0)
    gx, gy = mnpar.grad([x * y], [x, y])
    assert (gx.array, gy.array) == (3.0, 2.0)
    assert x.grad is None
    assert y.grad is None


def test_grad_of_intermediate_variables_and_of_the_output_itself():
    x = variable(2.0)
    h = x * x
    y = h * h
    gy, gh, gx = mnpar.grad([y], [y, h, x])
    assert (gy.array, gh.array, gx.array) == (1.0, 8.0, 32.0)


def test_grad_of_an_intermediate_variable_does_not_go_behind_it():
    visits, x = [], variable(2.0)
    h = log(visits, "before", x)
    y = log(visits, "after", h)
    (gh,) = mnpar.grad([y], [h])
    assert gh.array == 1.0
    assert visits == ["after"]


def test_grad_of_what_the_output_does_not_depend_on_is_none():
    x = variable(2.0)
    y = variable(3.0)
    h = x * 2.0
    gx, gy, gh = mnpar.grad([x * x], [x, y, h])
    assert gx.array == 4.0
    assert gy is None
    assert gh is None


def test_grad_starts_from_grad_outputs():
    x = variable([1.0, 2.0])
    y = x * x
    z = x.sum()
    (gx,) = mnpar.grad([y, z], [x], grad_outputs=[variable([1.0, 10.0]), None])
    np.testing.assert_array_equal(gx.array, [3.0, 41.0])


def test_grad_adds_grad_inputs():
    x = variable(2.0)
    y = variable(3.0)
    z = variable(4.0)
    gx, gy, gz = mnpar.grad([x * x], [x, y, z], grad_inputs=[variable(10.0), variable(20.0), None])
    assert (gx.array, gy.array, gz) == (14.0, 20.0, None)


def test_grad_leaves_its_results_where_set_grad_asks_for_it():
    x = variable(2.0, grad=np.array(7.0))
    y = variable(3.0, grad=np.array(7.0))
    h = x * x
    mnpar.grad([h * h], [x, h, y], set_grad=True)
    assert (x.grad, h.grad, y.grad) == (32.0, 8.0, None)


def test_grad_of_a_variable_that_requires_none_can_be_asked_for_when_it_is_an_output():
    x = variable(2.0)
    (g,) = mnpar.grad([x], [x])
    assert g.array == 1.0


def test_grad_of_the_same_variable_twice_gives_it_twice():
    x = variable(2.0)
    a, b = mnpar.grad([x * x], [x, x])
    assert (a.array, b.array) == (4.0, 4.0)


def test_grad_of_nothing_is_nothing():
    assert mnpar.grad([], []) == []


def test_grad_applies_loss_scale():
    x = variable(3.0)
    (g,) = mnpar.grad([x * x], [x], loss_scale=4.0)
    assert g.array == 24.0


def test_results_of_grad_are_leaves_unless_double_backprop_is_asked_for():
    x = variable(3.0)
    (g,) = mnpar.grad([x * x * x], [x])
    assert g.creator is None
    (g,) = mnpar.grad([x * x * x], [x], enable_double_backprop=True)
    assert g.creator is not None


# ---- gradients of gradients ----


def test_derivatives_of_a_power_to_the_fourth_order():
    x = variable(2.0)
    y = x**5
    found = []
    for _ in range(4):
        (y,) = mnpar.grad([y], [x], enable_double_backprop=True)
        found.append(float(y.array))
    assert found == [5 * 16.0, 20 * 8.0, 60 * 4.0, 120 * 2.0]


def test_derivatives_of_a_sine_to_the_third_order():
    x = variable([0.3, -1.2, 2.0])
    y = F.sin(x)
    for expected in (np.cos(x.array), -np.sin(x.array), -np.cos(x.array)):
        (y,) = mnpar.grad([y.sum()], [x], enable_double_backprop=True)
        np.testing.assert_allclose(y.array, expected, rtol=1e-14)


def test_mixed_second_derivatives_agree():
    x = variable(2.0)
    y = variable(3.0)
    z = x * x * y * y * y
    gx, gy = mnpar.grad([z], [x, y], enable_double_backprop=True)
    (gxy,) = mnpar.grad([gx], [y])
    (gyx,) = mnpar.grad([gy], [x])
    assert gxy.array == gyx.array == 6 * 2.0 * 9.0


def test_a_gradient_penalty_is_differentiable_by_backward():
    """d/dx of (d/dx x³)² = d/dx 9x⁴ = 36x³, added to the gradient that is there."""
    x = variable(2.0)
    (x**3).backward(enable_double_backprop=True)
    g = x.grad_var
    x.cleargrad()
    (g * g).backward()
    assert x.grad == 36 * 8.0


def test_gradients_of_gradients_of_several_outputs_add_up():
    x = variable([1.0, 2.0])
    a = x * x
    b = x * x * x
    (g,) = mnpar.grad([a.sum(), b.sum()], [x], enable_double_backprop=True)
    (gg,) = mnpar.grad([g.sum()], [x])
    np.testing.assert_array_equal(gg.array, 2 + 6 * x.array)


# ---- memory ----


@pytest.mark.parametrize(
    ("function", "kept"),
    [
        (lambda h: h + 1.0, False),
        (lambda h: h * 2.0, False),
        (lambda h: -h, False),
        (lambda h: h.sum(), False),
        (lambda h: h.reshape(50, 2), False),
        (lambda h: F.concat([h, h], axis=0), False),
        (lambda h: h * h, True),
        (lambda h: F.sin(h), True),
    ],
    ids=["+", "* number", "-", "sum", "reshape", "concat", "*", "sin"],
)
def test_an_array_lives_only_as_long_as_a_function_retains_it(function, kept):
    x = variable(np.ones(100))
    h = F.tanh(x)  # retains its output
    h = h + 0.0  # retains nothing
    alive = weakref.ref(h.array if h.array.base is None else h.array.base)
    y = function(h)
    if y.array.base is not None:
        y = y + 0.0
    del h
    assert (alive() is not None) is kept
    y.grad = np.ones(y.shape)
    y.backward()
    assert x.grad is not None


def test_a_graph_that_nobody_holds_is_freed_without_the_garbage_collector():
    x = variable(np.ones(10))
    y = F.sin(x * x)
    function = weakref.ref(y.creator)
    array = weakref.ref(y.creator.get_retained_inputs()[0].array)
    gc.disable()
    try:
        y.sum().backward()
        del y
        assert function() is None
        assert array() is None
    finally:
        gc.enable()


def test_gradients_of_intermediate_variables_are_freed_during_backward():
    alive, most = [], []

    class Count(mnpar.FunctionNode):
        def forward(self, x):
            return x * 1.0

        def backward(self, gy):
            most.append(sum(reference() is not None for reference in alive))
            g = gy * 2.0
            alive.append(weakref.ref(g.array))
            return g

    x = variable(np.ones(10))
    y = x
    for _ in range(20):
        (y,) = Count().apply((y,))
    y.grad = np.ones(10)
    y.backward()
    assert max(most) <= 2


# ---- long chains ----

DEEP = """
import sys, threading
import numpy as np, mnpar, mnpar.functions as F
sys.setrecursionlimit(200)

class Same(mnpar.FunctionNode):
    def forward(self, x):
        self.retain_inputs((0,))
        self.retain_outputs((0,))
        return x * 1.0
    def backward(self, gy):
        return gy

def chain(length):
    x = mnpar.Variable(np.array(1.0))
    for step in STEPS:
        y = x
        for _ in range(length):
            y = step(y)
        y.backward()
        del y
    y = x
    for _ in range(length):
        y = y + 0.0
    mnpar.grad([y], [x])
    y.unchain_backward()
    mnpar.grad([x * 1.0], [x], enable_double_backprop=True)
    print(x.grad)

STEPS = (lambda y: y + 0.0, lambda y: Same().apply((y,))[0])
chain(50_000)
threading.stack_size(256 * 1024)  # a rank's thread may have less than the main one, 8 MiB
STEPS = STEPS[1:]
thread = threading.Thread(target=chain, args=(5_000,))
thread.start()
thread.join()
"""


def test_chains_of_50000_functions_are_walked_and_freed_without_recursion():
    """In a process of its own, as an overflow of the stack would end this one."""
    done = subprocess.run(
        [sys.executable, "-c", DEEP], capture_output=True, text=True, env=os.environ, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["2.0", "1.0"]


# ---- tapes (law 4) ----


@pytest.fixture
def alone():
    """One rank: communications are recorded and replayed as on many."""
    with mnpar.Tape():
        yield mnpar.create_communicator("self")


def records():
    return [f.op for f in current_tape().records]


def test_communications_are_recorded_in_order_and_the_tape_is_empty_after_backward(alone):
    x = variable([1.0])
    y = F.allreduce(alone, x)
    F.bcast(alone, y)
    F.allgather(alone, x)
    assert records() == ["allreduce", "bcast", "allgather"]
    y.backward()
    assert records() == []


@pytest.mark.parametrize(
    "ask",
    [
        lambda y, x: y.backward(),
        lambda y, x: mnpar.backward([y]),
        lambda y, x: mnpar.backward(),
        lambda y, x: mnpar.grad([y], [x]),
    ],
    ids=["y.backward", "backward", "backward of nothing", "grad"],
)
def test_a_communication_that_was_replayed_cannot_be_reached_again(alone, ask):
    x = variable([1.0])
    y = F.allreduce(alone, x)
    ask(y, x)
    words = (
        r"allreduce at .*test_engine.py:\d+ .*replayed "
        r"already.*retain_tape=True.*state.unchain_backward"
    )
    with pytest.raises(RuntimeError, match=words):
        (y * 2.0).backward()


def test_a_tape_that_is_retained_can_be_replayed(alone):
    x = variable([1.0])
    y = F.allreduce(alone, x * x)
    for times in (1.0, 2.0):
        y.backward(retain_tape=True)
        np.testing.assert_array_equal(x.grad, [2.0 * times])
    mnpar.grad([y], [x], retain_tape=True)
    y.backward()
    np.testing.assert_array_equal(x.grad, [6.0])
    with pytest.raises(RuntimeError, match="replayed already"):
        y.backward()


def test_double_backprop_keeps_the_tape(alone):
    x = variable([3.0])
    y = F.allreduce(alone, x) ** 3
    (g,) = mnpar.grad([y], [x], enable_double_backprop=True)
    assert records() == ["allreduce", "allreduce"]
    (gg,) = mnpar.grad([g], [x])
    np.testing.assert_array_equal(gg.array, [18.0])
    assert records() == []


def test_tapes_nest_and_each_keeps_its_own_records(alone):
    x = variable([1.0])
    F.allreduce(alone, x)
    with mnpar.Tape() as outer:
        F.bcast(alone, x)
        with mnpar.Tape() as inner:
            F.allgather(alone, x)
        assert records() == ["bcast"]
    assert records() == ["allreduce"]
    assert [f.op for f in outer.records] == ["bcast"]
    assert [f.op for f in inner.records] == ["allgather"]


def test_a_tape_can_be_entered_again_and_within_itself(alone):
    x = variable([1.0])
    tape = mnpar.Tape()
    with tape:
        F.allreduce(alone, x)
    with tape, tape:
        F.bcast(alone, x)
    assert [f.op for f in tape.records] == ["allreduce", "bcast"]
    assert records() == []


def test_a_communication_on_another_tape_is_not_reached(alone):
    x = variable([1.0])
    with mnpar.Tape() as tape:
        y = F.allreduce(alone, x)
    with pytest.raises(RuntimeError, match=r"with mnpar.Tape\(\):"):
        y.backward()
    with tape:
        y.backward()
    np.testing.assert_array_equal(x.grad, [1.0])


def test_grad_of_what_a_communication_gave_needs_no_tape_of_it(alone):
    x = variable([3.0])
    y = F.allreduce(alone, x)
    with mnpar.Tape():
        (g,) = mnpar.grad([y**2, y * 5.0], [y], enable_double_backprop=True)
    np.testing.assert_array_equal(g.array, [11.0])
    F.sum(g * y).backward()  # 2 y² + 5 y
    np.testing.assert_array_equal(x.grad, [17.0])


def test_grad_does_not_go_behind_its_inputs_to_communications_of_another_tape(alone):
    x = variable([3.0])
    y = F.allreduce(alone, x) ** 2
    with mnpar.Tape():
        (g,) = mnpar.grad([y**2], [y])
        np.testing.assert_array_equal(g.array, [18.0])
        assert mnpar.grad([y**2], [variable([1.0])]) == [None]
        with pytest.raises(RuntimeError, match="another tape"):
            mnpar.grad([y**2], [y, x])


def test_grad_takes_what_has_heard_of_nobody_for_what_it_came_from():
    def program(comm):
        w = variable([2.0])
        z = variable([2.0])
        x = variable([comm.rank + 3.0])
        y = F.copy_to(comm, w) * x**2 + F.sum(F.scatter_to(comm, F.concat([z, z], axis=0))) * x
        if comm.rank == 0:  # a matter of this rank alone
            with mnpar.Tape():
                (g,) = mnpar.grad([y], [x], enable_double_backprop=True)
            np.testing.assert_array_equal(g.array, [4 * 3.0 + 2.0])
            y = y + g
        F.sum(y).backward()
        with mnpar.Tape(), pytest.raises(RuntimeError, match=r"copy_to at .*another tape"):
            mnpar.grad([y], [w])
        return w.grad.item(), z.grad.item()

    assert mnpar.run(program, ranks=2) == [(3.0**2 + 4.0**2 + 6.0, 3.0 + 1.0 + 4.0)] * 2


def test_a_communication_that_came_before_the_inputs_does_not_lead_to_them(alone):
    old = variable([3.0])
    z = F.allreduce(alone, variable([2.0]))
    new = variable([3.0])
    with mnpar.Tape():
        for x in (new, new * 1, old * 1):
            (g,) = mnpar.grad([x**2 * z], [x])
            np.testing.assert_array_equal(g.array, [12.0])
        # which may have been sent; nobody knows when that was made
        for x in (
            old,
            mnpar.as_variable(np.ones(1)),
        ):
            with pytest.raises(RuntimeError, match="another tape"):
                mnpar.grad([x**2 * z], [x])


def test_a_tape_is_left_after_an_error(alone):
    outside = current_tape()
    with pytest.raises(KeyError), mnpar.Tape():
        raise KeyError
    assert current_tape() is outside


def test_no_backprop_mode_and_constants_put_nothing_on_the_tape(alone):
    with mnpar.no_backprop_mode():
        F.allreduce(alone, variable([1.0]))
    F.allreduce(alone, np.ones(1))
    assert records() == []


def test_grad_replays_the_tape_even_if_no_input_is_asked_for(alone):
    F.allreduce(alone, variable([1.0]))
    mnpar.grad([], [])
    assert records() == []


def test_a_very_long_tape_without_a_backward_is_warned_about(alone, monkeypatch):
    monkeypatch.setattr(mnpar.Tape, "LONG", 3)
    x = variable([1.0])
    F.allreduce(alone, x)
    F.allreduce(alone, x)
    with pytest.warns(UserWarning, match="3 communications were recorded and no backward ran"):
        F.allreduce(alone, x)
