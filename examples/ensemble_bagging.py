"""An ensemble whose members are trained in several ways: each on its own draw of the images, or all
together; each on one rank, or on several.

    mpiexec -n 4 python examples/ensemble_bagging.py
    python examples/ensemble_bagging.py                 starts four ranks itself
    python examples/ensemble_bagging.py --threads 4     ranks that are threads: needs no MPI

Every member draws its own sample of the training images (bagging). At evaluation the members'
outputs go through one allgather, and are averaged. With ``--joint`` that happens in training too:
one loss of the averaged output, whose gradients flow back to all ranks. With ``--groups G`` each
member is itself divided over G ranks, which pass its activations on by ``send`` and ``recv``.

The images are scikit-learn's 1,797 handwritten digits; MNIST is taken instead from ``--data DIR``,
or where MNPAR_DATA says.
"""

from pathlib import Path

import numpy as np

import mnpar
import mnpar.functions as F
import mnpar.links as L


class Stage(mnpar.ChainList):
    """The layers of one member that are on one of its G ranks; with G = 1, the whole member."""

    def __init__(self, group, sizes, seed):
        super().__init__()
        self.group = group
        # which of all layers are here
        self.layers = np.array_split(np.arange(len(sizes) - 1), group.size)[group.rank]
        self.last = len(sizes) - 2
        # first weights depend on member and layer, not on the rank they are on
        for i in self.layers:
            weights = mnpar.initializers.LeCunNormal(rng=np.random.default_rng([*seed, i]))
            self.append(L.Linear(sizes[i], sizes[i + 1], initialW=weights))

    def __call__(self, x):
        h = F.recv(self.group, self.group.rank - 1) if self.group.rank > 0 else x
        for i, layer in zip(self.layers, self, strict=True):
            h = layer(h) if i == self.last else F.relu(layer(h))
        if self.group.rank < self.group.size - 1:
            F.send(h, self.group, self.group.rank + 1)
            return None
        return h


def batches(train, args, member, group, comm):
    """The member's iterator: over its own bootstrap sample, or with ``--joint`` the same batches on
    all ranks.
    """
    size = min(args.batchsize, len(train))  # an epoch at most
    if args.joint:
        rng = np.random.RandomState(args.seed)
        iterator = mnpar.iterators.SerialIterator(
            train, size, order_sampler=mnpar.iterators.ShuffleOrderSampler(rng)
        )
        return mnpar.iterators.create_multi_node_iterator(iterator, comm)
    rng = np.random.RandomState(1000 * args.seed + member)
    drawn = mnpar.datasets.SubDataset(
        train, 0, len(train), order=rng.randint(len(train), size=len(train))
    )
    iterator = mnpar.iterators.SerialIterator(
        drawn, size, order_sampler=mnpar.iterators.ShuffleOrderSampler(rng)
    )
    return mnpar.iterators.create_multi_node_iterator(iterator, group)


def evaluate(model, test, comm):
    """The accuracies, rank 0's to print: of each member, and of the ensemble."""
    x, t = mnpar.dataset.concat_examples(test)
    with mnpar.using_config("train", False), mnpar.no_backprop_mode():
        # the mean is the model's own: both None without a member's last layers
        alone, together = (
            model.member(x),
            model(x),
        )
    mine = None if together is None else [F.accuracy(y, t).item() for y in (alone, together)]
    pairs = [each for each in comm.allgather_obj(mine) if each is not None]
    members, (together, *_) = zip(*pairs, strict=True)
    return members, together


def load(args):
    """Training and test images, flat and between 0 and 1, and a line that says what they are."""
    if args.data:
        train, test = mnpar.datasets.get_mnist(data=args.data, dtype=mnpar.config.dtype)
        numbers = f"{len(train)} images to train, {len(test)} to test"
        return train, test, f"MNIST from {args.data}: {numbers}"
    train, test = mnpar.datasets.get_digits(dtype=mnpar.config.dtype)
    return (
        train,
        test,
        f"scikit-learn's handwritten digits (no --data given): {len(train)} images to train, "
        f"{len(test)} to test",
    )


def sizes(train, args):
    """The widths of a member's layers, one or more on each of its ranks."""
    return [train[0][0].size] + [args.unit] * max(1, args.groups - 1) + [10]


def main(comm, args):
    """Train and evaluate; returns this rank's part of the ensemble."""
    with mnpar.launch.reading(comm):
        train, test, data = load(args)
    widths = sizes(train, args)
    model = mnpar.Ensemble(
        comm, lambda group, i: Stage(group, widths, (args.seed, i)), comm.size // args.groups
    )
    number = model.numbers[0]
    answer = model if args.joint else model.member
    optimizer = (
        mnpar.optimizers.MomentumSGD(lr=0.1) if args.joint else mnpar.optimizers.Adam()
    ).setup(model)
    if comm.is_root:
        ways = "jointly" if args.joint else "each on its own draw"
        print(
            f"data: {data}\n{model.size} member(s) of {args.groups} rank(s) on {comm.name}, "
            f"{ways}, {args.epoch} epoch(s); "
            "accuracies are those on the test images"
        )

    iterator = batches(train, args, number, model.group, comm)
    history = []
    total = 0.0
    steps = 0
    while iterator.epoch < args.epoch:
        x, t = mnpar.dataset.concat_examples(next(iterator))
        y = answer(x)  # None on a rank that does not have a member's last layers
        loss = None if y is None else F.softmax_cross_entropy(y, t)
        optimizer.update(lambda loss=loss: loss)
        total = total + (0.0 if loss is None else loss.item())
        steps = steps + 1
        if iterator.is_new_epoch:
            members, together = evaluate(model, test, comm)
            mean_loss = comm.allreduce(np.array(total / steps)).item() / model.size
            history.append((members, together))
            total, steps = 0.0, 0
            if comm.is_root:
                each = " ".join(f"{accuracy:.4f}" for accuracy in members)
                print(
                    f"epoch {iterator.epoch:3d}   loss {mean_loss:.4f}   members {each}   "
                    f"ensemble {together:.4f}"
                )
    if comm.is_root:
        members, together = history[-1]
        print(
            f"The ensemble is right on {together:.1%} of the test images, its "
            f"{model.size} member(s) on {np.mean(members):.1%} on average."
        )
        draw(history, Path(args.out) / "ensemble_bagging.png", data)
    return model


def draw(history, path, data):
    """The accuracies over the epochs, as a picture."""
    try:
        import matplotlib as mpl
    except ImportError:
        print("no plot: matplotlib is missing (pip install 'mnpar[examples]')")
        return
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    epochs = np.arange(1, len(history) + 1)
    members = 100 * np.array([each for each, _ in history])  # (epochs, members)
    ensemble = 100 * np.array([together for _, together in history])
    mean = members.mean(axis=1)
    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    axes.plot(
        epochs,
        members,
        ".-",
        color="0.8",
        linewidth=1,
        markersize=3,
        label=["each member"] + [None] * (members.shape[1] - 1),
    )
    axes.plot(
        epochs,
        mean,
        ".--",
        color="0.4",
        label=f"mean of the {members.shape[1]} members: {mean[-1]:.1f} % at the end",
    )
    axes.plot(
        epochs,
        ensemble,
        ".-",
        color="C0",
        linewidth=2,
        label=f"their ensemble: {ensemble[-1]:.1f} % at the end",
    )
    axes.set(
        xlabel="epoch",
        ylabel="accuracy on the test images, %",
        ylim=(max(members.min() - 1, ensemble.max() - 12), None),
    )
    axes.set_title(data, fontsize=9)
    axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    print(f"plot: {path}")


def check(parser, args):
    """Refuse what does not go together."""
    ranks = mnpar.launch.started_ranks(args, args.ranks)
    if ranks % args.groups:
        more = ranks + args.groups - ranks % args.groups
        parser.error(
            f"{ranks} ranks do not make members of {args.groups} ranks each: "
            f"{mnpar.launch.command(more, args.threads)}"
        )


def flags():
    """Return the parser of the command line."""
    parser = mnpar.launch.Parser(__doc__, ranks=4, check=check)
    parser.flag("--epoch -e", 30, "epochs")
    parser.flag("--batchsize -b", 16, "examples per step")
    parser.flag("--unit -u", 100, "width of a hidden layer")
    parser.flag("--seed -s", mnpar.launch.seed, "of weights, draws and order", default=0)
    parser.flag("--joint", False, "train the averaged output, through the allgather")
    parser.flag("--groups", 1, "ranks of each member", metavar="G")
    parser.flag("--data", mnpar.launch.existing_folder, "of MNIST's files", variable="MNPAR_DATA")
    parser.flag("--out -o", mnpar.launch.folder, "for the plot", default="result")
    return parser


if __name__ == "__main__":
    mnpar.launch.script(main, flags())
