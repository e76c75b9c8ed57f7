"""States in shards: the steps are those of whole states, by every rule, hook and scale; the memory
is a share.
"""

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar import optimizers as opt
from mnpar.errors import MismatchError
from mnpar.optimizers import hooks as hooks

pytestmark = pytest.mark.usefixtures("float64")

RANKS = pytest.mark.ranks(1, 2, 3, 4, on="threads")
CLASSES = [getattr(opt, name) for name in opt.__all__]
OPTIMIZERS = {
    c.__name__: c for c in CLASSES if isinstance(c, type) and issubclass(c, opt.GradientMethod)
}
del OPTIMIZERS["GradientMethod"]
# reads the parameter, and its norm
OPTIMIZERS["LAMB with momentum"] = lambda: opt.apply_momentum(opt.LAMB())
OPTIMIZERS["Adam with momentum"] = lambda: opt.apply_momentum(opt.Adam(), nesterov=True)
HOOKS = {
    "WeightDecay": lambda: hooks.WeightDecay(0.1),
    "Lasso": lambda: hooks.Lasso(0.1),
    "GradientClipping": lambda: hooks.GradientClipping(0.05),
    "GradientHardClipping": lambda: hooks.GradientHardClipping(-0.01, 0.01),
    "GradientLARS": lambda: hooks.GradientLARS(),
}


class Net(mnpar.Chain):
    def __init__(self):
        super().__init__()
        rng = np.random.default_rng(3)
        self.a, self.b = (
            L.Linear(i, o, initialW=rng.standard_normal((o, i))) for i, o in ((3, 5), (5, 2))
        )
        self.scale = mnpar.Parameter(np.ones(()))

    def forward(self, x):
        return self.b(F.tanh(self.a(x))) * self.scale

    def loss(self, x, t):
        return F.mean_squared_error(self(x), t)


def data(n=9, steps=4):
    rng = np.random.default_rng(0)
    return [(rng.standard_normal((n, 3)), rng.standard_normal((n, 2))) for _ in range(steps)]


def run(optimizer, comm=None, steps=4):
    for x, t in data(steps=steps):
        mine = (
            slice(None)
            if comm is None
            else slice(9 * comm.rank // comm.size, 9 * (comm.rank + 1) // comm.size)
        )
        optimizer.update(optimizer.target.loss, x[mine], t[mine])
    return optimizer


def sharded(comm, optimizer, **options):
    return mnpar.create_multi_node_optimizer(optimizer, comm, sharded=True, **options)


def same(one, other, rtol=1e-9):
    for (path, param), twin in zip(one.target.namedparams(), other.target.params(), strict=True):
        np.testing.assert_allclose(param.array, twin.array, rtol=rtol, atol=1e-12, err_msg=path)


@RANKS
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_every_rule_steps_as_with_whole_states(comm, make):
    same(run(sharded(comm, make()).setup(Net()), comm), run(make().setup(Net())))


@RANKS
@pytest.mark.parametrize("make", HOOKS.values(), ids=HOOKS)
def test_every_hook_sees_the_whole_by_its_norm(comm, make):
    twins = sharded(comm, opt.MomentumSGD(0.1)).setup(Net()), opt.MomentumSGD(0.1).setup(Net())
    for twin in twins:
        twin.add_hook(make())
    same(run(twins[0], comm), run(twins[1]))


@RANKS
def test_the_states_take_a_share_of_the_memory(comm):
    optimizer = run(sharded(comm, opt.Adam()).setup(Net()), comm)
    mine = sum(
        value.size
        for param in optimizer.target.params()
        for value in param.update_rule.state.values()
    )
    total = 2 * optimizer.target.count_params()
    assert comm.allreduce_obj(mine) == total
    assert mine <= 2 * -(-optimizer.target.count_params() // comm.size)


class Saved(mnpar.serializer.Serializer):
    def __init__(self, values=None, path=""):
        self.values, self.path = {} if values is None else values, path

    def __getitem__(self, key):
        return type(self)(self.values, f"{self.path}/{key}")

    def __call__(self, key, value):
        self.values[f"{self.path}/{key}"] = np.array(value)
        return value


class Loaded(Saved, mnpar.serializer.Deserializer):
    def __call__(self, key, value):
        found = self.values[f"{self.path}/{key}"]
        if isinstance(value, np.ndarray):
            value[...] = found
            return value
        return found


@RANKS
@pytest.mark.parametrize(
    "make", [opt.Adam, opt.Novograd, opt.LAMB, OPTIMIZERS["Adam with momentum"]]
)
def test_what_is_saved_is_whole_and_continues_on_any_number_of_ranks(comm, make):
    optimizer = run(sharded(comm, make()).setup(Net()), comm, steps=2)
    saved = Saved()
    optimizer.serialize(saved["o"])
    optimizer.target.serialize(saved["m"])
    serial = run(make().setup(Net()), steps=2)
    expected = Saved()
    serial.serialize(expected["o"])
    for key, value in expected.values.items():
        np.testing.assert_allclose(saved.values[key], value, rtol=1e-9, err_msg=key)
        assert saved.values[key].shape == value.shape
    for twin in (sharded(comm, make()), make()):
        twin.setup(Net())
        run(twin, comm if twin.sync else None, steps=1)
        loaded = Loaded(saved.values)
        twin.serialize(loaded["o"])
        twin.target.serialize(loaded["m"])
        run(twin, comm if twin.sync else None, steps=1)
        same(twin, _continued(make))


def _continued(make):
    optimizer = run(make().setup(Net()), steps=2)
    x, t = data(steps=1)[0]
    optimizer.update(optimizer.target.loss, x, t)
    return optimizer


@RANKS
def test_a_hook_after_the_step_sees_whole_parameters(comm):
    averages, twins = [], (sharded(comm, opt.Adam(0.1)), opt.Adam(0.1))
    for optimizer in twins:
        mean = [np.zeros(param.shape) for param in optimizer.setup(Net()).target.params()]

        def hook(optimizer, mean=mean):  # a moving average of weights that decay
            for average, param in zip(mean, optimizer.target.params(), strict=True):
                average += 0.5 * (param.array.reshape(average.shape) - average)
                param.array[...] *= 0.9

        optimizer.add_hook(hook, "average", timing="post")
        run(optimizer, comm if optimizer.sync else None)
        averages.append(mean)
    same(*twins)
    for one, other in zip(*averages, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9)


@RANKS
def test_a_rules_hook_after_the_step_sees_the_whole_parameter(comm):
    twins = sharded(comm, opt.Adam(0.1)), opt.Adam(0.1)
    for optimizer in twins:
        for param in optimizer.setup(Net()).target.params():
            param.update_rule.add_hook(
                lambda rule, p: np.divide(p.array, abs(p.array).max(), out=p.array), "norm", "post"
            )
        run(optimizer, comm if optimizer.sync else None)
    same(*twins)


@RANKS
def test_an_overflow_on_one_ranks_piece_keeps_all_from_stepping(comm):
    optimizer = sharded(comm, opt.SGD(0.1)).setup(Net())
    optimizer.loss_scaling(scale=4.0)
    run(optimizer, comm, steps=1)
    before = [p.array.copy() for p in optimizer.target.params()]
    for param in optimizer.target.params():
        param.grad = np.zeros(param.shape)
    optimizer.target.a.W.grad[0, 0] = np.inf  # in the first rank's piece
    optimizer.update()
    assert optimizer.t == 1
    for param, value in zip(optimizer.target.params(), before, strict=True):
        np.testing.assert_array_equal(param.array, value)


@RANKS
def test_float16_parameters_are_stepped_in_float32_pieces(comm):
    def made(optimizer):
        link = mnpar.Link()
        link.p = mnpar.Parameter(np.ones(7, "f2"))
        optimizer.use_fp32_update()
        return optimizer.setup(link)

    twins = made(sharded(comm, opt.SGD(1e-4))), made(opt.SGD(1e-4))
    for _ in range(50):
        for twin in twins:
            twin.update(lambda p: F.sum(p), twin.target.p)
    same(*twins, rtol=0)
    assert twins[0].target.p.array[0] < 0.996


@pytest.mark.ranks(2)
def test_processes_step_as_one(comm):
    same(run(sharded(comm, opt.Adam(0.01)).setup(Net()), comm), run(opt.Adam(0.01).setup(Net())))


@RANKS
def test_parameters_that_share_one_array_are_refused(comm):
    net = mnpar.Chain(a=L.Linear(2, 2))
    net.b = net.a.copy()
    optimizer = sharded(comm, opt.SGD()).setup(net)
    with pytest.raises(ValueError, match="share one array"):
        optimizer.update(lambda x: F.sum(net.b(net.a(x))), np.ones((1, 2)))


@RANKS
def test_links_may_come_and_go_while_states_are_in_pieces(comm):
    def train(comm):
        net = Net()
        net.spare = L.Linear(3, 4, initialW=1)
        optimizer = opt.Adam().setup(net)
        if comm is not None:
            sharded(comm, optimizer)
        run(optimizer, comm, 2)
        del net.spare
        run(optimizer, comm, 2)
        with net.init_scope():
            net.more = L.Linear(2, 2, initialW=1)
        return run(optimizer, comm, 2)

    same(train(comm), train(None))


@pytest.mark.usefixtures("both_matches")
@pytest.mark.parametrize("alike", [True, False], ids=["on all ranks", "on one rank"])
@pytest.mark.parametrize("by", ["hand", "another array"])
@pytest.mark.ranks(2, 3, on="threads")
def test_values_that_are_changed_between_steps_are_compared_at_once(comm, by, alike):
    """Whatever stretch they are in: a step makes them alike, and would spread one part of the
    change and lose the other.
    """
    optimizer = run(sharded(comm, opt.SGD(0.1), check=1000).setup(Net()), comm, steps=4)
    run(optimizer, comm, steps=1)
    weight = optimizer.target.a.W
    if alike or comm.rank == 1:
        if by == "hand":
            weight.array[...] = 7
        else:
            weight.array = np.full_like(weight.array, 7)
    if alike:
        run(optimizer, comm)
        assert len({param.tobytes() for param in comm.allgather(weight.array)}) == 1
    else:
        with pytest.raises(
            MismatchError,
            match=r"update 6: the values of /a/W are not the same on ranks \[0, 1\].*changed by "
            r"hand",
        ):
            run(optimizer, comm, steps=1)


@pytest.mark.usefixtures("debug_off")
@pytest.mark.ranks(2, on="threads")
def test_values_that_are_changed_alike_before_each_step_are_compared_seldom(comm):
    optimizer, compared = run(sharded(comm, opt.SGD(0.1), check=4).setup(Net()), comm), []
    replicas = optimizer.sync.replicas
    compare = replicas.compare

    def noted(records, model, t):
        compare(records, model, t)
        if replicas.compares(t):
            compared.append(t)

    replicas.compare = noted
    for _ in range(12):
        optimizer.target.a.W.array *= 0.9
        run(optimizer, comm, steps=1)
    # the 1st, 2nd, 4th, 8th and 12th change, and updates 4, 8, 12
    assert compared == [
        4,
        5,
        7,
        8,
        11,
        12,
        15,
    ]
