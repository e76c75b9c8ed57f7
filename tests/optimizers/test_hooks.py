"""Hooks of optimizers against their formulas."""

import mnpar.optimizer_hooks as hooks
import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
import mnpar.optimizers as opt

RNG = np.random.default_rng(0)
P = RNG.standard_normal((3, 2))
Q = RNG.standard_normal(4)
GP = 3 * RNG.standard_normal((3, 2))
GQ = 3 * RNG.standard_normal(4)
NORM = np.sqrt((GP**2).sum() + (GQ**2).sum())


def model(dtype="f8"):
    link = mnpar.Link()
    link.p = mnpar.Parameter(P.astype(dtype))
    link.q = mnpar.Parameter(Q.astype(dtype))
    link.p.grad = GP.astype(dtype)
    link.q.grad = GQ.astype(dtype)
    link.unused = mnpar.Parameter(1.0, (2,))
    link.lazy = mnpar.Parameter()
    return link


CASES = {
    "WeightDecay": (hooks.WeightDecay(0.1), lambda p, g: g + 0.1 * p),
    "Lasso": (hooks.Lasso(0.1), lambda p, g: g + 0.1 * np.sign(p)),
    "GradientClipping above": (hooks.GradientClipping(0.5), lambda p, g: g * 0.5 / NORM),
    "GradientClipping below": (hooks.GradientClipping(1000), lambda p, g: g),
    "GradientHardClipping": (
        hooks.GradientHardClipping(-0.5, 1.0),
        lambda p, g: np.clip(g, -0.5, 1.0),
    ),
    "GradientNoise": (
        hooks.GradientNoise(
            0.3, lambda xp, shape, dtype, hook, rule: xp.full(shape, hook.eta + rule.t, dtype)
        ),
        lambda p, g: g + 0.3,
    ),
}
EACH = [name for name in CASES if not name.startswith("GradientClipping")]


@pytest.mark.parametrize(("hook", "formula"), CASES.values(), ids=CASES)
def test_gradients_change_by_the_formula_before_the_step(hook, formula):
    link = model()
    optimizer = opt.SGD(lr=0.1).setup(link)
    gradients = link.p.grad, link.q.grad
    optimizer.add_hook(hook)
    optimizer.update()
    np.testing.assert_allclose(link.p.array, P - 0.1 * formula(P, GP))
    np.testing.assert_allclose(link.q.array, Q - 0.1 * formula(Q, GQ))
    assert link.p.grad is gradients[0]  # in place: it may be a view of something
    assert link.q.grad is gradients[1]
    np.testing.assert_array_equal(link.unused.array, [1, 1])


@pytest.mark.parametrize(("hook", "formula"), CASES.values(), ids=CASES)
def test_the_dtype_of_gradients_is_kept(hook, formula):
    link = model("f4")
    optimizer = opt.SGD(lr=0.1).setup(link)
    optimizer.add_hook(hook)
    optimizer.update()
    assert link.p.grad.dtype == np.float32
    np.testing.assert_allclose(link.p.grad, formula(P, GP), rtol=1e-4)


@pytest.mark.parametrize("name", EACH)
def test_a_hook_of_one_parameter_changes_that_one_alone(name):
    hook, formula = CASES[name]
    link = model()
    opt.SGD(lr=0.1).setup(link)
    link.p.update_rule.t = -1  # the update about to run counts as t = 0
    link.p.update_rule.add_hook(hook)
    for p in link.params():
        p.update()
    np.testing.assert_allclose(link.p.array, P - 0.1 * formula(P, GP))
    np.testing.assert_allclose(link.q.array, Q - 0.1 * GQ)


@pytest.mark.parametrize("hook", [CASES[name][0] for name in EACH], ids=EACH)
def test_parameters_without_a_gradient_or_an_array_are_left_alone(hook):
    link = model()
    hook(None, link.unused)
    hook(None, link.lazy)
    assert link.unused.grad is None
    assert link.lazy.grad is None
    np.testing.assert_array_equal(link.unused.array, [1, 1])


KINDS = (
    hooks.WeightDecay,
    hooks.Lasso,
    hooks.GradientClipping,
    hooks.GradientHardClipping,
    hooks.GradientNoise,
)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_names_and_timing_are_chainers(kind):
    assert kind.name == kind.__name__
    assert kind.timing == "pre"
    assert getattr(kind, "call_for_each_param", False) == (kind is not hooks.GradientClipping)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_the_norm_does_not_overflow_in_small_floats(dtype):
    link = mnpar.Link()
    link.p = mnpar.Parameter(np.zeros(10000, dtype))
    # the square of the norm is 9 million, more than float16 can hold
    link.p.grad = np.full(10000, 30.0, dtype)
    hook = hooks.GradientClipping(300.0)
    hook(opt.SGD().setup(link))
    np.testing.assert_allclose(link.p.grad, np.full(10000, 3.0), rtol=1e-3)


@pytest.mark.parametrize("threshold", [0.0, 1.0])
def test_gradients_that_are_zero_or_absent_are_not_divided(threshold):
    link = mnpar.Link()
    link.p = mnpar.Parameter(np.ones(2))
    optimizer = opt.SGD().setup(link)
    optimizer.add_hook(hooks.GradientClipping(threshold))
    optimizer.update()
    link.p.grad = np.zeros(2)
    optimizer.update()
    np.testing.assert_array_equal(link.p.grad, [0, 0])


def test_hooks_see_gradients_without_the_loss_scale():
    link = model()
    optimizer = opt.SGD(lr=1.0).setup(link)
    optimizer.add_hook(hooks.WeightDecay(0.1))
    optimizer.add_hook(hooks.GradientClipping(1.0))
    optimizer.set_loss_scale(1024.0)
    optimizer.update(lambda: F.sum(link.p * GP) + F.sum(link.q * GQ))
    gp = GP + 0.1 * P
    gq = GQ + 0.1 * Q
    norm = np.sqrt((gp**2).sum() + (gq**2).sum())
    np.testing.assert_allclose(link.p.array, P - gp / norm)
    np.testing.assert_allclose(link.q.array, Q - gq / norm)


@pytest.mark.parametrize("t", [0, 9, 999])
def test_the_variance_of_noise_falls_with_time(t):
    link = mnpar.Link()
    link.p = mnpar.Parameter(np.zeros(20000))
    optimizer = opt.SGD(1.0).setup(link)
    link.p.grad, link.p.update_rule.t = np.zeros(20000), t
    optimizer.add_hook(hooks.GradientNoise(0.3))
    mnpar.random.seed(0)
    optimizer.update()
    expected = np.random.default_rng(0).normal(0, np.sqrt(0.3 / (1 + t) ** 0.55), 20000)
    np.testing.assert_allclose(link.p.grad, expected)
    np.testing.assert_allclose(link.p.array, -expected)


def noisy(comm, together, model, optimizer=None):
    """Two steps with noise of ranks that draw each its own numbers."""
    mnpar.random.seed([0, comm.rank])
    optimizer = (opt.SGD(0.1) if optimizer is None else optimizer).setup(model)
    optimizer.add_hook(hooks.GradientNoise(0.3, comm=comm if together else None))
    for _ in range(2):
        optimizer.update(lambda: F.sum(model(np.ones((2, 3), "f4")) ** 2))
    return model


@pytest.mark.ranks(1, 2, 3, on="threads")
def test_copies_get_the_same_noise_and_other_parameters_another(comm):
    wide = noisy(
        comm, True, L.ColumnParallelLinear(comm, 3, 2 * comm.size, gather_output=False, initialW=1)
    )
    row = noisy(comm, True, L.RowParallelLinear(comm, 3, 2, initialW=1))  # with a whole bias
    copy = noisy(comm, True, L.Linear(3, 2), mnpar.create_multi_node_optimizer(opt.SGD(0.1), comm))
    for same in (row.b, copy.W, copy.b):
        assert len({one.tobytes() for one in comm.allgather(same.array)}) == 1
    assert len({one.tobytes() for one in comm.allgather(row.W.array)}) == comm.size
    assert not np.isclose(row.b.array, copy.b.array).any()
    assert wide.W.array.std() > 0.01


@pytest.mark.ranks(2, on="threads")
def test_parameters_with_the_same_gradient_get_different_noise(comm):
    link = mnpar.Link()
    link.p = mnpar.Parameter(np.ones(3))
    link.q = mnpar.Parameter(np.zeros(3))
    optimizer = opt.SGD(1.0).setup(link)
    optimizer.add_hook(hooks.GradientNoise(0.3, comm=comm))
    optimizer.update(lambda: F.sum(link.p + link.q) * 0)
    assert not np.isclose(link.p.grad, link.q.grad).any()
    for param in (link.p, link.q):
        assert len({one.tobytes() for one in comm.allgather(param.array)}) == 1


@pytest.mark.ranks(2, on="threads")
def test_what_was_saved_goes_on_with_the_noise_that_it_had(comm):
    def begin(seed):
        mnpar.random.seed(seed)
        optimizer = opt.SGD(1.0).setup(mnpar.Link(w=3))
        optimizer.target.w.array[...] = 1
        optimizer.add_hook(hooks.GradientNoise(0.3, comm=comm))
        return optimizer

    def step(optimizer):
        optimizer.update(lambda: F.sum(optimizer.target.w))
        return optimizer.target.w.grad.tolist()

    first = begin(1)
    other = begin(2)
    saved = mnpar.serializers.DictionarySerializer()
    saved.save(first)
    mnpar.serializers.NpzDeserializer(saved.target).load(other)
    assert step(first) == step(other) != step(begin(2))


@pytest.mark.ranks(2, on="threads")
def test_noise_of_a_divided_parameter_alone_needs_its_ranks(comm):
    layer = L.RowParallelLinear(comm, 3, 2)
    optimizer = opt.SGD(0.1).setup(layer)
    layer.W.update_rule.add_hook(hooks.GradientNoise(0.3))
    with pytest.raises(
        ValueError, match=r"GradientNoise needs the whole parameter W \(2, 3\).*give it comm="
    ):
        optimizer.update(lambda: F.sum(layer(np.ones((2, 3), "f4"))))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: hooks.GradientClipping(-1), "norm of -1"),
        (
            lambda: hooks.GradientHardClipping(1, -1),
            r"\[1, -1\]: the bounds are the wrong way round",
        ),
        (lambda: hooks.GradientNoise(-0.1), "variance, not -0.1"),
    ],
    ids=["clipping", "hard clipping", "noise"],
)
def test_impossible_bounds_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_hook_is_removed_by_its_name():
    link = model()
    optimizer = opt.SGD(lr=0.1).setup(link)
    optimizer.add_hook(hooks.WeightDecay(0.1))
    optimizer.remove_hook("WeightDecay")
    optimizer.update()
    np.testing.assert_allclose(link.p.array, P - 0.1 * GP)


NORMS = {
    "clipping": (opt.SGD, hooks.GradientClipping(1.0)),
    "LARS": (opt.SGD, hooks.GradientLARS()),
    "LAMB": (opt.LAMB, None),
    "Novograd": (opt.Novograd, None),
    "LAMB with momentum": (lambda: opt.apply_momentum(opt.LAMB()), None),
}


@pytest.mark.parametrize(("make", "hook"), NORMS.values(), ids=NORMS)
@pytest.mark.parametrize("sharded", [None, False, True])
@pytest.mark.parametrize("ranks", [1, 2])
def test_norms_of_a_divided_parameter_need_the_ranks_of_its_parts(ranks, sharded, make, hook):
    """A rank alone would take the norm of its part for that of the whole, and shards add up the
    norm of that part.
    """

    class Layer(L.Linear):
        """It divides its weights, and tells nobody among whom."""

        def __init__(self, comm):
            super().__init__(3, 4 // comm.size)
            first, last = (4 // comm.size * (comm.rank + i) for i in (0, 1))
            self.W.whole, self.W.box = (4, 3), mnpar.plans.Box((first, 0), (last, 3))

    def program(comm):
        layer = Layer(comm)
        optimizer = make()
        if sharded is not None:
            optimizer = mnpar.create_multi_node_optimizer(
                optimizer, comm.split(comm.rank, 0), sharded=sharded
            )
        optimizer.setup(layer)
        if hook is not None:
            optimizer.add_hook(hook)
        optimizer.update(lambda: F.sum(layer(np.ones((2, 3), "f4"))))

    if ranks == 1:
        mnpar.run(program, ranks=1)
    else:
        with pytest.raises(
            ValueError,
            match=r"whole parameter W \(4, 3\), of which this rank has \(2, 3\): the ranks .* mesh",
        ):
            mnpar.run(program, ranks=2)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: hooks.WeightDecay(-1), r"WeightDecay: rate must be a number in \[0, inf\)"),
        (lambda: hooks.WeightDecay("0.1"), r"not the text '0.1': rate=float\('0.1'\)"),
        (lambda: hooks.Lasso(float("nan")), "Lasso: rate must be a number"),
        (lambda: hooks.GradientLARS(eps=-1), "GradientLARS: eps must be a number"),
        (lambda: hooks.GradientClipping(float("nan")), "clipped to a norm of nan"),
        (lambda: hooks.GradientHardClipping(float("nan"), 1), "wrong way round"),
        (lambda: hooks.GradientNoise(float("nan")), "eta is a variance, not nan"),
    ],
)
def test_a_number_that_makes_no_sense_is_told_at_once(make, told):
    with pytest.raises((ValueError, TypeError), match=told):
        make()
