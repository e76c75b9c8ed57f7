"""Links: layers with parameters, under Chainer's names."""

from typing import TYPE_CHECKING

from mnpar import lazy

if TYPE_CHECKING:
    from mnpar.links.activation import Maxout as Maxout, PReLU as PReLU, Swish as Swish
    from mnpar.links.attention import MultiHeadAttention as MultiHeadAttention
    from mnpar.links.classifier import Classifier as Classifier
    from mnpar.links.convolution import (
        Convolution1D as Convolution1D,
        Convolution2D as Convolution2D,
        Convolution3D as Convolution3D,
        ConvolutionND as ConvolutionND,
        Deconvolution1D as Deconvolution1D,
        Deconvolution2D as Deconvolution2D,
        Deconvolution3D as Deconvolution3D,
        DeconvolutionND as DeconvolutionND,
        DeformableConvolution2D as DeformableConvolution2D,
        DeformableConvolution2DSampler as DeformableConvolution2DSampler,
        DepthwiseConvolution2D as DepthwiseConvolution2D,
        DilatedConvolution2D as DilatedConvolution2D,
        MLPConvolution2D as MLPConvolution2D,
    )
    from mnpar.links.divided import gather_parameter as gather_parameter
    from mnpar.links.embedding import (
        EmbedID as EmbedID,
        VocabularyParallelEmbedID as VocabularyParallelEmbedID,
    )
    from mnpar.links.experts import MixtureOfExperts as MixtureOfExperts
    from mnpar.links.inception import Inception as Inception, InceptionBN as InceptionBN
    from mnpar.links.linear import (
        Bilinear as Bilinear,
        Highway as Highway,
        Linear as Linear,
        SimplifiedDropconnect as SimplifiedDropconnect,
    )
    from mnpar.links.local_convolution import (
        LocalConvolution2D as LocalConvolution2D,
        LocalDeconvolution2D as LocalDeconvolution2D,
    )
    from mnpar.links.losses import (
        BinaryHierarchicalSoftmax as BinaryHierarchicalSoftmax,
        BlackOut as BlackOut,
        CRF1d as CRF1d,
        NegativeSampling as NegativeSampling,
    )
    from mnpar.links.n_step_rnn import (
        MultiNodeNStepRNN as MultiNodeNStepRNN,
        NStepBiGRU as NStepBiGRU,
        NStepBiLSTM as NStepBiLSTM,
        NStepBiRNNReLU as NStepBiRNNReLU,
        NStepBiRNNTanh as NStepBiRNNTanh,
        NStepGRU as NStepGRU,
        NStepLSTM as NStepLSTM,
        NStepRNNBase as NStepRNNBase,
        NStepRNNReLU as NStepRNNReLU,
        NStepRNNTanh as NStepRNNTanh,
        create_multi_node_n_step_rnn as create_multi_node_n_step_rnn,
    )
    from mnpar.links.normalization import (
        BatchNormalization as BatchNormalization,
        BatchRenormalization as BatchRenormalization,
        DecorrelatedBatchNormalization as DecorrelatedBatchNormalization,
        GroupNormalization as GroupNormalization,
        LayerNormalization as LayerNormalization,
        MultiNodeBatchNormalization as MultiNodeBatchNormalization,
        create_mnbn_model as create_mnbn_model,
    )
    from mnpar.links.parallel import (
        ChannelParallelConvolution2D as ChannelParallelConvolution2D,
        ColumnParallelLinear as ColumnParallelLinear,
        FilterParallelConvolution2D as FilterParallelConvolution2D,
        RowParallelLinear as RowParallelLinear,
    )
    from mnpar.links.recurrent import (
        GRU as GRU,
        LSTM as LSTM,
        StatefulGRU as StatefulGRU,
        StatefulMGU as StatefulMGU,
        StatefulPeepholeLSTM as StatefulPeepholeLSTM,
        StatefulZoneoutLSTM as StatefulZoneoutLSTM,
        StatelessGRU as StatelessGRU,
        StatelessLSTM as StatelessLSTM,
        StatelessMGU as StatelessMGU,
    )
    from mnpar.links.scale import Bias as Bias, Parameter as Parameter, Scale as Scale
    from mnpar.links.spatial import (
        SpatialLinear as SpatialLinear,
        SpatialLocalConvolution2D as SpatialLocalConvolution2D,
        SpatialLocalDeconvolution2D as SpatialLocalDeconvolution2D,
    )
    from mnpar.links.torch_module import TorchModule as TorchModule
    from mnpar.links.tree_lstm import (
        ChildSumTreeLSTM as ChildSumTreeLSTM,
        NaryTreeLSTM as NaryTreeLSTM,
    )
else:
    __getattr__, __dir__, __all__ = lazy.names(
        __name__, MultiNodeChainList="mnpar.parallel.multi_node_chain_list"
    )
