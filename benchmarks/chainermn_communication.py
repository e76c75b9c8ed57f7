"""The measurements of benchmarks.communication with ChainerMN's naive communicator; started by
it with another Python.

    mpiexec -n 2 python -m benchmarks.chainermn_communication LEAST MOST SECONDS

It needs Chainer 7.8.1 with its chainermn, numpy < 1.24 and mpi4py.

Its allreduce is not differentiable: the communicator's method is measured. Its sends block until
they are received: so in the ring even ranks send first and odd ones receive first, in backward too,
and the number of ranks is even. They send an array as a list of rows, each a message, unless it is
in a tuple.
"""

import json
import sys
import time

import chainer
import chainermn
import chainermn.functions as F
import numpy as np

from benchmarks.timing import in_time, sizes

LONG = 8  # seconds of a row, after which no larger ones are tried
chainer.disable_experimental_feature_warning = True
comm = chainermn.create_communicator("naive")
right = (comm.rank + 1) % comm.size
left = (comm.rank - 1) % comm.size


def ring(v):
    """What comes from the left. Backward goes by depth: delegates and identities make the depths
    that do not hang.
    """
    if comm.rank % 2 == 0:
        phi = F.send((v,), comm, rank=right)
        return F.recv(comm, rank=left, delegate_variable=phi)
    y = F.recv(comm, rank=left)
    phi = F.send((chainer.functions.identity(chainer.functions.identity(v)),), comm, rank=right)
    return F.pseudo_connect(phi, y)[0]


def without(function):
    def step():
        with chainer.no_backprop_mode():
            function()

    return step


def with_backward(function, v):
    def step():
        ys = function()
        ys = ys if isinstance(ys, tuple) else (ys,)
        for y in ys:
            y.grad = y.array
        chainer.backward(ys)
        v.cleargrad()

    return step


def ways(name, x):
    v = chainer.Variable(x)
    if name == "allreduce":
        return {"chainermn": lambda: comm.allreduce(x)}
    function = (lambda: F.allgather(comm, v)) if name == "allgather" else (lambda: ring(v))
    return {"chainermn": without(function), "chainermn and backward": with_backward(function, v)}


def main():
    """Measure, and print a line of JSON for each row."""
    begin = time.perf_counter()
    for name in ("allreduce", "allgather", "shift"):
        for size in sizes(int(sys.argv[2]), int(sys.argv[1])):
            if comm.mpi_comm.bcast(time.perf_counter() - begin > float(sys.argv[3])):
                sys.exit()
            row = time.perf_counter()
            found = in_time(
                ways(name, np.ones(size // 8)), comm.mpi_comm.bcast, comm.mpi_comm.Barrier
            )
            if comm.rank == 0:
                print(json.dumps([name, size, found]), flush=True)
            # more ranks than cores: its calls do not hand on the core
            if comm.mpi_comm.bcast(time.perf_counter() - row > LONG):
                break


if __name__ == "__main__":
    main()
