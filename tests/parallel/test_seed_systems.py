"""Synkhronos' update rules over ranks (S6), pathway2ai's wrappers (X3, X4), flashlight's
all-reduces and barrier (F1, F4).
"""

import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L

RULES = {
    "sgd": lambda: mnpar.optimizers.SGD(0.1),
    "momentum": lambda: mnpar.optimizers.MomentumSGD(0.1),
    "nesterov": lambda: mnpar.optimizers.NesterovAG(0.1),
    "adagrad": lambda: mnpar.optimizers.AdaGrad(0.1, 1e-6, eps_inside_sqrt=True),
    "rmsprop": lambda: mnpar.optimizers.RMSprop(0.01, 0.9, 1e-6, eps_inside_sqrt=True),
    "adadelta": lambda: mnpar.optimizers.AdaDelta(0.95, 1e-6),
    "adam": lambda: mnpar.optimizers.Adam(1e-3),
    "adamax": lambda: mnpar.optimizers.AdaMax(2e-3),
}
RULES |= {  # those that have no momentum of their own
    f"{name}, apply_{kind}": lambda make=RULES[name], kind=kind: mnpar.optimizers.apply_momentum(
        make(), 0.9, kind == "nesterov"
    )
    for name in ("sgd", "adagrad", "rmsprop", "adadelta", "adam", "adamax")
    for kind in ("momentum", "nesterov")
}
RNG = np.random.default_rng(0)
# steps of seven rows
X = RNG.standard_normal((50, 7, 3))
T = RNG.standard_normal((50, 7, 2))
WEIGHTS = [RNG.standard_normal(shape) for shape in ((4, 3), (4,), (2, 4), (2,))]


def chain():
    with mnpar.using_config("dtype", np.dtype("f8")):
        return mnpar.Sequential(
            L.Linear(3, 4, False, *WEIGHTS[:2]), F.tanh, L.Linear(4, 2, False, *WEIGHTS[2:])
        )


def values(link):
    return np.concatenate([param.array.ravel() for param in link.params()])


def part(comm, step):
    """Uneven rows of a step: the ranks have 4, 2, 1 of seven."""
    edges = [*[0, 4, 6, 7][: comm.size], 7]
    return slice(edges[comm.rank], edges[comm.rank + 1])


def taught(optimizer, steps, rows):
    net = chain()
    optimizer.setup(net)
    for step in range(steps):
        mine = rows(step)
        optimizer.update(lambda x, t: F.mean_squared_error(net(x), t), X[step, mine], T[step, mine])
    return values(net)


@pytest.mark.ranks(1, 2, 3, on="threads")
@pytest.mark.parametrize("make", RULES.values(), ids=RULES)
def test_five_steps_of_uneven_ranks_are_those_of_one_with_one_reduction_each(
    comm, make, monkeypatch
):
    optimizer = mnpar.create_multi_node_optimizer(make(), comm, bucket_bytes=None)
    channel, sent = optimizer.sync.reducer.channel, []

    def spy(original):
        # (records alone, before the first backward, come with an empty array)
        return lambda x, *args, **kwds: (
            sent.extend([x.size] * bool(x.size)) or original(x, *args, **kwds)
        )

    for link, name in ((channel, "allreduce"), (channel, "iallreduce"), (comm, "allreduce_if")):
        monkeypatch.setattr(link, name, spy(getattr(link, name)))
    mine = taught(optimizer, 5, lambda step: part(comm, step))
    assert comm.size == 1 or sent == [4 * 3 + 4 + 2 * 4 + 2] * 5
    comm.barrier()
    np.testing.assert_allclose(
        mine, taught(make(), 5, lambda step: slice(0, 7)), rtol=1e-10, atol=1e-12
    )


@pytest.mark.ranks(2, 3, on="threads")
def test_a_wrapped_model_with_every_pth_batch_learns_what_one_does_from_the_joined_batches(comm):
    net = mnpar.DistributedDataParallel(chain(), comm)  # the changed line
    optimizer = mnpar.optimizers.SGD(0.05).setup(net)
    for i in range(comm.rank, 50 // comm.size * comm.size, comm.size):
        optimizer.update(lambda x, t: F.mean_squared_error(net(x), t), X[i], T[i])
    twin = chain()
    optimizer = mnpar.optimizers.SGD(0.05).setup(twin)
    for i in range(50 // comm.size):
        rows = slice(i * comm.size, (i + 1) * comm.size)
        optimizer.update(
            lambda x, t: F.mean_squared_error(twin(x), t),
            X[rows].reshape(-1, 3),
            T[rows].reshape(-1, 2),
        )
    np.testing.assert_allclose(values(net), values(twin), rtol=1e-10)
    assert mnpar.check_parameter_closeness(net, comm, tolerance=1e-6)


@pytest.mark.ranks(2, 3, on="threads")
@pytest.mark.parametrize("make", RULES.values(), ids=RULES)
def test_one_flat_vector_and_a_message_for_each_parameter_are_the_same_to_the_last_bit(comm, make):
    flat, each = [
        taught(
            mnpar.create_multi_node_optimizer(make(), comm, bucket_bytes=bucket_bytes),
            5,
            lambda step: part(comm, step),
        )
        for bucket_bytes in (None, 1)
    ]
    np.testing.assert_array_equal(flat, each)


def adam(p, g, s, t, rate):
    s[0], s[1] = 0.9 * s[0] + 0.1 * g, 0.999 * s[1] + 0.001 * g**2
    return p - rate * (1 - 0.999**t) ** 0.5 / (1 - 0.9**t) * s[0] / (s[1] ** 0.5 + 1e-8)


def adamax(p, g, s, t, rate):
    s[0], s[1] = 0.9 * s[0] + 0.1 * g, np.maximum(0.999 * s[1], abs(g))
    return p - rate / (1 - 0.9**t) * s[0] / (s[1] + 1e-8)


def momentum(p, g, s, t, rate):
    x = 0.9 * s[0] + (p - rate * g)
    s[0] = x - p
    return x


def nesterov(p, g, s, t, rate):
    s[0] = 0.9 * s[0] - rate * g
    return p + 0.9 * s[0] - rate * g


def adagrad(p, g, s, t, rate):
    s[0] = s[0] + g**2
    return p - rate * g / (s[0] + 1e-6) ** 0.5


def rmsprop(p, g, s, t, rate):
    s[0] = 0.9 * s[0] + 0.1 * g**2
    return p - rate * g / (s[0] + 1e-6) ** 0.5


def adadelta(p, g, s, t, rate):
    s[0] = 0.95 * s[0] + 0.05 * g**2
    step = g * ((s[1] + 1e-6) / (s[0] + 1e-6)) ** 0.5
    s[1] = 0.95 * s[1] + 0.05 * step**2
    return p - rate * step


# as Synkhronos documents them, on one flat vector: p, its gradient, what is kept, the step from 1;
# and the rate
FORMULAS = {
    "sgd": (lambda p, g, s, t, rate: p - rate * g, 0.1),
    "momentum": (momentum, 0.1),
    "nesterov": (nesterov, 0.1),
    "adagrad": (adagrad, 0.1),
    "rmsprop": (rmsprop, 0.01),
    "adadelta": (adadelta, 1),
    "adam": (adam, 1e-3),
    "adamax": (adamax, 2e-3),
}


def applied(formula, kind):
    def rule(p, g, s, t, rate):
        step = formula(p, g, s, t, rate) - p
        s[2] = 0.9 * s[2] + step
        return p + (s[2] if kind == "momentum" else 0.9 * s[2] + step)

    return rule


FORMULAS |= {
    f"{name}, apply_{kind}": (applied(formula, kind), rate)
    for name, (formula, rate) in FORMULAS.items()
    for kind in ("momentum", "nesterov")
}


@pytest.mark.parametrize("name", RULES)
def test_five_steps_are_those_of_synkhronos_formulas(name):
    formula, rate = FORMULAS[name]
    net = chain()
    kept = [0, 0, 0]
    p = values(net)
    for step in range(5):
        net.cleargrads()
        F.mean_squared_error(net(X[step]), T[step]).backward()
        p = formula(
            p, np.concatenate([param.grad.ravel() for param in net.params()]), kept, step + 1, rate
        )
        for param, part in zip(
            net.params(),
            np.split(p, np.cumsum([param.size for param in net.params()])),
            strict=False,
        ):
            param.array[...] = part.reshape(param.shape)
    np.testing.assert_allclose(taught(RULES[name](), 5, lambda step: slice(0, 7)), p, rtol=1e-7)


class MyDP(mnpar.Chain):
    """pathway2ai's fourth exercise: what a user writes to have data parallelism of his own."""

    def __init__(self, module, comm, scale):
        super().__init__()
        self.module = module
        for param in module.params():
            param.array[...] = comm.bcast(param.array)
            param.register_hook(lambda node: self.reduce(comm, node.gradient, scale), after=True)

    def reduce(self, comm, gradient, scale):
        comm.allreduce(gradient, out=gradient)
        gradient *= scale

    def forward(self, x):
        return self.module(x)


@pytest.mark.ranks(1, 2, 3, on="threads")
@pytest.mark.parametrize("how", ["sum", "mean"])
def test_a_wrapper_of_fifteen_lines_sums_or_averages_gradients(comm, how):
    net = chain()
    for param in net.params():
        param.array[...] += comm.rank  # seeded differently
    scale = 1 / comm.size if how == "mean" else 1
    wrapped = MyDP(net, comm, scale)
    np.testing.assert_array_equal(values(net), values(chain()))
    wrapped.cleargrads()
    F.sum(wrapped(X[comm.rank]) ** 2).backward()
    twin = chain()
    (F.sum(twin(X[: comm.size].reshape(-1, 3)) ** 2) * scale).backward()
    for one, other in zip(net.params(), twin.params(), strict=True):
        np.testing.assert_allclose(one.grad, other.grad, rtol=1e-12)


# ---- F1 ----


@pytest.mark.ranks(1, 2, 3, 4, on="threads")
@pytest.mark.parametrize(
    "dtype", ["f2", "f4", "f8", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "c8", "c16"]
)
def test_sums_over_ranks_scaled_now_or_later_in_every_layout(comm, dtype):
    P = comm.size
    for shape in ((10,), (3, 3), (0, 4), ()):
        x = np.full(shape, comm.rank, dtype)
        operation = comm.iallreduce(x)  # started, and waited for after other work
        strided = comm.iallreduce(np.full((4, 6), comm.rank, dtype)[::2, 1::2])
        np.testing.assert_array_equal(
            comm.allreduce(np.full((4, 6), comm.rank, dtype)[::2, 1::2]) * 2, P * (P - 1)
        )
        np.testing.assert_array_equal(operation.wait() * 2, np.full(shape, P * (P - 1)))
        np.testing.assert_array_equal(strided.wait() * 2, np.full((2, 3), P * (P - 1)))


@pytest.mark.ranks(3, on="threads")
def test_one_of_several_truths_is_a_truth(comm):
    np.testing.assert_array_equal(
        comm.allreduce(np.array([comm.rank == 1, False]), "max"), [True, False]
    )


# ---- F4 ----


@pytest.mark.ranks(4)
def test_after_a_barrier_there_are_the_files_that_all_ranks_wrote_before_it(comm):
    with tempfile.TemporaryDirectory() as own:
        folder = Path(comm.bcast_obj(own))
        time.sleep(0.02 * comm.rank)
        (folder / str(comm.rank)).touch()
        comm.barrier()
        assert sorted(path.name for path in folder.iterdir()) == [str(rank) for rank in range(4)]
        comm.barrier()
