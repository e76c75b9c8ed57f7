"""A CNN on images of 128² and a U-Net on 512², cut into blocks: time and memory for each rank, and
what the halos cost.

    python -m benchmarks.spatial
        the table: 1, 2 and 4 ranks, and PyTorch in one process
    mpiexec -n 2 python -m benchmarks.spatial                     one row for each network
    benchmarks/two_hosts.sh python -m benchmarks.spatial
        the same on two "hosts", and how much of the halos is hidden

``step`` is forward and backward of one batch, ``hiding`` the same with what needs no halo computed
while that is on its way (which is the default on several hosts), ``halos`` the halos without the
layers, one after the other; bytes are those that the ranks send in a step, beside the areas of the
rectangles that they owe. Memory is the largest that a rank has at its peak beyond what it had
before the first step; for the table each network has processes of its own. Hidden is what a step
waits less for its halos than it would wait for them alone. Each rank has one BLAS thread, PyTorch
two.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager, nullcontext
from itertools import pairwise

from benchmarks.rows import collect
from benchmarks.timing import one_thread

if "torch" not in sys.argv:
    one_thread()

import numpy as np

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar.communicators import operation
from mnpar.communicators.waiting import Pending, Waiting
from mnpar.functions.communication.exchange import Carrier, Exchange, Give, exchange

GRIDS = {1: (1, 1), 2: (2, 1), 4: (2, 2), 6: (3, 2), 8: (4, 2)}


def conv(inside, out):
    return L.Convolution2D(inside, out, 3, pad=1)


class CNN(mnpar.Chain):
    """Four times convolution and pooling, a mean over the image, one matrix: labels of images."""

    def __init__(self):
        super().__init__()
        self.convs = mnpar.ChainList(
            *[conv(a, b) for a, b in ((3, 16), (16, 32), (32, 64), (64, 64))]
        )
        self.fc = L.Linear(64, 10)

    def forward(self, x):
        for layer in self.convs:
            x = F.max_pooling_2d(F.relu(layer(x)), 2)
        return self.fc(F.mean(x, axis=(2, 3)))


class UNet(mnpar.Chain):
    """Three times down and up again, with the finer images beside: a label for each cell."""

    def __init__(self, width=8):
        super().__init__()
        c = [width, 2 * width, 4 * width, 8 * width]
        self.down = mnpar.ChainList(*[conv(a, b) for a, b in zip([3, *c], c, strict=False)])
        self.up = mnpar.ChainList(*[L.Deconvolution2D(b, a, 2, 2) for a, b in pairwise(c)])
        self.join = mnpar.ChainList(*[conv(2 * a, a) for a in c[:-1]])
        self.last = L.Convolution2D(width, 2, 1)

    def forward(self, x):
        seen = []
        for i, layer in enumerate(self.down):
            x = F.relu(layer(F.max_pooling_2d(x, 2) if i else x))
            seen.append(x)
        for i in (2, 1, 0):
            x = F.relu(self.join[i](F.concat([self.up[i](x), seen[i]])))
        return self.last(x)


MODELS = {"CNN, 128²": (CNN, (128, 128), 16), "U-Net, 512²": (UNet, (512, 512), 1)}


def batch(model, grid, shape, n):
    """A batch: divided images, and labels that are divided if they are images too."""
    rng = np.random.default_rng(0)
    cut = lambda whole: mnpar.divided(
        whole[(..., *grid.block(shape).index)].copy(), grid, shape=whole.shape
    )
    x = cut(rng.standard_normal((n, 3, *shape), np.float32))
    if model is CNN:
        return x, rng.integers(0, 10, n).astype("i4")
    return x, cut(rng.integers(0, 2, (n, *shape)).astype("i4"))


class Exchanges(mnpar.FunctionHook):
    """Within it, ``found`` gets the shape and the plan of all that is exchanged forward, and
    whether a gradient comes back.
    """

    name = "exchanges"

    def __init__(self):
        self.found = []

    def forward_preprocess(self, function, in_data):
        if isinstance(function, Exchange | Give):
            self.found += [(x.shape, function.plan, function.differentiable) for x in in_data]


def halos_of(comm, forward):
    """What the layers exchange in a step: a function that exchanges just that, and the bytes that
    this rank owes the others.
    """
    exchanges = Exchanges()
    with exchanges:
        loss = forward()
    loss.backward()
    owed, arrays = 0, []
    for size, plan, wanted in exchanges.found:
        v = mnpar.Variable(np.zeros(size, "f4"), requires_grad=wanted)
        cells = plan.sent(comm.rank) + (plan.adjoint.sent(comm.rank) if wanted else 0)
        owed += cells * v.array.itemsize * int(np.prod(size[:2]))  # of samples and channels
        if not plan.idle(comm.rank):
            arrays.append((v, plan))

    def halos():
        for v, plan in arrays:
            y = exchange(comm, v, plan)
            mnpar.backward([y], [mnpar.Variable(y.array)]) if y.requires_grad else mnpar.backward()

    return halos, owed


@contextmanager
def hidden(grid):
    """Within it, layers hide their halos though the ranks are on one host."""
    grid.hide = True
    try:
        yield
    finally:
        grid.hide = None


@contextmanager
def slow(delay, waited):
    """Within it, what others give comes so many seconds after this rank gave its own, as from
    another host.

    ``waited`` gets the seconds for which the rank had nothing to do but wait for that, for each
    halo.
    """
    due = {}
    give = Carrier._give
    take = Carrier._take
    wait = operation.wait

    def _give(self, xs):
        result = give(self, xs)
        due[self.seq, self.order] = time.perf_counter() + delay
        return result

    def _take(self, *args):
        then = due.get((self.seq, self.order), 0)
        waited.setdefault(then, 0)
        yield Pending(
            lambda: time.perf_counter() >= then, lambda: None, Waiting("a slow link", str(then))
        )
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


def far_away(grid, step, delay, rounds):
    """Which part of a slow link's time is hidden by what is computed meanwhile: as it is, and if
    convolutions hide halos.
    """
    seconds = {False: [], True: []}
    for _ in range(rounds):
        for hide, found in seconds.items():
            waited = {}
            grid.comm.barrier()
            with hidden(grid) if hide else nullcontext(), slow(delay, waited):
                step()
            found.append(1 - sum(waited.values()) / (delay * len(waited)))
    return [statistics.median(found) for found in seconds.values()]


def measured(grid, step, halos, rounds):
    """Median seconds of the step, of the same with halos hidden, and of the halos alone."""

    def hiding():
        with hidden(grid):
            step()

    ways = {"step": step, "hiding": hiding, "halos": halos}
    times = {name: [] for name in ways}
    for i in range(rounds + 2):
        for name, function in ways.items():
            grid.comm.barrier()
            begin = time.perf_counter()
            function()
            grid.comm.barrier()
            if i > 1:
                times[name].append(time.perf_counter() - begin)
    return [statistics.median(times[name]) for name in ways]


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # MiB


@contextmanager
def waiting(waited):
    """Within it, ``waited`` gets the seconds for which this rank waits for what others give."""
    take = Carrier._take

    def _take(self, *args):
        steps, value = take(self, *args), None
        try:
            while True:
                pending = steps.send(value)
                begin = time.perf_counter()
                value = yield pending
                waited.append(time.perf_counter() - begin)
        except StopIteration:
            return

    Carrier._take = _take
    try:
        yield
    finally:
        Carrier._take = take


def hidden_part(grid, step, halos, rounds):
    """Which part of the waiting for halos is hidden, as it comes and with ``hide``: the mean over
    ranks.
    """

    def hiding():
        with hidden(grid):
            step()

    comm = grid.comm
    waits = {function: [] for function in (halos, step, hiding)}
    for _ in range(rounds):
        for function, found in waits.items():
            waited = []
            comm.barrier()
            with waiting(waited):
                function()
            found.append(sum(waited))
    alone, mine, hid = [
        float(comm.allreduce(np.array(float(statistics.median(found))))) for found in waits.values()
    ]
    return alone / comm.size, 1 - mine / alone, 1 - hid / alone


def row(comm, name, rounds, delay):
    """What is measured of one network, on rank 0."""
    kind, shape, n = MODELS[name]
    grid = mnpar.SpatialGrid(comm, GRIDS[comm.size])
    mnpar.random.seed(0)
    model = kind()
    x, t = batch(kind, grid, shape, n)
    before = peak()

    def forward():
        return F.softmax_cross_entropy(model(x), t)

    def step():
        model.cleargrads()
        forward().backward()

    step()
    found = {
        "ranks": comm.size,
        "grid": grid.dims,
        "memory": max(comm.allgather_obj(peak() - before)),
    }
    halos, owed = halos_of(comm, forward)
    sent = comm.traffic.bytes
    step()
    sent = comm.traffic.bytes - sent
    found["sent"], found["owed"] = map(sum, zip(*comm.allgather_obj((sent, owed)), strict=True))
    found["step"], found["hiding"], found["halos"] = measured(grid, step, halos, rounds)
    if comm.inter_size > 1:
        found["hidden"] = hidden_part(grid, step, halos, rounds)
    if delay and comm.size > 1:
        found["slow"] = far_away(grid, step, delay, rounds)
    return found


def told(name, found, delay=0):
    """One network's row in words."""
    step, hiding, halos = [1e3 * found[way] for way in ("step", "hiding", "halos")]
    yield (
        f"{name:12} {found['ranks']} ranks {tuple(found['grid'])}: step {step:7.1f} ms, hiding "
        f"{hiding:7.1f} ms, halos "
        f"{halos:6.1f} ms ({halos / step:5.1%}), {found['memory']:6.0f} MiB, sent "
        f"{found['sent']} bytes, owed {found['owed']}"
    )
    if "hidden" in found:
        alone, part, hiding = found["hidden"]
        yield (
            f"  waiting for halos alone takes {1e3 * alone:.1f} ms; {part:.0%} of it is hidden, "
            f"{hiding:.0%} with ``hide``"
        )
    if "slow" in found:
        part, hiding = found["slow"]
        yield (
            f"  on a link of {1e3 * delay:g} ms: {part:.0%} of its time is hidden, with ``hide`` "
            f"{hiding:.0%}"
        )


def table(names, rounds):
    """Each network on 1, 2 and 4 ranks and in PyTorch, each in processes of its own."""
    for name in names:
        rows = [elsewhere(ranks, name, rounds) for ranks in (1, 2, 4)]
        one = rows[0]["step"]
        torch = elsewhere(0, name, rounds)
        for r in rows:
            ways = {"mnpar": r["step"], "one rank": one}
            ways |= {"torch": torch["step"]} if torch else {}
            collect(f"{name}, {r['ranks']} ranks", ways)
        print(f"{name}, batch {MODELS[name][2]}")
        print(
            "  ranks  grid     step ms   1 rank / it   MiB a rank   halos ms   of the step   "
            "bytes sent   owed"
        )
        for r in rows:
            print(
                f"  {r['ranks']:5}  {'x'.join(map(str, r['grid'])):6} {1e3 * r['step']:9.1f} "
                f"{one / r['step']:13.2f} "
                f"{r['memory']:12.0f} {1e3 * r['halos']:10.1f} {r['halos'] / r['step']:13.1%} "
                f"{r['sent']:12} {r['owed']:6}"
            )
        if torch:
            ratios = ", ".join([f"{r['step'] / torch['step']:.2f}" for r in rows])
            print(
                f"  PyTorch, one process, two threads: {1e3 * torch['step']:.1f} ms, "
                f"{torch['memory']:.0f} MiB; ",
                end="",
            )
            print(f"the rows take {ratios} of its time", flush=True)
        else:
            print(
                "  PyTorch is not installed: its time is left out (pip install torch)", flush=True
            )


def elsewhere(ranks, name, rounds):
    """What another job of this script finds: of so many ranks, or of PyTorch."""
    command, environment = mnpar.runtime.mpiexec.mpiexec_command(max(ranks, 1))
    one = [
        sys.executable,
        "-m",
        "benchmarks.spatial",
        "--only",
        name.split(",")[0],
        "--rounds",
        str(rounds),
        "--json",
        "mnpar" if ranks else "torch",
    ]
    done = subprocess.run(
        [*command, *one], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(done.stdout)


def with_torch(name, rounds):
    """The same network in PyTorch, one process and two threads; None where that is not
    installed.
    """
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(2)
    nn, f = torch.nn, torch.nn.functional
    kind, shape, n = MODELS[name]
    c = (3, 16, 32, 64, 64) if kind is CNN else (3, 8, 16, 32, 64)
    down = nn.ModuleList([nn.Conv2d(a, b, 3, padding=1) for a, b in pairwise(c)])
    up = nn.ModuleList([nn.ConvTranspose2d(b, a, 2, 2) for a, b in pairwise(c[1:])])
    join = nn.ModuleList([nn.Conv2d(2 * a, a, 3, padding=1) for a in c[1:-1]])
    last = nn.Conv2d(8, 2, 1)
    fc = nn.Linear(64, 10)
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

    before, times = peak(), []
    for i in range(rounds + 2):
        begin = time.perf_counter()
        step()
        if i > 1:
            times.append(time.perf_counter() - begin)
    return {"step": statistics.median(times), "memory": peak() - before}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--only", choices=["CNN", "U-Net"], help="one of the two networks")
    parser.add_argument(
        "--delay",
        type=float,
        default=0,
        help="milliseconds of a slow link, to see what of it is hidden",
    )
    parser.add_argument("--json", choices=["mnpar", "torch"], help=argparse.SUPPRESS)
    args = mnpar.launch.parse_args(parser)
    names = [name for name in MODELS if args.only is None or name.startswith(args.only)]
    if mnpar.launch.launched_ranks() <= 1 and not args.json:
        table(names, args.rounds)
    elif args.json == "torch":
        print(json.dumps(with_torch(names[0], args.rounds)))
    else:
        comm = mnpar.create_communicator()
        for name in names:
            found = row(comm, name, args.rounds, args.delay / 1e3)
            if comm.rank == 0:
                print(
                    json.dumps(found)
                    if args.json
                    else "\n".join(told(name, found, args.delay / 1e3)),
                    flush=True,
                )


if __name__ == "__main__":
    main()
