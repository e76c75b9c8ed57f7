"""One MLP on two ranks: layer l1 and the loss on rank 0, layers l2 and l3 on rank 1, with send and
recv written by hand.

    mpiexec -n 2 python examples/mlp_model_parallel.py      (or plain python, or --threads)

Rank 0 reads the digits; rank 1 has an empty data set of the same length. The weights are those of
the same network on one rank.
"""

import numpy as np

import mnpar
import mnpar.functions as F
import mnpar.links as L


def linear(n_in, n_out, seed):
    """A layer whose first weights depend on its seed only, not on the rank that it is on."""
    return L.Linear(
        n_in, n_out, initialW=mnpar.initializers.LeCunNormal(rng=np.random.default_rng(seed))
    )


class Ends(mnpar.Chain):
    """Rank 0: the first layer, and the loss of what comes back."""

    def __init__(self, comm, unit):
        super().__init__()
        self.comm = comm
        self.l1 = linear(64, unit, seed=1)

    def __call__(self, x, t):
        h = F.relu(self.l1(x))
        F.send(h, self.comm, rank=1)
        y = F.recv(self.comm, rank=1)
        loss = F.softmax_cross_entropy(y, t)
        self.loss = loss.item()
        return loss


class Middle(mnpar.Chain):
    """Rank 1: the other layers, between a recv and a send. It has no loss."""

    def __init__(self, comm, unit):
        super().__init__()
        self.comm = comm
        self.l2 = linear(unit, unit, seed=2)
        self.l3 = linear(unit, 10, seed=3)

    def __call__(self):
        h = F.recv(self.comm, rank=0)
        F.send(self.l3(F.relu(self.l2(h))), self.comm, rank=0)


def main(comm, args):
    """Train; returns this rank's part of the network."""
    data, _ = mnpar.datasets.get_digits(dtype=mnpar.get_dtype())
    if comm.rank == 0:
        model = Ends(comm, args.unit)
    else:
        model = Middle(comm, args.unit)
        data = mnpar.datasets.create_empty_dataset(data)
    optimizer = mnpar.optimizers.MomentumSGD(lr=0.1).setup(model)
    batches = mnpar.iterators.SerialIterator(data, args.batchsize, shuffle=False)
    losses = []
    for step in range(1, args.steps + 1):
        batch = mnpar.dataset.concat_examples(next(batches))  # () on the rank without data
        optimizer.update(model, *batch)  # a model without a loss only takes part in backward
        if comm.rank == 0:
            losses.append(model.loss)
            if step in (1, args.steps):
                print(f"step {step:3d}   loss {losses[-1]:.4f}")
    sizes = comm.allgather_obj(model.count_params())
    if comm.rank == 0:
        print(
            f"Rank 0 has trained the {sizes[0]:,} weights of the first layer, and rank 1 the "
            f"{sizes[1]:,} of the other two. Backward sent the gradients from rank to rank, and "
            f"the loss went from {losses[0]:.4f} to {losses[-1]:.4f}."
        )
    return model


def flags():
    """Return the parser of the command line."""
    parser = mnpar.launch.Parser(__doc__, exactly=True)
    parser.flag("--batchsize -b", 50, "examples per step")
    parser.flag("--unit -u", 100, "width of the hidden layers")
    parser.flag("--steps", 50, "steps of SGD")
    return parser


if __name__ == "__main__":
    mnpar.launch.script(main, flags())
