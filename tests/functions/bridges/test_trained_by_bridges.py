"""Layers that JAX, numba or PyTorch compute, trained over ranks: copies, pipelines and ensembles
have the weights of mnpar's own layers in one process.

JAX starts threads, after which the pool of ranks cannot fork: ranks are threads here.
"""

import functools

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar.parallel import DistributedDataParallel, Pipeline

WIDTHS = (3, 4, 4, 2)
ROWS, STEPS = 5, 3


def drawn(number):
    """The weights of a layer of this number."""
    rng = np.random.default_rng(number)
    a, b = WIDTHS[number % 3 : number % 3 + 2]
    return 0.5 * rng.standard_normal((b, a)), 0.1 * rng.standard_normal(b)


class Layer(mnpar.Chain):
    """tanh(x W^T + b) by a function of these three."""

    def __init__(self, function, number):
        super().__init__()
        self.function = function
        weight, bias = drawn(number)
        self.W, self.b = mnpar.Parameter(weight), mnpar.Parameter(bias)

    def forward(self, x):
        return self.function(x, self.W, self.b)


@functools.cache  # it is compiled once for all tests
def by_numba():
    pytest.importorskip("numba", reason="numba is not installed")

    def forward(x, w, b):
        y = np.empty((len(x), len(w)))
        for i in range(len(x)):
            for j in range(len(w)):
                y[i, j] = np.tanh((x[i] * w[j]).sum() + b[j])
        return y

    def backward(x, w, b, gy):
        gx, gw, gb = np.zeros_like(x), np.zeros_like(w), np.zeros_like(b)
        for i in range(len(x)):
            for j in range(len(w)):
                slope = gy[i, j] * (1 - np.tanh((x[i] * w[j]).sum() + b[j]) ** 2)
                gx[i] += slope * w[j]
                gw[j] += slope * x[i]
                gb[j] += slope
        return gx, gw, gb

    function = F.from_numba(forward, backward)
    return lambda number: Layer(function, number)


@functools.cache  # it is compiled once for all tests
def by_jax():
    jnp = pytest.importorskip("jax.numpy", reason="JAX is not installed")
    function = F.from_jax(lambda x, w, b: jnp.tanh(x @ w.T + b))
    return lambda number: Layer(function, number)


def by_torch():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    function = F.from_torch(lambda x, w, b: torch.tanh(x @ w.T + b))
    return lambda number: Layer(function, number)


def by_torch_module():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")

    def layer(number):
        weight, bias = drawn(number)
        linear = torch.nn.Linear(weight.shape[1], len(weight), dtype=torch.float64)
        with torch.no_grad():
            linear.weight.copy_(torch.from_numpy(weight))
            linear.bias.copy_(torch.from_numpy(bias))
        return L.TorchModule(torch.nn.Sequential(linear, torch.nn.Tanh()))

    return layer


def own(number):
    return Layer(lambda x, w, b: F.tanh(F.linear(x, w, b)), number)


LIBRARIES = {
    "numba": by_numba,
    "jax": by_jax,
    "torch": by_torch,
    "torch module": by_torch_module,
}


@pytest.fixture(params=LIBRARIES)
def layer(request):
    """Make a layer of a number."""
    made = LIBRARIES[request.param]()
    if request.param == "jax":
        import jax

        before = jax.config.jax_enable_x64
        jax.config.update("jax_enable_x64", True)
        yield made
        jax.config.update("jax_enable_x64", before)
    else:
        yield made


def samples(rows=ROWS):
    rng = np.random.default_rng(9)
    return rng.standard_normal((rows, WIDTHS[0])), rng.standard_normal((rows, WIDTHS[-1]))


def share(comm, rows=ROWS):
    """Which rows a rank has: three on the first, two on the second, none on the third."""
    ends = {1: (0, rows), 2: (0, 3, rows), 3: (0, 3, rows, rows)}[comm.size]
    return slice(ends[comm.rank], ends[comm.rank + 1])


def arrays(link):
    return [param.array.copy() for param in link.params()]


def network(layer):
    return mnpar.Sequential(*[layer(number) for number in range(3)])


def alone(optimizer, model, x, t):
    """The weights, and last gradients, of the model that one process trains on all rows."""
    optimizer.setup(model)
    for _ in range(STEPS):
        optimizer.update(lambda: F.mean_squared_error(model(x), t))
    return arrays(model), [param.grad.copy() for param in model.params()]


def equal(found, wanted):
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)


OPTIONS = {
    "buckets": {"bucket_bytes": 64},
    "one message": {"bucket_bytes": None},
    "shards": {"sharded": True},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_copies_that_a_multi_node_optimizer_trains_are_one_models(layer, ranks, options):
    x, t = samples()
    wanted, _ = alone(mnpar.optimizers.Adam(0.1), network(own), x, t)

    def program(comm):
        model = network(layer)
        if comm.rank:  # at first all get rank 0's weights
            for param in model.params():
                param.array[...] = 7
        optimizer = mnpar.create_multi_node_optimizer(
            mnpar.optimizers.Adam(0.1), comm, check=1, **options
        ).setup(model)
        mine = share(comm)
        for _ in range(STEPS):
            optimizer.update(lambda x, t: F.mean_squared_error(model(x), t), x[mine], t[mine])
        return arrays(model), model(x).array

    answers = mnpar.run(program, ranks=ranks)
    twin = network(own)
    for param, array in zip(twin.params(), wanted, strict=True):
        param.array = array
    for weights, y in answers:
        equal(weights, wanted)
        equal([y], [twin(x).array])  # the library computes with the weights that were learnt


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_copies_under_distributed_data_parallel_are_one_models(layer, ranks):
    x, t = samples()
    wanted, gradients = alone(mnpar.optimizers.MomentumSGD(0.1), network(own), x, t)

    def program(comm):
        model = network(layer)
        net = DistributedDataParallel(model, comm, check=1, bucket_bytes=64)
        optimizer = mnpar.optimizers.MomentumSGD(0.1).setup(model)
        mine = share(comm)
        for _ in range(STEPS):
            model.cleargrads()
            y = net(x[mine])
            (F.mean_squared_error(y, t[mine]) if len(y) else F.sum(y)).backward()
            gs = [param.grad.copy() for param in model.params()]
            optimizer.update()
        return arrays(model), gs

    for weights, gs in mnpar.run(program, ranks=ranks):
        equal(weights, wanted)
        equal(gs, gradients)


SCHEDULES = {
    "gpipe": ("gpipe", {}),
    "1f1b": ("1f1b", {}),
    "recomputed": ("1f1b", {"recompute": True}),
    "abreast": ("1f1b", {"abreast": True}),
    "late weights": ("1f1b", {"late_weights": True}),
    "zero bubble": ("zb1p", {}),
}


class Last(mnpar.Chain):
    """A layer with the loss."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x, t):
        return F.mean_squared_error(self.layer(x), t)


@pytest.mark.parametrize(("schedule", "options"), SCHEDULES.values(), ids=SCHEDULES)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_stages_of_a_pipeline_have_the_weights_of_one_process(layer, ranks, schedule, options):
    x, t = samples(7)
    wanted, _ = alone(mnpar.optimizers.MomentumSGD(0.1), network(own), x, t)

    def program(comm):
        layers = [layer(number) for number in range(3)]
        ends = {1: (0, 3), 2: (0, 2, 3), 3: (0, 1, 2, 3)}[comm.size]
        mine = layers[ends[comm.rank] : ends[comm.rank + 1]]
        if comm.rank == comm.size - 1:
            mine[-1] = Last(mine[-1])

        def run(*args):
            first, *more = args[: 1 + (comm.rank == comm.size - 1)]
            for one in mine[:-1]:
                first = one(first)
            return mine[-1](first, *more)

        class Stage(mnpar.ChainList):
            def forward(self, *args):
                return run(*args)

        pipeline = Pipeline(comm, Stage(*mine), schedule, 3, **options)
        optimizer = mnpar.optimizers.MomentumSGD(0.1).setup(pipeline)
        own_arguments = [x] * (comm.rank == 0) + [t] * (comm.rank == comm.size - 1)
        for _ in range(STEPS):
            optimizer.update(pipeline, *own_arguments)
        return arrays(pipeline)

    found = [array for stage in mnpar.run(program, ranks=ranks) for array in stage]
    equal(found, wanted)


def of_buffers(name, torch):
    """A module that reads or changes buffers whenever it is called."""
    generator = torch.Generator().manual_seed(0)
    linear = torch.nn.Linear(3, 3, dtype=torch.float64)
    with torch.no_grad():
        for tensor in linear.parameters():
            tensor.copy_(torch.randn(tensor.shape, generator=generator, dtype=torch.float64))
    if name == "batch norm":
        return torch.nn.Sequential(linear, torch.nn.BatchNorm1d(3, dtype=torch.float64))
    normed = torch.nn.utils.parametrizations.spectral_norm(linear)
    with torch.no_grad():
        for tensor in normed.buffers():
            tensor.copy_(torch.ones(3, dtype=torch.float64) / 3**0.5)
    return torch.nn.Sequential(normed, torch.nn.Dropout(0.3))


@pytest.mark.parametrize("name", ["batch norm", "spectral norm and dropout"])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_a_recomputed_module_computes_with_the_buffers_of_its_forward(schedule, name):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    rng = np.random.default_rng(3)
    x, t = rng.standard_normal((9, 3)), rng.standard_normal((9, 3))

    def program(comm, recompute):
        module = of_buffers(name, torch)
        with mnpar.random.using(np.random.default_rng(comm.rank)):
            link = L.TorchModule(module)
            stage = link if comm.rank == 0 else lambda h, t: F.mean_squared_error(link(h), t)
            pipeline = Pipeline(comm, stage, schedule, 3, recompute=recompute)
            pipeline([x, t][comm.rank]).backward()
        buffers = [tensor.numpy().copy() for tensor in module.buffers()]
        return [param.grad.copy() for param in link.params()] + buffers

    kept, again = [mnpar.run(program, 2, (recompute,)) for recompute in (False, True)]
    for one, other in zip(kept, again, strict=True):
        equal(other, one)


class Mean(mnpar.Chain):
    """The mean of its members' answers, in one process."""

    def __init__(self, members):
        super().__init__()
        self.members = mnpar.ChainList(*members)

    def forward(self, x):
        answers = [member(x) for member in self.members]
        return sum(answers[1:], answers[0]) / len(answers)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_members_of_an_ensemble_have_the_weights_of_one_process(layer, ranks):
    x, t = samples()

    def member(layer, i):
        return mnpar.Sequential(layer(3 * i), layer(3 * i + 1), layer(3 * i + 2))

    twin = Mean([member(own, i) for i in range(3)])
    wanted, _ = alone(mnpar.optimizers.SGD(0.5), twin, x, t)

    def program(comm):
        ensemble = mnpar.Ensemble(comm, lambda group, i: member(layer, i), groups=3)
        optimizer = mnpar.optimizers.SGD(0.5).setup(ensemble)
        for _ in range(STEPS):
            optimizer.update(lambda: F.mean_squared_error(ensemble(x), t))
        return arrays(ensemble), ensemble(x).array

    answers = mnpar.run(program, ranks=ranks)
    equal([array for weights, _ in answers for array in weights], wanted)
    for _, y in answers:
        equal([y], [twin(x).array])


def test_the_weights_of_the_best_member_are_computed_with_after_a_tournament(layer):
    """Values and optimizer states are loaded into the other members, and their next steps agree."""
    x, _ = samples()

    def program(comm):
        ensemble = mnpar.Ensemble(comm, lambda group, i: layer(3 * i))
        optimizer = mnpar.optimizers.MomentumSGD(0.1).setup(ensemble.member)
        target = np.ones((ROWS, WIDTHS[1]))

        def loss():
            return F.mean_squared_error(ensemble.member(x), target)

        optimizer.update(loss)
        ensemble.tournament(float(comm.rank), optimizer=optimizer)
        optimizer.update(loss)
        return arrays(ensemble.member), ensemble.member(x).array

    (first, y), (second, other) = mnpar.run(program, ranks=2)
    equal(first, second)
    equal([y], [other])
    twin = own(3)
    optimizer = mnpar.optimizers.MomentumSGD(0.1).setup(twin)
    for _ in range(2):
        optimizer.update(lambda: F.mean_squared_error(twin(x), np.ones((ROWS, WIDTHS[1]))))
    equal(first, arrays(twin))
