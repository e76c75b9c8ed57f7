"""The same computations in PyTorch's words and in mnpar's.

A row of functions is a call of ``torch`` and of its tensors, the same of ``F`` and of Variables,
and the inputs (:func:`recording.draw`).
"""

import numpy as np


def nn(torch):
    return torch.nn.functional


def tensor(torch, values, dtype="int64"):
    return torch.tensor(values, dtype=getattr(torch, dtype))


def split(F, packed):
    """The rows of each step, of packed sequences of lengths 4, 3 and 1."""
    return F.split_axis(packed, np.cumsum(ROWS)[:-1], 0)


ROWS = (3, 2, 2, 1)


def recurrent(name, gates, *, layers=1, directions=1, cells=False, **options):
    """Recurrent layers over packed sequences; each weight and bias is of all gates."""
    units, width = 2, 3
    peer = name if gates > 1 else f"rnn_{options['activation']}"
    ours = f"n_step_{'bi' if directions == 2 else ''}{name}"

    def theirs(torch, *arrays):
        states, packed, weights = arrays[: 1 + cells], arrays[1 + cells], arrays[2 + cells :]
        return getattr(torch, peer)(
            packed,
            tensor(torch, ROWS),
            states if cells else states[0],
            weights,
            True,
            layers,
            0.0,
            True,
            directions == 2,
        )

    def call(F, *arrays):
        states, packed, weights = arrays[: 1 + cells], arrays[1 + cells], arrays[2 + cells :]
        gated = [F.split_axis(weight, gates, 0) for weight in weights]
        ws = [[*gated[i], *gated[i + 1]] for i in range(0, len(gated), 4)]
        bs = [[*gated[i + 2], *gated[i + 3]] for i in range(0, len(gated), 4)]
        *states, ys = getattr(F, ours)(layers, 0.0, *states, ws, bs, split(F, packed), **options)
        return F.concat(ys, 0), *states

    shapes = [(layers * directions, 3, units)] * (1 + cells) + [(sum(ROWS), width)]
    for layer in range(layers):
        into = width if layer == 0 else directions * units
        one = [(gates * units, into), (gates * units, units), (gates * units,), (gates * units,)]
        shapes += one * directions
    return theirs, call, *shapes


def their_ctc(torch, x, t, lengths, labels, **options):
    return nn(torch).ctc_loss(nn(torch).log_softmax(x, 2), t, lengths, labels, 2, **options)


def our_ctc(F, x, t, lengths, labels, **options):
    return F.connectionist_temporal_classification(
        F.separate(x, 0), t, 2, lengths, labels, **options
    )


CTC = (7, 3, 5), [[0, 1, 0], [3, 3, 4], [1, 4, 4]], [4, 7, 6], [1, 3, 2]
IMAGES = (2, 4, 6, 5)
LABELS = [[[0, 1], [2, -1]], [[0, 0], [1, 2]]]


def sampled(F, x, theta):
    return F.spatial_transformer_sampler(x, F.spatial_transformer_grid(theta, (4, 3)))


def their_batch_normalization(torch, x, gamma, beta):
    mean, var = torch.zeros(4, dtype=x.dtype), torch.ones(4, dtype=x.dtype)
    ys = [
        nn(torch).batch_norm(scale * x, mean, var, gamma, beta, True, 0.3, 0.01) for scale in (1, 2)
    ]
    ys.append(nn(torch).batch_norm(x, mean, var, gamma, beta, False, 0.3, 0.01))
    return *ys, mean, var


def our_batch_normalization(F, x, gamma, beta):
    mean, var = np.zeros(4), np.ones(4)
    ys = [
        F.batch_normalization(
            scale * x, gamma, beta, 0.01, running_mean=mean, running_var=var, decay=0.7
        )
        for scale in (1, 2)
    ]
    ys.append(F.fixed_batch_normalization(x, gamma, beta, mean, var, 0.01))
    return *ys, mean, var


FUNCTIONS = {
    "affine_grid and grid_sample": (
        lambda torch, x, theta: nn(torch).grid_sample(
            x, nn(torch).affine_grid(theta, (2, 4, 4, 3), align_corners=True), align_corners=True
        ),
        sampled,
        IMAGES,
        (2, 2, 3),
    ),
    "avg_pool2d without padding in the mean": (
        lambda torch, x: nn(torch).avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        lambda F, x: F.average_pooling_nd(x, 3, 2, 1, None),
        (2, 3, 7, 5),
    ),
    "batch_norm": (
        their_batch_normalization,
        our_batch_normalization,
        (3, 4, 2, 3),
        (4,),
        (4,),
    ),
    "binary_cross_entropy_with_logits": (
        lambda torch, x: nn(torch).binary_cross_entropy_with_logits(
            x, tensor(torch, [[1, 0, 1], [0, 0, 1]], "float64"), reduction="none"
        ),
        lambda F, x: F.sigmoid_cross_entropy(x, np.array([[1, 0, 1], [0, 0, 1]]), reduce="no"),
        (2, 3),
    ),
    "celu": (lambda torch, x: nn(torch).elu(x, 0.7), lambda F, x: F.elu(x, 0.7), (4, 3)),
    "cholesky": (
        lambda torch, x: torch.linalg.cholesky(x @ x.T + 0.5 * torch.eye(3, dtype=x.dtype)),
        lambda F, x: F.cholesky(F.matmul(x, x, transb=True) + 0.5 * np.eye(3)),
        (3, 3),
    ),
    "conv2d": (
        lambda torch, x, W, b: nn(torch).conv2d(x, W, b, 2, (2, 1), (1, 2), 2),
        lambda F, x, W, b: F.convolution_2d(x, W, b, 2, (2, 1), dilate=(1, 2), groups=2),
        IMAGES,
        (6, 2, 3, 2),
        (6,),
    ),
    "conv3d": (
        lambda torch, x, W, b: nn(torch).conv3d(x, W, b, (1, 2, 1), 1, (1, 2, 1), 2),
        lambda F, x, W, b: F.convolution_nd(x, W, b, (1, 2, 1), 1, False, (1, 2, 1), 2),
        (2, 2, 3, 5, 4),
        (4, 1, 2, 2, 3),
        (4,),
    ),
    "conv_transpose2d": (
        lambda torch, x, W, b: nn(torch).conv_transpose2d(x, W, b, (2, 3), 1, (1, 0), 2, (1, 2)),
        lambda F, x, W, b: F.deconvolution_2d(x, W, b, (2, 3), 1, (6, 7), dilate=(1, 2), groups=2),
        (2, 4, 3, 3),
        (4, 3, 3, 2),
        (6,),
    ),
    "cross_entropy of pixels": (
        lambda torch, x: nn(torch).cross_entropy(
            x,
            tensor(torch, LABELS),
            tensor(torch, [0.5, 2.0, 1.5], "float64"),
            ignore_index=-1,
            reduction="none",
        ),
        lambda F, x: F.softmax_cross_entropy(
            x, np.array(LABELS), class_weight=np.array([0.5, 2.0, 1.5]), reduce="no"
        ),
        (2, 3, 2, 2),
    ),
    "cross_entropy, mean": (
        lambda torch, x: nn(torch).cross_entropy(x, tensor(torch, LABELS), ignore_index=-1),
        lambda F, x: F.softmax_cross_entropy(x, np.array(LABELS)),
        (2, 3, 2, 2),
    ),
    "cross_entropy of soft targets, weighed": (
        # Chainer's does not look at the weights
        lambda torch, x, t: nn(torch).cross_entropy(
            x, t.detach(), tensor(torch, [0.5, 2.0, 1.5], "float64"), reduction="none"
        ),
        lambda F, x, t: F.softmax_cross_entropy(
            x, t.array, class_weight=np.array([0.5, 2.0, 1.5]), reduce="no"
        ),
        (4, 3),
        (4, 3),
    ),
    "ctc_loss": (
        lambda torch, *arrays: their_ctc(torch, *arrays, reduction="none"),
        lambda F, *arrays: our_ctc(F, *arrays, reduce="no"),
        *CTC,
    ),
    "ctc_loss of labels that do not fit": (
        # infinite, with a gradient of 0
        lambda torch, *arrays: nn(torch).relu(
            their_ctc(torch, *arrays, reduction="none", zero_infinity=True)
        ),
        lambda F, *arrays: F.where(
            np.array([True, False, True]), our_ctc(F, *arrays, reduce="no"), np.zeros(3)
        ),
        (4, 3, 5),
        [[0, 1, 0], [3, 3, 3], [1, 4, 4]],
        [4, 4, 4],
        [2, 3, 3],
    ),
    "cumprod with a zero": (
        lambda torch, x: torch.cumprod(x, 1),
        lambda F, x: F.cumprod(x, 1),
        [[1.5, 0.0, -2.0, 0.5]],
    ),
    "det": (lambda torch, x: torch.linalg.det(x), lambda F, x: F.batch_det(x), (2, 3, 3)),
    "erfinv": (
        lambda torch, x: torch.erfinv(torch.tanh(x)),
        lambda F, x: F.erfinv(F.tanh(x)),
        (4, 3),
    ),
    "gaussian_nll_loss": (
        lambda torch, x, mean, ln_var: nn(torch).gaussian_nll_loss(
            mean, x, torch.exp(ln_var), True, reduction="none"
        ),
        lambda F, x, mean, ln_var: F.gaussian_nll(x, mean, ln_var, "no"),
        (4, 3),
        (4, 3),
        (4, 3),
    ),
    "gelu": (lambda torch, x: nn(torch).gelu(x), lambda F, x: F.gelu(x), (4, 3)),
    "gelu by tanh": (
        lambda torch, x: nn(torch).gelu(x, approximate="tanh"),
        lambda F, x: F.gelu(x, "tanh"),
        (4, 3),
    ),
    "group_norm": (
        lambda torch, x, gamma, beta: nn(torch).group_norm(x, 2, gamma, beta, 0.01),
        lambda F, x, gamma, beta: F.group_normalization(x, 2, gamma, beta, 0.01),
        (3, 4, 2, 3),
        (4,),
        (4,),
    ),
    "gru": recurrent("gru", 3, layers=2),
    "gru of both directions": recurrent("gru", 3, layers=2, directions=2),
    "huber_loss": (
        lambda torch, x, t: nn(torch).huber_loss(x, t, "none", 0.7),
        lambda F, x, t: F.huber_loss(x, t, 0.7, "no"),
        (4, 3),
        (4, 3),
    ),
    "interpolate, larger": (
        lambda torch, x: nn(torch).interpolate(x, (7, 9), mode="bilinear", align_corners=True),
        lambda F, x: F.resize_images(x, (7, 9)),
        (2, 2, 4, 5),
    ),
    "interpolate, smaller, corners not aligned": (
        lambda torch, x: nn(torch).interpolate(x, (3, 4), mode="bilinear", align_corners=False),
        lambda F, x: F.resize_images(x, (3, 4), align_corners=False),
        (2, 2, 7, 6),
    ),
    "interpolate, larger, corners not aligned": (
        lambda torch, x: nn(torch).interpolate(x, (7, 9), mode="bilinear", align_corners=False),
        lambda F, x: F.resize_images(x, (7, 9), align_corners=False),
        (2, 2, 4, 5),
    ),
    "interpolate, nearest": (
        lambda torch, x: nn(torch).interpolate(x, (7, 9), mode="nearest"),
        lambda F, x: F.resize_images(x, (7, 9), mode="nearest"),
        (2, 2, 4, 5),
    ),
    "kl_div": (
        lambda torch, x, t: (
            nn(torch)
            .kl_div(nn(torch).log_softmax(x, 1), nn(torch).softmax(t.detach(), 1), reduction="none")
            .sum(1)
        ),
        lambda F, x, t: F.softmax_cross_entropy(
            x, F.softmax(t).array, soft_target_loss="kl-divergence", reduce="no"
        ),
        (4, 3),
        (4, 3),
    ),
    "layer_norm": (
        lambda torch, x, gamma, beta: nn(torch).layer_norm(x, (5,), gamma, beta, 0.01),
        lambda F, x, gamma, beta: F.layer_normalization(x, gamma, beta, 0.01),
        (4, 5),
        (5,),
        (5,),
    ),
    "local_response_norm": (
        # of PyTorch's alpha mnpar takes the n-th part
        lambda torch, x: nn(torch).local_response_norm(x, 3, 1.5, 0.6, 1.0),
        lambda F, x: F.local_response_normalization(x, 3, 1.0, 0.5, 0.6),
        (2, 5, 2),
    ),
    "lp_pool2d": (
        lambda torch, x: nn(torch).lp_pool2d(torch.abs(x), 3.0, 2, 2),
        lambda F, x: F.lp_pooling_nd(F.absolute(x), 2, 2, p=3),
        (2, 3, 6, 5),
    ),
    "lstm": recurrent("lstm", 4, layers=2, cells=True),
    "lstm of both directions": recurrent("lstm", 4, layers=2, directions=2, cells=True),
    "max_pool2d": (
        lambda torch, x: nn(torch).max_pool2d(x, 3, 2, 1, ceil_mode=True),
        lambda F, x: F.max_pooling_2d(x, 3, 2, 1),
        (2, 3, 6, 7),
    ),
    "max_pool2d that leaves the rest": (
        lambda torch, x: nn(torch).max_pool2d(x, (2, 3), 2, (1, 0)),
        lambda F, x: F.max_pooling_2d(x, (2, 3), 2, (1, 0), False),
        (2, 3, 5, 6),
    ),
    "max_unpool2d": (
        lambda torch, x, y: nn(torch).max_unpool2d(
            y, nn(torch).max_pool2d(x, 2, 2, return_indices=True)[1], 2, 2, output_size=(5, 6)
        ),
        lambda F, x, y: F.upsampling_2d(
            y, F.max_pooling_2d(x, 2, 2, 0, False, True)[1], 2, 2, 0, (5, 6), False
        ),
        (2, 3, 5, 6),
        (2, 3, 2, 3),
    ),
    "pad with edges": (
        # Chainer's gradient leaves out what padding repeats
        lambda torch, x: nn(torch).pad(x, (2, 1, 0, 1), "replicate"),
        lambda F, x: F.pad(x, ((0, 0), (0, 0), (0, 1), (2, 1)), "edge"),
        (1, 2, 3, 4),
    ),
    "pad with reflections": (
        lambda torch, x: nn(torch).pad(x, (2, 1, 0, 1), "reflect"),
        lambda F, x: F.pad(x, ((0, 0), (0, 0), (0, 1), (2, 1)), "reflect"),
        (1, 2, 3, 4),
    ),
    "polygamma": (
        lambda torch, x: torch.polygamma(2, torch.exp(x)),
        lambda F, x: F.polygamma(2, F.exp(x)),
        (4, 3),
    ),
    "rnn of both directions": recurrent("rnn", 1, layers=2, directions=2, activation="tanh"),
    "rnn of relu": recurrent("rnn", 1, layers=3, activation="relu"),
    "scaled_dot_product_attention": (
        lambda torch, q, k, v: nn(torch).scaled_dot_product_attention(
            q, k, v, tensor(torch, MASK, "bool")
        ),
        lambda F, q, k, v: F.scaled_dot_product_attention(q, k, v, np.array(MASK)),
        (2, 3, 3, 4),
        (2, 3, 5, 4),
        (2, 3, 5, 2),
    ),
    "scaled_dot_product_attention, causal": (
        lambda torch, q, k, v: nn(torch).scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=0.3
        ),
        lambda F, q, k, v: F.scaled_dot_product_attention(q, k, v, causal=True, scale=0.3),
        (2, 5, 4),
        (2, 5, 4),
        (2, 5, 3),
    ),
    "unfold": (
        lambda torch, x: nn(torch).unfold(x, (2, 3), (2, 1), (0, 1), 1),
        lambda F, x: F.reshape(F.im2col(x, (2, 3), 1, (0, 1), False, (2, 1)), (2, 18, -1)),
        (2, 3, 4, 5),
    ),
}
MASK = [
    [True, True, False, True, False],
    [False, False, True, False, False],
    [True, True, True, True, True],
]


def their_attention(torch, x, W, b, W_out, b_out):
    """Two heads over (N, T, D), of which PyTorch wants (T, N, D)."""
    x = x.transpose(0, 1)
    later = torch.ones(4, 4, dtype=torch.bool).triu(1)
    y, _ = nn(torch).multi_head_attention_forward(
        *[x, x, x, 6, 2, W, b, None, None, False, 0.0, W_out, b_out],
        need_weights=False,
        attn_mask=later,
    )
    return y.transpose(0, 1)


# mnpar has a link for it, which test_pytorch.py makes.
ATTENTION = their_attention, None, (3, 4, 6), (18, 6), (18,), (6, 6), (6,)

# How PyTorch's optimizer is made, how mnpar's, and what hyperparameters become halfway in each.
# PyTorch's ε stands elsewhere in Adam and centered RMSprop: there it is next to none.
OPTIMIZERS = {
    "SGD": (
        lambda optim, params: optim.SGD(params, 0.1),
        lambda opt: opt.SGD(0.1),
        {"lr": 0.02},
        {"lr": 0.02},
    ),
    "SGD with momentum": (
        lambda optim, params: optim.SGD(params, 0.1, 0.8),
        lambda opt: opt.MomentumSGD(0.1, 0.8),
        {},
        {},
    ),
    "SGD with momentum and changes of the learning rate": (
        lambda optim, params: optim.SGD(params, 0.1, 0.8),
        lambda opt: opt.CorrectedMomentumSGD(0.1, 0.8),
        {"lr": 0.02, "momentum": 0.5},
        {"lr": 0.02, "momentum": 0.5},
    ),
    "SGD with Nesterov's momentum": (
        # Chainer's adds μ² times the velocity after the gradient is in it
        lambda optim, params: optim.SGD(params, 0.1, 0.8, nesterov=True),
        lambda opt: opt.NesterovAG(0.1, 0.8),
        {},
        {},
    ),
    "SGD with Nesterov's momentum, applied": (
        lambda optim, params: optim.SGD(params, 0.1, 0.8, nesterov=True),
        lambda opt: opt.apply_momentum(opt.SGD(0.1), 0.8, nesterov=True),
        {},
        {},
    ),
    "SGD with weight decay": (
        lambda optim, params: optim.SGD(params, 0.1, 0.8, weight_decay=0.2),
        lambda opt: opt.MomentumSGD(0.1, 0.8),
        {},
        {},
        lambda hooks: hooks.WeightDecay(0.2),
    ),
    "Adagrad": (
        lambda optim, params: optim.Adagrad(params, 0.1, eps=1e-3),
        lambda opt: opt.AdaGrad(0.1, 1e-3),
        {"lr": 0.02},
        {"lr": 0.02},
    ),
    "Adadelta": (
        lambda optim, params: optim.Adadelta(params, 1.0, 0.9, 1e-3),
        lambda opt: opt.AdaDelta(0.9, 1e-3),
        {"rho": 0.8},
        {"rho": 0.8},
    ),
    "RMSprop": (
        lambda optim, params: optim.RMSprop(params, 0.1, 0.9, 1e-3),
        lambda opt: opt.RMSprop(0.1, 0.9, 1e-3),
        {"lr": 0.02, "alpha": 0.8},
        {"lr": 0.02, "alpha": 0.8},
    ),
    "RMSprop with momentum": (
        lambda optim, params: optim.RMSprop(params, 0.1, 0.9, 1e-3, momentum=0.8),
        lambda opt: opt.apply_momentum(opt.RMSprop(0.1, 0.9, 1e-3), 0.8),
        {},
        {},
    ),
    "RMSprop, centered": (
        lambda optim, params: optim.RMSprop(params, 0.1, 0.9, 1e-30, momentum=0.8, centered=True),
        lambda opt: opt.RMSpropGraves(0.1, 0.9, 0.8, 1e-30),
        {},
        {},
    ),
    "Adam": (
        lambda optim, params: optim.Adam(params, 0.1, (0.9, 0.99), 1e-30),
        lambda opt: opt.Adam(0.1, 0.9, 0.99, 1e-30),
        {"lr": 0.02},
        {"alpha": 0.02},
    ),
    "AdamW": (
        # PyTorch's decay is lr · weight_decay
        lambda optim, params: optim.AdamW(params, 0.1, (0.9, 0.99), 1e-30, weight_decay=0.2),
        lambda opt: opt.AdamW(1.0, 0.9, 0.99, 1e-30, eta=0.1, weight_decay_rate=0.2),
        {"lr": 0.02},
        {"eta": 0.02},
    ),
    "Adam of AMSGrad": (
        lambda optim, params: optim.Adam(params, 0.1, (0.9, 0.5), 1e-30, amsgrad=True),
        lambda opt: opt.AMSGrad(0.1, 0.9, 0.5, 1e-30),
        {},
        {},
    ),
    "Adamax": (
        lambda optim, params: optim.Adamax(params, 0.1, (0.9, 0.8), 1e-3),
        lambda opt: opt.AdaMax(0.1, 0.9, 0.8, 1e-3),
        {"lr": 0.02},
        {"alpha": 0.02},
    ),
}
