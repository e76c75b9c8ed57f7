"""What differentiable communication costs over mpi4py's own calls, from 8 bytes to 64 MiB.

mpiexec -n 2 python benchmarks/communication.py          (--most 1048576 for small ones only)

``raw`` is mpi4py's Allreduce, or Sendrecv, on buffers that are there already; ``function`` is ``mnpar.functions``, which
returns a new array, knows no shape beforehand, and checks that all ranks mean the same; ``and backward`` adds its gradient.
``gloo`` is torch.distributed's all_reduce, or isend and irecv, on tensors that are there already, where PyTorch is installed.
"""

import argparse
import tempfile

import numpy as np
from compare import in_turn
from mpi4py import MPI

import mnpar
import mnpar.functions as F

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--most", type=int, default=2**26, help="bytes of the largest array (64 MiB)")
args = mnpar.launch.parse_args(parser)
comm, world = mnpar.create_communicator(), MPI.COMM_WORLD
try:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    folder = comm.bcast_obj(tempfile.mkdtemp() if comm.is_root else None)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=comm.rank, world_size=comm.size)
except ImportError:
    dist = None
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

    ways = {"raw": lambda: world.Allreduce(x, out), "function": function, "and backward": backward}
    if dist:
        tensor = torch.zeros(len(x), dtype=torch.float64)
        ways["gloo"] = lambda: dist.all_reduce(tensor)
    return ways


def shift(x, out, v):
    def function():
        with mnpar.no_backprop_mode():
            F.shift(comm, v)

    def backward():
        y = F.shift(comm, v)
        y.grad = x
        y.backward()
        v.cleargrad()

    ways = {"raw": lambda: world.Sendrecv(x, right, 0, out, left, 0), "function": function, "and backward": backward}
    if dist:
        there, here = torch.zeros(len(x), dtype=torch.float64), torch.zeros(len(x), dtype=torch.float64)

        def gloo():
            requests = dist.isend(there, right), dist.irecv(here, left)
            for request in requests:
                request.wait()

        ways["gloo"] = gloo
    return ways


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
