"""A user's program, which type checkers read in test_type_checkers.py."""

from typing import assert_type

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


if __name__ == "__main__":
    assert_type(mnpar.run(program, ranks=2), list[float])
