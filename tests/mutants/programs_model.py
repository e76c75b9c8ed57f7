"""Programs whose ranks hold one model together."""

import numpy as np

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar.initializers import initialize_by_path
from tests.mutants.program import T, X, Y, program, result


def linear(n_in, n_out, seed):
    """A layer that begins alike on whichever rank it is."""
    rng = np.random.default_rng(seed)
    return L.Linear(n_in, n_out, initialW=rng.normal(size=(n_out, n_in)) / 2)


@program(ranks=3)
def chain_list(comm):
    model = mnpar.MultiNodeChainList(comm)
    last, layers = comm.size - 1, {}
    for i in range(comm.rank * 3 // comm.size, (comm.rank + 1) * 3 // comm.size):
        layers[f"l{i}"] = linear(*((4, 5), (5, 5), (5, 3))[i], seed=i)
    part = mnpar.Chain(**layers)
    part.forward = lambda h: [h := F.tanh(layer(h)) for layer in part.children()][-1]
    before = comm.rank - 1 if comm.rank > 0 else None
    after = comm.rank + 1 if comm.rank < last else None
    model.add_link(part, rank_in=before, rank_out=after)
    optimizer = mnpar.optimizers.MomentumSGD(0.2).setup(model)
    optimizer.add_hook(mnpar.optimizer_hooks.GradientClipping(0.3))
    losses = []
    for _ in range(3):
        y = model(X) if comm.rank == 0 else model()
        model.cleargrads()
        if comm.rank == last:
            loss = F.softmax_cross_entropy(y, T)
            losses.append(loss.item())
            loss.backward()
        else:
            y.backward()
        optimizer.update()
    return result(part, losses=losses)


@program(ranks=3)
def by_hand(comm):
    first, last = comm.rank == 0, comm.rank == comm.size - 1
    mine = range(comm.rank * 3 // comm.size, (comm.rank + 1) * 3 // comm.size)
    layers = {f"l{i}": linear(*((4, 5), (5, 5), (5, 3))[i], seed=i) for i in mine}
    model = mnpar.Chain(**layers)
    optimizer = mnpar.optimizers.SGD(0.3).setup(model)
    losses = []
    for _ in range(3):
        h = X if first else F.recv(comm, rank=comm.rank - 1, tag=1)
        for layer in layers.values():
            h = F.tanh(layer(h))
        model.cleargrads()
        if last:
            loss = F.mean_squared_error(h, Y)
            loss.backward()
        else:
            F.send(h, comm, rank=comm.rank + 1, tag=1)
            mnpar.backward()
        optimizer.update()
        value = np.array(loss.item() if last else 0.0)
        losses.append(comm.bcast(value, root=comm.size - 1).item())
    return result(model, losses=losses)


@program(ranks=2)
def pipeline(comm):
    layers = {
        "one": lambda: L.Linear(4, 6),
        "tanh": lambda: F.tanh,
        "two": lambda: L.Linear(6, 5),
        "three": lambda: L.Classifier(L.Linear(5, 3)),
    }
    model = mnpar.Pipeline.of(comm, layers, "1f1b", micro_batches=3)
    initialize_by_path(model, seed=0)
    optimizer = mnpar.optimizers.Adam(0.05).setup(model)
    optimizer.add_hook(mnpar.optimizer_hooks.GradientClipping(0.2))
    optimizer.loss_scaling(scale=8.0)
    losses = []
    for _ in range(3):
        optimizer.update(model, X, T)
        if model.loss is not None:
            losses.append(float(model.loss))
    return result(model, losses=losses)


@program(ranks=4)
def mesh(comm):
    mesh = mnpar.Mesh(comm, data=2 if comm.size > 1 else 1, model=-1)

    class Model(mnpar.Chain):
        def __init__(self):
            super().__init__()
            self.wide = L.ColumnParallelLinear(mesh.model, 4, 6, gather_output=False)
            self.narrow = L.RowParallelLinear(mesh.model, 6, 4, input_is_parallel=True)
            self.norm = L.LayerNormalization(4)
            self.out = L.Linear(4, 3)

        def forward(self, x, t):
            h = self.narrow(F.tanh(self.wide(x)))
            return F.softmax_cross_entropy(self.out(self.norm(h)), t)

    model = initialize_by_path(Model(), seed=0)
    optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.Adam(0.05), mesh)
    optimizer.setup(model)
    optimizer.add_hook(mnpar.optimizer_hooks.GradientClipping(0.5))
    mine = slice(*mnpar.plans.block(len(X), mesh.data.size, mesh.data.rank))
    losses = []
    for _ in range(3):
        optimizer.update(model, X[mine], T[mine])
        with mnpar.no_backprop_mode():
            part = model(X[mine], T[mine]).item() * len(T[mine]) / len(T)
        losses.append(mesh.data.allreduce_obj(part))
    return result(model, losses=losses)


@program(ranks=2)
def by_copies(comm):
    W = np.arange(24.0).reshape(6, 4) / 24
    V = np.arange(18.0).reshape(3, 6) / 18 - 0.5
    mine = slice(comm.rank * 6 // comm.size, (comm.rank + 1) * 6 // comm.size)
    model = mnpar.Chain(first=linear(4, 4, seed=0))
    model.scale = mnpar.Parameter(np.array([1.0, 2.0, 3.0]))
    optimizer = mnpar.optimizers.SGD(0.1).setup(model)
    losses = []
    for _ in range(3):
        h = F.copy_to(comm, F.tanh(model.first(X)))
        part = F.linear(F.tanh(F.linear(h, W[mine])), V[:, mine])
        y = model.scale * F.reduce_from(comm, part)
        loss = F.mean_squared_error(y, Y)
        model.cleargrads()
        loss.backward()
        optimizer.update()
        losses.append(loss.item())
    return result(model, losses=losses)


@program(ranks=2)
def by_rules(comm):
    mnpar.random.seed(0)

    class Model(mnpar.Chain):
        def __init__(self):
            super().__init__()
            self.norm = L.LayerNormalization(4)
            self.up, self.down = L.Linear(4, 6), L.Linear(6, 3)

        def forward(self, x, t):
            y = self.down(F.gelu(self.up(self.norm(x))))
            return F.softmax_cross_entropy(y, t)

    mesh = mnpar.Mesh(comm, data=1, model=-1)
    rules = {"up": "columns", "down": "rows"}
    model = mnpar.parallelize(Model(), mesh, rules)
    optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.SGD(0.2), mesh)
    optimizer.setup(model)
    losses = []
    for _ in range(3):
        x, t = mesh.cut(X, data=0), mesh.cut(T, data=0)
        optimizer.update(model, x, t)
        losses.append(model(x, t).item())
        mnpar.backward()
    whole = mnpar.gathered(model)
    return result(whole, losses=losses)
