"""Updates that are like the one before take a short way: whatever is different in one of them is
heeded all the same.
"""

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar.testing import assert_allclose


class Model(mnpar.Chain):
    def __init__(self):
        super().__init__()
        self.l = L.Linear(3, 1, initial_bias=0.5)
        self.l.W.array = np.arange(3.0).reshape(1, 3)
        self.l.b.array = np.ones(1)
        mnpar.random.seed(0)


def sample(update, rank, n):
    rng = np.random.default_rng([update, rank])
    return rng.standard_normal((n, 3)), rng.standard_normal((n, 1))


def train(comm, sizes, change, ranks):
    """Parameters after updates with ``sizes[update][rank]`` samples; without a communicator of
    those of all ``ranks``.
    """
    model = Model()
    optimizer = mnpar.optimizers.MomentumSGD(0.1)
    if comm is not None:
        optimizer = mnpar.create_multi_node_optimizer(optimizer, comm)
    optimizer.setup(model)
    for update, given in enumerate(sizes):
        parts = [
            sample(update, rank, given[rank]) for rank in (ranks if comm is None else [comm.rank])
        ]
        x, t = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        loss = lambda x, t: F.mean_squared_error(model.l(x), t)
        optimizer.update(change(optimizer, update, loss), x, t)
    return np.concatenate([param.array.ravel() for param in model.params()])


def same(optimizer, update, loss):
    return loss


def by_a_gradient(optimizer, update, loss):
    """Every third loss starts from a gradient of its own."""

    def given(x, t):
        y = loss(x, t)
        if update % 3 == 2:
            y.grad = np.full_like(y.array, 3.0)
        return y

    return given


def of_another_form(optimizer, update, loss):
    """Some losses have an axis of length 1."""
    return (lambda x, t: loss(x, t).reshape((1,) * (update % 3))) if update > 2 else loss


def by_another_rate(optimizer, update, loss):
    optimizer.lr = 0.1 if update < 3 else 0.05
    return loss


def scaled(optimizer, update, loss):
    """The loss scale is another one from the fourth update on."""
    if update == 3:
        optimizer.set_loss_scale(8.0)
    return loss


def halved(optimizer, update, loss):
    """A function of the user's that changes what it is given."""

    class Half(mnpar.FunctionNode):
        def forward(self, y):
            return y / 2

        def backward(self, gy):
            gy.array[...] /= 2
            return gy

    return lambda x, t: Half().apply((loss(x, t),))[0]


@pytest.mark.grid
@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("sizes", ["alike", "other", "empty"])
@pytest.mark.parametrize(
    "change", [same, by_a_gradient, of_another_form, by_another_rate, scaled, halved]
)
def test_updates_are_those_of_one_process(comm, change, sizes):
    ranks = range(comm.size)
    counts = {
        "alike": [[2] * comm.size] * 8,
        "other": [[2 + (update in (4, 5)) * rank for rank in ranks] for update in range(8)],
        "empty": [[2 * (update != 4 or rank == 0) for rank in ranks] for update in range(8)],
    }[sizes]
    assert_allclose(
        train(comm, counts, change, ranks),
        train(None, counts, change, ranks),
        atol=1e-12,
        rtol=1e-12,
    )


@pytest.mark.ranks(2)
def test_a_parameter_that_comes_in_between_and_updates_without_a_step_are_heeded(comm):
    def program(comm):
        model = Model()
        optimizer = mnpar.optimizers.SGD(0.1)
        if comm is not None:
            optimizer = mnpar.create_multi_node_optimizer(optimizer, comm)
        optimizer.setup(model)
        for update in range(9):
            parts = [
                sample(update, rank, 2) for rank in (range(2) if comm is None else [comm.rank])
            ]
            x, t = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
            if update == 3:
                with model.init_scope():
                    model.more = mnpar.Parameter(np.array([0.25]))
            loss = lambda x, t: F.mean_squared_error(model.l(x) * getattr(model, "more", 1.0), t)
            if update == 5 and comm is not None:
                with optimizer.no_sync():
                    optimizer.update(loss, x[:1], t[:1])
                optimizer.update(loss, x[1:], t[1:])
            else:
                optimizer.update(loss, x, t)
        return np.concatenate([param.array.ravel() for param in model.params()])

    assert_allclose(program(comm), program(None), atol=1e-12, rtol=1e-12)
