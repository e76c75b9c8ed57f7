"""A user's program, which type checkers read in test_type_checkers.py."""

import io
from typing import Any, assert_type

import numpy as np

import mnpar
import mnpar.functions as F
import mnpar.links as L


class Net(mnpar.Chain):
    """A network whose forward has types."""

    def __init__(self, units: int) -> None:
        super().__init__()
        with self.init_scope():
            self.l1 = L.Linear(None, units)
            self.l2 = L.Linear(units, 10)

    def forward(self, x: mnpar.Variable) -> mnpar.Variable:
        """Apply two layers."""
        return self.l2(F.relu(self.l1(x)))


class Halves(mnpar.Chain):
    """A network that defines ``__call__``, as Chainer's old programs do, and returns a pair."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net(8)

    def __call__(self, x: mnpar.Variable) -> tuple[mnpar.Variable, mnpar.Variable]:
        """Apply the network, and cut what it gives."""
        y = self.net(x)
        return y[:, :5], y[:, 5:]


def program(comm: mnpar.Communicator) -> float:
    """Train for one step on a rank."""
    model = Net(20)
    optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.Adam(), comm)
    optimizer.setup(model)
    y = model(mnpar.Variable(np.zeros((4, 3), "f4")))
    assert_type(y, mnpar.Variable)
    assert_type(Halves()(y), tuple[mnpar.Variable, mnpar.Variable])
    assert_type(F.allgather(comm, y), tuple[mnpar.Variable, ...])
    whole = F.allgather(comm, y, axis=0)
    assert_type(whole, mnpar.Variable)
    loss = F.mean(whole * whole)
    model.cleargrads()
    loss.backward()
    optimizer.update()
    assert_type(loss.item(), float)
    return loss.item()


class Double(mnpar.FunctionNode):
    """A function of one's own."""

    def forward(self, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return twice the array."""
        return x * 2

    def backward(self, gy: mnpar.Variable) -> mnpar.Variable:
        """Return twice the gradient."""
        assert_type(2 * gy, mnpar.Variable)
        return gy * np.float32(2)


def say(trainer: mnpar.training.Trainer) -> None:
    """Look at what a trainer has, as an extension does."""
    assert_type(trainer.updater.epoch, int)
    assert_type(trainer.updater.is_new_epoch, bool)


def train(comm: mnpar.Communicator) -> int:
    """Train by a trainer on a rank's part of a data set, and save the model."""
    dataset = mnpar.datasets.TupleDataset(np.zeros((4, 3), "f4"), np.zeros(4, "i4"))
    part = mnpar.scatter_dataset(dataset, comm)
    assert_type(len(part), int)
    iterator = mnpar.iterators.SerialIterator(part, 2)
    assert_type(iterator.epoch_detail, float)
    model = L.Classifier(L.Linear(3, 4, initialW=mnpar.initializers.Normal(0.1)))
    optimizer = mnpar.optimizers.SGD(0.1)
    optimizer.setup(model)
    updater = mnpar.training.StandardUpdater(iterator, optimizer)
    assert_type(updater.get_iterator("main"), mnpar.dataset.Iterator)
    trainer = mnpar.training.Trainer(updater, (1, "epoch"))
    trainer.extend(say, trigger=(1, "iteration"))
    trainer.run()
    assert_type(updater.iteration, int)

    total = comm.allreduce(np.ones(3))
    assert_type(total, np.ndarray[Any, Any])
    (x,) = Double().apply((total,))
    assert_type(F.relu(x), mnpar.Variable)
    assert_type(F.exp(x)[0] ** 2, mnpar.Variable)
    assert_type(L.Linear(3, 4)(x.astype("f4").reshape(1, 3)), mnpar.Variable)
    assert_type(F.softmax_cross_entropy(x.reshape((1, 3)), np.array([0])), mnpar.Variable)
    with mnpar.no_backprop_mode():
        assert_type((1 - x).sum(axis=0), mnpar.Variable)

    file = io.BytesIO()
    mnpar.serializers.save_npz(file, model)
    file.seek(0)
    mnpar.serializers.load_npz(file, model)
    return updater.iteration


if __name__ == "__main__":
    assert_type(mnpar.run(train, ranks=2), list[int])
    assert_type(mnpar.run(program, ranks=2), list[float])
