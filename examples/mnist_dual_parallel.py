"""Data and model parallelism at once: a network divided over two ranks, and copies of it with other
images.

    mpiexec -n 4 python examples/mnist_dual_parallel.py
        (any even number; or plain python, or --threads 4)

    model_comm:  0 ⇄ 1   2 ⇄ 3      the two halves of one network
    data_comm:   0 ⇄ 2   1 ⇄ 3      the copies of one half

Two splits of the communicator say it all: the network is made on ``model_comm``, as in
mnist_model_parallel.py; images, optimizer and evaluator are shared over ``data_comm``, as in
mnist_data_parallel.py.
"""

import os
import sys

import numpy as np

import mnpar
from mnpar import training
from mnpar.training import extensions

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from mnist_model_parallel import load, network


def main(comm, args):
    """Train; rank 0 returns the last entry of the log."""
    data_axis = comm.rank % 2
    model_axis = comm.rank // 2
    data_comm = comm.split(data_axis, comm.rank)
    model_comm = comm.split(model_axis, comm.rank)
    mnpar.random.seed([args.seed, comm.rank])
    with mnpar.launch.reading(comm):
        train, test = load(args) if data_comm.rank == 0 else (None, None)
    train = mnpar.scatter_dataset(train, data_comm, shuffle=True, seed=args.seed)
    test = mnpar.scatter_dataset(test, data_comm, force_equal_length=False)
    model = network(model_comm, train[0][0].size, args.unit)
    optimizer = mnpar.create_multi_node_optimizer(mnpar.optimizers.Adam(), data_comm).setup(model)
    if model_comm.rank == 1:  # as many examples, with nothing in them
        train = mnpar.create_empty_dataset(train)
        test = mnpar.create_empty_dataset(test)
    share = min(max(1, args.batchsize // data_comm.size), len(train))
    train_iter = mnpar.iterators.SerialIterator(train, share)
    test_iter = mnpar.iterators.SerialIterator(test, args.batchsize, repeat=False, shuffle=False)

    updater = training.StandardUpdater(train_iter, optimizer)
    trainer = training.Trainer(updater, (args.epoch, "epoch"), out=args.out, comm=comm)
    trainer.extend(mnpar.create_multi_node_evaluator(extensions.Evaluator(test_iter, model), comm))
    trainer.extend(extensions.LogReport())  # rank 0 writes it, and prints
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
    if comm.rank == 0:
        print(
            f"ranks: {comm.size} ({comm.name}), copies: {data_comm.size}   units: {args.unit}   "
            f"minibatch: {share} of each copy   epochs: {args.epoch}   images: {len(train)} of "
            f"each copy, to test {len(test)} or less"
        )
    trainer.run()
    apart = max(abs(p.array - data_comm.bcast(p.array)).max() for p in model.params())
    apart = comm.allreduce(np.array(apart), "max").item()
    if comm.rank == 0:
        print(
            f"{data_comm.size} copies of the network, each on two ranks, have added up their "
            f"gradients in each step; their weights differ by {apart:g} at most."
        )
    return trainer.get_extension("LogReport").log[-1]


def check(parser, args):
    """Refuse what does not go together."""
    ranks = mnpar.launch.started_ranks(args, args.ranks)
    if ranks % 2:
        parser.error(
            f"this network is made for an even number of ranks, not {ranks}: "
            f"{mnpar.launch.command(ranks + 1, args.threads)}"
        )


if __name__ == "__main__":
    parser = mnpar.launch.Parser(__doc__, ranks=4, check=check)
    parser.flag("--batchsize -b", 50, "images per step, of all copies together")
    parser.flag("--epoch -e", 10, "epochs")
    parser.flag("--unit -u", 100, "width of the hidden layers")
    parser.flag("--seed -s", mnpar.launch.seed, "of weights and orders", default=0)
    parser.flag("--out -o", mnpar.launch.folder, "for the log", default="result")
    parser.flag(
        "--data", mnpar.launch.existing_folder, "the folder of MNIST's four IDX files, raw or .gz"
    )
    mnpar.launch.script(main, parser)
