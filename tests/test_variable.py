"""Variable: an array, its gradient and its name, as Chainer has them."""

import copy
import operator
import pickle

import numpy as np
import pytest

import mnpar
import mnpar.functions as F


def variable(*shape, dtype=np.float64, **kwargs):
    return mnpar.Variable(
        np.arange(1, 1 + np.prod(shape, dtype=int), dtype=dtype).reshape(shape), **kwargs
    )


@pytest.mark.parametrize("data", [[1.0, 2.0], (1.0,), 3.0, np.float64(1)], ids=repr)
def test_only_arrays_are_held(data):
    with pytest.raises(TypeError, match=rf"not {type(data).__name__}: wrap it in numpy.asarray"):
        mnpar.Variable(data)


@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_a_subclass_of_arrays_brings_no_operators_of_its_own():
    x = np.arange(4.0).reshape(2, 2)
    v = mnpar.Variable(np.matrix(x))
    y = F.sum(v * np.matrix(x), axis=0)
    y.grad = np.ones(2)
    y.backward()
    np.testing.assert_array_equal(y.array, (x * x).sum(axis=0))
    assert type(v.array) is type(y.array) is type(v.grad) is np.ndarray


@pytest.mark.parametrize(
    "take", [mnpar.Variable, mnpar.Parameter, F.relu], ids=["Variable", "Parameter", "relu"]
)
def test_a_mask_is_not_lost_without_a_word(take):
    with pytest.raises(TypeError, match="the mask of a masked array would be lost: fill it first"):
        take(np.ma.masked_array([1.0, 2.0], mask=[True, False]))


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (None, "not None: did a model or a function forget"),
        ("text", "not str: it has no numbers"),
        ({}, "not dict: it has no numbers"),
        ([[1, 2], [3]], "not list: its parts are no numbers, or differ in length"),
        (["a"], "not list: its parts are no numbers"),
        ([1.0], "not list: wrap it in numpy.asarray"),
        ([mnpar.Variable(np.ones(1))], "F.stack and F.concat"),
    ],
    ids=repr,
)
@pytest.mark.parametrize(
    "function",
    [F.relu, F.sum, lambda x: F.reshape(x, (1,)), lambda x: F.concat([np.ones((1, 1)), x])],
)
def test_functions_say_what_they_were_given(function, x, words):
    with pytest.raises(TypeError, match=words):
        function(x)


def test_a_variable_is_not_held_by_a_variable():
    with pytest.raises(TypeError, match="not Variable"):
        mnpar.Variable(variable(2))


def test_array_and_data_are_the_very_array_that_was_given():
    array = np.ones(3)
    x = mnpar.Variable(array)
    assert x.array is array
    assert x.data is array
    x.data = other = np.zeros(2)
    assert x.array is other


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "c8", "c16"])
def test_floats_require_a_gradient_unless_told_otherwise(dtype):
    assert variable(2, dtype=dtype).requires_grad
    assert not variable(2, dtype=dtype, requires_grad=False).requires_grad


@pytest.mark.parametrize("dtype", ["?", "i1", "u1", "i8", "u8", "M8[s]", "m8[s]", "S3", "U3", "O"])
def test_integers_booleans_texts_and_times_never_require_a_gradient(dtype):
    assert not mnpar.Variable(np.zeros(2, dtype), requires_grad=True).requires_grad


def test_shape_ndim_size_dtype_length_and_module_are_the_arrays():
    x = variable(2, 3, dtype=np.float32)
    assert (x.shape, x.ndim, x.size, x.dtype, len(x), x.xp) == ((2, 3), 2, 6, np.float32, 2, np)


def test_a_scalar_has_no_length_and_one_item():
    x = mnpar.Variable(np.array(2.5))
    assert type(x.item()) is float
    assert x.item() == 2.5
    with pytest.raises(TypeError, match="unsized"):
        len(x)
    with pytest.raises(ValueError, match=r"size 1|scalar"):
        variable(2).item()


def test_iteration_gives_the_rows_and_ends():
    assert [row.array.tolist() for row in variable(2, 2)] == [[1.0, 2.0], [3.0, 4.0]]


def test_T_reverses_the_axes():
    np.testing.assert_array_equal(variable(2, 3).T.array, np.arange(1.0, 7).reshape(2, 3).T)


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (mnpar.Variable(np.array([1.0, 2.0])), "variable([1., 2.])"),
        (mnpar.Variable(np.array(1.0), name="loss"), "variable loss(1.)"),
        (mnpar.Variable(np.ones(1, "f4")), "variable([1.], dtype=float32)"),
        (mnpar.Variable(None), "variable(None)"),
    ],
    ids=["plain", "named", "dtype", "empty"],
)
def test_repr_shows_name_and_values(x, text):
    assert repr(x) == text
    assert str(x) == text


def test_the_name_can_be_given_and_changed():
    x = variable(2, name="x")
    assert x.name == "x"
    x.name = "y"
    assert x.name == "y"
    assert variable(2).name is None


@pytest.mark.parametrize(
    "compare",
    [
        lambda x: x == x,
        lambda x: x != x,
        lambda x: x < 1,
        lambda x: x <= 1,
        lambda x: x > np.ones(2),
        lambda x: x >= x,
        lambda x: np.ones(2) == x,
        lambda x: np.ones(2) < x,
        lambda x: x > 1,
        lambda x: bool(x),
        lambda x: not x,
    ],
    ids=["==", "!=", "<", "<=", ">", ">=", "array ==", "array <", "number <", "bool", "not"],
)
def test_comparisons_and_truth_are_refused(compare):
    with pytest.raises(
        NotImplementedError, match=r"compare their arrays|no truth value: ask its number"
    ):
        compare(variable(2))


def test_a_variable_is_not_searched_and_has_a_largest_element():
    with pytest.raises(NotImplementedError, match=r"\(x\.array == value\)\.any\(\)"):
        1.0 in variable(2)  # noqa: B015
    with pytest.raises(NotImplementedError, match=r"largest element is x\.max\(\)"):
        max(variable(2))


def _increased(array, x):
    array += x


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (
            lambda x: np.exp(x),
            r"numpy\.exp knows no Variables: use mnpar\.functions\.exp, or its \.array",
        ),
        (lambda x: np.abs(x), r"mnpar\.functions\.absolute"),
        (
            lambda x: np.isnan(x),
            r"numpy\.isnan knows no Variables: use mnpar\.functions or operators",
        ),
        (lambda x: np.add.reduce(x), r"mnpar\.functions\.sum"),
        (lambda x: np.add(np.ones(2), x, dtype="f4"), r"mnpar\.functions\.add"),
        (lambda x: np.ones(2) % x, "numpy.remainder knows no Variables"),
        (lambda x: _increased(np.ones(2), x), r"write a = a \+ x, a Variable, or a \+= x\.array"),
        (lambda x: x - [1, 2], "not list: wrap it in numpy.asarray"),
        (lambda x: [1, 2] - x, "not list: wrap it in numpy.asarray"),
        (lambda x: (1, 2) * x, "not tuple: wrap it in numpy.asarray"),
    ],
)
def test_what_numpy_and_lists_do_with_arrays_only_is_told(call, told):
    with pytest.raises(TypeError, match=told):
        call(variable(2))


@pytest.mark.parametrize(
    "like", [np.float32, np.ones, lambda _: np.array(2.0)], ids=["number", "array", "0-d"]
)
@pytest.mark.parametrize("name", ["add", "sub", "mul", "truediv", "floordiv", "pow"])
def test_an_array_leaves_operators_to_the_variable_beside_it(name, like):
    operate = getattr(operator, name)
    x = variable(2)
    y = operate(like(2), x)
    assert isinstance(y, mnpar.Variable)
    np.testing.assert_array_equal(y.array, operate(like(2), x.array))


def test_variables_are_keys_by_identity():
    x = variable(2)
    y = variable(2)
    assert {x: "x", y: "y"}[y] == "y"
    assert x in [x]


@pytest.mark.parametrize(
    ("operate", "expected"),
    [
        (lambda a, x: a + x, [11.0, 22.0]),
        (lambda a, x: a - x, [9.0, 18.0]),
        (lambda a, x: a * x, [10.0, 40.0]),
        (lambda a, x: a / x, [10.0, 10.0]),
        (lambda a, x: a**x, [10.0, 400.0]),
        (lambda a, x: a // x, [10.0, 10.0]),
        (lambda a, x: np.diag(a) @ x, [10.0, 40.0]),
    ],
    ids=["+", "-", "*", "/", "**", "//", "@"],
)
def test_an_array_on_the_left_gives_a_variable(operate, expected):
    y = operate(np.array([10.0, 20.0]), variable(2))
    assert type(y) is mnpar.Variable
    np.testing.assert_array_equal(y.array, expected)


def test_a_numpy_scalar_on_the_left_gives_a_variable():
    y = np.float64(2) * variable(2)
    assert type(y) is mnpar.Variable
    np.testing.assert_array_equal(y.array, [2.0, 4.0])


# ---- the gradient ----


def test_the_gradient_starts_as_none_or_as_given():
    assert variable(2).grad is None
    assert variable(2).grad_var is None
    g = np.ones(2)
    assert variable(2, grad=g).grad is g


@pytest.mark.parametrize(
    "g",
    [
        np.ones(3),
        np.ones((2, 1)),
        np.ones(2, np.float32),
        np.ones(2, int),
        [1.0, 1.0],
        1.0,
        variable(2),
    ],
    ids=["size", "axes", "float32", "int", "list", "number", "Variable"],
)
def test_a_gradient_of_another_form_is_refused(g):
    x = variable(2)
    with pytest.raises(ValueError, match=r"the gradient of a \(2,\) float64 Variable cannot be a"):
        x.grad = g
    with pytest.raises(ValueError, match="cannot be a"):
        variable(2, grad=g)
    assert x.grad is None


@pytest.mark.parametrize("g", [variable(3), variable(2, dtype=np.float32)], ids=["shape", "dtype"])
def test_a_gradient_variable_of_another_form_is_refused(g):
    x = variable(2)
    with pytest.raises(ValueError, match="cannot be a"):
        x.grad_var = g
    assert x.grad_var is None


def test_grad_var_is_the_gradient_as_a_variable_and_stays_the_same_one():
    x = variable(2, grad=np.ones(2))
    assert type(x.grad_var) is mnpar.Variable
    assert x.grad_var is x.grad_var
    assert x.grad_var.array is x.grad


def test_setting_grad_var_sets_grad_and_none_clears_both():
    x = variable(2)
    g = variable(2)
    x.grad_var = g
    assert x.grad is g.array
    x.grad_var = None
    assert x.grad is None
    assert x.grad_var is None


def test_cleargrad_forgets_and_zerograd_fills_with_zeros_of_the_dtype():
    x = variable(2, dtype=np.float32, grad=np.ones(2, np.float32))
    x.cleargrad()
    assert x.grad is None
    x.zerograd()
    assert x.grad.dtype == np.float32
    np.testing.assert_array_equal(x.grad, [0.0, 0.0])


def test_addgrad_adds_copies_or_does_nothing():
    x = variable(2)
    y = variable(2, grad=np.array([1.0, 2.0]))
    x.addgrad(variable(2))
    assert x.grad is None
    x.addgrad(y)
    np.testing.assert_array_equal(x.grad, [1.0, 2.0])
    assert not np.shares_memory(x.grad, y.grad)
    x.addgrad(y)
    np.testing.assert_array_equal(x.grad, [2.0, 4.0])
    np.testing.assert_array_equal(y.grad, [1.0, 2.0])


def test_copydata_writes_into_the_array_that_is_there():
    x = variable(2)
    y = mnpar.Variable(np.array([7.0, 8.0]))
    array = x.array
    x.copydata(y)
    assert x.array is array
    np.testing.assert_array_equal(array, [7.0, 8.0])
    assert not np.shares_memory(x.array, y.array)


# ---- the graph ----


def test_a_leaf_has_no_creator_and_a_result_has_its_function():
    x = variable(2)
    assert x.creator is None
    y = x * x
    assert isinstance(y.creator, mnpar.FunctionNode)
    assert y.creator.inputs == (x.node, x.node)


def test_unchain_stops_backward_at_this_variable():
    x = mnpar.Variable(np.array(2.0))
    y = x * x
    z = y * 3.0
    y.unchain()
    assert y.creator is None
    z.backward()
    assert x.grad is None
    np.testing.assert_array_equal(y.grad, 3.0)


def test_unchain_backward_cuts_everything_before_and_keeps_what_comes_after():
    x = mnpar.Variable(np.array(2.0))
    w = mnpar.Variable(np.array(5.0))
    h = x * x
    y = h + h
    y.unchain_backward()
    assert h.creator is None
    assert y.creator is None
    (y * w).backward()
    assert x.grad is None
    np.testing.assert_array_equal(w.grad, 8.0)


def test_unchain_backward_of_a_leaf_does_nothing():
    x = variable(2)
    x.unchain_backward()
    (x * x).sum().backward()
    np.testing.assert_array_equal(x.grad, [2.0, 4.0])


@pytest.mark.ranks(2)
def test_unchain_backward_leaves_communications_to_their_peers(comm):
    """What a communication was computed from stays: another rank may still send a gradient for
    it.
    """
    x = mnpar.Variable(np.array([3.0]))
    y = mnpar.functions.allreduce(comm, x * x) * 2.0
    if comm.rank == 0:
        y.unchain_backward()
        mnpar.backward()
    else:
        mnpar.functions.sum(y).backward()
    np.testing.assert_array_equal(x.grad, [12.0])


@pytest.mark.ranks(2)
@pytest.mark.parametrize("cut", ["unchain", "unchain_backward"])
@pytest.mark.parametrize("function", ["allreduce", "iallreduce", "copy_to"])
def test_unchaining_what_a_communication_gave_leaves_out_this_ranks_gradient(comm, cut, function):
    """The other rank's part of the gradient, 2, comes; this rank's, 1, does not."""
    x = mnpar.Variable(np.array([1.0]))
    y = getattr(mnpar.functions, function)(comm, x * 3.0)
    if comm.rank == 0:
        getattr(y, cut)()
    mnpar.functions.sum(y * (comm.rank + 1.0)).backward()
    np.testing.assert_array_equal(x.grad, [6.0])


@pytest.mark.ranks(3)
def test_unchain_backward_on_all_ranks_cuts_what_came_before_in_time(comm):
    x, w = mnpar.Variable(np.array([1.0])), mnpar.Variable(np.array([1.0]))
    state = x
    for _ in range(2):
        state = mnpar.functions.shift(comm, state * 2.0)
    state.unchain_backward()
    mnpar.functions.sum(mnpar.functions.shift(comm, state * w)).backward()
    assert x.grad is None
    np.testing.assert_array_equal(w.grad, [4.0])


def by_send(comm, h):
    """The losses of all ranks are on rank 0; the others have what send returned."""
    if comm.rank:
        return mnpar.functions.send(h, comm, 0)
    return mnpar.functions.sum(
        sum([mnpar.functions.recv(comm, rank) ** 2 for rank in range(1, comm.size)], h**2)
    )


def by_delegates(comm, h):
    phi = mnpar.functions.send(h, comm, (comm.rank + 1) % comm.size)
    return mnpar.functions.sum(mnpar.functions.recv(comm, (comm.rank - 1) % comm.size, phi) ** 2)


def connected(comm, h):
    """Each rank's loss is what pseudo_connect returned, of nothing but the delegate, or of the
    loss.
    """
    loss = by_send(comm, h)
    return (
        mnpar.functions.pseudo_connect(loss)
        if comm.rank
        else mnpar.functions.pseudo_connect(None, loss)
    )


WAYS = {
    "send": by_send,
    "connected": connected,
    "delegates": by_delegates,
    "collective": lambda comm, h: mnpar.functions.sum(mnpar.functions.reduce_from(comm, h**2)),
    "waited for later": lambda comm, h: (
        mnpar.functions.sum(mnpar.functions.iallreduce(comm, h**2)) / comm.size
    ),
}


@pytest.mark.ranks(1, 2, 3, on="threads")
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_truncated_backpropagation_ends_where_it_does_in_one_process(comm, way):
    def train(loss_of):
        w = mnpar.Variable(np.array([0.5 + comm.rank]))
        h = mnpar.Variable(np.array([1.0]))
        for _ in range(3):
            loss = 0
            for _ in range(2):
                h = mnpar.functions.tanh(w * h)
                loss = loss_of(h)
            loss.backward()
            loss.unchain_backward()
        return w.grad

    np.testing.assert_allclose(
        train(lambda h: way(comm, h)), train(lambda h: mnpar.functions.sum(h**2)), rtol=1e-12
    )


@pytest.mark.parametrize(
    "duplicate",
    [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))],
    ids=["copy", "deepcopy", "pickle"],
)
def test_a_leaf_can_be_copied_and_pickled(duplicate):
    y = duplicate(variable(2, name="w", grad=np.ones(2)))
    assert y.name == "w"
    np.testing.assert_array_equal(y.array, [1.0, 2.0])
    np.testing.assert_array_equal(y.grad, [1.0, 1.0])


@pytest.mark.parametrize(
    "duplicate",
    [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))],
    ids=["deepcopy", "pickle"],
)
def test_a_copy_of_what_functions_made_is_a_leaf(duplicate):
    x = variable(2)
    y = x
    for _ in range(3000):  # deeper than Python's own recursion
        y = y * 1
    z = duplicate(y * 3)
    assert z.creator is None
    mnpar.functions.sum(z * 2).backward()
    np.testing.assert_array_equal(z.grad, [2.0, 2.0])
    assert x.grad is None


def test_as_variable_keeps_variables_and_wraps_arrays_without_a_gradient():
    x = variable(2)
    assert mnpar.as_variable(x) is x
    y = mnpar.as_variable(x.array)
    assert y.array is x.array
    assert not y.requires_grad


# ---- where it is ----


@pytest.mark.parametrize("device", [None, -1, "@numpy"], ids=repr)
def test_the_host_is_a_device_that_changes_nothing(device):
    x = variable(2, grad=np.ones(2))
    array, g = x.array, x.grad
    x.to_device(device)
    x.to_cpu()
    assert x.array is array
    assert x.grad is g


def test_an_unknown_device_is_named():
    with pytest.raises(ValueError, match="unknown device '@tpu'"):
        variable(2).to_device("@tpu")


# ---- Parameter ----


@pytest.mark.parametrize(
    ("initializer", "expected"),
    [(0.5, [0.5, 0.5]), (lambda array: array.fill(2), [2.0, 2.0]), (None, [np.nan, np.nan])],
    ids=["number", "function", "none"],
)
def test_a_parameter_is_filled_by_its_initializer_when_its_shape_is_known(initializer, expected):
    late = mnpar.Parameter(initializer, name="W")
    assert not late.is_initialized
    late.initialize((2,))
    assert late.is_initialized
    for p in (late, mnpar.Parameter(initializer, 2), mnpar.Parameter(initializer, (2,))):
        assert p.dtype == np.float32
        np.testing.assert_array_equal(p.array, expected)
    assert late.name == "W"


def test_a_parameter_takes_the_dtype_that_is_configured():
    with mnpar.using_config("dtype", np.dtype(np.float64)):
        assert mnpar.Parameter(1.0, (2,)).dtype == np.float64


def test_a_parameter_of_an_array_holds_it_and_learns():
    array = np.array([1.0, 2.0])
    p = mnpar.Parameter(array)
    assert p.array is array
    (p * p).sum().backward()
    np.testing.assert_array_equal(p.grad, [2.0, 4.0])


def test_a_parameter_that_gets_its_array_late_has_a_gradient():
    p = mnpar.Parameter(2.0)
    p.initialize((3,))
    (p * p).sum().backward()
    np.testing.assert_array_equal(p.grad, [4.0, 4.0, 4.0])


def test_update_asks_the_rule_of_the_optimizer_or_does_nothing():
    calls = []
    p = mnpar.Parameter(np.ones(2))
    p.update()
    p.update_rule = type("Rule", (), {"update": lambda self, parameter: calls.append(parameter)})()
    p.update()
    assert calls == [p]


NUMPYS = {
    "sum": (np.sum, r"numpy\.sum knows no Variables: use mnpar\.functions\.sum, or its \.array"),
    "mean": (np.mean, r"use mnpar\.functions\.mean"),
    "concatenate": (
        lambda x: np.concatenate([np.ones((2, 3)), x]),
        r"use mnpar\.functions\.concat, ",
    ),
    "unknown": (np.linalg.qr, r"numpy\.qr knows no Variables: use mnpar\.functions or operators"),
    "array": (np.asarray, r"numpy makes no array of a Variable.*F\.stack or F\.concat.*\.array"),
    "list": (lambda x: np.array([x, x]), "numpy makes no array of a Variable"),
    "elements": (
        lambda x: np.zeros((2, 3)).__setitem__(0, x[0]),
        "numpy makes no array of a Variable",
    ),
}


@pytest.mark.parametrize(("function", "told"), NUMPYS.values(), ids=NUMPYS)
def test_numpys_functions_say_what_to_use_instead(function, told):
    """They would walk over the elements, and make arrays of objects."""
    with pytest.raises(TypeError, match=told):
        function(mnpar.Variable(np.ones((2, 3))))


def test_numpy_tells_the_form_of_a_variable():
    x = mnpar.Variable(np.ones((2, 3)))
    assert (np.shape(x), np.ndim(x), np.size(x), np.size(x, 1)) == ((2, 3), 2, 6, 3)
    assert isinstance(np.transpose(x), mnpar.Variable)


NUMBERS = {
    "float": (float, 1.25),
    "int": (int, 1),
    "complex": (complex, 1.25 + 0j),
    "round": (lambda x: round(x, 1), 1.2),
    "format": (lambda x: f"{x:.3f}", "1.250"),
    "percent": (lambda x: f"{x:%}", "125.000000%"),
}


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)], ids=str)
@pytest.mark.parametrize(("convert", "number"), NUMBERS.values(), ids=NUMBERS)
def test_a_variable_of_one_element_is_a_number(convert, number, shape):
    assert convert(mnpar.Variable(np.full(shape, 1.25))) == number


@pytest.mark.parametrize("convert", [convert for convert, _ in NUMBERS.values()], ids=NUMBERS)
def test_a_variable_of_several_elements_is_no_number(convert):
    with pytest.raises(
        TypeError, match=r"a Variable of shape \(2,\) is no number: .* F\.mean\(x\)"
    ):
        convert(mnpar.Variable(np.ones(2)))


def test_the_elements_of_a_variable_are_not_written():
    with pytest.raises(TypeError, match=r"not written: mnpar\.functions\.where"):
        mnpar.Variable(np.ones(1))[0] = 1.0


def test_a_variable_without_a_form_is_formatted_as_it_is_printed():
    assert f"{mnpar.Variable(np.ones(1))}" == "variable([1.])"
