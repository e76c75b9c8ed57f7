"""Model parallelism: one network on two ranks, described by which rank passes activations to which.

    mpiexec -n 2 python examples/mnist_model_parallel.py      (or plain python, or --threads)

Rank 0 has the images, the first layer and the loss; rank 1 has the other two layers. A
MultiNodeChainList sends and receives; ``backward`` sends the gradients the other way. Each rank has
an optimizer of its own parameters, and a trainer.
"""

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar import training
from mnpar.training import extensions


class First(mnpar.Chain):
    """Images → hidden units."""

    def __init__(self, n_in, n_units):
        super().__init__()
        self.l1 = L.Linear(n_in, n_units)

    def forward(self, x):
        return F.relu(self.l1(x))


class Rest(mnpar.Chain):
    """Hidden units → scores."""

    def __init__(self, n_units, n_out):
        super().__init__()
        self.l2 = L.Linear(n_units, n_units)
        self.l3 = L.Linear(n_units, n_out)

    def forward(self, h):
        return self.l3(F.relu(self.l2(h)))


class Scores(mnpar.Chain):
    """The last part, on rank 0: returns the scores that it receives."""

    def forward(self, y):
        return y


def network(comm, n_in, n_units, n_out=10):
    """This rank's parts; ``n_in``, the pixels of an image, matters where the images are."""
    model = mnpar.MultiNodeChainList(comm)
    if comm.rank == 0:
        model.add_link(First(n_in, n_units), rank_in=None, rank_out=1)
        model.add_link(Scores(), rank_in=1, rank_out=None)
        return L.Classifier(model)
    model.add_link(Rest(n_units, n_out), rank_in=0, rank_out=0)
    return model


def load(args):
    """Images to train and to test with."""
    if args.data:
        return mnpar.datasets.get_mnist(data=args.data)
    return mnpar.datasets.get_digits()


def main(comm, args):
    """Train; rank 0 returns the last entry of the log."""
    mnpar.random.seed([args.seed, comm.rank])
    with mnpar.launch.reading(comm):
        train, test = load(args)
    model = network(comm, train[0][0].size, args.unit)
    optimizer = mnpar.optimizers.Adam().setup(model)
    if comm.rank == 1:  # as many examples, with nothing in them
        train = mnpar.create_empty_dataset(train)
        test = mnpar.create_empty_dataset(test)
    train_iter = mnpar.iterators.SerialIterator(train, min(args.batchsize, len(train)))
    test_iter = mnpar.iterators.SerialIterator(test, args.batchsize, repeat=False, shuffle=False)

    updater = training.StandardUpdater(train_iter, optimizer)
    trainer = training.Trainer(updater, (args.epoch, "epoch"), out=args.out)
    trainer.extend(extensions.Evaluator(test_iter, model))  # on both: each batch goes through both
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
        print(
            f"ranks: {comm.size} ({comm.name})   units: {args.unit}   minibatch: "
            f"{args.batchsize}   epochs: {args.epoch}   "
            f"images: {len(train)}, to test {len(test)}"
        )
    trainer.run()
    sizes = comm.allgather_obj(model.count_params())
    if comm.rank:
        return None
    last = trainer.get_extension("LogReport").log[-1]
    print(
        f"Two ranks have trained one network, which is right on "
        f"{last['validation/main/accuracy']:.1%} of the test images: rank 0 has {sizes[0]:,} of "
        f"its weights, and rank 1 {sizes[1]:,}."
    )
    return last


if __name__ == "__main__":
    parser = mnpar.launch.Parser(__doc__, exactly=True)
    parser.flag("--batchsize -b", 100, "images per step")
    parser.flag("--epoch -e", 10, "epochs")
    parser.flag("--unit -u", 100, "width of the hidden layers")
    parser.flag("--seed -s", mnpar.launch.seed, "of weights and orders", default=0)
    parser.flag("--out -o", mnpar.launch.folder, "for the log", default="result")
    parser.flag("--data", mnpar.launch.existing_folder, "of MNIST's files", variable="MNPAR_DATA")
    mnpar.launch.script(main, parser)
