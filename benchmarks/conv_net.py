"""A training step of convolutional networks (SGD) beside PyTorch's eager mode and Chainer's, on one
thread.

    python -m benchmarks.conv_net [part of a name …] [--chainer PYTHON]

The networks are written once, for mnpar and Chainer both. PyTorch runs them in its channels_last
form. × is the time of another toolkit relative to mnpar's: above 1 mnpar is faster.
"""

import sys
import time

from benchmarks.timing import (
    SERVE,
    Elsewhere,
    arguments,
    in_turn,
    one_thread,
    serve,
    start,
    table,
    torch_or_none,
)

one_thread()
import numpy as np  # noqa: E402

if SERVE in sys.argv:
    import chainer as toolkit
    import chainer.functions as F
    import chainer.links as L
else:
    import mnpar as toolkit
    import mnpar.functions as F
    import mnpar.links as L
    from mnpar.communicators.create import keep_memory

    keep_memory()

# A number is a convolution with so many filters, "pool" and "flat" speak for themselves, (n,) is a
# fully connected layer.
NETWORKS = {
    "LeNet, 64 of 1x28x28": (
        (64, 1, 28),
        {"k": 5, "pad": 0, "norm": False},
        [20, "pool", 50, "pool", "flat", (500,), (10,)],
    ),
    "three blocks, 32 of 3x32x32": (
        (32, 3, 32),
        {"k": 3, "pad": 1, "norm": True},
        [64, "pool", 128, "pool", 256, "pool", "flat", (10,)],
    ),
    "VGG, 16 of 3x32x32": (
        (16, 3, 32),
        {"k": 3, "pad": 1, "norm": True},
        [
            64,
            64,
            "pool",
            128,
            128,
            "pool",
            256,
            256,
            256,
            "pool",
            512,
            512,
            "pool",
            "flat",
            (512,),
            (10,),
        ],
    ),
    "VGG without normalization, 4 of 3x64x64": (
        (4, 3, 64),
        {"k": 3, "pad": 1, "norm": False},
        [
            64,
            64,
            "pool",
            128,
            128,
            "pool",
            256,
            256,
            256,
            "pool",
            512,
            512,
            512,
            "pool",
            "flat",
            (512,),
            (10,),
        ],
    ),
}


def data(name):
    (N, C, size), _, _ = NETWORKS[name]
    rng = np.random.default_rng(0)
    return rng.standard_normal((N, C, size, size), dtype=np.float32), rng.integers(0, 10, N).astype(
        "i4"
    )


def ours(name):
    x, t = data(name)
    _, kind, parts = NETWORKS[name]
    layers = []
    for part in parts:
        if part == "pool":
            layers.append(lambda h: F.max_pooling_2d(h, 2))
        elif isinstance(part, int):
            layers.append(
                L.Convolution2D(None, part, kind["k"], pad=kind["pad"], nobias=kind["norm"])
            )
            layers += [L.BatchNormalization(part), F.relu] if kind["norm"] else [F.relu]
        elif part != "flat":
            layers += [L.Linear(None, part[0]), F.relu]
    model = toolkit.Sequential(*layers[:-1])
    model(x[:2])  # sizes
    optimizer = toolkit.optimizers.SGD(lr=0.01)
    optimizer.setup(model)

    def step():
        loss = F.softmax_cross_entropy(model(x), t)
        model.cleargrads()
        loss.backward()
        optimizer.update()

    return step


def theirs(torch, name):
    nn = torch.nn
    x, t = (torch.from_numpy(a) for a in data(name))
    (_, C, _), kind, parts = NETWORKS[name]
    layers = []
    for part in parts:
        if part == "pool":
            layers.append(nn.MaxPool2d(2))
        elif part == "flat":
            layers.append(nn.Flatten())
        elif isinstance(part, int):
            layers.append(nn.Conv2d(C, part, kind["k"], padding=kind["pad"], bias=not kind["norm"]))
            layers += [nn.BatchNorm2d(part), nn.ReLU()] if kind["norm"] else [nn.ReLU()]
            C = part
        else:
            layers += [nn.LazyLinear(part[0]), nn.ReLU()]
    model = nn.Sequential(*layers[:-1])
    model(x)  # sizes
    model.to(memory_format=torch.channels_last)
    x = x.to(memory_format=torch.channels_last)
    t = t.long()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step():
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), t).backward()
        optimizer.step()

    return step


def main():
    args = arguments(__doc__)
    if args.serve:
        serve(ours)
    else:
        torch = torch_or_none()
        other = start(args.chainer) if args.chainer else None
        for network in NETWORKS:
            if args.part and not any(part in network for part in args.part):
                continue
            ways = {"mnpar": ours(network)}
            if torch:
                ways["torch"] = theirs(torch, network)
            if other:
                ways["chainer"] = Elsewhere(other, network)
            print(table(network, in_turn(ways, 2, rounds=7, clock=time.process_time)), flush=True)


if __name__ == "__main__":
    main()
