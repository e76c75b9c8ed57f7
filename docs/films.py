"""Films and timelines for the pages: a ring, an ensemble and a 1F1B pipeline.

``mpiexec -n 4 python docs/films.py ring`` records one step of the ring and writes
``result/ring/film.html`` and ``result/ring/timeline.png``; so do ``ensemble`` and ``pipeline``. The
steps before it are a warm-up.
"""

import sys
from pathlib import Path

import numpy as np

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar.profiling.film import write_film


def ring(comm):
    """Pass a matrix to the right, and multiply it by the left neighbour's."""
    x = mnpar.Variable(np.random.default_rng(comm.rank).standard_normal((300, 300)))

    def step():
        F.send(x, comm, rank=(comm.rank + 1) % comm.size)
        y = F.recv(comm, rank=(comm.rank - 1) % comm.size)
        F.sum(F.matmul(x, y)).backward()

    return step


def ensemble(comm):
    """Average the outputs of a member on each rank."""
    member = mnpar.Sequential(L.Linear(64, 400), F.relu, L.Linear(400, 10))
    optimizer = mnpar.optimizers.Adam().setup(member)
    x, t = np.ones((500, 64), "f4"), np.arange(500) % 10

    def loss():
        y = sum(F.allgather(comm, member(x))) / comm.size
        return F.softmax_cross_entropy(y, t) / comm.size

    return lambda: optimizer.update(loss)


def pipeline(comm):
    """Train three stages on four micro-batches, by the schedule 1F1B."""
    layer = L.Linear(500, 500)
    last = comm.rank == comm.size - 1
    stage = L.Classifier(layer) if last else mnpar.Sequential(layer, F.relu)
    pipe = mnpar.Pipeline(comm, stage, "1f1b", micro_batches=4)
    optimizer = mnpar.optimizers.SGD(0.1).setup(pipe)
    x, t = np.ones((1200, 500), "f4"), np.arange(1200) % 10
    batch = {0: (x,), comm.size - 1: (t,)}.get(comm.rank, ())
    return lambda: optimizer.update(pipe, *batch)


if __name__ == "__main__":
    comm = mnpar.create_communicator()
    [name] = sys.argv[1:]
    program = {"ring": ring, "ensemble": ensemble, "pipeline": pipeline}[name]
    step = program(comm)
    for _ in range(3):
        step()
    comm.barrier()
    out = Path("result") / name
    with mnpar.profile(out, comm):
        step()
    if comm.is_root:
        write_film(out / "timeline.json", out / "film.html")
