"""A U-Net on a grid of ranks: says of every pixel whether it belongs to a circle, to an ellipse, or
to nothing.

    python examples/unet.py
        one process
    mpiexec -n 4 python examples/unet.py --divide space=2x2
        each rank has a block of every image, at every scale
    mpiexec -n 4 python examples/unet.py --divide data=2,space=1x2
        blocks of some images: two grids, each for a half of every batch
    python examples/unet.py --divide space=3x2 --threads
        ranks that are threads: needs no MPI

Which it is cannot be seen from a few pixels, so information has to cross the blocks' edges. The
network (models/unet.py) is an ordinary one, ``RULES`` and ``mesh.cut`` divide it, and costs are the
same on every mesh.
"""

from pathlib import Path

import numpy as np
from models.unet import UNet

import mnpar
import mnpar.links as L

CLASSES = ("nothing", "circle", "ellipse")
RULES = {"*/bn?": "samples"}  # statistics of the whole batch, where it is divided


def main(comm, args):
    """Train, test, draw."""
    mnpar.config.dtype = np.dtype("f8")  # so that costs can be compared digit for digit
    mnpar.random.seed(args.seed)
    mesh = mnpar.Mesh(comm, **args.divide)
    sets = mnpar.datasets.get_toy_segmentation(args.train, args.test, args.size, seed=args.seed)
    train, (x_test, t_test) = sets[0], mnpar.dataset.concat_examples(sets[1][:])
    unet = UNet(args.filters, args.scales, len(CLASSES))
    model = L.Classifier(mnpar.parallelize(unet, mesh, RULES))
    adam = mnpar.optimizers.Adam(alpha=0.004)
    optimizer = mnpar.create_multi_node_optimizer(adam, mesh).setup(model)
    for epoch in range(1, args.epoch + 1):
        for batch in mnpar.iterators.SerialIterator(train, args.batchsize, repeat=False):
            x, t = mnpar.dataset.concat_examples(batch)
            optimizer.update(model, mesh.cut(x, data=0, space=(2, 3)), mesh.cut(t, data=0))
        with mnpar.no_backprop_mode(), mnpar.using_config("train", False):
            cost = model(mesh.cut(x_test, space=(2, 3)), t_test)
        if comm.is_root:
            print(f"epoch {epoch:3d}   test cost {cost.item():.5f}")
    found = (model.y if model.y.layout is None else model.y.gather()).array.argmax(axis=1)
    if comm.is_root:
        for c, name in enumerate(CLASSES):
            both, either = (found == c) & (t_test == c), (found == c) | (t_test == c)
            print(f"{name}: intersection over union {both.sum() / max(either.sum(), 1):.3f}")
        blocks = mesh.grid().blocks(t_test.shape[1:])
        print(draw(x_test[:, 0], t_test, found, blocks, Path(args.out) / "unet.png"))


def draw(images, labels, found, blocks, path):
    """Draw images, below them what is in them, and what was found; lines are edges of blocks."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return "no plot: matplotlib is missing (pip install 'mnpar[examples]')"
    figure = Figure(figsize=(12, 6.6), layout="constrained")
    titles = "test images, and edges of ranks' blocks", "circles and ellipses in them", "found"
    pictures = images, labels / 2, found / 2
    for axes, title, row in zip(figure.subplots(3), titles, pictures, strict=True):
        row = np.pad(row[:6] * 1.0, [(0, 0), (0, 0), (0, 3)], constant_values=np.nan)  # apart
        for box in [box for box in blocks if not box.empty]:
            row[:, box.start[0]] = row[..., box.start[1]] = np.nan
        axes.imshow(np.hstack(row), cmap="viridis", vmin=0, vmax=1)
        axes.set_title(title)
        axes.axis("off")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return f"plot: {path}"


def check(parser, args):
    """Refuse what does not go together."""
    if args.size < 2**args.scales:
        parser.error(f"--size {args.size} cannot be halved {args.scales} times (--scales)")


def flags():
    """Return the parser of the command line."""
    parser = mnpar.launch.Parser(__doc__, ranks=1, exactly=True, check=check)
    parser.divide(space=2, data=1)
    parser.flag("--size", 32, "height and width of the images", least=8)
    parser.flag("--scales", 2, "how often the size is halved", least=0)
    parser.flag("--filters", 8, "of the first scale; each has twice as many")
    parser.flag("--epoch -e", 12, "epochs")
    parser.flag("--batchsize -b", 8, "images per step")
    parser.flag("--train", 200, "images to train")
    parser.flag("--test", 24, "and to test")
    parser.flag("--seed -s", mnpar.launch.seed, "of weights and images", default=0)
    parser.flag("--out -o", mnpar.launch.folder, "for the plot", default="result")
    return parser


if __name__ == "__main__":
    mnpar.launch.script(main, flags())
