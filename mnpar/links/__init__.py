"""Links: layers with parameters, under Chainer's names."""

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
from mnpar.links.normalization import BatchNormalization, GroupNormalization, LayerNormalization
from mnpar.links.small import Bias, Highway, Maxout, Parameter, PReLU, Scale

__all__ = [
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
    "GroupNormalization",
    "Highway",
    "Inception",
    "LayerNormalization",
    "Linear",
    "MLPConvolution2D",
    "Maxout",
    "MultiNodeBatchNormalization",
    "PReLU",
    "Parameter",
    "Scale",
    "create_mnbn_model",
]
