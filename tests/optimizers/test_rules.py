"""Update rules against their closed forms, and what an optimizer does around them."""

import copy
import pickle
from types import SimpleNamespace

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
import mnpar.optimizers as opt

STEPS = 5

# Closed forms: parameter, gradients, and the hyperparameters at each step, under Chainer's names.


def sgd(p, gs, hs):
    for g, h in zip(gs, hs, strict=True):
        p = p - h.lr * g
    return p


def momentum(p, gs, hs):
    v = 0 * p
    for g, h in zip(gs, hs, strict=True):
        v = h.momentum * v - h.lr * g
        p = p + v
    return p


def corrected(p, gs, hs):
    v = 0 * p
    for g, h in zip(gs, hs, strict=True):
        v = h.momentum * v - g
        p = p + h.lr * v
    return p


def nesterov(p, gs, hs):
    v = 0 * p
    for g, h in zip(gs, hs, strict=True):
        p = p + h.momentum**2 * v - (1 + h.momentum) * h.lr * g
        v = h.momentum * v - h.lr * g
    return p


def adagrad(p, gs, hs):
    s = 0 * p
    for g, h in zip(gs, hs, strict=True):
        s = s + g**2
        p = p - h.lr * g / (np.sqrt(s + h.eps) if h.eps_inside_sqrt else np.sqrt(s) + h.eps)
    return p


def adadelta(p, gs, hs):
    s = 0 * p
    x = 0 * p
    for g, h in zip(gs, hs, strict=True):
        s = h.rho * s + (1 - h.rho) * g**2
        d = np.sqrt((x + h.eps) / (s + h.eps)) * g
        x = h.rho * x + (1 - h.rho) * d**2
        p = p - d
    return p


def rmsprop(p, gs, hs):
    s = 0 * p
    for g, h in zip(gs, hs, strict=True):
        s = h.alpha * s + (1 - h.alpha) * g**2
        p = p - h.lr * g / (np.sqrt(s + h.eps) if h.eps_inside_sqrt else np.sqrt(s) + h.eps)
    return p


def graves(p, gs, hs):
    n = 0 * p
    m = 0 * p
    d = 0 * p
    for g, h in zip(gs, hs, strict=True):
        n = h.alpha * n + (1 - h.alpha) * g**2
        m = h.alpha * m + (1 - h.alpha) * g
        d = h.momentum * d - h.lr * g / np.sqrt(n - m**2 + h.eps)
        p = p + d
    return p


def smorms3(p, gs, hs):
    k = 0 * p + 1
    m = 0 * p
    v = 0 * p
    for g, h in zip(gs, hs, strict=True):
        r = 1 / (k + 1)
        m = (1 - r) * m + r * g
        v = (1 - r) * v + r * g**2
        x = m**2 / (v + h.eps)
        p = p - g * np.minimum(h.lr, x) / (np.sqrt(v) + h.eps)
        k = 1 + k * (1 - x)
    return p


def adam(p, gs, hs):
    m = 0 * p
    v = 0 * p
    top = 0 * p
    for t, (g, h) in enumerate(zip(gs, hs, strict=True), 1):
        m = h.beta1 * m + (1 - h.beta1) * g
        v = h.beta2 * v + (1 - h.beta2) * g**2
        top = np.maximum(top, v)
        rate = (
            h.alpha
            * np.sqrt(1 - h.beta2**t)
            / (1 - h.beta1**t)
            / (np.sqrt(top if h.amsgrad else v) + h.eps)
        )
        if h.adabound:
            final = h.final_lr * h.alpha / hs[0].alpha
            rate = np.clip(
                rate, final * (1 - 1 / (h.gamma * t + 1)), final * (1 + 1 / (h.gamma * t))
            )
        p = p - h.eta * (rate * m + h.weight_decay_rate * p)
    return p


def adamax(p, gs, hs):
    m = 0 * p
    u = 0 * p
    for t, (g, h) in enumerate(zip(gs, hs, strict=True), 1):
        m = h.beta1 * m + (1 - h.beta1) * g
        u = np.maximum(h.beta2 * u, abs(g) + h.eps)
        p = p - h.alpha / (1 - h.beta1**t) * m / u
    return p


def novograd(p, gs, hs):
    m, v = 0 * p, None
    for g, h in zip(gs, hs, strict=True):
        v = (g**2).sum() if v is None else h.beta2 * v + (1 - h.beta2) * (g**2).sum()
        m = h.beta1 * m + g / (np.sqrt(v) + h.eps) + h.weight_decay_rate * p
        p = p - h.lr * m
    return p


def lamb(p, gs, hs):
    m = 0 * p
    v = 0 * p
    for t, (g, h) in enumerate(zip(gs, hs, strict=True), 1):
        m = h.beta1 * m + (1 - h.beta1) * g
        v = h.beta2 * v + (1 - h.beta2) * g**2
        r = m / (1 - h.beta1**t) / (np.sqrt(v / (1 - h.beta2**t)) + h.eps) + h.weight_decay_rate * p
        p = p - h.alpha * np.sqrt((p**2).sum() / (r**2).sum()) * r
    return p


def msvag(p, gs, hs):
    m = 0 * p
    v = 0 * p
    for t, (g, h) in enumerate(zip(gs, hs, strict=True), 1):
        b = h.beta
        m = b * m + (1 - b) * g
        v = b * v + (1 - b) * g**2
        # one gradient has no variance
        rho = (1 - b) * (1 + b**t) / ((1 + b) * (1 - b**t)) if t > 1 else 0
        mean = m / (1 - b**t)
        square = v / (1 - b**t)
        s = (square - mean**2) / (1 - rho)
        p = p - h.eta * (
            h.lr * mean * np.clip(mean**2 / (mean**2 + rho * s), 0, 1) + h.weight_decay_rate * p
        )
    return p


def applied(closed):
    """Momentum over a rule whose steps do not depend on the parameter: they are the differences of
    its path from 0.
    """

    def path(p, gs, hs):
        at = [closed(0 * p, gs[:t], hs[:t]) for t in range(len(gs) + 1)]
        v = 0 * p
        for before, after, h in zip(at, at[1:], hs, strict=False):
            v = h.momentum * v + (after - before)
            p = p + (h.momentum * v + (after - before) if h.nesterov else v)
        return p

    return path


# The optimizer, its closed form, and what its hyperparameters become before the fourth step.
CASES = {
    "SGD": (lambda: opt.SGD(0.1), sgd, {"lr": 0.02}),
    "MomentumSGD": (lambda: opt.MomentumSGD(0.1, 0.9), momentum, {"lr": 0.02, "momentum": 0.5}),
    "CorrectedMomentumSGD": (
        lambda: opt.CorrectedMomentumSGD(0.1, 0.8),
        corrected,
        {"lr": 0.02, "momentum": 0.5},
    ),
    "NesterovAG": (lambda: opt.NesterovAG(0.1, 0.8), nesterov, {"lr": 0.02}),
    "AdaGrad": (lambda: opt.AdaGrad(0.1), adagrad, {"lr": 0.02, "eps": 0.1}),
    "AdaGrad, inside": (lambda: opt.AdaGrad(0.1, 0.1, True), adagrad, {"eps_inside_sqrt": False}),
    "AdaDelta": (lambda: opt.AdaDelta(0.9), adadelta, {"rho": 0.8, "eps": 1e-2}),
    "RMSprop": (
        lambda: opt.RMSprop(0.1, 0.9, 1e-3),
        rmsprop,
        {"lr": 0.02, "alpha": 0.8, "eps": 0.1},
    ),
    "RMSprop, inside": (
        lambda: opt.RMSprop(0.1, 0.9, 0.1, True),
        rmsprop,
        {"eps_inside_sqrt": False},
    ),
    "RMSpropGraves": (
        lambda: opt.RMSpropGraves(0.1, 0.9, 0.8),
        graves,
        {"lr": 0.02, "alpha": 0.8, "momentum": 0.5, "eps": 0.1},
    ),
    "SMORMS3": (lambda: opt.SMORMS3(0.1), smorms3, {"lr": 0.02, "eps": 0.1}),
    "Adam": (lambda: opt.Adam(0.1), adam, {"alpha": 0.02, "beta1": 0.8, "beta2": 0.99, "eps": 0.1}),
    "Adam, decay and eta": (
        lambda: opt.Adam(0.1, eta=0.5, weight_decay_rate=0.01),
        adam,
        {"eta": 0.2, "weight_decay_rate": 0.1},
    ),
    "Adam, AMSGrad": (lambda: opt.Adam(0.1, beta2=0.9, amsgrad=True), adam, {"alpha": 0.02}),
    "AdamW": (
        lambda: opt.AdamW(0.1, weight_decay_rate=0.01),
        adam,
        {"alpha": 0.02, "weight_decay_rate": 0.0},
    ),
    "AMSGrad": (lambda: opt.AMSGrad(0.1, beta2=0.9), adam, {"alpha": 0.02}),
    "AdaBound": (
        lambda: opt.AdaBound(0.1, final_lr=0.05, gamma=0.1),
        adam,
        {"alpha": 0.02, "gamma": 0.5},
    ),
    "AMSBound": (
        lambda: opt.AMSBound(0.1, beta2=0.9, final_lr=0.05, gamma=0.1, eta=0.5),
        adam,
        {"final_lr": 0.1, "eta": 0.9},
    ),
    "AdaMax": (
        lambda: opt.AdaMax(0.1, 0.9, 0.99),
        adamax,
        {"alpha": 0.02, "beta1": 0.8, "beta2": 0.9, "eps": 0.1},
    ),
    "MSVAG": (
        lambda: opt.MSVAG(weight_decay_rate=0.01),
        msvag,
        {"lr": 0.02, "eta": 0.5, "weight_decay_rate": 0.0},
    ),
    "Novograd": (
        lambda: opt.Novograd(0.1, 0.9, 0.9, weight_decay_rate=0.01),
        novograd,
        {"lr": 0.02, "beta1": 0.8, "beta2": 0.8, "eps": 0.1, "weight_decay_rate": 0.0},
    ),
    "LAMB": (
        lambda: opt.LAMB(0.1, 0.9, 0.99, weight_decay_rate=0.01),
        lamb,
        {"alpha": 0.02, "beta1": 0.8, "beta2": 0.9, "eps": 0.1, "weight_decay_rate": 0.0},
    ),
}
CASES |= {
    f"{name}, momentum{' of Nesterov' * nesterov}": (
        lambda make=CASES[name][0], nesterov=nesterov: opt.apply_momentum(make(), 0.8, nesterov),
        applied(CASES[name][1]),
        {**CASES[name][2], "momentum": 0.5},
    )
    for name in ("SGD", "AdaGrad", "RMSprop", "AdaDelta", "Adam", "AdaMax")
    for nesterov in (False, True)
}
MAKERS = {name: make for name, (make, _, _) in CASES.items()}


def five_steps(optimizer, start, gs, changes=()):
    """The parameter after a step by each gradient, and the hyperparameters at each of them."""
    link, hs = mnpar.Link(), []
    link.p = mnpar.Parameter(start)
    optimizer.setup(link)
    array = link.p.array
    for t, g in enumerate(gs):
        for name in changes if t == 3 else ():
            setattr(optimizer, name, changes[name])
        link.p.grad = g.copy()
        optimizer.update()
        hs.append(SimpleNamespace(**optimizer.hyperparam.get_dict()))
    assert link.p.array is array  # changed in place: it is a view of a flat buffer
    return link.p, hs


def numbers(shape, dtype="d", order="C"):
    rng = np.random.default_rng(0)
    return [np.asarray(rng.standard_normal(shape), dtype, order=order) for _ in range(1 + STEPS)]


@pytest.mark.parametrize("shape", [(), (0,), (3,), (220, 150)], ids=str)
@pytest.mark.parametrize(("make", "closed", "changes"), CASES.values(), ids=CASES)
def test_five_steps_equal_the_closed_form_while_hyperparameters_change(
    make, closed, changes, shape
):
    start, *gs = numbers(shape)
    array = start.copy()
    optimizer = make()
    with np.errstate(invalid="ignore"):  # 0 / 0 in the closed form of an empty LAMB
        p, hs = five_steps(optimizer, array, gs, changes)
        expected = closed(start, gs, hs)
    np.testing.assert_allclose(p.array, expected, rtol=1e-12, atol=1e-14)
    assert optimizer.t == p.update_rule.t == STEPS
    assert hs[0] != hs[4]


@pytest.mark.grid
@pytest.mark.parametrize("shape", [(7,), (220, 150)], ids=str)
@pytest.mark.parametrize(
    ("dtype", "fp32", "atol"), [("f2", False, 1e-2), ("f2", True, 2e-3), ("f4", False, 1e-5)]
)
@pytest.mark.parametrize(("make", "closed", "changes"), CASES.values(), ids=CASES)
def test_five_steps_are_as_near_to_the_closed_form_as_the_dtype_allows(
    make, closed, changes, dtype, fp32, atol, shape
):
    start, *gs = numbers(shape, dtype)
    optimizer = make()
    optimizer.use_fp32_update(fp32)
    p, hs = five_steps(optimizer, start.copy(), gs, changes)
    wide = [x.astype("d") for x in (start, *gs)]
    np.testing.assert_allclose(p.array, closed(wide[0], wide[1:], hs), rtol=0, atol=atol)
    assert p.dtype == p.array.dtype == dtype
    # squares of float16 vanish
    assert all(value.dtype.itemsize >= 4 for value in p.update_rule.state.values())


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_the_order_in_memory_does_not_matter(make):
    (start, *gs), (ordered, *_) = numbers((220, 150)), numbers((220, 150), order="F")
    p, _ = five_steps(make(), ordered, gs)
    expected, _ = five_steps(make(), start, gs)
    np.testing.assert_allclose(p.array, expected.array, rtol=1e-12)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize(("twin", "nesterov"), [(opt.MomentumSGD, False), (opt.NesterovAG, True)])
def test_momentum_applied_to_sgd_is_momentum_sgd(twin, nesterov, dtype):
    """To the last bit where 64 bits hold what a parameter and a step need: small steps add up in
    the velocity.
    """
    start, *gs = numbers((220, 150), dtype)
    p, _ = five_steps(
        opt.apply_momentum(opt.SGD(0.001), 0.8, nesterov),
        start.copy(),
        gs,
        {"lr": 0.01, "momentum": 0.5},
    )
    expected, _ = five_steps(twin(0.001, 0.8), start.copy(), gs, {"lr": 0.01, "momentum": 0.5})
    rounding = 1e-15 * (dtype == "f8")
    np.testing.assert_allclose(p.array, expected.array, rtol=rounding, atol=rounding)
    np.testing.assert_allclose(
        p.update_rule.state["velocity"], expected.update_rule.state["v"], rtol=0, atol=rounding
    )


def test_momentum_is_applied_once_and_before_setup():
    for optimizer in (opt.MomentumSGD(), opt.RMSpropGraves(), opt.apply_momentum(opt.SGD())):
        with pytest.raises(
            ValueError, match=r"has momentum already \(0\.9\): set its attribute momentum"
        ):
            opt.apply_momentum(optimizer)
    with pytest.raises(
        RuntimeError, match=r"SGD was set up, .*: apply_momentum\(optimizer\)\.setup\(model\)"
    ):
        opt.apply_momentum(opt.SGD().setup(L.Linear(1, 1)))


@pytest.mark.parametrize(
    "again", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))], ids=["copy", "pickle"]
)
def test_an_optimizer_with_momentum_can_be_copied_and_pickled(again):
    model = L.Linear(2, 1, initialW=1)
    optimizer = opt.apply_momentum(opt.Adam(0.1), 0.5).setup(model)
    optimizer.update(lambda: F.sum(model.W**2))
    other = again(optimizer)
    assert (type(other), repr(other)) == (type(optimizer), repr(optimizer))
    for one in (optimizer, other):
        one.update(lambda W=one.target.W: F.sum(W**2))
    np.testing.assert_array_equal(other.target.W.array, model.W.array)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_zero_gradients_divide_nothing_by_zero(make):
    optimizer = make()
    if "weight_decay_rate" in optimizer.hyperparam.get_dict():
        optimizer.weight_decay_rate = 0.0
    p, _ = five_steps(optimizer, np.array([1.0, -2.0, 0.0]), [np.zeros(3)] * STEPS)
    np.testing.assert_array_equal(p.array, [1.0, -2.0, 0.0])


def test_a_rule_may_have_hyperparameters_of_its_own():
    start, *gs = numbers((3,))
    link = mnpar.Link()
    optimizer = opt.AdaGrad(0.1)
    link.p = mnpar.Parameter(start.copy())
    link.q = mnpar.Parameter(start.copy())
    optimizer.setup(link)
    link.q.update_rule.hyperparam.lr = 0.2
    for g in gs:
        link.p.grad = g.copy()
        link.q.grad = g.copy()
        optimizer.update()
    np.testing.assert_allclose(link.q.array - start, 2 * (link.p.array - start))


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
    optimizer.add_hook(
        lambda optimizer: calls.append(("after", optimizer.t)), name="after", timing="post"
    )
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
    """Rank 0 has the data and the loss, rank 1 the layer between; it returns None, a delegate, or
    what pseudo_connect gives.
    """
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


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("kind", [opt.SGD, opt.Adam])
def test_complex_parameters_are_refused_whose_gradients_do_not_lead_downhill(kind, several):
    link = mnpar.Link()
    link.z = mnpar.Parameter(np.array([1 + 1j]))
    if several:
        link.w = mnpar.Parameter(np.array([2j]))
    optimizer = kind().setup(link)
    with pytest.raises(TypeError, match=r" is complex128: .* re \+ 1j \* im"):
        optimizer.update(lambda: sum(F.sum(F.absolute(p)) for p in link.params()))
