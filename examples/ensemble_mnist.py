"""An ensemble over MPI: each rank has one member, and the model is the mean of all members.

    mpiexec -n 4 python examples/ensemble_mnist.py
    python examples/ensemble_mnist.py                 starts four ranks itself
    python examples/ensemble_mnist.py --threads 4     ranks that are threads: needs no MPI

The images are scikit-learn's 1,797 handwritten digits; ``--data DIR`` takes MNIST instead.
Members that train by themselves, or lie on several ranks each: ``ensemble_bagging.py``.
"""

from pathlib import Path

import numpy as np

import mnpar
import mnpar.functions as F
import mnpar.links as L


class Ensemble(mnpar.Chain):
    def __init__(self, comm, member):
        super().__init__()
        self.comm = comm
        self.member = member

    def __call__(self, x):
        ys = F.allgather(self.comm, self.member(x))  # one array (N, 10) from each rank
        return sum(ys) / self.comm.size


def main(comm, args):
    """Train the members together, and return the model."""
    with mnpar.launch.reading(comm):
        train, test = load(args.data)
    mnpar.random.seed([args.seed, comm.rank])  # other first weights on each rank
    pixels = train[0][0].size
    member = mnpar.Sequential(L.Linear(pixels, args.unit), F.relu, L.Linear(args.unit, 10))
    model = Ensemble(comm, member)
    optimizer = mnpar.optimizers.Adam().setup(model)
    # all ranks get the batches of rank 0
    batches = mnpar.iterators.SerialIterator(train, min(args.batchsize, len(train)))
    batches = mnpar.iterators.create_multi_node_iterator(batches, comm)
    accuracies = []
    while batches.epoch < args.epoch:
        x, t = mnpar.dataset.concat_examples(next(batches))
        # every rank has the same loss: the sum over ranks, which is differentiated, is that loss
        optimizer.update(lambda x, t: F.softmax_cross_entropy(model(x), t) / comm.size, x, t)
        if batches.is_new_epoch:
            accuracies.append(evaluate(model, test))
            if comm.is_root:
                *members, ensemble = accuracies[-1]
                each = " ".join(f"{accuracy:.4f}" for accuracy in members)
                print(f"epoch {batches.epoch:3d}   members {each}   ensemble {ensemble:.4f}")
    if comm.is_root:
        *members, ensemble = accuracies[-1]
        print(
            f"The ensemble is right on {ensemble:.1%} of the test images, its "
            f"{comm.size} member(s) on {np.mean(members):.1%} on average."
        )
        draw(np.array(accuracies), Path(args.out) / "ensemble_mnist.png")
    return model


def load(data):
    """Return training and test images."""
    return mnpar.datasets.get_mnist(data=data) if data else mnpar.datasets.get_digits()


def evaluate(model, test):
    """Return the accuracies of all members, and of the ensemble."""
    x, t = mnpar.dataset.concat_examples(test)
    with mnpar.using_config("train", False), mnpar.no_backprop_mode():
        member, ensemble = F.accuracy(model.member(x), t), F.accuracy(model(x), t)
    return [*model.comm.allgather_obj(member.item()), ensemble.item()]


def draw(accuracies, path):
    """Draw the accuracies (epochs, members + 1)."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    epochs = np.arange(1, len(accuracies) + 1)
    members = axes.plot(epochs, 100 * accuracies[:, :-1], ".-", color="0.75", linewidth=1)
    [ensemble] = axes.plot(epochs, 100 * accuracies[:, -1], ".-", color="C0", linewidth=2)
    last = 100 * accuracies[-1]
    labels = [f"each member: {last[:-1].mean():.1f} % in the mean", f"ensemble: {last[-1]:.1f} %"]
    axes.legend([members[0], ensemble], labels, loc="lower right", frameon=False)
    axes.set(xlabel="epoch", ylabel="accuracy on the test images, %")
    axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    print(f"plot: {path}")


def flags():
    """Return the parser of the command line."""
    parser = mnpar.launch.Parser(__doc__, ranks=4)
    parser.flag("--epoch -e", 20, "epochs")
    parser.flag("--batchsize -b", 32, "examples per step")
    parser.flag("--unit -u", 100, "width of the hidden layer of a member")
    parser.flag("--seed -s", mnpar.launch.seed, "of weights and order", default=0)
    parser.flag("--data", mnpar.launch.existing_folder, "the folder of MNIST's four IDX files")
    parser.flag("--out -o", mnpar.launch.folder, "for the plot", default="result")
    return parser


if __name__ == "__main__":
    mnpar.launch.script(main, flags())
