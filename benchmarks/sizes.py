"""Every function on 8, 10,000 and 1,000,000 elements, forward and with backward, beside Chainer's:
is one slower anywhere?

    python -m benchmarks.sizes [part of a name …] --chainer PYTHON

A row is a function and a size; the seconds are of the processor, the median of turns A B A B. × is
Chainer's time relative to mnpar's: above 1 mnpar is faster. At the end stand the rows below 0.97,
the slowest first. "A view": Chainer leaves in ``x.grad`` a view of ``y.grad``, or one that cannot
be written to; a gradient that mnpar leaves has its own memory, and that takes a copy. "Inside" is
the same followed by a multiplication, as within a network, where nobody else holds the gradient
that comes: then mnpar hands views on, too.
"""

import sys
import time

from benchmarks.rows import record
from benchmarks.timing import SERVE, Elsewhere, arguments, in_turn, one_thread, serve, start

one_thread()
import numpy as np  # noqa: E402

if SERVE in sys.argv:
    import chainer as toolkit
    import chainer.functions as F
else:
    import mnpar as toolkit
    import mnpar.functions as F
    from mnpar.communicators.create import keep_memory

    keep_memory()

SIZES = {"8": (2, 4), "10^4": (100, 100), "10^6": (1000, 1000)}


def one(name, **options):
    return 1, lambda x: getattr(F, name)(x, **options)


def two(name):
    return 2, lambda x, y: getattr(F, name)(x, y)


def labels(x):
    return np.arange(len(x), dtype="i4") % x.shape[1]


def images(x):
    """As one image of one channel, at least 2 by 2."""
    return x.reshape(1, 1, *x.shape)


ELEMENTWISE = (
    "absolute arctan cbrt ceil cos cosh crelu elu erf exp expm1 floor hard_sigmoid identity "
    "leaky_relu log_sigmoid relu relu6 "
    "rrelu selu sigmoid sign sin sinh softplus softsign square tan tanh log1p fix dropout"
)
OF_TWO = (
    "add maximum minimum arctan2 mean_squared_error mean_absolute_error squared_error "
    "absolute_error matmul "
    "squared_difference gaussian_kl_divergence"
)
ROWS = {name: one(name) for name in ELEMENTWISE.split()} | {
    "clipped_relu": one("clipped_relu", z=1.0),
    "clip": (1, lambda x: F.clip(x, -1.0, 1.0)),
    "log": (1, lambda x: F.log(x * x)),
    "sqrt": (1, lambda x: F.sqrt(x * x)),
    "rsqrt": (1, lambda x: F.rsqrt(x * x + 1)),
    "cast": (1, lambda x: F.cast(x, "f8")),
    "x + y": (2, lambda x, y: x + y),
    "x - y": (2, lambda x, y: x - y),
    "x * y": (2, lambda x, y: x * y),
    "x / y": (2, lambda x, y: x / y),
    "x ** 2": (1, lambda x: x**2),
    "x ** 3": (1, lambda x: x**3),
    "2 ** x": (1, lambda x: 2**x),
    "abs x ** y": (2, lambda x, y: abs(x) ** y),
    "x + 1": (1, lambda x: x + 1),
    "2 * x": (1, lambda x: 2 * x),
    "1 - x": (1, lambda x: 1 - x),
    "1 / x": (1, lambda x: 1 / x),
    "-x": (1, lambda x: -x),
    "x + row": (1, lambda x: x + x[0]),
    "sum": one("sum"),
    "sum axis 0": one("sum", axis=0),
    "sum axis 1": one("sum", axis=1),
    "sum axis 1, kept": one("sum", axis=1, keepdims=True),
    "mean": one("mean"),
    "mean axis 0": one("mean", axis=0),
    "mean axis 1": one("mean", axis=1),
    "max": one("max"),
    "max axis 0": one("max", axis=0),
    "max axis 1": one("max", axis=1),
    "min axis 1": one("min", axis=1),
    "prod": (1, lambda x: F.prod(x * 0.001 + 1)),
    "prod axis 0": (1, lambda x: F.prod(x * 0.001 + 1, axis=0)),
    "prod axis 1": (1, lambda x: F.prod(x * 0.001 + 1, axis=1)),
    "cumsum axis 0": one("cumsum", axis=0),
    "cumsum axis 1": one("cumsum", axis=1),
    "cumsum": one("cumsum"),
    "cumprod axis 1": (1, lambda x: F.cumprod(x * 0.001 + 1, axis=1)),
    "logsumexp": one("logsumexp"),
    "logsumexp axis 1": one("logsumexp", axis=1),
    "argmax axis 1": one("argmax", axis=1),
    "sum_to": (1, lambda x: F.sum_to(x, (1, x.shape[1]))),
    "softmax": one("softmax"),
    "softmax axis 0": one("softmax", axis=0),
    "log_softmax": one("log_softmax"),
    "normalize": one("normalize"),
    "maxout": (1, lambda x: F.maxout(x, 2)),
    "prelu": (1, lambda x: F.prelu(x, x[0])),
    "swish": (1, lambda x: F.swish(x, x[0])),
    "lstm": (1, lambda x: F.lstm(x[:, : x.shape[1] // 4], x)[1]),
    "linear_interpolate": (2, lambda x, y: F.linear_interpolate(x, y, x)),
    "softmax_cross_entropy": (1, lambda x: F.softmax_cross_entropy(x, labels(x))),
    "sigmoid_cross_entropy": (1, lambda x: F.sigmoid_cross_entropy(x, np.ones(x.shape, "i4"))),
    "huber_loss": (2, lambda x, y: F.huber_loss(x, y, 1.0)),
    "hinge": (1, lambda x: F.hinge(x, labels(x))),
    "bernoulli_nll": (2, lambda x, y: F.bernoulli_nll(x, y)),
    "gaussian_nll": (2, lambda x, y: F.gaussian_nll(x, y, y)),
    "accuracy": (1, lambda x: F.accuracy(x, labels(x))),
    "select_item": (1, lambda x: F.select_item(x, labels(x))),
    "batch_normalization": (
        1,
        lambda x: F.batch_normalization(x, np.ones(x.shape[1], "f4"), np.zeros(x.shape[1], "f4")),
    ),
    "fixed_batch_normalization": (
        1,
        lambda x: F.fixed_batch_normalization(x, *[np.ones(x.shape[1], "f4")] * 4),
    ),
    "layer_normalization": (
        1,
        lambda x: F.layer_normalization(x, np.ones(x.shape[1], "f4"), np.zeros(x.shape[1], "f4")),
    ),
    "group_normalization": (
        1,
        lambda x: F.group_normalization(
            x, 2, np.ones(x.shape[1], "f4"), np.zeros(x.shape[1], "f4")
        ),
    ),
    "local_response_normalization": (1, lambda x: F.local_response_normalization(x)),
    "linear": (2, lambda x, y: F.linear(x, y)),
    "linear, bias": (2, lambda x, y: F.linear(x, y, y[:, 0])),
    "matmul, transposed": (2, lambda x, y: F.matmul(x, y, transb=True)),
    "tensordot": (2, lambda x, y: F.tensordot(x, y, axes=((1,), (1,)))),
    "einsum": (2, lambda x, y: F.einsum("ij,kj->ik", x, y)),
    "embed_id": (1, lambda x: F.embed_id(np.arange(len(x), dtype="i4"), x)),
    "reshape": (1, lambda x: F.reshape(x, (-1,))),
    "flatten": one("flatten"),
    "transpose": one("transpose"),
    "transpose, copied": (1, lambda x: F.transpose(x) * 1),
    "swapaxes": (1, lambda x: F.swapaxes(x, 0, 1)),
    "moveaxis": (1, lambda x: F.moveaxis(x, 0, 1)),
    "rollaxis": (1, lambda x: F.rollaxis(x, 1)),
    "concat axis 0": (2, lambda x, y: F.concat((x, y), axis=0)),
    "concat axis 1": (2, lambda x, y: F.concat((x, y), axis=1)),
    "concat of 8": (1, lambda x: F.concat([x] * 8, axis=1)),
    "stack": (2, lambda x, y: F.stack((x, y))),
    "stack axis 1": (2, lambda x, y: F.stack((x, y), axis=1)),
    "hstack": (2, lambda x, y: F.hstack((x, y))),
    "vstack": (2, lambda x, y: F.vstack((x, y))),
    "dstack": (2, lambda x, y: F.dstack((x, y))),
    "split_axis": (1, lambda x: F.split_axis(x, 2, 1)[0]),
    "separate": (1, lambda x: F.stack(F.separate(x))),
    "expand_dims": (1, lambda x: F.expand_dims(x, 1)),
    "squeeze": (1, lambda x: F.squeeze(F.reshape(x, (1, *x.shape)))),
    "broadcast_to": (1, lambda x: F.broadcast_to(x, (3, *x.shape))),
    "get_item, slice": (1, lambda x: x[1:, ::2]),
    "get_item, number": (1, lambda x: x[1]),
    "get_item, rows": (1, lambda x: x[[0, 1, 1]]),
    "where": (2, lambda x, y: F.where(x.array > 0, x, y)),
    "pad": (1, lambda x: F.pad(x, 1, "constant")),
    "flip axis 0": one("flip", axis=0),
    "flip axis 1": one("flip", axis=1),
    "fliplr": one("fliplr"),
    "tile": one("tile", reps=(2, 1)),
    "repeat": one("repeat", repeats=2, axis=1),
    "scale": (1, lambda x: F.scale(x, x[0], axis=1)),
    "bias": (1, lambda x: F.bias(x, x[0], axis=1)),
    "diagonal": one("diagonal"),
    "permutate": (1, lambda x: F.permutate(x, np.arange(len(x), dtype="i4")[::-1])),
    "transpose_sequence": (1, lambda x: F.transpose_sequence([x, x])[0]),
    "convolution_2d": (
        1,
        lambda x: F.convolution_2d(images(x), np.ones((2, 1, 3, 3), "f4"), pad=1),
    ),
    "deconvolution_2d": (
        1,
        lambda x: F.deconvolution_2d(images(x), np.ones((1, 2, 3, 3), "f4"), pad=1),
    ),
    "max_pooling_2d": (1, lambda x: F.max_pooling_2d(images(x), 2)),
    "max_pooling_2d 3, 2": (1, lambda x: F.max_pooling_2d(images(x), 3, 2)),
    "average_pooling_2d": (1, lambda x: F.average_pooling_2d(images(x), 2)),
    "unpooling_2d": (1, lambda x: F.unpooling_2d(images(x), 2)),
    "upsampling of 4 channels": (
        1,
        lambda x: F.resize_images(images(x), (2 * x.shape[0], 2 * x.shape[1])),
    ),
    "im2col": (1, lambda x: F.im2col(images(x), 2)),
    "depth2space": (1, lambda x: F.depth2space(F.reshape(x, (1, 4, x.shape[0] // 2, -1)), 2)),
}
ROWS |= {name: two(name) for name in OF_TWO.split()}


def ours(name, size, i):
    if size == "10^6" and name in (
        "matmul",
        "linear",
        "linear, bias",
        "matmul, transposed",
        "tensordot",
        "einsum",
    ):
        raise AttributeError("BLAS alone")
    random, (count, function) = np.random.default_rng(len(name)), ROWS[name]
    shape = SIZES[size]
    if count == 2 and name == "matmul" and size == "8":
        shape = (3, 3)
    xs = [toolkit.Variable(random.standard_normal(shape, dtype=np.float32)) for _ in range(count)]
    y = function(*xs)
    gy = np.ones(y.shape, y.dtype)

    def forward():
        with toolkit.no_backprop_mode():
            function(*xs)

    def both():
        y = function(*xs) * 2 if i == "inside" else function(*xs)
        y.grad = gy
        y.backward()
        for x in xs:
            x.cleargrad()

    if i and y.creator is None:
        raise AttributeError("nothing flows back")
    if i == "borrowed":
        y.grad = gy
        y.backward()
        if not any(
            x.grad is not None and (np.shares_memory(x.grad, gy) or not x.grad.flags.writeable)
            for x in xs
        ):
            raise AttributeError("all gradients own their memory")
    return both if i else forward


def compare(name, size, chainer):
    found = {}
    for i, what in enumerate(("forward", "both")):
        try:
            ways = {"mnpar": ours(name, size, i)}
        except AttributeError:
            continue
        theirs = Elsewhere(chainer, name, size, i)
        if theirs.seconds(1) is None:
            continue
        ways["chainer"] = theirs
        borrowed = i and Elsewhere(chainer, name, size, "borrowed").seconds(1) is not None
        found |= measure(f"{name}, {size}: {what}{' (Chainer: a view)' if borrowed else ''}", ways)
        if borrowed:
            ways = {
                "mnpar": ours(name, size, "inside"),
                "chainer": Elsewhere(chainer, name, size, "inside"),
            }
            found |= measure(f"{name}, {size}: inside", ways)
    return found


def measure(row, ways):
    first = max(in_turn(ways, 3, rounds=1).values())
    times = max(1, min(300, int(0.02 / first)))
    seconds = in_turn(ways, times, rounds=7, clock=time.process_time)
    record(row, seconds)
    return {row: seconds["chainer"] / seconds["mnpar"]}


def main():
    args = arguments(__doc__)
    if args.serve:
        serve(ours)
    elif not args.chainer:
        raise SystemExit("--chainer PYTHON: a Python that has Chainer")
    else:
        other, ratios = start(args.chainer), {}
        for row in ROWS:
            if not args.part or any(part in row for part in args.part):
                for size in SIZES:
                    ratios |= compare(row, size, other)
        print(f"\n{len(ratios)} rows; slower than Chainer:")
        for row, ratio in sorted(ratios.items(), key=lambda pair: pair[1]):
            if ratio < 0.97:
                print(f"{ratio:6.2f}  {row}")


if __name__ == "__main__":
    main()
