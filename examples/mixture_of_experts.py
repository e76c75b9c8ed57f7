"""A mixture of experts: each rank has some of the experts and some of the images, and images are
sent to their experts.

    mpiexec -n 4 python examples/mixture_of_experts.py
    python examples/mixture_of_experts.py --threads 3 --experts 8

A gate chooses k experts for each image, on any ranks; two alltoalls of uneven parts send the images
there and the results back. The layers around the mixture are replicated, and trained by the
multi-node optimizer; the weights are those of one rank. At the end a dense network with as much
work for each image is trained, too.

The images are scikit-learn's 1,797 handwritten digits. To make work for experts, each is shown as
it is, inverted, on its side or upside down, and the answer is to be the digit all the same.
"""

import numpy as np

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar.plans import block


class Net(mnpar.Chain):
    """A mixture, or a dense layer, with a residual connection, between two linear layers."""

    def __init__(self, width, middle, balance=0.0):
        super().__init__()
        self.balance = balance
        # what all ranks have
        self.rest = mnpar.Chain(first=L.Linear(64, width), last=L.Linear(width, 10))
        self.middle = middle(width)

    def __call__(self, x):
        h = F.relu(self.rest.first(x))
        return self.rest.last(h + self.middle(h))

    def loss(self, x, t):
        """Return the loss of this rank's images, with a share for the balance of the experts."""
        loss = F.softmax_cross_entropy(self(x), t)
        return loss + self.balance * self.middle.balance if self.balance else loss


def perceptron(width, hidden):
    return mnpar.Sequential(L.Linear(width, hidden), F.relu, L.Linear(hidden, width))


def load(seed):
    """Images and labels to train and to test; each image in one of four ways."""
    rng = np.random.default_rng(seed)
    found = []
    for part in mnpar.datasets.get_digits(ndim=2, dtype=mnpar.get_dtype()):
        x, t = mnpar.dataset.concat_examples(part)
        ways = [x, 1 - x, np.rot90(x, axes=(1, 2)), x[:, ::-1]]
        found.append(
            (np.choose(rng.integers(4, size=len(x))[:, None, None], ways).reshape(len(x), -1), t)
        )
    return found


def train(comm, net, data, args, say=False):
    """Rank r has the r-th block of each batch; the loss's gradient is that of the whole batch.
    Returns the last accuracy.
    """
    (x, t), test = data
    everywhere = mnpar.create_multi_node_optimizer(mnpar.optimizers.Adam(args.lr), comm).setup(
        net.rest
    )
    here = mnpar.optimizers.Adam(args.lr).setup(net.middle)  # its gradients are whole already
    accuracy = evaluate(comm, net, *test)
    for epoch in range(args.epoch):
        order, seen = np.random.default_rng([args.seed, epoch]).permutation(len(x)), 0
        for start in range(0, len(x), args.batchsize):
            batch = order[start : start + args.batchsize]
            mine = batch[slice(*block(len(batch), comm.size, comm.rank))]
            net.middle.cleargrads()
            everywhere.update(net.loss, x[mine], t[mine])
            here.update()
            seen = seen + getattr(net.middle, "load", 0)
        accuracy = evaluate(comm, net, *test)
        if say and comm.is_root:
            shares = " ".join(f"{share:5.1%}" for share in seen / seen.sum())
            print(f"epoch {epoch + 1:3d}   accuracy {accuracy:.4f}   experts see {shares}")
    return accuracy


def evaluate(comm, net, x, t):
    """The accuracy on all ranks' blocks of the test images."""
    mine = slice(*block(len(x), comm.size, comm.rank))
    with mnpar.using_config("train", False), mnpar.no_backprop_mode():
        right = np.array((net(x[mine]).array.argmax(axis=1) == t[mine]).sum())
    return float(comm.allreduce(right) / len(x))


def mixture(comm, args):
    """The network of this rank, whose experts are spread over all."""
    mnpar.random.seed(args.seed)
    return Net(
        args.width,
        lambda width: L.MixtureOfExperts(
            comm,
            lambda i: perceptron(width, args.unit),
            args.experts,
            width,
            k=args.k,
            input_is_parallel=True,
            capacity_factor=args.capacity,
        ),
        args.balance,
    )


def main(comm, args):
    """Train; returns the network."""
    data = load(args.seed)

    net = mixture(comm, args)
    mine = ", ".join(str(i) for i in range(*block(args.experts, comm.size, comm.rank)))
    print(f"rank {comm.rank} of {comm.size} has experts {mine or 'none'}")
    accuracy = train(comm, net, data, args, say=True)
    if comm.is_root:
        alone = mnpar.create_communicator("self")
        total = mixture(alone, args).count_params()
        print(f"mixture: accuracy {accuracy:.4f} with {total:,} weights")
        dense = Net(args.width, lambda width: perceptron(width, args.k * args.unit))
        other = train(alone, dense, data, args)
        print(
            f"dense, as much work on an image: accuracy {other:.4f} with "
            f"{dense.count_params():,} weights"
        )
        print(
            f"Each image visits {args.k} of the {args.experts} expert(s), so the weights grow with "
            "the experts, and the work on an image does not."
        )
    return net


def check(parser, args):
    """Refuse what does not go together."""
    if args.k > args.experts:
        parser.error(f"--k {args.k} is more than the {args.experts} experts")
    if args.capacity is not None and not args.capacity > 0:
        parser.error(f"--capacity is more than 0, not {args.capacity:g}")


def flags():
    """Return the parser of the command line."""
    parser = mnpar.launch.Parser(__doc__, ranks=4, check=check)
    parser.flag("--experts", 6, "how many experts, over all ranks")
    parser.flag("--k", 1, "how many experts see an image")
    parser.flag("--unit -u", 8, "hidden units of an expert")
    parser.flag("--width", 24, "features of what the experts see")
    parser.flag("--capacity", float, "an expert takes C times its even share at most", metavar="C")
    parser.flag("--balance", 0.05, "weight of the loss that keeps all experts at work")
    parser.flag("--epoch -e", 15, "epochs")
    parser.flag("--batchsize -b", 50, "images of all ranks per step")
    parser.flag("--lr", 0.01, "Adam's step")
    parser.flag("--seed -s", mnpar.launch.seed, "of weights and orders", default=0)
    return parser


if __name__ == "__main__":
    mnpar.launch.script(main, flags())
