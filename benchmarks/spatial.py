"""A CNN on images of 128² and a U-Net on 512², cut into blocks: time and memory for each rank, and what the halos cost.

mpiexec -n 2 python benchmarks/spatial.py        (also with -n 4, and alone, with PyTorch's time on two threads beside it)

``step`` is forward and backward of one batch, ``hiding`` the same with what needs no halo computed while that is on its way,
``halos`` the halos without the layers, one after the other; bytes are those that rank 0 sends in a step, beside the areas of
the rectangles that it owes. Memory is what the process has at its peak
beyond what it had before the first step (``--only``: of the second network it is what it has more than the first).
"""

import argparse
import resource
import statistics
import time
from contextlib import contextmanager, nullcontext
from itertools import pairwise

from compare import one_thread

one_thread()

import numpy as np  # noqa: E402

import mnpar  # noqa: E402
import mnpar.functions as F  # noqa: E402
import mnpar.links as L  # noqa: E402
from mnpar.communicators import operation  # noqa: E402
from mnpar.communicators.transport import Pending, Waiting  # noqa: E402
from mnpar.functions import blockwise, spatial_convolution  # noqa: E402
from mnpar.functions.exchange import Carrier, exchange  # noqa: E402

GRIDS = {1: (1, 1), 2: (2, 1), 4: (2, 2), 6: (3, 2), 8: (4, 2)}


def conv(grid, inside, out):
    return L.SpatialConvolution2D(grid, inside, out, 3, pad=1)


class CNN(mnpar.Chain):
    """Four times convolution and pooling, a mean over the image, one matrix: labels of images."""

    def __init__(self, grid):
        super().__init__()
        self.grid = grid
        self.convs = mnpar.ChainList(*[conv(grid, a, b) for a, b in ((3, 16), (16, 32), (32, 64), (64, 64))])
        self.fc = L.Linear(64, 10)

    def forward(self, x, shape):
        for layer in self.convs:
            x = F.spatial_max_pooling_nd(F.relu(layer(x, shape)), self.grid, shape, 2)
            shape = tuple(n // 2 for n in shape)
        return self.fc(F.spatial_global_average_pooling(x, self.grid, shape))

    def loss(self, x, t, shape):
        return F.softmax_cross_entropy(self(x, shape), t)


class UNet(mnpar.Chain):
    """Three times down and up again, with the finer images beside: a label for each cell."""

    def __init__(self, grid, width=8):
        super().__init__()
        self.grid, c = grid, [width, 2 * width, 4 * width, 8 * width]
        self.down = mnpar.ChainList(*[conv(grid, a, b) for a, b in zip([3, *c], c, strict=False)])
        self.up = mnpar.ChainList(*[L.SpatialDeconvolution2D(grid, b, a, 2, 2) for a, b in pairwise(c)])
        self.join = mnpar.ChainList(*[conv(grid, 2 * a, a) for a in c[:-1]])
        self.last = L.SpatialConvolution2D(grid, width, 2, 1)

    def forward(self, x, shape):
        seen = []
        for i, layer in enumerate(self.down):
            if i:
                x, shape = F.spatial_max_pooling_nd(x, self.grid, shape, 2), tuple(n // 2 for n in shape)
            x = F.relu(layer(x, shape))
            seen.append(x)
        for i in (2, 1, 0):
            x, shape = self.up[i](x, shape), tuple(2 * n for n in shape)
            x = F.relu(self.join[i](F.concat([x, seen[i]]), shape))
        return self.last(x, shape)

    def loss(self, x, t, shape):
        return F.softmax_cross_entropy(self(x, shape), t) * self.grid.share(shape)


MODELS = {"CNN, 128²": (CNN, (128, 128), 16), "U-Net, 512²": (UNet, (512, 512), 1)}


def batch(model, grid, shape, n):
    """A batch on this rank: its blocks of the images, and of the labels if these are images too."""
    rng, box = np.random.default_rng(0), grid.block(shape)
    cells = tuple(slice(a, b) for a, b in zip(box.start, box.stop, strict=True))
    x = rng.standard_normal((n, 3, *shape), np.float32)[(..., *cells)].copy()
    if model is CNN:
        return x, rng.integers(0, 10, n).astype("i4")
    return x, rng.integers(0, 2, (n, *shape)).astype("i4")[(slice(None), *cells)].copy()


def halos_of(model, x, t, shape):
    """What the layers exchange in a step: functions that exchange just that, and the bytes that this rank owes the others."""
    found, owed, rank = [], 0, model.grid.comm.rank

    def plan_of(x, plan, run):
        nonlocal owed
        lead = x.size // max(1, int(np.prod(x.shape[2:]))) * x.dtype.itemsize
        owed += plan.sent(rank) * lead + (plan.adjoint.sent(rank) * lead if x.requires_grad else 0)
        if not plan.idle(rank):
            found.append((x.shape, x.requires_grad, run))

    def halo_of(x, grid, shape, window, mode="constant", fill=0, later=False):
        plan_of(x, grid.halo(shape, window, mode), lambda v: real[0](v, grid, shape, window, mode, fill))
        return real[0](x, grid, shape, window, mode, fill, later)

    def convolution(x, grid, shape, window, W, b, groups, mode, hide):
        plan_of(x, grid.halo(shape, window, mode), lambda v: real[0](v, grid, shape, window, mode))
        return real[1](x, grid, shape, window, W, b, groups, mode, hide)

    def exchanged(comm, x, plan):
        plan_of(x, plan, lambda v: exchange(comm, v, plan))
        return exchange(comm, x, plan)

    real = blockwise.halo_of, spatial_convolution.halo_convolution
    blockwise.halo_of, spatial_convolution.halo_convolution, blockwise.exchange = halo_of, convolution, exchanged
    try:
        model.loss(x, t, shape).backward()
    finally:
        blockwise.halo_of, spatial_convolution.halo_convolution, blockwise.exchange = *real, exchange
    arrays = [mnpar.Variable(np.zeros(size, "f4"), requires_grad=wants) for size, wants, _ in found]

    def halos():
        for v, (_, _, run) in zip(arrays, found, strict=True):
            y = run(v)
            mnpar.backward([y], [mnpar.Variable(y.array)] if y.requires_grad else None) if y.requires_grad else mnpar.backward()

    return halos, owed


@contextmanager
def hidden():
    """Within it, convolutions hide their halos though the ranks are on one host."""
    real = spatial_convolution.halo_convolution
    spatial_convolution.halo_convolution = lambda *args: real(*args[:-1], True)
    try:
        yield
    finally:
        spatial_convolution.halo_convolution = real


@contextmanager
def slow(delay, waited):
    """Within it, what others give comes so many seconds after this rank gave its own, as from another host.

    ``waited`` gets the seconds for which the rank had nothing to do but wait for that, for each halo.
    """
    due, give, take, wait = {}, Carrier._give, Carrier._take, operation.wait

    def _give(self, xs):
        result = give(self, xs)
        due[self.seq, self.order] = time.perf_counter() + delay
        return result

    def _take(self, *args):
        then = due.get((self.seq, self.order), 0)
        waited.setdefault(then, 0)
        yield Pending(lambda: time.perf_counter() >= then, lambda: None, Waiting("a slow link", str(then)))
        yield from take(self, *args)

    def _wait(transport, pending):
        if pending.waiting.what == "a slow link":
            then = float(pending.waiting.site)
            waited[then] += max(0, then - time.perf_counter())
        wait(transport, pending)

    Carrier._give, Carrier._take, operation.wait = _give, _take, _wait
    try:
        yield
    finally:
        Carrier._give, Carrier._take, operation.wait = give, take, wait


def far_away(comm, step, delay, rounds):
    """Which part of a slow link's time is hidden by what is computed meanwhile: as it is, and if convolutions hide halos."""
    seconds = {False: [], True: []}
    for _ in range(rounds):
        for hide, found in seconds.items():
            waited = {}
            comm.barrier()
            with hidden() if hide else nullcontext(), slow(delay, waited):
                step()
            found.append(1 - sum(waited.values()) / (delay * len(waited)))
    return [statistics.median(found) for found in seconds.values()]


def measured(comm, step, halos, rounds):
    """Median seconds of the step, of the same with halos hidden, and of the halos alone."""

    def hiding():
        with hidden():
            step()

    ways = {"step": step, "hiding": hiding, "halos": halos}
    times = {name: [] for name in ways}
    for i in range(rounds + 2):
        for name, function in ways.items():
            comm.barrier()
            begin = time.perf_counter()
            function()
            comm.barrier()
            if i > 1:
                times[name].append(time.perf_counter() - begin)
    return [statistics.median(times[name]) for name in ways]


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # MiB


def run(comm, name, rounds, delay):
    kind, shape, n = MODELS[name]
    grid = mnpar.SpatialGrid(comm, GRIDS[comm.size])
    mnpar.random.seed(0)
    model = kind(grid)
    x, t = batch(kind, grid, shape, n)
    before = peak()

    def step():
        model.cleargrads()
        loss = model.loss(x, t, shape)
        loss.backward()

    step()
    memory = peak() - before
    variable = mnpar.Variable(x, requires_grad=False)
    halos, owed = halos_of(model, variable, t, shape)
    sent = comm.traffic.bytes
    step()
    sent = comm.traffic.bytes - sent
    seconds, hiding, alone = measured(comm, step, halos, rounds)
    memory = max(comm.allgather_obj(memory))
    if comm.rank == 0:
        print(
            f"{name:12} {comm.size} ranks {grid.dims}: step {1e3 * seconds:7.1f} ms, hiding {1e3 * hiding:7.1f} ms, "
            f"halos {1e3 * alone:6.1f} ms "
            f"({alone / seconds:5.1%}), {memory:6.0f} MiB, sent {sent:8d} bytes, owed {owed:8d}",
            flush=True,
        )
    if delay and comm.size > 1:
        waiting, hiding = far_away(comm, step, delay, rounds)
        if comm.rank == 0:
            print(
                f"  on a link of {1e3 * delay:g} ms: {waiting:.0%} of its time is hidden, with ``hide`` {hiding:.0%}",
                flush=True,
            )


def with_torch(name, rounds):
    """The same network in PyTorch, one process and two threads."""
    try:
        import torch
    except ImportError:
        print("PyTorch is not installed: its time is left out (pip install torch)")
        return
    torch.set_num_threads(2)
    nn, f = torch.nn, torch.nn.functional
    kind, shape, n = MODELS[name]
    c = (3, 16, 32, 64, 64) if kind is CNN else (3, 8, 16, 32, 64)
    down = nn.ModuleList([nn.Conv2d(a, b, 3, padding=1) for a, b in pairwise(c)])
    up = nn.ModuleList([nn.ConvTranspose2d(b, a, 2, 2) for a, b in pairwise(c[1:])])
    join, last, fc = nn.ModuleList([nn.Conv2d(2 * a, a, 3, padding=1) for a in c[1:-1]]), nn.Conv2d(8, 2, 1), nn.Linear(64, 10)
    x = torch.randn(n, 3, *shape)
    t = torch.randint(0, 10, (n,)) if kind is CNN else torch.randint(0, 2, (n, *shape))

    def step():
        h, seen = x, []
        for i, layer in enumerate(down):
            if i and kind is UNet:
                h = f.max_pool2d(h, 2)
            h = f.relu(layer(h))
            seen.append(h)
            if kind is CNN:
                h = f.max_pool2d(h, 2)
        if kind is CNN:
            h = fc(h.mean(dim=(2, 3)))
        else:
            for i in (2, 1, 0):
                h = f.relu(join[i](torch.cat([up[i](h), seen[i]], 1)))
            h = last(h)
        f.cross_entropy(h, t).backward()

    before = peak()
    times = []
    for i in range(rounds + 2):
        begin = time.perf_counter()
        step()
        if i > 1:
            times.append(time.perf_counter() - begin)
    print(f"{name:12} PyTorch, two threads: step {1e3 * statistics.median(times):7.1f} ms, {peak() - before:6.0f} MiB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--only", choices=["CNN", "U-Net"], help="one of the two networks")
    parser.add_argument("--delay", type=float, default=0, help="milliseconds of a slow link, to see what of it is hidden")
    args = mnpar.launch.parse_args(parser)
    comm = mnpar.create_communicator()
    for name in MODELS:
        if args.only is None or name.startswith(args.only):
            run(comm, name, args.rounds, args.delay / 1e3)
            if comm.size == 1:
                with_torch(name, args.rounds)
