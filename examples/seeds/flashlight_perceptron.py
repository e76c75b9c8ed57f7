"""flashlight's tutorial: a perceptron learns y = Σ x³ + noise from one sample at a time; ranks take
samples by turns.

    python examples/seeds/flashlight_perceptron.py
        one rank, 10 epochs of 10,000 steps (--epoch 100, as on flashlight's page)
    mpiexec -n 2 python examples/seeds/flashlight_perceptron.py
        two ranks, 10 epochs of 5,000 steps
    mpiexec -n 3 python examples/seeds/flashlight_perceptron.py --check
        and the same weights as one rank with minibatches of 3
    python examples/seeds/flashlight_perceptron.py --threads 3 --check
        ranks that are threads: needs no MPI
    mpiexec -n 2 python examples/seeds/flashlight_perceptron.py --tutorial
        data and weights as the tutorial draws them
    mpiexec -n 2 python examples/seeds/flashlight_perceptron.py --tutorial alike
        the curve that its page prints for two ranks

In the tutorial each rank draws data of its own, and drops what 10,000 does not divide into; and it
draws weights of its own, of which all ranks then take the mean (``--tutorial``). Here all ranks
draw the same data and weights, and rank r of P takes the samples r, r + P, …: so P ranks do what
one does with minibatches of P; ``--check`` shows it.

Mean squared error after 1, 2, 3 and 100 epochs; mean and standard deviation of 60 seeds, of a
program apart from mnpar:

    one rank                    12.7 ± 0.5    2.81 ± 0.10    2.27 ± 0.09    0.83 ± 0.02
    two ranks                   15.6 ± 0.6    3.02 ± 0.17    2.03 ± 0.08    0.72 ± 0.02
    two ranks, --tutorial       16.7 ± 0.6    3.26 ± 0.16    2.30 ± 0.08    0.74 ± 0.02
    two, --tutorial alike       19.6 ± 0.7    5.42 ± 0.31    3.00 ± 0.11    0.90 ± 0.03
    page, one rank              13.1          2.59           …              0.81
    page, two ranks             20.2          5.28           2.92           0.92

So the page's curve of two ranks is that of ranks which drew the same 5,000 samples: their mean
gradient is that of one sample, and they learn exactly what one rank does with ``--samples 5000``.
"""

import time

import numpy as np

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar.initializers import LeCunUniform, Uniform
from mnpar.parallel import allreduce_parameters


class Perceptron(mnpar.Chain):
    """10 - 100 - 1, with flashlight's first weights: uniform, W within √(3 / fan_in) and b within
    √(1 / fan_in).
    """

    def __init__(self, n_units):
        super().__init__()
        self.l1 = L.Linear(10, n_units, initialW=LeCunUniform(), initial_bias=Uniform(10**-0.5))
        self.l2 = L.Linear(n_units, 1, initialW=LeCunUniform(), initial_bias=Uniform(n_units**-0.5))

    def forward(self, x):
        return self.l2(F.relu(self.l1(x)))


def draw(seed, n):
    """x (n, 10) in [1, 2], y (n, 1) = Σ x³ + sin 2πu: the noise has variance 1/2, so the error ends
    above that.
    """
    rng = np.random.default_rng(seed)
    x = rng.uniform(1, 2, (n, 10))
    y = (x**3).sum(axis=1, keepdims=True) + np.sin(2 * np.pi * rng.uniform(size=(n, 1)))
    return x.astype(mnpar.get_dtype()), y.astype(mnpar.get_dtype())


def train(comm, args, batches, say):
    """The model after all epochs; ``batches`` are this rank's indices, and say how many steps all
    ranks make.
    """
    seed = args.seed + (comm.rank if args.tutorial == "own" else 0)
    mnpar.random.seed(seed)
    x, y = draw(seed, len(batches) if args.tutorial else args.samples)
    model = Perceptron(args.unit)
    if args.tutorial:
        allreduce_parameters(model, comm)
    optimizer = mnpar.optimizers.MomentumSGD(args.lr, momentum=0.9)
    if comm.size > 1:
        optimizer = mnpar.create_multi_node_optimizer(optimizer, comm)
    optimizer.setup(model)
    losses, meter = [], mnpar.meters.AverageValueMeter()

    def error(x, y):
        if not len(x):  # the others' last samples
            return None
        loss = F.mean_squared_error(model(x), y)
        losses.append(loss.array)  # not the loss itself: it would keep its graph
        return loss

    for epoch in range(1, args.epoch + 1):
        start = time.perf_counter()
        for batch in batches:
            optimizer.update(error, x[batch], y[batch])
        step = (time.perf_counter() - start) / len(batches)
        for loss, batch in zip(losses, batches, strict=False):
            meter.add(loss, weight=len(y[batch]))
        meter.sync(comm)  # once an epoch: not in each step
        if say:
            print(
                f"epoch {epoch:3d}   mean squared error {meter.value().mean:.4f}   "
                f"{1e6 * step:.0f} µs a step"
            )
        meter.reset()
        losses.clear()
    return model


def main(comm, args):
    """Train; returns the model."""
    if args.check:
        mnpar.config.dtype = np.dtype("f8")  # so that weights can be compared digit for digit
    if args.tutorial and args.samples < comm.size:
        raise SystemExit(
            f"--tutorial: {args.samples} samples are none for each of {comm.size} ranks"
        )
    if comm.is_root:
        print(f"{comm.size} rank(s), {args.samples} samples, each rank one at a time")
    if args.tutorial:
        share = args.samples // comm.size
        model = train(comm, args, [slice(i, i + 1) for i in range(share)], comm.is_root)
        if comm.is_root:
            print(_CONCLUSIONS[args.tutorial].format(P=comm.size, share=share))
        return model
    mine = mnpar.datasets.partition_by_round_robin(
        args.samples, comm.rank, comm.size, allow_empty=True
    )
    steps = -(-args.samples // comm.size)
    batches = [slice(i, i + 1) for i in mine] + [slice(0, 0)] * (steps - len(mine))
    model = train(comm, args, batches, comm.is_root)
    if comm.is_root:
        print(_CONCLUSIONS["several" if comm.size > 1 else "one"].format(P=comm.size))
    if args.check and comm.is_root:
        whole = [
            slice(i, min(i + comm.size, args.samples)) for i in range(0, args.samples, comm.size)
        ]
        twin = train(mnpar.create_communicator("self"), args, whole, say=False)
        pairs = zip(model.params(), twin.params(), strict=True)
        print(
            f"from one rank with minibatches of {comm.size} the weights differ by "
            f"{max(abs(one.array - other.array).max() for one, other in pairs):.1e} at most"
        )
    return model


_CONCLUSIONS = {
    "one": (
        "One rank took one sample in a step. The noise of the data has a variance of 0.5; the "
        "error comes near to it\nwith more epochs. mpiexec -n 2 learns what one rank does with "
        "minibatches of 2."
    ),
    "several": (
        "{P} ranks took one sample each in a step, and learned what one rank does with "
        "minibatches of {P} (--check shows it).\nSo small a step is no faster on several ranks: it "
        "mostly waits for the mean of the gradients. It shows that the\nweights stay equal; for "
        "speed give each rank more to do."
    ),
    "own": (
        "Each of {P} rank(s) drew {share} samples of its own, and all took the mean of their "
        "gradients: this is a minibatch\nof {P} in each step."
    ),
    "alike": (
        "All {P} rank(s) drew the same {share} samples, so the mean of their gradients is that of "
        "one sample: they learned\nwhat one rank does with --samples {share}, and gained nothing."
    ),
}


def check(parser, args):
    """Refuse what does not go together."""
    if not 0 < args.lr < float("inf"):
        parser.error(f"--lr is positive and finite, not {args.lr}")
    if args.check and args.tutorial:
        parser.error("--check compares ranks that share their data with one: not with --tutorial")


if __name__ == "__main__":
    parser = mnpar.launch.Parser(__doc__, ranks=1, check=check)
    parser.flag("--epoch -e", 10, "epochs; the page has 100")
    parser.flag("--samples -n", 10000, "samples of an epoch, of all ranks")
    parser.flag("--unit -u", 100, "width of the hidden layer")
    parser.flag("--lr", 0.0001, "learning rate; the momentum is 0.9")
    parser.flag("--seed -s", mnpar.launch.seed, "of data and weights", default=0)
    parser.flag(
        "--tutorial",
        str,
        "each rank draws its data, and weights of which all take the mean; alike: from one seed, "
        "as on its page",
        choices=["own", "alike"],
        nargs="?",
        const="own",
    )
    parser.flag("--check", False, "compare with one rank that has all samples, in float64")
    mnpar.launch.script(main, parser)
