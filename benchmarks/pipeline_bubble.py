"""The bubbles of all schedules, measured with known waits in place of computing, beside those of
the simulation.

    mpiexec -n 4 python -m benchmarks.pipeline_bubble [--unit 0.02] [--micro-batches 8]

Each stage sleeps a unit forward, one for the gradients of its inputs and one for those of its
weights (half of that where a rank has two stages): so the ranks need no cores of their own, and
what is measured is waiting alone.
"""

import argparse
import time

import numpy as np

import mnpar
from mnpar.parallel import SCHEDULES, Pipeline, make_schedule, simulate


class Sleep(mnpar.FunctionNode):
    """Passes its input on, and takes its time for it."""

    slept = 0.0  # by this rank: the system wakes it a little later than it was told

    def __init__(self, seconds):
        self.seconds = seconds

    def forward(self, x, w):
        return self.late(x.copy())

    def backward(self, gy):
        return lambda: self.late(gy), lambda: self.late(gy.array.sum(keepdims=True).reshape(1))

    def late(self, g):
        begin = time.perf_counter()
        time.sleep(self.seconds)
        Sleep.slept += time.perf_counter() - begin
        return g


class Stage(mnpar.Link):
    def __init__(self, seconds, last):
        super().__init__()
        self.seconds, self.last = seconds, last
        self.w = mnpar.Parameter(np.zeros(1))

    def forward(self, x):
        (y,) = Sleep(self.seconds).apply((x, self.w))
        return y.sum() if self.last else y


def measured(comm, name, M, unit, steps):
    """The share of the ranks' time in which they do not sleep: the least of some steps, what else
    delays is no bubble.
    """
    schedule = make_schedule(name, comm.size, M)
    seconds = unit * comm.size / schedule.stages
    mine = schedule.stages_of(comm.rank)
    stages = [Stage(seconds, stage == schedule.stages - 1) for stage in mine]
    pipeline = Pipeline(comm, stages, schedule, M, late_weights=False, labels=0)
    batch = [mnpar.Variable(np.ones((M, 1)))] * (schedule.where[0] == comm.rank)
    bubbles = []
    for _ in range(steps):
        comm.barrier()
        begin, Sleep.slept = time.perf_counter(), 0.0
        pipeline(*batch).backward()
        comm.barrier()
        seconds = time.perf_counter() - begin
        bubbles.append(1 - float(comm.allreduce(np.array(Sleep.slept))) / (seconds * comm.size))
    return schedule, min(bubbles), pipeline.most_in_flight


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--unit", type=float, default=0.02, help="seconds")
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--schedules", nargs="*", default=list(SCHEDULES))
    args = mnpar.launch.parse_args(parser)
    comm = mnpar.create_communicator()
    for name in args.schedules:
        schedule, bubble, graphs = measured(comm, name, args.micro_batches, args.unit, args.steps)
        graphs = comm.gather_obj(graphs)
        if comm.is_root:
            found = simulate(schedule)
            print(
                f"{name:12} bubble {100 * bubble:5.1f} %, simulation {100 * found.bubble:5.1f} %; "
                f"graphs in flight {graphs}, simulation {list(found.in_flight)}",
                flush=True,
            )


if __name__ == "__main__":
    main()
