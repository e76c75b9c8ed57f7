"""Uneven shards whose samples nobody counts are told: their loss is a mean of means."""

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar.parallel.data.rows import Rows

X = np.arange(12.0).reshape(6, 2)


def model():
    with mnpar.using_config("dtype", np.float64):
        return L.Linear(2, 1, initialW=1)


def mean(net, x):
    return F.mean(net(x) ** 2)


def closure(optimizer, net, x):
    optimizer.update(lambda: mean(net, x))


def generator(optimizer, net, x):
    batches = (x for _ in range(1))
    optimizer.update(lambda batches: mean(net, next(batches)), batches)


def micro_batches(optimizer, net, x):
    batches = tuple([x[i : i + 1] for i in range(len(x))])
    optimizer.update(lambda batches: sum(mean(net, b) for b in batches) / len(batches), batches)


def by_hand(optimizer, net, x):
    net.cleargrads()
    for i in range(len(x)):
        (mean(net, x[i : i + 1]) / len(x)).backward()
    optimizer.update()


def counted(optimizer, net, x):
    optimizer.update(lambda x: mean(net, x), x)


def columns(optimizer, net, x):
    optimizer.update(lambda xt: F.mean((net(xt[0]) - xt[1]) ** 2), (x, x[:, :1]))


def weighted_by_hand(optimizer, net, x):
    """update() takes the mean over ranks."""
    net.cleargrads()
    loss = mean(net, x) if len(x) % 2 else F.sum(net(x) ** 2) / len(x)
    (loss * optimizer.sync.comm.size * (len(x) / len(X))).backward()
    optimizer.update()


TOLD = {one.__name__: one for one in (closure, generator, micro_batches, by_hand)}
RIGHT = {one.__name__: one for one in (counted, columns, weighted_by_hand)}
# of all samples; the last rank has one more than the others
SPLITS = {2: [0, 2, 6], 3: [0, 1, 3, 6], 4: [0, 1, 2, 4, 6]}
EVEN = {2: [0, 3, 6], 3: [0, 2, 4, 6]}


def train(comm, step, split, options):
    net = model()
    optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(1e-3), comm, **options)
    optimizer.setup(net)
    for _ in range(3):
        step(optimizer, net, X[split[comm.rank] : split[comm.rank + 1]])
    return net.W.array


@pytest.mark.parametrize("options", [{}, {"bucket_bytes": 8}, {"sharded": True}], ids=str)
@pytest.mark.parametrize("size", SPLITS)
@pytest.mark.parametrize("name", TOLD)
def test_a_mean_of_means_is_told_once(name, size, options, recwarn):
    mnpar.run(train, ranks=size, args=(TOLD[name], SPLITS[size], options))
    (told,) = [str(one.message) for one in recwarn]
    rows = ", ".join([str(b - a) for a, b in zip(SPLITS[size], SPLITS[size][1:], strict=False)])
    assert told.startswith(f"the ranks' losses are of {rows} rows of data, and count as 1, 1")
    assert recwarn[0].filename == __file__


@pytest.mark.parametrize("size", SPLITS)
@pytest.mark.parametrize("name", RIGHT)
def test_the_mean_over_all_samples_is_not_told(name, size, recwarn):
    found = mnpar.run(train, ranks=size, args=(RIGHT[name], SPLITS[size], {}))
    assert not recwarn
    if name != "columns":
        want = mnpar.run(train, ranks=1, args=(counted, [0, 6], {}))[0]
        for one in found:
            np.testing.assert_allclose(one, want, rtol=1e-12)


@pytest.mark.parametrize("size", EVEN)
@pytest.mark.parametrize("name", TOLD)
def test_even_shards_are_right(name, size, recwarn):
    found = mnpar.run(train, ranks=size, args=(TOLD[name], EVEN[size], {}))
    want = mnpar.run(train, ranks=1, args=(counted, [0, 6], {}))[0]
    assert not recwarn
    for one in found:
        np.testing.assert_allclose(one, want, rtol=1e-12)


@pytest.mark.parametrize("reduce", ["mean", "sum"])
def test_a_mean_over_ranks_may_be_asked_for(reduce, recwarn):
    for step in TOLD.values():
        mnpar.run(train, ranks=2, args=(step, SPLITS[2], {"reduce": reduce}))
    assert not recwarn


def y(*shape):
    return 2 * mnpar.Variable(np.ones(shape))


CASES = {
    "labels": (lambda: F.softmax_cross_entropy(y(5, 3), np.zeros(5, int)), 5, 1),
    "images": (lambda: F.softmax_cross_entropy(y(5, 3, 2, 2), np.zeros((5, 2, 2), int)), 5, 1),
    "errors": (lambda: F.mean_squared_error(y(5, 2), np.zeros((5, 2))), 5, 1),
    "rows, then all": (lambda: F.mean(F.sum(y(5, 3), axis=1)), 5, 1),
    "all rows first": (lambda: F.sum(F.mean(y(5, 3), axis=0)), 5, 1),
    "a sum": (lambda: F.sum(y(5, 3)) / 10, 5, 0.5),
    "a reshaped one": (lambda: F.mean(F.reshape(y(5, 1), (-1,))), 5, 1),
    "two terms": (lambda: (F.mean(y(2, 3)) + F.mean(y(3, 3))) / 2, 5, 1),
    "a penalty of a weight": (lambda: F.sum(mnpar.Parameter(np.ones((3, 3)))), 0, 0),
}


@pytest.mark.parametrize("name", CASES)
def test_rows_are_read_from_the_graph(name):
    loss, number, weight = CASES[name]
    found = Rows.of(loss().node)
    assert found.number == number
    assert found.weight == pytest.approx(weight)
