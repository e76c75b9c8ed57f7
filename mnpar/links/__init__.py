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

__all__ = [
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
    "Inception",
    "Linear",
    "MLPConvolution2D",
]
