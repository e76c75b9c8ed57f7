"""What seed systems say of data parallelism, to the digit: messages (S6), overlap (F9), a hundred
rows on three ranks (N9).
"""

import itertools

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L

RNG = np.random.default_rng(0)


def mlp(*sizes):
    with mnpar.using_config("dtype", np.dtype("f8")):
        rng = np.random.default_rng(1)
        layers = [
            L.Linear(n, m, initialW=rng.standard_normal((m, n)) / n**0.5)
            for n, m in itertools.pairwise(sizes)
        ]
    return mnpar.Sequential(*[one for layer in layers for one in (layer, F.tanh)][:-1])


def values(link):
    return np.concatenate([param.array.ravel() for param in link.params()])


def error(net):
    return lambda x, t: F.softmax_cross_entropy(net(x), t)


# ---- S6, with buckets ----


@pytest.mark.ranks(2, 3, on="threads")
@pytest.mark.parametrize("bucket_bytes", [1, 300, 10**6])
def test_buckets_send_each_element_once_in_a_step(comm, bucket_bytes, monkeypatch):
    net = mlp(5, 6, 4)
    optimizer = mnpar.create_multi_node_optimizer(
        mnpar.optimizers.SGD(0.1), comm, bucket_bytes=bucket_bytes
    ).setup(net)
    x = RNG.standard_normal((3, 5))
    t = np.array([0, 1, 2])
    optimizer.update(error(net), x, t)
    sent, channel = [], optimizer.sync.reducer.channel
    real = channel.iallreduce
    monkeypatch.setattr(
        channel,
        "iallreduce",
        lambda x, *args, **kwds: sent.append(x.size) or real(x, *args, **kwds),
    )
    for _ in range(2):
        optimizer.update(error(net), x, t)
    assert sum(sent) == 2 * net.count_params()
    assert len(sent) == 2 * len(optimizer.sync.reducer.buckets)
    assert len(optimizer.sync.reducer.buckets) == {1: 4, 300: 2, 10**6: 1}[bucket_bytes]


# ---- F9 ----


@pytest.mark.ranks(2)
def test_gradients_that_leave_early_are_the_same_to_the_last_bit(comm):
    found = []
    for bucket_bytes in (None, 1, 300):
        net = mlp(5, 6, 4)
        rng = np.random.default_rng(comm.rank)
        optimizer = mnpar.create_multi_node_optimizer(
            mnpar.optimizers.Adam(), comm, bucket_bytes=bucket_bytes
        ).setup(net)
        for _ in range(5):
            optimizer.update(
                error(net),
                rng.standard_normal((3 + comm.rank, 5)),
                rng.integers(0, 4, 3 + comm.rank),
            )
        found.append(values(net))
    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_array_equal(found[2], found[0])


# ---- N9 ----


@pytest.mark.ranks(3, on="threads")
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_a_batch_of_a_hundred_on_three_ranks_is_that_of_one(comm, dtype):
    """33, 33, 34 rows of 784-100-10, ten steps."""
    edges = [0, 33, 66, 100]
    mine = slice(edges[comm.rank], edges[comm.rank + 1])
    x = RNG.random((10, 100, 784)).astype(dtype)
    t = RNG.integers(0, 10, (10, 100))
    x = comm.bcast(x)
    t = comm.bcast(t)

    def train(optimizer, rows):
        net = mlp(784, 100, 10)
        for param in net.params():
            param.array = param.array.astype(dtype)
            param.cleargrad()
        optimizer.setup(net)
        for step in range(10):
            optimizer.update(error(net), x[step][rows], t[step][rows])
        return values(net)

    together = train(mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(0.01), comm), mine)
    alone = train(mnpar.optimizers.SGD(0.01), slice(None))
    np.testing.assert_allclose(
        together, alone, rtol=0, atol={"f4": 1e-6, "f8": 1e-12}[dtype] * abs(alone).max()
    )


# ---- X3 ----


@pytest.mark.ranks(2, 3, on="threads")
@pytest.mark.parametrize("wrapped", [True, False], ids=["DistributedDataParallel", "optimizer"])
def test_fifty_steps_of_every_pth_batch_are_those_of_the_joined_batches(comm, wrapped):
    P, rng = comm.size, np.random.default_rng(2)
    x = rng.standard_normal((50, P, 4, 5))
    t = rng.integers(0, 4, (50, P, 4))
    net = mlp(5, 6, 4)
    optimizer = mnpar.optimizers.SGD(0.1)
    if wrapped:
        net = mnpar.DistributedDataParallel(net, comm)
    else:
        optimizer = mnpar.create_multi_node_optimizer(optimizer, comm)
    optimizer.setup(net)
    for step in range(50):
        optimizer.update(error(net), x[step, comm.rank], t[step, comm.rank])
    twin = mlp(5, 6, 4)
    alone = mnpar.optimizers.SGD(0.1).setup(twin)
    for step in range(50):
        alone.update(error(twin), x[step].reshape(-1, 5), t[step].reshape(-1))
    np.testing.assert_allclose(values(net), values(twin), rtol=1e-10, atol=1e-12)


@pytest.mark.ranks(2, on="threads")
def test_fifteen_batches_on_two_ranks_end_without_a_hang_and_with_one_model(comm):
    """Eight and seven: the last step is of one rank's samples."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((15, 4, 5))
    t = rng.integers(0, 4, (15, 4))
    net = mlp(5, 6, 4)
    optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(0.1), comm).setup(net)
    for _ in range(2):
        for i in range(comm.rank, 15, 2):
            optimizer.update(error(net), x[i], t[i])
        optimizer.join()
    twin = mlp(5, 6, 4)
    alone = mnpar.optimizers.SGD(0.1).setup(twin)
    for _ in range(2):
        for i in range(0, 15, 2):
            alone.update(error(twin), x[i : i + 2].reshape(-1, 5), t[i : i + 2].reshape(-1))
    np.testing.assert_allclose(values(net), values(twin), rtol=1e-10, atol=1e-12)
    assert mnpar.check_parameter_closeness(net, comm)
