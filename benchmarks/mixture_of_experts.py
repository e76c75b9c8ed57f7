"""A mixture of experts beside a dense layer of as much work: time, and bytes beside those of the
rows that have to travel.

    mpiexec -n 2 python -m benchmarks.mixture_of_experts        (also with -n 4, and alone)

Each rank has ``--tokens`` tokens. A step is forward and backward; the two take turns; times are
medians, of the slowest rank. Bytes are what rank 0 sends in messages, beside k rows for each of its
tokens whose expert is elsewhere, and as many as it sends back; the gate's gradient goes by MPI's
own allreduce and is not among them.
"""

import argparse
import statistics
import time

from benchmarks.timing import one_thread

one_thread()

import numpy as np  # noqa: E402

import mnpar  # noqa: E402
import mnpar.functions as F  # noqa: E402
import mnpar.links as L  # noqa: E402
from mnpar.communicators import wire  # noqa: E402
from mnpar.plans import block  # noqa: E402


def perceptron(width, hidden):
    return mnpar.Sequential(L.Linear(width, hidden), F.relu, L.Linear(hidden, width))


def step(layer, x):
    """Wall-clock and processor time of one."""
    begin = time.perf_counter()
    cpu = time.process_time()
    y = layer(mnpar.Variable(x))
    layer.cleargrads()
    F.sum(y * y).backward()
    return time.perf_counter() - begin, time.process_time() - cpu


def count_bytes(comm, layer, x):
    """What this rank posts in a step, and what it has to."""
    sent, post = [], comm.transport.post

    def counting(frame, *where):
        sent.append(frame.nbytes - wire.SIZE)
        post(frame, *where)

    comm.transport.post = counting
    step(layer, x)
    del comm.transport.post
    first, last = block(layer.n_experts, comm.size, comm.rank)
    chosen = np.argsort(-F.linear(x, layer.gate.W).array, axis=1, kind="stable")[:, : layer.k]
    own = np.count_nonzero((chosen >= first) & (chosen < last))
    rows = chosen.size - own + layer.load[first:last].sum() - own
    return sum(sent), 2 * int(rows) * x.itemsize * x.shape[1]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=2048, help="of each rank (2048)")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--hidden", type=int, default=512, help="of an expert (512)")
    parser.add_argument("--experts", type=int, default=8)
    parser.add_argument("--k", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=9)
    args = parser.parse_args()
    comm = mnpar.create_communicator()
    mnpar.random.seed(0)
    mixture = L.MixtureOfExperts(
        comm,
        lambda i: perceptron(args.width, args.hidden),
        args.experts,
        args.width,
        k=args.k,
        input_is_parallel=True,
    )
    dense = perceptron(args.width, args.k * args.hidden)
    x = np.random.default_rng(comm.rank).standard_normal((args.tokens, args.width)).astype("f4")
    sent, needed = count_bytes(comm, mixture, x)
    step(dense, x)
    times = {"mixture": [], "dense": []}
    for _ in range(args.repeats):
        for name, layer in (("mixture", mixture), ("dense", dense)):
            comm.barrier()
            times[name].append(step(layer, x))
    for name, found in times.items():
        wall, cpu = comm.allreduce(
            np.array([statistics.median(each) for each in zip(*found, strict=True)]), "max"
        )
        if comm.is_root:
            print(f"{name:8} {1e3 * wall:8.1f} ms   processor {1e3 * cpu:8.1f} ms")
    if comm.is_root:
        shares = mixture.load / mixture.load.sum()
        print(f"experts see {shares.min():.1%} to {shares.max():.1%} of {mixture.load.sum()} rows")
        print(f"bytes    {sent:,} sent in a step, {needed:,} have to travel")


if __name__ == "__main__":
    main()
