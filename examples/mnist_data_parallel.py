"""Data parallelism: each rank has a part of the images and a copy of the network, and all copies
make the same updates.

    mpiexec -n 4 python examples/mnist_data_parallel.py
    python examples/mnist_data_parallel.py                  starts two ranks itself
    python examples/mnist_data_parallel.py --threads 2      ranks that are threads: needs no MPI

Three lines make the program of one process this one: ``scatter_dataset``,
``create_multi_node_optimizer`` and ``create_multi_node_evaluator``. The parts may differ in length:
losses, gradients and accuracies are means over all images.

The images are scikit-learn's 1,797 handwritten digits; MNIST is taken instead from ``--data DIR``,
or where MNPAR_DATA says.
"""

import argparse
import os

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
    where = args.data or os.environ.get("MNPAR_DATA")
    return mnpar.datasets.get_mnist(data=where) if where else mnpar.datasets.get_digits()


def main(comm, args):
    """Train; returns the last entry of the log."""
    mnpar.random.seed([args.seed, comm.rank])
    model = L.Classifier(MLP(args.unit, 10))
    optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.Adam(), comm).setup(model)

    with mnpar.launch.reading(comm):
        train, test = load(args) if comm.rank == 0 else (None, None)
    train = mnpar.scatter_dataset(train, comm, shuffle=True, seed=args.seed)
    test = mnpar.scatter_dataset(test, comm, force_equal_length=False)
    train_iter = mnpar.iterators.SerialIterator(train, min(args.batchsize, len(train)))
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
            f"ranks: {comm.size} ({comm.name})   units: {args.unit}   minibatch of each: "
            f"{args.batchsize}   "
            f"epochs: {args.epoch}   images: {len(train)} of each, to test {len(test)} or less",
            flush=True,
        )
    if args.resume:
        mnpar.serializers.load_npz(args.resume, trainer)
    trainer.run()
    return trainer.get_extension("LogReport").log[-1]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--batchsize", "-b", type=int, default=50, help="images of each rank per step (50)"
    )
    parser.add_argument("--epoch", "-e", type=int, default=10, help="epochs (10)")
    parser.add_argument(
        "--unit", "-u", type=int, default=100, help="width of the hidden layers (100)"
    )
    parser.add_argument(
        "--seed", "-s", type=mnpar.launch.seed, default=0, help="of weights and orders (0)"
    )
    parser.add_argument(
        "--out",
        "-o",
        type=mnpar.launch.folder,
        default="result",
        metavar="DIR",
        help="where log, graph and snapshot go (result)",
    )
    parser.add_argument("--resume", "-r", metavar="FILE", help="a snapshot to go on from")
    parser.add_argument(
        "--data",
        type=mnpar.launch.existing_folder,
        metavar="DIR",
        help="the folder of MNIST's four IDX files, raw or .gz",
    )
    parser.add_argument("--progress", action="store_true", help="show a progress bar")
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--ranks",
        type=int,
        default=2,
        help="ranks to start where no launcher has started several (2)",
    )
    where.add_argument(
        "--threads", type=int, metavar="N", help="run on N ranks that are threads of this process"
    )
    args = mnpar.launch.parse_args(parser, batchsize=1, epoch=1, unit=1, ranks=1, threads=1)
    if args.resume and not os.path.isfile(args.resume):
        parser.error(f"--resume: there is no file {args.resume}")
    if args.threads:
        mnpar.run(main, ranks=args.threads, args=(args,))
    else:
        mnpar.launch.relaunch(args.ranks)
        main(mnpar.create_communicator(), args)
