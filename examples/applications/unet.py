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

Which it is cannot be seen from a few pixels, so information has to cross the blocks' edges: by
halos of the convolutions, poolings and transposed convolutions, and by the statistics of batch
normalization, which are those of the whole batch. The network is an ordinary one, ``RULES`` and
``mesh.cut`` divide it, and costs are the same on every mesh. (Ronneberger, Fischer and Brox,
"U-Net", MICCAI 2015.)
"""

import math
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
    """Down some scales and up again, with what was seen at each scale on the way down. It knows
    nothing of ranks.
    """

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


def pictures(n, size, rng):
    """Images (n, 1, size, size) with circles and ellipses of one brightness on noise, and the label
    of each pixel.
    """
    y, x = np.mgrid[:size, :size]
    images = rng.normal(0, 0.15, (n, 1, size, size))
    labels = np.zeros((n, size, size), np.int32)
    for image, label in zip(images[:, 0], labels, strict=True):
        for _ in range(3):
            kind = rng.integers(1, 3)
            radius = rng.uniform(0.09, 0.13) * size
            ratio = 1.0 if kind == 1 else rng.uniform(2.2, 2.8)  # of the axes
            cy, cx = rng.uniform(0.18 * size, 0.82 * size, 2)
            turn = rng.uniform(0, np.pi)
            u = np.cos(turn) * (x - cx) + np.sin(turn) * (y - cy)
            v = np.cos(turn) * (y - cy) - np.sin(turn) * (x - cx)
            near = u**2 / ratio + v**2 * ratio
            if (label[near < (1.5 * radius) ** 2] == 0).all():  # none lies on another
                image[near < radius**2] += 1
                label[near < radius**2] = kind
    return images, labels


def main(comm, args):
    """Train, test, draw; returns the costs."""
    mnpar.config.dtype = np.dtype("f8")
    mnpar.random.seed(args.seed)
    mesh = mnpar.Mesh(comm, **args.divide)
    rng = np.random.default_rng(args.seed)
    sets = [pictures(n, args.size, rng) for n in (args.train, args.test)]
    (x, t), (x_test, t_test) = sets
    model = mnpar.parallelize(UNet(args.filters, args.scales), mesh, RULES)
    adam = mnpar.optimizers.Adam(alpha=0.004)
    optimizer = mnpar.create_multi_node_optimizer(adam, mesh).setup(model)
    costs, losses = [], []

    def cost(x, t):
        losses.append(F.softmax_cross_entropy(model(x), t))
        return losses[-1]

    if comm.is_root:
        scales = [args.size // 2**i for i in range(args.scales + 1)]
        print(
            f"{args.train} images of {args.size} × {args.size}, scales {scales}, "
            f"mesh {str(mesh) or 'of one rank'}"
        )
    for epoch in range(1, args.epoch + 1):
        order, total = rng.permutation(args.train), 0.0
        for start in range(0, args.train, args.batchsize):
            rows = order[start : start + args.batchsize]
            mine = mesh.cut(t[rows], data=0)
            optimizer.update(cost, mesh.cut(x[rows], data=0, space=(2, 3)), mine)
            total += losses.pop().item() * len(mine)  # a mean over the rank's images
        costs.append(mesh.data.allreduce(np.array(total)).item() / args.train)
        if comm.is_root:
            print(f"epoch {epoch:3d}   cost {costs[-1]:.5f}")
    with mnpar.no_backprop_mode(), mnpar.using_config("train", False):
        y = model(mesh.cut(x_test, space=(2, 3)))
        found = (y if y.layout is None else y.gather()).array.argmax(axis=1)
    if comm.is_root:
        pairs = [(found == c, t_test == c) for c in range(len(CLASSES))]
        each = ", ".join(
            f"{name} {(a & b).sum() / max((a | b).sum(), 1):.3f}"
            for name, (a, b) in zip(CLASSES, pairs, strict=True)
        )
        print(f"intersection over union on the test images (1: every pixel is right): {each}")
        blocks = mesh.grid().blocks((args.size, args.size))
        draw(*sets[1], found, costs, blocks, Path(args.out) / "unet.png")
    return costs


def draw(images, labels, found, costs, blocks, path):
    """Some test images, what is in them, what the network says, and the costs; thin lines are the
    blocks' edges.
    """
    try:
        import matplotlib as mpl
    except ImportError:
        print("no plot: matplotlib is missing (pip install 'mnpar[examples]')")
        return
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    n = min(5, len(images))
    figure, axes = plt.subplots(
        3,
        n + 1,
        figsize=(2 * n + 3, 6),
        layout="constrained",
        squeeze=False,
        width_ratios=[1] * n + [1.6],
    )
    for row, (name, shown) in zip(
        axes, {"image": images[:, 0], "truth": labels, "found": found}.items(), strict=True
    ):
        for ax, picture in zip(row[:n], shown, strict=False):
            ax.imshow(
                picture,
                **(
                    {"cmap": "gray"}
                    if name == "image"
                    else {"cmap": "viridis", "vmin": 0, "vmax": 2}
                ),
            )
            ax.set(xticks=[], yticks=[])
            for a in {box.start[0] for box in blocks} - {0}:
                ax.axhline(a - 0.5, color="white", linewidth=0.6)
            for b in {box.start[1] for box in blocks} - {0}:
                ax.axvline(b - 0.5, color="white", linewidth=0.6)
        row[0].set_ylabel(name)
        row[n].axis("off")
    ax = figure.add_subplot(axes[1, n].get_subplotspec())
    ax.semilogy(np.arange(1, len(costs) + 1), costs, ".-")
    ax.set(title="cost per pixel", xlabel="epoch")
    ax.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    ax.grid(alpha=0.3)
    colours = [
        plt.Rectangle((0, 0), 1, 1, color=mpl.colormaps["viridis"](c / 2))
        for c in range(len(CLASSES))
    ]
    axes[2, n].legend(colours, CLASSES, loc="upper center")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    print(f"plot: {path}")


def check(parser, args):
    """Refuse what does not go together."""
    if args.size < 2**args.scales:
        parser.error(f"--size {args.size} cannot be halved {args.scales} times (--scales)")
    if args.divide is None:
        ranks = mnpar.launch.started_ranks(args, 0) or 1
        args.divide = {"space": (ranks, 1)} if ranks > 1 else {}
    if unknown := [name for name in args.divide if name not in ("data", "space")]:
        parser.error(f"--divide: there is no axis {unknown[0]} here, only data and space")
    args.ranks = math.prod(int(n) for size in args.divide.values() for n in np.atleast_1d(size))
    if args.ranks < 1 or np.size(args.divide.get("space", (1, 1))) != 2:
        parser.error("--divide: sizes are numbers from 1 on, of space two, such as space=2x1")


def flags():
    """Return the parser of the command line."""
    parser = mnpar.launch.Parser(__doc__, ranks=1, exactly=True, check=check)
    parser.flag("--divide", mnpar.Mesh.parse, "images into blocks, batches: space=2x2, data=2")
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
