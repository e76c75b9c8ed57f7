"""What an optimizer does around its rules: losses of all forms, growing links, hooks, saving,
copying, errors.
"""

import copy
import pickle

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
import mnpar.optimizers as opt

X = np.ones((1, 2), "f4")


def model_and(optimizer):
    model = L.Linear(2, 1, initialW=0)
    return model, optimizer.setup(model)


def test_setup_returns_the_optimizer_and_gives_each_parameter_a_rule_of_its_own():
    optimizer = opt.MomentumSGD()
    model = L.Linear(None, 1)
    optimizer.t, optimizer.epoch = 5, 2
    assert optimizer.setup(model) is optimizer
    assert optimizer.target is model
    assert (optimizer.t, optimizer.epoch) == (0, 0)
    assert model.W.update_rule is not model.b.update_rule
    assert model.W.update_rule.hyperparam.parent is optimizer.hyperparam


def test_the_arguments_after_the_loss_function_are_its_own():
    model, optimizer = model_and(opt.SGD(1.0))
    optimizer.update(lambda x, factor: F.sum(model(x)) * factor, X, factor=3)
    np.testing.assert_array_equal(model.W.array, [[-3.0, -3.0]])


def test_without_a_loss_function_the_gradients_that_are_there_count():
    model, optimizer = model_and(opt.SGD(1.0))
    model.W.grad = np.array([[1.0, 2.0]], "f4")
    optimizer.update()
    np.testing.assert_array_equal(model.W.array, [[-1.0, -2.0]])
    assert model.W.grad is not None
    assert optimizer.t == 1


def test_the_loss_function_may_return_nothing():
    model, optimizer = model_and(opt.SGD(1.0))
    optimizer.update(lambda: F.sum(model(X)))
    model.W.grad = np.ones((1, 2), "f4")
    optimizer.update(lambda: None)
    np.testing.assert_array_equal(model.W.array, [[-1.0, -1.0]])  # the old gradient was forgotten
    assert optimizer.t == 2


@pytest.mark.parametrize("loss", [1.0, np.ones(()), (1, 2)], ids=["float", "array", "tuple"])
def test_what_is_no_loss_is_named(loss):
    _, optimizer = model_and(opt.SGD())
    with pytest.raises(
        TypeError,
        match=f"the loss function returned a {type(loss).__name__}: return a Variable, or None",
    ):
        optimizer.update(lambda: loss)


def test_a_loss_in_the_place_of_the_loss_function_is_told_what_to_write():
    model, optimizer = model_and(opt.SGD())
    with pytest.raises(
        TypeError,
        match=r"the function that returns the loss, .* not a Variable: update\(model, x, t\)",
    ):
        optimizer.update(F.sum(model(np.ones((1, 2), "f4"))))


def test_a_loss_of_several_elements_is_refused_and_nothing_changes():
    model, optimizer = model_and(opt.SGD(1.0))
    with pytest.raises(ValueError, match="needs its gradient"):
        optimizer.update(lambda: model(np.ones((3, 2), "f4")))
    assert not model.W.array.any()
    assert optimizer.t == 0


@pytest.mark.parametrize(("rank_of_loss", "scale"), [(0, None), (1, None), (0, 128.0)])
@pytest.mark.ranks(2)
def test_a_rank_may_return_what_send_or_pseudo_connect_returns(comm, rank_of_loss, scale):
    for ending in (
        lambda phi: phi,
        lambda phi: F.pseudo_connect(phi),
        lambda phi: F.pseudo_connect(phi, phi),
        lambda phi: None,
    ):
        model, optimizer = model_and(opt.SGD(1.0))
        optimizer.set_loss_scale(scale)
        x = mnpar.Variable(X)

        def step(model=model, x=x, ending=ending):
            if comm.rank != rank_of_loss:
                return ending(F.send(model(x), comm, rank_of_loss))
            return F.sum(F.recv(comm, 1 - rank_of_loss) + model(x)) * 3

        optimizer.update(step)
        np.testing.assert_array_equal(model.W.array, [[-3.0, -3.0]])


@pytest.mark.parametrize(
    "make", [lambda: opt.SGD(1.0), lambda: opt.MomentumSGD(1.0), lambda: opt.Adam(1.0)]
)
def test_a_parameter_without_a_gradient_is_not_updated_and_counts_no_step(make):
    model, optimizer = model_and(make())
    model.unused = mnpar.Parameter(1.0, (2,))
    optimizer.setup(model)
    optimizer.update(lambda: F.sum(model(X)))
    np.testing.assert_array_equal(model.unused.array, [1, 1])
    assert (model.unused.update_rule.t, model.W.update_rule.t) == (0, 1)
    assert not model.unused.update_rule.state


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_adams_first_step_is_alpha_however_small_the_gradient(dtype):
    link = mnpar.Link()
    link.p = mnpar.Parameter(np.ones(3, dtype))
    link.p.grad = np.array([1.0, 1e-3, -1e-3], dtype)  # 1e-3 squared is next to nothing in float16
    opt.Adam(0.25).setup(link).update()
    np.testing.assert_allclose(link.p.array, [0.75, 0.75, 1.25], rtol=2e-3)
    assert link.p.dtype == dtype


def test_the_state_of_small_floats_is_kept_in_larger_ones():
    link = mnpar.Link()
    link.p = mnpar.Parameter(np.zeros(1, "f2"))
    optimizer = opt.MomentumSGD(1e-4, 0.5).setup(link)
    for _ in range(2):
        link.p.grad = np.full(1, 1e-3, "f2")
        optimizer.update()
    g = float(np.float16(1e-3))  # the velocity, 1e-7, is hardly a float16
    np.testing.assert_allclose(link.p.update_rule.state["v"], [-1.5e-4 * g], rtol=1e-3)


def test_the_loss_scale_of_a_gradient_is_divided_out_once():
    model, optimizer = model_and(opt.SGD(1.0))
    optimizer.set_loss_scale(8.0)
    optimizer.update(lambda: F.sum(model(X)))
    np.testing.assert_array_equal(model.W.grad, [[1.0, 1.0]])
    optimizer.update()
    np.testing.assert_array_equal(model.W.array, [[-2.0, -2.0]])
    optimizer.set_loss_scale(None)
    optimizer.update(lambda: F.sum(model(X)))
    np.testing.assert_array_equal(model.W.array, [[-3.0, -3.0]])


def test_a_parameter_updated_by_itself_loses_its_loss_scale_too():
    model, _ = model_and(opt.SGD(1.0))
    F.sum(model(X)).backward(loss_scale=8.0)
    np.testing.assert_array_equal(model.W.grad, [[8.0, 8.0]])
    model.W.update()
    np.testing.assert_array_equal(model.W.array, [[-1.0, -1.0]])


def test_what_is_added_later_gets_its_rule_before_the_hooks_run():
    model = mnpar.Sequential(L.Linear(None, 2))
    optimizer = opt.SGD(1.0).setup(model)
    model.append(L.Linear(2, 1))
    rules = []

    def look(rule, param):
        rules.append(rule)

    look.call_for_each_param = True
    optimizer.add_hook(look)
    optimizer.update(lambda: F.sum(model(X)))
    assert len(rules) == 4
    assert all(isinstance(rule, opt.UpdateRule) for rule in rules)
    assert all(param.update_rule.t == 1 for param in model.params())


def test_disabled_parameters_stay_and_the_others_go_on():
    model, optimizer = model_and(opt.MomentumSGD(1.0))
    model.W.update_rule.enabled = False
    optimizer.update(lambda: F.sum(model(X)))
    assert not model.W.array.any()
    assert model.b.array.all()
    assert model.W.update_rule.t == 0


# hooks


def test_hooks_run_in_order_around_the_step():
    model, optimizer = model_and(opt.SGD(1.0))
    seen = []
    optimizer.add_hook(lambda o: seen.append(("post", o.t, model.W.array[0, 0])), "last", "post")
    optimizer.add_hook(lambda o: seen.append(("pre", o.t, model.W.array[0, 0])), "first")
    optimizer.add_hook(
        lambda o: seen.append(("pre too", o.t, model.W.array[0, 0])), "second", "pre"
    )
    optimizer.update(lambda: F.sum(model(X)))
    assert seen == [("pre", 0, 0.0), ("pre too", 0, 0.0), ("post", 1, -1.0)]


def test_a_hooks_own_name_and_timing_are_taken():
    class Hook:
        name, timing = "mine", "post"

        def __call__(self, optimizer):
            self.t = optimizer.t

    model, optimizer = model_and(opt.SGD(1.0))
    hook = Hook()
    optimizer.add_hook(hook)
    optimizer.update(lambda: F.sum(model(X)))
    assert hook.t == 1
    optimizer.remove_hook("mine")
    optimizer.update(lambda: F.sum(model(X)))
    assert hook.t == 1


def test_a_rules_hooks_run_around_the_update_of_its_parameter():
    model, optimizer = model_and(opt.SGD(1.0))
    seen = []
    model.W.update_rule.add_hook(lambda rule, p: seen.append(("pre", rule.t, p.array[0, 0])), "a")
    model.W.update_rule.add_hook(
        lambda rule, p: seen.append(("post", rule.t, p.array[0, 0])), "b", "post"
    )
    optimizer.update(lambda: F.sum(model(X)))
    assert seen == [("pre", 1, 0.0), ("post", 1, -1.0)]
    model.W.update_rule.remove_hook("a")
    optimizer.update(lambda: F.sum(model(X)))
    assert len(seen) == 3


def test_hooks_for_each_parameter_see_those_with_a_gradient():
    model, optimizer = model_and(opt.SGD(1.0))
    model.unused = mnpar.Parameter(1.0, (2,))
    names = []

    def each(rule, param):
        assert rule is param.update_rule
        names.append(param.name)

    each.call_for_each_param = True
    optimizer.add_hook(each, timing="post")
    optimizer.update(lambda: F.sum(model(X)))
    assert names == ["W", "b"]


@pytest.mark.parametrize(
    "owner", [lambda: opt.SGD(), lambda: opt.UpdateRule()], ids=["optimizer", "rule"]
)
def test_hooks_that_cannot_be_are_refused(owner):
    owner = owner()
    owner.add_hook(print, "name")
    with pytest.raises(KeyError, match="a hook named 'name' already"):
        owner.add_hook(repr, "name")
    with pytest.raises(TypeError, match="a hook is called: int cannot be"):
        owner.add_hook(3)
    with pytest.raises(ValueError, match="'pre', 'post' or 'auto', not 'late'"):
        owner.add_hook(repr, timing="late")
    with pytest.raises(KeyError):
        owner.remove_hook("missing")


# hyperparameters


def test_hyperparameters_are_inherited_until_they_are_set():
    general = opt.Hyperparameter()
    general.lr, general.decay = 0.1, 0.5
    own = opt.Hyperparameter(general)
    own.lr *= 10  # reads the inherited one
    assert (own.lr, own.decay, general.lr) == (1.0, 0.5, 0.1)
    assert own.get_dict() == {"lr": 1.0, "decay": 0.5}
    assert general.get_dict() == {"lr": 0.1, "decay": 0.5}
    assert repr(own) == "Hyperparameter(decay=0.5, lr=1.0)"
    assert repr(opt.MomentumSGD(0.5)) == "MomentumSGD(lr=0.5, momentum=0.9)"
    for read in (own.get, lambda name: getattr(own, name)):
        with pytest.raises(AttributeError, match="no hyperparameter 'momentum' was set"):
            read("momentum")


@pytest.mark.parametrize(
    "how",
    [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))],
    ids=["copy", "deep", "pickle"],
)
def test_hyperparameters_are_copied_with_what_they_inherit(how):
    general = opt.Hyperparameter()
    general.lr = 0.1
    assert how(opt.Hyperparameter(general)).lr == 0.1


ADAM = {
    "alpha": 1e-3,
    "beta1": 0.9,
    "beta2": 0.999,
    "eps": 1e-8,
    "eta": 1.0,
    "weight_decay_rate": 0.0,
    "amsgrad": False,
    "adabound": False,
    "final_lr": 0.1,
    "gamma": 1e-3,
}
DEFAULTS = {
    "SGD": {"lr": 0.01},
    "MomentumSGD": {"lr": 0.01, "momentum": 0.9},
    "Adam": ADAM,
    "AdamW": ADAM,
    "AMSGrad": {**ADAM, "amsgrad": True},
    "AdaBound": {**ADAM, "adabound": True},
    "AMSBound": {**ADAM, "adabound": True, "amsgrad": True},
    "CorrectedMomentumSGD": {"lr": 0.01, "momentum": 0.9},
    "NesterovAG": {"lr": 0.01, "momentum": 0.9},
    "AdaGrad": {"lr": 0.001, "eps": 1e-8, "eps_inside_sqrt": False},
    "AdaDelta": {"rho": 0.95, "eps": 1e-6},
    "RMSprop": {"lr": 0.01, "alpha": 0.99, "eps": 1e-8, "eps_inside_sqrt": False},
    "RMSpropGraves": {"lr": 1e-4, "alpha": 0.95, "momentum": 0.9, "eps": 1e-4},
    "SMORMS3": {"lr": 0.001, "eps": 1e-16},
    "MSVAG": {"lr": 0.1, "beta": 0.9, "eta": 1.0, "weight_decay_rate": 0.0},
    # Not in Chainer: the papers' and PyTorch's.
    "AdaMax": {"alpha": 2e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8},
    "Novograd": {"lr": 0.01, "beta1": 0.95, "beta2": 0.98, "eps": 1e-8, "weight_decay_rate": 0.0},
    "LAMB": {"alpha": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-6, "weight_decay_rate": 0.0},
}


@pytest.mark.parametrize(("name", "values"), DEFAULTS.items(), ids=DEFAULTS)
def test_the_defaults_are_chainers_and_can_be_set(name, values):
    optimizer = getattr(opt, name)()
    assert optimizer.hyperparam.get_dict() == values
    for key, value in values.items():
        assert getattr(optimizer, key) == value
        setattr(optimizer, key, 0.625)
        assert optimizer.hyperparam.get(key) == 0.625


def test_adams_step_size_has_the_bias_taken_out():
    model, optimizer = model_and(opt.Adam(0.1))
    for t in (1, 2, 3):
        optimizer.update(lambda: F.sum(model(X)))
        expected = 0.1 * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        np.testing.assert_allclose(
            [optimizer.alpha_t, optimizer.lr, model.W.update_rule.alpha_t], expected
        )
    with pytest.raises(AttributeError, match="the lr of Adam is computed, from alpha"):
        optimizer.lr = 0.01


# saving and copying


class Writer(mnpar.serializer.Serializer):
    def __init__(self, pages, path=""):
        self.pages, self.path = pages, path

    def __getitem__(self, key):
        return Writer(self.pages, f"{self.path}/{key.strip('/')}")

    def __call__(self, key, value):
        self.pages[f"{self.path}/{key}"] = copy.deepcopy(value)
        return value


class Reader(mnpar.serializer.Deserializer):
    def __init__(self, pages, path=""):
        self.pages, self.path = pages, path

    def __getitem__(self, key):
        return Reader(self.pages, f"{self.path}/{key.strip('/')}")

    def __call__(self, key, value):
        found = self.pages.get(f"{self.path}/{key}", value)
        if isinstance(value, np.ndarray) and found is not None:
            value[...] = found
            return value
        return copy.deepcopy(found)


def deep(lazy):
    return mnpar.Sequential(L.Linear(None if lazy else 2, 3), F.tanh, L.Linear(3, 1))


def steps(optimizer, n):
    model = optimizer.target
    for i in range(n):
        optimizer.update(lambda x: F.sum(model(x)), np.array([[i + 1.0, -1.0]], "f4"))


MAKERS = {name: getattr(opt, name) for name in DEFAULTS}


@pytest.mark.parametrize("lazy", [False, True], ids=["sized", "lazy"])
@pytest.mark.parametrize("optimizer_first", [False, True], ids=["model first", "optimizer first"])
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_training_goes_on_from_what_was_saved(make, optimizer_first, lazy):
    going = make().setup(deep(lazy))
    steps(going, 3)
    going.new_epoch()
    pages = {}
    Writer(pages, "/model").save(going.target)
    Writer(pages, "/optimizer").save(going)
    loaded = make().setup(deep(lazy))
    parts = [("/model", loaded.target), ("/optimizer", loaded)]
    for path, part in reversed(parts) if optimizer_first else parts:
        Reader(pages, path).load(part)
    assert (loaded.t, loaded.epoch) == (3, 1)
    steps(going, 2)
    steps(loaded, 2)
    for p, q in zip(going.target.params(), loaded.target.params(), strict=True):
        np.testing.assert_array_equal(p.array, q.array)
        assert p.update_rule.t == q.update_rule.t == 5


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_what_was_saved_before_the_first_step_starts_from_the_beginning(make):
    pages = {}
    fresh = make().setup(deep(True))
    loaded = make().setup(deep(True))
    Writer(pages).save(fresh)
    Reader(pages).load(loaded)
    loaded.target(X)
    fresh.target.copyparams(loaded.target)
    steps(fresh, 1)
    steps(loaded, 1)
    for p, q in zip(fresh.target.params(), loaded.target.params(), strict=True):
        np.testing.assert_array_equal(p.array, q.array)


@pytest.mark.parametrize(
    "other", [lambda: opt.SGD(0.25), lambda: opt.MomentumSGD(0.25)], ids=["SGD", "MomentumSGD"]
)
@pytest.mark.parametrize(
    "before", [lambda: opt.SGD(1), lambda: opt.CorrectedMomentumSGD(1)], ids=["SGD", "Corrected"]
)
def test_parameters_that_get_rules_of_another_optimizer_follow_these(before, other):
    model, optimizer = model_and(before())
    for second in (False, True):
        if second:
            model.W.array[...], model.b.array[...] = 0, 0
            state = {"v": np.zeros_like(model.W.array)}, {"v": np.zeros_like(model.b.array)}
            other().setup(model)
            for param, v in zip((model.W, model.b), state, strict=True):
                param.update_rule.state = v if isinstance(other(), opt.MomentumSGD) else {}
        for param in model.params():
            param.grad = np.ones_like(param.array)
        optimizer.update()
    np.testing.assert_array_equal(model.W.array, [[-0.25, -0.25]])


def test_an_epoch_is_counted():
    optimizer = opt.SGD()
    optimizer.new_epoch()
    optimizer.new_epoch()
    assert optimizer.epoch == 2


@pytest.mark.parametrize(
    "how", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"]
)
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_copied_optimizer_learns_on_its_own_copy_of_the_model(make, how):
    optimizer = make().setup(deep(False))
    steps(optimizer, 2)
    other = how(optimizer)
    before = [p.array.copy() for p in optimizer.target.params()]
    steps(other, 1)
    for p, old in zip(optimizer.target.params(), before, strict=True):
        np.testing.assert_array_equal(p.array, old)
    steps(optimizer, 1)
    for p, q in zip(optimizer.target.params(), other.target.params(), strict=True):
        assert p is not q
        np.testing.assert_array_equal(p.array, q.array)


def test_the_rules_of_a_copied_optimizer_listen_to_the_copy():
    model, optimizer = model_and(opt.SGD(1.0))
    other = copy.deepcopy(optimizer)
    other.lr = 0.5
    steps(other, 1)
    steps(optimizer, 1)
    np.testing.assert_array_equal(model.b.array, [-1.0])
    np.testing.assert_array_equal(other.target.b.array, [-0.5])


# errors


@pytest.mark.parametrize(
    "call",
    [lambda o: o.update(), lambda o: o.step(), lambda o: o.serialize(Writer({}))],
    ids=["update", "step", "serialize"],
)
def test_an_optimizer_without_a_link_says_what_is_missing(call):
    with pytest.raises(RuntimeError, match=r"Adam: call setup\(link\) before"):
        call(opt.Adam())


def test_a_link_is_no_hyperparameter():
    with pytest.raises(
        TypeError, match=r"alpha is a number, not Linear: an optimizer gets .* by setup\(model\)"
    ):
        opt.Adam(L.Linear(1, 1))


@pytest.mark.parametrize(
    "target", [[], None, mnpar.Parameter(1.0, (1,))], ids=["list", "None", "Parameter"]
)
def test_only_links_are_set_up(target):
    with pytest.raises(TypeError, match=f"set up for a link, not for {type(target).__name__}"):
        opt.SGD().setup(target)


@pytest.mark.parametrize("what", ["states", "scalars"])
def test_names_of_states_are_no_string(what):
    with pytest.raises(
        TypeError, match=rf"Rule.{what} is a tuple of names, \('velocity',\), not the string"
    ):
        type("Rule", (opt.UpdateRule,), {what: "velocity"})


def test_what_is_not_defined_is_named():
    class Half(opt.GradientMethod):
        pass

    with pytest.raises(TypeError, match="Half does not define rule"):
        Half().setup(L.Linear(1, 1))
    with pytest.raises(TypeError, match="Optimizer does not define update"):
        opt.Optimizer().update()
    p = mnpar.Parameter(np.ones(1))
    p.grad = np.ones(1)
    with pytest.raises(TypeError, match=r"UpdateRule does not define update_core\(self, param\)"):
        opt.UpdateRule().update(p)


def test_a_model_that_thread_ranks_share_is_told():
    net = L.Linear(2, 1)

    def program(comm, copied):
        model = copy.deepcopy(net) if copied else mnpar.Chain(inner=net)
        mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(), comm).setup(model)
        return mnpar.optimizers.SGD().setup(model).t

    with pytest.raises(
        RuntimeError,
        match=r"rank 1: this Linear is rank 0's too\. Thread ranks share .* make the model",
    ):
        mnpar.run(program, 2, (False,))
    assert mnpar.run(program, 2, (True,)) == [0, 0]
    assert mnpar.run(program, 1, (False,)) == [0]  # another program


@pytest.mark.parametrize("before", [0, 2])
def test_an_optimizer_that_thread_ranks_share_is_told(before):
    net = L.Linear(2, 1)
    optimizer = mnpar.optimizers.SGD().setup(net)

    def program(comm, copied):
        mine = copy.deepcopy(optimizer) if copied else optimizer
        for _ in range(2):
            mine.update(lambda: F.sum(mine.target(np.ones((1, 2), "f4"))))
        return mine.t

    for _ in range(before):
        optimizer.update(lambda: F.sum(net(np.ones((1, 2), "f4"))))
    assert mnpar.run(program, 1, (False,)) == [before + 2]
    with pytest.raises(
        RuntimeError,
        match=r"rank 1: this SGD is rank 0's too\. Thread ranks share .*, or take a copy",
    ):
        mnpar.run(program, 2, (False,))
    assert mnpar.run(program, 2, (True,)) == [before + 6] * 2
