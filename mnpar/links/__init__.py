"""Links: layers with parameters, under Chainer's names."""

from mnpar.links.classifier import Classifier
from mnpar.links.linear import Linear

__all__ = ["Classifier", "Linear"]
