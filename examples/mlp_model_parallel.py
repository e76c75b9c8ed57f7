"""One MLP on two ranks: layer l1 and the loss on rank 0, layers l2 and l3 on rank 1, with send and
recv written by hand.

    mpiexec -n 2 python examples/mlp_model_parallel.py      (or plain python, or --threads)

Rank 0 reads the digits; rank 1 has an empty data set of the same length. After 50 steps rank 0
trains the same network alone and compares all weights.
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
        return F.softmax_cross_entropy(y, t)


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


class Whole(mnpar.Chain):
    """The same network on one rank."""

    def __init__(self, unit):
        super().__init__()
        self.l1 = linear(64, unit, seed=1)
        self.l2 = linear(unit, unit, seed=2)
        self.l3 = linear(unit, 10, seed=3)

    def __call__(self, x, t):
        return F.softmax_cross_entropy(self.l3(F.relu(self.l2(F.relu(self.l1(x))))), t)


def train(model, data, args):
    """Some steps of SGD."""
    optimizer = mnpar.optimizers.MomentumSGD(lr=0.1).setup(model)
    batches = mnpar.iterators.SerialIterator(data, args.batchsize, shuffle=False)
    for _ in range(args.steps):
        batch = mnpar.dataset.concat_examples(next(batches))  # () on the rank without data
        optimizer.update(model, *batch)  # a model without a loss only takes part in backward


def main(comm, args):
    digits, _ = mnpar.datasets.get_digits(dtype=np.float64)
    with mnpar.using_config("dtype", np.dtype("f8")):
        model, data = (
            (Ends(comm, args.unit), digits)
            if comm.rank == 0
            else (Middle(comm, args.unit), mnpar.datasets.create_empty_dataset(digits))
        )
        train(model, data, args)
        weights = [p.array for p in model.params()]
        if comm.rank == 1:
            comm.send(weights, dest=0)
            return
        weights += comm.recv(source=1)
        whole = Whole(args.unit)
        train(whole, digits, args)
    difference = max(abs(w - p.array).max() for w, p in zip(weights, whole.params(), strict=True))
    print(f"{args.steps} steps on 2 ranks and on 1: the weights differ by {difference:.1e} at most")
    if not difference < 1e-10:
        raise SystemExit("the two runs do not agree")


if __name__ == "__main__":
    parser = mnpar.launch.Parser(__doc__, exactly=True)
    parser.flag("--batchsize -b", 50, "examples per step")
    parser.flag("--unit -u", 100, "width of the hidden layers")
    parser.flag("--steps", 50, "steps of SGD")
    mnpar.launch.script(main, parser)
