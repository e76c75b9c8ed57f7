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

Without mpiexec the script starts the ranks it needs, or runs on ``--threads``. Network and switches
are those of neon's MPI branch of 2015, which announced the last one and never had it. Images are
circles and ellipses, or MNIST, if ``--data DIR`` or MNPAR_DATA has it.
"""

import numpy as np

import mnpar
import mnpar.functions as F
import mnpar.links as L

RULES = {"fc*": "rows"}  # the large layers, among the ranks of the axis model


class Net(mnpar.Chain):
    """The network. It knows nothing of ranks."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = L.Convolution2D(None, 20, 5), L.Convolution2D(None, 50, 5)
        self.fc1, self.fc2 = L.Linear(None, 500), L.Linear(None, 10)

    def forward(self, x):
        for conv in (self.conv1, self.conv2):
            x = F.max_pooling_2d(F.relu(conv(x)), 2)
        return self.fc2(F.relu(self.fc1(x)))


def load(args):
    """Training and test set of (image (C, H, W), label)."""
    if args.images == "mnist" or (args.data and not args.images):
        return mnpar.datasets.get_mnist(ndim=3, data=args.data)
    return mnpar.datasets.get_toy_images(args.train, args.test, 28, 1)


def main(comm, args):
    """Train, and print the cost of the test images."""
    mnpar.config.dtype = np.dtype("f8")  # so that costs can be compared digit for digit
    mnpar.random.seed(args.seed)
    mesh = mnpar.Mesh(comm, **args.divide)
    with mnpar.launch.reading(comm):
        train, test = load(args)
    x_test, t_test = mnpar.dataset.concat_examples(test[:])
    model = L.Classifier(mnpar.parallelize(Net(), mesh, RULES))
    sgd = mnpar.optimizers.MomentumSGD(lr=args.lr)
    optimizer = mnpar.create_multi_node_optimizer(sgd, mesh).setup(model)
    for epoch in range(1, args.epoch + 1):
        for batch in mnpar.iterators.SerialIterator(train, args.batchsize, repeat=False):
            x, t = mnpar.dataset.concat_examples(batch)
            optimizer.update(model, mesh.cut(x, data=0, space=(2, 3)), mesh.cut(t, data=0))
        with mnpar.no_backprop_mode(), mnpar.using_config("train", False):
            cost = model(mesh.cut(x_test, space=(2, 3)), t_test)
        if comm.is_root:
            right = 100 * model.accuracy.item()
            print(f"epoch {epoch:3d}   test cost {cost.item():.5f}, {right:.1f} % right")
    if comm.is_root:
        print(
            f"{len(train)} images, mesh {str(mesh) or 'of one rank'}: others must print the same."
        )


def flags():
    """Return the parser of the command line."""
    parser = mnpar.launch.Parser(__doc__, ranks=4)
    switches = {
        "--halopar RxC": "space={}",
        "--halodatapar RxC": "data=-1,space={}",
        "--datapar": "data=-1",
        "--modelpar": "model=-1",
    }
    parser.divide(switches=switches, data=1, model=1, space=2)
    parser.flag("--epoch -e", 5, "epochs")
    parser.flag("--batchsize -b", 20, "images per step")
    parser.flag("--lr", 0.01, "learning rate, with momentum 0.9")
    parser.flag("--seed -s", mnpar.launch.seed, "of weights and order", default=0)
    parser.flag("--images", str, "what to learn", choices=("toys", "mnist"))
    parser.flag("--train", 500, "how many images are drawn to train")
    parser.flag("--test", 100, "and to test")
    parser.flag("--data", mnpar.launch.existing_folder, "of MNIST's files", variable="MNPAR_DATA")
    return parser


if __name__ == "__main__":
    mnpar.launch.script(main, flags())
