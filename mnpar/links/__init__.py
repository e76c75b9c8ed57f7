"""Links: layers with parameters, under Chainer's names."""

from mnpar.links.batch_normalization import BatchNormalization
from mnpar.links.classifier import Classifier
from mnpar.links.convolution import (
    Convolution1D,
    Convolution2D,
    Convolution3D,
    ConvolutionND,
    Deconvolution1D,
    Deconvolution2D,
    Deconvolution3D,
    DeconvolutionND,
    DepthwiseConvolution2D,
    DilatedConvolution2D,
    Inception,
    MLPConvolution2D,
)
from mnpar.links.linear import Linear
from mnpar.links.multi_node_batch_normalization import MultiNodeBatchNormalization, create_mnbn_model
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
from mnpar.links.recurrent import GRU, LSTM, EmbedID, StatefulGRU, StatelessGRU, StatelessLSTM
from mnpar.links.sample_normalization import GroupNormalization, LayerNormalization
from mnpar.links.small import Bias, Highway, Maxout, Parameter, PReLU, Scale
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
from mnpar.links.spatial_normalization import SpatialBatchNormalization, SpatialGroupNormalization, SpatialLayerNormalization

__all__ = [
    "GRU",
    "LSTM",
    "BatchNormalization",
    "Bias",
    "Classifier",
    "Convolution1D",
    "Convolution2D",
    "Convolution3D",
    "ConvolutionND",
    "Deconvolution1D",
    "Deconvolution2D",
    "Deconvolution3D",
    "DeconvolutionND",
    "DepthwiseConvolution2D",
    "DilatedConvolution2D",
    "EmbedID",
    "GroupNormalization",
    "Highway",
    "Inception",
    "LayerNormalization",
    "Linear",
    "MLPConvolution2D",
    "Maxout",
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
    "PReLU",
    "Parameter",
    "Scale",
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
    "StatefulGRU",
    "StatelessGRU",
    "StatelessLSTM",
    "create_mnbn_model",
    "create_multi_node_n_step_rnn",
]
