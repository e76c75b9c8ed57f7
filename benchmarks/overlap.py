"""How much of the gradients' communication overlaps with backward: a CNN whose backward takes as
long as its messages.

    benchmarks/two_hosts.sh python -m benchmarks.overlap
        two hosts joined by a cable of 1 Gbit/s (as root)
    mpiexec -n 2 python -m benchmarks.overlap
        on one machine nothing can be hidden: cores move the messages

``one rank`` is the step without messages, ``after backward`` with one message at its end, the rest
with buckets that leave during it. ``hidden`` is the share of what ``after backward`` takes longer
than ``one rank`` that a way with buckets saves, and ``waits`` how long a step lasts after the end
of its backward: for messages, and for the update. The two differ where moving bytes needs the cores
that compute, as on hosts that are namespaces of one machine: then nobody waits, but all is slower.
``auto`` is what the optimizer chooses when it is made; ``DDP`` is PyTorch's over gloo, where
PyTorch is installed, and ``torch`` its step without messages. One BLAS thread for each rank.
"""

import argparse
import statistics
import time

from benchmarks.timing import gloo_or_none, in_turn, one_thread

one_thread()
import numpy as np  # noqa: E402

import mnpar  # noqa: E402
import mnpar.functions as F  # noqa: E402
import mnpar.links as L  # noqa: E402


def layers(conv, relu, pool, flat, linear, width, units):
    """conv3 × width, × 2 width, × 4 width, each with relu and 2 × 2 pooling; units; 10; for images
    of 3 × 32 × 32.
    """
    parts = []
    for c_in, c_out in ((3, width), (width, 2 * width), (2 * width, 4 * width)):
        parts += [conv(c_in, c_out), relu(), pool()]
    return [*parts, flat(), linear(4 * width * 16, units), relu(), linear(units, 10)]


class Timed:
    """A step of ours, and how long it went on after its backwards."""

    def __init__(self, optimizer, *args):
        self.optimizer = optimizer
        self.args = args
        self.waits = []
        self.ended = 0.0
        if optimizer.sync is not None:
            reduce = optimizer.sync.reduce
            optimizer.sync.reduce = lambda *args: self.end() or reduce(*args)

    def end(self):
        """Backward has ended."""
        self.ended = time.perf_counter()

    def __call__(self):
        self.optimizer.update(*self.args)
        self.waits.append(time.perf_counter() - self.ended)


def ours(args, x, t, comm=None, **options):
    parts = layers(
        lambda i, o: L.Convolution2D(i, o, 3, 1, 1),
        lambda: F.relu,
        lambda: lambda h: F.max_pooling_2d(h, 2),
        lambda: lambda h: F.reshape(h, (len(h), -1)),
        L.Linear,
        args.width,
        args.units,
    )
    model = mnpar.Sequential(*parts)
    optimizer = mnpar.optimizers.SGD(0.01)
    if comm is not None:
        optimizer = mnpar.create_multi_node_optimizer(optimizer, comm, **options)
    optimizer.setup(model)
    return model, Timed(optimizer, lambda x, t: F.softmax_cross_entropy(model(x), t), x, t)


def ddp(torch, args, x, t, together=True):
    nn = torch.nn
    parts = layers(
        lambda i, o: nn.Conv2d(i, o, 3, 1, 1),
        nn.ReLU,
        lambda: nn.MaxPool2d(2),
        nn.Flatten,
        nn.Linear,
        args.width,
        args.units,
    )
    model = nn.Sequential(*parts)
    if together:
        model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.from_numpy(x)
    t = torch.from_numpy(t)

    def step():
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), t).backward()
        optimizer.step()

    return step


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--width", type=int, default=32, help="channels of the first layer (32)")
    parser.add_argument(
        "--units", type=int, default=256, help="units of the layer that has most parameters (256)"
    )
    parser.add_argument("--batchsize", type=int, default=64, help="images of each rank (64)")
    parser.add_argument("--rounds", type=int, default=11, help="measurements of each way")
    parser.add_argument(
        "--buckets",
        type=int,
        nargs="*",
        default=[128, 256, 512, 1024],
        help="KiB of each way with buckets",
    )
    args = mnpar.launch.parse_args(parser)
    comm = mnpar.create_communicator()
    torch = gloo_or_none(comm)
    rng = np.random.default_rng(comm.rank)
    x = rng.standard_normal((args.batchsize, 3, 32, 32)).astype("f4")
    t = rng.integers(0, 10, args.batchsize)
    model, alone = ours(args, x, t)
    ways = {"one rank": alone, "after backward": ours(args, x, t, comm, bucket_bytes=None)[1]}
    for size in args.buckets:
        ways[f"{size} KiB"] = ours(args, x, t, comm, bucket_bytes=1024 * size)[1]
    ways["auto"] = ours(args, x, t, comm)[1]
    hiding = list(ways)[2:]
    if torch:
        ways["torch"], ways["DDP"] = ddp(torch, args, x, t, together=False), ddp(torch, args, x, t)
    found = in_turn(ways, 3, args.rounds, comm.barrier)
    found = {way: max(comm.allgather_obj(seconds)) for way, seconds in found.items()}
    if comm.is_root:
        whole = found["after backward"] - found["one rank"]
        print(
            f"{comm.size} ranks, gradients of {4e-6 * model.count_params():.1f} MB, whose way "
            f"takes {1e3 * whole:.1f} ms"
        )
        for way, seconds in found.items():
            line = f"  {way:14} {1e3 * seconds:8.2f} ms"
            share = (found["after backward"] - seconds) / whole
            if way in hiding or way == "after backward":
                waits = statistics.median(ways[way].waits)
                line += f"   waits {1e3 * waits:6.2f} ms   hidden {100 * share:4.0f} %"
            print(line, flush=True)


if __name__ == "__main__":
    main()
