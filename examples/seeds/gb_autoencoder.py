"""GB: levels of local filters, L2 pooling and contrast normalization, pre-trained as autoencoders,
then trained; in blocks.

    python examples/seeds/gb_autoencoder.py
        one process
    mpiexec -n 4 python examples/seeds/gb_autoencoder.py --halopar 2x2
        each rank has a block of every image, and its filters
    python examples/seeds/gb_autoencoder.py --halopar 3x2 --threads 6
        ranks that are threads: needs no MPI

Each place of an image has filters of its own, and each rank owns those of its places: no weight is
on two ranks. One level after the other learns to reconstruct its input, by few of its pools at a
time: ½ Σ (recon − x)² + λ Σ pool, per image. A fully connected layer then learns the labels, at
first alone, then together with all levels. Filters keep the length 1. (Le et al., "Building
high-level features using large scale unsupervised learning", ICML 2012; the shapes are neon's, of
2015.) All numbers are the same on every grid, if steps are not so large that they amplify what
rounding does (``--lr 0.02``). Images are scikit-learn's digits, enlarged; others with ``--images``.
"""

from pathlib import Path

import numpy as np

import mnpar
import mnpar.functions as F
import mnpar.links as L

# 28 → 25 → 23 → 21 → 19 → 17 → 15
KERNELS = (4, 3, 3)
POOL = 3
CONTRAST = 3
MAPS = 8


class UnitNorm:
    """After each step, every filter is scaled back to length 1."""

    name, timing, call_for_each_param = "unit norm", "post", True

    def __call__(self, rule, param):
        if param.ndim == 6:
            param.array /= np.sqrt((param.array**2).sum(axis=(3, 4, 5), keepdims=True))


class Level(mnpar.Chain):
    """Local filters, pools of them, contrast; and the way back from the filters."""

    def __init__(self, grid, channels, size, k, tied):
        super().__init__()
        self.size = tuple(n - k + 1 - POOL + 1 for n in size)
        self.encoder = L.SpatialLocalConvolution2D(grid, channels, MAPS, size, k, nobias=True)
        UnitNorm()(None, self.encoder.W)
        self.decoder = self.encoder.decoder(tied)

    def pool(self, y):
        return F.lp_pooling_nd(y, POOL, stride=1)

    def __call__(self, x):
        return F.local_contrast_normalization(self.pool(self.encoder(x)), CONTRAST)

    def costs(self, x, decoder=None):
        """The errors of reconstruction, and the sum of pools."""
        y = self.encoder(x)
        return F.sum(((decoder or self.decoder)(y) - x) ** 2) / 2, F.sum(self.pool(y))

    def learn_decoder(self, x, optimizer):
        """neon's order: the decoder steps first; the encoder then meets filters that have changed,
        and leaves them alone.
        """
        with mnpar.no_backprop_mode():
            y = self.encoder(x)
        self.cleargrads()
        (F.sum((self.decoder(y) - x) ** 2) / (2 * len(x))).backward()
        optimizer.update()
        return self.decoder.copy("copy")


class GB(mnpar.Chain):
    """The levels, and a fully connected layer that classifies."""

    def __init__(self, grid, shape, classes, tied):
        super().__init__()
        channels, *size = self.shape = shape
        self.grid = grid
        self.levels = mnpar.ChainList()
        for k in KERNELS:
            self.levels.append(Level(grid, channels, tuple(size), k, tied))
            channels, size = MAPS, self.levels[-1].size
        self.fc = L.SpatialLinear(grid, (MAPS, *size), classes)

    def cut(self, x):
        """Images, of which each rank has its blocks."""
        return mnpar.divided(x, self.grid, shape=(len(x), *self.shape))

    def features(self, x, n=None):
        for level in self.levels[:n]:
            x = level(x)
        return x


def epochs(n, args, x, step):
    """The mean of what the steps return, over each of so many passes."""
    rng = np.random.default_rng(args.seed)
    for _ in range(n):
        order = rng.permutation(len(x))
        totals = sum(
            np.array(step(order[i : i + args.batchsize])) for i in range(0, len(x), args.batchsize)
        )
        yield totals / len(x)


def pretrain(model, x, args, say):
    """Pre-train each level in turn, on the outputs of the levels below it."""
    history = []
    for i, level in enumerate(model.levels):
        optimizer = mnpar.optimizers.SGD(lr=args.pretrain_lr).setup(level)
        optimizer.add_hook(UnitNorm())

        def step(rows, i=i, level=level, optimizer=optimizer):
            with mnpar.no_backprop_mode():
                below = model.features(model.cut(x[rows]), i)
            recon, sparse = level.costs(
                below, level.learn_decoder(below, optimizer) if args.neon_order else None
            )
            level.cleargrads()
            ((recon + args.sparsity * sparse) / len(rows)).backward()
            optimizer.update()
            return recon.item(), sparse.item()

        for epoch, (recon, sparse) in enumerate(epochs(args.pretrain, args, x, step), 1):
            say(
                f"level {i + 1}   epoch {epoch:3d}   reconstruction {recon:.5f}   sparsity "
                f"{args.sparsity * sparse:.5f}"
            )
            history.append((i, recon, args.sparsity * sparse))
    return history


def teach(model, x, t, args, say):
    """Train the classifier alone, then together with all levels."""
    for n, alone in ((args.initial, True), (args.epoch, False)):
        optimizer = mnpar.optimizers.SGD(lr=args.lr).setup(model.fc if alone else model)
        optimizer.add_hook(UnitNorm())

        def step(rows, alone=alone, optimizer=optimizer):
            with mnpar.using_config("enable_backprop", not alone):
                h = model.features(model.cut(x[rows]))
            loss = F.softmax_cross_entropy(model.fc(h), t[rows])
            model.cleargrads()
            loss.backward()
            optimizer.update()
            return [loss.item() * len(rows)]

        for epoch, (cost,) in enumerate(epochs(n, args, x, step), 1):
            say(f"{'last layer' if alone else 'all layers'}   epoch {epoch:3d}   cost {cost:.5f}")


def conclude(history, wrong, most, say):
    """Say what was learnt without labels, and with them; ``most``: the share of the largest class
    among the test images.
    """
    levels = sorted({i for i, _, _ in history})
    costs = [[recon for level, recon, _ in history if level == i] for i in levels]
    if history:
        each = ", ".join(f"{one[-1] / one[0]:.0%}" for one in costs)
        say(
            f"Without labels, {len(levels)} levels have learnt to reconstruct their inputs: the "
            f"errors of their last epochs are {each} of those of the first."
        )
    say(
        f"With labels, the network is right on {1 - wrong:.1%} of the test images; to name the "
        f"largest class always would be right on {most:.1%}."
    )


def areas(h, t, classes):
    """Areas under the ROC curves (classes, units): how often a unit is larger for an image of the
    class than for another.
    """
    ranks = h.reshape(len(h), -1).argsort(axis=0).argsort(axis=0) + 1.0
    counts = np.bincount(t, minlength=classes)[:, None]
    sums = np.stack([ranks[t == c].sum(axis=0) for c in range(classes)])
    return (sums - counts * (counts + 1) / 2) / np.maximum(counts * (len(t) - counts), 1)


def spot_check(model, data, classes, comm, say):
    """For each class the unit of the top level that tells it best in training, and how it does in
    the test; and who has it.
    """
    with mnpar.no_backprop_mode():
        train, test = [areas(model.features(model.cut(x)).part.array, t, classes) for x, t in data]
    size = model.levels[-1].size
    number = np.arange(MAPS * size[0] * size[1]).reshape(MAPS, *size)
    number = number[(..., *model.grid.block(size).index)]
    best = train.argmax(axis=1) if number.size else np.zeros(classes, int)
    rows = np.arange(classes)
    # of equal ones the first, whoever has it
    mine = (
        train[rows, best],
        -number.ravel()[best],
        test[rows, best],
        best,
    )
    every = comm.allgather(np.stack(mine, axis=1))  # (classes, 4) from each rank
    tested = []
    owner = np.array(
        [max(range(comm.size), key=lambda rank: tuple(every[rank][c, :2])) for c in rows]
    )
    for c in rows:
        a, _, b, _ = every[owner[c]][c]
        tested.append(b)
        say(
            f"class {c}: the best unit's area under the ROC curve is {a:.3f} in training, "
            f"{b:.3f} in the test"
        )
    say(
        f"One unit tells its class from the others with an area of {np.mean(tested):.3f} in the "
        "test on average, where chance has 0.5."
    )
    return owner, np.array([every[owner[c]][c, 3] for c in rows], int)


def stimuli(model, units, comm, steps=40):
    """Images of length 1 that excite these units most: by their gradient, through all blocks."""
    owner, unit = units
    whole = np.random.default_rng(0).standard_normal((len(unit), *model.shape))
    x = mnpar.Variable(model.grid.cut(whole).part.array.copy())
    mine = np.flatnonzero(owner == comm.rank)
    for _ in range(steps):
        h = model.features(model.cut(x)).part.reshape((len(unit), -1))
        mnpar.backward([F.sum(h[mine, unit[mine]])] if len(mine) else [])
        x.array += 0.3 * x.grad / np.sqrt(squares(x.grad, comm) + 1e-30)
        x.array /= np.sqrt(squares(x.array, comm))
        x.cleargrad()
    return x.array


def squares(x, comm):
    return comm.allreduce((x**2).sum(axis=(1, 2, 3), keepdims=True))


def main(comm, args):
    """Train, check, draw."""
    mnpar.config.dtype = np.dtype("f8")
    mnpar.random.seed(args.seed)
    grid = mnpar.Mesh(comm, **args.divide).grid()
    with mnpar.launch.reading(comm):
        train, test, name = load(args)
    shape = train[0][0].shape
    classes = 1 + int(max(part.datasets[1].max() for part in (train, test)))
    model = GB(grid, shape, classes, not args.untied)
    say = (lambda line: print(line)) if comm.is_root else (lambda line: None)
    say(
        f"{name}: {len(train)} to train, {len(test)} to test, {shape}; {comm.size} rank(s), "
        f"blocks {grid.dims}"
    )
    data = [mnpar.datasets.shard_image(part, grid).datasets for part in (train, test)]
    history = pretrain(model, data[0][0], args, say)
    with mnpar.no_backprop_mode():
        x = model.cut(data[1][0][:10])
        recon = model.levels[0].decoder(model.levels[0].encoder(x))
    teach(model, *data[0], args, say)
    with mnpar.no_backprop_mode():
        y = model.fc(model.features(model.cut(data[1][0])))
        wrong = 1 - F.accuracy(y, data[1][1]).item()
    say(f"wrong on the test images: {100 * wrong:.2f} %")
    conclude(history, wrong, np.bincount(data[1][1]).max() / len(data[1][1]), say)
    units = spot_check(model, data, classes, comm, say)
    best = model.cut(stimuli(model, units, comm))
    with mnpar.no_backprop_mode():
        pictures = [p.gather().array for p in (x, recon, best)]
    W = L.gather_parameter(comm, model.levels[0].encoder.W)
    if comm.is_root:
        draw(pictures, W, history, Path(args.out) / "gb_autoencoder.png")


def load(args):
    """Training and test set of (image (C, H, W), label), and what they are."""
    if args.images == "digits":
        parts = mnpar.datasets.get_digits(ndim=3)
        name = "scikit-learn's handwritten digits, enlarged to 28 × 28"
    elif args.images == "mnist":
        parts, name = mnpar.datasets.get_mnist(ndim=3, data=args.data), "MNIST"
    elif args.images == "cifar10":
        parts, name = mnpar.datasets.get_cifar10(data=args.data), "CIFAR-10"
    else:
        parts = mnpar.datasets.get_synthetic_images(args.train, args.test)
        name = "synthetic patterns"
    some = []
    for part, n in zip(parts, (args.train, args.test), strict=True):
        images, labels = [array[:n] for array in part.datasets]
        if args.images == "digits":
            images = F.resize_images(images, (28, 28)).array
        some.append(mnpar.datasets.TupleDataset(images, labels))
    return *some, name


def draw(pictures, W, history, path):
    """Images, what the first level makes of them, what its units and the best ones of the top look
    for, and the costs.
    """
    try:
        import matplotlib as mpl
    except ImportError:
        print("no plot: matplotlib is missing (pip install 'mnpar[examples]')")
        return
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure = plt.figure(figsize=(10, 8), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=(3, 4))
    titles = (
        "test images",
        "reconstructed by the first level",
        "what excites the best unit of each class most",
    )
    for row, images, title in zip(top.subfigures(3, 1), pictures, titles, strict=True):
        row.suptitle(title, fontsize=10)
        for ax, image in zip(row.subplots(1, len(images), squeeze=False)[0], images, strict=True):
            picture = (image - image.min()) / (np.ptp(image) or 1)
            ax.imshow(picture.transpose(1, 2, 0) if len(picture) == 3 else picture[0], cmap="gray")
            ax.axis("off")
    left, right = bottom.subplots(1, 2)
    k = W.shape[-1]
    n = min(W.shape[1], 12)
    # (n, n, k + 1, k + 1)
    tiles = np.pad(W[0, :n, :n, 0], [(0, 0), (0, 0), (0, 1), (0, 1)], constant_values=np.nan)
    left.imshow(tiles.transpose(0, 2, 1, 3).reshape(n * (k + 1), -1), cmap="RdBu_r")
    left.set_title(f"filters of one map at {n} × {n} places", fontsize=10)
    left.axis("off")
    for i in sorted({level for level, _, _ in history}):
        costs = np.array([(recon, sparse) for level, recon, sparse in history if level == i])
        right.plot(
            np.arange(1, len(costs) + 1),
            costs[:, 0],
            ".-",
            color=f"C{i}",
            label=f"level {i + 1}: reconstruction",
        )
        right.plot(
            np.arange(1, len(costs) + 1),
            costs[:, 1],
            ".--",
            color=f"C{i}",
            label=f"level {i + 1}: sparsity",
        )
    right.set(yscale="log", xlabel="epoch of pre-training")
    right.set_title("costs per image", fontsize=10)
    right.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    right.legend(
        fontsize=8, frameon=False, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.13)
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    print(f"plot: {path}")


def flags():
    """Return the parser of the command line."""
    parser = mnpar.launch.Parser(__doc__, ranks=1, exactly=True)
    parser.divide(switches={"--halopar RxC": "space={}"}, space=2)
    parser.flag("--untied", False, "decoders learn filters of their own")
    parser.flag("--neon-order", False, "decoders step before encoders, not together with them")
    parser.flag("--pretrain", 10, "epochs of reconstruction for each level", least=0)
    parser.flag("--initial", 2, "epochs of the last layer alone", least=0)
    parser.flag("--epoch -e", 10, "epochs of all layers", least=0)
    parser.flag("--batchsize -b", 20, "images per step")
    parser.flag("--pretrain-lr", 0.01, "learning rate of reconstruction")
    parser.flag("--lr", 0.01, "learning rate of the labels")
    parser.flag("--sparsity", 0.1, "the weight λ of the pools")
    parser.flag("--seed -s", mnpar.launch.seed, "of weights and order", default=0)
    parser.flag("--images", "digits", "", choices=("digits", "mnist", "cifar10", "synthetic"))
    parser.flag(
        "--data",
        mnpar.launch.existing_folder,
        "the folder of MNIST's or CIFAR's files, if MNPAR_DATA does not say it",
    )
    parser.flag("--train", 400, "how many images to train")
    parser.flag("--test", 200, "and to test", least=10)
    parser.flag("--out -o", mnpar.launch.folder, "for the plot", default="result")
    return parser


if __name__ == "__main__":
    mnpar.launch.script(main, flags())
