"""A training step of an MLP in two pipeline stages on two ranks, one BLAS thread each, beside
torch.distributed.pipelining.

    mpiexec -n 2 python -m benchmarks.pipeline [--hand] [--rounds 15] [--times 10] [--only 784]

Softmax cross entropy and SGD; four micro-batches; PyTorch over gloo, with its schedules for one
stage a rank, in the same processes and in turn with mnpar's. The best of ours stands beside the
best of its, and each of its beside ours of that name (but weights' gradients in GPipe: ours are one
product for all micro-batches). ``alone`` is the whole batch on one rank, ``alone in pieces`` the
same micro-batches there; ``ideal`` is that, shared between the ranks, with the bubble of the
schedule: × (M+P-1)/(M·P). (The last network's stages are balanced.) ``--hand`` adds numpy and
mpi4py written out, in 1F1B's order.
"""

import argparse
import itertools
import statistics

from benchmarks.rows import collect
from benchmarks.timing import gloo_or_none, in_turn, one_thread

one_thread()
import numpy as np  # noqa: E402

import mnpar  # noqa: E402
import mnpar.functions as F  # noqa: E402
import mnpar.links as L  # noqa: E402
from mnpar.parallel import Pipeline, own_schedule  # noqa: E402

M = 4
OWN = {
    # three micro-batches go back abreast, so that rank 0 has time for their weights' gradients
    # before the last one comes
    "three": own_schedule(
        ["F0 F1 F2 F3 I0 I1 I2 W0 W1 W2 I3 W3", "F0 F1 F2 I0 I1 I2 F3 I3 W0 W1 W2 W3"], "three"
    ),
    # rank 0 does all that it can before it waits, and the weights' gradients of all together
    "ahead": own_schedule(
        ["F0 F1 F2 F3 I0 I1 I2 I3 W0 W1 W2 W3", "F0 I0 F1 I1 F2 I2 F3 I3 W0 W1 W2 W3"], "ahead"
    ),
}
SCHEDULES = [
    "gpipe",
    "1f1b",
    "1f1b late",
    "zb1p",
    "eager",
    "ahead",
    "gpipe abreast",
    "three abreast",
]
NETWORKS = {  # sizes, examples in a micro-batch, layers of the first stage
    "784-1000-1000-10, 25 x 4": ((784, 1000, 1000, 10), 25, 1),
    "1024-256-256-256-32, 16 x 4": ((1024, 256, 256, 256, 32), 16, 2),
    "4 x 1024-1024, 64 x 4": ((1024,) * 5, 64, 2),
}


def layers(sizes, linear, relu):
    """Linear and relu in turn, without a relu at the end, one list for each linear layer."""
    pairs = list(itertools.pairwise(sizes))
    return [
        [linear(*pair), relu] if i + 1 < len(pairs) else [linear(*pair)]
        for i, pair in enumerate(pairs)
    ]


def ours(comm, sizes, cut, x, t, schedule):
    """``late``: weights' gradients at the end of the batch, as GPipe has them; ``abreast``: the
    last stage's together.
    """
    schedule, *options = schedule.split()
    late = "late" in options or None
    abreast = "abreast" in options
    parts = layers(sizes, L.Linear, F.relu)
    mine = mnpar.Sequential(*itertools.chain(*(parts[:cut] if comm.rank == 0 else parts[cut:])))
    stage = mine if comm.rank == 0 else L.Classifier(mine)
    if comm.rank:
        stage.compute_accuracy = False
    pipeline = Pipeline(
        comm, stage, OWN.get(schedule, schedule), M, late_weights=late, abreast=abreast
    )
    optimizer = mnpar.optimizers.SGD(lr=0.01).setup(pipeline)
    return lambda: optimizer.update(pipeline, t if comm.rank else x)


def alone(comm, sizes, x, t, pieces):
    """On rank 0, in so many micro-batches."""
    model = L.Classifier(mnpar.Sequential(*itertools.chain(*layers(sizes, L.Linear, F.relu))))
    model.compute_accuracy = False
    pipeline = Pipeline(mnpar.create_communicator("self"), model, "gpipe", pieces)
    optimizer = mnpar.optimizers.SGD(lr=0.01).setup(pipeline)
    return (lambda: optimizer.update(pipeline, x, t)) if comm.rank == 0 else lambda: None


def theirs(torch, comm, sizes, cut, x, t, schedule):
    from torch.distributed import pipelining

    parts = layers(sizes, torch.nn.Linear, torch.nn.ReLU())
    net = torch.nn.Sequential(*itertools.chain(*(parts[:cut] if comm.rank == 0 else parts[cut:])))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    stage = pipelining.PipelineStage(net, comm.rank, 2, torch.device("cpu"))
    kind = {"gpipe": pipelining.ScheduleGPipe, "1f1b": pipelining.Schedule1F1B}[schedule]
    runner = kind(stage, n_microbatches=M, loss_fn=torch.nn.functional.cross_entropy)
    x = torch.from_numpy(x)
    t = torch.from_numpy(t)

    def step():
        optimizer.zero_grad()
        if comm.rank == 0:
            runner.step(x)
        else:
            runner.step(target=t)
        optimizer.step()

    return step


def by_hand(comm, sizes, cut, x, t, MB):
    """The same written out, with preallocated arrays."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    r = comm.rank
    n = len(sizes) - 1
    rng = np.random.default_rng(r)
    mine = [i for i in range(n) if (i < cut) == (r == 0)]
    W = {i: (rng.standard_normal((sizes[i + 1], sizes[i])) * 0.03).astype("f4") for i in mine}
    b = {i: np.zeros(sizes[i + 1], "f4") for i in mine}
    gW, gb, tW = ({i: np.empty_like(a[i]) for i in mine} for a in (W, b, W))
    Y = [{i: np.empty((MB, sizes[i + 1]), "f4") for i in mine} for _ in range(M)]
    xs = x.reshape(M, MB, -1)
    H = np.empty((M, MB, sizes[cut]), "f4")
    g0 = np.empty((MB, sizes[cut]), "f4")
    back = np.empty_like(H)
    ts = t.reshape(M, MB)
    rows = np.arange(MB)

    def forward(m, h):
        for i in mine:
            y = Y[m][i]
            np.matmul(h, W[i].T, out=y)
            y += b[i]
            if i < n - 1:
                np.maximum(y, 0, out=y)
            h = y
        return h

    def backward(m, g, first):
        for i in reversed(mine):
            if i < n - 1:
                g *= Y[m][i] > 0
            h = Y[m][i - 1] if i - 1 in W else first
            if m == 0:
                np.matmul(g.T, h, out=gW[i])
                gb[i] = g.sum(0)
            else:
                np.matmul(g.T, h, out=tW[i])
                gW[i] += tW[i]
                gb[i] += g.sum(0)
            if i:
                g = g @ W[i]
        return g

    def loss(z, t):
        z -= z.max(1, keepdims=True)
        np.exp(z, out=z)
        z /= z.sum(1, keepdims=True)
        z[rows, t] -= 1
        z *= np.float32(1 / (MB * M))
        return z

    def step():
        if r == 0:
            sent = [world.Isend(forward(m, xs[m]), 1) for m in range(min(2, M))]
            for m in range(M):
                world.Recv(g0, 1)
                backward(m, g0, xs[m])
                if m + 2 < M:
                    sent.append(world.Isend(forward(m + 2, xs[m + 2]), 1))
        else:
            sent = []
            for m in range(M):
                world.Recv(H[m], 0)
                back[m] = backward(m, loss(forward(m, H[m]), ts[m]), H[m])
                sent.append(world.Isend(back[m], 0))
        MPI.Request.Waitall(sent)
        for i in mine:
            for p, g in ((W[i], gW[i]), (b[i], gb[i])):
                g *= np.float32(0.01)
                p -= g

    return step


def fastest(found, whose):
    """The fastest way of one of the two."""
    return min([way for way in found if way.startswith(whose)], key=found.__getitem__)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument(
        "--fastest",
        action="store_true",
        help="the fastest round instead of the median (on a busy machine)",
    )
    parser.add_argument("--hand", action="store_true", help="numpy and mpi4py written out too")
    parser.add_argument(
        "--schedules", nargs="*", default=SCHEDULES, help=f"of mnpar: {', '.join(SCHEDULES)}"
    )
    parser.add_argument("--only", default="", help="networks whose names contain this")
    args = parser.parse_args()
    comm = mnpar.create_communicator()
    if comm.size != 2:
        raise SystemExit(
            "this benchmark is for two ranks: mpiexec -n 2 python -m benchmarks.pipeline"
        )
    torch = gloo_or_none(comm)
    pick = min if args.fastest else statistics.median

    def slowest(values):
        """Of the ranks, round by round."""
        return float(pick(comm.allreduce(np.array(values), op="max")))

    for name, (sizes, MB, cut) in NETWORKS.items():
        if args.only not in name:
            continue
        rng = np.random.default_rng(0)
        x = rng.standard_normal((M * MB, sizes[0])).astype("f4")
        t = rng.integers(0, sizes[-1], M * MB)
        ways = {f"mnpar {one}": ours(comm, sizes, cut, x, t, one) for one in args.schedules}
        ways |= {
            "alone": alone(comm, sizes, x, t, 1),
            "alone in pieces": alone(comm, sizes, x, t, M),
        }
        if torch:
            ways |= {
                f"torch {one}": theirs(torch, comm, sizes, cut, x, t, one)
                for one in ("gpipe", "1f1b")
            }
        if args.hand:
            ways["by hand"] = by_hand(comm, sizes, cut, x, t, MB)
        found = in_turn(ways, args.times, rounds=args.rounds, before=comm.barrier, pick=slowest)
        if comm.rank == 0:
            print(
                f"{name:30}" + "  ".join(f"{way} {1e3 * s:.2f}" for way, s in found.items()) + " ms"
            )
            for one in args.schedules:
                ways = {"mnpar": f"mnpar {one}", "alone": "alone", "torch": f"torch {one}"}
                ways = {who: found[way] for who, way in ways.items() if way in found}
                collect(f"{name}, {one}, {comm.size} ranks", ways)
            ideal = found["alone in pieces"] * (M + 1) / (M * 2)
            best = fastest(found, "mnpar")
            print(f"{'':30}ideal {1e3 * ideal:.2f} ms, reached {ideal / found[best]:.2f}", end="")
            if torch:
                other = fastest(found, "torch")
                same = [one for one in ("gpipe", "1f1b") if f"mnpar {one}" in found]
                print(f"; {best} / {other} {found[best] / found[other]:.2f}", end="")
                print(
                    "".join(
                        [
                            f", both {one} {found[f'mnpar {one}'] / found[f'torch {one}']:.2f}"
                            for one in same
                        ]
                    ),
                    end="",
                )
            print(flush=True)
    if torch:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
