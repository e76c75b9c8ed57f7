"""Calls of functions in the words that Chainer and mnpar share, by Chainer's families.

A row is a call of ``F`` and of the inputs, and what the inputs are (:func:`recording.draw`). Lists
of integers, labels for example, reach the call as arrays; floats reach it as Variables.
"""

import numpy as np

ACTIVATION = {
    "clipped_relu": (lambda F, x: F.clipped_relu(x, 0.5), (4, 3)),
    "crelu": (lambda F, x: F.crelu(x, 2), (2, 3, 4)),
    "elu": (lambda F, x: F.elu(x, 0.7), (4, 3)),
    "hard_sigmoid": (lambda F, x: F.hard_sigmoid(2 * x), (4, 3)),
    "leaky_relu": (lambda F, x: F.leaky_relu(x), (4, 3)),
    "log_softmax of the first axis": (lambda F, x: F.log_softmax(x, 0), (2, 3, 4)),
    "log_softmax": (lambda F, x: F.log_softmax(x), (2, 3, 4)),
    "maxout": (lambda F, x: F.maxout(x, 3), (2, 6, 2)),
    "maxout of the last axis": (lambda F, x: F.maxout(x, 2, 2), (2, 3, 4)),
    "prelu": (lambda F, x, W: F.prelu(x, W), (2, 3, 4), (3,)),
    "prelu with a slope of each place": (lambda F, x, W: F.prelu(x, W), (2, 3, 4), (3, 4)),
    "relu6": (lambda F, x: F.relu6(4 * x), (4, 3)),
    "selu": (lambda F, x: F.selu(x), (4, 3)),
    "softmax of the last axis": (lambda F, x: F.softmax(x, -1), (2, 3, 4)),
    "softplus": (lambda F, x: F.softplus(x, 2.5), (4, 3)),
    "swish": (lambda F, x, beta: F.swish(x, beta), (2, 3, 4), (3,)),
}


def affine(F, theta):
    """Matrices near the identity, so that most of the grid is in the image."""
    return np.eye(theta.shape[1], theta.shape[1] + 1) + 0.3 * theta


ARRAY = {
    "as_strided": (lambda F, x: F.as_strided(x, (3, 2), (1, 2), 1), (7,)),
    "depth2space": (lambda F, x: F.depth2space(x, 2), (2, 8, 2, 3)),
    "diagonal": (lambda F, x: F.diagonal(x, 1, 0, 2), (3, 2, 4)),
    "flip": (lambda F, x: F.flip(x, 1), (2, 3)),
    "get_item of repeated rows": (lambda F, x: F.get_item(x, [0, 2, 0]), (3, 2)),
    "get_item of slices and rows": (
        lambda F, x: F.get_item(x, (slice(None, None, -2), [1, 1])),
        (4, 3, 2),
    ),
    "im2col": (lambda F, x: F.im2col(x, 2, 2, 1, True, 1), (2, 3, 4, 5)),
    "im2col, dilated": (lambda F, x: F.im2col(x, (2, 3), 1, (0, 1), False, (2, 1)), (2, 3, 4, 5)),
    "pad": (lambda F, x: F.pad(x, ((1, 0), (2, 1)), "constant", constant_values=0.5), (2, 3)),
    "pad_sequence": (lambda F, x, y: F.pad_sequence([x, y], 4, -1.0), (2, 2), (3, 2)),
    "permutate": (lambda F, x, i: F.permutate(x, i, axis=1), (2, 3), [2, 0, 1]),
    "permutate back": (lambda F, x, i: F.permutate(x, i, axis=1, inv=True), (2, 3), [2, 0, 1]),
    "repeat": (lambda F, x: F.repeat(x, (1, 0, 2), 1), (2, 3)),
    "resize_images, larger": (lambda F, x: F.resize_images(x, (7, 9)), (2, 2, 4, 5)),
    "resize_images, smaller": (lambda F, x: F.resize_images(x, (3, 2)), (2, 2, 7, 6)),
    "resize_images to one row": (lambda F, x: F.resize_images(x, (1, 9)), (2, 2, 4, 5)),
    "resize_images, larger, corners not aligned": (
        lambda F, x: F.resize_images(x, (7, 9), align_corners=False),
        (2, 2, 4, 5),
    ),
    "resize_images, smaller, corners not aligned": (
        lambda F, x: F.resize_images(x, (3, 2), align_corners=False),
        (2, 2, 7, 6),
    ),
    "resize_images, larger, nearest": (
        lambda F, x: F.resize_images(x, (7, 9), mode="nearest"),
        (2, 2, 4, 5),
    ),
    "resize_images, smaller, nearest": (
        lambda F, x: F.resize_images(x, (3, 2), mode="nearest"),
        (2, 2, 7, 6),
    ),
    "resize_images, larger, nearest, corners not aligned": (
        lambda F, x: F.resize_images(x, (7, 9), mode="nearest", align_corners=False),
        (2, 2, 4, 5),
    ),
    "resize_images, smaller, nearest, corners not aligned": (
        lambda F, x: F.resize_images(x, (3, 2), mode="nearest", align_corners=False),
        (2, 2, 7, 6),
    ),
    "rollaxis": (lambda F, x: F.rollaxis(x, 2, 1), (2, 3, 4)),
    "scatter_add": (lambda F, a, b: F.scatter_add(a, [0, 2, 0], b), (3, 2), (3, 2)),
    "select_item": (lambda F, x, t: F.select_item(x, t), (3, 4), [3, 0, 0]),
    "shift_channels": (
        # mnpar's F.shift is a communication
        lambda F, x: getattr(F, "shift_channels", F.shift)(x, 3, 2),
        (1, 10, 4, 3),
    ),
    "shift_channels by windows of two sizes": (
        lambda F, x: getattr(F, "shift_channels", F.shift)(x, (3, 1)),
        (1, 7, 3, 4),
    ),
    "space2depth": (lambda F, x: F.space2depth(x, 2), (2, 3, 4, 6)),
    "spatial_transformer_grid": (
        lambda F, theta: F.spatial_transformer_grid(affine(F, theta), (3, 4)),
        (2, 2, 3),
    ),
    "spatial_transformer_sampler": (
        lambda F, x, theta: F.spatial_transformer_sampler(
            x, F.spatial_transformer_grid(affine(F, theta), (4, 3))
        ),
        (2, 3, 5, 4),
        (2, 2, 3),
    ),
    "spatial_transformer_sampler far outside": (
        lambda F, x, grid: F.spatial_transformer_sampler(x, 2 * grid),
        (2, 2, 4, 4),
        (2, 2, 3, 5),
    ),
    "tile": (lambda F, x: F.tile(x, (2, 1, 3)), (2, 3)),
    "transpose_sequence": (
        lambda F, x, y, z: F.transpose_sequence([x, y, z]),
        (4, 2),
        (2, 2),
        (1, 2),
    ),
}

IMAGES = (2, 4, 6, 5)
CONNECTION = {
    "bilinear": (
        lambda F, x, y, W, V1, V2, b: F.bilinear(x, y, W, V1, V2, b),
        (2, 3),
        (2, 4),
        (3, 4, 2),
        (3, 2),
        (4, 2),
        (2,),
    ),
    "convolution_1d": (
        lambda F, x, W, b: F.convolution_1d(x, W, b, 2, 1, True),
        (2, 3, 8),
        (4, 3, 3),
        (4,),
    ),
    "convolution_2d": (
        lambda F, x, W, b: F.convolution_2d(x, W, b, (2, 1), (1, 2)),
        IMAGES,
        (3, 4, 3, 2),
        (3,),
    ),
    "convolution_2d that covers all": (
        lambda F, x, W: F.convolution_2d(x, W, None, 3, 0, True),
        IMAGES,
        (3, 4, 2, 2),
    ),
    "convolution_2d, dilated, in groups": (
        lambda F, x, W, b: F.convolution_2d(x, W, b, 2, 2, dilate=(2, 1), groups=2),
        IMAGES,
        (6, 2, 3, 3),
        (6,),
    ),
    "convolution_3d": (
        lambda F, x, W, b: F.convolution_3d(x, W, b, (1, 2, 1), 1, False, (1, 2, 1), 2),
        (2, 2, 3, 5, 4),
        (4, 1, 2, 2, 3),
        (4,),
    ),
    "deconvolution_1d": (
        lambda F, x, W, b: F.deconvolution_1d(x, W, b, 2, 1, (8,)),
        (2, 3, 4),
        (3, 2, 3),
        (2,),
    ),
    "deconvolution_2d": (
        lambda F, x, W, b: F.deconvolution_2d(x, W, b, (2, 3), (1, 0)),
        (2, 4, 3, 3),
        (4, 3, 3, 2),
        (3,),
    ),
    "deconvolution_2d of a size, dilated, in groups": (
        lambda F, x, W, b: F.deconvolution_2d(x, W, b, 2, 1, (7, 6), dilate=2, groups=2),
        (2, 4, 3, 3),
        (4, 3, 3, 2),
        (6,),
    ),
    "deconvolution_3d": (
        lambda F, x, W, b: F.deconvolution_3d(x, W, b, 2, (0, 1, 0), None, 1, 2),
        (2, 2, 2, 3, 2),
        (2, 2, 2, 3, 2),
        (4,),
    ),
    "deformable_convolution_2d_sampler": (
        lambda F, x, offset, W, b: F.deformable_convolution_2d_sampler(x, offset, W, b),
        (2, 3, 5, 5),
        (2, 18, 3, 3),
        (2, 3, 3, 3),
        (2,),
    ),
    "deformable_convolution_2d_sampler with padding": (
        lambda F, x, offset, W: F.deformable_convolution_2d_sampler(x, 2 * offset, W, None, 2, 1),
        (2, 3, 6, 5),
        (2, 12, 4, 3),
        (2, 3, 2, 3),
    ),
    "depthwise_convolution_2d": (
        lambda F, x, W, b: F.depthwise_convolution_2d(x, W, b, 2, 1),
        IMAGES,
        (2, 4, 3, 3),
        (8,),
    ),
    "dilated_convolution_2d": (
        lambda F, x, W, b: F.dilated_convolution_2d(x, W, b, 2, 2, (2, 1), True),
        IMAGES,
        (3, 4, 3, 3),
        (3,),
    ),
    "embed_id": (
        lambda F, W, ids: F.embed_id(ids, W, -1),
        (4, 3),
        [[0, 3, -1], [3, 3, 1]],
    ),
    "linear of two batch axes": (
        lambda F, x, W, b: F.linear(x, W, b, 2),
        (2, 3, 2, 2),
        (5, 4),
        (5,),
    ),
    "local_convolution_2d": (
        lambda F, x, W, b: F.local_convolution_2d(x, W, b, (2, 1)),
        (2, 3, 5, 4),
        (2, 2, 3, 3, 3, 2),
        (2, 2, 3),
    ),
}


# Blanks are 2; labels repeat, and batches have sequences of several lengths.
CTC = (7, 3, 5), [[0, 1, 0], [3, 3, 4], [1, 4, 4]]


def ctc(reduce="mean", **lengths):
    lengths = {name: np.array(value, "i4") for name, value in lengths.items()}
    return lambda F, x, t: F.connectionist_temporal_classification(
        F.separate(x, 0), t, 2, **lengths, reduce=reduce
    )


# Costs, then scores and labels of three sequences of lengths 4, 2 and 1, steps first.
CRF = (3, 3), (3, 3), (2, 3), (1, 3), (1, 3)
CRF_LABELS = [np.array([0, 2, 1]), np.array([1, 1]), np.array([2]), np.array([0])]


def sample(shape):
    """Samples of negative_sampling that are no chance."""
    return np.arange(np.prod(shape)).reshape(shape) % 5


IGNORED = [[0, 1, -1], [1, -1, 0], [0, 0, 1]]
LOSS = {
    "absolute_error": (lambda F, x, y: F.absolute_error(x, y), (4, 3), (4, 3)),
    "bernoulli_nll": (lambda F, x, y: F.bernoulli_nll(F.sigmoid(x), y), (4, 3), (4, 3)),
    "bernoulli_nll of each": (
        lambda F, x, y: F.bernoulli_nll(F.sigmoid(x), y, "no"),
        (4, 3),
        (4, 3),
    ),
    "black_out": (
        lambda F, x, W, t, samples: F.black_out(x, t, W, samples),
        (3, 4),
        (5, 4),
        [0, 4, 2],
        [[1, 2], [0, 0], [3, 1]],
    ),
    "black_out of each": (
        lambda F, x, W, t, samples: F.black_out(x, t, W, samples, "no"),
        (3, 4),
        (5, 4),
        [0, 4, 2],
        [[1, 2], [0, 0], [3, 1]],
    ),
    "connectionist_temporal_classification": (ctc(), *CTC),
    "connectionist_temporal_classification of each": (ctc(reduce="no"), *CTC),
    "connectionist_temporal_classification of lengths": (
        ctc(input_length=[7, 5, 3], label_length=[2, 3, 1]),
        *CTC,
    ),
    "connectionist_temporal_classification of lengths, of each": (
        ctc(input_length=[4, 7, 6], label_length=[1, 3, 0], reduce="no"),
        *CTC,
    ),
    "connectionist_temporal_classification that just fits": (
        ctc(input_length=[3, 4, 4]),
        *CTC,
    ),
    "contrastive": (
        lambda F, x, y, t: F.contrastive(x, y, t, 2),
        (4, 3),
        (4, 3),
        [1, 0, 0, 1],
    ),
    "contrastive of each": (
        lambda F, x, y, t: F.contrastive(x, y, t, 3, "no"),
        (4, 3),
        (4, 3),
        [1, 0, 0, 1],
    ),
    "crf1d": (lambda F, cost, *xs: F.crf1d(cost, list(xs), CRF_LABELS), *CRF),
    "crf1d of each": (
        lambda F, cost, *xs: F.crf1d(cost, list(xs), CRF_LABELS, reduce="no"),
        *CRF,
    ),
    "argmax_crf1d": (lambda F, cost, *xs: F.argmax_crf1d(cost, list(xs)), *CRF),
    "cross_covariance": (lambda F, y, z: F.cross_covariance(y, z), (4, 3), (4, 2)),
    "cross_covariance of each": (
        lambda F, y, z: F.cross_covariance(y, z, "no"),
        (4, 3),
        (4, 2),
    ),
    "decov": (lambda F, h: F.decov(h), (4, 3)),
    "decov of each": (lambda F, h: F.decov(h, "no"), (4, 3)),
    "discriminative_margin_based_clustering_loss": (
        lambda F, x, t: F.discriminative_margin_based_clustering_loss(x, t, 0.3, 1.5, 2),
        (2, 2, 3, 4),
        [
            [[0, 1, 2, 0], [1, 1, 2, 2], [0, 0, 1, 1]],
            [[2, 2, 1, 1], [1, 2, 1, 0], [0, 2, 2, 1]],
        ],
    ),
    "discriminative_margin_based_clustering_loss of L2": (
        # its value: Chainer's gradient is NaN, see test_differences.py
        lambda F, x, t: F.discriminative_margin_based_clustering_loss(
            x.array, t, 0.2, 2.5, 2, 2, 0.5, 2.0, 0.1
        ),
        (2, 2, 3, 4),
        [
            [[0, 1, 1, 0], [1, 1, 0, 0], [0, 0, 1, 1]],
            [[1, 1, 1, 1], [1, 0, 1, 0], [0, 1, 0, 1]],
        ],
    ),
    "gaussian_kl_divergence": (
        lambda F, mean, ln_var: F.gaussian_kl_divergence(mean, ln_var),
        (4, 3),
        (4, 3),
    ),
    "gaussian_kl_divergence, mean": (
        lambda F, mean, ln_var: F.gaussian_kl_divergence(mean, ln_var, "mean"),
        (4, 3),
        (4, 3),
    ),
    "gaussian_nll": (
        lambda F, x, mean, ln_var: F.gaussian_nll(x, mean, ln_var),
        (4, 3),
        (4, 3),
        (4, 3),
    ),
    "gaussian_nll, mean": (
        lambda F, x, mean, ln_var: F.gaussian_nll(x, mean, ln_var, "mean"),
        (4, 3),
        (4, 3),
        (4, 3),
    ),
    "hinge": (lambda F, x, t: F.hinge(x, t), (4, 3), [0, 2, 1, 1]),
    "hinge of L2": (lambda F, x, t: F.hinge(x, t, "L2"), (4, 3), [0, 2, 1, 1]),
    "hinge of L2, of each": (lambda F, x, t: F.hinge(x, t, "L2", "no"), (4, 3), [0, 2, 1, 1]),
    "huber_loss": (lambda F, x, t: F.huber_loss(x, t, 0.7), (4, 3, 2), (4, 3, 2)),
    "huber_loss of each": (lambda F, x, t: F.huber_loss(x, t, 0.7, "no"), (4, 3), (4, 3)),
    "mean_absolute_error": (lambda F, x, y: F.mean_absolute_error(x, y), (4, 3), (4, 3)),
    "mean_squared_error": (lambda F, x, y: F.mean_squared_error(x, y), (4, 3), (4, 3)),
    "negative_sampling": (
        lambda F, x, W, t: F.negative_sampling(x, t, W, sample, 2),
        (3, 4),
        (5, 4),
        [0, 4, -1],
    ),
    "negative_sampling of each": (
        lambda F, x, W, t: F.negative_sampling(x, t, W, sample, 2, "no"),
        (3, 4),
        (5, 4),
        [0, 4, 2],
    ),
    "sigmoid_cross_entropy": (
        lambda F, x, t: F.sigmoid_cross_entropy(x, t),
        (3, 3),
        IGNORED,
    ),
    "sigmoid_cross_entropy by the length of the batch": (
        lambda F, x, t: F.sigmoid_cross_entropy(x, t, normalize=False),
        (3, 3),
        IGNORED,
    ),
    "sigmoid_cross_entropy of each": (
        lambda F, x, t: F.sigmoid_cross_entropy(x, t, reduce="no"),
        (3, 3),
        IGNORED,
    ),
    "softmax_cross_entropy": (
        lambda F, x, t: F.softmax_cross_entropy(x, t),
        (4, 3),
        [0, -1, 2, 1],
    ),
    "softmax_cross_entropy by the length of the batch": (
        lambda F, x, t: F.softmax_cross_entropy(x, t, normalize=False),
        (4, 3),
        [0, -1, 2, 1],
    ),
    "softmax_cross_entropy with weights of classes": (
        lambda F, x, t: F.softmax_cross_entropy(x, t, class_weight=np.array([0.5, 2.0, 1.5])),
        (4, 3),
        [0, -1, 2, 1],
    ),
    "softmax_cross_entropy of pixels": (
        lambda F, x, t: F.softmax_cross_entropy(
            x, t, class_weight=np.array([0.5, 2.0, 1.5]), ignore_label=0, reduce="no"
        ),
        (2, 3, 2, 2),
        [[[0, 1], [2, 1]], [[0, 0], [1, 2]]],
    ),
    "softmax_cross_entropy of pixels, normalized": (
        lambda F, x, t: F.softmax_cross_entropy(x, t, ignore_label=2),
        (2, 3, 2, 2),
        [[[0, 1], [2, 1]], [[0, 0], [1, 2]]],
    ),
    "softmax_cross_entropy of soft targets": (
        lambda F, x, t: F.softmax_cross_entropy(x, F.softmax(t).array),
        (4, 3),
        (4, 3),
    ),
    "squared_error": (lambda F, x, y: F.squared_error(x, y), (4, 3), (4, 3)),
    "triplet": (lambda F, a, p, n: F.triplet(a, p, n, 1.0), (4, 3), (4, 3), (4, 3)),
    "triplet of each": (
        lambda F, a, p, n: F.triplet(a, p, n, 2.0, "no"),
        (4, 3),
        (4, 3),
        (4, 3),
    ),
}


def positive_definite(F, x):
    return F.matmul(x, x, transb=True) + 0.5 * np.eye(x.shape[-1])


MATH = {
    "arctan2": (lambda F, y, x: F.arctan2(y, x), (4, 3), (4, 3)),
    "average": (
        lambda F, x, w: F.average(x, 1, F.exp(w)),
        (2, 3, 2),
        (3,),
    ),
    "average of all": (
        lambda F, x, w: F.average(x, weights=F.exp(w), keepdims=True),
        (2, 3, 2),
        (2, 3, 2),
    ),
    "batch_det": (lambda F, x: F.batch_det(x), (3, 2, 2)),
    "batch_inv": (lambda F, x: F.batch_inv(x), (3, 2, 2)),
    "batch_l2_norm_squared": (lambda F, x: F.batch_l2_norm_squared(x), (3, 2, 2)),
    "cholesky": (lambda F, x: F.cholesky(positive_definite(F, x)), (3, 3)),
    "clip": (lambda F, x: F.clip(x, -0.5, 0.7), (4, 3)),
    "cumprod": (lambda F, x: F.cumprod(x, 1), (2, 4)),
    "cumprod with a zero": (lambda F, x: F.cumprod(x), [[1.5, 0.0, -2.0, 0.5]]),
    "cumsum": (lambda F, x: F.cumsum(x, 0), (3, 4)),
    "det": (lambda F, x: F.det(x), (3, 3)),
    "digamma": (lambda F, x: F.digamma(x), (4, 3)),
    "einsum": (
        lambda F, x, y: F.einsum("ij...,jk->k...i", x, y),
        (2, 3, 2),
        (3, 4),
    ),
    "erf": (lambda F, x: F.erf(x), (4, 3)),
    "erfc": (lambda F, x: F.erfc(x), (4, 3)),
    "erfcinv": (lambda F, x: F.erfcinv(1 + F.tanh(x)), (4, 3)),
    "erfcx": (lambda F, x: F.erfcx(x), (4, 3)),
    "erfinv": (lambda F, x: F.erfinv(F.tanh(x)), (4, 3)),
    "fft": (lambda F, x, y: F.fft((x, y)), (2, 5), (2, 5)),
    "fmod": (lambda F, x, y: F.fmod(3 * x, y), (4, 3), (4, 3)),
    "ifft": (lambda F, x, y: F.ifft((x, y)), (2, 5), (2, 5)),
    "inv": (lambda F, x: F.inv(x), (3, 3)),
    "lgamma": (lambda F, x: F.lgamma(F.exp(x)), (4, 3)),
    "linear_interpolate": (
        lambda F, p, x, y: F.linear_interpolate(p, x, y),
        (4, 3),
        (4, 3),
        (4, 3),
    ),
    "log_ndtr": (lambda F, x: F.log_ndtr(5 * x), (4, 3)),
    "logsumexp": (lambda F, x: F.logsumexp(x, (0, 2)), (2, 3, 2)),
    "matmul": (lambda F, x, y: F.matmul(x, y, True, True), (4, 2), (3, 4)),
    "max with equals": (lambda F, x: F.max(x, 1), [[1.0, 2.0, 2.0], [3.0, 3.0, 3.0]]),
    "maximum of equals": (lambda F, x, y: F.maximum(x, y), [1.0, 2.0, 3.0], [2.0, 2.0, 2.0]),
    "minimum of equals": (lambda F, x, y: F.minimum(x, y), [1.0, 2.0, 3.0], [2.0, 2.0, 2.0]),
    "ndtr": (lambda F, x: F.ndtr(x), (4, 3)),
    "ndtri": (lambda F, x: F.ndtri(F.sigmoid(x)), (4, 3)),
    "polygamma": (
        lambda F, x, n: F.polygamma(n, F.exp(x)),
        (3,),
        [0, 1, 2],
    ),
    "prod with a zero": (lambda F, x: F.prod(x, 1), [[1.5, 0.0, -2.0], [0.5, 3.0, -1.0]]),
    "scale": (lambda F, x, y: F.scale(x, y, 1), (2, 3, 2), (3,)),
    "tensordot": (
        lambda F, x, y: F.tensordot(x, y, ((2, 0), (0, 1))),
        (2, 3, 4),
        (4, 2, 3),
    ),
    "zeta": (lambda F, x: F.zeta(np.array([2.5, 3.0, 4.0]), F.exp(x)), (3,)),
}


def running(call):
    """Give ``call`` running values, and return what they become in two steps, too."""

    def steps(F, x, gamma, beta):
        mean = np.linspace(-1, 1, gamma.size).reshape(gamma.shape)
        var = np.linspace(0.5, 2, gamma.size).reshape(gamma.shape)
        ys = [call(F, x * scale, gamma, beta, mean, var) for scale in (1, 2)]
        return *ys, mean, var

    return steps


def whitened(F, x):
    mean, projection = np.zeros((2, 2)), np.tile(np.eye(2), (2, 1, 1))
    ys = [
        F.decorrelated_batch_normalization(
            x * scale, groups=2, running_mean=mean, running_projection=projection, decay=0.7
        )
        for scale in (1, 2)
    ]
    return *ys, mean, projection


CHANNELS = (3, 4, 2, 3), (4,), (4,)
NORMALIZATION = {
    "batch_normalization": (
        running(
            lambda F, x, gamma, beta, mean, var: F.batch_normalization(
                x, gamma, beta, running_mean=mean, running_var=var, decay=0.7
            )
        ),
        *CHANNELS,
    ),
    "batch_normalization with a large ε": (
        lambda F, x, gamma, beta: F.batch_normalization(x, gamma, beta, eps=0.5),
        *CHANNELS,
    ),
    "batch_normalization of two axes": (
        running(
            lambda F, x, gamma, beta, mean, var: F.batch_normalization(
                x, gamma, beta, running_mean=mean, running_var=var, axis=(0, 2)
            )
        ),
        (3, 2, 4),
        (2,),
        (2,),
    ),
    "decorrelated_batch_normalization": (
        lambda F, x: F.decorrelated_batch_normalization(x, groups=2, eps=0.01),
        (3, 4, 2, 3),
    ),
    "decorrelated_batch_normalization with running values": (
        whitened,
        (5, 4),
    ),
    "fixed_decorrelated_batch_normalization": (
        lambda F, x, mean, projection: F.fixed_decorrelated_batch_normalization(
            x, mean.array, projection.array, 2
        ),
        (3, 4, 2),
        (2, 2),
        (2, 2, 2),
    ),
    "fixed_batch_normalization": (
        lambda F, x, gamma, beta, mean, var: F.fixed_batch_normalization(
            x, gamma, beta, mean, F.exp(var), 0.1
        ),
        *CHANNELS,
        (4,),
        (4,),
    ),
    "batch_renormalization": (
        running(
            lambda F, x, gamma, beta, mean, var: F.batch_renormalization(
                x, gamma, beta, 1.5, 0.5, 0.01, mean, var, 0.8, True
            )
        ),
        *CHANNELS,
    ),
    "batch_renormalization without bounds in reach": (
        running(
            lambda F, x, gamma, beta, mean, var: F.batch_renormalization(
                x, gamma, beta, 1e3, 1e3, running_mean=mean, running_var=var, update_statistics=True
            )
        ),
        *CHANNELS,
    ),
    "batch_renormalization that leaves the running values": (
        running(
            lambda F, x, gamma, beta, mean, var: F.batch_renormalization(
                x, gamma, beta, 1.2, 0.3, running_mean=mean, running_var=var
            )
        ),
        (5, 4),
        (4,),
        (4,),
    ),
    "fixed_batch_renormalization": (
        lambda F, x, gamma, beta, mean, var: F.fixed_batch_renormalization(
            x, gamma, beta, mean, F.exp(var), 0.1
        ),
        *CHANNELS,
        (4,),
        (4,),
    ),
    "group_normalization": (
        lambda F, x, gamma, beta: F.group_normalization(x, 2, gamma, beta, 0.01),
        *CHANNELS,
    ),
    "layer_normalization": (
        lambda F, x, gamma, beta: F.layer_normalization(x, gamma, beta, 0.01),
        (4, 5),
        (5,),
        (5,),
    ),
    "local_response_normalization": (
        lambda F, x: F.local_response_normalization(x),
        (2, 7, 2, 2),
    ),
    "local_response_normalization of three": (
        lambda F, x: F.local_response_normalization(x, 3, 1, 0.5, 0.6),
        (2, 5, 2),
    ),
    "normalize": (lambda F, x: F.normalize(x), (4, 3)),
    "normalize of two axes": (lambda F, x: F.normalize(x, 0.1, (1, 2)), (2, 3, 4)),
}

# Regions with corners inside, outside and between pixels, and of one pixel.
REGIONS = [[0.0, 1.0, 5.5, 6.2], [2.2, 0.4, 3.6, 4.4], [1.0, 1.0, 1.9, 1.9], [-1.0, 3.0, 4.0, 9.0]]
OF_IMAGES = [1, 0, 1, 0]


def regions(name, *arguments):
    """``rois`` in the order of the function: y and x of one corner, then of the other."""
    return lambda F, x, i: getattr(F, name)(x, np.array(REGIONS), i, *arguments)


POOLING = {
    "average_pooling_1d without padding in the mean": (
        lambda F, x: F.average_pooling_1d(x, 3, 2, 1, None),
        (2, 3, 8),
    ),
    "average_pooling_2d": (lambda F, x: F.average_pooling_2d(x, 3, 2, 1), (2, 3, 6, 7)),
    "average_pooling_3d": (
        lambda F, x: F.average_pooling_3d(x, 2, (1, 2, 1), (0, 1, 1), None),
        (1, 2, 3, 4, 3),
    ),
    "max_pooling_1d": (lambda F, x: F.max_pooling_1d(x, 3, 2, 1), (2, 3, 8)),
    "max_pooling_2d": (lambda F, x: F.max_pooling_2d(x, 3, 2, 1), (2, 3, 6, 7)),
    "max_pooling_2d that leaves the rest": (
        lambda F, x: F.max_pooling_2d(x, (2, 3), (2, 3), 0, False),
        (2, 3, 5, 7),
    ),
    "max_pooling_2d with indices": (
        lambda F, x: F.max_pooling_2d(x, 3, 2, 1, return_indices=True),
        (2, 3, 5, 5),
    ),
    "max_pooling_3d": (lambda F, x: F.max_pooling_3d(x, 2, (2, 2, 3), (1, 0, 0)), (1, 2, 4, 5, 4)),
    "roi_average_align_2d": (
        regions("roi_average_align_2d", (3, 2), 0.7, (2, 3)),
        (2, 3, 6, 7),
        OF_IMAGES,
    ),
    "roi_average_align_2d with as many samples as pixels": (
        regions("roi_average_align_2d", 2, 1.0),
        (2, 3, 6, 7),
        OF_IMAGES,
    ),
    "roi_average_pooling_2d": (
        regions("roi_average_pooling_2d", (3, 2), 1.0),
        (2, 2, 9, 10),
        OF_IMAGES,
    ),
    "roi_max_align_2d": (
        regions("roi_max_align_2d", (3, 2), 0.7, (2, 3)),
        (2, 3, 6, 7),
        OF_IMAGES,
    ),
    "roi_max_align_2d with as many samples as pixels": (
        regions("roi_max_align_2d", 2, 1.0),
        (2, 3, 6, 7),
        OF_IMAGES,
    ),
    "roi_max_pooling_2d": (
        regions("roi_max_pooling_2d", (3, 2), 1.0),
        (2, 2, 9, 10),
        OF_IMAGES,
    ),
    "roi_pooling_2d": (
        lambda F, x: F.roi_pooling_2d(
            x, np.array([[1.0, 0.0, 1.4, 5.0, 6.0], [0.0, 2.5, 2.5, 2.5, 4.5]]), 3, 2, 0.8
        ),
        (2, 3, 6, 7),
    ),
    "spatial_pyramid_pooling_2d": (
        lambda F, x: F.spatial_pyramid_pooling_2d(x, 3, "max"),
        (2, 3, 7, 6),
    ),
    "unpooling_1d": (lambda F, x: F.unpooling_1d(x, 3, 2, 1), (2, 3, 4)),
    "unpooling_2d": (lambda F, x: F.unpooling_2d(x, 2), (2, 3, 3, 2)),
    "unpooling_2d whose windows overlap": (
        lambda F, x: F.unpooling_2d(x, 3, 2, cover_all=False),
        (2, 3, 3, 2),
    ),
    "unpooling_2d of a size": (
        lambda F, x: F.unpooling_2d(x, 2, 2, 0, (5, 4)),
        (2, 3, 3, 2),
    ),
    "unpooling_3d": (lambda F, x: F.unpooling_3d(x, 2, (2, 1, 2)), (1, 2, 2, 3, 2)),
    "upsampling_2d": (
        lambda F, x, y: F.upsampling_2d(
            y, F.max_pooling_2d(x, 2, 2, return_indices=True)[1], 2, 2, 0, (5, 6)
        ),
        (2, 3, 5, 6),
        (2, 3, 3, 3),
    ),
}


def n_step(name, gates, *, layers, directions=1, cells=False, **options):
    """A stack of recurrent layers over three sequences of lengths 4, 3 and 1, steps first.

    The last input has the weights and biases of all layers, one after the other.
    """
    units, width, rows = 2, 3, (3, 2, 2, 1)
    shapes = []
    for layer in range(layers):
        into = width if layer == 0 else directions * units
        for _ in range(directions):
            shapes += [(units, into)] * gates + [(units, units)] * gates + [(units,)] * (2 * gates)
    ends = np.cumsum([np.prod(shape) for shape in shapes])

    def call(F, *arrays):
        states, xs, flat = arrays[: 1 + cells], arrays[1 + cells : -1], arrays[-1]
        parts = F.split_axis(flat, ends[:-1], 0)
        parts = [F.reshape(part, shape) for part, shape in zip(parts, shapes, strict=True)]
        groups = [parts[i : i + 2 * gates] for i in range(0, len(parts), 2 * gates)]
        return getattr(F, name)(layers, 0.0, *states, groups[::2], groups[1::2], xs, **options)

    states = [(layers * directions, 3, units)] * (1 + cells)
    return call, *states, *[(n, width) for n in rows], (ends[-1],)


RNN = {
    "lstm": (lambda F, c, x: F.lstm(c, x), (3, 2), (3, 8)),
    "lstm of fewer rows than there are cells": (lambda F, c, x: F.lstm(c, x), (4, 2), (3, 8)),
    "slstm": (lambda F, *arrays: F.slstm(*arrays), (3, 2), (3, 2), (3, 8), (3, 8)),
    "tree_lstm": (lambda F, *arrays: F.tree_lstm(*arrays), (3, 2), (3, 2), (3, 2), (3, 12)),
    "n_step_lstm": n_step("n_step_lstm", 4, layers=2, cells=True),
    "n_step_bilstm": n_step("n_step_bilstm", 4, layers=2, directions=2, cells=True),
    "n_step_gru": n_step("n_step_gru", 3, layers=2),
    "n_step_bigru": n_step("n_step_bigru", 3, layers=2, directions=2),
    "n_step_rnn": n_step("n_step_rnn", 1, layers=3),
    "n_step_rnn of relu": n_step("n_step_rnn", 1, layers=2, activation="relu"),
    "n_step_birnn": n_step("n_step_birnn", 1, layers=2, directions=2),
}

NOISE = {
    "dropout of a mask": (
        lambda F, x: F.dropout(x, 0.25, mask=np.array([0.0, 4 / 3, 4 / 3])),
        (3,),
    ),
    "gaussian of given noise": (
        lambda F, mean, ln_var: F.gaussian(mean, ln_var, eps=np.array([0.3, -1.2, 2.0])),
        (3,),
        (3,),
    ),
    "rrelu of given slopes": (
        lambda F, x: F.rrelu(x, r=np.array([[0.1, 0.3, 0.2], [0.25, 0.15, 0.3]])),
        (2, 3),
    ),
    "simplified_dropconnect of a mask": (
        lambda F, x, W, b: F.simplified_dropconnect(
            x, W, b, 0.3, mask=(np.arange(24) % 3 > 0).reshape(2, 4, 3)
        ),
        (2, 3),
        (4, 3),
        (4,),
    ),
    "simplified_dropconnect of one mask": (
        lambda F, x, W: F.simplified_dropconnect(
            x, W, None, 0.3, mask=(np.arange(12) % 3 > 0).reshape(4, 3), use_batchwise_mask=False
        ),
        (2, 3),
        (4, 3),
    ),
}

TARGETS = [0, 2, 1, 1, -1, 0]
SCORES = np.eye(3)[[0, 2, 2, 1, 1, 0]].tolist()  # which class is the largest
EVALUATION = {
    "accuracy": (lambda F, y, t: F.accuracy(y, t, -1), (6, 3), TARGETS),
    "binary_accuracy": (
        lambda F, y, t: F.binary_accuracy(y, t),
        (6,),
        [0, 1, 1, 0, -1, 0],
    ),
    "classification_summary": (
        lambda F, y, t: F.classification_summary(y, t, 3, 2.0, -1),
        SCORES,
        TARGETS,
    ),
    "f1_score": (lambda F, y, t: F.f1_score(y, t, 3), SCORES, TARGETS),
    "precision": (lambda F, y, t: F.precision(y, t, 3), SCORES, TARGETS),
    "recall": (lambda F, y, t: F.recall(y, t, 3), SCORES, TARGETS),
    "r2_score": (lambda F, y, t: F.r2_score(y, t), (6, 3), (6, 3)),
    "r2_score of each": (
        lambda F, y, t: F.r2_score(y, t, multioutput="raw_values"),
        (6, 3),
        (6, 3),
    ),
}

FAMILIES = {
    "activation": ACTIVATION,
    "array": ARRAY,
    "connection": CONNECTION,
    "evaluation": EVALUATION,
    "loss": LOSS,
    "math": MATH,
    "noise": NOISE,
    "normalization": NORMALIZATION,
    "pooling": POOLING,
    "rnn": RNN,
}
