"""Channel-wise parallel convolutions of the same images on every rank, in the manner of ChainerMN's
VGG, and an ensemble.
"""

import argparse

import numpy as np

import mnpar as chainer
import mnpar as chainermn
import mnpar.functions as F
import mnpar.links as L
from mnpar import training


class ParallelConvolution2D(L.Convolution2D):
    def __init__(self, comm, in_channels, out_channels, *args, **kwargs):
        self.comm_size, self.comm_rank = comm.size, comm.rank
        self.channels = slice(comm.rank, None, comm.size)
        n_in = len(range(in_channels)[self.channels])
        n_out = len(range(out_channels)[self.channels])
        super().__init__(n_in, n_out, *args, **kwargs)
        self.comm = comm

    def __call__(self, x):
        x = x[:, self.channels, :, :]
        y = super().__call__(x)
        ys = chainermn.functions.allgather(self.comm, y)
        return F.concat(ys, axis=1)


class Ensemble(chainer.Chain):
    def __init__(self, comm, block):
        super().__init__(block=block)
        self.comm = comm

    def __call__(self, x):
        y = self.block(x)
        if not chainer.config.train:
            y = F.stack(chainermn.functions.allgather(self.comm, y), axis=0)
            y = F.average(y, axis=0)
        return y


class Net(chainer.Chain):
    def __init__(self, comm):
        super().__init__()
        with self.init_scope():
            self.conv1 = ParallelConvolution2D(comm, 3, 6, 3, pad=1)
            self.conv2 = ParallelConvolution2D(comm, 6, 4, 3, pad=1)
            self.bn = L.BatchNormalization(4)
            self.fc = Ensemble(comm, L.Linear(4 * 3 * 3, 4))

    def __call__(self, x):
        h = F.relu(self.conv1(x))
        h = F.relu(self.bn(self.conv2(h)))
        return self.fc(F.max_pooling_2d(h, 2, stride=2))


def get_data(n=24):
    rng = np.random.RandomState(5)
    x = rng.rand(n, 3, 6, 6).astype(np.float32)
    return chainer.datasets.TupleDataset(x, rng.randint(0, 4, n).astype(np.int32))


def main(argv=None):
    parser = argparse.ArgumentParser(
        description="ChainerMN example: channel-wise parallel convolution"
    )
    parser.add_argument("--batchsize", "-b", type=int, default=6)
    parser.add_argument("--learnrate", "-l", type=float, default=0.05)
    parser.add_argument("--epoch", "-e", type=int, default=2)
    parser.add_argument("--synchronized", action="store_true")
    parser.add_argument("--out", "-o", default="result")
    args = parser.parse_args(argv)

    comm = chainermn.create_communicator("naive")
    model = L.Classifier(Net(comm))
    optimizer = chainer.optimizers.MomentumSGD(args.learnrate)
    optimizer.setup(model)
    optimizer.add_hook(chainer.optimizer.WeightDecay(5e-4))

    train = get_data()
    test = get_data(10)
    train_iter = chainer.iterators.SerialIterator(train, args.batchsize, shuffle=args.synchronized)
    if args.synchronized:
        train_iter = chainermn.iterators.create_synchronized_iterator(train_iter, comm)
    else:
        train_iter = chainermn.iterators.create_multi_node_iterator(train_iter, comm)
    test_iter = chainermn.iterators.create_multi_node_iterator(
        chainer.iterators.SerialIterator(test, args.batchsize, repeat=False, shuffle=False), comm
    )

    updater = training.StandardUpdater(train_iter, optimizer)
    trainer = training.Trainer(updater, (args.epoch, "epoch"), out=args.out)
    evaluated = []

    test_batches = list(test_iter)

    @training.make_extension(trigger=(1, "epoch"))
    def evaluate(trainer):
        with chainer.using_config("train", False), chainer.no_backprop_mode():
            for batch in test_batches:
                x, t = chainer.dataset.concat_examples(batch)
                evaluated.append(float(F.accuracy(model.predictor(x), t).array))

    trainer.extend(evaluate)
    trainer.run()
    return evaluated, {name: param.array for name, param in model.namedparams()}


if __name__ == "__main__":
    main()
