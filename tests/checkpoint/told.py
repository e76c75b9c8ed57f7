"""A program for mpiexec that trains until it is told to end, or up to an iteration: ``python
told.py FOLDER [ITERATION]``.
"""

import hashlib
import json
import os
import sys

import mnpar
from mnpar import training
from tests.checkpoint.test_trainer import make


def train(comm, folder, until=10**9):
    """Where it began, and a digest of all that it came to."""
    trainer, optimizer = make(comm, folder, stop=(until, "iteration"))
    checkpointer = mnpar.create_multi_node_checkpointer("run", comm, asynchronous=True)
    trainer.extend(checkpointer, trigger=(100, "iteration"))
    trainer.extend(checkpointer.at_notice())

    @training.make_extension(trigger=(5, "iteration"))
    def say(trainer):
        if trainer.updater.iteration == 5 and until == 10**9:
            # in one piece, or the launcher mixes the ranks' lines
            os.write(1, f"ready {os.getpid()}\n".encode())

    trainer.extend(say)
    begin = checkpointer.maybe_load(trainer, optimizer)
    trainer.run()
    log = [
        [value for key, value in row.items() if key != "elapsed_time"]
        for row in trainer.get_extension("LogReport").log
    ]
    weights = {
        key: array.tolist() for key, array in mnpar.serializers.serialize(optimizer.target).items()
    }
    return begin, hashlib.sha256(
        json.dumps([weights, log, mnpar.random.get_state()]).encode()
    ).hexdigest()


if __name__ == "__main__":
    comm = mnpar.create_communicator()
    ends = comm.gather_obj(train(comm, sys.argv[1], *map(int, sys.argv[2:])))
    if comm.is_root:
        print("ends", *[f"{begin} {digest}" for begin, digest in ends])
