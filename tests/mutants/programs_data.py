"""Programs whose ranks have copies of a model, and parts of the data."""

import tempfile

import numpy as np

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar import training
from mnpar.training import extensions
from tests.mutants.program import T, X, Y, program, result


@program(ranks=3)
def copies(comm):
    mnpar.random.seed(0)
    model = mnpar.Sequential(L.Linear(4, 5), F.tanh, L.Linear(5, 3))
    optimizer = mnpar.optimizers.MomentumSGD(0.1)
    optimizer = mnpar.create_multi_node_optimizer(optimizer, comm)
    optimizer.setup(model)
    optimizer.add_hook(mnpar.optimizer_hooks.GradientClipping(0.5))
    begin, end = mnpar.scatter_index(len(X), comm, force_equal_length=False)
    x, t = X[begin:end], T[begin:end]
    losses = []

    def lossfun(x, t):
        return F.softmax_cross_entropy(model(x), t)

    for step in range(3):
        optimizer.update(lossfun, x, t)
        optimizer.lr = 0.1 / (step + 1)
        with mnpar.no_backprop_mode():
            part = F.softmax_cross_entropy(model(x), t).item() * len(x)
        losses.append(comm.allreduce_obj(part) / len(X))
    return result(model, losses=losses)


@program(ranks=2)
def own_backward(comm):
    model = L.Linear(4, 3)
    mnpar.parallel.broadcast_model(model, comm)
    model = mnpar.DistributedDataParallel(model, comm)
    optimizer = mnpar.optimizers.Adam(0.05).setup(model)
    optimizer.add_hook(mnpar.optimizer_hooks.WeightDecay(0.01))
    x, y = X[comm.rank :: comm.size], Y[comm.rank :: comm.size]
    losses = []
    for _ in range(3):
        loss = F.mean_squared_error(model(x), y)
        model.cleargrads()
        loss.backward()
        optimizer.update()
        total = comm.allreduce(np.array([loss.item() * len(x), len(x)]))
        losses.append(total[0] / total[1])
    return result(model.module, losses=losses)


@program(ranks=2)
def trainer(comm):
    mnpar.random.seed(0)
    model = L.Classifier(mnpar.Sequential(L.Linear(4, 4), F.relu, L.Linear(4, 3)))
    optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.Adam(0.05), comm)
    optimizer.setup(model)
    data = mnpar.datasets.TupleDataset(X[:6], T[:6]) if comm.rank == 0 else None
    train = mnpar.scatter_dataset(data, comm)
    test = mnpar.datasets.TupleDataset(X[:5], T[:5]) if comm.rank == 0 else None
    test = mnpar.scatter_dataset(test, comm, force_equal_length=False)
    train_iter = mnpar.iterators.SerialIterator(train, 6 // comm.size, shuffle=False)
    test_iter = mnpar.iterators.SerialIterator(test, 2, repeat=False, shuffle=False)
    with tempfile.TemporaryDirectory() as out:
        folder = comm.bcast_obj(out)
        updater = training.StandardUpdater(train_iter, optimizer)
        loop = training.Trainer(updater, (4, "iteration"), out)
        evaluator = extensions.Evaluator(test_iter, model)
        evaluator = mnpar.create_multi_node_evaluator(evaluator, comm)
        loop.extend(evaluator, trigger=(1, "iteration"))
        checkpointer = mnpar.create_multi_node_checkpointer("run", comm, path=folder)
        loop.extend(checkpointer, trigger=(2, "iteration"))
        checkpointer.maybe_load(loop, optimizer)
        loop.run()
        comm.barrier()
    seen = [loop.observation["validation/main/" + name] for name in ("loss", "accuracy")]
    return result(model, seen=seen, iteration=updater.iteration)


@program(ranks=2)
def iterators(comm):
    mnpar.random.seed(0)
    data = mnpar.datasets.TupleDataset(X, T)
    if comm.rank > 0:
        data = mnpar.create_empty_dataset(data)
    iterator = mnpar.iterators.SerialIterator(data, 3)
    iterator = mnpar.iterators.create_multi_node_iterator(iterator, comm)
    other = mnpar.iterators.SerialIterator(Y, 3)
    other = mnpar.iterators.create_synchronized_iterator(other, comm)
    model = mnpar.Chain(
        wide=L.ColumnParallelLinear(comm, 4, 6, gather_output=False),
        narrow=L.RowParallelLinear(comm, 6, 3, input_is_parallel=True),
    )
    optimizer = mnpar.optimizers.SGD(0.1).setup(model)
    losses = []
    for _ in range(4):
        x, t = mnpar.dataset.concat_examples(iterator.next())
        y = model.narrow(F.tanh(model.wide(x)))
        near = F.mean_squared_error(y, np.stack(other.next()))
        loss = F.softmax_cross_entropy(y, t) + 0.1 * near
        model.cleargrads()
        loss.backward()
        optimizer.update()
        losses.append(loss.item())
    return result(model, losses=losses, epoch=iterator.epoch_detail)


@program(ranks=2)
def accumulated(comm):
    mnpar.random.seed(0)
    model = mnpar.Sequential(L.Linear(4, 6), F.sigmoid, L.Linear(6, 3))
    optimizer = mnpar.optimizers.SGD(0.2)
    optimizer = mnpar.create_multi_node_optimizer(optimizer, comm, reduce="sum")
    optimizer.setup(model)
    optimizer.loss_scaling(scale=16.0)
    optimizer.add_hook(mnpar.optimizer_hooks.GradientHardClipping(-0.5, 0.5))
    first, second = range(comm.rank, 4, comm.size), range(4 + comm.rank, 7, comm.size)
    losses = []

    def lossfun(x, y):
        return F.sum((model(x) - y) ** 2) / len(X)

    for _ in range(3):
        with optimizer.no_sync():
            optimizer.update(lossfun, X[first], Y[first])
        optimizer.update(lossfun, X[second], Y[second])
        with mnpar.using_config("train", False), mnpar.no_backprop_mode():
            value = mnpar.meters.AverageValueMeter()
            for i in (*first, *second):
                value.add(lossfun(X[i : i + 1], Y[i : i + 1]).item() * len(X), weight=1)
            mnpar.meters.sync([value], comm)
        losses.append(value.value().mean)
    return result(model, losses=losses)
