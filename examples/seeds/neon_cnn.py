"""One convolutional network, divided among ranks in four ways by one option; all of them print the
same costs.

    python examples/seeds/neon_cnn.py
        one process
    mpiexec -n 4 python examples/seeds/neon_cnn.py --divide space=2x2
        each rank has a block of every image (neon's --halopar 2x2)
    mpiexec -n 3 python examples/seeds/neon_cnn.py --divide data=3
        each rank has some images of every batch (--datapar)
    mpiexec -n 2 python examples/seeds/neon_cnn.py --divide model=2
        each rank has some inputs of the large layers (--modelpar)
    mpiexec -n 8 python examples/seeds/neon_cnn.py --divide data=2,space=2x2
        blocks of some images: a grid for each part of the batch (--halodatapar 2x2)

Without mpiexec a script with a switch starts the ranks it needs, or runs on ``--threads N``.
Network (conv 5 × 20, pool 2, conv 5 × 50, pool 2, 500, 10) and switches are those of neon's MPI
branch of 2015, which announced the last one and never had it. Images are circles and ellipses, or
``--images synthetic``; MNIST is taken from ``--data DIR``, or where MNPAR_DATA says.
"""

import argparse
import os

import numpy as np

import mnpar
import mnpar.functions as F
import mnpar.links as L

RULES = {"fc*": "rows"}  # the large layers, among the ranks of the axis model


class Net(mnpar.Chain):
    """The network. It knows nothing of ranks."""

    def __init__(self):
        super().__init__()
        self.conv1 = L.Convolution2D(None, 20, 5)
        self.conv2 = L.Convolution2D(None, 50, 5)
        self.fc1 = L.Linear(None, 500)
        self.fc2 = L.Linear(None, 10)

    def __call__(self, x):
        for conv in (self.conv1, self.conv2):
            x = F.max_pooling_2d(F.relu(conv(x)), 2)
        return self.fc2(F.relu(self.fc1(x)))


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
    """The script, whichever way is chosen. Returns the cost of each epoch."""
    say = say and comm.is_root
    mnpar.config.dtype = np.dtype("f8")  # so that costs can be compared digit for digit
    mnpar.random.seed(args.seed)
    mesh = mnpar.Mesh(comm, **args.divide)
    with mnpar.launch.reading(comm):
        training, test, name = load(args)
    size = training[0][0].shape[1:]
    model = mnpar.parallelize(Net(), mesh, RULES)
    optimizer = mnpar.create_multi_node_optimizer(
        mnpar.optimizers.MomentumSGD(lr=args.lr), mesh
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
        losses.append(F.softmax_cross_entropy(model(x), t))
        return losses[-1]

    for epoch in range(1, args.epoch + 1):
        order, total = rng.permutation(len(x)), 0.0
        for start in range(0, len(x), args.batchsize):
            batch = order[start : start + args.batchsize]
            mine = mesh.cut(t[batch], data=0)
            optimizer.update(cost, mesh.cut(x[batch], data=0, space=(2, 3)), mine)
            total += losses.pop().item() * len(mine)  # a mean over the rank's images
        costs.append(mesh.data.allreduce(np.array(total)).item() / len(x))
        with mnpar.no_backprop_mode(), mnpar.using_config("train", False):
            right = F.accuracy(model(mesh.cut(x_test, space=(2, 3))), t_test).item()
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
            "--divide space=2x2, model=2, data=3 or data=2,space=2x2 ranks must print the same."
        )
    elif comm.is_root:
        alone = argparse.Namespace(**{**vars(args), "divide": {}, "epoch": 1})
        [cost] = train(mnpar.create_communicator("self"), alone, say=False)
        gap = abs(costs[0] - cost) / cost
        print(
            f"{comm.size} ranks, divided in this way, have the cost of one process: after the "
            f"first epoch {costs[0]:.5f} and {cost:.5f}, a difference of {gap:.0e} of it."
        )
        if not gap < 1e-9:
            raise SystemExit("the ranks have not learnt what one process does")
    return costs


def axes(args):
    """Return the axes of the mesh: those of --divide, or of neon's switches for them."""
    if args.divide is not None:
        return args.divide
    if args.halopar:
        return {"space": args.halopar}
    if args.halodatapar:
        return {"data": -1, "space": args.halodatapar}
    return {"data": -1} if args.datapar else {"model": -1} if args.modelpar else {}


def check_ranks(parser, args):
    """Whether the ranks make the mesh that is asked for; without a switch there is one."""
    args.divide = axes(args)
    if unknown := [name for name in args.divide if name not in ("data", "model", "space")]:
        parser.error(f"--divide: there is no axis {unknown[0]} here, only data, model, space")
    dims = args.divide.get("space", ())
    if (dims and np.ndim(dims) != 1) or len(dims) not in (0, 2):
        shown = "x".join(map(str, np.atleast_1d(dims)))
        parser.error(f"images have two axes: RxC, not {shown}")
    sizes = [int(n) for size in args.divide.values() for n in np.atleast_1d(size)]
    each = int(np.prod([n for n in sizes if n > 0]))
    several = -1 in sizes
    args.ranks = max(args.ranks // each, 1) * each if several else each
    ranks = mnpar.launch.started_ranks(args, args.ranks)
    if ranks % each or (ranks != each and not several):
        what = f"blocks of {dims[0]}x{dims[1]}" if dims else "a run without a switch"
        text = ",".join(args.divide)
        what = f"--divide {text}" if args.divide and not dims else what
        better = mnpar.launch.command(each if args.divide else ranks, args.threads)
        parser.error(
            f"{ranks} ranks do not suit {what}: --halopar takes R·C, --halodatapar a "
            f"multiple of it, no switch takes 1: {better}{'' if args.divide else ' --datapar'}"
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
        "--divide",
        mnpar.Mesh.parse,
        "names and sizes of the mesh's axes: data, model, space",
        group=ways,
    )
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
