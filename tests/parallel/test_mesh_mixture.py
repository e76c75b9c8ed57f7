"""A mixture of experts on one axis of a mesh, whose ranks have the same samples or their own, and
copies on another, against one process.
"""

import functools

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar import optimizers
from mnpar.optimizers import hooks
from mnpar.plans import block

N = 11
D = 4
E = 5
CLASSES = 3
STEPS = 3


def expert(i):
    return mnpar.Sequential(L.Linear(D, 6), F.tanh, L.Linear(6, D))


class Model(mnpar.Chain):
    def __init__(self, comm, k, **whose):
        super().__init__()
        self.first = L.Linear(D, D)
        self.experts = L.MixtureOfExperts(comm, expert, E, D, k=k, **whose)
        self.last = L.Linear(D, CLASSES)

    def forward(self, x, t):
        h = F.tanh(self.first(x))
        return F.softmax_cross_entropy(self.last(h + self.experts(h)), t)


def batch(step):
    rng = np.random.default_rng(step)
    return rng.standard_normal((N, D)), rng.integers(CLASSES, size=N)


def train(comm, axes, k, make, hooks, options):
    """Gradients of the first step and weights after the last, by path."""
    with mnpar.using_config("dtype", np.dtype("f8")):
        mnpar.random.seed(3)
        mesh = mnpar.Mesh(comm, **axes)
        if "expert" in axes:  # its ranks have samples of their own
            model = Model(mesh.expert, k, input_is_parallel=True, whole_gradients=False)
            summed = ("data", "expert")
        else:
            model = Model(mesh.model, k)
            summed = ("data",)
        optimizer = mnpar.create_multi_node_optimizer(make(), mesh, axes=summed, **options).setup(
            model
        )
        for hook in hooks:
            optimizer.add_hook(hook())
        gradients = {}
        for step in range(STEPS):
            mine = slice(*block(N, mesh[summed].size, mesh[summed].rank))
            optimizer.update(model, *[a[mine] for a in batch(step)])
            gradients = gradients or {
                path: param.grad.copy() for path, param in model.namedparams()
            }
        return gradients, {path: param.array.copy() for path, param in model.namedparams()}


RULES = {
    "SGD": (lambda: optimizers.SGD(0.3), ()),
    "clipping": (lambda: optimizers.SGD(0.3), (lambda: hooks.GradientClipping(0.05),)),
    "Adam": (optimizers.Adam, ()),
    "LAMB": (lambda: optimizers.LAMB(0.01), ()),
}
# and k
MESHES = [
    ({"data": 2, "model": 2}, 1),
    ({"data": 3, "model": 1}, 2),
    ({"data": 2, "model": 3}, 2),
]
MESHES += [
    ({"data": 2, "expert": 2}, 1),
    ({"expert": 3}, 2),
    ({"data": 2, "expert": 3}, 2),
    ({"expert": 6}, 1),
]
OPTIONS = {"": {}, "buckets": {"bucket_bytes": 64}, "sharded": {"sharded": True}}


@functools.cache
def alone(k, make, hooks):
    """What one process learns."""
    return mnpar.run(train, ranks=1, args=({"data": 1, "model": 1}, k, make, hooks, {}))[0]


@pytest.mark.grid
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize(("axes", "k"), MESHES, ids=str)
@pytest.mark.parametrize(("make", "hooks"), RULES.values(), ids=RULES)
def test_a_mixture_learns_as_in_one_process(make, hooks, axes, k, options):
    gradients, weights = alone(k, make, hooks)
    ranks = mnpar.run(
        train, ranks=int(np.prod(list(axes.values()))), args=(axes, k, make, hooks, options)
    )
    for found, expected in (
        [(0, gradients), (1, weights)] if not options.get("sharded") else [(1, weights)]
    ):
        for rank in ranks:
            for path, array in rank[found].items():
                np.testing.assert_allclose(
                    array, expected[path], rtol=1e-10, atol=1e-10, err_msg=path
                )
        assert set().union(*[rank[found] for rank in ranks]) == set(expected)


def test_gradients_that_would_be_summed_twice_are_refused_and_the_remedy_is_named():
    def program(comm):
        mesh = mnpar.Mesh(comm, data=1, expert=2)
        model = Model(mesh.expert, 1, input_is_parallel=True)
        optimizer = mnpar.create_multi_node_optimizer(
            optimizers.SGD(), mesh, axes=("data", "expert")
        ).setup(model)
        with pytest.raises(
            mnpar.errors.MismatchError,
            match=r"MixtureOfExperts\(…, input_is_parallel=True, whole_gradients=False\)",
        ):
            optimizer.update(model, *[a.astype("f4") if a.dtype == "f8" else a for a in batch(0)])

    mnpar.run(program, ranks=2)


def test_gradients_are_added_up_where_a_rank_has_no_samples_of_a_divided_layer():
    batches = [tuple(a[:2] for a in batch(0)), batch(1)]

    def program(comm):
        mnpar.random.seed(3)
        mesh = mnpar.Mesh(comm, expert=comm.size)
        model = Model(mesh.expert, 1, input_is_parallel=True, whole_gradients=False)
        optimizer = mnpar.create_multi_node_optimizer(
            optimizers.SGD(0.3), mesh, axes=("expert",)
        ).setup(model)
        optimizer.update(model, *batch(2))  # of all ranks, the same
        mine = [[a[slice(*block(len(a), comm.size, comm.rank))] for a in one] for one in batches]
        with optimizer.no_sync():
            optimizer.update(model, *mine[0])
        optimizer.update(model, *mine[1])
        return {path: param.array for path, param in model.namedparams()}

    with mnpar.using_config("dtype", np.dtype("f8")):
        (expected,), ranks = mnpar.run(program, ranks=1), mnpar.run(program, ranks=3)
    for rank in ranks:
        for path, array in rank.items():
            np.testing.assert_allclose(array, expected[path], rtol=1e-10, atol=1e-12, err_msg=path)
