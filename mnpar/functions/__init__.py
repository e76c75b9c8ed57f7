"""Differentiable functions, under Chainer's names: ``import mnpar.functions as F``.

Importing this package also gives Variable its operators. The file is long because it lists every
name twice.
"""

from typing import TYPE_CHECKING

from mnpar import lazy
from mnpar.functions import operators as operators

if TYPE_CHECKING:
    from mnpar.functions.activation.gelu import erf, gelu
    from mnpar.functions.activation.maxout import maxout
    from mnpar.functions.activation.prelu import prelu
    from mnpar.functions.activation.relu import (
        clipped_relu,
        crelu,
        elu,
        leaky_relu,
        relu,
        relu6,
        selu,
    )
    from mnpar.functions.activation.sigmoid import hard_sigmoid, sigmoid, softplus, tanh
    from mnpar.functions.activation.softmax import log_softmax, softmax
    from mnpar.functions.activation.swish import swish
    from mnpar.functions.array.broadcast import broadcast, broadcast_to, sum_to
    from mnpar.functions.array.get_item import as_strided, get_item, select_item, where
    from mnpar.functions.array.im2col import im2col
    from mnpar.functions.array.joining import (
        concat,
        dstack,
        hstack,
        separate,
        split_axis,
        stack,
        vstack,
    )
    from mnpar.functions.array.pad import pad, pad_sequence
    from mnpar.functions.array.rearranging import (
        depth2space,
        diagonal,
        flip,
        fliplr,
        flipud,
        permutate,
        rollaxis,
        scatter_add,
        space2depth,
        transpose_sequence,
    )
    from mnpar.functions.array.repeat import repeat, tile
    from mnpar.functions.array.resize_images import resize_images
    from mnpar.functions.array.shape import (
        cast,
        copy,
        expand_dims,
        flatten,
        moveaxis,
        reshape,
        squeeze,
        swapaxes,
        transpose,
    )
    from mnpar.functions.array.spatial_transformer import (
        spatial_transformer_grid,
        spatial_transformer_sampler,
    )
    from mnpar.functions.communication.collective import (
        allgather,
        allreduce,
        alltoall,
        barrier,
        exscan,
        reduce_scatter,
        scan,
    )
    from mnpar.functions.communication.exchange import exchange, iexchange, repartition
    from mnpar.functions.communication.later import (
        iallgather,
        iallreduce,
        ialltoall,
        ibcast,
        iexscan,
        igather,
        ireduce,
        ireduce_scatter,
        iscan,
        iscatter,
    )
    from mnpar.functions.communication.point_to_point import (
        irecv,
        isend,
        isendrecv,
        ishift,
        pseudo_connect,
        recv,
        send,
        sendrecv,
        shift,
    )
    from mnpar.functions.communication.rooted import bcast, gather, reduce, scatter
    from mnpar.functions.communication.shared import copy_to, gather_from, reduce_from, scatter_to
    from mnpar.functions.connection.attention import scaled_dot_product_attention
    from mnpar.functions.connection.convolution import (
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
    from mnpar.functions.connection.deformable_convolution import deformable_convolution_2d_sampler
    from mnpar.functions.connection.embed_id import embed_id
    from mnpar.functions.connection.linear import linear
    from mnpar.functions.connection.local_convolution import (
        local_convolution_2d,
        local_deconvolution_2d,
    )
    from mnpar.functions.connection.shift import shift_channels
    from mnpar.functions.divided.halo import halo_exchange
    from mnpar.functions.divided.ring_attention import ring_attention
    from mnpar.functions.divided.sequence import all_to_all_attention, recut
    from mnpar.functions.divided.spatial_convolution import (
        spatial_convolution_nd,
        spatial_deconvolution_nd,
        spatial_depthwise_convolution_2d,
    )
    from mnpar.functions.divided.spatial_normalization import (
        spatial_dropout,
        spatial_group_normalization,
        spatial_layer_normalization,
    )
    from mnpar.functions.divided.spatial_pooling import (
        spatial_average_pooling_nd,
        spatial_lp_pooling_nd,
        spatial_max_pooling_nd,
        spatial_unpooling_nd,
        spatial_upsampling_2d,
    )
    from mnpar.functions.divided.spatial_reduction import (
        spatial_global_average_pooling,
        spatial_global_max_pooling,
        spatial_linear,
    )
    from mnpar.functions.divided.spatial_resize import spatial_resize_images
    from mnpar.functions.divided.vocabulary import vocabulary_parallel_softmax_cross_entropy
    from mnpar.functions.evaluation import (
        accuracy,
        binary_accuracy,
        classification_summary,
        f1_score,
        precision,
        r2_score,
        recall,
    )
    from mnpar.functions.loss.crf1d import argmax_crf1d, crf1d
    from mnpar.functions.loss.ctc import connectionist_temporal_classification
    from mnpar.functions.loss.hinge import hinge
    from mnpar.functions.loss.likelihood import (
        bernoulli_nll,
        gaussian,
        gaussian_kl_divergence,
        gaussian_nll,
    )
    from mnpar.functions.loss.metric_learning import (
        contrastive,
        cross_covariance,
        decov,
        discriminative_margin_based_clustering_loss,
        triplet,
    )
    from mnpar.functions.loss.regression import (
        absolute_error,
        huber_loss,
        mean_absolute_error,
        mean_squared_error,
        squared_error,
    )
    from mnpar.functions.loss.sampled import black_out, negative_sampling
    from mnpar.functions.loss.sigmoid_cross_entropy import sigmoid_cross_entropy
    from mnpar.functions.loss.softmax_cross_entropy import softmax_cross_entropy
    from mnpar.functions.math.arithmetic import (
        absolute,
        add,
        floor_divide,
        identity,
        linear_interpolate,
        squared_difference,
    )
    from mnpar.functions.math.complex_parts import conj, imag, real
    from mnpar.functions.math.cumulative import cumprod, cumsum, prod
    from mnpar.functions.math.einsum import bilinear, einsum, tensordot
    from mnpar.functions.math.exponential import exp, expm1, log, log1p, log2, log10
    from mnpar.functions.math.fft import fft, ifft
    from mnpar.functions.math.gamma import digamma, lgamma, polygamma, zeta
    from mnpar.functions.math.linear_algebra import (
        batch_det,
        batch_inv,
        batch_l2_norm_squared,
        batch_matmul,
        cholesky,
        det,
        inv,
    )
    from mnpar.functions.math.matmul import matmul
    from mnpar.functions.math.maximum import clip, maximum, minimum
    from mnpar.functions.math.normal_distribution import (
        erfc,
        erfcinv,
        erfcx,
        erfinv,
        log_ndtr,
        ndtr,
        ndtri,
    )
    from mnpar.functions.math.reduction import (
        argmax,
        argmin,
        average,
        logsumexp,
        max,
        mean,
        min,
        sum,
    )
    from mnpar.functions.math.rounding import ceil, fix, floor, fmod, sign
    from mnpar.functions.math.scale import bias, scale
    from mnpar.functions.math.sparse_matmul import sparse_matmul
    from mnpar.functions.math.sqrt import rsqrt, sqrt, square
    from mnpar.functions.math.trigonometric import (
        arccos,
        arcsin,
        arctan,
        arctan2,
        arctanh,
        cos,
        cosh,
        sin,
        sinh,
        tan,
    )
    from mnpar.functions.noise import (
        dropout,
        gumbel_softmax,
        rrelu,
        simplified_dropconnect,
        zoneout,
    )
    from mnpar.functions.normalization.batch_normalization import (
        batch_normalization,
        fixed_batch_normalization,
    )
    from mnpar.functions.normalization.batch_renormalization import (
        batch_renormalization,
        fixed_batch_renormalization,
    )
    from mnpar.functions.normalization.decorrelated_batch_normalization import (
        decorrelated_batch_normalization,
        fixed_decorrelated_batch_normalization,
    )
    from mnpar.functions.normalization.layer_normalization import (
        group_normalization,
        layer_normalization,
    )
    from mnpar.functions.normalization.local_contrast_normalization import (
        local_contrast_normalization,
        spatial_local_contrast_normalization,
    )
    from mnpar.functions.normalization.local_response_normalization import (
        local_response_normalization,
        normalize,
    )
    from mnpar.functions.pooling.lp_pooling import lp_pooling_nd
    from mnpar.functions.pooling.pooling import (
        average_pooling_1d,
        average_pooling_2d,
        average_pooling_3d,
        average_pooling_nd,
        max_pooling_1d,
        max_pooling_2d,
        max_pooling_3d,
        max_pooling_nd,
    )
    from mnpar.functions.pooling.roi_pooling import (
        roi_average_align_2d,
        roi_average_pooling_2d,
        roi_max_align_2d,
        roi_max_pooling_2d,
        roi_pooling_2d,
    )
    from mnpar.functions.pooling.spatial_pyramid_pooling import spatial_pyramid_pooling_2d
    from mnpar.functions.pooling.unpooling import (
        unpooling_1d,
        unpooling_2d,
        unpooling_3d,
        unpooling_nd,
        upsampling_2d,
    )
    from mnpar.functions.rnn.lstm import lstm
    from mnpar.functions.rnn.n_step_rnn import (
        n_step_bigru,
        n_step_bilstm,
        n_step_birnn,
        n_step_gru,
        n_step_lstm,
        n_step_rnn,
    )
    from mnpar.functions.rnn.tree_lstm import slstm, tree_lstm
    from mnpar.functions.util.forget import forget
else:
    __getattr__, __dir__ = lazy.names(__name__)

__all__ = [
    "absolute",
    "absolute_error",
    "accuracy",
    "add",
    "all_to_all_attention",
    "allgather",
    "allreduce",
    "alltoall",
    "arccos",
    "arcsin",
    "arctan",
    "arctan2",
    "arctanh",
    "argmax",
    "argmax_crf1d",
    "argmin",
    "as_strided",
    "average",
    "average_pooling_1d",
    "average_pooling_2d",
    "average_pooling_3d",
    "average_pooling_nd",
    "barrier",
    "batch_det",
    "batch_inv",
    "batch_l2_norm_squared",
    "batch_matmul",
    "batch_normalization",
    "batch_renormalization",
    "bcast",
    "bernoulli_nll",
    "bias",
    "bilinear",
    "binary_accuracy",
    "black_out",
    "broadcast",
    "broadcast_to",
    "cast",
    "ceil",
    "cholesky",
    "classification_summary",
    "clip",
    "clipped_relu",
    "concat",
    "conj",
    "connectionist_temporal_classification",
    "contrastive",
    "convolution_1d",
    "convolution_2d",
    "convolution_3d",
    "convolution_nd",
    "copy",
    "copy_to",
    "cos",
    "cosh",
    "crelu",
    "crf1d",
    "cross_covariance",
    "cumprod",
    "cumsum",
    "deconvolution_1d",
    "deconvolution_2d",
    "deconvolution_3d",
    "deconvolution_nd",
    "decorrelated_batch_normalization",
    "decov",
    "deformable_convolution_2d_sampler",
    "depth2space",
    "depthwise_convolution_2d",
    "det",
    "diagonal",
    "digamma",
    "dilated_convolution_2d",
    "discriminative_margin_based_clustering_loss",
    "dropout",
    "dstack",
    "einsum",
    "elu",
    "embed_id",
    "erf",
    "erfc",
    "erfcinv",
    "erfcx",
    "erfinv",
    "exchange",
    "exp",
    "expand_dims",
    "expm1",
    "exscan",
    "f1_score",
    "fft",
    "fix",
    "fixed_batch_normalization",
    "fixed_batch_renormalization",
    "fixed_decorrelated_batch_normalization",
    "flatten",
    "flip",
    "fliplr",
    "flipud",
    "floor",
    "floor_divide",
    "fmod",
    "forget",
    "gather",
    "gather_from",
    "gaussian",
    "gaussian_kl_divergence",
    "gaussian_nll",
    "gelu",
    "get_item",
    "group_normalization",
    "gumbel_softmax",
    "halo_exchange",
    "hard_sigmoid",
    "hinge",
    "hstack",
    "huber_loss",
    "iallgather",
    "iallreduce",
    "ialltoall",
    "ibcast",
    "identity",
    "iexchange",
    "iexscan",
    "ifft",
    "igather",
    "im2col",
    "imag",
    "inv",
    "irecv",
    "ireduce",
    "ireduce_scatter",
    "iscan",
    "iscatter",
    "isend",
    "isendrecv",
    "ishift",
    "layer_normalization",
    "leaky_relu",
    "lgamma",
    "linear",
    "linear_interpolate",
    "local_contrast_normalization",
    "local_convolution_2d",
    "local_deconvolution_2d",
    "local_response_normalization",
    "log",
    "log1p",
    "log2",
    "log10",
    "log_ndtr",
    "log_softmax",
    "logsumexp",
    "lp_pooling_nd",
    "lstm",
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
    "n_step_bigru",
    "n_step_bilstm",
    "n_step_birnn",
    "n_step_gru",
    "n_step_lstm",
    "n_step_rnn",
    "ndtr",
    "ndtri",
    "negative_sampling",
    "normalize",
    "pad",
    "pad_sequence",
    "permutate",
    "polygamma",
    "precision",
    "prelu",
    "prod",
    "pseudo_connect",
    "r2_score",
    "real",
    "recall",
    "recut",
    "recv",
    "reduce",
    "reduce_from",
    "reduce_scatter",
    "relu",
    "relu6",
    "repartition",
    "repeat",
    "reshape",
    "resize_images",
    "ring_attention",
    "roi_average_align_2d",
    "roi_average_pooling_2d",
    "roi_max_align_2d",
    "roi_max_pooling_2d",
    "roi_pooling_2d",
    "rollaxis",
    "rrelu",
    "rsqrt",
    "scale",
    "scaled_dot_product_attention",
    "scan",
    "scatter",
    "scatter_add",
    "scatter_to",
    "select_item",
    "selu",
    "send",
    "sendrecv",
    "separate",
    "shift",
    "shift_channels",
    "sigmoid",
    "sigmoid_cross_entropy",
    "sign",
    "simplified_dropconnect",
    "sin",
    "sinh",
    "slstm",
    "softmax",
    "softmax_cross_entropy",
    "softplus",
    "space2depth",
    "sparse_matmul",
    "spatial_average_pooling_nd",
    "spatial_convolution_nd",
    "spatial_deconvolution_nd",
    "spatial_depthwise_convolution_2d",
    "spatial_dropout",
    "spatial_global_average_pooling",
    "spatial_global_max_pooling",
    "spatial_group_normalization",
    "spatial_layer_normalization",
    "spatial_linear",
    "spatial_local_contrast_normalization",
    "spatial_lp_pooling_nd",
    "spatial_max_pooling_nd",
    "spatial_pyramid_pooling_2d",
    "spatial_resize_images",
    "spatial_transformer_grid",
    "spatial_transformer_sampler",
    "spatial_unpooling_nd",
    "spatial_upsampling_2d",
    "split_axis",
    "sqrt",
    "square",
    "squared_difference",
    "squared_error",
    "squeeze",
    "stack",
    "sum",
    "sum_to",
    "swapaxes",
    "swish",
    "tan",
    "tanh",
    "tensordot",
    "tile",
    "transpose",
    "transpose_sequence",
    "tree_lstm",
    "triplet",
    "unpooling_1d",
    "unpooling_2d",
    "unpooling_3d",
    "unpooling_nd",
    "upsampling_2d",
    "vocabulary_parallel_softmax_cross_entropy",
    "vstack",
    "where",
    "zeta",
    "zoneout",
]
