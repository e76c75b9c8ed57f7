"""Functions one by one, forward and with backward, beside PyTorch's and Chainer's, on one thread.

    python -m benchmarks.functions [part of a name …] [--chainer PYTHON]

The channels of images come last in memory, as the convolutions of mnpar and of PyTorch leave them;
Chainer knows no such order. PYTHON is one that has Chainer; the rows are the same for both, because
the names are. × is the time of another toolkit relative to mnpar's:
above 1 mnpar is faster. A gradient that is left in ``x.grad`` can be written to and has its own
memory. Where Chainer or PyTorch leaves there the program's ``y.grad``, a view of it or an array
that cannot be written to, "and backward" includes a copy of it, which mnpar has made already. Such
functions have two more rows: "and backward, as it is left", without that copy, so mnpar's work is
more; and "inside", with a multiplication after the function, as within a network.
"""

import functools
import sys
import time

from benchmarks.rows import record
from benchmarks.timing import (
    SERVE,
    Elsewhere,
    arguments,
    in_turn,
    one_thread,
    serve,
    start,
    torch_or_none,
)

one_thread()
import numpy as np  # noqa: E402

if SERVE in sys.argv:
    import chainer as toolkit
    import chainer.functions as F
    import chainer.links as L

    torch = None
else:
    import mnpar as toolkit
    import mnpar.functions as F
    import mnpar.links as L
    from mnpar.communicators.create import keep_memory

    keep_memory()
    torch = torch_or_none()
T = torch.nn.functional if torch else None
RNG = np.random.default_rng(0)
IMAGE = (32, 64, 32, 32)
ROWS_512 = (1024, 512)
LABELS = RNG.integers(0, 10, 100).astype("i4")
MANY_LABELS = RNG.integers(0, 1000, 256).astype("i4")
WORDS = RNG.integers(0, 10_000, (32, 32)).astype("i4")
FEW_WORDS = RNG.integers(0, 100, (4, 8)).astype("i4")
MANY_WORDS = RNG.integers(0, 30_000, (64, 128)).astype("i4")
SPOKEN = RNG.integers(1, 28, (16, 10)).astype("i4")
REGIONS = np.sort(RNG.uniform(0, 256, (32, 2, 2)), axis=1).reshape(32, 4).astype("f4")
REGIONS[:, 2:] += 16
OF_IMAGES = RNG.integers(0, 2, 32).astype("i4")
BITS = RNG.integers(0, 2, (256, 1000)).astype("i4")
MASK = RNG.integers(0, 2, ROWS_512) > 0
PICK = RNG.integers(0, 1024, 512)
COLUMNS = RNG.integers(0, 512, 1024).astype("i4")
PLACES = RNG.integers(0, 4, (32, 64, 16, 16)).astype("i4")
FORWARD = "forward"
BACKWARD = "and backward"
AS_LEFT = "and backward, as it is left"
INSIDE = "inside"
NO_DERIVATIVE = ("argmax", "argmin", "accuracy", "binary_accuracy")


def convolution(N, C, size, K, k, stride=1, pad=0, dilate=1, groups=1):
    return (
        [(N, C, size, size), (K, C // groups, k, k), (K,)],
        lambda x, w, b: F.convolution_2d(x, w, b, stride, pad, dilate=dilate, groups=groups),
        lambda x, w, b: T.conv2d(x, w, b, stride, pad, dilate, groups),
    )


@functools.cache
def layer(kind):
    return getattr(L, kind)(1, 128, 128, 0.0)


@functools.cache
def their_layer(kind):
    return getattr(torch.nn, kind)(128, 128, batch_first=True)


def sequences(kind):
    states = (None, None) if kind == "LSTM" else (None,)
    return (
        [(32, 32, 128)],
        lambda x: F.concat(layer("NStep" + kind)(*states, [x[i] for i in range(32)])[-1], axis=0),
        lambda x: their_layer(kind)(x)[0],
    )


def pooling(name, shape, K, stride=1, pad=0):
    """A pooling of any number of axes, by Chainer's name; PyTorch's is avg_pool1d and the like."""
    n = len(shape) - 2
    kind = {"max": "max_pool", "average": "avg_pool"}[name]
    options = {"cover_all": False} if name == "max" else {}
    return (
        [shape],
        lambda x: getattr(F, f"{name}_pooling_{n}d")(x, K, stride, pad, **options),
        lambda x: getattr(T, f"{kind}{n}d")(x, K, stride, pad),
    )


def attention(*shape, causal=False):
    return (
        [shape] * 3,
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, causal=causal),
        lambda q, k, v: T.scaled_dot_product_attention(q, k, v, is_causal=causal),
    )


def embedding(words, *shape):
    return (
        [shape],
        lambda w: F.embed_id(words, w),
        lambda w: T.embedding(torch.from_numpy(words).long(), w),
    )


def layer_normalization(N, D):
    return (
        [(N, D), (D,), (D,)],
        lambda x, g, b: F.layer_normalization(x, g, b),
        lambda x, g, b: T.layer_norm(x, (D,), g, b),
    )


def batch_normalization(*shape):
    return (
        [shape, shape[1:2], shape[1:2]],
        lambda x, g, b: F.batch_normalization(x, g, b),
        lambda x, g, b: T.batch_norm(x, None, None, g, b, training=True),
    )


def reduction(name, *shape):
    theirs = {"max": "amax", "min": "amin"}.get(name, name)
    return (
        [shape],
        lambda x: getattr(F, name)(x, axis=1),
        lambda x: getattr(x, theirs)(1),
    )


def spoken(x):
    """The CTC loss by PyTorch."""
    T_, N, _ = x.shape
    steps = torch.full((N,), T_)
    labels = torch.from_numpy(SPOKEN[:N]).long()
    return T.ctc_loss(T.log_softmax(x, 2), labels, steps, torch.full((N,), 10), reduction="none")


def alike(name, *shapes, of=None):
    """A function that all know by one name."""
    return (
        list(shapes),
        lambda *xs: getattr(F, name)(*xs),
        lambda *xs: getattr(of or torch, name)(*xs),
    )


ROWS = {
    "convolution 32x64x32x32, 64 of 3x3": convolution(32, 64, 32, 64, 3, 1, 1),
    "convolution 32x128x16x16, 128 of 3x3": convolution(32, 128, 16, 128, 3, 1, 1),
    "convolution 32x256x8x8, 256 of 3x3": convolution(32, 256, 8, 256, 3, 1, 1),
    "convolution 32x3x32x32, 64 of 3x3": convolution(32, 3, 32, 64, 3, 1, 1),
    "convolution 32x64x32x32, 128 of 3x3, stride 2": convolution(32, 64, 32, 128, 3, 2, 1),
    "convolution 8x3x224x224, 64 of 7x7, stride 2": convolution(8, 3, 224, 64, 7, 2, 3),
    "convolution 64x1x28x28, 20 of 5x5": convolution(64, 1, 28, 20, 5),
    "convolution 64x20x12x12, 50 of 5x5": convolution(64, 20, 12, 50, 5),
    "convolution 32x64x32x32, 64 of 1x1": convolution(32, 64, 32, 64, 1),
    "convolution 32x256x14x14, 256 of 1x1": convolution(32, 256, 14, 256, 1),
    "convolution 8x64x16x16, 64 of 3x3, dilated by 2": convolution(8, 64, 16, 64, 3, 1, 2, 2),
    "convolution 8x64x16x16, 64 of 3x3, 8 groups": convolution(8, 64, 16, 64, 3, 1, 1, 1, 8),
    "convolution 8x64x16x16, 64 of 3x3, depthwise": convolution(8, 64, 16, 64, 3, 1, 1, 1, 64),
    "convolution 32x128x16x16, 128 of 3x3, 32 groups": convolution(
        32, 128, 16, 128, 3, 1, 1, 1, 32
    ),
    "convolution 32x256x14x14, 256 of 1x1, 4 groups": convolution(32, 256, 14, 256, 1, groups=4),
    "convolution 1x8x8x8, 8 of 3x3": convolution(1, 8, 8, 8, 3, 1, 1),
    "convolution_1d 4x8x32, 8 of 3": (
        [(4, 8, 32), (8, 8, 3)],
        lambda x, w: F.convolution_nd(x, w, pad=1),
        lambda x, w: T.conv1d(x, w, padding=1),
    ),
    "convolution_1d 32x64x128, 64 of 3": (
        [(32, 64, 128), (64, 64, 3)],
        lambda x, w: F.convolution_nd(x, w, pad=1),
        lambda x, w: T.conv1d(x, w, padding=1),
    ),
    "convolution_1d 8x128x1024, 128 of 3, dilated by 4": (
        [(8, 128, 1024), (128, 128, 3)],
        lambda x, w: F.convolution_nd(x, w, pad=4, dilate=4),
        lambda x, w: T.conv1d(x, w, padding=4, dilation=4),
    ),
    "convolution_3d 4x16x16x16x16, 16 of 3x3x3": (
        [(4, 16, 16, 16, 16), (16, 16, 3, 3, 3)],
        lambda x, w: F.convolution_nd(x, w, pad=1),
        lambda x, w: T.conv3d(x, w, padding=1),
    ),
    "deconvolution 32x64x16x16, 32 of 4x4, stride 2": (
        [(32, 64, 16, 16), (64, 32, 4, 4)],
        lambda x, w: F.deconvolution_2d(x, w, stride=2, pad=1),
        lambda x, w: T.conv_transpose2d(x, w, stride=2, padding=1),
    ),
    "convolution_3d 2x3x16x32x32, 16 of 3x3x3, stride 2": (
        [(2, 3, 16, 32, 32), (16, 3, 3, 3, 3)],
        lambda x, w: F.convolution_nd(x, w, stride=2, pad=1),
        lambda x, w: T.conv3d(x, w, stride=2, padding=1),
    ),
    "max_pooling 32x64x32x32, 2x2": pooling("max", IMAGE, 2, 2),
    "max_pooling 32x64x32x32, 3x3, stride 2": pooling("max", IMAGE, 3, 2, 1),
    "max_pooling 1x8x8x8, 2x2": pooling("max", (1, 8, 8, 8), 2, 2),
    "max_pooling_1d 32x64x256, 2": pooling("max", (32, 64, 256), 2, 2),
    "max_pooling_3d 4x16x16x16x16, 2x2x2": pooling("max", (4, 16, 16, 16, 16), 2, 2),
    "average_pooling 32x64x32x32, 2x2": pooling("average", IMAGE, 2, 2),
    "average_pooling 32x64x32x32, 3x3, stride 2": pooling("average", IMAGE, 3, 2, 1),
    "average_pooling 32x512x7x7, all": pooling("average", (32, 512, 7, 7), 7, 7),
    "average_pooling 1x8x8x8, 2x2": pooling("average", (1, 8, 8, 8), 2, 2),
    "average_pooling_1d 32x64x256, 2": pooling("average", (32, 64, 256), 2, 2),
    "average_pooling_3d 4x16x16x16x16, 2x2x2": pooling("average", (4, 16, 16, 16, 16), 2, 2),
    "unpooling 32x64x16x16, 2x2": (
        [(32, 64, 16, 16)],
        lambda x: F.unpooling_2d(x, 2, cover_all=False),
        lambda x: T.interpolate(x, scale_factor=2),
    ),
    "resize_images 8x16x32x32 to 64x64": (
        [(8, 16, 32, 32)],
        lambda x: F.resize_images(x, (64, 64)),
        lambda x: T.interpolate(x, (64, 64), mode="bilinear", align_corners=True),
    ),
    "resize_images 8x64x64x64 to 128x128, nearest": (
        [(8, 64, 64, 64)],
        lambda x: F.resize_images(x, (128, 128), "nearest"),
        lambda x: T.interpolate(x, (128, 128), mode="nearest"),
    ),
    "roi_average_align_2d 2x64x64x64, 32 of 7x7": (
        [(2, 64, 64, 64)],
        lambda x: F.roi_average_align_2d(x, REGIONS, OF_IMAGES, 7, 0.25, 2),
        None,
    ),
    "roi_max_pooling_2d 2x64x64x64, 32 of 7x7": (
        [(2, 64, 64, 64)],
        lambda x: F.roi_max_pooling_2d(x, REGIONS, OF_IMAGES, 7, 0.25),
        None,
    ),
    "batch_normalization 32x64x32x32": batch_normalization(*IMAGE),
    "batch_normalization 128x512": batch_normalization(128, 512),
    "batch_normalization 32x64": batch_normalization(32, 64),
    "fixed_batch_normalization 32x64x32x32": (
        [IMAGE, (64,), (64,)],
        lambda x, g, b: F.fixed_batch_normalization(x, g, b, np.zeros(64, "f4"), np.ones(64, "f4")),
        lambda x, g, b: T.batch_norm(x, torch.zeros(64), torch.ones(64), g, b),
    ),
    "layer_normalization 1024x512": layer_normalization(1024, 512),
    "layer_normalization 128x256": layer_normalization(128, 256),
    "layer_normalization 32x64": layer_normalization(32, 64),
    "group_normalization 8x64x32x32, 8 groups": (
        [(8, 64, 32, 32), (64,), (64,)],
        lambda x, g, b: F.group_normalization(x, 8, g, b),
        lambda x, g, b: T.group_norm(x, 8, g, b),
    ),
    "local_response_normalization 8x64x32x32": (
        [(8, 64, 32, 32)],
        lambda x: F.local_response_normalization(x),
        lambda x: T.local_response_norm(x, 5),
    ),
    "normalize 1024x512": ([(1024, 512)], lambda x: F.normalize(x), lambda x: T.normalize(x)),
    "normalize 32x64": ([(32, 64)], lambda x: F.normalize(x), lambda x: T.normalize(x)),
    "linear 128x1024 to 1024": alike("linear", (128, 1024), (1024, 1024), (1024,), of=T),
    "linear 16x64 to 64": alike("linear", (16, 64), (64, 64), (64,), of=T),
    "matmul 256x256 by 256x256": alike("matmul", (256, 256), (256, 256)),
    "matmul 64 of 32x32 by 32x32": alike("matmul", (64, 32, 32), (64, 32, 32)),
    "einsum 32x64x32, 32x32x64": (
        [(32, 64, 32), (32, 32, 64)],
        lambda x, y: F.einsum("bij,bjk->bik", x, y),
        lambda x, y: torch.einsum("bij,bjk->bik", x, y),
    ),
    "relu 2 M": alike("relu", IMAGE),
    "relu 64": alike("relu", (8, 8)),
    "leaky_relu 0.5 M": alike("leaky_relu", ROWS_512, of=T),
    "elu 0.5 M": alike("elu", ROWS_512, of=T),
    "selu 0.5 M": alike("selu", ROWS_512),
    "sigmoid 0.5 M": alike("sigmoid", ROWS_512),
    "tanh 0.5 M": alike("tanh", ROWS_512),
    "softplus 0.5 M": alike("softplus", ROWS_512, of=T),
    "gelu 0.5 M": alike("gelu", ROWS_512, of=T),
    "gelu 32x256": alike("gelu", (32, 256), of=T),
    "gelu 64": alike("gelu", (8, 8), of=T),
    "clip 0.5 M": ([ROWS_512], lambda x: F.clip(x, -1.0, 1.0), lambda x: torch.clip(x, -1, 1)),
    "prelu 32x64x16x16": alike("prelu", (32, 64, 16, 16), (64,), of=T),
    "maxout 128x512, 2": (
        [(128, 512)],
        lambda x: F.maxout(x, 2),
        lambda x: x.reshape(128, 256, 2).amax(2),
    ),
    "exp 0.5 M": alike("exp", ROWS_512),
    "log1p of square 0.5 M": (
        [ROWS_512],
        lambda x: F.log1p(F.square(x)),
        lambda x: torch.log1p(torch.square(x)),
    ),
    "sqrt of absolute 0.5 M": (
        [ROWS_512],
        lambda x: F.sqrt(F.absolute(x)),
        lambda x: torch.sqrt(torch.abs(x)),
    ),
    "x * y + z 0.5 M": ([ROWS_512] * 3, lambda x, y, z: x * y + z, lambda x, y, z: x * y + z),
    "x / y - 2 0.5 M": ([ROWS_512] * 2, lambda x, y: x / y - 2, lambda x, y: x / y - 2),
    "x ** 3 0.5 M": ([ROWS_512], lambda x: x**3, lambda x: x**3),
    "maximum 0.5 M": alike("maximum", ROWS_512, ROWS_512),
    "dropout 0.5 M": alike("dropout", ROWS_512, of=T),
    "dropout 32x256": alike("dropout", (32, 256), of=T),
    "dropout 64": alike("dropout", (8, 8), of=T),
    "softmax 1024x512": ([ROWS_512], lambda x: F.softmax(x), lambda x: T.softmax(x, 1)),
    "softmax 32x10": ([(32, 10)], lambda x: F.softmax(x), lambda x: T.softmax(x, 1)),
    "softmax 32x10x32x32": ([(32, 10, 32, 32)], lambda x: F.softmax(x), lambda x: T.softmax(x, 1)),
    "log_softmax 1024x512": ([ROWS_512], lambda x: F.log_softmax(x), lambda x: T.log_softmax(x, 1)),
    "logsumexp 1024x512": (
        [ROWS_512],
        lambda x: F.logsumexp(x, axis=1),
        lambda x: torch.logsumexp(x, 1),
    ),
    "softmax_cross_entropy 100x10": (
        [(100, 10)],
        lambda x: F.softmax_cross_entropy(x, LABELS),
        lambda x: T.cross_entropy(x, torch.from_numpy(LABELS).long()),
    ),
    "softmax_cross_entropy 256x1000": (
        [(256, 1000)],
        lambda x: F.softmax_cross_entropy(x, MANY_LABELS),
        lambda x: T.cross_entropy(x, torch.from_numpy(MANY_LABELS).long()),
    ),
    "sigmoid_cross_entropy 256x1000": (
        [(256, 1000)],
        lambda x: F.sigmoid_cross_entropy(x, BITS),
        lambda x: T.binary_cross_entropy_with_logits(x, torch.from_numpy(BITS).float()),
    ),
    "mean_squared_error 0.5 M": (
        [ROWS_512] * 2,
        lambda x, y: F.mean_squared_error(x, y),
        lambda x, y: T.mse_loss(x, y),
    ),
    "mean_absolute_error 0.5 M": (
        [ROWS_512] * 2,
        lambda x, y: F.mean_absolute_error(x, y),
        lambda x, y: T.l1_loss(x, y),
    ),
    "huber_loss 1024x512": (
        [ROWS_512] * 2,
        lambda x, y: F.huber_loss(x, y, 1.0),
        lambda x, y: T.huber_loss(x, y),
    ),
    "connectionist_temporal_classification 50x16x28, 10": (
        [(50, 16, 28)],
        lambda x: F.connectionist_temporal_classification(x, SPOKEN, 0, reduce="no"),
        spoken,
    ),
    "connectionist_temporal_classification 25x2x28, 10": (
        [(25, 2, 28)],
        lambda x: F.connectionist_temporal_classification(x, SPOKEN[:2], 0, reduce="no"),
        spoken,
    ),
    "sum 0.5 M": ([ROWS_512], lambda x: F.sum(x), lambda x: x.sum()),
    "sum 32x64x32x32 over axes 0, 2, 3": (
        [IMAGE],
        lambda x: F.sum(x, axis=(0, 2, 3)),
        lambda x: x.sum((0, 2, 3)),
    ),
    "mean 1024x512 over axis 0": ([ROWS_512], lambda x: F.mean(x, axis=0), lambda x: x.mean(0)),
    "max 1024x512 over axis 1": reduction("max", *ROWS_512),
    "max 32x64 over axis 1": reduction("max", 32, 64),
    "cumsum 1024x512": ([ROWS_512], lambda x: F.cumsum(x, axis=1), lambda x: torch.cumsum(x, 1)),
    "prod 1024x512 over axis 1": reduction("prod", *ROWS_512),
    "prod 1024x8 over axis 1": reduction("prod", 1024, 8),
    "prod 32x8 over axis 1": reduction("prod", 32, 8),
    "broadcast_to 512 to 1024x512": (
        [(512,)],
        lambda x: F.broadcast_to(x, ROWS_512),
        lambda x: x.expand(ROWS_512).clone(),
    ),
    "bias 32x64x32x32": (
        [IMAGE, (64,)],
        lambda x, b: F.bias(x, b),
        lambda x, b: x + b[:, None, None],
    ),
    "scale 32x64x32x32": (
        [IMAGE, (64,)],
        lambda x, b: F.scale(x, b),
        lambda x, b: x * b[:, None, None],
    ),
    "concat 4 of 256x512": (
        [(256, 512)] * 4,
        lambda *xs: F.concat(xs),
        lambda *xs: torch.cat(xs, 1),
    ),
    "stack 4 of 256x512": ([(256, 512)] * 4, lambda *xs: F.stack(xs), lambda *xs: torch.stack(xs)),
    "split_axis 1024x512 in 4, concat": (
        [ROWS_512],
        lambda x: F.concat(F.split_axis(x, 4, 1), axis=0),
        lambda x: torch.cat(x.chunk(4, 1)),
    ),
    "separate 32x512, stack": (
        [(32, 512)],
        lambda x: F.stack(F.separate(x)),
        lambda x: torch.stack(x.unbind()),
    ),
    "transpose 1024x512, copied": ([ROWS_512], lambda x: F.transpose(x) * 1, lambda x: x.T * 1),
    "get_item 1024x512, a slice": ([ROWS_512], lambda x: x[:, 100:200], lambda x: x[:, 100:200]),
    "get_item 1024x512, rows": ([ROWS_512], lambda x: x[PICK], lambda x: x[torch.from_numpy(PICK)]),
    "where 0.5 M": (
        [ROWS_512] * 2,
        lambda x, y: F.where(MASK, x, y),
        lambda x, y: torch.where(torch.from_numpy(MASK), x, y),
    ),
    "pad 256x256 by 2": (
        [(256, 256)],
        lambda x: F.pad(x, 2, "constant"),
        lambda x: T.pad(x, (2, 2, 2, 2)),
    ),
    "repeat 256x256 by 4": (
        [(256, 256)],
        lambda x: F.repeat(x, 4, axis=1),
        lambda x: x.repeat_interleave(4, 1),
    ),
    "tile 256x256 by 4": ([(256, 256)], lambda x: F.tile(x, (1, 4)), lambda x: x.repeat(1, 4)),
    "flip 1024x512": ([ROWS_512], lambda x: F.flip(x, 1), lambda x: x.flip(1)),
    "im2col 8x16x32x32, 3x3": (
        [(8, 16, 32, 32)],
        lambda x: F.im2col(x, 3),
        lambda x: T.unfold(x, 3),
    ),
    "embed_id 4x8 of 100x16": embedding(FEW_WORDS, 100, 16),
    "embed_id 32x32 of 10000x128": embedding(WORDS, 10_000, 128),
    "embed_id 64x128 of 30000x256": embedding(MANY_WORDS, 30_000, 256),
    "attention 2x2x16x16": attention(2, 2, 16, 16),
    "attention 8x8x128x64": attention(8, 8, 128, 64),
    "attention 8x8x128x64, causal": attention(8, 8, 128, 64, causal=True),
    "attention 2x8x1024x64": attention(2, 8, 1024, 64),
    "attention 2x8x1024x64, causal": attention(2, 8, 1024, 64, causal=True),
    "add 3 of 0.5 M": ([ROWS_512] * 3, lambda *xs: F.add(*xs), lambda x, y, z: x + y + z),
    "minimum 0.5 M": alike("minimum", ROWS_512, ROWS_512),
    "log of exp 0.5 M": ([ROWS_512], lambda x: F.log(F.exp(x)), lambda x: torch.log(torch.exp(x))),
    "swish 1024x512": (
        [ROWS_512, (512,)],
        lambda x, b: F.swish(x, b),
        lambda x, b: x * torch.sigmoid(b * x),
    ),
    "tensordot 64x32x32 by 32x32x64": (
        [(64, 32, 32), (32, 32, 64)],
        lambda x, y: F.tensordot(x, y, 2),
        lambda x, y: torch.tensordot(x, y, 2),
    ),
    "average 1024x512 over axis 1, weighted": (
        [ROWS_512, (512,)],
        lambda x, w: F.average(x, 1, w),
        lambda x, w: (x * w).sum(1) / w.sum(),
    ),
    "min 1024x512 over axis 1": reduction("min", *ROWS_512),
    "argmax 1024x512 over axis 1": ([ROWS_512], lambda x: F.argmax(x, 1), lambda x: x.argmax(1)),
    "argmin 1024x512 over axis 1": ([ROWS_512], lambda x: F.argmin(x, 1), lambda x: x.argmin(1)),
    "sum_to 1024x512 to 512": (
        [ROWS_512],
        lambda x: F.sum_to(x, (512,)),
        lambda x: x.sum_to_size(512),
    ),
    "reshape 1024x512": (
        [ROWS_512],
        lambda x: F.reshape(x, (512, 1024)),
        lambda x: x.reshape(512, 1024),
    ),
    "flatten 1024x512": ([ROWS_512], lambda x: F.flatten(x), lambda x: x.flatten()),
    "expand_dims 1024x512": ([ROWS_512], lambda x: F.expand_dims(x, 1), lambda x: x[:, None]),
    "squeeze 1024x1x512": ([(1024, 1, 512)], lambda x: F.squeeze(x, 1), lambda x: x.squeeze(1)),
    "swapaxes 1024x512, copied": (
        [ROWS_512],
        lambda x: F.swapaxes(x, 0, 1) * 1,
        lambda x: x.swapaxes(0, 1) * 1,
    ),
    "cast 0.5 M to float64": ([ROWS_512], lambda x: F.cast(x, "f8"), lambda x: x.double()),
    "select_item 1024x512": (
        [ROWS_512],
        lambda x: F.select_item(x, COLUMNS),
        lambda x: x.gather(1, torch.from_numpy(COLUMNS).long()[:, None])[:, 0],
    ),
    "transpose_sequence 32 of 32x128": (
        [(32, 32, 128)],
        lambda x: F.concat(F.transpose_sequence([x[i] for i in range(32)]), axis=0),
        None,
    ),
    "accuracy 256x1000": ([(256, 1000)], lambda x: F.accuracy(x, MANY_LABELS), None),
    "binary_accuracy 256x1000": ([(256, 1000)], lambda x: F.binary_accuracy(x, BITS), None),
    "gaussian_kl_divergence 0.5 M": (
        [ROWS_512] * 2,
        lambda m, v: F.gaussian_kl_divergence(m, v),
        None,
    ),
    "bernoulli_nll 0.5 M": ([ROWS_512] * 2, lambda x, y: F.bernoulli_nll(x, y), None),
    "gaussian 0.5 M": ([ROWS_512] * 2, lambda m, v: F.gaussian(m, v), None),
    "upsampling_2d 32x64x16x16, 2x2": (
        [(32, 64, 16, 16)],
        lambda x: F.upsampling_2d(x, PLACES, 2, cover_all=False),
        None,
    ),
    "lstm 64 of 128": ([(64, 128), (64, 512)], lambda c, x: F.lstm(c, x)[1], None),
    "n_step_lstm 32x32x128 to 128": sequences("LSTM"),
    "n_step_gru 32x32x128 to 128": sequences("GRU"),
}


def inputs(name):
    """The same numbers in each process; the channels of images come last in memory, but where
    Chainer computes.
    """
    random = np.random.default_rng(len(name))
    xs = [random.standard_normal(shape, dtype=np.float32) for shape in ROWS[name][0]]
    if not has_channels(name):
        return xs
    return [np.copy(x.transpose(0, 2, 3, 1), "C").transpose(0, 3, 1, 2) for x in xs[:1]] + xs[1:]


def has_channels(name):
    """Return whether the first array is of images whose channels may come last in memory."""
    return SERVE not in sys.argv and len(ROWS[name][0][0]) == 4 and "attention" not in name


def ours(name, i):
    """What is timed; AttributeError where gradients would be left just so, because they own their
    memory.
    """
    xs = [toolkit.Variable(x) for x in inputs(name)]
    function = ROWS[name][1]
    gy = np.ones_like(function(*xs).array)

    def forward():
        with toolkit.no_backprop_mode():
            function(*xs)

    def both():
        y = function(*xs) * 2 if i == INSIDE else function(*xs)
        y.grad = gy
        y.backward()
        for x in lent if i == BACKWARD else ():
            x.grad.copy()
        for x in xs:
            x.cleargrad()

    if i != FORWARD:
        y = function(*xs)
        y.grad = gy
        y.backward()
        given = [x for x in xs if x.grad is not None]
        lent = [x for x in given if np.shares_memory(x.grad, gy) or not x.grad.flags.writeable]
        if i == AS_LEFT and not lent and SERVE in sys.argv:
            raise AttributeError("all gradients own their memory")
    return forward if i == FORWARD else both


def theirs(name, i):
    """The same by PyTorch; None in place of the AttributeError."""
    xs = [torch.from_numpy(x) for x in inputs(name)]
    function = ROWS[name][2]
    xs = [
        (
            x.to(memory_format=torch.channels_last) if x.ndim == 4 and has_channels(name) else x
        ).requires_grad_()
        for x in xs
    ]
    gy = torch.ones_like(function(*xs))

    def forward():
        with torch.no_grad():
            function(*xs)

    def both():
        (function(*xs) * 2 if i == INSIDE else function(*xs)).backward(gy)
        for x in lent if i == BACKWARD else ():
            x.grad.clone()
        for x in xs:
            x.grad = None

    if i != FORWARD:
        function(*xs).backward(gy)
        storage = gy.untyped_storage().data_ptr()
        lent = [
            x for x in xs if x.grad is not None and x.grad.untyped_storage().data_ptr() == storage
        ]
        if i == AS_LEFT and not lent:
            return None
    return forward if i == FORWARD else both


def known(chainer, *key):
    return chainer is not None and Elsewhere(chainer, *key).seconds(1) is not None


def compare(name, chainer):
    kinds = [FORWARD] if name.startswith(NO_DERIVATIVE) else [FORWARD, BACKWARD]
    pytorch = torch is not None and ROWS[name][2] is not None
    if len(kinds) > 1 and (known(chainer, name, AS_LEFT) or (pytorch and theirs(name, AS_LEFT))):
        kinds += [AS_LEFT, INSIDE]
    for i in kinds:
        ways = {"mnpar": ours(name, i)}
        if pytorch and theirs(name, i):
            ways["torch"] = theirs(name, i)
        if known(chainer, name, i):
            ways["chainer"] = Elsewhere(chainer, name, i)
        begin = in_turn(ways, 1, rounds=1)
        times = max(1, min(200, int(0.1 / max(begin.values()))))
        record(f"{name}: {i}", in_turn(ways, times, rounds=5, clock=time.process_time))


def main():
    args = arguments(__doc__)
    if args.serve:
        serve(ours)
    else:
        other = start(args.chainer) if args.chainer else None
        for row in ROWS:
            if not args.part or any(part in row for part in args.part):
                compare(row, other)


if __name__ == "__main__":
    main()
