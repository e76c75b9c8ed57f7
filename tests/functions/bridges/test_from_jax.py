"""from_jax: pytrees, tracing, and what goes wrong; the rules of every bridge: test_every_bridge.py.

JAX starts threads, after which the pool of ranks cannot fork: ranks are threads here.
"""

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed")

import jax.numpy as jnp  # noqa: E402

import mnpar  # noqa: E402
import mnpar.functions as F  # noqa: E402
import mnpar.links as L  # noqa: E402
from mnpar.errors import LayoutError  # noqa: E402


@pytest.fixture(autouse=True)
def bits():
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


def product(x, w):
    return jnp.tanh(x @ w) ** 2


def own(x, w):
    return F.tanh(x @ w) ** 2


def arrays(rows=3):
    rng = np.random.default_rng(0)
    return rng.random((rows, 4)), rng.random((4, 2))


def test_pytrees_numbers_integers_and_parameters():
    model = mnpar.Chain(l=L.Linear(4, 2))
    model.l.W.array = model.l.W.array.astype("f8")

    def step(params, x, index, scale):
        return {"y": scale * (x @ params["W"].T)[index], "index": (index, None)}

    x, index = mnpar.Variable(arrays()[0]), np.array([0, 2])
    out = F.from_jax(step)({"W": model.l.W}, x, index, scale=3.0)
    assert out["index"][1] is None
    np.testing.assert_array_equal(out["index"][0].array, index)
    F.sum(out["y"] ** 2).backward()
    y = F.get_item(3.0 * F.matmul(x, model.l.W, transb=True), index)
    np.testing.assert_allclose(out["y"].array, y.array, rtol=1e-12)
    gs = mnpar.grad([F.sum(y**2)], [model.l.W, x])
    np.testing.assert_allclose(model.l.W.grad, gs[0].array, rtol=1e-12)
    np.testing.assert_allclose(x.grad, gs[1].array, rtol=1e-12)


def test_it_is_traced_once_for_each_shape_and_kind_of_call():
    traced = []

    def function(x):
        traced.append(x.shape)
        return x * x

    f = F.from_jax(function)
    for n in (2, 2, 3, 2):
        for _ in range(2):
            x = mnpar.Variable(np.ones(n))
            F.sum(f(x)).backward()
    assert traced == [(2,), (3,)]
    for _ in range(2):
        f(np.ones(2))
    assert traced == [(2,), (3,), (2,)]


def with_32_bits(*args):
    jax.config.update("jax_enable_x64", False)
    F.from_jax(jnp.multiply)(*args)


def communicating(x):
    mnpar.run(lambda comm: F.from_jax(lambda x: F.allreduce(comm, x))(x), ranks=2)


def on_constants(x):
    mnpar.run(
        lambda comm: F.from_jax(lambda x: x + F.allreduce(comm, np.ones(2)).array)(x), ranks=2
    )


def cut(x):
    def program(comm):
        grid = mnpar.SpatialGrid(comm, (2,))
        F.from_jax(jnp.sin)(grid.cut(np.ones((1, 1, 4))))

    mnpar.run(program, ranks=2)


WRONG = {
    "64 bits": (
        lambda x: with_32_bits(x, 2),
        TypeError,
        r"array 0.*float64 of shape \(2,\).*x.astype\('f4'\)",
    ),
    "an integer of 64 bits": (
        lambda x: with_32_bits(x.array.astype("f4"), np.int64(2**40)),
        TypeError,
        "1099511627776 would be cut to 32 bits",
    ),
    "a word": (lambda x: F.from_jax(lambda x, mode: x)(x, "same"), TypeError, "'str'"),
    "communication": (communicating, TypeError, r"Tracer: JAX traces what F\.from_jax"),
    "of constants": (on_constants, RuntimeError, "allreduce at .* cannot run inside"),
    "no array": (lambda x: F.from_jax(lambda x: "a")(x), TypeError, "str"),
    "no function": (lambda x: F.from_jax(3), TypeError, "takes a function, not a int"),
    "cut": (cut, LayoutError, "from_jax|JaxCall"),
}


@pytest.mark.parametrize(("program", "error", "told"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_told(program, error, told):
    with pytest.raises(error, match=told):
        program(mnpar.Variable(np.ones(2)))


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_it_is_a_function_like_any_other_between_communications(ranks):
    """Three rows over the ranks, uneven or empty: values and gradients of one process."""
    x, w = arrays()
    whole = [mnpar.Variable(x), mnpar.Variable(w)]
    F.sum(own(*whole)).backward()
    function = F.from_jax(product)

    def program(comm):
        mine = slice(comm.rank * 2, comm.rank * 2 + 2) if comm.size > 1 else slice(None)
        xs = [mnpar.Variable(x[mine].copy()), mnpar.Variable(w)]
        F.sum(function(xs[0], F.copy_to(comm, xs[1]))).backward()
        np.testing.assert_allclose(xs[0].grad, whole[0].grad[mine], rtol=1e-12)
        np.testing.assert_allclose(xs[1].grad, whole[1].grad, rtol=1e-12)

    mnpar.run(program, ranks=ranks)
