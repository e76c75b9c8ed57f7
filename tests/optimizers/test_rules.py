"""Update rules against their closed forms, and what an optimizer does around them."""

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
import mnpar.optimizers as opt

STEPS = 5


def sgd(p, gs, lr=0.1):
    for g in gs:
        p = p - lr * g
    return p


def momentum(p, gs, lr=0.1, mu=0.9):
    v = 0 * p
    for g in gs:
        v = mu * v - lr * g
        p = p + v
    return p


def adam(p, gs, alpha=0.1, b1=0.9, b2=0.999, eps=1e-8, eta=1.0, decay=0.0, amsgrad=False):
    m, v, largest = 0 * p, 0 * p, 0 * p
    for t, g in enumerate(gs, 1):
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g * g
        largest = np.maximum(largest, v)
        step = alpha * np.sqrt(1 - b2**t) / (1 - b1**t)
        p = p - eta * (step * m / (np.sqrt(largest if amsgrad else v) + eps) + decay * p)
    return p


CASES = {
    "SGD": (lambda: opt.SGD(0.1), sgd),
    "MomentumSGD": (lambda: opt.MomentumSGD(0.1, 0.9), momentum),
    "Adam": (lambda: opt.Adam(0.1), adam),
    "Adam, AMSGrad": (lambda: opt.Adam(0.1, amsgrad=True), lambda p, gs: adam(p, gs, amsgrad=True)),
    "Adam, decay and eta": (
        lambda: opt.Adam(0.1, eta=0.5, weight_decay_rate=0.01),
        lambda p, gs: adam(p, gs, eta=0.5, decay=0.01),
    ),
}


@pytest.mark.parametrize("shape", [(), (3,), (200, 170)], ids=str)
@pytest.mark.parametrize(("make", "closed"), CASES.values(), ids=CASES)
def test_five_steps_equal_the_closed_form(make, closed, shape):
    rng = np.random.default_rng(0)
    start, gs = rng.standard_normal(shape), [np.asarray(rng.standard_normal(shape)) for _ in range(STEPS)]
    link = mnpar.Link()
    link.p = mnpar.Parameter(np.array(start))
    array, optimizer = link.p.array, make().setup(link)
    for g in gs:
        link.p.grad = g.copy()
        optimizer.update()
    np.testing.assert_allclose(link.p.array, closed(start, gs), rtol=1e-12)
    assert link.p.array is array  # changed in place: it may be a view of something
    assert optimizer.t == STEPS


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("make", [make for make, _ in CASES.values()], ids=CASES)
def test_the_dtype_of_a_parameter_is_kept(make, dtype):
    link = mnpar.Link()
    link.p = mnpar.Parameter(np.ones((200, 100), dtype))
    link.p.grad = np.ones((200, 100), dtype)
    make().setup(link).update()
    assert link.p.dtype == dtype
    assert (link.p.array < 1).all()


def model_and(optimizer):
    model = L.Linear(2, 1, initialW=0)
    return model, optimizer.setup(model)


X = np.ones((1, 2), "f4")


def test_a_loss_is_differentiated_and_old_gradients_are_forgotten():
    model, optimizer = model_and(opt.SGD(1.0))
    for _ in range(2):
        optimizer.update(lambda: F.sum(model(X)))
    np.testing.assert_array_equal(model.W.array, [[-2.0, -2.0]])


def test_parameters_without_a_gradient_stay():
    model, optimizer = model_and(opt.SGD(1.0))
    model.unused = mnpar.Parameter(1.0, (2,))
    optimizer.update(lambda: F.sum(model(X)))
    np.testing.assert_array_equal(model.unused.array, [1.0, 1.0])


def test_the_loss_scale_is_divided_out_again():
    model, optimizer = model_and(opt.SGD(1.0))
    optimizer.set_loss_scale(1024.0)
    optimizer.update(lambda: F.sum(model(X)))
    np.testing.assert_array_equal(model.W.array, [[-1.0, -1.0]])


def test_updates_can_be_switched_off():
    model, optimizer = model_and(opt.SGD(1.0))
    model.disable_update()
    assert not model.update_enabled
    optimizer.update(lambda: F.sum(model(X)))
    assert not model.W.array.any()
    model.enable_update()
    optimizer.update(lambda: F.sum(model(X)))
    assert model.W.array.any()


def test_a_lazy_layer_and_one_that_is_added_later_are_learnt_too():
    model = mnpar.Sequential(L.Linear(None, 2))
    optimizer = opt.Adam().setup(model)
    optimizer.update(lambda: F.sum(model(X)))
    model.append(L.Linear(2, 1))
    before = model[1].W.array.copy()
    optimizer.update(lambda: F.sum(model(X)))
    assert (model[1].W.array != before).any()


def test_hooks_run_before_and_after_once_or_for_each_parameter():
    model, optimizer = model_and(opt.SGD(1.0))
    calls = []

    def each(rule, param):
        calls.append(param.name)

    each.call_for_each_param = True
    optimizer.add_hook(each)
    optimizer.add_hook(lambda optimizer: calls.append(("after", optimizer.t)), name="after", timing="post")
    optimizer.update(lambda: F.sum(model(X)))
    assert calls == ["W", "b", ("after", 1)]
    optimizer.remove_hook("after")
    with pytest.raises(KeyError, match="already"):
        optimizer.add_hook(each)
    with pytest.raises(ValueError, match="timing"):
        optimizer.add_hook(print, timing="sometimes")


def test_hyperparameters_of_the_optimizer_reach_its_rules_and_a_rule_may_have_its_own():
    model, optimizer = model_and(opt.SGD(1.0))
    optimizer.lr = 0.5
    model.b.update_rule.hyperparam.lr = 2.0
    optimizer.update(lambda: F.sum(model(X)))
    np.testing.assert_array_equal(model.W.array, [[-0.5, -0.5]])
    np.testing.assert_array_equal(model.b.array, [-2.0])


def test_an_optimizer_without_a_link_says_what_is_missing():
    with pytest.raises(RuntimeError, match=r"SGD: call setup\(link\) before update"):
        opt.SGD().update()
    with pytest.raises(TypeError, match="set up for a link"):
        opt.SGD().setup([])


@pytest.mark.ranks(2)
def test_a_rank_without_a_loss_takes_part_in_the_backward_of_the_others(comm):
    """Rank 0 has the data and the loss, rank 1 the layer between; it returns None, a delegate, or what pseudo_connect gives."""
    endings = [lambda phi: None, lambda phi: phi, lambda phi: F.pseudo_connect(phi)]
    for ending in endings:
        model, optimizer = model_and(opt.SGD(1.0))
        x = mnpar.Variable(X)

        def step(model=model, x=x, ending=ending):
            if comm.rank == 0:
                F.send(x, comm, 1)
                return F.sum(F.recv(comm, 1)) * 3
            return ending(F.send(model(F.recv(comm, 0)), comm, 0))

        optimizer.update(step)
        np.testing.assert_array_equal(model.W.array, [[-3.0, -3.0]] if comm.rank else [[0.0, 0.0]])
