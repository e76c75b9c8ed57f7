"""from_numba beside mnpar's own functions, finite differences, and what goes wrong."""

import numpy as np
import pytest

numba = pytest.importorskip("numba", reason="numba is not installed")

import mnpar  # noqa: E402
import mnpar.functions as F  # noqa: E402
from mnpar.gradient_check import check_backward, check_double_backward  # noqa: E402


# plain loops, which each process of ranks compiles in a second
def product(x, w, times):
    y = np.zeros(len(x), x.dtype)
    for i in range(len(x)):
        for j in range(len(w)):
            y[i] += x[i, j] * w[j]
        y[i] *= times * y[i]
    return y


def product_back(x, w, times, gy):
    gx, gw = np.zeros_like(x), np.zeros_like(w)
    for i in range(len(x)):
        slope = 0.0
        for j in range(len(w)):
            slope += 2 * times * x[i, j] * w[j] * gy[i]
        for j in range(len(w)):
            gx[i, j] = slope * w[j]
            gw[j] += slope * x[i, j]
    return gx, gw


SQUARED = F.from_numba(product, product_back)  # compiled once for all tests and ranks


def own(x, w, times):
    return times * F.sum(x * w, axis=1) ** 2


def arrays(rows=3, dtype="f8"):
    rng = np.random.default_rng(0)
    return rng.random((rows, 4)).astype(dtype), rng.random(4).astype(dtype)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("rows", [0, 1, 3])
def test_values_and_gradients_equal_those_of_mnpars_functions(rows, dtype):
    found = []
    for function in (SQUARED, own):
        xs = [mnpar.Variable(x) for x in arrays(rows, dtype)]
        y = function(*xs, 3.0)
        F.sum(y * y).backward()
        found.append([y.array, *[x.grad for x in xs]])
    for one, other in zip(*found, strict=True):
        assert one.dtype == other.dtype == dtype
        np.testing.assert_allclose(one, other, rtol=1e-4 if dtype == "f4" else 1e-12)


def test_gradients_equal_finite_differences():
    check_backward(lambda x, w: SQUARED(x, w, 2.0), arrays(), np.arange(1.0, 4))


def square(x):
    return x * x


def square_back(x, gy):
    return 2 * x * gy


def square_back_back(x, gy, ggx):
    return 2 * gy * ggx, 2 * x * ggx


def test_a_backward_that_is_a_function_itself_is_differentiated():
    function = F.from_numba(square, F.from_numba(square_back, square_back_back))
    x = np.array([1.0, -2.0])
    check_double_backward(function, x, np.ones(2), np.ones(2))
    v = mnpar.Variable(x)
    (g,) = mnpar.grad([F.sum(function(v))], [v], enable_double_backprop=True)
    (gg,) = mnpar.grad([F.sum(g * g)], [v])
    np.testing.assert_array_equal(gg.array, 8 * x)


def test_a_backward_without_a_derivative_says_so_where_one_is_needed():
    x = mnpar.Variable(np.ones(2))
    y = F.from_numba(square, square_back)(x)
    (g,) = mnpar.grad([F.sum(y)], [x], enable_double_backprop=True)
    np.testing.assert_array_equal(g.array, [2, 2])
    with pytest.raises(RuntimeError, match=r"backward of square\) has no backward: from_numba"):
        F.sum(g).backward()
    y = F.from_numba(square)(x)
    with pytest.raises(RuntimeError, match=r"from_numba\(square\) has no backward"):
        F.sum(y).backward()


def taken(x, index):
    return x[index], index


def taken_back(x, index, gy, gindex):
    gx = np.zeros_like(x)
    for i in range(len(index)):
        gx[index[i]] += gy[i]
    return gx, None


def test_integers_and_several_outputs():
    index = np.array([1, 1, 0])
    x = mnpar.Variable(np.arange(3.0))
    y, same = F.from_numba(taken, taken_back)(x, index)
    np.testing.assert_array_equal(same.array, index)
    (g,) = mnpar.grad([F.sum(y * y)], [x], enable_double_backprop=True)
    (plain,) = mnpar.grad([F.sum(y * y)], [x])
    np.testing.assert_array_equal(g.array, [0, 4, 0])
    np.testing.assert_array_equal(plain.array, [0, 4, 0])


def test_gradients_share_no_memory():
    both = F.from_numba(lambda x, y: x + y, lambda x, y, g: (g, g))
    x, y = mnpar.Variable(np.ones(2)), mnpar.Variable(np.ones(2))
    F.sum(both(x, y)).backward()
    x.grad += 1
    assert (x.grad.tolist(), y.grad.tolist()) == ([2, 2], [1, 1])


def writes(x):
    x[0] = 1
    return x


def counts(x):
    return x.sum()


def one_gradient(x, y, g):
    return g


WRONG = {
    "writing": (lambda x: F.from_numba(writes)(x), Exception, "readonly"),
    "a number": (lambda x: F.from_numba(counts)(x), TypeError, r"\(counts\).*not a float: np.as"),
    "too few": (
        lambda x: F.sum(F.from_numba(lambda x, y: x + y, one_gradient)(x, x)).backward(),
        ValueError,
        "returned 1 gradients, one for each of 2 arrays",
    ),
    "a shape": (
        lambda x: F.sum(F.from_numba(square, lambda x, g: g[:1])(x)).backward(),
        ValueError,
        r"input 0 has shape \(1,\), but the input has shape \(2,\)",
    ),
    "a number back": (
        lambda x: F.sum(F.from_numba(square, lambda x, g: g.sum())(x)).backward(),
        TypeError,
        "backward returned a float as gradient 0",
    ),
    "no function": (lambda x: F.from_numba(3), TypeError, "takes functions, not a int"),
}


@pytest.mark.parametrize(("program", "error", "told"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_told(program, error, told):
    with pytest.raises(error, match=told):
        program(mnpar.Variable(np.ones(2)))


@pytest.mark.ranks(1, 2, 3)
def test_it_is_a_function_like_any_other_between_communications(comm):
    """Three rows over the ranks, uneven or empty: values and gradients of one process."""
    x, w = arrays()
    mine = slice(comm.rank * 2, comm.rank * 2 + 2) if comm.size > 1 else slice(None)
    xs = [mnpar.Variable(x[mine].copy()), mnpar.Variable(w)]
    y = SQUARED(xs[0], F.copy_to(comm, xs[1]), 1.0)
    F.sum(y * y).backward()
    whole = [mnpar.Variable(x), mnpar.Variable(w)]
    z = own(*whole, 1.0)
    F.sum(z * z).backward()
    np.testing.assert_allclose(xs[0].grad, whole[0].grad[mine], rtol=1e-12)
    np.testing.assert_allclose(xs[1].grad, whole[1].grad, rtol=1e-12)
