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


def corrected(p, gs, lr=0.1, mu=0.8):
    v = 0 * p
    for g in gs:
        v = mu * v - g
        p = p + lr * v
    return p


def nesterov(p, gs, lr=0.1, mu=0.8):
    v = 0 * p
    for g in gs:
        v = mu * v - lr * g
        p = p + mu * v - lr * g
    return p


def adagrad(p, gs, lr=0.1, eps=1e-8):
    h = 0 * p
    for g in gs:
        h = h + g**2
        p = p - lr * g / (np.sqrt(h) + eps)
    return p


def adadelta(p, gs, rho=0.9, eps=1e-6):
    s, x = 0 * p, 0 * p
    for g in gs:
        s = rho * s + (1 - rho) * g**2
        d = np.sqrt((x + eps) / (s + eps)) * g
        x = rho * x + (1 - rho) * d**2
        p = p - d
    return p


def rmsprop(p, gs, lr=0.1, alpha=0.9, eps=1e-3, inside=False):
    s = 0 * p
    for g in gs:
        s = alpha * s + (1 - alpha) * g**2
        p = p - lr * g / (np.sqrt(s + eps) if inside else np.sqrt(s) + eps)
    return p


def graves(p, gs, lr=0.1, alpha=0.9, mu=0.8, eps=1e-4):
    n, m, d = 0 * p, 0 * p, 0 * p
    for g in gs:
        n, m = alpha * n + (1 - alpha) * g**2, alpha * m + (1 - alpha) * g
        d = mu * d - lr * g / np.sqrt(n - m**2 + eps)
        p = p + d
    return p


def smorms3(p, gs, lr=0.1, eps=1e-16):
    k, m, v = 0 * p + 1, 0 * p, 0 * p
    for g in gs:
        r = 1 / (k + 1)
        m, v = (1 - r) * m + r * g, (1 - r) * v + r * g**2
        x = m**2 / (v + eps)
        p = p - g * np.minimum(lr, x) / (np.sqrt(v) + eps)
        k = 1 + k * (1 - x)
    return p


def bound(p, gs, alpha=0.1, b1=0.9, b2=0.999, final=0.05, gamma=0.1, eps=1e-8, amsgrad=False):
    m, v, largest = 0 * p, 0 * p, 0 * p
    for t, g in enumerate(gs, 1):
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        largest = np.maximum(largest, v)
        rate = alpha * np.sqrt(1 - b2**t) / (1 - b1**t) / (np.sqrt(largest if amsgrad else v) + eps)
        p = p - np.clip(rate, final * (1 - 1 / (gamma * t + 1)), final * (1 + 1 / (gamma * t))) * m
    return p


def adamax(p, gs, alpha=0.1, b1=0.9, b2=0.99, eps=1e-8):
    m, u = 0 * p, 0 * p
    for t, g in enumerate(gs, 1):
        m, u = b1 * m + (1 - b1) * g, np.maximum(b2 * u, abs(g) + eps)
        p = p - alpha / (1 - b1**t) * m / u
    return p


def novograd(p, gs, lr=0.1, b1=0.9, b2=0.9, eps=1e-8, decay=0.01):
    m, v = 0 * p, None
    for g in gs:
        v = (g**2).sum() if v is None else b2 * v + (1 - b2) * (g**2).sum()
        m = b1 * m + g / (np.sqrt(v) + eps) + decay * p
        p = p - lr * m
    return p


def lamb(p, gs, alpha=0.1, b1=0.9, b2=0.99, eps=1e-6, decay=0.01):
    m, v = 0 * p, 0 * p
    for t, g in enumerate(gs, 1):
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        r = m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + eps) + decay * p
        p = p - alpha * np.sqrt((p**2).sum() / (r**2).sum()) * r
    return p


CASES = {
    "CorrectedMomentumSGD": (lambda: opt.CorrectedMomentumSGD(0.1, 0.8), corrected),
    "NesterovAG": (lambda: opt.NesterovAG(0.1, 0.8), nesterov),
    "AdaGrad": (lambda: opt.AdaGrad(0.1), adagrad),
    "AdaDelta": (lambda: opt.AdaDelta(0.9), adadelta),
    "RMSprop": (lambda: opt.RMSprop(0.1, 0.9, 1e-3), rmsprop),
    "RMSprop, inside": (lambda: opt.RMSprop(0.1, 0.9, 1e-3, True), lambda p, gs: rmsprop(p, gs, inside=True)),
    "RMSpropGraves": (lambda: opt.RMSpropGraves(0.1, 0.9, 0.8), graves),
    "SMORMS3": (lambda: opt.SMORMS3(0.1), smorms3),
    "AdamW": (lambda: opt.AdamW(0.1, weight_decay_rate=0.01), lambda p, gs: adam(p, gs, decay=0.01)),
    "AMSGrad": (lambda: opt.AMSGrad(0.1), lambda p, gs: adam(p, gs, amsgrad=True)),
    "AdaBound": (lambda: opt.AdaBound(0.1, final_lr=0.05, gamma=0.1), bound),
    "AMSBound": (lambda: opt.AMSBound(0.1, final_lr=0.05, gamma=0.1), lambda p, gs: bound(p, gs, amsgrad=True)),
    "AdaMax": (lambda: opt.AdaMax(0.1, 0.9, 0.99), adamax),
    "Novograd": (lambda: opt.Novograd(0.1, 0.9, 0.9, weight_decay_rate=0.01), novograd),
    "LAMB": (lambda: opt.LAMB(0.1, 0.9, 0.99, weight_decay_rate=0.01), lamb),
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
    np.testing.assert_allclose(link.p.array, closed(start, gs), rtol=1e-12, atol=1e-14)
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
