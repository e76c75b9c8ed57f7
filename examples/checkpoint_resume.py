"""Training that can be killed at any moment and resumed bit for bit, on the same number of ranks;
or on more or fewer ranks.

    mpiexec -n 4 python examples/checkpoint_resume.py --kill 25
        rank 1 kills itself, as kill -9 does, in iteration 25
    mpiexec -n 4 python examples/checkpoint_resume.py
        resumes at iteration 20: same weights as without the kill
    mpiexec -n 2 python examples/checkpoint_resume.py --epoch 4
        one more epoch, on two ranks

On SIGTERM (from a scheduler, say), it saves after the current iteration, and ends. Each rank has
its part of the digits; gradients are summed over ranks. A checkpoint is a folder with a manifest,
the weights and momenta, which are written once though every rank has them, and each rank's
iterator, random generator and log. ``--out`` is the folder of checkpoints: remove it to start
again.
"""

import hashlib
import json
import os
import signal

import numpy as np

import mnpar
import mnpar.functions as F
import mnpar.links as L


class Log:
    """An object of one's own in the checkpoint: its method ``serialize`` both saves and loads."""

    def __init__(self):
        self.losses = []

    def serialize(self, serializer):
        self.losses = json.loads(serializer("losses", json.dumps(self.losses)))


def network(unit):
    return mnpar.Sequential(L.Linear(64, unit), F.relu, F.dropout, L.Linear(unit, 10))


def step(comm, model, optimizer, batch):
    """One update by the mean over all ranks' examples; the sum of this rank's losses."""
    x, t = mnpar.dataset.concat_examples(batch)
    examples = comm.allreduce(np.array(len(x)))
    model.cleargrads()
    loss = F.softmax_cross_entropy(model(x), t) * (len(x) / examples)
    loss.backward()  # of the sum over ranks
    for param in model.params():
        param.grad = comm.allreduce(param.grad)
    optimizer.update()
    return float(loss.array)


def main(comm, args):
    mnpar.random.seed([args.seed, comm.rank])
    train, test = mnpar.datasets.get_digits()
    iterations = max(args.epoch * len(train) // args.batchsize, 1)
    train = mnpar.scatter_dataset(train, comm, shuffle=True, seed=args.seed)
    model = network(args.unit)
    for param in model.params():
        param.array[...] = comm.bcast(param.array)  # all begin with rank 0's
    optimizer = mnpar.optimizers.MomentumSGD(lr=0.05).setup(model)
    batches = mnpar.iterators.SerialIterator(train, max(args.batchsize // comm.size, 1))
    log = Log()

    everything = {"model": model, "optimizer": optimizer, "batches": batches, "log": log}
    checkpointer = mnpar.create_multi_node_checkpointer(
        "digits", comm, cp_interval=2, gc_interval=1, path=args.out
    )
    notice = mnpar.checkpoint.Notice(comm)  # from here on SIGTERM only makes a note
    begin = checkpointer.maybe_load(everything)
    if comm.is_root:
        print(
            "begins" if begin is None else f"goes on at iteration {begin}", f"on {comm.size} ranks"
        )
    while optimizer.t < iterations:
        log.losses.append(step(comm, model, optimizer, batches.next()))
        if optimizer.t == args.kill and comm.rank == min(1, comm.size - 1):
            os.kill(os.getpid(), signal.SIGKILL)
        told = notice()  # the same on all ranks
        if optimizer.t % args.interval == 0 or told:
            checkpointer.save(everything, optimizer.t)
        if told:
            if comm.is_root:
                print(f"told to end: saved at iteration {optimizer.t}")
            raise SystemExit(128 + signal.SIGTERM)

    with mnpar.using_config("train", False), mnpar.no_backprop_mode():
        x, t = mnpar.dataset.concat_examples(test)
        accuracy = F.accuracy(model(x), t).item()
    logs = comm.gather_obj(log.losses)
    if comm.is_root:
        everything_now = json.dumps([logs, [param.array.tolist() for param in model.params()]])
        print(
            f"iteration {optimizer.t}, test accuracy {accuracy:.3f}, checkpoints at "
            f"{checkpointer.steps()}"
        )
        print(f"weights and logs: {hashlib.sha256(everything_now.encode()).hexdigest()[:16]}")
        how = (
            f"killed with --kill, and started again on {comm.size} rank(s)"
            if begin is None
            else f"never killed, on {comm.size} rank(s) throughout"
        )
        print(f"A run that is {how}, must end with these digits.")


if __name__ == "__main__":
    parser = mnpar.launch.Parser(__doc__, ranks=4)
    parser.flag("--batchsize -b", 100, "examples per step, of all ranks")
    parser.flag("--epoch -e", 3, "sweeps over the data")
    parser.flag("--unit -u", 100, "width of the hidden layer")
    parser.flag("--interval", 10, "iterations between checkpoints")
    parser.flag("--out -o", mnpar.launch.folder, "folder of the checkpoints", default="result")
    parser.flag("--seed -s", mnpar.launch.seed, "of weights, dropout and data", default=0)
    parser.flag("--kill", 0, "kill rank 1 in this iteration", least=None, metavar="ITERATION")
    mnpar.launch.script(main, parser)
