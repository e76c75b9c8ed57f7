"""A perceptron in two halves, by MultiNodeChainList or by explicit delegates; and copies of the
pair of ranks (``--dual``).
"""

import argparse

import numpy as np

import mnpar as chainer
import mnpar as chainermn
import mnpar.functions as F
import mnpar.links as L
from mnpar import training
from mnpar.training import extensions


class MLP0SubA(chainer.Chain):
    def __init__(self, comm, n_out):
        super().__init__(l1=L.Linear(784, n_out))

    def __call__(self, x):
        return F.relu(self.l1(x))


class MLP0SubB(chainer.Chain):
    def __init__(self, comm):
        super().__init__()

    def __call__(self, y):
        return y


class MLP0(chainermn.MultiNodeChainList):
    # Model on worker 0.
    def __init__(self, comm, n_out):
        super().__init__(comm=comm)
        self.add_link(MLP0SubA(comm, n_out), rank_in=None, rank_out=1)
        self.add_link(MLP0SubB(comm), rank_in=1, rank_out=None)


class MLP1Sub(chainer.Chain):
    def __init__(self, n_units, n_out):
        super().__init__(l2=L.Linear(n_units, n_units), l3=L.Linear(n_units, n_out))

    def __call__(self, h0):
        h1 = F.relu(self.l2(h0))
        return self.l3(h1)


class MLP1(chainermn.links.MultiNodeChainList):
    # Model on worker 1.
    def __init__(self, comm, n_units, n_out):
        super().__init__(comm=comm)
        self.add_link(MLP1Sub(n_units, n_out), rank_in=0, rank_out=0)


class ExplicitMLP0(chainer.Chain):
    def __init__(self, comm, n_units):
        super().__init__()
        self.comm = comm
        with self.init_scope():
            self.l1 = L.Linear(784, n_units)

    def __call__(self, x):
        h0 = F.relu(self.l1(x))
        phi = chainermn.functions.send(h0, self.comm, rank=1)
        return chainermn.functions.recv(self.comm, rank=1, delegate_variable=phi)


class ExplicitMLP1(chainer.Chain):
    def __init__(self, comm, n_units, n_out):
        super().__init__()
        self.comm = comm
        with self.init_scope():
            self.l2 = L.Linear(n_units, n_units)
            self.l3 = L.Linear(n_units, n_out)

    def __call__(self, *_):
        h0 = chainermn.functions.recv(self.comm, rank=0)
        y = self.l3(F.relu(self.l2(h0)))
        return chainermn.functions.send(y, self.comm, rank=0)


def get_data(n=120):
    rng = np.random.RandomState(0)
    t = rng.randint(0, 10, n).astype(np.int32)
    x = rng.rand(n, 784).astype(np.float32)
    x[np.arange(n), t * 7] += 10
    return chainer.datasets.split_dataset(chainer.datasets.TupleDataset(x, t), n - 20)


def main(argv=None):
    parser = argparse.ArgumentParser(description="ChainerMN example: pipelined neural network")
    parser.add_argument("--batchsize", "-b", type=int, default=20)
    parser.add_argument("--epoch", "-e", type=int, default=3)
    parser.add_argument("--explicit", action="store_true")
    parser.add_argument("--dual", action="store_true")
    parser.add_argument("--out", "-o", default="result")
    parser.add_argument("--unit", "-u", type=int, default=20)
    args = parser.parse_args(argv)

    comm = chainermn.create_communicator("naive")
    data_axis = comm.rank % 2
    model_axis = comm.rank // 2
    data_comm = comm.split(data_axis, comm.rank)
    model_comm = comm.split(model_axis, comm.rank)
    if comm.size % 2 or (not args.dual and comm.size != 2):
        raise ValueError("This example can only be executed on an even number of processes.")

    if model_comm.rank == 0:
        model = L.Classifier(
            ExplicitMLP0(model_comm, args.unit) if args.explicit else MLP0(model_comm, args.unit)
        )
    elif args.explicit:
        model = ExplicitMLP1(model_comm, args.unit, 10)
    else:
        model = MLP1(model_comm, args.unit, 10)

    optimizer = chainer.optimizers.Adam()
    if args.dual:
        optimizer = chainermn.create_multi_node_optimizer(optimizer, data_comm)
    optimizer.setup(model)

    train, test = get_data()
    if model_axis != 0:
        train, test = None, None
    if args.dual:
        train = chainermn.scatter_dataset(train, data_comm, shuffle=True, seed=0)
        test = chainermn.scatter_dataset(test, data_comm, shuffle=True, seed=0)
    if model_comm.rank == 1:
        train = chainermn.datasets.create_empty_dataset(train)
        test = chainermn.datasets.create_empty_dataset(test)

    train_iter = chainer.iterators.SerialIterator(train, args.batchsize, shuffle=False)
    test_iter = chainer.iterators.SerialIterator(test, args.batchsize, repeat=False, shuffle=False)

    updater = training.StandardUpdater(train_iter, optimizer, device=-1)
    trainer = training.Trainer(updater, (args.epoch, "epoch"), out=args.out)
    evaluator = extensions.Evaluator(test_iter, model, device=-1)
    if args.dual:
        evaluator = chainermn.create_multi_node_evaluator(evaluator, data_comm)
    trainer.extend(evaluator)

    if comm.rank == 0:
        trainer.extend(extensions.LogReport())
        trainer.extend(
            extensions.PrintReport(
                [
                    "epoch",
                    "main/loss",
                    "validation/main/loss",
                    "main/accuracy",
                    "validation/main/accuracy",
                    "elapsed_time",
                ]
            )
        )
    trainer.run()
    return {name: param.array for name, param in model.namedparams()}


if __name__ == "__main__":
    main()
