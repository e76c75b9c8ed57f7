"""pathway2ai's exercise: a deep perceptron trained by gradient descent on one worker, or on several
with the mean gradient.

    python examples/seeds/pathway2ai_mlp.py
        one worker
    mpiexec -n 2 python examples/seeds/pathway2ai_mlp.py
        two: each takes every second batch
    python examples/seeds/pathway2ai_mlp.py --world-size 2
        the same: it starts them itself
    python examples/seeds/pathway2ai_mlp.py --threads 2
        workers that are threads: needs no MPI

Configuration and printed lines are the exercise's. Its comment says that it trains on nine tenths
of the samples, and its code trains on the first tenth (``--train-fraction 0.1``); its test loss is
that of the training samples, here it is that of the others. The batches come in one endless
sequence, of which worker r of P takes numbers r, r + P, …: the workers never drift apart, whatever
their number. (The last rows, less than a batch, are never trained on.)
"""

import time
from itertools import pairwise

import numpy as np

import mnpar
import mnpar.functions as F
import mnpar.links as L


class MLP(mnpar.ChainList):
    """``n_layers`` linear layers without biases, and tanh between them."""

    def __init__(self, n_layers, d_in, d_hidden, n_classes):
        sizes = [d_in, *[d_hidden] * (n_layers - 1), n_classes]
        initialW = mnpar.initializers.HeUniform()  # Kaiming's, to √(6 / inputs)
        super().__init__(
            *[L.Linear(n, m, nobias=True, initialW=initialW) for n, m in pairwise(sizes)]
        )

    def forward(self, x):
        for i, layer in enumerate(self):
            x = layer(x if i == 0 else F.tanh(x))
        return x


def make_data(args):
    """x (N, D) float32 and classes (N,), as the exercise makes them."""
    try:
        from sklearn.datasets import make_classification
    except ImportError:
        raise SystemExit(
            "the samples are made by scikit-learn: pip install 'mnpar[examples]'"
        ) from None
    x, t = make_classification(
        args.train_size,
        args.dim_in,
        n_informative=args.dim_in // 2,
        n_classes=args.n_classes,
        n_clusters_per_class=10,
        random_state=0,
    )
    return x.astype(np.float32), t.astype(np.int32)


def mean_loss(model, x, t, args, alike=False):
    """The mean over samples; over batches, the short one counted like the others, if they are to
    count alike.
    """
    with mnpar.no_backprop_mode(), mnpar.using_config("train", False):
        cuts = [slice(i, i + args.batch_size) for i in range(0, len(x), args.batch_size)]
        losses = [F.softmax_cross_entropy(model(x[cut]), t[cut]).item() for cut in cuts]
    return float(np.average(losses, weights=None if alike else [len(t[cut]) for cut in cuts]))


def main(comm, args):
    """Train; returns [(iteration, loss on the training samples, on the others)]."""
    config = {
        "n_layers": args.n_layers,
        "d_in": args.dim_in,
        "n_classes": args.n_classes,
        "d_hidden": args.dim_hidden,
        "batch_size": args.batch_size,
        "train_size": args.train_size,
        "niters": args.niters,
        "lr": args.learning_rate,
        "world_size": comm.size,
    }
    if comm.is_root:
        print(config)
    x, t = map(comm.bcast, make_data(args) if comm.is_root else (None, None))
    n = int(args.train_fraction * len(x))
    n_batches = n // args.batch_size
    mnpar.random.seed(args.seed)
    model = MLP(args.n_layers, args.dim_in, args.dim_hidden, args.n_classes)
    optimizer = mnpar.optimizers.SGD(args.learning_rate)
    if comm.size > 1:
        optimizer = mnpar.create_multi_node_optimizer(optimizer, comm)
    optimizer.setup(model)
    test = mnpar.parallel_function(lambda x, t: mean_loss(model, x, t, args), ["x", "t"], comm=comm)

    def report(step, milliseconds):
        train_loss = mean_loss(model, x[:n], t[:n], args, args.batch_mean)
        test_loss = float(test(x=x[n:], t=t[n:])) if n < len(x) else float("nan")
        if comm.is_root:
            print(
                f"step: {step} | train_loss: {train_loss:.4f} | test_loss: {test_loss:.4f} | "
                f"step time: {milliseconds:.2f} ms"
            )
        return step, train_loss, test_loss

    def step(i):
        optimizer.lr = args.learning_rate * (1 - 0.7 * i / args.niters)  # to 0.3 of it
        first = (i * comm.size + comm.rank) % n_batches * args.batch_size
        cut = slice(first, first + args.batch_size)
        optimizer.update(lambda x, t: F.softmax_cross_entropy(model(x), t), x[cut], t[cut])

    lines = [report(0, 0)]
    times = []
    for i in range(args.stop or args.niters):
        if i and i % args.every == 0:
            lines.append(report(i, 1e3 * float(np.median(times))))
            times = []
        start = time.perf_counter()
        step(i)
        times.append(time.perf_counter() - start)
    lines.append(report(i + 1, 1e3 * float(np.median(times))))
    if not mnpar.check_parameter_closeness(model, comm):
        raise SystemExit("the workers' parameters are not the same")
    if comm.is_root and comm.size > 1:
        print("the workers' parameters are the same")
    best, _, least = min(lines, key=lambda line: line[2])
    if comm.is_root and n < len(x) and best < lines[-1][0]:
        print(
            f"held-out samples: the loss is lowest, {least:.4f}, after step {best}; what is learnt "
            "after that is the training samples by heart"
        )
    return lines


def check(parser, args):
    """Refuse what does not go together."""
    if args.stop and args.stop > args.niters:
        parser.error(f"--stop is at most --niters, {args.niters}, not {args.stop}")
    if not 0 < args.train_fraction <= 1:
        parser.error(f"--train-fraction is more than 0 and at most 1, not {args.train_fraction}")
    if args.train_fraction * args.train_size < args.batch_size:
        parser.error(
            f"{args.train_fraction} of {args.train_size} samples are no batch of {args.batch_size}"
        )
    if not 0 < args.learning_rate < float("inf"):
        parser.error(f"--learning-rate is positive and finite, not {args.learning_rate}")
    if args.n_classes * 10 > 2 ** min(args.dim_in // 2, 60):
        parser.error(
            f"{args.dim_in} features are too few for {args.n_classes} classes of 10 clusters: "
            "use a larger --dim-in"
        )


def flags():
    """Return the parser of the command line."""
    parser = mnpar.launch.Parser(__doc__, ranks=1, check=check, flag="--world-size")
    parser.flag("--n-layers", 4, "linear layers")
    parser.flag("--dim-in", 1024, "features")
    parser.flag("--n-classes", 32, "classes")
    parser.flag("--dim-hidden", 256, "width of the hidden layers")
    parser.flag("--train-size", 10000, "samples")
    parser.flag("--batch-size", 64, "samples of a batch")
    parser.flag("--niters", 1000, "steps")
    parser.flag("--every", 100, "steps between lines")
    parser.flag("--learning-rate", 0.1, "at first; it falls to 0.3 of it")
    parser.flag(
        "--stop",
        int,
        "stop after N steps; the learning rate falls as if it went on",
        metavar="N",
    )
    parser.flag("--batch-mean", False, "count the short last batch like the others in train_loss")
    parser.flag("--train-fraction", 0.9, "of the samples, trained on")
    parser.flag("--seed -s", mnpar.launch.seed, "of the weights", default=0)
    return parser


if __name__ == "__main__":
    mnpar.launch.script(main, flags())
