"""A rank that reports its part of a loss as the loss is told, with a remedy that is right."""

import warnings

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar.training.extensions import LogReport
from tests.harness.parts import on_blocks

SHAPE = (6, 4)
X = np.arange(24.0).reshape(1, 1, *SHAPE) / 10
T = np.sin(X)


class Model(mnpar.Chain):
    """A convolution over an image in blocks; ``loss`` makes the loss of this block's errors."""

    def __init__(self, comm, loss):
        super().__init__()
        self.grid = mnpar.SpatialGrid(comm, (comm.size, 1))
        mnpar.random.seed(0)
        self.layer = L.Convolution2D(1, 1, 3, pad=1)
        self.loss = loss

    def forward(self, x, t):
        y = on_blocks(self.layer, self.grid, SHAPE)(mnpar.Variable(x))
        loss = self.loss(self.grid, (y - t) ** 2)
        mnpar.report({"loss": loss}, self)
        return loss


def train(comm, loss):
    """Three steps of a Trainer; the losses of the log, and the weights."""
    with mnpar.using_config("dtype", np.float64):
        model = Model(comm, loss)
    rows = model.grid.block(SHAPE).index[0]
    # one example: the block of the image
    data = mnpar.datasets.TupleDataset(X[:, :, rows][0][None], T[:, :, rows][0][None])
    optimizer = mnpar.optimizers.SGD(0.01).setup(model)
    iterator = mnpar.iterators.SerialIterator(data, 1)
    updater = mnpar.training.StandardUpdater(iterator, optimizer)
    trainer = mnpar.training.Trainer(updater, (3, "iteration"))
    log = LogReport(trigger=(1, "iteration"), filename=None)
    trainer.extend(log)
    trainer.run()
    return [entry["main/loss"] for entry in log.log], model.layer.W.array


WHOLE = {
    "sum": lambda grid, errors: F.reduce_from(grid.comm, F.sum(errors)),
    "mean": lambda grid, errors: F.reduce_from(grid.comm, F.mean(errors) * grid.share(SHAPE)),
}
PART = {
    "sum": lambda grid, errors: F.sum(errors),
    "mean": lambda grid, errors: F.mean(errors),
}


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("kind", WHOLE)
def test_the_remedy_reports_the_loss_of_one_process_and_trains_alike(kind, ranks):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ((losses, weights),) = mnpar.run(lambda comm: train(comm, WHOLE[kind]), ranks=1)
        for found, w in mnpar.run(lambda comm: train(comm, WHOLE[kind]), ranks=ranks):
            np.testing.assert_allclose(found, losses, rtol=1e-12)
            np.testing.assert_allclose(w, weights, rtol=1e-12)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("kind", PART)
def test_a_part_that_is_reported_as_the_loss_is_told_once(kind, ranks):
    with pytest.warns(
        UserWarning, match="reported at .*test_reported_parts.py.* of the rank's part"
    ) as told:
        mnpar.run(lambda comm: train(comm, PART[kind]), ranks=ranks)
    assert len([one for one in told if "of the rank's part" in str(one.message)]) == 1


def test_one_rank_is_told_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mnpar.run(lambda comm: train(comm, PART["mean"]), ranks=1)
