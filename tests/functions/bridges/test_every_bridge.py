"""The rules that functions of JAX's, numba's and PyTorch's share: values and gradients of mnpar's
own functions. What only one of the libraries has or refuses is in the file of its name.
"""

import functools

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
from mnpar.gradient_check import check_backward, check_double_backward

OWN = {
    "product": lambda x, w: F.tanh(x @ w) ** 2,
    "softmax": lambda x, w: F.log_softmax(x, axis=1) * F.broadcast_to(F.sum(w), x.shape),
    "indexing": lambda x, w: x[:, ::-1] * w[:, 0],
    "one argument": lambda x, w: F.identity(x),
    "powers": lambda x, w: x * w * x * x,
}


@functools.cache  # they are compiled once for all tests
def by_jax():
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    functions = {
        "product": lambda x, w: jax.numpy.tanh(x @ w) ** 2,
        "softmax": lambda x, w: jax.nn.log_softmax(x, axis=1) * w.sum(),
        "indexing": lambda x, w: x[:, ::-1] * w[:, 0],
        "one argument": lambda x, w: x,
        "powers": lambda x, w: x * w * x * x,
    }
    return {name: F.from_jax(function) for name, function in functions.items()}


@functools.cache
def by_torch():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    functions = {
        "product": lambda x, w: torch.tanh(x @ w) ** 2,
        "softmax": lambda x, w: torch.log_softmax(x, 1) * w.sum(),
        "indexing": lambda x, w: x.flip(1) * w[:, 0],
        "one argument": lambda x, w: x,
        "powers": lambda x, w: x * w * x * x,
    }
    return {name: F.from_torch(function) for name, function in functions.items()}


@functools.cache
def by_numba():
    pytest.importorskip("numba", reason="numba is not installed")

    def powers(x, w):
        return x * w * x * x

    def powers_back(x, w, gy):
        return 3 * gy * w * x * x, gy * x * x * x

    return {"powers": F.from_numba(powers, powers_back)}


LIBRARIES = {"jax": by_jax, "numba": by_numba, "torch": by_torch}
ANY_ORDER = ["jax", "torch"]  # numba has the derivatives that its user writes


@pytest.fixture
def bridged(request):
    """The functions of the library that a test names; JAX computes with 64 bits."""
    functions = LIBRARIES[request.param]()
    jax = pytest.importorskip("jax") if request.param == "jax" else None
    if jax:
        jax.config.update("jax_enable_x64", True)
    yield functions
    if jax:
        jax.config.update("jax_enable_x64", False)


def arrays(rows=3):
    rng = np.random.default_rng(0)
    return rng.random((rows, 4)), rng.random((4, 2))


def alike():
    rng = np.random.default_rng(1)
    return rng.random(5), rng.random(5)


def orders(function, xs):
    """Values, gradients, and gradients of gradients, three times."""
    y = function(*xs)
    found = [y.array]
    loss = F.sum(y * y)
    for _ in range(3):
        gs = mnpar.grad([loss], xs, enable_double_backprop=True)
        found += [0.0 if g is None else g.array for g in gs]
        loss = sum([F.sum(g * g) for g in gs if g is not None])
    return found


@pytest.mark.parametrize("rows", [0, 1, 3])
@pytest.mark.parametrize("name", ["product", "softmax", "indexing", "one argument"])
@pytest.mark.parametrize("bridged", ANY_ORDER, indirect=True)
def test_values_and_gradients_of_three_orders_equal_those_of_mnpars_functions(bridged, name, rows):
    found, wanted = [
        orders(function, [mnpar.Variable(x) for x in arrays(rows)])
        for function in (bridged[name], OWN[name])
    ]
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("bridged", ANY_ORDER, indirect=True)
def test_gradients_of_gradients_equal_finite_differences(bridged):
    check_backward(bridged["product"], arrays(), np.ones((3, 2)))
    check_double_backward(bridged["product"], arrays(), np.ones((3, 2)), arrays())


@pytest.mark.parametrize("bridged", LIBRARIES, indirect=True)
def test_gradients_equal_finite_differences(bridged):
    check_backward(bridged["powers"], alike(), np.ones(5))


@pytest.mark.parametrize("bridged", ANY_ORDER, indirect=True)
def test_complex_gradients_are_mnpars(bridged):
    x, w = np.array([1 + 2j, -1j]), np.array([3 - 1j, 2.0])
    found = []
    for function in (bridged["powers"], OWN["powers"]):
        v = mnpar.Variable(x)
        (g,) = mnpar.grad([F.sum(function(v, w).real)], [v], enable_double_backprop=True)
        (gg,) = mnpar.grad([F.sum(g.imag)], [v])
        found.append((g.array, gg.array))
    np.testing.assert_allclose(*found, rtol=1e-12)


@pytest.mark.parametrize("bridged", LIBRARIES, indirect=True)
def test_arrays_of_the_other_byte_order_are_read_as_the_numbers_that_they_are(bridged):
    xs = [mnpar.Variable(np.full(3, n, ">f8")) for n in (2, 5)]
    y = bridged["powers"](*xs)
    F.sum(y).backward()
    assert [a.tolist() for a in (y.array, xs[0].grad, xs[1].grad)] == [[40] * 3, [60] * 3, [8] * 3]


@pytest.mark.parametrize("bridged", LIBRARIES, indirect=True)
def test_gradients_can_be_written_and_share_no_memory(bridged):
    xs = [mnpar.Variable(np.ones(5000)) for _ in range(2)]
    F.sum(bridged["powers"](*xs)).backward()
    xs[0].grad += 1
    assert [x.grad[0] for x in xs] == [4, 1]


@pytest.mark.parametrize("bridged", LIBRARIES, indirect=True)
def test_forget_repeats_it(bridged):
    function, found = bridged["powers"], []
    for call in (function, lambda x, w: F.forget(function, x, w)):
        xs = [mnpar.Variable(x) for x in alike()]
        F.sum(call(*xs)).backward()
        found.append([x.grad for x in xs])
    np.testing.assert_array_equal(*found)
