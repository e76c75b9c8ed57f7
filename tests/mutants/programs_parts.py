"""Programs whose ranks have parts of an image, of a sequence, of experts, or members."""

import numpy as np

import mnpar
import mnpar.functions as F
import mnpar.links as L
from tests.mutants.program import T, X, Y, program, result

IMAGES = np.random.default_rng(2).normal(size=(3, 1, 6, 5))
LABELS = np.array([0, 2, 1])
SEQUENCE = np.random.default_rng(3).normal(size=(2, 7, 4))


@program(ranks=2)
def image(comm):
    mnpar.random.seed(0)
    grid = mnpar.SpatialGrid(comm, (comm.size, 1))
    model = mnpar.Chain(
        conv=L.Convolution2D(1, 2, ksize=3, pad=1), bn=L.BatchNormalization(2), fc=L.Linear(60, 3)
    )
    optimizer = mnpar.optimizers.MomentumSGD(0.1).setup(model)
    losses = []
    for _ in range(3):
        x = grid.cut(IMAGES)
        h = F.relu(model.bn(model.conv(x)))
        loss = F.softmax_cross_entropy(model.fc(h), LABELS)
        model.cleargrads()
        loss.backward()
        optimizer.update()
        losses.append(loss.item())
    return result(model, losses=losses)


@program(ranks=3)
def heat(comm):
    grid = mnpar.SpatialGrid(comm, (comm.size,))
    start, stop = mnpar.plans.block(9, comm.size, comm.rank)
    u = mnpar.Variable(np.sin(np.arange(9.0))[None, start:stop])
    wish = np.cos(np.arange(9.0))[start:stop]
    losses = []
    for _ in range(3):
        v = u
        for _ in range(2):
            w = F.halo_exchange(v, grid, (9,), ksize=3, pad=1)
            v = v + 0.1 * (w[:, 2:] - 2 * v + w[:, :-2])
        loss = F.sum((v - wish) ** 2)
        u.cleargrad()
        loss.backward()
        u.array[...] -= 0.1 * u.grad
        losses.append(comm.allreduce(np.array(loss.item())).item())
    return result(losses=losses)


@program(ranks=2)
def sequence(comm):
    mnpar.random.seed(0)
    model = mnpar.Chain(qkv=L.Linear(4, 12), out=L.Linear(4, 4))
    optimizer = mnpar.optimizers.SGD(0.1)
    optimizer = mnpar.create_multi_node_optimizer(optimizer, comm, reduce="sum")
    optimizer.setup(model)
    start, stop = mnpar.plans.block(7, comm.size, comm.rank)
    x = SEQUENCE[:, start:stop]

    def lossfun():
        h = model.qkv(x, n_batch_axes=2).reshape((2, stop - start, 6, 2))
        q, k, v = [one.transpose(0, 2, 1, 3) for one in F.split_axis(h, 3, axis=2)]
        y = F.ring_attention(comm, q, k, v, causal=True).transpose(0, 2, 1, 3)
        y = model.out(y.reshape((2, stop - start, 4)), n_batch_axes=2)
        loss = F.sum((y - x) ** 2) / SEQUENCE.size
        losses.append(comm.allreduce_obj(loss.item()))
        return loss

    losses = []
    for _ in range(3):
        optimizer.update(lossfun)
    return result(model, losses=losses)


@program(ranks=2)
def experts(comm):
    mnpar.random.seed(0)
    mesh = mnpar.Mesh(comm, data=1, expert=comm.size)
    model = mnpar.Chain(first=L.Linear(4, 4), last=L.Linear(4, 3))
    model.experts = L.MixtureOfExperts(
        mesh.expert,
        lambda i: L.Linear(4, 4),
        n_experts=3,
        in_size=4,
        k=2,
        input_is_parallel=True,
        whole_gradients=False,
    )

    def lossfun(x, y):
        h = F.tanh(model.first(x))
        return F.mean((model.last(h + model.experts(h)) - y) ** 2)

    optimizer = mnpar.optimizers.SGD(0.1)
    axes = ("data", "expert")
    optimizer = mnpar.create_multi_node_optimizer(optimizer, mesh, axes=axes).setup(model)
    x, y = X[comm.rank :: comm.size], Y[comm.rank :: comm.size]
    loads = []
    for _ in range(3):
        optimizer.update(lossfun, x, y)
        loads.append(model.experts.load)
    return result(model, loads=loads)


@program(ranks=2)
def ensemble(comm):
    members = {}
    for i in range(comm.rank * 2 // comm.size, (comm.rank + 1) * 2 // comm.size):
        W = np.random.default_rng(i).normal(size=(3, 4))
        members[f"member{i}"] = L.Linear(4, 3, initialW=W)
    model = mnpar.Chain(**members)
    optimizer = mnpar.optimizers.Adam(0.05).setup(model)
    losses = []
    for _ in range(3):
        own = sum([F.softmax(member(X)) for member in model.children()])
        mean = F.allreduce(comm, own) / 2
        loss = -F.mean(F.log(F.select_item(mean, T)))
        model.cleargrads()
        (loss / comm.size).backward()
        optimizer.update()
        losses.append(loss.item())
    return result(model, losses=losses)


@program(ranks=3)
def later(comm):
    model = mnpar.Chain()
    model.w = mnpar.Parameter(np.array([1.0, -2.0, 0.5, 3.0]))
    optimizer = mnpar.optimizers.SGD(0.1).setup(model)
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    start, stop = mnpar.plans.block(len(X), comm.size, comm.rank)
    losses = []
    for _ in range(3):
        h = F.sum(X[start:stop] * F.copy_to(comm, model.w), axis=1)
        coming = F.iallreduce(comm, F.sum(h))
        F.isend(h, comm, rank=right, tag=3)
        near = F.irecv(comm, rank=left, tag=3)
        part = F.sum(F.tanh(h) ** 2) + 0.1 * F.sum(near**2)
        total = coming.wait()
        loss = F.reduce_from(comm, part + total**2 / (10 * comm.size))
        model.cleargrads()
        loss.backward()
        optimizer.update()
        losses.append(loss.item())
    return result(model, losses=losses)


@program(ranks=2)
def curvature(comm):
    mnpar.random.seed(0)
    model = mnpar.Chain(net=L.Linear(4, 3), out=L.Linear(3, 1))
    optimizer = mnpar.optimizers.SGD(0.05).setup(model)
    start, stop = mnpar.plans.block(len(X), comm.size, comm.rank)
    losses = []
    for _ in range(3):
        x = mnpar.Variable(X[start:stop])
        W, b = [F.copy_to(comm, p) for p in (model.net.W, model.net.b)]
        V, c = [F.copy_to(comm, p) for p in (model.out.W, model.out.b)]
        energy = F.sum(F.linear(F.tanh(F.linear(x, W, b)), V, c))
        (force,) = mnpar.grad([energy], [x], enable_double_backprop=True)
        loss = F.reduce_from(comm, F.sum((force - 1) ** 2) + energy)
        model.cleargrads()
        loss.backward()
        optimizer.update()
        losses.append(loss.item())
    return result(model, losses=losses)
