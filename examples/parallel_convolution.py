"""A convolutional network whose filters and channels are divided among ranks.

    python examples/parallel_convolution.py
        starts two ranks
    mpiexec -n 3 python examples/parallel_convolution.py
        any number; 16 filters on 3 ranks are 6, 5 and 5
    python examples/parallel_convolution.py --threads 4
        ranks that are threads: needs no MPI

    filters          16 filters: each rank computes some of them, and they stay where they are
    each alone       a depthwise convolution: each rank has the channels that it needs already
    channels         each rank adds what its channels give to all 32 outputs: the only message
    two linear layers, divided by outputs and then by inputs: one message more

ChainerMN's example of this name gives each rank some input channels and some filters, and leaves
out what these filters should see of the other ranks' channels: it trains another network for each
number of ranks. Here the weights are those of one process, and their file, model.npz, does not tell
how many ranks wrote it.
"""

from pathlib import Path

import numpy as np

import mnpar
import mnpar.functions as F
import mnpar.links as L


class Net(mnpar.Chain):
    """Two blocks of layers, divided among ranks."""

    def __init__(self, comm, filters, unit):
        super().__init__()
        filtering = lambda *size, **options: L.FilterParallelConvolution2D(
            comm, *size, gather_output=False, **options
        )
        each = lambda *size, **options: filtering(*size, input_is_parallel=True, **options)
        mixing = lambda *size, **options: L.ChannelParallelConvolution2D(
            comm, *size, input_is_parallel=True, **options
        )
        widening = lambda *size: L.ColumnParallelLinear(comm, *size, gather_output=False)
        narrowing = lambda *size: L.RowParallelLinear(comm, *size, input_is_parallel=True)
        self.filters = filtering(1, filters, 3, pad=1)
        self.each = each(filters, filters, 3, pad=1, groups=filters)
        self.channels = mixing(filters, 2 * filters, 1)
        self.l1 = widening(2 * filters * 4 * 4, unit)
        self.l2 = narrowing(unit, 10)

    def forward(self, x):
        h = F.relu(self.each(F.relu(self.filters(x))))
        h = F.max_pooling_2d(F.relu(self.channels(h)), 2)
        return self.l2(F.relu(self.l1(h)))


def train(comm, data, args, say=lambda line: None):
    """The network after training, and its loss in each epoch."""
    mnpar.random.seed(args.seed)
    model = Net(comm, args.filters, args.unit)
    optimizer = mnpar.optimizers.MomentumSGD(lr=args.lr).setup(model)
    (x, t), losses = data, []
    for epoch in range(1, args.epoch + 1):
        total, order = 0.0, np.random.default_rng([args.seed, epoch]).permutation(len(x))
        for start in range(0, len(x), args.batchsize):
            rows = order[start : start + args.batchsize]
            # the same on each rank, and counted once
            loss = F.softmax_cross_entropy(model(x[rows]), t[rows])
            model.cleargrads()
            loss.backward()
            optimizer.update()
            total += loss.item() * len(rows)
        losses.append(total / len(x))
        say(f"epoch {epoch:3d}   loss {losses[-1]:.5f}")
    return model, losses


def main(comm, args):
    """Train; returns the whole network's weights."""
    say = (lambda line: print(line)) if comm.is_root else lambda line: None
    digits, rest = mnpar.datasets.get_digits(ndim=3, dtype=mnpar.get_dtype())
    data = mnpar.dataset.concat_examples(digits[: args.train])
    model, _ = train(comm, data, args, say)
    sizes = [sum(p.size for p in model.params()), comm.traffic.collective_bytes]
    whole = mnpar.serializers.serialize(model)  # all ranks call it: weights come together
    with mnpar.no_backprop_mode():
        x, t = mnpar.dataset.concat_examples(rest)
        right = F.accuracy(model(x), t).item()
    say(
        f"The network is right on {right:.1%} of {len(x)} test images. Rank 0 has "
        f"{sizes[0]:,} of its {sum(p.size for p in whole.values()):,} weights, and has sent "
        f"{sizes[1] / 1e6:.1f} MB."
    )
    if comm.is_root and args.out:
        path = Path(args.out) / "model.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        mnpar.serializers.save_npz(path, whole)
    return whole


def flags():
    """Return the parser of the command line."""
    parser = mnpar.launch.Parser(__doc__)
    parser.flag("--filters", 16, "of the first layer")
    parser.flag("--unit -u", 64, "width of the hidden linear layer")
    parser.flag("--epoch -e", 3, "sweeps over the data")
    parser.flag("--batchsize -b", 50, "examples per step")
    parser.flag("--train", 1442, "images to train on, at most 1442")
    parser.flag("--lr", 0.05, "of MomentumSGD")
    parser.flag("--seed -s", mnpar.launch.seed, "of weights and order", default=0)
    parser.flag(
        "--out -o", mnpar.launch.folder, "folder of model.npz; '' for none", default="result"
    )
    return parser


if __name__ == "__main__":
    mnpar.launch.script(main, flags())
