"""A small training in which everything random takes part, for tests that end it anywhere; also a
program for mpiexec.

``python training.py FOLDER [RANK STEP TIME [HOW]]``: the rank kills itself when it reaches a step
of the protocol for the n-th time; with another word, checkpoints are written in the background.
"""

import hashlib
import json
import os
import signal
import sys

import numpy as np

import mnpar
import mnpar.functions as F
import mnpar.links as L
import mnpar.random
from mnpar import checkpoint
from mnpar.checkpoint import store

ITERATIONS, INTERVAL, KEEP = 6, 2, 2


class Log:
    def __init__(self):
        self.rows = []

    def serialize(self, serializer):
        self.rows = json.loads(serializer("rows", json.dumps(self.rows)))


def make(comm):
    """Everything that a checkpoint has in it."""
    mnpar.random.seed([1, comm.rank])
    model = mnpar.Sequential(L.Linear(3, 4), L.Linear(4, 1))
    for param in model.params():
        param.array = comm.bcast(param.array)
    data = np.random.default_rng(0).normal(size=(7, 3)).astype("f4")[comm.rank :: comm.size]
    iterator = mnpar.iterators.SerialIterator(data, 2)
    return {
        "model": model,
        "optimizer": mnpar.optimizers.Adam().setup(model),
        "iterator": iterator,
        "log": Log(),
    }


def advance(comm, objects):
    """One iteration."""
    model, optimizer, iterator, log = objects.values()
    model.cleargrads()
    loss = F.sum(model(F.dropout(np.stack(iterator.next()), 0.3)) ** 2)
    loss.backward()
    for param in model.params():
        param.grad = comm.allreduce(param.grad)
    optimizer.update()
    log.rows.append([optimizer.t, iterator.epoch_detail, float(loss.array)])


def train(comm, folder):
    """Where it began, and everything that it came to."""
    objects = make(comm)
    start = checkpoint.load(folder, objects, comm) or 0
    for iteration in range(start + 1, ITERATIONS + 1):
        advance(comm, objects)
        if iteration % INTERVAL == 0:
            checkpoint.save(folder, objects, comm, iteration)
            checkpoint.collect_garbage(folder, comm, KEEP)
    return start, state(objects)


def train_in_background(comm, folder):
    """The same, with checkpoints that are written while it goes on."""
    objects, (path, name) = make(comm), os.path.split(folder)
    checkpointer = mnpar.create_multi_node_checkpointer(
        name, comm, KEEP, 1, path, asynchronous=True
    )
    start = checkpointer.maybe_load(objects) or 0
    for iteration in range(start + 1, ITERATIONS + 1):
        advance(comm, objects)
        if iteration % INTERVAL == 0:
            checkpointer.save(objects, iteration)
    checkpointer.flush()
    checkpointer.finalize()
    return start, state(objects)


def state(objects):
    """All that they have."""
    serializer = mnpar.serializers.DictionarySerializer()
    for name, thing in objects.items():
        thing.serialize(serializer[name])
    result = {key: array.tolist() for key, array in serializer.target.items()}
    return json.dumps([result, mnpar.random.get_state()])


def main(folder, rank=-1, step="", time=1, how=""):
    comm = mnpar.create_communicator()
    times = []

    def die(reached):
        times.append(reached)
        if comm.rank == int(rank) and times.count(step) == int(time):
            os.kill(os.getpid(), signal.SIGKILL)

    store.after_step.set(die)
    start, result = (train_in_background if how else train)(comm, folder)
    ends = comm.allgather_obj((start, hashlib.sha256(result.encode()).hexdigest()))
    if comm.is_root:
        print(
            *[
                f"rank {rank} began at {start}: {digest}"
                for rank, (start, digest) in enumerate(ends)
            ],
            sep="\n",
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
