"""Values and gradients of two models of one form fit together: ranks that name two models in
another order are told.
"""

import copy
import pickle

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar.errors import MismatchError
from mnpar.parallel import (
    ElasticAveraging,
    ParameterAveraging,
    allreduce_gradients,
    allreduce_parameters,
    broadcast_model,
)

pytestmark = pytest.mark.usefixtures("float64")


def gradients(comm, model):
    model.cleargrads()
    F.sum(model(np.ones((1, 3)))).backward()


def averaged(model, hook):
    optimizer = mnpar.optimizers.SGD(0.0).setup(model)
    optimizer.add_hook(hook)
    optimizer.update()


CALLS = {
    "broadcast_model": lambda comm, model: broadcast_model(model, comm),
    "bcast_data": lambda comm, model: comm.bcast_data(model),
    "multi_node_mean_grad": lambda comm, model: comm.multi_node_mean_grad(model),
    "allreduce_gradients": lambda comm, model: allreduce_gradients(model, comm),
    "allreduce_parameters": lambda comm, model: allreduce_parameters(model, comm),
    "ParameterAveraging": lambda comm, model: averaged(model, ParameterAveraging(comm)),
    "ElasticAveraging": lambda comm, model: averaged(model, ElasticAveraging(comm, 0.5)),
}
EACH = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


def two(comm):
    both = [L.Linear(3, 2, initialW=i + 10.0 * comm.rank) for i in range(2)]
    for model in both:
        gradients(comm, model)
    return both


@pytest.mark.usefixtures("both_matches")
@EACH
@pytest.mark.ranks(2, 3, 4, on="threads")
def test_two_models_that_are_first_named_in_another_order_on_one_rank_are_told(comm, call):
    both = two(comm)
    if comm.rank == comm.size - 1:
        both.reverse()
    call(comm, both[0])  # nobody can know it yet
    with pytest.raises(
        MismatchError,
        match=r"different models in one call:\n  rank 0: a new model, made after 1 of those named "
        r"before, a Linear with /W \(2, 3\)(.|\n)*made after 0 (.|\n)*in the same order on all",
    ):
        call(comm, both[1])


def unpickled(model):
    return pickle.loads(pickle.dumps(model))


@pytest.mark.usefixtures("both_matches")
@pytest.mark.parametrize("made", [copy.deepcopy, unpickled, L.Linear.copy])
@pytest.mark.ranks(2, 3, on="threads")
def test_copies_of_models_that_are_named_in_another_order_are_told(comm, made):
    both = [made(model) for model in two(comm)]
    if comm.rank == comm.size - 1:
        both.reverse()
    broadcast_model(both[0], comm)
    with pytest.raises(MismatchError, match=r"after 1 of those named(.|\n)*after 0 of those named"):
        broadcast_model(both[1], comm)


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.ranks(3, on="threads")
def test_models_that_came_as_objects_from_a_rank_are_not_compared_with_its_own(comm, ahead):
    """The others unpickle them in the order of the list, after a model that rank 0 made last."""
    mine = None if ahead == 0 else L.Linear(3, 2)
    both = two(comm) if comm.rank == 0 else None
    if mine is None:
        mine = L.Linear(3, 2)
    both = comm.bcast_obj(None if both is None else both[::-1])
    for model in [*both, mine]:
        broadcast_model(model, comm)
        broadcast_model(both[0], comm)


@pytest.mark.usefixtures("both_matches")
@EACH
@pytest.mark.parametrize("first", CALLS.values(), ids=CALLS)
@pytest.mark.ranks(2, on="threads")
def test_known_models_in_another_order_are_told_before_anything_is_exchanged(comm, first, call):
    both = two(comm)
    for model in both:
        first(comm, model)
    before = [[p.array.copy(), p.grad.copy()] for model in both for p in model.params()]
    with pytest.raises(MismatchError, match=r"rank 0: model 1 of this(.|\n)*rank 1: model 2 of "):
        call(comm, both[comm.rank])
    for (array, grad), param in zip(
        before, [p for model in both for p in model.params()], strict=True
    ):
        np.testing.assert_array_equal(param.array, array)
        np.testing.assert_array_equal(param.grad, grad)
    call(comm, both[0])


@pytest.mark.usefixtures("both_matches")
@EACH
@pytest.mark.ranks(2)
def test_processes_tell_it_too(comm, call):
    both = two(comm)
    for model in both:
        call(comm, model)
    with pytest.raises(MismatchError, match="different models in one call"):
        call(comm, both[comm.rank])


@pytest.mark.usefixtures("both_matches")
@pytest.mark.ranks(2, on="threads")
def test_a_model_that_is_new_on_one_rank_and_known_on_the_other_is_told(comm):
    both = two(comm)
    broadcast_model(both[0], comm)
    with pytest.raises(MismatchError, match=r"rank 0: model 1 of (.|\n)*rank 1: a new model"):
        broadcast_model(both[comm.rank], comm)


@pytest.mark.usefixtures("both_matches")
@pytest.mark.ranks(2, on="threads")
def test_gradients_of_other_shapes_are_told(comm):
    """Together they are as many numbers."""
    shapes = [(2, 3), (3, 2)] if comm.rank else [(3, 2), (2, 3)]
    model = mnpar.Link(a=shapes[0], b=shapes[1])
    for param in model.params():
        param.grad = np.ones(param.shape, param.dtype)
    with pytest.raises(MismatchError, match=r"rank 0: a new .* /a \(3, 2\), /b \(2, 3\)"):
        comm.multi_node_mean_grad(model)


@EACH
@pytest.mark.ranks(1, 2, 3, on="threads")
def test_models_in_the_same_order_are_right_whatever_else_a_rank_makes(comm, call):
    models = []
    for i in range(5):
        if comm.rank == 1:
            L.Linear(3, 2)
            mnpar.Variable(np.ones(1))
        models.append(L.Linear(3, 2, initialW=i + 10.0 * comm.rank))
        gradients(comm, models[-1])
    for order in ((3, 1, 4), (0, 2), (4, 3, 2, 1, 0)):
        for i in order:
            call(comm, models[i])
    models += [model.copy("copy") for model in models]  # nobody knows when a copy was made
    for model in reversed(models):
        gradients(comm, model)
        call(comm, model)


@pytest.mark.ranks(2, on="threads")
def test_a_rank_may_make_its_copy_anew_once_the_old_one_is_gone(comm):
    model, other = L.Linear(3, 2, initialW=1.0), L.Linear(3, 2, initialW=2.0)
    for each in (model, other):
        broadcast_model(each, comm)
    if comm.rank:
        model = L.Linear(3, 2, initialW=5.0)
    for _ in range(2):
        broadcast_model(model, comm)
        broadcast_model(other, comm)
    assert (model.W.array == 1).all()
    assert (other.W.array == 2).all()
    for _ in range(3):  # trials, each with a model of its own
        model = L.Linear(3, 2, initialW=3.0 + comm.rank)
        broadcast_model(model, comm)
        assert (model.W.array == 3).all()
