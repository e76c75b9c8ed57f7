"""Parameters that a summed axis divides: experts on ranks that have samples of their own. Each
gradient is summed just there where its copies are.
"""

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar import optimizers
from mnpar.initializers import initialize_by_path
from mnpar.links.divided import initialize_part
from mnpar.optimizers import hooks
from mnpar.plans import Box, block
from tests.parallel.mesh_models import check_pieces, pieces

D = 3
E = 5
N = 8
STEPS = 3


class Experts(mnpar.Link):
    """Each sample goes to one of E matrices, by its content; ranks have some of them, and all see
    the samples of all.
    """

    def __init__(self, comm):
        super().__init__()
        self.comm = comm
        self.W = mnpar.Parameter(mnpar.initializers.Normal(1.0))
        self.first, last = (0, E) if comm is None else block(E, comm.size, comm.rank)
        initialize_part(self.W, (E, D, D), Box((self.first, 0, 0), (last, D, D)))

    def forward(self, x):
        whole = x if self.comm is None else F.allgather(self.comm, x, axis=0)
        chosen = (abs(whole.array[:, 0]) * 7).astype(int) % E
        y = whole * 0
        for i in range(len(self.W.array)):
            y += F.matmul(whole, self.W[i]) * (chosen == self.first + i)[:, None].astype("f8")
        return y if self.comm is None else F.reduce_scatter(self.comm, y, axis=0)


class Model(mnpar.Chain):
    def __init__(self, mesh):
        super().__init__()
        self.a = L.Linear(D, D)
        self.experts = Experts(mesh and mesh.expert)
        self.b = L.Linear(D, 2)

    def forward(self, x, t):
        h = F.tanh(self.a(x))
        return F.softmax_cross_entropy(self.b(h + self.experts(h)), t)


def data(step):
    rng = np.random.default_rng(step)
    return rng.normal(size=(N, D)), rng.integers(2, size=N)


def reference(make, hooks):
    model = initialize_by_path(Model(None), 0)
    optimizer = make().setup(model)
    for hook in hooks:
        optimizer.add_hook(hook())
    for step in range(STEPS):
        optimizer.update(model, *data(step))
    return {path: p.array for path, p in model.namedparams()}


def train(comm, axes, make, hooks, options):
    mnpar.config.dtype = np.dtype("f8")
    mesh = mnpar.Mesh(comm, **axes)
    model = initialize_by_path(Model(mesh), 0)
    optimizer = mnpar.create_multi_node_optimizer(
        make(), mesh, axes=("data", "expert"), **options
    ).setup(model)
    for hook in hooks:
        optimizer.add_hook(hook())
    both = mesh["data", "expert"]
    for step in range(STEPS):
        optimizer.update(model, *[x[slice(*block(N, both.size, both.rank))] for x in data(step)])
    return pieces(model, "array")


WHOLE = {
    "Adam": (optimizers.Adam, ()),
    "clipping": (lambda: optimizers.SGD(0.3), (lambda: hooks.GradientClipping(0.05),)),
    "LAMB": (lambda: optimizers.LAMB(0.01), ()),
}
MESHES = [
    {"data": 2, "expert": 2},
    {"expert": 4},
    {"expert": 2, "model": 2},
    {"data": 2, "expert": 2, "model": 2},
]
OPTIONS = {"": {}, "buckets": {"bucket_bytes": 64}, "sharded": {"sharded": True}}


@pytest.mark.grid
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("axes", MESHES, ids=str)
@pytest.mark.parametrize(("make", "hooks"), WHOLE.values(), ids=WHOLE)
def test_experts_learn_as_in_one_process(make, hooks, axes, options):
    with mnpar.using_config("dtype", np.dtype("f8")):
        expected = reference(make, hooks)
    ranks = int(np.prod(list(axes.values())))
    check_pieces(mnpar.run(train, ranks=ranks, args=(axes, make, hooks, options)), expected, 1e-10)
