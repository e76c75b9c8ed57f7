"""Ranks that agree now and then: by the formulas, written out in numpy for all ranks at once."""

import time

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar.parallel import ElasticAveraging, ParameterAveraging, ParameterServer
from mnpar.serializers import NpzDeserializer, serialize

pytestmark = pytest.mark.usefixtures("float64")

RANKS = pytest.mark.ranks(1, 2, 3, on="threads")
LR = 0.1


def link(value):
    model = mnpar.Link()
    model.w = mnpar.Parameter(np.full((2, 2), float(value)))
    model.v = mnpar.Parameter(np.full(3, 10.0 * value))
    return model


def loss(model, target):
    """½ Σ (p − target)²: the gradient is p − target."""
    return 0.5 * (F.sum((model.w - target) ** 2) + F.sum((model.v - target) ** 2))


@RANKS
@pytest.mark.parametrize("every", [1, 3])
def test_local_steps_and_means_in_between(comm, every):
    model = link(comm.rank)
    optimizer = mnpar.optimizers.SGD(LR).setup(model)
    optimizer.add_hook(ParameterAveraging(comm, every))
    # one number for each rank: all elements of a parameter are alike
    w = np.arange(comm.size, dtype="d")
    targets = np.arange(comm.size) ** 2 + 1.0
    for t in range(1, 8):
        optimizer.update(lambda: loss(model, targets[comm.rank]))
        w = w - LR * (w - targets)
        if t % every == 0:
            w = np.full(comm.size, w.mean())
        np.testing.assert_allclose(model.w.array, w[comm.rank], rtol=1e-12)


@RANKS
@pytest.mark.parametrize("every", [1, 2])
def test_elastic_averaging_is_the_papers(comm, every):
    alpha = 0.3
    model = link(comm.rank)
    optimizer = mnpar.optimizers.SGD(LR).setup(model)
    optimizer.add_hook(ElasticAveraging(comm, alpha, every))
    x = np.arange(comm.size, dtype="d")
    c = None
    targets = np.arange(comm.size) + 5.0
    for t in range(1, 6):
        optimizer.update(lambda: loss(model, targets[comm.rank]))
        x = x - LR * (x - targets)
        if t % every == 0:
            c = x.mean() if c is None else c
            x, c = x - alpha * (x - c), c + alpha * (x - c).sum()
        np.testing.assert_allclose(model.w.array, x[comm.rank], rtol=1e-12)


@pytest.mark.ranks(2, 3, 4, on="threads")
def test_a_server_steps_by_each_workers_gradients(comm):
    model = link(1)
    server = ParameterServer(comm, server=comm.size - 1)
    optimizer = mnpar.optimizers.SGD(LR).setup(model)
    steps = 4
    if comm.rank == server.server:
        server.serve(optimizer)
        assert optimizer.t == steps * (comm.size - 1)
        # the gradient of ⟨p, 1⟩ is 1 whoever computes it: what the order of arrival was does not
        # matter
        np.testing.assert_allclose(model.w.array, 1 - LR * optimizer.t)
        np.testing.assert_allclose(model.v.array, 10 - LR * optimizer.t)
        return
    for _ in range(steps):
        model.cleargrads()
        (F.sum(model.w) + F.sum(model.v)).backward()
        server.step(optimizer)
    server.finish()
    assert model.w.array[0, 0] <= 1 - LR * steps + 1e-12


@pytest.mark.ranks(2, on="threads")
def test_worker_and_server_pull_at_each_other(comm):
    model = link(comm.rank)
    server = ParameterServer(comm)
    alpha = 0.25
    optimizer = mnpar.optimizers.SGD(LR).setup(model)
    if comm.rank == 0:
        server.serve(optimizer)
        np.testing.assert_allclose(model.v.array, 0.25 * 10 + 0.25 * (7.5 - 2.5))
        return
    server.pull(optimizer, alpha)
    np.testing.assert_allclose(model.v.array, 10 - 0.25 * 10)
    server.pull(optimizer, alpha)
    np.testing.assert_allclose(model.v.array, 7.5 - 0.25 * (7.5 - 2.5))
    server.get(optimizer)
    np.testing.assert_allclose(model.v.array, 0.25 * 10 + 0.25 * (7.5 - 2.5))
    server.finish()


@RANKS
@pytest.mark.parametrize("moment", [1, 2, 4])
def test_elastic_averaging_goes_on_with_its_centre(comm, moment):
    def made():
        model = link(comm.rank)
        optimizer = mnpar.optimizers.SGD(LR).setup(model)
        optimizer.add_hook(ElasticAveraging(comm, 0.3, every=2))
        return model, optimizer

    def steps(model, optimizer, n):
        for _ in range(n):
            optimizer.update(lambda: loss(model, comm.rank + 5.0))

    one = made()
    other = made()
    steps(*one, moment)
    for saved, loaded in zip(one, other, strict=True):
        NpzDeserializer(serialize(saved)).load(loaded)
    steps(*one, 5)
    steps(*other, 5)
    np.testing.assert_array_equal(other[0].w.array, one[0].w.array)


@pytest.mark.ranks(3)
def test_a_slow_worker_keeps_nobody_waiting(comm):
    model = link(1)
    server = ParameterServer(comm)
    optimizer = mnpar.optimizers.SGD(LR).setup(model)
    if comm.rank == 0:
        server.serve(optimizer)
        assert optimizer.t == 11
        return
    for _ in range(1 if comm.rank == 1 else 10):
        model.cleargrads()
        F.sum(model.w).backward()
        if comm.rank == 1:
            time.sleep(0.2)
        server.step(optimizer)
    server.finish()


@pytest.mark.ranks(2, on="threads")
def test_a_worker_with_another_model_is_told_so_by_the_server(comm):
    server = ParameterServer(comm)
    if comm.rank == 0:
        with pytest.raises(
            mnpar.errors.MismatchError,
            match=r"rank 1's model has \[2\] parameters, the server's \[7\]",
        ):
            server.serve(mnpar.optimizers.SGD(LR).setup(link(1)))
        comm.send((np.zeros(2),), 1)
    else:
        optimizer = mnpar.optimizers.SGD(LR).setup(L.Linear(1, 1))
        server.pull(optimizer, 0.5)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda comm: ParameterAveraging(comm, every=0),
        lambda comm: ElasticAveraging(comm, alpha=0),
        lambda comm: ElasticAveraging(comm, alpha=1.5),
        lambda comm: ParameterServer(comm, server=1),
    ],
)
def test_bad_arguments_are_refused(wrong):
    with pytest.raises(ValueError, match=r"not|no rank"):
        mnpar.run(wrong, ranks=1)


def test_the_server_does_not_ask():
    def program(comm):
        server = ParameterServer(comm)
        with pytest.raises(RuntimeError, match="is the server"):
            server.get(mnpar.optimizers.SGD(LR).setup(L.Linear(1, 1)))

    mnpar.run(program, ranks=1)
