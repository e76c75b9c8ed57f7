"""Data parallelism: each rank has a part of the images and a copy of the network, and all copies
make the same updates.

    mpiexec -n 4 python examples/mnist_data_parallel.py
    python examples/mnist_data_parallel.py                  starts two ranks itself
    python examples/mnist_data_parallel.py --threads 2      ranks that are threads: needs no MPI

Three lines make the program of one process this one: ``scatter_dataset``,
``create_multi_node_optimizer`` and ``create_multi_node_evaluator``. The parts may differ in length:
losses, gradients and accuracies are means over all images.

A step takes ``--batchsize`` images of all ranks together, so that any number of ranks learns what
one learns. Larger batches, to give more ranks more work, need a larger learning rate, too:
``--batchsize 200 --lr 0.004``.

The images are scikit-learn's 1,797 handwritten digits; MNIST is taken instead from ``--data DIR``,
or where MNPAR_DATA says.
"""

import os

import numpy as np

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar import training
from mnpar.training import extensions


class MLP(mnpar.Chain):
    """Three layers; their input sizes are found out from the data."""

    def __init__(self, n_units, n_out):
        super().__init__()
        self.l1 = L.Linear(None, n_units)
        self.l2 = L.Linear(None, n_units)
        self.l3 = L.Linear(None, n_out)

    def forward(self, x):
        return self.l3(F.relu(self.l2(F.relu(self.l1(x)))))


def load(args):
    """Images to train and to test with."""
    if args.data:
        return mnpar.datasets.get_mnist(data=args.data)
    return mnpar.datasets.get_digits()


def main(comm, args):
    """Train; returns the last entry of the log."""
    mnpar.random.seed([args.seed, comm.rank])
    model = L.Classifier(MLP(args.unit, 10))
    adam = mnpar.optimizers.Adam(args.lr)
    optimizer = mnpar.create_multi_node_optimizer(adam, comm).setup(model)

    with mnpar.launch.reading(comm):
        train, test = load(args) if comm.rank == 0 else (None, None)
    train = mnpar.scatter_dataset(train, comm, shuffle=True, seed=args.seed)
    test = mnpar.scatter_dataset(test, comm, force_equal_length=False)
    share = min(max(1, args.batchsize // comm.size), len(train))
    train_iter = mnpar.iterators.SerialIterator(train, share)
    test_iter = mnpar.iterators.SerialIterator(test, args.batchsize, repeat=False, shuffle=False)

    updater = training.StandardUpdater(train_iter, optimizer)
    trainer = training.Trainer(updater, (args.epoch, "epoch"), out=args.out)
    trainer.extend(mnpar.create_multi_node_evaluator(extensions.Evaluator(test_iter, model), comm))
    trainer.extend(extensions.DumpGraph("main/loss"))  # rank 0 writes for all, and prints
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
    if args.progress:
        trainer.extend(extensions.ProgressBar(update_interval=10))
    if comm.rank == 0:
        trainer.extend(extensions.snapshot(n_retains=1))
        print(
            f"ranks: {comm.size} ({comm.name})   units: {args.unit}   minibatch: {share} of each   "
            f"epochs: {args.epoch}   images: {len(train)} of each, to test {len(test)} or less"
        )
    if args.resume:
        mnpar.serializers.load_npz(args.resume, trainer)
    trainer.run()
    apart = max(abs(p.array - comm.bcast(p.array)).max() for p in model.params())
    apart = comm.allreduce(np.array(apart), "max").item()
    if comm.rank == 0:
        share = min(share, len(train))
        print(
            f"Each of the {comm.size} rank(s) has computed the gradients of {share} images in each "
            f"step, and all have added them up: their weights differ by {apart:g} at most, and are "
            f"those of one network that was trained with minibatches of {share * comm.size}."
        )
    return trainer.get_extension("LogReport").log[-1]


def check(parser, args):
    """Refuse what does not go together."""
    if args.resume and not os.path.isfile(args.resume):
        parser.error(f"--resume: there is no file {args.resume}")


if __name__ == "__main__":
    parser = mnpar.launch.Parser(__doc__, check=check)
    parser.flag("--batchsize -b", 50, "images per step, of all ranks together")
    parser.flag("--lr", 0.001, "the learning rate")
    parser.flag("--epoch -e", 10, "epochs")
    parser.flag("--unit -u", 100, "width of the hidden layers")
    parser.flag("--seed -s", mnpar.launch.seed, "of weights and orders", default=0)
    parser.flag(
        "--out -o", mnpar.launch.folder, "where log, graph and snapshot go", default="result"
    )
    parser.flag("--resume -r", str, "a snapshot to go on from", metavar="FILE")
    parser.flag("--data", mnpar.launch.existing_folder, "of MNIST's files", variable="MNPAR_DATA")
    parser.flag("--progress", False, "show a progress bar")
    mnpar.launch.script(main, parser)
