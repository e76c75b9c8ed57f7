"""Differentiable functions, under Chainer's names: ``import mnpar.functions as F``.

Importing this package also gives Variable its operators.
"""

from typing import TYPE_CHECKING

from mnpar import lazy
from mnpar.functions import operators  # noqa: F401 - gives Variable its operators

if TYPE_CHECKING:
    from mnpar.functions.activation.gelu import erf as erf, gelu as gelu
    from mnpar.functions.activation.maxout import maxout as maxout
    from mnpar.functions.activation.prelu import prelu as prelu
    from mnpar.functions.activation.relu import (
        clipped_relu as clipped_relu,
        crelu as crelu,
        elu as elu,
        leaky_relu as leaky_relu,
        relu as relu,
        relu6 as relu6,
        selu as selu,
    )
    from mnpar.functions.activation.sigmoid import (
        hard_sigmoid as hard_sigmoid,
        sigmoid as sigmoid,
        tanh as tanh,
    )
    from mnpar.functions.activation.softmax import log_softmax as log_softmax, softmax as softmax
    from mnpar.functions.activation.softplus import softplus as softplus
    from mnpar.functions.activation.swish import swish as swish
    from mnpar.functions.array.broadcast import (
        broadcast as broadcast,
        broadcast_to as broadcast_to,
        sum_to as sum_to,
    )
    from mnpar.functions.array.get_item import (
        as_strided as as_strided,
        get_item as get_item,
        select_item as select_item,
        where as where,
    )
    from mnpar.functions.array.im2col import im2col as im2col
    from mnpar.functions.array.joining import (
        concat as concat,
        dstack as dstack,
        hstack as hstack,
        separate as separate,
        split_axis as split_axis,
        stack as stack,
        vstack as vstack,
    )
    from mnpar.functions.array.pad import pad as pad, pad_sequence as pad_sequence
    from mnpar.functions.array.rearranging import (
        depth2space as depth2space,
        diagonal as diagonal,
        flip as flip,
        fliplr as fliplr,
        flipud as flipud,
        permutate as permutate,
        roll as roll,
        rollaxis as rollaxis,
        scatter_add as scatter_add,
        space2depth as space2depth,
        transpose_sequence as transpose_sequence,
    )
    from mnpar.functions.array.repeat import repeat as repeat, tile as tile
    from mnpar.functions.array.resize_images import resize_images as resize_images
    from mnpar.functions.array.shape import (
        cast as cast,
        copy as copy,
        expand_dims as expand_dims,
        flatten as flatten,
        moveaxis as moveaxis,
        reshape as reshape,
        squeeze as squeeze,
        swapaxes as swapaxes,
        transpose as transpose,
    )
    from mnpar.functions.array.spatial_transformer import (
        spatial_transformer_grid as spatial_transformer_grid,
        spatial_transformer_sampler as spatial_transformer_sampler,
    )
    from mnpar.functions.bridges.from_jax import from_jax as from_jax
    from mnpar.functions.bridges.from_numba import from_numba as from_numba
    from mnpar.functions.bridges.from_torch import from_torch as from_torch
    from mnpar.functions.communication.collective import (
        allgather as allgather,
        allreduce as allreduce,
        alltoall as alltoall,
        barrier as barrier,
        bcast as bcast,
        exscan as exscan,
        gather as gather,
        iallgather as iallgather,
        iallreduce as iallreduce,
        ialltoall as ialltoall,
        ibcast as ibcast,
        iexscan as iexscan,
        igather as igather,
        ireduce as ireduce,
        ireduce_scatter as ireduce_scatter,
        iscan as iscan,
        iscatter as iscatter,
        reduce as reduce,
        reduce_scatter as reduce_scatter,
        scan as scan,
        scatter as scatter,
    )
    from mnpar.functions.communication.exchange import (
        exchange as exchange,
        iexchange as iexchange,
        repartition as repartition,
    )
    from mnpar.functions.communication.point_to_point import (
        irecv as irecv,
        isend as isend,
        isendrecv as isendrecv,
        ishift as ishift,
        pseudo_connect as pseudo_connect,
        recv as recv,
        send as send,
        sendrecv as sendrecv,
        shift as shift,
    )
    from mnpar.functions.communication.shared import (
        copy_to as copy_to,
        gather_from as gather_from,
        reduce_from as reduce_from,
        scatter_to as scatter_to,
    )
    from mnpar.functions.connection.attention import (
        scaled_dot_product_attention as scaled_dot_product_attention,
    )
    from mnpar.functions.connection.convolution import (
        convolution_1d as convolution_1d,
        convolution_2d as convolution_2d,
        convolution_3d as convolution_3d,
        convolution_nd as convolution_nd,
        deconvolution_1d as deconvolution_1d,
        deconvolution_2d as deconvolution_2d,
        deconvolution_3d as deconvolution_3d,
        deconvolution_nd as deconvolution_nd,
        depthwise_convolution_2d as depthwise_convolution_2d,
        dilated_convolution_2d as dilated_convolution_2d,
    )
    from mnpar.functions.connection.deformable_convolution import (
        deformable_convolution_2d_sampler as deformable_convolution_2d_sampler,
    )
    from mnpar.functions.connection.embed_id import embed_id as embed_id
    from mnpar.functions.connection.linear import linear as linear
    from mnpar.functions.connection.local_convolution import (
        local_convolution_2d as local_convolution_2d,
        local_deconvolution_2d as local_deconvolution_2d,
    )
    from mnpar.functions.connection.shift import shift_channels as shift_channels
    from mnpar.functions.divided.halo import halo_exchange as halo_exchange
    from mnpar.functions.divided.ring_attention import ring_attention as ring_attention
    from mnpar.functions.divided.sequence import (
        all_to_all_attention as all_to_all_attention,
        recut as recut,
    )
    from mnpar.functions.divided.vocabulary import (
        vocabulary_parallel_softmax_cross_entropy as vocabulary_parallel_softmax_cross_entropy,
    )
    from mnpar.functions.evaluation import (
        accuracy as accuracy,
        binary_accuracy as binary_accuracy,
        classification_summary as classification_summary,
        f1_score as f1_score,
        precision as precision,
        r2_score as r2_score,
        recall as recall,
    )
    from mnpar.functions.loss.crf1d import argmax_crf1d as argmax_crf1d, crf1d as crf1d
    from mnpar.functions.loss.ctc import (
        connectionist_temporal_classification as connectionist_temporal_classification,
    )
    from mnpar.functions.loss.hinge import hinge as hinge
    from mnpar.functions.loss.likelihood import (
        bernoulli_nll as bernoulli_nll,
        gaussian as gaussian,
        gaussian_kl_divergence as gaussian_kl_divergence,
        gaussian_nll as gaussian_nll,
    )
    from mnpar.functions.loss.metric_learning import (
        contrastive as contrastive,
        cross_covariance as cross_covariance,
        decov as decov,
        discriminative_margin_based_clustering_loss as discriminative_margin_based_clustering_loss,
        triplet as triplet,
    )
    from mnpar.functions.loss.regression import (
        absolute_error as absolute_error,
        huber_loss as huber_loss,
        mean_absolute_error as mean_absolute_error,
        mean_squared_error as mean_squared_error,
        squared_error as squared_error,
    )
    from mnpar.functions.loss.sampled import (
        black_out as black_out,
        negative_sampling as negative_sampling,
    )
    from mnpar.functions.loss.sigmoid_cross_entropy import (
        sigmoid_cross_entropy as sigmoid_cross_entropy,
    )
    from mnpar.functions.loss.softmax_cross_entropy import (
        softmax_cross_entropy as softmax_cross_entropy,
    )
    from mnpar.functions.math.arithmetic import (
        absolute as absolute,
        add as add,
        floor_divide as floor_divide,
        identity as identity,
        linear_interpolate as linear_interpolate,
        squared_difference as squared_difference,
    )
    from mnpar.functions.math.average import average as average, mean as mean
    from mnpar.functions.math.complex_parts import conj as conj, imag as imag, real as real
    from mnpar.functions.math.cumulative import cumprod as cumprod, cumsum as cumsum, prod as prod
    from mnpar.functions.math.einsum import (
        bilinear as bilinear,
        einsum as einsum,
        tensordot as tensordot,
    )
    from mnpar.functions.math.exponential import (
        exp as exp,
        expm1 as expm1,
        log as log,
        log1p as log1p,
        log2 as log2,
        log10 as log10,
    )
    from mnpar.functions.math.fft import fft as fft, ifft as ifft
    from mnpar.functions.math.linear_algebra import (
        batch_det as batch_det,
        batch_inv as batch_inv,
        batch_l2_norm_squared as batch_l2_norm_squared,
        batch_matmul as batch_matmul,
        cholesky as cholesky,
        det as det,
        inv as inv,
    )
    from mnpar.functions.math.matmul import matmul as matmul
    from mnpar.functions.math.maximum import clip as clip, maximum as maximum, minimum as minimum
    from mnpar.functions.math.reduction import (
        argmax as argmax,
        argmin as argmin,
        logsumexp as logsumexp,
        max as max,
        min as min,
        sum as sum,
    )
    from mnpar.functions.math.rounding import (
        ceil as ceil,
        fix as fix,
        floor as floor,
        fmod as fmod,
        sign as sign,
    )
    from mnpar.functions.math.scale import bias as bias, scale as scale
    from mnpar.functions.math.sparse_matmul import sparse_matmul as sparse_matmul
    from mnpar.functions.math.special import (
        digamma as digamma,
        erfc as erfc,
        erfcinv as erfcinv,
        erfcx as erfcx,
        erfinv as erfinv,
        lgamma as lgamma,
        log_ndtr as log_ndtr,
        ndtr as ndtr,
        ndtri as ndtri,
        polygamma as polygamma,
        zeta as zeta,
    )
    from mnpar.functions.math.sqrt import rsqrt as rsqrt, sqrt as sqrt, square as square
    from mnpar.functions.math.trigonometric import (
        arccos as arccos,
        arcsin as arcsin,
        arctan as arctan,
        arctan2 as arctan2,
        arctanh as arctanh,
        cos as cos,
        cosh as cosh,
        sin as sin,
        sinh as sinh,
        tan as tan,
    )
    from mnpar.functions.noise import (
        dropout as dropout,
        gumbel_softmax as gumbel_softmax,
        rrelu as rrelu,
        simplified_dropconnect as simplified_dropconnect,
        zoneout as zoneout,
    )
    from mnpar.functions.normalization.batch_normalization import (
        batch_normalization as batch_normalization,
        fixed_batch_normalization as fixed_batch_normalization,
    )
    from mnpar.functions.normalization.batch_renormalization import (
        batch_renormalization as batch_renormalization,
        fixed_batch_renormalization as fixed_batch_renormalization,
    )
    from mnpar.functions.normalization.decorrelated_batch_normalization import (
        decorrelated_batch_normalization as decorrelated_batch_normalization,
        fixed_decorrelated_batch_normalization as fixed_decorrelated_batch_normalization,
    )
    from mnpar.functions.normalization.layer_normalization import (
        group_normalization as group_normalization,
        layer_normalization as layer_normalization,
    )
    from mnpar.functions.normalization.local_contrast_normalization import (
        local_contrast_normalization as local_contrast_normalization,
    )
    from mnpar.functions.normalization.local_response_normalization import (
        local_response_normalization as local_response_normalization,
        normalize as normalize,
    )
    from mnpar.functions.pooling.lp_pooling import lp_pooling_nd as lp_pooling_nd
    from mnpar.functions.pooling.pooling import (
        average_pooling_1d as average_pooling_1d,
        average_pooling_2d as average_pooling_2d,
        average_pooling_3d as average_pooling_3d,
        average_pooling_nd as average_pooling_nd,
        max_pooling_1d as max_pooling_1d,
        max_pooling_2d as max_pooling_2d,
        max_pooling_3d as max_pooling_3d,
        max_pooling_nd as max_pooling_nd,
    )
    from mnpar.functions.pooling.roi_pooling import (
        roi_average_align_2d as roi_average_align_2d,
        roi_average_pooling_2d as roi_average_pooling_2d,
        roi_max_align_2d as roi_max_align_2d,
        roi_max_pooling_2d as roi_max_pooling_2d,
        roi_pooling_2d as roi_pooling_2d,
    )
    from mnpar.functions.pooling.spatial_pyramid_pooling import (
        spatial_pyramid_pooling_2d as spatial_pyramid_pooling_2d,
    )
    from mnpar.functions.pooling.unpooling import (
        unpooling_1d as unpooling_1d,
        unpooling_2d as unpooling_2d,
        unpooling_3d as unpooling_3d,
        unpooling_nd as unpooling_nd,
        upsampling_2d as upsampling_2d,
    )
    from mnpar.functions.rnn.lstm import lstm as lstm
    from mnpar.functions.rnn.n_step_rnn import (
        n_step_bigru as n_step_bigru,
        n_step_bilstm as n_step_bilstm,
        n_step_birnn as n_step_birnn,
        n_step_gru as n_step_gru,
        n_step_lstm as n_step_lstm,
        n_step_rnn as n_step_rnn,
    )
    from mnpar.functions.rnn.tree_lstm import slstm as slstm, tree_lstm as tree_lstm
    from mnpar.functions.util.forget import forget as forget
else:
    __getattr__, __dir__, __all__ = lazy.names(__name__)
