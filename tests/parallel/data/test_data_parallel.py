"""Copies of a model that step together: whatever the shards, the parameters are those of one
process with all samples.
"""

import copy
import itertools
from contextlib import nullcontext

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L

pytestmark = pytest.mark.usefixtures("float64")

RANKS = pytest.mark.ranks(1, 2, 3, 4, on="threads")
PROCESSES = pytest.mark.ranks(1, 2, 3)
D, CLASSES = 5, 4


class MLP(mnpar.Chain):
    """Lazily sized where ``size`` is None; every rank draws other values."""

    def __init__(self, seed, size=D, extra=False):
        super().__init__()
        rng = np.random.default_rng(seed)
        self.first = L.Linear(
            size, 6, initialW=lambda w: np.copyto(w, rng.standard_normal(w.shape))
        )
        self.norm = L.BatchNormalization(6)
        self.last = L.Linear(
            None if size is None else 6,
            CLASSES,
            initialW=lambda w: np.copyto(w, rng.standard_normal(w.shape)),
        )
        if extra:
            self.unused = L.Linear(2, 2, initialW=1)

    def forward(self, x):
        return self.last(F.tanh(self.first(x)))

    def loss(self, x, t):
        if not len(x):
            return F.sum(self(x))
        return F.softmax_cross_entropy(self(x), t)


def batches(steps, shards, seed=0):
    """For each step, (x, t) of all samples, and where each rank's begin and end."""
    rng = np.random.default_rng(seed)
    n = sum(shards)
    edges = np.cumsum([0, *shards])
    return [(rng.standard_normal((n, D)), rng.integers(0, CLASSES, n), edges) for _ in range(steps)]


def alone(make, data, seed=0, weights=None, **model):
    """The parameters of one process."""
    net = MLP(seed, **model)
    optimizer = make().setup(net)
    for x, t, edges in data:
        if weights is None:
            optimizer.update(net.loss, x, t)
        else:
            parts = [(x[a:b], t[a:b]) for a, b in itertools.pairwise(edges)]
            optimizer.update(
                lambda parts=parts: sum(
                    w * net.loss(*p) for w, p in zip(weights, parts, strict=True) if w
                )
            )
    return values(net)


def values(net):
    return {path: None if p.array is None else p.array.copy() for path, p in net.namedparams()}


def together(comm, make, data, options=None, seed=None, **model):
    net = MLP(comm.rank if seed is None else seed, **model)
    optimizer = mnpar.create_multi_node_optimizer(make(), comm, **(options or {})).setup(net)
    for x, t, edges in data:
        mine = slice(edges[comm.rank], edges[comm.rank + 1])
        optimizer.update(net.loss, x[mine], t[mine])
    assert optimizer.t == len(data)
    return values(net)


def same(mine, expected, rtol=1e-11):
    assert list(mine) == list(expected)
    for path, value in expected.items():
        if value is None:
            assert mine[path] is None
        else:
            np.testing.assert_allclose(mine[path], value, rtol=rtol, atol=1e-13, err_msg=path)


SHARDS = {
    "even": lambda p: [4] * p,
    "uneven": lambda p: [3 + 2 * r for r in range(p)],
    "some empty": lambda p: [5] + [0] * (p - 1),
}
OPTIMIZERS = {
    "SGD": lambda: mnpar.optimizers.SGD(0.1),
    "momentum": lambda: mnpar.optimizers.MomentumSGD(0.1),
    "Adam": lambda: mnpar.optimizers.Adam(0.01),
}
MESSAGES = {"at once": None, "a bucket each": 1, "buckets": 300}


@pytest.mark.grid
@RANKS
@pytest.mark.parametrize("bucket_bytes", MESSAGES.values(), ids=MESSAGES)
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("shards", SHARDS.values(), ids=SHARDS)
def test_steps_equal_those_of_one_process_with_all_samples(comm, shards, make, bucket_bytes):
    data = batches(4, shards(comm.size))
    same(together(comm, make, data, {"bucket_bytes": bucket_bytes}), alone(make, data))


@PROCESSES
@pytest.mark.parametrize("bucket_bytes", MESSAGES.values(), ids=MESSAGES)
def test_processes_give_the_same(comm, bucket_bytes):
    data = batches(3, SHARDS["uneven"](comm.size))
    same(
        together(comm, OPTIMIZERS["momentum"], data, {"bucket_bytes": bucket_bytes}),
        alone(OPTIMIZERS["momentum"], data),
    )


@RANKS
@pytest.mark.parametrize(
    ("how", "weight"), [("mean", lambda p: 1 / p), ("sum", lambda p: 1.0)], ids=["mean", "sum"]
)
def test_losses_are_averaged_over_ranks_or_summed_where_that_is_asked(comm, how, weight):
    data = batches(3, SHARDS["uneven"](comm.size))
    expected = alone(OPTIMIZERS["SGD"], data, weights=[weight(comm.size)] * comm.size)
    same(together(comm, OPTIMIZERS["SGD"], data, {"reduce": how}), expected)


@RANKS
def test_parameters_that_appear_in_the_first_forward_are_rank_0s_and_the_first_update_is_a_step(
    comm,
):
    data = batches(3, SHARDS["uneven"](comm.size))
    same(
        together(comm, OPTIMIZERS["SGD"], data, size=None),
        alone(OPTIMIZERS["SGD"], data, size=None),
    )


@RANKS
def test_a_rank_without_samples_gets_the_parameters_that_appear_elsewhere(comm):
    data = batches(2, SHARDS["some empty"](comm.size))
    same(
        together(comm, OPTIMIZERS["SGD"], data, size=None),
        alone(OPTIMIZERS["SGD"], data, size=None),
    )


@RANKS
def test_a_link_that_is_added_later_is_made_equal_on_all_ranks(comm):
    net = MLP(comm.rank)
    optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(0.1), comm).setup(net)
    (x, t, edges), *_ = batches(1, [3] * comm.size)
    mine = slice(edges[comm.rank], edges[comm.rank + 1])
    optimizer.update(net.loss, x[mine], t[mine])
    net.more = L.Linear(CLASSES, CLASSES)
    net.forward = lambda x: net.more(net.last(net.first(x)))
    optimizer.update(net.loss, x[mine], t[mine])
    assert mnpar.check_parameter_closeness(net, comm)
    assert optimizer.t == 2


@RANKS
@pytest.mark.parametrize("zero_fill", [True, False])
def test_parameters_without_a_gradient_anywhere_are_zero_filled_or_left_alone(comm, zero_fill):
    data = batches(2, [3] * comm.size)

    def make():
        optimizer = OPTIMIZERS["SGD"]()
        optimizer.add_hook(mnpar.optimizer_hooks.WeightDecay(0.1))
        return optimizer

    after = together(comm, make, data, {"zero_fill": zero_fill}, extra=True)["/unused/W"]
    np.testing.assert_allclose(after, 0.99**2 if zero_fill else 1, rtol=1e-12)


@RANKS
@pytest.mark.parametrize("bucket_bytes", MESSAGES.values(), ids=MESSAGES)
def test_a_parameter_that_some_ranks_do_not_use_gets_the_gradients_of_the_others(
    comm, bucket_bytes
):
    net = mnpar.Chain(a=L.Linear(2, 1, initialW=1), b=L.Linear(2, 1, initialW=1))
    optimizer = mnpar.create_multi_node_optimizer(
        mnpar.optimizers.SGD(1.0), comm, bucket_bytes=bucket_bytes
    ).setup(net)
    x = np.ones((1, 2))
    link = net.a if comm.rank % 2 == 0 else net.b
    optimizer.update(lambda x: F.sum(link(x)), x)
    evens = (comm.size + 1) // 2
    np.testing.assert_allclose(net.a.W.array, 1 - evens / comm.size)
    np.testing.assert_allclose(net.b.W.array, 1 - (comm.size - evens) / comm.size)


@RANKS
@pytest.mark.parametrize("bucket_bytes", [None, 1])
def test_gradients_added_up_without_messages_count_with_all_their_samples(comm, bucket_bytes):
    net = MLP(comm.rank)
    optimizer = mnpar.create_multi_node_optimizer(
        mnpar.optimizers.SGD(0.1), comm, bucket_bytes=bucket_bytes
    ).setup(net)
    steps = batches(4, SHARDS["uneven"](comm.size))
    for i, (x, t, edges) in enumerate(steps):
        mine = slice(edges[comm.rank], edges[comm.rank + 1])
        if i in (1, 2):  # in the first of them something stands in grad still
            with optimizer.no_sync():
                optimizer.update(net.loss, x[mine], t[mine])
        else:
            optimizer.update(net.loss, x[mine], t[mine])
    joined = [np.concatenate([step[k] for step in steps[1:]]) for k in (0, 1)]
    same(values(net), alone(OPTIMIZERS["SGD"], [steps[0], (*joined, None)]))
    assert optimizer.t == 2


@RANKS
def test_ranks_that_run_out_of_samples_join_the_updates_of_the_others(comm):
    net = MLP(comm.rank)
    optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(0.1), comm).setup(net)
    counts = [2 + 3 * r for r in range(comm.size)]
    rng = np.random.default_rng(0)
    data = [
        [(rng.standard_normal((3, D)), rng.integers(0, CLASSES, 3)) for _ in range(n)]
        for n in counts
    ]
    for _ in range(2):  # epochs
        for x, t in data[comm.rank]:
            optimizer.update(net.loss, x, t)
        optimizer.join()
    steps = [[rows[i] for rows in data if i < len(rows)] for i in range(max(counts))]
    joined = [
        (np.concatenate([x for x, _ in s]), np.concatenate([t for _, t in s]), None) for s in steps
    ]
    same(values(net), alone(OPTIMIZERS["SGD"], joined * 2))


@RANKS
def test_gradients_that_are_there_already_are_averaged_over_ranks(comm):
    net = mnpar.Chain(a=L.Linear(2, 1, initialW=1, nobias=True))
    optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(1.0), comm).setup(net)
    optimizer.update(lambda: None)  # parameters are agreed on
    net.a.W.grad = np.full((1, 2), comm.rank + 1.0)
    optimizer.update()
    np.testing.assert_allclose(net.a.W.array, 1 - (comm.size + 1) / 2)


@RANKS
def test_double_buffering_applies_each_gradient_one_update_late(comm):
    net = mnpar.Chain(a=L.Linear(1, 1, initialW=0, nobias=True))
    optimizer = mnpar.create_multi_node_optimizer(
        mnpar.optimizers.SGD(1.0), comm, double_buffering=True
    ).setup(net)
    seen = []
    for step in range(1, 5):
        optimizer.update(lambda x: F.mean(net.a(x)), np.full((2, 1), float(step)))
        seen.append(-float(net.a.W.array[0, 0]))
    assert seen == [0, 1, 3, 6]
    assert optimizer.t == 3


@RANKS
@pytest.mark.parametrize("resumed", [False, True], ids=["going on", "resumed"])
def test_late_steps_of_a_part_without_parameters_are_as_many_as_those_of_the_other_parts(
    comm, resumed
):
    """One count on all ranks: hooks and checks of the whole model are collectives in each step."""
    data = comm.split(comm.rank % 2, comm.rank)  # the ranks of one part
    net = mnpar.Chain() if comm.rank % 2 else mnpar.Chain(a=L.Linear(1, 1, initialW=0, nobias=True))

    def make():
        made = mnpar.create_multi_node_optimizer(
            mnpar.optimizers.SGD(1.0), data, double_buffering=True
        ).setup(net)
        made.add_hook(mnpar.optimizer_hooks.GradientClipping(2.0, comm))
        return made

    optimizer, steps = make(), []
    for _ in range(3):
        optimizer.update(lambda x: F.mean(net.a(x)) if "a" in vars(net) else None, np.ones((2, 1)))
        steps.append(optimizer.t)
        if resumed:
            saved = mnpar.serializers.DictionarySerializer()
            saved.save(optimizer)
            optimizer = make()
            mnpar.serializers.NpzDeserializer(saved.target).load(optimizer)
    assert steps == [0, 1, 2]


@RANKS
def test_gradients_may_travel_narrow(comm):
    net = mnpar.Chain(a=L.Linear(100, 1, initialW=0, nobias=True))
    optimizer = mnpar.create_multi_node_optimizer(
        mnpar.optimizers.SGD(1.0), comm, wire_dtype=np.float16
    ).setup(net)
    g = np.random.default_rng(0).standard_normal((comm.size, 100))
    optimizer.update(lambda x: F.mean(net.a(x)), g[comm.rank : comm.rank + 1])
    sent = (g / comm.size).astype("f2").astype("f4").sum(axis=0)
    np.testing.assert_allclose(-net.a.W.array[0], sent, rtol=2e-3, atol=1e-3)
    if comm.size > 1:
        assert abs(net.a.W.array[0] + g.mean(axis=0)).max() > 1e-6  # they did


@RANKS
def test_loss_scales_are_divided_out_on_ranks_without_a_gradient_too(comm):
    data = batches(3, SHARDS["some empty"](comm.size))

    def make():
        optimizer = mnpar.optimizers.SGD(0.1)
        optimizer.set_loss_scale(128.0)
        return optimizer

    same(together(comm, make, data), alone(OPTIMIZERS["SGD"], data))


@pytest.mark.ranks(1, 2, 3, on="threads")
@pytest.mark.parametrize("options", [{}, {"bucket_bytes": 64}, {"sharded": True}], ids=str)
def test_gradients_that_another_optimizer_scaled_are_divided_alike_on_ranks_that_have_none(
    comm, options
):
    def program(comm):
        first = L.Linear(3, 2, initialW=0.5)
        second = L.Linear(2, 1, initialW=0.25)
        one = mnpar.optimizers.SGD(0.1)
        other = mnpar.optimizers.SGD(0.1)
        if comm is not None:
            one = mnpar.create_multi_node_optimizer(one, comm)
            other = mnpar.create_multi_node_optimizer(other, comm, reduce="sum", **options)
        one.setup(first).set_loss_scale(8.0)
        other.setup(second)
        for step in range(5):
            rows = [
                np.random.default_rng([step, rank]).standard_normal((2, 3)) for rank in range(P)
            ]
            if P > 1 and step % 2:
                rows[step % P] = rows[step % P][:0]
            if step == 4:
                other.set_loss_scale(2.0)
            second.cleargrads()
            of = lambda x: F.mean(second(first(x)) ** 2) if len(x) else None
            one.update(of, np.concatenate(rows) if comm is None else rows[comm.rank])
            other.update()
        return [param.array for param in (*first.params(), *second.params())]

    P = comm.size
    for mine, expected in zip(program(comm), program(None), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-12)


@pytest.mark.ranks(4, on="threads")
def test_model_parallel_pairs_with_uneven_shards_equal_one_process(comm):
    """Two pairs of ranks; the first of each has no loss, the second no samples but labels."""
    pair = comm.split(comm.rank // 2, comm.rank)
    peers = comm.split(comm.rank % 2, comm.rank)
    data = batches(3, [3, 8])
    whole = MLP(0)
    part = mnpar.Chain(l=(whole.first, whole.last)[comm.rank % 2])
    optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(0.1), peers).setup(part)
    for x, t, edges in data:
        mine = slice(edges[comm.rank // 2], edges[comm.rank // 2 + 1])
        if comm.rank % 2 == 0:
            optimizer.update(lambda x: F.send(F.tanh(part.l(x)), pair, 1), x[mine])
        else:
            optimizer.update(lambda t: F.softmax_cross_entropy(part.l(F.recv(pair, 0)), t), t[mine])
    expected = alone(OPTIMIZERS["SGD"], data)
    name = ("/first", "/last")[comm.rank % 2]
    np.testing.assert_allclose(part.l.W.array, expected[name + "/W"], rtol=1e-11)
    np.testing.assert_allclose(part.l.b.array, expected[name + "/b"], rtol=1e-11, atol=1e-13)


@RANKS
def test_closeness_is_false_everywhere_and_the_odd_one_is_named(comm):
    net = MLP(0)
    assert mnpar.check_parameter_closeness(net, comm)
    if comm.rank == comm.size - 1 and comm.size > 1:
        net.last.W.array[0, 0] += 1e-3
    if comm.size == 1:
        return
    if comm.rank == 0:
        with pytest.warns(
            UserWarning, match=rf"rank {comm.size - 1}: /last/W differs by up to 0.001"
        ):
            assert not mnpar.check_parameter_closeness(net, comm)
    else:
        assert not mnpar.check_parameter_closeness(net, comm)
    assert mnpar.check_parameter_closeness(net, comm, tolerance=2e-3)


@pytest.mark.filterwarnings("ignore:parameters are not the same")
@pytest.mark.ranks(2, on="threads")
def test_closeness_looks_at_persistent_arrays_if_it_is_told_to(comm):
    net = mnpar.Chain(norm=L.BatchNormalization(2))
    net.norm.avg_mean[...] = comm.rank
    assert mnpar.check_parameter_closeness(net, comm)
    assert not mnpar.check_parameter_closeness(net, comm, persistents=True)
    assert mnpar.check_parameter_closeness(net, comm, tolerance=1, persistents=True)


@pytest.mark.usefixtures("both_matches")
@pytest.mark.ranks(2, on="threads")
def test_models_that_differ_are_refused_with_the_difference(comm):
    net = (
        mnpar.Chain(a=L.Linear(2, 2))
        if comm.rank == 0
        else mnpar.Chain(a=L.Linear(2, 2), b=L.Linear(2, 2))
    )
    optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(), comm).setup(net)
    with pytest.raises(
        mnpar.errors.MismatchError,
        match=r"parameters of ranks 0 and 1 differ: only rank 1 has .*/b/W",
    ):
        optimizer.update(lambda: None)


@pytest.mark.ranks(2, on="threads")
def test_a_loss_of_nobody_knows_how_many_samples_is_refused_beside_one_that_is_known(comm):
    net = mnpar.Chain(a=L.Linear(1, 1))
    optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(), comm).setup(net)
    args = (np.ones((2, 1)),) if comm.rank == 0 else ()
    with pytest.raises(ValueError, match=r"ranks \[1\].*samples="):
        optimizer.update(lambda x=None: F.mean(net.a(np.ones((2, 1)))), *args)


@pytest.mark.parametrize("options", [{"reduce": "median"}, {"bucket_bytes": 0}], ids=str)
def test_bad_options_are_refused(options):
    with pytest.raises(ValueError, match="not"):
        mnpar.run(
            lambda comm: mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(), comm, **options),
            ranks=1,
        )


@RANKS
@pytest.mark.parametrize("size", [D, None], ids=["sized", "lazily sized"])
def test_persistent_values_are_updated_once_in_each_step_whatever_appears(comm, size):
    """With the same samples on all ranks the running mean of each is that of one process."""

    class Net(mnpar.Chain):
        def __init__(self):
            super().__init__()
            self.norm = L.BatchNormalization(size)
            self.last = L.Linear(size, 1, initialW=1)

        def forward(self, x):
            return self.last(self.norm(x))

    x = np.random.default_rng(0).standard_normal((6, D))
    means = []
    for optimizer in (
        mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(0.1), comm),
        mnpar.optimizers.SGD(0.1),
    ):
        net = Net()
        optimizer.setup(net)
        for _ in range(3):
            optimizer.update(lambda x, net=net: F.mean(net(x)), x)
        means.append(net.norm.avg_mean)
    np.testing.assert_allclose(*means, rtol=1e-12)


@RANKS
def test_a_link_that_a_forward_adds_beside_running_statistics_costs_a_step_and_says_so(comm):
    net = mnpar.Chain(norm=L.BatchNormalization(D), last=L.Linear(D, 1))
    optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(0.1), comm).setup(net)
    x = np.random.default_rng(0).standard_normal((6, D))
    optimizer.update(lambda x: F.mean(net.last(net.norm(x))), x)

    def grown(x):
        if not hasattr(net, "more"):
            net.more = L.Linear(1, 1, initialW=comm.rank)
        return F.mean(net.more(net.last(net.norm(x))))

    if comm.size == 1:  # with rank 0's values at once
        optimizer.update(grown, x)
        assert optimizer.t == 2
        return
    if comm.rank == 0:
        with pytest.warns(UserWarning, match="no step was taken"):
            optimizer.update(grown, x)
    else:
        optimizer.update(grown, x)
    assert (optimizer.t, float(net.more.W.array[0, 0])) == (1, 0)


@RANKS
@pytest.mark.parametrize("alike", [True, False], ids=["the same", "other"])
def test_a_first_update_with_gradients_that_are_there_is_a_step_if_all_began_with_the_same_values(
    comm, alike
):
    """Gradients of values that are thrown away would be wrong ones."""
    net = MLP(seed=0 if alike else comm.rank)
    optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(0.1), comm).setup(net)
    ((x, t, edges),) = batches(1, [2] * comm.size)
    mine = slice(edges[comm.rank], edges[comm.rank + 1])
    net.loss(x[mine], t[mine]).backward()
    if alike or comm.rank or comm.size == 1:
        optimizer.update()
    else:
        with pytest.warns(UserWarning, match="no step was taken"):
            optimizer.update()
    assert mnpar.check_parameter_closeness(net, comm)
    if alike or comm.size == 1:
        one = alone(lambda: mnpar.optimizers.SGD(0.1), [(x, t, edges)])
        for path, value in values(net).items():
            np.testing.assert_allclose(value, one[path], rtol=1e-12, atol=1e-15, err_msg=path)


class Failing(mnpar.FunctionNode):
    def forward(self, x):
        return x.copy()

    def backward(self, gy):
        raise ZeroDivisionError


@pytest.mark.grid
@RANKS
@pytest.mark.parametrize(
    "options", [{}, {"double_buffering": True}, {"sharded": True}], ids=["plain", "late", "sharded"]
)
@pytest.mark.parametrize("bucket_bytes", MESSAGES.values(), ids=MESSAGES)
def test_after_a_backward_that_failed_the_next_update_is_as_if_it_had_not_been(
    comm, bucket_bytes, options
):
    def train(fails):
        net = MLP(0)
        optimizer = OPTIMIZERS["Adam"]().setup(net)
        mnpar.create_multi_node_optimizer(optimizer, comm, bucket_bytes=bucket_bytes, **options)
        for x, t, edges in batches(4, SHARDS["uneven"](comm.size)):
            mine = slice(edges[comm.rank], edges[comm.rank + 1])
            optimizer.update(net.loss, x[mine], t[mine])
            if fails:
                with pytest.raises(ZeroDivisionError):
                    optimizer.update(
                        lambda x: F.mean(net.last(*Failing().apply((F.tanh(net.first(x)),)))),
                        -x[mine],
                    )
        return values(net)

    same(train(True), train(False), rtol=0)


@pytest.mark.parametrize("fails", [False, True], ids=["all right", "failing"])
@RANKS
def test_buckets_on_their_way_advance_after_each_function_of_backward_and_only_then(
    comm, monkeypatch, fails
):
    net = mnpar.Chain(
        a=L.Linear(2, 10, initialW=1, nobias=True), b=L.Linear(10, 10, initialW=1, nobias=True)
    )
    optimizer = mnpar.create_multi_node_optimizer(
        mnpar.optimizers.SGD(1.0), comm, bucket_bytes=400
    ).setup(net)
    steps, go_on = [], optimizer.sync.reducer.go_on
    monkeypatch.setattr(
        optimizer.sync.reducer,
        "go_on",
        lambda: steps.append(optimizer.sync.reducer.left) or go_on(),
    )

    def loss(x):
        h = net.a(x)
        for _ in range(5):
            h = F.relu(h)
        return F.sum(net.b(*Failing().apply((h,)) if fails else (h,)))

    with pytest.raises(ZeroDivisionError) if fails else nullcontext():
        optimizer.update(loss, np.ones((1, 2)))
    # after the sum, b, relu five times, a: how many have left
    assert steps == ([0, 0] if fails else [0, 0, 1, 1, 1, 1, 1, 1])
    F.sum(net.a(np.ones((1, 2)))).backward()
    assert len(steps) == (2 if fails else 8)


@RANKS
def test_after_a_backward_that_failed_gradients_that_are_there_are_still_averaged(comm):
    net = mnpar.Chain(
        a=L.Linear(2, 1, initialW=1, nobias=True), b=L.Linear(1, 1, initialW=1, nobias=True)
    )
    optimizer = mnpar.create_multi_node_optimizer(
        mnpar.optimizers.SGD(1.0), comm, bucket_bytes=1
    ).setup(net)
    optimizer.update(lambda: None)  # parameters are agreed on
    x = np.ones((1, 2))
    with pytest.raises(ZeroDivisionError):
        optimizer.update(lambda x: F.sum(net.b(*Failing().apply((net.a(x),)))), x)
    net.a.W.grad = np.full((1, 2), comm.rank + 1.0)
    net.b.W.grad = np.zeros((1, 1))
    optimizer.update()
    np.testing.assert_allclose(net.a.W.array, 1 - (comm.size + 1) / 2)
    np.testing.assert_allclose(net.b.W.array, 1)


@RANKS
@pytest.mark.parametrize("bucket_bytes", MESSAGES.values(), ids=MESSAGES)
def test_two_optimizers_may_have_parameters_in_common(comm, bucket_bytes):
    def train(comm):
        first = MLP(0)
        second = MLP(1)
        second.last.W = first.last.W
        pairs = []
        for net in (first, second):
            optimizer = mnpar.optimizers.SGD(0.1)
            if comm is not None:
                optimizer = mnpar.create_multi_node_optimizer(
                    optimizer, comm, bucket_bytes=bucket_bytes
                )
            pairs.append((net, optimizer.setup(net)))
        for x, t, edges in batches(3, SHARDS["uneven"](ranks)):
            mine = slice(None) if comm is None else slice(edges[comm.rank], edges[comm.rank + 1])
            for net, optimizer in pairs:
                optimizer.update(net.loss, x[mine], t[mine])
        return {
            str(i) + path: value
            for i, (net, _) in enumerate(pairs)
            for path, value in values(net).items()
        }

    ranks = comm.size
    same(train(comm), train(None))


@RANKS
def test_ranks_that_join_bring_the_gradients_that_they_have_added_up(comm):
    net = MLP(comm.rank)
    optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(0.1), comm).setup(net)
    ((x, t, edges),) = batches(1, SHARDS["uneven"](comm.size))
    mine = slice(edges[comm.rank], edges[comm.rank + 1])
    if comm.rank:
        with optimizer.no_sync():
            optimizer.update(net.loss, x[mine], t[mine])
    else:
        optimizer.update(net.loss, x[mine], t[mine])
    optimizer.join()
    same(values(net), alone(OPTIMIZERS["SGD"], [(x, t, None)]))


@RANKS
def test_a_model_among_the_arguments_is_not_taken_for_samples(comm):
    net = mnpar.Sequential(L.Linear(D, CLASSES, initialW=1))
    optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(0.1), comm).setup(net)
    ((x, t, edges),) = batches(1, SHARDS["uneven"](comm.size))
    mine = slice(edges[comm.rank], edges[comm.rank + 1])
    optimizer.update(lambda net, x, t: F.softmax_cross_entropy(net(x), t), net, x[mine], t[mine])
    twin = mnpar.Sequential(L.Linear(D, CLASSES, initialW=1))
    mnpar.optimizers.SGD(0.1).setup(twin).update(lambda: F.softmax_cross_entropy(twin(x), t))
    same(values(net), values(twin))


@RANKS
@pytest.mark.parametrize(
    "options", [{}, {"double_buffering": True}, {"sharded": True}], ids=["plain", "late", "sharded"]
)
def test_integer_parameters_stay_as_they_are(comm, options):
    net = mnpar.Chain(a=L.Linear(1, 1, initialW=0, nobias=True))
    net.n = mnpar.Parameter(np.arange(3))
    optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.Adam(), comm, **options).setup(
        net
    )
    x = np.ones((1, 1))
    with optimizer.no_sync():  # what is added up is divided in the end
        optimizer.update(lambda x: F.mean(net.a(x)), x)
    for _ in range(2):
        optimizer.update(lambda x: F.mean(net.a(x)), x)
    np.testing.assert_array_equal(net.n.array, [0, 1, 2])
    assert net.n.grad is None
    assert net.a.W.array < 0


@RANKS
def test_late_gradients_are_divided_by_the_loss_scale_that_they_had(comm):
    def train(scaled):
        net = MLP(0)
        optimizer = mnpar.create_multi_node_optimizer(
            mnpar.optimizers.SGD(0.1), comm, double_buffering=True
        ).setup(net)
        if scaled:
            optimizer.loss_scaling()  # doubled at each step
        for x, t, edges in batches(4, SHARDS["uneven"](comm.size)):
            mine = slice(edges[comm.rank], edges[comm.rank + 1])
            optimizer.update(net.loss, x[mine], t[mine])
        return values(net)

    same(train(True), train(False))


@pytest.mark.grid
@RANKS
@pytest.mark.parametrize("empty", [0, -1], ids=["first", "last"])
@pytest.mark.parametrize("bucket_bytes", MESSAGES.values(), ids=MESSAGES)
def test_buckets_leave_before_communications_of_the_model_on_one_rank_and_after_them_on_another(
    comm, bucket_bytes, empty
):
    def train(comm):
        net = mnpar.Chain(a=L.Linear(D, 3, initialW=1), b=L.Linear(3, 1, initialW=1))
        net.norm = (
            L.BatchNormalization(3) if comm is None else L.MultiNodeBatchNormalization(3, comm)
        )
        optimizer = mnpar.optimizers.SGD(0.1)
        if comm is not None:
            optimizer = mnpar.create_multi_node_optimizer(
                optimizer, comm, bucket_bytes=bucket_bytes
            )
        optimizer.setup(net)
        for x, _, edges in batches(2, shards):
            mine = x if comm is None else x[edges[comm.rank] : edges[comm.rank + 1]]
            optimizer.update(
                lambda x: (F.mean if len(x) else F.sum)(net.b(net.norm(net.a(x))) ** 2), mine
            )
        return values(net)

    shards = [4] * comm.size
    if comm.size > 1:
        shards[empty] = 0
    same(train(comm), train(None))


@pytest.mark.usefixtures("both_matches")
@pytest.mark.ranks(2, on="threads")
def test_optimizers_of_which_only_one_was_loaded_are_refused(comm):
    net = MLP(0)
    optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.Adam(), comm).setup(net)
    optimizer.t = 3 * comm.rank  # as a snapshot says
    with pytest.raises(mnpar.errors.MismatchError, match=r"have made \[0, 3\] updates: load"):
        optimizer.update(net.loss, np.ones((1, D)), np.zeros(1, int))


@RANKS
def test_one_loss_may_be_that_of_two_optimizers(comm):
    def train(comm):
        first = L.Linear(D, 3, initialW=1)
        second = L.Linear(3, 1, initialW=1)
        both = [mnpar.optimizers.SGD(0.1) for _ in range(2)]
        if comm is not None:
            both = [mnpar.create_multi_node_optimizer(optimizer, comm) for optimizer in both]
        both = [optimizer.setup(net) for optimizer, net in zip(both, (first, second), strict=True)]
        for x, _, edges in batches(2, SHARDS["uneven"](ranks)):
            mine = x if comm is None else x[edges[comm.rank] : edges[comm.rank + 1]]
            loss = F.mean(second(F.tanh(first(mine))) ** 2)
            for optimizer in both:
                optimizer.update(lambda x, loss=loss: loss, mine)
        return {
            **values(first),
            **{f"second{path}": value for path, value in values(second).items()},
        }

    ranks = comm.size
    same(train(comm), train(None))


@RANKS
def test_a_parameter_may_be_the_loss(comm):
    net = L.Linear(1, 1, initialW=1, nobias=True)
    optimizer = mnpar.create_multi_node_optimizer(
        mnpar.optimizers.SGD(0.25), comm, reduce="mean"
    ).setup(net)
    for step in (1, 2):
        optimizer.update(lambda: net.W)
        np.testing.assert_allclose(net.W.array, 1 - 0.25 * step)


@RANKS
def test_parameters_that_had_no_gradient_are_left_alone_an_update_late_too(comm):
    net = mnpar.Chain(
        a=L.Linear(1, 1, initialW=1, nobias=True), b=L.Linear(1, 1, initialW=1, nobias=True)
    )
    optimizer = mnpar.optimizers.SGD(0.1).setup(net)
    mnpar.create_multi_node_optimizer(optimizer, comm, double_buffering=True, zero_fill=False)
    optimizer.add_hook(mnpar.optimizer_hooks.WeightDecay(0.5))
    used = []
    for link in (net.a, net.b, net.a, net.b):
        optimizer.update(lambda x, link=link: F.mean(link(x)), np.ones((1, 1)))
        used.append((float(net.a.W.array[0, 0]), float(net.b.W.array[0, 0])))
    np.testing.assert_allclose(used, [(1, 1), (0.85, 1), (0.85, 0.85), (0.7075, 0.85)])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"wire_dtype": np.int8}, "^wire_dtype, .* floating-point dtype, .*, not in .*int8"),
        ({"wire_dtype": "float15"}, "^wire_dtype, .* np.float32 .*, not in 'float15'$"),
        (
            {"axes": ("data", "model")},
            "are of a mesh, but the second argument is a Communicator: give the mesh",
        ),
    ],
    ids=["wire", "wire of no dtype", "axes"],
)
def test_arguments_that_would_make_wrong_gradients_without_a_word(options, words):
    with pytest.raises(ValueError, match=words):
        mnpar.create_multi_node_optimizer(
            mnpar.optimizers.SGD(), mnpar.create_communicator("self"), **options
        )


@pytest.mark.grid
@pytest.mark.parametrize("before", [0, 1, 2])
@pytest.mark.parametrize(
    "options", [{}, {"bucket_bytes": 100}, {"sharded": True}, {"double_buffering": True}], ids=str
)
@pytest.mark.ranks(2)
def test_a_deep_copy_of_an_optimizer_goes_on_by_itself(comm, options, before):
    net = L.Linear(D, 1, initialW=1)
    optimizer = mnpar.create_multi_node_optimizer(
        mnpar.optimizers.MomentumSGD(0.1), comm, **options
    ).setup(net)
    x = np.full((1, D), 1.0 + comm.rank, "f4")

    def update(one):
        one.update(lambda x: F.mean(one.target(x) ** 2), x)

    for _ in range(before):
        update(optimizer)
    copied = copy.deepcopy(optimizer)
    for one in (copied, optimizer, copied, copied):
        update(one)
    late = "double_buffering" in options  # the first update takes no step, nor does the copy's
    assert (optimizer.t, copied.t) == (before + 1 - late, max(before - late, 0) + 3 - late)
    assert mnpar.check_parameter_closeness(copied.target, comm)
    assert abs(copied.target.W.array - net.W.array).max() > 0


def _changes_by_hand(net, optimizer):
    net.first.W.array[...] += 1


def _adds_a_hook(net, optimizer):
    optimizer.add_hook(
        lambda optimizer: mnpar.optimizer_hooks.WeightDecay(0.5)(None, net.first.W), "decay"
    )


DRIFTS = {
    "a value changed by hand": _changes_by_hand,
    "a hook": _adds_a_hook,
}


@pytest.mark.usefixtures("both_matches")
@pytest.mark.usefixtures("debug_off")
@pytest.mark.parametrize("options", [{}, {"bucket_bytes": 300}], ids=["quiet", "buckets"])
@pytest.mark.parametrize("drift", DRIFTS.values(), ids=DRIFTS)
@pytest.mark.ranks(2, 3, on="threads")
def test_copies_that_have_drifted_apart_are_told(comm, drift, options):
    net = MLP(0)
    rng = np.random.default_rng(comm.rank)
    optimizer = mnpar.create_multi_node_optimizer(
        mnpar.optimizers.SGD(0.1), comm, check=4, **options
    ).setup(net)

    def update():
        optimizer.update(net.loss, rng.standard_normal((3, D)), rng.integers(0, CLASSES, 3))

    for _ in range(6):
        update()
    if comm.rank == comm.size - 1:
        drift(net, optimizer)
    update()
    update()
    told = rf"update 9: the values of /first/W are not the same on ranks \[0, {comm.size - 1}\]"
    with pytest.raises(mnpar.errors.MismatchError, match=told):
        update()


@pytest.mark.usefixtures("both_matches")
@pytest.mark.usefixtures("debug_off")
@pytest.mark.parametrize(
    "options", [{}, {"bucket_bytes": 300}, {"double_buffering": True}], ids=str
)
@pytest.mark.ranks(2, on="threads")
def test_a_drift_is_told_early(comm, options):
    """After so many updates, long before the comparison after 100."""

    def update(optimizer, drifts):
        optimizer.update(lambda x: F.mean(optimizer.target(x)), np.ones((1, 3)))
        optimizer.target.W.array[0] += comm.rank * drifts

    for after, told in ((2, 2), (3, 4), (6, 8), (10, 16)):
        net = L.Linear(3, 2, initialW=1)
        optimizer = mnpar.create_multi_node_optimizer(
            mnpar.optimizers.SGD(0.1), comm, **options
        ).setup(net)
        while optimizer.t < told:
            update(optimizer, optimizer.t == after - 1)
        with pytest.raises(
            mnpar.errors.MismatchError,
            match=f"update {told + 1}: the values of /W are not the same",
        ):
            update(optimizer, False)


@pytest.mark.ranks(2, 3, on="threads")
def test_copies_of_the_same_bits_are_compared_by_a_digest(comm):
    net = L.Linear(3, 2, initialW=comm.rank)
    optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(0.1), comm, check=1).setup(
        net
    )
    for step in range(4):
        before = comm.traffic.collectives
        optimizer.update(lambda x: F.mean(net(x)), np.ones((1, 3), net.W.dtype))
        # of the gradients, with the digests beside them
        assert step < 2 or comm.traffic.collectives == before + 1
    net.W.array[0, 0] *= 1 + comm.rank * np.finfo(net.W.dtype).eps  # not drifted apart: rounding is
    before = comm.traffic.collectives
    optimizer.update(lambda x: F.mean(net(x)), np.ones((1, 3), net.W.dtype))
    assert comm.traffic.collectives == before + 2


@pytest.mark.grid
@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("bucket_bytes", [None, 64])
@pytest.mark.parametrize("accumulates", [False, True])
def test_gradients_for_parameters_of_another_optimizer_have_the_weights_of_this_update(
    comm, bucket_bytes, accumulates
):
    """They are not summed here; some losses give none, and look to the optimizer like those that
    do.
    """
    shared = L.Linear(3, 2, initialW=0.5)
    own = L.Linear(2, 1, initialW=0.25)
    everywhere = mnpar.create_multi_node_optimizer(
        mnpar.optimizers.SGD(0.01), comm, bucket_bytes=bucket_bytes
    ).setup(shared)
    here = mnpar.optimizers.SGD(0.0).setup(own)
    rng = np.random.default_rng(comm.rank)
    expected = np.zeros((1, 2))
    for update, other in enumerate((4, 4, 4, 1, 1, 1, 2, 3, 5, 6)):
        counts = [4, other, 2 * other][: comm.size]  # rank 0's are the same in each update
        n = counts[comm.rank]
        total = sum(counts)
        x = rng.standard_normal((n, 3))
        if not accumulates:
            own.cleargrads()
            expected = 0 * expected
        hidden = shared(x).array
        if update % 2:
            everywhere.update(lambda x: F.mean(own(shared(x)) ** 2), x)
            expected = expected + (2 * own(hidden).array.T @ hidden) / total
        else:
            everywhere.update(lambda x: F.mean(shared(x) ** 2), x)
        given = 0 if own.W.grad is None else own.W.grad
        np.testing.assert_allclose(given, expected, rtol=1e-12)
        if not accumulates:
            here.update()


@pytest.mark.usefixtures("both_matches")
@pytest.mark.ranks(2, on="threads")
def test_gradients_of_inputs_of_an_update_that_failed_do_not_count(comm):
    net = L.Linear(3, 2, initialW=0.5)
    x = mnpar.Variable(np.ones((1, 3)))
    optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(0.1), comm, check=1).setup(
        net
    )
    for step in range(4):
        x.grad = np.full((1, 3), 5.0)
        net.W.array += comm.rank * (step == 3)
        with pytest.raises(mnpar.errors.MismatchError) if step == 3 else nullcontext():
            optimizer.update(lambda x: F.mean(net(x)), x)
    np.testing.assert_array_equal(x.grad, 5)
    net.W.array -= comm.rank
    optimizer.update()
    np.testing.assert_array_equal(x.grad, 5)


def input_gradients(comm, counts, steps, **options):
    """Gradients of inputs after each update with so many samples of each rank; without a
    communicator those of all.
    """
    net = L.Linear(D, 2, initialW=np.arange(2.0 * D).reshape(2, D) / D)
    optimizer = mnpar.optimizers.SGD(0.01)
    if comm is not None:
        optimizer = mnpar.create_multi_node_optimizer(optimizer, comm, **options)
    optimizer.setup(net)
    found = []
    for update, (ns, way) in enumerate(zip(counts, steps, strict=True)):
        rows = [
            np.random.default_rng([update, rank]).standard_normal((n, D))
            for rank, n in enumerate(ns)
        ]
        x = mnpar.Variable(np.concatenate(rows) if comm is None else rows[comm.rank])
        if way == "has one":
            x.grad = np.ones_like(x.array)
        if way == "hook":
            x.register_hook(lambda g: 2 * g)
        if way == "new parameter" and not hasattr(net, "c"):
            with net.init_scope():
                net.c = mnpar.Parameter(np.ones(2))
        of = lambda x: F.mean((net(x) * getattr(net, "c", 1.0)) ** 2) if len(x) else None
        if way == "held" and comm is not None:
            with optimizer.no_sync():
                optimizer.update(of, x.array)
        optimizer.update(of, x)
        grad = np.zeros_like(x.array) if x.grad is None else x.grad
        if way == "held" and comm is None:
            grad = grad / 2  # the mean is of twice as many
        found.append(grad if comm is None else np.concatenate(comm.allgather(grad)))
    return found


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("options", [{}, {"bucket_bytes": 64}, {"sharded": True}], ids=str)
def test_gradients_of_inputs_are_those_of_one_process(comm, options):
    ways = [
        "plain",
        "plain",
        "has one",
        "hook",
        "plain",
        "new parameter",
        "has one",
        "held",
        "plain",
        "plain",
    ]
    counts = [
        [(3 * update + 2 * rank) % 5 + (rank == 0) for rank in range(comm.size)]
        for update in range(len(ways))
    ]
    for one, other in zip(
        input_gradients(comm, counts, ways, **options),
        input_gradients(None, counts, ways),
        strict=True,
    ):
        np.testing.assert_allclose(one, other, rtol=1e-12)
