"""Data parallel: a multi-layer perceptron, in the manner of ChainerMN's train_mnist.py and
train_mnist_checkpoint.py.
"""

import argparse

import numpy as np

import mnpar as chainer
import mnpar as chainermn
import mnpar.functions as F
import mnpar.links as L
from mnpar import training
from mnpar.training import extensions


class MLP(chainer.Chain):
    def __init__(self, n_units, n_out):
        super().__init__(
            # the size of the inputs to each layer will be inferred
            l1=L.Linear(784, n_units),
            l2=L.Linear(n_units, n_units),
            l3=L.Linear(n_units, n_out),
        )

    def __call__(self, x):
        h1 = F.relu(self.l1(x))
        h2 = F.relu(self.l2(h1))
        return self.l3(h2)


def get_data(n=200):
    rng = np.random.RandomState(0)
    t = rng.randint(0, 10, n).astype(np.int32)
    x = rng.rand(n, 784).astype(np.float32) / 10
    x[np.arange(n), t * 7] += 10
    data = chainer.datasets.TupleDataset(x, t)
    return chainer.datasets.split_dataset(data, n - n // 4)


def main(argv=None):
    parser = argparse.ArgumentParser(description="ChainerMN example: MNIST")
    parser.add_argument("--aggregate", action="store_true")
    parser.add_argument("--batchsize", "-b", type=int, default=10)
    parser.add_argument("--communicator", type=str, default="pure_nccl")
    parser.add_argument("--epoch", "-e", type=int, default=3)
    parser.add_argument("--gpu", "-g", action="store_true")
    parser.add_argument("--out", "-o", default="result")
    parser.add_argument("--resume", "-r", default="")
    parser.add_argument("--run-id", default="")
    parser.add_argument("--unit", "-u", type=int, default=20)
    args = parser.parse_args(argv)

    if args.gpu:
        if args.communicator == "naive":
            print("Error: 'naive' communicator does not support GPU.\n")
            exit(-1)
        comm = chainermn.create_communicator(args.communicator, allreduce_grad_dtype="float16")
        device = comm.intra_rank
        chainer.cuda.get_device_from_id(device).use()
    else:
        if args.communicator != "naive" and chainer.backends.cuda.available:
            print(
                "Warning: using naive communicator because only naive supports CPU-only execution"
            )
        comm = chainermn.create_communicator("naive")
        device = -1
    assert isinstance(comm, chainermn.CommunicatorBase)
    chainermn.global_except_hook.add_hook()

    if comm.rank == 0:
        print("==========================================")
        print(f"Num process (COMM_WORLD): {comm.size}")
        if args.gpu:
            print("Using GPUs")
        print(f"Using {args.communicator} communicator")
        print(f"Num unit: {args.unit}")
        print(f"Num Minibatch-size: {args.batchsize}")
        print(f"Num epoch: {args.epoch}")
        print("==========================================")

    model = L.Classifier(MLP(args.unit, 10))
    if device >= 0:
        model.to_gpu()

    optimizer = chainermn.create_multi_node_optimizer(chainer.optimizers.Adam(), comm)
    optimizer.setup(model)

    if comm.rank == 0:
        train, test = get_data()
    else:
        train, test = None, None
    train = chainermn.scatter_dataset(train, comm, shuffle=True)
    test = chainermn.scatter_dataset(test, comm, shuffle=True)

    train_iter = chainer.iterators.SerialIterator(train, args.batchsize)
    test_iter = chainer.iterators.SerialIterator(test, args.batchsize, repeat=False, shuffle=False)

    updater = training.StandardUpdater(train_iter, optimizer, device=device)
    trainer = training.Trainer(updater, (args.epoch, "epoch"), out=args.out)

    if args.run_id:
        checkpointer = chainermn.create_multi_node_checkpointer(
            name=args.run_id, comm=comm, path=args.out
        )
        checkpointer.maybe_load(trainer, optimizer)
        print(
            "Rank",
            comm.rank,
            ": (Epoch, iter) =",
            (trainer.updater.epoch, trainer.updater.iteration),
        )
        trainer.extend(checkpointer, trigger=(5, "iteration"))

    evaluator = extensions.Evaluator(test_iter, model, device=device)
    evaluator = chainermn.create_multi_node_evaluator(evaluator, comm)
    trainer.extend(evaluator)
    if args.aggregate:
        trainer.extend(
            chainermn.extensions.ObservationAggregator(comm, "main/loss", "main/loss_aggregated")
        )

    if comm.rank == 0:
        trainer.extend(extensions.DumpGraph("main/loss"))
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
        trainer.extend(extensions.ProgressBar())

    if args.resume:
        chainer.serializers.load_npz(args.resume, trainer)
    trainer.run()
    if comm.rank == 0:
        chainer.serializers.save_npz(args.out + "/trainer.npz", trainer)
    return evaluator()["validation/main/accuracy"]


if __name__ == "__main__":
    main()
