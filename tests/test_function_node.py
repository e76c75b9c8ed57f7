"""FunctionNode: a user's own function takes ten lines, and its mistakes are named."""

from typing import Generic, TypeVar, get_args

import numpy as np
import pytest

import mnpar
import mnpar.functions as F


def variable(value, **kwargs):
    return mnpar.Variable(np.array(value, np.float64), **kwargs)


class Cube(mnpar.FunctionNode):
    def forward(self, x):
        self.retain_inputs((0,))
        return x**3

    def backward(self, gy):
        (x,) = self.get_retained_inputs()
        return lambda: 3.0 * x**2 * gy


class Exp(mnpar.FunctionNode):
    def forward(self, x):
        self.retain_outputs((0,))
        return np.exp(x)

    def backward(self, gy):
        (y,) = self.get_retained_outputs()
        return y * gy


class Halves(mnpar.FunctionNode):
    """Two outputs, of which a caller may use one; notes what backward was given."""

    def __init__(self):
        self.given = None

    def forward(self, x):
        n = len(x) // 2
        return x[:n].copy(), x[n:].copy()

    def backward(self, ga, gb):
        self.given = ga is not None, gb is not None
        zeros = np.zeros(2)
        return F.concat([zeros if g is None else g for g in (ga, gb)], axis=0)


class Wrong(mnpar.FunctionNode):
    """Its backward returns what it was told."""

    def __init__(self, answer):
        self.answer = answer

    def forward(self, x, y):
        return x + y

    def backward(self, gy):
        return self.answer(gy)


# ---- writing one ----


def test_outputs_are_a_tuple_of_variables_made_by_the_function():
    function = Halves()
    a, b = function.apply((variable([1.0, 2.0, 3.0, 4.0]),))
    np.testing.assert_array_equal(a.array, [1.0, 2.0])
    np.testing.assert_array_equal(b.array, [3.0, 4.0])
    assert a.creator is b.creator is function
    assert type(Cube().apply((variable(2.0),))) is tuple


def test_forward_gets_arrays_and_inputs_may_be_arrays():
    class Look(mnpar.FunctionNode):
        def forward(self, *xs):
            self.types = [type(x) for x in xs]
            return xs[0] + xs[1]

    function = Look()
    (y,) = function.apply((variable([1.0]), np.array([2.0])))
    assert function.types == [np.ndarray, np.ndarray]
    np.testing.assert_array_equal(y.array, [3.0])


@pytest.mark.parametrize("first", ["indexes", "target_input_indexes", "indices"])
def test_a_function_with_chainers_arguments_is_refused_when_it_is_defined(first):
    text = f"class Old(mnpar.FunctionNode):\n    def backward(self, {first}, gys): ..."
    with pytest.raises(
        TypeError, match=rf"Old\.backward takes {first}, .* backward\(self, \*gys\)"
    ):
        exec(text, {"mnpar": mnpar})
    exec(text.replace(first, "gy"), {"mnpar": mnpar})  # two outputs


def test_a_function_may_be_of_other_classes_too():
    T = TypeVar("T")

    class Counted:
        def __init_subclass__(cls, count=0):
            cls.count = count

    class Pair(mnpar.FunctionNode, Generic[T]):
        pass

    class Many(mnpar.FunctionNode, Counted, count=3):
        pass

    assert get_args(Pair[int]) == (int,)
    assert Many.count == 3


def test_backward_gets_and_retains_variables():
    class Look(mnpar.FunctionNode):
        def forward(self, x):
            self.retain_inputs((0,))
            self.retain_outputs((0,))
            return x * 2.0

        def backward(self, gy):
            self.types = [
                type(v) for v in (gy, *self.get_retained_inputs(), *self.get_retained_outputs())
            ]
            return gy * 2.0

    function = Look()
    x = variable(1.0)
    function.apply((x,))[0].backward()
    assert function.types == [mnpar.Variable] * 3
    assert x.grad == 2.0


@pytest.mark.parametrize(
    ("node", "derivatives"),
    [
        (Cube, lambda x: [x**3, 3 * x**2, 6 * x, 6 + 0 * x]),
        (Exp, lambda x: [np.exp(x)] * 4),
    ],
    ids=["Cube", "Exp"],
)
def test_an_own_function_is_three_times_differentiable_and_agrees_with_the_closed_form(
    node, derivatives
):
    x = variable([0.5, 2.0, -1.0])
    (y,) = node().apply((x,))
    for order, expected in enumerate(derivatives(x.array)):
        np.testing.assert_allclose(y.array, expected, rtol=1e-14)
        if order < 3:
            (y,) = mnpar.grad([y.sum()], [x], enable_double_backprop=True)


@pytest.mark.parametrize("node", [Cube, Exp])
def test_an_own_function_passes_the_gradient_check(node):
    x, gy = np.random.default_rng(0).standard_normal((2, 3, 4))
    mnpar.gradient_check.check_backward(lambda x: node().apply((x,))[0], x, gy)


@pytest.mark.parametrize(
    ("use", "given", "expected"),
    [
        (lambda a, b: a.sum(), (True, False), [1.0, 1.0, 0.0, 0.0]),
        (lambda a, b: b.sum(), (False, True), [0.0, 0.0, 1.0, 1.0]),
        (lambda a, b: (a + b * 2.0).sum(), (True, True), [1.0, 1.0, 2.0, 2.0]),
    ],
    ids=["first", "second", "both"],
)
def test_the_gradient_of_an_output_that_is_not_used_is_none(use, given, expected):
    function = Halves()
    x = variable([1.0, 2.0, 3.0, 4.0])
    use(*function.apply((x,))).backward()
    assert function.given == given
    np.testing.assert_array_equal(x.grad, expected)


def test_an_output_that_nobody_holds_can_be_retained_and_differentiated():
    class SinCos(mnpar.FunctionNode):
        def forward(self, x):
            self.retain_outputs((0, 1))
            return np.sin(x), np.cos(x)

        def backward(self, gs, gc):
            s, c = self.get_retained_outputs()
            if gs is None or gc is None:
                return c * gs if gc is None else -s * gc
            return c * gs - s * gc

    x = variable(0.7)
    y = SinCos().apply((x,))[0]
    for expected in (np.cos(0.7), -np.sin(0.7), -np.cos(0.7)):
        (y,) = mnpar.grad([y], [x], enable_double_backprop=True)
        np.testing.assert_allclose(y.array, expected, rtol=1e-14)


def test_outputs_may_be_none():
    class Maybe(mnpar.FunctionNode):
        def forward(self, x):
            return None, x * 2.0

        def backward(self, gn, gy):
            assert gn is None
            return gy * 2.0

    x = variable(3.0)
    n, y = Maybe().apply((x,))
    assert n.array is None
    y.backward()
    assert x.grad == 2.0


def test_a_function_may_have_no_inputs():
    class Source(mnpar.FunctionNode):
        def forward(self):
            return np.ones(2)

    (y,) = Source().apply(())
    assert not y.requires_grad
    np.testing.assert_array_equal(y.array, [1.0, 1.0])


def test_numpy_scalars_become_arrays():
    class Total(mnpar.FunctionNode):
        def forward(self, x):
            return x.sum()

        def backward(self, gy):
            return F.broadcast_to(gy, self.inputs[0].shape)

    x = variable([1.0, 2.0])
    (y,) = Total().apply((x,))
    assert type(y.array) is np.ndarray
    y.backward()
    np.testing.assert_array_equal(x.grad, [1.0, 1.0])


def test_an_integer_output_requires_no_gradient():
    class Sign(mnpar.FunctionNode):
        def forward(self, x):
            return np.sign(x).astype(int)

    (y,) = Sign().apply((variable([1.0]),))
    assert not y.requires_grad


def test_a_function_without_backward_lets_nothing_through():
    class Stop(mnpar.FunctionNode):
        def forward(self, x):
            return x * 2.0

    x = variable(3.0)
    (Stop().apply((x,))[0] + x).backward()
    assert x.grad == 1.0


def test_a_gradient_may_be_none_an_array_a_variable_or_a_function():
    for answer in (
        lambda gy: (None, gy),
        lambda gy: (None, gy.array * 1.0),
        lambda gy: (lambda: None, lambda: gy),
        lambda gy: (None, lambda: gy.array * 1.0),
    ):
        x = variable(1.0)
        y = variable(1.0)
        Wrong(answer).apply((x, y))[0].backward()
        assert x.grad is None
        assert y.grad == 1.0


def test_a_gradient_comes_in_the_dtype_of_its_input():
    x = mnpar.Variable(np.ones(2, np.float32))
    y = variable([1.0, 1.0])
    (z,) = Wrong(lambda gy: (gy, gy)).apply((x, y))
    assert z.dtype == np.float64
    z.sum().backward()
    assert (x.grad.dtype, y.grad.dtype) == (np.float32, np.float64)


def test_needless_gradients_are_not_computed_and_needed_ones_once():
    calls = []
    x = variable(1.0)
    y = variable(1.0, requires_grad=False)
    (z,) = Wrong(
        lambda gy: (lambda: calls.append("x") or gy, lambda: calls.append("y") or gy)
    ).apply((x, y))
    z.backward()
    assert calls == ["x"]


def test_a_function_knows_while_forward_runs_whether_a_gradient_flows():
    class Look(mnpar.FunctionNode):
        def forward(self, x):
            return np.array(float(self.differentiable))

    assert Look().apply((variable(1.0),))[0].item() == 1.0
    assert Look().apply((np.ones(1),))[0].item() == 0.0
    with mnpar.no_backprop_mode():
        assert Look().apply((variable(1.0),))[0].item() == 0.0


def test_functions_are_numbered_in_the_order_in_which_they_ran():
    first = Cube()
    second = Cube()
    second.apply(first.apply((variable(1.0),)))
    assert 0 < first.number < second.number


# ---- mistakes ----


@pytest.mark.parametrize(
    ("answer", "error", "match"),
    [
        (lambda gy: gy, ValueError, "it returned 1 gradients for 2 inputs"),
        (lambda gy: (gy, gy, gy), ValueError, "it returned 3 gradients for 2 inputs"),
        (lambda gy: (), ValueError, "it returned 0 gradients for 2 inputs"),
        (
            lambda gy: (F.stack([gy, gy]), gy),
            ValueError,
            r"gradient for input 0 has shape \(2, 2\), but the input has shape \(2,\)",
        ),
        (
            lambda gy: (gy, gy.sum()),
            ValueError,
            r"gradient for input 1 has shape \(\), but the input has shape \(2,\)",
        ),
        (
            lambda gy: (gy, lambda: np.ones((2, 1))),
            ValueError,
            r"gradient for input 1 has shape \(2, 1\)",
        ),
        (lambda gy: 1 / 0, ZeroDivisionError, "division by zero"),
        (lambda gy: (gy, lambda: {}["key"]), KeyError, "key"),
    ],
    ids=["one", "three", "none", "more axes", "scalar", "lambda", "raises", "lambda raises"],
)
@pytest.mark.parametrize("double", [False, True], ids=["once", "recorded"])
def test_a_wrong_backward_is_named(answer, error, match, double):
    (z,) = Wrong(answer).apply((variable([1.0, 2.0]), variable([1.0, 2.0])))
    z.grad = np.ones(2)
    with pytest.raises(error, match=match) as caught:
        z.backward(enable_double_backprop=double)
    assert "in the backward of Wrong" in caught.value.__notes__


def test_the_note_names_only_the_function_that_failed():
    (z,) = Wrong(lambda gy: gy).apply((Cube().apply((variable(1.0),))[0], variable(1.0)))
    with pytest.raises(ValueError, match="1 gradients") as caught:
        Cube().apply((z,))[0].backward()
    assert caught.value.__notes__ == ["in the backward of Wrong"]


def test_a_function_without_forward_is_named():
    class Empty(mnpar.FunctionNode):
        pass

    with pytest.raises(TypeError, match=r"Empty does not define forward\(self, \*xs\)"):
        Empty().apply((variable(1.0),))


@pytest.mark.parametrize("x", [[1.0], 1.0, None.__class__], ids=repr)
def test_an_input_that_is_no_array_is_refused(x):
    with pytest.raises(TypeError, match="a Variable holds a numpy or cupy array"):
        Cube().apply((x,))


@pytest.mark.parametrize("x", [variable([1.0]), np.ones((1, 2))], ids=["Variable", "array"])
def test_an_array_in_place_of_the_tuple_of_inputs_is_refused(
    x,
):  # its first row would be taken for the first input
    with pytest.raises(
        TypeError, match=rf"apply takes the tuple of all inputs, not a {type(x).__name__}"
    ):
        Cube().apply(x)


@pytest.mark.parametrize(
    ("answer", "match"),
    [(F.relu, "not Variable: xs are arrays"), (lambda x: [x], "not list$")],
    ids=["Variable", "list"],
)
def test_what_forward_returns_is_an_array(answer, match):
    class Other(mnpar.FunctionNode):
        def forward(self, x):
            return answer(x)

    with pytest.raises(
        TypeError, match=f"Other: forward returns an array, or a tuple of them, {match}"
    ):
        Other().apply((variable([1.0]),))


@pytest.mark.parametrize(
    "first", [lambda xs: xs[0], lambda xs: next(x for (x,) in [xs])], ids=["index", "unpack"]
)
def test_a_backward_that_finds_nothing_retained_says_why(first):
    class Forgetful(mnpar.FunctionNode):
        def forward(self, x):
            return x * x

        def backward(self, gy):
            return 2 * gy * first(self.get_retained_inputs())

    with pytest.raises((ValueError, IndexError)) as caught:
        Forgetful().apply((variable(1.0),))[0].backward()
    note = (
        "in the backward of Forgetful, whose forward has called neither retain_inputs nor "
        "retain_outputs"
    )
    assert caught.value.__notes__ == [note]


def test_a_function_is_applied_once():
    function = Cube()
    function.apply((variable(1.0),))
    with pytest.raises(RuntimeError, match="Cube was applied before: make a new one for each use"):
        function.apply((variable(1.0),))


# ---- debug mode ----


class Divide(mnpar.FunctionNode):
    """x with the gradient gy / 0."""

    def forward(self, x):
        return x + 0.0

    def backward(self, gy):
        with np.errstate(divide="ignore"):
            return gy.array / np.zeros(gy.shape)


@pytest.mark.usefixtures("debug_off")
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf], ids=str)
def test_debug_mode_finds_the_function_whose_output_is_not_finite(bad):
    x = variable([1.0, bad])
    with (
        mnpar.using_config("debug", True),
        pytest.raises(FloatingPointError, match="output 0 of Cube has NaN or infinity"),
    ):
        Cube().apply((x,))
    Cube().apply((x,))  # outside nobody looks


def test_debug_mode_finds_the_function_whose_gradient_is_not_finite():
    x = variable([1.0, 2.0])
    loss = Divide().apply((x,))[0].sum()
    with (
        mnpar.using_config("debug", True),
        pytest.raises(
            FloatingPointError, match="gradient 0 of Divide has NaN or infinity"
        ) as caught,
    ):
        loss.backward()
    assert "in the backward of Divide" in caught.value.__notes__


def test_debug_mode_looks_at_no_integers_and_lets_finite_values_pass():
    with mnpar.using_config("debug", True):
        x = variable([1.0, 2.0])
        x[np.array([0, 1])].sum().backward()
        np.testing.assert_array_equal(x.grad, [1.0, 1.0])


def test_all_inputs_that_are_under_way_are_waited_for_before_a_function_runs():
    """Their functions come before it then, in the order that backward reverses."""
    waited = []

    def arrives():
        waited.append(mnpar.Variable(np.ones(1)))
        return tuple(waited)

    mnpar.functions.math.arithmetic.Add().prepare(
        (mnpar.Variable(np.ones(1)), mnpar.Future(arrives))
    )
    assert waited


def test_a_real_number_times_a_complex_one_has_a_real_gradient():
    """Without axes, too, where numpy's products are scalars: it warned that it dropped the
    imaginary part.
    """
    x = variable(2.0)
    y = x * np.array(3 + 4j)
    (F.real(y) + F.imag(y)).backward()
    assert (x.grad.dtype, float(x.grad)) == (np.float64, 7.0)
