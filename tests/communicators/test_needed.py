"""Where a communicator is needed and something else is given, the error says how the call is written."""

import copy
import pickle

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L

X = np.ones((2, 3))
SWAPPED = {
    "allreduce(comm, …)": lambda comm: F.allreduce(X, comm),
    "copy_to(comm, …)": lambda comm: F.copy_to(X, comm),
    "allgather(comm, …)": lambda comm: F.allgather(None, X),
    "bcast(comm, …)": lambda comm: F.bcast(X, comm),
    "reduce(comm, …)": lambda comm: F.reduce(X, comm),
    "igather(comm, …)": lambda comm: F.igather(X, comm),
    "send(x, comm, rank)": lambda comm: F.send(comm, X, 0),
    "recv(comm, rank)": lambda comm: F.recv(0, comm),
    "irecv(comm, rank)": lambda comm: F.irecv(0, comm),
    "sendrecv(x, comm, dest, source)": lambda comm: F.sendrecv(comm, X, 0, 0),
    "scatter_dataset(dataset, comm)": lambda comm: mnpar.scatter_dataset(comm, [1, 2]),
    "create_multi_node_optimizer(optimizer, communicator)": lambda comm: mnpar.create_multi_node_optimizer(
        comm, mnpar.optimizers.SGD()
    ),
    "MultiNodeBatchNormalization(size, comm)": lambda comm: L.MultiNodeBatchNormalization(comm, 4),
    "SpatialGrid(comm, dims)": lambda comm: mnpar.SpatialGrid((1, 1), comm),
}


@pytest.mark.parametrize("call", SWAPPED)
def test_swapped_arguments_are_told_with_the_right_order(call):
    with pytest.raises(TypeError) as caught:
        SWAPPED[call](mnpar.create_communicator("self"))
    assert str(caught.value).startswith(f"{call}: a communicator is needed where a ")


def test_a_communicator_is_not_copied_and_not_pickled():
    comm = mnpar.create_communicator("self")
    assert copy.copy(comm) is comm
    assert copy.deepcopy([comm])[0] is comm
    with pytest.raises(TypeError, match=r"rank 0 of 1> cannot be pickled, nor what holds it: save models with mnpar.serial"):
        pickle.dumps(L.MultiNodeBatchNormalization(2, comm))


def test_a_grid_of_more_parts_than_ranks_is_told_by_its_numbers():
    with pytest.raises(ValueError, match=r"a SpatialGrid of \(3, 2\) parts .* its 6 parts: the communicator has 1"):
        mnpar.SpatialGrid(mnpar.create_communicator("self"), (3, 2))
