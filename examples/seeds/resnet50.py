"""ResNet-50, whole, by data parallelism; batch statistics are those of all ranks, and weak and
strong scaling are printed.

    mpiexec -n 4 python examples/seeds/resnet50.py
    python examples/seeds/resnet50.py --threads 2 --batchsize 4 --steps 2 --check
    mpiexec -n 4 python examples/seeds/resnet50.py --scaling --size 224
        images a second on 1, 2, 4 ranks
    python examples/seeds/resnet50.py --images DIR --size 224
        DIR/class/picture.npy, each (3, H, W)

Without ``--images`` it learns handwritten digits, enlarged. ``--batchsize`` is that of
each rank. Because the statistics of batch normalization are those of all ranks (``--local-bn``:
those of each alone), P ranks with B images each learn exactly what one does with P·B: ``--check``
shows it. Weak scaling keeps the images of each rank as ranks are added, strong scaling those of all
together.
"""

import time
from pathlib import Path

import numpy as np

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar.errors import DatasetError
from mnpar.plans import block

BLOCKS = ((3, 64), (4, 128), (6, 256), (3, 512))  # (blocks, width) of the four stages


class ConvBN(mnpar.Chain):
    """A convolution without bias and a batch normalization."""

    def __init__(self, norm, c_in, c_out, ksize, stride=1, pad=0):
        super().__init__()
        self.conv = L.Convolution2D(
            c_in, c_out, ksize, stride, pad, nobias=True, initialW=mnpar.initializers.HeNormal()
        )
        self.bn = norm(c_out)

    def forward(self, x):
        return self.bn(self.conv(x))


class Bottleneck(mnpar.Chain):
    """1 × 1 to the width, 3 × 3, 1 × 1 to four times the width; added to its input."""

    def __init__(self, norm, c_in, width, stride):
        super().__init__()
        self.a = ConvBN(norm, c_in, width, 1)
        self.b = ConvBN(norm, width, width, 3, stride, 1)
        self.c = ConvBN(norm, width, 4 * width, 1)
        if c_in != 4 * width:
            self.shortcut = ConvBN(norm, c_in, 4 * width, 1, stride)

    def forward(self, x):
        h = self.c(F.relu(self.b(F.relu(self.a(x)))))
        return F.relu(h + (self.shortcut(x) if hasattr(self, "shortcut") else x))


class ResNet50(mnpar.Chain):
    """He et al. 2016, arXiv 1512.03385: 25.6 million parameters with 1,000 classes. Images of any
    size.
    """

    def __init__(self, norm, n_classes):
        super().__init__()
        self.stem = ConvBN(norm, 3, 64, 7, 2, 3)
        blocks, c_in = [], 64
        for stage, (number, width) in enumerate(BLOCKS):
            for i in range(number):
                blocks.append(Bottleneck(norm, c_in, width, 2 if stage and i == 0 else 1))
                c_in = 4 * width
        self.blocks = mnpar.Sequential(*blocks)
        self.fc = L.Linear(c_in, n_classes)

    def forward(self, x):
        h = self.blocks(F.max_pooling_2d(F.relu(self.stem(x)), 3, 2, 1, cover_all=False))
        return self.fc(F.mean(h, axis=(2, 3)))


def data(args, n):
    """n images (n, 3, S, S) and classes (n,), the same on all ranks."""
    rng = np.random.default_rng(args.seed)
    if not args.images:
        digits, _ = mnpar.datasets.get_digits(ndim=3)
        order = np.concatenate([rng.permutation(len(digits)) for _ in range(-(-n // len(digits)))])
        return enlarged(digits[order[:n]], args)
    folders = sorted(path for path in Path(args.images).iterdir() if path.is_dir())
    files = [
        (file, label)
        for label, folder in enumerate(folders)
        for file in sorted(folder.glob("*.npy"))
    ]
    if not files or len(folders) > args.classes:
        raise DatasetError(
            f"{args.images}: {len(files)} files class/picture.npy in {len(folders)} folders, "
            f"for {args.classes} classes"
        )
    chosen = [files[i % len(files)] for i in rng.permutation(max(n, len(files)))[:n]]
    x = np.stack([cut(file, args.size) for file, _ in chosen])
    return x.astype(args.dtype), np.array([label for _, label in chosen], "i4")


def enlarged(digits, args):
    """Digits of 8 × 8 as images (N, 3, S, S), and their classes."""
    x, t = mnpar.dataset.concat_examples(digits)
    pixels = np.arange(args.size) * 8 // args.size
    x = x[:, :, pixels[:, None], pixels].astype(args.dtype)
    return np.broadcast_to(x, (len(x), 3, *x.shape[2:])), t


def cut(file, size):
    """The middle (3, S, S) of a picture, which is repeated where it is smaller; uint8 becomes 0 …
    1.
    """
    try:
        image = np.load(file)
    except (ValueError, EOFError) as error:
        raise DatasetError(f"{file} is damaged: {error}") from None
    if image.ndim != 3 or image.shape[0] != 3:
        raise DatasetError(f"{file}: a picture is (3, H, W), not {image.shape}")
    image = image / np.float32(255) if image.dtype == np.uint8 else image.astype("f4")
    _, H, W = image.shape
    rows, columns = [(np.arange(size) + max(length - size, 0) // 2) % length for length in (H, W)]
    return image[:, rows[:, None], columns]


def train(comm, args, x, t, steps, say=False):
    """(model, losses, accuracies, seconds of each step) of one batch after the other; ``x`` is the
    whole of every step: (steps, N, …). The accuracy of a step is that before its update.
    """
    norm = (
        L.BatchNormalization
        if args.local_bn
        else lambda size: L.MultiNodeBatchNormalization(size, comm)
    )
    mnpar.random.seed(args.seed)
    model = ResNet50(norm, args.classes)
    # at first each is the identity: Goyal et al. 2017, arXiv 1706.02677, section 5.1
    for bottleneck in model.blocks:
        bottleneck.c.bn.gamma.array[...] = 0
    optimizer = mnpar.optimizers.MomentumSGD(args.lr * comm.size)
    optimizer = mnpar.create_multi_node_optimizer(optimizer, comm).setup(model)
    losses, accuracies, seconds = [], [], []
    observed, right = mnpar.meters.AverageValueMeter(), mnpar.meters.AverageValueMeter()

    def loss(x, t):
        scores = model(x)
        y = F.softmax_cross_entropy(scores, t)
        observed.add(y.array, weight=len(t))
        right.add(F.accuracy(scores, t).array, weight=len(t))
        return y

    for step in range(steps):
        mine = slice(*block(len(x[step]), comm.size, comm.rank))
        comm.barrier()
        start = time.perf_counter()
        optimizer.update(loss, x[step][mine], t[step][mine])
        seconds.append(time.perf_counter() - start)
        for meter, history in ((observed, losses), (right, accuracies)):
            meter.sync(comm)
            history.append(float(meter.value().mean))
            meter.reset()
        if say:
            print(
                f"step {step + 1:3d}   loss {losses[-1]:7.4f}   {seconds[-1]:6.2f} s   "
                f"{len(x[step]) / seconds[-1]:7.1f} images a second"
            )
    return model, np.array(losses), np.array(accuracies), seconds


def batches(comm, args, n):
    """The images of all steps, n in each."""
    with mnpar.launch.reading(comm):
        x, t = data(args, args.steps * n)
    return x.reshape(args.steps, n, *x.shape[1:]), t.reshape(args.steps, n)


def speed(comm, args, n):
    """Images a second of the fastest step, of n images."""
    *_, seconds = train(comm, args, *batches(comm, args, n), args.steps)
    return n / comm.allreduce_obj(min(seconds), "max")


def scaling(comm, args):
    """Images a second on 1, 2, 4 … ranks, weak and strong."""
    sizes = [2**k for k in range(comm.size.bit_length()) if 2**k < comm.size] + [comm.size]
    found = {}
    for kind in ("weak", "strong"):
        for size in sizes:
            part = comm.split(0 if comm.rank < size else None, comm.rank)
            if part is not None:
                found[kind, size] = speed(
                    part, args, args.batchsize * (size if kind == "weak" else comm.size)
                )
            comm.barrier()
            if comm.is_root:
                rate = found[kind, size]
                ratio = found[kind, size] / found[kind, 1]
                print(
                    f"{kind:6} scaling, {size} rank(s): {rate:8.1f} images a second, "
                    f"{ratio:.2f} times one"
                )


def main(comm, args):
    """Train, or measure; returns the losses."""
    mnpar.config.dtype = np.dtype(args.dtype)
    if args.scaling:
        return scaling(comm, args)
    x, t = batches(comm, args, args.batchsize * comm.size)
    if comm.is_root:
        print(f"{comm.size} rank(s) with {args.batchsize} images of {args.size} × {args.size} each")
    model, losses, right, _ = train(comm, args, x, t, args.steps, comm.is_root)
    if comm.is_root:
        print(
            f"ResNet-50 of {sum(p.size for p in model.params()):,} parameters   loss at first "
            f"{losses[0]:.4f}, "
            f"at last {losses[-1]:.4f}"
        )
        few = -(-args.steps // 4)
        guessing = "" if args.images else " (guessing is right on 10%)"
        once = len({image.tobytes() for step in x for image in step}) == x.shape[0] * x.shape[1]
        print(
            f"Before learning the images of a step, it was right on {right[:few].mean():.0%} of "
            f"them in the first {few} step(s), and on {right[-few:].mean():.0%} in the last "
            f"{few}{guessing}{': no image came twice' if once else ''}."
        )
    if args.check and comm.is_root:
        args.lr *= comm.size
        twin, alone, *_ = train(mnpar.create_communicator("self"), args, x, t, args.steps)
        worst = max(
            abs(one.array - other.array).max()
            for one, other in zip(model.params(), twin.params(), strict=True)
        )
        gap = abs(losses - alone)
        print(
            f"from one rank with all images: losses differ by {gap.max():.1e}, weights by "
            f"{worst:.1e} at most"
        )
        # the second is that after a step
        if args.dtype == "f8" and not args.local_bn and gap[:2].max() > 1e-6:
            raise SystemExit("the ranks have not learned what one does")
        if gap.max() > 1e-6 and not args.local_bn:
            print(
                "(rounding changes the signs of some units, and ReLU their gradients: more "
                "with each step, less in float64)"
            )
    return losses


def check(parser, args):
    """Refuse what does not go together."""
    args.dtype = args.dtype or ("f8" if args.check else "f4")
    if not 0 < args.lr < float("inf"):
        parser.error(f"--lr is positive and finite, not {args.lr}")


if __name__ == "__main__":
    parser = mnpar.launch.Parser(__doc__, check=check)
    parser.flag("--batchsize -b", 16, "images of each rank per step")
    parser.flag("--size", 32, "rows and columns of the images", least=8)
    parser.flag("--steps", 10, "steps")
    parser.flag("--classes", 1000, "classes")
    parser.flag("--lr", 0.01, "learning rate for each rank: times the number of ranks")
    parser.flag(
        "--images",
        mnpar.launch.existing_folder,
        "pictures, DIR/class/picture.npy, instead of digits",
    )
    parser.flag("--dtype", str, "float32 or float64 (f4; with --check f8)", choices=["f4", "f8"])
    parser.flag("--local-bn", False, "batch statistics of each rank alone")
    parser.flag("--check", False, "compare with one rank that has all images")
    parser.flag("--scaling", False, "measure on 1, 2, 4 … ranks")
    parser.flag("--seed -s", mnpar.launch.seed, "of weights and images", default=0)
    mnpar.launch.script(main, parser)
