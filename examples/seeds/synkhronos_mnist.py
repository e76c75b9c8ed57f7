"""Synkhronos' demo: digits in memory that the ranks share; each step, every rank takes its rows of
the batch.

    mpiexec -n 2 python examples/seeds/synkhronos_mnist.py
    python examples/seeds/synkhronos_mnist.py --model mlp
        starts two ranks itself
    python examples/seeds/synkhronos_mnist.py --threads 3
        ranks that are threads: needs no MPI

A step is Synkhronos': a function computes the gradient of the rank's rows as one vector, one
reduction makes the mean over all rows of it, and each rank updates its copy. No loss is reduced in
a step: that of an epoch is, once. The mean counts rows, and the perceptron's dropout drops of each
row what it drops in one process: so any number of ranks learns what one does. Validation goes
through the test images in ``--slices`` pieces.

The images are scikit-learn's 1,797 handwritten digits; MNIST is taken instead from ``--data DIR``,
or where MNPAR_DATA says.
"""

import time

import numpy as np

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar.plans import block


class MLP(mnpar.Chain):
    """800 - 800 - 10, with dropout."""

    batch = 0, slice(0)  # how many rows the batch has on all ranks, and which of them are here

    def __init__(self, n_units):
        super().__init__()
        self.l1 = L.Linear(None, n_units)
        self.l2 = L.Linear(None, n_units)
        self.l3 = L.Linear(None, 10)

    def forward(self, x):
        h = F.relu(self.l1(self.dropout(x, 0.2)))
        h = F.relu(self.l2(self.dropout(h, 0.5)))
        return self.l3(self.dropout(h, 0.5))

    def dropout(self, x, ratio):
        n, rows = self.batch
        return F.dropout(x, ratio, whole=(n, *x.shape[1:]), part=rows)


class CNN(mnpar.Chain):
    """Twice a convolution of 32 filters of 5 × 5 and a pooling of 2 × 2; then 256 - 10."""

    def __init__(self, n_units, pad):
        super().__init__()
        self.conv1 = L.Convolution2D(None, 32, 5, pad=pad)
        self.conv2 = L.Convolution2D(None, 32, 5, pad=pad)
        self.l1 = L.Linear(None, n_units)
        self.l2 = L.Linear(None, 10)

    def forward(self, x):
        h = F.max_pooling_2d(F.relu(self.conv1(x)), 2)
        h = F.max_pooling_2d(F.relu(self.conv2(h)), 2)
        return self.l2(F.relu(self.l1(h)))


def load(args):
    """x (N, 1, H, W), t (N,) to train and to test with."""
    if args.data:
        train, test = mnpar.datasets.get_mnist(ndim=3, data=args.data)
    else:
        train, test = mnpar.datasets.get_digits(ndim=3)
    return *map(np.asarray, train.datasets), *map(np.asarray, test.datasets)


def main(comm, args):
    """Train; returns [(loss, validation loss, accuracy)] of the epochs."""
    names = ("x", "t", "x_test", "t_test")
    with mnpar.launch.reading(comm):
        data = dict(zip(names, load(args) if comm.is_root else [None] * 4, strict=True))
    x, t, x_test, t_test = [mnpar.SharedData(data[name], comm=comm, name=name) for name in names]

    mnpar.random.seed(args.seed)
    model = (
        MLP(args.unit or 800)
        if args.model == "mlp"
        else CNN(args.unit or 256, pad=0 if x.shape[2] >= 28 else 2)
    )
    with mnpar.no_backprop_mode(), mnpar.using_config("train", False):
        model(np.array(x[:1]))  # finds out the sizes; the seed is everyone's, so the weights are
    optimizer = mnpar.optimizers.NesterovAG(args.lr, momentum=0.9).setup(model)
    params = list(model.params())
    losses = mnpar.meters.AverageValueMeter()

    def gradient(x, t):
        model.cleargrads()
        loss = F.softmax_cross_entropy(model(x), t)
        loss.backward()
        losses.add(loss.array, weight=len(t))
        return np.concatenate([param.grad.ravel() for param in params])

    def validate(x, t):
        with mnpar.no_backprop_mode(), mnpar.using_config("train", False):
            y = model(x)
            return F.softmax_cross_entropy(y, t), F.accuracy(y, t)

    # the mean over rows
    f_grad = mnpar.parallel_function(gradient, ["x", "t"], outputs=["gradient"], comm=comm)
    f_validate = mnpar.parallel_function(
        validate, ["x", "t"], outputs=["loss", "accuracy"], comm=comm
    )

    def update(vector):
        start = 0
        for param in params:
            param.grad = vector[start : start + param.size].reshape(param.shape)
            start += param.size
        optimizer.update()

    if comm.is_root:
        print(
            f"{comm.size} rank(s), {args.model} of {sum(p.size for p in params):,} parameters, "
            f"{len(x)} images of "
            f"{x.shape[2]} × {x.shape[3]} and {len(x_test)} to test with"
        )
    rng, epochs = np.random.default_rng(args.seed), []
    for epoch in range(1, args.epoch + 1):
        start = time.perf_counter()
        order = rng.permutation(len(x))
        for first in range(0, len(x), args.batchsize):
            batch = order[first : first + args.batchsize]
            model.batch = len(batch), slice(*block(len(batch), comm.size, comm.rank))
            mnpar.random.seed([args.seed, epoch, first])  # the same on all ranks
            update(f_grad(x=x, t=t, batch=batch))
        seconds = time.perf_counter() - start
        losses.sync(comm)
        loss, accuracy = map(float, f_validate(x=x_test, t=t_test, num_slices=args.slices))
        epochs.append((losses.value().mean, loss, accuracy))
        if comm.is_root:
            print(
                f"epoch {epoch:3d}   loss {epochs[-1][0]:.5f}   validation: loss {loss:.5f}   "
                f"right {100 * accuracy:.2f} %   "
                f"{seconds:.2f} s"
            )
        losses.reset()
    if comm.is_root:
        print(
            f"All {comm.size} rank(s) have read their rows from one copy of the images, and have "
            "stepped with the mean of their gradients."
        )
    return epochs


def check(parser, args):
    """Refuse what does not go together."""
    if not 0 < args.lr < float("inf"):
        parser.error(f"--lr is positive and finite, not {args.lr}")


if __name__ == "__main__":
    parser = mnpar.launch.Parser(__doc__, check=check)
    parser.flag("--model", "cnn", "perceptron or convolutions", choices=["mlp", "cnn"])
    parser.flag(
        "--batchsize -b",
        100,
        "images of a step, of all ranks together (Synkhronos: 500 of MNIST's)",
    )
    parser.flag("--epoch -e", 10, "epochs")
    parser.flag("--unit -u", int, "width of the hidden layers (800 in mlp, 256 in cnn)")
    parser.flag("--lr", 0.03, "learning rate; Nesterov's momentum is 0.9")
    parser.flag("--slices", 4, "pieces of the test images on each rank")
    parser.flag("--seed -s", mnpar.launch.seed, "of weights and orders", default=0)
    parser.flag("--data", mnpar.launch.existing_folder, "of MNIST's files", variable="MNPAR_DATA")
    mnpar.launch.script(main, parser)
