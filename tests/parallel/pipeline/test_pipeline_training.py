"""A pipeline in the ordinary trainer: updater, evaluator and log on every rank, as with the same
network on one.
"""

import json

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar import training
from mnpar.parallel import Pipeline
from mnpar.training import extensions


def layer(number):
    return L.Linear(4, 4, initialW=np.random.default_rng(number).standard_normal((4, 4)))


class Head(mnpar.Chain):
    """The last layer, which reports its own mean beside what a Classifier reports; as a pair with
    its weight.
    """

    def __init__(self):
        super().__init__()
        self.layer = layer(2)

    def forward(self, x):
        y = self.layer(x)
        mnpar.report({"size": (F.mean(y * y), y.size)}, self)
        return y


def examples(n, seed):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, 4)), rng.integers(0, 4, n)


def train(model, data, test, out):
    """Two epochs; the log, and the evaluation at the end."""
    optimizer = mnpar.optimizers.MomentumSGD(0.1).setup(model)
    batches = mnpar.iterators.SerialIterator(data, 6, shuffle=False)
    trainer = training.Trainer(
        training.StandardUpdater(batches, optimizer), (2, "epoch"), out=str(out)
    )
    evaluator = extensions.Evaluator(
        mnpar.iterators.SerialIterator(test, 5, repeat=False, shuffle=False), model
    )
    trainer.extend(evaluator)
    trainer.extend(extensions.LogReport())
    trainer.run()
    return json.loads((out / "log").read_text())


NAMES = ["main/loss", "validation/main/loss"]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb1p"])
def test_the_log_is_that_of_one_rank(schedule, tmp_path):
    (x, t), (u, v) = examples(20, 0), examples(11, 1)

    def program(comm):
        stage = [layer(0), layer(1), L.Classifier(Head())][comm.rank]
        pipeline = Pipeline(comm, stage, schedule, 4)
        of = lambda x, t: [
            mnpar.datasets.TupleDataset(x),
            mnpar.create_empty_dataset(x),
            mnpar.datasets.TupleDataset(t),
        ]
        log = train(pipeline, of(x, t)[comm.rank], of(u, v)[comm.rank], tmp_path / str(comm.rank))
        return log, [p.array for p in pipeline.params()]

    found = mnpar.run(program, 3)
    model = L.Classifier(mnpar.Sequential(layer(0), layer(1), Head()))
    expected = train(
        model,
        mnpar.datasets.TupleDataset(x, t),
        mnpar.datasets.TupleDataset(u, v),
        tmp_path / "alone",
    )
    for entry, truth in zip(found[2][0], expected, strict=True):
        assert entry["main/loss"] == pytest.approx(truth["main/loss"], rel=1e-6)
        for name in ("loss", "accuracy"):
            for prefix in ("main", "validation/main"):
                assert entry[f"{prefix}/0/{name}"] == pytest.approx(
                    truth[f"{prefix}/{name}"], rel=1e-6
                )
        assert entry["validation/main/0/predictor/size"] == pytest.approx(
            truth["validation/main/predictor/2/size"], rel=1e-6
        )
    assert [set(entry) & set(NAMES) for entry in found[0][0]] == [set(), set()]
    arrays = [array for _, some in found for array in some]
    for array, p in zip(arrays, model.params(), strict=True):
        np.testing.assert_allclose(array, p.array, rtol=1e-4, atol=1e-6)  # float32


def test_the_evaluation_reaches_all_ranks():
    x, t = examples(11, 0)

    def program(comm):
        pipeline = Pipeline(comm, layer(0) if comm.rank == 0 else L.Classifier(layer(1)), "1f1b", 3)
        own = mnpar.datasets.TupleDataset(x if comm.rank == 0 else t)
        evaluator = extensions.Evaluator(
            mnpar.iterators.SerialIterator(own, 4, repeat=False, shuffle=False), pipeline
        )
        return mnpar.create_multi_node_evaluator(evaluator, comm)()["main/loss"]

    y = layer(1)(layer(0)(x))
    assert mnpar.run(program, 2) == pytest.approx([float(F.softmax_cross_entropy(y, t).array)] * 2)
