"""Sums of gradients over the ranks of one machine: by messages, and in memory that the ranks have
in common.

    mpiexec -n 2 python -m benchmarks.shared_memory [--rounds 21]        (and -n 4)

``allreduce`` is what gradients take now (``comm.allreduce(g, out=g)``), ``Allreduce`` MPI's own in
place. In shared memory each rank adds up its share of the elements, reading those of all ranks, and
all ranks read the sums: ``copied`` with each rank's gradients copied there and the sums copied
back, ``resident`` where gradients live there and only the sums are copied, ``read`` where an
optimizer would read the sums right there. Chunks of 4 MiB; two barriers for each, ``comm.barrier``
or MPI's (``+``). The last column is what is left of the time of ``allreduce`` in the fastest way
that keeps gradients where they are.
"""

import argparse

from benchmarks.timing import in_turn, one_thread

one_thread()
import numpy as np  # noqa: E402
from mpi4py import MPI  # noqa: E402

import mnpar  # noqa: E402

CHUNK = 2**20  # elements of float32


class Shared:
    """A slot for each rank's gradients, and one for the sums."""

    def __init__(self, comm, size, barrier):
        self.comm, self.barrier, self.size = comm, barrier, size
        self.memory = comm.share(4 * size * (comm.size + 1))
        self.slots = self.memory.array.view(np.float32).reshape(comm.size + 1, size)

    def meet(self):
        self.memory.sync()
        self.barrier()
        self.memory.sync()

    def reduce(self, g, way):
        P = self.comm.size
        me = self.comm.rank
        sums = self.slots[-1]
        for start in range(0, g.size, CHUNK):
            stop = min(start + CHUNK, g.size)
            if way == "copied":
                self.slots[me, start:stop] = g[start:stop]
            self.meet()
            mine = slice(start + (stop - start) * me // P, start + (stop - start) * (me + 1) // P)
            np.add(self.slots[0, mine], self.slots[1, mine], out=sums[mine])
            for rank in range(2, P):
                sums[mine] += self.slots[rank, mine]
            self.meet()
            if way != "read":
                g[start:stop] = sums[start:stop]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument(
        "--sizes", type=float, nargs="*", default=[0.1, 0.5, 1.6, 4, 7.2, 20], help="megabytes"
    )
    args = mnpar.launch.parse_args(parser)
    comm = mnpar.create_communicator()
    if comm.size < 2 or comm.inter_size > 1:
        raise SystemExit(
            "this benchmark is for two or more ranks of one machine: mpiexec -n 2 python "
            "-m benchmarks.shared_memory"
        )
    world = MPI.COMM_WORLD

    def polled():
        request = world.Ibarrier()
        while not request.Test():
            comm.transport.pause()

    if comm.is_root:
        print(f"{comm.size} ranks, µs")
    for megabytes in args.sizes:
        n = int(megabytes * 1e6 / 4)
        g = np.ones(n, np.float32)
        total = comm.size * (comm.size + 1) / 2
        ways = {
            "allreduce": lambda g=g: comm.allreduce(g, out=g),
            "Allreduce": lambda g=g: world.Allreduce(MPI.IN_PLACE, g),
        }
        for sign, barrier in (("", comm.barrier), ("+", polled)):
            shared = Shared(comm, n, barrier)
            g[...] = comm.rank + 1
            shared.reduce(g, "copied")
            assert (g == total).all()
            for way in ("copied", "resident", "read"):
                ways[way + sign] = lambda g=g, shared=shared, way=way: shared.reduce(g, way)
        g[...] = 0  # sums of ones would overflow
        comm.barrier()
        found = in_turn(ways, max(2, int(5e6 / n)), args.rounds, comm.barrier)
        found = {way: max(comm.allgather_obj(seconds)) for way, seconds in found.items()}
        if comm.is_root:
            row = "  ".join(f"{way} {1e6 * seconds:7.0f}" for way, seconds in found.items())
            print(
                f"{megabytes:5} MB  {row}   "
                f"{min(found['copied'], found['copied+']) / found['allreduce']:.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
