"""NaN that the sum of gradients gives to all ranks is told once, with the rank and the parameter
that it came from.
"""

import warnings

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L

pytestmark = pytest.mark.usefixtures("float64", "debug_off")

WAYS = pytest.mark.parametrize(
    "options",
    [
        {},
        {"bucket_bytes": 8},
        {"bucket_bytes": 2**20},
        {"sharded": True},
        {"wire_dtype": np.float32},
    ],
    ids=str,
)


class Poisoned(mnpar.FunctionNode):
    """The identity, with a gradient of NaN."""

    def forward(self, x):
        return x.copy()

    def backward(self, gy):
        return gy * np.nan


def poison(y):
    return Poisoned().apply((y,))[0]


def heard(comm, update, times):
    """Return what so many updates have warned of on all ranks."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for i in range(times):
            update(i)
        comm.barrier()
    told = comm.allgather_obj([str(one.message) for one in caught if "NaN" in str(one.message)])
    return [line for lines in told for line in lines]


class Net(mnpar.Chain):
    def __init__(self):
        super().__init__()
        self.a, self.b = L.Linear(3, 4), L.Linear(4, 1)

    def forward(self, x, poisoned=False):
        h = self.a(x)
        return self.b(F.tanh(poison(h) if poisoned else h))


@WAYS
@pytest.mark.ranks(2, 3)
def test_a_loss_that_is_nan_on_one_rank_is_told_in_its_update(comm, options):
    net = Net()
    optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(), comm, **options)
    optimizer.setup(net)
    last = comm.size - 1

    def update(i):
        x = np.full((2, 3), np.nan if i == 3 and comm.rank == last else 1.0)
        optimizer.update(lambda x: F.mean(net(x)), x)

    told = heard(comm, update, 6)
    assert len(set(told)) == 1
    assert told[0].startswith(
        f"update 4: the losses of ranks [{last}] are NaN or infinite, those of ranks "
        f"{list(range(last))} are not."
    )


@WAYS
@pytest.mark.ranks(2, 3)
def test_a_gradient_that_is_nan_on_one_rank_is_told_with_the_parameter(comm, options):
    net = Net()
    optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(), comm, **options)
    optimizer.setup(net)
    x = np.ones((2, 3))

    def update(i):
        optimizer.update(lambda x: F.mean(net(x, i == 3 and comm.rank == 1)), x)

    told = heard(comm, update, 7)
    assert len(set(told)) == 1
    assert told[0].startswith(
        f"update 5: the losses of ranks {list(range(comm.size))} are NaN or infinite: the "
        "gradient of /a/b on rank 1 was so before"
    )


@pytest.mark.parametrize("bucket_bytes", [None, 8])
@pytest.mark.ranks(2, 3)
def test_a_model_that_reduces_itself_tells_it_in_the_next_forward(comm, bucket_bytes):
    net = Net()
    model = mnpar.DistributedDataParallel(net, comm, bucket_bytes=bucket_bytes)
    optimizer = mnpar.optimizers.SGD().setup(model)

    def update(i):
        model.cleargrads()
        F.mean(model(np.ones((2, 3)), i == 3 and comm.rank == 1)).backward()
        optimizer.update()

    told = heard(comm, update, 7)
    assert len(set(told)) == 1
    assert told[0].startswith(
        "update 4: a sum of gradients over ranks is NaN or infinite: the gradient of /a/b on "
        "rank 1 was so before"
    )


@pytest.mark.ranks(2, on="threads")
def test_a_step_that_was_too_large_is_nobodys_gradient(comm):
    net = Net()
    optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(1e300), comm).setup(net)

    def update(i):
        optimizer.update(lambda x: F.mean(net(x) ** 2), np.ones((2, 3)))

    with np.errstate(all="ignore"):
        told = heard(comm, update, 6)
    assert len(set(told)) == 1
    assert "the losses of ranks [0, 1] are NaN or infinite" in told[0]


@pytest.mark.ranks(2, on="threads")
def test_losses_of_no_samples_and_overflows_of_a_loss_scale_are_not_told(comm):
    net = Net()
    optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(0.01), comm).setup(net)
    optimizer.loss_scaling(scale=1e308)

    def update(i):
        with np.errstate(all="ignore"):
            x = np.ones((2 * (comm.rank != i % 2), 3))
            optimizer.update(lambda x: F.mean(net(x) * 1e3), x)

    with warnings.catch_warnings(record=True):  # the mean of nothing
        warnings.simplefilter("always")
        assert not heard(comm, update, 6)


@pytest.mark.ranks(2, on="threads")
def test_in_debug_mode_it_is_an_error_on_all_ranks(comm):
    net = Net()
    model = mnpar.DistributedDataParallel(net, comm)
    for _ in range(2):
        F.mean(model(np.ones((2, 3)), comm.rank == 1)).backward()
        break
    with (
        mnpar.using_config("debug", True),
        pytest.raises(FloatingPointError, match=r"update 1: .*gradient of /a/b on rank 1 was so"),
    ):
        model(np.ones((2, 3)))
