"""Differentiable functions, under Chainer's names: ``import mnpar.functions as F``.

Importing this package also gives Variable its operators.
"""

from mnpar.functions import operators as operators
from mnpar.functions.activation import elu, leaky_relu, log_softmax, relu, sigmoid, softmax, softplus, tanh
from mnpar.functions.arithmetic import add, floor_divide
from mnpar.functions.broadcasting import broadcast, broadcast_to, sum_to
from mnpar.functions.classification import softmax_cross_entropy
from mnpar.functions.collective import allgather, allreduce, alltoall, copy_to, exscan, reduce_from, reduce_scatter, scan
from mnpar.functions.convolution import (
    convolution_1d,
    convolution_2d,
    convolution_3d,
    convolution_nd,
    deconvolution_1d,
    deconvolution_2d,
    deconvolution_3d,
    deconvolution_nd,
    depthwise_convolution_2d,
    dilated_convolution_2d,
)
from mnpar.functions.elementwise import absolute, cos, exp, expm1, log, log1p, sin, sqrt, square
from mnpar.functions.evaluation import accuracy, binary_accuracy
from mnpar.functions.extrema import clip, maximum, minimum
from mnpar.functions.indexing import get_item, select_item, where
from mnpar.functions.joining import concat, hstack, separate, split_axis, stack, vstack
from mnpar.functions.loss import mean_absolute_error, mean_squared_error, sigmoid_cross_entropy
from mnpar.functions.noise import dropout

# The functions that speak to other ranks.
# (end of them)
from mnpar.functions.normalization import (
    batch_normalization,
    fixed_batch_normalization,
    group_normalization,
    layer_normalization,
    local_response_normalization,
    normalize,
)
from mnpar.functions.point_to_point import irecv, isend, pseudo_connect, recv, send, sendrecv, shift
from mnpar.functions.pooling import (
    average_pooling_1d,
    average_pooling_2d,
    average_pooling_3d,
    average_pooling_nd,
    im2col,
    max_pooling_1d,
    max_pooling_2d,
    max_pooling_3d,
    max_pooling_nd,
    unpooling_2d,
    unpooling_nd,
    upsampling_2d,
)
from mnpar.functions.products import linear, matmul
from mnpar.functions.rectifiers import maxout, prelu
from mnpar.functions.reduction import argmax, argmin, average, logsumexp, max, mean, min, sum
from mnpar.functions.resize import resize_images
from mnpar.functions.rooted import bcast, gather, reduce, scatter
from mnpar.functions.shape import cast, expand_dims, flatten, moveaxis, reshape, squeeze, swapaxes, transpose

__all__ = [
    "absolute",
    "accuracy",
    "add",
    "allgather",
    "allreduce",
    "alltoall",
    "argmax",
    "argmin",
    "average",
    "average_pooling_1d",
    "average_pooling_2d",
    "average_pooling_3d",
    "average_pooling_nd",
    "batch_normalization",
    "bcast",
    "binary_accuracy",
    "broadcast",
    "broadcast_to",
    "cast",
    "clip",
    "concat",
    "convolution_1d",
    "convolution_2d",
    "convolution_3d",
    "convolution_nd",
    "copy_to",
    "cos",
    "deconvolution_1d",
    "deconvolution_2d",
    "deconvolution_3d",
    "deconvolution_nd",
    "depthwise_convolution_2d",
    "dilated_convolution_2d",
    "dropout",
    "elu",
    "exp",
    "expand_dims",
    "expm1",
    "exscan",
    "fixed_batch_normalization",
    "flatten",
    "floor_divide",
    "gather",
    "get_item",
    "group_normalization",
    "hstack",
    "im2col",
    "irecv",
    "isend",
    "layer_normalization",
    "leaky_relu",
    "linear",
    "local_response_normalization",
    "log",
    "log1p",
    "log_softmax",
    "logsumexp",
    "matmul",
    "max",
    "max_pooling_1d",
    "max_pooling_2d",
    "max_pooling_3d",
    "max_pooling_nd",
    "maximum",
    "maxout",
    "mean",
    "mean_absolute_error",
    "mean_squared_error",
    "min",
    "minimum",
    "moveaxis",
    "normalize",
    "prelu",
    "pseudo_connect",
    "recv",
    "reduce",
    "reduce_from",
    "reduce_scatter",
    "relu",
    "reshape",
    "resize_images",
    "scan",
    "scatter",
    "select_item",
    "send",
    "sendrecv",
    "separate",
    "shift",
    "sigmoid",
    "sigmoid_cross_entropy",
    "sin",
    "softmax",
    "softmax_cross_entropy",
    "softplus",
    "split_axis",
    "sqrt",
    "square",
    "squeeze",
    "stack",
    "sum",
    "sum_to",
    "swapaxes",
    "tanh",
    "transpose",
    "unpooling_2d",
    "unpooling_nd",
    "upsampling_2d",
    "vstack",
    "where",
]
