"""Gradients that stay share no memory: views of one array are handed on as long as nobody can
tell.
"""

import copy

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
from mnpar.autograd import accumulate
from mnpar.configuration import using_config
from mnpar.gradient_check import check_double_backward


def leaf(*shape):
    return mnpar.Variable(np.random.default_rng(len(shape)).standard_normal(shape))


class Parts(mnpar.FunctionNode):
    """Joins its inputs as numpy's ``r_``, and hands on the parts of its gradient that it is told
    to.
    """

    generic = True

    def __init__(self, *parts):
        self.parts = parts

    def forward(self, *xs):
        return np.concatenate(xs)

    def backward(self, gy):
        return tuple([lambda part=part: gy[part] for part in self.parts])


JOINED = {
    "concat, rows": lambda x, y: F.concat([x, y], axis=0),
    "concat, columns": lambda x, y: F.concat([x, y], axis=1),
    "stack": lambda x, y: F.stack([x, y]),
    "stack, axis 1": lambda x, y: F.stack([x, y], axis=1),
    "dstack": lambda x, y: F.dstack([x, y]),
    "transposed": lambda x, y: F.concat([x.T, y.T]).reshape(-1),
}


@pytest.mark.parametrize("join", JOINED.values(), ids=JOINED)
def test_parts_that_fill_an_array_have_it_between_them(join):
    x = leaf(64, 64)
    y = leaf(64, 64)
    z = join(x, y)
    weights = np.random.default_rng(0).standard_normal(z.shape)
    (z * weights).sum().backward()
    gx, gy = (g.array.copy() for g in mnpar.grad([(join(x, y) * weights).sum()], [x, y]))
    assert x.grad.base is y.grad.base is not None
    assert not np.shares_memory(x.grad, y.grad)
    x.grad += 5.0
    np.testing.assert_array_equal(x.grad, gx + 5)
    np.testing.assert_array_equal(y.grad, gy)


def test_parts_that_overlap_are_copied():
    x = leaf(600, 10)
    y = leaf(600, 10)
    (Parts(slice(0, 600), slice(500, 1100)).apply((x, y))[0] * 2).sum().backward()
    assert not np.shares_memory(x.grad, y.grad)


def test_parts_of_an_array_that_somebody_has_whole_are_copied():
    x = leaf(64, 64)
    y = leaf(64, 64)
    whole = leaf(128, 64)
    ((F.concat([x, y], axis=0) + whole) * 3).sum().backward()
    for a, b in ((x, y), (x, whole), (y, whole)):
        assert not np.shares_memory(a.grad, b.grad)


def test_parts_of_what_backward_starts_from_are_copied():
    x = leaf(64, 64)
    y = leaf(64, 64)
    g = np.ones((128, 64))
    a = F.identity(x)
    b = F.identity(y)
    a.grad = g[:64]
    b.grad = g[64:]
    mnpar.backward([a, b])
    z = F.concat([x, y], axis=0)
    z.grad = g
    gx, gy = mnpar.grad([z], [x, y])
    for own in (x.grad, y.grad, gx.array, gy.array):
        assert not np.shares_memory(own, g)


def test_a_part_alone_does_not_keep_the_rest_of_an_array():
    x = leaf(64, 64)
    y = leaf(64, 64)
    (F.concat([x, y * 2]) * 3).sum().backward()
    assert x.grad.base is None


def test_an_element_of_an_array_that_is_shown_often_does_not_fill_it(device):
    """On a device, too, where such a view can be written to."""
    for xp in (np, device):
        base = xp.ones(accumulate.SMALL)
        g = xp.broadcast_to(base[:1], base.shape)
        whole = base[:]
        assert accumulate.copy_shared([whole], set())[0] is whole
        assert accumulate.copy_shared([g], set())[0] is not g


def test_results_of_grad_for_the_same_variable_share_no_memory():
    x = leaf(3)
    first, second = mnpar.grad([(x * 2).sum()], [x, x])
    first.array += 1.0
    np.testing.assert_array_equal(second.array, [2.0, 2.0, 2.0])


# ---- what is the same all along an axis ----


def test_the_gradient_of_a_sum_takes_memory_when_it_is_asked_for():
    x = leaf(10000, 3)
    (x.sum(axis=0) * np.array([1.0, 2.0, 3.0])).sum().backward()
    assert x.node.gradient.array.base.size == 3
    g = x.grad
    assert g is x.grad
    g += 1.0
    np.testing.assert_array_equal(x.grad, np.tile([2.0, 3.0, 4.0], (10000, 1)))


@pytest.mark.parametrize(
    "make",
    [F.sum, F.mean, lambda x: F.sum(F.broadcast_to(F.sum(x), (3, 2)))],
    ids=["sum", "mean", "both"],
)
def test_a_later_backward_adds_to_it(make):
    x = leaf(4, 5)
    make(x).backward()
    once = np.broadcast_to(x.grad, x.shape).copy()
    make(x).backward()
    np.testing.assert_array_equal(x.grad, 2 * once)


def test_it_does_not_follow_what_others_do_with_the_array_it_came_from():
    x = leaf(4, 5)
    row = leaf(5)
    y = x.sum(axis=0) + row
    y.grad = g = np.ones(5)
    y.backward()
    g += 1.0
    row.grad += 2.0
    np.testing.assert_array_equal(x.grad, np.ones((4, 5)))
    np.testing.assert_array_equal(row.grad, np.full(5, 3.0))
    z = (x.sum(axis=0) + row) * 1
    x.cleargrad()
    row.cleargrad()
    z.sum().backward()
    row.grad += 2.0
    np.testing.assert_array_equal(x.grad, np.ones((4, 5)))


def test_it_is_an_array_of_its_own_as_a_variable_too():
    x = leaf(4)
    y = leaf(4)
    (x + y).sum().backward()
    x.grad_var.array += 1.0
    np.testing.assert_array_equal(x.grad, np.full(4, 2.0))
    np.testing.assert_array_equal(y.grad, np.ones(4))


# ---- what several leaves have whole ----


def summed():
    xs = [mnpar.Parameter(leaf(64, 64).array) for _ in range(3)]
    ((xs[0] + xs[1] + xs[2]) * 2).sum().backward()
    return xs


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)], ids=str)
def test_leaves_that_have_one_gradient_get_copies_when_they_ask_and_the_last_the_array(order):
    xs = summed()
    array = xs[0].node.gradient.array
    for i in order:
        np.testing.assert_array_equal(xs[i].grad, np.full((64, 64), 2.0))
        assert xs[i].grad is xs[i].grad
        xs[i].grad[...] = np.nan
    assert [xs[i].grad is array for i in order] == [False, False, True]


def test_leaves_that_have_what_backward_started_from_share_a_copy_of_it():
    x = leaf(64, 64)
    y = leaf(64, 64)
    g = np.ones((64, 64))
    z = x + y
    z.grad = g
    z.backward()
    assert x.node.gradient is y.node.gradient
    g[...] = 7.0
    x.grad[...] = np.nan
    np.testing.assert_array_equal(y.grad, np.ones((64, 64)))
    y.grad[...] = np.nan
    np.testing.assert_array_equal(g, np.full((64, 64), 7.0))


VIEWS = {
    "identity": lambda x: F.identity(x),
    "+ 1": lambda x: x + 1,
    "x + x": lambda x: x[:32] + x[32:],
    "three": lambda x: F.add(x[:16], x[16:32], x[32:48]),
    "reshape": lambda x: F.reshape(x, (32, 128)),
    "flatten": F.flatten,
    "expand_dims": lambda x: F.expand_dims(x, 1),
    "squeeze": lambda x: F.squeeze(F.expand_dims(x, 1)),
    "transpose": lambda x: x.T,
    "flip": lambda x: F.flip(x, 1),
    "concat": lambda x: F.concat([x, x], axis=0),
    "stack": lambda x: F.stack([x, x]),
    "pad": lambda x: F.pad(x, 1, "constant"),
    "bias": lambda x: F.bias(x, np.ones(64)),
    "sum": lambda x: F.sum(x, axis=0),
}


@pytest.mark.parametrize("f", VIEWS.values(), ids=VIEWS)
def test_gradients_follow_no_change_of_what_backward_started_from(f):
    x = leaf(64, 64)
    w = leaf(64, 64)
    (truth,) = mnpar.grad([f(x).sum()], [x])
    for times in (1, 2):  # the second is added
        y = f(x)
        z = f(w)
        y.grad = g = np.ones(y.shape)
        z.grad = g
        mnpar.backward([y, z])
        g[...] = np.nan
        np.testing.assert_array_equal(w.grad, times * truth.array)
        np.testing.assert_array_equal(x.grad, times * truth.array)
    y.grad[...] = z.grad[...] = 1.0
    w.grad[...] = np.nan
    np.testing.assert_array_equal(x.grad, 2 * truth.array)
    x.grad[...] = np.nan
    assert (y.grad == 1).all()
    assert (z.grad == 1).all()


def test_a_leaf_that_forgets_its_gradient_leaves_copies_to_the_others():
    x, y, z = summed()
    x.cleargrad()
    y.grad[...] = np.nan
    (x * 3).sum().backward()
    x.grad[...] = np.nan
    np.testing.assert_array_equal(z.grad, np.full((64, 64), 2.0))


def test_a_gradient_that_others_have_too_is_added_to_as_one_of_its_own():
    x, y, z = summed()
    ((x + y) * 3).sum().backward()
    x.grad[...] = np.nan
    np.testing.assert_array_equal(y.grad, np.full((64, 64), 5.0))
    y.grad[...] = np.nan
    np.testing.assert_array_equal(z.grad, np.full((64, 64), 2.0))


def test_copies_of_a_parameter_have_its_gradient_and_not_that_of_others():
    x, y, z = summed()
    other = copy.copy(x)
    apart = copy.deepcopy(y)
    assert other.grad is x.grad
    for changed in (apart, y, x):
        changed.grad[...] = np.nan
    np.testing.assert_array_equal(z.grad, np.full((64, 64), 2.0))


# ---- hooks, and backwards that are recorded ----


@pytest.mark.parametrize(
    "share", [lambda h, x: h + x, lambda h, x: F.stack([h, x])], ids=["+", "stack"]
)
def test_what_a_hook_does_to_a_gradient_of_its_own_reaches_no_function_that_is_still_to_come(share):
    w = leaf(2, 3)
    x = leaf(2, 3)
    other = leaf(2, 3)

    def clear(node):
        node.gradient *= 0

    def loss():
        return (share(w * 2, x + other) * 3).sum()

    expected = [g.array for g in mnpar.grad([loss()], [w, other])]
    for heard in (x, other):
        off = heard.register_hook(clear, after=True)
        loss().backward()
        off()
        np.testing.assert_array_equal(w.grad, expected[0])
        np.testing.assert_array_equal((x if heard is other else other).grad, expected[1])
        np.testing.assert_array_equal(heard.grad, np.zeros((2, 3)))
        for each in (w, x, other):
            each.cleargrad()


def test_what_is_derived_from_gradients_with_memory_of_their_own_is_right():
    def gradients(x, y):
        with using_config("enable_backprop", True):
            a, b = mnpar.grad(
                [(F.concat([x * y, x + y]) ** 3).sum()], [x, y], enable_double_backprop=True
            )
        return a * b, b

    x = leaf(3, 4).array
    y = leaf(3, 4).array[::-1].copy()
    check_double_backward(gradients, (x, y), (x, y), (y, x), eps=1e-4, atol=1e-6, rtol=1e-5)


# ---- programs made by chance ----

STEPS = (
    lambda a, b: a + b,
    lambda a, b: a - b,
    lambda a, b: F.concat([a, b], axis=1)[:, ::2],
    lambda a, b: F.concat([a, b], axis=0)[:64],
    lambda a, b: F.stack([a, b], axis=2).sum(axis=2),
    lambda a, b: F.concat(F.split_axis(a, 2, axis=1)[::-1]) + b,
    lambda a, b: F.stack(F.separate(a)[::-1]),
    lambda a, b: a.T.reshape(64, 64),
    lambda a, b: F.broadcast_to(a.sum(axis=0), (64, 64)),
    lambda a, b: F.broadcast_to(b.mean(), (64, 64)) + a,
    lambda a, b: F.identity(a, b)[1],
    lambda a, b: F.swapaxes(F.expand_dims(b, 0), 0, 2)[:, :, 0],
    lambda a, b: a * 2,
)


def program(seed, xs):
    random = np.random.default_rng(seed)
    values = list(xs)
    for _ in range(random.integers(1, 7)):
        a, b = random.integers(len(values), size=2)
        values.append(STEPS[random.integers(len(STEPS))](values[a], values[b]))
    end = F.concat(values[-2:], axis=0) if seed % 2 else values[-1]
    return end * 2 if seed % 3 else end


@pytest.mark.parametrize("record", [False, True], ids=["", "recorded"])
@pytest.mark.parametrize("retain_grad", [False, True], ids=["", "retained"])
@pytest.mark.parametrize(
    "seeds", [range(start, start + 20) for start in range(0, 100, 20)], ids=str
)
def test_a_gradient_that_is_changed_changes_no_other(seeds, retain_grad, record):
    for seed in seeds:
        xs = [leaf(64, 64) for _ in range(3)]
        truth = [
            None if g is None else g.array.copy() for g in mnpar.grad([program(seed, xs).sum()], xs)
        ]
        y = program(seed, xs)
        y.grad = seeded = np.ones(y.shape)
        y.backward(retain_grad=retain_grad, enable_double_backprop=record)
        for number, (x, g) in enumerate(zip(xs, truth, strict=True)):
            if g is not None:
                np.testing.assert_allclose(x.grad, g, err_msg=f"program {seed}, leaf {number}")
                x.grad[...] = np.nan
        np.testing.assert_array_equal(seeded, np.ones(y.shape))
