"""Parameters and gradients in one vector each: whatever a program does with them, the next step
finds them in their places.
"""

import copy
import io

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar.optimizers.flat_buffers import FlatBuffer, FlatBuffers

pytestmark = pytest.mark.usefixtures("float64")

LR = 0.5


class Net(mnpar.Chain):
    def __init__(self, size=3):
        super().__init__()
        self.a = L.Linear(size, 4, initialW=0.5)
        self.b = L.Linear(4, 2, initialW=0.25)

    def forward(self, x):
        return self.b(F.tanh(self.a(x)))


X = np.random.default_rng(0).standard_normal((5, 3))


def step(optimizer, x=X):
    optimizer.update(lambda: F.sum(optimizer.target(x) ** 2))


def expected_step(net, x=X):
    """What the parameters should become, from their values and gradients found by
    :func:`mnpar.grad`, away from all buffers.
    """
    params = list(net.params())
    grads = mnpar.grad([F.sum(net(x) ** 2)], params)
    return [p.array - LR * g.array for p, g in zip(params, grads, strict=True)]


def check_step(optimizer):
    expected = expected_step(optimizer.target)
    step(optimizer)
    for param, value in zip(optimizer.target.params(), expected, strict=True):
        np.testing.assert_allclose(param.array, value, rtol=1e-12)
    lies_in_order(optimizer)


def lies_in_order(optimizer):
    buffers = list(optimizer.buffers)
    inside = [param for buffer in buffers for param in buffer.params]
    assert [id(p) for p in inside] == [id(p) for p in optimizer.target.params()]
    for buffer in buffers:
        for param, place in zip(buffer.params, buffer.slices, strict=True):
            assert np.shares_memory(param.array, buffer.data[place]) or not param.array.size
            np.testing.assert_array_equal(param.array.ravel(), buffer.data[place])
            if param.grad is not None:
                assert np.shares_memory(param.grad, buffer.grad[place]) or not param.array.size


def made(net=None):
    return mnpar.optimizers.SGD(LR).setup(Net() if net is None else net)


def test_views_lie_in_the_order_of_definition():
    optimizer = made()
    (buffer,) = optimizer.buffers
    np.testing.assert_array_equal(
        buffer.data, np.concatenate([p.array.ravel() for p in optimizer.target.params()])
    )
    check_step(optimizer)


def test_parameters_that_appear_later_come_in():
    optimizer = made(Net(None))
    check_step(optimizer)
    check_step(optimizer)


def test_one_parameter_in_two_links_has_one_place():
    net = mnpar.Chain(a=L.Linear(3, 3, initialW=0.5), b=L.Linear(3, 3))
    net.b.W = net.a.W
    net.forward = lambda x: net.b(net.a(x))
    optimizer = made(net)
    check_step(optimizer)
    assert sum(buffer.data.size for buffer in optimizer.buffers) == 9 + 3 + 3


def test_two_parameters_of_one_array_keep_sharing_it():
    net = mnpar.Chain(a=L.Linear(3, 3, initialW=0.5))
    net.b = net.a.copy()
    net.forward = lambda x: net.b(net.a(x))
    optimizer = made(net)
    gs = mnpar.grad([F.sum(net(X) ** 2)], [net.a.W, net.b.W])
    before = net.a.W.array.copy()
    for _ in range(2):
        assert net.b.W.array is net.a.W.array
    step(optimizer)
    assert net.b.W.array is net.a.W.array
    np.testing.assert_allclose(net.a.W.array, before - LR * (gs[0].array + gs[1].array), rtol=1e-12)


@pytest.mark.parametrize("when", ["before setup", "after setup"])
def test_a_copy_that_shares_arrays_goes_on_sharing_them(when):
    net = Net()
    shared = net.copy() if when == "before setup" else None
    optimizer = made(net)
    shared = shared or net.copy()
    check_step(optimizer)
    net.c = L.Linear(1, 1, nobias=True)  # all move to a larger buffer
    net.forward = lambda x: net.b(net.a(x)) + F.sum(net.c.W)
    check_step(optimizer)
    for param, other in zip(shared.params(), net.params(), strict=False):
        assert other.array is param.array


@pytest.mark.parametrize("mode", ["copy", "init"])
def test_a_copy_of_its_own_is_untouched_by_steps(mode):
    optimizer = made()
    other = optimizer.target.copy(mode)
    values = [p.array.copy() for p in other.params()]
    check_step(optimizer)
    for param, value in zip(other.params(), values, strict=True):
        np.testing.assert_array_equal(param.array, value)
        assert param.node.grad_slot is None
    check_step(made(other))


def test_a_deep_copy_of_the_optimizer_goes_on_alone():
    optimizer = made()
    step(optimizer)
    twin = copy.deepcopy(optimizer)
    values = [p.array.copy() for p in optimizer.target.params()]
    check_step(twin)
    for param, value in zip(optimizer.target.params(), values, strict=True):
        np.testing.assert_array_equal(param.array, value)


def test_links_come_and_go():
    optimizer = made()
    net = optimizer.target
    step(optimizer)
    net.c = L.Linear(2, 2, initialW=1)
    net.forward = lambda x: net.c(net.b(net.a(x)))
    check_step(optimizer)
    del net.a
    net.forward = lambda x: net.c(net.b(F.sum(x, axis=1, keepdims=True) * np.ones((1, 4))))
    check_step(optimizer)


def test_an_assigned_array_counts():
    optimizer = made()
    step(optimizer)
    optimizer.target.a.W.array = np.full((4, 3), 0.125)
    check_step(optimizer)


def test_a_parameter_of_another_shape_counts():
    optimizer = made()
    step(optimizer)
    optimizer.target.a.W.initialize((4, 2))
    expected = expected_step(optimizer.target, X[:, :2])
    step(optimizer, X[:, :2])
    np.testing.assert_allclose(optimizer.target.a.W.array, expected[0])


def test_an_assigned_gradient_counts():
    optimizer = made()
    step(optimizer)
    values = [p.array.copy() for p in optimizer.target.params()]
    for param in optimizer.target.params():
        param.grad = np.full(param.shape, 2.0)
    optimizer.update()
    for param, value in zip(optimizer.target.params(), values, strict=True):
        np.testing.assert_allclose(param.array, value - LR * 2)


def test_a_gradient_of_a_recorded_backward_counts():
    optimizer = made()
    net = optimizer.target
    for _ in range(2):
        expected = expected_step(net)
        net.cleargrads()
        F.sum(net(X) ** 2).backward(enable_double_backprop=True)
        optimizer.update()
        for param, value in zip(net.params(), expected, strict=True):
            np.testing.assert_allclose(param.array, value, rtol=1e-12)


def test_backward_adds_to_the_gradient_that_is_there():
    optimizer = made()
    net = optimizer.target
    step(optimizer)
    net.cleargrads()
    for _ in range(3):
        F.sum(net(X)).backward()
    for param, g in zip(net.params(), mnpar.grad([F.sum(net(X))], list(net.params())), strict=True):
        np.testing.assert_allclose(param.grad, 3 * g.array, rtol=1e-12)


def test_asking_for_gradients_leaves_those_of_the_parameters_alone():
    optimizer = made()
    net = optimizer.target
    step(optimizer)
    before = [p.grad.copy() for p in net.params()]
    net.cleargrads()
    asked = mnpar.grad([F.sum(net(X))], [net.a.W, net.b.W])
    kept = [g.array.copy() for g in asked]
    F.sum(3 * net(X)).backward()
    for g, value in zip(asked, kept, strict=True):
        np.testing.assert_array_equal(g.array, value)
    assert len(before) == 4


def test_gradients_that_were_asked_for_do_not_change_in_later_steps():
    model = L.Linear(100, 90)
    optimizer = mnpar.optimizers.SGD().setup(model)
    x = np.ones((2, 100), "f4")
    for asked in ([model.W, model.b], [model.W]):
        model.cleargrads()
        found = mnpar.grad([F.sum(model(x))], asked)
        before = [g.array.copy() for g in found]
        optimizer.update(lambda: F.sum(model(3 * x)))
        assert [(g.array == values).all() for g, values in zip(found, before, strict=True)] == [
            True
        ] * len(asked)


def test_loaded_values_count():
    optimizer = made()
    step(optimizer)
    file = io.BytesIO()
    np.savez(file, **{path: 2 * p.array for path, p in optimizer.target.namedparams()})
    file.seek(0)
    with np.load(file) as loaded:
        for path, param in optimizer.target.namedparams():
            param.array[...] = loaded[path]
    check_step(optimizer)


def test_a_parameter_that_is_initialized_again_counts():
    optimizer = made()
    step(optimizer)
    optimizer.target.a.W.initialize((4, 3))
    check_step(optimizer)


def test_a_step_after_moving_to_the_host_finds_its_places():
    optimizer = made()
    step(optimizer)
    optimizer.target.to_device("@numpy")
    check_step(optimizer)


@pytest.mark.parametrize("shape", [(), (0,), (2, 0), (1,)], ids=str)
def test_scalars_and_empty_parameters_have_places(shape):
    link = mnpar.Link()
    link.p = mnpar.Parameter(np.ones(shape))
    link.q = mnpar.Parameter(np.ones(2))
    optimizer = made(link)
    optimizer.update(lambda: F.sum(link.p * 3) + F.sum(link.q))
    np.testing.assert_array_equal(link.p.array, np.full(shape, 1 - LR * 3))
    np.testing.assert_array_equal(link.q.array, 1 - LR)


def test_dtypes_have_arenas_of_their_own():
    link = mnpar.Link()
    link.p, link.q, link.r = (mnpar.Parameter(np.ones(2, dtype)) for dtype in ("f4", "f8", "f4"))
    buffers = FlatBuffers().gather(link.params())
    assert [(buffer.data.dtype.str, buffer.data.size) for buffer in buffers] == [
        ("<f4", 4),
        ("<f8", 2),
    ]


def test_the_gradient_of_a_matrix_is_computed_in_its_place():
    """Not copied there: a product as large as the parameter would be made, and freed, in each
    step.
    """
    link = L.Linear(3, 2, nobias=True)
    buffer = FlatBuffer(list(link.params()))
    seen = []
    link.W.register_hook(lambda g: seen.append(np.shares_memory(g, buffer.grad)))
    F.sum(link(X)).backward()
    link.cleargrads()
    F.sum(link(X) + link(X)).backward()  # the second product is added to the first, there
    assert seen == [True, True]
    np.testing.assert_allclose(link.W.grad, 2 * np.ones((2, 1)) * X.sum(axis=0))


ELEMENTWISE = [
    make
    for name in mnpar.optimizers.__all__
    if isinstance(make := getattr(mnpar.optimizers, name), type)
    and issubclass(make, mnpar.GradientMethod)
    and name not in ("GradientMethod", "LAMB", "Novograd")
]


def with_momentum():
    return mnpar.optimizers.apply_momentum(mnpar.optimizers.Adam(), nesterov=True)


@pytest.mark.parametrize("make", [*ELEMENTWISE, with_momentum], ids=lambda make: make.__name__)
def test_a_whole_arena_is_updated_as_each_parameter_would_be(make):
    """A hook that does nothing on one of the rules keeps the twin's parameters from being updated
    together.
    """
    together = make().setup(Net())
    each = make().setup(Net())
    each.target.a.W.update_rule.add_hook(lambda rule, param: None, "nothing")
    for _ in range(4):
        for optimizer in (together, each):
            step(optimizer)
    (one,), (other,) = together.buffers, each.buffers
    assert one.fused_update is not None
    assert other.fused_update is None
    for param, twin in zip(together.target.params(), each.target.params(), strict=True):
        np.testing.assert_array_equal(param.array, twin.array)
        assert param.update_rule.t == twin.update_rule.t == 4
        for name, value in twin.update_rule.state.items():
            np.testing.assert_array_equal(param.update_rule.state[name], value)
            assert param.update_rule.state[name].shape == value.shape


CHANGES = {
    "a hyperparameter of its own": lambda o: setattr(
        o.target.b.W.update_rule.hyperparam, "alpha", 0.5
    ),
    "not to be updated": lambda o: o.target.b.disable_update(),
    "a state that was replaced": lambda o: o.target.a.W.update_rule.state.update(
        m=np.full((4, 3), 0.25)
    ),
    "a state that was lost": lambda o: o.target.a.W.update_rule.state.clear(),
    "a rule that was replaced": lambda o: setattr(
        o.target.a.b, "update_rule", mnpar.optimizers.SGD(0.1).create_update_rule()
    ),
    "a link that was added": lambda o: setattr(o.target, "c", L.Linear(2, 2, initialW=1)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_changes_between_steps_counts_as_if_each_were_updated_alone(change):
    twins = [mnpar.optimizers.Adam(0.1).setup(Net()) for _ in range(2)]
    twins[1].target.a.W.update_rule.add_hook(lambda rule, param: None, "nothing")
    for t in range(5):
        for optimizer in twins:
            if t in (2, 4):
                change(optimizer)
            step(optimizer)
    for param, twin in zip(*[optimizer.target.params() for optimizer in twins], strict=True):
        np.testing.assert_allclose(param.array, twin.array, rtol=1e-13)


class Again(mnpar.FunctionNode):
    """A user's own recomputation: its backward runs a layer again, and goes back through it."""

    def __init__(self, layer, how):
        self.layer, self.how = layer, how

    def forward(self, x):
        self.retain_inputs((0,))
        with mnpar.no_backprop_mode():
            return F.tanh(self.layer(x)).array

    def backward(self, gy):
        inner = mnpar.Variable(self.get_retained_inputs()[0].array.copy())
        with mnpar.Tape(), mnpar.force_backprop_mode():
            y = F.tanh(self.layer(inner))
            if self.how == "backward":
                mnpar.backward([y], [gy])
            else:
                inner.grad_var, *_ = mnpar.grad([y], [inner, self.layer.W], [gy])
        return mnpar.Variable(inner.grad)


@pytest.mark.filterwarnings("ignore:the parameters W .* no optimizer updates them")  # the twin's
@pytest.mark.parametrize("how", ["backward", "grad"])
def test_a_backward_inside_a_backward_leaves_alone_what_that_one_computes(how):
    """The layer's gradient is being computed in its slot when the inner one needs an array for its
    own.
    """
    layer = L.Linear(3, 3, initialW=np.random.default_rng(1).standard_normal((3, 3)))
    twin = copy.deepcopy(layer)
    optimizer = mnpar.optimizers.SGD(0.0).setup(layer)
    for _ in range(3):
        for one in (layer, twin):
            one.cleargrads()
            (h,) = Again(one, how).apply((one(X),))
            F.sum(one(h) ** 2).backward()
        np.testing.assert_allclose(layer.W.grad, twin.W.grad, rtol=1e-12)
        np.testing.assert_allclose(layer.b.grad, twin.b.grad, rtol=1e-12)
        optimizer.update()


def test_a_backward_that_fails_leaves_the_next_one_right():
    """It fails when some gradients were computed already, in their slots."""
    optimizer = mnpar.optimizers.SGD(0.0).setup(Net())

    class Fails(mnpar.FunctionNode):
        def forward(self, x):
            return x.copy()

        def backward(self, gy):
            raise OSError("lost")

    for fails in (False, True, False, False):
        net = optimizer.target
        net.cleargrads()
        h = F.tanh(net.a(X))
        if fails:
            with pytest.raises(OSError, match="lost"):
                F.sum(net.b(Fails().apply((h,))[0])).backward()
            continue
        gs = [g.array for g in mnpar.grad([F.sum(net(X) ** 2)], list(net.params()))]
        F.sum(net(X) ** 2).backward()
        for param, g in zip(net.params(), gs, strict=True):
            np.testing.assert_allclose(param.grad, g, rtol=1e-12)
        optimizer.update()


def test_a_weight_that_is_used_often_has_its_gradients_added_up_at_home():
    layer = L.Linear(3, 3)
    optimizer = mnpar.optimizers.SGD(0.0).setup(layer)
    for _ in range(2):
        layer.cleargrads()
        F.sum(layer(layer(layer(X)))).backward()
        (buffer,) = optimizer.buffers.gather(list(layer.params()))
        assert buffer.is_filled()
        optimizer.update()


@pytest.mark.parametrize("place", [None, slice(2, 5)], ids=["whole", "a stretch"])
def test_a_step_that_is_interrupted_leaves_the_next_one_right(place, monkeypatch):
    optimizer = mnpar.optimizers.Adam(0.1).setup(Net())
    step(optimizer)
    (buffer,), twin = optimizer.buffers, copy.deepcopy(optimizer)
    rule = type(buffer.fused_update.rule)

    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(rule, "update_core", interrupted)
    with pytest.raises(KeyboardInterrupt):
        buffer.fused_update.step(place)
    monkeypatch.undo()
    for one in (optimizer, twin):
        step(one)
    for param, other in zip(optimizer.target.params(), twin.target.params(), strict=True):
        np.testing.assert_array_equal(param.array, other.array)
