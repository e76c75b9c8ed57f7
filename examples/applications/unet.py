"""A U-Net on a grid of ranks: says of every pixel whether it belongs to a circle, to an ellipse, or
to nothing.

    python examples/applications/unet.py
        one process
    mpiexec -n 4 python examples/applications/unet.py --divide space=2x2
        each rank has a block of every image, at every scale
    mpiexec -n 4 python examples/applications/unet.py --divide data=2,space=1x2
        blocks of some images: two grids, each for a half of every batch
    python examples/applications/unet.py --divide space=3x2 --threads
        ranks that are threads: needs no MPI

Which it is cannot be seen from a few pixels, so information has to cross the blocks' edges. The
network (Ronneberger, Fischer and Brox, 2015) is an ordinary one, ``RULES`` and ``mesh.cut`` divide
it, and costs are the same on every mesh.
"""

from pathlib import Path

import numpy as np

import mnpar
import mnpar.functions as F
import mnpar.links as L

CLASSES = ("nothing", "circle", "ellipse")
RULES = {"*/bn?": "samples"}  # statistics of the whole batch, where it is divided


class Stage(mnpar.Chain):
    """Convolution of 3 × 3, batch normalization, relu; twice."""

    def __init__(self, filters):
        super().__init__()
        self.conv1 = L.Convolution2D(None, filters, 3, pad=1, nobias=True)
        self.conv2 = L.Convolution2D(None, filters, 3, pad=1, nobias=True)
        self.bn1, self.bn2 = L.BatchNormalization(filters), L.BatchNormalization(filters)

    def __call__(self, x):
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


class UNet(mnpar.Chain):
    """Down some scales and up again, with what was seen on the way. It knows nothing of ranks."""

    def __init__(self, filters, scales):
        super().__init__()
        sizes = [filters * 2**i for i in range(scales)]
        self.down = mnpar.ChainList(Stage(filters), *[Stage(2 * n) for n in sizes])
        self.up = mnpar.ChainList(*[L.Deconvolution2D(2 * n, n, 2, stride=2) for n in sizes])
        self.merge = mnpar.ChainList(*[Stage(n) for n in sizes])
        self.last = L.Convolution2D(filters, len(CLASSES), 1)

    def __call__(self, x):
        seen = [self.down[0](x)]
        for stage in self.down[1:]:
            seen.append(stage(F.max_pooling_2d(seen[-1], 2, cover_all=False)))
        h = seen.pop()
        for i, skip in reversed([*enumerate(seen)]):
            self.up[i].outsize = skip.shape[2:]
            h = self.merge[i](F.concat([skip, self.up[i](h)]))
        return self.last(h)  # (N, 3, H, W)


def main(comm, args):
    """Train, test, draw."""
    mnpar.config.dtype = np.dtype("f8")  # so that costs can be compared digit for digit
    mnpar.random.seed(args.seed)
    mesh = mnpar.Mesh(comm, **args.divide)
    sets = mnpar.datasets.get_toy_segmentation(args.train, args.test, args.size, seed=args.seed)
    (x, t), (x_test, t_test) = [mnpar.dataset.concat_examples(part[:]) for part in sets]
    model = L.Classifier(mnpar.parallelize(UNet(args.filters, args.scales), mesh, RULES))
    adam = mnpar.optimizers.Adam(alpha=0.004)
    optimizer = mnpar.create_multi_node_optimizer(adam, mesh).setup(model)
    rng = np.random.default_rng(args.seed)
    for epoch in range(1, args.epoch + 1):
        order = rng.permutation(len(x))
        for start in range(0, len(x), args.batchsize):
            batch = order[start : start + args.batchsize]
            images = mesh.cut(x[batch], data=0, space=(2, 3))
            optimizer.update(model, images, mesh.cut(t[batch], data=0))
        with mnpar.no_backprop_mode(), mnpar.using_config("train", False):
            cost = model(mesh.cut(x_test, space=(2, 3)), t_test)
        if comm.is_root:
            print(f"epoch {epoch:3d}   test cost {cost.item():.5f}")
    found = (model.y if model.y.layout is None else model.y.gather()).array.argmax(axis=1)
    if comm.is_root:
        for c, name in enumerate(CLASSES):
            both, either = (found == c) & (t_test == c), (found == c) | (t_test == c)
            print(f"{name}: intersection over union {both.sum() / max(either.sum(), 1):.3f}")
        blocks = mesh.grid().blocks(t.shape[1:])
        print(draw(x_test[:, 0], t_test, found, blocks, Path(args.out) / "unet.png"))


def draw(images, labels, found, blocks, path):
    """Draw images, below them what is in them, and what was found; lines are the blocks' edges."""
    try:
        from matplotlib.image import imsave
    except ImportError:
        return "no plot: matplotlib is missing (pip install 'mnpar[examples]')"
    rows = np.stack([images, labels / 2, found / 2])[:, :6]  # (3, n, H, W)
    for box in [box for box in blocks if not box.empty]:
        rows[..., box.start[0], :] = rows[..., box.start[1]] = 1
    picture = np.vstack([np.hstack(row) for row in rows]).repeat(3, axis=0).repeat(3, axis=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    imsave(path, picture, vmin=0, vmax=1)
    return f"plot: {path}"


def check(parser, args):
    """Refuse what does not go together."""
    if args.size < 2**args.scales:
        parser.error(f"--size {args.size} cannot be halved {args.scales} times (--scales)")


def flags():
    """Return the parser of the command line."""
    parser = mnpar.launch.Parser(__doc__, ranks=1, exactly=True, check=check)
    parser.divide(space=2, data=1)
    parser.flag("--size", 64, "height and width of the images", least=8)
    parser.flag("--scales", 3, "how often the size is halved", least=0)
    parser.flag("--filters", 8, "of the first scale; each has twice as many")
    parser.flag("--epoch -e", 12, "epochs")
    parser.flag("--batchsize -b", 8, "images per step")
    parser.flag("--train", 96, "images to train")
    parser.flag("--test", 24, "and to test")
    parser.flag("--seed -s", mnpar.launch.seed, "of weights and images", default=0)
    parser.flag("--out -o", mnpar.launch.folder, "for the plot", default="result")
    return parser


if __name__ == "__main__":
    mnpar.launch.script(main, flags())
