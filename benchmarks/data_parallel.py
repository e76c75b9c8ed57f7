"""A data-parallel training step of two MLPs (softmax cross entropy, SGD): each rank has its own
batch, all step together.

    mpiexec -n 2 python -m benchmarks.data_parallel
        (--overlap: buckets of several sizes too)

``one rank`` is mnpar's step while all ranks compute and none communicates; ``mnpar`` is
create_multi_node_optimizer by default; ``numpy`` is written by hand: forward and backward in
preallocated arrays, one flat Allreduce; ``DDP`` is PyTorch's DistributedDataParallel over gloo with
gradients as views of buckets, where PyTorch is installed. One BLAS thread for each rank.
"""

import argparse
import itertools

from benchmarks.rows import collect
from benchmarks.timing import gloo_or_none, in_turn, one_thread

one_thread()
import numpy as np  # noqa: E402
from mpi4py import MPI  # noqa: E402

import mnpar  # noqa: E402
import mnpar.functions as F  # noqa: E402
import mnpar.links as L  # noqa: E402

NETWORKS = {
    "784-1000-1000-10, batch 100": ((784, 1000, 1000, 10), 100),
    "1024-256-256-256-32, batch 64": ((1024, 256, 256, 256, 32), 64),
}


def ours(sizes, x, t, comm=None, **options):
    model = mnpar.Sequential()
    for n_in, n_out in itertools.pairwise(sizes):
        model.extend([L.Linear(n_in, n_out), F.relu])
    model.pop()
    optimizer = mnpar.optimizers.SGD(lr=0.01)
    if comm is not None:
        optimizer = mnpar.create_multi_node_optimizer(optimizer, comm, **options)
    optimizer.setup(model)
    return lambda: optimizer.update(lambda x, t: F.softmax_cross_entropy(model(x), t), x, t)


def by_hand(world, sizes, x, t):
    """The least that numpy can do: no autograd, every buffer there already."""
    layers = list(itertools.pairwise(sizes))
    n = sum(i * o + o for i, o in layers)
    rng = np.random.default_rng(0)
    lr = np.float32(0.01 / world.size)
    batch = len(x)
    flat_p = rng.standard_normal(n).astype("f4") * np.float32(0.03)
    flat_g = np.empty(n, "f4")

    def views(flat):
        start, found = 0, []
        for i, o in layers:
            found.append(
                (flat[start : start + i * o].reshape(o, i), flat[start + i * o : start + i * o + o])
            )
            start += i * o + o
        return found

    Ws = views(flat_p)
    Gs = views(flat_g)
    ys = [np.empty((batch, o), "f4") for _, o in layers]
    gs = [np.empty((batch, i), "f4") for i, _ in layers]
    last = len(layers) - 1
    rows = np.arange(batch)

    def step():
        h = x
        for k, (W, b) in enumerate(Ws):
            np.matmul(h, W.T, out=ys[k])
            np.add(ys[k], b, out=ys[k])
            if k < last:
                np.maximum(ys[k], 0, out=ys[k])
            h = ys[k]
        h -= h.max(axis=1, keepdims=True)
        np.exp(h, out=h)
        h /= h.sum(axis=1, keepdims=True)
        h[rows, t] -= 1
        h *= np.float32(1 / batch)
        g = h
        for k in range(last, -1, -1):
            if k < last:
                g *= ys[k] > 0
            np.add.reduce(g, 0, out=Gs[k][1])
            np.matmul(g.T, ys[k - 1] if k else x, out=Gs[k][0])
            if k:
                np.matmul(g, Ws[k][0], out=gs[k])
                g = gs[k]
        world.Allreduce(MPI.IN_PLACE, flat_g)
        np.multiply(flat_g, lr, out=flat_g)
        np.subtract(flat_p, flat_g, out=flat_p)

    return step


def ddp(torch, sizes, x, t):
    layers = []
    for n_in, n_out in itertools.pairwise(sizes):
        layers += [torch.nn.Linear(n_in, n_out), torch.nn.ReLU()]
    model = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Sequential(*layers[:-1]), gradient_as_bucket_view=True
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.from_numpy(x)
    t = torch.from_numpy(t)

    def step():
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), t).backward()
        optimizer.step()

    return step


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--overlap",
        action="store_true",
        help="buckets of 256 KiB to 4 MiB, which leave during backward",
    )
    parser.add_argument("--rounds", type=int, default=11, help="measurements of each way")
    args = mnpar.launch.parse_args(parser)
    comm, world = mnpar.create_communicator(), MPI.COMM_WORLD
    torch = gloo_or_none(comm)
    for name, (sizes, batch) in NETWORKS.items():
        rng = np.random.default_rng(comm.rank)
        x = rng.standard_normal((batch, sizes[0])).astype("f4")
        t = rng.integers(0, sizes[-1], batch)
        ways = {
            "one rank": ours(sizes, x, t),
            "mnpar": ours(sizes, x, t, comm),
            "numpy": by_hand(world, sizes, x, t),
        }
        for size in (2**18, 2**20, 2**22) if args.overlap else ():
            ways[f"{size // 1024} KiB"] = ours(sizes, x, t, comm, bucket_bytes=size)
        if torch:
            ways["DDP"] = ddp(torch, sizes, x, t)
        found = in_turn(ways, 20, args.rounds, world.Barrier)
        found = {way: max(comm.allgather_obj(seconds)) for way, seconds in found.items()}
        if comm.is_root:
            collect(f"{name}, {comm.size} ranks", {"mnpar": found["mnpar"], **found})
            print(f"{name}, {comm.size} ranks")
            for way, seconds in found.items():
                share = seconds / found["mnpar"]
                print(f"  {way:10} {1e6 * seconds:8.0f} µs   {share:.2f} of mnpar's")
            print(
                f"  mnpar keeps {found['one rank'] / found['mnpar']:.2f} of one rank's speed",
                end="",
            )
            print(f", and takes {found['mnpar'] / found['DDP']:.2f} of DDP's time" if torch else "")


if __name__ == "__main__":
    main()
