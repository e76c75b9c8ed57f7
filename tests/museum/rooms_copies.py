"""Copies of a model that are no copies any more."""

import numpy as np

import mnpar
import mnpar.functions as F
import mnpar.links as L
from tests.museum.room import Hall

hall = Hall("Copies of a model")

X = np.arange(1.0, 7.0)[:, None]


def net():
    """A layer that begins alike everywhere."""
    return L.Linear(1, 1, initialW=np.ones((1, 1)))


def train(comm, model, optimizer, loss):
    """Two steps on this rank's rows."""
    for _ in range(2):
        model.cleargrads()
        loss(X[comm.rank :: comm.size]).backward()
        optimizer.update()


@hall.room(
    "A model that is moved and comes back",
    "pytorch/pytorch#104336",
    "after `.cpu().cuda()` gradients are no longer reduced",
    ranks=3,
)
def model_that_is_moved(comm):
    model = mnpar.DistributedDataParallel(net(), comm)
    optimizer = mnpar.optimizers.SGD(0.01).setup(model)
    loss = lambda x: F.mean(model(x) ** 2)
    train(comm, model, optimizer, loss)
    model.to_device(-1)
    train(comm, model, optimizer, loss)
    return model.module.W.array


@hall.room(
    "A layer that is not used",
    "pytorch/pytorch#112152",
    "gradients differ between ranks if the forward leaves a part of the model out",
    ranks=3,
)
def layer_that_is_not_used(comm):
    model = mnpar.Chain(used=net(), unused=net())
    whole = mnpar.DistributedDataParallel(model, comm)
    model.forward = lambda x: model.used(x)
    optimizer = mnpar.optimizers.MomentumSGD(0.01).setup(whole)
    train(comm, whole, optimizer, lambda x: F.mean(whole(x) ** 2))
    return np.stack([model.used.W.array, model.unused.W.array])


@hall.room(
    "A forward that is computed again",
    "pytorch/pytorch#109191",
    "with checkpoints of activations, gradients are not synchronized",
    ranks=3,
)
def forward_that_is_computed_again(comm):
    inner = mnpar.Chain(a=net(), b=net())
    inner.forward = lambda x: inner.b(F.forget(lambda x: F.tanh(inner.a(x)), x))
    model = mnpar.DistributedDataParallel(inner, comm)
    optimizer = mnpar.optimizers.SGD(0.1).setup(model)
    train(comm, model, optimizer, lambda x: F.mean(model(x) ** 2))
    return inner.a.W.array


@hall.room(
    "Copies that begin otherwise",
    "ChainerMN (its first update broadcasts, and takes no step)",
    "each rank has weights of its own until somebody broadcasts",
    ranks=3,
    value=[[[-3.0]]] * 3,
)
def copies_that_begin_otherwise(comm):
    model = L.Linear(1, 1, nobias=True, initialW=np.full((1, 1), float(comm.rank)))
    optimizer = mnpar.create_multi_node_optimizer(
        mnpar.optimizers.SGD(1.0), comm
    ).setup(model)
    optimizer.update(lambda x: F.mean(model(x)), np.full((2, 1), 3.0))
    return model.W.array


@hall.room(
    "A learning rate on one rank",
    "a mistake of programs on any system",
    "copies drift apart where nothing compares them",
    error="hyperparameters are not the same on all ranks",
)
def learning_rate_on_one_rank(comm):
    model = net()
    optimizer = mnpar.create_multi_node_optimizer(
        mnpar.optimizers.SGD(0.1), comm
    ).setup(model)
    optimizer.lr = 0.1 * (1 + comm.rank)
    for _ in range(2):
        optimizer.update(lambda x: F.mean(model(x) ** 2), X[comm.rank :: comm.size])


@hall.room(
    "A layer that is frozen on one rank",
    "a mistake of programs on any system",
    "the copies of the layer drift apart",
    error="parameter 0's update: not set, disabled",
)
def layer_that_is_frozen_on_one_rank(comm):
    model = net()
    optimizer = mnpar.create_multi_node_optimizer(
        mnpar.optimizers.SGD(0.1), comm
    ).setup(model)
    if comm.rank == 1:
        model.disable_update()
    for _ in range(2):
        optimizer.update(lambda x: F.mean(model(x) ** 2), X[comm.rank :: comm.size])


@hall.room(
    "A hook on one rank",
    "a mistake of programs on any system",
    "one copy's weights decay, and the others' do not; nothing but their digests shows it",
    error="the values of /W are not the same on ranks [0, 1], copies of each other",
)
def hook_on_one_rank(comm):
    model = mnpar.DistributedDataParallel(net(), comm)
    optimizer = mnpar.optimizers.SGD(0.1).setup(model)
    if comm.rank == 1:
        optimizer.add_hook(mnpar.optimizer_hooks.WeightDecay(0.1))
    for _ in range(8):
        train(comm, model, optimizer, lambda x: F.mean(model(x)))


@hall.room(
    "Copies that nobody averages",
    "intel/e2eAIOK#198 (two models that are taken out of their wrapper)",
    "training degrades to that of one rank's samples; only rank 0 is saved",
    checked="their mean is one rank's",
    impossible="P models that are trained apart are an ensemble, which is a right program: nothing "
    "in it says that its members are to be copies.",
)
def copies_that_nobody_averages(comm):
    model = net()
    optimizer = mnpar.optimizers.SGD(0.01).setup(model)
    train(comm, model, optimizer, lambda x: F.mean(model(x) ** 2))


@hall.room(
    "Gradients that are summed, and not divided",
    "horovod/horovod#843 (users ask which it is)",
    "the learning rate is P times as large as on one process",
    checked="P = 2 times one rank's",
    impossible="The gradient of a sum of losses is a right gradient, of another loss.",
)
def gradients_that_are_not_divided(comm):
    model = net()
    optimizer = mnpar.optimizers.SGD(0.01).setup(model)
    for _ in range(2):
        model.cleargrads()
        F.mean(model(X[comm.rank :: comm.size]) ** 2).backward()
        for param in model.params():
            param.grad = comm.allreduce(param.grad)
        optimizer.update()
