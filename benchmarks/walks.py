"""The files of mnpar that a reader enters who follows a call, in order: a send between two ranks, a
step of SGD on one rank and on two, and a relu with its backward.

    python -m benchmarks.walks                  how many files, and how often the file changes
    python -m benchmarks.walks --files          and the files themselves
    python -m benchmarks.walks --imports        and those that are only imported on the way

Each call runs seven times, and the last time is counted. Imports, and what is set up once, are over
then; and it is a usual update: ranks compare their values in those after 1, 2, 4 and 8, and tell
each other new records in these and the next ones. The ranks are threads; rank 0 is followed.
"""

import argparse
import sys
from itertools import groupby
from pathlib import Path

import numpy as np

import mnpar
import mnpar.functions as F
import mnpar.links as L

PACKAGE = str(Path(mnpar.__file__).parent)


def trace(call, imports=False):
    """Return the files of mnpar whose functions ``call()`` enters, in order, each as often as it is
    entered from another one.
    """
    walk = []

    def note(frame, event, _):
        file = frame.f_code.co_filename
        inside = event == "call" and file.startswith(PACKAGE)
        if inside and (imports or frame.f_code.co_name != "<module>"):
            walk.append(file[len(PACKAGE) + 1 :])

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return [file for file, _ in groupby(walk)]


def send(comm):
    """One ``F.send`` from rank 0 to rank 1."""
    x = mnpar.Variable(np.ones(3, "f4"))

    def step():
        if comm.rank == 0:
            F.send(x, comm, 1)
        else:
            F.recv(comm, 0)

    return step


def sgd(comm):
    """One step of SGD of one Linear, on all ranks together if there are several."""
    model = L.Linear(4, 3)
    optimizer = mnpar.optimizers.SGD()
    if comm.size > 1:
        optimizer = mnpar.create_multi_node_optimizer(optimizer, comm)
    optimizer.setup(model)
    x = np.ones((2, 4), "f4")
    t = np.ones((2, 3), "f4")
    return lambda: optimizer.update(lambda: F.mean_squared_error(model(x), t))


def relu(comm):
    """One relu, forward and backward, on one rank."""
    x = mnpar.Variable(np.ones(3, "f4"))

    def step():
        y = F.relu(x)
        y.grad = x.array
        y.backward()

    return step


WALKS = {
    "F.send": (send, 2),
    "SGD on one rank": (sgd, 1),
    "SGD on two ranks": (sgd, 2),
    "F.relu and backward": (relu, 1),
}
USUAL = 6  # calls before the one that is counted


def walk(make, ranks, imports=False):
    """Return the walk of rank 0 through the last call."""

    def rank(comm):
        step = make(comm)
        for _ in range(USUAL):
            step()
        if comm.rank == 0:
            return trace(step, imports)
        return step()

    return mnpar.run(rank, ranks=ranks)[0]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", action="store_true", help="print the files")
    parser.add_argument("--imports", action="store_true", help="count modules that are imported")
    args = parser.parse_args()
    for name, (make, ranks) in WALKS.items():
        files = walk(make, ranks, args.imports)
        changes = max(len(files) - 1, 0)
        print(f"{name:22}{len(set(files)):4} files, {changes:4} changes of file")
        if args.files:
            print("    " + "\n    ".join(files))


if __name__ == "__main__":
    main()
