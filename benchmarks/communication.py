"""What differentiable communication costs over mpi4py's own calls, from 8 bytes to 64 MiB.

    python -m benchmarks.communication --ranks 2 4
        (--most 32768 for small arrays only, --least 1048576 for large ones)

``raw`` is mpi4py's Allreduce, Allgather or Sendrecv, on buffers that are there already;
``function`` is ``mnpar.functions``, which returns new arrays, knows no shape beforehand, and checks
that all ranks mean the same; ``and backward`` adds its gradient. (New arrays cost nothing by
themselves: the memory of those before them is kept. Some 20 µs of a function are its Python, and
three times as many where 2 MiB have just gone through the processor's caches: much beside a copy of
2 MiB, nothing beside one of 64.) ``gloo`` is torch.distributed on tensors that are there already,
where PyTorch is installed; it has no scan. Its jobs are its own: after calls in which ranks sleep,
the system may leave two of them on one core for seconds, where everything takes four times as long.
The other calls are measured up to 4 KiB, at 16 and at 64 MiB. ``--chainermn /path/to/python`` adds
ChainerMN's naive communicator, run by that Python under its own mpiexec.

The jobs run in turn (A B A B …), and within a job the ways do; what is shown are medians. The table
of each number of ranks takes ``--limit`` seconds at most: a job that is slower than that leaves
rows out, and no further jobs are started when it could be exceeded. At its end stand the worst
rows: of what the function costs over raw, and beside gloo and ChainerMN.
"""

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import time

from benchmarks.rows import collect
from benchmarks.timing import gloo_or_none, in_time, sizes

NAMES = ("allreduce", "allgather", "shift")
OTHERS = (
    "bcast",
    "reduce",
    "gather",
    "scatter",
    "alltoall",
    "reduce_scatter",
    "scan",
    "exscan",
    "sendrecv",
)
# bytes: the other calls are measured up to here, and twice more
SMALL, VERY_LARGE = (
    4096,
    (2**24, 2**26),
)
STARTING = 5  # seconds of a job that are no measurement's
LARGE = 2**20  # bytes: from here on it counts what a function costs in percent


def job(of, least, most, limit):
    """The measurements of one rank, of mnpar and raw MPI or of gloo; rank 0 prints a line of JSON
    for each.
    """
    import numpy as np
    from mpi4py import MPI

    import mnpar
    import mnpar.functions as F

    begin = time.perf_counter()
    comm, world = mnpar.create_communicator(), MPI.COMM_WORLD
    right = (comm.rank + 1) % comm.size
    left = (comm.rank - 1) % comm.size
    P = comm.size
    dist = gloo_or_none(comm).distributed if of == "gloo" else None
    functions = {
        "allreduce": lambda v, vs: F.allreduce(comm, v),
        "allgather": lambda v, vs: F.allgather(comm, v),
        "shift": lambda v, vs: F.shift(comm, v),
        "bcast": lambda v, vs: F.bcast(comm, v),
        "reduce": lambda v, vs: F.reduce(comm, v),
        "gather": lambda v, vs: F.gather(comm, v),
        "scatter": lambda v, vs: F.scatter(comm, vs),
        "alltoall": lambda v, vs: F.alltoall(comm, vs),
        "reduce_scatter": lambda v, vs: F.reduce_scatter(comm, vs),
        "scan": lambda v, vs: F.scan(comm, v),
        "exscan": lambda v, vs: F.exscan(comm, v),
        "sendrecv": lambda v, vs: F.sendrecv(v, comm, right, left),
    }

    def ways(name, x):
        if dist:
            theirs = torchs(dist, name, x.size, comm)
            return {"gloo": theirs} if theirs else {}
        out = np.empty(x.size)
        all_in = np.ones(x.size * P)
        all_out = np.empty(x.size * P)
        v = mnpar.Variable(x)
        vs = [mnpar.Variable(x.copy()) for _ in range(P)]
        raw = {
            "allreduce": lambda: world.Allreduce(x, out),
            "allgather": lambda: world.Allgather(x, all_out),
            "shift": lambda: world.Sendrecv(x, right, 0, out, left, 0),
            "sendrecv": lambda: world.Sendrecv(x, right, 0, out, left, 0),
            "bcast": lambda: world.Bcast(x),
            "reduce": lambda: world.Reduce(x, out),
            "gather": lambda: world.Gather(x, all_out),
            "scatter": lambda: world.Scatter(all_in, out),
            "alltoall": lambda: world.Alltoall(all_in, all_out),
            "reduce_scatter": lambda: world.Reduce_scatter_block(all_in, out),
            "scan": lambda: world.Scan(x, out),
            "exscan": lambda: world.Exscan(x, out),
        }[name]

        def function():
            with mnpar.no_backprop_mode():
                functions[name](v, vs)

        def backward():
            ys = functions[name](v, vs)
            ys = [y for y in (ys if isinstance(ys, tuple) else (ys,)) if y.requires_grad]
            for y in ys:
                y.grad = y.array
            mnpar.backward(ys)
            for each in (v, *vs):
                each.cleargrad()

        return {"raw": raw, "function": function, "and backward": backward}

    for name in (*NAMES, *OTHERS):
        for size in sizes(most, least):
            if name not in NAMES and size > SMALL and size not in VERY_LARGE:
                continue
            if world.bcast(time.perf_counter() - begin > limit):
                return
            # of large arrays the first rounds get memory from the system, which the next ones have
            often = {"budget": 0.06} if size < VERY_LARGE[0] else {"budget": 0.5, "rounds": 11}
            all_ways = ways(name, np.ones(size // 8))
            # the ways take turns in each other's holes
            for way in 8 * [*all_ways.values()] if size == VERY_LARGE[1] else ():
                way()
            found = in_time(all_ways, world.bcast, world.Barrier, **often)
            if comm.is_root:
                print(json.dumps([name, size, found]), flush=True)


def torchs(dist, name, length, comm):
    import torch

    there = torch.zeros(length, dtype=torch.float64)
    here = [torch.zeros(length, dtype=torch.float64) for _ in range(comm.size)]
    parts = [torch.zeros(length, dtype=torch.float64) for _ in range(comm.size)]
    of_root = here if comm.is_root else None

    def shift():
        requests = (
            dist.isend(there, (comm.rank + 1) % comm.size),
            dist.irecv(here[0], (comm.rank - 1) % comm.size),
        )
        for request in requests:
            request.wait()

    return {
        "allreduce": lambda: dist.all_reduce(there),
        "allgather": lambda: dist.all_gather(here, there),
        "shift": shift,
        "sendrecv": shift,
        "bcast": lambda: dist.broadcast(there, 0),
        "reduce": lambda: dist.reduce(there, 0),
        "gather": lambda: dist.gather(there, of_root),
        "scatter": lambda: dist.scatter(there, of_root),
        "alltoall": lambda: dist.all_to_all(here, parts),
        "reduce_scatter": lambda: dist.reduce_scatter(there, parts),
    }.get(name)


def measured(ranks, least, most, chainermn, rounds, limit):
    """All jobs in turn, within so many seconds: (name, size) -> way -> median seconds."""
    from mnpar.runtime.mpiexec import mpiexec_command

    begin = time.perf_counter()
    parts = ["mnpar", "gloo"] if importlib.util.find_spec("torch") else ["mnpar"]
    jobs = [
        (
            sys.executable,
            [
                "-m",
                "benchmarks.communication",
                "--job",
                of,
                "--least",
                str(least),
                "--most",
                str(most),
                "--limit",
            ],
        )
        for of in parts
    ]
    if chainermn:
        jobs.append(
            (chainermn, ["-m", "benchmarks.chainermn_communication", str(least), str(most)])
        )
    found = {}
    for number in range(1, rounds + 1):
        for turn, (python, program) in enumerate(jobs):
            share = (limit - (time.perf_counter() - begin)) / (len(jobs) - turn)
            command, environment = mpiexec_command(ranks, python)
            command += [python, *program, f"{share - STARTING:.0f}"]
            lines = subprocess.run(
                command, env=environment, stdout=subprocess.PIPE, text=True, check=True
            )
            for name, size, times in map(json.loads, lines.stdout.splitlines()):
                for way, seconds in times.items():
                    found.setdefault((name, size), {}).setdefault(way, []).append(seconds)
        if (number + 1) / number * (time.perf_counter() - begin) > limit:
            break
    medians = {
        key: {way: statistics.median(times) for way, times in ways.items()}
        for key, ways in found.items()
    }
    return {key: ways for key, ways in medians.items() if "function" in ways}


def show(ranks, found):
    print(f"{ranks} ranks; µs")
    for (name, size), times in found.items():
        both = {"mnpar": times["function"], "raw": times["raw"]}
        others = {who: s for who, s in times.items() if who in ("gloo", "chainermn")}
        collect(f"{name}, {size} bytes, {ranks} ranks", {**both, **others})
        us = {way: 1e6 * s for way, s in times.items()}
        over = us["function"] - us["raw"]
        text = "   ".join(f"{way} {value:9.1f}" for way, value in us.items())
        print(
            f"{name:14} {size:9d} bytes   {text}   function over raw: {over:+8.1f} "
            f"({100 * over / us['raw']:+.0f} %)",
            flush=True,
        )
    summarize(ranks, found)


def summarize(ranks, found):
    """The rows that are furthest from what is wanted."""

    def worst(what, value, rows, unit, digits=1):
        if rows:
            rows = sorted(rows, key=value)
            name, size = row = rows[-1]
            low, high = [f"{value(each):.{digits}f}{unit}" for each in (rows[len(rows) // 2], row)]
            print(f"{ranks} ranks, {what}: median {low}, worst {high} ({name}, {size} bytes)")

    for limit in (512, SMALL):
        small = [row for row in found if row[1] <= limit]
        worst(
            f"over raw, up to {limit} bytes",
            lambda row: 1e6 * (found[row]["function"] - found[row]["raw"]),
            small,
            " µs",
        )
    large = [row for row in found if row[1] >= LARGE]
    worst(
        "over raw, from 1 MiB",
        lambda row: 100 * (found[row]["function"] / found[row]["raw"] - 1),
        large,
        " %",
    )
    for other in ("gloo", "chainermn"):
        rows = [row for row in found if other in found[row]]
        worst(
            f"of the time of {other}",
            lambda row, way=other: found[row]["function"] / found[row][way],
            rows,
            "",
            2,
        )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--ranks", type=int, nargs="+", default=[2], help="of the jobs, one after the other"
    )
    parser.add_argument("--least", type=int, default=0, help="bytes of the smallest array")
    parser.add_argument(
        "--most", type=int, default=2**26, help="bytes of the largest array (64 MiB)"
    )
    parser.add_argument(
        "--chainermn", help="the Python of an environment with ChainerMN and mpi4py"
    )
    parser.add_argument("--rounds", type=int, default=3, help="jobs of each kind, at most")
    parser.add_argument("--limit", type=float, default=140, help="seconds for each number of ranks")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.job:
        job(args.job, args.least, args.most, args.limit)
    else:
        begin = time.perf_counter()
        for ranks in args.ranks:
            show(
                ranks,
                measured(ranks, args.least, args.most, args.chainermn, args.rounds, args.limit),
            )
        print(f"{time.perf_counter() - begin:.0f} s in all")


if __name__ == "__main__":
    main()
