"""A U-Net that takes the noise out of photographs, in four stages of a pipeline: skip connections
pass over the stages between.

    mpiexec -n 4 python examples/applications/pipeline_unet.py
        one stage on each rank
    python examples/applications/pipeline_unet.py
        two ranks: down the first two stages and up again, in a V
    python examples/applications/pipeline_unet.py --threads 4
        ranks that are threads: needs no MPI

Stages 0 and 1 make the picture smaller, 2 and 3 larger again. The features of stage 1, from
before it made them smaller, go to stage 2 beside the pipeline's own message; those of stage 0 go
past two stages to stage 3: ``send_to_stage``, ``recv_from_stage``. The first stage's rank has the
noisy patches, the last one's the clean ones; ranks between have an empty data set. The patches are
of scikit-learn's two photographs (where they can be read; else of a scene that is made
here), grey, with noise added.
The weights are those of one rank. At the end noisy, cleaned and clean patches are drawn.
"""

import importlib.util
from pathlib import Path

import numpy as np

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar.parallel import Pipeline, make_schedule, recv_from_stage, send_to_stage

STAGES = 4
SIZE = 32


def photographs():
    """Two photographs as grey pictures in 0 … 1, and where they are from."""
    try:
        from PIL import Image  # matplotlib brings it

        folder = Path(importlib.util.find_spec("sklearn").origin).parent / "datasets" / "images"
        return [
            np.asarray(Image.open(folder / name).convert("L")) / 255
            for name in ("china.jpg", "flower.jpg")
        ], folder
    except (ImportError, AttributeError, OSError):
        return [
            scene(np.random.default_rng(seed)) for seed in range(2)
        ], "a scene that was made here"


def scene(rng):
    """Discs of many sizes and greys before each other, lit from one side: edges and slopes, as
    photographs have them.
    """
    y, x = np.mgrid[0:400, 0:600] / 400
    picture = 0.3 + 0.4 * y
    for _ in range(60):
        cx = rng.uniform(0, 1.5)
        cy = rng.uniform(0, 1)
        r = rng.uniform(0.02, 0.2)
        inside = (x - cx) ** 2 + (y - cy) ** 2 < r * r
        picture[inside] = np.clip(rng.uniform(0.1, 0.9) + 0.5 * (x - cx)[inside] / r, 0, 1)
    return picture


def patches(pictures, n, noise):
    """n noisy patches (n, 1, SIZE, SIZE) and the clean ones."""
    rng, clean = np.random.default_rng(0), []
    for _ in range(n):
        picture = pictures[rng.integers(len(pictures))]
        top, left = (rng.integers(0, edge - SIZE) for edge in picture.shape)
        clean.append(picture[top : top + SIZE, left : left + SIZE])
    clean = np.stack(clean)[:, None]
    return clean + noise * rng.standard_normal(clean.shape), clean


def convolution(seed, n_in, n_out, ksize=3):
    weights = mnpar.initializers.HeNormal(rng=np.random.default_rng(seed))
    return L.Convolution2D(n_in, n_out, ksize, pad=ksize // 2, initialW=weights)


class Down(mnpar.Chain):
    """Features of the picture, and a smaller one."""

    def __init__(self, level, width):
        super().__init__()
        self.features = convolution(level, width if level else 1, (level + 1) * width)
        self.smaller = convolution(10 + level, (level + 1) * width, width)

    def __call__(self, x):
        h = F.relu(self.features(x))
        return h, F.relu(self.smaller(F.max_pooling_2d(h, 2)))


class Up(mnpar.Chain):
    """A larger picture, made with the features that skipped to here; the outermost one has one
    channel: the answer.
    """

    def __init__(self, level, width):
        super().__init__()
        self.mix = convolution(20 + level, width + (level + 1) * width, width)
        self.out = convolution(30, width, 1) if level == 0 else None

    def __call__(self, x, features):
        h = F.relu(self.mix(F.concat([F.unpooling_2d(x, 2, cover_all=False), features], axis=1)))
        return h if self.out is None else self.out(h)


def part(number, width):
    return Down(number, width) if number < STAGES // 2 else Up(STAGES - 1 - number, width)


class Stage(mnpar.Chain):
    """One of the parts in the pipeline: features are sent past the stages between."""

    def __init__(self, number, width):
        super().__init__()
        self.opposite = STAGES - 1 - number
        self.part = part(number, width)

    def __call__(self, x, clean=None):
        if self.opposite >= STAGES // 2:
            features, y = self.part(x)
            send_to_stage(features, self.opposite)
            return y
        y = self.part(x, recv_from_stage(self.opposite))
        return y if clean is None else F.mean_squared_error(y, clean)


def train(args, model, data, say=True):
    """Some steps of Adam; the model is called with what this rank has of a batch."""
    optimizer = mnpar.optimizers.Adam(3e-3).setup(model)
    batches = mnpar.iterators.SerialIterator(data, args.batchsize, shuffle=False)
    for step in range(args.steps):
        optimizer.update(model, *mnpar.dataset.concat_examples(next(batches)))
        loss = getattr(model, "loss", None)
        if say and loss is not None and (step + 1) % max(args.steps // 5, 1) == 0:
            print(
                f"step {step + 1:4}  squared error {float(loss):.5f}, of the noise "
                f"{args.noise**2:.5f}"
            )


def draw(path, rows):
    """The rows of patches as a picture; where it is."""
    try:
        import matplotlib as mpl
    except ImportError:
        return "no picture: matplotlib is missing (pip install 'mnpar[examples]')"
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(3, 8, figsize=(10, 4.2), layout="compressed")
    for row, (name, images) in zip(axes, rows.items(), strict=True):
        for axis, image in zip(row, images[:, 0], strict=True):
            axis.imshow(image, cmap="gray", vmin=0, vmax=1)
            axis.set_axis_off()
        row[0].set_title(name, fontsize=9, loc="left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    return f"in {path}"


def read(schedule, ranks, micro_batches):
    """A schedule by its name, or the usual one (None); ValueError: it is not for the four stages on
    so many ranks.
    """
    schedule = make_schedule(
        schedule or ("1f1b" if ranks == STAGES else "zbv"), ranks, micro_batches
    )
    if len(schedule.where) != STAGES:
        raise ValueError(
            f"{schedule.name} on {ranks} ranks has {len(schedule.where)} stages, and this "
            f"U-Net {STAGES}: "
            "zbv and interleaved are for 2 ranks, 1f1b, gpipe and zb1p for 4"
        )
    return schedule


def main(comm, args):
    """Train, and draw; returns the pipeline."""
    pictures, source = photographs()
    noisy, clean = patches(pictures, 10 * args.batchsize, args.noise)
    schedule = read(args.schedule, comm.size, args.micro_batches)
    first = comm.rank == schedule.where[0]
    last = comm.rank == schedule.where[-1]
    stages = [Stage(number, args.width) for number in schedule.stages_of(comm.rank)]
    pipeline = Pipeline(comm, stages, schedule, args.micro_batches, recompute=args.recompute)
    mine = [noisy] * first + [clean] * last  # nothing on ranks between
    data = mnpar.datasets.TupleDataset(*mine) if mine else mnpar.create_empty_dataset(noisy)
    train(args, pipeline, data)
    cleaner = Pipeline(comm, stages, schedule, args.micro_batches, labels=0)
    with mnpar.no_backprop_mode():
        # where there is most to see
        shown = np.argsort(-clean.std(axis=(1, 2, 3)), kind="stable")[:8]
        cleaned = cleaner(*[noisy[shown]] * first)
    if last:
        rows = {"noisy": noisy[shown], "cleaned": cleaned.array, "clean": clean[shown]}
        before, after = (np.square(x - rows["clean"]).mean() for x in list(rows.values())[:2])
        print(
            f"The patches shown had a squared error of {before:.5f}, and have {after:.5f} now. "
            f"Features of {STAGES // 2} scales took skip connections, past the stages between."
        )
        print(f"patches of {source}, {draw(Path(args.out) / 'pipeline_unet.png', rows)}")
    return pipeline


def check(parser, args):
    """Refuse what does not go together."""
    args.ranks = ranks = mnpar.launch.started_ranks(args, args.ranks)
    if ranks not in (2, STAGES):
        parser.error(
            f"this U-Net has {STAGES} stages, for {STAGES} ranks, or two on each of 2, not for "
            f"{ranks} ranks: {mnpar.launch.command(STAGES, args.threads)}"
        )
    read(args.schedule, ranks, args.micro_batches)


def flags():
    """Return the parser of the command line."""
    parser = mnpar.launch.Parser(__doc__, exactly=True, check=check)
    parser.flag(
        "--schedule", str, "1f1b, gpipe or zb1p for 4 ranks, zbv or interleaved for 2 (1f1b, zbv)"
    )
    parser.flag("--micro-batches -m", 4, "pieces of a batch")
    parser.flag("--batchsize -b", 16, "patches per step")
    parser.flag("--steps", 100, "steps of Adam")
    parser.flag("--width -w", 8, "channels")
    parser.flag("--noise", 0.1, "standard deviation of the noise")
    parser.flag("--recompute", False, "keep what stages receive, and compute the rest again")
    parser.flag("--out -o", mnpar.launch.folder, "folder of the picture", default="result")
    return parser


if __name__ == "__main__":
    mnpar.launch.script(main, flags())
