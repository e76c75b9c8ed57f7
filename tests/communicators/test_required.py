"""Where a communicator is needed and something else is given, the error says how the call is
written.
"""

import copy
import inspect
import pickle

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from tests.harness.tables import together

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
    "broadcast_model(model, comm)": lambda comm: mnpar.parallel.broadcast_model(
        comm, L.Linear(1, 1)
    ),
    "allreduce_gradients(model, comm)": lambda comm: mnpar.parallel.allreduce_gradients(
        comm, L.Linear(1, 1)
    ),
    "allreduce_parameters(model, comm)": lambda comm: mnpar.parallel.allreduce_parameters(
        comm, L.Linear(1, 1)
    ),
    "check_parameter_closeness(model, comm)": lambda comm: mnpar.check_parameter_closeness(
        comm, L.Linear(1, 1)
    ),
    "create_multi_node_optimizer(optimizer, communicator)": lambda comm: (
        mnpar.create_multi_node_optimizer(comm, mnpar.optimizers.SGD())
    ),
    "MultiNodeBatchNormalization(size, comm)": lambda comm: L.MultiNodeBatchNormalization(comm, 4),
    "SpatialGrid(comm, dims)": lambda comm: mnpar.SpatialGrid((1, 1), comm),
}


@pytest.mark.parametrize("call", SWAPPED)
def test_swapped_arguments_are_told_with_the_right_order(call):
    with pytest.raises(TypeError) as caught:
        SWAPPED[call](mnpar.create_communicator("self"))
    assert str(caught.value).startswith(f"{call}: a communicator is needed where ")


def test_a_model_comes_before_its_communicator():
    """As in scatter_dataset, create_multi_node_optimizer and ChainerMN's create_mnbn_model; but
    comm.bcast_data(model).
    """
    of_communicators = {"bcast_data", "multi_node_mean_grad"}
    names = set()
    for module in (
        mnpar,
        L,
        mnpar.parallel,
        mnpar.checkpoint,
        mnpar.extensions,
        mnpar.datasets,
        mnpar.iterators,
    ):
        for name in module.__all__:
            thing = getattr(module, name)
            free = inspect.isfunction(thing) and name not in of_communicators
            parameters = list(inspect.signature(thing).parameters) if free else []
            both = [
                p
                for p in parameters
                if p in ("model", "link", "actual_link", "module", "comm", "communicator")
            ]
            if len(both) == 2:
                names.add(name)
                assert both[1] in ("comm", "communicator"), name
    assert len(names) >= 6


def takers():
    """Whatever is public and cannot do without a communicator, or a grid, with the name of that
    argument.
    """
    modules = (
        mnpar,
        F,
        L,
        mnpar.parallel,
        mnpar.checkpoint,
        mnpar.extensions,
        mnpar.datasets,
        mnpar.iterators,
        mnpar.link_hooks,
        mnpar.testing,
        mnpar.meters,
    )
    found = {}
    for module in modules:
        for name in module.__all__:
            thing = getattr(module, name)
            if callable(thing) and name not in ELSEWHERE:
                for parameter in inspect.signature(thing).parameters.values():
                    if (
                        parameter.name in ("comm", "communicator", "grid")
                        and parameter.default is parameter.empty
                    ):
                        found[name] = thing, parameter
    return found


ELSEWHERE = {  # not here, but in what makes or calls them; the first has a grid of another kind
    "spatial_transformer_sampler",
    "MultiNodeIterator",
    "MultiNodeNStepRNN",
    "MultiNodeCheckpointer",
    "ParallelFunction",
    "GenericMultiNodeEvaluator",
    "CommunicatorBase",
    "Communicator",
    "DataSizeError",
}
X4 = np.ones((1, 1, 4, 4))
TAKERS = takers()
USUAL = {
    "x": X4,
    "shape": (4, 4),
    "t": np.zeros(1, int),
    "q": X4,
    "k": X4,
    "v": X4,
    "W": X4,
    "xs": [X4],
    "rank": 0,
}


@together(name=TAKERS, wrong=[3, None, "naive"])
def test_whatever_takes_a_communicator_says_so_where_something_else_is_given(name, wrong):
    thing, taken = TAKERS[name]
    parameters = inspect.signature(thing).parameters.values()
    required = [
        p
        for p in parameters
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    args = [wrong if p.name == taken.name else USUAL.get(p.name, L.Linear(1, 1)) for p in required]
    what = "SpatialGrid" if taken.name == "grid" else "communicator"
    said = {3: "an int", None: "None", "naive": "a str"}[wrong]
    with pytest.raises(
        TypeError, match=rf"(comm|grid).*\): a {what} is needed where {said} was given"
    ):
        thing(*args)


@pytest.mark.parametrize("dims", [2, "2x1"])
def test_a_grid_is_given_a_tuple(dims):
    with pytest.raises(TypeError, match=r"dims is a tuple, such as \(2, 1\), not "):
        mnpar.SpatialGrid(mnpar.create_communicator("self"), dims)


@pytest.mark.parametrize(
    ("given", "said"), [(mnpar.optimizers.SGD, "the class SGD"), (L.Linear(1, 1), "a Linear")]
)
def test_what_is_no_optimizer_is_told(given, said):
    with pytest.raises(TypeError, match=f"an optimizer is needed where {said} was given"):
        mnpar.create_multi_node_optimizer(given, mnpar.create_communicator("self"))


def test_a_mesh_where_one_of_its_axes_is_needed_is_told_so():
    with pytest.raises(
        TypeError, match=r"where a Mesh was given \(its axes are communicators, as mesh.model\)"
    ):
        L.ColumnParallelLinear(mnpar.Mesh(mnpar.create_communicator("self")), 4, 4)


def test_a_communicator_is_not_copied_and_not_pickled():
    comm = mnpar.create_communicator("self")
    assert copy.copy(comm) is comm
    assert copy.deepcopy([comm])[0] is comm
    with pytest.raises(
        TypeError,
        match=r"rank 0 of 1> cannot be pickled, nor what holds it: save models with mnpar.serial",
    ):
        pickle.dumps(L.MultiNodeBatchNormalization(2, comm))


def test_a_grid_of_more_parts_than_ranks_is_told_by_its_numbers():
    with pytest.raises(
        ValueError, match=r"a SpatialGrid of \(3, 2\) parts .* its 6 parts: the communicator has 1"
    ):
        mnpar.SpatialGrid(mnpar.create_communicator("self"), (3, 2))


def test_a_variable_given_to_a_communicators_method_is_told_of_the_functions():
    comm = mnpar.create_communicator("self")
    with pytest.raises(
        TypeError,
        match=r"not Variable: mnpar\.functions has the same for Variables, with their gradients",
    ):
        comm.send(mnpar.Variable(X), 0)
