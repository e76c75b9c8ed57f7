"""Updates of several ranks that change nothing are told on all ranks, at the first of them; ranks
without samples, stages without a loss, and frozen parts are right.
"""

import sys

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar.runtime.mpiexec import mpiexec_command
from tests.harness.scripts import run_script

pytestmark = pytest.mark.usefixtures("float64")

RANKS = pytest.mark.ranks(1, 2, 3, 4, on="threads")
WAYS = pytest.mark.parametrize(
    "options",
    [
        {},
        {"bucket_bytes": 8},
        {"sharded": True},
        {"double_buffering": True},
        {"zero_fill": False},
        {"reduce": "sum"},
        {"reduce": "mean"},
    ],
    ids=str,
)
X = np.ones((2, 3))


def made(comm, **options):
    net = L.Linear(3, 2, initialW=1.0)
    optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(0.1), comm, **options)
    return net, optimizer.setup(net)


def forgets(net):
    def lossfun(*args):
        F.mean(net(X))

    return lossfun


@WAYS
@RANKS
def test_a_loss_function_without_return_is_told_at_the_first_update(comm, options):
    net, optimizer = made(comm, **options)
    with pytest.raises(TypeError, match=r"returned None on every rank .* it must return the loss"):
        optimizer.update(forgets(net), X)
    assert optimizer.t == 0


@RANKS
def test_it_is_told_where_some_ranks_have_no_samples(comm):
    net, optimizer = made(comm)
    with pytest.raises(TypeError, match="returned None on every rank that had samples"):
        optimizer.update(forgets(net), X if comm.rank == 0 else X[:0])


@RANKS
def test_without_arguments_it_is_told_at_the_second_update(comm):
    """One may be there to make the copies equal."""
    net, optimizer = made(comm)
    optimizer.update(forgets(net))
    with pytest.raises(TypeError, match="it must return the loss"):
        optimizer.update(forgets(net))


@pytest.mark.ranks(2, on="threads")
def test_after_it_is_told_updates_go_on(comm):
    net, optimizer = made(comm)
    with pytest.raises(TypeError, match="it must return the loss"):
        optimizer.update(forgets(net), X)
    optimizer.update(lambda x: F.mean(net(x)), X)
    assert optimizer.t == 1


PROGRAM = """
import numpy as np, mnpar, mnpar.functions as F, mnpar.links as L

comm = mnpar.create_communicator()
net = L.Linear(3, 2)
optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(), comm).setup(net)

def lossfun(x):
    F.mean(net(x))

optimizer.update(lossfun, np.ones((2, 3), "f4"))
"""


def test_a_job_of_processes_tells_it(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    command, environment = mpiexec_command(2, sys.executable)
    result = run_script(script, [], environment, tmp_path, command)
    assert result.returncode
    assert "it must return the loss" in result.stderr
    assert "train.py" in result.stderr


@WAYS
@RANKS
def test_a_loss_without_a_graph_is_told_at_the_first_update(comm, options):
    net, optimizer = made(comm, **options)
    with pytest.raises(RuntimeError, match="losses of all ranks have no graph"):
        optimizer.update(lambda x: F.mean(net(x).array), X)
    assert optimizer.t == 0


@WAYS
@RANKS
def test_a_loss_of_another_model_is_told_once(comm, options):
    _net, optimizer = made(comm, **options)
    other = L.Linear(3, 2)

    def update():
        optimizer.update(lambda x: F.mean(other(x)), X)

    if comm.rank == 0:
        with pytest.warns(UserWarning, match=r"no parameter of a Linear with /W .* on any rank"):
            update()
    else:
        update()
    update()


def no_loss_on_most(comm, net):
    return lambda x: F.mean(net(x)) if comm.rank == comm.size - 1 else None


def no_gradient_on_most(comm, net):
    return lambda x: F.mean(net(x) if comm.rank == comm.size - 1 else mnpar.Variable(x))


def a_stage(comm, net):
    """Returns None where the model goes on, on the next rank."""

    def lossfun(x):
        h = net(x) if comm.rank == 0 else net(F.recv(comm, comm.rank - 1)[:, :1] * X[:1])
        if comm.rank == comm.size - 1:
            return F.mean(h)
        F.send(h, comm, comm.rank + 1)
        return None

    return lossfun


RIGHT = {
    "no loss on most ranks": no_loss_on_most,
    "no gradient on most ranks": no_gradient_on_most,
    "a stage on each rank": a_stage,
}


@pytest.mark.parametrize("make", RIGHT.values(), ids=RIGHT)
@pytest.mark.parametrize("options", [{}, {"bucket_bytes": 8}, {"sharded": True}], ids=str)
@RANKS
def test_programs_whose_ranks_do_different_things_are_right(comm, options, make):
    net, optimizer = made(comm, **options)
    before = net.W.array.copy()
    for _ in range(3):
        optimizer.update(make(comm, net), X)
    assert (net.W.array != before).all()
    assert optimizer.t == 3


@RANKS
def test_updates_without_samples_anywhere_are_right_and_the_first_with_some_is_examined(comm):
    net, optimizer = made(comm)
    for _ in range(2):
        optimizer.update(lambda x: F.mean(net(x)) if len(x) else None, X[:0])
    with pytest.raises(RuntimeError, match="losses of all ranks have no graph"):
        optimizer.update(lambda x: F.mean(net(x).array), X)


@RANKS
def test_a_frozen_model_and_one_without_parameters_are_right(comm):
    net, optimizer = made(comm)
    net.disable_update()
    optimizer.update(lambda x: F.mean(net(x).array), X)
    empty = mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(), comm).setup(mnpar.Chain())
    empty.update(lambda x: None, X)
    assert optimizer.t == empty.t == 1


@pytest.mark.ranks(2, 4, on="threads")
def test_frozen_stages_with_copies_are_right(comm):
    """Two stages by hand, the first frozen; the ranks of each have copies."""
    half = comm.size // 2
    stage, row = divmod(comm.rank, half)
    copies = comm.split(stage, comm.rank)
    net = L.Linear(3, 3, initialW=1.0)
    optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(0.1), copies).setup(net)

    def lossfun(x):
        if stage == 0:
            with mnpar.no_backprop_mode():
                h = net(x)
            F.send(h, comm, row + half)
            return None
        return F.mean(net(F.recv(comm, row)))

    for _ in range(2):
        optimizer.update(lossfun, X)
    assert optimizer.t == 2
