"""Links: layers with parameters, under Chainer's names."""

from typing import TYPE_CHECKING

from mnpar import lazy

if TYPE_CHECKING:
    from mnpar.links.attention import MultiHeadAttention
    from mnpar.links.batch_normalization import (
        BatchNormalization,
        BatchRenormalization,
        DecorrelatedBatchNormalization,
    )
    from mnpar.links.bilinear import Bilinear
    from mnpar.links.classifier import Classifier
    from mnpar.links.convolution import (
        Convolution1D,
        Convolution2D,
        Convolution3D,
        ConvolutionND,
        DepthwiseConvolution2D,
        DilatedConvolution2D,
        MLPConvolution2D,
    )
    from mnpar.links.deconvolution import (
        Deconvolution1D,
        Deconvolution2D,
        Deconvolution3D,
        DeconvolutionND,
    )
    from mnpar.links.deformable_convolution import (
        DeformableConvolution2D,
        DeformableConvolution2DSampler,
    )
    from mnpar.links.divided import gather_parameter
    from mnpar.links.dropconnect import SimplifiedDropconnect
    from mnpar.links.gated import (
        StatefulMGU,
        StatefulPeepholeLSTM,
        StatefulZoneoutLSTM,
        StatelessMGU,
    )
    from mnpar.links.hierarchical_softmax import BinaryHierarchicalSoftmax
    from mnpar.links.inception import Inception, InceptionBN
    from mnpar.links.linear import Linear
    from mnpar.links.local_convolution import LocalConvolution2D, LocalDeconvolution2D
    from mnpar.links.mixture_of_experts import MixtureOfExperts
    from mnpar.links.multi_node_batch_normalization import (
        MultiNodeBatchNormalization,
        create_mnbn_model,
    )
    from mnpar.links.multi_node_n_step_rnn import MultiNodeNStepRNN, create_multi_node_n_step_rnn
    from mnpar.links.n_step import (
        NStepBiGRU,
        NStepBiLSTM,
        NStepBiRNNReLU,
        NStepBiRNNTanh,
        NStepGRU,
        NStepLSTM,
        NStepRNNBase,
        NStepRNNReLU,
        NStepRNNTanh,
    )
    from mnpar.links.parallel_convolution import (
        ChannelParallelConvolution2D,
        FilterParallelConvolution2D,
    )
    from mnpar.links.parallel_embedding import VocabularyParallelEmbedID
    from mnpar.links.parallel_linear import ColumnParallelLinear, RowParallelLinear
    from mnpar.links.recurrent import GRU, LSTM, EmbedID, StatefulGRU, StatelessGRU, StatelessLSTM
    from mnpar.links.sample_normalization import GroupNormalization, LayerNormalization
    from mnpar.links.sampled_loss import BlackOut, CRF1d, NegativeSampling
    from mnpar.links.small import Bias, Highway, Maxout, Parameter, PReLU, Scale, Swish
    from mnpar.links.spatial_convolution import (
        SpatialConvolution1D,
        SpatialConvolution2D,
        SpatialConvolution3D,
        SpatialConvolutionND,
        SpatialDeconvolution1D,
        SpatialDeconvolution2D,
        SpatialDeconvolution3D,
        SpatialDeconvolutionND,
        SpatialDepthwiseConvolution2D,
    )
    from mnpar.links.spatial_linear import SpatialLinear
    from mnpar.links.spatial_local_convolution import (
        SpatialLocalConvolution2D,
        SpatialLocalDeconvolution2D,
    )
    from mnpar.links.spatial_normalization import (
        SpatialBatchNormalization,
        SpatialGroupNormalization,
        SpatialLayerNormalization,
    )
    from mnpar.links.tree_lstm import ChildSumTreeLSTM, NaryTreeLSTM
else:
    __getattr__, __dir__ = lazy.names(
        __name__, MultiNodeChainList="mnpar.parallel.multi_node_chain_list"
    )

__all__ = [
    "GRU",
    "LSTM",
    "BatchNormalization",
    "BatchRenormalization",
    "Bias",
    "Bilinear",
    "BinaryHierarchicalSoftmax",
    "BlackOut",
    "CRF1d",
    "ChannelParallelConvolution2D",
    "ChildSumTreeLSTM",
    "Classifier",
    "ColumnParallelLinear",
    "Convolution1D",
    "Convolution2D",
    "Convolution3D",
    "ConvolutionND",
    "Deconvolution1D",
    "Deconvolution2D",
    "Deconvolution3D",
    "DeconvolutionND",
    "DecorrelatedBatchNormalization",
    "DeformableConvolution2D",
    "DeformableConvolution2DSampler",
    "DepthwiseConvolution2D",
    "DilatedConvolution2D",
    "EmbedID",
    "FilterParallelConvolution2D",
    "GroupNormalization",
    "Highway",
    "Inception",
    "InceptionBN",
    "LayerNormalization",
    "Linear",
    "LocalConvolution2D",
    "LocalDeconvolution2D",
    "MLPConvolution2D",
    "Maxout",
    "MixtureOfExperts",
    "MultiHeadAttention",
    "MultiNodeBatchNormalization",
    "MultiNodeNStepRNN",
    "NStepBiGRU",
    "NStepBiLSTM",
    "NStepBiRNNReLU",
    "NStepBiRNNTanh",
    "NStepGRU",
    "NStepLSTM",
    "NStepRNNBase",
    "NStepRNNReLU",
    "NStepRNNTanh",
    "NaryTreeLSTM",
    "NegativeSampling",
    "PReLU",
    "Parameter",
    "RowParallelLinear",
    "Scale",
    "SimplifiedDropconnect",
    "SpatialBatchNormalization",
    "SpatialConvolution1D",
    "SpatialConvolution2D",
    "SpatialConvolution3D",
    "SpatialConvolutionND",
    "SpatialDeconvolution1D",
    "SpatialDeconvolution2D",
    "SpatialDeconvolution3D",
    "SpatialDeconvolutionND",
    "SpatialDepthwiseConvolution2D",
    "SpatialGroupNormalization",
    "SpatialLayerNormalization",
    "SpatialLinear",
    "SpatialLocalConvolution2D",
    "SpatialLocalDeconvolution2D",
    "StatefulGRU",
    "StatefulMGU",
    "StatefulPeepholeLSTM",
    "StatefulZoneoutLSTM",
    "StatelessGRU",
    "StatelessLSTM",
    "StatelessMGU",
    "Swish",
    "VocabularyParallelEmbedID",
    "create_mnbn_model",
    "create_multi_node_n_step_rnn",
    "gather_parameter",
]
