"""Steps of the seed systems' examples, on one rank (the others wait) and on all: samples a second,
and how many times one's.

    mpiexec -n 2 python -m benchmarks.seeds [--rounds 9]

flashlight's perceptron (10-100-1; each rank one sample a step), Synkhronos' MNIST networks (500
images in all, shared by the ranks) and pathway2ai's MLP (64 rows each rank). One BLAS thread for
each rank.
"""

import argparse
import itertools

from benchmarks.timing import in_turn, one_thread

one_thread()
import numpy as np  # noqa: E402

import mnpar  # noqa: E402
import mnpar.functions as F  # noqa: E402
import mnpar.links as L  # noqa: E402
from examples.seeds.flashlight_perceptron import Perceptron  # noqa: E402
from mnpar.plans import block  # noqa: E402


def cnn():
    """conv5 × 32, pool2, twice; 256; 10."""
    conv = [L.Convolution2D(1, 32, 5), L.Convolution2D(32, 32, 5)]
    layers = [layer for c in conv for layer in (c, F.relu, lambda h: F.max_pooling_2d(h, 2))]
    return mnpar.Sequential(*layers, L.Linear(512, 256), F.relu, L.Linear(256, 10))


def mlp(*sizes):
    """Linear and tanh in turn."""
    layers = [one for n, m in itertools.pairwise(sizes) for one in (L.Linear(n, m), F.tanh)]
    return mnpar.Sequential(*layers[:-1])


# model, error, shape of a sample, samples: in all (shared) or of each rank, steps of a measurement
ROWS = {
    "perceptron, 1 each": (lambda: Perceptron(100), F.mean_squared_error, (10,), 1, False, 1000),
    "MNIST CNN, 500 in all": (cnn, F.softmax_cross_entropy, (1, 28, 28), 500, True, 3),
    "784-800-800-10, 500 in all": (
        lambda: mlp(784, 800, 800, 10),
        F.softmax_cross_entropy,
        (784,),
        500,
        True,
        5,
    ),
    "1024-256-256-256-32, 64 each": (
        lambda: mlp(1024, 256, 256, 256, 32),
        F.softmax_cross_entropy,
        (1024,),
        64,
        False,
        100,
    ),
}


def step(comm, make, error, shape, n):
    """An update with n samples of this rank."""
    model = make()
    rng = np.random.default_rng(0)
    optimizer = mnpar.optimizers.MomentumSGD(1e-4)
    if comm is not None:
        optimizer = mnpar.create_multi_node_optimizer(optimizer, comm)
    optimizer.setup(model)
    x = rng.random((n, *shape)).astype("f4")
    t = rng.random((n, 1)).astype("f4") if error is F.mean_squared_error else rng.integers(0, 10, n)
    return lambda: optimizer.update(lambda x, t: error(model(x), t), x, t)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    args = mnpar.launch.parse_args(parser)
    comm = mnpar.create_communicator()
    for name, (make, error, shape, n, shared, times) in ROWS.items():
        start, stop = block(n, comm.size, comm.rank) if shared else (0, n)
        alone = step(None, make, error, shape, n) if comm.is_root else lambda: None
        ways = {"one": alone, "all": step(comm, make, error, shape, stop - start)}
        found = in_turn(ways, times, args.rounds, comm.barrier)
        found = {way: max(comm.allgather_obj(seconds)) for way, seconds in found.items()}
        if comm.is_root:
            times_one = (1 if shared else comm.size) * found["one"] / found["all"]
            print(
                f"{name:30} one rank {1e6 * found['one']:9.0f} µs a step, {comm.size} ranks "
                f"{1e6 * found['all']:9.0f} µs: "
                f"{times_one:.2f} times the samples a second",
                flush=True,
            )


if __name__ == "__main__":
    main()
