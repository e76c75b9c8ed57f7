"""A training step of an MLP and of a transformer block, divided among ranks, beside
torch.distributed.tensor over gloo.

    python -m benchmarks.tensor_parallel --ranks 1 2 4 [--jobs 3] [--rounds 5] [--times 5]
        [--networks mlp] [--torch PYTHON]

Forward, backward and SGD in float32, one BLAS thread for each rank. ``cut`` also divides the
sequence between the layers (Megatron-LM's sequence parallelism). PyTorch runs the same network by
parallelize_module with its Colwise-, Rowwise- and SequenceParallel. Each toolkit has jobs of its
own, in turn (mnpar, PyTorch, mnpar …): a process gets memory in one way, and mnpar's (kept, in
large pages) helps PyTorch, too. A time is the slowest rank's, the median of the rounds of all jobs.
On one rank there is also PyTorch without torch.distributed.tensor (``torch plain``). The products
of matrices are most of a step: PyTorch's are MKL's, and numpy's OpenBLAS's, which takes longer,
unless MKL is installed (the extra ``mkl``).

``sent`` are the bytes that mnpar's ranks send in a step, all together, over what has to be sent: 2
(P - 1) n for each sum of n bytes. ``memory`` is how much a rank of a job of its own grows from
before the network to the peak of its steps, as the system counts it. ``arrays`` is what numpy's
arrays take at that peak in mnpar (tracemalloc), over a formula: parameters and their gradients, and
activations, each the whole ones and 1/P of the divided ones (``formula`` lists them).
"""

import argparse
import json
import statistics
import subprocess
import sys
import tracemalloc

from benchmarks.rows import collect
from benchmarks.timing import forget_peak, gloo_or_none, in_turn, one_thread, resident

one_thread()
import numpy as np  # noqa: E402

import mnpar  # noqa: E402
import mnpar.functions as F  # noqa: E402
import mnpar.links as L  # noqa: E402
from mnpar.link_hooks import WholeGradients  # noqa: E402

N = 4
T = 128
D = 512
HEADS = 8
WIDTH = D // HEADS
SIZES = f"{N} sequences of {T}, {D} features, {HEADS} heads, {4 * D} hidden"
NAMES = ("mlp", "block")
TOOLKITS = ("mnpar", "torch")


class MLP(mnpar.Chain):
    def __init__(self, comm, axis):
        super().__init__()
        self.up = L.ColumnParallelLinear(comm, D, 4 * D, gather_output=False, sequence_axis=axis)
        self.down = L.RowParallelLinear(comm, 4 * D, D, input_is_parallel=True, sequence_axis=axis)

    def forward(self, x):
        return self.down(F.gelu(self.up(x, n_batch_axes=2)), n_batch_axes=2)


class Block(mnpar.Chain):
    """x + attention(norm(x)), then x + mlp(norm(x)); each rank has some of the heads."""

    def __init__(self, comm, axis):
        super().__init__()
        self.qkv = L.ColumnParallelLinear(comm, D, 3 * D, gather_output=False, sequence_axis=axis)
        self.out = L.RowParallelLinear(comm, D, D, input_is_parallel=True, sequence_axis=axis)
        self.mlp = MLP(comm, axis)
        self.before = L.LayerNormalization(D)
        self.after = L.LayerNormalization(D)
        if axis is not None:
            for norm in (self.before, self.after):
                norm.add_hook(WholeGradients(comm))

    def forward(self, x):
        qkv = self.qkv(self.before(x), n_batch_axes=2)
        # each (N, heads, T, width)
        q, k, v = F.separate(qkv.reshape(N, T, -1, 3, WIDTH).transpose(3, 0, 2, 1, 4))
        h = F.scaled_dot_product_attention(q, k, v, causal=True).transpose(0, 2, 1, 3)
        x = x + self.out(h.reshape(N, T, -1), n_batch_axes=2)
        return x + self.mlp(self.after(x))


def part(comm, cut):
    """What a rank gets of the input."""
    x = np.random.default_rng(0).standard_normal((N, T, D)).astype("f4")
    return x[:, slice(*mnpar.plans.block(T, comm.size, comm.rank))].copy() if cut else x


def ours(comm, name, cut):
    mnpar.random.seed(0)
    model = {"mlp": MLP, "block": Block}[name](comm, 1 if cut else None)
    x = mnpar.Variable(part(comm, cut))
    optimizer = mnpar.optimizers.SGD(lr=1e-4).setup(model)

    def step():
        x.cleargrad()
        optimizer.update(lambda: F.sum(F.square(model(x))) / x.size)

    return step


def theirs(torch, comm, name, cut, plain=False):
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, parallel as tp

    class TorchMLP(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.Linear(D, 4 * D)
            self.down = nn.Linear(4 * D, D)

        def forward(self, x):
            return self.down(nn.functional.gelu(self.up(x)))

    class TorchBlock(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(D, 3 * D)
            self.out = nn.Linear(D, D)
            self.mlp = TorchMLP()
            self.before = nn.LayerNorm(D)
            self.after = nn.LayerNorm(D)

        def forward(self, x):
            q, k, v = self.qkv(self.before(x)).view(N, T, -1, 3, WIDTH).permute(3, 0, 2, 1, 4)
            h = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(h.transpose(1, 2).reshape(N, T, -1))
            return x + self.mlp(self.after(x))

    torch.manual_seed(0)
    model = {"mlp": TorchMLP, "block": TorchBlock}[name]()
    outside = Shard(1) if cut else Replicate()
    columns = tp.ColwiseParallel(input_layouts=outside)
    rows = tp.RowwiseParallel(output_layouts=outside)
    before = "" if name == "mlp" else "mlp."
    plan = {f"{before}up": columns, f"{before}down": rows}
    if name == "block":
        plan |= {"qkv": columns, "out": rows}
        if cut:
            plan |= {
                "before": tp.SequenceParallel(use_local_output=True),
                "after": tp.SequenceParallel(use_local_output=True),
            }
    if not plain:
        tp.parallelize_module(model, init_device_mesh("cpu", (comm.size,)), plan)
    x = torch.from_numpy(part(comm, cut)).requires_grad_()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def step():
        optimizer.zero_grad()
        x.grad = None
        model(x).square().mean().backward()
        optimizer.step()

    return step


def torch_over_gloo(comm):
    """PyTorch, set up; None where it is not installed."""
    torch = gloo_or_none(comm)
    if torch is None:
        return None
    from torch.distributed.tensor import parallel  # noqa: F401

    torch.distributed.all_reduce(
        torch.nn.functional.linear(torch.ones(8, 8), torch.ones(8, 8, requires_grad=True)).detach()
    )
    return torch


def minimum(name, ranks):
    """Bytes that all ranks have to send in a step: a sum of the activations for each pair of
    layers, forward and backward.
    """
    return 2 * (ranks - 1) * 4 * N * T * D * (1 if name == "mlp" else 2) * 2


def formula(name, ranks, cut):
    """Bytes of arrays in a rank at the peak, which is where the gradient passes the MLP's gelu."""
    whole, divided = D, 8 * D * D + 4 * D  # parameters of the MLP
    # of each place: what enters column layers, and what else lies between the pairs: outputs
    entering, passing = (
        D,
        D,
    )
    inside = (
        5 * 4 * D
        # hidden features before and after gelu, its slope (found in backward where MKL is), two
        # gradients
    )
    if name == "block":
        whole = whole + 5 * D
        divided = divided + 4 * D * D + 3 * D
        # normalized; inputs, outputs
        entering = 2 * D
        passing = 4 * D
        inside += 5 * D + T * HEADS  # q, q / √width, k, v, what the heads found; their attention
    if cut:  # what enters is gathered, and kept so; of the rest each rank has its part
        # (x is kept as well as gathered)
        whole_of_place, inside = (
            entering,
            inside + passing + (D if name == "mlp" else 0),
        )
    else:
        whole_of_place = entering + passing
    under_way = D if ranks > 1 else 0  # a sum over ranks
    return 4 * (
        2 * (whole + divided / ranks) + N * T * (whole_of_place + under_way + inside / ranks)
    )


def timing(comm, args):
    """Times of one toolkit's ways, each round the slowest rank's, and the bytes that mnpar's ranks
    sent.
    """
    torch = torch_over_gloo(comm) if args.toolkit == "torch" else None
    if args.toolkit == "torch" and torch is None:
        return
    for name in args.networks:
        ways, sent = {}, {}
        for cut in (False, True):
            way = f"{args.toolkit} cut" if cut else args.toolkit
            if torch:
                ways[way] = theirs(torch, comm, name, cut)
                continue
            own = comm.split(0, comm.rank)  # a communicator of its own counts this way's bytes
            ways[way] = step = ours(own, name, cut)
            step()
            before = own.traffic.collective_bytes
            step()
            sent[way] = int(comm.allreduce(np.array(own.traffic.collective_bytes - before)))
        if torch and comm.size == 1:
            ways["torch plain"] = theirs(torch, comm, name, False, plain=True)
        slowest = lambda values: comm.allreduce(np.array(values), op="max").tolist()
        found = in_turn(ways, args.times, args.rounds, comm.barrier, pick=slowest)
        if comm.is_root:
            print(json.dumps([name, found, sent]), flush=True)
    if torch:
        torch.distributed.destroy_process_group()


def memory(comm, args):
    """How much one way of one network takes at its peak, on the rank where it is the most."""
    (name,), way = args.networks, args.way
    torch = torch_over_gloo(comm) if way.startswith("torch") else None
    comm.allreduce(np.ones(2**16))  # what the first use of MPI takes
    start = forget_peak()
    if args.arrays:
        tracemalloc.start()
    step = (
        theirs(torch, comm, name, "cut" in way, "plain" in way)
        if torch
        else ours(comm, name, "cut" in way)
    )
    for _ in range(4):
        step()
        if args.arrays:
            tracemalloc.reset_peak()
    step()
    peak = tracemalloc.get_traced_memory()[1] if args.arrays else resident("VmHWM") - start
    peak = float(comm.allreduce(np.array(float(peak)), op="max"))
    if comm.is_root:
        print(json.dumps(peak), flush=True)
    if torch:
        torch.distributed.destroy_process_group()


def started(ranks, args, toolkit, *flags):
    """What a job of so many ranks prints, line by line."""
    from mnpar.runtime.mpiexec import mpiexec_command

    command, environment = mpiexec_command(ranks, args.torch)
    if toolkit == "torch":  # has memory in its own way
        environment = {**environment, "MNPAR_KEEP_MEMORY": "0"}
    flags = ["--toolkit", toolkit, *flags]
    program = [
        "-m",
        "benchmarks.tensor_parallel",
        "--job",
        "--rounds",
        str(args.rounds),
        "--times",
        str(args.times),
        *flags,
    ]
    done = subprocess.run(
        [*command, args.torch, *program],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:  # (otherwise there are only warnings)
        raise SystemExit(done.stdout + done.stderr)
    return [
        json.loads(line)
        for line in done.stdout.splitlines()
        if line[:1] == "[" or line[:1].isdigit()
    ]


def measured(ranks, args):
    """The median seconds of each network's ways, and the bytes that mnpar's ranks sent, by jobs in
    turn.
    """
    found = {name: ({}, {}) for name in args.networks}
    for _ in range(args.jobs):
        for toolkit in TOOLKITS:
            for name, times, sent in started(ranks, args, toolkit, "--networks", *args.networks):
                for way, seconds in times.items():
                    found[name][0].setdefault(way, []).extend(seconds)
                found[name][1].update(sent)
    return {
        name: ({way: statistics.median(all_) for way, all_ in times.items()}, sent)
        for name, (times, sent) in found.items()
    }


def show(ranks, args):
    print(f"{ranks} ranks; {SIZES}", flush=True)
    for name, (found, sent) in measured(ranks, args).items():
        for cut in ("", " cut"):
            ways = {toolkit: found.get(toolkit + cut) for toolkit in TOOLKITS}
            collect(f"{name}{cut}, {ranks} ranks", ways)
        for way, seconds in found.items():
            toolkit = way.split()[0]
            flags = ["--networks", name, "--way", way]
            (taken,) = started(ranks, args, toolkit, *flags)
            text = f"  {name:6} {way:11} {1e3 * seconds:8.1f} ms"
            if way in sent:
                theirs = way.replace("mnpar", "torch")
                text += f" = {seconds / found[theirs]:.2f} of torch's" if theirs in found else ""
                text += (
                    f" ({seconds / found['torch plain']:.2f} of plain torch's)"
                    if "torch plain" in found
                    else ""
                )
                least, (arrays,) = (
                    minimum(name, ranks),
                    started(ranks, args, toolkit, *flags, "--arrays"),
                )
                text += f"   sent {sent[way] / 1e6:6.2f} MB" + (
                    f" = {sent[way] / least:.3f} of the minimum" if least else ""
                )
                share = arrays / formula(name, ranks, "cut" in way)
                text += f"   arrays {arrays / 1e6:6.1f} MB = {share:.3f} of the formula"
            print(f"{text}   memory {taken / 1e6:6.1f} MB", flush=True)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--ranks", type=int, nargs="+", default=[1, 2, 4], help="of the jobs, one after the other"
    )
    parser.add_argument("--jobs", type=int, default=3, help="of each toolkit")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each way in a job")
    parser.add_argument("--times", type=int, default=5, help="steps in a measurement")
    parser.add_argument("--networks", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument(
        "--torch",
        default=sys.executable,
        metavar="PYTHON",
        help="a Python that has PyTorch, numpy and mpi4py",
    )
    parser.add_argument("--job", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--toolkit", choices=TOOLKITS, help=argparse.SUPPRESS)
    parser.add_argument("--way", help=argparse.SUPPRESS)
    parser.add_argument("--arrays", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not args.job:
        for ranks in args.ranks:
            show(ranks, args)
        return
    comm = mnpar.create_communicator()
    (memory if args.way else timing)(comm, args)


if __name__ == "__main__":
    main()
