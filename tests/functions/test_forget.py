"""What is forgotten and computed again gives the gradients, the random numbers and the statistics
of the plain call.
"""

import weakref

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar.autograd.graph import GradientHook
from mnpar.autograd.tape import current_tape
from mnpar.variable import Variable, grad

X = np.linspace(-1, 1, 12).reshape(4, 3)


class Block(mnpar.Chain):
    def __init__(self):
        super().__init__()
        self.l1 = L.Linear(
            None,
            5,
            initialW=mnpar.initializers.Normal(1, "f8"),
            initial_bias=mnpar.initializers.Zero("f8"),
        )
        self.bn = L.BatchNormalization(5, dtype=np.float64)
        self.l2 = L.Linear(
            5,
            2,
            initialW=mnpar.initializers.Normal(1, "f8"),
            initial_bias=mnpar.initializers.Zero("f8"),
        )

    def forward(self, x):
        return self.l2(F.dropout(F.tanh(self.bn(self.l1(x))), 0.4))


def step(call, model, x):
    mnpar.random.seed(7)
    y = call(model, x)
    F.sum(y * y).backward()
    rest = mnpar.random.generator().random()
    return [y.array, *[p.grad for p in model.params()], model.bn.avg_mean, model.bn.avg_var, rest]


@pytest.mark.parametrize("wanted", [True, False], ids=["gradient of x", "of parameters alone"])
def test_a_model_learns_as_it_does_without(wanted):
    mnpar.random.seed(1)
    first = Block()
    first(X)
    second = first.copy("copy")
    xs = [Variable(X.copy(), requires_grad=wanted) for _ in range(2)]
    plain = step(lambda model, x: model(x), first, xs[0])
    again = step(F.forget, second, xs[1])
    for a, b in zip(plain, again, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
    assert (xs[1].grad is None) is not wanted
    if wanted:
        np.testing.assert_allclose(xs[0].grad, xs[1].grad, rtol=1e-12)


STATEFUL = {  # layers that read and change values of their own whenever they are called
    "renormalization": lambda: L.BatchRenormalization(3, rmax=3, dmax=5),
    "spectral norm": lambda: L.Linear(3, 3).add_hook(mnpar.link_hooks.SpectralNormalization()),
}


@pytest.mark.parametrize("nested", [False, True], ids=["alone", "one in another"])
@pytest.mark.parametrize("make", STATEFUL.values(), ids=STATEFUL)
def test_a_layer_that_is_called_twice_computes_with_the_values_of_each_call(make, nested):
    def again(call, x):
        return F.forget(lambda x: F.forget(call, x) if nested else call(x), x)

    found = []
    for how in (again, lambda call, x: call(x)):
        with mnpar.using_config("dtype", np.float64):
            with mnpar.random.using(np.random.default_rng(1)):
                layer = make()
                x = Variable(X.copy())
                y = how(lambda x, of=layer: of(F.sin(of(x))), x) * how(layer, 2 * x + 0.3)
                (g,) = grad([F.sum(y**3)], [x], enable_double_backprop=True)
                (gg,) = grad([F.sum(g * g)], [x])
        values = [getattr(layer, name) for name in sorted(layer._persistent)]
        found.append([y.array, g.array, gg.array, *values])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)


def test_a_function_that_calls_more_layers_the_second_time_is_told():
    layer = L.BatchRenormalization(3, dtype=np.float64)
    times = iter([1, 2])

    def function(x):
        for _ in range(next(times)):
            x = layer(x)
        return x

    y = F.forget(function, Variable(X.copy()))
    with pytest.raises(RuntimeError, match="calls more layers than the forward did"):
        F.sum(y).backward()


def test_what_is_computed_on_the_way_is_not_kept():
    seen = []

    def f(x):
        h = F.exp(x)
        seen.append(weakref.ref(h.creator))
        return F.sum(h * h)

    x = Variable(X.copy())
    y = F.forget(f, x)
    assert seen[0]() is None
    y.backward()
    assert len(seen) == 2
    np.testing.assert_allclose(x.grad, 2 * np.exp(2 * X))


def test_gradients_can_be_asked_for_by_parameters_that_were_only_read():
    layer = L.Linear(3, 2, initialW=np.ones((2, 3)), initial_bias=np.zeros(2))
    x = Variable(X.copy())
    y = F.sum(F.forget(layer, x) ** 2)
    gW, gx = grad([y], [layer.W, x])
    h = X.sum(1)[:, None] * np.ones(2)
    np.testing.assert_allclose(gW.array, 2 * h.T @ X)
    np.testing.assert_allclose(gx.array, 2 * h @ np.ones((2, 3)))
    assert layer.W.grad is None


def test_parameters_have_second_gradients_too():
    W = mnpar.Parameter(np.array([[1.0, 2.0, 3.0]]))
    x = Variable(X.copy())
    results = []
    for call in (lambda f, x: f(x), F.forget):
        (gx,) = grad(
            [F.sum(call(lambda x: F.tanh(F.linear(x, W)), x))], [x], enable_double_backprop=True
        )
        results.append([g.array for g in grad([F.sum(gx * gx)], [W, x])])
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b)


def test_arguments_that_come_of_each_other_are_not_counted_twice():
    x = Variable(X.copy())
    results = []
    for call in (lambda f, *xs: f(*xs), F.forget):
        y = F.exp(x)
        results.append(
            grad([F.sum(call(lambda a, b: a * b, x, y))], [x], enable_double_backprop=True)[0].array
        )
    np.testing.assert_allclose(*results)


def test_optimizers_and_hooks_of_gradients_see_what_they_see_without():
    results = []
    for call in (lambda f, x: f(x), F.forget):
        mnpar.random.seed(3)
        model, heard = Block(), []
        model(X)
        optimizer = mnpar.optimizers.MomentumSGD(0.1).setup(model)
        for node in [p.node for p in model.params()]:
            node.add_hook(GradientHook(lambda g, heard=heard: heard.append(g.copy())))
        for _ in range(3):
            mnpar.random.seed(4)
            model.cleargrads()
            y = call(model, X)
            (F.sum(y * y) + F.sum(model.l2.W * 3)).backward()  # read inside and outside
            optimizer.update()
        results.append(
            [p.array for p in model.params()] + sorted(heard, key=lambda g: float(g.sum()))
        )
    assert len(results[0]) == len(results[1]) == 6 + 18
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


def test_gradients_of_gradients_by_a_parameter_that_two_of_them_read():
    def gradients(call):
        x = Variable(np.array([0.3]))
        w = Variable(np.array([0.7]))
        y = x * 1.0
        for _ in range(2):
            y = call(lambda x: F.sin(x * w) + x, y)
        gx, gw = grad([F.sum(y * y)], [x, w], enable_double_backprop=True)
        F.sum(gx * gx + gw).backward()
        return [gx.array, gw.array, x.grad, w.grad]

    np.testing.assert_allclose(gradients(F.forget), gradients(lambda f, x: f(x)), rtol=1e-12)


def test_labels_may_be_arguments():
    x = Variable(X.copy())
    F.forget(F.softmax_cross_entropy, x, np.array([0, 1, 2, 0])).backward()
    y = Variable(X.copy())
    F.softmax_cross_entropy(y, np.array([0, 1, 2, 0])).backward()
    np.testing.assert_allclose(x.grad, y.grad)


def test_nothing_is_remembered_where_nothing_is_recorded():
    calls = []
    with mnpar.no_backprop_mode():
        y = F.forget(lambda x: calls.append(1) or x * 2, X)
    assert len(calls) == 1
    assert y.creator is None


def test_backward_runs_in_the_mode_of_forward():
    x = Variable(X.copy())
    with mnpar.using_config("train", False):
        y = F.forget(lambda x: F.dropout(x, 0.5), x)
    F.sum(y).backward()
    np.testing.assert_array_equal(x.grad, np.ones_like(X))


def test_what_was_computed_outside_is_to_be_an_argument():
    h = Variable(X.copy()) * 2
    with pytest.raises(ValueError, match="MulConstant computed outside"):
        F.forget(lambda x: x * h, X)
    with pytest.raises(TypeError, match="int cannot be"):
        F.forget(3, X)


@pytest.mark.parametrize(
    "speak",
    [
        lambda x, comm: F.allreduce(comm, x),
        lambda x, comm: F.send(x, comm, 1 - comm.rank),
        lambda x, comm: F.irecv(comm, 1 - comm.rank),
        lambda x, comm: F.forget(lambda x: F.allreduce(comm, x), x),
    ],
    ids=["allreduce", "send", "irecv", "deeper inside"],
)
def test_to_communicate_inside_is_an_error_before_a_message_leaves(speak):
    def program(comm):
        with pytest.raises(RuntimeError, match="communicate between two calls of forget"):
            F.forget(lambda x: speak(x, comm), Variable(X.copy()))
        return comm.traffic.messages

    assert mnpar.run(program, ranks=2) == [0, 0]


def test_communication_between_two_of_them_is_right():
    def program(comm):
        x = Variable(X[comm.rank].copy())
        y = F.forget(F.tanh, F.allreduce(comm, F.forget(F.exp, x)))
        F.sum(y).backward()
        return x.grad

    total = np.exp(X[:2]).sum(0)
    expected = 2 * (1 - np.tanh(total) ** 2) * np.exp(X[:2])
    np.testing.assert_allclose(mnpar.run(program, ranks=2), expected)


def talk(comm, group, x, w):
    """What ranks say to each other in all ways: neighbours, collectives, later, blocks; w is in
    nothing but what is sent.
    """
    left = (comm.rank - 1) % comm.size
    right = (comm.rank + 1) % comm.size
    F.send(w * x if comm.rank or comm.size == 1 else x, comm, right)
    z = F.irecv(comm, left)
    y = F.halo_exchange(
        x, mnpar.SpatialGrid(comm, (comm.size,)), (comm.size + 1,), ksize=3, pad=1, mode="wrap"
    )
    F.send(np.ones(1), comm, right)
    F.recv(comm, left)  # a constant
    return y[1:-1] * F.sum(F.iallreduce(comm, F.sum(x * x))) + F.sum(z), F.sin(
        F.allreduce(group, F.sum(x))
    )


@pytest.mark.ranks(1, 3)
@pytest.mark.parametrize("order", [1, 2])
def test_ranks_forget_together_what_they_said(comm, order):
    group = comm.split(comm.rank % 2, comm.rank)

    def gradients(forget):
        x = Variable(
            np.arange(1.0, comm.size + 2)[
                slice(*mnpar.plans.block(comm.size + 1, comm.size, comm.rank))
            ]
        )
        w = Variable(np.array([comm.rank + 0.5]))
        u = Variable(np.array([0.3]))
        z = x * u
        for _ in range(2):
            a, b = forget(lambda x: talk(comm, group, x, w), z)
            z = a * b
        y = F.sum(z**2) if comm.is_root else None
        if order == 2:
            (g,) = mnpar.grad([] if y is None else [y], [u], enable_double_backprop=True)
            y = F.sum(g * g)
        mnpar.backward([] if y is None else [y])
        return [v.grad for v in (x, w, u) if v is not w or comm.rank or comm.size == 1]

    plain, again = (
        gradients(f) for f in (lambda f, x: f(x), lambda f, x: F.forget(f, x, comm=comm))
    )
    for a, b in zip(plain, again, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
    assert len(current_tape().records) == 0


@pytest.mark.usefixtures("both_matches")
def test_a_rank_that_does_not_forget_with_the_others_is_an_error():
    def program(comm):
        call = (lambda f, x: F.forget(f, x, comm=comm)) if comm.rank else (lambda f, x: f(x))
        call(lambda x: F.allreduce(comm, x), Variable(X.copy()))

    with pytest.raises(mnpar.errors.MismatchError, match="forget"):
        mnpar.run(program, ranks=2)


@pytest.mark.parametrize("receive", [F.recv, F.irecv], ids=["recv", "irecv"])
def test_a_message_from_any_rank_is_refused_where_ranks_forget_together(receive):
    """Repeated, it could be another rank's: a program with two senders waited forever, or had the
    gradients exchanged.
    """

    def program(comm):
        with pytest.raises(RuntimeError, match="ANY_SOURCE may take another rank's message"):
            F.forget(lambda x: x * receive(comm, mnpar.ANY_SOURCE), Variable(X.copy()), comm=comm)

    mnpar.run(program, ranks=2)


@pytest.mark.parametrize(
    ("give", "take"),
    [
        (lambda comm, x: F.send(x, comm, 1), lambda comm: F.recv(comm, 0)),
        (lambda comm, x: F.send(x, comm, 1, tag=3), lambda comm: F.irecv(comm, 0, tag=3)),
        (
            lambda comm, x: F.sendrecv(x, comm, 1, 1),
            lambda comm: F.sendrecv(np.ones(1), comm, 0, 0),
        ),
        (lambda comm, x: comm.send(x.array, 1), lambda comm: F.recv(comm, 0)),
        (
            lambda comm, x: comm.sendrecv(x.array, 1, 1),
            lambda comm: comm.sendrecv(np.ones(1), 0, 0),
        ),
    ],
    ids=["send", "irecv", "sendrecv", "array", "arrays"],
)
@pytest.mark.ranks(2)
def test_repeated_messages_are_not_mistaken_for_those_that_wait_until_after_backward(
    comm, give, take
):
    """A rank that sends ahead, the next batch say: its message has left before what backward
    repeats.
    """

    def talk(x):
        if comm.rank:
            return take(comm) * x
        give(comm, x * x)
        return x * 1

    found = []
    for forget in (lambda f, x: f(x), lambda f, x: F.forget(f, x, comm=comm)):
        x = Variable(np.array([comm.rank + 2.0]))
        y = forget(talk, x)
        if comm.is_root:
            comm.send(np.array([50.0]), 1)
            comm.send(np.array([60.0]), 1, 3)
        F.sum(y**2).backward()
        found.append([x.grad, *[comm.recv(0, tag) if comm.rank else x.array for tag in (0, 3)]])
    np.testing.assert_array_equal(*found)
