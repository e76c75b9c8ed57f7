"""One convolutional network, divided among ranks in four ways by a switch; all of them print the
same costs.

    python examples/seeds/neon_cnn.py
        one process
    mpiexec -n 4 python examples/seeds/neon_cnn.py --halopar 2x2
        each rank has a block of every image
    mpiexec -n 3 python examples/seeds/neon_cnn.py --datapar
        each rank has some images of every batch
    mpiexec -n 2 python examples/seeds/neon_cnn.py --modelpar
        each rank has some inputs of the large layers
    mpiexec -n 8 python examples/seeds/neon_cnn.py --halodatapar 2x2
        blocks of some images: a grid for each part of the batch

Without mpiexec a script with a switch starts the ranks it needs, or runs on ``--threads N``.
Network (conv 5 × 20, pool 2, conv 5 × 50, pool 2, 500, 10) and switches are those of neon's MPI
branch of 2015, which announced the last one and never had it. Images are circles and ellipses, or
``--images synthetic``; MNIST is taken from ``--data DIR``, or where MNPAR_DATA says.
"""

import argparse
import functools
import os

import numpy as np

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar.plans import block


class Net(mnpar.Chain):
    """The network. It knows nothing of ranks; ``wide``: the kind of its large layers."""

    def __init__(self, wide=L.Linear):
        super().__init__()
        self.conv1 = L.Convolution2D(None, 20, 5)
        self.conv2 = L.Convolution2D(None, 50, 5)
        self.fc1 = wide(None, 500)
        self.fc2 = wide(None, 10)

    def __call__(self, x):
        for conv in (self.conv1, self.conv2):
            x = F.max_pooling_2d(F.relu(conv(x)), 2)
        return self.fc2(F.relu(self.fc1(x)))


def ways(comm, args):
    """Return what a switch divides: the images' cut, the large layers, and who shares a batch."""
    cut, wide, data = np.asarray, L.Linear, mnpar.create_communicator("self")
    if dims := args.halopar or args.halodatapar:
        group = comm.rank // int(np.prod(dims))
        grid = mnpar.SpatialGrid(comm.split(group, comm.rank), dims)
        cut = grid.cut
        data = comm.split(grid.comm.rank, comm.rank)
    elif args.modelpar:
        wide = functools.partial(L.RowParallelLinear, comm)
    elif args.datapar:
        data = comm
    return cut, wide, data


def load(args):
    """Training and test set of (image (C, H, W), label), and what they are."""
    where = args.data or os.environ.get("MNPAR_DATA")
    if where and args.images == "mnist":
        return *mnpar.datasets.get_mnist(ndim=3, data=where), f"MNIST from {where}"
    if args.images == "synthetic":
        return *mnpar.datasets.get_synthetic_images(
            args.train, args.test
        ), "synthetic patterns of ten classes"
    return *mnpar.datasets.get_toy_images(args.train, args.test, 28, 1), "circles and ellipses"


def train(comm, args, say=True):
    """The script: it knows of no switch. Returns the cost of each epoch."""
    say = say and comm.is_root
    mnpar.config.dtype = np.dtype("f8")  # so that costs can be compared digit for digit
    mnpar.random.seed(args.seed)
    cut, wide, data = ways(comm, args)
    with mnpar.launch.reading(comm):
        training, test, name = load(args)
    size = training[0][0].shape[1:]
    model = Net(wide)
    optimizer = mnpar.create_multi_node_optimizer(
        mnpar.optimizers.MomentumSGD(lr=args.lr), data
    ).setup(model)
    if say:
        print(
            f"{name}: {len(training)} to train, {len(test)} to test, {size[0]} × {size[1]}; "
            f"{comm.size} rank(s)"
        )
    (x, t), (x_test, t_test) = [mnpar.dataset.concat_examples(part[:]) for part in (training, test)]
    rng = np.random.default_rng(args.seed)
    costs = []
    losses = []

    def cost(x, t):
        losses.append(F.softmax_cross_entropy(model(cut(x)), t))
        return losses[-1]

    for epoch in range(1, args.epoch + 1):
        order, total = rng.permutation(len(x)), 0.0
        for start in range(0, len(x), args.batchsize):
            batch = order[start : start + args.batchsize]
            mine = batch[slice(*block(len(batch), data.size, data.rank))]
            optimizer.update(cost, x[mine], t[mine])  # the mean over all images of the batch
            total += losses.pop().item() * len(mine)
        costs.append(data.allreduce(np.array(total)).item() / len(x))
        with mnpar.no_backprop_mode(), mnpar.using_config("train", False):
            right = F.accuracy(model(cut(x_test)), t_test).item()
        if say:
            print(
                f"epoch {epoch:3d}   cost {costs[-1]:.5f}   right on the test images "
                f"{100 * right:.1f} %"
            )
    return costs


def main(comm, args):
    """Train, and compare the first epoch with that of one process; returns the costs."""
    costs = train(comm, args)
    if comm.size == 1:
        print(
            f"One process has brought the cost from {costs[0]:.5f} to {costs[-1]:.5f}. With "
            "--halopar 2x2, --modelpar, --datapar or --halodatapar 2x2 ranks must print the same."
        )
    elif comm.is_root:
        whole = {"halopar": None, "halodatapar": None, "datapar": False, "modelpar": False}
        alone = argparse.Namespace(**{**vars(args), **whole, "epoch": 1})
        [cost] = train(mnpar.create_communicator("self"), alone, say=False)
        gap = abs(costs[0] - cost) / cost
        print(
            f"{comm.size} ranks, divided in this way, have the cost of one process: after the "
            f"first epoch {costs[0]:.5f} and {cost:.5f}, a difference of {gap:.0e} of it."
        )
        if not gap < 1e-9:
            raise SystemExit("the ranks have not learnt what one process does")
    return costs


def check_ranks(parser, args):
    """Refuse ranks that do not make the grids that the switch asks for; without a switch there must
    be one rank.
    """
    dims = args.halopar or args.halodatapar
    if dims and len(dims) != 2:
        parser.error(f"images have two axes: RxC, not {'x'.join(map(str, dims))}")
    each = int(np.prod(dims or (1,)))
    if args.halopar:
        args.ranks = each
    elif args.halodatapar:
        args.ranks = max(args.ranks // each, 1) * each
    elif not (args.datapar or args.modelpar):
        args.ranks = 1
    ranks = mnpar.launch.started_ranks(args, args.ranks)
    several = args.datapar or args.modelpar or args.halodatapar
    if ranks % each or (ranks != each and not several):
        switch = f"blocks of {dims[0]}x{dims[1]}" if dims else "a run without a switch"
        better = mnpar.launch.command(each if dims else ranks, args.threads)
        parser.error(
            f"{ranks} ranks do not suit {switch}: --halopar takes R·C, --halodatapar a "
            f"multiple of it, no switch takes 1: {better}{'' if dims else ' --datapar'}"
        )


def check(parser, args):
    """Refuse what does not go together."""
    args.images = args.images or ("mnist" if args.data or os.environ.get("MNPAR_DATA") else "toys")
    if args.images == "mnist" and not (args.data or os.environ.get("MNPAR_DATA")):
        parser.error("--images mnist needs --data DIR or the variable MNPAR_DATA")
    check_ranks(parser, args)


def flags():
    """Return the parser of the command line."""
    parser = mnpar.launch.Parser(__doc__, ranks=4, check=check)
    ways = parser.add_mutually_exclusive_group()
    parser.flag(
        "--halopar", mnpar.launch.dims, "images in R x C blocks, one for each rank", group=ways
    )
    parser.flag(
        "--halodatapar",
        mnpar.launch.dims,
        "blocks, and batches among groups of R x C ranks",
        group=ways,
    )
    parser.flag("--datapar", False, "batches among the ranks", group=ways)
    parser.flag("--modelpar", False, "fully connected layers among the ranks", group=ways)
    parser.flag("--epoch -e", 5, "epochs")
    parser.flag("--batchsize -b", 20, "images per step")
    parser.flag("--lr", 0.01, "learning rate, with momentum 0.9")
    parser.flag("--seed -s", mnpar.launch.seed, "of weights and order", default=0)
    parser.flag(
        "--images",
        str,
        "mnist where there is a folder, else toys",
        choices=("toys", "synthetic", "mnist"),
    )
    parser.flag("--train", 500, "how many images are drawn to train")
    parser.flag("--test", 100, "and to test")
    parser.flag(
        "--data", mnpar.launch.existing_folder, "the folder of MNIST's four IDX files, raw or .gz"
    )
    return parser


if __name__ == "__main__":
    mnpar.launch.script(main, flags())
