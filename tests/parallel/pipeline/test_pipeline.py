"""A pipeline has the losses, gradients and reports of the same network in one process, whatever its
schedule and its graph.
"""

import copy

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar.parallel import (
    SCHEDULES,
    Pipeline,
    make_schedule,
    own_schedule,
    recv_from_stage,
    send_to_stage,
    simulate,
)

D, N = 3, 10


class Layer(mnpar.Link):
    """tanh of a matrix product; the matrix is made from the seed."""

    def __init__(self, seed, n_in=D, n_out=D):
        super().__init__()
        self.W = mnpar.Parameter(np.random.default_rng(seed).standard_normal((n_in, n_out)) / 2)
        self.b = mnpar.Parameter(np.random.default_rng(seed + 100).standard_normal(n_out))

    def forward(self, x):
        return F.tanh(F.linear(x, self.W, self.b))


class Loss(mnpar.Link):
    """A layer, and the mean squared difference."""

    def __init__(self, seed):
        super().__init__()
        self.layer = Layer(seed)
        self.W = self.layer.W
        self.b = self.layer.b

    def forward(self, y, t):
        return F.mean_squared_error(self.layer(y), t)


def data(n=N, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, D)), rng.standard_normal((n, D))


def arguments(comm, pipeline, x, t):
    """What each rank is given: inputs for the first stage, targets for the last."""
    where = pipeline.schedule.where
    return ((x,) if comm.rank == where[0] else ()) + ((t,) if comm.rank == where[-1] else ())


def alone(stages, x, t, loss_scale=None):
    """Loss and gradients of one process, by stage."""
    h = x
    for stage in stages[:-1]:
        h = stage(h)
    loss = stages[-1](h, t)
    loss.backward(loss_scale=loss_scale)
    return loss.array, [[p.grad for p in stage.params()] for stage in stages]


def train_once(comm, schedule, M, make, x, t, loss_scale=None, **options):
    """The pipeline after one backward, with this rank's gradients by stage."""
    plan = make_schedule(schedule, comm.size, M) if isinstance(schedule, str) else schedule
    mine = [make(stage, plan.stages) for stage in plan.stages_of(comm.rank)]
    pipeline = Pipeline(comm, mine, plan, M, **options)
    pipeline(*arguments(comm, pipeline, x, t)).backward(loss_scale=loss_scale)
    return pipeline, {
        stage: [p.grad for p in link.params()]
        for stage, link in zip(plan.stages_of(comm.rank), mine, strict=True)
    }


def layer_or_loss(stage, stages):
    return Loss(stage) if stage == stages - 1 else Layer(stage)


def check(results, stages, x, t, loss_scale=None):
    loss, expected = alone(stages, x, t, loss_scale)
    found = {stage: gs for _, by_stage in results for stage, gs in by_stage.items()}
    assert sorted(found) == list(range(len(stages)))
    for stage, gradients in enumerate(expected):
        for g, mine in zip(gradients, found[stage], strict=True):
            np.testing.assert_allclose(mine, g, rtol=1e-12, atol=1e-13 * (loss_scale or 1))
    (mine,) = [pipeline.loss for pipeline, _ in results if pipeline.loss is not None]
    np.testing.assert_allclose(mine, loss, rtol=1e-12)


@pytest.mark.grid
@pytest.mark.parametrize("M", range(1, 10))
@pytest.mark.parametrize("ranks", range(1, 5))
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_gradients_are_those_of_one_process(schedule, ranks, M):
    x, t = data()
    results = mnpar.run(train_once, ranks, args=(schedule, M, layer_or_loss, x, t))
    plan = make_schedule(schedule, ranks, M)
    check(results, [layer_or_loss(stage, plan.stages) for stage in range(plan.stages)], x, t)
    assert [pipeline.most_in_flight for pipeline, _ in results] == list(simulate(plan).in_flight)


@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("late", [False, True])
def test_weights_can_wait_for_the_end_of_the_batch(schedule, late, recompute):
    x, t = data()
    program = lambda comm: train_once(
        comm, schedule, 4, layer_or_loss, x, t, late_weights=late, recompute=recompute
    )
    stages = make_schedule(schedule, 2, 4).stages
    check(mnpar.run(program, 2), [layer_or_loss(stage, stages) for stage in range(stages)], x, t)


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_gradients_are_those_of_one_process_on_mpi_too(comm, schedule):
    x, t = data()
    pipeline, mine = train_once(comm, schedule, 4, layer_or_loss, x, t)
    stages = [
        layer_or_loss(stage, pipeline.schedule.stages) for stage in range(pipeline.schedule.stages)
    ]
    _, expected = alone(stages, x, t)
    for stage, gradients in mine.items():
        for g, truth in zip(gradients, expected[stage], strict=True):
            np.testing.assert_allclose(g, truth, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("M", [2, 5])
def test_recomputation_changes_no_gradient(schedule, M):
    x, t = data()
    results = mnpar.run(
        lambda comm: train_once(comm, schedule, M, layer_or_loss, x, t, recompute=True), 3
    )
    stages = make_schedule(schedule, 3, M).stages
    check(results, [layer_or_loss(stage, stages) for stage in range(stages)], x, t)


OWN = {
    "last in, first out": ["F0 F1 F2 B2 B1 B0", "F0 F1 F2 B2 B1 B0"],
    "another order on each rank": ["F0 F1 F2 B2 B0 B1", "F2 F0 F1 B0 B2 B1"],
    "weights last": ["F0 F1 F2 I0 I1 I2 W2 W1 W0", "F0 I0 F1 I1 F2 I2 W0 W1 W2"],
    "halves on one rank only": ["F0 F1 F2 B0 B1 B2", "F0 I0 F1 I1 W0 F2 W1 B2"],
    "two stages on one rank, apart": [
        "0F0 2F0 2B0 0F1 2F1 2B1 0F2 2F2 2B2 0B0 0B1 0B2",
        "1F0 1F1 1B0 1F2 1B1 1B2",
    ],
}


@pytest.mark.parametrize("actions", OWN.values(), ids=OWN)
def test_a_list_of_ones_own_has_the_same_gradients(actions):
    x, t = data()
    plan = own_schedule(actions)
    results = mnpar.run(train_once, 2, args=(plan, 3, layer_or_loss, x, t))
    check(results, [layer_or_loss(stage, plan.stages) for stage in range(plan.stages)], x, t)


SIZES = {
    "uneven": (10, 4),
    "explicit": (10, [5, 1, 4]),
    "one each": (3, 3),
    "fewer examples than pieces": (2, 3),
}


@pytest.mark.parametrize(("n", "M"), SIZES.values(), ids=SIZES)
def test_micro_batches_of_any_size_make_the_mean_of_the_batch(n, M):
    x, t = data(n)

    def program(comm):
        pipeline = Pipeline(comm, layer_or_loss(comm.rank, 2), "1f1b", M)
        pipeline(x if comm.rank == 0 else t).backward()
        return pipeline, {comm.rank: [p.grad for p in pipeline.params()]}

    check(mnpar.run(program, 2), [layer_or_loss(stage, 2) for stage in range(2)], x, t)


@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("n", [0, 1, 2])
def test_a_micro_batch_without_examples_is_not_computed(n, recompute):
    x, t = data(n)
    sizes = []

    def stage(comm):
        link = layer_or_loss(comm.rank, 3)

        def call(h, *t):
            sizes.append(len(h))
            if comm.rank == 0:
                send_to_stage(h, 2)
            return link(h, *t) + (F.sum(recv_from_stage(0)) if comm.rank == 2 else 0)

        return call

    def program(comm):
        pipeline = Pipeline(comm, stage(comm), "1f1b", 4, recompute=recompute)
        own = [(x,), (), (t,)][comm.rank]
        pipeline(*own).backward()
        with mnpar.no_backprop_mode():
            loss = pipeline(*own)
        return loss is None, pipeline.loss is None

    assert mnpar.run(program, 3) == [(True, True), (True, True), (n == 0, n == 0)]
    assert sizes == [1] * n * 3 * (3 if recompute else 2)


class UNet(mnpar.ChainList):
    """Four stages: down, down, up, up; the outer two and the inner two are joined past the next
    stage.
    """

    def __init__(self, stage):
        super().__init__(Layer(stage), Layer(stage + 10))
        self.stage = stage

    def forward(self, x, t=None, skip=None):
        if self.stage < 2:
            h = self[0](x)
            return h, self[1](h)  # what skips, what goes on
        y = self[0](x) + self[1](skip)
        return y if t is None else F.mean_squared_error(y, t)


class StageOfUNet(UNet):
    """The same on ranks: the skip connections are sent past the stages between."""

    def forward(self, x, t=None):
        if self.stage < 2:
            skip, y = super().forward(x)
            send_to_stage(skip, 3 - self.stage, tag=self.stage)
            return y
        return super().forward(x, t, recv_from_stage(3 - self.stage, tag=3 - self.stage))


def unet_alone(x, t):
    stages = [UNet(stage) for stage in range(4)]
    a, h = stages[0](x)
    b, h = stages[1](h)
    loss = stages[3](stages[2](h, skip=b), t, skip=a)
    loss.backward()
    return loss.array, [[p.grad for p in stage.params()] for stage in stages]


@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb1p", "zbv", "interleaved"])
@pytest.mark.parametrize("M", [1, 3])
def test_skip_connections_pass_over_stages(schedule, M, recompute):
    x, t = data()
    ranks = 4 if schedule in ("gpipe", "1f1b", "zb1p") else 2

    def program(comm):
        return train_once(
            comm, schedule, M, lambda stage, _: StageOfUNet(stage), x, t, recompute=recompute
        )

    loss, expected = unet_alone(x, t)
    results = mnpar.run(program, ranks)
    for pipeline, found in results:
        assert pipeline.loss is None or abs(pipeline.loss - loss) < 1e-12
        for stage, gradients in found.items():
            for g, truth in zip(gradients, expected[stage], strict=True):
                np.testing.assert_allclose(g, truth, rtol=1e-12, atol=1e-14)


class Split(Layer):
    """Two inputs, two outputs, one of which is an array of integers."""

    def forward(self, a, b):
        y = super().forward(a * b)
        return y, y + a, (y.array > 0).astype(np.int64)


def several_alone(x, u, t):
    first = Layer(0)
    middle = Split(1)
    last = Layer(2)
    h = first(x)
    a, b, mask = middle(h, h * u)
    loss = F.mean_squared_error(last(a * mask) - b, t)
    loss.backward()
    return [[p.grad for p in stage.params()] for stage in (first, middle, last)]


@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb1p"])
def test_a_stage_has_several_inputs_and_outputs(schedule, recompute):
    x, t = data()
    u = data(seed=1)[0]
    links = [Layer(0), Split(1), Layer(2)]

    def first(x, u):
        h = links[0](x)
        return h, h * u

    calls = [first, links[1], lambda a, b, mask, t: F.mean_squared_error(links[2](a * mask) - b, t)]

    def program(comm):
        pipeline = Pipeline(comm, calls[comm.rank], schedule, 3, recompute=recompute)
        pipeline(*[(x, u), (), (t,)][comm.rank]).backward()

    mnpar.run(program, 3)
    for link, expected in zip(links, several_alone(x, u, t), strict=True):
        for p, g in zip(link.params(), expected, strict=True):
            np.testing.assert_allclose(p.grad, g, rtol=1e-12, atol=1e-14)


def test_shapes_change_from_batch_to_batch_and_within_one():
    """Sequences of other lengths in each micro-batch, padded to the longest of it."""
    rng = np.random.default_rng(0)
    links = [Layer(0), Layer(1)]
    twins = [Layer(0), Layer(1)]

    def encode(layer, xs):
        return F.stack([F.sum(layer(x), axis=0) for x in xs]), F.pad_sequence(
            [layer(x) for x in xs], padding=0.0
        )

    def program(comm, sequences, t):
        def first(*xs):
            return encode(links[0], *xs)

        def last(h, padded, t):
            return F.mean_squared_error(links[1](h) + F.sum(padded, axis=1), t)

        Pipeline(comm, [first, last][comm.rank], "1f1b", 3)([sequences, t][comm.rank]).backward()

    for n in (7, 4):
        sequences = [rng.standard_normal((length, D)) for length in rng.integers(1, 6, n)]
        t = rng.standard_normal((n, D))
        mnpar.run(program, 2, args=(sequences, t))
        h, padded = encode(twins[0], sequences)
        F.mean_squared_error(twins[1](h) + F.sum(padded, axis=1), t).backward()
    for link, twin in zip(links, twins, strict=True):
        for p, q in zip(link.params(), twin.params(), strict=True):
            np.testing.assert_allclose(p.grad, q.grad, rtol=1e-12)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb1p"])
def test_two_encoders_feed_one_decoder(schedule):
    """Stage 1 takes nothing of stage 0, whose output passes it by."""
    x, t = data()
    u = data(seed=1)[0]
    links = [Layer(0), Layer(1), Layer(2)]

    def left(x):
        send_to_stage(links[0](x), 2)

    def right(u):
        return links[1](u)

    def decoder(h, t):
        return F.mean_squared_error(links[2](h * recv_from_stage(0)), t)

    def program(comm):
        Pipeline(comm, [left, right, decoder][comm.rank], schedule, 4)(
            [x, u, t][comm.rank]
        ).backward()

    mnpar.run(program, 3)
    a = Layer(0)
    b = Layer(1)
    c = Layer(2)
    F.mean_squared_error(c(b(u) * a(x)), t).backward()
    for link, twin in zip(links, (a, b, c), strict=True):
        for p, q in zip(link.params(), twin.params(), strict=True):
            np.testing.assert_allclose(p.grad, q.grad, rtol=1e-12)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb1p"])
def test_stages_on_several_ranks_share_a_parameter(schedule):
    x, t = data()

    def program(comm):
        # rank 2 begins elsewhere, and gets rank 0's
        link = Layer(comm.rank if comm.rank < 2 else 7)
        shared = {"W": link.W} if comm.rank != 1 else {}
        stage = link if comm.rank < 2 else lambda h, t: F.mean_squared_error(link(h), t)
        pipeline = Pipeline(comm, stage, schedule, 3, shared=shared)
        pipeline(*[(x,), (), (t,)][comm.rank]).backward()
        return link.W.grad, link.W.array

    found = mnpar.run(program, 3)
    first = Layer(0)
    middle = Layer(1)
    last = Layer(7)
    last.W = first.W
    F.mean_squared_error(last(middle(first(x))), t).backward()
    np.testing.assert_allclose(found[0][0], first.W.grad, rtol=1e-12)
    np.testing.assert_allclose(found[2][0], first.W.grad, rtol=1e-12)
    np.testing.assert_array_equal(found[2][1], found[0][1])


def test_gradients_of_a_shared_parameter_add_to_those_that_are_there():
    x, t = data()

    def program(comm):
        link = Layer(0)
        stage = link if comm.rank == 0 else lambda h, t: F.mean_squared_error(link(h), t)
        pipeline = Pipeline(comm, stage, "1f1b", 3, shared={"W": link.W})
        for _ in range(3):
            pipeline([x, t][comm.rank]).backward()
        return link.W.grad

    layer = Layer(0)
    F.mean_squared_error(layer(layer(x)), t).backward()
    for g in mnpar.run(program, 2):
        np.testing.assert_allclose(g, 3 * layer.W.grad, rtol=1e-12)


def test_a_shared_parameter_that_a_stage_leaves_out_is_scaled_and_heard_of_there_too():
    x, t = data()

    def program(comm):
        link, heard = Layer(0), []
        link.W.register_hook(heard.append, after=True)
        stage = F.tanh if comm.rank == 0 else lambda h, t: F.mean_squared_error(link(h), t)
        pipeline = Pipeline(comm, stage, "1f1b", 2, shared={"W": link.W})
        pipeline([x, t][comm.rank]).backward(loss_scale=8.0)
        return link.W.grad, link.W.node.loss_scale, len(heard)

    (g, *one), (h, *other) = mnpar.run(program, 2)
    np.testing.assert_array_equal(g, h)
    assert one == other == [8.0, 1]


def test_a_parameter_can_be_sent_to_a_stage_that_uses_it_too():
    x, t = data()
    links = [Layer(0), Layer(1)]

    def first(x):
        send_to_stage(links[0].W, 1)
        return links[0](x)

    def last(h, t):
        return F.mean_squared_error(links[1](h @ recv_from_stage(0)), t)

    mnpar.run(
        lambda comm: Pipeline(comm, [first, last][comm.rank], "zb1p", 3)(
            [x, t][comm.rank]
        ).backward(),
        2,
    )
    a = Layer(0)
    b = Layer(1)
    F.mean_squared_error(b(a(x) @ a.W), t).backward()
    np.testing.assert_allclose(links[0].W.grad, a.W.grad, rtol=1e-12)


def test_two_stages_of_a_rank_use_one_link():
    x, t = data()

    def program(comm):
        link = Layer(comm.rank)
        last = (lambda h, t: F.mean_squared_error(link(h), t)) if comm.rank == 0 else link
        pipeline = Pipeline(comm, [link, last], "zbv", 3)
        pipeline(*[(x, t), ()][comm.rank]).backward()
        return [p.grad for p in link.params()]

    found = mnpar.run(program, 2)
    a = Layer(0)
    b = Layer(1)
    F.mean_squared_error(a(b(b(a(x)))), t).backward()
    for link, gradients in zip((a, b), found, strict=True):
        for p, g in zip(link.params(), gradients, strict=True):
            np.testing.assert_allclose(g, p.grad, rtol=1e-12)


STATEFUL = {  # layers that read and change values of their own whenever they are called
    "batch normalization": lambda: L.BatchNormalization(4),
    "renormalization": lambda: L.BatchRenormalization(4, rmax=3, dmax=5),
    "spectral norm": lambda: L.Linear(4, 4).add_hook(mnpar.link_hooks.SpectralNormalization()),
}


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("make", STATEFUL.values(), ids=STATEFUL)
def test_a_recomputed_layer_computes_with_the_values_of_its_forward(make, schedule):
    """Gradients, running values and vectors are those without recomputation, though the forwards
    of other micro-batches have changed these in between.
    """
    rng = np.random.default_rng(0)
    x, t = rng.standard_normal((9, 4)), rng.standard_normal((9, 4))

    def program(comm, recompute):
        with mnpar.using_config("dtype", np.float64):
            with mnpar.random.using(np.random.default_rng(comm.rank)):
                link = make()
                stage = link if comm.rank == 0 else lambda h, t: F.mean_squared_error(link(h), t)
                pipeline = Pipeline(comm, stage, schedule, 3, recompute=recompute)
                pipeline([x, t][comm.rank]).backward()
            found = [p.grad for p in link.params()]
            return found + [getattr(link, name) for name in sorted(link._persistent)]

    for kept, again in zip(
        mnpar.run(program, 2, (False,)), mnpar.run(program, 2, (True,)), strict=True
    ):
        for one, other in zip(kept, again, strict=True):
            np.testing.assert_allclose(other, one, rtol=1e-12)


def test_recomputed_dropout_drops_the_same():
    x, t = data()

    def program(comm, recompute):
        mnpar.random.seed(comm.rank)
        link = Layer(comm.rank)
        stage = (
            (lambda x: F.dropout(link(x), 0.5))
            if comm.rank == 0
            else lambda h, t: F.mean_squared_error(link(F.dropout(h)), t)
        )
        Pipeline(comm, stage, "gpipe", 3, recompute=recompute)([x, t][comm.rank]).backward()
        return [p.grad for p in link.params()], mnpar.random.generator().random()

    for (kept, a), (again, b) in zip(
        mnpar.run(program, 2, (False,)), mnpar.run(program, 2, (True,)), strict=True
    ):
        assert a == b
        for g, h in zip(kept, again, strict=True):
            np.testing.assert_allclose(g, h, rtol=1e-12)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_an_optimizer_takes_the_steps_of_one_process(schedule):
    x, t = data()

    def program(comm):
        plan = make_schedule(schedule, comm.size, 4)
        links = [layer_or_loss(stage, plan.stages) for stage in plan.stages_of(comm.rank)]
        pipeline = Pipeline(comm, links, schedule, 4)
        optimizer = mnpar.optimizers.MomentumSGD(lr=0.1).setup(pipeline)
        for _ in range(3):
            optimizer.update(pipeline, *arguments(comm, pipeline, x, t))
        return {
            stage: [p.array for p in link.params()]
            for stage, link in zip(plan.stages_of(comm.rank), links, strict=True)
        }

    found = {stage: arrays for one in mnpar.run(program, 2) for stage, arrays in one.items()}
    model = mnpar.ChainList(*[layer_or_loss(stage, len(found)) for stage in range(len(found))])
    optimizer = mnpar.optimizers.MomentumSGD(lr=0.1).setup(model)

    def loss():
        h = x
        for link in model[:-1]:
            h = link(h)
        return model[-1](h, t)

    for _ in range(3):
        optimizer.update(loss)
    for stage, link in enumerate(model):
        for p, array in zip(link.params(), found[stage], strict=True):
            np.testing.assert_allclose(array, p.array, rtol=1e-12)


@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
def test_a_loss_scale_multiplies_all_gradients_and_the_optimizer_divides_it_out(recompute):
    x, t = data()
    results = mnpar.run(
        lambda comm: train_once(comm, "zb1p", 3, layer_or_loss, x, t, 64.0, recompute=recompute), 2
    )
    check(results, [layer_or_loss(stage, 2) for stage in range(2)], x, t, 64.0)
    assert {p.node.loss_scale for pipeline, _ in results for p in pipeline.params()} == {64.0}


MIDDLES = {
    "": lambda comm: Layer(1),
    "normalized over the copies": lambda comm: L.MultiNodeBatchNormalization(D, comm, decay=0.5),
    "experts whose choices the copies count": lambda comm: L.MixtureOfExperts(
        comm.split(comm.rank, 0),
        lambda i: L.Linear(D, D, initialW=i),
        3,
        D,
        initialW=np.eye(3, D),
        data_comm=comm,
    ),
}


@pytest.mark.parametrize("name", MIDDLES)
def test_a_copy_of_a_pipeline_may_have_no_samples(name):
    """Three stages; of the three copies one has 5 samples in 4 micro-batches, one has 2, and one
    has none.
    """
    x, t = data(7)
    norm = "normalized" in name

    def stages(comm):
        return [Layer(0), MIDDLES[name](comm), Loss(2)]

    def program(comm):
        rank = comm.rank % 3
        copy = comm.rank // 3
        mine = [slice(5), slice(5, 5), slice(5, 7)][comm.rank // 3]
        line = comm.split(copy, comm.rank)
        copies = comm.split(rank, comm.rank)
        pipeline = Pipeline(line, stages(copies)[rank], "1f1b", 1 if norm else 4)
        optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(0.1), copies).setup(
            pipeline
        )
        for _ in range(2):
            optimizer.update(pipeline, *[(x[mine],), (), (t[mine],)][rank])
        return [p.array for p in pipeline.params()], pipeline.loss is None

    first, middle, last = whole = stages(mnpar.create_communicator("self"))
    optimizer = mnpar.optimizers.SGD(0.1).setup(mnpar.ChainList(*whole))
    for _ in range(2):
        optimizer.update(lambda: last(middle(first(x)), t))
    for rank, (arrays, none) in enumerate(mnpar.run(program, 9)):
        assert none == (rank not in (2, 8))
        for array, param in zip(arrays, whole[rank % 3].params(), strict=True):
            np.testing.assert_allclose(
                array, param.array, rtol=1e-5 if name else 1e-12, atol=1e-9 * bool(name)
            )


@pytest.mark.parametrize("bucket", [None, 100], ids=["after backward", "in buckets"])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb1p"])
def test_copies_of_a_pipeline_learn_together(schedule, bucket):
    """Two copies of two stages; the shards differ in size."""
    x, t = data()
    shards = [slice(0, 7), slice(7, 10)]

    def program(comm):
        line = comm.split(comm.rank // 2, comm.rank)
        copies = comm.split(comm.rank % 2, comm.rank)
        pipeline = Pipeline(line, layer_or_loss(line.rank, 2), schedule, 3)
        options = {} if bucket is None else {"bucket_bytes": bucket}
        optimizer = mnpar.create_multi_node_optimizer(
            mnpar.optimizers.SGD(1.0), copies, **options
        ).setup(pipeline)
        optimizer.update(pipeline, (x, t)[line.rank][shards[copies.rank]])
        return [p.array for p in pipeline.params()]

    found = mnpar.run(program, 4)
    stages = [layer_or_loss(stage, 2) for stage in range(2)]
    _, expected = alone(stages, x, t)
    for rank, arrays in enumerate(found):
        for p, array, g in zip(stages[rank % 2].params(), arrays, expected[rank % 2], strict=True):
            np.testing.assert_allclose(array, p.array - g, rtol=1e-12, atol=1e-14)


def test_hooks_hear_of_a_gradient_once_in_a_batch():
    x, t = data()

    def program(comm):
        pipeline = Pipeline(comm, layer_or_loss(comm.rank, 2), "1f1b", 3)
        heard = []
        for p in pipeline.params():
            p.register_hook(lambda g: heard.append(g.copy()) or 2 * g)
            p.register_hook(lambda node: heard.append(node), after=True)
        pipeline([x, t][comm.rank]).backward()
        return len(heard), [p.grad for p in pipeline.params()]

    _, expected = alone([layer_or_loss(stage, 2) for stage in range(2)], x, t)
    for (heard, gradients), truth in zip(mnpar.run(program, 2), expected, strict=True):
        assert heard == 4
        for g, h in zip(gradients, truth, strict=True):
            np.testing.assert_allclose(g, 2 * h, rtol=1e-12)


class Mixed(mnpar.Chain):
    """A weight that is sent; two of a norm, whose gradients come with that of its input; one that a
    function reads again.
    """

    def __init__(self, comm):
        super().__init__()
        self.comm = comm
        self.W = mnpar.Parameter(data(D)[0])
        self.last = mnpar.Parameter(data(D)[1])
        self.norm, self.runs = L.LayerNormalization(D), 0

    def again(self, y):
        self.runs += 1
        return F.linear(y, self.last)

    def forward(self, x, t):
        y = self.norm(F.linear(x, F.copy_to(self.comm, self.W)))
        return F.mean_squared_error(F.forget(self.again, F.tanh(y)), t)


@pytest.mark.parametrize("abreast", [False, True])
def test_gradients_that_do_not_wait_are_found_once_and_hooks_hear_of_them_once(abreast):
    x, t = data()

    def program(comm):
        with mnpar.using_config("dtype", np.dtype("f8")):
            model = Mixed(comm)
            truth = Mixed(comm)
        truth(x, t).backward()
        for p in model.params():
            p.register_hook(lambda g: 2 * g)
        with mnpar.function_hooks.TimerHook() as hook:
            Pipeline(comm, model, "1f1b", 3, abreast=abreast)(x, t).backward()
        for p, q in zip(model.params(), truth.params(), strict=True):
            np.testing.assert_allclose(p.grad, 2 * q.grad, rtol=1e-12, atol=1e-15)
        return len(
            [function for function, _ in hook.call_history if "LayerNorm" in str(function)]
        ), model.runs

    assert mnpar.run(program, 1) == [(6, 6)]  # forward and backward of three micro-batches


@pytest.mark.parametrize("late", [False, True])
def test_function_hooks_see_the_weights_gradients_too(late):
    x, t = data()

    def program(comm):
        pipeline = Pipeline(comm, layer_or_loss(comm.rank, 2), "1f1b", 3, late_weights=late)
        with mnpar.function_hooks.TimerHook() as hook:
            pipeline([x, t][comm.rank]).backward()
        return len([function for function, _ in hook.call_history if "Linear" in str(function)])

    # forward 3, inputs' gradients 0 and 3, weights' 1 or 3
    assert mnpar.run(program, 2) == ([4, 7] if late else [6, 9])


def test_gradients_add_to_those_that_are_there():
    x, t = data()

    def program(comm):
        pipeline = Pipeline(comm, layer_or_loss(comm.rank, 2), "1f1b", 3)
        for _ in range(2):
            pipeline([x, t][comm.rank]).backward()
        return [p.grad for p in pipeline.params()]

    _, expected = alone([layer_or_loss(stage, 2) for stage in range(2)], x, t)
    for found, truth in zip(mnpar.run(program, 2), expected, strict=True):
        for g, h in zip(found, truth, strict=True):
            np.testing.assert_allclose(g, 2 * h, rtol=1e-12)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_evaluation_gives_the_whole_batchs_outputs_or_its_mean_loss(schedule):
    x, t = data()

    def program(comm):
        plan = make_schedule(schedule, comm.size, 4)
        links = [layer_or_loss(stage, plan.stages) for stage in plan.stages_of(comm.rank)]
        pipeline = Pipeline(comm, links, schedule, 4)
        calls = [getattr(link, "layer", link) for link in links]
        predictor = Pipeline(comm, calls, schedule, 4, labels=0)
        with mnpar.no_backprop_mode():
            loss = pipeline(*arguments(comm, pipeline, x, t))
            y = predictor(*[x] * (comm.rank == plan.where[0]))
        return [None if v is None else v.array for v in (loss, y)]

    found = mnpar.run(program, 2)
    stages = make_schedule(schedule, 2, 4).stages
    h = x
    for stage in range(stages - 1):
        h = Layer(stage)(h)
    (loss,), (y,) = [
        [one for one in column if one is not None] for column in zip(*found, strict=True)
    ]
    assert loss == pytest.approx(float(Loss(stages - 1)(h, t).array), rel=1e-12)
    np.testing.assert_allclose(y, Layer(stages - 1)(h).array, rtol=1e-12)


def test_reports_are_the_means_of_the_whole_batch():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((10, D))
    t = rng.integers(0, D, 10)

    def program(comm, evaluate):
        stage = Layer(0) if comm.rank == 0 else L.Classifier(Layer(1))
        pipeline = Pipeline(comm, stage, "1f1b", 4)
        reporter = mnpar.Reporter()
        reporter.add_observer("main", pipeline)
        reporter.add_observers("main", pipeline.namedlinks(skipself=True))
        with reporter, mnpar.using_config("enable_backprop", not evaluate):
            step = pipeline([x, t][comm.rank])
            if not evaluate:
                step.backward()
        return {name: float(value) for name, value in reporter.observation.items()}

    y = Layer(1)(Layer(0)(x))
    loss = float(F.softmax_cross_entropy(y, t).array)
    accuracy = float(F.accuracy(y, t).array)
    for evaluate in (False, True):
        first, last = mnpar.run(program, 2, (evaluate,))
        assert first == {}
        assert last == pytest.approx(
            {"main/loss": loss, "main/0/loss": loss, "main/0/accuracy": accuracy}
        )


def test_the_ranks_between_are_called_without_arguments():
    """The ordinary loop: iterators, the converter, an empty data set."""
    x, t = data(8)

    def program(comm):
        pipeline = Pipeline(comm, layer_or_loss(comm.rank, 3), "1f1b", 2)
        optimizer = mnpar.optimizers.SGD(0.1).setup(pipeline)
        own = [list(zip(x)), mnpar.create_empty_dataset(x), list(zip(t))][comm.rank]
        batches = mnpar.iterators.SerialIterator(own, 4, shuffle=False)
        for _ in range(2):
            optimizer.update(pipeline, *mnpar.dataset.concat_examples(next(batches)))
        return optimizer.t, pipeline.loss

    found = mnpar.run(program, 3)
    assert [step for step, _ in found] == [2, 2, 2]
    assert found[2][1] is not None


def test_a_copy_works_with_the_same_ranks():
    x, t = data()

    def program(comm):
        pipeline = Pipeline(comm, layer_or_loss(comm.rank, 2), "1f1b", 2)
        with mnpar.no_backprop_mode():
            loss = copy.deepcopy(pipeline)([x, t][comm.rank])
        return None if loss is None else float(loss.array)

    assert mnpar.run(program, 2)[1] == pytest.approx(float(Loss(1)(Layer(0)(x), t).array))


def one_layer(comm, schedule="1f1b", M=2):
    return Pipeline(comm, Layer(0), schedule, M)


STUCK = own_schedule(["F0 B0 F1 B1", "F1 B1 F0 B0"])
WRONG = {
    "too many stages": (
        lambda comm: Pipeline(comm, [Layer(0)] * 2, "1f1b", 2),
        r"puts the stages \[\d\] here, but 2 were given",
    ),
    "for other ranks": (
        lambda comm: one_layer(comm, make_schedule("1f1b", 3, 2)),
        "is for 3 ranks and 2 micro-batches",
    ),
    "a schedule that cannot end": (
        lambda comm: one_layer(comm, STUCK),
        "its ranks wait for each other",
    ),
    "lengths": (
        lambda comm: one_layer(comm)(np.ones((2, D)), np.ones((3, D))),
        r"different lengths: \[2, 3\]",
    ),
    "sizes": (
        lambda comm: one_layer(comm, M=[1, 2])(np.ones((4, D))),
        r"not cut into micro-batches of \[1, 2\]",
    ),
    "no loss": (
        lambda comm: one_layer(comm)(*[np.ones((2, D))][comm.rank :]).backward(),
        "returns a loss, a scalar",
    ),
    "double backprop": (
        lambda comm: one_layer(comm)().backward(enable_double_backprop=True),
        "neither graphs nor",
    ),
    "no such stage": (
        lambda comm: Pipeline(comm, lambda *x: send_to_stage(x, 5))().backward(),
        "of 0 to 1 gives to later stages, not to 5",
    ),
    "to an earlier stage": (
        lambda comm: Pipeline(comm, [F.tanh, lambda y: send_to_stage(y, 0)][comm.rank])(
            *[np.ones((2, D))][comm.rank :]
        ).backward(),
        "stage 1 of 0 to 1 gives to later stages, not to 0",
    ),
    "a tag below 0": (
        lambda comm: Pipeline(
            comm, [lambda: send_to_stage((), 1, -1), F.tanh][comm.rank]
        )().backward(),
        "tags are numbers from 0 on",
    ),
    "half a micro-batch": (lambda comm: one_layer(comm, M=2.5), "not 2.5"),
    "fewer than no examples": (lambda comm: one_layer(comm, M=[3, -1]), r"not \[3, -1\]"),
    "shapes of one parameter": (
        lambda comm: Pipeline(comm, F.tanh, shared={"W": mnpar.Parameter(0, 2 + comm.rank)}),
        r"'W' has shape \(3,\) here and \(2,\)",
    ),
}


@pytest.mark.parametrize(("program", "message"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_run_says_why(program, message):
    with pytest.raises(ValueError, match=message):
        mnpar.run(program, 2)


def test_a_batch_goes_through_once():
    def program(comm):
        step = Pipeline(comm, Loss(0), "1f1b", 1)(np.ones((1, D)), np.ones((1, D)))
        step.backward()
        step.backward()

    with pytest.raises(RuntimeError, match="call the pipeline again"):
        mnpar.run(program, 1)


def test_speaking_to_stages_needs_a_pipeline():
    with pytest.raises(RuntimeError, match="while a Pipeline runs it"):
        recv_from_stage(0)


# ---- a model as named layers ----


class Tied(mnpar.Chain):
    """A loss by the matrix of another layer."""

    def __init__(self):
        super().__init__()
        self.inner = Layer(9)
        self.inner.W = mnpar.Parameter(np.zeros((D, D)))  # not used: it is the first layer's

    def forward(self, y, t=None):
        return self.inner(y) if t is None else F.mean_squared_error(self.inner(y), t)


LAYERS = {
    "first": lambda: Layer(0),
    "tanh": lambda: F.tanh,
    "second": lambda: Layer(1),
    "third": lambda: Layer(2),
    "last": Tied,
}


@pytest.mark.parametrize("given", ["all", "what is needed"])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("ranks", [1, 2])
def test_named_layers_have_the_paths_and_gradients_of_the_whole_model(ranks, schedule, given):
    x, t = data()
    made = {name: make() for name, make in LAYERS.items()}
    made["last"].inner.W = made["first"].W
    h = x
    for layer in list(made.values())[:-1]:
        h = layer(h)
    made["last"](h, t).backward()
    expected = {
        path: p.grad
        for path, p in mnpar.Chain(**{k: v for k, v in made.items() if k != "tanh"}).namedparams()
    }

    def program(comm):
        pipeline = Pipeline.of(comm, LAYERS, schedule, 3, tied={"/last/inner/W": "/first/W"})
        where = pipeline.schedule.where
        mine = (
            (x, t)
            if given == "all"
            else (x if comm.rank == where[0] else None, t if comm.rank == where[-1] else None)
        )
        pipeline(*mine).backward()
        gradients = {path: p.grad for path, p in pipeline.namedparams()}
        with mnpar.no_backprop_mode():
            return gradients, pipeline(x), where[-1] == comm.rank

    found = {}
    for gradients, y, last in mnpar.run(program, ranks=ranks):
        for path, g in gradients.items():
            np.testing.assert_allclose(g, expected[path], rtol=1e-10, err_msg=path)
            found[path] = g
        if last:
            np.testing.assert_allclose(y.array, made["last"](h).array)
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_shared_weights_begin_as_the_owners(ranks, schedule):
    """The other layer draws in another way."""
    links = {
        name: lambda i=i: L.Linear(D, D, initialW=mnpar.initializers.Normal(i))
        for i, name in enumerate("abcdef")
    }

    def program(comm):
        pipeline = Pipeline.of(comm, links, schedule, tied={"/e/W": "/b/W"})
        mnpar.initializers.initialize_by_path(pipeline, 0)
        return {path: p.array for path, p in pipeline.namedparams()}

    expected = mnpar.initializers.initialize_by_path(mnpar.Chain(b=links["b"]()), 0).b.W.array
    found = [values["/b/W"] for values in mnpar.run(program, ranks=ranks) if "/b/W" in values]
    assert found
    assert all((array == expected).all() for array in found)


BAD_LAYERS = {
    "too few": (dict(list(LAYERS.items())[:1]), {}, "1 layers cannot be cut into 2 stages"),
    "wrong sizes": (LAYERS, {"sizes": [5, 0]}, r"cannot be cut into 2 stages of \[5, 0\]"),
    "no such weight": (
        LAYERS,
        {"tied": {"/last/inner/V": "/first/W"}},
        "there is no parameter '/last/inner/V'",
    ),
    "an owner that comes last": (
        LAYERS,
        {"tied": {"/first/W": "/last/inner/W"}},
        "the layer 'last' comes after 'first'",
    ),
    "no such layer": (LAYERS, {"tied": {"/lost/W": "/first/W"}}, "there is no layer 'lost'"),
    "a link's name": ({"params": lambda: Layer(0), "b": Tied}, {}, "cannot be called 'params'"),
}


@pytest.mark.parametrize(("layers", "options", "message"), BAD_LAYERS.values(), ids=BAD_LAYERS)
def test_layers_that_cannot_be_cut_are_refused(layers, options, message):
    with pytest.raises(ValueError, match=message):
        mnpar.run(lambda comm: Pipeline.of(comm, layers, **options), ranks=2)


def test_shared_gradients_are_added_up_before_buckets_leave():
    """Two copies of a pipeline whose first and last stage share a weight, reduced while backward
    goes on.
    """

    def program(comm, bucket_bytes):
        mesh = mnpar.Mesh(comm, data=2, pipe=2)
        pipeline = Pipeline.of(mesh.pipe, LAYERS, "1f1b", 2, tied={"/last/inner/W": "/first/W"})
        optimizer = mnpar.create_multi_node_optimizer(
            mnpar.optimizers.SGD(0.1), mesh, bucket_bytes=bucket_bytes
        )
        optimizer.setup(pipeline)
        for i in range(3):
            optimizer.update(pipeline, *data(seed=2 * i + mesh.data.rank))
        return {path: p.array for path, p in pipeline.namedparams()}

    for one, other in zip(
        *(mnpar.run(program, ranks=4, args=(size,)) for size in (None, 64)), strict=True
    ):
        for path, array in one.items():
            np.testing.assert_allclose(other[path], array, rtol=1e-12, err_msg=path)


@pytest.mark.parametrize(
    ("given", "sizes"),
    [(np.int64(2), None), (np.array([3, 1]), [3, 1]), (range(2), [0, 1])],
    ids=repr,
)
def test_the_number_of_micro_batches_and_their_sizes_may_be_numpys(given, sizes):
    pipeline = mnpar.Pipeline(
        mnpar.create_communicator("self"), L.Linear(2, 2), "1f1b", micro_batches=given
    )
    assert (pipeline.sizes, pipeline.schedule.micro_batches) == (sizes, 2)
