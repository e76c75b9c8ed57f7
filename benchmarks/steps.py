"""A training step of nine networks (softmax cross entropy, SGD), and their forward alone, beside
PyTorch's eager mode and Chainer's.

    python -m benchmarks.steps [part of a name …] [--threads 2] [--chainer PYTHON]

Each network is written once for mnpar and Chainer, and once for PyTorch, which runs images in its
channels_last form; the numbers of parameters must be equal. × is the time of another toolkit
relative to mnpar's: above 1 mnpar is faster. "Limit" is the time that the products alone would take
at the machine's best (benchmarks/machine.py), as a share of mnpar's step. "MB" is the memory that
three steps add to a process, mnpar's and PyTorch's.
"""

import subprocess
import sys
import time
from itertools import pairwise

from benchmarks.machine import products
from benchmarks.rows import record
from benchmarks.timing import (
    SERVE,
    Elsewhere,
    arguments,
    forget_peak,
    in_turn,
    resident,
    serve,
    set_threads,
    start,
    threads_asked_for,
    torch_or_none,
)

set_threads(threads_asked_for())
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

FORWARD, STEP = "forward", "step"
T, B, WORDS, WIDTH = 35, 20, 200, 200  # LSTM: time steps, sequences, words, units
HEADS, LENGTH, BLOCKS = 4, 64, 2  # transformer


# ---- the networks in Chainer's words ----


class Residual(toolkit.Chain):
    """Two convolutions with batch normalization, and the way past them."""

    def __init__(self, n_in, n_out, stride):
        super().__init__()
        with self.init_scope():
            self.a = L.Convolution2D(n_in, n_out, 3, stride, 1, nobias=True)
            self.norm_a = L.BatchNormalization(n_out)
            self.b = L.Convolution2D(n_out, n_out, 3, 1, 1, nobias=True)
            self.norm_b = L.BatchNormalization(n_out)
            if n_in != n_out:
                self.past = L.Convolution2D(n_in, n_out, 1, stride, nobias=True)

    def __call__(self, x):
        h = self.norm_b(self.b(F.relu(self.norm_a(self.a(x)))))
        return F.relu(h + (self.past(x) if hasattr(self, "past") else x))


class Separable(toolkit.Chain):
    """A depthwise convolution and one of 1 x 1, as in MobileNet."""

    def __init__(self, n_in, n_out, stride):
        super().__init__()
        with self.init_scope():
            self.depth = L.DepthwiseConvolution2D(n_in, 1, 3, stride, 1, nobias=True)
            self.norm_a = L.BatchNormalization(n_in)
            self.point = L.Convolution2D(n_in, n_out, 1, nobias=True)
            self.norm_b = L.BatchNormalization(n_out)

    def __call__(self, x):
        return F.relu(self.norm_b(self.point(F.relu(self.norm_a(self.depth(x))))))


class UNet(toolkit.Chain):
    """Two levels down by pooling, two up by transposed convolutions, with skip connections."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.down_1 = L.Convolution2D(3, 16, 3, pad=1)
            self.down_2 = L.Convolution2D(16, 32, 3, pad=1)
            self.bottom = L.Convolution2D(32, 64, 3, pad=1)
            self.up_2 = L.Deconvolution2D(64, 32, 2, 2)
            self.join_2 = L.Convolution2D(64, 32, 3, pad=1)
            self.up_1 = L.Deconvolution2D(32, 16, 2, 2)
            self.join_1 = L.Convolution2D(32, 16, 3, pad=1)
            self.last = L.Convolution2D(16, 10, 1)

    def __call__(self, x):
        a = F.relu(self.down_1(x))
        b = F.relu(self.down_2(F.max_pooling_2d(a, 2)))
        h = F.relu(self.bottom(F.max_pooling_2d(b, 2)))
        h = F.relu(self.join_2(F.concat([self.up_2(h), b], axis=1)))
        h = F.relu(self.join_1(F.concat([self.up_1(h), a], axis=1)))
        return self.last(h)


class LongShortTerm(toolkit.Chain):
    """An LSTM over sequences of one length, and a layer of words."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.lstm = L.NStepLSTM(1, WIDTH, WIDTH, 0.0)
            self.words = L.Linear(WIDTH, WORDS)

    def __call__(self, x):
        _, _, ys = self.lstm(None, None, [x[:, i] for i in range(x.shape[1])])
        return self.words(F.concat(ys, axis=0))


class Block(toolkit.Chain):
    """Attention and an MLP, each behind a layer normalization and beside a way past it."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.norm_a = L.LayerNormalization(WIDTH, eps=1e-5)
            self.attention = L.MultiHeadAttention(HEADS, WIDTH, causal=True)
            self.norm_b = L.LayerNormalization(WIDTH, eps=1e-5)
            self.up = L.Linear(WIDTH, 4 * WIDTH)
            self.down = L.Linear(4 * WIDTH, WIDTH)

    def __call__(self, x):
        x = x + self.attention(self.norm_a(x))
        h = F.reshape(self.norm_b(x), (-1, WIDTH))
        return x + F.reshape(self.down(F.gelu(self.up(h))), x.shape)


class Transformer(toolkit.Chain):
    """A decoder of words."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.embed = L.EmbedID(WORDS, WIDTH)
            self.blocks = toolkit.ChainList(*[Block() for _ in range(BLOCKS)])
            self.words = L.Linear(WIDTH, WORDS)

    def __call__(self, x):
        h = self.embed(x)
        for block in self.blocks:
            h = block(h)
        return self.words(F.reshape(h, (-1, WIDTH)))


def pool(h):
    return F.max_pooling_2d(h, 2)


def mean_of_cells(h):
    return F.average(h, axis=(2, 3))


def convolutions(*plan):
    """3 x 3 convolutions with relu; ``pool`` between them."""
    layers, n_in = [], 3
    for part in plan:
        if part is pool:
            layers.append(pool)
        else:
            layers += [L.Convolution2D(n_in, part, 3, pad=1), F.relu]
            n_in = part
    return layers


def mlp(*sizes):
    layers = []
    for n_in, n_out in pairwise(sizes):
        layers += [L.Linear(n_in, n_out), F.relu]
    return toolkit.Sequential(*layers[:-1])


def images(N, C, size):
    return lambda rng: rng.standard_normal((N, C, size, size), dtype=np.float32)


def rows(N, n):
    return lambda rng: rng.standard_normal((N, n), dtype=np.float32)


# name: the inputs, the labels (number, classes), the network
NETWORKS = {
    "MLP 1024-256-256-256-32, batch 64": (
        rows(64, 1024),
        (64, 32),
        lambda: mlp(1024, 256, 256, 256, 32),
    ),
    "MLP 784-1000-1000-10, batch 100": (
        rows(100, 784),
        (100, 10),
        lambda: mlp(784, 1000, 1000, 10),
    ),
    "LeNet, 64 of 1x28x28": (
        images(64, 1, 28),
        (64, 10),
        lambda: toolkit.Sequential(
            L.Convolution2D(1, 20, 5),
            pool,
            L.Convolution2D(20, 50, 5),
            pool,
            L.Linear(800, 500),
            F.relu,
            L.Linear(500, 10),
        ),
    ),
    "ResNet, 32 of 3x32x32": (
        images(32, 3, 32),
        (32, 10),
        lambda: toolkit.Sequential(
            L.Convolution2D(3, 32, 3, 1, 1, nobias=True),
            L.BatchNormalization(32),
            F.relu,
            Residual(32, 32, 1),
            Residual(32, 64, 2),
            Residual(64, 128, 2),
            mean_of_cells,
            L.Linear(128, 10),
        ),
    ),
    "VGG, 32 of 3x32x32": (
        images(32, 3, 32),
        (32, 10),
        lambda: toolkit.Sequential(
            *convolutions(32, 32, pool, 64, 64, pool, 128, 128, pool), L.Linear(2048, 10)
        ),
    ),
    "MobileNet, 32 of 3x32x32": (
        images(32, 3, 32),
        (32, 10),
        lambda: toolkit.Sequential(
            L.Convolution2D(3, 32, 3, 1, 1, nobias=True),
            L.BatchNormalization(32),
            F.relu,
            Separable(32, 64, 2),
            Separable(64, 128, 1),
            Separable(128, 128, 2),
            mean_of_cells,
            L.Linear(128, 10),
        ),
    ),
    "U-Net, 4 of 3x64x64": (images(4, 3, 64), (4, 64, 64, 10), UNet),
    "LSTM, 35 steps of 20 x 200": (
        lambda rng: rng.standard_normal((T, B, WIDTH), dtype=np.float32),
        (T * B, WORDS),
        LongShortTerm,
    ),
    "transformer, 8 of 64 words": (
        lambda rng: rng.integers(0, WORDS, (8, LENGTH)).astype("i4"),
        (8 * LENGTH, WORDS),
        Transformer,
    ),
}


def data(name):
    inputs, (*shape, classes), _ = NETWORKS[name]
    rng = np.random.default_rng(0)
    return inputs(rng), rng.integers(0, classes, shape).astype("i4")


def ours(name, what):
    x, t = data(name)
    model = NETWORKS[name][2]()
    optimizer = toolkit.optimizers.SGD(lr=0.01)
    optimizer.setup(model)

    def forward():
        return F.softmax_cross_entropy(model(x), t)

    def step():
        loss = forward()
        model.cleargrads()
        loss.backward()
        optimizer.update()

    forward.model = step.model = model
    return forward if what == FORWARD else step


# ---- the same in PyTorch's ----


def torch_networks(torch):
    nn, f = torch.nn, torch.nn.functional

    class Residual(nn.Module):
        def __init__(self, n_in, n_out, stride):
            super().__init__()
            self.a = nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False)
            self.norm_a = nn.BatchNorm2d(n_out)
            self.b = nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False)
            self.norm_b = nn.BatchNorm2d(n_out)
            self.past = nn.Identity()
            if n_in != n_out:
                self.past = nn.Conv2d(n_in, n_out, 1, stride, bias=False)

        def forward(self, x):
            h = self.norm_b(self.b(f.relu(self.norm_a(self.a(x)))))
            return f.relu(h + self.past(x))

    class UNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.down_1 = nn.Conv2d(3, 16, 3, padding=1)
            self.down_2 = nn.Conv2d(16, 32, 3, padding=1)
            self.bottom = nn.Conv2d(32, 64, 3, padding=1)
            self.up_2 = nn.ConvTranspose2d(64, 32, 2, 2)
            self.join_2 = nn.Conv2d(64, 32, 3, padding=1)
            self.up_1 = nn.ConvTranspose2d(32, 16, 2, 2)
            self.join_1 = nn.Conv2d(32, 16, 3, padding=1)
            self.last = nn.Conv2d(16, 10, 1)

        def forward(self, x):
            a = f.relu(self.down_1(x))
            b = f.relu(self.down_2(f.max_pool2d(a, 2)))
            h = f.relu(self.bottom(f.max_pool2d(b, 2)))
            h = f.relu(self.join_2(torch.cat([self.up_2(h), b], 1)))
            h = f.relu(self.join_1(torch.cat([self.up_1(h), a], 1)))
            return self.last(h)

    class LongShortTerm(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(WIDTH, WIDTH)
            self.words = nn.Linear(WIDTH, WORDS)

        def forward(self, x):
            return self.words(self.lstm(x)[0].reshape(-1, WIDTH))

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm_a = nn.LayerNorm(WIDTH)
            self.attention = nn.Linear(WIDTH, 3 * WIDTH)
            self.out = nn.Linear(WIDTH, WIDTH)
            self.norm_b = nn.LayerNorm(WIDTH)
            self.up = nn.Linear(WIDTH, 4 * WIDTH)
            self.down = nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x):
            N, length, _ = x.shape
            parts = self.attention(self.norm_a(x)).view(N, length, 3, HEADS, WIDTH // HEADS)
            q, k, v = parts.permute(2, 0, 3, 1, 4)
            h = f.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(h.transpose(1, 2).reshape(N, length, WIDTH))
            return x + self.down(f.gelu(self.up(self.norm_b(x))))

    def separable(n_in, n_out, stride):
        return [
            nn.Conv2d(n_in, n_in, 3, stride, 1, groups=n_in, bias=False),
            nn.BatchNorm2d(n_in),
            nn.ReLU(),
            nn.Conv2d(n_in, n_out, 1, bias=False),
            nn.BatchNorm2d(n_out),
            nn.ReLU(),
        ]

    def convolutions(*plan):
        layers, n_in = [], 3
        for part in plan:
            if part is pool:
                layers.append(nn.MaxPool2d(2))
            else:
                layers += [nn.Conv2d(n_in, part, 3, padding=1), nn.ReLU()]
                n_in = part
        return layers

    def mlp(*sizes):
        layers = []
        for n_in, n_out in pairwise(sizes):
            layers += [nn.Linear(n_in, n_out), nn.ReLU()]
        return nn.Sequential(*layers[:-1])

    first = lambda: [nn.Conv2d(3, 32, 3, 1, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU()]
    end = lambda: [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)]
    residual = lambda: [Residual(32, 32, 1), Residual(32, 64, 2), Residual(64, 128, 2)]
    made = (
        lambda: mlp(1024, 256, 256, 256, 32),
        lambda: mlp(784, 1000, 1000, 10),
        lambda: nn.Sequential(
            nn.Conv2d(1, 20, 5),
            nn.MaxPool2d(2),
            nn.Conv2d(20, 50, 5),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(800, 500),
            nn.ReLU(),
            nn.Linear(500, 10),
        ),
        lambda: nn.Sequential(*first(), *residual(), *end()),
        lambda: nn.Sequential(
            *convolutions(32, 32, pool, 64, 64, pool, 128, 128, pool),
            nn.Flatten(),
            nn.Linear(2048, 10),
        ),
        lambda: nn.Sequential(
            *first(),
            *separable(32, 64, 2),
            *separable(64, 128, 1),
            *separable(128, 128, 2),
            *end(),
        ),
        UNet,
        LongShortTerm,
        lambda: nn.Sequential(
            nn.Embedding(WORDS, WIDTH),
            *[Block() for _ in range(BLOCKS)],
            nn.Flatten(0, 1),
            nn.Linear(WIDTH, WORDS),
        ),
    )
    return dict(zip(NETWORKS, made, strict=True))


def theirs(torch, name, what):
    x, t = (torch.from_numpy(array) for array in data(name))
    model = torch_networks(torch)[name]()
    if x.ndim == 4:
        model.to(memory_format=torch.channels_last)
        x = x.to(memory_format=torch.channels_last)
    t = t.long()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def forward():
        return torch.nn.functional.cross_entropy(model(x), t)

    def step():
        optimizer.zero_grad()
        forward().backward()
        optimizer.step()

    forward.model = step.model = model
    return forward if what == FORWARD else step


def check_sizes(name, one, other):
    """Refuse to compare two networks that are not the same."""
    mine = sum([p.size for p in one.model.params()])
    others = sum([p.numel() for p in other.model.parameters()])
    if mine != others:
        raise SystemExit(f"{name} has {mine} parameters in mnpar and {others} in PyTorch")


# ---- what is measured ----


def operations(torch, name):
    """The additions and multiplications of products in one step, as PyTorch counts them; 0 where it
    does not (its LSTM).
    """
    from torch.utils.flop_counter import FlopCounterMode

    step = theirs(torch, name, STEP)
    with FlopCounterMode(display=False) as counter:
        step()
    return counter.get_total_flops()


def memory(name, kit):
    """The bytes that three steps add to a process of their own."""
    command = [sys.executable, "-m", "benchmarks.steps", name, "--memory", kit]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return int(done.stdout.split()[-1])


def print_memory(name, kit):
    torch = torch_or_none() if kit == "torch" else None
    before = forget_peak()
    step = theirs(torch, name, STEP) if torch else ours(name, STEP)
    for _ in range(3):
        step()
    print(resident("VmHWM") - before)


def rest():
    """Wait until the threads of the toolkit that was measured last sleep: before that they look for
    work, on the cores that the next one needs.
    """
    time.sleep(0.3)


def compare(name, torch, other):
    seconds, facts = {}, {}
    for what in (FORWARD, STEP):
        ways = {"mnpar": ours(name, what)}
        if torch:
            ways["torch"] = theirs(torch, name, what)
            check_sizes(name, ways["mnpar"], ways["torch"])
        if other:
            ways["chainer"] = Elsewhere(other, name, what)
        several = "--threads" in sys.argv
        once = max(in_turn(ways, 1, rounds=1).values())
        times = max(1, min(50, int(0.1 / once)))
        seconds[what] = in_turn(
            ways,
            times,
            rounds=7,
            before=rest if several else lambda: None,
            clock=time.perf_counter if several else time.process_time,
        )
    if torch:
        count = operations(torch, name)
        facts["bytes"] = {kit: memory(name, kit) for kit in ("mnpar", "torch")}
        if count:
            facts["limit"] = count / products(np)
    record(f"{name}: {FORWARD}", seconds[FORWARD])
    record(f"{name}: {STEP}", seconds[STEP], **facts)


def main():
    args = arguments(__doc__, threads=True)
    if args.serve:
        serve(ours)
        return
    names = [n for n in NETWORKS if not args.part or any(part in n for part in args.part)]
    if args.memory:
        print_memory(names[0], args.memory)
        return
    torch = torch_or_none(args.threads)
    other = start(args.chainer) if args.chainer else None
    for name in names:
        compare(name, torch, other)


if __name__ == "__main__":
    main()
