"""Functions one by one, forward and forward with backward, beside PyTorch's (images in its channels_last form), on one thread.

python benchmarks/functions.py [part of a name]
"""

import sys

from compare import in_turn, one_thread, torch_or_none

one_thread()
import numpy as np  # noqa: E402

import mnpar  # noqa: E402
import mnpar.functions as F  # noqa: E402
import mnpar.links as L  # noqa: E402
from mnpar.communicators.create import keep_memory  # noqa: E402

keep_memory()
torch = torch_or_none()
T = torch.nn.functional if torch else None
RNG = np.random.default_rng(0)


def floats(*shape):
    return RNG.standard_normal(shape, dtype=np.float32)


def convolution(N, C, size, K, k, stride=1, pad=0):
    return (
        [floats(N, C, size, size), floats(K, C, k, k), floats(K)],
        lambda x, w, b: F.convolution_2d(x, w, b, stride, pad),
        lambda x, w, b: T.conv2d(x, w, b, stride, pad),
    )


def sequences():
    layer = L.NStepLSTM(1, 128, 128, 0.0)
    theirs = torch.nn.LSTM(128, 128, batch_first=True) if torch else None
    x = floats(32, 32, 128)
    return [x], lambda x: F.concat(layer(None, None, [x[i] for i in range(32)])[2], axis=0), lambda x: theirs(x)[0]


LABELS = RNG.integers(0, 10, 100)
WORDS = RNG.integers(0, 10_000, (32, 32))
ROWS = {
    "convolution 32x64x32x32, 64 of 3x3": convolution(32, 64, 32, 64, 3, 1, 1),
    "convolution 32x128x16x16, 128 of 3x3": convolution(32, 128, 16, 128, 3, 1, 1),
    "convolution 8x3x224x224, 64 of 7x7, stride 2": convolution(8, 3, 224, 64, 7, 2, 3),
    "convolution 64x1x28x28, 20 of 5x5": convolution(64, 1, 28, 20, 5),
    "convolution 64x20x12x12, 50 of 5x5": convolution(64, 20, 12, 50, 5),
    "convolution 32x256x14x14, 256 of 1x1": convolution(32, 256, 14, 256, 1),
    "deconvolution 32x64x16x16, 32 of 4x4, stride 2": (
        [floats(32, 64, 16, 16), floats(64, 32, 4, 4)],
        lambda x, w: F.deconvolution_2d(x, w, stride=2, pad=1),
        lambda x, w: T.conv_transpose2d(x, w, stride=2, padding=1),
    ),
    "max_pooling 32x64x32x32, 2x2": ([floats(32, 64, 32, 32)], lambda x: F.max_pooling_2d(x, 2), lambda x: T.max_pool2d(x, 2)),
    "average_pooling 32x64x32x32, 2x2": (
        [floats(32, 64, 32, 32)],
        lambda x: F.average_pooling_2d(x, 2),
        lambda x: T.avg_pool2d(x, 2),
    ),
    "batch_normalization 32x64x32x32": (
        [floats(32, 64, 32, 32), floats(64), floats(64)],
        F.batch_normalization,
        lambda x, g, b: T.batch_norm(x, None, None, g, b, training=True),
    ),
    "layer_normalization 1024x512": (
        [floats(1024, 512), floats(512), floats(512)],
        F.layer_normalization,
        lambda x, g, b: T.layer_norm(x, (512,), g, b),
    ),
    "linear 128x1024 to 1024": (
        [floats(128, 1024), floats(1024, 1024), floats(1024)],
        F.linear,
        lambda x, w, b: T.linear(x, w, b),
    ),
    "relu 2 M": ([floats(32, 64, 32, 32)], F.relu, lambda x: T.relu(x)),
    "gelu 0.5 M": ([floats(1024, 512)], F.gelu, lambda x: T.gelu(x)),
    "softmax 1024x512": ([floats(1024, 512)], F.softmax, lambda x: T.softmax(x, 1)),
    "softmax_cross_entropy 100x10": (
        [floats(100, 10)],
        lambda x: F.softmax_cross_entropy(x, LABELS),
        lambda x: T.cross_entropy(x, torch.from_numpy(LABELS)),
    ),
    "embed_id 32x32 of 10000x128": (
        [floats(10_000, 128)],
        lambda w: F.embed_id(WORDS, w),
        lambda w: T.embedding(torch.from_numpy(WORDS), w),
    ),
    "attention 8x8x128x64": (
        [floats(8, 8, 128, 64), floats(8, 8, 128, 64), floats(8, 8, 128, 64)],
        F.scaled_dot_product_attention,
        lambda q, k, v: T.scaled_dot_product_attention(q, k, v),
    ),
    "n_step_lstm 32x32x128 to 128": sequences(),
}


def ours(arrays, function):
    xs = [mnpar.Variable(x) for x in arrays]
    gy = np.ones(function(*xs).shape, "f4")

    def forward():
        with mnpar.no_backprop_mode():
            function(*xs)

    def both():
        y = function(*xs)
        y.grad = gy
        y.backward()
        for x in xs:
            x.cleargrad()

    return forward, both


def theirs(arrays, function):
    xs = [torch.from_numpy(x.copy()) for x in arrays]
    xs = [(x.to(memory_format=torch.channels_last) if x.ndim == 4 and x.shape[-1] != 64 else x).requires_grad_() for x in xs]
    gy = torch.ones_like(function(*xs))

    def forward():
        with torch.no_grad():
            function(*xs)

    def both():
        function(*xs).backward(gy)
        for x in xs:
            x.grad = None

    return forward, both


for name, (arrays, mine, other) in ROWS.items():
    if len(sys.argv) > 1 and sys.argv[1] not in name:
        continue
    ways = {"mnpar": ours(arrays, mine)} | ({"torch": theirs(arrays, other)} if torch else {})
    text = f"{name:48}"
    for i, what in enumerate(("forward", "and backward")):
        steps = {who: pair[i] for who, pair in ways.items()}
        begin = in_turn(steps, 1, rounds=1)
        found = in_turn(steps, max(1, min(200, int(0.1 / max(begin.values())))), rounds=5)
        text += f"  {what} " + "  ".join(f"{who} {1e6 * s:8.0f} µs" for who, s in found.items())
        if torch:
            text += f"  ratio {found['mnpar'] / found['torch']:5.2f}"
    print(text, flush=True)
