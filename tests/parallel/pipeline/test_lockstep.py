"""Backwards of the last stage that go abreast give the gradients of one process, with one product
for several micro-batches.
"""

from collections import Counter

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
)
from tests.parallel.pipeline.test_pipeline import (
    D,
    Layer,
    Loss,
    alone,
    arguments,
    check,
    data,
    layer_or_loss,
    train_once,
)

PAIRS = ["F0 F1 F2 F3 I0 I1 W0 W1 I2 I3 W2 W3", "F0 F1 I0 I1 F2 F3 I2 I3 W0 W1 W2 W3"]
TOGETHER = {
    "all": "gpipe",
    "pairs": own_schedule(PAIRS),
    "weights in another order": own_schedule([PAIRS[0], "F0 F1 F2 F3 I0 I1 I2 W1 I3 W0 W3 W2"]),
    "three and one": own_schedule(["F0 F1 F2 F3 B0 B1 B2 B3", "F0 F1 F2 B0 B2 B1 F3 B3"]),
}
together = pytest.mark.parametrize("schedule", TOGETHER.values(), ids=TOGETHER)


class Deep(mnpar.ChainList):
    """Layers, one of which is there twice, and a loss."""

    def __init__(self, stage):
        layer = Layer(stage + 10)
        super().__init__(layer, layer, Loss(stage))

    def forward(self, x, t):
        return self[2](self[1](F.relu(self[0](x))), t)


def deep_at_the_end(stage, stages):
    return Deep(stage) if stage == stages - 1 else Layer(stage)


@pytest.mark.grid
@pytest.mark.parametrize("ranks", range(1, 4))
@pytest.mark.parametrize("late", [False, True, None])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_gradients_are_those_of_one_process_in_known_schedules(schedule, late, ranks):
    x, t = data()
    results = mnpar.run(
        lambda comm: train_once(
            comm, schedule, 4, deep_at_the_end, x, t, late_weights=late, abreast=True
        ),
        ranks,
    )
    stages = make_schedule(schedule, ranks, 4).stages
    check(results, [deep_at_the_end(stage, stages) for stage in range(stages)], x, t)


@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("n", [10, 3])
@together
def test_gradients_are_those_of_one_process_with_uneven_and_empty_micro_batches(
    schedule, n, recompute
):
    x, t = data(n)
    program = lambda comm: train_once(
        comm, schedule, 4, deep_at_the_end, x, t, abreast=True, recompute=recompute
    )
    check(mnpar.run(program, 2), [deep_at_the_end(stage, 2) for stage in range(2)], x, t)


@pytest.mark.ranks(2)
@together
def test_gradients_are_those_of_one_process_on_mpi_too(comm, schedule):
    x, t = data()
    _, mine = train_once(comm, schedule, 4, deep_at_the_end, x, t, abreast=True)
    _, expected = alone([deep_at_the_end(stage, 2) for stage in range(2)], x, t)
    for stage, gradients in mine.items():
        for g, truth in zip(gradients, expected[stage], strict=True):
            np.testing.assert_allclose(g, truth, rtol=1e-12, atol=1e-13)


def test_micro_batches_may_go_through_different_functions():
    x, t = data(12)

    class Choosy(Loss):
        def forward(self, y, t):
            y = F.tanh(y) * 2 if t.array[0, 0] > 0 else y
            return super().forward(y, t) if t.array[0, 1] > 0 else F.sum(y) * 0.1

    class Each(Choosy):
        def forward(self, y, t):
            pieces = [slice(3 * m, 3 * m + 3) for m in range(4)]
            return sum(Choosy.forward(self, y[one], mnpar.Variable(t[one])) for one in pieces) / 4

    def program(comm):
        last = Choosy(1)
        pipeline = Pipeline(
            comm,
            Layer(0) if comm.rank == 0 else lambda y, t: last(y, mnpar.Variable(t)),
            "gpipe",
            4,
            abreast=True,
        )
        pipeline(*arguments(comm, pipeline, x, t)).backward()
        return pipeline, {
            comm.rank: [p.grad for p in (pipeline if comm.rank == 0 else last).params()]
        }

    check(mnpar.run(program, 2), [Layer(0), Each(1)], x, t)


def test_skip_connections_into_the_last_stage_go_back_too():
    x, t = data()
    first = Layer(0)
    middle = Layer(1)
    last = Loss(2)
    h = first(x)
    last(middle(h) + h, t).backward()
    expected = [[p.grad for p in link.params()] for link in (first, middle, last)]

    def program(comm):
        link = layer_or_loss(comm.rank, 3)

        def call(x, *t):
            y = link(x + recv_from_stage(0), *t) if t else link(x)
            if comm.rank == 0:
                send_to_stage(y, 2)
            return y

        Pipeline(comm, call, "gpipe", 4, abreast=True)(*[(x,), (), (t,)][comm.rank]).backward()
        return [p.grad for p in link.params()]

    for found, truth in zip(mnpar.run(program, 3), expected, strict=True):
        for g, h in zip(found, truth, strict=True):
            np.testing.assert_allclose(g, h, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(("abreast", "inputs"), [(False, 4), (True, 1)])
def test_a_layer_has_one_product_for_the_inputs_of_all_that_go_abreast(abreast, inputs):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((8, D))
    t = rng.integers(0, D, 8)

    class Count(mnpar.FunctionHook):
        def __init__(self):
            self.seen = Counter()

        def backward_postprocess(self, function, in_data, out_grad):
            self.seen[type(function).__name__] += 1

    def program(comm):
        stage = mnpar.Sequential(L.Linear(D, D), F.tanh, L.Linear(D, D))
        pipeline = Pipeline(
            comm, L.Classifier(stage) if comm.rank else stage, "gpipe", 4, abreast=abreast
        )
        with Count() as hook:
            pipeline([x.astype("f4"), t][comm.rank]).backward()
        return hook.seen["Linear"]

    # of each layer, at the end of the batch; the inputs of the first layer have no gradients
    weights = 1
    assert mnpar.run(program, 2) == [2 * weights + 4, 2 * weights + 2 * inputs]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_products_whose_columns_lie_together_are_joined_and_cut_apart_too(schedule):
    """Of float32 and more rows in W than in a micro-batch: linear layers compute those turned
    round.
    """
    D, N = 64, 4 * 25
    rng = np.random.default_rng(0)
    x = rng.standard_normal((N, D)).astype("f4")
    t = rng.integers(0, D, N)

    def stages():
        made = [mnpar.Sequential(L.Linear(D, D), F.relu, L.Linear(D, D), F.relu) for _ in range(2)]
        for p in (p for link in made for p in link.params()):
            p.array[...] = np.random.default_rng(p.size).standard_normal(p.shape) / 8
        return [made[0], L.Classifier(made[1])]

    def program(comm):
        stage = stages()[comm.rank]
        Pipeline(comm, stage, schedule, 4, abreast=True)((x, t)[comm.rank]).backward()
        return [p.grad for p in stage.params()]

    first, last = stages()
    last(first(x), t).backward()
    for found, link in zip(mnpar.run(program, 2), (first, last), strict=True):
        for g, p in zip(found, link.params(), strict=True):
            np.testing.assert_allclose(g, p.grad, rtol=1e-4, atol=1e-6)


def test_a_last_stage_that_is_divided_over_ranks_speaks_to_them_in_one_order():
    x, t = data()

    def program(comm, abreast):
        line = comm.split(comm.rank % 2, comm.rank)
        model = comm.split(comm.rank // 2, comm.rank)
        links = Layer(line.rank), Layer(10 + comm.rank)

        def last(h, t):
            h = F.tanh(F.reduce_from(model, links[1](F.copy_to(model, links[0](h)))))
            return F.mean_squared_error(h, t)

        pipeline = Pipeline(line, last if line.rank else links[0], "gpipe", 4, abreast=abreast)
        pipeline((x, t)[line.rank]).backward()
        return [p.grad for link in links[: 1 + line.rank] for p in link.params()]

    for found, expected in zip(
        mnpar.run(program, 4, (True,)), mnpar.run(program, 4, (False,)), strict=True
    ):
        for g, h in zip(found, expected, strict=True):
            np.testing.assert_allclose(g, h, rtol=1e-12, atol=1e-14)
