"""The ranks' meeting in each update: with the gradients where nothing travels in backward, before
it where something does.
"""

from contextlib import nullcontext
from itertools import pairwise

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar.errors import DeadlockError, MismatchError
from mnpar.parallel.data.update_record import UpdateRecord
from mnpar.serializers import NpzDeserializer, serialize

pytestmark = pytest.mark.usefixtures("float64")

RANKS = pytest.mark.ranks(1, 2, 3, 4, on="threads")
D = 3


def model(seed=0):
    rng = np.random.default_rng(seed)
    return mnpar.Sequential(
        L.Linear(D, 4, initialW=rng.standard_normal((4, D))),
        F.tanh,
        L.Linear(4, 1, initialW=rng.standard_normal((1, 4))),
    )


def batches(counts, seed=0):
    """For each step and rank, so many samples."""
    rng = np.random.default_rng(seed)
    return [[rng.standard_normal((n, D)) for n in step] for step in counts]


def counts_of(ranks, steps=6):
    return [
        [(3 * step + 2 * rank) % 5 + (rank == 0) for rank in range(ranks)] for step in range(steps)
    ]


def values(net):
    return np.concatenate([param.array.ravel() for param in net.params()])


def alone(steps, make, net=None):
    net = net or model()
    optimizer = make().setup(net)
    for parts in steps:
        optimizer.update(lambda x: F.mean(net(x) ** 2), np.concatenate(parts))
    return values(net)


def openings(optimizer, comm):
    """Counts the exchanges of this rank on the communicator and on the optimizer's own, from here
    on.
    """
    ways = {"comm": comm, "own": optimizer.sync.reducer.channel}
    before = {name: way.traffic.collectives for name, way in ways.items()}
    return lambda: {name: way.traffic.collectives - before[name] for name, way in ways.items()}


@pytest.mark.usefixtures("both_matches")
@pytest.mark.parametrize("width", [2, 3000], ids=["few", "many"])
@pytest.mark.ranks(2, 3)
def test_a_collective_of_the_gradients_form_beside_an_update_is_told(comm, width):
    """A rank that evaluates while others train: what it sums must not become their gradients."""
    net = L.Linear(D, width)
    optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(), comm).setup(net)

    def update():
        optimizer.update(lambda x: F.mean(net(x) ** 2), np.ones((2, D)))

    update()
    update()
    with pytest.raises(MismatchError, match=r"optimizer\.update of (.|\n)* allreduce \(sum\) of "):
        comm.allreduce(np.full(width * (D + 1), 100.0)) if comm.rank == 1 else update()


def test_an_update_more_is_told_with_what_to_do():
    def program(comm):
        _, optimizer = small(comm)
        for _ in range(3 + comm.rank):
            optimizer.update(lambda x: F.mean(optimizer.target(x) ** 2), np.ones((2, D)))

    with pytest.raises(
        DeadlockError,
        match=r"as many updates: one that has no more batches calls optimizer\.join\(\)",
    ) as told:
        mnpar.run(program, 2)
    assert "rank 1: waits in optimizer.update of float64 (21,) at " in str(told.value)


def small(comm, **options):
    net = model(comm.rank)
    return net, mnpar.create_multi_node_optimizer(
        mnpar.optimizers.MomentumSGD(0.1), comm, **options
    ).setup(net)


def error_of(net):
    return lambda x: F.mean(net(x) ** 2) if len(x) else None


@pytest.mark.grid
@RANKS
@pytest.mark.parametrize("bucket_bytes", [None, 8, 100])
@pytest.mark.parametrize("rule", ["MomentumSGD", "Adam"])
def test_sample_counts_that_change_in_each_step_count_as_on_one_process(comm, bucket_bytes, rule):
    steps = batches(counts_of(comm.size))
    net = model(comm.rank)
    make = getattr(mnpar.optimizers, rule)
    optimizer = mnpar.create_multi_node_optimizer(make(), comm, bucket_bytes=bucket_bytes).setup(
        net
    )
    for parts in steps:
        optimizer.update(error_of(net), parts[comm.rank])
    np.testing.assert_allclose(values(net), alone(steps, make), rtol=1e-12)


@pytest.mark.ranks(2, 3)
def test_processes_meet_alike(comm):
    steps = batches(counts_of(comm.size))
    net, optimizer = small(comm)
    for parts in steps:
        optimizer.update(error_of(net), parts[comm.rank])
    np.testing.assert_allclose(
        values(net), alone(steps, lambda: mnpar.optimizers.MomentumSGD(0.1)), rtol=1e-12
    )


@RANKS
def test_an_update_of_a_small_model_is_one_message(comm, monkeypatch):
    net, optimizer = small(comm)
    x = np.ones((2, D))
    optimizer.update(error_of(net), x)
    count = openings(optimizer, comm)
    sums = []
    real = type(comm.transport).reduce
    monkeypatch.setattr(
        optimizer.sync.reducer.channel.transport,
        "reduce",
        lambda *a: sums.append(a) or real(*a),
        raising=False,
    )
    for _ in range(3):
        optimizer.update(error_of(net), x)
    assert count() == {"comm": 3, "own": 0}
    assert not sums  # the gradients were in it


@RANKS
def test_ranks_meet_before_backward_only_where_the_model_communicates(comm):
    net, optimizer = small(comm)
    x = np.ones((2, D))

    def talking(x):
        return F.mean(F.allreduce(comm, net(x)) ** 2) / comm.size

    optimizer.update(error_of(net), x)
    for loss, messages in ((error_of(net), 1), (talking, 4), (talking, 4), (error_of(net), 1)):
        count = openings(optimizer, comm)
        optimizer.update(loss, x)
        # one for the gradients; one for the records; the sum in forward, and its gradient
        assert count()["comm"] == messages


@RANKS
@pytest.mark.parametrize("changes", [False, True])
@pytest.mark.parametrize("some", [False, True], ids=["all", "some"])
def test_a_model_may_begin_to_communicate_in_any_update_and_on_some_ranks(comm, changes, some):
    net, optimizer = small(comm)
    talks = comm.size < 3 or comm.rank < 2 or not some
    peers = comm.split(0 if talks else None, comm.rank)
    first, second = batches([[2] * comm.size, [3 if changes else 2] * comm.size])

    def talking(x):
        h = net[1](net[0](x))
        if talks:
            F.allreduce(peers, h)  # used by nobody
        return F.mean(net[2](h) ** 2)

    steps = [first, first, second, second, first]
    for parts, loss in zip(
        steps, (error_of(net), error_of(net), talking, talking, error_of(net)), strict=True
    ):
        optimizer.update(loss, parts[comm.rank])
    assert optimizer.t == 5
    np.testing.assert_allclose(
        values(net), alone(steps, lambda: mnpar.optimizers.MomentumSGD(0.1)), rtol=1e-12
    )


@RANKS
def test_parameters_that_appear_on_some_ranks_are_met_and_the_update_is_made_once_more(comm):
    """All ranks had the same parameters, and now a link of the last one has another shape."""
    net, optimizer = small(comm)
    x = batches([[2] * comm.size])[0][comm.rank]
    for _ in range(2):
        optimizer.update(error_of(net), x)
    net.append(L.Linear(None, 1, initialW=comm.rank + 1.0))  # without an array until the forward
    optimizer.update(error_of(net), x)
    assert mnpar.check_parameter_closeness(net, comm)
    assert optimizer.t == 3
    count = openings(optimizer, comm)
    optimizer.update(error_of(net), x)
    optimizer.update(error_of(net), x)
    assert count() == {"comm": 2, "own": 0}  # as ever
    assert mnpar.check_parameter_closeness(net, comm)


@RANKS
def test_gradients_are_added_up_before_a_link_is_added(comm):
    def train(comm):
        net = model(0)
        optimizer = mnpar.optimizers.MomentumSGD(0.1)
        if comm is not None:
            optimizer = mnpar.create_multi_node_optimizer(optimizer, comm)
        optimizer.setup(net)
        if comm is not None:
            optimizer.update(error_of(net), first[comm.rank])
            with optimizer.no_sync():
                optimizer.update(error_of(net), second[comm.rank])
            net.append(L.Linear(1, 1, initialW=comm.rank + 1.0))
            optimizer.update(error_of(net), third[comm.rank])
        else:
            optimizer.update(error_of(net), np.concatenate(first))
            old = lambda x: net[2](net[1](net[0](x)))
            net.append(L.Linear(1, 1, initialW=1.0))
            x, y = np.concatenate(second), np.concatenate(third)
            optimizer.update(lambda: (F.sum(old(x) ** 2) + F.sum(net(y) ** 2)) / (len(x) + len(y)))
        return values(net), optimizer.t

    first, second, third = batches([[2] * comm.size] * 3)
    (found, t), (expected, _) = train(comm), train(None)
    assert t == 2
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@RANKS
def test_gradients_added_up_with_changing_counts_are_the_mean_of_all(comm):
    steps = batches(counts_of(comm.size))
    net, optimizer = small(comm)
    for i, parts in enumerate(steps):
        if i % 3:
            with optimizer.no_sync():
                optimizer.update(
                    lambda x: F.mean(net(x) ** 2) if len(x) else None, parts[comm.rank]
                )
        else:
            optimizer.update(error_of(net), parts[comm.rank])
    joined = [steps[0], [*steps[1], *steps[2], *steps[3]]]
    np.testing.assert_allclose(
        values(net), alone(joined, lambda: mnpar.optimizers.MomentumSGD(0.1)), rtol=1e-12
    )


@RANKS
@pytest.mark.parametrize("adds_up", [False, True])
def test_what_is_loaded_goes_on_with_the_same_weights_to_the_last_digit(comm, adds_up):
    steps = batches(counts_of(comm.size))

    def run(net, optimizer, steps):
        for first, second in pairwise(steps):
            with optimizer.no_sync() if adds_up else nullcontext():
                optimizer.update(
                    lambda x: F.mean(net(x) ** 2) if len(x) else None, first[comm.rank]
                )
            optimizer.update(error_of(net), second[comm.rank])

    one = small(comm)
    other = small(comm)
    run(*one, steps)
    for saved, loaded in zip(one, other, strict=True):
        NpzDeserializer(serialize(saved)).load(loaded)
    for pair in (one, other):
        run(*pair, steps)
    np.testing.assert_array_equal(values(other[0]), values(one[0]))


@pytest.mark.ranks(2, on="threads")
def test_gradients_that_were_added_up_are_not_saved_and_that_is_said(comm):
    net, optimizer = small(comm)
    optimizer.update(error_of(net), np.ones((2, D)))
    with optimizer.no_sync():
        optimizer.update(error_of(net), np.ones((2, D)))
    with pytest.warns(
        UserWarning,
        match=f"rank {comm.rank}: the gradients that no_sync has added up are not saved",
    ):
        serialize(optimizer)


@RANKS
def test_a_backward_that_fails_on_all_ranks_leaves_the_next_update_as_ever(comm):
    net, optimizer = small(comm)
    steps = batches([[2] * comm.size] * 3)

    def failing(x):
        y = net(x)
        y.register_hook(lambda g: 1 / 0)
        return F.mean(y**2)

    optimizer.update(error_of(net), steps[0][comm.rank])
    with pytest.raises(ZeroDivisionError):
        optimizer.update(failing, steps[1][comm.rank])
    for parts in steps[1:]:
        optimizer.update(error_of(net), parts[comm.rank])
    np.testing.assert_allclose(
        values(net), alone(steps, lambda: mnpar.optimizers.MomentumSGD(0.1)), rtol=1e-12
    )


@pytest.mark.ranks(2, 3, on="threads")
def test_counts_that_become_unknown_are_refused_on_all_ranks(comm):
    net, optimizer = small(comm)
    x = np.ones((2, D))
    optimizer.update(error_of(net), x)
    args = (x,) if comm.rank == 0 else ()
    with pytest.raises(ValueError, match=r"ranks \[1.*samples="):
        optimizer.update(lambda x=x: F.mean(net(x)), *args)
    optimizer.update(error_of(net), x)


@pytest.mark.ranks(2, 3, on="threads")
def test_gradients_of_some_ranks_beside_losses_of_others_cost_the_step(comm):
    net, optimizer = small(comm)
    x = np.ones((2, D))
    optimizer.update(error_of(net), x)
    before = values(net)
    if comm.rank:
        optimizer.update(error_of(net), x)
    else:
        with pytest.warns(UserWarning, match="no step was taken"):
            optimizer.update()
    np.testing.assert_array_equal(values(net), before)


@pytest.mark.ranks(1, on="threads")
def test_each_bucket_is_updated_as_soon_as_it_is_there(comm, monkeypatch):
    """The second may still travel: nothing waits for it."""
    net, optimizer = small(comm, bucket_bytes=8)
    x = np.ones((2, D))
    optimizer.update(error_of(net), x)
    events = []
    bucket = type(optimizer.sync.reducer.buckets[0])
    rule = type(net[0].W.update_rule)
    update, unpack = rule.update_core, bucket.unpack
    monkeypatch.setattr(
        rule,
        "update_core",
        lambda self, param: events.append(param.array.size) or update(self, param),
    )
    monkeypatch.setattr(bucket, "unpack", lambda self: events.append("arrives") or unpack(self))
    optimizer.update(error_of(net), x)
    assert events == ["arrives", 1, "arrives", 4, "arrives", 4, "arrives", 12]


@RANKS
def test_a_hook_sees_all_gradients_before_the_first_bucket_is_updated(comm):
    net, optimizer = small(comm, bucket_bytes=8)
    norms = []
    optimizer.add_hook(
        lambda opt: norms.append(sum(float((p.grad**2).sum()) for p in opt.target.params())),
        name="norm",
    )
    steps = batches([[2] * comm.size])
    optimizer.update(error_of(net), steps[0][comm.rank])
    twin = model()
    F.mean(twin(np.concatenate(steps[0])) ** 2).backward()
    np.testing.assert_allclose(
        norms, [sum(float((p.grad**2).sum()) for p in twin.params())], rtol=1e-12
    )


def test_a_record_travels_as_bytes():
    record = UpdateRecord(3.0, 1.5, 7, 0.5, True, False, True, False, True)
    assert UpdateRecord.unpack(record.pack()) == record
