"""Links: layers with parameters, under Chainer's names."""

from mnpar.links.batch_normalization import BatchNormalization
from mnpar.links.bilinear import Bilinear
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
from mnpar.links.dropconnect import SimplifiedDropconnect
from mnpar.links.gated import StatefulMGU, StatefulPeepholeLSTM, StatefulZoneoutLSTM, StatelessMGU
from mnpar.links.inception import InceptionBN
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
from mnpar.links.small import Bias, Highway, Maxout, Parameter, PReLU, Scale, Swish
from mnpar.links.tree_lstm import ChildSumTreeLSTM, NaryTreeLSTM

__all__ = [
    "GRU",
    "LSTM",
    "BatchNormalization",
    "Bias",
    "Bilinear",
    "ChildSumTreeLSTM",
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
    "InceptionBN",
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
    "NaryTreeLSTM",
    "PReLU",
    "Parameter",
    "Scale",
    "SimplifiedDropconnect",
    "StatefulGRU",
    "StatefulMGU",
    "StatefulPeepholeLSTM",
    "StatefulZoneoutLSTM",
    "StatelessGRU",
    "StatelessLSTM",
    "StatelessMGU",
    "Swish",
    "create_mnbn_model",
    "create_multi_node_n_step_rnn",
]
