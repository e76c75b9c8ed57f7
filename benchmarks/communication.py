"""What differentiable communication costs over mpi4py's own calls, from 8 bytes to 64 MiB.

mpiexec -n 2 python benchmarks/communication.py          (--most 1048576 for small ones only)

``raw`` is mpi4py's Allreduce, or Sendrecv, on buffers that are there already; ``function`` is ``mnpar.functions``, which
returns a new array, knows no shape beforehand, and checks that all ranks mean the same; ``and backward`` adds its gradient.
"""

import argparse

import numpy as np
from compare import in_turn
from mpi4py import MPI

import mnpar
import mnpar.functions as F

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--most", type=int, default=2**26, help="bytes of the largest array (64 MiB)")
args = mnpar.launch.parse_args(parser)
comm, world = mnpar.create_communicator(), MPI.COMM_WORLD
right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size


def allreduce(x, out, v):
    def function():
        with mnpar.no_backprop_mode():
            F.allreduce(comm, v)

    def backward():
        y = F.allreduce(comm, v)
        y.grad = x
        y.backward()
        v.cleargrad()

    return {"raw": lambda: world.Allreduce(x, out), "function": function, "and backward": backward}


def shift(x, out, v):
    def function():
        with mnpar.no_backprop_mode():
            F.shift(comm, v)

    def backward():
        y = F.shift(comm, v)
        y.grad = x
        y.backward()
        v.cleargrad()

    return {"raw": lambda: world.Sendrecv(x, right, 0, out, left, 0), "function": function, "and backward": backward}


if comm.is_root:
    print(f"{comm.size} ranks; µs: medians, in turn")
for name, make in (("allreduce", allreduce), ("shift", shift)):
    size = 8
    while size <= args.most:
        x = np.ones(size // 8)
        times = max(3, min(1000, 2**22 // size))
        found = in_turn(make(x, np.empty_like(x), mnpar.Variable(x)), times, rounds=7, before=world.Barrier)
        if comm.is_root:
            us = {way: 1e6 * s for way, s in found.items()}
            over = us["function"] - us["raw"]
            text = "   ".join(f"{way} {value:9.1f}" for way, value in us.items())
            print(
                f"{name:10} {size:9d} bytes   {text}   function over raw: {over:+8.1f} ({100 * over / us['raw']:+.0f} %)",
                flush=True,
            )
        size *= 8
